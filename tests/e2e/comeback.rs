//! Brokers killed under load that come back, as clients see it: what could be exported again goes
//! on under its old handle with the right bytes, what could not is refused by name, and no old
//! handle ever shows other memory. Must never take an error of the time without a broker for
//! another: only NOT_CONNECTED is one.

use crate::support::broker::{Broker, Setup};
use crate::support::memory::{BLOCK_BYTES, assert_bytes, assert_import, host_memory, pattern};
use crate::support::owner::{Notices, Owner, notices};
use crate::support::peer::{Link, Peer, from_words, to_line};
use crate::support::raw::Raw;
use crate::support::wait::{eventually, eventually_ok, patience};
use fdbroker_client::{
    Access, AllocationId, Arena, CacheSettings, Client, Error, Exports, Grant, HostBuffer, Import,
    ImportCache, Notice,
};
use fdbroker_protocol::message::{RedepositItem, RegisterHead, RegisterReplyHead, Registered};
use fdbroker_protocol::{ErrorCode, Facts, Handle, Kind};
use std::collections::BTreeSet;
use std::path::Path;
use std::str::SplitAsciiWhitespace;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// What one of the ranks has. Field order is drop order: leases before the connection.
#[derive(Default)]
struct Rank {
    grants: Vec<Grant>,
    imports: Vec<Import>,
    cache: Option<ImportCache>,
    buffers: Vec<HostBuffer>,
    arena: Option<Arena>,
    client: Option<Client>,
    /// Of the broker it knew last.
    incarnation: u64,
}

/// A rank, one line each: see `act`.
pub fn play(mut link: Link) {
    let mut rank = Rank::default();
    while let Some(line) = rank.hear(&mut link) {
        let mut words = line.split_ascii_whitespace();
        let answer = match rank.act(&mut words, &mut link) {
            Ok(answer) => answer,
            Err(error) => error.code.name().to_owned(),
        };
        link.say(&answer);
    }
}

impl Rank {
    fn client(&self) -> &Client {
        self.client.as_ref().expect("connected")
    }

    /// The next line; in dispatch mode it serves until that comes.
    fn hear(&self, link: &mut Link) -> Option<String> {
        while self.client.is_some() && !link.has_line() {
            self.serve();
        }
        link.hear()
    }

