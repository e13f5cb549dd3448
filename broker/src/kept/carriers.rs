//! Carriers: pairs of sockets in whose queues the fds of what is kept lie, one message each. The
//! service manager has both ends from before the first fd, so it is told nothing when something
//! comes or goes, and what lies there outlives this broker. A number says which fd a message has: a
//! message can be written again elsewhere, and it does not matter where it lies. Must never close
//! an fd here: messages are dropped by a lane, and what lives among them is written again before.

use crate::clock;
use crate::fds::carrier::{self, look_into};
use crate::fds::table::FdTable;
use crate::limits::{
    CARRIERS_AHEAD, DEVICE_FDS_PER_CARRIER, DROPPED_AT_ONCE, HOST_FDS_PER_CARRIER,
    MESSAGES_PER_CHORE,
};
use fdbroker_protocol::MemoryKind;
use fdbroker_scm::SendError;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// What a carrier's fds are of. Memory of a device is scarce: what is dead among it is dropped at
/// once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// The host's memory.
    Host,
    /// A device's.
    Device,
}

impl Class {
    /// The class of a kind of memory.
    pub fn of(kind: MemoryKind) -> Self {
        if kind == MemoryKind::Memfd { Class::Host } else { Class::Device }
    }

    /// Most messages of a carrier.
    fn most(self) -> usize {
        match self {
            Class::Host => HOST_FDS_PER_CARRIER,
            Class::Device => DEVICE_FDS_PER_CARRIER,
        }
    }
}

/// Why an fd is not carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CarryError {
    /// All carriers are full.
    Full,
    /// Too many fds of this uid are in flight.
    InFlight,
    /// The kernel does not send it.
    Refused(SendError),
}

/// A message in a queue.
#[derive(Clone, Copy, Debug)]
pub struct Parcel {
    number: u64,
    /// Where the broker has the fd of a live one.
    slot: Option<u32>,
}

#[derive(Debug)]
struct Carrier {
    pair: carrier::Carrier,
    /// Of all that lies in it; it may be of any class as long as it is empty.
    class: Class,
    /// In the order of the queue.
    parcels: VecDeque<Parcel>,
    /// Parcels without a slot, but for those that are being dropped.
    dead: usize,
    /// The first so many messages are with a lane, which drops them.
    dropping: usize,
    /// Ends that the service manager has; both before anything is sent.
    stored: usize,
}

/// See the module.
#[derive(Debug)]
pub struct Carriers {
    all: BTreeMap<u32, Carrier>,
    /// The carrier of each live parcel.
    places: BTreeMap<u64, u32>,
    /// Carriers with dead parcels that are not being dropped.
    dirty: BTreeSet<u32>,
    /// Of these, those of a device.
    urgent: BTreeSet<u32>,
    most: usize,
    /// New ones have at least this number: the store may still drop what has the name of another.
    first_new: u32,
    /// Fds that may lie in all of them.
    most_fds: usize,
    fds: usize,
    /// Of these, those that a lane drops.
    dropping: usize,
    last_number: u64,
}

/// An end of a carrier, by the name that it has in the service manager's store.
pub struct End<'a> {
    /// The carrier's number.
    pub carrier: u32,
    /// It is the one that is written to.
    pub is_near: bool,
    /// The end.
    pub fd: BorrowedFd<'a>,
}

impl Carriers {
    /// None yet, and never more than `most`, nor more fds than `most_fds` in them; new ones have
    /// numbers from `first_new` on.
    pub fn new(most: usize, most_fds: usize, first_new: u32) -> Self {
        Carriers {
            all: BTreeMap::new(),
            places: BTreeMap::new(),
            dirty: BTreeSet::new(),
            urgent: BTreeSet::new(),
            most,
            first_new,
            most_fds,
            fds: 0,
            dropping: 0,
            // Above all that brokers before have given, each fewer than one in a microsecond, so
            // that no fd of theirs is taken for one of this one's, whatever the store hands out.
            last_number: clock::now().0,
        }
    }

    /// The numbers of the messages in a carrier of a broker before, in their order, and of each fd
    /// that lies there a duplicate in `found`.
    ///
    /// # Errors
    /// When it cannot be looked into; what lies before that is found.
    pub fn look(
        &mut self,
        far: BorrowedFd<'_>,
        found: &mut BTreeMap<u64, OwnedFd>,
    ) -> Result<VecDeque<Parcel>, fdbroker_scm::RecvError> {
        let mut parcels = VecDeque::new();
        let looked = look_into(far, |number, fds| {
            let number = number.unwrap_or(0);
            parcels.push_back(Parcel { number, slot: None });
            for fd in fds.drain() {
                // The same number twice is the same fd: it was being written again.
                let is_first = number != 0 && !found.contains_key(&number);
                let number = if is_first { number } else { u64::MAX - found.len() as u64 };
                found.insert(number, fd);
            }
        });
        let highest = parcels.iter().map(|parcel| parcel.number).max().unwrap_or(0);
        self.last_number = self.last_number.max(highest);
        looked.map(|()| parcels)
    }

