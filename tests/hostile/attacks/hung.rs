//! Fds of a file server that has stopped: their last close never returns. Must never have such an fd in a process that
//! forks, nor stay root longer than it takes to open the file.

use crate::attack::Attack;
use crate::support::fuse_server;
use crate::support::peer::{Peer, Rank, Role, die_with_parent};
use crate::users::{User, become_user};
use crate::wire::{Conn, Push, await_ready, block, stopped};
use fdbroker_protocol::MAX_BATCH;
use nix::poll::PollFlags;
use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;

/// The server's process. When it ends, all hung closes return.
#[derive(Debug)]
pub struct HungServer {
    _peer: Peer,
    /// The file, for root.
    pub path: String,
}

impl HungServer {
    pub fn start(dir: &Path, cpu: usize) -> Result<HungServer, String> {
        let role = Role { part: "hung file server", user: User::Root, cpu, rank: Rank::Usual };
        let mut peer = Peer::start(role);
        // A thread's mount namespace is seen through that thread alone.
        let thread = peer.ask(&dir.display().to_string())?;
        let path = format!("/proc/{}/task/{thread}/root{}/hung", peer.pid(), dir.display());
        Ok(HungServer { _peer: peer, path })
    }
}

/// Why there can be none here, if so.
pub fn why_not() -> Option<&'static str> {
    fuse_server::why_not()
}

/// Deposits of its fds, one or many in a message, also beyond the credits; root until the file is open.
pub fn flood(attack: &mut Attack) {
    let (path, uid) = attack.hung_file.split_once(' ').expect("a file and a user");
    let file = File::open(path).expect("the server answers this");
    become_user(uid.parse().expect("a uid"));
    die_with_parent();
    let items: Vec<_> = (0..MAX_BATCH).map(block).collect();
    attack.begin();
    while !stopped() {
        let Some(mut conn) = Conn::welcome(&attack.socket, &mut attack.inbox) else { return };
        let count = [1, 16, MAX_BATCH][attack.rng.below(3)];
        let bytes = conn.register(&items[..count], MAX_BATCH as u32);
        attack.tally.tries += 1;
        if conn.push(&bytes, &vec![file.as_fd(); count]) == Push::Full {
            await_ready(conn.socket.as_fd(), PollFlags::POLLOUT);
        }
        conn.drain(&mut attack.inbox, |_| {});
    }
}
