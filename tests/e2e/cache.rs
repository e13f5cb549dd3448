//! The import cache with the real daemon: threads, reused addresses, dying owners, the ledger, few
//! fds.

use crate::common::not_run;
use crate::support::broker::{Broker, Setup, why_not_fds};
use crate::support::memory::{BLOCK_BYTES, host_memory, pattern};
use crate::support::owner::Owner;
use crate::support::peer::{Link, Peer};
use crate::support::rank::rank;
use crate::support::wait::{PATIENCE, eventually, eventually_ok, patience};
use fdbroker_client::{
    Access, CacheSettings, CachedImport, Client, Handle, HostMemory, ImportCache,
};
use fdbroker_protocol::ErrorCode;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use std::collections::VecDeque;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

fn at_most(max_entries: usize) -> CacheSettings {
    CacheSettings::default().max_entries(max_entries)
}

fn bytes_of(import: &CachedImport<'_>) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK_BYTES];
    import.read_at(0, &mut bytes).expect("in bounds");
    bytes
}

#[track_caller]
fn assert_block(import: &CachedImport<'_>, seed: u64) {
    assert!(bytes_of(import) == pattern(seed), "not the bytes of block {seed}");
}

/// The broker's ledger comes to have a mapped lease for each entry, and no other.
#[track_caller]
fn assert_ledger_matches(broker: &Broker, cache: &ImportCache) {
    eventually_ok("as many leases as entries", || {
        let (status, entries) = (broker.status(), cache.stats().entries);
        let leases = (status.uses.mapped_leases.now.get(), status.uses.open_leases.now.get());
        if leases == (entries, 0) { Ok(()) } else { Err(format!("{leases:?} for {entries}")) }
    });
}

#[test]
fn import_when_a_cache_of_one_and_64_threads_then_each_sees_its_own_bytes() {
    const ROUNDS: usize = 20;
    let broker = Broker::start();
    let owner = Owner::of(&broker, "owner", 16);
    let handles = owner.handles();
    let client = broker.client("consumer");
    let cache = ImportCache::new(&client, at_most(1));
    std::thread::scope(|scope| {
        for thread in 0..64 {
            let (cache, handles) = (&cache, &handles);
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let block = (thread + round * 7) % 16;
                    let import = cache.import(&handles[block], Access::Read, patience());
                    assert_block(&import.expect("it lives"), block as u64);
                }
            });
        }
    });
    let stats = cache.stats();
    assert_eq!((stats.entries, stats.pinned), (1, 0));
    assert_eq!(stats.hits + stats.misses, 64 * ROUNDS as u64);
    assert_ledger_matches(&broker, &cache);
    drop((cache, client, owner));
    broker.assert_nothing_left();
}

/// What an owner has in one of its blocks at the moment.
type Published = Mutex<Vec<(Handle, u64)>>;

/// Ends the allocation in a block, fills the same memory for another, registers that at the same
/// address.
fn reallocate(owner: &mut Owner, index: usize, seed: u64) -> Handle {
    owner.client.unregister(owner.registrations[index].clone()).expect("its own");
    owner.blocks.fill(index, seed);
    owner.register(index..index + 1, |mut deposit| {
        deposit.facts.owner_allocation_id = seed;
        deposit
    });
    owner.registrations.swap_remove(index);
    owner.handle(index)
}

/// Imports what is published, keeps some for a while, and compares what is current with what was
/// published.
fn read_on(cache: &ImportCache, published: &Published, is_over: &AtomicBool, seen: &AtomicU64) {
    let mut kept = VecDeque::new();
    let mut turn = 0;
    while !is_over.load(Ordering::Relaxed) {
        turn += 1;
        let (handle, seed) = {
            let published = published.lock().expect("no panic");
            published[turn * 7 % published.len()]
        };
        match cache.import(&handle, Access::Read, patience()) {
            Ok(import) => kept.push_back((import, seed)),
            Err(error) => assert_eq!(error.code, ErrorCode::Stale, "{error}"),
        }
        for (import, seed) in &kept {
            let bytes = bytes_of(import);
            // Asked after the bytes were read: the owner ends an allocation before it writes the
            // next.
            if import.is_current() {
                assert!(bytes == pattern(*seed), "current, and not the bytes of {seed}");
                seen.fetch_add(1, Ordering::Relaxed);
            }
        }
        if kept.len() > turn % 3 {
            kept.pop_front();
        }
    }
}

