//! A node whose registration was taken over.

use super::*;

#[test]
fn a_node_that_finds_itself_registered_elsewhere_registers_again() {
    run(async {
        let trio = Trio::start().await;
        let place = trio.leader().await;
        let leader = trio.nodes[place].as_ref().expect("lives");
        let image = leader.image();
        let taken = image.nodes.values().find(|node| node.id.get() == 2);
        let own = taken.expect("node 2").clone();
        let elsewhere = NodeClaim {
            uuid: *own.uuid.as_bytes(),
            node: Some(2),
            kafka_host: "127.0.0.1".into(),
            kafka_port: 1,
            rpc: ([127, 0, 0, 1], 1).into(),
            admin: None,
            rack: None,
        };
        let granted = leader.handle.register_node(elsewhere, PATIENCE).await;
        let version = granted.expect("of the leader's own node").version;
        eventually("node 2 is where it was", || {
            let image = leader.image();
            let now = image.nodes.get(&NodeId::new(2)).expect("node 2");
            image.version > version && now.rpc == own.rpc && now.kafka == own.kafka
        })
        .await;
    });
}
