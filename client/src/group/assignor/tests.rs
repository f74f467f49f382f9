//! Tables: who wants and has what, and who gets it.

use super::*;

const STICKY: Strategy = Strategy::CooperativeSticky;

fn set(text: &str) -> BTreeSet<TopicPartition> {
    text.split_whitespace()
        .map(|at| {
            let digits = at.find(|letter: char| letter.is_ascii_digit());
            let (topic, partition) = at.split_at(digits.expect("a partition"));
            TopicPartition::new(topic, partition.parse().expect("a number"))
        })
        .collect()
}

fn member(id: &str, topics: &str, owned: &str, generation: i32) -> Subscriber {
    Subscriber {
        member_id: id.to_owned(),
        instance_id: None,
        subscription: Subscription {
            topics: topics.split_whitespace().map(Arc::from).collect(),
            owned: set(owned),
            generation,
        },
    }
}

fn show(assigned: &Assignments) -> Vec<String> {
    assigned
        .iter()
        .map(|(member, partitions)| {
            let words: Vec<String> = partitions
                .iter()
                .map(|at| format!("{}{}", at.topic, at.partition))
                .collect();
            format!("{member}: {}", words.join(" "))
        })
        .collect()
}

fn counts(all: &[(&str, i32)]) -> PartitionCounts {
    all.iter()
        .map(|(topic, count)| (Arc::from(*topic), *count))
        .collect()
}

/// One member a row: id, topics, owned; all of generation 1.
#[track_caller]
fn check(strategy: Strategy, topics: &[(&str, i32)], members: &[(&str, &str, &str)], out: &[&str]) {
    let members = members
        .iter()
        .map(|(id, topics, owned)| member(id, topics, owned, 1))
        .collect();
    assert_eq!(show(&assign(strategy, members, &counts(topics))), out);
}

#[test]
fn range_gives_runs_of_each_topic_and_the_first_ones_more() {
    check(
        Strategy::Range,
        &[("t", 3), ("u", 3)],
        &[("b", "t u", ""), ("a", "t u", "")],
        &["a: t0 t1 u0 u1", "b: t2 u2"],
    );
    check(
        Strategy::Range,
        &[("t", 2), ("u", 4)],
        &[("a", "t", ""), ("b", "t u", ""), ("c", "u gone", "")],
        &["a: t0", "b: t1 u0 u1", "c: u2 u3"],
    );
    check(
        Strategy::Range,
        &[("t", 1)],
        &[("a", "t", ""), ("b", "t", "")],
        &["a: t0", "b: "],
    );
}

#[test]
fn round_robin_deals_all_partitions_in_turn() {
    check(
        Strategy::RoundRobin,
        &[("t", 3), ("u", 3)],
        &[("a", "t u", ""), ("b", "t u", "")],
        &["a: t0 t2 u1", "b: t1 u0 u2"],
    );
    check(
        Strategy::RoundRobin,
        &[("t", 2), ("u", 2), ("v", 2)],
        &[("a", "t", ""), ("b", "t u", ""), ("c", "u v", "")],
        &["a: t0", "b: t1 u1", "c: u0 v0 v1"],
    );
}

#[test]
fn static_members_keep_their_place_whatever_their_member_id() {
    for first_id in ["a", "z"] {
        let mut first = member(first_id, "t", "", 1);
        first.instance_id = Some("1".to_owned());
        let mut second = member("m", "t", "", 1);
        second.instance_id = Some("2".to_owned());
        let third = member("b", "t", "", 1);
        let assigned = assign(
            Strategy::Range,
            vec![third, second, first],
            &counts(&[("t", 3)]),
        );
        assert_eq!(assigned[first_id], set("t0"));
        assert_eq!(assigned["m"], set("t1"));
        assert_eq!(assigned["b"], set("t2"));
    }
}

