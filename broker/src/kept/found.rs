//! What the service manager had of what is kept, by a broker before this one. Must never believe
//! it: a record without its fd is nothing, and so is an end of a carrier without the other.

use crate::fds::carrier::Carrier;
use crate::kept::log::{Log, LogError, payloads};
use crate::kept::records::{Key, Record, decode, encode, replay};
use crate::manager::inherited::names;
use fdbroker_core::{Kept, KeptGroup};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, OwnedFd};

/// A kept group or allocation, with its fd.
#[derive(Debug)]
pub struct Found {
    payload: Vec<u8>,
    /// Of the group's memory, or of the allocation's.
    pub fd: OwnedFd,
}

impl Found {
    /// What the log says of it; none where its bytes are no record.
    pub fn record(&self) -> Option<Record<'_>> {
        decode(&self.payload)
    }

    /// What its record takes.
    pub fn bytes(&self) -> usize {
        self.payload.len()
    }

    /// The group, if it is one.
    pub fn group(&self) -> Option<KeptGroup<'_>> {
        if let Some(Record::Group(saved)) = self.record() { saved.to_kept() } else { None }
    }

    /// The allocation, if it is one.
    pub fn allocation(&self) -> Option<Kept> {
        if let Some(Record::Allocation(saved)) = self.record() { saved.to_kept() } else { None }
    }
}

/// What the service manager's store had.
#[derive(Debug, Default)]
pub struct Stored {
    /// Each fd by the name that the service manager stores it under.
    pub fds: BTreeMap<String, OwnedFd>,
    /// Names under which the store has something of no use, beside one of `fds` or alone.
    pub strays: BTreeSet<String>,
}

/// All of it.
#[derive(Debug, Default)]
pub struct FoundAll {
    /// What is whole.
    pub whole: Vec<Found>,
    /// Versions up to this one may have been given; `None`: nobody knows.
    pub last_version: Option<u64>,
    /// Fds of no use.
    pub unknown: Vec<OwnedFd>,
}

impl FoundAll {
    /// Reads a log, and has what lives by it, with the fds out of `carried`. The log, if it can be
    /// gone on with.
    pub(super) fn read(
        &mut self,
        log: Option<OwnedFd>,
        mut carried: BTreeMap<u64, OwnedFd>,
    ) -> Option<Log> {
        let log = log.map(|log| self.read_all(log, &mut carried)).transpose();
        let log = log.unwrap_or_else(|error| {
            log::error!("the kept objects and allocations of before are lost, their table is of no use: {error}");
            None
        });
        if log.is_none() && !carried.is_empty() {
            let count = carried.len();
            log::error!("{count} kept fds are given up: the table that names them has not come");
        }
        self.last_version = log.as_ref().map(Log::versions);
        self.unknown.extend(carried.into_values());
        log
    }

    fn read_all(
        &mut self,
        log: OwnedFd,
        carried: &mut BTreeMap<u64, OwnedFd>,
    ) -> Result<Log, LogError> {
        if !Log::can_be(log.as_fd()) {
            self.unknown.push(log);
            return Err(LogError::Format);
        }
        let (log, bytes) = Log::adopt(log)?;
        let table = replay(payloads(&bytes)).ok_or(LogError::Record)?;
        let mut add = |key: Key, parcel: u64, record: Record<'_>| match carried.remove(&parcel) {
            Some(fd) => self.whole.push(Found { payload: encode(&record), fd }),
            None => log::error!("{key} is lost: its fd has not come"),
        };
        for (version, group) in table.groups {
            add(Key::Group(version), group.parcel, Record::Group(group));
        }
        for (slot, saved) in table.allocations {
            add(Key::Allocation(slot), saved.parcel, Record::Allocation(saved));
        }
        Ok(log)
    }
}

/// The name of an end of a carrier in the store.
pub(super) fn end_name(carrier: u32, is_near: bool) -> String {
    format!("{}{carrier}.{}", names::KEPT_CARRIER_PREFIX, u8::from(is_near))
}

/// Carriers both of whose ends are in `stored`, out of it, by their numbers.
pub(super) fn pairs(stored: &mut BTreeMap<String, OwnedFd>) -> Vec<(u32, Carrier)> {
    let mut found = Vec::new();
    let numbers: Vec<u32> = stored.keys().filter_map(|name| carrier_of(name)).collect();
    for number in numbers {
        let [near, far] = [true, false].map(|is_near| end_name(number, is_near));
        // One without the other must not be closed here.
        if stored.contains_key(&near)
            && let Some(far) = stored.remove(&far)
            && let Some(near) = stored.remove(&near)
        {
            found.push((number, Carrier { near, far }));
        }
    }
    found
}

/// The first number above those of all carriers of which anything is in `stored`.
pub(super) fn first_free(stored: &BTreeMap<String, OwnedFd>) -> u32 {
    let numbers = stored.keys().filter_map(|name| carrier_of(name));
    numbers.max().map_or(0, |last| last + 1)
}

/// The carrier whose end has this name. So many as `i32` has were never made.
fn carrier_of(name: &str) -> Option<u32> {
    let (number, _) = name.strip_prefix(names::KEPT_CARRIER_PREFIX)?.split_once('.')?;
    number.parse().ok().filter(|number| *number < i32::MAX as u32)
}
