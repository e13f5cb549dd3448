//! A client that makes and gets objects over the bare protocol, and a helper process that does what its test says. Must never
//! check what it sends.

use crate::support::peer::Link;
use crate::support::raw::{Incoming, Raw};
use crate::support::wait::PATIENCE;
use fdbroker_protocol::message::GrantItem;
use fdbroker_protocol::object::{
    ObjectCreateHead, ObjectCreated, ObjectDeleteItem, ObjectEvent, ObjectEventItem, ObjectGetHead,
    ObjectGotItem, ObjectGroup, ObjectItem, ObjectName, ObjectPage, ObjectPrefix, ObjectRecord,
    ObjectScope, ObjectSealed, ObjectTouchHead, object_flags,
};
use fdbroker_protocol::{Kind, MemoryKind, Named, Status, Writer};
use nix::fcntl::{FallocateFlags, FcntlArg, SealFlag, fallocate, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::uio::{pread, pwrite};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use zerocopy::FromZeros;

pub use object_flags::{EVICTABLE, JOB, KEEP, PIN, REPLACE, UNPIN};

/// Deadline of a get that is to wait for as long as its test, in ms.
pub const LONG_MS: u32 = 600_000;

/// An object to be made.
#[derive(Clone, Debug, Default)]
pub struct New {
    pub name: Vec<u8>,
    pub offset: u64,
    pub size_bytes: u64,
    pub metadata: Vec<u8>,
    pub expect: Option<u64>,
}

impl New {
    /// An object of this size at the begin of its group's memory.
    pub fn named(name: impl AsRef<[u8]>, size_bytes: u64) -> New {
        New { name: name.as_ref().to_vec(), size_bytes, ..New::default() }
    }
}

/// What a get brought.
#[derive(Debug)]
pub struct Got {
    pub items: Vec<ObjectGotItem>,
    pub grants: Vec<GrantItem>,
    pub fds: Vec<OwnedFd>,
    pub metadata: Vec<u8>,
}

impl Got {
    /// The bytes of one object.
    pub fn bytes(&self, index: usize) -> Vec<u8> {
        let item = &self.items[index];
        let mut bytes = vec![0; usize::try_from(item.size_bytes.get()).expect("small")];
        let fd = &self.fds[usize::from(item.grant.get())];
        let offset = item.offset.get().cast_signed();
        let read = pread(fd, &mut bytes, offset).expect("readable");
        assert_eq!(read, bytes.len(), "all of it");
        bytes
    }

    /// The version of one object.
    pub fn version(&self, index: usize) -> u64 {
        self.items[index].version.get()
    }

    /// All leases.
    pub fn leases(&self) -> Vec<u64> {
        self.grants.iter().map(|grant| grant.lease.get()).collect()
    }
}

/// What a list or a stat says of a name.
#[derive(Clone, Debug)]
pub struct Record {
    pub fixed: ObjectRecord,
    pub name: Vec<u8>,
    pub metadata: Vec<u8>,
}

/// A client of the broker.
#[derive(Debug)]
pub struct Objects {
    pub raw: Raw,
}

/// Memory of this size, allocated, without seals.
pub fn memory(bytes: u64) -> OwnedFd {
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let memfd = memfd_create(c"object", flags).expect("memfd_create");
    nix::unistd::ftruncate(&memfd, bytes.cast_signed()).expect("ftruncate");
    fallocate(&memfd, FallocateFlags::empty(), 0, bytes.cast_signed()).expect("fallocate");
    memfd
}

/// Makes the memory unwritable for everybody.
pub fn seal_memory(memfd: &OwnedFd) {
    let seals = SealFlag::F_SEAL_WRITE | SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW;
    fcntl(memfd, FcntlArg::F_ADD_SEALS(seals | SealFlag::F_SEAL_SEAL)).expect("seal");
}

fn length(bytes: usize) -> u8 {
    bytes.try_into().expect("at most 255")
}

impl Objects {
    pub fn connect(socket: &Path) -> Objects {
        Objects { raw: Raw::connect(socket) }
    }

    /// Asks, and takes a refusal as one.
    #[track_caller]
    fn ask(
        &mut self,
        kind: Kind,
        body: impl FnOnce(&mut Writer) -> &mut Writer,
        count: usize,
        memfd: Option<&OwnedFd>,
    ) -> Result<Incoming, Status> {
        let fds: Vec<_> = memfd.iter().map(|fd| fd.as_fd()).collect();
        let answer = self.raw.request(kind, body, count, &fds);
        match answer.message().kind {
            Kind::Failed => Err(answer.failure()),
            _ => Ok(answer),
        }
    }

    /// Begins a group with this memory; gives its number.
    #[track_caller]
    pub fn create(
        &mut self,
        objects: &[New],
        memfd: &OwnedFd,
        size_bytes: u64,
        flags: u32,
    ) -> Result<u64, Status> {
        self.create_for(objects, memfd, size_bytes, (flags, 0))
    }

    /// The same with a time to live, in ms.
    #[track_caller]
    pub fn create_for(
        &mut self,
        objects: &[New],
        memfd: &OwnedFd,
        size_bytes: u64,
        (flags, ttl_ms): (u32, u64),
    ) -> Result<u64, Status> {
        let head = ObjectCreateHead {
            flags: flags.into(),
            size_bytes: size_bytes.into(),
            ttl_ms: ttl_ms.into(),
            credits_wanted: 1.into(),
            kind: MemoryKind::Memfd as u8,
            ..ObjectCreateHead::new_zeroed()
        };
        let answer = self.ask(
            Kind::ObjectCreate,
            |writer| put_objects(writer.push(&head), objects),
            objects.len(),
            Some(memfd),
        )?;
        let created = answer.message().body_as::<ObjectCreated>().expect("created");
        Ok(created.group.get())
    }

    /// Adds objects to a group.
    #[track_caller]
    pub fn add(&mut self, group: u64, objects: &[New]) -> Result<(), Status> {
        let head = ObjectGroup { group: group.into() };
        self.ask(
            Kind::ObjectAdd,
            |writer| put_objects(writer.push(&head), objects),
            objects.len(),
            None,
        )
        .map(drop)
    }

    /// Seals a group; gives the version.
    #[track_caller]
    pub fn seal(&mut self, group: u64) -> Result<u64, Status> {
        let head = ObjectGroup { group: group.into() };
        let answer = self.ask(Kind::ObjectSeal, |writer| writer.push(&head), 0, None)?;
        Ok(answer.message().body_as::<ObjectSealed>().expect("sealed").version.get())
    }

    /// Gives a group up.
    #[track_caller]
    pub fn abort(&mut self, group: u64) -> Status {
        let head = ObjectGroup { group: group.into() };
        let answer = self.ask(Kind::ObjectAbort, |writer| writer.push(&head), 0, None);
        statuses(&answer.expect("an answer"))[0]
    }

    /// Makes an object of these bytes; gives its version.
    #[track_caller]
    pub fn put(&mut self, name: &str, bytes: &[u8], flags: u32) -> Result<u64, Status> {
        self.put_group(&[(name, bytes)], flags)
    }

    /// Makes several that appear at once.
    #[track_caller]
    pub fn put_group(&mut self, objects: &[(&str, &[u8])], flags: u32) -> Result<u64, Status> {
        let (group, memfd) = self.begin(objects, flags)?;
        seal_memory(&memfd);
        self.seal(group)
    }

    /// Begins a group of objects with these bytes, and does not seal it.
    #[track_caller]
    pub fn begin(
        &mut self,
        objects: &[(&str, &[u8])],
        flags: u32,
    ) -> Result<(u64, OwnedFd), Status> {
        let total = objects.iter().map(|(_, bytes)| bytes.len() as u64).sum::<u64>().max(1);
        let memfd = memory(total);
        let mut offset = 0_u64;
        let mut all = Vec::new();
        for (name, bytes) in objects {
            pwrite(&memfd, bytes, offset.cast_signed()).expect("written");
            all.push(New { offset, ..New::named(name, bytes.len() as u64) });
            offset += bytes.len() as u64;
        }
        let group = self.create(&all, &memfd, total, flags)?;
        Ok((group, memfd))
    }

    /// Gets objects.
    #[track_caller]
    pub fn get(&mut self, names: &[&str], deadline_ms: u32) -> Result<Got, Status> {
        let id = self.start_get(names, deadline_ms);
        self.finish_get(id)
    }

    /// Asks for objects, and does not wait for the answer.
    #[track_caller]
    pub fn start_get(&mut self, names: &[&str], deadline_ms: u32) -> u64 {
        let id = self.raw.fresh_id();
        let mut writer = Writer::new();
        writer.start(Kind::ObjectGet, id);
        writer.push(&ObjectGetHead { deadline_ms: deadline_ms.into(), flags: 0.into() });
        put_names(&mut writer, names);
        self.raw.send(writer.finish(names.len(), 0), &[]).expect("the broker reads");
        id
    }

    /// Awaits the answer.
    #[track_caller]
    pub fn finish_get(&mut self, id: u64) -> Result<Got, Status> {
        let mut answer = self.raw.receive().expect("an answer");
        let fds = std::mem::take(&mut answer.fds);
        let message = answer.message();
        assert_eq!(message.id, id, "the answer to another request");
        if message.kind == Kind::Failed {
            return Err(answer.failure());
        }
        let got = message.got().expect("an answer to a get");
        assert_eq!(got.grants.len(), fds.len(), "an fd for each group");
        let (items, grants) = (got.items.to_vec(), got.grants.to_vec());
        Ok(Got { items, grants, fds, metadata: got.metadata.to_vec() })
    }

    /// Gets one, and gives its bytes and its version; its lease is given back.
    #[track_caller]
    pub fn read(&mut self, name: &str) -> Result<(Vec<u8>, u64), Status> {
        let got = self.get(&[name], 0)?;
        let found = (got.bytes(0), got.version(0));
        self.release(got);
        Ok(found)
    }

    /// Closes the fds, and gives the leases back.
    #[track_caller]
    pub fn release(&mut self, got: Got) {
        let leases = got.leases();
        drop(got);
        assert!(self.raw.release(&leases).iter().all(Status::is_ok));
    }

    /// Deletes names; a status for each.
    #[track_caller]
    pub fn delete(&mut self, names: &[&str]) -> Vec<Status> {
        let items: Vec<_> = names.iter().map(|name| (*name, 0)).collect();
        self.delete_versions(&items)
    }

    /// The same for certain versions.
    #[track_caller]
    pub fn delete_versions(&mut self, names: &[(&str, u64)]) -> Vec<Status> {
        let head = ObjectScope::new_zeroed();
        let answer = self.ask(
            Kind::ObjectDelete,
            |writer| put_deleted(writer.push(&head), names),
            names.len(),
            None,
        );
        statuses(&answer.expect("statuses"))
    }

    /// All names that begin so, page after page.
    #[track_caller]
    pub fn list(&mut self, prefix: &str) -> Vec<Record> {
        let (mut all, mut after) = (Vec::new(), Vec::new());
        loop {
            let (mut page, done) = self.page(prefix.as_bytes(), &after, 0).expect("a page");
            assert!(done || !page.is_empty(), "a list goes on");
            after = page.last().map(|record| record.name.clone()).unwrap_or_default();
            all.append(&mut page);
            if done {
                return all;
            }
        }
    }

    /// One page, and whether it is the last.
    #[track_caller]
    pub fn page(
        &mut self,
        prefix: &[u8],
        after: &[u8],
        flags: u32,
    ) -> Result<(Vec<Record>, bool), Status> {
        let head = ObjectPrefix {
            flags: flags.into(),
            prefix_len: length(prefix.len()),
            after_len: length(after.len()),
            reserved: 0.into(),
        };
        let answer = self.ask(
            Kind::ObjectList,
            |writer| writer.push(&head).push(prefix).push(after),
            0,
            None,
        )?;
        Ok(records(&answer))
    }

    /// What is known of names.
    #[track_caller]
    pub fn stat(&mut self, names: &[&str]) -> Vec<Record> {
        let mut all = Vec::new();
        while all.len() < names.len() {
            let left = &names[all.len()..];
            let answer = self.ask(
                Kind::ObjectStat,
                |writer| put_names(writer.push(&ObjectScope::new_zeroed()), left),
                left.len(),
                None,
            );
            let answer = answer.expect("records");
            let (more, done) = records(&answer);
            assert!(!more.is_empty(), "a stat goes on");
            all.extend(more);
            assert_eq!(done, all.len() == names.len(), "it says whether it is done");
        }
        all
    }

    /// Uses names, and sets what keeps their groups.
    #[track_caller]
    pub fn touch(&mut self, names: &[&str], flags: u32, ttl_ms: u64) -> Vec<Status> {
        let head = ObjectTouchHead {
            ttl_ms: ttl_ms.into(),
            flags: flags.into(),
            ..ObjectTouchHead::new_zeroed()
        };
        let answer = self.ask(
            Kind::ObjectTouch,
            |writer| put_names(writer.push(&head), names),
            names.len(),
            None,
        );
        statuses(&answer.expect("statuses"))
    }

    /// Asks to be told of names that begin so.
    #[track_caller]
    pub fn watch(&mut self, prefix: &str) -> Result<(), Status> {
        let head = ObjectPrefix { prefix_len: length(prefix.len()), ..ObjectPrefix::new_zeroed() };
        self.ask(Kind::ObjectWatch, |writer| writer.push(&head).push(prefix.as_bytes()), 0, None)
            .map(drop)
    }

    /// The next events.
    #[track_caller]
    pub fn events(&self) -> Vec<(ObjectEvent, String, u64)> {
        let incoming = self.raw.receive_event().expect("events");
        let message = incoming.message();
        assert_eq!(message.kind, Kind::ObjectEvents, "{message:?}");
        let items = message.named::<ObjectEventItem>().expect("events");
        let each = items.map(|(item, name, _)| {
            let event = ObjectEvent::from_number(item.event).expect("a known event");
            (event, String::from_utf8_lossy(name).into_owned(), item.version.get())
        });
        each.collect()
    }

    /// The events until one is this.
    #[track_caller]
    pub fn events_until(&self, wanted: ObjectEvent, name: &str) -> Vec<(ObjectEvent, String, u64)> {
        let mut all = Vec::new();
        while !all.iter().any(|(event, its, _)| *event == wanted && its == name) {
            all.extend(self.events());
        }
        all
    }
}

fn put_objects<'a>(writer: &'a mut Writer, objects: &[New]) -> &'a mut Writer {
    for object in objects {
        writer.push(&ObjectItem {
            offset: object.offset.into(),
            size_bytes: object.size_bytes.into(),
            expect: object.expect.unwrap_or(0).into(),
            metadata_len: u16::try_from(object.metadata.len()).expect("below 65,536").into(),
            name_len: length(object.name.len()),
            flags: if object.expect.is_some() { ObjectItem::EXPECT } else { 0 },
            reserved: 0.into(),
        });
        writer.push(object.name.as_slice()).push(object.metadata.as_slice());
    }
    writer
}