#[test]
fn sticky_shares_evenly_and_moves_only_what_it_must() {
    // From nothing: even.
    check(
        STICKY,
        &[("t", 5)],
        &[("a", "t", ""), ("b", "t", "")],
        &["a: t0 t2 t4", "b: t1 t3"],
    );
    // Even already: nothing moves.
    check(
        STICKY,
        &[("t", 4)],
        &[("a", "t", "t3 t0"), ("b", "t", "t1 t2")],
        &["a: t0 t3", "b: t1 t2"],
    );
    // A member left: its partitions go round, nobody loses any.
    check(
        STICKY,
        &[("t", 6)],
        &[("a", "t", "t0 t1"), ("c", "t", "t4 t5")],
        &["a: t0 t1 t2", "c: t3 t4 t5"],
    );
}

#[test]
fn a_moving_partition_rests_for_one_rebalance() {
    // b comes: a gives t3 and t2 up, and b has to wait for them.
    check(
        STICKY,
        &[("t", 4)],
        &[("a", "t", "t0 t1 t2 t3"), ("b", "t", "")],
        &["a: t0 t1", "b: "],
    );
    // The rebalance that follows.
    check(
        STICKY,
        &[("t", 4)],
        &[("a", "t", "t0 t1"), ("b", "t", "")],
        &["a: t0 t1", "b: t2 t3"],
    );
}

#[test]
fn the_newest_claim_counts_and_contradictions_do_not() {
    let newest = vec![member("a", "t", "t0 t1", 1), member("b", "t", "t0 t1", 2)];
    let assigned = assign(STICKY, newest, &counts(&[("t", 2)]));
    // b owns both and keeps one; the other one moves, and rests first.
    assert_eq!(show(&assigned), ["a: ", "b: t0"]);
    let same = vec![member("a", "t", "t0 t1", 2), member("b", "t", "t0 t1", 2)];
    let assigned = assign(STICKY, same, &counts(&[("t", 2)]));
    assert_eq!(show(&assigned), ["a: t0", "b: t1"]);
}

#[test]
fn what_is_owned_and_no_longer_wanted_or_there_is_forgotten() {
    check(
        STICKY,
        &[("t", 1), ("u", 1)],
        &[("a", "u", "t0 t9 gone0"), ("b", "t u", "")],
        &["a: u0", "b: t0"],
    );
}

#[test]
fn sticky_is_even_among_those_who_want_the_same_and_settles() {
    // Whoever comes and goes: after the follow-up the shares differ by one at most, every
    // partition has one owner, and a further rebalance moves nothing.
    let topics = counts(&[("t", 17), ("u", 7)]);
    let mut held: Assignments = Assignments::new();
    for generation in 1..40 {
        let ids: Vec<String> = (0..(generation * 7) % 9 + 1)
            .map(|index| format!("m{}", (index * 5 + generation) % 11))
            .collect();
        let rebalance = |held: &Assignments| {
            let members = ids.iter().map(|id| {
                let mut subscriber = member(id, "t u", "", generation);
                subscriber.subscription.owned = held.get(id).cloned().unwrap_or_default();
                subscriber
            });
            assign(STICKY, members.collect(), &topics)
        };
        let first = rebalance(&held);
        let all = first.values().flatten().count();
        assert_eq!(all, first.values().flatten().collect::<BTreeSet<_>>().len());
        let second = rebalance(&first);
        assert_eq!(second.values().flatten().collect::<BTreeSet<_>>().len(), 24);
        let sizes: Vec<usize> = second.values().map(BTreeSet::len).collect();
        assert!(
            sizes.iter().max() <= sizes.iter().min().map(|min| min + 1).as_ref(),
            "{sizes:?}"
        );
        assert_eq!(rebalance(&second), second);
        held = second;
    }
}

#[test]
fn eager_sticky_gives_at_once_what_moves() {
    check(
        Strategy::Sticky,
        &[("t", 4)],
        &[("a", "t", "t0 t1 t2 t3"), ("b", "t", "")],
        &["a: t0 t1", "b: t2 t3"],
    );
    // Who had nothing to do with it keeps everything.
    check(
        Strategy::Sticky,
        &[("t", 6)],
        &[("a", "t", "t1 t4"), ("b", "t", "t0 t5"), ("c", "t", "")],
        &["a: t1 t4", "b: t0 t5", "c: t2 t3"],
    );
}
