//! A client's requests about objects, by hand: each is one message and its answer. Must never check
//! what it sends.

use super::memory::memfd;
use super::raw::{Incoming, Raw};
use fdbroker_protocol::message::{DeclareItem, GrantItem, LeaseItem, declare_flags};
use fdbroker_protocol::object::{
    ObjectCreateHead, ObjectCreated, ObjectDeleteItem, ObjectEvent, ObjectEventItem, ObjectGetHead,
    ObjectGotItem, ObjectGroup, ObjectItem, ObjectName, ObjectPage, ObjectPrefix, ObjectRecord,
    ObjectScope, ObjectSealed, ObjectTouchHead,
};
use fdbroker_protocol::{
    AllocationId, ErrorCode, Facts, FactsItem, HandlePrefix, Kind, MemoryKind, Named, Status,
    Writer,
};
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::uio::{pread, pwrite};
use std::os::fd::{AsFd, OwnedFd};
use zerocopy::{FromZeros, Immutable, IntoBytes};

/// Bytes of the memory of a group, where a test needs no other size.
pub const SIZE: usize = 4096;

/// The seals that make memory unwritable for everybody.
pub const SEALS: SealFlag =
    SealFlag::F_SEAL_WRITE.union(SealFlag::F_SEAL_SHRINK).union(SealFlag::F_SEAL_GROW);

/// A memfd with these bytes, as large as they are, that can be sealed.
pub fn memory(bytes: &[u8]) -> OwnedFd {
    let fd = memfd(c"objects", bytes.len(), SealFlag::empty());
    assert_eq!(pwrite(&fd, bytes, 0).expect("write"), bytes.len());
    fd
}

/// What a group's maker does before it asks for the seal, with memory that is nowhere mapped.
#[track_caller]
pub fn seal_memory(fd: &OwnedFd) {
    add_seals(fd, SEALS).expect("nothing is mapped");
}

pub fn add_seals(fd: &OwnedFd, seals: SealFlag) -> nix::Result<()> {
    fcntl(fd, FcntlArg::F_ADD_SEALS(seals)).map(|_| ())
}

/// The bytes of a range of an fd.
#[track_caller]
pub fn bytes_of(fd: &OwnedFd, offset: u64, size: u64) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(size).expect("small")];
    let read = pread(fd, &mut bytes, i64::try_from(offset).expect("small")).expect("read");
    assert_eq!(read, bytes.len(), "the memory is shorter");
    bytes
}

/// An object to make.
#[derive(Clone, Debug)]
pub struct New {
    pub name: Vec<u8>,
    pub offset: u64,
    pub size: u64,
    pub expect: Option<u64>,
    pub metadata: Vec<u8>,
}

impl New {
    /// An object of this size at the begin of its group's memory, without metadata.
    pub fn named(name: impl AsRef<[u8]>, size: u64) -> New {
        New { name: name.as_ref().into(), offset: 0, size, expect: None, metadata: Vec::new() }
    }
}

/// One of 16 bytes.
pub fn new(name: &str) -> New {
    New::named(name, 16)
}

/// What a create says of its group.
#[derive(Clone, Copy, Debug)]
pub struct Group {
    pub flags: u32,
    pub ttl_ms: u64,
    pub size: u64,
    pub fd_offset: u64,
    pub kind: u8,
}

impl Default for Group {
    fn default() -> Self {
        let kind = MemoryKind::Memfd as u8;
        Group { flags: 0, ttl_ms: 0, size: SIZE as u64, fd_offset: 0, kind }
    }
}

/// A group with these flags.
pub fn flags(flags: u32) -> Group {
    Group { flags, ..Group::default() }
}

/// The answer to a get.
#[derive(Debug)]
pub struct Got {
    pub items: Vec<ObjectGotItem>,
    pub grants: Vec<GrantItem>,
    /// Of each item, as much as came.
    pub metadata: Vec<Vec<u8>>,
    pub fds: Vec<OwnedFd>,
}

impl Got {
    /// The bytes of an object.
    #[track_caller]
    pub fn bytes(&self, index: usize) -> Vec<u8> {
        let item = &self.items[index];
        let grant = &self.grants[usize::from(item.grant.get())];
        let fd = &self.fds[usize::from(grant.fd_index.get())];
        bytes_of(fd, grant.facts.fd_offset.get() + item.offset.get(), item.size_bytes.get())
    }

