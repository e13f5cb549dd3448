//! A handle names one memory from its registration to its end: a memfd that is supplied or
//! deposited again in its place is refused, its owner is told, and nothing is lost by that. Must
//! never take another fd of the same memfd for other memory.

use crate::support::broker::{Broker, Setup};
use crate::support::manager::Manager;
use crate::support::memory::{BLOCK_BYTES, all_seals, assert_bytes, assert_import, memfd, pattern};
use crate::support::owner::{Notices, notices};
use crate::support::raw::{Raw, block_item};
use crate::support::wait::{eventually, patience};
use fdbroker_client::{Client, Deposit, Error, Handle, MemoryKind, Notice};
use fdbroker_protocol::message::RegisterItem;
use fdbroker_protocol::{ErrorCode, FdType, Status};
use nix::sys::signal::Signal;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// One fd is held at a time: whoever is granted one evicts the other.
const TIGHT: &str = "[caps.node]\nheld_fds = 1\n[limits]\nbase_credits = 0\n\
    recall_timeout_ms = 600000\ngrace_ms = 600000";

/// An owner of two blocks, each a memfd of its own, that gives other memory when it is told to.
struct Changeling {
    client: Client,
    /// The right memory of each block, and other memory.
    memory: Arc<[[OwnedFd; 2]; 2]>,
    /// Which of the two it gives.
    gives: Arc<AtomicUsize>,
    notices: Notices,
    handles: Vec<Handle>,
}

fn filled(seed: u64) -> OwnedFd {
    let fd = memfd(c"block", BLOCK_BYTES, all_seals());
    let bytes = pattern(seed);
    assert_eq!(nix::sys::uio::pwrite(&fd, &bytes, 0).expect("write"), BLOCK_BYTES);
    fd
}

fn deposit(index: u64) -> Deposit {
    let mut deposit = Deposit::new(MemoryKind::Memfd, BLOCK_BYTES as u64);
    deposit.base = 0x7000_0000_0000 + index * BLOCK_BYTES as u64;
    deposit.recallable = true;
    deposit
}

impl Changeling {
    fn of(broker: &Broker) -> Self {
        let memory = Arc::new([0, 1].map(|seed| [filled(seed), filled(seed + 100)]));
        let gives = Arc::new(AtomicUsize::new(0));
        let (notices, on_notice) = notices();
        let (of_recall, which) = (Arc::clone(&memory), Arc::clone(&gives));
        let client = broker
            .builder("owner")
            .own_fds(4)
            .on_notice(on_notice)
            .on_recall(move |recall| {
                let index = usize::from(recall.base != deposit(0).base);
                let fd = &of_recall[index][which.load(Ordering::Relaxed)];
                let fd = fd.try_clone().map_err(|_| ErrorCode::LocalFdLimit)?;
                Ok(fdbroker_client::RecallAnswer::unchanged(recall, fd))
            })
            .connect()
            .expect("connect");
        let mut owner = Changeling { client, memory, gives, notices, handles: Vec::new() };
        owner.handles = [0, 1].map(|index| owner.register(index, 0).expect("registered")).into();
        owner
    }

    fn register(&self, index: usize, which: usize) -> Result<Handle, Error> {
        let deposit = deposit(index as u64);
        let export = |_| self.memory[index][which].try_clone().map_err(|_| unreachable!());
        let registered = self.client.register_with(&[deposit], export, patience());
        registered.expect("connected").remove(0).map(|one| one.handle)
    }

    /// The owner answers one recall with other memory, and then goes on with its own.
    #[track_caller]
    fn assert_other_memory_is_refused(&self, consumer: &Client, when: &str) {
        // The second one is held from here on, the first one is evicted.
        drop(assert_bytes(consumer.acquire(&self.handles[1], patience()).expect("recalled"), 1));
        self.gives.store(1, Ordering::Relaxed);
        let error = consumer.acquire(&self.handles[0], patience()).expect_err("other memory");
        let status = error.status.expect("the broker's");
        let right = (ErrorCode::OwnerSilent, ErrorCode::UnsupportedFd as u64);
        assert_eq!((error.code, status.value), right, "{when}: {error}");
        let told = self.notices.until("the refusal", |notice| match notice {
            Notice::SupplyRefused { id, error, .. } => Some((id, error)),
            _ => None,
        });
        assert_eq!(told.0, self.handles[0].id(), "{when}");
        assert_eq!(told.1.status, Some(Status::OTHER_MEMORY), "{when}: {}", told.1);
        self.assert_not_registered(0, when);
        self.gives.store(0, Ordering::Relaxed);
        drop(assert_bytes(consumer.acquire(&self.handles[0], patience()).expect("its own"), 0));
        self.assert_not_registered(0, when);
        assert_eq!(self.register(0, 0).expect("the same memory"), self.handles[0], "{when}");
    }

    #[track_caller]
    fn assert_not_registered(&self, index: usize, when: &str) {
        let error = self.register(index, 1).expect_err("other memory under the same handle");
        assert_eq!(error.status, Some(Status::OTHER_MEMORY), "{when}: {error}");
        assert!(error.to_string().contains("other than the one that the handle names"), "{error}");
    }
}