    fn serve(&self) {
        match self.client().event_fd() {
            Ok(_) => drop(self.client().dispatch(Duration::from_millis(2))),
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }

    fn act(
        &mut self,
        words: &mut SplitAsciiWhitespace<'_>,
        link: &mut Link,
    ) -> Result<String, Error> {
        match words.next().expect("a verb") {
            "connect" => {
                let path = words.next().expect("a path");
                let builder = Client::builder().socket(path).name("rank").own_fds(2);
                let client = builder.dispatch(words.next() == Some("dispatch")).connect()?;
                self.cache = Some(ImportCache::new(&client, CacheSettings::default()));
                self.incarnation = client.incarnation();
                self.client = Some(client);
            }
            "share" => return self.share(number(words), number(words)),
            "hold" => {
                for handle in from_words(words) {
                    self.grants.push(self.client().acquire(&handle, patience())?);
                }
            }
            "map" => {
                for handle in from_words(words) {
                    let grant = self.client().acquire(&handle, patience())?;
                    self.imports.push(grant.import(Access::Read, 0)?);
                }
            }
            "storm" => return Ok(self.storm(number(words), &from_words(words), link)),
            "check" => return self.check(number(words), &from_words(words)),
            // The next broker, all told.
            "await" => {
                eventually("another broker", || {
                    self.serve();
                    self.client().is_connected() && self.client().incarnation() != self.incarnation
                });
                self.incarnation = self.client().incarnation();
            }
            // Open and mapped leases, and how many of all are current.
            "count" => {
                let cached = self.cache.as_ref().expect("connected").stats().entries as usize;
                let open = self.grants.iter().filter(|one| one.lease.is_current()).count();
                let current = self.imports.iter().filter(|one| one.is_current()).count();
                let mapped = self.imports.len() + cached;
                return Ok(format!("{} {mapped} {}", self.grants.len(), open + current));
            }
            "drop" => {
                self.grants.clear();
                self.imports.clear();
                self.cache.as_ref().expect("connected").empty();
                self.buffers.clear();
                self.arena = None;
            }
            "fds" => return Ok(open_fds().to_string()),
            verb => panic!("no such verb: {verb}"),
        }
        Ok("OK".into())
    }

    /// `count` buffers of an arena, of which buffer `i` gets the bytes `pattern(seed + i)`.
    fn share(&mut self, count: u64, seed: u64) -> Result<String, Error> {
        let bytes = usize::try_from(count).expect("few") * BLOCK_BYTES;
        let arena = Arena::new(self.client(), host_memory(), bytes)?;
        for index in 0..count {
            let buffer = arena.alloc(BLOCK_BYTES)?;
            buffer.write_at(0, &pattern(seed + index))?;
            self.buffers.push(buffer);
        }
        let handles = arena.register(&self.buffers, patience())?;
        self.arena = Some(arena);
        Ok(to_line(&handles.into_iter().collect::<Result<Vec<_>, _>>()?))
    }

    /// Until the next line comes: imports one after the other, by the cache and past it, and
    /// compares every byte. Says `going` when the first has gone well, and at the end what failed
    /// otherwise than for want of a broker.
    fn storm(&mut self, seed: u64, handles: &[Handle], link: &mut Link) -> String {
        let mut failures = BTreeSet::new();
        let mut going = false;
        let mut places = (0..handles.len()).cycle();
        while !link.has_line() {
            let place = places.next().expect("a cycle");
            match self.look(seed + place as u64, &handles[place], place % 2 == 0) {
                Ok(true) if going => {}
                Ok(true) => {
                    link.say("going");
                    going = true;
                }
                Ok(false) => drop(failures.insert("OTHER_BYTES".to_owned())),
                Err(error) if error.code == ErrorCode::NotConnected => self.serve(),
                Err(error) => drop(failures.insert(error.code.name().to_owned())),
            }
        }
        if failures.is_empty() {
            "OK".into()
        } else {
            failures.into_iter().collect::<Vec<_>>().join(" ")
        }
    }

    fn look(&self, seed: u64, handle: &Handle, cached: bool) -> Result<bool, Error> {
        let mut bytes = vec![0; BLOCK_BYTES];
        if cached {
            let cache = self.cache.as_ref().expect("connected");
            cache.import(handle, Access::Read, patience())?.read_at(0, &mut bytes)?;
        } else {
            let grant = self.client().acquire(handle, patience())?;
            grant.import(Access::Read, 0)?.read_at(0, &mut bytes)?;
        }
        Ok(bytes == pattern(seed))
    }

    fn check(&mut self, seed: u64, handles: &[Handle]) -> Result<String, Error> {
        for (seed, handle) in (seed..).zip(handles) {
            for cached in [false, true] {
                if !self.look(seed, handle, cached)? {
                    return Ok(format!("block {seed} has other bytes"));
                }
            }
        }
        Ok("OK".into())
    }
}

fn number(words: &mut SplitAsciiWhitespace<'_>) -> u64 {
    words.next().and_then(|word| word.parse().ok()).expect("a number")
}

fn open_fds() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("/proc").count()
}

fn start_rank(socket: &Path, mode: &str) -> Peer {
    let mut rank = Peer::start("comeback");
    assert_eq!(rank.ask(&format!("connect {} {mode}", socket.display())), "OK");
    rank
}

/// Says one line to all, then hears all.
#[track_caller]
fn ask_all(ranks: &mut [Peer], line: impl Fn(usize) -> String) -> Vec<String> {
    ranks.iter_mut().enumerate().for_each(|(index, rank)| rank.link.say(&line(index)));
    ranks.iter_mut().map(Peer::hear).collect()
}

