//! A client's requests about objects, by hand: each is one message and its answer. Must never check what it sends.

use crate::support::raw::{Incoming, Raw};
use fdbroker_protocol::message::{GrantItem, LeaseItem};
use fdbroker_protocol::object::{
    ObjectCreateHead, ObjectCreated, ObjectDeleteItem, ObjectEvent, ObjectEventItem, ObjectGetHead,
    ObjectGotItem, ObjectGroup, ObjectItem, ObjectName, ObjectPage, ObjectPrefix, ObjectRecord,
    ObjectScope, ObjectSealed, ObjectTouchHead,
};
use fdbroker_protocol::{ErrorCode, Kind, MemoryKind, Status, Writer};
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::uio::{pread, pwrite};
use std::os::fd::{AsFd, OwnedFd};

/// Bytes of the memory of a group, where a test needs no other size.
pub const SIZE: usize = 4096;

/// A memfd with these bytes, as large as they are, that can be sealed.
pub fn memory(bytes: &[u8]) -> OwnedFd {
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let fd = memfd_create("objects", flags).expect("memfd_create");
    nix::unistd::ftruncate(&fd, i64::try_from(bytes.len()).expect("small")).expect("ftruncate");
    assert_eq!(pwrite(&fd, bytes, 0).expect("write"), bytes.len());
    fd
}

/// What a group's maker does before it asks for the seal.
pub fn seal_memory(fd: &OwnedFd) -> nix::Result<()> {
    add_seals(fd, SealFlag::F_SEAL_WRITE | SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW)
}

pub fn add_seals(fd: &OwnedFd, seals: SealFlag) -> nix::Result<()> {
    fcntl(fd, FcntlArg::F_ADD_SEALS(seals)).map(|_| ())
}

/// The bytes of a range of an fd.
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

/// One of 16 bytes at the begin of its group, without metadata.
pub fn new(name: &str) -> New {
    New { name: name.into(), offset: 0, size: 16, expect: None, metadata: Vec::new() }
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
    pub fn bytes(&self, index: usize) -> Vec<u8> {
        let item = &self.items[index];
        let grant = &self.grants[usize::from(item.grant.get())];
        let fd = &self.fds[usize::from(grant.fd_index.get())];
        bytes_of(fd, grant.fd_offset.get() + item.offset.get(), item.size_bytes.get())
    }

    pub fn versions(&self) -> Vec<u64> {
        self.items.iter().map(|item| item.version.get()).collect()
    }

    pub fn leases(&self) -> Vec<u64> {
        self.grants.iter().map(|grant| grant.lease.get()).collect()
    }

    /// The answer to a get that was sent before.
    #[track_caller]
    pub fn of(answer: Incoming) -> Result<Got, Status> {
        let answer = expect(answer, Kind::ObjectGot)?;
        let message = answer.message();
        let got = message.got().expect("a whole answer");
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
    pub fn text(&self) -> String {
        String::from_utf8(self.name.clone()).expect("UTF-8")
    }
}

/// An answer of this kind; `Err`: the request failed.
#[track_caller]
pub fn expect(answer: Incoming, kind: Kind) -> Result<Incoming, Status> {
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

fn put_objects<'w>(writer: &'w mut Writer, objects: &[New]) -> &'w mut Writer {
    for object in objects {
        let item = ObjectItem {
            offset: object.offset.into(),
            size_bytes: object.size.into(),
            expect: object.expect.unwrap_or(0).into(),
            metadata_len: u16::try_from(object.metadata.len()).expect("small").into(),
            name_len: u8::try_from(object.name.len()).expect("short"),
            flags: if object.expect.is_some() { ObjectItem::EXPECT } else { 0 },
            reserved: 0.into(),
        };
        writer.push(&item).push(&object.name[..]).push(&object.metadata[..]);
    }
    writer
}

fn put_names<'w>(writer: &'w mut Writer, names: &[&str]) -> &'w mut Writer {
    for name in names {
        let name_len = u8::try_from(name.len()).expect("short");
        writer.push(&ObjectName { name_len }).push(name.as_bytes());
    }
    writer
}

fn create_head(group: &Group) -> ObjectCreateHead {
    ObjectCreateHead {
        flags: group.flags.into(),
        device: 0.into(),
        size_bytes: group.size.into(),
        fd_offset: group.fd_offset.into(),
        ttl_ms: group.ttl_ms.into(),
        credits_wanted: 1.into(),
        kind: group.kind,
        driver_data_len: 0,
        reserved: 0.into(),
        driver_data: [0; 64],
    }
}

