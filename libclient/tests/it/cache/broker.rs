//! A broker that grants live allocations by itself, and records all messages. All bytes of slot `n`
//! are `n`. Must never grant an allocation that its test has ended.

use crate::support::*;
use fdbroker_client::{
    Access, CacheSettings, CachedImport, Client, ClientBuilder, Error, ErrorCode, Handle,
    ImportCache,
};
use fdbroker_protocol::message::{GrantItem, NO_FD};
use fdbroker_protocol::{AllocationId, Kind, MemoryKind, Status, Writer};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;

/// Bytes of every allocation.
pub const BYTES: usize = 4096;

/// The record of the client's messages.
#[derive(Debug, Default)]
pub struct Log {
    /// The ids of each acquire.
    pub acquires: Vec<Vec<AllocationId>>,
    /// How many ids each acquire had, by the request, unless it was cancelled.
    asked: BTreeMap<u64, u64>,
    /// How many ids the acquires had that were cancelled: a slow answer is not waited for, and the
    /// ids are asked for again.
    pub cancelled: u64,
    /// The leases of each `mapped`.
    pub mapped: Vec<Vec<u64>>,
    /// The leases of each release.
    pub released: Vec<Vec<u64>>,
    /// The allocations of each declare, and whether their fds are open.
    pub declared: Vec<Vec<(AllocationId, bool)>>,
    /// The leases not given back, with their slots.
    pub leases: BTreeMap<u64, AllocationId>,
    /// The number of leases given so far.
    pub next_lease: u64,
}

/// The broker's behaviour, as the test sets it.
#[derive(Debug, Default)]
struct Script {
    log: Log,
    /// Codes to answer for slots instead of a grant.
    refused: BTreeMap<u32, ErrorCode>,
    /// Slots to grant, but to end on the page before the answer is sent.
    ended_at_grant: BTreeSet<u32>,
    /// Answers NO_QUOTA for the slot until the lease is given back.
    awaited: Option<(u32, u64)>,
    /// While true, no acquire is answered.
    holds_answers: bool,
}

/// The broker of this file's head comment.
pub struct Granting {
    pub peer: Arc<Peer>,
    script: Arc<(Mutex<Script>, Condvar)>,
    server: Option<JoinHandle<()>>,
}

/// A broker, its client and a cache.
pub struct Rig {
    pub cache: ImportCache,
    pub client: Client,
    pub granting: Granting,
    pub broker: FakeBroker,
}

pub fn rig(settings: CacheSettings) -> Rig {
    rig_of(Client::builder().reconnect(false), settings)
}

pub fn rig_of(builder: ClientBuilder, settings: CacheSettings) -> Rig {
    let broker = FakeBroker::listen();
    let (client, peer) = broker.client_with(builder, Terms::default());
    let cache = ImportCache::new(&client, settings);
    Rig { cache, client, granting: Granting::start(peer), broker }
}

pub fn unbounded() -> CacheSettings {
    CacheSettings::default()
}

pub fn at_most(max_entries: usize) -> CacheSettings {
    CacheSettings::default().max_entries(max_entries)
}

impl Rig {
    #[track_caller]
    pub fn import(&self, slot: u32) -> CachedImport<'_> {
        self.try_import(slot).unwrap()
    }

    pub fn try_import(&self, slot: u32) -> Result<CachedImport<'_>, Error> {
        self.cache.import(&handle(slot), Access::Read, soon())
    }

    /// Imports and releases, so that the cache keeps it unused.
    #[track_caller]
    pub fn touch(&self, slot: u32) {
        let import = self.import(slot);
        assert_bytes(&import, slot);
    }

    /// Whether the slot is in the cache, without an import.
    pub fn has(&self, slot: u32) -> bool {
        self.cache.hit(&handle(slot), Access::Read).is_some()
    }

    /// The slots that are in the cache.
    pub fn cached(&self, slots: std::ops::Range<u32>) -> Vec<u32> {
        slots.filter(|slot| self.has(*slot)).collect()
    }

    /// Waits until the broker has as many leases as the cache has entries.
    #[track_caller]
    pub fn assert_leases_match(&self) {
        let entries = self.cache.stats().entries as usize;
        eventually(&format!("{entries} leases at the broker"), || {
            self.granting.log(|log| log.leases.len()) == entries
        });
    }
}