#[track_caller]
fn all_ok(ranks: &mut [Peer], line: impl Fn(usize) -> String) {
    let answers = ask_all(ranks, line);
    assert!(answers.iter().all(|answer| answer == "OK"), "{answers:?}");
}

/// Leases on the ledger, open and mapped, come to be what the ranks hold, all of them current.
#[track_caller]
fn assert_leases_are_exact(broker: &Broker, ranks: &mut [Peer]) {
    eventually_ok("the ledger has what the ranks hold", || {
        let mut held = [0; 3];
        for answer in ask_all(ranks, |_| "count".into()) {
            let numbers = answer.split(' ').map(|word| word.parse::<u64>().expect("a number"));
            held.iter_mut().zip(numbers).for_each(|(sum, number)| *sum += number);
        }
        let status = broker.status();
        let ledger = [status.uses.open_leases.now.get(), status.uses.mapped_leases.now.get()];
        if ledger == held[..2] {
            Ok(())
        } else {
            Err(format!("{ledger:?} on the ledger, {held:?} held"))
        }
    });
}

/// On a busy machine a rank may answer a recall late; it is not silent for that.
const PATIENT: &str = "[limits]\nrecall_timeout_ms = 600000";

/// Kills and restarts the daemon under ranks that import from each other all the time.
fn storm_over_crashes(setup: Setup, mode: &str, crashes: usize) {
    const RANKS: usize = 3;
    const BLOCKS: usize = 24;
    let mut broker = setup.start();
    let mut ranks: Vec<Peer> = (0..RANKS).map(|_| start_rank(&broker.socket(), mode)).collect();
    let fds_before = ask_all(&mut ranks, |_| "fds".into());
    let shared = ask_all(&mut ranks, |rank| format!("share {BLOCKS} {}", rank * BLOCKS));
    let all = shared.join(" ");
    let next = |rank: usize| &shared[(rank + 1) % RANKS];
    let few = |rank: usize| next(rank).split(' ').take(5).collect::<Vec<_>>().join(" ");
    all_ok(&mut ranks, |rank| format!("hold {}", few(rank)));
    all_ok(&mut ranks, |rank| format!("map {}", few(rank)));

    for _ in 0..crashes {
        let under_way = ask_all(&mut ranks, |_| format!("storm 0 {all}"));
        assert!(under_way.iter().all(|answer| answer == "going"), "{under_way:?}");
        std::thread::sleep(Duration::from_millis(30));
        broker.kill();
        broker.restart();
        std::thread::sleep(Duration::from_millis(30));
        let stormed = ask_all(&mut ranks, |_| "await".into());
        // Each has answered its storm first.
        assert!(stormed.iter().all(|answer| answer == "OK"), "{stormed:?}");
        let awaited: Vec<String> = ranks.iter_mut().map(Peer::hear).collect();
        assert!(awaited.iter().all(|answer| answer == "OK"), "{awaited:?}");
        all_ok(&mut ranks, |_| format!("check 0 {all}"));
        assert_leases_are_exact(&broker, &mut ranks);
        let counts = ask_all(&mut ranks, |_| "count".into());
        assert!(counts.iter().all(|count| count.ends_with(" 10")), "not all current: {counts:?}");
    }
    all_ok(&mut ranks, |_| "drop".into());
    // An owner may be asked for an fd at this moment.
    eventually_ok("the ranks' fds are those of the start", || {
        match ask_all(&mut ranks, |_| "fds".into()) {
            now if now == fds_before => Ok(()),
            now => Err(format!("{now:?}, not {fds_before:?}")),
        }
    });
    drop(ranks);
    broker.assert_nothing_left();
}

#[test]
fn ranks_when_the_broker_is_killed_under_load_again_and_again_then_all_handles_go_on() {
    storm_over_crashes(Setup::new().config(PATIENT), "", 4);
}

