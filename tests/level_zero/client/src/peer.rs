//! The second process of a case: it carries out orders from a socket. Must never decide anything;
//! the cases decide.

use crate::PEER;
use crate::counters::Counters;
use crate::events::Pool;
use crate::fault::{Fault, Outcome};
use crate::gpu::{Address, Gpu, handle_fd, is_open, pattern, with_fd};
use crate::order::ORDERS;
pub use crate::order::Order;
use fdbroker_scm::{ReceivedFds, RecvError, recv_timeout, send_timeout, seqpacket_pair};
use level_zero_sys::{CallError, ze_ipc_mem_handle_t, ze_result_t};
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The longest run of one case, ended by SIGALRM: a hung case should show its name. A case takes
/// milliseconds, but minutes on a loaded machine whose virtual machine is emulated.
pub const CASE_TIMEOUT_S: u32 = 300;

/// The longest wait for the peer's answer: shorter than a case, so that the case can report it.
pub const PEER_TIMEOUT: Duration = Duration::from_secs(120);

/// An order or an answer: 80 bytes, with or without an fd.
#[derive(Clone, Copy, Debug)]
struct Message {
    /// The [`Order`]; an answer does not use it.
    order: u8,
    salt: u16,
    /// In an answer the driver's code, 0 for success.
    code: u32,
    number: u64,
    handle: ze_ipc_mem_handle_t,
}

const MESSAGE_BYTES: usize = 80;

impl Message {
    fn to_bytes(self) -> [u8; MESSAGE_BYTES] {
        let mut bytes = [0; MESSAGE_BYTES];
        bytes[0] = self.order;
        bytes[2..4].copy_from_slice(&self.salt.to_ne_bytes());
        bytes[4..8].copy_from_slice(&self.code.to_ne_bytes());
        bytes[8..16].copy_from_slice(&self.number.to_ne_bytes());
        bytes[16..].copy_from_slice(&self.handle.to_bytes());
        bytes
    }

    fn from_bytes(bytes: &[u8; MESSAGE_BYTES]) -> Self {
        Self {
            order: bytes[0],
            salt: u16::from_ne_bytes([bytes[2], bytes[3]]),
            code: u32::from_ne_bytes(std::array::from_fn(|i| bytes[4 + i])),
            number: u64::from_ne_bytes(std::array::from_fn(|i| bytes[8 + i])),
            handle: ze_ipc_mem_handle_t::from_bytes(std::array::from_fn(|i| bytes[16 + i])),
        }
    }
}

fn send(socket: BorrowedFd<'_>, message: Message, fd: Option<BorrowedFd<'_>>) -> Outcome {
    Ok(send_timeout(socket, &message.to_bytes(), fd.as_slice(), Some(PEER_TIMEOUT))?)
}

fn receive(socket: BorrowedFd<'_>) -> Result<(Message, Option<OwnedFd>), RecvError> {
    let mut bytes = [0; MESSAGE_BYTES];
    let mut fds = ReceivedFds::with_capacity(1);
    let _length = recv_timeout(socket, &mut bytes, &mut fds, Some(PEER_TIMEOUT))?;
    Ok((Message::from_bytes(&bytes), fds.pop_front()))
}

/// The parts of a peer's answer.
pub struct Answer {
    pub number: u64,
    pub handle: ze_ipc_mem_handle_t,
    pub fd: Option<OwnedFd>,
}

/// The peer, from the case's side of the socket.
pub struct Peer {
    process: Child,
    socket: OwnedFd,
}

impl Peer {
    pub fn start() -> Result<Self, Fault> {
        Self::start_with(&[])
    }

    /// A peer with these variables, and otherwise those of this process.
    pub fn start_with(variables: &[(&str, &str)]) -> Result<Self, Fault> {
        let (socket, theirs) = seqpacket_pair()?;
        let program = std::env::current_exe()?;
        let mut command = Command::new(program);
        command.arg(PEER).stdin(Stdio::from(theirs)).envs(variables.iter().copied());
        let process = command.spawn()?;
        Ok(Self { process, socket })
    }

    /// A peer in a PID namespace of its own, where this process has no number: unshare(1).
    #[allow(dead_code)] // ze-test-unmodified uses it
    pub fn start_in_namespace() -> Result<Self, Fault> {
        let (socket, theirs) = seqpacket_pair()?;
        let process = Command::new("unshare")
            .args(["--user", "--map-root-user", "--pid", "--fork", "--kill-child"])
            .arg(std::env::current_exe()?)
            .arg(PEER)
            .stdin(Stdio::from(theirs))
            .spawn()?;
        Ok(Self { process, socket })
    }

