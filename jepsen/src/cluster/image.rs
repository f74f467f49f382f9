//! A node's own disk: an ext4 filesystem in a file, by a loop device. Its power can be cut: what
//! was not flushed is gone, as the kernel itself tells it to the filesystem.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, bail};
use corduroy_env::Env;
use rustix::fs::FallocateFlags;

use crate::clean::{self, Made, RunFile, run};

/// `FS_IOC_SHUTDOWN` (linux/fs.h): `_IOR('X', 125, __u32)`.
const SHUTDOWN: u64 = 0x8004_587d;
/// `FS_SHUTDOWN_FLAGS_NOLOGFLUSH`: not even the journal is written.
const NO_LOG_FLUSH: u32 = 2;
/// The file that fills the disk.
const FILLER: &str = ".filler";
/// Left free by the filler: less than one write of a busy node.
const FILLER_LEAVES_BYTES: u64 = 64 * 1024;

/// The size of each node's disk.
pub const IMAGE_BYTES: u64 = 2 << 30;

/// A filesystem of one node's own.
pub struct Image {
    image: PathBuf,
    mount: PathBuf,
}

impl Image {
    /// Makes the filesystem and mounts it at `mount`.
    ///
    /// # Errors
    /// What the programs and the kernel say.
    pub fn make(image: PathBuf, mount: PathBuf, run_file: &mut RunFile) -> anyhow::Result<Image> {
        Image::make_of(IMAGE_BYTES, image, mount, run_file)
    }

    /// Makes one of so many bytes.
    ///
    /// # Errors
    /// What the programs and the kernel say.
    pub fn make_of(
        bytes: u64,
        image: PathBuf,
        mount: PathBuf,
        run_file: &mut RunFile,
    ) -> anyhow::Result<Image> {
        run_file.note(Made::File {
            path: image.clone(),
        })?;
        let file = File::create_new(&image)
            .with_context(|| format!("cannot create {}", image.display()))?;
        file.set_len(bytes)?;
        drop(file);
        let text = image.to_string_lossy().into_owned();
        // Nothing is kept back for root, as whom the nodes run: full is full.
        run("mkfs.ext4", &["-q", "-F", "-m", "0", &text])?;
        fs::create_dir_all(&mount)?;
        run_file.note(Made::Loop {
            image: image.clone(),
        })?;
        run_file.note(Made::Mount {
            path: mount.clone(),
        })?;
        let made = Image { image, mount };
        made.attach()?;
        Ok(made)
    }

    fn attach(&self) -> anyhow::Result<()> {
        let output = Command::new("losetup")
            .args(["--find", "--show"])
            .arg(&self.image)
            .output()
            .context("cannot run `losetup`")?;
        if !output.status.success() {
            bail!(
                "losetup: {}",
                String::from_utf8_lossy(&output.stderr).trim()
            );
        }
        let device = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        run("mount", &[&device, &self.mount.to_string_lossy()])
    }

    /// Cuts the power of the disk: nothing that was not flushed is ever written. Whoever still
    /// uses it gets EIO.
    ///
    /// # Errors
    /// The kernel's.
    pub fn cut_power(&self) -> anyhow::Result<()> {
        let root = File::open(&self.mount)?;
        #[expect(unsafe_code, reason = "no safe wrapper has FS_IOC_SHUTDOWN")]
        // SAFETY: the call reads one u32 that outlives it, on a descriptor that is open.
        let code = unsafe { libc::ioctl(root.as_raw_fd(), SHUTDOWN as _, &NO_LOG_FLUSH) };
        if code != 0 {
            return Err(std::io::Error::last_os_error())
                .with_context(|| format!("cannot cut the power of {}", self.mount.display()));
        }
        Ok(())
    }

    /// Mounts it again: the filesystem's own recovery runs. Nobody may use it meanwhile.
    ///
    /// # Errors
    /// What the programs and the kernel say.
    pub async fn power_on(&self, env: &Env) -> anyhow::Result<()> {
        clean::unmount(env, &self.mount).await?;
        clean::detach(&self.image)?;
        self.attach()?;
        // That the filler was removed may not have been flushed either: it would be back.
        self.empty()
    }

    /// Fills it up.
    ///
    /// # Errors
    /// The kernel's.
    pub fn fill(&self) -> anyhow::Result<u64> {
        let stat = rustix::fs::statvfs(&self.mount)?;
        let free = stat.f_bavail.saturating_mul(stat.f_frsize);
        let bytes = free.saturating_sub(FILLER_LEAVES_BYTES);
        let file = File::create(self.filler())?;
        if bytes > 0 {
            rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes)
                .context("cannot fill the disk")?;
        }
        Ok(bytes)
    }

    /// Gives the space back.
    ///
    /// # Errors
    /// The kernel's.
    pub fn empty(&self) -> anyhow::Result<()> {
        match fs::remove_file(self.filler()) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            removed => Ok(removed?),
        }
    }

    fn filler(&self) -> PathBuf {
        self.mount.join(FILLER)
    }
}