#[test]
fn ranks_when_they_dispatch_and_recall_from_each_other_over_crashes_then_none_hangs() {
    // Far fewer fds than blocks: nearly every import is a recall, from a rank that is importing
    // itself.
    let tight = Setup::new().config(&format!("{PATIENT}\n[caps.node]\nheld_fds = 8"));
    storm_over_crashes(tight, "dispatch", 3);
}

#[test]
fn ranks_when_the_broker_is_killed_while_they_come_back_then_the_next_one_hears_of_all() {
    let mut broker = Broker::start();
    let mut ranks: Vec<Peer> = (0..2).map(|_| start_rank(&broker.socket(), "")).collect();
    let shared = ask_all(&mut ranks, |rank| format!("share 600 {}", rank * 600));
    let all = shared.join(" ");
    for turn in 0..12 {
        broker.kill();
        broker.restart();
        // Sooner or later in the course of hello, re-deposit and declare.
        std::thread::sleep(Duration::from_millis(turn * 3));
    }
    broker.kill();
    broker.restart();
    let status =
        || (broker.status().uses.allocations.now.get(), broker.status().uses.connections.now.get());
    eventually("all are named again", || status() == (1200, 2));
    eventually("they are connected for good", || {
        ask_all(&mut ranks, |_| format!("check 0 {all}")).iter().all(|answer| answer == "OK")
    });
    assert_leases_are_exact(&broker, &mut ranks);
    drop(ranks);
    broker.assert_nothing_left();
}

/// A short grace: what nobody names again ends soon, and what a client names again on a loaded
/// machine does not.
pub fn short_grace() -> Setup {
    Setup::new().config("[limits]\ngrace_ms = 3000")
}

/// A grace that no test waits for.
pub fn long_grace() -> Setup {
    Setup::new().config("[limits]\ngrace_ms = 600000")
}

fn until_back(told: &Notices) {
    told.until("reconnected", |notice| matches!(notice, Notice::Reconnected { .. }).then_some(()));
}

fn until_lost(told: &Notices) {
    told.until("disconnected", |notice| matches!(notice, Notice::Disconnected).then_some(()));
}

#[track_caller]
fn assert_lost(client: &Client, handle: &Handle) {
    let error = client.acquire(handle, patience()).expect_err("a grant of what has ended");
    assert_eq!(error.code, ErrorCode::Lost, "{error}");
}

#[test]
fn handles_when_of_memory_that_cannot_be_exported_again_then_lost_and_the_owner_is_told() {
    let mut broker = short_grace().start();
    let mut owner = Owner::of(&broker, "owner", 2);
    owner.register(1..2, |mut deposit| {
        (deposit.recallable, deposit.base, deposit.facts.owner_allocation_id) = (false, 0, 77);
        deposit
    });
    let (consumer_told, on_notice) = notices();
    let consumer = broker.builder("consumer").on_notice(on_notice).connect().expect("connect");
    let imports: Vec<Import> = owner
        .handles()
        .iter()
        .zip([0, 1, 1])
        .map(|(handle, seed)| {
            assert_bytes(consumer.acquire(handle, patience()).expect("held"), seed)
        })
        .collect();
    broker.kill();
    until_lost(&owner.notices);
    broker.restart();
    let lost = owner.notices.until("the loss", |notice| match notice {
        Notice::RegistrationLost { id, owner_allocation_id, code, .. } => {
            Some((id, owner_allocation_id, code))
        }
        Notice::Reconnected { .. } => panic!("told too late"),
        _ => None,
    });
    assert_eq!(lost, (owner.id(2), 77, ErrorCode::Lost));
    until_back(&owner.notices);
    assert_eq!(consumer_told.until_revoked(owner.id(2)), ErrorCode::Lost);
    until_back(&consumer_told);
    assert_lost(&consumer, &owner.handle(2));
    assert!(imports[0].is_current() && imports[1].is_current() && !imports[2].is_current());
    for index in 0..2 {
        let grant = consumer.acquire(&owner.handle(index), patience()).expect("recalled");
        drop(assert_bytes(grant, index as u64));
    }
    assert_import(&imports[2], 1);
    drop((imports, consumer, owner));
    broker.assert_nothing_left();
}

