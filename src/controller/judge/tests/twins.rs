//! A stranger with a known node's uuid: the node itself on its way in, or a copy of its disk.

use super::*;
use crate::controller::judge::refuse_twin;

#[test]
fn a_known_node_is_registered_elsewhere_only_when_its_process_is_gone() {
    let mut cluster = Cluster::of(3);
    cluster.register(claim(2, Some(2))).expect("known");
    let registered = claim(2, Some(2));
    let mut moved = registered.clone();
    moved.rpc = ([10, 0, 0, 9], 1).into();
    let refuse = |cluster: &Cluster, claim| refuse_twin(&cluster.state, claim, &cluster.down);

    assert_eq!(refuse(&cluster, &registered), None, "its own addresses");
    let refusal = refuse(&cluster, &moved).expect("node 2 lives");
    assert_eq!(
        refusal.code,
        ErrorCode::DuplicateBrokerRegistration.code(),
        "as Kafka's controller answers"
    );
    let at = format!("at {}", registered.rpc);
    for words in [
        "another process runs as node 2",
        &at,
        "10.0.0.9:1",
        "never be started beside",
    ] {
        let message = &refusal.message;
        assert!(message.contains(words), "{message:?} lacks {words:?}");
    }
    let mut other_port = registered.clone();
    other_port.kafka_port += 1;
    assert!(refuse(&cluster, &other_port).is_some(), "clients' port");

    cluster.down = [2].into();
    assert_eq!(refuse(&cluster, &moved), None, "its process is gone");
    cluster.down = [1, 3].into();
    assert!(refuse(&cluster, &moved).is_some(), "others are down");
    assert_eq!(refuse(&cluster, &claim(77, None)), None, "a new disk");
}
