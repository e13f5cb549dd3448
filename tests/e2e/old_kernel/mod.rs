//! What depends on the age of the kernel: the calls that older ones lack, and memory that they map
//! in other ways. Each test says what holds on any kernel; tests/vm/e2e.sh --kernel 6.1 runs them
//! on an old one. Must never be left out on one of them.

mod vgem;

use crate::support::broker::Broker;
use crate::support::memory::{BLOCK_BYTES, all_seals, assert_bytes, assert_import, memfd, pattern};
use crate::support::raw::{Raw, block_item, open};
use crate::support::wait::{eventually, patience};
use fdbroker_client::{Access, Arena, Deposit, HostMemory, IsolatedBuffer, IsolatedMemory, Share};
use fdbroker_protocol::{ErrorCode, MemoryKind};
use fdbrokerd::kernel::{KernelFeatures, is_same_file};
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::uio::pwrite;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use vgem::Vgem;

const NONE: KernelFeatures =
    KernelFeatures { peer_pidfd: false, pidfd_open: true, dupfd_query: false, pass_rights: false };

/// A block that nobody can write any more, by an fd that is open for writing.
fn write_sealed(seal: SealFlag) -> OwnedFd {
    let block = memfd(c"block", BLOCK_BYTES, SealFlag::empty());
    assert_eq!(pwrite(&block, &pattern(0), 0), Ok(BLOCK_BYTES));
    fcntl(&block, FcntlArg::F_ADD_SEALS(all_seals() | seal)).expect("sealed");
    block
}

// Before 6.7 such a memfd cannot be mapped shared (mmap(2) says EPERM), for reading neither.
#[test]
fn import_when_its_memfd_is_write_sealed_and_its_fd_is_for_writing_then_it_can_be_read_alone() {
    for seal in [SealFlag::F_SEAL_WRITE, SealFlag::F_SEAL_FUTURE_WRITE] {
        let broker = Broker::start();
        let (owner, consumer) = (broker.client("owner"), broker.client("consumer"));
        let block = write_sealed(seal);
        let deposit = Deposit::new(MemoryKind::Memfd, BLOCK_BYTES as u64);
        let registered = owner.register(&deposit, block.as_fd(), patience()).expect("registered");
        drop(block);
        let acquire = || consumer.acquire(&registered.handle, patience()).expect("granted");
        let import = assert_bytes(acquire(), 0);
        let refused = acquire().import(Access::ReadWrite, 0).expect_err("it is sealed");
        assert_eq!(refused.code, ErrorCode::NotPermitted, "{refused}");
        // The memory is held by the map alone.
        drop(owner);
        assert_import(&import, 0);
        drop((consumer, import));
        broker.assert_nothing_left();
    }
}

#[test]
fn files_when_compared_then_duplicates_are_one_whichever_call_the_kernel_has() {
    let (one, other) = (write_sealed(SealFlag::empty()), write_sealed(SealFlag::empty()));
    let duplicate = one.try_clone().expect("dup");
    let reopened = File::open(format!("/proc/self/fd/{}", one.as_raw_fd())).expect("open");
    for features in [KernelFeatures::ALL, NONE] {
        let is_same = |fd| is_same_file(one.as_fd(), fd, features);
        assert_eq!(is_same(duplicate.as_fd()), Some(true), "{features:?}");
        assert_eq!(is_same(other.as_fd()), Some(false), "{features:?}");
        // The same memory, but another open file.
        assert_eq!(is_same(reopened.as_fd()), Some(false), "{features:?}");
    }
}

/// The kernel's release, such as (6, 12).
fn release() -> (u32, u32) {
    let uname = nix::sys::utsname::uname().expect("uname");
    let text = uname.release().to_str().expect("ASCII");
    let mut numbers = text.split(['.', '-']).map(|part| part.parse().expect("a number"));
    let mut next = || numbers.next().expect("two numbers at least");
    (next(), next())
}

// SO_PEERPIDFD came with 6.5, F_DUPFD_QUERY with 6.10, SO_PASSRIGHTS with 6.16, and none of them to
// the stock kernel of Debian 12.
#[test]
fn features_when_the_kernel_has_a_release_then_those_that_came_with_it_or_before() {
    let release = release();
    let expected = KernelFeatures {
        peer_pidfd: release >= (6, 5),
        pidfd_open: true,
        dupfd_query: release >= (6, 10),
        pass_rights: release >= (6, 16),
    };
    assert_eq!(KernelFeatures::detect().expect("a socket"), expected, "{release:?}");
}

