//! The producer's table with the real broker: what it gives out resolves to the right bytes, what
//! it retired never does, and the ledger has exactly what the table has.

use crate::support::broker::{Broker, Setup};
use crate::support::memory::{BLOCK_BYTES, Blocks, assert_bytes, pattern};
use crate::support::owner::notices;
use crate::support::wait::{eventually, patience};
use fdbroker_client::{Access, Client, Deposit, Exports, Handle, Notice};
use fdbroker_protocol::ErrorCode;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A producer with blocks of its own.
struct Producer {
    client: Client,
    blocks: Arc<Blocks>,
    exports: Exports,
    exported: AtomicUsize,
}

impl Producer {
    fn of(broker: &Broker, count: usize) -> Producer {
        let client = broker.builder("producer").own_fds(3).connect().expect("connect");
        Producer::with(client, Arc::new(Blocks::new(count)))
    }

    fn with(client: Client, blocks: Arc<Blocks>) -> Producer {
        let exports = Exports::new(&client);
        Producer { client, blocks, exports, exported: AtomicUsize::new(0) }
    }

    /// Resident, so that no recall is needed, and with the id that the caller wants.
    fn deposit(&self, index: usize, id: u64) -> Deposit {
        let mut deposit = self.blocks.deposit(index);
        (deposit.recallable, deposit.facts.owner_allocation_id) = (false, id);
        deposit
    }

    #[track_caller]
    fn register(&self, index: usize, deposit: &Deposit) -> Handle {
        let export = || {
            self.exported.fetch_add(1, Ordering::Relaxed);
            Ok(self.blocks.export(index))
        };
        self.exports.register(deposit, export, patience()).expect("registered")
    }
}

#[track_caller]
fn assert_stale(client: &Client, handle: &Handle) {
    let error = client.acquire(handle, patience()).expect_err("a grant");
    assert_eq!(error.code, ErrorCode::Stale, "{error}");
}

#[test]
fn register_when_asked_for_many_interior_pointers_then_one_registration_and_each_reads_its_byte() {
    let broker = Broker::start();
    let (producer, consumer) = (Producer::of(&broker, 2), broker.client("consumer"));
    let deposits = [0, 1].map(|index| producer.deposit(index, index as u64));
    for _ in 0..200 {
        for (index, deposit) in deposits.iter().enumerate() {
            producer.register(index, deposit);
        }
    }
    assert_eq!(producer.exported.load(Ordering::Relaxed), 2);
    let status = broker.status();
    assert_eq!((status.counters.deposits.get(), status.uses.allocations.now.get()), (2, 2));
    for offset in (0..BLOCK_BYTES).step_by(64) {
        for (index, deposit) in deposits.iter().enumerate() {
            let handle = producer.exports.lookup(0, deposit.base + offset as u64).expect("known");
            assert_eq!(handle.offset_bytes, offset as u64);
            let grant = consumer.acquire(&handle, patience()).expect("resident");
            let import = grant.import(Access::Read, handle.offset_bytes).expect("import");
            let mut byte = [0];
            import.read_at(0, &mut byte).expect("in bounds");
            assert_eq!(byte[0], pattern(index as u64)[offset], "block {index}, byte {offset}");
        }
    }
    drop((producer, consumer));
    broker.assert_nothing_left();
}

