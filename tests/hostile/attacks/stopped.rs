//! Owners that stop when they are asked for their memory. Must never leave a stopped process
//! behind: each stays in the group that the test ends.

use crate::attack::Attack;
use crate::support::memory::{all_seals, memfd};
use crate::support::peer::limit_time;
use crate::wire::{Conn, Push, block, from_line, nap, stopped, to_line};
use fdbroker_protocol::Handle;
use nix::sys::signal::{Signal, kill, raise};
use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, fork};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Allocations of the stopped owner: more than its share of the node, so that most of them are
/// evicted.
const BLOCKS: usize = 900;

/// An heir registers and stops; the parent asks for all of it, again and again.
pub fn owner(attack: &mut Attack) {
    let fd = memfd(c"stopped", 4096, all_seals());
    while !stopped() {
        let (reader, writer) = nix::unistd::pipe().expect("a pipe");
        // SAFETY: the child uses what is its own: the other thread only waits for a line and holds
        // no lock of ours.
        let child = match unsafe { fork() }.expect("fork") {
            ForkResult::Child => {
                limit_time(60);
                if let Some((_owner, handles)) = share(attack, fd.as_fd()) {
                    tell(writer, &handles);
                    let _ = raise(Signal::SIGSTOP);
                }
                std::process::exit(0);
            }
            ForkResult::Parent { child } => child,
        };
        drop(writer);
        let handles = hear(&reader);
        attack.begin();
        if let Some(mut conn) = Conn::welcome(&attack.socket, &mut attack.inbox) {
            while !stopped() && !handles.is_empty() {
                ask_for(attack, &mut conn, &handles);
            }
        }
        let _ = kill(child, Signal::SIGKILL);
        let _ = waitpid(child, None);
    }
}

/// A client that owns [`BLOCKS`] allocations.
pub fn share(attack: &mut Attack, fd: BorrowedFd<'_>) -> Option<(Conn, Vec<Handle>)> {
    let blocks: Vec<_> = (0..BLOCKS).map(block).collect();
    let mut conn = Conn::welcome(&attack.socket, &mut attack.inbox)?;
    let shared = conn.share(&mut attack.inbox, fd, &blocks);
    Some((conn, shared.iter().map(|it| it.handle.get()).collect()))
}

/// Asks for all of it once, and gives back what comes.
pub fn ask_for(attack: &mut Attack, conn: &mut Conn, handles: &[Handle]) {
    for piece in handles.chunks(64) {
        let bytes = conn.acquire(piece, 100);
        attack.tally.tries += 1;
        if conn.push(&bytes, &[]) != Push::Sent {
            nap();
        }
        let mut leases = Vec::new();
        conn.drain(&mut attack.inbox, |message| {
            if let Ok((items, _)) = message.grants() {
                leases.extend(items.iter().map(|it| it.lease.get()).filter(|it| *it != 0));
            }
        });
        if !leases.is_empty() {
            let bytes = conn.release(&leases);
            conn.push(&bytes, &[]);
        }
    }
}

/// Handles by a pipe, to its other end.
pub fn tell(pipe: OwnedFd, handles: &[Handle]) {
    let line = to_line(handles);
    let mut bytes = line.as_bytes();
    while let Ok(written @ 1..) = nix::unistd::write(&pipe, bytes) {
        bytes = &bytes[written..];
    }
}

pub fn hear(pipe: &OwnedFd) -> Vec<Handle> {
    let (mut bytes, mut piece) = (Vec::new(), [0; 4096]);
    while let Ok(length @ 1..) = nix::unistd::read(pipe, &mut piece) {
        bytes.extend_from_slice(&piece[..length]);
    }
    from_line(&String::from_utf8(bytes).unwrap_or_default())
}