    pub fn versions(&self) -> Vec<u64> {
        self.items.iter().map(|item| item.version.get()).collect()
    }

    pub fn leases(&self) -> Vec<u64> {
        self.grants.iter().map(|grant| grant.lease.get()).collect()
    }

    #[track_caller]
    fn of(answer: Incoming) -> Result<Got, Status> {
        let answer = expect(answer, Kind::ObjectGot)?;
        let message = answer.message();
        let got = message.got().expect("a whole answer");
        assert_eq!(got.grants.len(), answer.fds.len(), "an fd for each group");
        let mut rest = got.metadata;
        let mut metadata = Vec::new();
        for item in got.items {
            let (here, behind) = rest.split_at(item.metadata_here.into());
            metadata.push(here.to_vec());
            rest = behind;
        }
        let (items, grants) = (got.items.to_vec(), got.grants.to_vec());
        Ok(Got { items, grants, metadata, fds: answer.fds })
    }
}

/// What is known of a name, with the metadata of a stat.
#[derive(Clone, Debug)]
pub struct Known {
    pub name: Vec<u8>,
    pub record: ObjectRecord,
    pub metadata: Vec<u8>,
}

impl Known {
    #[track_caller]
    pub fn text(&self) -> String {
        String::from_utf8(self.name.clone()).expect("UTF-8")
    }
}

/// What happened, the version and the name.
pub type News = (ObjectEvent, u64, String);

/// An answer of this kind; `Err`: the request failed.
#[track_caller]
fn expect(answer: Incoming, kind: Kind) -> Result<Incoming, Status> {
    match answer.message().kind {
        Kind::Failed => Err(answer.failure()),
        found => {
            assert_eq!(found, kind, "{answer:?}");
            Ok(answer)
        }
    }
}

#[track_caller]
pub fn code(status: &Status) -> ErrorCode {
    status.result().expect_err("it failed")
}

#[track_caller]
fn statuses(answer: Incoming) -> Result<Vec<Status>, Status> {
    let answer = expect(answer, Kind::ObjectReply)?;
    Ok(answer.message().statuses().expect("statuses").collect())
}

/// The records of a page, and whether nothing follows.
#[track_caller]
fn records(answer: Incoming) -> (Vec<Known>, bool) {
    let answer = expect(answer, Kind::ObjectRecords).expect("records");
    let message = answer.message();
    let (page, records) = message.head_and_named::<ObjectPage, ObjectRecord>().expect("a page");
    let known = records.map(|(record, name, metadata)| {
        assert_eq!(record.name_bytes(), name.len());
        Known { name: name.to_vec(), record: *record, metadata: metadata.to_vec() }
    });
    (known.collect(), page.done.get() != 0)
}

fn length(name: &[u8]) -> u8 {
    name.len().try_into().expect("at most 255")
}

fn put_objects<'w>(writer: &'w mut Writer, objects: &[New]) -> &'w mut Writer {
    for object in objects {
        let item = ObjectItem {
            offset: object.offset.into(),
            size_bytes: object.size.into(),
            expect: object.expect.unwrap_or(0).into(),
            metadata_len: u16::try_from(object.metadata.len()).expect("small").into(),
            name_len: length(&object.name),
            flags: if object.expect.is_some() { ObjectItem::EXPECT } else { 0 },
            reserved: 0.into(),
        };
        writer.push(&item).push(&object.name[..]).push(&object.metadata[..]);
    }
    writer
}

fn put_names<'w>(writer: &'w mut Writer, names: &[&str]) -> &'w mut Writer {
    for name in names {
        writer.push(&ObjectName { name_len: length(name.as_bytes()) }).push(name.as_bytes());
    }
    writer
}

fn put_deleted<'w>(writer: &'w mut Writer, names: &[(&str, u64)]) -> &'w mut Writer {
    for (name, version) in names {
        let (version, name_len) = ((*version).into(), length(name.as_bytes()));
        writer.push(&ObjectDeleteItem { version, name_len, reserved: [0; 7] });
        writer.push(name.as_bytes());
    }
    writer
}

