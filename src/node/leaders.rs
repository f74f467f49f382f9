//! Who leads what, asked for: a node that comes into a cluster has missed the news so far.

use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use corduroy_record::NodeId;
use futures::future::join_all;
use tracing::{debug, warn};

use super::SERVICE_NODE;
use crate::controller::MetadataImage;
use crate::leadership;
use crate::shard::Shard;

/// How long a node that has joined waits for the others' answers before it serves clients. What
/// comes later comes as news.
const ANSWER_WAIT: Duration = Duration::from_millis(500);
/// How long it waits until its own shard has the image in which the answers are understood.
const IMAGE_WAIT: Duration = Duration::from_secs(5);

/// The answer to a node that asks: everything that this node's replicas lead.
pub fn answer(shard: &Shard) -> Bytes {
    leadership::encode_all(&shard.led()).unwrap_or_else(|error| {
        warn!(%error, "leaderships cannot be encoded");
        Bytes::new()
    })
}

/// Asks every other node of `image` what it leads, and tells all shards of this one. Returns once all
/// that are up have answered, or after [`ANSWER_WAIT`].
pub async fn learn(shard: &Rc<Shard>, image: &MetadataImage) {
    // Leaders of topics that the shard does not know yet would be dropped with its next image.
    let metadata = shard.metadata();
    let deadline = shard.env().now() + IMAGE_WAIT;
    while metadata.image().version < image.version {
        let changed = tokio::time::timeout_at(deadline, metadata.changed());
        // The look before the wait may have missed a change: look again soon.
        let pause = shard.env().sleep(Duration::from_millis(5));
        tokio::select! {
            changed = changed => if changed.is_err() { break },
            () = pause => {}
        }
    }
    let others = image.nodes.keys().copied();
    let others = others.filter(|node| *node != shard.node() && !metadata.unreachable(*node));
    join_all(others.map(|node| ask(shard, node))).await;
}

async fn ask(shard: &Rc<Shard>, node: NodeId) {
    let request = Bytes::from_static(&[SERVICE_NODE]);
    match shard.raft().call(node, request, ANSWER_WAIT).await {
        Ok(answer) => match leadership::decode_all(&answer) {
            Ok(updates) => shard.publish(updates),
            Err(error) => warn!(%node, %error, "leaderships that cannot be read"),
        },
        Err(error) => debug!(%node, %error, "a node does not say what it leads"),
    }
}
