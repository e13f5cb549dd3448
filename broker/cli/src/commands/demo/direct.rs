//! A rank of the direct way: it sends the fd of every buffer to every other rank over SEQPACKET sockets, as
//! programs without a broker do, and keeps every fd it gets. Must never use the broker, nor close an fd early.

use super::control::{Command, Opened, Report};
use super::device::Device;
use super::link::Link;
use super::memory::{Buffers, Export, Exporter, Received};
use super::pattern::BufferId;
use super::plan::Plan;
use crate::error::{Context, Error, Result};
use fdbroker_protocol::ErrorCode;
use fdbroker_scm::{ReceivedFds, RecvError, SendError};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, accept4, bind, connect, listen, socket,
};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Fds per message where they are all the same fd, and where each is a new export of the sender's.
const SHARED_BATCH: u32 = 253;
const FRESH_BATCH: u32 = 16;

/// Longest wait for a peer to read: the run's own limit ends it before.
const SEND_LIMIT: Duration = Duration::from_secs(600);

/// How often a receiver looks whether its sender has failed, while nothing comes.
const LOOK_INTERVAL_MS: u16 = 50;

/// What travels with the fds of a message.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct Message {
    /// Rank whose buffers these are.
    owner: u32,
    /// The first of them.
    first: u32,
    /// How many, one fd each.
    count: u32,
    /// 0.
    reserved: u32,
    /// Where in its fd the first begins.
    fd_offset: u64,
    /// By how much more the next one does.
    fd_offset_step: u64,
}

/// A buffer of another rank: the fd is what the direct way has to keep.
struct Kept {
    _fd: OwnedFd,
    _memory: Received,
}

/// Why receiving stopped.
enum End {
    /// Everything has come.
    Complete,
    /// The table of this process is full.
    OutOfFds,
}

/// Runs one rank until the parent ends it.
pub fn run(plan: &Plan, rank: u32, link: &mut Link) -> Result<()> {
    let device = Device::open(plan.memory)?;
    link.report_and_expect(&Report::Connected, Command::Register)?;
    let buffers = Buffers::new(plan, rank, device.as_ref())?;
    let listener = listen_at(&plan.socket(rank))?;
    link.report_and_expect(&Report::Registered, Command::Open)?;

    let sender = {
        let (plan, exporter) = (plan.clone(), buffers.exporter());
        std::thread::spawn(move || send_all(&plan, rank, &exporter))
    };
    let mut receiver = Receiver::new(plan, rank, device, listener);
    if let End::OutOfFds = receiver.run(sender, link)? {
        // Everything stays open until the parent has counted and closes the pipe.
        let _ = link.report_and_wait(&Report::OutOfFds);
        return Ok(());
    }
    let opened = Report::Opened(receiver.opened);
    link.report_and_expect(&opened, Command::Check)?;
    let mismatches = buffers.check_all_marks(plan, rank)?;
    link.report_and_expect(&Report::Checked { mismatches }, Command::Release)?;
    drop(receiver);
    link.report(&Report::Released)
}

fn listen_at(path: &Path) -> Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let listener = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None);
    let listener = listener.context(|| "make a socket")?;
    let what = || format!("listen at {}", path.display());
    let address = UnixAddr::new(path).context(what)?;
    bind(listener.as_raw_fd(), &address).context(what)?;
    // As many as the kernel lets wait: every other rank may come at once.
    listen(&listener, Backlog::MAXCONN).context(what)?;
    Ok(listener)
}

/// Why the sending thread stopped early.
enum SendEnd {
    /// This process has no free fd for a socket or an export.
    OutOfFds,
    /// A peer has gone: the run is being ended, or its own report says why.
    PeerGone,
    /// Anything else.
    Failed(String),
}

impl SendEnd {
    fn from_io(what: &str, cause: &io::Error) -> Self {
        match cause.raw_os_error() {
            Some(libc::EMFILE) => SendEnd::OutOfFds,
            Some(libc::ECONNREFUSED | libc::EPIPE | libc::ECONNRESET) => SendEnd::PeerGone,
            _ => SendEnd::Failed(format!("cannot {what}: {cause}")),
        }
    }

