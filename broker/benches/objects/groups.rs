//! Groups of objects over the bare protocol: made, put, got, listed. Must never assert a time.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use fdbroker_protocol::message::LeaseItem;
use fdbroker_protocol::object::{
    ObjectCreateHead, ObjectCreated, ObjectGetHead, ObjectGroup, ObjectItem, ObjectName,
    ObjectPage, ObjectPrefix, ObjectRecord, ObjectSealed,
};
use fdbroker_protocol::{Facts, Kind, MAX_BATCH, MemoryKind};
use nix::fcntl::{FallocateFlags, FcntlArg, SealFlag, fallocate, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use zerocopy::FromZeros;

use crate::common::broker::{Connection, parse};

/// Longest wait for room in a socket.
const PATIENCE: Duration = Duration::from_secs(20);

/// Objects that appear together.
pub struct Group {
    pub names: Vec<String>,
    object_bytes: u64,
}

impl Group {
    /// The group of this number.
    pub fn of(number: usize, objects: usize, object_bytes: u64) -> Self {
        let name = |at| format!("bench/{number:06}/{at:03}");
        Group { names: (0..objects).map(name).collect(), object_bytes }
    }

    /// Bytes of all its objects.
    pub fn bytes(&self) -> u64 {
        self.names.len() as u64 * self.object_bytes
    }
}

/// A memfd of this size without pages.
pub fn memory(bytes: u64) -> OwnedFd {
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let memfd = memfd_create(c"fdbroker-bench", flags).expect("memfd");
    nix::unistd::ftruncate(&memfd, bytes.cast_signed()).expect("size");
    memfd
}

/// Makes, writes and seals a group.
pub fn put(maker: &mut Connection, group: &Group) {
    let memfd = memory(group.bytes());
    fallocate(&memfd, FallocateFlags::empty(), 0, group.bytes().cast_signed()).expect("pages");
    write(&memfd, group.bytes());
    enter(maker, group, memfd);
}

/// Fills the memory through a mapping, as a library would.
fn write(memfd: &OwnedFd, bytes: u64) {
    use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
    let length = usize::try_from(bytes).expect("small");
    let size = length.try_into().expect("not empty");
    let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    // SAFETY: a new mapping of memory of this process alone, which is unmapped before anything else
    // can see it.
    unsafe {
        let at = mmap(None, size, access, MapFlags::MAP_SHARED, memfd, 0).expect("mapped");
        at.cast::<u8>().write_bytes(0x5a, length);
        munmap(at, length).expect("unmapped");
    }
}

/// Enters the objects of a group with their memory, and seals it.
pub fn enter(maker: &mut Connection, group: &Group, memfd: OwnedFd) {
    maker.writer.start(Kind::ObjectCreate, 5);
    maker.writer.push(&ObjectCreateHead {
        facts: Facts::new(MemoryKind::Memfd, group.bytes()).into(),
        credits_wanted: 1.into(),
        ..ObjectCreateHead::new_zeroed()
    });
    for (name, at) in group.names.iter().zip(0..) {
        maker.writer.push(&ObjectItem {
            offset: (at * group.object_bytes).into(),
            size_bytes: group.object_bytes.into(),
            name_len: name.len().try_into().expect("a short name"),
            ..ObjectItem::new_zeroed()
        });
        maker.writer.push(name.as_bytes());
    }
    let message = maker.writer.finish(group.names.len(), 1);
    fdbroker_scm::send_timeout(
        maker.wire.sock().as_fd(),
        message,
        &[memfd.as_fd()],
        Some(PATIENCE),
    )
    .expect("the daemon takes it");
    let created = *parse(maker.wire.answer()).body_as::<ObjectCreated>().expect("created");
    maker.credits = created.deposit_credits.get();

    let seals = SealFlag::F_SEAL_WRITE | SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW;
    fcntl(&memfd, FcntlArg::F_ADD_SEALS(seals | SealFlag::F_SEAL_SEAL)).expect("sealed");
    maker.writer.start(Kind::ObjectSeal, 6).push(&ObjectGroup { group: created.group });
    let (reply, ..) = maker.wire.call(maker.writer.finish(0, 0));
    parse(reply).body_as::<ObjectSealed>().expect("sealed");
}

/// Gets an object, and closes its fd.
pub fn get(client: &mut Connection, name: &str) {
    client.writer.start(Kind::ObjectGet, 7);
    client.writer.push(&ObjectGetHead { deadline_ms: 5000.into(), flags: 0.into() });
    client.writer.push(&ObjectName { name_len: name.len().try_into().expect("a short name") });
    client.writer.push(name.as_bytes());
    let (reply, fds, _) = client.wire.call(client.writer.finish(1, 0));
    let got = parse(reply).got().expect("got");
    assert_eq!((got.items.len(), got.grants.len(), fds), (1, 1, 1), "an fd for the group");
    client.leases.push(LeaseItem { lease: got.grants[0].lease });
    assert!(client.leases.len() < MAX_BATCH);
}

/// Asks for the names behind one.
pub fn ask_page(lister: &mut Connection, after: &[u8]) {
    lister.writer.start(Kind::ObjectList, 8);
    let after_len = after.len().try_into().expect("a name");
    lister.writer.push(&ObjectPrefix { after_len, ..ObjectPrefix::new_zeroed() });
    lister.writer.push(after);
    lister.wire.send(lister.writer.finish(0, 0));
}

/// Takes a page: the number of its names, and the last if there are more.
pub fn take_page(lister: &mut Connection) -> (usize, Vec<u8>) {
    let message = parse(lister.wire.answer());
    let (page, records) = message.head_and_named::<ObjectPage, ObjectRecord>().expect("a page");
    let count = records.len();
    let last = records.last().map(|(_, name, _)| name.to_vec()).unwrap_or_default();
    (count, if page.done.get() == 0 { last } else { Vec::new() })
}

/// Asks for a page and takes it.
pub fn list_page(lister: &mut Connection, after: &[u8]) -> (usize, Vec<u8>) {
    ask_page(lister, after);
    take_page(lister)
}
