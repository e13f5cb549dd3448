//! The records of the log of what is kept, and what all of them together say. Must never believe a
//! record: whatever it says, one name leads to one object at most, and a group without names is
//! none.

use fdbroker_core::{
    Deposit, DomainKey, JobKey, JobName, Kept, KeptGroup, KeptObject, Now, PodKey,
};
use fdbroker_protocol::limits::DRIVER_DATA_BYTES;
use fdbroker_protocol::{AllocationId, FactsItem, Gpu, GpuItem, Share};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::fmt;

/// One record. A new one goes to the end; another shape is another [magic](super::log) of the log.
#[derive(Debug, Serialize, Deserialize)]
pub enum Record<'a> {
    /// A group is kept from now on.
    #[serde(borrow)]
    Group(SavedGroup<'a>),
    /// An object of the group of this version has lost its name.
    Lost(u64, #[serde(borrow, with = "raw")] &'a [u8]),
    /// The group of this version is kept for another time from now on, or is pinned, or is not any
    /// more.
    Changed(u64, Option<u64>, bool),
    /// The group of this version has ended.
    Ended(u64),
    /// An allocation is kept from now on, or something of it has changed.
    Allocation(SavedAllocation<'a>),
    /// The kept allocation of this slot has ended.
    AllocationEnded(u32),
}

impl Record<'_> {
    fn place(&self) -> Option<&Place> {
        match self {
            Record::Group(SavedGroup { place, .. }) => Some(place),
            Record::Allocation(SavedAllocation { place, .. }) => Some(place),
            _ => None,
        }
    }

    fn place_mut(&mut self) -> Option<&mut Place> {
        match self {
            Record::Group(SavedGroup { place, .. }) => Some(place),
            Record::Allocation(SavedAllocation { place, .. }) => Some(place),
            _ => None,
        }
    }
}

/// What in the log lives or ends as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    /// The kept allocation of this slot.
    Allocation(u32),
    /// The kept group of this version.
    Group(u64),
}

impl Key {
    /// It has ended.
    pub fn ended(self) -> Record<'static> {
        match self {
            Key::Allocation(slot) => Record::AllocationEnded(slot),
            Key::Group(version) => Record::Ended(version),
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Key::Allocation(slot) => write!(f, "the kept allocation of slot {slot}"),
            Key::Group(version) => write!(f, "the kept group of version {version}"),
        }
    }
}

/// Where an allocation is, and whose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Place {
    slot: u32,
    generation: u32,
    listener: u32,
    uid: u32,
    /// Behind the record, of a pod alone: so the records of brokers that knew no pods are read.
    #[serde(skip)]
    pod: PodKey,
}

impl Place {
    fn new(id: AllocationId, domain: DomainKey) -> Self {
        let (AllocationId { slot, generation }, DomainKey { listener, uid, pod }) = (id, domain);
        Place { slot, generation, listener, uid, pod }
    }

    fn domain(self) -> DomainKey {
        DomainKey { listener: self.listener, uid: self.uid, pod: self.pod }
    }

    fn id(self) -> AllocationId {
        AllocationId { slot: self.slot, generation: self.generation }
    }
}

/// What is said of the memory of a group or an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct SavedMemory<'a> {
    kind: u8,
    device: u32,
    gpu: [u8; size_of::<GpuItem>()],
    size_bytes: u64,
    fd_offset: u64,
    owner_allocation_id: u64,
    #[serde(borrow, with = "raw")]
    driver_data: &'a [u8],
}

impl<'a> SavedMemory<'a> {
    fn of(deposit: &'a Deposit) -> Self {
        let FactsItem { size_bytes, fd_offset, owner_allocation_id, gpu, device, kind } =
            deposit.facts.into();
        let data = deposit.driver_data.as_ref();
        let driver_data = data.map_or(&[][..], |(length, bytes)| &bytes[..usize::from(*length)]);
        SavedMemory {
            kind,
            device: device.get(),
            gpu: gpu.get().to_bytes(),
            size_bytes: size_bytes.get(),
            fd_offset: fd_offset.get(),
            owner_allocation_id: owner_allocation_id.get(),
            driver_data,
        }
    }

