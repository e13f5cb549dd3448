//! The makers and readers of kept objects for tests/vm/systemd.sh, in the bare protocol. Must never
//! hide an error.

use crate::{DEADLINE_MS, Outcome};
use fdbroker_protocol::limits::MAX_MESSAGE_BYTES;
use fdbroker_protocol::message::{Hello, Role};
use fdbroker_protocol::object::{
    ObjectCreateHead, ObjectCreated, ObjectGetHead, ObjectGroup, ObjectItem, ObjectName,
    object_flags,
};
use fdbroker_protocol::{ErrorCode, Facts, Kind, MemoryKind, Message, Writer};
use fdbroker_scm::ReceivedFds;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::time::Duration;

#[path = "../common/hello.rs"]
mod hello;

/// Longest wait for an answer: more than the longest deadline of a request.
const PATIENCE: Duration = Duration::from_secs(60);

/// A connection after its hello.
struct Connection {
    socket: OwnedFd,
    requests: u64,
    /// The event socket and the page: without the first the connection ends.
    _of_hello: Vec<OwnedFd>,
}

/// An answer, and its fds.
struct Answer {
    bytes: Vec<u8>,
    fds: Vec<OwnedFd>,
}

impl Answer {
    fn message(&self) -> Outcome<Message<'_>> {
        Ok(Message::parse(&self.bytes)?)
    }
}

impl Connection {
    fn dial() -> Outcome<OwnedFd> {
        Ok(hello::open(std::env::var("FDBROKER_SOCKET")?.as_ref())?)
    }

    fn open() -> Outcome<Self> {
        let socket = Self::dial()?;
        let mut connection = Connection { socket, requests: 0, _of_hello: Vec::new() };
        let hello = Hello { deadline_ms: DEADLINE_MS.into(), ..hello::hello() };
        let answer = connection.ask(Kind::Hello, |writer| _ = writer.push(&hello), 0, &[])?;
        let join = hello::join_message(answer.message()?.body_as()?, Role::Events);
        let events = Self::dial()?;
        fdbroker_scm::send_timeout(events.as_fd(), &join, &[], Some(PATIENCE))?;
        connection._of_hello = answer.fds;
        connection._of_hello.push(events);
        Ok(connection)
    }

    fn ask(
        &mut self,
        kind: Kind,
        body: impl FnOnce(&mut Writer),
        count: usize,
        fds: &[BorrowedFd<'_>],
    ) -> Outcome<Answer> {
        self.requests += 1;
        let mut writer = Writer::new();
        writer.start(kind, self.requests);
        body(&mut writer);
        let (socket, message) = (self.socket.as_fd(), writer.finish(count, fds.len()));
        fdbroker_scm::send_timeout(socket, message, fds, Some(PATIENCE))?;
        let (mut bytes, mut fds) = (vec![0; MAX_MESSAGE_BYTES], ReceivedFds::new());
        let got = fdbroker_scm::recv_timeout(socket, &mut bytes, &mut fds, Some(PATIENCE))?;
        bytes.truncate(got.len);
        Ok(Answer { bytes, fds: fds.drain().collect() })
    }
}

/// The bytes of an object; those of another one are others.
fn pattern(index: u64, bytes: usize) -> Vec<u8> {
    (0..bytes as u64).map(|at| (at.wrapping_mul(31) ^ index.wrapping_mul(7)) as u8).collect()
}

fn expect(answer: &Answer, kind: Kind) -> Outcome<Message<'_>> {
    let message = answer.message()?;
    match message.kind {
        Kind::Failed => Err(message.status()?.to_string().into()),
        its if its == kind => Ok(message),
        its => Err(format!("{its:?} instead of {kind:?}").into()),
    }
}

pub fn keep(count: u64, prefix: &str, bytes: usize) -> Outcome<()> {
    let mut connection = Connection::open()?;
    for index in 0..count {
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let memory = File::from(memfd_create("kept", flags)?);
        memory.write_all_at(&pattern(index, bytes), 0)?;
        let head = ObjectCreateHead {
            facts: Facts::new(MemoryKind::Memfd, bytes as u64).into(),
            flags: object_flags::KEEP.into(),
            ttl_ms: 0.into(),
            credits_wanted: 1.into(),
            driver_data_len: 0,
            reserved: 0.into(),
            driver_data: [0; 64],
        };
        let name = format!("{prefix}/{index}");
        let item = ObjectItem {
            offset: 0.into(),
            size_bytes: (bytes as u64).into(),
            expect: 0.into(),
            metadata_len: 0.into(),
            name_len: u8::try_from(name.len())?,
            flags: 0,
            reserved: 0.into(),
        };
        let body = |writer: &mut Writer| _ = writer.push(&head).push(&item).push(name.as_bytes());
        let created = connection.ask(Kind::ObjectCreate, body, 1, &[memory.as_fd()])?;
        let created = expect(&created, Kind::ObjectCreated)?;
        let group = created.body_as::<ObjectCreated>()?.group;
        let seals = SealFlag::F_SEAL_WRITE | SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW;
        fcntl(&memory, FcntlArg::F_ADD_SEALS(seals))?;
        let seal = |writer: &mut Writer| _ = writer.push(&ObjectGroup { group });
        let sealed = connection.ask(Kind::ObjectSeal, seal, 0, &[])?;
        expect(&sealed, Kind::ObjectSealed)?;
    }
    Ok(())
}

pub fn get(count: u64, prefix: &str) -> Outcome<()> {
    let mut connection = Connection::open()?;
    let mut counts: BTreeMap<String, u64> = BTreeMap::new();
    for index in 0..count {
        *counts
            .entry(get_one(&mut connection, &format!("{prefix}/{index}"), index)?)
            .or_default() += 1;
    }
    let counts: Vec<String> =
        counts.iter().map(|(what, count)| format!("{what}={count}")).collect();
    println!("{}", counts.join(" "));
    Ok(())
}

/// What a get of this name comes to.
fn get_one(connection: &mut Connection, name: &str, index: u64) -> Outcome<String> {
    let head = ObjectGetHead { deadline_ms: 0.into(), flags: 0.into() };
    let item = ObjectName { name_len: u8::try_from(name.len())? };
    let body = |writer: &mut Writer| _ = writer.push(&head).push(&item).push(name.as_bytes());
    let answer = connection.ask(Kind::ObjectGet, body, 1, &[])?;
    let message = answer.message()?;
    if message.kind == Kind::Failed {
        let code = message.status()?.result().err().unwrap_or(ErrorCode::Internal);
        return Ok(format!("{code:?}"));
    }
    let got = message.got()?;
    let (Some(item), Some(fd)) = (got.items.first(), answer.fds.first()) else {
        return Ok("empty".into());
    };
    let mut bytes = vec![0; usize::try_from(item.size_bytes.get())?];
    File::from(fd.try_clone()?).read_exact_at(&mut bytes, item.offset.get())?;
    Ok(if bytes == pattern(index, bytes.len()) { "ok".into() } else { "WrongBytes".into() })
}