    /// Sends an order and waits for the answer; the inner error is the driver's code.
    pub fn tell(
        &self,
        order: Order,
        number: usize,
        salt: u16,
    ) -> Result<Result<Answer, CallError>, Fault> {
        self.tell_with(order, number, salt, ze_ipc_mem_handle_t::default(), None)
    }

    pub fn tell_with(
        &self,
        order: Order,
        number: usize,
        salt: u16,
        handle: ze_ipc_mem_handle_t,
        fd: Option<BorrowedFd<'_>>,
    ) -> Result<Result<Answer, CallError>, Fault> {
        let message = Message { order: order as u8, salt, code: 0, number: number as u64, handle };
        send(self.socket.as_fd(), message, fd)?;
        let (answer, fd) = receive(self.socket.as_fd())
            .map_err(|error| format!("the peer gave no answer to {order:?}: {error}"))?;
        Ok(match answer.code {
            0 => Ok(Answer { number: answer.number, handle: answer.handle, fd }),
            code => Err(CallError::Failed { function: "the peer's call", code: ze_result_t(code) }),
        })
    }

    /// The number in the answer to an order that must succeed.
    pub fn number(&self, order: Order, number: usize, salt: u16) -> Result<u64, Fault> {
        Ok(self.tell(order, number, salt)??.number)
    }

    fn pid(&self) -> Result<Pid, Fault> {
        Ok(Pid::from_raw(i32::try_from(self.process.id())?))
    }

    /// Stops the peer, and waits until it has stopped.
    #[allow(dead_code)] // ze-test-unmodified uses it
    pub fn stop(&self) -> Outcome {
        kill(self.pid()?, Signal::SIGSTOP)?;
        waitpid(self.pid()?, Some(WaitPidFlag::WUNTRACED))?;
        Ok(())
    }

    /// Lets a stopped peer go on.
    #[allow(dead_code)] // ze-test-unmodified uses it
    pub fn go_on(&self) -> Outcome {
        Ok(kill(self.pid()?, Signal::SIGCONT)?)
    }

    /// Lets the peer open no fd of this number or a higher one. Answers the limit before.
    #[allow(dead_code)] // ze-test-unmodified uses it
    pub fn limit_fds(&self, fds: u64) -> Result<u64, Fault> {
        let mut before = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: takes numbers, and pointers to locals of the right type.
        let set = unsafe {
            let pid = self.pid()?.as_raw();
            libc::prlimit(pid, libc::RLIMIT_NOFILE, std::ptr::null(), &raw mut before);
            let limit = libc::rlimit { rlim_cur: fds, ..before };
            libc::prlimit(pid, libc::RLIMIT_NOFILE, &raw const limit, std::ptr::null_mut())
        };
        Errno::result(set)?;
        Ok(before.rlim_cur)
    }

    /// Kills the peer, so that it cannot clean up.
    pub fn kill(mut self) -> Outcome {
        self.process.kill()?;
        self.process.wait()?;
        Ok(())
    }

    /// Lets the peer end; a fault when its own checks failed.
    pub fn finish(self) -> Outcome {
        let Self { mut process, socket } = self;
        drop(socket);
        let status = process.wait()?;
        if status.success() { Ok(()) } else { Err(format!("the peer ended with {status}").into()) }
    }
}