fn create_head(group: &Group) -> ObjectCreateHead {
    let facts = Facts::new(MemoryKind::Memfd, group.size).fd_offset(group.fd_offset);
    ObjectCreateHead {
        facts: FactsItem { kind: group.kind, ..facts.into() },
        flags: group.flags.into(),
        ttl_ms: group.ttl_ms.into(),
        credits_wanted: 1.into(),
        ..ObjectCreateHead::new_zeroed()
    }
}

impl Raw {
    /// Asks for something about names.
    #[track_caller]
    fn about_names<H>(&mut self, kind: Kind, head: &H, names: &[&str]) -> Incoming
    where
        H: IntoBytes + Immutable,
    {
        self.request(kind, |writer| put_names(writer.push(head), names), names.len(), &[])
    }

    /// Asks for something about a group.
    #[track_caller]
    fn about_group(&mut self, kind: Kind, group: u64) -> Incoming {
        let head = ObjectGroup { group: group.into() };
        self.request(kind, |writer| writer.push(&head), 0, &[])
    }

    /// Sends a request of one fd at most and does not await its answer; its id. `None`: the broker
    /// has ended.
    fn start(
        &mut self,
        kind: Kind,
        body: impl FnOnce(&mut Writer) -> &mut Writer,
        count: usize,
        fd: Option<&OwnedFd>,
    ) -> Option<u64> {
        let id = self.fresh_id();
        let mut writer = Writer::new();
        body(writer.start(kind, id));
        let fds: Vec<_> = fd.iter().map(|fd| fd.as_fd()).collect();
        self.send(writer.finish(count, fds.len()), &fds).ok().map(|()| id)
    }

    #[track_caller]
    pub fn create(
        &mut self,
        memory: &OwnedFd,
        group: &Group,
        objects: &[New],
    ) -> Result<u64, Status> {
        self.create_with_flags(memory, group, objects).map(|(group, _)| group)
    }

    /// The same, and whether kept objects end with the broker.
    #[track_caller]
    pub fn create_with_flags(
        &mut self,
        memory: &OwnedFd,
        group: &Group,
        objects: &[New],
    ) -> Result<(u64, bool), Status> {
        let head = create_head(group);
        let answer = self.request(
            Kind::ObjectCreate,
            |writer| put_objects(writer.push(&head), objects),
            objects.len(),
            &[memory.as_fd()],
        );
        let answer = expect(answer, Kind::ObjectCreated)?;
        let created = *answer.message().body_as::<ObjectCreated>().expect("a group");
        assert!(created.group.get() != 0 && created.deposit_credits.get() > 0);
        let ends = created.flags.get() & ObjectCreated::KEPT_ENDS_WITH_BROKER != 0;
        Ok((created.group.get(), ends))
    }

    /// Makes and seals a group; `None`: the broker ends meanwhile.
    pub fn try_put(&mut self, memory: &OwnedFd, group: &Group, objects: &[New]) -> Option<u64> {
        let head = create_head(group);
        self.start(
            Kind::ObjectCreate,
            |writer| put_objects(writer.push(&head), objects),
            objects.len(),
            Some(memory),
        )?;
        let created = expect(self.receive().ok()?, Kind::ObjectCreated).expect("begun");
        let group = created.message().body_as::<ObjectCreated>().expect("a group").group.get();
        seal_memory(memory);
        self.start_seal(group)?;
        let sealed = expect(self.receive().ok()?, Kind::ObjectSealed).expect("sealed");
        Some(sealed.message().body_as::<ObjectSealed>().expect("a version").version.get())
    }

    #[track_caller]
    pub fn add(&mut self, group: u64, objects: &[New]) -> Result<(), Status> {
        let head = ObjectGroup { group: group.into() };
        let answer = self.request(
            Kind::ObjectAdd,
            |writer| put_objects(writer.push(&head), objects),
            objects.len(),
            &[],
        );
        assert_eq!(statuses(answer)?, [Status::OK]);
        Ok(())
    }

    #[track_caller]
    pub fn seal(&mut self, group: u64) -> Result<u64, Status> {
        let answer = expect(self.about_group(Kind::ObjectSeal, group), Kind::ObjectSealed)?;
        Ok(answer.message().body_as::<ObjectSealed>().expect("a version").version.get())
    }

