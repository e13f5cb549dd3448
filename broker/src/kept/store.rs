//! What is kept as it outlives this broker, groups of objects and allocations: what its core says
//! of them goes into the log, and their fds into carriers, in the order that a kill in between does
//! no harm to. Must never let the loop wait, nor have in the log what no carrier has.

use crate::clock;
use crate::fds::files::Files;
use crate::fds::table::FdTable;
use crate::kept::carriers::{Carriers, CarryError, Class};
use crate::kept::found::{Found, FoundAll, Stored, end_name, first_free, pairs};
use crate::kept::log::{Log, bytes_of};
use crate::kept::records::{Key, Record, SavedAllocation, SavedGroup, encode};
use crate::limits::{
    CARRIER_RETRY, CARRIERS_AHEAD, KEPT_LOG_AREA_BYTES, KEPT_LOG_COPIED_PER_CHORE,
    KEPT_LOG_COPIED_PER_WRITTEN, KEPT_LOG_DEAD_BYTES, KEPT_LOG_GIVEN_BACK_PER_CHORE,
    MANAGER_PATIENCE, MESSAGES_PER_CHORE, STORED_BESIDE_CARRIERS, VERSIONS_AHEAD, kept_carriers,
    kept_fds,
};
use crate::manager::inherited::names;
use crate::manager::notify::{Manager, StoreError};
use fdbroker_core::{Core, GroupId, KeptChange, KeptGroup, Now};
use fdbroker_protocol::{AllocationId, ErrorCode, MemoryKind, Resource, Scope, Status};
use fdbroker_scm::SendError;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::ops::Bound;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

/// Whose record it is in the core.
#[derive(Clone, Copy, Debug)]
enum What {
    Group(GroupId),
    Allocation(AllocationId),
}

/// What is remembered of something that is in the log.
#[derive(Clone, Copy, Debug)]
struct Entry {
    what: What,
    /// The number of its fd in the carriers.
    parcel: u64,
    /// What its record takes.
    bytes: u64,
}

/// An fd that is carried for a group which is about to be kept.
#[derive(Clone, Copy, Debug)]
struct Prepared {
    slot: u32,
    parcel: u64,
    /// What its record takes.
    bytes: u64,
}

/// See the module.
#[derive(Debug)]
pub struct CrashStore {
    /// `None`: there is no store, and what is kept ends with the broker.
    table: Option<Table>,
    is_end_said: bool,
}

#[derive(Debug)]
struct Table {
    log: Log,
    carriers: Carriers,
    /// Names that are to leave the service manager's store.
    strays: BTreeSet<String>,
    entries: BTreeMap<Key, Entry>,
    /// What is in no carrier yet, and so not in the log.
    waiting: BTreeMap<Key, What>,
    /// There is no place for these before something leaves a carrier.
    is_full: bool,
    is_full_said: bool,
    /// What their records take in all.
    live_bytes: u64,
    prepared: Vec<Prepared>,
    /// Up to this one they have been written into the other area.
    copied_up_to: Option<Key>,
    /// When to try again what could not be done.
    retry_at: Option<Now>,
    is_failure_said: bool,
}

impl CrashStore {
    /// Goes on with what the service manager had, by name, or begins anew.
    pub fn open(manager: &Manager, stored: Stored, table_fds: u64) -> (Self, FoundAll) {
        let mut found = FoundAll::default();
        if !manager.has_store() {
            found.unknown.extend(stored.fds.into_values());
            return (CrashStore { table: None, is_end_said: false }, found);
        }
        let room = manager.entries_left(STORED_BESIDE_CARRIERS) / 2;
        let carriers = kept_carriers(table_fds).min(room);
        if carriers < CARRIERS_AHEAD {
            log::warn!(
                "the service manager's store has no room for what is kept, so every put that keeps is refused (kept_fds = 0), and no allocation outlives a crash: \
                 it has {}, and {STORED_BESIDE_CARRIERS} are for the broker's own; raise FileDescriptorStoreMax",
                manager.entries_left(0),
            );
        }
        let table = match Table::open(manager, stored, (carriers, table_fds), &mut found) {
            Ok(mut table) => {
                table.provide(manager, MANAGER_PATIENCE);
                Some(table)
            }
            Err(error) => {
                log::error!("what is kept will end with this broker: {error}");
                None
            }
        };
        (CrashStore { table, is_end_said: false }, found)
    }