#[test]
fn handles_when_ended_or_replaced_while_there_was_no_broker_then_they_never_resolve_again() {
    // They end when their owner is back, long before the grace time does.
    let mut broker = long_grace().start();
    let owner = Owner::of(&broker, "owner", 2);
    let exports = Exports::new(&owner.client);
    let third = owner.blocks.deposit(0);
    let third = third.facts(third.facts.device(7));
    let replaced =
        exports.register(&third, || Ok(owner.blocks.export(0)), patience()).expect("new");
    let arena = Arena::new(&owner.client, host_memory(), 4 * BLOCK_BYTES).expect("an arena");
    let freed = arena.alloc(BLOCK_BYTES).expect("room");
    freed.write_at(0, &pattern(50)).expect("in bounds");
    let of_freed = freed.register(patience()).expect("registered");
    let consumer = broker.client("consumer");
    let mapped = assert_bytes(consumer.acquire(&of_freed, patience()).expect("held"), 50);
    let (ended, stays) = (owner.handle(0), owner.handle(1));
    let before = consumer.incarnation();
    broker.kill();
    until_lost(&owner.notices);

    // Unregistered, replaced by other memory at the same address, freed and another buffer taken.
    assert!(!owner.client.unregister(&owner.registrations[0]).expect("it ends all the same").0);
    let other = third.facts(third.facts.owner_allocation_id(99));
    let error = exports.register(&other, || Ok(owner.blocks.export(1)), patience());
    assert_eq!(error.expect_err("there is no broker").code, ErrorCode::NotConnected);
    drop(freed);
    let taken: Vec<HostBuffer> = (0..3).map(|_| arena.alloc(BLOCK_BYTES).expect("room")).collect();
    assert!(arena.alloc(BLOCK_BYTES).is_err(), "a range that a consumer has mapped is used again");
    assert_eq!(arena.orphaned_bytes(), BLOCK_BYTES);
    taken.iter().for_each(|one| one.write_at(0, &pattern(60)).expect("in bounds"));
    broker.restart();
    until_back(&owner.notices);
    eventually("the consumer is back", || {
        consumer.is_connected() && consumer.incarnation() != before
    });
    assert!(!mapped.is_current());

    let new = exports.register(&other, || Ok(owner.blocks.export(1)), patience()).expect("anew");
    let new_ids: Vec<AllocationId> =
        taken.iter().map(|one| one.register(patience()).expect("registered").id()).collect();
    for old in [ended, replaced, of_freed] {
        let error = consumer.acquire(&old, patience()).expect_err("a grant of what has ended");
        assert_eq!(error.code, ErrorCode::Stale, "{error}");
        assert!(!new_ids.contains(&old.id()) && new.id() != old.id());
    }
    drop(assert_bytes(consumer.acquire(&stays, patience()).expect("recalled"), 1));
    assert!(!mapped.is_current());
    assert_import(&mapped, 50);
    drop((mapped, taken, arena, exports, consumer, owner));
    // Holders could still declare leases of the one that was replaced.
    eventually("nothing else is left", || {
        let uses = broker.status().uses;
        (uses.connections.now.get(), uses.fds.now.get()) == (0, 0)
    });
}

