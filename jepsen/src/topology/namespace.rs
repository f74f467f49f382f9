//! Network namespaces: one for each node and one for the clients, each with one TUN device to the
//! router. iproute2 makes and removes them.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context, bail};
use corduroy_env::Env;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tokio::sync::watch;

use super::link::{Host, Wiring};
use super::router::Router;
use crate::chance::Chance;
use crate::clean::{Made, RunFile};

/// The network of the nodes. It exists only inside the namespaces, so it collides with nothing.
const NETWORK: [u8; 3] = [10, 77, 0];
/// The clients' last number in it; a node's is its id.
const CLIENTS: u8 = 200;
const MTU: &str = "9000";
const DEVICE: &[u8] = b"tun0\0";

/// Where iproute2 keeps namespaces by name.
pub const NAMESPACES_DIR: &str = "/run/netns";

/// The namespaces of a run, and the router between them.
pub struct Namespaces {
    files: BTreeMap<Host, File>,
    _router: Router,
}

impl Namespaces {
    /// Makes them, and moves this thread into that of the clients: call it before the threads of
    /// the run exist, and never leave.
    ///
    /// # Errors
    /// What iproute2 or the kernel refused.
    pub fn build(
        env: &Env,
        nodes: u8,
        table: watch::Receiver<Arc<Wiring>>,
        chance: Chance,
        run_file: &mut RunFile,
    ) -> anyhow::Result<Namespaces> {
        let hosts: Vec<Host> = (0..=nodes)
            .map(|id| {
                if id == 0 {
                    Host::CLIENTS
                } else {
                    Host::node(id)
                }
            })
            .collect();
        let mut files = BTreeMap::new();
        let mut devices = BTreeMap::new();
        for host in hosts {
            let name = format!("{}-{host}", run_file.prefix());
            run_file.note(Made::Namespace { name: name.clone() })?;
            ip(&["netns", "add", &name])?;
            let path = PathBuf::from(NAMESPACES_DIR).join(&name);
            let file =
                File::open(&path).with_context(|| format!("cannot open {}", path.display()))?;
            enter(&file)?;
            devices.insert(host, open_device()?);
            let address = format!("{}/24", Namespaces::address(host));
            ip(&["link", "set", "lo", "up"])?;
            ip(&["addr", "add", &address, "dev", "tun0"])?;
            ip(&["link", "set", "tun0", "mtu", MTU, "up"])?;
            files.insert(host, file);
        }
        let clients = files.get(&Host::CLIENTS).context("no clients' namespace")?;
        enter(clients)?;
        let router = Router::start(env, devices, table, chance)?;
        Ok(Namespaces {
            files,
            _router: router,
        })
    }

    /// A host's address.
    pub fn address(host: Host) -> Ipv4Addr {
        let last = match host {
            Host::CLIENTS => CLIENTS,
            node => node.number(),
        };
        Ipv4Addr::new(NETWORK[0], NETWORK[1], NETWORK[2], last)
    }

    /// Whose address it is.
    pub fn host(address: Ipv4Addr) -> Option<Host> {
        match address.octets() {
            [a, b, c, last] if [a, b, c] == NETWORK => Some(match last {
                CLIENTS => Host::CLIENTS,
                id => Host::node(id),
            }),
            _ => None,
        }
    }

    /// Runs `start` inside a host's namespace. The thread returns to the clients' in any case.
    ///
    /// # Errors
    /// The kernel's, and those of `start`.
    pub fn within<T>(
        &self,
        host: Host,
        start: impl FnOnce() -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let of = |host: &Host| self.files.get(host).context("no such namespace");
        enter(of(&host)?)?;
        let started = start();
        enter(of(&Host::CLIENTS)?)?;
        started
    }
}

/// Moves this thread into a network namespace.
fn enter(namespace: &File) -> anyhow::Result<()> {
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
        .context("cannot enter a network namespace")
}

/// Runs iproute2 in the namespace where this thread is.
fn ip(args: &[&str]) -> anyhow::Result<()> {
    let output = Command::new("ip")
        .args(args)
        .output()
        .context("cannot run `ip`: install iproute2")?;
    if !output.status.success() {
        bail!(
            "ip {}: {}",
            args.join(" "),
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(())
}

/// A TUN device named `tun0` in this thread's namespace. It vanishes with the descriptor.
fn open_device() -> anyhow::Result<File> {
    let device = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
        .open("/dev/net/tun")
        .context("cannot open /dev/net/tun")?;
    #[expect(unsafe_code, reason = "no safe wrapper has TUNSETIFF")]
    // SAFETY: `request` is an ifreq of the size that the kernel reads and writes, it outlives the
    // call, and the descriptor is open.
    let code = unsafe {
        let mut request: libc::ifreq = std::mem::zeroed();
        for (place, byte) in request.ifr_name.iter_mut().zip(DEVICE) {
            *place = *byte as libc::c_char;
        }
        request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as libc::c_short;
        libc::ioctl(device.as_raw_fd(), libc::TUNSETIFF as _, &mut request)
    };
    if code != 0 {
        return Err(std::io::Error::last_os_error()).context("cannot make a TUN device");
    }
    Ok(device)
}
