//! Whether a node's disk takes what clients send, asked by nodes that look for one that does.

use std::time::Duration;

use bytes::Bytes;
use corduroy_record::NodeId;

use super::SERVICE_NODE;
use crate::shard::Shard;

/// The question, after the service's byte.
pub const QUESTION: &[u8] = &[1];

/// The answer of a node that has room; everything else is none.
const YES: &[u8] = &[1];

/// How long a node may take to say so.
const ANSWER_WAIT: Duration = Duration::from_secs(1);

/// This node's answer.
pub async fn answer(shard: &Shard) -> Bytes {
    if shard.node_has_room().await {
        Bytes::from_static(YES)
    } else {
        Bytes::new()
    }
}

/// Whether `node` says that it has room.
pub async fn of(shard: &Shard, node: NodeId) -> bool {
    let request: Vec<u8> = [&[SERVICE_NODE], QUESTION].concat();
    let asked = shard.raft().call(node, request.into(), ANSWER_WAIT).await;
    asked.is_ok_and(|answer| answer == YES)
}