    /// Whether what is kept outlives this broker.
    pub fn is_there(&self) -> bool {
        self.table.is_some()
    }

    /// Makes sure that groups can be sealed, or be kept from now on: the next version may be given,
    /// and the fd of each that is to be kept is carried and the log has room for it. It says once
    /// that these end with this broker, if they do. [`end_keep`](Self::end_keep) comes after the
    /// step.
    ///
    /// # Errors
    /// What the seal or touch is to answer.
    pub fn begin_keep(
        &mut self,
        groups: &[KeptGroup<'_>],
        core: &Core,
        fds: &FdTable,
    ) -> Result<(), Status> {
        if let Some(table) = &mut self.table {
            table.reserve_version(core)?;
            return groups.iter().try_for_each(|kept| table.prepare(kept, core, fds));
        }
        if !groups.is_empty() && !std::mem::replace(&mut self.is_end_said, true) {
            log::info!(
                "kept objects outlive their creators, and end with this broker: no service manager stores their fds (systemd: FileDescriptorStoreMax=)"
            );
        }
        Ok(())
    }

    /// The seal or touch is over: what was carried for nothing is dropped.
    pub fn end_keep(&mut self) {
        if let Some(table) = &mut self.table {
            for Prepared { parcel, .. } in table.prepared.drain(..) {
                table.carriers.bury(parcel);
            }
        }
    }

    /// Writes what has changed, all of it or nothing, before anybody is answered.
    pub fn hear(&mut self, changes: &[KeptChange], core: &Core, fds: &FdTable) {
        if let Some(table) = &mut self.table
            && !changes.is_empty()
        {
            table.hear(changes, core, fds);
        }
    }

    /// A kept allocation has its fd from now on, or something of it has changed.
    pub fn keep(&mut self, slot: u32, manager: &Manager, core: &Core, fds: &FdTable) {
        if let Some(table) = &mut self.table {
            let before = table.log.written();
            let kept = core.kept(slot).map(|kept| What::Allocation(kept.id));
            kept.into_iter().for_each(|kept| table.keep(kept, core, fds));
            table.commit(before, None, core);
            // The next one has a place, however fast they come.
            table.provide(manager, Duration::ZERO);
        }
    }

    /// A kept allocation has ended.
    pub fn unkeep(&mut self, slot: u32, core: &Core) {
        if let Some(table) = &mut self.table {
            let before = table.log.written();
            let ended = table.end(Key::Allocation(slot), core);
            table.commit(before, ended, core);
        }
    }

    /// Brings store and core together at a start: what the core has of `found` is in use from now
    /// on, and its fds are put into the table unless they are there; the rest is given up. What is
    /// left over comes back, to be closed.
    pub fn settle(&mut self, found: Vec<Found>, core: &Core, fds: &mut FdTable) -> Vec<OwnedFd> {
        let Some(table) = &mut self.table else {
            return found.into_iter().map(|found| found.fd).collect();
        };
        table.settle(found, core, fds)
    }

    /// When there is something to do in the background.
    pub fn due(&self) -> Option<Now> {
        let table = self.table.as_ref().filter(|table| table.has_work())?;
        Some(table.retry_at.unwrap_or(Now(0)))
    }

    /// Does a bounded part of that.
    pub fn work(&mut self, manager: &Manager, core: &Core, fds: &mut FdTable, now: Now) {
        let Some(table) = &mut self.table else { return };
        // However much is to be dropped, there is room for what comes.
        let is_provided = table.provide(manager, Duration::ZERO);
        let is_kept = table.keep_waiting(core, fds);
        let is_rid = table.remove_strays(manager);
        let is_done = if table.carriers.is_dirty() {
            table.carriers.rewrite(fds)
        } else {
            if table.is_compaction_due() {
                table.tidy(core, KEPT_LOG_COPIED_PER_CHORE);
            }
            true
        };
        let is_all_done = is_provided && is_kept && is_rid && is_done;
        table.retry_at = (!is_all_done).then(|| clock::after(now, CARRIER_RETRY));
    }

    /// Drops fds of a device that nobody needs any more: they pin memory.
    pub fn drop_urgent(&mut self, fds: &mut FdTable) {
        if let Some(table) = &mut self.table
            && table.carriers.is_urgent()
            && table.retry_at.is_none()
        {
            table.carriers.rewrite(fds);
        }
    }

    /// Fds that lie in carriers.
    #[cfg(test)]
    pub fn carried(&self) -> usize {
        self.table.as_ref().map_or(0, |table| table.carriers.fds())
    }

    /// Bytes of the log that are written.
    #[cfg(test)]
    pub fn written(&self) -> u64 {
        self.table.as_ref().map_or(0, |table| table.log.written())
    }

    /// A lane has dropped what it was told to.
    pub fn note_dropped(&mut self, carrier: u32) {
        if let Some(table) = &mut self.table {
            table.carriers.note_dropped(carrier);
            table.is_full = false;
        }
    }
}

impl Table {
    fn open(
        manager: &Manager,
        Stored { fds: mut stored, mut strays }: Stored,
        (carriers, table_fds): (usize, u64),
        found: &mut FoundAll,
    ) -> io::Result<Table> {
        let first_new = first_free(&stored);
        let mut carriers = Carriers::new(carriers, kept_fds(table_fds), first_new);
        let mut fds = BTreeMap::new();
        let mut failed = None;
        for (number, pair) in pairs(&mut stored) {
            let ends = [true, false].map(|is_near| end_name(number, is_near));
            let looked = carriers.look(pair.far.as_fd(), &mut fds);
            match looked.map_err(|error| failed = Some(error)) {
                Ok(parcels) if ends.iter().all(|name| !strays.contains(name)) => {
                    carriers.adopt(number, pair, parcels);
                }
                // Nobody knows what is written where, so what was found there is carried anew.
                _ => {
                    strays.extend(ends);
                    found.unknown.extend([pair.near, pair.far]);
                }
            }
        }
        if let Some(error) = failed {
            log::error!("what is kept may be lost: carriers cannot be read, such as one: {error}");
        }
        if stored.contains_key(names::FORMER_BOOK) {
            log::warn!(
                "the list of kept allocations is an older broker's: what it kept is lost if it was killed, until its owners come back"
            );
        }
        let log = found.read(stored.remove(names::KEPT_LOG), fds);
        if let Some(name) = strays.first() {
            let count = strays.len();
            log::warn!(
                "the service manager's store is rid of {count} names of no use, such as {name:?}"
            );
        }
        let is_told = log.is_some() && !strays.remove(names::KEPT_LOG);
        let mut log = log.map_or_else(|| Log::create(KEPT_LOG_AREA_BYTES), Ok)?;
        if !is_told {
            give_log(manager, &log)?;
        }
        strays.extend(stored.keys().cloned());
        found.unknown.extend(stored.into_values());
        log.give_back(u64::MAX)?;
        Ok(Table {
            log,
            carriers,
            strays,
            entries: BTreeMap::new(),
            waiting: BTreeMap::new(),
            is_full: false,
            is_full_said: false,
            live_bytes: 0,
            prepared: Vec::new(),
            copied_up_to: None,
            retry_at: None,
            is_failure_said: false,
        })
    }