#[test]
fn import_when_the_owner_frees_and_reallocates_the_same_address_then_never_old_bytes() {
    const BLOCKS: usize = 4;
    const TIME: Duration = Duration::from_secs(3);
    let broker = Broker::start();
    let mut owner = Owner::of(&broker, "owner", BLOCKS);
    let client = broker.client("consumer");
    // Smaller than what is published, so that it evicts all the time.
    let cache = ImportCache::new(&client, at_most(2));
    let published: Published =
        Mutex::new((0..BLOCKS).map(|index| (owner.handle(index), index as u64)).collect());
    let (is_over, seen) = (AtomicBool::new(false), AtomicU64::new(0));
    let (mut seed, mut enough) = (1000, false);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| read_on(&cache, &published, &is_over, &seen));
        }
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                cache.empty();
                std::thread::yield_now();
            }
        });
        let since = Instant::now();
        while since.elapsed() < TIME || !enough && since.elapsed() < PATIENCE {
            seed += 1;
            let index = seed as usize % BLOCKS;
            let handle = reallocate(&mut owner, index, seed);
            published.lock().expect("no panic")[index] = (handle, seed);
            let stats = cache.stats();
            enough = seed > 1010 && stats.hits > 0 && stats.misses > 0;
            enough &= seen.load(Ordering::Relaxed) > 0;
        }
        is_over.store(true, Ordering::Relaxed);
    });
    let stats = cache.stats();
    assert!(enough, "nothing happened: {stats}");
    assert_eq!(stats.pinned, 0);
    assert!(stats.entries <= 2, "{stats}");
    assert_ledger_matches(&broker, &cache);
    drop((cache, client, owner));
    broker.assert_nothing_left();
}

#[test]
fn evict_when_over_the_limit_then_the_ledger_has_the_entries_and_nothing_else() {
    let broker = Broker::start();
    let owner = Owner::of(&broker, "owner", 10);
    let client = broker.client("consumer");
    let cache = ImportCache::new(&client, at_most(3));
    for block in 0..10 {
        drop(cache.import(&owner.handle(block), Access::Read, patience()).expect("it lives"));
    }
    assert_ledger_matches(&broker, &cache);
    let is_cached = |block: &usize| cache.hit(&owner.handle(*block), Access::Read).is_some();
    let cached: Vec<u32> = (0..10).filter(is_cached).map(|block| owner.id(block).slot).collect();
    let mut leased: Vec<u32> =
        broker.admin().leases().iter().map(|lease| lease.slot.get()).collect();
    leased.sort_unstable();
    assert_eq!((leased, cached.len()), (cached, 3));
    assert_eq!(cache.stats().evicted, 7);
    assert_eq!(broker.status().uses.allocations.now.get(), 10, "an eviction here ends nothing");
    assert_eq!(cache.empty(), 3);
    assert_ledger_matches(&broker, &cache);
}

#[test]
fn suspend_when_one_is_in_use_then_the_rest_is_closed_and_resume_names_what_has_ended() {
    let broker = Broker::start();
    let owner = Owner::of(&broker, "owner", 10);
    let handles = owner.handles();
    let client = broker.client("consumer");
    let cache = ImportCache::new(&client, CacheSettings::default());
    for handle in &handles {
        drop(cache.import(handle, Access::Read, patience()).expect("it lives"));
    }
    let used = cache.import(&handles[3], Access::Read, patience()).expect("it lives");
    let in_use = cache.suspend(patience()).expect("nobody imports");
    assert_eq!(in_use.iter().map(Handle::id).collect::<Vec<_>>(), [handles[3].id()]);
    assert_eq!(cache.stats().entries, 1);
    assert_ledger_matches(&broker, &cache);
    let refused = cache.import(&handles[4], Access::Read, patience()).expect_err("suspended");
    assert_eq!(refused.code, ErrorCode::Again, "{refused}");
    assert_block(&used, 3);
    drop(used);
    assert_eq!(cache.suspend(patience()), Ok(Vec::new()));
    assert_ledger_matches(&broker, &cache);

    owner.client.unregister(owner.registrations[9].clone()).expect("its own");
    let ended = cache.resume(patience()).expect("there is a broker");
    let named: Vec<_> = ended.iter().map(|(handle, error)| (handle.id(), error.code)).collect();
    assert_eq!(named, [(handles[9].id(), ErrorCode::Stale)]);
    assert!(handles[..9].iter().all(|handle| cache.hit(handle, Access::Read).is_some()));
    assert_ledger_matches(&broker, &cache);
}

#[test]
fn import_when_the_owner_dies_while_mapped_then_readable_and_refused_anew() {
    let broker = Broker::start();
    let mut owner = rank(&broker.socket());
    let handles = owner.share(2, 40);
    let client = broker.client("consumer");
    let cache = ImportCache::new(&client, CacheSettings::default());
    let used = cache.import(&handles[0], Access::Read, patience()).expect("it lives");
    drop(cache.import(&handles[1], Access::Read, patience()).expect("it lives"));
    owner.kill();
    eventually("the broker has seen it", || !used.is_current());
    assert_block(&used, 40);
    for handle in &handles {
        let error = cache.import(handle, Access::Read, patience()).expect_err("its owner is gone");
        let codes = [ErrorCode::OwnerGone, ErrorCode::Stale];
        assert!(codes.contains(&error.code), "{error}");
    }
    assert_block(&used, 40);
    assert_eq!(cache.stats().entries, 1);
    assert_ledger_matches(&broker, &cache);
    drop(used);
    assert_ledger_matches(&broker, &cache);
    drop((cache, client, owner));
    broker.assert_nothing_left();
}