#[test]
fn register_when_the_address_is_reused_then_the_old_handle_is_stale_and_the_new_one_right() {
    let broker = Broker::start();
    let (producer, consumer) = (Producer::of(&broker, 4), broker.client("consumer"));
    let ledger = || broker.status().uses.allocations.now.get();
    let half = |mut deposit: Deposit| {
        deposit.facts.size_bytes /= 2;
        deposit
    };
    let mut last = producer.register(0, &producer.deposit(0, 1));
    // Another id, another size, both; the same address each time.
    let reused = [producer.deposit(0, 2), half(producer.deposit(0, 2)), producer.deposit(0, 3)];
    for deposit in reused {
        let new = producer.register(0, &deposit);
        assert_stale(&consumer, &last);
        let grant = consumer.acquire(&new, patience()).expect("resident");
        assert_eq!(grant.info.facts.owner_allocation_id, deposit.facts.owner_allocation_id);
        assert_eq!(grant.info.facts.size_bytes, deposit.facts.size_bytes);
        drop(grant);
        assert_eq!(producer.exports.lookup(0, deposit.base), Some(new));
        eventually("the ledger has one", || ledger() == 1);
        last = new;
    }
    // An overlap with two neighbours ends both.
    let neighbours = [1, 2].map(|index| producer.register(index, &producer.deposit(index, 10)));
    let mut across = producer.deposit(3, 11);
    across.base = producer.deposit(1, 0).base + BLOCK_BYTES as u64 / 2;
    let new = producer.register(3, &across);
    neighbours.iter().for_each(|handle| assert_stale(&consumer, handle));
    drop(assert_bytes(consumer.acquire(&new, patience()).expect("resident"), 3));
    drop(assert_bytes(consumer.acquire(&last, patience()).expect("it touches nothing"), 0));
    eventually("the ledger has what the table has", || ledger() == 2);
    assert_eq!(producer.exports.len(), 2);
    drop((producer, consumer));
    broker.assert_nothing_left();
}

#[test]
fn retire_when_freed_then_stale_for_all_and_the_same_memory_may_be_registered_again() {
    let broker = Broker::start();
    let (producer, consumer) = (Producer::of(&broker, 1), broker.client("consumer"));
    let deposit = producer.deposit(0, 1);
    for _ in 0..5 {
        let handle = producer.register(0, &deposit);
        drop(assert_bytes(consumer.acquire(&handle, patience()).expect("resident"), 0));
        assert_eq!(producer.exports.retire(0, deposit.base), Some(handle.id()));
        assert_eq!(producer.exports.lookup(0, deposit.base), None);
        eventually("it has ended", || broker.status().uses.allocations.now.get() == 0);
        assert_stale(&consumer, &handle);
    }
    // And with an answer.
    let handle = producer.register(0, &deposit);
    let import = assert_bytes(consumer.acquire(&handle, patience()).expect("resident"), 0);
    assert!(!producer.exports.unregister(handle.id()).expect("its own").0, "it is leased");
    assert_eq!(producer.exports.len(), 0);
    let error = producer.exports.unregister(handle.id()).expect_err("twice");
    assert_eq!(error.code, ErrorCode::Stale, "{error}");
    drop((import, producer, consumer));
    broker.assert_nothing_left();
}

#[test]
fn register_many_when_known_new_and_repeated_then_each_handle_reads_its_block() {
    if !crate::common::has_fds(2048) {
        return;
    }
    const COUNT: usize = 300;
    let broker = Broker::start();
    let (producer, consumer) = (Producer::of(&broker, COUNT), broker.client("consumer"));
    producer.register(7, &producer.deposit(7, 7));
    // All, and the first 20 once more.
    let indices: Vec<usize> = (0..COUNT).chain(0..20).collect();
    let deposits: Vec<_> =
        indices.iter().map(|index| producer.deposit(*index, *index as u64)).collect();
    let fds: Vec<_> = indices.iter().map(|index| producer.blocks.export(*index)).collect();
    let borrowed: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
    let handles = producer.exports.register_many(&deposits, &borrowed, patience());
    let handles: Vec<_> =
        handles.expect("connected").into_iter().map(|one| one.expect("registered")).collect();
    assert_eq!((producer.exports.len(), handles[..20] == handles[COUNT..]), (COUNT, true));
    let status = broker.status();
    assert_eq!(status.counters.deposits.get(), COUNT as u64);
    for (index, handle) in indices.iter().zip(&handles) {
        let grant = consumer.acquire(handle, patience()).expect("resident");
        drop(assert_bytes(grant, *index as u64));
    }
    drop((producer, consumer));
    broker.assert_nothing_left();
}

