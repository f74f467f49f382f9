//! Which socket is at one end of a connection, as the kernel answers by netlink (`sock_diag(7)`): one
//! question, however many sockets there are. `/proc/net/tcp` would list them all each time.

use std::io;
use std::net::SocketAddrV4;

use rustix::net::netlink::{SOCK_DIAG, SocketAddrNetlink};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with,
};

/// `SOCK_DIAG_BY_FAMILY` (linux/sock_diag.h).
const BY_FAMILY: u16 = 20;
/// `NLM_F_REQUEST` (linux/netlink.h): without `NLM_F_DUMP` it asks for one socket.
const REQUEST: u16 = 1;
/// `AF_INET` and `IPPROTO_TCP`.
const INET: u8 = 2;
const TCP: u8 = 6;
/// Bytes of `nlmsghdr`, and of `inet_diag_req_v2` behind it.
const HEADER_BYTES: usize = 16;
const QUESTION_BYTES: usize = 56;
/// Where `idiag_inode` lies in an answer: behind the header, four bytes, the socket's id, and four
/// numbers.
const INODE_AT: usize = HEADER_BYTES + 4 + 48 + 16;
/// More than an answer takes: its attributes are not asked for.
const ANSWER_BYTES_MAX: usize = 1024;

/// The inode of the socket that is bound to `local` and connected to `remote`; `None` if there is
/// none.
///
/// # Errors
/// The kernel does not answer such questions here.
pub fn inode(local: SocketAddrV4, remote: SocketAddrV4) -> io::Result<Option<u64>> {
    let kernel = socket_with(
        AddressFamily::NETLINK,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        Some(SOCK_DIAG),
    )?;
    let to = SocketAddrNetlink::new(0, 0);
    sendto(&kernel, &question(local, remote), SendFlags::empty(), &to)?;
    let mut answer = [0u8; ANSWER_BYTES_MAX];
    let (length, _) = recv(&kernel, &mut answer[..], RecvFlags::empty())?;
    Ok(inode_of(&answer[..length]))
}

/// Numbers of the headers are in the machine's byte order, addresses and ports in the network's.
fn question(local: SocketAddrV4, remote: SocketAddrV4) -> Vec<u8> {
    let length = (HEADER_BYTES + QUESTION_BYTES) as u32;
    let mut bytes = Vec::with_capacity(HEADER_BYTES + QUESTION_BYTES);
    bytes.extend(length.to_ne_bytes());
    bytes.extend(BY_FAMILY.to_ne_bytes());
    bytes.extend(REQUEST.to_ne_bytes());
    // Its number, and whose question it is: filled in by the kernel.
    bytes.extend([0; 8]);
    bytes.extend([INET, TCP, 0, 0]);
    // In any state.
    bytes.extend(u32::MAX.to_ne_bytes());
    bytes.extend(local.port().to_be_bytes());
    bytes.extend(remote.port().to_be_bytes());
    for address in [local, remote] {
        bytes.extend(address.ip().octets());
        // An IPv6 address would need it.
        bytes.extend([0; 12]);
    }
    // Any interface; no cookie.
    bytes.extend([0; 4]);
    bytes.extend([0xff; 8]);
    bytes
}

fn inode_of(answer: &[u8]) -> Option<u64> {
    let kind = answer.get(4..6)?;
    if kind != BY_FAMILY.to_ne_bytes() {
        return None;
    }
    let bytes: [u8; 4] = answer.get(INODE_AT..INODE_AT + 4)?.try_into().ok()?;
    // A socket that nobody holds any more has none.
    Some(u64::from(u32::from_ne_bytes(bytes))).filter(|inode| *inode != 0)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    #[allow(clippy::disallowed_methods, reason = "sockets to be found")]
    fn each_end_of_a_connection_is_found_by_its_own_inode() {
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
        let (listens, far) = (listener.local_addr().expect("bound"), listener);
        let near = std::net::TcpStream::connect(listens).expect("connected");
        let (served, peer) = far.accept().expect("accepted");
        let (std::net::SocketAddr::V4(listens), std::net::SocketAddr::V4(peer)) = (listens, peer)
        else {
            panic!("these are IPv4 addresses");
        };
        let held = |descriptor: i32| {
            let link = fs::read_link(format!("/proc/self/fd/{descriptor}")).expect("open");
            let text = link.to_string_lossy().into_owned();
            let number = text.trim_start_matches("socket:[").trim_end_matches(']');
            number.parse::<u64>().expect("an inode")
        };
        assert_eq!(
            inode(peer, listens).expect("an answer"),
            Some(held(near.as_raw_fd()))
        );
        assert_eq!(
            inode(listens, peer).expect("an answer"),
            Some(held(served.as_raw_fd()))
        );
        drop((near, served));
        let nobody = SocketAddrV4::new([127, 0, 0, 1].into(), 1);
        assert_eq!(inode(nobody, peer).expect("an answer"), None);
    }
}
