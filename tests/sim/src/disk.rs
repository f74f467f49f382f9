//! A node's disk: the storage crate's simulated one, with a trace of what changes it and a speed.

use std::io::{self, IoSlice};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use corduroy_storage::{Disk, DiskFile, OpenMode, SimDisk};

use crate::network::Host;
use crate::random::Random;
use crate::shared::Shared;
use crate::trace::{Trace, mix_bytes};

/// Shortest and longest flush of a healthy disk, in microseconds.
const FAIR_MICROS: (u64, u64) = (50, 1_500);

/// Where a node keeps everything.
pub const DATA_DIR: &str = "/data";

/// One machine's disk. Clone = the same disk.
#[derive(Clone)]
pub struct MachineDisk {
    sim: SimDisk,
    host: Host,
    trace: Trace,
    speed: Shared<Speed>,
}

struct Speed {
    random: Random,
    micros: (u64, u64),
}

impl MachineDisk {
    /// An empty disk.
    pub fn new(host: Host, random: Random, trace: Trace) -> MachineDisk {
        let sim = SimDisk::new();
        // As whoever installs a node does.
        let root = Path::new(DATA_DIR);
        let made = sim.create_dir_all(root);
        made.and_then(|()| sim.flush_dir(Path::new("/")))
            .expect("law: an empty simulated disk takes a directory");
        MachineDisk {
            sim,
            host,
            trace,
            speed: Shared::new(Speed {
                random,
                micros: FAIR_MICROS,
            }),
        }
    }

    /// The disk of another machine, with what is on this one now.
    pub fn copied(&self, host: Host, random: Random) -> MachineDisk {
        MachineDisk {
            sim: self.sim.copied(),
            host,
            trace: self.trace.clone(),
            speed: Shared::new(Speed {
                random,
                micros: FAIR_MICROS,
            }),
        }
    }

    /// What a crash, a failure, damage are asked of.
    pub fn sim(&self) -> &SimDisk {
        &self.sim
    }

    /// Shortest and longest flush from now on, in microseconds; `None` as a healthy disk.
    pub fn set_flush_micros(&self, micros: Option<(u64, u64)>) {
        self.speed.lock().micros = micros.unwrap_or(FAIR_MICROS);
    }

    /// Lets no more than these bytes be added from now on.
    pub fn fill(&self, left_bytes: u64) {
        self.sim.set_capacity(u64::MAX);
        let free = self.sim.free_bytes(Path::new(DATA_DIR)).unwrap_or(u64::MAX);
        self.sim.set_capacity(u64::MAX - free + left_bytes);
    }

    /// There is space again.
    pub fn empty(&self) {
        self.sim.set_capacity(u64::MAX);
    }

    fn note(&self, what: &'static str, path: u64, numbers: [u64; 2], bytes: &[u8]) {
        let [first, second] = numbers;
        let all = [u64::from(self.host), path, first, second];
        self.trace.note(what, &all, bytes);
    }
}

fn name(path: &Path) -> u64 {
    mix_bytes(0, path.as_os_str().as_encoded_bytes())
}

impl Disk for MachineDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn DiskFile>> {
        let file = self.sim.open(path, mode)?;
        let path = name(path);
        self.note("open", path, [mode as u64, 0], &[]);
        Ok(Arc::new(MachineFile {
            file,
            path,
            disk: self.clone(),
        }))
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        self.note("create-dir", name(path), [0, 0], &[]);
        self.sim.create_dir_all(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.note("rename", name(from), [name(to), 0], &[]);
        self.sim.rename(from, to)
    }

    fn exchange(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.note("exchange", name(from), [name(to), 0], &[]);
        self.sim.exchange(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.note("remove-file", name(path), [0, 0], &[]);
        self.sim.remove_file(path)
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        self.note("remove-dir", name(path), [0, 0], &[]);
        self.sim.remove_dir_all(path)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.sim.list(dir)
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        self.sim.exists(path)
    }

    fn flush_dir(&self, dir: &Path) -> io::Result<()> {
        self.note("flush-dir", name(dir), [0, 0], &[]);
        self.sim.flush_dir(dir)
    }

    fn free_bytes(&self, path: &Path) -> io::Result<u64> {
        self.sim.free_bytes(path)
    }

    fn flush_delay(&self) -> Duration {
        let mut speed = self.speed.lock();
        let (low, high) = speed.micros;
        Duration::from_micros(speed.random.between(low, high + 1))
    }
}

struct MachineFile {
    file: Arc<dyn DiskFile>,
    path: u64,
    disk: MachineDisk,
}

impl DiskFile for MachineFile {
    fn write_at(&self, offset: u64, chunks: &[IoSlice<'_>]) -> io::Result<()> {
        let hash = chunks.iter().fold(0, |hash, chunk| mix_bytes(hash, chunk));
        self.disk.note("write", self.path, [offset, hash], &[]);
        self.file.write_at(offset, chunks)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.file.read_at(offset, buf)
    }

    fn flush(&self) -> io::Result<()> {
        let flushed = self.file.flush();
        let failed = u64::from(flushed.is_err());
        self.disk.note("flush", self.path, [failed, 0], &[]);
        flushed
    }

    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.disk.note("set-len", self.path, [len, 0], &[]);
        self.file.set_len(len)
    }
}
