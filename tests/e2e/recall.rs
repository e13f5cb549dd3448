//! Owners that are asked for an fd again and answer wrongly, late, or not at all.

use crate::support::broker::{Broker, Setup};
use crate::support::memory::{
    BLOCK_BYTES, Blocks, all_seals, assert_bytes, assert_import, host_memory, memfd, memory_kind,
};
use crate::support::owner::{Owner, notices};
use crate::support::rank::rank;
use crate::support::raw::{Raw, grants};
use crate::support::wait::{eventually, eventually_ok, patience};
use fdbroker_client::{Client, Deadline, Deposit, Handle, HostMemory, Recall, RecallAnswer, Share};
use fdbroker_protocol::admin::{AllocationState, NO_OWN_FD};
use fdbroker_protocol::limits::FORMER_FILES;
use fdbroker_protocol::message::{RecallItem, RegisterItem, SupplyItem, register_flags};
use fdbroker_protocol::{ErrorCode, Kind, Writer};
use nix::fcntl::SealFlag;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;
use zerocopy::FromZeros;

/// A broker that holds one fd at a time and gives owners `timeout_ms`.
fn tight(timeout_ms: u32) -> Broker {
    let lines = format!(
        "[caps.node]\nheld_fds = 1\n[limits]\nbase_credits = 0\nrecall_timeout_ms = {timeout_ms}"
    );
    Setup::new().config(&lines).start()
}

/// Longer than any test.
const NEVER_MS: u32 = 600_000;

/// An owner of two blocks for everybody, the first evicted, who answers recalls by `answer`; and
/// the first's handle.
fn owner_who(
    broker: &Broker,
    answer: impl Fn(&Blocks, &Recall) -> Result<RecallAnswer, ErrorCode> + Send + Sync + 'static,
) -> (Client, Handle) {
    let blocks = Arc::new(Blocks::new(2));
    let for_recall = Arc::clone(&blocks);
    let client = broker
        .builder("owner")
        .own_fds(2)
        .on_recall(move |recall| answer(&for_recall, recall))
        .connect()
        .expect("connect");
    let deposits = [0, 1].map(|index| blocks.deposit(index).share(Share::Any));
    let export = |index: usize| Ok(blocks.export(index));
    let registered = client.register_with(&deposits, export, patience()).expect("connected");
    let handle = registered[0].as_ref().expect("registered").handle;
    let record = broker.admin().allocation(handle.id()).expect("on the ledger");
    assert_eq!(record.state.get(), AllocationState::Evicted as u32);
    (client, handle)
}

#[track_caller]
fn assert_refused(broker: &Broker, handle: &Handle, code: ErrorCode) {
    let error = broker.client("consumer").acquire(handle, patience()).expect_err("a grant");
    assert_eq!(error.code, code, "{error}");
}

#[test]
fn recall_when_unanswered_then_owner_silent_until_it_answers_again() {
    let lines = "[caps.node]\nheld_fds = 2\n[limits]\nbase_credits = 0\nrecall_timeout_ms = 50";
    let broker = Setup::new().config(lines).start();
    let mut owner = rank(&broker.socket());
    let handles = owner.share(4, 0);
    let states = || -> Vec<u32> {
        let admin = broker.admin();
        let record = |handle: &Handle| admin.allocation(handle.id()).expect("on the ledger");
        handles.iter().map(|handle| record(handle).state.get()).collect()
    };
    let places = |wanted: AllocationState| -> Vec<usize> {
        let states = states();
        (0..4).filter(|index| states[*index] == wanted as u32).collect()
    };
    owner.stop();
    let evicted = places(AllocationState::Evicted);
    assert_eq!(evicted.len(), 2, "two fit");
    for index in &evicted {
        assert_refused(&broker, &handles[*index], ErrorCode::OwnerSilent);
    }
    assert!(broker.status().counters.recalls_unanswered.get() >= 1);
    // What the broker still has of it stays: nobody could give it again.
    let held = places(AllocationState::Held);
    assert!(!held.is_empty(), "the last one was evicted: {:?}", states());
    let client = broker.client("consumer");
    for index in held {
        let grant = client.acquire(&handles[index], patience()).expect("held");
        drop(assert_bytes(grant, index as u64));
    }

    owner.go_on();
    for (index, handle) in handles.iter().enumerate() {
        let grant = eventually_ok("it answers again", || client.acquire(handle, patience()));
        drop(assert_bytes(grant, index as u64));
    }
    drop((owner, client));
    broker.assert_nothing_left();
}

