//! Answers calls of strangers while this node has no place in a cluster yet, and hence no shards.

use std::future::Future;

use bytes::Bytes;
use corduroy_env::Stream;
use corduroy_record::NodeId;
use tokio::io::AsyncWriteExt;

use crate::error::CallError;
use crate::wire::{FrameEncoder, FrameReader, Hello, Message, answer_hello};

/// Answers the one call of a connection whose hello is [`crate::Purpose::Anonymous`]. A node with
/// shards uses [`crate::RaftShard::adopt`] instead.
///
/// # Errors
/// The stranger speaks another protocol, or goes away.
pub async fn serve_anonymous<F>(
    mut stream: Stream,
    theirs: Hello,
    answer: impl FnOnce(Bytes) -> F,
) -> Result<(), CallError>
where
    F: Future<Output = Bytes>,
{
    let ours = Hello {
        purpose: theirs.purpose,
        cluster: None,
        node: NodeId::new(-1),
        target_node: theirs.node,
        incarnation: 0,
        target_shard: 0,
        refusal: None,
    };
    answer_hello(&mut stream, &ours, &theirs)
        .await
        .map_err(|_| CallError::Protocol)?;
    let (read, mut write) = stream.into_split();
    let mut reader = FrameReader::new(read);
    let frame = reader.next().await.map_err(|_| CallError::Unreachable)?;
    let Ok(Message::Call { call }) = frame.message() else {
        return Err(CallError::Protocol);
    };
    let body = answer(frame.payload).await;
    let head = FrameEncoder::default()
        .encode(&Message::CallAnswer { call }, body.len())
        .map_err(|_| CallError::TooLarge)?;
    for piece in [&head[..], &body[..]] {
        write
            .write_all(piece)
            .await
            .map_err(|_| CallError::Unreachable)?;
    }
    Ok(())
}
