//! What the table does in the background, each time a bounded part: carriers ahead, what waits for
//! a place, memory of what has ended. Must never wait for the service manager.

use super::Table;
use crate::clock;
use crate::fds::table::FdTable;
use crate::kept::found::end_name;
use crate::limits::{CARRIER_RETRY, KEPT_LOG_COPIED_PER_CHORE, MESSAGES_PER_CHORE};
use crate::manager::notify::{Manager, StoreError};
use fdbroker_core::{Core, Now};
use std::time::Duration;

impl Table {
    /// When there is something to do in the background.
    pub(in crate::kept) fn due(&self) -> Option<Now> {
        self.has_work().then(|| self.retry_at.unwrap_or(Now(0)))
    }

    /// Does a bounded part of that.
    pub(in crate::kept) fn work(
        &mut self,
        manager: &Manager,
        core: &Core,
        fds: &mut FdTable,
        now: Now,
    ) {
        // However much is to be dropped, there is room for what comes.
        let is_provided = self.provide(manager, Duration::ZERO);
        let is_kept = self.keep_waiting(core, fds);
        let is_rid = self.remove_strays(manager);
        let is_dirty = self.carriers.is_dirty();
        if !is_dirty && self.is_compaction_due() {
            self.tidy(core, KEPT_LOG_COPIED_PER_CHORE);
        }
        // Whatever else has to wait: the faster dead fds are dropped, the sooner it has a place.
        let is_rewriting = is_dirty && self.carriers.rewrite(fds);
        let is_all_done = is_provided && is_kept && is_rid && !is_dirty;
        self.retry_at = (!is_all_done && !is_rewriting).then(|| clock::after(now, CARRIER_RETRY));
    }

    /// Drops fds of a device that nobody needs any more: they pin memory.
    pub(in crate::kept) fn drop_urgent(&mut self, fds: &mut FdTable) {
        if self.carriers.is_urgent() && self.retry_at.is_none() {
            self.carriers.rewrite(fds);
        }
    }

    /// A lane has dropped what it was told to.
    pub(in crate::kept) fn note_dropped(&mut self, carrier: u32) {
        self.carriers.note_dropped(carrier);
        (self.is_full, self.retry_at) = (false, None);
    }

    /// Fds that lie in carriers.
    #[cfg(test)]
    pub(in crate::kept) fn carried(&self) -> usize {
        self.carriers.fds()
    }

    /// Bytes of the log that are written.
    #[cfg(test)]
    pub(in crate::kept) fn written(&self) -> u64 {
        self.log.written()
    }

    fn has_work(&self) -> bool {
        self.carriers.is_dirty()
            || self.carriers.wants_another()
            || self.carriers.to_store().is_some()
            || !self.strays.is_empty()
            || !(self.waiting.is_empty() || self.is_full)
            || self.is_compaction_due()
    }

    /// Makes carriers ahead, and gives both ends of each to the service manager. `false`: later.
    pub(super) fn provide(&mut self, manager: &Manager, patience: Duration) -> bool {
        loop {
            while let Some(end) = self.carriers.to_store() {
                let (carrier, name) = (end.carrier, end_name(end.carrier, end.is_near));
                match manager.store(&name, end.fd, patience) {
                    Ok(()) => {
                        self.carriers.note_stored(carrier);
                        self.is_full = false;
                    }
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
