//! SCM_RIGHTS with virtual fds, and calls that are made on a real fd.

use crate::support::*;
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, recvmsg,
    sendmsg, socketpair,
};
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

fn pair() -> (OwnedFd, OwnedFd) {
    socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC).unwrap()
}

fn received(socket: &OwnedFd) -> Vec<RawFd> {
    let mut byte = [0];
    let mut bytes = [IoSliceMut::new(&mut byte)];
    let mut room = nix::cmsg_space!([RawFd; 8]);
    let message =
        recvmsg::<()>(socket.as_raw_fd(), &mut bytes, Some(&mut room), MsgFlags::MSG_DONTWAIT)
            .unwrap();
    let fds = |one| if let ControlMessageOwned::ScmRights(fds) = one { fds } else { vec![] };
    message.cmsgs().unwrap().flat_map(fds).collect()
}

#[test]
fn sendmsg_when_it_carries_virtual_fds_then_real_ones_arrive_and_no_lease_stays() {
    let (one, two) = (export(b"one"), export(b"two"));
    let (here, there) = pair();
    let plain = eventfd();
    let fds = [one.0, raw(&plain), two.0];
    let rights = [ControlMessage::ScmRights(&fds)];
    sendmsg::<()>(here.as_raw_fd(), &[IoSlice::new(b"x")], &rights, MsgFlags::empty(), None)
        .unwrap();
    let got = received(&there);
    assert_eq!([content(got[0], 3), content(got[2], 3)], [b"one", b"two"]);
    assert_eq!([one.0, two.0], [fds[0], fds[2]]);
    one.wait_for_leases(0);
    two.wait_for_leases(0);
    // SAFETY: the fds came with the message.
    got.iter().for_each(|fd| unsafe { assert_eq!(libc::close(*fd), 0) });
}

#[test]
fn sendmsg_when_a_number_is_unknown_then_ebadf_and_nothing_is_sent() {
    let one = export(b"one");
    let (here, there) = pair();
    let fds = [one.0, i32::MAX];
    let rights = [ControlMessage::ScmRights(&fds)];
    let sent =
        sendmsg::<()>(here.as_raw_fd(), &[IoSlice::new(b"x")], &rights, MsgFlags::empty(), None);
    assert_eq!(sent, Err(Errno::EBADF));
    let mut byte = 0u8;
    // SAFETY: one byte.
    let answer = unsafe { libc::recv(raw(&there), (&raw mut byte).cast(), 1, libc::MSG_DONTWAIT) };
    assert_eq!(errno_of(answer as i64), Errno::EAGAIN);
    one.wait_for_leases(0);
}

#[test]
fn mmap_fstat_lseek_poll_and_fcntl_when_virtual_then_of_the_memory() {
    let exported = export(b"hello");
    // SAFETY: structures that outlive the calls, and a mapping that is read within its length.
    unsafe {
        let mut stat = std::mem::zeroed::<libc::stat>();
        assert_eq!(libc::fstat(exported.0, &raw mut stat), 0);
        assert_eq!(stat.st_size, 5);
        assert_eq!(libc::lseek(exported.0, 0, libc::SEEK_END), 5);
        let memory =
            libc::mmap(std::ptr::null_mut(), 5, libc::PROT_READ, libc::MAP_SHARED, exported.0, 0);
        assert_ne!(memory, libc::MAP_FAILED);
        assert_eq!(std::slice::from_raw_parts(memory.cast::<u8>(), 5), b"hello");
        assert_eq!(libc::munmap(memory, 5), 0);
        let mut entries = [exported.0, i32::MAX, 0].map(|fd| libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        });
        assert_eq!(libc::poll(entries.as_mut_ptr(), 2, -1), 2);
        assert_eq!(entries.map(|entry| entry.revents), [libc::POLLIN, libc::POLLNVAL, 0]);
        assert_eq!(libc::fcntl(exported.0, libc::F_SETFD, 0), 0);
        assert_eq!(libc::fcntl(exported.0, libc::F_GETFL) & libc::O_ACCMODE, libc::O_RDWR);
        assert_eq!(libc::fcntl(exported.0, libc::F_GETFD), libc::FD_CLOEXEC);
    }
    exported.wait_for_leases(0);
}
