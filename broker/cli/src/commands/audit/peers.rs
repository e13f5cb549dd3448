//! Which Unix sockets are the two ends of one connection: the kernel's sock_diag(7), for any user,
//! of this network namespace. Must never wait without a bound.

use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, recv, sendto,
    setsockopt, socket, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike};
use std::collections::HashMap;
use std::os::fd::AsRawFd;

/// `SOCK_DIAG_BY_FAMILY` (linux/sock_diag.h).
const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// `UDIAG_SHOW_PEER`, `UNIX_DIAG_PEER` (linux/unix_diag.h).
const UDIAG_SHOW_PEER: u32 = 4;
const UNIX_DIAG_PEER: u16 = 2;
/// Bytes of `nlmsghdr`, `unix_diag_req` and `unix_diag_msg`.
const HEADER_BYTES: usize = 16;
const REQUEST_BYTES: usize = 24;
const MESSAGE_BYTES: usize = 16;
/// One part of an answer: the kernel fills at most 32 KiB (`NETLINK_DUMP` in af_netlink.c).
const PART_BYTES: usize = 32 << 10;
/// Most parts read: some 900 sockets each, so more than a node can have sockets.
const MAX_PARTS: usize = 1 << 16;
/// Longest wait for a part: the kernel makes it at once.
const PART_LIMIT_S: i64 = 5;

/// The other end of each Unix socket by inode; `None` for one that has none, or whose other end is
/// closed.
pub fn read() -> nix::Result<HashMap<u64, Option<u64>>> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let diag =
        socket(AddressFamily::Netlink, SockType::Datagram, flags, SockProtocol::NetlinkSockDiag)?;
    setsockopt(&diag, sockopt::ReceiveTimeout, &TimeVal::seconds(PART_LIMIT_S))?;
    let kernel = NetlinkAddr::new(0, 0);
    sendto(diag.as_raw_fd(), &request(), &kernel, MsgFlags::empty())?;
    let mut peers = HashMap::new();
    let mut part = vec![0; PART_BYTES];
    for _ in 0..MAX_PARTS {
        let length = recv(diag.as_raw_fd(), &mut part, MsgFlags::empty())?;
        if take(&part[..length], &mut peers)? {
            break;
        }
    }
    Ok(peers)
}

fn request() -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER_BYTES + REQUEST_BYTES);
    let flags = u16::try_from(libc::NLM_F_REQUEST | libc::NLM_F_DUMP).expect("bits of 16");
    let length = u32::try_from(HEADER_BYTES + REQUEST_BYTES).expect("some bytes");
    bytes.extend(length.to_ne_bytes());
    bytes.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    bytes.extend([0; 8]); // sequence number and port
    // Family, protocol, padding; states: all; inode: all; what to show; cookie.
    bytes.extend([u8::try_from(libc::AF_UNIX).expect("a small number"), 0, 0, 0]);
    bytes.extend(u32::MAX.to_ne_bytes());
    bytes.extend(0u32.to_ne_bytes());
    bytes.extend(UDIAG_SHOW_PEER.to_ne_bytes());
    bytes.extend([0; 8]);
    bytes
}

/// Takes one part; `true`: it was the last.
fn take(mut part: &[u8], peers: &mut HashMap<u64, Option<u64>>) -> nix::Result<bool> {
    while part.len() >= HEADER_BYTES {
        let length = (number(part, 0) as usize).clamp(HEADER_BYTES, part.len());
        let kind = libc::c_int::from(short(part, 4));
        let body = &part[HEADER_BYTES..length];
        match kind {
            libc::NLMSG_DONE => return Ok(true),
            libc::NLMSG_ERROR => {
                let errno = body.get(..4).map_or(libc::EIO, |_| -(number(body, 0) as i32));
                return Err(nix::errno::Errno::from_raw(errno));
            }
            _ if body.len() >= MESSAGE_BYTES => {
                let inode = u64::from(number(body, 4));
                peers.insert(inode, peer(&body[MESSAGE_BYTES..]));
            }
            _ => {}
        }
        part = &part[length.next_multiple_of(4).min(part.len())..];
    }
    Ok(false)
}

/// Among the attributes of one socket.
fn peer(mut attributes: &[u8]) -> Option<u64> {
    while attributes.len() >= 4 {
        let length = usize::from(short(attributes, 0)).clamp(4, attributes.len());
        if short(attributes, 2) == UNIX_DIAG_PEER && length >= 8 {
            return Some(number(attributes, 4).into()).filter(|inode| *inode != 0);
        }
        attributes = &attributes[length.next_multiple_of(4).min(attributes.len())..];
    }
    None
}

/// The caller has seen that there are 4 bytes.
fn number(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn short(bytes: &[u8], at: usize) -> u16 {
    u16::from_ne_bytes([bytes[at], bytes[at + 1]])
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::stat::fstat;

    #[test]
    fn read_when_a_pair_then_each_is_the_others_peer_and_none_when_closed() {
        let (a, b) = fdbroker_scm::seqpacket_pair().expect("a pair");
        let inode = |fd: &std::os::fd::OwnedFd| fstat(fd).expect("an inode").st_ino;
        let (of_a, of_b) = (inode(&a), inode(&b));
        let peers = read().expect("sock_diag");
        assert_eq!((peers[&of_a], peers[&of_b]), (Some(of_b), Some(of_a)));
        drop(b);
        assert_eq!(read().expect("sock_diag")[&of_a], None);
    }

    #[test]
    fn take_when_cut_short_then_no_panic() {
        let mut peers = HashMap::new();
        for length in 0..40 {
            let _ = take(&[0xff; 40][..length], &mut peers);
            let _ = take(&request()[..length], &mut peers);
        }
    }
}