    /// Goes on with that carrier. All that lies there is dead until it is [claimed](Self::claim).
    pub fn adopt(&mut self, carrier: u32, pair: carrier::Carrier, parcels: VecDeque<Parcel>) {
        self.fds += parcels.len();
        let (dead, class) = (parcels.len(), Class::Host);
        let new = Carrier { pair, class, parcels, dead, dropping: 0, stored: 2 };
        if dead > 0 {
            self.dirty.insert(carrier);
        }
        self.all.insert(carrier, new);
    }

    /// An fd of a broker before is in use: the first message with its number. `false`: there is
    /// none.
    pub fn claim(&mut self, number: u64, slot: u32, class: Class) -> bool {
        for (at, carrier) in &mut self.all {
            let found = carrier.parcels.iter_mut().find(|parcel| parcel.number == number);
            let Some(parcel) = found.filter(|parcel| parcel.slot.is_none()) else { continue };
            parcel.slot = Some(slot);
            carrier.dead -= 1;
            carrier.class = class;
            if carrier.dead == 0 {
                self.dirty.remove(at);
            }
            self.places.insert(number, *at);
            return true;
        }
        false
    }

    /// Whether there should be another one, and may be.
    pub fn wants_another(&self) -> bool {
        let is_ahead = |carrier: &&Carrier| carrier.parcels.is_empty();
        let ahead = self.all.values().filter(is_ahead).count();
        ahead < CARRIERS_AHEAD && self.all.len() < self.most
    }

    /// Makes another one, which is of use once both of its ends are [stored](Self::note_stored).
    ///
    /// # Errors
    /// Those of socketpair(2).
    pub fn add(&mut self) -> io::Result<()> {
        let pair = carrier::Carrier::new()?;
        let last = self.all.last_key_value();
        let number = last.map_or(0, |(number, _)| number + 1).max(self.first_new);
        let (class, parcels) = (Class::Host, VecDeque::new());
        let new = Carrier { pair, class, parcels, dead: 0, dropping: 0, stored: 0 };
        self.all.insert(number, new);
        Ok(())
    }

