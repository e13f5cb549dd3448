//! The record of an allocation, and what is known beside it. Plain data; must never act by itself.
//! It goes to a successor (`saved.rs`): another field, or another order, is another format of the
//! daemon's handover.

use crate::api::{ClientId, Deposit, Granted, LeaseId, NONE, Now, Wanted};
use crate::books::gpus::NO_GPU;
use crate::books::lists::{Link, List, Nodes};
use crate::books::order::{Moment, Stamp};
use crate::books::slots::{Flat, Slots};
use fdbroker_protocol::limits::DRIVER_DATA_BYTES;
use fdbroker_protocol::{ErrorCode, Facts, FactsItem, Gpu, MemoryKind, Share, Status};
use serde::{Deserialize, Serialize};

/// Bytes in use, and the bytes.
pub type DriverData = (u8, [u8; DRIVER_DATA_BYTES]);

/// Where an allocation's fd is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum State {
    /// The broker has it and can get it again.
    Held,
    /// The broker has it and cannot get it again.
    Resident,
    /// The broker has closed it.
    Evicted,
    /// A place is reserved and the owner is asked, see `Recall`.
    Recalling,
    /// Of before a crash, and its owner has not named it again yet: no fd, no owner.
    Reserved,
    /// The allocation has ended, for this reason; leases or its drained notice are still out.
    Ended(#[serde(with = "error_code")] ErrorCode),
}

/// Lists that an allocation can be in.
#[derive(Clone, Copy, Debug)]
pub enum AllocationList {
    /// All allocations of the owner, ended ones included.
    Owned,
    /// What may be evicted of the owner's: held, recallable, not waited for.
    Lru,
    /// The owner's recalls to send; when it has ended, those whose leases are still to be swept;
    /// then the owner's drained notices to send.
    Event,
}

impl AllocationList {
    /// Which of its links an allocation is in this list by. The last two share one: what is held
    /// has no event to send.
    fn link(self) -> usize {
        match self {
            AllocationList::Owned => 0,
            AllocationList::Lru | AllocationList::Event => 1,
        }
    }
}

const ALLOCATION_LINKS: usize = 2;

const RECALLABLE: u8 = 1 << 4;

const KEEP: u8 = 1 << 5;

const HAS_DRIVER_DATA: u8 = 1 << 6;

const HAS_VIRTUAL_FD: u8 = 1 << 7;

/// What was said of an allocation when it was registered, in one byte: its kind in bits 0 and 1,
/// its share in 2 and 3, and flags. The saved state has it so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traits(u8);

impl Traits {
    /// Whether any deposit has these.
    pub fn is_sound(self) -> bool {
        let (kind, share) = (self.0 & 3, self.0 >> 2 & 3);
        MemoryKind::from_number(kind).is_some() && Share::from_number(share).is_some()
    }

    /// What kind of memory it is.
    pub fn kind(self) -> MemoryKind {
        MemoryKind::from_number(self.0 & 3).expect("of a deposit")
    }

    /// Who may have it.
    pub fn share(self) -> Share {
        Share::from_number(self.0 >> 2 & 3).expect("of a deposit")
    }

    /// The owner can give its fd again.
    pub fn is_recallable(self) -> bool {
        self.0 & RECALLABLE != 0
    }

    /// Its fd may be closed to make room for others.
    pub fn is_evictable(self) -> bool {
        self.is_recallable() && !self.is_to_be_kept()
    }

    /// It outlives its owner, and is never evicted.
    pub fn is_to_be_kept(self) -> bool {
        self.0 & KEEP != 0
    }

    /// There is driver data of it.
    pub fn has_driver_data(self) -> bool {
        self.0 & HAS_DRIVER_DATA != 0
    }

    /// It has a virtual fd from now on.
    pub fn add_virtual_fd(&mut self) {
        self.0 |= HAS_VIRTUAL_FD;
    }

    /// Clients of its domain can name it by its virtual fd.
    pub fn has_virtual_fd(self) -> bool {
        self.0 & HAS_VIRTUAL_FD != 0
    }
}

impl From<&Deposit> for Traits {
    fn from(deposit: &Deposit) -> Self {
        let flag = |is_set, bit| if is_set { bit } else { 0 };
        let flags = flag(deposit.recallable, RECALLABLE)
            | flag(deposit.keep, KEEP)
            | flag(deposit.driver_data.is_some(), HAS_DRIVER_DATA)
            | flag(deposit.virtual_fd, HAS_VIRTUAL_FD);
        Traits(deposit.facts.kind as u8 | (deposit.share as u8) << 2 | flags)
    }
}

/// One piece of memory. Kept small: there may be a million. Without gaps, as its generation goes
/// before it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[repr(Rust, packed(4))]
pub struct Allocation {
    /// Bytes of memory; of its own, not of the file that it may be a range of.
    pub size_bytes: u64,
    /// Where it begins in that file, in bytes.
    pub fd_offset: u64,
    /// The id that its owner gave it: another one at the same address is other memory.
    pub owner_allocation_id: u64,
    /// Address in the owner, 0 = none.
    pub base: u64,
    /// Owner's number; `NONE` once it is gone, and while nobody has named it again.
    pub owner: u32,
    /// Owner's domain, also after the owner is gone.
    pub domain: u32,
    /// Owner's own number of the device.
    pub device: u16,
    /// The GPU, by its number in the table of its domain.
    pub gpu: u16,
    /// Registrations not yet taken back.
    pub registrations: u32,
    /// While it is held, its stake in `books::files`; `NONE`: it pins its size, or is not held.
    pub file: u32,
    /// Its recall under way, or `NONE`.
    #[serde(skip)]
    pub recall: u32,
    /// How many of its leases are open: their clients hold an fd.
    #[serde(skip)]
    pub open: u32,
    /// When it was registered or, after a crash, named again.
    pub registered: Moment,
    /// Its leases, open and mapped, those of ended clients not yet torn down included.
    #[serde(skip)]
    pub leases: List,
    /// Its places in the lists.
    #[serde(skip)]
    pub links: [Link; ALLOCATION_LINKS],
    /// Its place in the order of eviction, and its last use.
    pub stamp: Stamp,
    /// Where the fd is.
    pub state: State,
    /// What was said of it.
    pub traits: Traits,
    /// Ended, drained, and its owner is to be told: in the owner's drained list.
    pub drained: bool,
}

