//! Counts after a crash of the broker without a store: what clients still hold of memory that
//! cannot come back is charged to them alone, so that the ledger and /proc agree. Must never count
//! what the broker says by itself: /proc of stopped processes is the measure.

use crate::comeback::{long_grace, short_grace};
use crate::support::broker::Broker;
use crate::support::memory::BLOCK_BYTES;
use crate::support::owner::Owner;
use crate::support::peer::{Peer, from_words, to_line};
use crate::support::raw::{Incoming, Raw};
use crate::support::wait::{eventually, eventually_ok, patience};
use fdbroker_client::{Client, Handle};
use fdbroker_protocol::message::{DeclareItem, GrantItem, declare_flags};
use fdbroker_protocol::{ErrorCode, Kind, Status};
use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;

/// As many as there were when this was found: one more than two rows of an audit's table.
const CONSUMERS: usize = 44;
const RECALLABLE: usize = 6;

/// A broker with three owners: one that lives and can give its memory again, one that dies with the
/// broker, and one that lives and cannot; and consumers that hold fds of all.
struct World {
    broker: Broker,
    owners: Vec<Peer>,
    handles: [Vec<Handle>; 3],
    consumers: Vec<Peer>,
    /// Inodes of all that is shared.
    inodes: BTreeSet<u64>,
}

fn connected(broker: &Broker, part: &str) -> Peer {
    let mut peer = Peer::start(part);
    assert_eq!(peer.ask(&format!("connect {}", broker.socket().display())), "OK");
    peer
}

impl World {
    fn new(broker: Broker, consumers: usize) -> World {
        let mut owners = vec![connected(&broker, "comeback"), connected(&broker, "comeback")];
        owners.push(connected(&broker, "rank"));
        let words = [
            owners[0].ask(&format!("share {RECALLABLE} 0")),
            owners[1].ask("share 3 100"),
            owners[2].ask("deposit uid"),
        ];
        let handles = words.map(|words| from_words(words.split(' ')));
        let all = to_line(&handles.concat());
        let mut consumers: Vec<Peer> =
            (0..consumers).map(|_| connected(&broker, "comeback")).collect();
        for consumer in &mut consumers {
            assert_eq!(consumer.ask(&format!("hold {all}")), "OK");
        }
        let inodes = broker.admin().allocations().iter().map(|it| it.inode.get()).collect();
        World { broker, owners, handles, consumers, inodes }
    }

    fn crash(&mut self) {
        self.broker.kill();
        self.owners[1].kill();
        self.broker.restart();
        for consumer in &mut self.consumers {
            assert_eq!(consumer.ask("await"), "OK");
        }
    }

    /// Stops all consumers and counts their fds of what was shared.
    fn fds_in_proc(&self) -> u64 {
        self.consumers.iter().for_each(Peer::stop);
        let fds = self.consumers.iter().map(|it| fds_of(it, &self.inodes)).sum();
        self.consumers.iter().for_each(Peer::go_on);
        fds
    }

    #[track_caller]
    fn assert_counted(&self, per_consumer: usize) {
        let right = (self.consumers.len() * per_consumer) as u64;
        assert_eq!(self.fds_in_proc(), right, "in /proc");
        eventually_ok("the ledger has what /proc has", || {
            match self.broker.status().uses.open_leases.now.get() {
                counted if counted == right => Ok(()),
                counted => Err(format!("{counted} open leases, {right} fds")),
            }
        });
    }
}

fn fds_of(peer: &Peer, inodes: &BTreeSet<u64>) -> u64 {
    let fds = std::fs::read_dir(format!("/proc/{}/fd", peer.pid())).expect("/proc");
    let inode = |entry: std::io::Result<std::fs::DirEntry>| {
        std::fs::metadata(entry.expect("/proc").path()).ok().map(|it| it.ino())
    };
    fds.filter_map(inode).filter(|inode| inodes.contains(inode)).count() as u64
}

#[track_caller]
fn code_of(client: &Client, handle: &Handle) -> ErrorCode {
    client.acquire(handle, patience()).expect_err("a grant of what is lost").code
}

#[test]
fn status_when_the_broker_was_killed_without_a_store_then_as_many_fds_as_stopped_clients_have() {
    if !crate::common::has_fds(2048) {
        return;
    }
    let mut world = World::new(long_grace().start(), CONSUMERS);
    let each = RECALLABLE + 3 + 1;
    world.assert_counted(each);
    world.crash();
    world.assert_counted(each);
    let lost = (CONSUMERS * 4 * BLOCK_BYTES) as u64;
    let clients: Vec<_> = world.broker.admin().clients();
    let pinned = || {
        let of_clients = world.broker.admin().clients();
        of_clients.iter().map(|it| it.uses.pinned_bytes.get()).sum::<u64>()
    };
    eventually("each holder is charged for what is lost", || pinned() == lost);
    let owners: BTreeSet<u32> =
        world.owners.iter().map(|it| it.pid().as_raw().unsigned_abs()).collect();
    let of_owners = clients.iter().filter(|it| owners.contains(&it.pid.get()));
    assert!(of_owners.map(|it| it.uses.pinned_bytes.get()).all(|bytes| bytes == 0));

    let client = world.broker.client("asker");
    assert_eq!(code_of(&client, &world.handles[1][0]), ErrorCode::OwnerGone);
    assert_eq!(code_of(&client, &world.handles[2][0]), ErrorCode::Lost);
    drop(client);
    let counters = world.broker.status().counters;
    assert_eq!((counters.named_again.get(), counters.lost.get()), (RECALLABLE as u64, 4));
    // A takeover and another crash within the grace time change nothing.
    world.broker.take_over();
    world.assert_counted(each);
    world.broker.kill();
    world.broker.restart();
    for consumer in &mut world.consumers {
        assert_eq!(consumer.ask("await"), "OK");
    }
    world.assert_counted(each);
    for consumer in &mut world.consumers {
        assert_eq!(consumer.ask("drop"), "OK");
    }
    world.assert_counted(0);
}

