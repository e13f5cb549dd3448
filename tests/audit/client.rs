//! One client of a broker for tests/audit/run.sh. It is honest, or it plants a fault and names the
//! fd; then it waits until its input ends. FDBROKER_TEST_MEMORY=udmabuf makes its memory real
//! dma-bufs. Must never clean up its fault before that.

use fdbroker_client::{
    Access, Arena, Client, Deadline, Deposit, Grant, Handle, HostMemory, IsolatedBuffer,
    IsolatedMemory, MemoryKind, Share,
};
use fdbroker_scm::{ReceivedFds, recv_timeout};
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sched::{CloneFlags, unshare};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use nix::unistd::{ForkResult, fork, ftruncate};
use std::io::{Read, Write};
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::ptr::NonNull;

const USAGE: &str = "usage: audit-client produce COUNT
       audit-client orphan
       audit-client ROLE HANDLE...
       audit-client can-ring
       audit-client manager PATH
COUNT buffers, half of them ranges of one arena; their handles on stdout. ROLE: honest, leak, copy, own, stray,
in-flight, forgotten, unmapped, mapped, hold, child, thread, headless, ring, stranger. Each says `ready PID FD` and then waits for
the end of its input. can-ring says by its exit status whether this user can have an io_uring. manager is a service manager
that stores what brokers send to its socket at PATH.";

const BYTES: usize = 64 << 10;

/// Room for the arena's fd and for exports on their way to the broker, and some to spare.
const OWN_FDS: u32 = 4;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        ["can-ring"] => return Ring::new().map(drop),
        ["manager", path] => return manager(path),
        // The child is to have nothing of the broker.
        ["stranger", handle] => return stranger(&handle.parse()?),
        _ => {}
    }
    let client = connect()?;
    match arguments.as_slice() {
        ["produce", count] => produce(&client, count.parse()?),
        ["orphan"] => orphan(&client),
        ["own"] => own(&client),
        [role, handles @ ..] if !handles.is_empty() => {
            let handles: Result<Vec<Handle>, _> = handles.iter().map(|text| text.parse()).collect();
            consume(&client, role, &handles?)
        }
        _ => Err(USAGE.into()),
    }
}

fn connect() -> Outcome<Client> {
    Ok(Client::builder().name("audit-client").own_fds(OWN_FDS).connect()?)
}

fn deadline() -> Deadline {
    Deadline::from_ms(10_000)
}

/// Prints `ready PID FD`, and keeps everything until the input ends.
fn wait(pid: u32, fd: i32) -> Outcome<()> {
    println!("ready {pid} {fd}");
    std::io::stdout().flush()?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// Keeps what it is sent until the input ends.
fn manager(path: &str) -> Outcome<()> {
    let socket = UnixDatagram::bind(path)?;
    std::thread::spawn(move || {
        let (mut stored, mut fds) = (Vec::new(), ReceivedFds::new());
        while recv_timeout(socket.as_fd(), &mut [0; 4096], &mut fds, None).is_ok() {
            stored.extend(fds.drain());
        }
    });
    wait(std::process::id(), -1)
}

// ---- owners

fn produce(client: &Client, count: usize) -> Outcome<()> {
    let is_real = std::env::var("FDBROKER_TEST_MEMORY").as_deref() == Ok("udmabuf");
    let memory = if is_real { HostMemory::Udmabuf } else { HostMemory::Memfd };
    let arena = Arena::new(client, memory, BYTES * count)?;
    let (mut ranges, mut alone) = (Vec::new(), Vec::new());
    for index in 0..count {
        // Every second buffer is memory of its own, outside the arena.
        let handle = if index % 2 == 0 {
            let buffer = arena.alloc(BYTES)?;
            let handle = buffer.register(deadline())?;
            ranges.push(buffer);
            handle
        } else {
            let kind = if is_real { IsolatedMemory::DmaHeap } else { IsolatedMemory::Memfd };
            let buffer = IsolatedBuffer::new(client, kind, BYTES, Share::Uid, deadline())?;
            let handle = buffer.handle().ok_or("not shared")?;
            alone.push(buffer);
            handle
        };
        println!("{handle}");
    }
    wait(std::process::id(), -1)
}

/// A memfd with the seals that a broker demands.
fn sealed() -> Outcome<OwnedFd> {
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let memfd = memfd_create(c"audit", flags)?;
    ftruncate(&memfd, i64::try_from(BYTES)?)?;
    fcntl(&memfd, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_SEAL))?;
    Ok(memfd)
}