    /// Sends a seal and does not await its answer. `None`: the broker has ended.
    pub fn start_seal(&mut self, group: u64) -> Option<u64> {
        let head = ObjectGroup { group: group.into() };
        self.start(Kind::ObjectSeal, |writer| writer.push(&head), 0, None)
    }

    /// Gives leases back without an answer.
    pub fn release_one_way(&self, leases: &[u64]) {
        let mut writer = Writer::new();
        writer.start(Kind::Release, 0);
        leases.iter().for_each(|lease| _ = writer.push(&LeaseItem { lease: (*lease).into() }));
        self.send(writer.finish(leases.len(), 0), &[]).expect("the broker reads");
    }

    #[track_caller]
    pub fn abort(&mut self, group: u64) -> Status {
        statuses(self.about_group(Kind::ObjectAbort, group)).expect("a status")[0]
    }

    /// Makes and seals a group of these objects, of this memory; its version.
    #[track_caller]
    pub fn put(&mut self, memory: &OwnedFd, group: &Group, objects: &[New]) -> u64 {
        let id = self.create(memory, group, objects).expect("begun");
        seal_memory(memory);
        self.seal(id).expect("sealed")
    }

    /// The same of one object that has these bytes.
    #[track_caller]
    pub fn put_bytes(&mut self, name: &str, bytes: &[u8], with: u32) -> u64 {
        self.put_group(&[(name, bytes)], with).expect("made")
    }

    /// Makes several of these bytes, which appear at once; their version.
    #[track_caller]
    pub fn put_group(&mut self, objects: &[(&str, &[u8])], with: u32) -> Result<u64, Status> {
        let (group, memory) = self.begin(objects, with)?;
        seal_memory(&memory);
        self.seal(group)
    }

    /// Begins a group of objects with these bytes, one behind another; gives its number and its
    /// memory.
    #[track_caller]
    pub fn begin(
        &mut self,
        objects: &[(&str, &[u8])],
        with: u32,
    ) -> Result<(u64, OwnedFd), Status> {
        let (mut all, mut bytes) = (Vec::new(), Vec::new());
        for (name, its) in objects {
            all.push(New { offset: bytes.len() as u64, ..New::named(name, its.len() as u64) });
            bytes.extend_from_slice(its);
        }
        // There is no empty memory.
        bytes.resize(bytes.len().max(1), 0);
        let memory = memory(&bytes);
        let group = Group { size: bytes.len() as u64, ..flags(with) };
        Ok((self.create(&memory, &group, &all)?, memory))
    }

    /// Sends a get and does not await its answer; its id.
    #[track_caller]
    pub fn start_get(&mut self, names: &[&str], deadline_ms: u32) -> u64 {
        let head = ObjectGetHead { deadline_ms: deadline_ms.into(), flags: 0.into() };
        let id = self.start(
            Kind::ObjectGet,
            |writer| put_names(writer.push(&head), names),
            names.len(),
            None,
        );
        id.expect("the broker reads")
    }

    /// Awaits the answer to a get.
    #[track_caller]
    pub fn finish_get(&mut self, id: u64) -> Result<Got, Status> {
        let answer = self.receive().expect("an answer");
        assert_eq!(answer.message().id, id, "the answer to another request");
        Got::of(answer)
    }

    /// A get that does not wait.
    #[track_caller]
    pub fn get(&mut self, names: &[&str]) -> Result<Got, Status> {
        self.get_within(names, 0, 0)
    }

    #[track_caller]
    pub fn get_within(&mut self, names: &[&str], ms: u32, flags: u32) -> Result<Got, Status> {
        let head = ObjectGetHead { deadline_ms: ms.into(), flags: flags.into() };
        Got::of(self.about_names(Kind::ObjectGet, &head, names))
    }

    /// Deletes names; a status for each.
    #[track_caller]
    pub fn delete(&mut self, names: &[&str]) -> Vec<Status> {
        let names: Vec<_> = names.iter().map(|name| (*name, 0)).collect();
        self.delete_versions(&names)
    }

    /// The same, each with its version, or 0 for any.
    #[track_caller]
    pub fn delete_versions(&mut self, names: &[(&str, u64)]) -> Vec<Status> {
        let head = ObjectScope::new_zeroed();
        let answer = self.request(
            Kind::ObjectDelete,
            |writer| put_deleted(writer.push(&head), names),
            names.len(),
            &[],
        );
        statuses(answer).expect("statuses")
    }