    fn settle(&mut self, found: Vec<Found>, core: &Core, table: &mut FdTable) -> Vec<OwnedFd> {
        let (mut left, mut anew) = (Vec::new(), Vec::new());
        let mut in_core: HashMap<u64, GroupId> = HashMap::new();
        for group in core.kept_groups() {
            in_core.extend(core.kept_group(group).map(|kept| (kept.version, group)));
        }
        for found in found {
            let bytes = bytes_of(found.bytes());
            let its = found.record().and_then(|record| in_use(&record, &mut in_core, core));
            let Some((what, parcel, (key, slot, kind))) = its else {
                left.push(found.fd);
                continue;
            };
            if self.carriers.claim(parcel, slot, Class::of(kind)) {
                self.entries.insert(key, Entry { what, parcel, bytes });
            } else if let What::Group(_) = what {
                // Its carrier is given up.
                anew.push(what);
            }
            // After a planned restart the fd is here already.
            left.extend(table.put(slot, kind, Files::default(), Some(found.fd)));
        }
        anew.extend(in_core.into_values().map(What::Group));
        // Those that are there already are only written once more.
        let kept = table.slots().filter_map(|(slot, ..)| core.kept(slot));
        anew.extend(kept.map(|kept| What::Allocation(kept.id)));
        anew.into_iter().for_each(|what| self.keep(what, core, table));
        // What the core has not goes out of the log here.
        self.compact(core, u64::MAX);
        self.give_back(u64::MAX);
        if let Err(status) = self.reserve_version(core) {
            log::error!("no object can be sealed: {status}");
        }
        left
    }

