//! Application messages, and peers that are none.

#![allow(dead_code)]

mod harness;

use std::time::Duration;

use bytes::Bytes;
use corduroy_raft::{CallError, call_address};
use corduroy_record::NodeId;
use harness::{Cluster, run, test_config, wait_for};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[test]
fn nodes_and_strangers_can_ask_and_cast() {
    run(async {
        let mut cluster = Cluster::new(2, test_config());
        cluster.start_all().await;
        let soon = Duration::from_secs(5);
        let shard = cluster.nodes[&1].shard();
        let answer = shard
            .call(NodeId::new(2), Bytes::from_static(b"hello"), soon)
            .await;
        assert_eq!(answer.expect("an answer"), "hello from 1");
        let large = Bytes::from(vec![b'x'; 3 << 20]);
        let answer = shard
            .call(NodeId::new(2), large.clone(), soon)
            .await
            .expect("an answer");
        assert_eq!(answer.len(), large.len() + " from 1".len());
        shard.cast(NodeId::new(2), Bytes::from_static(b"by the way"));
        wait_for("the cast", || cluster.nodes[&2].casts().first().cloned()).await;
        let addr = cluster.links.address(1, 2).await;
        let answer = call_address(&cluster.env, addr, Bytes::from_static(b"who"), soon).await;
        assert_eq!(answer.expect("an answer"), "who from -1");
        let nobody = shard.call(NodeId::new(9), Bytes::new(), soon).await;
        assert_eq!(nobody, Err(CallError::Unreachable));
    });
}

#[test]
fn hostile_bytes_close_their_connection_and_disturb_nobody() {
    run(async {
        let (cluster, _) = Cluster::led(3, test_config()).await;
        let addr = cluster.links.address(1, 2).await;
        let mut hello = Vec::from(*b"CRDR");
        hello.extend_from_slice(&1u16.to_le_bytes());
        hello.extend_from_slice(&1u16.to_le_bytes());
        hello.resize(48, 0);
        hello[24..28].copy_from_slice(&1i32.to_le_bytes());
        hello[28..32].copy_from_slice(&2i32.to_le_bytes());
        let mut garbage = hello.clone();
        garbage.extend((0..4096u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8));
        let mut huge = hello.clone();
        huge.extend_from_slice(&[0xff; 64]);
        let mut zeroes = hello.clone();
        zeroes.extend_from_slice(&[0; 64]);
        let no_hello = vec![0u8; 64];
        for bytes in [garbage, huge, zeroes, no_hello] {
            let mut stream = cluster.env.connect(addr).await.expect("somebody listens");
            stream.write_all(&bytes).await.expect("open");
            let mut answer = Vec::new();
            let closed =
                tokio::time::timeout(Duration::from_secs(10), stream.read_to_end(&mut answer));
            // Reset or closed, but closed.
            let _ = closed.await.expect("the connection is closed");
            assert!(answer.len() <= 48, "no more than a hello is answered");
        }
        cluster.commit(&["a"]).await;
        assert_eq!(cluster.agree().await, ["a"]);
    });
}
