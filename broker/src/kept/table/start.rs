//! The start of the table: what carriers and log of a broker before had, and what the core has of
//! it. Must never give up an fd that a record names before the core has been asked.

use super::{Entry, Table, What, its};
use crate::fds::files::Files;
use crate::fds::table::FdTable;
use crate::kept::carriers::{Carriers, Class};
use crate::kept::found::{Found, FoundAll, Stored, end_name, first_free, pairs};
use crate::kept::log::{Log, bytes_of};
use crate::kept::records::{Key, Record};
use crate::limits::{KEPT_LOG_AREA_BYTES, MANAGER_PATIENCE, kept_fds};
use crate::manager::inherited::names;
use crate::manager::notify::Manager;
use fdbroker_core::{Core, GroupId};
use fdbroker_protocol::MemoryKind;
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

impl Table {
    /// Goes on with what the service manager had, by name, or begins anew.
    pub(in crate::kept) fn open(
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
        let mut table = Table {
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
        };
        table.provide(manager, MANAGER_PATIENCE);
        Ok(table)
    }

    /// Brings store and core together at a start: what the core has of `found` is in use from now
    /// on, and its fds are put into the table unless they are there; the rest is given up. What is
    /// left over comes back, to be closed.
    pub(in crate::kept) fn settle(
        &mut self,
        found: Vec<Found>,
        core: &Core,
        table: &mut FdTable,
    ) -> Vec<OwnedFd> {
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

/// Has the service manager store this log alone: one that was refused must not come back.
fn give_log(manager: &Manager, log: &Log) -> io::Result<()> {
    let _ = manager.remove(names::KEPT_LOG, MANAGER_PATIENCE);
    manager.store(names::KEPT_LOG, log.as_fd(), MANAGER_PATIENCE).map_err(io::Error::other)
}