#[test]
fn recall_when_the_owner_cannot_export_it_then_owner_silent_says_why() {
    let broker = tight(NEVER_MS);
    let (_owner, handle) = owner_who(&broker, |_, _| Err(ErrorCode::NotSupported));
    let error = broker.client("consumer").acquire(&handle, patience()).expect_err("a grant");
    assert_eq!(error.code, ErrorCode::OwnerSilent, "{error}");
    let value = error.status.expect("from the broker").value;
    assert_eq!(value, ErrorCode::NotSupported as u64, "{error}");
}

#[test]
fn recall_when_the_memory_is_no_longer_there_then_the_allocation_ends() {
    let broker = tight(NEVER_MS);
    let (_owner, handle) = owner_who(&broker, |_, _| Err(ErrorCode::Stale));
    assert_refused(&broker, &handle, ErrorCode::Stale);
    assert_refused(&broker, &handle, ErrorCode::Stale);
    assert!(broker.admin().allocation(handle.id()).is_none(), "nobody holds it");
}

#[test]
fn recall_when_the_address_has_another_id_by_then_the_allocation_ends() {
    let broker = tight(NEVER_MS);
    let (_owner, handle) = owner_who(&broker, |blocks, recall| {
        let mut answer = blocks.answer(recall)?;
        answer.facts.owner_allocation_id += 1;
        Ok(answer)
    });
    assert_refused(&broker, &handle, ErrorCode::Stale);
}

#[test]
fn recall_when_answered_not_now_then_owner_silent_and_the_next_may_succeed() {
    let broker = tight(NEVER_MS);
    let asked = std::sync::atomic::AtomicU32::new(0);
    let (_owner, handle) = owner_who(&broker, move |blocks, recall| {
        match asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed) {
            0 => Err(ErrorCode::Internal),
            _ => blocks.answer(recall),
        }
    });
    let client = broker.client("consumer");
    let error = client.acquire(&handle, patience()).expect_err("not now");
    assert_eq!(error.code, ErrorCode::OwnerSilent, "{error}");
    drop(assert_bytes(client.acquire(&handle, patience()).expect("the second time"), 0));
}

#[test]
fn recall_when_the_callback_panics_then_only_that_recall_fails() {
    let broker = tight(NEVER_MS);
    let asked = std::sync::atomic::AtomicU32::new(0);
    let (_owner, handle) = owner_who(&broker, move |blocks, recall| {
        let before = asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        assert!(before > 0, "the application's mistake");
        blocks.answer(recall)
    });
    let client = broker.client("consumer");
    let error = client.acquire(&handle, patience()).expect_err("it panicked");
    assert_eq!(error.code, ErrorCode::OwnerSilent, "{error}");
    drop(assert_bytes(client.acquire(&handle, patience()).expect("the second time"), 0));
}

/// A recall answered with an fd that is no such memory: refused, the consumer gets no such fd, and
/// the owner's connection and the broker go on.
#[track_caller]
fn assert_refused_when_supplied(fd: impl Fn() -> OwnedFd + Send + Sync + 'static) {
    let broker = tight(NEVER_MS);
    let (owner, handle) =
        owner_who(&broker, move |_, recall| Ok(RecallAnswer::unchanged(recall, fd())));
    let consumer = broker.client("consumer");
    let error = consumer.acquire(&handle, patience()).expect_err("a grant");
    let codes = [ErrorCode::OwnerSilent, ErrorCode::Stale, ErrorCode::UnsupportedFd];
    assert!(codes.contains(&error.code), "{error}");
    assert!(owner.is_connected());
    drop((owner, consumer));
    broker.assert_nothing_left();
}

