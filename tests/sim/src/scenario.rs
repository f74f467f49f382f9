//! A run: the cluster forms, faults strike it, then a majority is healed for good and has to
//! make progress; in the end everything is healed and all replicas agree.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use corduroy_record::{GroupId, NodeId};

use crate::checker::Violation;
use crate::copies;
use crate::faults::{Faults, Plight};
use crate::fencing;
use crate::fleeting;
use crate::latest;
use crate::members;
use crate::membership::Membership;
use crate::network::Host;
use crate::options::{FaultClass, RunOptions};
use crate::workload::{CLIENTS, KEPT, KEPT_PARTITIONS, STRICT, TRIMMED};
use crate::world::{HOSTS, World};

/// A cluster without faults has formed and has its topics by then.
const FORMED_BY: Duration = Duration::from_secs(30);
/// A healed majority leads everything by then.
const LED_BY: Duration = Duration::from_secs(20);
/// And serves every client by then.
const SERVED_BY: Duration = Duration::from_secs(60);
/// Healed replicas hold the same by then.
const AGREED_BY: Duration = Duration::from_secs(60);
/// Of a node and its copy one has ended by then: it waits for 10 s whether the other one does.
const PARTED_BY: Duration = Duration::from_secs(20);
/// Producers of a run.
const PRODUCERS: u64 = 2;

/// All phases.
///
/// # Errors
/// The first law that is broken.
pub async fn run(world: &mut World, options: &RunOptions) -> Result<(), Violation> {
    form(world, options.classes().contains(&FaultClass::Groups)).await?;
    if options.classes().contains(&FaultClass::Recreate) {
        let fleeting = fleeting::run(world.workload.clone(), world.random.fork());
        world.running.spawn(CLIENTS, fleeting);
    }
    if options.classes().contains(&FaultClass::Fencing) {
        let fencing = fencing::run(world.workload.clone(), world.random.fork());
        world.running.spawn(CLIENTS, fencing);
    }
    if options.classes().contains(&FaultClass::Latest) {
        let latest = latest::run(world.workload.clone(), world.random.fork());
        world.running.spawn(CLIENTS, latest);
    }
    let mut faults = Faults::new(world, options.classes());
    let changes = options.classes().contains(&FaultClass::Membership);
    let mut membership = changes.then(|| Membership::new(world, faults.rotting()));
    let end = world.now() + options.fault_seconds * 1_000;
    while world.now() < end {
        faults.tick(world);
        if let Some(membership) = membership.as_mut().filter(|_| world.twins.is_none()) {
            membership.tick(world);
        }
        world.step().await?;
    }
    world
        .until("of a node and its copy one ends", PARTED_BY, |world| {
            world.twins.is_none()
        })
        .await?;
    count_sends(world);
    let may_be_out = match &mut membership {
        Some(membership) => membership.settle(world),
        None => HOSTS.to_vec(),
    };
    let (majority, left_out) = pick_majority(world, faults.rotting(), &may_be_out);
    tracing::info!(?majority, at = world.now(), "a majority is healed for good");
    faults.spare(world, &majority);
    let mut may_lead = majority;
    if let Some(left_out) = left_out {
        let plight = faults.leave_out(world, left_out);
        tracing::info!(left_out, ?plight, "the rest is not");
        if plight == Plight::Slow {
            may_lead = world.staff();
        }
    }
    live(world, &may_lead).await?;
    reunite(world, &mut faults).await
}

/// The nodes start, the topics are created, the clients begin.
async fn form(world: &mut World, with_groups: bool) -> Result<(), Violation> {
    for host in HOSTS {
        world.start(host);
    }
    world
        .until("the nodes serve", FORMED_BY, |world| {
            HOSTS.iter().all(|host| world.node(*host).is_serving())
        })
        .await?;
    let topics = in_background(world, move |workload| async move {
        if with_groups {
            members::prepare(&workload).await;
        }
        workload.create_topics().await;
        Ok(())
    });
    world
        .until("the topics are there", FORMED_BY, |world| {
            topics.borrow().is_some() && world.all_led(&HOSTS)
        })
        .await?;
    for _ in 0..PRODUCERS {
        let producer = world.workload.clone().produce(world.random.fork());
        world.running.spawn(CLIENTS, producer);
    }
    let strict = world.workload.clone().produce_strictly(world.random.fork());
    world.running.spawn(CLIENTS, strict);
    for partition in 0..KEPT_PARTITIONS {
        let reader = world.workload.clone().follow(KEPT, partition);
        world.running.spawn(CLIENTS, reader);
    }
    let reader = world.workload.clone().follow(TRIMMED, 0);
    world.running.spawn(CLIENTS, reader);
    if with_groups {
        members::begin(world);
    }
    world.pass(Duration::from_secs(1)).await
}