#[track_caller]
pub fn assert_bytes(import: &CachedImport<'_>, slot: u32) {
    let mut bytes = vec![0; import.len()];
    import.read_at(0, &mut bytes).unwrap();
    assert!(bytes.iter().all(|byte| *byte == slot as u8), "not the bytes of slot {slot}");
}

impl Granting {
    pub fn start(peer: Peer) -> Self {
        Self::start_at(peer, 0)
    }

    /// The same with a broker that gives other numbers to leases.
    pub fn start_at(peer: Peer, last_lease: u64) -> Self {
        let granting = Self::silent(peer);
        granting.change(|script| script.log.next_lease = last_lease);
        granting.serve()
    }

    /// Makes a broker that does not serve yet.
    pub fn silent(peer: Peer) -> Self {
        let peer = Arc::new(peer);
        let script: Arc<(Mutex<Script>, Condvar)> = Arc::default();
        (1..SLOTS).for_each(|slot| peer.page.set(handle(slot).id()));
        Granting { peer, script, server: None }
    }

    pub fn serve(mut self) -> Self {
        self.server = Some(std::thread::spawn({
            let (peer, script) = (Arc::clone(&self.peer), Arc::clone(&self.script));
            // The thread ends with the connection.
            move || while serve_one(&peer, &script).is_some() {}
        }));
        self
    }

    fn change<T>(&self, change: impl FnOnce(&mut Script) -> T) -> T {
        let changed = change(&mut self.script.0.lock().unwrap());
        self.script.1.notify_all();
        changed
    }

    pub fn log<T>(&self, read: impl FnOnce(&Log) -> T) -> T {
        self.change(|script| read(&script.log))
    }

    pub fn log_mut<T>(&self, change: impl FnOnce(&mut Log) -> T) -> T {
        self.change(|script| change(&mut script.log))
    }

    /// The number of acquires so far.
    pub fn acquires(&self) -> usize {
        self.log(|log| log.acquires.len())
    }

    /// Ends an allocation like the broker, on the page first.
    pub fn end(&self, slot: u32) {
        self.peer.page.end(handle(slot).id());
        self.refuse(slot, ErrorCode::Stale);
    }

    pub fn refuse(&self, slot: u32, code: ErrorCode) {
        self.change(|script| script.refused.insert(slot, code));
    }

    pub fn refuse_no_more(&self, slot: u32) {
        self.change(|script| script.refused.remove(&slot));
    }

    /// Answers NO_QUOTA for the slot until the lease is given back.
    pub fn refuse_until_released(&self, slot: u32, lease: u64) {
        self.change(|script| script.awaited = Some((slot, lease)));
    }

    pub fn end_at_grant(&self, slot: u32) {
        self.change(|script| script.ended_at_grant.insert(slot));
    }

    pub fn hold_answers(&self, holds: bool) {
        self.change(|script| script.holds_answers = holds);
    }

    /// Waits until the broker's ledger is as the test expects.
    #[track_caller]
    pub fn until(&self, what: &str, mut is_so: impl FnMut(&Log) -> bool) {
        eventually(what, || self.log(&mut is_so));
    }

    pub fn hang_up(mut self) {
        nix::sys::socket::shutdown(raw(&self.peer.socket), nix::sys::socket::Shutdown::Both)
            .unwrap();
        nix::sys::socket::shutdown(raw(&self.peer.events), nix::sys::socket::Shutdown::Both)
            .unwrap();
        self.server.take().unwrap().join().unwrap();
    }
}