    /// As that of a group: shared with its uid.
    fn to_deposit(self) -> Option<Deposit> {
        let facts = FactsItem {
            size_bytes: self.size_bytes.into(),
            fd_offset: self.fd_offset.into(),
            owner_allocation_id: self.owner_allocation_id.into(),
            gpu: Gpu::from_bytes(self.gpu).into(),
            device: self.device.into(),
            kind: self.kind,
        };
        let facts = facts.get()?;
        let driver_data = match self.driver_data.len() {
            0 => None,
            length => {
                let mut data = [0; DRIVER_DATA_BYTES];
                data.get_mut(..length)?.copy_from_slice(self.driver_data);
                Some((u8::try_from(length).ok()?, data))
            }
        };
        Some(Deposit { driver_data, ..facts.into() })
    }
}

/// A [`KeptGroup`] as it is written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedGroup<'a> {
    /// Of its objects.
    pub version: u64,
    /// The number of its fd in the carriers.
    pub parcel: u64,
    place: Place,
    job: Option<(JobKey, JobName)>,
    creator_pid: u32,
    keep_us: Option<u64>,
    pin: bool,
    evictable: bool,
    since_us: u64,
    #[serde(borrow)]
    memory: SavedMemory<'a>,
    #[serde(borrow)]
    objects: Vec<SavedObject<'a>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct SavedObject<'a> {
    #[serde(borrow, with = "raw")]
    name: &'a [u8],
    offset: u64,
    size_bytes: u64,
    #[serde(borrow, with = "raw")]
    metadata: &'a [u8],
}

impl<'a> SavedGroup<'a> {
    /// What to write of a group whose fd has this number.
    pub fn of(kept: &'a KeptGroup<'a>, parcel: u64) -> Self {
        let object = |object: &KeptObject<'a>| {
            let KeptObject { name, offset, size_bytes, metadata } = *object;
            SavedObject { name, offset, size_bytes, metadata }
        };
        SavedGroup {
            version: kept.version,
            parcel,
            place: Place::new(kept.id, kept.domain),
            job: kept.job,
            creator_pid: kept.creator_pid,
            keep_us: kept.keep_us,
            pin: kept.pin,
            evictable: kept.evictable,
            since_us: kept.since.0,
            memory: SavedMemory::of(&kept.deposit),
            objects: kept.objects.iter().map(object).collect(),
        }
    }

    /// The group; `None`: it cannot be one.
    pub fn to_kept(&self) -> Option<KeptGroup<'a>> {
        let object = |object: &SavedObject<'a>| {
            let SavedObject { name, offset, size_bytes, metadata } = *object;
            KeptObject { name, offset, size_bytes, metadata }
        };
        Some(KeptGroup {
            version: self.version,
            id: self.place.id(),
            domain: self.place.domain(),
            job: self.job,
            creator_pid: self.creator_pid,
            keep_us: self.keep_us,
            pin: self.pin,
            evictable: self.evictable,
            since: Now(self.since_us),
            deposit: self.memory.to_deposit()?.into(),
            objects: self.objects.iter().map(object).collect(),
        })
    }
}

/// A [`Kept`] as it is written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedAllocation<'a> {
    /// The number of its fd in the carriers.
    pub parcel: u64,
    place: Place,
    gid: u32,
    job: Option<(JobKey, JobName)>,
    share: u8,
    recallable: bool,
    base: u64,
    virtual_fd: bool,
    #[serde(borrow)]
    memory: SavedMemory<'a>,
}

impl<'a> SavedAllocation<'a> {
    /// What to write of an allocation whose fd has this number.
    pub fn of(kept: &'a Kept, parcel: u64) -> Self {
        SavedAllocation {
            parcel,
            place: Place::new(kept.id, kept.domain),
            gid: kept.gid,
            job: kept.job,
            share: kept.deposit.share as u8,
            recallable: kept.deposit.recallable,
            base: kept.deposit.base,
            virtual_fd: kept.deposit.virtual_fd,
            memory: SavedMemory::of(&kept.deposit),
        }
    }

    /// Which one.
    pub fn id(&self) -> AllocationId {
        self.place.id()
    }

    /// The allocation; `None`: it cannot be one.
    pub fn to_kept(&self) -> Option<Kept> {
        let claimed = Deposit {
            share: Share::from_number(self.share)?,
            recallable: self.recallable,
            keep: true,
            base: self.base,
            virtual_fd: self.virtual_fd,
            ..self.memory.to_deposit()?
        };
        let (id, domain) = (self.place.id(), self.place.domain());
        Some(Kept { id, domain, gid: self.gid, job: self.job, deposit: claimed.into() })
    }
}

