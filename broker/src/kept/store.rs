//! The store for what outlives a crash, or none, where no service manager stores fds: the server's
//! only way to the [table](super::table). Must never decide what goes into it.

use crate::fds::table::FdTable;
use crate::kept::found::{Found, FoundAll, Stored};
use crate::kept::table::Table;
use crate::limits::{CARRIERS_AHEAD, STORED_BESIDE_CARRIERS, kept_carriers};
use crate::manager::notify::Manager;
use fdbroker_core::{Core, KeptChange, KeptGroup, Now};
use fdbroker_protocol::Status;
use std::os::fd::OwnedFd;

/// See the module.
#[derive(Debug)]
pub struct CrashStore {
    /// `None`: there is no store, and what is kept ends with the broker.
    table: Option<Table>,
    is_end_said: bool,
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
            Ok(table) => Some(table),
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
            table.end_keep();
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
            table.keep_allocation(slot, manager, core, fds);
        }
    }

    /// A kept allocation has ended.
    pub fn unkeep(&mut self, slot: u32, core: &Core) {
        if let Some(table) = &mut self.table {
            table.unkeep(slot, core);
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
        self.table.as_ref()?.due()
    }

    /// Does a bounded part of that.
    pub fn work(&mut self, manager: &Manager, core: &Core, fds: &mut FdTable, now: Now) {
        if let Some(table) = &mut self.table {
            table.work(manager, core, fds, now);
        }
    }

    /// Drops fds of a device that nobody needs any more: they pin memory.
    pub fn drop_urgent(&mut self, fds: &mut FdTable) {
        if let Some(table) = &mut self.table {
            table.drop_urgent(fds);
        }
    }

    /// Fds that lie in carriers.
    #[cfg(test)]
    pub fn carried(&self) -> usize {
        self.table.as_ref().map_or(0, Table::carried)
    }

    /// Bytes of the log that are written.
    #[cfg(test)]
    pub fn written(&self) -> u64 {
        self.table.as_ref().map_or(0, Table::written)
    }

    /// A lane has dropped what it was told to.
    pub fn note_dropped(&mut self, carrier: u32) {
        if let Some(table) = &mut self.table {
            table.note_dropped(carrier);
        }
    }
}
