//! Who may leave the cluster, and who may not.

use corduroy_record::NodeId;

use super::*;

#[test]
fn a_node_that_is_down_leaves_unless_it_has_the_only_copy() {
    let mut cluster = Cluster::of(4);
    cluster.create(topic("wide", 2, 4)).expect("created");
    let remove = |cluster: &mut Cluster, node| cluster.ask(Request::RemoveNode { node });
    let Reply::Refused(refusal) = remove(&mut cluster, 4) else {
        panic!("it is up");
    };
    assert!(
        refusal.message.contains("wide/0, wide/1"),
        "{}",
        refusal.message
    );

    cluster.down = [4].into();
    cluster
        .create(NewTopic {
            assignments: vec![Assignment {
                partition: 0,
                nodes: vec![4],
            }],
            ..NewTopic::with_defaults("narrow")
        })
        .expect("created");
    let Reply::Refused(refusal) = remove(&mut cluster, 4) else {
        panic!("it has the only replica");
    };
    for words in ["only replica of narrow/0", "start it again"] {
        assert!(refusal.message.contains(words), "{}", refusal.message);
    }
    cluster
        .one_topic(Request::DeleteTopics {
            topics: vec![TopicRef::Name("narrow".into())],
        })
        .expect("deleted");
    assert_eq!(remove(&mut cluster, 4), Reply::Done);
    let image = cluster.state.image();
    assert!(!image.nodes.contains_key(&NodeId::new(4)));
    let wide = &image.topics["wide"].partitions[0];
    assert_eq!(wide.replicas.len(), 4, "its replicas keep their places");

    let Reply::Refused(refusal) = remove(&mut Cluster::of(1), 1) else {
        panic!("it is the last one");
    };
    assert!(refusal.message.contains("only node"), "{}", refusal.message);
}
