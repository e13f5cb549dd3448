//! The kept objects as they outlive this broker: what its core says of them goes into the log, and
//! their fds into carriers, in the order that a kill in between does no harm to. Must never let the
//! loop wait, nor have a group in the log whose fd is in no carrier.

use crate::clock;
use crate::fds::files::Files;
use crate::fds::table::FdTable;
use crate::kept::carriers::{Carriers, CarryError, Class};
use crate::kept::log::{Log, bytes_of, payloads};
use crate::kept::records::{Record, SavedGroup, encode, replay};
use crate::limits::{
    CARRIER_RETRY, KEPT_LOG_AREA_BYTES, KEPT_LOG_COPIED_PER_CHORE, KEPT_LOG_COPIED_PER_WRITTEN,
    KEPT_LOG_DEAD_BYTES, KEPT_LOG_GIVEN_BACK_PER_CHORE, MANAGER_PATIENCE, STORED_BESIDE_KEPT,
    VERSIONS_AHEAD, kept_carriers, kept_fds,
};
use crate::manager::inherited::{Inherited, names};
use crate::manager::notify::{Manager, StoreError};
use fdbroker_core::{ClientId, Core, GroupId, KeptChange, KeptGroup, Now, Touch};
use fdbroker_protocol::{ErrorCode, Resource, Scope, Status};
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

/// What is remembered of a group that is in the log.
#[derive(Clone, Copy, Debug)]
struct Entry {
    group: GroupId,
    /// The number of its fd.
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
pub struct KeptObjects {
    manager: Manager,
    /// `None`: there is no store, and kept objects end with the broker.
    table: Option<Table>,
    is_end_said: bool,
}

#[derive(Debug)]
struct Table {
    log: Log,
    carriers: Carriers,
    /// By version.
    entries: BTreeMap<u64, Entry>,
    /// What their records take in all.
    live_bytes: u64,
    prepared: Vec<Prepared>,
    /// Up to this version the groups have been written into the other area.
    copied_up_to: u64,
    /// When to try again what could not be done.
    retry_at: Option<Now>,
    is_failure_said: bool,
}

/// A kept group of a broker before this one, with its fd.
#[derive(Debug)]
pub struct FoundGroup {
    /// Its record.
    payload: Vec<u8>,
    /// Its fd.
    pub fd: OwnedFd,
    parcel: u64,
}

impl FoundGroup {
    /// What it is.
    pub fn kept(&self) -> Option<KeptGroup<'_>> {
        match postcard::from_bytes(&self.payload) {
            Ok(Record::Group(saved)) => saved.to_kept(),
            _ => None,
        }
    }
}

/// What the store of the service manager had of kept objects.
#[derive(Debug, Default)]
pub struct FoundObjects {
    /// Groups that are whole, by version.
    pub groups: Vec<FoundGroup>,
    /// Versions up to this one may have been given; `None`: nobody knows.
    pub last_version: Option<u64>,
    /// Fds of no use.
    pub unknown: Vec<OwnedFd>,
}

impl KeptObjects {
    /// Goes on with what the service manager had, or begins anew.
    pub fn open(
        manager: Manager,
        inherited: &mut Inherited,
        table_fds: u64,
        kept_allocations: u64,
    ) -> (Self, FoundObjects) {
        let log = inherited.kept_log.take();
        let ends = std::mem::take(&mut inherited.object_carriers);
        let mut found = FoundObjects::default();
        if !manager.has_store() {
            found.unknown.extend(ends.into_iter().map(|(_, fd)| fd).chain(log));
            return (KeptObjects { manager, table: None, is_end_said: false }, found);
        }
        let room = manager.entries_left(kept_allocations + STORED_BESIDE_KEPT) / 2;
        let most = (kept_carriers(table_fds), kept_fds(table_fds));
        let most = (most.0.min(room), most.1);
        if room == 0 {
            log::warn!(
                "the service manager's store has no room for kept objects, so every put that keeps is refused (kept_fds = 0): \
                 it has {}, and {} are for kept allocations and the broker's own; raise FileDescriptorStoreMax",
                manager.entries_left(0),
                kept_allocations + STORED_BESIDE_KEPT,
            );
        }
        let table = match Table::open(&manager, log, ends, most, &mut found) {
            Ok(table) => Some(table),
            Err(error) => {
                log::error!("kept objects will end with this broker: {error}");
                None
            }
        };
        let mut this = KeptObjects { manager, table, is_end_said: false };
        if let Some(table) = &mut this.table {
            table.provide(&this.manager, MANAGER_PATIENCE);
        }
        (this, found)
    }