// The kernel refuses them where it knows SO_PASSRIGHTS. Elsewhere it hands them over: they are
// closed, and the connection ends.
#[test]
fn fds_when_nobody_asked_for_them_then_refused_by_the_kernel_or_closed() {
    let refuses = KernelFeatures::detect().expect("a socket").pass_rights;
    let broker = Broker::start();
    let before = broker.settled_fds();
    for _ in 0..20 {
        let silent = Raw::of(open(&broker.socket()).expect("connect"));
        let fd = write_sealed(SealFlag::empty());
        let sent = silent.send(&[1; 24], &[fd.as_fd(); 8]);
        assert_eq!(sent.is_err(), refuses, "{sent:?}");
        if !refuses {
            silent.assert_ended();
        }
    }
    let mut client = Raw::connect(&broker.socket());
    let fd = write_sealed(SealFlag::empty());
    assert!(client.register(&[block_item()], &[fd.as_fd()])[0].status.get().is_ok());
    drop((client, fd));
    eventually("none of them is left", || broker.open_fds() == before);
    broker.assert_nothing_left();
}

/// Whether this process may use a device; it is told apart from one that is not there.
fn is_usable(device: &str) -> bool {
    File::options().read(true).write(true).open(device).is_ok()
}

#[test]
fn memory_when_the_kernel_makes_no_dmabufs_then_not_supported_names_the_device() {
    let broker = Broker::start();
    let client = broker.builder("owner").own_fds(2).connect().expect("connect");
    let arena = Arena::new(&client, HostMemory::Udmabuf, BLOCK_BYTES);
    let (heap, share) = (IsolatedMemory::DmaHeap, Share::Uid);
    let isolated = IsolatedBuffer::new(&client, heap, BLOCK_BYTES, share, patience());
    let outcomes =
        [(arena.map(drop), "/dev/udmabuf"), (isolated.map(drop), "/dev/dma_heap/system")];
    for (outcome, device) in outcomes {
        assert_eq!(outcome.is_ok(), is_usable(device), "{device}: {outcome:?}");
        let Err(error) = outcome else { continue };
        assert!(error.to_string().contains(device), "{error}");
        if !Path::new(device).exists() {
            assert_eq!(error.code, ErrorCode::NotSupported, "{error}");
        }
    }
}

/// Memory of a maker outside the library: a dma-buf of vgem where FDBROKER_TEST_DMABUF says that
/// there is one, as on Debian 12's kernel, else a memfd.
fn foreign_memory() -> (MemoryKind, OwnedFd) {
    match std::env::var("FDBROKER_TEST_DMABUF").as_deref() {
        Ok("vgem") => (MemoryKind::DmaBuf, Vgem::open().dmabuf(BLOCK_BYTES)),
        Ok(other) => panic!("FDBROKER_TEST_DMABUF is vgem, or is not set; it is {other}"),
        Err(_) => (MemoryKind::Memfd, memfd(c"foreign", BLOCK_BYTES, all_seals())),
    }
}

#[test]
fn memory_when_its_maker_has_gone_then_its_size_is_proved_and_readers_have_its_bytes() {
    let broker = Broker::start();
    let (owner, consumer) = (broker.client("owner"), broker.client("consumer"));
    let (kind, memory) = foreign_memory();
    let deposit = |bytes: usize| Deposit::new(kind, bytes as u64);
    let refused = owner.register(&deposit(2 * BLOCK_BYTES), memory.as_fd(), patience());
    assert_eq!(refused.expect_err("it is smaller").code, ErrorCode::UnsupportedFd);
    let registered = owner.register(&deposit(BLOCK_BYTES), memory.as_fd(), patience());
    let registered = registered.expect("registered");
    let grant = consumer.acquire(&registered.handle, patience()).expect("granted");
    let writable = grant.import(Access::ReadWrite, 0).expect("import");
    writable.write_at(0, &pattern(5)).expect("in bounds");
    if kind == MemoryKind::DmaBuf {
        let held = broker.status().uses.held_bytes.now.get();
        assert_eq!(held, BLOCK_BYTES as u64, "its size is proved");
    }
    drop(memory);
    let grant = consumer.acquire(&registered.handle, patience()).expect("granted");
    drop(assert_bytes(grant, 5));
    drop((writable, owner, consumer));
    broker.assert_nothing_left();
}
