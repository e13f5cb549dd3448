//! Users that owe: nothing is read from them or sent to them, nothing is lost, and in the end they
//! have no connections. Long calls are told to the debts as if they had been made.

use super::*;
use crate::clients::calls::Calls as SocketCalls;
use crate::clients::connection::client_id;
use crate::clients::debts::{Call, Debts};
use crate::clock;
use crate::handover::packing::Way;
use crate::limits::{LONG_CALLS_APART, SHUT_OUT_TIME};
use fdbroker_core::{DomainKey, Now};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use std::sync::mpsc::channel;

/// Two clients in a broker of several users, as if they were of two.
fn two_users() -> (Bench, [(Peer, Peer); 2], DomainKey) {
    let mut bench = Bench::new(&[]);
    bench.server.calls = SocketCalls::new(true);
    bench.server.calls.debts = Debts::strict();
    let clients = [bench.client(), bench.client()];
    let user = bench.server.connections[0].shares_as;
    bench.server.connections[1].shares_as = DomainKey { uid: user.uid + 1, ..user };
    (bench, clients, user)
}

fn note_long(bench: &mut Bench, user: DomainKey) {
    let call = Call { ended: clock::now(), took_us: 2000, cpu_us: 2000, fds: 0 };
    bench.server.calls.debts.note(user, &call);
}

#[test]
fn client_when_its_user_owes_then_it_is_not_served_until_that_is_paid_and_nothing_is_lost() {
    let (mut bench, [(client, event), (other, _b)], user) = two_users();
    let handle = bench.register(&other);
    client.send(&acquire(1, &handle, 0), &[]);
    bench.rest();
    assert_eq!(client.count(), 1);

    note_long(&mut bench, user);
    client.send(&release(2), &[]);
    other.send(&acquire(1, &handle, 0), &[]);
    // The memory that the client has a lease of ends.
    other.send(&[0], &[]);
    bench.rest();
    assert_eq!(other.count(), 2, "others are served");
    assert!(bench.server.calls.debts.is_away(user), "the test took long");
    assert_eq!((client.count(), event.count()), (0, 0));
    bench.until(|_| client.has_message() && event.has_message());
    bench.rest();
    assert_eq!((client.count(), event.count()), (1, 1));
}

#[test]
fn reply_when_its_user_owes_then_it_waits_and_comes_in_order() {
    let (mut bench, [(client, _a), _other], user) = two_users();
    note_long(&mut bench, user);
    for id in 1..=2 {
        bench.server.reply_failed(
            client_id(0),
            fdbroker_core::RequestId(id),
            ErrorCode::Again.into(),
        );
    }
    bench.rest();
    assert!(!client.has_message());
    bench.until(|_| client.has_message());
    bench.rest();
    let id = || Message::parse(&client.recv().unwrap().0).unwrap().id;
    assert_eq!([id(), id()], [1, 2]);
}

#[test]
fn client_when_it_leaves_while_its_user_owes_then_nothing_is_left_of_it() {
    let (mut bench, [(client, event), _other], user) = two_users();
    note_long(&mut bench, user);
    client.send(&release(1), &[]);
    drop((client, event));
    bench.until(|server| server.connections.len() == 1);
    assert!(bench.server.calls.debts.is_away(user), "the test took long");
}

#[test]
fn connection_when_its_user_owes_then_it_is_let_in_and_greeted_later() {
    let (mut bench, _clients, user) = two_users();
    note_long(&mut bench, user);
    let peer = bench.raw();
    peer.send(&hello(), &[]);
    bench.until(|server| server.connections.len() == 3);
    assert!(!peer.has_message());
    bench.until(|_| peer.has_message());
    let (bytes, _) = peer.recv().unwrap();
    assert_eq!(Message::parse(&bytes).unwrap().kind, Kind::HelloReply);
}

