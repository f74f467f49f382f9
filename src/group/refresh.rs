//! The live state written again, so that everything older can be purged: what bounds the size of
//! `__consumer_offsets` until logs are compacted.
//!
//! Law: the log from its start always holds the newest record of every live key. So the log's start
//! moves only to where a complete refresh began, and a refreshed record is read from the applied
//! state while nothing newer is under way.

use std::rc::Rc;

use corduroy_group::table::{GroupKind, GroupState};
use corduroy_record::{LogIndex, Offset, Term};
use tracing::{info, warn};

use super::coordinator::Coordinator;

/// Closed segments that are left alone; with one more, the live state is written again.
const CLOSED_SEGMENTS_KEPT: usize = 1;

/// Groups that are written again in one go, while commits wait a moment.
const GROUPS_AT_ONCE: usize = 64;

/// Offsets and members of those groups together; one group alone may have more.
const ROWS_AT_ONCE: usize = 4096;

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
        let mut groups = 0_usize;
        let mut last: Option<String> = None;
        loop {
            let names: Vec<String> = {
                let machine = self.partition.machine();
                let all = machine
                    .groups()
                    .into_iter()
                    .flat_map(|table| table.groups());
                let mut rows = 0;
                all.filter(|(name, _)| last.as_deref().is_none_or(|last| *name > last))
                    .take(GROUPS_AT_ONCE)
                    .take_while(|(_, state)| {
                        let is_first = rows == 0;
                        rows += 1 + rows_of(state);
                        is_first || rows <= ROWS_AT_ONCE
                    })
                    .map(|(name, _)| name.to_owned())
                    .collect()
            };
            let Some(newest) = names.last().cloned() else {
                break;
            };
            groups += names.len();
            let coordinator = self.clone();
            let written = self
                .writer
                .write_alone(term, move || {
                    let machine = coordinator.partition.machine();
                    let Some(table) = machine.groups() else {
                        return Vec::new();
                    };
                    let states = names
                        .iter()
                        .filter_map(|name| Some((name, table.get(name)?)));
                    states
                        .flat_map(|(name, state)| state.records(name))
                        .collect()
                })
                .await;
            if let Err(code) = written {
                let partition = self.partition.name();
                warn!(%partition, code = code.name(), "the refresh of groups will be tried again");
                return;
            }
            last = Some(newest);
        }
        if let Some((index, offset)) = self.purgeable(began) {
            let partition = self.partition.name();
            info!(%partition, groups, %offset, "live groups are written again; older records go");
            self.partition.move_log_start(index, offset, term);
        }
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

/// How many records a group takes, about.
fn rows_of(state: &GroupState) -> usize {
    let members = match &state.kind {
        GroupKind::Simple => 0,
        GroupKind::Classic(value) => value.members.len(),
        GroupKind::Consumer(consumer) => consumer.members().len(),
    };
    state.offsets.len() + members
}
