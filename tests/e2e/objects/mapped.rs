//! Seals through the library: memory that is still mapped, here or in a child, for writing or not,
//! or that a device uses, cannot be sealed; and the group is then as before.

use super::maker::zeros;
use crate::common::not_run;
use crate::support::broker::Broker;
use crate::support::wait::patience;
use fdbroker_client::{
    Client, Deposit, ErrorCode, Group, MemoryKind, NewObject, ObjectOptions, Objects, Place,
    SealError,
};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use std::ffi::c_void;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;

/// Bytes of the memory.
const SIZE: usize = 4096;

/// A group in memory of the test's own, which the test can map as it likes.
struct Making {
    _client: Client,
    objects: Objects,
    memfd: OwnedFd,
}

/// A mapping of the memory, until its drop.
struct Mapping(NonNull<c_void>);

impl Mapping {
    fn of(memfd: &OwnedFd, access: ProtFlags) -> Mapping {
        let size = SIZE.try_into().expect("not empty");
        // SAFETY: a new mapping, whose memory nobody has references to.
        Mapping(unsafe {
            mmap(None, size, access, MapFlags::MAP_SHARED, memfd, 0).expect("mapped")
        })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's, and there are no references into it.
        unsafe { munmap(self.0, SIZE).expect("unmapped") };
    }
}

impl Making {
    fn new(broker: &Broker) -> Making {
        let client = broker.client("maker");
        let memfd = zeros(SIZE as u64);
        // As the library demands of foreign memory: its size is fixed, and more seals may come.
        let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW;
        fcntl(&memfd, FcntlArg::F_ADD_SEALS(seals)).expect("sealed");
        Making { objects: client.objects(), _client: client, memfd }
    }

    fn begin(&self, name: &str) -> Group {
        let deposit = Deposit::new(MemoryKind::Memfd, SIZE as u64);
        let place = Place::Fd(self.memfd.as_fd(), &deposit);
        let new = [NewObject::new(name, SIZE as u64 - 8).offset(8)];
        self.objects.create(&new, place, ObjectOptions::default(), patience()).expect("begun")
    }
}

/// The group again, after a seal that was refused because the memory is in use.
#[track_caller]
fn busy(outcome: Result<u64, SealError>) -> Group {
    let failed = outcome.expect_err("it is in use");
    assert_eq!(failed.error.code, ErrorCode::SealedBusy, "{}", failed.error);
    *failed.group.expect("it can be sealed again")
}

#[test]
fn seal_when_a_map_is_left_for_writing_or_reading_then_sealed_busy_and_later_it_is_sealed() {
    let broker = Broker::start();
    let making = Making::new(&broker);
    let mut group = making.begin("a");
    for access in [ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, ProtFlags::PROT_READ] {
        let mapping = Mapping::of(&making.memfd, access);
        group = busy(group.seal(patience()));
        drop(mapping);
    }
    nix::sys::uio::pwrite(&making.memfd, b"as before", 8).expect("it is not sealed");
    let version = group.seal(patience()).expect("nothing is left");
    let object = making.objects.get("a", patience()).expect("sealed");
    assert_eq!((object.version(), object.len()), (version, SIZE - 8));
    assert!(object.bytes().expect("mapped").starts_with(b"as before"));
    drop((object, making));
    broker.assert_nothing_left();
}

#[test]
fn seal_when_a_child_has_it_mapped_then_sealed_busy_until_the_child_ends() {
    let broker = Broker::start();
    let making = Making::new(&broker);
    let group = making.begin("a");
    let mapping = Mapping::of(&making.memfd, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE);
    let (mut child, go) = child_that_waits();
    drop(mapping);
    let group = busy(group.seal(patience()));
    drop(go);
    child.wait();
    group.seal(patience()).expect("nothing is left");
}

/// A forked child, with all of this process's mappings, that ends at the end of a pipe.
struct ForkedChild(nix::unistd::Pid);

impl ForkedChild {
    fn wait(&mut self) {
        nix::sys::wait::waitpid(self.0, None).expect("its end");
    }
}