/// What a record is as bytes.
pub fn encode(record: &Record<'_>) -> Vec<u8> {
    let mut bytes = postcard::to_allocvec(record).expect("plain data into memory");
    if let Some(PodKey(halves)) = record.place().map(|it| it.pod).filter(|it| *it != PodKey::NONE) {
        bytes.extend(halves.iter().flat_map(|half| half.to_le_bytes()));
    }
    bytes
}

/// A record of these bytes, and nothing else.
pub fn decode(payload: &[u8]) -> Option<Record<'_>> {
    let (mut record, rest): (Record<'_>, _) = postcard::take_from_bytes(payload).ok()?;
    if rest.is_empty() {
        return Some(record);
    }
    let (first, second) = rest.split_at_checked(8)?;
    let half = |bytes: &[u8]| Some(u64::from_le_bytes(bytes.try_into().ok()?));
    record.place_mut()?.pod = PodKey([half(first)?, half(second)?]);
    Some(record)
}

/// All that lives after these records. `None`: some of them are no records.
pub fn replay<'a>(payloads: impl Iterator<Item = &'a [u8]>) -> Option<Table<'a>> {
    let mut table = Table::default();
    for payload in payloads {
        match decode(payload)? {
            Record::Group(group) => table.add(group)?,
            Record::Lost(version, name) => table.lose(version, name),
            Record::Changed(version, keep_us, pin) => {
                if let Some(group) = table.groups.get_mut(&version) {
                    (group.keep_us, group.pin) = (keep_us, pin);
                }
            }
            Record::Ended(version) => table.end(version),
            Record::Allocation(saved) => {
                table.allocations.insert(saved.place.slot, saved);
            }
            Record::AllocationEnded(slot) => drop(table.allocations.remove(&slot)),
        }
    }
    Some(table)
}

/// What lives.
#[derive(Default)]
pub struct Table<'a> {
    /// By version.
    pub groups: BTreeMap<u64, SavedGroup<'a>>,
    /// By slot.
    pub allocations: BTreeMap<u32, SavedAllocation<'a>>,
    /// The version of each name.
    names: HashMap<(DomainKey, &'a [u8]), u64>,
}

impl<'a> Table<'a> {
    /// Its names lead to the group from now on, but for those that lead to a later one.
    fn add(&mut self, mut group: SavedGroup<'a>) -> Option<()> {
        let version = group.version;
        if self.groups.contains_key(&version) {
            return None;
        }
        let domain = group.place.domain();
        let key = |name| (domain, name);
        let mut taken = Vec::new();
        group.objects.retain(|object| match self.names.get(&key(object.name)).copied() {
            // Two objects of one group with the same name cannot be.
            Some(other) if other >= version => false,
            other => {
                taken.extend(other.map(|other| (other, object.name)));
                self.names.insert(key(object.name), version);
                true
            }
        });
        for (other, name) in taken {
            self.take_off(other, name);
        }
        if !group.objects.is_empty() {
            self.groups.insert(version, group);
        }
        Some(())
    }

    fn lose(&mut self, version: u64, name: &[u8]) {
        let Some(group) = self.groups.get(&version) else { return };
        let Some(object) = group.objects.iter().find(|object| object.name == name) else { return };
        self.names.remove(&(group.place.domain(), object.name));
        self.take_off(version, name);
    }

    /// Takes an object out of its group, whose name leads elsewhere by now.
    fn take_off(&mut self, version: u64, name: &[u8]) {
        let Some(group) = self.groups.get_mut(&version) else { return };
        group.objects.retain(|object| object.name != name);
        if group.objects.is_empty() {
            self.groups.remove(&version);
        }
    }

    fn end(&mut self, version: u64) {
        let Some(group) = self.groups.remove(&version) else { return };
        for object in &group.objects {
            self.names.remove(&(group.place.domain(), object.name));
        }
    }
}