    // --- seals ----------------------------------------------------------------------------------

    /// Makes sure that the version after the core's last one is above all that a broker after this
    /// one gives.
    fn reserve_version(&mut self, core: &Core) -> Result<(), Status> {
        let last = core.last_version();
        if last < self.log.versions() {
            return Ok(());
        }
        let reserved = self.log.reserve_versions(last + VERSIONS_AHEAD);
        if is_done(reserved, "takes no more versions") {
            Ok(())
        } else {
            Err(ErrorCode::Internal.into())
        }
    }

    fn prepare(&mut self, kept: &KeptGroup<'_>, core: &Core, fds: &FdTable) -> Result<(), Status> {
        let payload = encode(&Record::Group(SavedGroup::of(kept, u64::MAX)));
        let bytes = bytes_of(payload.len());
        let most = self.log.area_bytes() / 2;
        let all = bytes + self.prepared.iter().map(|it| it.bytes).sum::<u64>();
        if self.live_bytes + all > most {
            return Err(Status::no_quota(Resource::MetadataBytes, Scope::Node, most, 0));
        }
        if !self.make_room(all, core) {
            return Err(ErrorCode::Internal.into());
        }
        let slot = kept.id.slot;
        let parcel =
            self.carry(slot, kept.deposit.facts.kind, fds).map_err(|error| match error {
                CarryError::Full => {
                    let groups = self.entries.range(Key::Group(0)..).count();
                    Status::no_quota(Resource::KeptFds, Scope::Node, groups as u64, 0)
                }
                // Until clients have read theirs.
                CarryError::InFlight => ErrorCode::Again.into(),
                CarryError::Refused(_) => ErrorCode::Internal.into(),
            })?;
        self.prepared.push(Prepared { slot, parcel, bytes });
        Ok(())
    }

    fn carry(&mut self, slot: u32, kind: MemoryKind, fds: &FdTable) -> Result<u64, CarryError> {
        let fd = fds.held(slot).ok_or(CarryError::Refused(SendError::BadFd))?;
        let sent = self.carriers.send(fd, slot, Class::of(kind));
        sent.inspect_err(|error| {
            if let CarryError::Refused(error) = error {
                log::error!("the fd of slot {slot} cannot be carried: {error}");
            }
        })
    }

    // --- changes ---------------------------------------------------------------------------------