fn raw(fd: &OwnedFd) -> i32 {
    std::os::fd::AsRawFd::as_raw_fd(fd)
}

fn serve_one(peer: &Peer, script: &(Mutex<Script>, Condvar)) -> Option<()> {
    let request = receive(peer.socket.as_fd(), PATIENCE).ok()?;
    match request.kind {
        Kind::Acquire => {
            let (_, ids) = request.acquire();
            let mut state = script.0.lock().unwrap();
            state.log.acquires.push(ids.clone());
            state.log.asked.insert(request.id, ids.len() as u64);
            let mut state = script.1.wait_while(state, |state| state.holds_answers).unwrap();
            answer(peer, &mut state, request.id, &ids);
        }
        Kind::Mapped => script.0.lock().unwrap().log.mapped.push(request.leases()),
        Kind::Release => {
            let leases = request.leases();
            let log = &mut script.0.lock().unwrap().log;
            for lease in &leases {
                assert!(log.leases.remove(lease).is_some(), "lease {lease} was given back twice");
            }
            log.released.push(leases);
        }
        Kind::Cancel => {
            let log = &mut script.0.lock().unwrap().log;
            log.cancelled += log.asked.remove(&request.id).unwrap_or(0);
        }
        Kind::Declare => {
            let wanted = request.declare();
            let mut state = script.0.lock().unwrap();
            state.log.declared.push(wanted.clone());
            declare(peer, &mut state, request.id, &wanted);
        }
        kind => panic!("unexpected {kind}"),
    }
    Some(())
}

fn answer(peer: &Peer, script: &mut Script, request: u64, ids: &[AllocationId]) {
    let mut writer = Writer::new();
    writer.start(Kind::Granted, request);
    let mut fds = Vec::new();
    for id in ids {
        let mut item = no_grant();
        let awaits = |(slot, lease)| slot == id.slot && script.log.leases.contains_key(&lease);
        let full = script.awaited.is_some_and(awaits).then_some(ErrorCode::NoQuota);
        match script.refused.get(&id.slot).copied().or(full) {
            Some(code) => item.status = Status::error(code).into(),
            None => {
                script.log.next_lease += 1;
                let lease = script.log.next_lease;
                script.log.leases.insert(lease, *id);
                item = granted(*id, lease, fds.len() as u16);
                fds.push(memory(&[id.slot as u8; BYTES]));
            }
        }
        if script.ended_at_grant.contains(&id.slot) {
            peer.page.end(*id);
        }
        writer.push(&item);
    }
    let borrowed: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
    peer.send(writer.finish(ids.len(), fds.len()), &borrowed);
}

fn declare(peer: &Peer, script: &mut Script, request: u64, wanted: &[(AllocationId, bool)]) {
    let mut writer = Writer::new();
    writer.start(Kind::Granted, request);
    for (id, _) in wanted {
        let mut item = no_grant();
        match script.refused.get(&id.slot) {
            Some(code) => item.status = Status::error(*code).into(),
            None => {
                script.log.next_lease += 1;
                let lease = script.log.next_lease;
                script.log.leases.insert(lease, *id);
                item = granted(*id, lease, NO_FD);
            }
        }
        writer.push(&item);
    }
    peer.send(writer.finish(wanted.len(), 0), &[]);
}

fn granted(id: AllocationId, lease: u64, fd_index: u16) -> GrantItem {
    let mut item = no_grant();
    item.lease = lease.into();
    item.slot = id.slot.into();
    item.generation = id.generation.into();
    item.facts.size_bytes = (BYTES as u64).into();
    item.facts.kind = MemoryKind::Memfd as u8;
    item.fd_index = fd_index.into();
    item
}

/// The handles of these slots.
pub fn handles(slots: impl IntoIterator<Item = u32>) -> Vec<Handle> {
    slots.into_iter().map(handle).collect()
}
