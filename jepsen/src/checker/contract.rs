//! Writes that were acknowledged and had to be refused: of a producer that was fenced, or with too
//! few replicas alive.

use std::collections::BTreeMap;

use crate::coverage::{Span, fault_spans};
use crate::faults::FaultKind;
use crate::history::{Acks, Call, ClientSettings, Nanos, Producer};
use crate::verdict::Class;

use super::collect::{Anomaly, Collector};
use super::index::{Index, NONE, Write};

/// Faults that end a node's process: while one holds, its targets acknowledge nothing.
const DEADLY: &[&str] = &["kill", "power"];

pub fn check(index: &Index<'_>, settings: &ClientSettings, found: &mut Collector<'_>) {
    fencing(index, found);
    replication(index, settings, found);
}

/// Once a batch of a newer epoch of a producer is in a log, no older one gets in.
fn fencing(index: &Index<'_>, found: &mut Collector<'_>) {
    struct Sent<'i> {
        write: &'i Write,
        epoch: i16,
        invoked: Nanos,
        completed: Nanos,
    }
    let mut by_producer: BTreeMap<(u32, i64), Vec<Sent<'_>>> = BTreeMap::new();
    for write in index.writes.iter().filter(|write| write.op != NONE) {
        let op = index.op(write.op);
        let Call::Send(send) = &op.call else { continue };
        let Some(Producer { id, epoch }) = send.producer else {
            continue;
        };
        // What is in the log was accepted, whatever the answer was.
        if op.is_ok() || write.is_read() {
            let completed = match op.is_ok() {
                true => op.end(),
                false => write.read_at,
            };
            by_producer.entry((write.key, id)).or_default().push(Sent {
                write,
                epoch,
                invoked: op.invoked,
                completed,
            });
        }
    }
    for sends in by_producer.into_values() {
        let mut ended: Vec<&Sent<'_>> = sends.iter().collect();
        ended.sort_unstable_by_key(|sent| sent.completed);
        let (mut next, mut newest): (usize, Option<&Sent<'_>>) = (0, None);
        // In the order of their invocations, as the history has them.
        for sent in &sends {
            while let Some(before) = ended.get(next)
                && before.completed < sent.invoked
            {
                next += 1;
                if newest.is_none_or(|newest| before.epoch > newest.epoch) {
                    newest = Some(before);
                }
            }
            let Some(newer) = newest.filter(|newest| sent.epoch < newest.epoch) else {
                continue;
            };
            found.add(Class::FencedAppend, None, || Anomaly {
                key: Some(index.key(sent.write.key)),
                what: format!(
                    "{} of producer epoch {} was accepted after {} of epoch {}",
                    sent.write.value, sent.epoch, newer.write.value, newer.epoch
                ),
                offsets: sent.write.offset().into_iter().collect(),
                values: vec![newer.write.value, sent.write.value],
                proof: vec![newer.write.op, sent.write.op],
            });
        }
    }
}

/// `acks=all` is not answered while fewer than `min.insync.replicas` replicas are alive.
fn replication(index: &Index<'_>, settings: &ClientSettings, found: &mut Collector<'_>) {
    let nodes = index.history.header.nodes.len();
    let replicas = settings.replication_factor as usize;
    let least = settings.min_insync_replicas as usize;
    // With more nodes than replicas, a dead node need not be one of a partition's.
    if settings.acks != Acks::All || nodes != replicas {
        return;
    }
    let members_change = fault_spans(index.history)
        .into_iter()
        .filter(|(fault, _)| fault.fault.starts_with(FaultKind::Membership.name()))
        .map(|(_, span)| span.begin)
        .min();
    let dead: Vec<(u32, Span)> = fault_spans(index.history)
        .into_iter()
        .filter(|(fault, _)| DEADLY.iter().any(|name| fault.fault.starts_with(name)))
        .flat_map(|(fault, span)| fault.targets.iter().map(move |node| (*node, span)))
        .collect();
    if dead.is_empty() {
        return;
    }
    for write in index.writes.iter().filter(|write| write.op != NONE) {
        let op = index.op(write.op);
        if !op.is_ok() || members_change.is_some_and(|from| op.end() >= from) {
            continue;
        }
        let throughout = |span: &Span| span.begin < op.invoked && op.end() < span.end;
        let mut gone: Vec<u32> = dead
            .iter()
            .filter(|(_, span)| throughout(span))
            .map(|(node, _)| *node)
            .collect();
        gone.sort_unstable();
        gone.dedup();
        if replicas - gone.len().min(replicas) >= least {
            continue;
        }
        found.add(Class::UnderReplicatedAck, None, || Anomaly {
            key: Some(index.key(write.key)),
            what: format!(
                "{} was acknowledged while nodes {gone:?} of {replicas} were dead, with min.insync.replicas={least}",
                write.value
            ),
            offsets: write.offset().into_iter().collect(),
            values: vec![write.value],
            proof: vec![write.op],
        });
    }
}
