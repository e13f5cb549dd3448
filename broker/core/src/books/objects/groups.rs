//! The groups of objects by number, and by the slot of their memory. Must never have two groups in
//! one allocation.

use std::ops::{Deref, DerefMut};

use crate::api::{GroupId, Inherits, NONE, Now};
use crate::books::check::{Check, ensure};
use crate::books::lists::{Link, Nodes};
use crate::books::objects::names::{Name, NameScope};
use crate::books::slots::{SavedSlots, Slots};
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

/// What the end of a group helps against.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Class {
    /// A cap of held bytes.
    NotKept,
    /// One of kept bytes of the host, too.
    KeptHost,
    /// One of kept bytes of GPUs, too.
    KeptGpu,
}

impl Class {
    /// Kept ones first.
    pub(crate) const ALL: [Class; 3] = [Class::KeptHost, Class::KeptGpu, Class::NotKept];
}

/// Whether somebody has a lease of a group; its class; and since when it is not in use, or is, as
/// far as the order knows.
pub(crate) type Place = (bool, Class, Now);

/// What a name must lead to when its object is sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Expect {
    /// Nothing.
    Free,
    /// Anything.
    Any,
    /// This version; 0 = nothing.
    Version(u64),
}

/// One object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Its name.
    pub name: Name,
    /// Where in the memory it begins, bytes.
    pub offset: u64,
    /// Size in bytes.
    pub size_bytes: u64,
    /// What its name must lead to when it is sealed.
    pub expect: Expect,
    /// Opaque.
    pub metadata: Box<[u8]>,
    /// It has the name still, or is made under it; the domain is charged for that.
    pub is_named: bool,
}

impl Member {
    /// Whether it can be sealed only if its name leads to an object of a certain version.
    pub fn expects_an_object(&self) -> bool {
        matches!(self.expect, Expect::Version(version) if version > 0)
    }
}

/// What a group is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum GroupState {
    /// In the making: its creator alone has it.
    Making,
    /// It can be had, with this version.
    Sealed(u64),
    /// It has no names any more, or its memory has ended: its members are still to be swept.
    Ended {
        /// Of its objects; 0: it was in the making.
        version: u64,
        /// It has made room for others.
        is_evicted: bool,
    },
}

/// One group. It goes to a successor (`saved.rs`): another field, or another order, is another
/// format of the daemon's handover.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Group {
    /// Whose its names are.
    pub scope: NameScope,
    /// The domain that is charged.
    pub domain: u32,
    /// Its creator's job, which counts its names; `None`: it was of none, or the group has ended.
    pub job: Option<u32>,
    /// The slot of its memory; `NONE`: that has ended.
    pub allocation: u32,
    /// Its creator's number and serial.
    pub creator: (u32, u64),
    /// Its creator's pid.
    pub creator_pid: u32,
    /// What it is.
    pub state: GroupState,
    /// Names may lead to other objects when it is sealed.
    pub replace: bool,
    /// It outlives its creator once it is sealed, for so many us after its last use.
    pub keep_us: Option<u64>,
    /// It ends neither by time nor to make room.
    pub pin: bool,
    /// In the making: what it may have beside these two when it is sealed.
    pub inherits: Inherits,
    /// In the making: it outlives its creator in any case.
    pub outlives: bool,
    /// In the making: a seal has found others under its names. Nobody else is to hear of its end.
    pub is_refused: bool,
    /// It may end when bytes are short.
    pub evictable: bool,
    /// The domain is charged for keeping it, and nobody owns its memory.
    pub is_kept: bool,
    /// When it is looked at whether its time is over.
    pub due: Option<Now>,
    /// Bytes of its memory.
    pub size_bytes: u64,
    /// That is memory of the host, not of a device.
    pub is_host: bool,
    /// When it was begun, or sealed.
    pub since: Now,
    /// When it was used last.
    pub used: Now,
    /// Its objects, at most [`MAX_GROUP`](fdbroker_protocol::limits::MAX_GROUP).
    pub members: Vec<Member>,
    /// Of these, those that have their names.
    pub names: u32,
    /// Of an ended one: members that have been swept.
    pub swept: usize,
    /// Its place among those that are still to be swept.
    #[serde(skip)]
    pub link: Link,
    /// Its place among those that may be evicted.
    pub place: Option<Place>,
}

impl Group {
    /// One in the making, without objects; its memory is still to come.
    pub fn new(
        domain: u32,
        scope: NameScope,
        creator: (u32, u64),
        creator_pid: u32,
        size_bytes: u64,
        now: Now,
    ) -> Self {
        Group {
            scope,
            domain,
            job: None,
            allocation: NONE,
            creator,
            creator_pid,
            state: GroupState::Making,
            replace: false,
            keep_us: None,
            pin: false,
            inherits: Inherits::default(),
            outlives: false,
            is_refused: false,
            evictable: false,
            is_kept: false,
            due: None,
            size_bytes,
            is_host: true,
            since: now,
            used: now,
            members: Vec::new(),
            names: 0,
            swept: 0,
            link: Link::OUT,
            place: None,
        }
    }