    /// One page of a list: its records, and whether nothing follows.
    #[track_caller]
    pub fn page(&mut self, prefix: &[u8], after: &[u8]) -> (Vec<Known>, bool) {
        let head = ObjectPrefix {
            prefix_len: length(prefix),
            after_len: length(after),
            ..ObjectPrefix::new_zeroed()
        };
        let answer = self.request(
            Kind::ObjectList,
            |writer| writer.push(&head).push(prefix).push(after),
            0,
            &[],
        );
        records(answer)
    }

    /// All names with a prefix, page by page.
    #[track_caller]
    pub fn list(&mut self, prefix: &str) -> Vec<Known> {
        let mut all: Vec<Known> = Vec::new();
        loop {
            let after = all.last().map_or(Vec::new(), |known| known.name.clone());
            let (more, is_done) = self.page(prefix.as_bytes(), &after);
            assert!(is_done || !more.is_empty(), "a page leads on");
            all.extend(more);
            if is_done {
                return all;
            }
        }
    }

    /// Touches names; a status for each.
    #[track_caller]
    pub fn touch(
        &mut self,
        names: &[&str],
        flags: u32,
        ttl_ms: u64,
    ) -> Result<Vec<Status>, Status> {
        let (flags, reserved) = (flags.into(), 0.into());
        let head = ObjectTouchHead { ttl_ms: ttl_ms.into(), flags, reserved };
        statuses(self.about_names(Kind::ObjectTouch, &head, names))
    }

    /// Declares a mapped lease of an object of before a crash.
    #[track_caller]
    pub fn declare_object(&mut self, slot: u32, generation: u32) -> Result<(), ErrorCode> {
        let handle = HandlePrefix::unsealed(AllocationId { slot, generation });
        let (flags, reserved) = (declare_flags::OBJECT.into(), 0.into());
        let item = DeclareItem { handle: handle.into(), flags, reserved };
        let answer = self.request(Kind::Declare, |writer| writer.push(&[item][..]), 1, &[]);
        answer.grants()[0].status.get().result()
    }

    /// Watches names with a prefix, or no more with UNWATCH.
    #[track_caller]
    pub fn watch(&mut self, prefix: &str, flags: u32) -> Status {
        let prefix_len = length(prefix.as_bytes());
        let head = ObjectPrefix { flags: flags.into(), prefix_len, ..ObjectPrefix::new_zeroed() };
        let answer = self.request(
            Kind::ObjectWatch,
            |writer| writer.push(&head).push(prefix.as_bytes()),
            0,
            &[],
        );
        statuses(answer).expect("a status")[0]
    }

    /// The next message about names that are watched. Other events are passed by.
    #[track_caller]
    pub fn next_news(&self) -> Vec<News> {
        loop {
            let event = self.receive_event().expect("an event");
            let message = event.message();
            if message.kind != Kind::ObjectEvents {
                continue;
            }
            let items = message.named::<ObjectEventItem>().expect("whole events");
            let news = items.map(|(item, name, _)| {
                let event = ObjectEvent::from_number(item.event).expect("a known event");
                let name = String::from_utf8(name.to_vec()).expect("UTF-8");
                (event, item.version.get(), name)
            });
            return news.collect();
        }
    }

    /// So many events, in as many messages as they come in.
    #[track_caller]
    pub fn news(&self, count: usize) -> Vec<News> {
        let mut all = Vec::new();
        while all.len() < count {
            all.extend(self.next_news());
        }
        all
    }

    /// What is known of names, page by page.
    #[track_caller]
    pub fn stat(&mut self, names: &[&str]) -> Vec<Known> {
        let mut all = Vec::new();
        while all.len() < names.len() {
            let (head, left) = (ObjectScope::new_zeroed(), &names[all.len()..]);
            let (more, is_done) = records(self.about_names(Kind::ObjectStat, &head, left));
            assert!(!more.is_empty(), "a page leads on");
            all.extend(more);
            assert_eq!(is_done, all.len() == names.len(), "it says whether it is done");
        }
        all
    }
}
