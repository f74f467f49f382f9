//! Five of the controller's replicas vote, the others learn.

use super::*;

impl Trio {
    /// A further node joins, with an empty disk.
    async fn join(&mut self) {
        let listener = listen(anywhere()).await;
        let rpc = listener.local_addr().expect("bound");
        let uuid = [100 + self.nodes.len() as u8; 16];
        let claim = NodeClaim {
            uuid,
            node: None,
            kafka_host: "127.0.0.1".into(),
            kafka_port: 1,
            rpc,
            admin: None,
            rack: None,
        };
        let member = self.living().next().expect("lives");
        let grant = member.handle.register_node(claim, PATIENCE).await;
        let grant = grant.expect("it may join");
        let identity = Identity {
            uuid: Uuid::from_bytes(uuid),
            node: NodeId::new(grant.node),
            controller_replica: ReplicaId::new(grant.controller_replica),
            cluster_id: Some(Uuid::from_bytes(grant.cluster_id)),
            controller_created: false,
            initialize: false,
            founding: None,
            members: grant.nodes,
        };
        let dir = self._dir.path().join(format!("n{}", grant.node));
        std::fs::create_dir_all(&dir).expect("a directory");
        let node = Mini::start(identity, &dir, listener).await.expect("starts");
        tokio::time::timeout(PATIENCE, node.controller.joined())
            .await
            .expect("joins");
        self.dirs.push(dir);
        self.addrs.push(rpc);
        self.nodes.push(Some(node));
    }

    /// Nodes whose replicas of the controller vote and those whose learn, by its leader's word.
    fn members(&self) -> (Vec<i32>, Vec<i32>) {
        let leader = self.living().find(|node| node.controller.is_leader());
        let members = leader.map(|node| node.controller.members());
        let (voters, learners): (Vec<_>, Vec<_>) = members
            .unwrap_or_default()
            .into_iter()
            .partition(|(_, votes)| *votes);
        let ids = |members: Vec<(i32, bool)>| members.into_iter().map(|(id, _)| id).collect();
        (ids(voters), ids(learners))
    }
}

#[test]
fn five_vote_the_others_learn_and_one_is_promoted_when_a_voter_leaves() {
    run(async {
        let mut trio = Trio::start().await;
        trio.join().await;
        let three = || trio.members() == (vec![1, 2, 3], vec![4]);
        eventually("of four three vote, one learns", three).await;
        trio.join().await;
        let all = || trio.members() == (vec![1, 2, 3, 4, 5], vec![]);
        eventually("of five all vote", all).await;
        for _ in 6..=7 {
            trio.join().await;
        }
        let five = || trio.members() == (vec![1, 2, 3, 4, 5], vec![6, 7]);
        eventually("five vote, two learn", five).await;
        // A learner knows what the voters decide, and its own requests reach their leader.
        let learner = trio.nodes[6].as_ref().expect("lives");
        learner.create("by-seven").await.expect("created");
        eventually("the learner sees it", || learner.has_topic("by-seven")).await;
        assert!(five(), "another change of the metadata moves no member");
        let topics = vec![TopicRef::Name("by-seven".into())];
        let deleted = learner.handle.delete_topics(topics, PATIENCE).await;
        assert!(deleted[0].is_ok(), "{deleted:?}");

        let leader = trio.leader().await;
        let leaving = (0..5).find(|place| *place != leader).expect("another");
        trio.stop(leaving).await;
        let id = leaving as i32 + 1;
        let asked = trio.nodes[6].as_ref().expect("lives");
        let removed = asked.handle.remove_node(NodeId::new(id), PATIENCE).await;
        removed.expect("nothing lives there");
        eventually("a learner has its vote", || {
            let (voters, learners) = trio.members();
            voters.len() == 5 && !voters.contains(&id) && learners.len() == 1
        })
        .await;
        // The promoted one's vote counts: with two others gone, three of five decide.
        let (voters, _) = trio.members();
        let leader = trio.leader().await;
        let gone: Vec<usize> = voters
            .iter()
            .map(|id| *id as usize - 1)
            .filter(|place| *place != leader && *place < 5)
            .take(2)
            .collect();
        for place in gone {
            trio.stop(place).await;
        }
        let asked = trio.living().next().expect("lives");
        asked.create("after").await.expect("three of five decide");
    });
}

#[test]
fn who_leaves_gives_its_vote_back_first() {
    run(async {
        let mut trio = Trio::start().await;
        let all = || trio.members() == (vec![1, 2, 3], vec![]);
        eventually("all vote", all).await;
        // With one of three down, nobody who is up can be spared.
        let leader = trio.leader().await;
        let away = (leader + 1) % 3;
        let other = (leader + 2) % 3;
        let id = |place: usize| NodeId::new(place as i32 + 1);
        trio.stop(away).await;
        let asked = trio.nodes[leader].as_ref().expect("lives");
        asked.controller.set_down(id(away), true);
        let refused = asked.handle.remove_node(id(other), PATIENCE).await;
        let Err(RequestError::Refused(refusal)) = refused else {
            panic!("{refused:?}");
        };
        let message = format!("needs the vote of node {}", id(other));
        assert!(refusal.message.contains(&message), "{}", refusal.message);
        let message = format!("node {} is down", id(away));
        assert!(refusal.message.contains(&message), "{}", refusal.message);
        // The dead one can go. Then the living one too, although each of the two has half of the votes:
        // it learns before it is removed, so the last one is a majority by itself.
        let removed = asked.handle.remove_node(id(away), PATIENCE).await;
        removed.expect("nothing lives there");
        let removed = asked.handle.remove_node(id(other), PATIENCE).await;
        removed.expect("nothing lives there");
        let votes = asked.controller.members();
        let voters = votes.iter().filter(|(_, votes)| **votes);
        let voters: Vec<i32> = voters.map(|(node, _)| *node).collect();
        assert_eq!(voters, vec![id(leader).get()], "by the time of the answer");
        trio.stop(other).await;
        let asked = trio.nodes[leader].as_ref().expect("lives");
        asked.create("after").await.expect("one of one decides");
    });
}
