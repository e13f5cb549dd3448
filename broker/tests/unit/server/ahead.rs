//! Fds that are fetched ahead: sent into a socket of their own, and taken back by the broker itself.

use super::*;
use crate::clients::ahead::Ahead;
use crate::clients::connection::client_id;
use crate::handover::packing::Way;
use fdbroker_core::Now;
use fdbroker_protocol::AllocationId;
use fdbroker_protocol::message::AllocationItem;
use nix::sys::socket::{Shutdown, shutdown};

fn empty(kind: Kind, id: u64) -> Vec<u8> {
    Writer::new().start(kind, id).finish(0, 0).to_vec()
}

fn fetch(handles: &[Handle]) -> Vec<u8> {
    let mut writer = Writer::new();
    writer.start(Kind::Fetch, 0);
    for handle in handles {
        writer.push(&handle.prefix);
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

/// Asks for the socket.
fn socket_of(bench: &mut Bench, client: &Peer) -> Peer {
    client.send(&empty(Kind::AheadSocket, 5), &[]);
    bench.rest();
    let (bytes, mut fds) = client.recv().unwrap();
    assert_eq!(Message::parse(&bytes).unwrap().kind, Kind::AheadSocketReply);
    Peer(fds.pop().unwrap())
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

fn leases(server: &Server) -> u64 {
    server.core.totals().node.now(Resource::OpenLeases)
}

/// What lies in sockets stays there until the test has it taken back.
fn hold_time(server: &mut Server) {
    for (number, connection) in &mut server.connections {
        if let Some(socket) = connection.ahead.as_mut() {
            server.ahead.set_due(client_id(number), socket, Now(u64::MAX));
        }
    }
}

/// A bench, a client with its event socket, its socket for fds ahead, and the handles of another client.
struct Fetching {
    bench: Bench,
    client: Peer,
    ahead: Peer,
    owner: Peer,
    handles: Vec<Handle>,
    _events: [Peer; 2],
}

fn fetching() -> Fetching {
    let mut bench = Bench::new(WHOLE_MESSAGES);
    let (owner, owners_events) = bench.client();
    let (client, events) = bench.client();
    let handles = (0..4).map(|_| bench.register(&owner)).collect();
    let ahead = socket_of(&mut bench, &client);
    Fetching { bench, client, ahead, owner, handles, _events: [owners_events, events] }
}

impl Fetching {
    /// Fetches all of them ahead.
    fn fetch(&mut self) {
        self.client.send(&fetch(&self.handles), &[]);
        self.bench.turn();
        hold_time(&mut self.bench.server);
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

    let mut writer = Writer::new();
    writer.start(Kind::Release, 0);
    for (_, lease) in &got {
        writer.push(&LeaseItem { lease: (*lease).into() });
    }
    it.client.send(writer.finish(got.len(), 0), &[]);
    it.bench.rest();
    assert_eq!(leases(&it.bench.server), 0);
}

#[test]
fn fetched_when_not_read_in_time_then_taken_back() {
    let mut it = fetching();
    it.client.send(&fetch(&it.handles), &[]);
    it.bench.turn();
    assert_eq!(leases(&it.bench.server), 4);
    let (first, _) = next(&it.ahead).unwrap();
    assert_eq!(first, it.handles[0].id());
    it.bench.until(|server| leases(server) == 1);
    assert_eq!(it.ahead.count(), 0);
    assert_eq!(it.bench.server.ahead.due(), None);
    assert!(it.is_served());
}

#[test]
fn fetched_when_one_of_them_ends_then_taken_back_and_the_owner_hears_that_it_is_drained() {
    let mut it = fetching();
    it.fetch();
    assert_eq!(leases(&it.bench.server), 4);
    it.owner.send(&unregister(&it.handles[2]), &[]);
    it.bench.rest();
    assert_eq!((leases(&it.bench.server), it.ahead.count()), (0, 0));
    let [owners_events, events] = &it._events;
    let (bytes, _) = owners_events.recv().unwrap();
    assert_eq!(Message::parse(&bytes).unwrap().kind, Kind::Drained);
    assert!(!events.has_message(), "it is told nothing of a lease that it never had");
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
    for (number, connection) in &mut it.bench.server.connections {
        if let Some(socket) = connection.ahead.as_mut() {
            it.bench.server.ahead.set_due(client_id(number), socket, Now(0));
        }
    }
    it.bench.rest();
    assert_eq!(leases(&it.bench.server), 0);
    assert!(it.is_served());
    it.ahead = socket_of(&mut it.bench, &it.client);
    it.fetch();
    assert_eq!(it.ahead.count(), 4);
}

#[test]
fn socket_when_the_client_sends_into_it_then_refused() {
    let it = fetching();
    assert!(fdbroker_scm::send(it.ahead.0.as_fd(), &[1], &[memfd().as_fd()]).is_err());
}

#[test]
fn client_when_it_ends_with_fds_ahead_then_nothing_of_it_is_left() {
    let mut it = fetching();
    it.fetch();
    drop(it.client);
    it.bench.until(|server| server.connections.len() == 1);
    it.bench.rest();
    assert_eq!(leases(&it.bench.server), 0);
    assert!(it.bench.server.ahead.is_unused());
    // Its end of the socket is open still: a lane takes out what lies there.
    it.bench.until(|_| !it.ahead.has_message());
}

#[test]
fn socket_when_there_are_as_many_as_may_be_then_again_and_when_there_are_none_then_not_supported() {
    let mut it = fetching();
    for (most, code) in [(0, ErrorCode::NotSupported), (1, ErrorCode::Again)] {
        it.bench.server.ahead = Ahead::new(most, 8);
        if most == 1 {
            it.bench.server.ahead.open(it.bench.server.connections[0].shares_as);
        }
        it.owner.send(&empty(Kind::AheadSocket, 6), &[]);
        it.bench.rest();
        assert_eq!(it.owner.failed().result(), Err(code));
    }
    it.owner.send(&fetch(&it.handles), &[]);
    it.bench.rest();
    assert_eq!(leases(&it.bench.server), 0, "without a socket nothing is fetched");
}

#[test]
fn state_when_handed_over_with_fds_ahead_then_all_are_taken_back_before() {
    let mut it = fetching();
    it.fetch();
    let parcel = it.bench.server.pack(Way::Store).unwrap();
    assert_eq!(leases(&it.bench.server), 0);
    assert!(it.bench.server.ahead.is_unused());
    assert!(matches!(it.ahead.recv(), Err(RecvError::Eof)));
    drop(parcel);
    // The successor has failed: this broker goes on.
    it.ahead = socket_of(&mut it.bench, &it.client);
    it.fetch();
    assert_eq!(it.ahead.count(), 4);
}

#[test]
fn fetch_when_malformed_then_the_connection_ends() {
    let mut it = fetching();
    let fd = memfd();
    let mut writer = Writer::new();
    writer.start(Kind::Fetch, 0).push(&it.handles[0].prefix);
    it.client.send(writer.finish(1, 1), &[fd.as_fd()]);
    it.bench.rest();
    assert_eq!(it.client.failed().result(), Err(ErrorCode::Protocol));
}