fn put_deleted<'a>(writer: &'a mut Writer, names: &[(&str, u64)]) -> &'a mut Writer {
    for (name, version) in names {
        let (version, name_len) = ((*version).into(), length(name.len()));
        writer.push(&ObjectDeleteItem { version, name_len, reserved: [0; 7] });
        writer.push(name.as_bytes());
    }
    writer
}

fn put_names<'a>(writer: &'a mut Writer, names: &[&str]) -> &'a mut Writer {
    for name in names {
        writer.push(&ObjectName { name_len: length(name.len()) }).push(name.as_bytes());
    }
    writer
}

#[track_caller]
fn statuses(answer: &Incoming) -> Vec<Status> {
    let message = answer.message();
    assert_eq!(message.kind, Kind::ObjectReply, "{message:?}");
    message.items::<Status>().expect("statuses").to_vec()
}

#[track_caller]
fn records(answer: &Incoming) -> (Vec<Record>, bool) {
    let message = answer.message();
    assert_eq!(message.kind, Kind::ObjectRecords, "{message:?}");
    let (page, items) = message.head_and_named::<ObjectPage, ObjectRecord>().expect("records");
    let each = items.map(|(fixed, name, metadata)| {
        assert_eq!(fixed.name_bytes(), name.len());
        Record { fixed: *fixed, name: name.to_vec(), metadata: metadata.to_vec() }
    });
    (each.collect(), page.done.get() == 1)
}

