//! The live state written again, so that everything older can be purged: what bounds the size of
//! `__consumer_offsets` until logs are compacted.
//!
//! Law: the log from its start always holds the newest record of every live key. So the log's start
//! moves only to where a complete refresh began, and a refreshed record is read from the applied
//! state while nothing newer is under way.
//!
//! A refresh is many decisions, and a group may be in several of them: no decision grows with what
//! a group holds. That is safe because a refreshed record says of its key what is said already: it
//! changes no replica's table, and whoever reads the log from its start keeps the last record of
//! each key, in whatever order the keys come. The walk goes on behind the last key that it wrote,
//! so a key is passed by only if it came into being behind the walk; then its own record is newer
//! than where the refresh began, and stays.

use std::rc::Rc;

use corduroy_group::records::GroupRecord;
use corduroy_group::table::LiveKey;
use corduroy_record::{LogIndex, Offset, Term};
use tracing::{info, warn};

use super::coordinator::Coordinator;
use super::portion::Portion;

/// Closed segments that are left alone; with one more, the live state is written again.
const CLOSED_SEGMENTS_KEPT: usize = 1;

impl Coordinator {
    /// Looks whether old segments have gathered; if so, refreshes and purges beside everything else.
    pub fn check_size(self: &Rc<Self>) {
        let Ok(term) = self.serving() else { return };
        let segments = self.partition.replica().log().segment_boundaries().len();
        if segments <= CLOSED_SEGMENTS_KEPT + 1 || !self.begin_refresh() {
            return;
        }
        let coordinator = self.clone();
        self.env.spawn_local(async move {
            coordinator.refresh(term).await;
            coordinator.end_refresh();
        });
    }

    async fn refresh(self: &Rc<Self>, term: Term) {
        let began = self.partition.watermarks().log_end;
        let mut records = 0_usize;
        let mut last: Option<LiveKey> = None;
        loop {
            let mut newest = None;
            let decide = || {
                let portion = self.live_after(last.as_ref());
                newest = portion.last().map(GroupRecord::live_key);
                records += portion.len();
                portion
            };
            if let Err(code) = self.writer.write_alone(term, decide).await {
                let partition = self.partition.name();
                warn!(%partition, code = code.name(), "the refresh of groups will be tried again");
                return;
            }
            if newest.is_none() {
                break;
            }
            last = newest;
        }
        if let Some((index, offset)) = self.purgeable(began) {
            let partition = self.partition.name();
            info!(%partition, records, %offset, "live groups are written again; older records go");
            self.partition.move_log_start(index, offset, term);
        }
    }

    /// The next live keys behind `last`, as they are applied.
    fn live_after(&self, last: Option<&LiveKey>) -> Vec<GroupRecord> {
        let machine = self.partition.machine();
        let mut portion = Portion::default();
        if let Some(table) = machine.groups() {
            portion.fill(table.live_records_after(last));
        }
        portion.into_records()
    }

    /// The last segment that begins at or before `began`.
    fn purgeable(&self, began: Offset) -> Option<(LogIndex, Offset)> {
        let boundaries = self.partition.replica().log().segment_boundaries();
        boundaries
            .into_iter()
            .map(|segment| (segment.first_index, segment.first_offset))
            .rfind(|(_, offset)| *offset <= began)
    }
}
