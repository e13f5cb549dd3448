//! A broker takes over from one that runs, over the administrator's socket of the running one. Four
//! steps: the running broker offers everything; its successor builds it up and says that it is
//! ready; the running one says go; the successor serves and says so. Until "go" the running broker
//! can go on as if nothing had been; from "go" on it touches nothing. Must never let two serve at
//! once.

use crate::handover::RefusedState;
use crate::handover::arrived::{Arrivals, Arrived};
use crate::handover::ledger::FORMAT;
use crate::limits::{HANDOVER_PATIENCE, MAX_CARRIERS};
use fdbroker_protocol::admin::{Query, TakeoverOffer, TakeoverStep, step};
use fdbroker_protocol::codec::Message;
use fdbroker_protocol::limits::MAX_ADMIN_MESSAGE_BYTES;
use fdbroker_protocol::{ErrorCode, Kind, Status, Writer};
use fdbroker_scm::{ReceivedFds, RecvError, SendError};
use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

/// Why a broker did not take over; the one that runs goes on.
#[derive(Debug, thiserror::Error)]
pub enum TakeoverError {
    /// No broker runs there.
    #[error("no broker serves {path} to take over from ({errno}); start without --takeover")]
    Nobody {
        /// The administrator's socket.
        path: PathBuf,
        /// Of connect(2).
        errno: Errno,
    },
    /// It is another user's.
    #[error("the broker at {0} belongs to another user; run as that user, or as root")]
    NotPermitted(PathBuf),
    /// A service manager restarts it.
    #[error(
        "the broker at {0} is run by a service manager; restart it there: its clients go on, too"
    )]
    Managed(PathBuf),
    /// It is of another version.
    #[error(
        "the broker at {path} hands over in format {theirs}, this program reads {FORMAT}; end it and start without --takeover"
    )]
    Format {
        /// Its socket.
        path: PathBuf,
        /// Its format.
        theirs: u64,
    },
    /// It does not know how.
    #[error(
        "the broker at {path} does not hand over: {status}; its log says why, or it is too old"
    )]
    Refused {
        /// Its socket.
        path: PathBuf,
        /// Its answer.
        status: Status,
    },
    /// What it handed over cannot be gone on with.
    #[error("nothing is taken over, the other broker goes on: {0}")]
    State(#[from] RefusedState),
    /// It broke off.
    #[error("the other broker has broken off the takeover ({0}); see its log, and try again")]
    BrokenOff(String),
}

/// A takeover under way, as the broker that takes over sees it.
pub(crate) struct Takeover {
    socket: OwnedFd,
}

impl Takeover {
    /// Asks the broker that serves `admin_socket`, and has everything that it hands over.
    pub fn ask(admin_socket: &Path, table_fds: u64) -> Result<(Self, Arrived), TakeoverError> {
        let socket = connect_to(admin_socket)?;
        let query = Query {
            cursor: 0.into(),
            filter: 0.into(),
            value: u64::from(FORMAT).into(),
            reserved: 0.into(),
        };
        let mut writer = Writer::new();
        writer.start(Kind::AdminTakeover, 1).push(&query);
        send(socket.as_fd(), writer.finish(0, 0), &[]).map_err(TakeoverError::BrokenOff)?;
        let mut fds = ReceivedFds::new();
        let bytes = receive(socket.as_fd(), &mut fds).map_err(TakeoverError::BrokenOff)?;
        let message = parse(&bytes).map_err(TakeoverError::BrokenOff)?;
        if let (Kind::Failed, Ok(status)) = (message.kind, message.status()) {
            return Err(refusal(admin_socket, status));
        }
        let offer = message.body_as::<TakeoverOffer>();
        let offer = *offer.map_err(|error| TakeoverError::BrokenOff(error.to_string()))?;
        let mut fds = fds.drain();
        let ledger = fds.next().filter(|_| fds.len() == offer.carriers.get() as usize);
        let Some(ledger) = ledger else {
            return Err(TakeoverError::BrokenOff("fds are missing".into()));
        };
        // This process closes what it refuses, and the other broker has it still.
        let mut left = Arrivals::default();
        let arrived = Arrived::read(ledger, fds.collect(), table_fds, &mut left)?;
        Ok((Takeover { socket }, arrived))
    }

