//! CPU time and memory of other processes, from `/proc`.

use std::fs;

use serde::Serialize;

/// The unit of CPU times in `/proc`: Linux shows them in hundredths whatever its own clock is
/// (USER_HZ, part of its stable interface on every architecture that we build for).
const TICKS_PER_SECOND: f64 = 100.0;

/// What a process has used so far.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    pub cpu_seconds: f64,
    pub resident_bytes: u64,
}

/// A watched process over a measurement.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Watched {
    pub pid: u32,
    /// CPU seconds used during the measurement.
    pub cpu_seconds: f64,
    /// The same as a number of busy cores.
    pub cores: f64,
    /// Resident memory at the end.
    pub resident_bytes: u64,
}

/// Processes under watch since their start values were taken.
pub struct Watch {
    starts: Vec<(u32, Usage)>,
}

impl Watch {
    /// Takes the start values.
    ///
    /// # Errors
    /// A sentence about a process that can't be read.
    pub fn start(pids: &[u32]) -> Result<Watch, String> {
        let starts = pids
            .iter()
            .map(|&pid| {
                usage(pid)
                    .map(|usage| (pid, usage))
                    .ok_or_else(|| format!("cannot read /proc/{pid}: is there such a process?"))
            })
            .collect::<Result<_, _>>()?;
        Ok(Watch { starts })
    }

    /// What each process used since the start; one that ended meanwhile is left out.
    pub fn read(&self, elapsed_seconds: f64) -> Vec<Watched> {
        self.starts
            .iter()
            .filter_map(|&(pid, start)| {
                let now = usage(pid)?;
                let cpu_seconds = now.cpu_seconds - start.cpu_seconds;
                Some(Watched {
                    pid,
                    cpu_seconds,
                    cores: if elapsed_seconds > 0.0 {
                        cpu_seconds / elapsed_seconds
                    } else {
                        0.0
                    },
                    resident_bytes: now.resident_bytes,
                })
            })
            .collect()
    }
}

/// What a process has used since it started; `None` if it is gone or not ours to see.
pub fn usage(pid: u32) -> Option<Usage> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    Some(Usage {
        cpu_seconds: cpu_ticks(&stat)? as f64 / TICKS_PER_SECOND,
        resident_bytes: resident_bytes(&status).unwrap_or(0),
    })
}

/// User and system ticks of a line of `/proc/PID/stat`. The name in it may hold anything, so
/// fields are counted from its closing parenthesis (proc(5)).
fn cpu_ticks(stat: &str) -> Option<u64> {
    let mut fields = stat.get(stat.rfind(')')? + 1..)?.split_ascii_whitespace();
    let user: u64 = fields.nth(11)?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(user + system)
}

fn resident_bytes(status: &str) -> Option<u64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: u64 = line.split_ascii_whitespace().next()?.parse().ok()?;
    Some(kibibytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_blanks_and_parentheses_is_skipped() {
        let stat = "7 (a) b (c) S 1 1 1 0 -1 4194560 100 0 0 0 31 11 0 0 20 0 1 0 5 1 1";
        assert_eq!(cpu_ticks(stat), Some(42));
        assert_eq!(cpu_ticks("nonsense"), None);
        assert_eq!(
            resident_bytes("VmPeak:\t 9 kB\nVmRSS:\t   12 kB\n"),
            Some(12 * 1024)
        );
    }

    #[test]
    fn our_own_process_can_be_watched() {
        let pid = std::process::id();
        let watch = Watch::start(&[pid]).expect("own process");
        let watched = watch.read(1.0);
        assert_eq!(watched.len(), 1);
        assert!(watched[0].resident_bytes > 0);
        assert!(Watch::start(&[u32::MAX]).is_err());
    }
}
