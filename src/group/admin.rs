//! What people and tools ask of groups: list, describe, delete.

use std::collections::BTreeSet;
use std::rc::Rc;

use corduroy_group::GroupError;
use corduroy_group::classic::{ClassicGroup, ClassicState};
use corduroy_group::commits::delete_group;
use corduroy_group::records::GroupRecord;
use corduroy_group::table::{GroupKind, GroupState};
use corduroy_protocol::ErrorCode;

use super::call::{DescribedGroup, DescribedMember, GroupStatus, ListFilter, ListedGroup, Reply};
use super::coordinator::Coordinator;
use super::portion::Portion;

/// Bytes of tombstones up to which a group is deleted in one decision.
const DELETE_BYTES_MAX: usize = 16 * 1024 * 1024;

const CLASSIC: &str = "classic";
const CONSUMER: &str = "consumer";

impl Coordinator {
    pub(super) fn list(&self, filter: &ListFilter) -> Result<Vec<ListedGroup>, ErrorCode> {
        match self.serving() {
            Ok(_) => {}
            // Another node lists the groups of this partition.
            Err(ErrorCode::NotCoordinator) => return Ok(Vec::new()),
            Err(code) => return Err(code),
        }
        let mut names: BTreeSet<String> = self.running_names().into_iter().collect();
        {
            let machine = self.partition.machine();
            let groups = machine
                .groups()
                .into_iter()
                .flat_map(|table| table.groups());
            names.extend(groups.map(|(name, _)| name.to_owned()));
        }
        let groups = names.into_iter().filter_map(|name| self.listed(name));
        let passes = |wanted: &[String], value: &str| {
            wanted.is_empty() || wanted.iter().any(|w| w.eq_ignore_ascii_case(value))
        };
        Ok(groups
            .filter(|group| {
                passes(&filter.states, group.state) && passes(&filter.types, group.kind)
            })
            .collect())
    }

    fn listed(&self, group: String) -> Option<ListedGroup> {
        let machine = self.partition.machine();
        let state = machine.groups().and_then(|table| table.get(&group));
        if let Some(GroupKind::Consumer(consumer)) = state.map(|state| &state.kind) {
            return Some(ListedGroup {
                protocol_type: CONSUMER.to_owned(),
                state: consumer.state().name(),
                kind: CONSUMER,
                group,
            });
        }
        let running = self.running(&group, |running| {
            let protocol_type = running.protocol_type().unwrap_or_default().to_owned();
            (protocol_type, running.state().name())
        });
        let (protocol_type, state) = match (running, state) {
            (Some(running), _) => running,
            (None, Some(state)) => (stored_protocol_type(state), ClassicState::Empty.name()),
            (None, None) => return None,
        };
        Some(ListedGroup {
            group,
            protocol_type,
            state,
            kind: CLASSIC,
        })
    }

    /// The groups of this coordinator for metrics; none where it does not lead.
    pub fn status(&self) -> Vec<GroupStatus> {
        if self.serving().is_err() {
            return Vec::new();
        }
        let machine = self.partition.machine();
        let groups = machine
            .groups()
            .into_iter()
            .flat_map(|table| table.groups());
        groups
            .map(|(name, state)| GroupStatus {
                group: name.to_owned(),
                members: match &state.kind {
                    GroupKind::Consumer(consumer) => consumer.members().len(),
                    GroupKind::Classic(_) | GroupKind::Simple => {
                        self.running(name, ClassicGroup::len).unwrap_or(0)
                    }
                },
                offsets: state
                    .offsets
                    .iter()
                    .map(|(partition, value)| (partition.clone(), value.offset))
                    .collect(),
            })
            .collect()
    }

    pub(super) fn describe(&self, group: &str) -> Result<DescribedGroup, GroupError> {
        self.serving()?;
        let running = self.running(group, |running| DescribedGroup {
            state: running.state().name(),
            protocol_type: running.protocol_type().unwrap_or_default().to_owned(),
            protocol: match running.state() {
                // As Kafka's coordinator: it may be another one in the next generation.
                ClassicState::Stable => running.protocol().unwrap_or_default().to_owned(),
                _ => String::new(),
            },
            members: running
                .members()
                .map(|member| DescribedMember {
                    member_id: member.member_id.to_owned(),
                    instance_id: member.instance_id.map(str::to_owned),
                    client_id: member.client_id.to_owned(),
                    client_host: member.client_host.to_owned(),
                    metadata: member.metadata,
                    assignment: member.assignment,
                })
                .collect(),
        });
        if let Some(running) = running {
            return Ok(running);
        }
        let machine = self.partition.machine();
        match machine.groups().and_then(|table| table.get(group)) {
            Some(GroupState {
                kind: GroupKind::Consumer(_),
                ..
            }) => Err(GroupError::new(
                ErrorCode::GroupIdNotFound,
                format!("group {group} is not a classic group"),
            )),
            Some(state) => Ok(DescribedGroup {
                state: ClassicState::Empty.name(),
                protocol_type: stored_protocol_type(state),
                protocol: String::new(),
                members: Vec::new(),
            }),
            None => Err(GroupError::new(
                ErrorCode::GroupIdNotFound,
                format!("group {group} does not exist"),
            )),
        }
    }

    /// Decided from the applied state once nothing is under way: the last member may have left just
    /// now, and its group's record is then on its way.
    pub(super) fn delete(self: &Rc<Self>, group: String, reply: Reply<Result<(), ErrorCode>>) {
        let coordinator = self.clone();
        self.env.spawn_local(async move {
            let _gone = reply.send(coordinator.delete_group(&group).await);
        });
    }

    /// In one decision, or where that would be too large in several: the offsets first, so that
    /// what is left when one fails is a group that can be deleted again.
    async fn delete_group(self: Rc<Self>, group: &str) -> Result<(), ErrorCode> {
        self.serving()?;
        self.writer.settled().await;
        let term = self.serving()?;
        loop {
            let mut refused = None;
            let mut is_all = true;
            let decide = || match self.judge_delete(group) {
                Ok(records) => {
                    let mut portion = Portion::of_bytes(DELETE_BYTES_MAX);
                    is_all = portion.fill(records);
                    if is_all {
                        self.drop_running(group);
                    }
                    portion.into_records()
                }
                Err(code) => {
                    refused = Some(code);
                    Vec::new()
                }
            };
            self.writer.write_alone(term, decide).await?;
            match refused {
                Some(code) => return Err(code),
                None if is_all => return Ok(()),
                None => {}
            }
        }
    }

    /// The tombstones of a whole group, of which nothing is under way.
    pub(super) fn judge_delete(&self, group: &str) -> Result<Vec<GroupRecord>, ErrorCode> {
        let running = self.running(group, |group| (!group.is_empty(), group.is_writing()));
        match running {
            Some((true, _)) => return Err(ErrorCode::NonEmptyGroup),
            // Its record waits, and would come behind the group's end.
            Some((false, true)) => return Err(ErrorCode::CoordinatorLoadInProgress),
            Some((false, false)) | None => {}
        }
        if self.consumers.is_deciding(group) {
            // The same: perhaps of its first member.
            return Err(ErrorCode::CoordinatorLoadInProgress);
        }
        let machine = self.partition.machine();
        let state = machine.groups().and_then(|table| table.get(group));
        delete_group(group, state).map_err(|error| error.code)
    }
}

fn stored_protocol_type(state: &GroupState) -> String {
    match &state.kind {
        GroupKind::Classic(value) => value.protocol_type.clone(),
        GroupKind::Consumer(_) => CONSUMER.to_owned(),
        GroupKind::Simple => String::new(),
    }
}