    fn from_export(cause: &fdbroker_client::Error) -> Self {
        match cause.code {
            ErrorCode::LocalFdLimit => SendEnd::OutOfFds,
            _ => SendEnd::Failed(format!("cannot export a buffer: {cause}")),
        }
    }
}

/// Sends every buffer to every other rank, one connection after the other: a connection each at the same
/// time would itself take fds.
fn send_all(plan: &Plan, rank: u32, buffers: &Exporter) -> std::result::Result<(), SendEnd> {
    for peer in plan.others(rank) {
        let socket = connect_to(&plan.socket(peer))
            .map_err(|cause| SendEnd::from_io("connect to a rank", &cause))?;
        let mut first = 0;
        while first < plan.buffers {
            first += send_some(plan, rank, buffers, first, socket.as_fd())?;
        }
    }
    Ok(())
}

fn connect_to(path: &Path) -> io::Result<OwnedFd> {
    let socket = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None)?;
    connect(socket.as_raw_fd(), &UnixAddr::new(path)?)?;
    Ok(socket)
}

fn send_some(
    plan: &Plan,
    rank: u32,
    buffers: &Exporter,
    first: u32,
    socket: BorrowedFd<'_>,
) -> std::result::Result<u32, SendEnd> {
    let mut exports: Vec<Export<'_>> = Vec::new();
    let mut most = SHARED_BATCH;
    while first + (exports.len() as u32) < plan.buffers && (exports.len() as u32) < most {
        let export = buffers
            .export(first + exports.len() as u32)
            .map_err(|cause| SendEnd::from_export(&cause))?;
        if let Export::Fresh(_) = export {
            most = FRESH_BATCH;
        }
        exports.push(export);
    }
    let count = exports.len() as u32;
    let fd_offset = buffers.fd_offset(first);
    let fd_offset_step = buffers.fd_offset(first + 1) - fd_offset;
    let message = Message { owner: rank, first, count, reserved: 0, fd_offset, fd_offset_step };
    let fds: Vec<BorrowedFd<'_>> = exports.iter().map(AsFd::as_fd).collect();
    match fdbroker_scm::send_timeout(socket, message.as_bytes(), &fds, Some(SEND_LIMIT)) {
        Ok(()) => Ok(count),
        Err(SendError::PeerGone) => Err(SendEnd::PeerGone),
        Err(cause) => Err(SendEnd::Failed(format!("cannot send fds: {cause}"))),
    }
}

type Sender = JoinHandle<std::result::Result<(), SendEnd>>;

/// Takes what the others send.
struct Receiver<'a> {
    plan: &'a Plan,
    rank: u32,
    device: Option<Device>,
    listener: OwnedFd,
    connections: Vec<OwnedFd>,
    fds: ReceivedFds,
    kept: Vec<Kept>,
    opened: Opened,
}

impl<'a> Receiver<'a> {
    fn new(plan: &'a Plan, rank: u32, device: Option<Device>, listener: OwnedFd) -> Self {
        Receiver {
            plan,
            rank,
            device,
            listener,
            connections: Vec::new(),
            fds: ReceivedFds::new(),
            kept: Vec::new(),
            opened: Opened::default(),
        }
    }

    /// Until all buffers have come and all of this rank's are sent, or there is no free fd.
    fn run(&mut self, sender: Sender, link: &mut Link) -> Result<End> {
        let until = Instant::now() + Duration::from_millis(self.plan.timeout_ms);
        let mut sender = Some(sender);
        loop {
            if sender.as_ref().is_some_and(JoinHandle::is_finished)
                && let Some(ended) = sender.take()
            {
                match ended.join() {
                    Ok(Ok(()) | Err(SendEnd::PeerGone)) => {}
                    Ok(Err(SendEnd::OutOfFds)) => return Ok(End::OutOfFds),
                    Ok(Err(SendEnd::Failed(message))) => return Err(Error::Other(message)),
                    Err(_) => return Err(Error::Other("the sending thread panicked".into())),
                }
            }
            if sender.is_none() && self.opened.buffers == self.plan.opens_per_rank() {
                return Ok(End::Complete);
            }
            if Instant::now() > until {
                return Err(Error::Other("the others did not send everything in time".into()));
            }
            self.wait()?;
            if let End::OutOfFds = self.receive()? {
                return Ok(End::OutOfFds);
            }
            link.progress(self.opened.buffers)?;
        }
    }

