//! The seal of host memory: it must be sealed by its maker, whatever is still mapped, and readers
//! get fds that cannot write.

use crate::support::broker::Broker;
use crate::support::objects::{Group, SIZE, add_seals, code, flags, memory, new, seal_memory};
use crate::support::raw::Raw;
use crate::support::wait::eventually;

use fdbroker_protocol::object::object_flags;
use fdbroker_protocol::{ErrorCode, FdType, Status};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, SealFlag, fcntl};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use nix::sys::uio::pwrite;
use std::num::NonZeroUsize;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;

fn map(fd: &OwnedFd, protection: ProtFlags) -> nix::Result<NonNull<libc::c_void>> {
    let length = NonZeroUsize::new(SIZE).expect("not 0");
    // SAFETY: a new map somewhere; nobody has references into it.
    unsafe { mmap(None, length, protection, MapFlags::MAP_SHARED, fd, 0) }
}

fn unmap(address: NonNull<libc::c_void>) {
    // SAFETY: nobody has references into the map.
    unsafe { munmap(address, SIZE) }.expect("munmap");
}

#[test]
fn seal_when_not_sealed_or_not_enough_then_refused_and_the_group_is_as_before() {
    let broker = Broker::start();
    let mut maker = Raw::connect(&broker.socket());
    let memory = memory(&[0; SIZE]);
    let group = maker.create(&memory, &Group::default(), &[new("a")]).expect("begun");
    assert_eq!(code(&maker.seal(group).expect_err("no seals")), ErrorCode::SealedBusy);
    add_seals(&memory, SealFlag::F_SEAL_FUTURE_WRITE).expect("sealed");
    let status = maker.seal(group).expect_err("maps from before could write");
    assert_eq!(code(&status), ErrorCode::SealedBusy);
    add_seals(&memory, SealFlag::F_SEAL_WRITE | SealFlag::F_SEAL_SHRINK).expect("sealed");
    assert_eq!(code(&maker.seal(group).expect_err("it can grow")), ErrorCode::Protocol);
    add_seals(&memory, SealFlag::F_SEAL_GROW).expect("sealed");
    maker.seal(group).expect("sealed");
    drop(maker);
    broker.assert_nothing_left();
}

#[test]
fn seal_when_the_memory_has_shrunk_since_then_refused() {
    let broker = Broker::start();
    let mut maker = Raw::connect(&broker.socket());
    let memory = memory(&[0; SIZE]);
    let group = maker.create(&memory, &Group::default(), &[new("a")]).expect("begun");
    nix::unistd::ftruncate(&memory, 64).expect("ftruncate");
    seal_memory(&memory);
    assert_eq!(code(&maker.seal(group).expect_err("it is too small")), ErrorCode::Protocol);
    assert_eq!(maker.abort(group), Status::OK);
    drop(maker);
    broker.assert_nothing_left();
}

#[test]
fn create_when_the_memfd_cannot_be_sealed_any_more_then_unsupported() {
    let broker = Broker::start();
    let mut maker = Raw::connect(&broker.socket());
    let final_one = memory(&[0; SIZE]);
    add_seals(&final_one, SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_SEAL).expect("sealed");
    let status = maker.create(&final_one, &Group::default(), &[new("a")]).expect_err("it is final");
    let found = (code(&status), status.value);
    assert_eq!(found, (ErrorCode::UnsupportedFd, FdType::FinalMemfd as u64));
    // One that has all seals already may have this one, too.
    let whole = memory(&[0; SIZE]);
    seal_memory(&whole);
    add_seals(&whole, SealFlag::F_SEAL_SEAL).expect("sealed");
    let group = maker.create(&whole, &Group::default(), &[new("a")]).expect("begun");
    maker.seal(group).expect("sealed");
    drop(maker);
    broker.assert_nothing_left();
}

#[test]
fn get_when_sealed_then_the_fd_is_open_for_reading_alone_and_can_be_mapped_shared() {
    let broker = Broker::start();
    let (mut maker, mut reader) = (Raw::connect(&broker.socket()), Raw::connect(&broker.socket()));
    maker.put_bytes("a", &[7; SIZE], 0);
    let got = reader.get(&["a"]).expect("it is there");
    let fd = &got.fds[0];
    let mode = OFlag::from_bits_retain(fcntl(fd, FcntlArg::F_GETFL).expect("fcntl"));
    assert_eq!(mode & OFlag::O_ACCMODE, OFlag::O_RDONLY);
    assert_eq!(pwrite(fd, b"x", 0), Err(Errno::EBADF));
    assert!(map(fd, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE).is_err());
    let address = map(fd, ProtFlags::PROT_READ).expect("mapped shared");
    // SAFETY: the map has SIZE bytes that nobody can change.
    assert_eq!(unsafe { *address.cast::<u8>().as_ptr() }, 7);
    unmap(address);
    drop((maker, reader, got));
    broker.assert_nothing_left();
}