/// Bytes in one piece: as a list they would be written one by one.
mod raw {
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
        to.serialize_bytes(bytes)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<&'de [u8], D::Error> {
        <&[u8]>::deserialize(from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fdbroker_protocol::MemoryKind;

    const DOMAIN: DomainKey = DomainKey::new(1, 1000);
    const MEMORY: SavedMemory<'_> = SavedMemory {
        kind: MemoryKind::Memfd as u8,
        device: 3,
        gpu: [7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 5, 0, 0, 0, 0, 1, 0, 0],
        size_bytes: 4096,
        fd_offset: 8192,
        owner_allocation_id: 5,
        driver_data: &[1, 2, 3],
    };

    fn group<'a>(version: u64, names: &[&'a str]) -> SavedGroup<'a> {
        let object = |name: &&'a str| SavedObject {
            name: name.as_bytes(),
            offset: 64,
            size_bytes: 4,
            metadata: &[9; 70],
        };
        SavedGroup {
            version,
            parcel: version + 100,
            place: Place::new(AllocationId { slot: 7, generation: u32::MAX }, DOMAIN),
            job: None,
            creator_pid: 99,
            keep_us: Some(u64::MAX),
            pin: false,
            evictable: true,
            since_us: 1 << 40,
            memory: MEMORY,
            objects: names.iter().map(object).collect(),
        }
    }

    fn allocation(slot: u32, generation: u32) -> SavedAllocation<'static> {
        SavedAllocation {
            parcel: 1 << 40,
            place: Place::new(AllocationId { slot, generation }, DOMAIN),
            gid: 100,
            job: Some((JobKey(6), JobName::new("job"))),
            share: Share::Any as u8,
            recallable: true,
            base: 1 << 20,
            virtual_fd: true,
            memory: MEMORY,
        }
    }

    /// The names of each version after these records.
    fn names_after(records: &[Record<'_>]) -> Vec<(u64, Vec<String>)> {
        let payloads: Vec<Vec<u8>> = records.iter().map(encode).collect();
        let groups = replay(payloads.iter().map(Vec::as_slice)).unwrap().groups;
        let name = |object: &SavedObject<'_>| String::from_utf8(object.name.to_vec()).unwrap();
        let names = |group: &SavedGroup<'_>| group.objects.iter().map(name).collect();
        groups.iter().map(|(version, group)| (*version, names(group))).collect()
    }

    fn add<'a>(version: u64, names: &[&'a str]) -> Record<'a> {
        Record::Group(group(version, names))
    }

    #[test]
    fn group_when_written_and_read_then_the_same() {
        let job = Some((JobKey(6), JobName::new("job")));
        let saved = SavedGroup { job, ..group(3, &["a", "b/c"]) };
        let kept = saved.to_kept().unwrap();
        assert_eq!(SavedGroup::of(&kept, saved.parcel), saved);
        let bytes = encode(&Record::Group(saved.clone()));
        match decode(&bytes) {
            Some(Record::Group(read)) => assert_eq!(read, saved),
            other => panic!("{other:?}"),
        }
        assert!((0..bytes.len()).all(|length| decode(&bytes[..length]).is_none()), "a part of one");
        for memory in [
            SavedMemory { kind: 99, ..MEMORY },
            SavedMemory { gpu: [9; 24], ..MEMORY },
            SavedMemory { driver_data: &[1; 65], ..MEMORY },
        ] {
            assert!(SavedGroup { memory, ..saved.clone() }.to_kept().is_none());
            assert!(SavedAllocation { memory, ..allocation(1, 1) }.to_kept().is_none());
        }
    }

    #[test]
    fn allocation_when_written_and_read_then_the_same() {
        let saved = allocation(9, 8);
        let kept = saved.to_kept().unwrap();
        assert_eq!(SavedAllocation::of(&kept, saved.parcel), saved);
        let bytes = encode(&Record::Allocation(saved.clone()));
        match decode(&bytes) {
            Some(Record::Allocation(read)) => assert_eq!(read, saved),
            other => panic!("{other:?}"),
        }
        assert!(SavedAllocation { share: 99, ..saved }.to_kept().is_none());
    }

    #[test]
    fn replay_when_an_allocation_changes_ends_or_its_slot_is_used_again_then_the_last_one() {
        let ended = Record::AllocationEnded;
        let add = |slot, generation| Record::Allocation(allocation(slot, generation));
        let changed = SavedAllocation { gid: 7, ..allocation(2, 1) };
        let records = [
            ended(9),
            add(1, 1),
            add(2, 1),
            add(3, 1),
            ended(1),
            Record::Allocation(changed.clone()),
            ended(3),
            add(3, 2),
        ];
        let payloads: Vec<Vec<u8>> = records.iter().map(encode).collect();
        let table = replay(payloads.iter().map(Vec::as_slice)).unwrap();
        let found: Vec<_> = table.allocations.into_values().collect();
        assert_eq!(found, [changed, allocation(3, 2)]);
    }

    /// The bytes of a group. Whoever changes them changes the magic of the log: one of before is
    /// not read.
    #[test]
    fn encode_when_a_group_is_written_then_the_bytes_of_this_magic() {
        let bytes = [
            &[0, 3, 103, 7, 255, 255, 255, 255, 15, 1, 232, 7, 0, 99, 1][..],
            &[255, 255, 255, 255, 255, 255, 255, 255, 255, 1, 0, 1],
            &[128, 128, 128, 128, 128, 32, 3, 3],
            &[7; 16],
            &[5, 0, 0, 0, 0, 1, 0, 0],
            &[128, 32, 128, 64, 5, 3, 1, 2, 3],
            &[1, 1, b'a', 64, 4, 70],
            &[9; 70],
        ]
        .concat();
        assert_eq!(encode(&add(3, &["a"])), bytes);
    }

    #[test]
    fn decode_when_a_record_is_of_a_pod_then_the_same_and_anything_else_behind_one_is_refused() {
        let in_pod = |mut record: Record<'static>| {
            record.place_mut().unwrap().pod = PodKey([1 << 40, 7]);
            record
        };
        for record in [in_pod(add(3, &["a"])), in_pod(Record::Allocation(allocation(1, 1)))] {
            let bytes = encode(&record);
            let read = decode(&bytes).unwrap();
            assert_eq!(read.place().unwrap().domain(), record.place().unwrap().domain());
            assert_eq!(encode(&read), bytes);
            for rest in [1, 8, 15] {
                assert!(decode(&bytes[..bytes.len() - rest]).is_none(), "{rest}");
            }
            assert!(decode(&[&bytes[..], &[0]].concat()).is_none());
        }
        let ended = encode(&Record::Ended(1));
        assert!(decode(&[&ended[..], &[1; 16]].concat()).is_none());
    }

    #[test]
    fn replay_when_names_go_to_later_groups_then_each_leads_to_one() {
        let strings = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let after = names_after(&[add(1, &["a", "b"]), add(2, &["b", "c"])]);
        assert_eq!(after, [(1, strings(&["a"])), (2, strings(&["b", "c"]))]);
        let after = names_after(&[add(2, &["b", "c"]), add(1, &["a", "b"])]);
        assert_eq!(after, [(1, strings(&["a"])), (2, strings(&["b", "c"]))], "in any order");
        let after = names_after(&[add(1, &["a"]), add(2, &["a"]), Record::Lost(2, b"a")]);
        assert_eq!(after, [], "a name that was deleted does not lead back");
        let after = names_after(&[add(1, &["a"]), add(2, &["a", "b"]), Record::Ended(2)]);
        assert_eq!(after, []);
        let after = names_after(&[add(1, &["a"]), Record::Ended(1), add(2, &["a"])]);
        assert_eq!(after, [(2, strings(&["a"]))]);
        let after = names_after(&[Record::Lost(5, b"a"), Record::Ended(5), add(6, &["a", "a"])]);
        assert_eq!(after, [(6, strings(&["a"]))]);
    }

    #[test]
    fn replay_when_a_group_is_touched_then_its_last_time_holds() {
        let records =
            [add(1, &["a"]), Record::Changed(1, None, true), Record::Changed(2, None, true)];
        let payloads: Vec<Vec<u8>> = records.iter().map(encode).collect();
        let groups = replay(payloads.iter().map(Vec::as_slice)).unwrap().groups;
        assert_eq!((groups[&1].keep_us, groups[&1].pin), (None, true));
    }

    #[test]
    fn replay_when_a_record_is_none_or_a_group_comes_twice_then_nothing() {
        assert!(replay([&b"\xff"[..]].into_iter()).is_none());
        let twice = encode(&add(1, &["a"]));
        assert!(replay([&twice[..], &twice[..]].into_iter()).is_none());
    }
}
