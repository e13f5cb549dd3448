//! Fds that cost whoever touches them much time in the kernel. Must never leave behind the files
//! that it makes.

use crate::attack::Attack;
use crate::support::memory::memfd;
use crate::support::peer::die_with_parent;
use crate::wire::{Conn, Push, await_ready, block, nap, stopped};
use fdbroker_protocol::MemoryKind;
use nix::fcntl::{FallocateFlags, SealFlag, fallocate};
use nix::poll::PollFlags;
use std::ffi::CString;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

/// Watches of one inotify fd: to read its fdinfo takes some 5 us for each.
const WATCHES: usize = 20_000;

/// Size of a memfd whose close takes long: 190 ms for each GiB, within an eighth of the memory that
/// is free now.
fn big_bytes() -> i64 {
    let info = std::fs::read_to_string("/proc/meminfo").expect("/proc");
    let free = info.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = free.and_then(|text| text.trim().strip_suffix(" kB")?.parse::<i64>().ok());
    (kib.expect("a number") * 1024 / 8).min(1 << 30)
}

/// Memfds of a GiB, each registered and given back: the broker has the last fd of it.
pub fn big(attack: &mut Attack) {
    die_with_parent();
    let Some(mut conn) = Conn::welcome(&attack.socket, &mut attack.inbox) else { return };
    while !stopped() {
        let memfd = memfd(c"big", 4096, SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_SEAL);
        if fallocate(&memfd, FallocateFlags::empty(), 0, big_bytes()).is_err() {
            return;
        }
        let shared = conn.share(&mut attack.inbox, memfd.as_fd(), &[block(0)]);
        drop(memfd);
        let ids: Vec<_> = shared.iter().map(|item| item.handle.get().id()).collect();
        let bytes = conn.unregister(&ids);
        if conn.push(&bytes, &[]) == Push::Gone || !conn.drain_some(&mut attack.inbox, |_| {}) {
            return;
        }
        if attack.tally.tries == 0 {
            attack.begin();
        }
        attack.tally.tries += 1;
        // One at a time: the memory is not free before it is closed.
        (0..300).take_while(|_| !stopped()).for_each(|_| nap());
    }
}

/// Deposits of an inotify fd with thousands of watches, a few in a message.
pub fn watches(attack: &mut Attack) {
    die_with_parent();
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory");
    // SAFETY: makes a new fd, touches no memory.
    let inotify = unsafe { OwnedFd::from_raw_fd(libc::inotify_init1(libc::IN_CLOEXEC)) };
    for number in 0..WATCHES {
        let path = dir.path().join(number.to_string());
        File::create(&path).expect("a file");
        let path = CString::new(path.as_os_str().as_bytes()).expect("no zero byte");
        // SAFETY: the path is a C string that outlives the call.
        let watch =
            unsafe { libc::inotify_add_watch(inotify.as_raw_fd(), path.as_ptr(), libc::IN_MODIFY) };
        if watch < 0 {
            // The system allows a user no more.
            break;
        }
    }
    attack.begin();
    let items: Vec<_> = (0..4)
        .map(|index| {
            let mut item = block(index);
            item.facts.kind = MemoryKind::DmaBuf as u8;
            item
        })
        .collect();
    while !stopped() {
        let Some(mut conn) = Conn::welcome(&attack.socket, &mut attack.inbox) else { return };
        while !stopped() && conn.want_credits(&mut attack.inbox) {
            let count = items.len().min(conn.credits as usize);
            let bytes = conn.register(&items[..count], items.len() as u32);
            attack.tally.tries += 1;
            match conn.push(&bytes, &vec![inotify.as_fd(); count]) {
                Push::Sent => {}
                Push::Full => await_ready(conn.socket.as_fd(), PollFlags::POLLOUT),
                Push::Gone => break,
            }
            if !conn.drain_some(&mut attack.inbox, |_| {}) {
                break;
            }
        }
    }
}