#[test]
fn seal_when_it_failed_for_its_names_then_a_later_one_may_be_good() {
    let broker = Broker::start();
    let mut maker = Raw::connect(&broker.socket());
    let memory = memory(&[0; SIZE]);
    let group = maker.create(&memory, &Group::default(), &[new("a")]).expect("begun");
    maker.put_bytes("a", &[1; 16], object_flags::REPLACE);
    seal_memory(&memory);
    for _ in 0..2 {
        assert_eq!(code(&maker.seal(group).expect_err("it is taken")), ErrorCode::Exists);
    }
    assert_eq!(maker.delete(&["a"]), [Status::OK]);
    maker.seal(group).expect("sealed");
    drop(maker);
    broker.assert_nothing_left();
}

#[test]
fn seal_when_many_clients_seal_at_once_then_each_is_answered_and_no_fd_is_left() {
    let broker = Broker::start();
    let threads: Vec<_> = (0..16)
        .map(|number| {
            let path = broker.socket();
            std::thread::spawn(move || {
                let mut maker = Raw::connect(&path);
                for round in 0..20u8 {
                    let name = format!("{number}");
                    maker.put_bytes(&name, &[round; 64], object_flags::REPLACE);
                    let got = maker.get(&[&name]).expect("it is there");
                    assert_eq!(got.bytes(0), [round; 64]);
                    assert_eq!(maker.release(&got.leases()), [Status::OK]);
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().expect("a maker"));
    broker.assert_nothing_left();
}

#[test]
fn seal_when_its_client_leaves_at_once_then_nothing_is_left() {
    let broker = Broker::start();
    for _ in 0..20 {
        let mut maker = Raw::connect(&broker.socket());
        let memory = memory(&[0; SIZE]);
        let replace = flags(object_flags::REPLACE);
        let group = maker.create(&memory, &replace, &[new("a")]).expect("begun");
        seal_memory(&memory);
        maker.start_seal(group);
    }
    broker.assert_nothing_left();
}

/// Takes a lease of the file that nobody else can have it open beside (fcntl(2)), and gives it up.
fn lease(fd: &OwnedFd, kind: libc::c_int) {
    use std::os::fd::AsRawFd;
    /// Of include/uapi/asm-generic/fcntl.h.
    const F_SETSIG: libc::c_int = 10;
    let fd = fd.as_raw_fd();
    // SAFETY: takes numbers. The signal of a lease that others want is one that nobody hears.
    let failed = unsafe {
        libc::fcntl(fd, F_SETSIG, libc::SIGURG) | libc::fcntl(fd, libc::F_SETLEASE, kind)
    };
    assert_eq!(failed, 0, "{}", std::io::Error::last_os_error());
}

#[test]
fn seal_when_somebody_has_a_lease_on_the_memory_then_busy_at_once_by_name_and_others_go_on() {
    use std::os::fd::AsRawFd;
    let broker = Broker::start();
    let makers: Vec<_> = (0..8)
        .map(|number| {
            let mut maker = Raw::connect(&broker.socket());
            let memory = memory(&[0; SIZE]);
            seal_memory(&memory);
            let name = format!("leased {number}");
            let group = maker.create(&memory, &Group::default(), &[new(&name)]).expect("begun");
            let path = format!("/proc/self/fd/{}", memory.as_raw_fd());
            let other: OwnedFd =
                std::fs::File::options().read(true).write(true).open(path).expect("open").into();
            lease(&other, libc::F_WRLCK);
            maker.start_seal(group).expect("it is there");
            (maker, memory, other, group)
        })
        .collect();
    let mut others = Raw::connect(&broker.socket());
    others.put_bytes("free", &[1; SIZE], 0);
    for (mut maker, _memory, other, group) in makers {
        let answer = maker.receive().expect("an answer");
        assert_eq!(code(&answer.failure()), ErrorCode::SealedBusy);
        lease(&other, libc::F_UNLCK);
        maker.seal(group).expect("sealed");
    }
    let said = "a lease (F_SETLEASE) on its memory";
    eventually("the log names the cause", || broker.log().contains(said));
    drop(others);
    broker.assert_nothing_left();
}