fn count_sends(world: &mut World) {
    let [_, failed, unknown, _] = world.ledger.counts();
    if failed > 0 {
        world.checker.sometimes().reach("send-failed");
    }
    if unknown > 0 {
        world.checker.sometimes().reach("send-unknown");
    }
    for _ in 0..world.ledger.times_recreated() {
        world.checker.sometimes().reach("recreated");
    }
    for _ in 0..world.ledger.times_fenced() {
        world.checker.sometimes().reach("older-epoch-refused");
    }
    for _ in 0..world.ledger.times_latest() {
        world.checker.sometimes().reach("latest-told");
    }
}

/// Who is healed, and who is not: nobody, where everyone is needed.
fn pick_majority(
    world: &mut World,
    rotting: Option<Host>,
    may_be_out: &[Host],
) -> (Vec<Host>, Option<Host>) {
    let drawn = world.random.pick(may_be_out);
    let left_out = drawn.map(|drawn| rotting.unwrap_or(drawn));
    let mut chosen = world.staff();
    chosen.retain(|host| Some(*host) != left_out);
    (chosen, left_out)
}

type Outcome = Rc<RefCell<Option<Result<(), String>>>>;

/// Does something on the clients' machine.
fn in_background<F>(world: &World, work: impl FnOnce(crate::workload::Workload) -> F) -> Outcome
where
    F: Future<Output = Result<(), String>> + 'static,
{
    let outcome = Outcome::default();
    let (slot, work) = (outcome.clone(), work(world.workload.clone()));
    world.running.spawn(CLIENTS, async move {
        let result = work.await;
        *slot.borrow_mut() = Some(result);
    });
    outcome
}

/// Waits for an outcome.
async fn finish(
    world: &mut World,
    what: &str,
    limit: Duration,
    outcome: Outcome,
) -> Result<(), Violation> {
    world
        .until(what, limit, |_| outcome.borrow().is_some())
        .await?;
    let result = outcome.borrow_mut().take();
    match result {
        Some(Err(error)) => Err(world.violation("progress", &format!("{what}: {error}"))),
        _ => Ok(()),
    }
}

/// The healed majority leads, takes records, and gives every acknowledged one.
async fn live(world: &mut World, may_lead: &[Host]) -> Result<(), Violation> {
    let may_lead = may_lead.to_vec();
    world
        .until("a healed majority leads everything", LED_BY, |world| {
            // Who had been removed unseen has found out by now.
            let mut may_lead = may_lead.clone();
            may_lead.retain(|host| world.staff().contains(host));
            world.all_led(&may_lead)
        })
        .await?;
    let sent = in_background(world, |workload| async move {
        for (topic, partition) in partitions() {
            workload.send_one(topic, partition).await?;
        }
        Ok(())
    });
    finish(world, "every partition takes a record", SERVED_BY, sent).await?;
    read_back(world).await
}

fn partitions() -> impl Iterator<Item = (&'static str, i32)> {
    let kept = (0..KEPT_PARTITIONS).map(|partition| (KEPT, partition));
    kept.chain([(TRIMMED, 0)])
}

/// Topic, partition, offset and value of a record that was read.
type ReadBack = (String, i32, i64, u64);

