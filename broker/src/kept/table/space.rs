//! Room in the table's log: records go into one area while the other is written anew without what
//! has ended. Must never take more than half of an area for what lives.

use super::{Table, is_done, payload_of};
use crate::kept::log::bytes_of;
use crate::kept::records::Key;
use crate::limits::{KEPT_LOG_DEAD_BYTES, KEPT_LOG_GIVEN_BACK_PER_CHORE};
use fdbroker_core::Core;
use std::ops::Bound;

impl Table {
    /// Appends a record, to the other area too when what it is of is there already.
    pub(super) fn write(&mut self, key: Key, payload: &[u8]) -> bool {
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

    /// Whether as much of the area is dead as is worth a copy of the rest, or one has begun; or
    /// memory of the other area is to be given back.
    pub(super) fn is_compaction_due(&self) -> bool {
        let dead = self.log.written().saturating_sub(self.live_bytes);
        let most = (self.live_bytes / 4 + KEPT_LOG_DEAD_BYTES).min(self.log.area_bytes() / 4);
        self.log.has_next() || self.log.stale() > 0 || dead > most
    }

    /// Goes on with that: gives memory back, or copies about so many bytes.
    pub(super) fn tidy(&mut self, core: &Core, most_bytes: u64) {
        if self.log.stale() > 0 && !self.log.has_next() {
            self.give_back(KEPT_LOG_GIVEN_BACK_PER_CHORE);
        } else {
            self.compact(core, most_bytes);
        }
    }

    pub(super) fn give_back(&mut self, most_bytes: u64) {
        is_done(self.log.give_back(most_bytes), "keeps memory that it does not need");
    }

    /// Makes room for so many bytes, and has their memory. What lives is at most half of an area,
    /// so there is some: only where records come faster than the copies of what lives, all of that
    /// is copied now.
    pub(super) fn make_room(&mut self, bytes: u64, core: &Core) -> bool {
        if self.log.written() + bytes > self.log.area_bytes() {
            self.log.give_up_next();
            self.compact(core, u64::MAX);
        }
        is_done(self.log.allocate(bytes), "gets no memory")
    }

    /// Copies what lives into the other area, about so many bytes; with the last of it that area is
    /// the one in use.
    pub(super) fn compact(&mut self, core: &Core, most_bytes: u64) {
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
}
