//! The first words of a connection: who dials, whom it wants, and that both mean the same cluster.
//!
//! 48 bytes each way, fixed layout, little endian:
//! `magic "CRDR", version u16, purpose u16, cluster uuid [16], node i32, target node i32,
//! incarnation u64, target shard u16, refusal u16, reserved [4]`. An unknown cluster is all zeroes.

use std::io;
use std::time::Duration;

use corduroy_env::Stream;
use corduroy_record::NodeId;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use uuid::Uuid;

use crate::incarnations::TwinRefusal;

const MAGIC: [u8; 4] = *b"CRDR";
const VERSION: u16 = 1;
const HELLO_BYTES: usize = 48;
/// A dialler that has not said hello by then is cut off.
const HELLO_WAIT: Duration = Duration::from_secs(5);

/// What the dialler wants of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Raft and application messages between two shards.
    Peer,
    /// Pings.
    Detector,
    /// One request from somebody without a node id yet.
    Anonymous,
    /// "Would you take me for this node?" The answer's hello says it, and nothing else follows but,
    /// behind a refusal, a [`crate::wire::Message::CallAnswer`] with where the node is registered.
    Admission,
}

/// The dialler's introduction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// What for.
    pub purpose: Purpose,
    /// The dialler's cluster, if it knows one.
    pub cluster: Option<Uuid>,
    /// The dialler; -1 for [`Purpose::Anonymous`].
    pub node: NodeId,
    /// Whom it believes to dial; -1: whoever listens there.
    pub target_node: NodeId,
    /// Random in each process of the dialler.
    pub incarnation: u64,
    /// The acceptor hands the stream to shard `target_shard % shards`.
    pub target_shard: u16,
    /// In an answer: the dialler may not speak for its node.
    pub refusal: Option<TwinRefusal>,
}

/// A connection that did not begin with a hello that we can take.
#[derive(Debug, thiserror::Error)]
pub enum HelloError {
    /// The socket failed.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// Nothing came in time.
    #[error("no hello within {} s", HELLO_WAIT.as_secs())]
    Timeout,
    /// Not our protocol.
    #[error("the first bytes are not a hello")]
    NotHello,
    /// A peer of another release.
    #[error("the peer speaks version {0} of the protocol, this node version {VERSION}")]
    Version(u16),
    /// The peer belongs to another cluster.
    #[error("the peer belongs to another cluster ({theirs})")]
    Cluster {
        /// Its cluster.
        theirs: Uuid,
    },
    /// Somebody else listens at that address.
    #[error("node {wanted} was dialled and node {found} answered")]
    Node {
        /// Whom the dialler wanted.
        wanted: NodeId,
        /// Who answered.
        found: NodeId,
    },
    /// As many as the limit allows are being answered.
    #[error("too many processes ask for their nodes' places at once")]
    Crowded,
    /// Two processes want to be one node.
    #[error("node {by} holds another process for node {node}{}", match refusal {
        TwinRefusal::AnotherLives => ", which lives",
        TwinRefusal::Superseded => ", which has taken this one's place",
    })]
    Twin {
        /// The node.
        node: NodeId,
        /// Who says so.
        by: NodeId,
        /// Which of them may not speak.
        refusal: TwinRefusal,
    },
}

impl Hello {
    pub(crate) fn encode(&self) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
        let purpose: u16 = match self.purpose {
            Purpose::Peer => 1,
            Purpose::Detector => 2,
            Purpose::Anonymous => 3,
            Purpose::Admission => 4,
        };
        bytes[6..8].copy_from_slice(&purpose.to_le_bytes());
        bytes[8..24].copy_from_slice(self.cluster.unwrap_or(Uuid::nil()).as_bytes());
        bytes[24..28].copy_from_slice(&self.node.get().to_le_bytes());
        bytes[28..32].copy_from_slice(&self.target_node.get().to_le_bytes());
        bytes[32..40].copy_from_slice(&self.incarnation.to_le_bytes());
        bytes[40..42].copy_from_slice(&self.target_shard.to_le_bytes());
        // Zero in hellos of releases that refuse nobody, and ignored by them.
        let refusal: u16 = match self.refusal {
            None => 0,
            Some(TwinRefusal::AnotherLives) => 1,
            Some(TwinRefusal::Superseded) => 2,
        };
        bytes[42..44].copy_from_slice(&refusal.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; HELLO_BYTES]) -> Result<Hello, HelloError> {
        if bytes[..4] != MAGIC {
            return Err(HelloError::NotHello);
        }
        let version = u16::from_le_bytes([bytes[4], bytes[5]]);
        if version != VERSION {
            return Err(HelloError::Version(version));
        }
        let purpose = match u16::from_le_bytes([bytes[6], bytes[7]]) {
            1 => Purpose::Peer,
            2 => Purpose::Detector,
            3 => Purpose::Anonymous,
            4 => Purpose::Admission,
            _ => return Err(HelloError::NotHello),
        };
        let mut cluster = [0; 16];
        cluster.copy_from_slice(&bytes[8..24]);
        let cluster = Uuid::from_bytes(cluster);
        let four = |at: usize| [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]];
        let mut incarnation = [0; 8];
        incarnation.copy_from_slice(&bytes[32..40]);
        Ok(Hello {
            purpose,
            cluster: (!cluster.is_nil()).then_some(cluster),
            node: NodeId::new(i32::from_le_bytes(four(24))),
            target_node: NodeId::new(i32::from_le_bytes(four(28))),
            incarnation: u64::from_le_bytes(incarnation),
            target_shard: u16::from_le_bytes([bytes[40], bytes[41]]),
            refusal: match u16::from_le_bytes([bytes[42], bytes[43]]) {
                0 => None,
                2 => Some(TwinRefusal::Superseded),
                // A later release's reason is a refusal all the same, and never a final one.
                _ => Some(TwinRefusal::AnotherLives),
            },
        })
    }
}

