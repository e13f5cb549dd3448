//! Fds that are fetched ahead: sent into a socket of their own, where they are the client's until
//! it gives them back.

use super::*;
use crate::clients::shares::Pool;
use crate::handover::packing::Way;
use fdbroker_protocol::AllocationId;
use fdbroker_protocol::message::{AllocationItem, Resolve};
use nix::sys::socket::{Shutdown, shutdown};

fn fetch(handles: &[Handle]) -> Vec<u8> {
    let mut writer = Writer::new();
    writer.start(Kind::Fetch, 0);
    for handle in handles {
        writer.push(&handle.prefix.to_bytes());
    }
    writer.finish(handles.len(), 0).to_vec()
}

fn unregister(handle: &Handle) -> Vec<u8> {
    let AllocationId { slot, generation } = handle.id();
    let mut writer = Writer::new();
    let item = AllocationItem { slot: slot.into(), generation: generation.into() };
    writer.start(Kind::Unregister, 3).push(&item);
    writer.finish(1, 0).to_vec()
}

/// A further socket of a client; the status when it is refused.
fn try_socket(bench: &mut Bench, reply: &HelloReply) -> Result<Peer, ErrorCode> {
    let socket = bench.raw();
    socket.send(&join_message(reply, Role::Ahead), &[]);
    bench.rest();
    let (bytes, _) = socket.recv().unwrap();
    let message = Message::parse(&bytes).unwrap();
    match message.kind {
        Kind::Joined => Ok(socket),
        _ => Err(message.status().unwrap().result().unwrap_err()),
    }
}

/// Its socket for fds ahead.
fn socket_of(bench: &mut Bench, reply: &HelloReply) -> Peer {
    try_socket(bench, reply).unwrap()
}

/// The next fd ahead: which allocation it is of, and its lease.
fn next(ahead: &Peer) -> Option<(AllocationId, u64)> {
    let (bytes, fds) = ahead.recv().ok()?;
    assert_eq!(fds.len(), 1);
    let message = Message::parse(&bytes).unwrap();
    assert_eq!((message.kind, message.id), (Kind::Granted, 0));
    let (items, _) = message.grants().unwrap();
    let item = &items[0];
    let id = AllocationId { slot: item.slot.get(), generation: item.generation.get() };
    Some((id, item.lease.get()))
}

fn give_back(leases: &[u64]) -> Vec<u8> {
    let mut writer = Writer::new();
    writer.start(Kind::Release, 0);
    for lease in leases {
        writer.push(&LeaseItem { lease: (*lease).into() });
    }
    writer.finish(leases.len(), 0).to_vec()
}

fn leases(server: &Server) -> u64 {
    server.core.totals().node.now(Resource::OpenLeases)
}

/// A bench, a client with its event socket, its socket for fds ahead, and the handles of another
/// client.
struct Fetching {
    bench: Bench,
    client: Peer,
    ahead: Peer,
    owner: Peer,
    handles: Vec<Handle>,
    _events: [Peer; 2],
    replies: [HelloReply; 2],
}

fn fetching() -> Fetching {
    let mut bench = Bench::new(WHOLE_MESSAGES);
    let (owner, owners_events, of_owner) = bench.greeted();
    let (client, events, of_client) = bench.greeted();
    let handles = (0..4).map(|_| bench.register(&owner)).collect();
    let ahead = socket_of(&mut bench, &of_client);
    let (_events, replies) = ([owners_events, events], [of_owner, of_client]);
    Fetching { bench, client, ahead, owner, handles, _events, replies }
}

impl Fetching {
    /// Fetches all of them ahead.
    fn fetch(&mut self) {
        self.client.send(&fetch(&self.handles), &[]);
        self.bench.rest();
    }

    /// Gives all back that lies there.
    fn give_back(&mut self) {
        let leases: Vec<_> = std::iter::from_fn(|| next(&self.ahead)).map(|(_, it)| it).collect();
        self.client.send(&give_back(&leases), &[]);
        self.bench.rest();
    }

    /// Whether the client is served as before.
    fn is_served(&mut self) -> bool {
        self.client.send(&release(9), &[]);
        self.bench.rest();
        self.client.count() == 1
    }
}

#[test]
fn fetch_when_held_then_each_comes_in_a_message_of_its_own_and_is_a_lease() {
    let mut it = fetching();
    it.fetch();
    assert!(!it.client.has_message(), "it is one-way");
    assert_eq!(leases(&it.bench.server), 4);
    let got: Vec<_> = std::iter::from_fn(|| next(&it.ahead)).collect();
    let ids: Vec<_> = got.iter().map(|(id, _)| *id).collect();
    assert_eq!(ids, it.handles.iter().map(Handle::id).collect::<Vec<_>>());

    let all: Vec<_> = got.iter().map(|(_, lease)| *lease).collect();
    it.client.send(&give_back(&all), &[]);
    it.bench.rest();
    assert_eq!(leases(&it.bench.server), 0);
}

#[test]
fn resolve_when_it_has_an_unknown_flag_then_the_client_is_told_and_disconnected() {
    let mut it = fetching();
    let mut writer = Writer::new();
    let wanted = Resolve { virtual_fd: 1.into(), neighbours: 0.into(), flags: 2.into() };
    it.client.send(writer.start(Kind::Resolve, 5).push(&wanted).finish(0, 0), &[]);
    it.bench.rest();
    let (bytes, _) = it.client.recv().unwrap();
    let message = Message::parse(&bytes).unwrap();
    assert_eq!(message.status().unwrap().result(), Err(ErrorCode::Protocol));
    assert!(it.client.recv().is_err(), "it is disconnected");
}

