//! The ledger as administrators see it: sums that agree at any time, and zero when everybody has
//! left.

use crate::support::broker::Broker;
use crate::support::memory::assert_bytes;
use crate::support::owner::Owner;
use crate::support::rank::rank;
use crate::support::wait::{eventually, patience};
use fdbroker_protocol::admin::{
    AllocationRecord, AllocationState, ClientRecord, LeaseRecord, Page,
};
use fdbroker_protocol::{ErrorCode, Kind};
use fdbrokerd::limits::ADMIN_SLOTS_SCANNED;
use std::collections::{BTreeMap, HashSet};

/// The sum over all records.
fn sum<T>(records: &[T], field: impl Fn(&T) -> u64) -> u64 {
    records.iter().map(field).sum()
}

#[test]
fn ledger_when_clients_hold_this_and_that_then_every_sum_agrees() {
    let broker = Broker::start();
    let owner = Owner::of(&broker, "owner", 10);
    let (client, other) = (broker.client("client"), broker.client("other"));
    let acquire = |index| client.acquire(&owner.handle(index), patience()).expect("ready");
    let _grants = [acquire(0), acquire(1), acquire(1)];
    let _imports: Vec<_> = (0..5).map(|index| assert_bytes(acquire(index), index as u64)).collect();
    let _more = other.acquire(&owner.handle(9), patience()).expect("ready");
    owner.client.unregister(&owner.registrations[1]).expect("its own");
    eventually("all imports are reported and the last close, too", || {
        let status = broker.status();
        (status.uses.mapped_leases.now.get(), status.gauges.closing_fds.get()) == (5, 0)
    });

    let admin = broker.admin();
    let (status, clients, leases) = (admin.status(), admin.clients(), admin.leases());
    assert_eq!(status.uses.connections.now.get() as usize, clients.len());
    assert_eq!(status.uses.open_leases.now.get(), 4);
    let of_clients = |field: fn(&ClientRecord) -> u64| sum(&clients, field);
    assert_eq!(of_clients(|one| one.uses.open_leases.get()), status.uses.open_leases.now.get());
    assert_eq!(of_clients(|one| one.uses.mapped_leases.get()), status.uses.mapped_leases.now.get());
    assert_eq!(of_clients(|one| one.uses.held_fds.get()), status.uses.held_fds.now.get());
    assert_eq!(of_clients(|one| one.uses.held_bytes.get()), status.uses.held_bytes.now.get());
    assert_eq!(of_clients(|one| one.uses.fds.get()), status.uses.fds.now.get());
    assert_eq!(
        status.uses.fds.now.get(),
        status.uses.held_fds.now.get() + status.uses.open_leases.now.get()
    );
    let in_state = |state| sum(&leases, |one: &LeaseRecord| u64::from(one.state.get() == state));
    assert_eq!((in_state(1), in_state(2)), (4, 5));
    let ended: Vec<_> = leases.iter().filter(|one| one.ended.get() != 0).collect();
    assert_eq!(ended.len(), 3, "two open and one mapped, of what has ended");
    // The node counts memory once, however many leases it has.
    let memory: BTreeMap<_, _> = ended
        .iter()
        .map(|one| ((one.slot.get(), one.generation.get()), one.size_bytes.get()))
        .collect();
    let pinned: u64 = memory.values().sum();
    assert_eq!(status.uses.pinned_bytes.now.get(), pinned);

    let held = admin
        .allocations()
        .into_iter()
        .filter(|one| one.state.get() == AllocationState::Held as u32);
    assert_eq!(held.count() as u64, status.gauges.stored_fds.get());
}

