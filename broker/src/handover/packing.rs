//! What a broker hands over, packed: its state as plain data, its fds in carriers, and whose each
//! fd is. Must never send anything to the successor by itself.

use crate::clients::connection::{Connection, Phase};
use crate::handover::carriers::{CarryError, Outgoing};
use crate::handover::state::{Fd, SavedCaller, SavedConnection, SavedHelloReply, SavedListener};
use crate::node::listeners::Listener;
use fdbroker_core::{ClientId, DomainKey, Now};
use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// What the successor gets.
pub(crate) struct Parcel {
    /// The state.
    pub ledger: OwnedFd,
    /// The sockets in whose queues the fds lie.
    pub carriers: Vec<OwnedFd>,
    /// Clients that go on, and fds of theirs.
    pub clients: usize,
    pub held: usize,
}

/// The successor that gets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// A broker that starts when this one has ended.
    Store,
    /// One that runs already.
    Successor,
}

/// The owner of an fd in the carriers.
pub(crate) enum Whose {
    Broker,
    Client(ClientId),
    /// By its number in the lobby.
    Caller(u64),
    Slot(u32),
}

/// One try.
pub(crate) struct Packing<'a> {
    pub outgoing: Outgoing<'a>,
    pub owners: HashMap<Fd, Whose>,
}

impl<'a> Packing<'a> {
    pub fn add(&mut self, fd: BorrowedFd<'a>, whose: Whose) -> Result<Fd, CarryError> {
        let number = self.outgoing.add(fd)?;
        if !matches!(whose, Whose::Broker) {
            self.owners.insert(number, whose);
        }
        Ok(number)
    }

    pub fn add_if(
        &mut self,
        fd: Option<&'a OwnedFd>,
        client: ClientId,
    ) -> Result<Option<Fd>, CarryError> {
        fd.map(|fd| self.add(fd.as_fd(), Whose::Client(client))).transpose()
    }
}

/// A listener, and its socket unless the successor gets that from the service manager.
pub(crate) fn save_listener<'a>(
    packing: &mut Packing<'a>,
    listener: &'a Listener,
    way: Way,
) -> Result<SavedListener, CarryError> {
    // The service manager's own sockets come from it again.
    let is_needed = way == Way::Successor || listener.identity().is_some();
    let socket = is_needed.then(|| packing.add(listener.as_fd(), Whose::Broker)).transpose()?;
    Ok(SavedListener { path: listener.path().into(), identity: listener.identity(), socket })
}

/// A connection that has said nothing yet.
pub(crate) fn save_caller<'a>(
    packing: &mut Packing<'a>,
    socket: &'a OwnedFd,
    (domain, pid, until): (DomainKey, u32, Now),
    whose: Whose,
) -> Result<SavedCaller, CarryError> {
    let until_us = until.0;
    Ok(SavedCaller { domain, pid, until_us, socket: packing.add(socket.as_fd(), whose)? })
}

/// A connection with its sockets.
pub(crate) fn save_connection<'a>(
    packing: &mut Packing<'a>,
    client: ClientId,
    connection: &'a Connection,
) -> Result<SavedConnection, CarryError> {
    let hello_reply = connection.hello_reply.as_ref().map(|reply| SavedHelloReply {
        request: reply.request.0,
        deposit_credits: reply.deposit_credits,
    });
    debug_assert!(connection.phase != Phase::Gone || connection.socket.is_none());
    Ok(SavedConnection {
        index: client.0,
        serial: connection.serial,
        domain: connection.domain,
        pid: connection.pid,
        start: connection.start,
        name: connection.name,
        phase: connection.phase,
        socket: packing.add_if(connection.socket.as_ref(), client)?,
        lingering: packing.add_if(connection.lingering.as_ref(), client)?,
        event: packing.add_if(connection.event.as_ref(), client)?,
        secret: connection.secret,
        ahead: packing.add_if(connection.ahead.as_ref(), client)?,
        pidfd: packing.add_if(connection.pidfd.as_ref(), client)?,
        is_forgotten: connection.is_forgotten,
        is_bad_input_logged: connection.is_bad_input_logged,
        unread_messages: connection.unread.messages,
        unread_fds: connection.unread.fds,
        blocked: connection.blocked,
        pending: connection.pending.iter().cloned().collect(),
        pending_event: connection.pending_event.clone(),
        hello_reply,
    })
}