#[test]
fn import_when_the_client_is_at_its_caps_then_what_is_unused_makes_room() {
    let caps = "[caps.client]\nmapped_leases = 3\nopen_leases = 2";
    let broker = Setup::new().config(caps).start();
    let owner = Owner::of(&broker, "owner", 12);
    let client = broker.client("consumer");
    let cache = ImportCache::new(&client, CacheSettings::default());
    let used = cache.import(&owner.handle(0), Access::Read, patience()).expect("it lives");
    for block in 1..12 {
        let import = cache.import(&owner.handle(block), Access::Read, patience());
        assert_block(&import.expect("room is made for it"), block as u64);
    }
    assert_block(&used, 0);
    let stats = cache.stats();
    assert!(stats.entries <= 5, "more than the caps allow: {stats}");
    drop(used);
    drop((cache, client, owner));
    broker.assert_nothing_left();
}

/// The part of a process with its own fd table: does what it is told, and says how many fds it had
/// open.
pub fn play_importing(mut link: Link) {
    let mut importing: Option<(Client, ImportCache)> = None;
    while let Some(line) = link.hear() {
        let words: Vec<&str> = line.split(' ').collect();
        let answer = match words[..] {
            ["limit", count] => {
                let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("getrlimit");
                let soft = count.parse().expect("a number");
                setrlimit(Resource::RLIMIT_NOFILE, soft, hard).expect("setrlimit");
                "OK".to_owned()
            }
            ["connect", path] => {
                let client = Client::builder().socket(path).name("importing").reconnect(false);
                let client = client.connect().expect("connect");
                let cache = ImportCache::new(&client, CacheSettings::default());
                importing = Some((client, cache));
                "OK".to_owned()
            }
            ["import", path] => {
                let (_, cache) = importing.as_ref().expect("connected");
                import_all(cache, Path::new(path))
            }
            _ => panic!("no such line: {line}"),
        };
        link.say(&answer);
    }
}

fn open_fds() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("/proc").count()
}

/// Imports the handles in a file, twice; says how many had the right bytes, and how many more fds
/// are open than before.
fn import_all(cache: &ImportCache, path: &Path) -> String {
    let bytes = std::fs::read(path).expect("read the handles");
    let handles: Vec<Handle> =
        bytes.chunks(64).map(|chunk| Handle::from_slice(chunk).expect("64 bytes")).collect();
    let before = open_fds();
    let mut right = 0;
    for _ in 0..2 {
        let imports = cache.import_many(&handles, Access::Read, patience()).expect("connected");
        for (import, seed) in imports.iter().zip(0..) {
            match import {
                Ok(import) => right += usize::from(bytes_of(import) == pattern(seed)),
                Err(error) => return error.to_string(),
            }
        }
    }
    let stats = cache.stats();
    let more = open_fds() as isize - before as isize;
    format!("{right} right, {} hits, {} entries, {more} fds", stats.hits, stats.entries)
}

/// A process that imports all `count` blocks of an owner, with at most `limit` fds; what it says.
fn assert_imported_elsewhere(count: usize, limit: u64, expected: &str) {
    let broker = Broker::start();
    let mut peer = Peer::start("importing");
    assert_eq!(peer.ask(&format!("limit {limit}")), "OK");
    // Before the blocks: where the daemon may have 1,024 fds, they fill its table, and who comes
    // then is refused.
    assert_eq!(peer.ask(&format!("connect {}", broker.socket().display())), "OK");
    let owner = Owner::of(&broker, "owner", count);
    let path = broker.dir().join("handles");
    let bytes: Vec<u8> = owner.handles().iter().flat_map(|handle| handle.to_bytes()).collect();
    std::fs::write(&path, bytes).expect("write the handles");

    assert_eq!(peer.ask(&format!("import {}", path.display())), expected);

    eventually("all its leases are mapped", || {
        let status = broker.status();
        (status.uses.mapped_leases.now.get(), status.uses.open_leases.now.get())
            == (count as u64, 0)
    });
    drop((peer, owner));
    broker.assert_nothing_left();
}

#[test]
fn import_many_when_32_fds_are_allowed_then_all_300_are_imported() {
    assert_imported_elsewhere(300, 32, "600 right, 300 hits, 300 entries, 0 fds");
}

#[test]
fn import_many_when_thousands_are_imported_then_no_fd_is_held_for_them() {
    if let Some(reason) = why_not_fds(12_000) {
        return not_run(
            "import_many_when_thousands_are_imported_then_no_fd_is_held_for_them",
            &reason,
        );
    }
    match host_memory() {
        HostMemory::Memfd => {
            assert_imported_elsewhere(
                10_000,
                1024,
                "20000 right, 10000 hits, 10000 entries, 0 fds",
            );
        }
        // In the emulated machine 10,000 take a minute, and the helper may be silent no longer.
        _ => {
            assert_imported_elsewhere(2_000, 1024, "4000 right, 2000 hits, 2000 entries, 0 fds");
        }
    }
}