#[test]
fn memory_when_another_memfd_is_given_for_it_then_refused_over_eviction_takeover_and_crash() {
    let mut broker = Setup::new().config(TIGHT).start();
    let owner = Changeling::of(&broker);
    let consumer = broker.client("consumer");
    let held = assert_bytes(consumer.acquire(&owner.handles[0], patience()).expect("held"), 0);
    owner.assert_other_memory_is_refused(&consumer, "at first");
    broker.take_over();
    owner.assert_other_memory_is_refused(&consumer, "after a takeover");
    let before = consumer.incarnation();
    broker.kill();
    broker.restart();
    let is_back = |client: &Client| client.is_connected() && client.incarnation() != before;
    eventually("both are back", || is_back(&consumer) && is_back(&owner.client));
    owner.assert_other_memory_is_refused(&consumer, "after a crash");
    broker.take_over();
    owner.assert_other_memory_is_refused(&consumer, "after a crash and a takeover");
    assert!(held.is_current(), "its holder notices nothing");
    assert_import(&held, 0);
    drop((held, consumer, owner));
    broker.assert_nothing_left();
}

#[test]
fn register_when_one_message_names_an_address_twice_then_other_memory_is_refused() {
    // Four fds in one message take as many credits.
    if !crate::common::has_fds(2048) {
        return;
    }
    // The second cap is full with what cannot be evicted: what comes is evicted at once.
    for caps in ["", "[caps.client]\nheld_bytes = 8191"] {
        let broker = Setup::new().config(caps).start();
        let mut raw = Raw::connect(&broker.socket());
        let fds = [filled(0), filled(1), filled(2)];
        let item = RegisterItem { base: (1 << 40).into(), ..block_item() };
        let resident = RegisterItem { flags: 0, ..block_item() };
        assert!(raw.register(&[resident], &[fds[2].as_fd()])[0].status.get().is_ok());
        let [first, other] = [0, 1].map(|at: usize| fds[at].as_fd());
        let registered = raw.register(&[item; 4], &[first, other, first, other]);
        let said: Vec<Status> = registered.iter().map(|one| one.status.get()).collect();
        let right = [Status::OK, Status::OTHER_MEMORY, Status::OK, Status::OTHER_MEMORY];
        assert_eq!(said, right);
        assert_eq!(registered[0].handle, registered[2].handle);
        let again = raw.register(&[item; 2], &[other, first]);
        let said: Vec<Status> = again.iter().map(|one| one.status.get()).collect();
        assert_eq!(said, [Status::OTHER_MEMORY, Status::OK]);
        drop(raw);
        broker.assert_nothing_left();
    }
}

#[test]
fn register_when_dropped_before_then_other_memory_at_the_address_is_another_allocation() {
    let broker = Broker::start();
    let mut raw = Raw::connect(&broker.socket());
    let fds = [filled(0), filled(1)];
    let item = RegisterItem { base: (1 << 40).into(), ..block_item() };
    let first = raw.register(&[item], &[fds[0].as_fd()])[0];
    assert!(raw.unregister(&[first.handle.get().id()])[0].is_ok());
    let second = raw.register(&[item], &[fds[1].as_fd()])[0];
    assert!(second.status.get().is_ok() && second.handle.get().id() != first.handle.get().id());
    // Another id at the address says so, too.
    let mut other = item;
    other.facts.owner_allocation_id = 8.into();
    let third = raw.register(&[other], &[fds[0].as_fd()])[0];
    assert!(third.status.get().is_ok() && third.handle.get().id() != second.handle.get().id());
    let mut consumer = Raw::connect(&broker.socket());
    let answer = consumer.acquire_once(&[second.handle.get()], 0);
    assert_eq!(answer.grants()[0].status.get().result(), Err(ErrorCode::Stale));
    drop((raw, consumer));
    broker.assert_nothing_left();
}

#[test]
fn kept_memory_when_another_memfd_is_given_for_it_after_a_crash_with_a_store_then_refused() {
    let mut manager = Manager::new(&["--set", "limits.keep_ttl_ms=600000"]);
    manager.start(&[]);
    let (told, on_notice) = notices();
    let builder = Client::builder().socket(manager.socket()).name("owner").own_fds(2);
    let client = builder.on_notice(on_notice).connect().expect("connect");
    let mut kept = deposit(0);
    (kept.recallable, kept.keep) = (false, true);
    let fds = [filled(0), filled(1)];
    let register = |at: usize| client.register(&kept, fds[at].as_fd(), patience());
    let handle = register(0).expect("registered").handle;
    eventually("it is stored", || manager.carried() == 1);
    manager.end(Signal::SIGKILL);
    manager.start(&[]);
    told.until("reconnected", |it| matches!(it, Notice::Reconnected { .. }).then_some(()));
    let error = register(1).expect_err("other memory under the same handle");
    let what = error.status.map(|status| status.value);
    assert_eq!((error.code, what), (ErrorCode::UnsupportedFd, Some(FdType::OtherMemory as u64)));
    assert_eq!(register(0).expect("the same memory").handle, handle);
    drop(assert_bytes(client.acquire(&handle, patience()).expect("held"), 0));
    drop(client);
}