    fn wait(&self) -> Result<()> {
        let mut entries = vec![PollFd::new(self.listener.as_fd(), PollFlags::POLLIN)];
        entries.extend(self.connections.iter().map(|c| PollFd::new(c.as_fd(), PollFlags::POLLIN)));
        match poll(&mut entries, PollTimeout::from(LOOK_INTERVAL_MS)) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(cause) => Err(cause).context(|| "wait for the other ranks"),
        }
    }

    /// Takes what is there, without waiting. `Complete` means: for now.
    fn receive(&mut self) -> Result<End> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        loop {
            match accept4(self.listener.as_raw_fd(), flags) {
                // SAFETY: accept4 has just made this fd for us, and nobody else owns it.
                Ok(fd) => self.connections.push(unsafe { OwnedFd::from_raw_fd(fd) }),
                Err(Errno::EAGAIN) => break,
                Err(Errno::EINTR | Errno::ECONNABORTED) => {}
                Err(Errno::EMFILE) => return Ok(End::OutOfFds),
                Err(cause) => return Err(cause).context(|| "accept a rank"),
            }
        }
        let mut index = 0;
        while index < self.connections.len() {
            match self.receive_one(index)? {
                Some(End::OutOfFds) => return Ok(End::OutOfFds),
                // Its sender is done.
                Some(End::Complete) => drop(self.connections.swap_remove(index)),
                None => index += 1,
            }
        }
        Ok(End::Complete)
    }

    /// One message of one connection. `None`: there may be more later.
    fn receive_one(&mut self, index: usize) -> Result<Option<End>> {
        let mut bytes = [0; size_of::<Message>()];
        let socket = self.connections[index].as_fd();
        let received = match fdbroker_scm::recv(socket, &mut bytes, &mut self.fds) {
            Ok(received) => received,
            Err(RecvError::WouldBlock) => return Ok(None),
            Err(RecvError::Eof) => return Ok(Some(End::Complete)),
            Err(cause) => return Err(Error::Other(format!("cannot receive fds: {cause}"))),
        };
        let message = match received.len == bytes.len() {
            true => Message::read_from_bytes(&bytes).ok(),
            false => None,
        };
        let message = message.ok_or_else(|| Error::Other("a rank sent nonsense".into()))?;
        // The kernel drops what does not fit and says so here only: those fds are lost.
        let lost = received.fds_truncated || self.fds.len() < message.count as usize;
        let kept = self.keep(&message)?;
        Ok(if lost || !kept { Some(End::OutOfFds) } else { None })
    }

    /// Maps, checks and marks what came, and keeps the fds. `false`: there was no free fd for it.
    fn keep(&mut self, message: &Message) -> Result<bool> {
        let mut fds = std::mem::take(&mut self.fds);
        for (step, fd) in (0..).zip(fds.drain()) {
            let offset = message.fd_offset + u64::from(step) * message.fd_offset_step;
            let device = self.device.as_ref();
            let Some(memory) = Received::new(self.plan, device, fd.as_fd(), offset)? else {
                return Ok(false);
            };
            let id = BufferId { owner: message.owner, buffer: message.first + step };
            self.opened.mismatches += memory.check_and_mark(self.plan, self.rank, id)?;
            self.opened.verified_bytes += self.plan.size_bytes;
            self.opened.buffers += 1;
            self.kept.push(Kept { _fd: fd, _memory: memory });
        }
        self.fds = fds;
        self.opened.fds_peak = self.opened.fds_peak.max(self.kept.len() as u64 + 1);
        Ok(true)
    }
}