// With its generation and the niche of its state it is 108 bytes.
const _: () = assert!(size_of::<Allocation>() <= 104);

impl Allocation {
    /// Its owner; `None` once gone.
    pub fn owner(&self) -> Option<ClientId> {
        (self.owner != NONE).then_some(ClientId(self.owner))
    }

    /// Why it has ended; `None`: it lives.
    pub fn ended(&self) -> Option<ErrorCode> {
        if let State::Ended(code) = self.state { Some(code) } else { None }
    }

    /// Whether it has not ended.
    pub fn is_live(&self) -> bool {
        self.ended().is_none()
    }

    /// Whether the broker has its fd.
    pub fn is_held(&self) -> bool {
        matches!(self.state, State::Held | State::Resident)
    }

    /// Whether that is an fd of CUDA memory.
    pub fn is_held_cuda(&self) -> bool {
        // Also asked of saved data that is not checked yet.
        let kind = MemoryKind::from_number(self.traits.0 & 3);
        self.is_held() && kind.is_some_and(MemoryKind::is_for_cuda)
    }

    /// Whether it counts among those that outlive their owner.
    pub fn is_kept(&self) -> bool {
        self.traits.is_to_be_kept() && self.is_live()
    }

    /// Whether it lives on when its owner is gone: kept, and its fd is here.
    pub fn outlives_owner(&self) -> bool {
        self.traits.is_to_be_kept() && self.state == State::Resident
    }

    /// Whether it is in a list.
    pub fn is_in(&self, list: AllocationList) -> bool {
        self.link(list).is_in()
    }

    /// Its place in a list.
    pub fn link(&self, list: AllocationList) -> Link {
        self.links[list.link()]
    }
}

/// Allocations seen through one of their lists.
pub struct AllocationLinks<'a>(pub &'a mut Slots<Allocation>, pub AllocationList);

impl Nodes for AllocationLinks<'_> {
    fn link(&mut self, node: u32) -> &mut Link {
        &mut self.0[node].links[self.1.link()]
    }
}

/// A kept allocation whose owner is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Orphan {
    /// When it ends.
    pub until: Now,
    /// Its owner's group.
    pub gid: u32,
    /// Its owner's job, by number.
    pub job: Option<u32>,
}

impl Allocation {
    /// The row as a record: it has them in fewer bytes. `gpu`: what its number stands for.
    pub fn facts(&self, gpu: Gpu) -> Facts {
        let Allocation { device, size_bytes, fd_offset, owner_allocation_id, .. } = *self;
        Facts::new(self.traits.kind(), size_bytes)
            .device(device.into())
            .gpu(gpu)
            .fd_offset(fd_offset)
            .owner_allocation_id(owner_allocation_id)
    }

    /// One of this deposit, in no list yet, and of no GPU.
    pub fn new(deposit: &Deposit, owner: u32, domain: u32, state: State, now: Now) -> Self {
        let FactsItem { kind: _, device: _, gpu: _, size_bytes, fd_offset, owner_allocation_id } =
            deposit.facts.into();
        Allocation {
            size_bytes: size_bytes.get(),
            fd_offset: fd_offset.get(),
            owner_allocation_id: owner_allocation_id.get(),
            base: deposit.base,
            owner,
            domain,
            device: deposit.device(),
            gpu: NO_GPU,
            registrations: 1,
            file: NONE,
            recall: NONE,
            open: 0,
            registered: Moment::of(now),
            leases: List::EMPTY,
            links: Default::default(),
            stamp: Stamp::of(now),
            state,
            traits: deposit.into(),
            drained: false,
        }
    }

    /// What its new lease is told of it. `gpu`: what its number stands for.
    pub fn granted(&self, gpu: Gpu, wanted: Wanted, lease: LeaseId) -> Granted {
        Granted {
            wanted,
            status: Status::OK,
            lease,
            facts: self.facts(gpu),
            has_driver_data: self.traits.has_driver_data(),
        }
    }
}

impl Flat for Allocation {
    fn flat(&self) -> Self {
        let (file, recall, open, leases) = (NONE, NONE, 0, List::EMPTY);
        let links = Default::default();
        let stamp = self.stamp.out_of_order();
        Allocation { file, recall, open, leases, links, stamp, ..self.clone() }
    }
}

/// The serde form of an error code: its number.
mod error_code {
    use fdbroker_protocol::ErrorCode;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn serialize<S: Serializer>(code: &ErrorCode, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u16(*code as u16)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<ErrorCode, D::Error> {
        let code = ErrorCode::from_number(u16::deserialize(from)?);
        code.ok_or_else(|| D::Error::custom("no error has this number"))
    }
}