#[test]
fn recall_when_answered_with_a_pipe_then_refused() {
    assert_refused_when_supplied(|| {
        nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC).expect("a pipe").0
    });
}

#[test]
fn recall_when_answered_with_an_unsealed_memfd_then_refused() {
    assert_refused_when_supplied(|| memfd(c"unsealed", BLOCK_BYTES, SealFlag::empty()));
}

#[test]
fn recall_when_answered_with_a_memfd_that_may_grow_then_refused_for_other_uids() {
    let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_SEAL;
    assert_refused_when_supplied(move || memfd(c"growable", BLOCK_BYTES, seals));
}

#[test]
fn recall_when_answered_with_an_fd_too_small_then_refused() {
    assert_refused_when_supplied(|| memfd(c"small", BLOCK_BYTES / 2, all_seals()));
}

/// Inode of a memory, the inodes before it, and whether there were more and an fd is held.
fn files(broker: &Broker, handle: &Handle) -> (u64, Vec<u64>, bool, bool) {
    let record = broker.admin().allocation(handle.id()).expect("on the ledger");
    let former = record.former_inodes.iter().map(|inode| inode.get()).take_while(|it| *it != 0);
    let (has_more, is_held) = (record.files_ms.get() != u64::MAX, record.fd.get() != NO_OWN_FD);
    (record.inode.get(), former.collect(), has_more, is_held)
}

#[test]
fn allocations_when_evicted_and_made_anew_then_their_files_are_known_to_every_broker() {
    let mut broker = tight(NEVER_MS);
    let (owner, handle) =
        owner_who(&broker, |blocks, recall| Ok(RecallAnswer::unchanged(recall, blocks.export(0))));
    let (consumer, other) = (broker.client("consumer"), Owner::of(&broker, "other", 1));
    let (first, ..) = files(&broker, &handle);
    assert_ne!(first, 0, "of the fd that was deposited");
    assert_eq!(files(&broker, &handle), (first, vec![], false, false));
    let mut expected = vec![first];
    for _ in 0..FORMER_FILES + 1 {
        let grant = consumer.acquire(&handle, patience()).expect("by recall");
        let inode = nix::sys::stat::fstat(&grant.fd).expect("fstat").st_ino;
        // A memfd is the same for ever.
        let is_anew = host_memory() == HostMemory::Udmabuf;
        assert!(is_anew || inode == first);
        let former = expected.iter().rev().take(FORMER_FILES).filter(|_| is_anew);
        let former: Vec<_> = former.copied().collect();
        let has_more = is_anew && expected.len() > FORMER_FILES;
        assert_eq!(files(&broker, &handle), (inode, former.clone(), has_more, true));
        broker.take_over();
        assert_eq!(files(&broker, &handle), (inode, former.clone(), has_more, true));
        // The only place goes to another one.
        drop(consumer.acquire(&other.handle(0), patience()).expect("by recall"));
        assert_eq!(files(&broker, &handle), (inode, former, has_more, false));
        expected.push(inode);
    }
    drop((owner, other, consumer));
    broker.assert_nothing_left();
}

