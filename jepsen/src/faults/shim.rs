//! The harness' side of `shim.c`: builds it with the machine's C compiler, and switches its faults
//! by writing into the file that it has mapped.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

const SOURCE: &str = include_str!("shim.c");
/// `CONTROL_BYTES` in `shim.c`.
const CONTROL_BYTES: u64 = 4096;
const WALL_AT: u64 = 0;
const WRITES_AT: u64 = 8;
const FLUSHES_AT: u64 = 12;
const DELAY_AT: u64 = 16;
const PERMILLE_AT: u64 = 20;
const HITS_AT: u64 = 24;
const WALL_LOOKS_AT: u64 = 32;
const LOADS_AT: u64 = 40;
const FULL_AT: u64 = 48;
const READS_AT: u64 = 56;

/// The variable that names a process's control file.
pub const VARIABLE: &str = "JEPSEN_FAULTS";

/// What positioned writes do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writes {
    /// As ever.
    Work,
    /// EIO.
    Fail,
    /// ENOSPC.
    Full,
    /// Only a part is written, as the system call may at any time.
    Part,
}

/// The files that [`build`] makes.
const FILES: [&str; 2] = ["shim.c", "shim.so"];

/// Removes what [`build`] made in `dir`.
pub fn remove(dir: &Path) {
    for name in FILES {
        // It may never have been made.
        let _ = fs::remove_file(dir.join(name));
    }
}

/// Builds the library into `dir`.
///
/// # Errors
/// No C compiler, or what it says.
pub fn build(dir: &Path) -> anyhow::Result<PathBuf> {
    let [source, library] = FILES.map(|name| dir.join(name));
    fs::write(&source, SOURCE).with_context(|| format!("cannot write {}", source.display()))?;
    let output = Command::new("cc")
        .args(["-shared", "-fPIC", "-O2", "-o"])
        .args([&library, &source])
        .arg("-ldl")
        .output()
        .context("cannot run the C compiler `cc`")?;
    if !output.status.success() {
        bail!("cc: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(library)
}

/// Whether a program loads the library and works with it.
///
/// # Errors
/// Why it does not: for people.
pub fn works(library: &Path, dir: &Path, program: &Path) -> Result<(), String> {
    let path = dir.join("shim-probe");
    let control = Control::make(path.clone()).map_err(|error| format!("{error:#}"))?;
    let status = Command::new(program)
        .arg("--version")
        .env("LD_PRELOAD", library)
        .env(VARIABLE, &path)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    let _ = fs::remove_file(path);
    match status {
        Err(error) => Err(format!("cannot run {}: {error}", program.display())),
        Ok(status) if !status.success() => Err(format!(
            "the library does not work in a process here ({status}; are seccomp filters refused?)"
        )),
        Ok(_) if control.loads() == 0 => Err(format!(
            "{} does not load the library: it is linked statically, or has more rights than its \
             caller",
            program.display()
        )),
        Ok(_) => Ok(()),
    }
}

/// The switches of one node. They outlive its processes.
pub struct Control {
    path: PathBuf,
    file: File,
}

impl Control {
    /// A control file with everything off.
    ///
    /// # Errors
    /// The operating system's.
    pub fn make(path: PathBuf) -> anyhow::Result<Control> {
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(&path)
            .with_context(|| format!("cannot create {}", path.display()))?;
        file.set_len(CONTROL_BYTES)?;
        Ok(Control { path, file })
    }

    /// Its file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn put(&self, at: u64, value: u32) -> anyhow::Result<()> {
        Ok(self.file.write_all_at(&value.to_ne_bytes(), at)?)
    }

    /// Shifts the wall clock, against the machine's.
    ///
    /// # Errors
    /// The operating system's.
    pub fn shift_wall(&self, nanos: i64) -> anyhow::Result<()> {
        Ok(self.file.write_all_at(&nanos.to_ne_bytes(), WALL_AT)?)
    }

    /// Lets some of a thousand writes go wrong.
    ///
    /// # Errors
    /// The operating system's.
    pub fn break_writes(&self, how: Writes, permille: u32) -> anyhow::Result<()> {
        self.put(PERMILLE_AT, permille)?;
        let mode = match how {
            Writes::Work => 0,
            Writes::Fail => 1,
            Writes::Full => 2,
            Writes::Part => 3,
        };
        self.put(WRITES_AT, mode)
    }

    /// Lets flushes fail, with nothing flushed.
    ///
    /// # Errors
    /// The operating system's.
    pub fn break_flushes(&self) -> anyhow::Result<()> {
        self.put(PERMILLE_AT, 1000)?;
        self.put(FLUSHES_AT, 1)
    }

    /// Lets some of a thousand writes and flushes take longer.
    ///
    /// # Errors
    /// The operating system's.
    pub fn slow(&self, micros: u32, permille: u32) -> anyhow::Result<()> {
        self.put(PERMILLE_AT, permille)?;
        self.put(DELAY_AT, micros)
    }

    /// Lets some of a thousand reads fail with EIO.
    ///
    /// # Errors
    /// The operating system's.
    pub fn break_reads(&self, permille: u32) -> anyhow::Result<()> {
        self.put(PERMILLE_AT, permille)?;
        self.put(READS_AT, 1)
    }

    /// Everything of the disk works again; the clock stays as it is.
    ///
    /// # Errors
    /// The operating system's.
    pub fn mend_disk(&self) -> anyhow::Result<()> {
        self.put(WRITES_AT, 0)?;
        self.put(FLUSHES_AT, 0)?;
        self.put(READS_AT, 0)?;
        self.put(DELAY_AT, 0)?;
        self.put(PERMILLE_AT, 0)
    }

    /// How many calls were hit so far: a fault that hit none did not happen.
    pub fn hits(&self) -> u64 {
        self.count(HITS_AT)
    }

    /// How often a shifted wall clock was looked at.
    pub fn wall_looks(&self) -> u64 {
        self.count(WALL_LOOKS_AT)
    }

    /// How many processes have loaded the library.
    pub fn loads(&self) -> u64 {
        self.count(LOADS_AT)
    }

    /// To how many calls the disk itself said that it is full.
    pub fn full(&self) -> u64 {
        self.count(FULL_AT)
    }

    fn count(&self, at: u64) -> u64 {
        let mut bytes = [0; 8];
        match self.file.read_exact_at(&mut bytes, at) {
            Ok(()) => u64::from_ne_bytes(bytes),
            Err(_) => 0,
        }
    }
}