fn child_that_waits() -> (ForkedChild, OwnedFd) {
    let (read, write) = nix::unistd::pipe().expect("a pipe");
    // SAFETY: the child makes system calls only, and ends by one.
    match unsafe { nix::unistd::fork() }.expect("fork") {
        nix::unistd::ForkResult::Parent { child } => (ForkedChild(child), write),
        nix::unistd::ForkResult::Child => {
            // SAFETY: system calls on this process's own fds; the byte is on its stack.
            unsafe {
                libc::close(write.as_raw_fd());
                let mut byte = 0_u8;
                libc::read(read.as_raw_fd(), (&raw mut byte).cast(), 1);
                libc::_exit(0);
            }
        }
    }
}

// What a device has pinned stays writable by it after every mapping is gone. A pipe that shares the
// page pins it the same way.
#[test]
fn seal_when_its_pages_are_in_a_pipe_then_sealed_busy_until_they_are_read() {
    let broker = Broker::start();
    let making = Making::new(&broker);
    let group = making.begin("a");
    let mapping = Mapping::of(&making.memfd, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE);
    let (read, write) = nix::unistd::pipe().expect("a pipe");
    let pages = libc::iovec { iov_base: mapping.0.as_ptr(), iov_len: SIZE };
    // SAFETY: one iovec of memory that is mapped.
    let given = unsafe { libc::vmsplice(write.as_raw_fd(), &raw const pages, 1, 0) };
    assert_eq!(Errno::result(given), Ok(SIZE.cast_signed()));
    drop(mapping);
    let group = busy(group.seal(patience()));
    let mut taken = vec![0; SIZE];
    assert_eq!(nix::unistd::read(&read, &mut taken).expect("readable"), SIZE);
    group.seal(patience()).expect("nothing is left");
}

#[test]
fn seal_when_io_uring_has_registered_its_pages_then_sealed_busy_until_it_is_closed() {
    const NAME: &str =
        "seal_when_io_uring_has_registered_its_pages_then_sealed_busy_until_it_is_closed";
    let broker = Broker::start();
    let making = Making::new(&broker);
    let mapping = Mapping::of(&making.memfd, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE);
    let ring = match ring_with(&mapping) {
        Ok(ring) => ring,
        Err(errno) => return not_run(NAME, &format!("io_uring: {errno}")),
    };
    drop(mapping);
    let group = busy(making.begin("a").seal(patience()));
    drop(ring);
    // The kernel lets go of the pages after the close.
    let mut group = Some(group);
    crate::support::wait::eventually("it is sealed", || {
        match group.take().expect("not yet").seal(patience()) {
            Ok(_) => true,
            Err(failed) => {
                assert_eq!(failed.error.code, ErrorCode::SealedBusy);
                group = failed.group.map(|group| *group);
                false
            }
        }
    });
}

/// A ring that has registered the mapping as a buffer (io_uring_register(2),
/// IORING_REGISTER_BUFFERS).
fn ring_with(mapping: &Mapping) -> nix::Result<OwnedFd> {
    const IORING_REGISTER_BUFFERS: libc::c_uint = 0;
    // struct io_uring_params (linux/io_uring.h).
    let mut params = [0_u8; 120];
    // SAFETY: the structure has the kernel's size, and is zeroed.
    let ring = unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, params.as_mut_ptr()) };
    let ring = i32::try_from(Errno::result(ring)?).expect("an fd");
    // SAFETY: io_uring_setup(2) has just made this fd.
    let ring = unsafe { OwnedFd::from_raw_fd(ring) };
    let buffer = libc::iovec { iov_base: mapping.0.as_ptr(), iov_len: SIZE };
    // SAFETY: one iovec of memory that is mapped.
    let done = unsafe {
        let (number, what) = (ring.as_raw_fd(), IORING_REGISTER_BUFFERS);
        libc::syscall(libc::SYS_io_uring_register, number, what, &raw const buffer, 1)
    };
    Errno::result(done)?;
    Ok(ring)
}