#[test]
fn recall_when_answered_then_still_the_same_allocation_in_an_fd_made_anew() {
    let broker = tight(NEVER_MS);
    let owner = Owner::of(&broker, "owner", 2);
    let (told, on_notice) = notices();
    let client = broker.builder("consumer").on_notice(on_notice).connect().expect("connect");
    let first = client.acquire(&owner.handle(0), patience()).expect("by recall");
    let inode =
        |grant: &fdbroker_client::Grant| nix::sys::stat::fstat(&grant.fd).expect("fstat").st_ino;
    let first_inode = inode(&first);
    let import = assert_bytes(first, 0);
    drop(assert_bytes(client.acquire(&owner.handle(1), patience()).expect("by recall"), 1));
    let again = client.acquire(&owner.handle(0), patience()).expect("by recall");
    match host_memory() {
        // Each export of a dma-buf is a dma-buf of its own.
        HostMemory::Udmabuf => assert_ne!(inode(&again), first_inode),
        _ => assert_eq!(inode(&again), first_inode),
    }
    assert_eq!((again.info.id, again.info.facts.kind), (owner.id(0), memory_kind()));
    let record = broker.admin().allocation(owner.id(0)).expect("on the ledger");
    assert_eq!(record.inode.get(), inode(&again));
    let former = record.former_inodes.iter().any(|former| former.get() == first_inode);
    assert_eq!(former, inode(&again) != first_inode, "a consumer may still have the first one");
    assert!(import.is_current(), "an eviction ends no lease and no allocation");
    // What is written through one mapping is read through the other.
    owner.blocks.fill(0, 42);
    drop(assert_bytes(again, 42));
    assert_import(&import, 42);
    assert!(owner.recalls() >= 2, "{} recalls", owner.recalls());
    drop((told, import));
}

/// The items of the next message on a raw owner's event socket, which is a recall.
fn recalled(raw: &Raw) -> Vec<RecallItem> {
    let event = raw.receive_event().expect("a recall");
    let message = event.message();
    assert_eq!((message.kind, message.id), (Kind::Recall, 0));
    message.items::<RecallItem>().expect("recalls").to_vec()
}

/// An owner that speaks by hand, its blocks, and the handle of its first block, evicted by its
/// second.
fn raw_owner(broker: &Broker) -> (Raw, Blocks, Handle) {
    let blocks = Blocks::new(2);
    let mut raw = Raw::connect(&broker.socket());
    let mut handles = Vec::new();
    for index in 0..2 {
        assert!(raw.want_credits(1) >= 1);
        let fd = blocks.export(index);
        let registered = raw.register(&[item(&blocks.deposit(index))], &[fd.as_fd()]);
        assert_eq!(registered[0].status.get().result(), Ok(()));
        handles.push(registered[0].handle);
    }
    (raw, blocks, handles[0].get())
}

/// What the library says of a deposit on the wire.
fn item(deposit: &Deposit) -> RegisterItem {
    let mut item = RegisterItem::new_zeroed();
    item.facts = deposit.facts.into();
    item.flags = register_flags::RECALLABLE;
    item.base = deposit.base.into();
    item
}

/// The right answer to a recall.
fn answer_to(recall: &RecallItem) -> SupplyItem {
    let mut item = SupplyItem::new_zeroed();
    (item.slot, item.generation) = (recall.slot, recall.generation);
    item.facts = recall.facts;
    item
}

/// Sends `item` with each of `fds`.
fn supply(raw: &Raw, item: SupplyItem, fds: &[OwnedFd]) {
    let borrowed: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
    let mut writer = Writer::new();
    writer.start(Kind::Supply, 0);
    for _ in fds {
        writer.push(&item);
    }
    let bytes = writer.finish(fds.len(), fds.len());
    fdbroker_scm::send(raw.events(), bytes, &borrowed).expect("sent");
}

/// The broker itself compares what comes with what was registered, whatever the owner's library
/// does.
#[track_caller]
fn assert_ended_by_supply(change: impl Fn(&mut SupplyItem)) {
    let broker = tight(NEVER_MS);
    let (mut raw, blocks, handle) = raw_owner(&broker);
    let id = raw.start_acquire(&[handle], NEVER_MS);
    let mut item = answer_to(&recalled(&raw)[0]);
    change(&mut item);
    supply(&raw, item, &[blocks.export(0)]);
    let answer = raw.receive().expect("an answer");
    assert_eq!(answer.message().id, id);
    assert_eq!(grants(answer).0[0].status.get().result(), Err(ErrorCode::Stale));
    assert!(broker.admin().allocation(handle.id()).is_none(), "nobody holds it");
    drop(raw);
    broker.assert_nothing_left();
}