#[test]
fn exports_when_many_threads_register_free_and_look_up_then_no_handle_is_of_other_memory() {
    const THREADS: usize = 8;
    const ROUNDS: u64 = 60;
    const PLACES: usize = 5;
    let broker = Broker::start();
    let (producer, consumer) = (Producer::of(&broker, PLACES), broker.client("consumer"));
    std::thread::scope(|scope| {
        for n in 0..THREADS as u64 {
            let (producer, consumer) = (&producer, &consumer);
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let index = ((n * 7 + round * 3) % PLACES as u64) as usize;
                    // Few ids, so that threads want the same, and other, memory at one address at
                    // once.
                    let deposit = producer.deposit(index, (n + round) % 3);
                    let export = || Ok(producer.blocks.export(index));
                    match producer.exports.register(&deposit, export, patience()) {
                        Ok(handle) => {
                            assert_eq!(
                                handle.owner_allocation_id,
                                deposit.facts.owner_allocation_id
                            );
                        }
                        Err(error) => assert_eq!(error.code, ErrorCode::Stale, "{error}"),
                    }
                    if let Some(handle) = producer.exports.lookup(0, deposit.base + 8) {
                        assert_eq!(handle.offset_bytes, 8);
                        match consumer.acquire(&handle, patience()) {
                            // Whatever id it has by now, the bytes are the place's.
                            Ok(grant) => drop(assert_bytes(grant, index as u64)),
                            Err(error) => assert_eq!(error.code, ErrorCode::Stale, "{error}"),
                        }
                    }
                    if round % 4 == n % 4 {
                        producer.exports.retire(0, deposit.base);
                    }
                }
            });
        }
    });
    // An answered call comes after all that was sent before it.
    eventually("the ledger has what the table has", || {
        broker.status().uses.allocations.now.get() == producer.exports.len() as u64
    });
    for index in 0..PLACES {
        let Some(handle) = producer.exports.lookup(0, producer.deposit(index, 0).base) else {
            continue;
        };
        drop(assert_bytes(consumer.acquire(&handle, patience()).expect("known"), index as u64));
        // One count each: one unregister ends it.
        producer.exports.unregister(handle.id()).expect("its own");
        assert_stale(&consumer, &handle);
    }
    assert_eq!(producer.exports.len(), 0);
    drop((producer, consumer));
    broker.assert_nothing_left();
}

#[test]
fn exports_when_the_broker_comes_back_then_unknown_meanwhile_and_the_same_after() {
    let mut broker = Setup::new().start();
    let (told, on_notice) = notices();
    let blocks = Arc::new(Blocks::new(3));
    let same = Arc::clone(&blocks);
    let builder = broker.builder("producer").own_fds(3).on_notice(on_notice);
    let builder = builder.on_recall(move |recall| same.answer(recall));
    let producer = Producer::with(builder.connect().expect("connect"), blocks);
    let deposits: Vec<_> = (0..3).map(|index| producer.blocks.deposit(index)).collect();
    let register_all = || -> Vec<Handle> {
        let all = deposits.iter().enumerate();
        all.map(|(index, deposit)| producer.register(index, deposit)).collect()
    };
    let old = register_all();
    for _ in 0..3 {
        broker.kill();
        told.until("disconnected", |notice| matches!(notice, Notice::Disconnected).then_some(()));
        assert!(deposits.iter().all(|deposit| producer.exports.lookup(0, deposit.base).is_none()));
        broker.restart();
        told.until("reconnected", |notice| {
            matches!(notice, Notice::Reconnected { .. }).then_some(())
        });
        assert!(deposits.iter().all(|deposit| producer.exports.lookup(0, deposit.base).is_some()));
        assert_eq!((producer.exports.len(), producer.client.is_connected()), (3, true));
        assert_eq!(register_all(), old);
        // None to register them again.
        assert_eq!(producer.exported.load(Ordering::Relaxed), 3);
        let consumer = broker.client("consumer");
        for (index, handle) in old.iter().enumerate() {
            drop(assert_bytes(consumer.acquire(handle, patience()).expect("old"), index as u64));
        }
    }
}
