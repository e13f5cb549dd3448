//! The table of what is kept, groups of objects and allocations: what the core says of them goes
//! into the log, and their fds into carriers, in the order that a kill in between does no harm to.
//! Must never let the loop wait, nor have in the log what no carrier has.

mod chores;
mod space;
mod start;

use crate::fds::table::FdTable;
use crate::kept::carriers::{Carriers, CarryError, Class};
use crate::kept::log::{Log, bytes_of};
use crate::kept::records::{Key, Record, SavedAllocation, SavedGroup, encode};
use crate::limits::{
    KEPT_LOG_COPIED_PER_CHORE, KEPT_LOG_COPIED_PER_WRITTEN, MESSAGES_PER_CHORE, VERSIONS_AHEAD,
};
use crate::manager::notify::Manager;
use fdbroker_core::{Core, GroupId, KeptChange, KeptGroup, Now};
use fdbroker_protocol::{AllocationId, ErrorCode, MemoryKind, Resource, Scope, Status};
use fdbroker_scm::SendError;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
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
pub(super) struct Table {
    log: Log,
    carriers: Carriers,
    /// Names that are to leave the service manager's store.
    strays: BTreeSet<String>,
    entries: BTreeMap<Key, Entry>,
    /// What is in no carrier yet, and so not in the log.
    waiting: BTreeMap<Key, What>,
    /// There is no place for these before something leaves a carrier, or there is another one.
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

impl Table {
    // --- seals ----------------------------------------------------------------------------------

    /// Reserves the next version in the log, where none is left: no later broker gives it again.
    ///
    /// # Errors
    /// INTERNAL: the log takes nothing.
    pub(super) fn reserve_version(&mut self, core: &Core) -> Result<(), Status> {
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

    /// What is to be kept is carried, and the log has room for it.
    pub(super) fn prepare(
        &mut self,
        kept: &KeptGroup<'_>,
        core: &Core,
        fds: &FdTable,
    ) -> Result<(), Status> {
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

    /// The seal or touch is over: what was carried for nothing is dropped.
    pub(super) fn end_keep(&mut self) {
        for Prepared { parcel, .. } in self.prepared.drain(..) {
            self.carriers.bury(parcel);
        }
    }

    // --- changes ---------------------------------------------------------------------------------

    /// A kept allocation has its fd from now on, or something of it has changed.
    pub(super) fn keep_allocation(
        &mut self,
        slot: u32,
        manager: &Manager,
        core: &Core,
        fds: &FdTable,
    ) {
        let before = self.log.written();
        if let Some(kept) = core.kept(slot) {
            self.keep(What::Allocation(kept.id), core, fds);
        }
        self.commit(before, None, core);
        // The next one has a place, however fast they come.
        self.provide(manager, Duration::ZERO);
    }

    /// A kept allocation has ended.
    pub(super) fn unkeep(&mut self, slot: u32, core: &Core) {
        let before = self.log.written();
        let ended = self.end(Key::Allocation(slot), core);
        self.commit(before, ended, core);
    }

    /// Writes what has changed, all of it or nothing, before anybody is answered.
    pub(super) fn hear(&mut self, changes: &[KeptChange], core: &Core, fds: &FdTable) {
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
                self.is_full = error == CarryError::Full;
            }
        }
        if self.is_full
            && !self.carriers.has_dead()
            && !std::mem::replace(&mut self.is_full_said, true)
        {
            log::warn!(
                "carriers are full: {} kept allocations and groups of objects outlive a crash, and others wait for a place; raise limits.table_fds, of which they take a quarter",
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
}

/// Whether something of the log is done; what fails is said.
fn is_done(done: io::Result<()>, fails: &str) -> bool {
    done.inspect_err(|error| log::error!("the table of what is kept {fails}: {error}")).is_ok()
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