    /// The next end that the service manager is to have.
    pub fn to_store(&self) -> Option<End<'_>> {
        let (number, carrier) = self.all.iter().find(|(_, carrier)| carrier.stored < 2)?;
        let is_near = carrier.stored == 0;
        let fd = if is_near { carrier.pair.near.as_fd() } else { carrier.pair.far.as_fd() };
        Some(End { carrier: *number, is_near, fd })
    }

    /// The service manager has the end that [`to_store`](Self::to_store) named.
    pub fn note_stored(&mut self, carrier: u32) {
        if let Some(carrier) = self.all.get_mut(&carrier) {
            carrier.stored += 1;
        }
    }

    /// Carries a duplicate of the fd of a slot; its number. One carrier is left for what is written
    /// again.
    ///
    /// # Errors
    /// See [`CarryError`]; nothing of it lies anywhere.
    pub fn send(&mut self, fd: BorrowedFd<'_>, slot: u32, class: Class) -> Result<u64, CarryError> {
        // What a lane drops has ended, or lies elsewhere too.
        if self.fds - self.dropping >= self.most_fds {
            return Err(CarryError::Full);
        }
        let number = self.last_number + 1;
        self.put(number, fd, slot, class, None)?;
        self.last_number = number;
        Ok(number)
    }

    /// Writes a message into a carrier with room. One of the carrier `from` finds room there at
    /// last: the first ones are about to leave it. A new one leaves one empty carrier.
    fn put(
        &mut self,
        number: u64,
        fd: BorrowedFd<'_>,
        slot: u32,
        class: Class,
        from: Option<u32>,
    ) -> Result<(), CarryError> {
        let is_empty = |carrier: &Carrier| carrier.stored == 2 && carrier.parcels.is_empty();
        let has_room = |carrier: &Carrier| {
            let is_in_use = !carrier.parcels.is_empty() && carrier.class == class;
            is_in_use && carrier.parcels.len() < class.most()
        };
        let empty = self.all.iter().filter(|(_, carrier)| is_empty(carrier));
        let left = usize::from(from.is_none());
        let empty: Vec<u32> = empty.map(|(at, _)| *at).skip(left).collect();
        let in_use = self.all.iter().filter(|(_, carrier)| has_room(carrier)).map(|(at, _)| *at);
        let places: Vec<u32> = in_use.chain(empty).chain(from).collect();
        for at in places {
            let carrier = self.all.get_mut(&at).expect("just found");
            match carrier.pair.send(number, &[fd]) {
                Ok(()) => {
                    carrier.class = class;
                    carrier.parcels.push_back(Parcel { number, slot: Some(slot) });
                    self.places.insert(number, at);
                    self.fds += 1;
                    return Ok(());
                }
                // Its queue takes fewer bytes than usual.
                Err(SendError::WouldBlock) => {}
                Err(SendError::TooManyRefs) => return Err(CarryError::InFlight),
                Err(error) => return Err(CarryError::Refused(error)),
            }
        }
        Err(CarryError::Full)
    }

    /// Nobody needs the fd of this number any more.
    pub fn bury(&mut self, number: u64) {
        let Some(at) = self.places.remove(&number) else { return };
        let Some(carrier) = self.all.get_mut(&at) else { return };
        let later = carrier.parcels.iter_mut().skip(carrier.dropping);
        // The last one with the number: one before it is being dropped.
        if let Some(parcel) = later.rev().find(|parcel| parcel.number == number) {
            parcel.slot = None;
            carrier.dead += 1;
            self.note_dirty(at);
        }
    }

    fn note_dirty(&mut self, at: u32) {
        let carrier = &self.all[&at];
        // A lane is at it: later.
        if carrier.dropping > 0 {
            return;
        }
        self.dirty.insert(at);
        if carrier.class == Class::Device {
            self.urgent.insert(at);
        }
    }

    /// Whether dead fds of a device lie in a carrier.
    pub fn is_urgent(&self) -> bool {
        !self.urgent.is_empty()
    }

    /// Whether dead fds lie in a carrier, and may be dropped now: what a lane drops lies there
    /// twice, and is in flight twice.
    pub fn is_dirty(&self) -> bool {
        !self.dirty.is_empty() && self.dropping <= DROPPED_AT_ONCE - MESSAGES_PER_CHORE
    }

    /// Whether dead fds lie in a carrier, or a lane is at them.
    pub fn has_dead(&self) -> bool {
        self.dropping > 0 || self.all.values().any(|carrier| carrier.dead > 0)
    }

    /// Has a lane drop the first messages of a carrier, at most as many as one rewriting may be, up
    /// to the last dead one of them; what lives of these is written again before. `false`: that
    /// cannot be done now.
    pub fn rewrite(&mut self, table: &mut FdTable) -> bool {
        // Of the one with most dead fds: a queue is dropped from its head, so that a single dead
        // one behind costs the rewriting of all before it.
        let dead = |at: &&u32| self.all[at].dead;
        let most_dead = || self.dirty.iter().max_by_key(dead);
        let Some(at) = self.urgent.first().or_else(most_dead).copied() else { return false };
        self.urgent.remove(&at);
        self.dirty.remove(&at);
        let carrier = &self.all[&at];
        let first: Vec<Parcel> = carrier.parcels.iter().take(MESSAGES_PER_CHORE).copied().collect();
        let last_dead = first.iter().rposition(|parcel| parcel.slot.is_none());
        // Without a dead one among the first, these go behind: the next look comes to the others.
        let mut count = last_dead.map_or(first.len(), |last| last + 1);
        let class = carrier.class;
        for (index, parcel) in first[..count].iter().enumerate() {
            let Some(slot) = parcel.slot else { continue };
            let sent = match table.held(slot) {
                Some(fd) => self.put(parcel.number, fd, slot, class, Some(at)),
                None => Err(CarryError::Full),
            };
            if let Err(error) = sent {
                log::debug!("the fd of slot {slot} stays where it lies: {error:?}");
                count = index;
                break;
            }
        }
        let carrier = self.all.get_mut(&at).expect("just found");
        let duplicate = carrier.pair.far.try_clone();
        let Some(duplicate) = duplicate.ok().filter(|_| count > 0) else {
            self.note_dirty(at);
            return false;
        };
        carrier.dropping = count;
        self.dropping += count;
        carrier.dead -= carrier.parcels.iter().take(count).filter(|it| it.slot.is_none()).count();
        table.closers().drop_carried(duplicate, count, at);
        true
    }

    /// A lane has dropped the messages of a carrier that it was told to.
    pub fn note_dropped(&mut self, at: u32) {
        let Some(carrier) = self.all.get_mut(&at) else { return };
        let count = std::mem::take(&mut carrier.dropping);
        carrier.parcels.drain(..count);
        self.fds -= count;
        self.dropping -= count;
        if carrier.dead > 0 {
            self.note_dirty(at);
        }
    }

    /// Fds that lie in carriers.
    #[cfg(test)]
    pub fn fds(&self) -> usize {
        self.fds
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::memfd::{MFdFlags, memfd_create};

    #[test]
    fn send_when_a_broker_before_has_given_numbers_then_above_them() {
        let fd = memfd_create(c"memory", MFdFlags::MFD_CLOEXEC).unwrap();
        let number = || {
            let mut carriers = Carriers::new(4, 16, 0);
            for carrier in [0, 0, 1, 1] {
                if carriers.to_store().is_none() {
                    carriers.add().unwrap();
                }
                carriers.note_stored(carrier);
            }
            carriers.send(fd.as_fd(), 7, Class::Host).unwrap()
        };
        let before = number();
        std::thread::sleep(std::time::Duration::from_micros(2));
        assert!(number() > before);
    }
}