#[test]
fn lost_when_the_grace_time_is_over_then_one_line_says_how_many_and_why() {
    let mut world = World::new(short_grace().start(), 1);
    world.crash();
    let line = "(3 whose owners have ended, 1 that cannot be exported again, ";
    eventually("the line", || world.broker.log().contains(line));
    assert_eq!(world.broker.log().matches("the broker before was killed: ").count(), 1);
    assert_eq!(world.consumers[0].ask("drop"), "OK");
    drop((world.owners, world.consumers));
    world.broker.assert_nothing_left();
}

fn declare(raw: &mut Raw, handles: &[Handle]) -> Vec<GrantItem> {
    let item = |handle: &Handle| DeclareItem {
        handle: handle.prefix.into(),
        flags: declare_flags::OPEN.into(),
        reserved: 0.into(),
    };
    let items: Vec<DeclareItem> = handles.iter().map(item).collect();
    let answer: Incoming =
        raw.request(Kind::Declare, |it| it.push(items.as_slice()), items.len(), &[]);
    answer.grants()
}

#[test]
fn declare_when_of_thousands_that_were_never_had_then_charged_to_the_liar_alone_up_to_its_cap() {
    const CAP: u64 = 64;
    let config = format!("[caps.client]\nopen_leases = {CAP}");
    let mut world = World::new(long_grace().config(&config).start(), 2);
    world.crash();
    let each = (RECALLABLE + 4) as u64;
    let mut liar = Raw::connect(&world.broker.socket());
    let lies = vec![world.handles[2][0]; 253];
    let mut taken = 0;
    for _ in 0..12 {
        let answers: Vec<Status> =
            declare(&mut liar, &lies).iter().map(|it| it.status.get()).collect();
        taken += answers.iter().filter(|status| status.is_ok()).count() as u64;
        let refused = answers.iter().find(|status| !status.is_ok()).expect("more than its cap");
        assert_eq!(refused.result(), Err(ErrorCode::NoQuota), "{refused}");
    }
    assert_eq!(taken, CAP);
    let all = || world.broker.status().uses.open_leases.now.get();
    assert_eq!(all(), CAP + 2 * each);
    // What it declares it cannot have, and it can have nothing else besides.
    let answer = liar.acquire_once(&[world.handles[2][0]], 0);
    assert_eq!(answer.grants()[0].status.get().result(), Err(ErrorCode::Lost));
    let answer = liar.acquire_once(&[world.handles[0][0]], 0);
    assert_eq!(answer.grants()[0].status.get().result(), Err(ErrorCode::NoQuota));
    // Others are served as before.
    let owner = Owner::of(&world.broker, "owner", 2);
    let client = world.broker.client("consumer");
    let granted = client.acquire(&owner.handle(0), patience()).expect("room");
    drop((granted, client, owner, liar));
    eventually("its lies are gone with it", || all() == 2 * each);
    world.assert_counted(each as usize);
}

#[test]
fn declared_leases_when_the_cap_is_full_of_later_grants_then_counted_all_the_same() {
    let config = "[caps.client]\nopen_leases = 10";
    let broker = long_grace().config(config).start();
    let mut world = World::new(broker, 0);
    let mut raw = Raw::connect(&world.broker.socket());
    let (items, fds) = raw.acquire(&[&world.handles[1][..], &world.handles[2]].concat());
    assert!(items.iter().all(|item| item.status.get().is_ok()));
    let held = [&world.handles[1][..], &world.handles[2]].concat();
    drop(raw);
    world.crash();
    let mut raw = Raw::connect(&world.broker.socket());
    let mut others = Raw::connect(&world.broker.socket());
    let more = raw.acquire(&others.register_blocks(10)).1;
    assert_eq!(more.len(), 10);
    assert!(declare(&mut raw, &held).iter().all(|item| item.status.get().is_ok()));
    assert_eq!(world.broker.status().uses.open_leases.now.get(), 14, "as /proc has them");
    let answer = raw.acquire_once(&others.register_blocks(1), 0);
    assert_eq!(answer.grants()[0].status.get().result(), Err(ErrorCode::NoQuota));
    drop((raw, others, fds, more));
}
