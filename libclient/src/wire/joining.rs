//! A client's further sockets: the client connects each itself and says whose it is, so that no
//! message of the broker has to carry a socket. Must never wait longer than its caller says.

use super::dial::{open, what};
use super::poll::poll_one;
use crate::deadline::Deadline;
use crate::error::Error;
use crate::interrupt::{ask, now, sleep};
use crate::limits::{AT_THE_DOOR_FIRST, AT_THE_DOOR_LAST, BACKLOG_PAUSE};
use crate::own_fds::{CLOSED_HERE, OwnFd};
use fdbroker_protocol::error::OUTSIDE_PODS;
use fdbroker_protocol::limits::MAX_MESSAGE_BYTES;
use fdbroker_protocol::message::{HelloReply, Join, Role};
use fdbroker_protocol::{ErrorCode, Kind, Message, Status, Writer};
use fdbroker_scm::{ReceivedFds, RecvError, SendError};
use nix::poll::PollFlags;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// What a client's further sockets need.
#[derive(Clone, Debug)]
pub(crate) struct Membership {
    path: PathBuf,
    client: u32,
    secret: u64,
}

impl Membership {
    pub fn new(path: &Path, reply: &HelloReply) -> Self {
        Membership { path: path.to_owned(), client: reply.client.get(), secret: reply.secret.get() }
    }
}

/// A socket that is to join. Never waits.
#[derive(Debug)]
pub(crate) struct Joining {
    membership: Membership,
    role: Role,
    /// `None`: it is to be connected at `next`.
    socket: Option<OwnFd>,
    next: Instant,
    pause: Duration,
}

impl Joining {
    /// One that [`look`](Self::look) begins.
    pub fn new(membership: Membership, role: Role) -> Self {
        let (next, pause) = (Instant::now(), AT_THE_DOOR_FIRST);
        Joining { membership, role, socket: None, next, pause }
    }

    /// Readable when the answer is there. To be polled.
    pub fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.socket.as_ref().map(OwnFd::polled)
    }

    /// When to look without an event.
    pub fn look_at(&self) -> Option<Instant> {
        self.socket.is_none().then_some(self.next)
    }

    /// The socket once it has joined, or why it cannot. While others crowd at the door it tries
    /// again and again.
    pub fn look(&mut self) -> Option<Result<OwnFd, Error>> {
        if self.socket.is_none() && Instant::now() >= self.next {
            match self.begin() {
                Ok(Some(socket)) => self.socket = Some(socket),
                Ok(None) => self.next = Instant::now() + BACKLOG_PAUSE,
                Err(error) => return Some(Err(error)),
            }
        }
        let socket = self.socket.as_ref()?;
        let Some(proved) = socket.proved() else { return Some(Err(self.lost(CLOSED_HERE))) };
        let mut buf = vec![0; MAX_MESSAGE_BYTES];
        let mut fds = ReceivedFds::with_capacity(0);
        let received = match fdbroker_scm::recv(proved, &mut buf, &mut fds) {
            Ok(received) => received,
            Err(RecvError::WouldBlock) => return None,
            Err(error) => return Some(Err(self.lost(&error.to_string()))),
        };
        let message = match Message::parse(&buf[..received.len]) {
            Ok(message) => message,
            Err(error) => return Some(Err(self.lost(&error.to_string()))),
        };
        match (message.kind, message.status()) {
            (Kind::Joined, _) => self.socket.take().map(Ok),
            (Kind::Failed, Ok(status)) => self.refused(status, message.id == 0),
            (kind, _) => Some(Err(self.lost(&format!("it answers join with {kind}")))),
        }
    }

    fn refused(&mut self, status: Status, is_unread: bool) -> Option<Result<OwnFd, Error>> {
        // The client has its place: what is full is the lobby, or the broker for clients that it
        // might be.
        let is_crowded = match status.result() {
            Err(ErrorCode::Again) => true,
            Err(ErrorCode::NoQuota) => is_unread,
            _ => false,
        };
        if is_crowded && self.role == Role::Events {
            (self.socket, self.next) = (None, Instant::now() + self.pause);
            self.pause = (self.pause * 2).min(AT_THE_DOOR_LAST);
            return None;
        }
        let context = self.context("the broker refuses a further socket of this client");
        let error = Error::from_status(status, context);
        Some(Err(match error.code {
            ErrorCode::NotPermitted if status == Status::NO_POD => error.because(OUTSIDE_PODS),
            // It has ended the client meanwhile, or is another broker, or this process has moved to
            // another pod.
            ErrorCode::NotPermitted => self.lost("the broker has ended the connection"),
            _ => error,
        }))
    }

    /// Connects and says whose it is. `None`: the listener's backlog is full.
    fn begin(&self) -> Result<Option<OwnFd>, Error> {
        let Some(socket) = open(&self.membership.path)? else { return Ok(None) };
        let socket = OwnFd::guarded(socket)?;
        let Membership { client, secret, .. } = self.membership;
        let join =
            Join { client: client.into(), role: (self.role as u32).into(), secret: secret.into() };
        let mut writer = Writer::new();
        writer.start(Kind::Join, 1).push(&join);
        match fdbroker_scm::send(socket.polled(), writer.finish(0, 0), &[]) {
            // Refused at the door: the reason can still be read.
            Ok(()) | Err(SendError::PeerGone) => Ok(Some(socket)),
            Err(error) => Err(self.lost(&error.to_string())),
        }
    }

    pub fn finish(mut self, until: Deadline) -> Result<OwnFd, Error> {
        loop {
            if let Some(outcome) = self.look() {
                return outcome;
            }
            let end = until.given_up_at();
            if now() >= end {
                return Err(self.lost("the broker does not answer"));
            }
            let left = self.look_at().unwrap_or(end).min(end);
            let left = left.saturating_duration_since(now());
            match self.socket() {
                Some(socket) => drop(poll_one(socket, PollFlags::POLLIN, left)),
                None => sleep(left),
            }
            ask();
        }
    }

    fn lost(&self, what: &str) -> Error {
        Error::not_connected(self.context(what))
    }

    fn context(&self, event: &str) -> String {
        format!("{}: {event}", what(&self.membership.path))
    }
}