/// The peer's main function: serves orders until its stdin, the socket, ends.
pub fn serve() -> Outcome {
    let gpu = Gpu::open()?;
    let mut opened = Opened {
        memory: std::ptr::null_mut(),
        pool: std::ptr::null_mut(),
        handles: Vec::new(),
        fetched: None,
    };
    loop {
        let (message, fd) = match receive(std::io::stdin().as_fd()) {
            Ok(received) => received,
            Err(RecvError::Eof) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let order = ORDERS.into_iter().find(|order| *order as u8 == message.order);
        let order = order.ok_or("an order that is none")?;
        let mut answer = Message { code: 0, number: 0, ..message };
        let mut lent = None;
        match obey(&gpu, order, &message, fd, &mut opened) {
            Ok(done) => {
                answer.number = done.number;
                answer.handle = done.handle;
                lent = done.fd;
            }
            Err(fault) => match fault.downcast_ref().and_then(CallError::code) {
                Some(code) => answer.code = code.0,
                None => return Err(fault),
            },
        }
        send(std::io::stdin().as_fd(), answer, lent.as_ref().map(AsFd::as_fd))?;
    }
}

/// What a peer has.
struct Opened {
    memory: Address,
    pool: Pool,
    /// Handles kept for OpenTiles.
    handles: Vec<ze_ipc_mem_handle_t>,
    fetched: Option<OwnedFd>,
}

fn obey(
    gpu: &Gpu,
    order: Order,
    message: &Message,
    fd: Option<OwnedFd>,
    opened: &mut Opened,
) -> Result<Answer, Fault> {
    let Opened { memory, pool, handles, fetched } = opened;
    let mut answer = Answer { number: 0, handle: message.handle, fd: None };
    let bytes = usize::try_from(message.number)?;
    match order {
        Order::Allocate => *memory = gpu.allocate(bytes, false)?,
        Order::Get => {
            answer.handle = gpu.get(*memory)?;
            // SAFETY: the driver's fd, which lives until the memory is freed.
            let exported = unsafe { BorrowedFd::borrow_raw(handle_fd(answer.handle)) };
            answer.fd = Some(exported.try_clone_to_owned()?);
        }
        Order::Open => *memory = gpu.open_handle(message.handle)?,
        Order::OpenMoved => *memory = open_moved(gpu, message.handle, fd.ok_or("no fd came")?)?,
        Order::OpenAtSameNumber => {
            *memory = open_at_same_number(gpu, message.handle, fd.ok_or("no fd came")?)?;
        }
        Order::OpenFetched => {
            *memory = open_moved(gpu, message.handle, fetch(bytes, handle_fd(message.handle))?)?;
        }
        Order::OpenFdAlone => {
            let fd = fetch(bytes, handle_fd(message.handle))?;
            *memory = gpu.open_handle(with_fd(ze_ipc_mem_handle_t::default(), fd.as_raw_fd()))?;
        }
        Order::OpenHandleOfFd => {
            let fd = fetch(bytes, handle_fd(message.handle))?;
            *memory = gpu.open_handle(gpu.handle_of_fd(fd.as_raw_fd())?)?;
        }
        Order::OpenNumberAlone => {
            let number = handle_fd(message.handle);
            *memory = gpu.open_handle(with_fd(ze_ipc_mem_handle_t::default(), number))?;
        }
        Order::Fetch => *fetched = Some(fetch(bytes, handle_fd(message.handle))?),
        Order::OpenWithFetched => {
            let fd = fetched.as_ref().ok_or("no fd was fetched")?.try_clone()?;
            *memory = open_moved(gpu, message.handle, fd)?;
        }
        Order::TimeOpenings => {
            let begin = Instant::now();
            for handle in (0..message.salt).flat_map(|_| handles.iter()) {
                let memory = match bytes {
                    0 => gpu.open_handle(*handle)?,
                    process => open_moved(gpu, *handle, fetch(process, handle_fd(*handle))?)?,
                };
                gpu.close_handle(memory)?;
            }
            answer.number = u64::try_from(begin.elapsed().as_nanos())?;
        }
        Order::KeepHandle => handles.push(message.handle),
        Order::OpenTiles => {
            handles.push(message.handle);
            *memory = gpu.open_tiles(&std::mem::take(handles))?;
        }
        Order::OpenPool => *pool = gpu.open_pool(message.handle)?,
        Order::OpenPoolFetched => {
            let fd = fetch(bytes, handle_fd(message.handle))?;
            *pool = gpu.open_pool(with_fd(message.handle, fd.as_raw_fd()))?;
            is_closed(fd);
        }
        Order::ClosePool => gpu.close_pool(*pool)?,
        Order::SignalEvent => {
            let event = gpu.create_event(*pool, u32::try_from(bytes)?)?;
            gpu.signal(event)?;
            gpu.destroy_event(event)?;
        }
        Order::IsSignalled => {
            let event = gpu.create_event(*pool, u32::try_from(bytes)?)?;
            answer.number = u64::from(gpu.is_signalled(event)?);
            gpu.destroy_event(event)?;
        }
        Order::ImportFd => {
            let (address, is_closed) = import_fd(gpu, fd.ok_or("no fd came")?, bytes)?;
            *memory = address;
            answer.number = u64::from(is_closed);
        }
        Order::Place => answer.number = gpu.place(*memory)?.into(),
        Order::Write => gpu.write(*memory, &pattern(bytes, message.salt))?,
        Order::IsPattern => {
            let is_pattern = gpu.read(*memory, bytes)? == pattern(bytes, message.salt);
            answer.number = u64::from(is_pattern);
        }
        Order::Close => gpu.close_handle(*memory)?,
        Order::Free => gpu.free(*memory)?,
        Order::CountFds => answer.number = count_fds()? as u64,
        Order::IsAllGivenBack => {
            answer.number = u64::from(gpu.counters()? == Counters::default());
        }
    }
    Ok(answer)
}

/// Opens like a program that passes fds: with its own fd in the handle, which it closes afterwards.
fn open_moved(gpu: &Gpu, handle: ze_ipc_mem_handle_t, fd: OwnedFd) -> Result<Address, Fault> {
    let moved = off(handle_fd(handle), fd)?;
    let address = gpu.open_handle(with_fd(handle, moved.as_raw_fd()));
    if !is_open(moved.as_raw_fd()) {
        let _ = moved.into_raw_fd(); // closed already: a second close may hit another fd of this number
        return Err("zeMemOpenIpcHandle closed the caller's fd".into());
    }
    Ok(address?)
}

/// A duplicate of another process's fd, by the numbers of both: pidfd_open(2), pidfd_getfd(2).
fn fetch(process: usize, number: RawFd) -> Result<OwnedFd, Fault> {
    // SAFETY: takes numbers only.
    let process = new_fd(unsafe { libc::syscall(libc::SYS_pidfd_open, process, 0) })?;
    // SAFETY: takes numbers only; `process` is open.
    let got = unsafe { libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), number, 0) };
    new_fd(got).map_err(|error| match error.raw_os_error() {
        Some(libc::EBADF) => {
            let code = ze_result_t::ZE_RESULT_ERROR_INVALID_ARGUMENT;
            CallError::Failed { function: "pidfd_getfd", code }.into()
        }
        Some(libc::EAGAIN) => {
            let code = ze_result_t::ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY;
            CallError::Failed { function: "pidfd_getfd", code }.into()
        }
        _ => format!("pidfd_getfd: {error}").into(),
    })
}