/// Deposits a memfd that outlives its owner, and ends.
fn orphan(client: &Client) -> Outcome<()> {
    let mut deposit = Deposit::new(MemoryKind::Memfd, BYTES as u64);
    deposit.keep = true;
    let registration = client.register(&deposit, sealed()?.as_fd(), deadline())?;
    println!("kept {}", registration.handle.id());
    Ok(())
}

/// An owner that keeps two more fds of the memory that it deposited.
fn own(client: &Client) -> Outcome<()> {
    let memfd = sealed()?;
    let deposit = Deposit::new(MemoryKind::Memfd, BYTES as u64);
    let _registration = client.register(&deposit, memfd.as_fd(), deadline())?;
    let copies = [memfd.try_clone()?, memfd.try_clone()?];
    wait(std::process::id(), copies[0].as_raw_fd())
}

// ---- consumers

fn consume(client: &Client, role: &str, handles: &[Handle]) -> Outcome<()> {
    let own = std::process::id();
    let grant = client.acquire(&handles[0], deadline())?;
    let fd = grant.fd.as_raw_fd();
    match role {
        "honest" => honest(client, grant, &handles[1..]),
        "hold" => {
            let _grant = grant;
            wait(own, fd)
        }
        // Keeps an fd after giving the lease back.
        "leak" => {
            let copy = grant.fd.try_clone()?;
            drop(grant);
            wait(own, copy.as_raw_fd())
        }
        // Keeps two fds with one lease.
        "copy" => {
            let _copy = grant.fd.try_clone()?;
            wait(own, fd)
        }
        "stray" => stray(grant),
        // Keeps the fd in an unread message, after giving the lease back.
        "in-flight" => {
            let (from, to) = fdbroker_scm::seqpacket_pair()?;
            fdbroker_scm::send(from.as_fd(), b"x", &[grant.fd.as_fd()])?;
            drop(grant);
            wait(own, to.as_raw_fd())
        }
        // Closes the fd and keeps the lease open, like a program that closes fds of others.
        "forgotten" => {
            let Grant { fd, lease, .. } = grant;
            drop(fd);
            let result = wait(own, -1);
            drop(lease);
            result
        }
        // Unmaps the memory by hand and keeps the mapped lease.
        "unmapped" => {
            let import = std::mem::ManuallyDrop::new(grant.import(Access::Read, 0)?);
            let address = NonNull::new(import.as_ptr().cast()).ok_or("no address")?;
            // SAFETY: the mapping is this import's, which is neither used nor dropped any more.
            unsafe { munmap(address, import.len())? };
            wait(own, -1)
        }
        // Maps the memory by hand and gives the lease back.
        "mapped" => {
            map(&grant)?;
            drop(grant);
            wait(own, -1)
        }
        "child" => child(grant),
        // A thread makes itself an fd table with a copy of each fd.
        "thread" => {
            let (say, said) = std::sync::mpsc::channel();
            std::thread::spawn(move || {
                let _ = say.send(unshare(CloneFlags::CLONE_FILES));
                loop {
                    std::thread::park();
                }
            });
            said.recv()??;
            let _grant = grant;
            wait(own, fd)
        }
        // Its first thread ends, and others live on.
        "headless" => {
            std::thread::spawn(move || {
                let _grant = grant;
                let _ = wait(own, fd);
                std::process::exit(0);
            });
            // SAFETY: ends this thread alone, which holds no lock; its stack stays as it is.
            unsafe { libc::syscall(libc::SYS_exit, 0) };
            Err("a thread that has ended goes on".into())
        }
        // Registers the fd with a ring, closes it, and gives the lease back.
        "ring" => {
            let ring = Ring::new()?;
            ring.register(fd)?;
            drop(grant);
            wait(own, ring.0.as_raw_fd())
        }
        _ => Err(USAGE.into()),
    }
}