    fn hear(&mut self, changes: &[KeptChange], core: &Core, fds: &FdTable) {
        let (mut ended, before) = (Vec::new(), self.log.written());
        for change in changes {
            match change {
                KeptChange::Began(group) => self.keep(What::Group(*group), core, fds),
                KeptChange::Changed(group) => self.change(*group, core),
                KeptChange::Lost(version, name) => {
                    self.note(Key::Group(*version), &Record::Lost(*version, name), core);
                }
                KeptChange::Ended(version) => ended.extend(self.end(Key::Group(*version), core)),
            }
        }
        self.commit(before, ended, core);
    }

    /// What was written since the log had so many bytes exists from now on; and nobody needs the
    /// fds of what has ended.
    fn commit(&mut self, before: u64, ended: impl IntoIterator<Item = u64>, core: &Core) {
        is_done(self.log.commit(), "is not up to date");
        // After the commit: until then their records say that they are there.
        ended.into_iter().for_each(|parcel| self.carriers.bury(parcel));
        if self.is_compaction_due() {
            let written = self.log.written().saturating_sub(before);
            let most = written.saturating_mul(KEPT_LOG_COPIED_PER_WRITTEN);
            self.tidy(core, most.min(KEPT_LOG_COPIED_PER_CHORE));
        }
    }

    /// It is kept from now on, or something of an allocation has changed. What finds no place in a
    /// carrier waits for one.
    fn keep(&mut self, what: What, core: &Core, fds: &FdTable) {
        // It may have ended in the same step.
        let Some((key, slot, kind)) = its(what, core) else { return };
        let prepared = self.prepared.iter().position(|prepared| prepared.slot == slot);
        let parcel = match (self.entries.get(&key).map(|entry| entry.parcel), prepared) {
            (Some(parcel), _) => Ok(parcel),
            (None, Some(at)) => Ok(self.prepared.swap_remove(at).parcel),
            (None, None) => self.carry(slot, kind, fds),
        };
        match parcel {
            Ok(parcel) => self.enter(key, what, parcel, core),
            Err(CarryError::Refused(_)) => {}
            Err(error) => {
                self.waiting.insert(key, what);
                let is_all = !self.carriers.wants_another() && self.carriers.to_store().is_none();
                self.is_full = is_all && error == CarryError::Full;
            }
        }
        if self.is_full && !std::mem::replace(&mut self.is_full_said, true) {
            log::warn!(
                "no more than {} kept allocations and groups of objects outlive a crash",
                self.entries.len()
            );
        }
    }

    /// Keeps some of what waits. `false`: later.
    fn keep_waiting(&mut self, core: &Core, fds: &FdTable) -> bool {
        let (before, mut is_done) = (self.log.written(), true);
        for _ in 0..MESSAGES_PER_CHORE {
            let Some((key, what)) = self.waiting.pop_first() else { break };
            self.keep(what, core, fds);
            if self.waiting.contains_key(&key) {
                is_done = self.is_full;
                break;
            }
        }
        self.commit(before, None, core);
        is_done
    }

    /// Writes all that there is to say of something.
    fn enter(&mut self, key: Key, what: What, parcel: u64, core: &Core) {
        let Some(payload) = payload_of(what, parcel, core) else { return };
        let bytes = bytes_of(payload.len());
        let former = self.entries.get(&key).map(|entry| entry.bytes);
        if self.make_room(bytes, core) && self.write(key, &payload) {
            // At a start all of it is counted at the end.
            self.live_bytes = (self.live_bytes + bytes).saturating_sub(former.unwrap_or(0));
            self.entries.insert(key, Entry { what, parcel, bytes });
        } else {
            log::error!("{key} ends with this broker, or is not up to date: no room in the table");
            if former.is_none() {
                self.carriers.bury(parcel);
            }
        }
    }

    /// It has ended: the number of its fd, if it is in the log.
    fn end(&mut self, key: Key, core: &Core) -> Option<u64> {
        self.waiting.remove(&key);
        self.note(key, &key.ended(), core);
        let entry = self.entries.remove(&key)?;
        self.live_bytes -= entry.bytes;
        Some(entry.parcel)
    }