    /// Whether kept objects outlive this broker.
    pub fn is_there(&self) -> bool {
        self.table.is_some()
    }

    /// Says once that kept objects end with this broker, if they do.
    fn note_keep(&mut self) {
        if self.table.is_none() && !std::mem::replace(&mut self.is_end_said, true) {
            log::info!(
                "kept objects outlive their creators, and end with this broker: no service manager stores their fds (systemd: FileDescriptorStoreMax=)"
            );
        }
    }

    /// Makes sure that a client's group can be sealed: the next version may be given, and if the
    /// group is to be kept, its fd is carried and the log has room for it.
    /// [`end_keep`](Self::end_keep) comes after the step.
    ///
    /// # Errors
    /// What the seal is to answer.
    pub fn begin_seal(
        &mut self,
        client: ClientId,
        group: GroupId,
        core: &Core,
        fds: &FdTable,
    ) -> Result<(), Status> {
        let kept = core.group_to_keep(client, group);
        if kept.is_some() {
            self.note_keep();
        }
        let Some(table) = &mut self.table else { return Ok(()) };
        table.reserve_version(core)?;
        kept.map_or(Ok(()), |kept| table.prepare(&kept, core, fds))
    }

    /// Makes sure that the groups of a touch can be kept, likewise.
    ///
    /// # Errors
    /// What the touch is to answer.
    pub fn begin_touch(
        &mut self,
        client: ClientId,
        touch: &Touch<'_>,
        core: &Core,
        fds: &FdTable,
    ) -> Result<(), Status> {
        let groups = core.groups_to_keep(client, touch);
        if !groups.is_empty() {
            self.note_keep();
        }
        let Some(table) = &mut self.table else { return Ok(()) };
        groups.iter().try_for_each(|kept| table.prepare(kept, core, fds))
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

    /// Brings store and core together at a start: the groups of `found` that the core has are in
    /// use from now on, and their fds are put into the table unless they are there; the others are
    /// given up. What is left over comes back, to be closed.
    pub fn settle(
        &mut self,
        found: Vec<FoundGroup>,
        core: &Core,
        fds: &mut FdTable,
    ) -> Vec<OwnedFd> {
        let Some(table) = &mut self.table else {
            return found.into_iter().map(|found| found.fd).collect();
        };
        table.settle(found, core, fds)
    }

    /// Whether there is something to do in the background.
    pub fn is_waiting(&self, now: Now) -> bool {
        self.table.as_ref().is_some_and(|table| table.has_work() && table.is_time(now))
    }

    /// When there is something to do again that could not be done.
    pub fn due(&self) -> Option<Now> {
        self.table.as_ref().filter(|table| table.has_work()).and_then(|table| table.retry_at)
    }

    /// Does a bounded part of that.
    pub fn work(&mut self, core: &Core, fds: &mut FdTable, now: Now) {
        let Some(table) = &mut self.table else { return };
        table.retry_at = None;
        if table.carriers.is_dirty() {
            if !table.carriers.rewrite(fds) {
                table.retry_at = Some(clock::after(now, CARRIER_RETRY));
            }
        } else if table.carriers.wants_another() || table.carriers.to_store().is_some() {
            if !table.provide(&self.manager, Duration::ZERO) {
                table.retry_at = Some(clock::after(now, CARRIER_RETRY));
            }
        } else {
            table.tidy(core, KEPT_LOG_COPIED_PER_CHORE);
        }
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
        }
    }
}