/// A helper that makes objects: each line of its test is one thing to do. What it answers is a version, a number of a group,
/// OK, or the name of the error.
pub fn play(mut link: Link) {
    let mut objects = None;
    let mut groups = Vec::new();
    while let Some(line) = link.hear() {
        let words: Vec<&str> = line.split(' ').collect();
        if let ["replace", one, other] = words[..] {
            link.say("OK");
            replace(&mut link, objects.as_mut().expect("connected"), one, other);
            continue;
        }
        let said = act(&words, &mut objects, &mut groups);
        link.say(&said.unwrap_or_else(|status| match status.result() {
            Err(code) => code.name().to_owned(),
            Ok(()) => "OK".to_owned(),
        }));
    }
}

/// Replaces two objects of one group again and again until a line comes: both have the same text, another each time.
fn replace(link: &mut Link, objects: &mut Objects, one: &str, other: &str) {
    for round in 0_u64.. {
        let text = round.to_string();
        let group = [(one, text.as_bytes()), (other, text.as_bytes())];
        objects.put_group(&group, REPLACE).expect("a name may be replaced");
        if link.has_line() {
            return link.say(&text);
        }
    }
}

fn act(
    words: &[&str],
    objects: &mut Option<Objects>,
    groups: &mut Vec<(u64, OwnedFd)>,
) -> Result<String, Status> {
    if let ["user", uid] = words {
        let uid = nix::unistd::Uid::from_raw(uid.parse().expect("a uid"));
        nix::unistd::setgroups(&[]).expect("root");
        let gid = nix::unistd::Gid::from_raw(uid.as_raw());
        nix::unistd::setresgid(gid, gid, gid).expect("root");
        nix::unistd::setresuid(uid, uid, uid).expect("root");
        return Ok("OK".into());
    }
    if let ["connect", socket] = words {
        *objects = Some(Objects::connect(Path::new(socket)));
        return Ok("OK".into());
    }
    let objects = objects.as_mut().expect("connected");
    let flags = |word: &str| word.parse::<u32>().expect("bits");
    match words {
        ["put", name, text, bits] => {
            objects.put(name, text.as_bytes(), flags(bits)).map(|version| version.to_string())
        }
        ["begin", name, text, bits] => {
            groups.push(objects.begin(&[(name, text.as_bytes())], flags(bits))?);
            Ok("OK".into())
        }
        ["seal"] => {
            let (group, memfd) = groups.pop().expect("a group");
            seal_memory(&memfd);
            objects.seal(group).map(|version| version.to_string())
        }
        ["read", name] => {
            let (bytes, _) = objects.read(name)?;
            Ok(String::from_utf8(bytes).expect("text"))
        }
        ["delete", name] => Err(objects.delete(&[name])[0]),
        ["pin", name] => Err(objects.touch(&[name], PIN, 0)[0]),
        // What a get says that waits in vain: the error, and who makes it.
        ["late", name] => match objects.get(&[name], 50) {
            Err(status) => {
                let code = status.result().expect_err("an error");
                Ok(format!("{} {}", code.name(), status.pid))
            }
            Ok(_) => Ok("OK".into()),
        },
        ["list"] => Ok(objects.list("").len().to_string()),
        _ => panic!("no such thing to do: {words:?}"),
    }
}

/// The error of an outcome.
#[track_caller]
pub fn code<T: std::fmt::Debug>(outcome: Result<T, Status>) -> fdbroker_protocol::ErrorCode {
    outcome.expect_err("it is refused").result().expect_err("an error")
}

const _: () = assert!(LONG_MS as u128 >= PATIENCE.as_millis());
