//! The broker's own fd table: what of it is used, promised or kept. Must never let the core plan
//! with more than there is.

use super::{Ledger, ScopeId};
use crate::limits::TABLE_RESERVE;
use fdbroker_protocol::Resource;

impl Ledger {
    /// Places of the table that are used or kept: for held fds, connections let in, fds without a
    /// place, the reserve.
    pub fn table_now(&self) -> u64 {
        let node = &self[ScopeId::NODE].account;
        let connections = node.counted(Resource::TablePlaces);
        node.counted(Resource::HeldFds) + connections + self.unplaced + TABLE_RESERVE
    }

    /// The table now, most of it ever in use, and all of it.
    pub fn table(&self) -> (u64, u64, u64) {
        (self.table_now(), self.table_peak, self.table_fds)
    }

    /// Takes over what a predecessor has seen in use.
    pub fn raise_table_peak(&mut self, peak: u64) {
        self.table_peak = peak.max(self.table_now());
    }

    /// Held places that still fit the table.
    pub fn table_room(&self) -> u64 {
        self.table_room_after(0)
    }

    /// The same once so many more places have come back. Fds that have no place may stand where
    /// these were.
    pub fn table_room_after(&self, coming: u64) -> u64 {
        (self.table_fds + coming).saturating_sub(self.table_now())
    }

    /// Fds that have no place and wait for the closers.
    pub fn unplaced(&self) -> u64 {
        self.unplaced
    }

    /// An fd has come that has no place, or a closer has closed one.
    pub fn set_unplaced(&mut self, unplaced: u64) {
        self.unplaced = unplaced;
        // A hello that stands in line for places may have fewer to come.
        self.freed(ScopeId::NODE, std::iter::once(Resource::TablePlaces));
        self.table_peak = self.table_peak.max(self.table_now());
    }
}