#[test]
fn fetched_when_nobody_reads_it_then_it_stays_a_lease_and_the_client_is_served() {
    let mut it = fetching();
    it.fetch();
    assert_eq!(leases(&it.bench.server), 4);
    assert!(it.is_served());
    it.give_back();
    assert_eq!(leases(&it.bench.server), 0);
}

#[test]
fn fetched_when_one_of_them_ends_then_the_client_hears_and_the_owner_once_it_is_given_back() {
    let mut it = fetching();
    it.fetch();
    it.owner.send(&unregister(&it.handles[2]), &[]);
    it.bench.rest();
    assert_eq!(leases(&it.bench.server), 4);
    let (bytes, _) = it._events[1].recv().unwrap();
    assert_eq!(Message::parse(&bytes).unwrap().kind, Kind::Revoked);
    assert!(!it._events[0].has_message(), "it is still leased");
    it.give_back();
    let (bytes, _) = it._events[0].recv().unwrap();
    assert_eq!(Message::parse(&bytes).unwrap().kind, Kind::Drained);
    assert_eq!(leases(&it.bench.server), 0);
}

#[test]
fn fetched_when_asked_for_again_and_not_read_then_no_more_is_sent() {
    let mut it = fetching();
    it.fetch();
    it.fetch();
    assert_eq!(leases(&it.bench.server), 4);
    assert_eq!(it.ahead.count(), 4);
    it.fetch();
    assert_eq!((leases(&it.bench.server), it.ahead.count()), (8, 4), "all were read");
}

#[test]
fn fetched_when_the_client_shuts_its_socket_down_then_it_only_loses_them() {
    let mut it = fetching();
    it.fetch();
    shutdown(it.ahead.0.as_raw_fd(), Shutdown::Both).unwrap();
    it.fetch();
    assert!(it.is_served());
    // What lies there can still be read; then there may be another socket.
    assert_eq!(it.ahead.count(), 4);
    it.ahead = socket_of(&mut it.bench, &it.replies[1]);
    it.fetch();
    assert_eq!(it.ahead.count(), 4);
}

#[test]
fn socket_when_the_client_sends_into_it_then_refused() {
    let it = fetching();
    assert!(fdbroker_scm::send(it.ahead.0.as_fd(), &[1], &[memfd().as_fd()]).is_err());
}

#[test]
fn socket_when_asked_for_again_then_the_next_one_once_all_is_read() {
    let mut it = fetching();
    it.fetch();
    assert_eq!(try_socket(&mut it.bench, &it.replies[1]).err(), Some(ErrorCode::Again));
    assert_eq!(it.ahead.count(), 4);
    it.ahead = socket_of(&mut it.bench, &it.replies[1]);
    it.fetch();
    assert_eq!(it.ahead.count(), 4);
}

#[test]
fn client_when_it_ends_with_fds_ahead_then_its_place_is_taken_until_they_are_read() {
    let mut it = fetching();
    it.fetch();
    drop(it.client);
    it.bench.until(|server| leases(server) == 0);
    it.bench.rest();
    assert_eq!(it.bench.server.connections.len(), 2, "fds of this broker are in flight");
    assert!(!it.bench.server.ahead.is_unused());
    assert_eq!(it.ahead.count(), 4);
    it.bench.until(|server| server.connections.len() == 1);
    assert!(it.bench.server.ahead.is_unused());
}

#[test]
fn client_when_it_ends_and_its_end_is_closed_unread_then_nothing_of_it_is_left() {
    let mut it = fetching();
    it.fetch();
    drop((it.client, it.ahead));
    it.bench.until(|server| server.connections.len() == 1);
    assert!(it.bench.server.ahead.is_unused());
}

#[test]
fn socket_when_there_are_as_many_as_may_be_then_again_and_when_there_are_none_then_not_supported() {
    let mut it = fetching();
    for (most, code) in [(0, ErrorCode::NotSupported), (1, ErrorCode::Again)] {
        it.bench.server.ahead = Pool::new(most, 8);
        if most == 1 {
            it.bench.server.ahead.take(it.bench.server.connections[0].shares_as, 1);
        }
        assert_eq!(try_socket(&mut it.bench, &it.replies[0]).err(), Some(code));
    }
    it.owner.send(&fetch(&it.handles), &[]);
    it.bench.rest();
    assert_eq!(leases(&it.bench.server), 0, "without a socket nothing is fetched");
}

#[test]
fn state_when_handed_over_with_fds_ahead_then_they_go_along() {
    let mut it = fetching();
    it.fetch();
    let parcel = it.bench.server.pack(Way::Store).unwrap();
    assert_eq!((leases(&it.bench.server), it.ahead.has_message()), (4, true), "nothing is taken");
    drop(parcel);
    it.bench = handover::succeed(it.bench, Arc::new(|fd, _| drop(fd)), |_| {});
    assert_eq!(leases(&it.bench.server), 4);
    assert_eq!(it.ahead.count(), 4);
    it.fetch();
    assert_eq!(it.ahead.count(), 4);
}

#[test]
fn fetch_when_malformed_then_the_connection_ends() {
    let mut it = fetching();
    let fd = memfd();
    let mut writer = Writer::new();
    writer.start(Kind::Fetch, 0).push(&it.handles[0].prefix.to_bytes());
    it.client.send(writer.finish(1, 1), &[fd.as_fd()]);
    it.bench.rest();
    assert_eq!(it.client.failed().result(), Err(ErrorCode::Protocol));
}
