//! A rank of the direct way: it sends the fd of every buffer to every other rank over Unix sockets,
//! as programs without a broker do, and keeps every fd it gets. Must never use the broker, nor
//! close a received fd early.

use crate::control::{Command, Link, Opened, Report, to_json};
use crate::device::{self, Device};
use crate::error::{Error, Result, os, other};
use crate::memory::{Export, Exportable, ExportedFd, Mapped, SharedMemory, host_buffers};
use crate::pattern::BufferId;
use crate::plan::Plan;
use fdbroker_client::ErrorCode;
use fdbroker_scm::{ReceivedFds, RecvError, SendError, recv_timeout, send_timeout};
use serde::{Deserialize, Serialize};
use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Fds per message where all are the same fd.
const SHARED_BATCH: usize = fdbroker_scm::MAX_FDS;

/// Fds per message where each is a new one of the sender.
const FRESH_BATCH: usize = 16;

/// Longest message: a number of up to 20 digits and a comma for each fd, and the rest.
const MAX_MESSAGE_BYTES: usize = SHARED_BATCH * 21 + 128;

/// Longest wait for a peer to read: the run's own limit ends it before.
const SEND_LIMIT: Duration = Duration::from_secs(600);

/// While nothing comes, how often a receiver looks whether its own sender has failed.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// The text that goes with the fds of a message, as JSON.
#[derive(Debug, Serialize, Deserialize)]
struct Message {
    /// The rank that made the buffers.
    owner: u32,
    /// The number of the first buffer; the others follow it.
    first: u32,
    /// For each fd, where in it the buffer begins.
    offsets: Vec<u64>,
}

/// The rank's own buffers, for it and its sending thread.
type Buffers = Arc<Vec<Box<dyn Exportable>>>;

/// Runs one rank until the parent ends it.
pub fn run(plan: &Plan, rank: u32, link: &mut Link) -> Result<()> {
    let device = device::open(plan.memory)?;
    link.report_and_expect(&Report::Connected, Command::Register)?;
    let buffers = make_buffers(plan, rank, device.as_deref())?;
    let path = plan.socket(rank);
    let socket =
        UnixDatagram::bind(&path).map_err(os(format!("make the socket {}", path.display())))?;
    link.report_and_expect(&Report::Registered, Command::Open)?;

    let mut receiver = Receiver {
        plan,
        rank,
        device,
        socket,
        fds: ReceivedFds::new(),
        kept: Vec::new(),
        opened: Opened::default(),
    };
    match receiver.share(&buffers, link) {
        // Everything stays open until the parent has counted and closes the pipe.
        Err(error) if is_out_of_fds(&error) => {
            let _ = link.report_and_expect(&Report::OutOfFds, Command::Release);
            return Ok(());
        }
        outcome => outcome?,
    }
    link.report_and_expect(&Report::Opened(receiver.opened.clone()), Command::Check)?;
    let own = buffers.iter().map(|buffer| &**buffer as &dyn SharedMemory);
    let mismatches = plan.check_all_marks(rank, own)?;
    link.report_and_expect(&Report::Checked(mismatches), Command::Release)?;
    drop(receiver);
    link.report(&Report::Released)
}

fn make_buffers(plan: &Plan, owner: u32, device: Option<&dyn Device>) -> Result<Buffers> {
    let buffers = match device {
        Some(device) => (0..plan.buffers)
            .map(|_| device.allocate(plan.size()))
            .collect::<std::result::Result<_, _>>()?,
        None => host_buffers(plan.memory, plan.buffers, plan.size())?,
    };
    for (buffer, memory) in (0..).zip(&buffers) {
        plan.fill(BufferId { owner, buffer }, &**memory)?;
    }
    Ok(Arc::new(buffers))
}

/// This process has no free fd.
fn out_of_fds() -> Error {
    fdbroker_client::Error::new(ErrorCode::LocalFdLimit, "an fd was lost").into()
}

fn is_out_of_fds(error: &Error) -> bool {
    matches!(error, Error::Client(error) if error.code == ErrorCode::LocalFdLimit)
}

/// Sends every buffer to every other rank, one rank after the other.
fn send_all(plan: &Plan, rank: u32, buffers: &Buffers, socket: &UnixDatagram) -> Result<()> {
    for peer in plan.others(rank) {
        match socket.connect(plan.socket(peer)) {
            Ok(()) => send_to_peer(rank, buffers, socket)?,
            // The peer has ended, and the parent knows why.
            Err(cause) if cause.kind() == ErrorKind::ConnectionRefused => {}
            Err(cause) => return Err(os("connect to a rank")(cause)),
        }
    }
    Ok(())
}

