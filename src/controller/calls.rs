//! What nodes say to each other about the controller, on the rpc port.
//!
//! A message is the service byte ([`SERVICE_CONTROLLER`]) and an rkyv archive of [`Call`]; the
//! answer is an archive of [`Answer`], without the byte.

use std::net::SocketAddr;

use bytes::{BufMut, Bytes, BytesMut};
use rkyv::{Archive, Deserialize, Serialize};

use super::codec::{CodecError, decode, encode};
use super::identity::Founding;
use super::requests::{NodeClaim, Reply, Request};

/// The first byte of a call to the controller.
pub const SERVICE_CONTROLLER: u8 = 1;

/// A call.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub enum Call {
    /// "Who are you, and is there a cluster?" From a node that looks for its place, or for peers
    /// whose addresses have changed.
    Probe {
        /// Where the asker is.
        rpc: SocketAddr,
        /// The asker's seeds while it looks for its place, so that a list that differs is noticed
        /// on both sides.
        seeds: Option<Vec<SocketAddr>>,
    },
    /// "Take me in." Any node of a cluster carries it to the controller's leader.
    Join {
        /// The request's random id.
        request: [u8; 16],
        /// Who asks.
        claim: NodeClaim,
    },
    /// A request, brought to where the leader is believed to be.
    Execute {
        /// The request's random id.
        request: [u8; 16],
        /// The request.
        body: Request,
    },
}

/// An answer.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// To [`Call::Probe`].
    Presence(Presence),
    /// To [`Call::Join`] and [`Call::Execute`]: the controller's answer.
    Reply(Reply),
    /// To [`Call::Execute`]: another node leads, if any.
    NotLeader {
        /// The leader's node id, if known.
        leader: Option<i32>,
    },
    /// Not now; nothing was changed, or whatever was changed will answer a retry.
    TryAgain,
}

/// How a node answers a probe.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct Presence {
    /// Who it is, or wants to be.
    pub claim: NodeClaim,
    /// Its list of seeds.
    pub seeds: Vec<SocketAddr>,
    /// How far it has come.
    pub stage: Stage,
}

/// How far a node has come.
#[derive(Archive, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub enum Stage {
    /// An empty disk.
    Empty {
        /// What a cluster that it founds would start with.
        configs: std::collections::BTreeMap<String, String>,
    },
    /// It founds a cluster with these nodes; the cluster has no id yet.
    Founding(Founding),
    /// It belongs to a cluster; the id may be unknown so soon after a start.
    Member {
        /// The cluster's id.
        cluster_id: Option<[u8; 16]>,
    },
}

/// The bytes of a call, service byte first.
pub fn encode_call(call: &Call) -> Result<Bytes, CodecError> {
    let body = encode(call)?;
    let mut bytes = BytesMut::with_capacity(body.len() + 1);
    bytes.put_u8(SERVICE_CONTROLLER);
    bytes.extend_from_slice(&body);
    Ok(bytes.freeze())
}

/// The call in bytes that begin with the service byte.
pub fn decode_call(bytes: &[u8]) -> Result<Call, CodecError> {
    match bytes.split_first() {
        Some((&SERVICE_CONTROLLER, body)) => decode(body),
        _ => decode(bytes),
    }
}

/// The bytes of an answer; none if it cannot be encoded, which the caller takes for no answer.
pub fn encode_answer(answer: &Answer) -> Bytes {
    encode(answer).unwrap_or_default()
}

/// The answer in bytes.
pub fn decode_answer(bytes: &[u8]) -> Result<Answer, CodecError> {
    decode(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_and_answers_survive_the_wire() {
        let call = Call::Execute {
            request: [3; 16],
            body: Request::AllocateProducerIds,
        };
        let bytes = encode_call(&call).expect("encodes");
        assert_eq!(bytes[0], SERVICE_CONTROLLER);
        assert_eq!(decode_call(&bytes).expect("decodes"), call);
        let answer = Answer::NotLeader { leader: Some(4) };
        assert_eq!(
            decode_answer(&encode_answer(&answer)).expect("decodes"),
            answer
        );
        for cut in 0..bytes.len() {
            // Any prefix is refused or read as something else; nothing panics.
            let _ = decode_call(&bytes[..cut]);
        }
    }
}