    fn change(&mut self, group: GroupId, core: &Core) {
        if let Some(KeptGroup { version, keep_us, pin, .. }) = core.kept_group(group) {
            self.note(Key::Group(version), &Record::Changed(version, keep_us, pin), core);
        }
    }

    /// Writes something of what is in the log.
    fn note(&mut self, key: Key, record: &Record<'_>, core: &Core) {
        if !self.entries.contains_key(&key) {
            return;
        }
        let payload = encode(record);
        if !self.make_room(bytes_of(payload.len()), core) || !self.write(key, &payload) {
            log::error!("the table of what is kept is not up to date: no room in it");
        }
    }

    /// Appends a record, to the other area too when what it is of is there already.
    fn write(&mut self, key: Key, payload: &[u8]) -> bool {
        if !is_done(self.log.append(payload), "cannot be written") {
            return false;
        }
        if self.log.has_next()
            && Some(key) <= self.copied_up_to
            && self.log.append_next(payload).is_err()
        {
            // The next try begins with less.
            self.log.give_up_next();
        }
        true
    }

    // --- what is left of ended ones --------------------------------------------------------------

    /// Whether as much of the area is dead as is worth a copy of the rest, or one has begun; or
    /// memory of the other area is to be given back.
    fn is_compaction_due(&self) -> bool {
        let dead = self.log.written().saturating_sub(self.live_bytes);
        let most = (self.live_bytes / 4 + KEPT_LOG_DEAD_BYTES).min(self.log.area_bytes() / 4);
        self.log.has_next() || self.log.stale() > 0 || dead > most
    }

    /// Goes on with that: gives memory back, or copies about so many bytes.
    fn tidy(&mut self, core: &Core, most_bytes: u64) {
        if self.log.stale() > 0 && !self.log.has_next() {
            self.give_back(KEPT_LOG_GIVEN_BACK_PER_CHORE);
        } else {
            self.compact(core, most_bytes);
        }
    }

    fn give_back(&mut self, most_bytes: u64) {
        is_done(self.log.give_back(most_bytes), "keeps memory that it does not need");
    }

    /// Makes room for so many bytes, and has their memory. What lives is at most half of an area,
    /// so there is some: only where records come faster than the copies of what lives, all of that
    /// is copied now.
    fn make_room(&mut self, bytes: u64, core: &Core) -> bool {
        if self.log.written() + bytes > self.log.area_bytes() {
            self.log.give_up_next();
            self.compact(core, u64::MAX);
        }
        is_done(self.log.allocate(bytes), "gets no memory")
    }

    /// Copies what lives into the other area, about so many bytes; with the last of it that area is
    /// the one in use.
    fn compact(&mut self, core: &Core, most_bytes: u64) {
        if !self.log.has_next() {
            self.log.begin_next();
            self.copied_up_to = None;
        }
        let mut copied = 0;
        while copied < most_bytes {
            let begin = self.copied_up_to.map_or(Bound::Unbounded, Bound::Excluded);
            let next = self.entries.range_mut((begin, Bound::Unbounded)).next();
            let Some((key, entry)) = next else {
                if is_done(self.log.flip(), "stays as it is") {
                    self.live_bytes = self.entries.values().map(|it| it.bytes).sum();
                } else {
                    self.log.give_up_next();
                }
                return;
            };
            self.copied_up_to = Some(*key);
            // It may have ended in the step whose changes are being written.
            let Some(payload) = payload_of(entry.what, entry.parcel, core) else { continue };
            entry.bytes = bytes_of(payload.len());
            copied += entry.bytes;
            if !is_done(self.log.append_next(&payload), "is not copied") {
                return self.log.give_up_next();
            }
        }
    }

    // --- carriers --------------------------------------------------------------------------------