async fn read<R: AsyncRead + Unpin>(stream: &mut R) -> Result<Hello, HelloError> {
    let mut bytes = [0; HELLO_BYTES];
    stream.read_exact(&mut bytes).await?;
    Hello::decode(&bytes)
}

/// Reads a dialler's hello. The acceptor then hands the stream to the shard that it names, which
/// answers.
///
/// # Errors
/// The connection is not from a peer that we understand: close it.
pub async fn read_hello(stream: &mut Stream) -> Result<Hello, HelloError> {
    tokio::time::timeout(HELLO_WAIT, read(stream))
        .await
        .map_err(|_| HelloError::Timeout)?
}

/// Two cluster ids that both sides know have to be one.
fn same_cluster(ours: Option<Uuid>, theirs: Option<Uuid>) -> Result<(), HelloError> {
    match (ours, theirs) {
        (Some(ours), Some(theirs)) if ours != theirs => Err(HelloError::Cluster { theirs }),
        _ => Ok(()),
    }
}

/// Whether the dialler means this cluster and this node.
pub(crate) fn check_hello(ours: &Hello, theirs: &Hello) -> Result<(), HelloError> {
    same_cluster(ours.cluster, theirs.cluster)?;
    if theirs.target_node != NodeId::new(-1) && theirs.target_node != ours.node {
        return Err(HelloError::Node {
            wanted: theirs.target_node,
            found: ours.node,
        });
    }
    Ok(())
}

/// The acceptor's half: answers `theirs` with `ours`, also when it then refuses, so that the
/// dialler can say why.
pub(crate) async fn answer_hello<W: AsyncWrite + Unpin>(
    stream: &mut W,
    ours: &Hello,
    theirs: &Hello,
) -> Result<(), HelloError> {
    stream.write_all(&ours.encode()).await?;
    check_hello(ours, theirs)?;
    match ours.refusal {
        None => Ok(()),
        Some(refusal) => Err(HelloError::Twin {
            node: theirs.node,
            by: ours.node,
            refusal,
        }),
    }
}

/// The dialler's half: introduces itself and checks who answers.
pub(crate) async fn offer_hello(stream: &mut Stream, ours: &Hello) -> Result<Hello, HelloError> {
    stream.write_all(&ours.encode()).await?;
    let theirs = tokio::time::timeout(HELLO_WAIT, read(stream))
        .await
        .map_err(|_| HelloError::Timeout)??;
    same_cluster(ours.cluster, theirs.cluster)?;
    if ours.target_node != NodeId::new(-1) && ours.target_node != theirs.node {
        return Err(HelloError::Node {
            wanted: ours.target_node,
            found: theirs.node,
        });
    }
    match theirs.refusal {
        None => Ok(theirs),
        Some(refusal) => Err(HelloError::Twin {
            node: ours.node,
            by: theirs.node,
            refusal,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello() -> Hello {
        Hello {
            purpose: Purpose::Peer,
            cluster: Some(Uuid::from_u128(5)),
            node: NodeId::new(1),
            target_node: NodeId::new(2),
            incarnation: 77,
            target_shard: 3,
            refusal: None,
        }
    }

    #[test]
    fn a_hello_survives_its_bytes() {
        assert_eq!(
            Hello::decode(&hello().encode()).expect("own bytes"),
            hello()
        );
    }

    #[test]
    fn a_refusal_lies_where_older_releases_wrote_zeroes() {
        let plain = hello().encode();
        assert_eq!(plain[42..], [0; 6]);
        for (refusal, byte) in [(TwinRefusal::AnotherLives, 1), (TwinRefusal::Superseded, 2)] {
            let refusing = Hello {
                purpose: Purpose::Admission,
                refusal: Some(refusal),
                ..hello()
            };
            let bytes = refusing.encode();
            assert_eq!((bytes[6], bytes[42]), (4, byte));
            assert_eq!(Hello::decode(&bytes).expect("own bytes"), refusing);
        }
        let mut unknown = plain;
        unknown[43] = 1;
        let read = Hello::decode(&unknown).expect("a later release's");
        assert_eq!(read.refusal, Some(TwinRefusal::AnotherLives));
    }

    #[test]
    fn other_protocols_and_versions_are_told_apart() {
        let mut bytes = hello().encode();
        bytes[4] = 9;
        assert!(matches!(Hello::decode(&bytes), Err(HelloError::Version(9))));
        bytes[0] = b'X';
        assert!(matches!(Hello::decode(&bytes), Err(HelloError::NotHello)));
    }

    #[test]
    fn two_known_clusters_have_to_be_one() {
        let a = Some(Uuid::from_u128(1));
        let b = Some(Uuid::from_u128(2));
        assert!(same_cluster(a, a).is_ok());
        assert!(same_cluster(a, None).is_ok());
        assert!(matches!(
            same_cluster(a, b),
            Err(HelloError::Cluster { .. })
        ));
    }
}
