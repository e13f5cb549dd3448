//! Holds the memory of one process that uses the test driver, as the kernel holds a process's GPU
//! buffers. Must never outlive that process: it ends when its stdin, the socket to that process,
//! ends.

#[path = "../protocol.rs"]
#[allow(dead_code)]
mod protocol;

use fdbroker_scm::{ReceivedFds, recv_timeout, send_timeout};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::unistd::{ForkResult, fork, ftruncate, setsid};
use protocol::{MESSAGE_BYTES, Reply, Request, reply_to_bytes};
use std::collections::HashMap;
use std::ffi::CString;
use std::fs::OpenOptions;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::process::ExitCode;

/// The limit of fds that the helper asks for: a test sets a low limit for its own process only. A
/// million is what systemd gives, and costs nothing until used.
const FDS_WANTED: u64 = 1 << 20;

fn main() -> ExitCode {
    // SAFETY: closes what this process inherited; nothing here uses a descriptor above stderr yet.
    unsafe { libc::close_range(3, libc::c_uint::MAX, 0) };
    // In the background, as a child of init: the program must not find a child that it did not
    // start. SAFETY: no other thread exists.
    match unsafe { fork() } {
        Ok(ForkResult::Parent { .. }) => return ExitCode::SUCCESS,
        Ok(ForkResult::Child) => {}
        Err(_) => return ExitCode::FAILURE,
    }
    let _ = setsid(); // a signal to the program's process group must not reach the helper
    raise_limit();
    serve(std::io::stdin().as_fd());
    ExitCode::SUCCESS
}

/// Raises the limit to [`FDS_WANTED`], or where that is refused, to the hard limit.
fn raise_limit() {
    let raised = setrlimit(Resource::RLIMIT_NOFILE, FDS_WANTED, FDS_WANTED);
    if let (Err(_), Ok((_, hard))) = (raised, getrlimit(Resource::RLIMIT_NOFILE)) {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
}

/// Answers requests until the program ends.
fn serve(socket: BorrowedFd<'_>) {
    let mut memory = Memory::default();
    let mut fds = ReceivedFds::new();
    loop {
        let mut bytes = [0; MESSAGE_BYTES];
        match recv_timeout(socket, &mut bytes, &mut fds, None) {
            Ok(message) if message.len == MESSAGE_BYTES => {}
            _ => return,
        }
        let Some(request) = Request::from_bytes(bytes) else { return };
        let (reply, fd) = match memory.answer(request, fds.pop_front()) {
            Ok((value, fd)) => (Ok(value), fd),
            Err(errno) => (Err(errno as i32), None),
        };
        fds.clear();
        if !send(socket, reply, fd) {
            return;
        }
    }
}

fn send(socket: BorrowedFd<'_>, reply: Reply, fd: Option<BorrowedFd<'_>>) -> bool {
    send_timeout(socket, &reply_to_bytes(reply), fd.as_slice(), None).is_ok()
}

/// One piece of memory. Its udmabuf is made once: a GPU's driver has one dma-buf per buffer, not
/// one per export.
struct Buffer {
    fd: OwnedFd,
    udmabuf: Option<OwnedFd>,
}

#[derive(Default)]
struct Memory {
    buffers: HashMap<u64, Buffer>,
    last_id: u64,
}

type Answer<'a> = Result<(u64, Option<BorrowedFd<'a>>), Errno>;

impl Memory {
    fn answer(&mut self, request: Request, fd: Option<OwnedFd>) -> Answer<'_> {
        match request {
            Request::Allocate(size, place) => {
                let (id, fd) = self.hold(sealed(size, place)?);
                Ok((id, Some(fd)))
            }
            Request::Keep => Ok((self.hold(fd.ok_or(Errno::EMFILE)?).0, None)),
            Request::Export(id) => {
                let buffer = self.buffers.get(&id).ok_or(Errno::ENOENT)?;
                Ok((id, Some(buffer.fd.as_fd())))
            }
            Request::ExportUdmabuf(id) => {
                let buffer = self.buffers.get_mut(&id).ok_or(Errno::ENOENT)?;
                Ok((id, Some(buffer.udmabuf()?)))
            }
            Request::Free(id) => self.buffers.remove(&id).map(|_| (id, None)).ok_or(Errno::ENOENT),
        }
    }

    fn hold(&mut self, fd: OwnedFd) -> (u64, BorrowedFd<'_>) {
        self.last_id += 1;
        let buffer =
            self.buffers.entry(self.last_id).insert_entry(Buffer { fd, udmabuf: None }).into_mut();
        (self.last_id, buffer.fd.as_fd())
    }
}

/// A memfd with the seals that broker and udmabuf demand: nobody can shrink it under a reader, or
/// seal it further. Its name says the place, to whoever looks at an fd.
fn sealed(size: u64, place: u32) -> Result<OwnedFd, Errno> {
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let name = CString::new(format!("ze-test-memory@{place}")).map_err(|_| Errno::EINVAL)?;
    let fd = memfd_create(name.as_c_str(), flags)?;
    ftruncate(&fd, i64::try_from(size).map_err(|_| Errno::EFBIG)?)?;
    let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
    fcntl(&fd, FcntlArg::F_ADD_SEALS(seals))?;
    Ok(fd)
}

/// `struct udmabuf_create` of linux/udmabuf.h.
#[repr(C)]
struct UdmabufCreate {
    memfd: u32,
    flags: u32,
    offset: u64,
    size: u64,
}

/// `UDMABUF_FLAGS_CLOEXEC` of linux/udmabuf.h.
const UDMABUF_FLAGS_CLOEXEC: u32 = 1;

/// `UDMABUF_CREATE`: `_IOW('u', 0x42, struct udmabuf_create)`, linux/udmabuf.h and
/// asm-generic/ioctl.h.
const UDMABUF_CREATE: libc::Ioctl = (1 << 30)
    | ((size_of::<UdmabufCreate>() as libc::Ioctl) << 16)
    | ((b'u' as libc::Ioctl) << 8)
    | 0x42;

impl Buffer {
    fn udmabuf(&mut self) -> Result<BorrowedFd<'_>, Errno> {
        if self.udmabuf.is_none() {
            self.udmabuf = Some(make_udmabuf(self.fd.as_fd())?);
        }
        Ok(self.udmabuf.as_ref().expect("made just now").as_fd())
    }
}

fn make_udmabuf(memfd: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let device = OpenOptions::new().read(true).write(true).open("/dev/udmabuf");
    let device =
        device.map_err(|error| Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO)))?;
    let size = nix::sys::stat::fstat(memfd)?.st_size.unsigned_abs();
    let request = UdmabufCreate {
        memfd: memfd.as_raw_fd().unsigned_abs(),
        flags: UDMABUF_FLAGS_CLOEXEC,
        offset: 0,
        size,
    };
    // SAFETY: the request is one valid structure, and the ioctl reads it only.
    let fd = unsafe { libc::ioctl(device.as_raw_fd(), UDMABUF_CREATE, &raw const request) };
    let fd = Errno::result(fd)?;
    // SAFETY: UDMABUF_CREATE answers a new fd, which nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