fn scope(flags: u32) -> ObjectScope {
    ObjectScope { flags: flags.into(), reserved: 0.into() }
}

impl Raw {
    pub fn create(
        &mut self,
        memory: &OwnedFd,
        group: &Group,
        objects: &[New],
    ) -> Result<u64, Status> {
        self.create_with_flags(memory, group, objects).map(|(group, _)| group)
    }

    /// The same, and whether kept objects end with the broker.
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
        let mut writer = Writer::new();
        writer.start(Kind::ObjectCreate, self.fresh_id()).push(&create_head(group));
        put_objects(&mut writer, objects);
        self.send(writer.finish(objects.len(), 1), &[memory.as_fd()]).ok()?;
        let created = expect(self.receive().ok()?, Kind::ObjectCreated).expect("begun");
        let group = created.message().body_as::<ObjectCreated>().expect("a group").group.get();
        seal_memory(memory).expect("nothing is mapped");
        let mut writer = Writer::new();
        writer.start(Kind::ObjectSeal, self.fresh_id()).push(&ObjectGroup { group: group.into() });
        self.send(writer.finish(0, 0), &[]).ok()?;
        let sealed = expect(self.receive().ok()?, Kind::ObjectSealed).expect("sealed");
        Some(sealed.message().body_as::<ObjectSealed>().expect("a version").version.get())
    }

    pub fn add(&mut self, group: u64, objects: &[New]) -> Result<(), Status> {
        let head = ObjectGroup { group: group.into() };
        let answer = self.request(
            Kind::ObjectAdd,
            |writer| put_objects(writer.push(&head), objects),
            objects.len(),
            &[],
        );
        assert_eq!(statuses(&expect(answer, Kind::ObjectReply)?), [Status::OK]);
        Ok(())
    }

    pub fn seal(&mut self, group: u64) -> Result<u64, Status> {
        let head = ObjectGroup { group: group.into() };
        let answer = self.request(Kind::ObjectSeal, |writer| writer.push(&head), 0, &[]);
        let answer = expect(answer, Kind::ObjectSealed)?;
        Ok(answer.message().body_as::<ObjectSealed>().expect("a version").version.get())
    }

    /// Sends a seal and does not await its answer.
    pub fn start_seal(&mut self, group: u64) {
        let mut writer = Writer::new();
        writer.start(Kind::ObjectSeal, self.fresh_id()).push(&ObjectGroup { group: group.into() });
        self.send(writer.finish(0, 0), &[]).expect("the broker reads");
    }

    /// Gives leases back without an answer.
    pub fn release_one_way(&self, leases: &[u64]) {
        let mut writer = Writer::new();
        writer.start(Kind::Release, 0);
        leases.iter().for_each(|lease| _ = writer.push(&LeaseItem { lease: (*lease).into() }));
        self.send(writer.finish(leases.len(), 0), &[]).expect("the broker reads");
    }

    pub fn abort(&mut self, group: u64) -> Status {
        let head = ObjectGroup { group: group.into() };
        let answer = self.request(Kind::ObjectAbort, |writer| writer.push(&head), 0, &[]);
        statuses(&expect(answer, Kind::ObjectReply).expect("a status"))[0]
    }

    /// Makes and seals a group of these objects, of this memory; its version.
    #[track_caller]
    pub fn put(&mut self, memory: &OwnedFd, group: &Group, objects: &[New]) -> u64 {
        let id = self.create(memory, group, objects).expect("begun");
        seal_memory(memory).expect("nothing is mapped");
        self.seal(id).expect("sealed")
    }

    /// The same of one object that has these bytes.
    #[track_caller]
    pub fn put_bytes(&mut self, name: &str, bytes: &[u8], with: u32) -> u64 {
        let size = bytes.len() as u64;
        let group = Group { size, ..flags(with) };
        self.put(&memory(bytes), &group, &[New { size, ..new(name) }])
    }

    /// Sends a get and does not await its answer; its id.
    pub fn start_get(&mut self, names: &[&str], deadline_ms: u32) -> u64 {
        let id = self.fresh_id();
        let head = ObjectGetHead { deadline_ms: deadline_ms.into(), flags: 0.into() };
        let mut writer = Writer::new();
        put_names(writer.start(Kind::ObjectGet, id).push(&head), names);
        self.send(writer.finish(names.len(), 0), &[]).expect("the broker reads");
        id
    }

    /// A get that does not wait.
    #[track_caller]
    pub fn get(&mut self, names: &[&str]) -> Result<Got, Status> {
        self.get_within(names, 0, 0)
    }

    #[track_caller]
    pub fn get_within(&mut self, names: &[&str], ms: u32, flags: u32) -> Result<Got, Status> {
        let head = ObjectGetHead { deadline_ms: ms.into(), flags: flags.into() };
        let answer = self.request(
            Kind::ObjectGet,
            |writer| put_names(writer.push(&head), names),
            names.len(),
            &[],
        );
        Got::of(answer)
    }

    /// Deletes names, each with a version or 0; a status for each.
    #[track_caller]
    pub fn delete(&mut self, names: &[(&str, u64)]) -> Vec<Status> {
        let put = |writer: &mut Writer| {
            for (name, version) in names {
                let item = ObjectDeleteItem {
                    version: (*version).into(),
                    name_len: u8::try_from(name.len()).expect("short"),
                    reserved: [0; 7],
                };
                writer.push(&item).push(name.as_bytes());
            }
        };
        let body = |writer: &mut Writer| put(writer.push(&scope(0)));
        let answer = self.request(
            Kind::ObjectDelete,
            |writer| {
                body(writer);
                writer
            },
            names.len(),
            &[],
        );
        statuses(&expect(answer, Kind::ObjectReply).expect("statuses"))
    }

    /// One page of a list: its records, and whether nothing follows.
    #[track_caller]
    pub fn list_page(&mut self, prefix: &str, after: &[u8]) -> (Vec<Known>, bool) {
        let head = ObjectPrefix {
            flags: 0.into(),
            prefix_len: u8::try_from(prefix.len()).expect("short"),
            after_len: u8::try_from(after.len()).expect("short"),
            reserved: 0.into(),
        };
        let answer = self.request(
            Kind::ObjectList,
            |writer| writer.push(&head).push(prefix.as_bytes()).push(after),
            0,
            &[],
        );
        records(&expect(answer, Kind::ObjectRecords).expect("records"))
    }

    /// All names with a prefix, page by page.
    #[track_caller]
    pub fn list(&mut self, prefix: &str) -> Vec<Known> {
        let mut all: Vec<Known> = Vec::new();
        loop {
            let after = all.last().map_or(Vec::new(), |known| known.name.clone());
            let (more, is_done) = self.list_page(prefix, &after);
            assert!(is_done || !more.is_empty(), "a page leads on");
            all.extend(more);
            if is_done {
                all.retain(|known| known.record.state != 0);
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
        let answer = self.request(
            Kind::ObjectTouch,
            |writer| put_names(writer.push(&head), names),
            names.len(),
            &[],
        );
        Ok(statuses(&expect(answer, Kind::ObjectReply)?))
    }

    /// Watches names with a prefix, or no more with UNWATCH.
    #[track_caller]
    pub fn watch(&mut self, prefix: &str, flags: u32) -> Status {
        let head = ObjectPrefix {
            flags: flags.into(),
            prefix_len: u8::try_from(prefix.len()).expect("short"),
            after_len: 0,
            reserved: 0.into(),
        };
        let answer = self.request(
            Kind::ObjectWatch,
            |writer| writer.push(&head).push(prefix.as_bytes()),
            0,
            &[],
        );
        statuses(&expect(answer, Kind::ObjectReply).expect("a status"))[0]
    }

    /// The next message about names that are watched: of each event what happened, the version and the name. Other events
    /// are passed by.
    #[track_caller]
    pub fn next_news(&self) -> Vec<(ObjectEvent, u64, String)> {
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
    pub fn news(&self, count: usize) -> Vec<(ObjectEvent, u64, String)> {
        let mut all = Vec::new();
        while all.len() < count {
            all.extend(self.next_news());
        }
        all
    }

    /// What is known of names: as many as one answer has room for, and whether these are all.
    #[track_caller]
    pub fn stat(&mut self, names: &[&str]) -> (Vec<Known>, bool) {
        let answer = self.request(
            Kind::ObjectStat,
            |writer| put_names(writer.push(&scope(0)), names),
            names.len(),
            &[],
        );
        records(&expect(answer, Kind::ObjectRecords).expect("records"))
    }
}

#[track_caller]
pub fn statuses(answer: &Incoming) -> Vec<Status> {
    answer.message().items::<Status>().expect("statuses").to_vec()
}

#[track_caller]
fn records(answer: &Incoming) -> (Vec<Known>, bool) {
    let message = answer.message();
    let (page, records) = message.head_and_named::<ObjectPage, ObjectRecord>().expect("a page");
    let known = records.map(|(record, name, metadata)| Known {
        name: name.to_vec(),
        record: *record,
        metadata: metadata.to_vec(),
    });
    (known.collect(), page.done.get() != 0)
}
