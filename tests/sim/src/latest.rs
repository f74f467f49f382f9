//! Asks nodes for the latest offset of a partition, those too that lead it no more: whoever answers may
//! not fall behind what was acknowledged, read or told before it was asked (DESIGN 5.2). No client
//! library asks anybody but the leader that it knows.

use crate::network::Host;
use crate::random::Random;
use crate::raw;
use crate::workload::{KEPT, KEPT_PARTITIONS, Workload};

/// Longest pause between two questions, in milliseconds.
const PAUSE_MILLIS_MAX: u64 = 250;

/// Asks until told to end.
pub async fn run(workload: Workload, mut random: Random) {
    let (env, hosts) = workload.way();
    let hosts: Vec<Host> = hosts.to_vec();
    while !workload.is_quiet() {
        let partition = random.below(KEPT_PARTITIONS as u64) as i32;
        let Some(host) = random.pick(&hosts) else {
            return;
        };
        let known = workload.ledger().end(KEPT, partition);
        if let Some(end) = raw::latest(env, host, (KEPT, partition)).await {
            workload
                .ledger()
                .latest(host, (KEPT, partition), known, end);
        }
        workload.pause(random.between(10, PAUSE_MILLIS_MAX)).await;
    }
}