    /// Adds an object that has the name; where it begins and its size, bytes.
    pub fn add_member(
        &mut self,
        name: Name,
        (offset, size_bytes): (u64, u64),
        expect: Expect,
        metadata: &[u8],
    ) {
        self.names += 1;
        let metadata = metadata.into();
        self.members.push(Member { name, offset, size_bytes, expect, metadata, is_named: true });
    }

    /// What its end helps against.
    pub(crate) fn class(&self) -> Class {
        match (self.is_kept, self.is_host) {
            (false, _) => Class::NotKept,
            (true, true) => Class::KeptHost,
            (true, false) => Class::KeptGpu,
        }
    }

    /// The version of its objects; 0 while they are in the making.
    pub fn version(&self) -> u64 {
        match self.state {
            GroupState::Sealed(version) => version,
            GroupState::Making | GroupState::Ended { .. } => 0,
        }
    }

    /// The first of the names that it has.
    pub fn first_name(&self) -> Option<&[u8]> {
        self.members.iter().find(|member| member.is_named).map(|member| &*member.name)
    }

    /// Whether it is still to be swept, and nothing else.
    pub fn is_ended(&self) -> bool {
        matches!(self.state, GroupState::Ended { .. })
    }
}

/// Groups seen through the list of those to be swept.
pub struct GroupLinks<'a>(pub &'a mut Slots<Group>);

impl Nodes for GroupLinks<'_> {
    fn link(&mut self, node: u32) -> &mut Link {
        &mut self.0[node].link
    }
}

/// All groups.
#[derive(Debug, Default)]
pub struct Groups {
    table: Slots<Group>,
    /// By the slot of their memory.
    by_slot: FxHashMap<u32, u32>,
}

impl Deref for Groups {
    type Target = Slots<Group>;

    fn deref(&self) -> &Slots<Group> {
        &self.table
    }
}

impl DerefMut for Groups {
    fn deref_mut(&mut self) -> &mut Slots<Group> {
        &mut self.table
    }
}

impl Groups {
    /// Those of a predecessor, whose memory is still to be found.
    pub fn restore(saved: SavedSlots<Group>) -> Check<Self> {
        let table = Slots::restore(NONE, 0, saved)?;
        let mut new = Groups { table, ..Groups::default() };
        for number in new.full() {
            let slot = new[number].allocation;
            ensure(slot != NONE && new.in_slot(slot).is_none(), "memory of a group", number)?;
            new.set_memory(number, slot);
        }
        Ok(new)
    }

    /// A new group, whose memory is still to come.
    pub fn insert(&mut self, group: Group) -> u32 {
        self.table.insert(group).expect("2^32 slots outlast memory").0
    }

    /// Its memory is there.
    pub fn set_memory(&mut self, group: u32, slot: u32) {
        self.table[group].allocation = slot;
        self.by_slot.insert(slot, group);
    }

    /// Its memory has ended; the group, if it was one's.
    pub fn take_memory(&mut self, slot: u32) -> Option<u32> {
        let group = self.by_slot.remove(&slot)?;
        self.table[group].allocation = NONE;
        Some(group)
    }

    /// The group in an allocation.
    pub fn in_slot(&self, slot: u32) -> Option<&Group> {
        self.number_in(slot).map(|group| &self.table[group])
    }

    /// The number of the group whose memory is the allocation in `slot`; `None`: it is no group's.
    pub fn number_in(&self, slot: u32) -> Option<u32> {
        self.by_slot.get(&slot).copied()
    }

    /// The number of a group in use.
    pub fn id_of(&self, group: u32) -> GroupId {
        GroupId(u64::from(self.table.generation(group)) << 32 | u64::from(group))
    }

    /// The slot of a number.
    pub fn find(&self, id: GroupId) -> Option<u32> {
        let (slot, generation) = (id.0 as u32, (id.0 >> 32) as u32);
        self.table.get(slot, generation).map(|_| slot)
    }

    /// Asserts that each group is found by its memory.
    pub fn check(&self) {
        let with_memory = self.table.iter_from(0).filter(|(number, group)| {
            let has = group.allocation != NONE;
            assert!(!has || self.by_slot.get(&group.allocation) == Some(number), "group {number}");
            has
        });
        assert_eq!(with_memory.count(), self.by_slot.len(), "memory of no group");
    }
}