/// Makes the user's next long call the third that counts.
fn note_third(bench: &mut Bench, user: DomainKey) {
    note_long(bench, user);
    bench.rest();
    let mut saved = bench.server.calls.debts.save();
    let long_ago = Now(clock::now().0.saturating_sub(2 * LONG_CALLS_APART.as_micros() as u64));
    for (_, it) in &mut saved.users {
        (it.counted, it.last_counted) = (2, Some(long_ago));
        (it.last_long, it.away_until) = (Some(long_ago), None);
    }
    bench.server.calls.debts.restore(&saved);
    note_long(bench, user);
}

#[test]
fn connections_when_their_user_is_long_for_the_third_time_then_they_end_and_new_ones_are_refused() {
    let (mut bench, [(client, event), (other, _b)], user) = two_users();
    bench.register(&other);
    note_third(&mut bench, user);
    bench.until(|server| server.connections.len() == 1);
    bench.rest();
    assert!(
        matches!(client.recv(), Err(RecvError::Eof)) && matches!(event.recv(), Err(RecvError::Eof))
    );

    let peer = bench.raw();
    bench.until(|_| peer.has_message());
    let status = peer.failed();
    assert_eq!(status.result(), Err(ErrorCode::NotPermitted));
    let left = status.value;
    assert!(left > 0 && left <= SHUT_OUT_TIME.as_secs(), "{left}");
    other.send(&release(1), &[]);
    bench.rest();
    assert_eq!(other.count(), 1);
}

#[test]
fn state_when_a_user_owes_then_it_owes_the_next_broker() {
    let (mut bench, _clients, user) = two_users();
    note_long(&mut bench, user);
    bench.rest();
    let parcel = bench.server.pack(Way::Store).unwrap();
    let state = crate::handover::ledger::read(parcel.ledger).unwrap();
    let mut next = SocketCalls::new(true);
    next.debts = Debts::strict();
    next.debts.restore(&state.debts);
    assert!(next.debts.is_away(user));
    assert_eq!(next.debts.due(), bench.server.calls.debts.due());
    assert!(next.debts.due() > Some(Now(0)));
}

/// Threads that poll a socket, and how often it is in the array of each: the kernel walks all of
/// them in more than [`LONG_CALL_US`](crate::limits::LONG_CALL_US).
const POLLERS: usize = 24;
const ENTRIES: u64 = 20_000;

/// Has many wait for the socket, until the pipe's end goes.
fn poll_it(socket: &Peer) -> PipeWriter {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, most, most).unwrap();
    let (end, ending) = std::io::pipe().unwrap();
    let (say, threads) = channel();
    for _ in 0..POLLERS {
        let (socket, end) = (socket.0.try_clone().unwrap(), end.try_clone().unwrap());
        let say = say.clone();
        std::thread::spawn(move || {
            let entry = PollFd::new(socket.as_fd(), PollFlags::empty());
            let mut all = vec![entry; ENTRIES.min(most - 1) as usize];
            all.push(PollFd::new(end.as_fd(), PollFlags::empty()));
            say.send(nix::unistd::gettid()).unwrap();
            let _ = poll(&mut all, PollTimeout::NONE);
        });
    }
    let sleeps = |thread: &nix::unistd::Pid| {
        let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap();
        stat.rsplit(") ").next().unwrap().starts_with('S')
    };
    for thread in threads.iter().take(POLLERS) {
        while !sleeps(&thread) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    ending
}

#[test]
fn join_when_many_poll_the_socket_then_its_user_pays_and_nobody_is_excused_for_it() {
    let mut bench = Bench::new(&[]);
    let (_client, _events, reply) = bench.greeted();
    let user = bench.server.connections[0].shares_as;
    let socket = bench.raw();
    let _pollers = poll_it(&socket);
    bench.server.calls = SocketCalls::new(true);
    bench.server.calls.debts = Debts::strict();
    socket.send(&join_message(&reply, Role::Ahead), &[]);
    bench.until(|_| socket.has_message());

    assert!(bench.server.calls.debts.has_owed(user));
    let other = DomainKey { uid: user.uid + 1, ..user };
    let call = Call { ended: clock::now(), took_us: 1200, cpu_us: 1200, fds: 0 };
    bench.server.calls.debts.note(other, &call);
    assert!(
        bench.server.calls.debts.is_away(other),
        "what takes long at a join counts as nobody's"
    );
}