fn send_to_peer(owner: u32, buffers: &Buffers, socket: &UnixDatagram) -> Result<()> {
    let mut first = 0;
    while first < buffers.len() {
        let exports = export_some(&buffers[first..])?;
        let offsets = exports.iter().map(|export| export.offset).collect();
        let message = Message { owner, first: u32::try_from(first).unwrap_or(u32::MAX), offsets };
        let text = to_json(&message)?;
        let fds: Vec<BorrowedFd<'_>> = exports.iter().map(AsFd::as_fd).collect();
        match send_timeout(socket.as_fd(), text.as_bytes(), &fds, Some(SEND_LIMIT)) {
            Ok(()) => first += fds.len(),
            Err(SendError::PeerGone) => return Ok(()),
            Err(cause) => return other(format!("cannot send fds: {cause}")),
        }
    }
    Ok(())
}

/// The fds of as many buffers as one message carries.
fn export_some(buffers: &[Box<dyn Exportable>]) -> Result<Vec<Export<'_>>> {
    let mut exports: Vec<Export<'_>> = Vec::new();
    let mut most = SHARED_BATCH;
    for buffer in buffers {
        if exports.len() >= most {
            break;
        }
        let export = buffer.export()?;
        if let ExportedFd::Fresh(_) = export.fd {
            most = FRESH_BATCH;
        }
        exports.push(export);
    }
    Ok(exports)
}

/// A buffer of another rank, with the fd that a program without a broker has to keep.
struct Kept {
    _fd: OwnedFd,
    _memory: Box<dyn SharedMemory>,
}

/// Takes the fds that the other ranks send.
struct Receiver<'a> {
    plan: &'a Plan,
    rank: u32,
    device: Option<Box<dyn Device>>,
    socket: UnixDatagram,
    fds: ReceivedFds,
    kept: Vec<Kept>,
    opened: Opened,
}

impl Receiver<'_> {
    /// Until all buffers have come and all of this rank's are sent. LOCAL_FD_LIMIT: this process
    /// has no free fd.
    fn share(&mut self, buffers: &Buffers, link: &mut Link) -> Result<()> {
        let until = Instant::now() + Duration::from_millis(self.plan.timeout_ms);
        let (plan, rank, buffers) = (self.plan.clone(), self.rank, Arc::clone(buffers));
        let socket = UnixDatagram::unbound().map_err(os("make a socket"))?;
        let mut sender = Some(std::thread::spawn(move || send_all(&plan, rank, &buffers, &socket)));
        loop {
            if let Some(ended) = sender.take_if(|sender| sender.is_finished()) {
                let panicked = |_| other("the sending thread panicked");
                ended.join().unwrap_or_else(panicked)?;
            }
            if sender.is_none() && self.opened.buffers == self.plan.opens_per_rank() {
                return Ok(());
            }
            if Instant::now() > until {
                return other("the other ranks did not send everything in time");
            }
            self.receive()?;
            link.progress(self.opened.buffers)?;
        }
    }

    /// Takes one message, if one comes soon.
    fn receive(&mut self) -> Result<()> {
        let mut bytes = [0; MAX_MESSAGE_BYTES];
        let socket = self.socket.as_fd();
        let received = match recv_timeout(socket, &mut bytes, &mut self.fds, Some(LOOK_INTERVAL)) {
            Ok(received) => received,
            Err(RecvError::TimedOut) => return Ok(()),
            Err(cause) => return other(format!("cannot receive fds: {cause}")),
        };
        let Ok(message) = serde_json::from_slice::<Message>(&bytes[..received.len]) else {
            return other("a rank sent a message that makes no sense");
        };
        // The kernel drops fds that do not fit into the table and says so here only: they are lost.
        let is_complete = !received.fds_truncated && self.fds.len() >= message.offsets.len();
        self.keep(&message)?;
        if is_complete { Ok(()) } else { Err(out_of_fds()) }
    }

    /// Maps, checks and marks the buffers, and keeps the fds.
    fn keep(&mut self, message: &Message) -> Result<()> {
        let mut fds = std::mem::take(&mut self.fds);
        for ((buffer, offset), fd) in (message.first..).zip(&message.offsets).zip(fds.drain()) {
            let memory: Box<dyn SharedMemory> = match &self.device {
                Some(device) => device.import_fd(fd.as_fd(), self.plan.size_bytes)?,
                None => Box::new(Mapped::new(fd.as_fd(), *offset, self.plan.size())?),
            };
            let id = BufferId { owner: message.owner, buffer };
            self.opened.mismatches += self.plan.check_and_mark(self.rank, id, &*memory)?;
            self.opened.verified_bytes += self.plan.size_bytes;
            self.opened.buffers += 1;
            self.kept.push(Kept { _fd: fd, _memory: memory });
        }
        self.fds = fds;
        Ok(())
    }
}