#[test]
fn supply_when_it_has_another_allocation_id_then_the_allocation_ends() {
    assert_ended_by_supply(|item| item.facts.owner_allocation_id += 1);
}

#[test]
fn supply_when_it_has_another_size_then_the_allocation_ends() {
    assert_ended_by_supply(|item| item.facts.size_bytes -= 1);
}

#[test]
fn recall_when_many_wait_for_one_allocation_then_the_owner_is_asked_once() {
    let broker = tight(NEVER_MS);
    let (raw, blocks, handle) = raw_owner(&broker);
    let clients: Vec<_> = (0..5).map(|n| broker.client(&format!("waiter {n}"))).collect();
    std::thread::scope(|scope| {
        let wait =
            |client: &Client| client.acquire(&handle, patience()).map(|g| assert_bytes(g, 0));
        let waiters: Vec<_> =
            clients.iter().map(|client| scope.spawn(move || wait(client).map(drop))).collect();
        eventually("all wait", || broker.status().uses.parked_requests.now.get() == 5);
        let recalls = recalled(&raw);
        assert_eq!(recalls.len(), 1);
        assert_eq!(recalls[0].base.get(), blocks.deposit(0).base);
        supply(&raw, answer_to(&recalls[0]), &[blocks.export(0)]);
        for waiter in waiters {
            waiter.join().expect("no panic").expect("served by one recall");
        }
    });
    assert_eq!(broker.status().counters.recalls.get(), 1);
    drop((raw, clients));
    broker.assert_nothing_left();
}

#[test]
fn acquire_when_the_recall_outlasts_the_deadline_then_again_and_the_late_fd_serves_the_next() {
    let broker = tight(NEVER_MS);
    let (mut raw, blocks, handle) = raw_owner(&broker);
    let id = raw.start_acquire(&[handle], 50);
    let answer = raw.receive().expect("an answer");
    assert_eq!(answer.message().id, id);
    assert_eq!(grants(answer).0[0].status.get().result(), Err(ErrorCode::Again));
    let client = broker.client("hasty");
    let soon = Deadline::after(Duration::from_millis(50));
    let error = client.acquire(&handle, soon).expect_err("the owner does not answer");
    assert_eq!(error.code, ErrorCode::TimedOut, "{error}");
    assert_eq!(broker.status().uses.open_leases.now.get(), 0);

    let recalls = recalled(&raw);
    supply(&raw, answer_to(&recalls[0]), &[blocks.export(0)]);
    drop(assert_bytes(client.acquire(&handle, patience()).expect("it has come"), 0));
    assert_eq!(broker.status().counters.recalls.get(), 1, "it was asked for once");
    drop((raw, client));
    broker.assert_nothing_left();
}

#[test]
fn supply_when_sent_more_often_than_asked_then_the_others_are_closed() {
    let broker = tight(NEVER_MS);
    let (mut raw, blocks, handle) = raw_owner(&broker);
    let id = raw.start_acquire(&[handle], NEVER_MS);
    let recalls = recalled(&raw);
    let fds: Vec<_> = (0..4).map(|_| blocks.export(0)).collect();
    supply(&raw, answer_to(&recalls[0]), &fds);
    let answer = raw.receive().expect("an answer");
    assert_eq!(answer.message().id, id);
    let (items, granted) = grants(answer);
    assert_eq!((items[0].status.get().result(), granted.len()), (Ok(()), 1));
    // It holds one fd and gives one; of the supplied ones no other is left.
    let status = broker.status();
    assert_eq!((status.gauges.stored_fds.get(), status.uses.open_leases.now.get()), (1, 1));
    drop((raw, granted));
    broker.assert_nothing_left();
}