impl Table {
    fn open(
        manager: &Manager,
        log: Option<OwnedFd>,
        ends: Vec<(String, OwnedFd)>,
        (most, most_fds): (usize, usize),
        found: &mut FoundObjects,
    ) -> io::Result<Table> {
        let mut carriers = Carriers::new(most, most_fds);
        let mut fds = BTreeMap::new();
        for (number, near, far) in pairs(manager, ends, &mut found.unknown) {
            if let Err(error) = carriers.adopt(number, near, far, &mut fds) {
                log::error!("kept objects may be lost: a carrier cannot be read: {error}");
            }
        }
        let (log, bytes) = match log.map(Log::adopt) {
            Some(Ok((log, bytes))) => (Some(log), bytes),
            Some(Err(error)) => {
                log::error!(
                    "the kept objects of before are lost, their table is of no use: {error}"
                );
                (None, Vec::new())
            }
            None => (None, Vec::new()),
        };
        let log = match replay(payloads(&bytes)) {
            Some(groups) => {
                found.groups = whole(&groups, &mut fds);
                log
            }
            None => {
                log::error!("the kept objects of before are lost: a record of their table is none");
                None
            }
        };
        found.last_version = log.as_ref().map(Log::versions);
        found.unknown.extend(fds.into_values());
        let mut log = log.map_or_else(|| new_log(manager), Ok)?;
        log.give_back(u64::MAX)?;
        Ok(Table {
            log,
            carriers,
            entries: BTreeMap::new(),
            live_bytes: 0,
            prepared: Vec::new(),
            copied_up_to: 0,
            retry_at: None,
            is_failure_said: false,
        })
    }

    fn settle(&mut self, found: Vec<FoundGroup>, core: &Core, table: &mut FdTable) -> Vec<OwnedFd> {
        let mut left = Vec::new();
        let mut in_core: HashMap<u64, GroupId> = HashMap::new();
        for group in core.kept_groups() {
            in_core.extend(core.kept_group(group).map(|kept| (kept.version, group)));
        }
        for found in found {
            let its = found.kept().and_then(|kept| in_core.remove(&kept.version));
            let kept = its.and_then(|group| Some((group, core.kept_group(group)?)));
            let FoundGroup { payload, fd, parcel } = found;
            let Some((group, kept)) = kept else {
                left.push(fd);
                continue;
            };
            let (slot, kind, bytes) =
                (kept.id.slot, kept.deposit.facts.kind, bytes_of(payload.len()));
            self.carriers.claim(parcel, slot, Class::of(kind));
            self.entries.insert(kept.version, Entry { group, parcel, bytes });
            // After a planned restart the fd is here already.
            left.extend(table.put(slot, kind, Files::default(), Some(fd)));
        }
        in_core.into_values().for_each(|group| self.begin(group, core, table));
        // What no group of the core is goes out of the log here.
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
        self.log.reserve_versions(last + VERSIONS_AHEAD).map_err(|error| {
            log::error!("versions of objects cannot be reserved: {error}");
            ErrorCode::Internal.into()
        })
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
        let parcel = self.carry(slot, Class::of(kept.deposit.facts.kind), fds)?;
        self.prepared.push(Prepared { slot, parcel, bytes });
        Ok(())
    }

    fn carry(&mut self, slot: u32, class: Class, fds: &FdTable) -> Result<u64, Status> {
        let fd = fds.held(slot).ok_or(ErrorCode::Internal)?;
        self.carriers.send(fd, slot, class).map_err(|error| match error {
            CarryError::Full => {
                Status::no_quota(Resource::KeptFds, Scope::Node, self.entries.len() as u64, 0)
            }
            // Until clients have read theirs.
            CarryError::InFlight => ErrorCode::Again.into(),
            CarryError::Refused(error) => {
                log::error!("the fd of slot {slot} cannot be carried: {error}");
                ErrorCode::Internal.into()
            }
        })
    }

    // --- changes ---------------------------------------------------------------------------------