#[test]
fn redeposit_when_the_handle_is_stolen_then_not_permitted_and_the_owner_still_comes_back() {
    let mut broker = Broker::start();
    let owner = Owner::of(&broker, "owner", 2);
    let stolen = owner.handle(0);
    let tokens = [[0; 16], owner.registrations[1].owner_token()];
    broker.kill();
    until_lost(&owner.notices);
    broker.restart();
    let mut thief = Raw::connect(&broker.socket());
    for token in tokens {
        let item = deposit_item(&owner);
        let item = RedepositItem { item, handle: stolen.into(), token };
        let head = RegisterHead { credits_wanted: 0.into(), deadline_ms: 0.into() };
        let answer =
            thief.request(Kind::Redeposit, |writer| writer.push(&head).push(&item), 1, &[]);
        let message = answer.message();
        let (_, items) =
            message.head_and_items::<RegisterReplyHead, Registered>().expect("a register reply");
        assert_eq!(items[0].status.get().result(), Err(ErrorCode::NotPermitted));
    }
    until_back(&owner.notices);
    let consumer = broker.client("consumer");
    drop(assert_bytes(consumer.acquire(&stolen, patience()).expect("its owner's"), 0));
    drop((thief, consumer, owner));
    broker.assert_nothing_left();
}

/// What the owner says of its first block.
fn deposit_item(owner: &Owner) -> fdbroker_protocol::message::RegisterItem {
    let deposit = owner.blocks.deposit(0);
    fdbroker_protocol::message::RegisterItem {
        facts: Facts::new(deposit.facts.kind, deposit.facts.size_bytes)
            .device(deposit.facts.device)
            .fd_offset(deposit.facts.fd_offset)
            .owner_allocation_id(deposit.facts.owner_allocation_id)
            .into(),
        flags: fdbroker_protocol::message::register_flags::RECALLABLE,
        share: deposit.share as u8,
        driver_data_len: 0,
        base: deposit.base.into(),
        driver_data: [0; 64],
    }
}

#[test]
fn cache_when_hit_pinned_and_evicted_over_crashes_then_every_byte_is_right_and_leases_are_exact() {
    const BLOCKS: usize = 32;
    let mut broker = Broker::start();
    let owner = Owner::of(&broker, "owner", BLOCKS);
    let handles = owner.handles();
    let client = broker.client("consumer");
    let settings = CacheSettings::default().max_entries(BLOCKS / 2);
    let cache = ImportCache::new(&client, settings);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (cache, handles, stop) = (&cache, &handles, &stop);
            scope.spawn(move || {
                let mut held = Vec::new();
                for round in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    let block = (thread * 7 + round * 5) % BLOCKS;
                    match cache.import(&handles[block], Access::Read, patience()) {
                        Ok(import) => {
                            let mut bytes = vec![0; BLOCK_BYTES];
                            import.read_at(0, &mut bytes).expect("in bounds");
                            assert!(bytes == pattern(block as u64), "block {block}");
                            held.push(import);
                        }
                        Err(error) => assert_eq!(error.code, ErrorCode::NotConnected, "{error}"),
                    }
                    if held.len() > 8 {
                        held.drain(..5);
                    }
                }
            });
        }
        for _ in 0..5 {
            std::thread::sleep(Duration::from_millis(40));
            let before = client.incarnation();
            broker.kill();
            broker.restart();
            eventually("it is back", || client.is_connected() && client.incarnation() != before);
        }
        stop.store(true, Ordering::Relaxed);
    });
    eventually_ok("as many leases as entries", || {
        let (status, entries) = (broker.status(), cache.stats().entries);
        let leases = (status.uses.mapped_leases.now.get(), status.uses.open_leases.now.get());
        if leases == (entries, 0) { Ok(()) } else { Err(format!("{leases:?} for {entries}")) }
    });
    // What is there is a hit, without a word to the broker.
    let granted = broker.status().uses.mapped_leases.now.get();
    let hits = handles.iter().filter(|handle| cache.hit(handle, Access::Read).is_some()).count();
    assert_eq!(hits as u64, granted);
    drop((cache, client, owner));
    broker.assert_nothing_left();
}