/// Takes the new fd that a system call answered, or its error.
fn new_fd(answer: libc::c_long) -> std::io::Result<OwnedFd> {
    match RawFd::try_from(answer) {
        // SAFETY: the call just made it, for nobody else.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// Moves the fd off `number`: with equal numbers in an opaque handle the driver asks the exporter.
fn off(number: RawFd, fd: OwnedFd) -> std::io::Result<OwnedFd> {
    if fd.as_raw_fd() == number { fd.try_clone() } else { Ok(fd) }
}

fn open_at_same_number(
    gpu: &Gpu,
    handle: ze_ipc_mem_handle_t,
    fd: OwnedFd,
) -> Result<Address, Fault> {
    let number = handle_fd(handle);
    // An fd of this process that has this number is moved away, and put back afterwards.
    let sitting = if is_open(number) {
        // SAFETY: open, and only borrowed to be duplicated.
        Some(unsafe { BorrowedFd::borrow_raw(number) }.try_clone_to_owned()?)
    } else {
        None
    };
    place_at(fd.as_fd(), number)?;
    let address = gpu.open_handle(handle);
    match sitting {
        Some(sitting) if fd.as_raw_fd() != number => place_at(sitting.as_fd(), number)?,
        _ if fd.as_raw_fd() == number => {}
        // SAFETY: placed there above, and nobody else's.
        _ => drop(unsafe { OwnedFd::from_raw_fd(number) }),
    }
    Ok(address?)
}

fn place_at(fd: BorrowedFd<'_>, number: RawFd) -> std::io::Result<()> {
    // SAFETY: takes numbers; the caller has saved what sat there.
    let placed = unsafe { libc::dup2(fd.as_raw_fd(), number) };
    if placed < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
}

/// Imports the fd, and says whether the driver closed it; otherwise it is closed here.
fn import_fd(gpu: &Gpu, fd: OwnedFd, bytes: usize) -> Result<(Address, bool), Fault> {
    let address = gpu.import_fd(fd.as_raw_fd(), bytes)?;
    Ok((address, is_closed(fd)))
}

/// Whether the driver has closed the fd; otherwise it is closed here.
fn is_closed(fd: OwnedFd) -> bool {
    let is_closed = !is_open(fd.as_raw_fd());
    if is_closed {
        let _ = fd.into_raw_fd();
    }
    is_closed
}

/// The number of this process's open fds, without the one that reads the list.
pub fn count_fds() -> Result<usize, Fault> {
    Ok(std::fs::read_dir("/proc/self/fd")?.count() - 1)
}