    fn hear(&mut self, changes: &[KeptChange], core: &Core, fds: &FdTable) {
        let (mut buried, before) = (Vec::new(), self.log.written());
        for change in changes {
            match change {
                KeptChange::Began(group) => self.begin(*group, core, fds),
                KeptChange::Changed(group) => self.change(*group, core),
                KeptChange::Lost(version, name) => {
                    self.note(*version, &Record::Lost(*version, name), core);
                }
                KeptChange::Ended(version) => {
                    self.note(*version, &Record::Ended(*version), core);
                    if let Some(entry) = self.entries.remove(version) {
                        self.live_bytes -= entry.bytes;
                        buried.push(entry.parcel);
                    }
                }
            }
        }
        if let Err(error) = self.log.commit() {
            log::error!("the table of kept objects is not up to date: {error}");
        }
        // After the commit: until then their records say that they are there.
        buried.into_iter().for_each(|parcel| self.carriers.bury(parcel));
        if self.is_compaction_due() {
            let written = self.log.written().saturating_sub(before);
            let most = written.saturating_mul(KEPT_LOG_COPIED_PER_WRITTEN);
            self.tidy(core, most.min(KEPT_LOG_COPIED_PER_CHORE));
        }
    }

    fn begin(&mut self, group: GroupId, core: &Core, fds: &FdTable) {
        // It may have ended in the same step.
        let Some(kept) = core.kept_group(group) else { return };
        let (version, slot) = (kept.version, kept.id.slot);
        let prepared = self.prepared.iter().position(|prepared| prepared.slot == slot);
        let parcel = match prepared {
            Some(at) => Ok(self.prepared.swap_remove(at).parcel),
            None => self.carry(slot, Class::of(kept.deposit.facts.kind), fds),
        };
        let parcel = match parcel {
            Ok(parcel) => parcel,
            Err(status) => {
                return log::error!(
                    "the objects of version {version} end with this broker: {status}"
                );
            }
        };
        let payload = encode(&Record::Group(SavedGroup::of(&kept, parcel)));
        let bytes = bytes_of(payload.len());
        if !self.make_room(bytes, core) || !self.write(version, &payload) {
            log::error!(
                "the objects of version {version} end with this broker: no room in the table"
            );
            return self.carriers.bury(parcel);
        }
        self.live_bytes += bytes;
        self.entries.insert(version, Entry { group, parcel, bytes });
    }

    fn change(&mut self, group: GroupId, core: &Core) {
        if let Some(KeptGroup { version, keep_us, pin, .. }) = core.kept_group(group) {
            self.note(version, &Record::Changed(version, keep_us, pin), core);
        }
    }

    /// Writes something of a group that is in the log.
    fn note(&mut self, version: u64, record: &Record<'_>, core: &Core) {
        if !self.entries.contains_key(&version) {
            return;
        }
        let payload = encode(record);
        if !self.make_room(bytes_of(payload.len()), core) || !self.write(version, &payload) {
            log::error!("the table of kept objects is not up to date: no room in it");
        }
    }

    /// Appends a record of a group, to the other area too when the group is there already.
    fn write(&mut self, version: u64, payload: &[u8]) -> bool {
        if let Err(error) = self.log.append(payload) {
            log::error!("the table of kept objects cannot be written: {error}");
            return false;
        }
        if self.log.has_next()
            && version <= self.copied_up_to
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
        if let Err(error) = self.log.give_back(most_bytes) {
            log::error!("the table of kept objects keeps memory that it does not need: {error}");
        }
    }

    /// Makes room for so many bytes, and has their memory. What lives is at most half of an area,
    /// so there is some: only where records come faster than the copies of what lives, all of that
    /// is copied now.
    fn make_room(&mut self, bytes: u64, core: &Core) -> bool {
        if self.log.written() + bytes > self.log.area_bytes() {
            self.log.give_up_next();
            self.compact(core, u64::MAX);
        }
        match self.log.allocate(bytes) {
            Ok(()) => true,
            Err(error) => {
                log::error!("the table of kept objects gets no memory: {error}");
                false
            }
        }
    }

