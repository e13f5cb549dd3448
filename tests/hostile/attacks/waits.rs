//! A user that polls its own connections 100,000 times: each message of theirs has the kernel walk
//! all of these entries. Must never keep a thread that the test cannot end.

use crate::attack::Attack;
use crate::wire::{Conn, Push, connect_now, nap, push, stopped, supply};
use fdbroker_protocol::admin::{Act, Query, act_flags};
use fdbroker_protocol::{Kind, MAX_BATCH, Writer};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::unistd::{Pid, gettid};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::Sender;
use std::time::Instant;

/// Threads that poll each socket, and how often a socket is in the array of each.
const THREADS: usize = 5;
const ENTRIES: usize = 20_000;

/// Answers that a connection may get at first, and in a second: each took a message in and one out,
/// and the user paid for both. A debt is of one message of 1.5 ms, and takes 300 ms.
const MOST_SERVED: u64 = 20;
const MOST_PER_SECOND: u64 = 5;

/// Polls the connection, the event socket and a socket for looking, and sends messages on each
/// without a pause. Wrong: more than a few of them are served.
pub fn queues(attack: &mut Attack) {
    attack.begin();
    // The user may owe from the round before.
    let Some(mut conn) = Conn::welcome(&attack.socket, &mut attack.inbox) else { return };
    let Some(events) = conn.events.take() else { return };
    let Some(view) = connect_to_look(attack) else { return };
    let limit = getrlimit(Resource::RLIMIT_NOFILE).map_or(1024, |(_, hard)| hard);
    setrlimit(Resource::RLIMIT_NOFILE, limit, limit).expect("the hard limit");
    let entries = usize::try_from(limit - 1).unwrap_or(ENTRIES).min(ENTRIES);
    let wanted = conn.register(&[], MAX_BATCH as u32);
    let sockets = [conn.socket.as_fd(), events.as_fd(), view.as_fd()];
    let (end, ending) = nix::unistd::pipe().expect("a pipe");
    let (began, beginning) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        for socket in sockets {
            for _ in 0..THREADS {
                let (end, began) = (end.as_fd(), began.clone());
                scope.spawn(move || wait_for_nothing(socket, entries, end, &began));
            }
        }
        drop(began);
        let threads: Vec<Pid> = beginning.iter().take(sockets.len() * THREADS).collect();
        // A message before they wait is cheap, and answered.
        while !stopped() && !threads.iter().all(|thread| is_waiting(*thread)) {
            nap();
        }
        send_all(attack, sockets, &wanted);
        drop(ending);
    });
}

/// Sends on all three sockets until the end.
fn send_all(attack: &mut Attack, [main, events, view]: [BorrowedFd<'_>; 3], wanted: &[u8]) {
    let (supply, query) = (supply(&[], 0), query());
    let (mut served, began) = ([0; 3], Instant::now());
    push(view, &watch(), &[]);
    while !stopped() {
        let sent = [push(main, wanted, &[]), push(events, &supply, &[]), push(view, &query, &[])];
        attack.tally.tries += sent.iter().filter(|sent| **sent == Push::Sent).count() as u64;
        for (socket, count) in [main, events, view].into_iter().zip(&mut served) {
            while matches!(attack.inbox.read(socket), Ok(Some(_))) {
                *count += 1;
            }
        }
        if sent.contains(&Push::Full) {
            nap();
        }
    }
    let most = MOST_SERVED + MOST_PER_SECOND * began.elapsed().as_secs();
    attack.tally.wrong += served.iter().filter(|count| **count > most).count() as u64;
}

/// Waits for what never comes, with so many entries in the queue of the socket, until the other end
/// of the pipe goes.
fn wait_for_nothing(
    socket: BorrowedFd<'_>,
    entries: usize,
    end: BorrowedFd<'_>,
    began: &Sender<Pid>,
) {
    let mut all = vec![PollFd::new(socket, PollFlags::empty()); entries];
    all.push(PollFd::new(end, PollFlags::empty()));
    let _ = began.send(gettid());
    while poll(&mut all, PollTimeout::NONE) == Err(Errno::EINTR) {}
}

/// Whether a thread of this process sleeps (proc_pid_stat(5)).
fn is_waiting(thread: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat"));
    stat.is_ok_and(|stat| stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('S')))
}

fn connect_to_look(attack: &Attack) -> Option<OwnedFd> {
    let path = attack.socket.with_file_name("view.sock");
    while !stopped() {
        match connect_now(&path) {
            Some(socket) => return Some(socket),
            None => nap(),
        }
    }
    None
}

fn query() -> Vec<u8> {
    let query = Query { cursor: 0.into(), filter: 0.into(), value: 0.into(), reserved: 0.into() };
    let mut writer = Writer::new();
    writer.start(Kind::AdminStatus, 1).push(&query);
    writer.finish(0, 0).to_vec()
}

fn watch() -> Vec<u8> {
    let act = Act {
        cursor: 0.into(),
        filter: 0.into(),
        value: 0.into(),
        flags: act_flags::SINCE.into(),
        reserved: 0.into(),
    };
    let mut writer = Writer::new();
    writer.start(Kind::AdminWatch, 2).push(&act);
    writer.finish(0, 0).to_vec()
}
