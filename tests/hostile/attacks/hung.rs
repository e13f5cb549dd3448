//! Fds of a file server that has stopped: their last close never returns. Must never have such an
//! fd in a process that forks, nor stay root longer than it takes to open the file.

use crate::attack::Attack;
use crate::support::fuse_server;
use crate::support::peer::{self, Peer, Rank, die_with_parent};
use crate::support::raw::hello;
use crate::users::{User, become_user};
use crate::wire::{Conn, Push, await_ready, block, stopped};
use fdbroker_protocol::message::{Join, RegisterItem, Role};
use fdbroker_protocol::{Kind, MAX_BATCH, MemoryKind, Writer};
use nix::poll::PollFlags;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::mman::{MapFlags, ProtFlags, mmap};
use std::fs::File;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;

/// The server's process. When it ends, all hung closes return.
#[derive(Debug)]
pub struct HungServer {
    _peer: Peer,
    /// The file, for root.
    pub path: String,
}

impl HungServer {
    /// `is_written`: it stops when the file is to be written back.
    pub fn start(dir: &Path, cpu: usize, is_written: bool) -> Result<HungServer, String> {
        let role =
            peer::Role { part: "hung file server", user: User::Root, cpu, rank: Rank::Usual };
        let mut peer = Peer::start(role);
        if is_written {
            peer.say(fuse_server::WITH_A_WRITE);
        }
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

/// Deposits of its fds, one or many in a message, also beyond the credits.
pub fn flood(attack: &mut Attack) {
    let file = open(attack);
    let items: Vec<_> = (0..MAX_BATCH).map(block).collect();
    attack.begin();
    deposit(attack, file.as_fd(), &items);
}

/// Its fds with messages that carry none: hellos, and joins of a client's own, right or wrong.
pub fn first_messages(attack: &mut Attack) {
    let file = open(attack);
    attack.begin();
    while !stopped() {
        let Some(conn) = Conn::silent(&attack.socket) else { return };
        let secret = attack.rng.next().into();
        let join = Join { client: 0.into(), role: (Role::Events as u32).into(), secret };
        let mut writer = Writer::new();
        let bytes = match attack.rng.below(2) {
            0 => writer.start(Kind::Hello, 1).push(&hello()).finish(0, 0),
            _ => writer.start(Kind::Join, 1).push(&join).finish(0, 0),
        };
        let count = [1, MAX_BATCH][attack.rng.below(2)];
        attack.tally.tries += 1;
        if conn.push(bytes, &vec![file.as_fd(); count]) == Push::Sent {
            await_ready(conn.socket.as_fd(), PollFlags::POLLIN);
        }
    }
}

/// Deposits of an epoll fd that another thread waits on for ever, within the kernel and with the
/// lock of the epoll fd: its buffer for events is a page of the hung file.
pub fn epoll(attack: &mut Attack) {
    let file = open(attack);
    let epoll = Arc::new(Epoll::new(EpollCreateFlags::empty()).expect("epoll"));
    let (reader, writer) = nix::unistd::pipe().expect("a pipe");
    epoll.add(&writer, EpollEvent::new(EpollFlags::EPOLLOUT, 0)).expect("epoll_ctl");
    let address = map(&file);
    let waiter = Arc::clone(&epoll);
    std::thread::spawn(move || {
        // SAFETY: an event fits the page, which only the kernel writes.
        let events = unsafe { std::slice::from_raw_parts_mut(address as *mut EpollEvent, 1) };
        let _ = waiter.wait(events, EpollTimeout::NONE);
    });
    std::thread::sleep(std::time::Duration::from_millis(20));
    // Each claims another kind.
    let kinds = [MemoryKind::Memfd, MemoryKind::DmaBuf, MemoryKind::CudaVmm].into_iter().cycle();
    let item = |(index, kind)| {
        let mut item = block(index);
        item.facts.kind = kind as u8;
        item
    };
    let items: Vec<_> = (0..MAX_BATCH).zip(kinds).map(item).collect();
    attack.begin();
    deposit(attack, epoll.0.as_fd(), &items);
    drop(reader);
}

/// The address of a page of the server's file: who touches it waits until the server has ended.
pub fn page(attack: &Attack) -> usize {
    // Its close would wait for the server.
    map(&std::mem::ManuallyDrop::new(open(attack)))
}

fn map(file: &File) -> usize {
    let length = NonZeroUsize::new(4096).expect("not 0");
    let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    // SAFETY: a new private map of a page that the file has, never unmapped.
    let page = unsafe { mmap(None, length, access, MapFlags::MAP_PRIVATE, file, 0) };
    page.expect("mmap").as_ptr() as usize
}

/// Opens the server's file as root, and gives root up.
fn open(attack: &Attack) -> File {
    let (path, _) = file_and_user(attack);
    // The kernel asks for the size now, or never.
    assert_ne!(nix::sys::stat::stat(path).expect("the server answers this").st_size, 0);
    let file = File::open(path).expect("the server answers this");
    give_up_root(attack);
    file
}

/// Becomes the attack's user.
pub fn give_up_root(attack: &Attack) {
    become_user(file_and_user(attack).1.parse().expect("a uid"));
    die_with_parent();
}

pub fn file_and_user(attack: &Attack) -> (&str, &str) {
    attack.hung_file.split_once(' ').expect("a file and a user")
}

fn deposit(attack: &mut Attack, fd: BorrowedFd<'_>, items: &[RegisterItem]) {
    while !stopped() {
        let Some(mut conn) = Conn::welcome(&attack.socket, &mut attack.inbox) else { return };
        // Half of the time within its credits: nothing beyond them is looked at.
        let most = if attack.rng.below(2) == 0 && conn.want_credits(&mut attack.inbox) {
            conn.credits as usize
        } else {
            MAX_BATCH
        };
        let count = [1, 16, MAX_BATCH][attack.rng.below(3)].min(most);
        let bytes = conn.register(&items[..count], MAX_BATCH as u32);
        attack.tally.tries += 1;
        if conn.push(&bytes, &vec![fd; count]) == Push::Full {
            await_ready(conn.socket.as_fd(), PollFlags::POLLOUT);
        }
        conn.drain(&mut attack.inbox, |_| {});
    }
}