#[test]
fn allocations_when_most_slots_are_free_again_then_short_pages_and_none_is_missed() {
    let broker = Broker::start();
    let owner = Owner::of(&broker, "owner", 2 * ADMIN_SLOTS_SCANNED as usize + 2);
    let (last, others) = owner.registrations.split_last().expect("some");
    for ended in others.chunks(1000) {
        let ended = owner.client.unregister_many(ended, patience()).expect("connected");
        assert!(ended.iter().all(Result::is_ok));
    }
    let admin = broker.admin();
    let answer = admin.ask(Kind::AdminAllocations, 0);
    let (page, records) =
        answer.message().head_and_items::<Page, AllocationRecord>().expect("a page");
    assert_eq!((records.len(), page.done.get()), (0, 0));
    assert_eq!(page.next_cursor.get(), ADMIN_SLOTS_SCANNED);
    let found: Vec<u32> = admin.allocations().iter().map(|record| record.slot.get()).collect();
    assert_eq!(found, [last.id().slot]);
}

#[test]
fn unregister_soon_when_one_by_one_then_settle_waits_for_all() {
    let broker = Broker::start();
    let owner = Owner::of(&broker, "owner", 600);
    let client = broker.client("client");
    for one in &owner.registrations {
        owner.client.unregister_soon([one]);
        // What has ended is left as it is.
        owner.client.unregister_soon([one]);
    }
    owner.client.settle(patience()).expect("served");
    let status = broker.status();
    assert_eq!((status.uses.allocations.now.get(), status.gauges.stored_fds.get()), (0, 0));
    let error = client.acquire(&owner.handle(599), patience()).expect_err("it has ended");
    assert_eq!(error.code, ErrorCode::Stale);
}

#[test]
fn allocations_when_held_then_each_with_the_inode_of_its_fd() {
    let broker = Broker::start();
    let owner = Owner::of(&broker, "owner", 3);
    let client = broker.client("client");
    let admin = broker.admin();
    for index in 0..3 {
        let grant = client.acquire(&owner.handle(index), patience()).expect("ready");
        let inode = nix::sys::stat::fstat(&grant.fd).expect("a memfd").st_ino;
        let record = admin.allocation(owner.id(index)).expect("registered");
        assert_eq!(record.inode.get(), inode);
    }
}

#[test]
fn clients_when_connected_then_listed_with_their_pid_uid_and_name() {
    let broker = Broker::start();
    let rank = rank(&broker.socket());
    let clients = broker.admin().clients();
    assert_eq!(clients.len(), 1);
    assert_eq!(clients[0].pid.get(), rank.pid().as_raw().unsigned_abs());
    assert_eq!(clients[0].uid.get(), nix::unistd::getuid().as_raw());
    assert_eq!(&clients[0].name[..5], b"rank\0");
}

#[test]
fn ledger_when_everybody_has_left_then_zero_and_no_fd_is_left_in_the_daemon() {
    let broker = Broker::start();
    let mut owner = rank(&broker.socket());
    let handles = owner.share(50, 0);
    let mut consumers: Vec<_> = (0..3).map(|_| rank(&broker.socket())).collect();
    for consumer in &mut consumers {
        assert_eq!(consumer.with_handles("hold", &handles), "OK");
        assert_eq!(consumer.with_handles("import", &handles), "OK");
    }
    // Each import is reported as mapped when the library comes to it.
    eventually("the imports have no fd open", || broker.status().uses.open_leases.now.get() == 150);
    // In any order, in any way: one killed, the others ended by the end of their sockets, the owner
    // before the last.
    consumers.remove(1).kill();
    drop(consumers.remove(0));
    drop(owner);
    drop(consumers);
    broker.assert_nothing_left();
}

#[test]
fn records_when_more_than_a_page_holds_then_each_is_listed_once() {
    if !crate::common::has_fds(2048) {
        return;
    }
    let broker = Broker::start();
    let owner = Owner::of(&broker, "owner", 700);
    let grants = owner.client.acquire_many(&owner.handles(), patience()).expect("connected");
    let unique = |numbers: Vec<u64>| numbers.into_iter().collect::<HashSet<_>>().len();
    let admin = broker.admin();
    let allocations = admin.allocations();
    let slots = allocations.iter().map(|one| one.slot.get().into()).collect();
    assert_eq!((allocations.len(), unique(slots)), (700, 700));
    let leases = admin.leases();
    let numbers = leases.iter().map(|one| one.lease.get()).collect();
    assert_eq!((leases.len(), unique(numbers)), (700, 700));
    drop(grants);
}