    /// Says that all is built up, and waits until the other broker lets go.
    pub fn confirm(&self) -> Result<(), TakeoverError> {
        let socket = self.socket.as_fd();
        say(socket, step::READY)
            .and_then(|()| expect(socket, step::GO))
            .map_err(TakeoverError::BrokenOff)
    }

    /// Says that clients are served: the other one ends.
    pub fn finish(self) {
        if let Err(error) = say(self.socket.as_fd(), step::SERVING) {
            log::warn!("the broker before this one did not hear that it is over: {error}");
        }
    }
}

fn refusal(path: &Path, status: Status) -> TakeoverError {
    let path = path.to_owned();
    match status.result() {
        Err(ErrorCode::NotPermitted) => TakeoverError::NotPermitted(path),
        Err(ErrorCode::NotSupported) if status.value > 0 => {
            TakeoverError::Format { path, theirs: status.value }
        }
        Err(ErrorCode::Again) => TakeoverError::Managed(path),
        _ => TakeoverError::Refused { path, status },
    }
}

const _: () = assert!(MAX_CARRIERS < fdbroker_scm::MAX_FDS);

fn connect_to(path: &Path) -> Result<OwnedFd, TakeoverError> {
    let nobody = |errno| match errno {
        Errno::EACCES | Errno::EPERM => TakeoverError::NotPermitted(path.into()),
        errno => TakeoverError::Nobody { path: path.into(), errno },
    };
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None).map_err(nobody)?;
    let address = UnixAddr::new(path).map_err(nobody)?;
    connect(socket.as_raw_fd(), &address).map_err(nobody)?;
    Ok(socket)
}

pub(crate) fn send(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
) -> Result<(), String> {
    fdbroker_scm::send_timeout(socket, bytes, fds, Some(HANDOVER_PATIENCE))
        .map_err(|error: SendError| error.to_string())
}

fn receive(socket: BorrowedFd<'_>, fds: &mut ReceivedFds) -> Result<Vec<u8>, String> {
    receive_raw(socket, fds).map_err(|error| error.to_string())
}

fn receive_raw(socket: BorrowedFd<'_>, fds: &mut ReceivedFds) -> Result<Vec<u8>, RecvError> {
    let mut bytes = vec![0; MAX_ADMIN_MESSAGE_BYTES];
    let message = fdbroker_scm::recv_timeout(socket, &mut bytes, fds, Some(HANDOVER_PATIENCE))?;
    bytes.truncate(message.len);
    Ok(bytes)
}

fn parse(bytes: &[u8]) -> Result<Message<'_>, String> {
    Message::parse(bytes).map_err(|error| error.to_string())
}

pub(crate) fn say(socket: BorrowedFd<'_>, step: u32) -> Result<(), String> {
    let mut writer = Writer::new();
    writer.start(Kind::AdminTakeoverStep, 1).push(&TakeoverStep { step: step.into() });
    send(socket, writer.finish(0, 0), &[])
}

pub(crate) fn expect(socket: BorrowedFd<'_>, wanted: u32) -> Result<(), String> {
    match receive_step(socket) {
        Ok(step) if step == wanted => Ok(()),
        Ok(step) => Err(format!("step {step} instead of {wanted}")),
        Err(error) => Err(error.to_string()),
    }
}

/// The next step said by the other side; 0 = something else.
pub(crate) fn receive_step(socket: BorrowedFd<'_>) -> Result<u32, RecvError> {
    let bytes = receive_raw(socket, &mut ReceivedFds::with_capacity(0))?;
    let message = Message::parse(&bytes).ok();
    let body = message.filter(|message| message.kind == Kind::AdminTakeoverStep);
    let step = body.and_then(|message| message.body_as::<TakeoverStep>().ok().copied());
    Ok(step.map_or(0, |body| body.step.get()))
}
