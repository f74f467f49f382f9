//! One Raft replica per partition over openraft, behind one door.
//!
//! The rest of the node sees [`RaftShard`] and [`Replica`]; openraft's types never leave this
//! crate, so that the engine can be replaced.
//!
//! | file | holds |
//! |---|---|
//! | `shard` | one shard's replicas and connections |
//! | `replica`, `replica_core` | the handle; what a replica's parts share |
//! | `door`, `proposal` | proposals in order (law 14) |
//! | `barrier` | read barriers, coalesced |
//! | `log_store`, `machine` | openraft's log and state machine over `storage` and the partition |
//! | `network`, `requests` | openraft's clients; what arrives, and the laws that guard it |
//! | `assembly` | snapshots that arrive in parts |
//! | `transport`, `wire` | connections; frames and envelopes (`docs/design/rpc.md`) |
//! | `anonymous` | calls of strangers, before this node has shards |
//! | `detector`, `nodes` | who lives |
//! | `incarnations`, `admission`, `told` | one process per node; who asks to be one; who is told of it |
//! | `failover`, `hibernation`, `awake` | fast elections, sleep, who does not sleep |
//! | `progress`, `members` | ISR; members and the log's start |
//! | `supervisor`, `counts`, `partition_span` | restart after a panic; what is counted; what log lines carry |
//! | `runtime`, `types` | what openraft runs on and is made of |

mod admission;
mod anonymous;
mod assembly;
mod awake;
mod barrier;
mod config;
mod counts;
mod detector;
mod door;
mod error;
mod failover;
mod first_entry;
mod hibernation;
mod incarnations;
mod log_store;
mod machine;
mod members;
mod network;
mod nodes;
mod partition_span;
mod progress;
mod proposal;
mod replica;
mod replica_core;
mod requests;
mod revert;
mod runtime;
mod shard;
mod state_machine;
mod supervisor;
mod told;
mod transport;
mod types;
mod wire;

pub use admission::{Admission, AdmissionAsk, AdmissionDesk, Reservation, ask_admission};
pub use anonymous::serve_anonymous;
pub use barrier::NotLeader;
pub use config::{AddressBook, ClusterTag, Identity, RaftConfig};
pub use counts::COMMIT_BUCKET_MICROS;
pub use detector::{FailureDetector, PeerState};
pub use error::{CallError, RaftError, Unfit};
pub use first_entry::write_first_entry;
pub use incarnations::{Incarnations, TwinRefusal};
pub use partition_span::partition_span;
pub use proposal::{Proposal, ProposalObserver, ProposalOutcome, ProposalPayload, RefuseReason};
pub use replica::Replica;
pub use replica_core::{ReplicaView, Role};
pub use shard::{
    ForwardedFrame, OnCall, OnCast, RaftMetrics, RaftShard, ReplicaSpec, ShardHooks, call_address,
};
pub use state_machine::{ReplicaEvent, StateMachine};
pub use types::{RaftNode, voter_sets};
pub use wire::{Hello, HelloError, Purpose, read_hello};
