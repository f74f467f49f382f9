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

impl Watched {
    /// One line of a report for people.
    pub fn line(&self) -> String {
        format!(
            "  process {:<6} {:.2} CPU s ({:.2} cores)   RSS {:.1} MiB",
            self.pid,
            self.cpu_seconds,
            self.cores,
            self.resident_bytes as f64 / 1_048_576.0
        )
    }
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

/// Which of the processes listens on a TCP port of this machine; `None` if none of them does, or
/// if it is not ours to see.
pub fn listener(pids: &[u32], port: u16) -> Option<u32> {
    let sockets: Vec<String> = ["/proc/net/tcp", "/proc/net/tcp6"]
        .iter()
        .filter_map(|table| fs::read_to_string(table).ok())
        .flat_map(|table| listening_inodes(&table, port))
        .map(|inode| format!("socket:[{inode}]"))
        .collect();
    pids.iter().copied().find(|pid| {
        fs::read_dir(format!("/proc/{pid}/fd")).is_ok_and(|descriptors| {
            descriptors.flatten().any(|descriptor| {
                fs::read_link(descriptor.path()).is_ok_and(|target| {
                    sockets
                        .iter()
                        .any(|socket| target.as_os_str() == socket.as_str())
                })
            })
        })
    })
}

/// The inodes of the sockets that listen on a port, of a table as `/proc/net/tcp` shows it
/// (proc(5)): number, local address, remote address, state, ..., the inode tenth.
fn listening_inodes(table: &str, port: u16) -> Vec<u64> {
    const LISTEN: &str = "0A";
    let end = format!(":{port:04X}");
    table
        .lines()
        .filter_map(|line| {
            let fields: Vec<&str> = line.split_ascii_whitespace().collect();
            let is_it = fields.get(1)?.ends_with(&end) && *fields.get(3)? == LISTEN;
            is_it.then(|| fields.get(9)?.parse().ok())?
        })
        .collect()
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
    fn only_listeners_of_the_port_itself_are_found() {
        let table = "\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:2384 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 501 1
   1: 0100007F:2384 0100007F:9C40 01 00000000:00000000 00:00000000 00000000     0        0 502 1
   2: 0100007F:2385 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 503 1
   3: cut
";
        assert_eq!(listening_inodes(table, 9092), [501]);
        assert_eq!(listening_inodes(table, 9093), [503]);
        assert!(listening_inodes(table, 9094).is_empty());
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_listener_is_known_by_its_port() {
        let env = corduroy_env::Env::real();
        let listening = env
            .listen(([127, 0, 0, 1], 0).into())
            .await
            .expect("a port");
        let port = listening.local_addr().expect("bound").port();
        let pid = std::process::id();
        assert_eq!(listener(&[u32::MAX, pid], port), Some(pid));
        drop(listening);
        assert_eq!(listener(&[u32::MAX], port), None);
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