    /// Copies groups into the other area, about so many bytes; with the last one that area is the
    /// one in use.
    fn compact(&mut self, core: &Core, most_bytes: u64) {
        if !self.log.has_next() {
            self.log.begin_next();
            self.copied_up_to = 0;
        }
        let mut copied = 0;
        while copied < most_bytes {
            let next = self.entries.range_mut(self.copied_up_to + 1..).next();
            let Some((version, entry)) = next else {
                return match self.log.flip() {
                    Ok(()) => self.live_bytes = self.entries.values().map(|it| it.bytes).sum(),
                    Err(error) => {
                        log::error!("the table of kept objects stays as it is: {error}");
                        self.log.give_up_next();
                    }
                };
            };
            self.copied_up_to = *version;
            // It may have ended in the step whose changes are being written.
            let Some(kept) = core.kept_group(entry.group) else { continue };
            let payload = encode(&Record::Group(SavedGroup::of(&kept, entry.parcel)));
            entry.bytes = bytes_of(payload.len());
            copied += entry.bytes;
            if let Err(error) = self.log.append_next(&payload) {
                log::error!("the table of kept objects is not copied: {error}");
                return self.log.give_up_next();
            }
        }
    }

    // --- carriers --------------------------------------------------------------------------------

    fn has_work(&self) -> bool {
        self.carriers.is_dirty()
            || self.carriers.wants_another()
            || self.carriers.to_store().is_some()
            || self.is_compaction_due()
    }

    fn is_time(&self, now: Now) -> bool {
        self.retry_at.is_none_or(|at| at <= now)
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

    fn fail_to_provide(&mut self, error: &dyn std::error::Error) -> bool {
        if !std::mem::replace(&mut self.is_failure_said, true) {
            log::error!("there may soon be no room for kept objects: {error}");
        }
        false
    }
}

/// A log that the service manager has, too.
fn new_log(manager: &Manager) -> io::Result<Log> {
    let log = Log::create(KEPT_LOG_AREA_BYTES)?;
    // One that was refused must not come back.
    let _ = manager.remove(names::KEPT_LOG, MANAGER_PATIENCE);
    manager.store(names::KEPT_LOG, log.as_fd(), MANAGER_PATIENCE).map_err(io::Error::other)?;
    Ok(log)
}

/// Groups whose fds have come, out of `fds`.
fn whole(
    groups: &BTreeMap<u64, SavedGroup<'_>>,
    fds: &mut BTreeMap<u64, OwnedFd>,
) -> Vec<FoundGroup> {
    let mut found = Vec::new();
    for (version, group) in groups {
        match fds.remove(&group.parcel) {
            Some(fd) => {
                let payload = encode(&Record::Group(group.clone()));
                found.push(FoundGroup { payload, fd, parcel: group.parcel });
            }
            None => log::error!("the objects of version {version} are lost: their fd has not come"),
        }
    }
    found
}

/// The name of an end of a carrier in the store.
fn end_name(carrier: u32, is_near: bool) -> String {
    format!("{}{carrier}.{}", names::OBJECT_CARRIER_PREFIX, u8::from(is_near))
}

/// Carriers both of whose ends have come: number, the end that is written to, the other. The others
/// leave the store.
fn pairs(
    manager: &Manager,
    ends: Vec<(String, OwnedFd)>,
    unknown: &mut Vec<OwnedFd>,
) -> Vec<(u32, OwnedFd, OwnedFd)> {
    let mut by_name: BTreeMap<String, OwnedFd> = BTreeMap::new();
    for (name, fd) in ends {
        unknown.extend(by_name.insert(name, fd));
    }
    let number_of = |name: &String| {
        let number = name.strip_prefix(names::OBJECT_CARRIER_PREFIX)?.split_once('.')?.0;
        number.parse::<u32>().ok()
    };
    let mut numbers: Vec<u32> = by_name.keys().filter_map(number_of).collect();
    numbers.dedup();
    let mut found = Vec::new();
    for number in numbers {
        let [near, far] = [true, false].map(|is_near| by_name.remove(&end_name(number, is_near)));
        match (near, far) {
            (Some(near), Some(far)) => found.push((number, near, far)),
            (near, far) => {
                unknown.extend(near.into_iter().chain(far));
                for is_near in [true, false] {
                    let _ = manager.remove(&end_name(number, is_near), Duration::ZERO);
                }
            }
        }
    }
    for (name, fd) in by_name {
        let _ = manager.remove(&name, Duration::ZERO);
        unknown.push(fd);
    }
    found
}