#[test]
fn ranges_when_freed_in_an_outage_then_used_again_after_the_grace_time_and_the_last_release() {
    // Long enough for a consumer on a loaded machine: one that is late loses its leases, and the
    // range is used again.
    let mut broker = Setup::new().config("[limits]\ngrace_ms = 8000").start();
    let owner = broker.builder("owner").own_fds(2).connect().expect("connect");
    let consumer = broker.client("consumer");
    let arena = Arena::new(&owner, host_memory(), 3 * BLOCK_BYTES).expect("an arena");
    let buffers: Vec<HostBuffer> =
        (0..3).map(|_| arena.alloc(BLOCK_BYTES).expect("room")).collect();
    buffers.iter().for_each(|one| one.write_at(0, &pattern(50)).expect("in bounds"));
    let handles: Vec<_> =
        buffers.iter().map(|one| one.register(patience()).expect("registered")).collect();
    let mapped = [0, 2]
        .map(|at| assert_bytes(consumer.acquire(&handles[at], patience()).expect("held"), 50));
    let [freed, leased] = mapped;
    let mut buffers = buffers.into_iter();
    let (first, second, third) = (buffers.next(), buffers.next(), buffers.next());
    // One is freed and leased when the broker dies, the others are freed while there is none.
    drop(third);
    let both_are_there = || owner.is_connected() && consumer.is_connected();
    broker.kill();
    eventually("the loss", || !owner.is_connected());
    drop((first, second));
    eventually("the orphans", || arena.orphaned_bytes() == 3 * BLOCK_BYTES);
    broker.restart();
    eventually("both are back", both_are_there);
    // And once more within the grace time.
    broker.kill();
    eventually("the second loss", || !owner.is_connected() && !consumer.is_connected());
    broker.restart();
    eventually("both are back again", both_are_there);
    eventually("they are taken over", || arena.orphaned_bytes() == 0);
    assert!(arena.held_back_bytes() >= 2 * BLOCK_BYTES);
    for handle in &handles {
        let error = consumer.acquire(handle, patience()).expect_err("it is freed");
        assert_eq!(error.code, ErrorCode::Stale, "{error}");
    }
    // What nobody has mapped comes back when the grace time is over, the rest does not.
    eventually("the grace time is over", || arena.free_bytes() == BLOCK_BYTES);
    let other = arena.alloc(BLOCK_BYTES).expect("room");
    other.write_at(0, &pattern(60)).expect("in bounds");
    assert!(arena.alloc(BLOCK_BYTES).is_err());
    for (import, left) in [(leased, BLOCK_BYTES), (freed, 0)] {
        assert!(!import.is_current());
        let mut bytes = vec![0; BLOCK_BYTES];
        import.read_at(0, &mut bytes).expect("in bounds");
        assert_eq!(bytes, pattern(50), "a range in use is used again");
        drop(import);
        eventually("its drain", || arena.held_back_bytes() == left);
    }
    drop(other);
    drop(arena.alloc(3 * BLOCK_BYTES).expect("the whole arena"));
}

/// Every call says what the broker says to the library, which tries again and again.
#[test]
fn call_when_the_next_broker_does_not_let_the_client_in_then_its_refusal_is_said() {
    let mut broker = Broker::start();
    let client = broker.builder("client").own_fds(64).connect().expect("there is room");
    let objects = client.objects();
    let said = || objects.stat("name", patience()).expect_err("no such name").to_string();
    broker.kill();
    broker.restart_with(&["--set", "caps.client.fds=8"]);
    eventually("the refusal is said", || {
        said().contains("more own fds than the client cap fds allows, 8")
    });
    let text = said();
    assert!(text.contains("NOT_CONNECTED") && text.contains("NO_QUOTA"), "{text}");
    broker.kill();
    eventually("no broker refuses any more", || !said().contains("NO_QUOTA"));
    broker.restart_with(&[]);
    eventually("it is let in", || said().contains("NOT_FOUND"));
}