    fn has_work(&self) -> bool {
        self.carriers.is_dirty()
            || self.carriers.wants_another()
            || self.carriers.to_store().is_some()
            || !self.strays.is_empty()
            || !(self.waiting.is_empty() || self.is_full)
            || self.is_compaction_due()
    }

    /// Makes carriers ahead, and gives both ends of each to the service manager. `false`: later.
    fn provide(&mut self, manager: &Manager, patience: Duration) -> bool {
        loop {
            while let Some(end) = self.carriers.to_store() {
                let (carrier, name) = (end.carrier, end_name(end.carrier, end.is_near));
                match manager.store(&name, end.fd, patience) {
                    Ok(()) => self.carriers.note_stored(carrier),
                    Err(StoreError::Busy) => return false,
                    Err(error) => return self.fail_to_provide(&error),
                }
            }
            if !self.carriers.wants_another() {
                return true;
            }
            if let Err(error) = self.carriers.add() {
                return self.fail_to_provide(&error);
            }
        }
    }

    /// Has the service manager's store drop some of what is of no use there. `false`: later.
    fn remove_strays(&mut self, manager: &Manager) -> bool {
        for _ in 0..MESSAGES_PER_CHORE {
            let Some(name) = self.strays.first() else { break };
            match manager.remove(name, Duration::ZERO) {
                Err(StoreError::Busy) => return false,
                Err(error) => log::debug!("{name} stays in the store: {error}"),
                Ok(()) => {}
            }
            self.strays.pop_first();
        }
        true
    }

    fn fail_to_provide(&mut self, error: &dyn std::error::Error) -> bool {
        if !std::mem::replace(&mut self.is_failure_said, true) {
            log::error!("there may soon be no room for what is kept: {error}");
        }
        false
    }
}

/// Whether something of the log is done; what fails is said.
fn is_done(done: io::Result<()>, fails: &str) -> bool {
    done.inspect_err(|error| log::error!("the table of what is kept {fails}: {error}")).is_ok()
}

/// What the core has of this record, and the number of its fd. Groups are taken out of `in_core`.
fn in_use(
    record: &Record<'_>,
    in_core: &mut HashMap<u64, GroupId>,
    core: &Core,
) -> Option<(What, u64, (Key, u32, MemoryKind))> {
    let (what, parcel) = match record {
        Record::Group(saved) => (What::Group(in_core.remove(&saved.version)?), saved.parcel),
        Record::Allocation(saved) => (What::Allocation(saved.id()), saved.parcel),
        _ => return None,
    };
    Some((what, parcel, its(what, core)?))
}

/// The key, the slot and the kind of something; `None`: it has ended.
fn its(what: What, core: &Core) -> Option<(Key, u32, MemoryKind)> {
    match what {
        What::Group(group) => {
            let KeptGroup { version, id, deposit, .. } = core.kept_group(group)?;
            Some((Key::Group(version), id.slot, deposit.facts.kind))
        }
        What::Allocation(id) => {
            let kept = core.kept(id.slot).filter(|kept| kept.id == id)?;
            Some((Key::Allocation(id.slot), id.slot, kept.deposit.facts.kind))
        }
    }
}

/// The record of something as the core has it; `None`: it has ended.
fn payload_of(what: What, parcel: u64, core: &Core) -> Option<Vec<u8>> {
    match what {
        What::Group(group) => {
            let kept = core.kept_group(group)?;
            Some(encode(&Record::Group(SavedGroup::of(&kept, parcel))))
        }
        What::Allocation(id) => {
            let kept = core.kept(id.slot).filter(|kept| kept.id == id)?;
            Some(encode(&Record::Allocation(SavedAllocation::of(&kept, parcel))))
        }
    }
}

/// Has the service manager store this log alone: one that was refused must not come back.
fn give_log(manager: &Manager, log: &Log) -> io::Result<()> {
    let _ = manager.remove(names::KEPT_LOG, MANAGER_PATIENCE);
    manager.store(names::KEPT_LOG, log.as_fd(), MANAGER_PATIENCE).map_err(io::Error::other)
}
