//! Mapped and released leases with a scripted broker: which of them share a message, and that none
//! waits for nobody.

use crate::support::*;
use fdbroker_client::{Access, Client, Grant, Import, Lease, Notice};
use fdbroker_protocol::message::LeaseItem;
use fdbroker_protocol::{AllocationId, Kind, Writer};
use std::os::fd::AsFd;
use std::sync::mpsc::channel;
use std::thread;

const COUNT: u32 = 20;

/// Acquires `COUNT` allocations that live, in one message; `each` gets the grants.
fn acquire_each(client: &Client, peer: &mut Peer, mut each: impl FnMut(Grant) + Send) -> Vec<u64> {
    let fd = memory(b"");
    let handles: Vec<_> = (0..COUNT).map(handle).collect();
    thread::scope(|scope| {
        let taken = scope.spawn(|| {
            client.acquire_each(&handles, soon(), |_, grant| each(grant.unwrap())).unwrap();
        });
        let request = peer.recv_kind(Kind::Acquire);
        let first = peer.next_lease as u32;
        (first..first + COUNT).for_each(|slot| peer.page.set(AllocationId { slot, generation: 1 }));
        let leases = peer.grant(request.id, &vec![Answer::Grant(fd.as_fd(), 4096); COUNT as usize]);
        taken.join().unwrap();
        leases
    })
}

/// Imports `COUNT` allocations, and waits until the broker knows.
fn imports(client: &Client, peer: &mut Peer) -> (Vec<Import>, Vec<u64>) {
    let mut imports = Vec::new();
    let import = |grant: Grant| imports.push(grant.import(Access::Read, 0).unwrap());
    let leases = acquire_each(client, peer, import);
    assert_eq!(all(peer, Kind::Mapped, leases.len()), leases);
    (imports, leases)
}

/// The leases of so many messages of a kind that they are `count`, in order.
fn all(peer: &Peer, kind: Kind, count: usize) -> Vec<u64> {
    let mut leases = Vec::new();
    while leases.len() < count {
        leases.extend(peer.recv_kind(kind).leases());
    }
    leases.sort_unstable();
    leases
}

#[test]
fn mapped_when_a_grant_message_is_imported_item_by_item_then_one_message() {
    let broker = FakeBroker::listen();
    // Without a library thread, which may send what there is after a millisecond.
    let builder = Client::builder().dispatch(true);
    let (client, mut peer) = broker.client_with(builder, Terms::default());
    let mut imports = Vec::new();
    let import = |grant: Grant| imports.push(grant.import(Access::Read, 0).unwrap());
    let leases = acquire_each(&client, &mut peer, import);
    assert_eq!(peer.recv_kind(Kind::Mapped).leases(), leases);
    peer.assert_silent();
}

#[test]
fn release_when_mapped_was_not_told_yet_then_it_is_not_told() {
    for dispatch in [false, true] {
        // Of its own: a client that loses its peer looks for another one.
        let broker = FakeBroker::listen();
        let builder = Client::builder().dispatch(dispatch);
        let (client, mut peer) = broker.client_with(builder, Terms::default());
        let import = |grant: Grant| drop(grant.import(Access::Read, 0).unwrap());
        let leases = acquire_each(&client, &mut peer, import);
        let (mut told, mut released) = (0, Vec::new());
        while released.len() < leases.len() {
            let message = peer.recv();
            match message.kind {
                Kind::Release => released.extend(message.leases()),
                kind => {
                    assert_eq!(kind, Kind::Mapped);
                    told += message.leases().len();
                }
            }
        }
        released.sort_unstable();
        assert_eq!(released, leases);
        // The library thread may have sent one in between.
        assert!(told == 0 || !dispatch, "{told}");
    }
}

#[test]
fn release_when_no_call_follows_then_all_arrive() {
    for dispatch in [false, true] {
        // Of its own: a client that loses its peer looks for another one.
        let broker = FakeBroker::listen();
        let builder = Client::builder().dispatch(dispatch);
        let (client, mut peer) = broker.client_with(builder, Terms::default());
        let (imports, leases) = imports(&client, &mut peer);
        imports.into_iter().for_each(drop);
        assert_eq!(all(&peer, Kind::Release, leases.len()), leases, "dispatch: {dispatch}");
    }
}

#[test]
fn release_when_a_request_follows_then_it_goes_before_that() {
    let broker = FakeBroker::listen();
    let (client, mut peer) = broker.client();
    let (imports, leases) = imports(&client, &mut peer);
    imports.into_iter().for_each(drop);
    thread::scope(|scope| {
        let flushed = scope.spawn(|| client.flush(soon()));
        assert_eq!(all(&peer, Kind::Release, leases.len()), leases);
        let request = peer.recv_kind(Kind::Unregister);
        peer.unregistered(&request, false);
        flushed.join().unwrap().unwrap();
    });
}

#[test]
fn release_when_a_callback_does_not_end_then_all_arrive() {
    let broker = FakeBroker::listen();
    let ((inside, is_inside), (end, may_end)) = (channel(), channel::<()>());
    let may_end = std::sync::Mutex::new(may_end);
    let on_notice = move |notice| {
        if let Notice::GoingAway { .. } = notice {
            inside.send(()).unwrap();
            let _ = may_end.lock().unwrap().recv();
        }
    };
    let builder = Client::builder().on_notice(on_notice);
    let (client, mut peer) = broker.client_with(builder, Terms::default());
    let (imports, leases) = imports(&client, &mut peer);
    let mut writer = Writer::new();
    writer
        .start(Kind::GoingAway, 0)
        .push(&fdbroker_protocol::message::GoingAway { reason: 0.into(), reserved: 0.into() });
    peer.send_event(writer.finish(0, 0));
    is_inside.recv_timeout(PATIENCE).unwrap();
    imports.into_iter().for_each(drop);
    assert_eq!(all(&peer, Kind::Release, leases.len()), leases);
    drop(end);
}

#[test]
fn release_when_reclaimed_or_open_or_ended_then_all_arrive() {
    let broker = FakeBroker::listen();
    let (client, mut peer) = broker.client();
    let (imports, leases) = imports(&client, &mut peer);
    let items: Vec<LeaseItem> =
        leases.iter().map(|lease| LeaseItem { lease: (*lease).into() }).collect();
    let mut writer = Writer::new();
    writer.start(Kind::Reclaim, 0).push(&items[..]);
    peer.send_event(writer.finish(items.len(), 0));
    imports.into_iter().for_each(drop);
    assert_eq!(all(&peer, Kind::Release, leases.len()), leases);
    for ends in [false, true] {
        let mut open: Vec<Lease> = Vec::new();
        let leases = acquire_each(&client, &mut peer, |grant| open.push(grant.lease));
        if ends {
            open.iter_mut().for_each(Lease::mapped);
            assert_eq!(all(&peer, Kind::Mapped, leases.len()), leases);
            open.iter().for_each(|lease| peer.page.end(lease.id()));
        }
        open.into_iter().for_each(drop);
        assert_eq!(all(&peer, Kind::Release, leases.len()), leases);
    }
}