/// Every acknowledged record of the topics that keep everything is there, at its place.
async fn read_back(world: &mut World) -> Result<(), Violation> {
    // What is acknowledged from here on may be missed by the read.
    let acks = world.ledger.acks();
    let read: Rc<RefCell<Vec<ReadBack>>> = Rc::default();
    let into = read.clone();
    let outcome = in_background(world, |workload| async move {
        for (topic, partition) in partitions().chain([(STRICT, 0)]) {
            let found = workload.read_all(topic, partition).await?;
            let mut read = into.borrow_mut();
            let places = found.into_iter();
            read.extend(places.map(|(at, value)| (topic.to_owned(), partition, at, value)));
        }
        Ok(())
    });
    finish(world, "everything can be read", SERVED_BY, outcome).await?;
    let read: std::collections::BTreeMap<(String, i32, i64), u64> = read
        .borrow()
        .iter()
        .map(|(topic, partition, at, value)| ((topic.clone(), *partition, *at), *value))
        .collect();
    for ack in acks {
        if ack.place.0 != TRIMMED && read.get(&ack.place) != Some(&ack.value) {
            let found = read.get(&ack.place);
            let what = format!(
                "{} was acknowledged at {:?}; a read from the start finds {found:?} there",
                ack.value, ack.place
            );
            return Err(world.violation("acked_is_readable", &what));
        }
    }
    if let Some((value, place)) = world.ledger.doubles().first() {
        let what = format!("{value} is there twice, the second time at {place:?}");
        return Err(world.violation("nothing_is_there_twice", &what));
    }
    for (place, value) in &read {
        if world.ledger.failed(*value) {
            let what = format!("{value} is at {place:?}; its client was told that it failed");
            return Err(world.violation("failed_is_not_there", &what));
        }
    }
    Ok(())
}

/// Everything is healed; all replicas end with the same.
async fn reunite(world: &mut World, faults: &mut Faults) -> Result<(), Violation> {
    let staff = world.staff();
    faults.spare(world, &staff);
    world.workload.end();
    world
        .until("all nodes serve again", AGREED_BY, |world| {
            let mut staff = world.staff().into_iter();
            staff.all(|host| world.node(host).is_serving())
        })
        .await?;
    world
        .until("all replicas agree", AGREED_BY, |world| agree(world))
        .await?;
    compare_copies(world).await?;
    read_back(world).await
}

/// Every replica is read from its disk, byte by byte. One that meets damage has asked for it again by
/// the end.
async fn compare_copies(world: &mut World) -> Result<(), Violation> {
    let mut broken = None;
    world
        .until(
            "every copy is whole",
            AGREED_BY,
            |world| match copies::compare(world) {
                Ok(is_whole) => is_whole && agree(world),
                Err(found) => {
                    broken = Some(found);
                    true
                }
            },
        )
        .await?;
    match broken {
        Some((law, what)) => Err(world.violation(law, &what)),
        None => Ok(()),
    }
}

/// Whether every replica of a node that belongs to the cluster holds the same. A partition that more
/// nodes have left than stay cannot end with anything.
fn agree(world: &World) -> bool {
    let seen = world.checker.seen();
    let Some(image) = seen.image() else {
        return false;
    };
    let here = |node: &NodeId| {
        let host = node.get() as Host;
        world.staff.contains(&host).then_some(host)
    };
    let members: Vec<Host> = image.nodes.keys().filter_map(here).collect();
    if members.len() != world.staff.len() {
        return false;
    }
    let partitions = image.topics.values().flat_map(|topic| {
        let placed = topic.groups().zip(&topic.partitions);
        placed.filter_map(|(group, partition)| {
            let replicas = partition.replicas.iter();
            let there: Vec<Host> = replicas.filter_map(|(_, node)| here(node)).collect();
            // Damage may have taken what the one that has left took with it.
            let whole = there.iter().filter(|host| seen.rotten != Some(**host));
            let is_lost = 2 * whole.count() <= partition.replicas.len();
            (!is_lost).then_some((group, there))
        })
    });
    let mut groups = partitions.chain([(GroupId::CONTROLLER, members)]);
    groups.all(|(group, hosts)| {
        let replicas: Vec<_> = seen
            .of_group(group)
            .filter(|(host, _)| hosts.contains(host))
            .map(|(_, replica)| replica)
            .collect();
        let Some(first) = replicas.first() else {
            return false;
        };
        replicas.len() == hosts.len()
            && replicas.iter().all(|replica| {
                !replica.of_the_dead
                    && !replica.log.no_vote
                    && replica.view.applied == first.view.applied
                    && replica.log.last == first.log.last
                    && replica.log.last.map(|(_, index)| index) == Some(first.view.applied)
            })
    })
}