/// An honest consumer: one open fd with its lease, everything else mapped, and two fds of memory
/// that no broker knows.
fn honest(client: &Client, grant: Grant, handles: &[Handle]) -> Outcome<()> {
    let mut imports = Vec::new();
    for handle in handles {
        imports.push(client.acquire(handle, deadline())?.import(Access::Read, 0)?);
    }
    let _not_shared = (sealed()?, sealed()?);
    wait(std::process::id(), grant.fd.as_raw_fd())
}

/// Forks a child that keeps a copy of the fd; the parent has the lease.
fn stray(grant: Grant) -> Outcome<()> {
    // SAFETY: the child makes only calls that are safe after fork in a process of several threads.
    match unsafe { fork()? } {
        ForkResult::Child => {
            let _ = nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL);
            loop {
                nix::unistd::pause();
            }
        }
        ForkResult::Parent { child } => wait(u32::try_from(child.as_raw())?, grant.fd.as_raw_fd()),
    }
}

/// Maps the memory by hand, for ever.
fn map(grant: &Grant) -> Outcome<()> {
    let length = NonZeroUsize::new(BYTES).ok_or("no bytes")?;
    let offset = i64::try_from(grant.info.facts.fd_offset)?;
    let (protection, flags) = (ProtFlags::PROT_READ, MapFlags::MAP_SHARED);
    // SAFETY: a new mapping at an address that the kernel chooses; nothing reads it.
    unsafe { mmap(None, length, protection, flags, grant.fd.as_fd(), offset)? };
    Ok(())
}

/// Forks a child that keeps the parent's mapping, and becomes a client of its own. The parent has
/// fd, mapping and lease.
fn child(grant: Grant) -> Outcome<()> {
    map(&grant)?;
    let (mut said, mut say) = std::io::pipe()?;
    // SAFETY: the library is made for a fork; the child has a thread of its own and calls the
    // library anew.
    match unsafe { fork()? } {
        ForkResult::Child => {
            nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL)?;
            // The number alone: a Grant of the parent is nothing here.
            nix::unistd::close(grant.fd.as_raw_fd())?;
            std::mem::forget(grant);
            let _client = connect()?;
            say.write_all(b"x")?;
            loop {
                nix::unistd::pause();
            }
        }
        ForkResult::Parent { child } => {
            said.read_exact(&mut [0])?;
            let _grant = grant;
            wait(u32::try_from(child.as_raw())?, -1)
        }
    }
}

/// Sends a granted fd to a process that knows no broker, and gives the lease back. The other
/// process outlives this one.
fn stranger(handle: &Handle) -> Outcome<()> {
    let (from, to) = fdbroker_scm::seqpacket_pair()?;
    // SAFETY: there is one thread.
    match unsafe { fork()? } {
        ForkResult::Child => {
            drop(from);
            loop {
                nix::unistd::pause();
            }
        }
        ForkResult::Parent { child } => {
            let number = to.as_raw_fd();
            drop(to);
            let client = connect()?;
            let grant = client.acquire(handle, deadline())?;
            fdbroker_scm::send(from.as_fd(), b"x", &[grant.fd.as_fd()])?;
            drop(grant);
            wait(u32::try_from(child.as_raw())?, number)
        }
    }
}

/// An io_uring that is used for nothing but to register files with.
struct Ring(OwnedFd);

impl Ring {
    /// `struct io_uring_params` (linux/io_uring.h).
    const PARAMS_BYTES: usize = 120;
    const REGISTER_FILES: libc::c_uint = 2;

    fn new() -> Outcome<Self> {
        let mut params = [0_u64; Self::PARAMS_BYTES / 8];
        // SAFETY: the kernel reads and writes as many bytes as it has.
        let fd = unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, params.as_mut_ptr()) };
        let fd = i32::try_from(nix::errno::Errno::result(fd)?)?;
        // SAFETY: the kernel has just made it for us alone.
        Ok(Ring(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    fn register(&self, fd: i32) -> Outcome<()> {
        let (ring, what) = (self.0.as_raw_fd(), Self::REGISTER_FILES);
        // SAFETY: the kernel reads one number.
        let done =
            unsafe { libc::syscall(libc::SYS_io_uring_register, ring, what, &raw const fd, 1) };
        nix::errno::Errno::result(done)?;
        Ok(())
    }
}
