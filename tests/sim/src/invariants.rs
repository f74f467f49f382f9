//! What must hold at every moment: one file per law. The numbers are those of `docs/simulator.md`.

mod acked_by_min_insync;
mod acked_is_durable;
mod applied_ascends;
mod commits_are_current;
mod committed_is_final;
mod committed_offset_is_a_register;
mod committed_on_quorum;
mod epochs_ascend;
mod generations_ascend;
mod groups_follow_the_log;
mod high_watermark_ascends;
mod images_agree;
mod leader_is_complete;
mod log_in_bounds;
mod log_start_ascends;
mod lower_epoch_is_fenced;
mod members_overlap;
mod node_ids_are_burnt;
mod offsets_are_dense;
mod one_leader_per_term;
mod one_vote_per_term;
mod partition_has_one_owner;
mod queues_are_bounded;
mod reads_agree;
mod recovered_log_is_whole;
mod replicas_run;
mod same_state;
mod segments_follow;
mod sequences_follow;
mod stable_below_watermark;
mod terms_ascend;
mod topic_ids_are_unique;

use corduroy_record::{GroupId, LogIndex};

use crate::group_ledger::Told;
use crate::group_log::GroupLogs;
use crate::history::History;
use crate::ledger::{Ack, Ledger};
use crate::network::Host;
use crate::observe::{ReplicaSeen, Seen};

/// One law, with what it remembers.
pub trait Invariant {
    /// Its name: the file's.
    fn name(&self) -> &'static str;
    /// Looks at the cluster as it is now.
    ///
    /// # Errors
    /// How the law is broken.
    fn check(&mut self, moment: &Moment<'_>) -> Result<(), String>;
}

/// What there is to look at.
pub struct Moment<'a> {
    /// All nodes.
    pub seen: &'a Seen,
    /// All nodes, one look before.
    pub before: &'a Seen,
    /// What was committed up to now.
    pub history: &'a History,
    /// What was committed since the look before.
    pub fresh: &'a [(GroupId, LogIndex)],
    /// What clients were told since the look before.
    pub acks: &'a [Ack],
    /// What members of groups were told since the look before.
    pub told: &'a [Told],
    /// What the groups are by the committed log.
    pub groups: &'a GroupLogs,
    /// What clients were told and read.
    pub ledger: &'a Ledger,
}

impl Moment<'_> {
    /// A replica as it was one look before, in the same life of its node.
    fn earlier(&self, host: Host, group: GroupId) -> Option<&ReplicaSeen> {
        self.before.in_life_of(self.seen, host, group)
    }
}

/// All of them.
pub fn all() -> Vec<Box<dyn Invariant>> {
    vec![
        Box::<one_leader_per_term::OneLeaderPerTerm>::default(),
        Box::<one_vote_per_term::OneVotePerTerm>::default(),
        Box::<terms_ascend::TermsAscend>::default(),
        Box::<committed_is_final::CommittedIsFinal>::default(),
        Box::<leader_is_complete::LeaderIsComplete>::default(),
        Box::<same_state::SameState>::default(),
        Box::<committed_on_quorum::CommittedOnQuorum>::default(),
        Box::<recovered_log_is_whole::RecoveredLogIsWhole>::default(),
        Box::<log_in_bounds::LogInBounds>::default(),
        Box::<applied_ascends::AppliedAscends>::default(),
        Box::<high_watermark_ascends::HighWatermarkAscends>::default(),
        Box::<offsets_are_dense::OffsetsAreDense>::default(),
        Box::<stable_below_watermark::StableBelowWatermark>::default(),
        Box::<epochs_ascend::EpochsAscend>::default(),
        Box::<log_start_ascends::LogStartAscends>::default(),
        Box::<segments_follow::SegmentsFollow>::default(),
        Box::<acked_is_durable::AckedIsDurable>::default(),
        Box::<acked_by_min_insync::AckedByMinInsync>::default(),
        Box::<sequences_follow::SequencesFollow>::default(),
        Box::<lower_epoch_is_fenced::LowerEpochIsFenced>::default(),
        Box::<topic_ids_are_unique::TopicIdsAreUnique>::default(),
        Box::<images_agree::ImagesAgree>::default(),
        Box::<node_ids_are_burnt::NodeIdsAreBurnt>::default(),
        Box::<members_overlap::MembersOverlap>::default(),
        Box::<queues_are_bounded::QueuesAreBounded>::default(),
        Box::<replicas_run::ReplicasRun>::default(),
        Box::<reads_agree::ReadsAgree>::default(),
        Box::<generations_ascend::GenerationsAscend>::default(),
        Box::<partition_has_one_owner::PartitionHasOneOwner>::default(),
        Box::<commits_are_current::CommitsAreCurrent>::default(),
        Box::<committed_offset_is_a_register::CommittedOffsetIsARegister>::default(),
        Box::<groups_follow_the_log::GroupsFollowTheLog>::default(),
    ]
}
