//! The baselines: what the kernel alone costs, written as one would in C. One answers a single
//! peer, the other serves any number with epoll.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::{Child, Command};
use std::time::Duration;

use fdbroker_scm::seqpacket_pair;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, accept4, bind, listen, socket,
};

use crate::common::wire::Wire;

/// A server that answers 64 bytes with 64 bytes and `batch` fds.
pub struct RawPeer {
    child: Child,
    wire: Wire,
    batch: usize,
}

impl RawPeer {
    pub fn start(batch: usize) -> Self {
        let (sock, theirs) = seqpacket_pair().expect("socketpair");
        for end in [&sock, &theirs] {
            fcntl(end, FcntlArg::F_SETFL(OFlag::empty())).expect("blocking");
        }
        let mut command = Command::new(std::env::current_exe().expect("own path"));
        command.args(["--raw-server", &batch.to_string()]);
        crate::common::give_fd_3(&mut command, theirs.as_raw_fd());
        let child = command.spawn().expect("the raw server starts");
        RawPeer { child, wire: Wire::new(sock), batch }
    }

    pub fn round_trip(&mut self) -> Duration {
        let (reply, fds, took) = self.wire.call(&[1; 64]);
        assert_eq!((reply.len(), fds), (64, self.batch));
        took
    }
}

impl Drop for RawPeer {
    fn drop(&mut self) {
        crate::common::end(&mut self.child);
    }
}

/// A raw server for many clients: accepts, and answers 64 bytes with 64 bytes and an fd.
pub struct RawServer {
    child: Child,
    path: std::path::PathBuf,
    _dir: tempfile::TempDir,
}

impl RawServer {
    pub fn start() -> Self {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("raw.sock");
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let listener =
            socket(AddressFamily::Unix, SockType::SeqPacket, flags, None).expect("socket");
        bind(listener.as_raw_fd(), &UnixAddr::new(&path).expect("a short path")).expect("bind");
        listen(&listener, Backlog::new(1024).expect("small")).expect("listen");
        let mut command = Command::new(std::env::current_exe().expect("own path"));
        command.arg("--raw-epoll-server");
        crate::common::give_fd_3(&mut command, listener.as_raw_fd());
        let child = command.spawn().expect("the raw server starts");
        RawServer { child, path, _dir: dir }
    }

    pub fn connect(&self) -> Wire {
        Wire::new(crate::common::connect_to(&self.path))
    }
}

impl Drop for RawServer {
    fn drop(&mut self) {
        crate::common::end(&mut self.child);
    }
}

/// The process of [`RawServer`]: the listener at fd 3; runs until it is killed.
pub fn serve_many() -> ! {
    let mut reply = Reply::new(1);
    // SAFETY: the parent put the socket at this number for this process alone.
    let listener = unsafe { OwnedFd::from_raw_fd(3) };
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).expect("epoll");
    let watch = |fd: &OwnedFd, number: u64| {
        epoll.add(fd, EpollEvent::new(EpollFlags::EPOLLIN, number)).expect("watched");
    };
    watch(&listener, u64::MAX);
    let mut clients: Vec<Option<OwnedFd>> = Vec::new();
    let mut events = [EpollEvent::empty(); 64];
    loop {
        let count = epoll.wait(&mut events, EpollTimeout::NONE).unwrap_or(0);
        for event in &events[..count] {
            let Ok(number) = usize::try_from(event.data()) else { continue };
            if event.data() == u64::MAX {
                let client = accept4(&listener, SockFlag::SOCK_CLOEXEC).expect("a client");
                watch(&client, clients.len() as u64);
                clients.push(Some(client));
            } else if let Some(client) = &clients[number]
                && !reply.answer(client)
            {
                clients[number] = None;
            }
        }
    }
}

/// The process of [`RawPeer`]: blocking, socket at fd 3; ends when its peer does.
pub fn serve(batch: usize) -> ! {
    let mut reply = Reply::new(batch);
    // SAFETY: the parent put the socket at this number for this process alone.
    let sock = unsafe { OwnedFd::from_raw_fd(3) };
    while reply.answer(&sock) {}
    std::process::exit(0);
}

/// 64 bytes and fds of one memfd, ready to be sent.
struct Reply {
    _memfd: OwnedFd,
    control: Vec<u64>,
    space: usize,
    bytes: [u8; 64],
}

impl Reply {
    fn new(batch: usize) -> Self {
        let memfd = memfd_create(c"fdbroker-bench-raw", MFdFlags::MFD_CLOEXEC).expect("memfd");
        let numbers = vec![memfd.as_raw_fd(); batch];
        let bytes = u32::try_from(size_of_val(&numbers[..])).expect("at most 253 fds");
        // SAFETY: CMSG_SPACE and CMSG_LEN only compute.
        let (space, len) =
            unsafe { (libc::CMSG_SPACE(bytes) as usize, libc::CMSG_LEN(bytes) as usize) };
        let mut reply =
            Reply { _memfd: memfd, control: vec![0; space.div_ceil(8)], space, bytes: [0; 64] };
        reply.message(|message| {
            // SAFETY: `control` has room for one cmsg of `batch` fds, aligned to 8.
            unsafe {
                let head = libc::CMSG_FIRSTHDR(message);
                (*head).cmsg_level = libc::SOL_SOCKET;
                (*head).cmsg_type = libc::SCM_RIGHTS;
                (*head).cmsg_len = len;
                let data = libc::CMSG_DATA(head);
                std::ptr::copy_nonoverlapping(numbers.as_ptr().cast(), data, bytes as usize);
            }
        });
        reply
    }

    fn message<T>(&mut self, work: impl FnOnce(*const libc::msghdr) -> T) -> T {
        let mut iov = libc::iovec { iov_base: self.bytes.as_mut_ptr().cast(), iov_len: 64 };
        // SAFETY: msghdr is plain data for which all zeroes is the empty value.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = &raw mut iov;
        message.msg_iovlen = 1;
        message.msg_control = self.control.as_mut_ptr().cast();
        message.msg_controllen = self.space;
        work(&raw const message)
    }

    /// Takes one request and answers it; whether the client is still there.
    fn answer(&mut self, client: &OwnedFd) -> bool {
        let (fd, mut request) = (client.as_raw_fd(), [0_u8; 64]);
        // SAFETY: the buffers outlive the calls and have the lengths stated.
        let is_there = unsafe { libc::recv(fd, request.as_mut_ptr().cast(), 64, 0) > 0 };
        // SAFETY: `message` points to buffers of `self`, which outlive the call.
        is_there && self.message(|it| unsafe { libc::sendmsg(fd, it, libc::MSG_NOSIGNAL) }) >= 0
    }
}
