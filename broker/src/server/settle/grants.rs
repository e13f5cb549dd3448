//! Sends fds: of grants, of objects, and ahead. Must never send more of them than the client, and
//! the node, have room for.

use crate::clients::connection::{Blocked, index};
use crate::fds::table::FdTable;
use crate::messages::{objects, replies};
use crate::server::parts::Server;
use fdbroker_core::{ClientId, GotObject, Granted, RequestId};
use fdbroker_protocol::{ErrorCode, MAX_BATCH, Status};
use fdbroker_scm::SendError;
use std::os::fd::{AsFd, BorrowedFd};

impl Server {
    /// Sends a grant with its fds, and says how many. `Err`: not now; the client is blocked until
    /// it has read, or others have.
    pub(super) fn send_granted(
        &mut self,
        client: ClientId,
        request: RequestId,
        grants: &[Granted],
    ) -> Result<usize, ()> {
        let alone = match grants {
            [grant] if grant.status.is_ok() => Some(self.with_room(client, grant)),
            _ => None,
        };
        let grants = alone.as_ref().map_or(grants, std::slice::from_ref);
        let fds = grants.iter().filter(|grant| grant.status.is_ok()).count();
        if fds > 0 {
            let room = self.room_for_fds(client, fds)?;
            if room < fds {
                return self.send_cut(client, request, grants, room).map(|()| room);
            }
        }
        self.send_whole(client, request, grants, fds).map(|()| fds)
    }

    /// A grant that is alone in its message, which says how many more its client may have.
    fn with_room(&self, client: ClientId, grant: &Granted) -> Granted {
        let value = self.core.room_ahead(client);
        Granted { status: Status { value, ..Status::OK }, ..*grant }
    }

    /// Sends a grant of which only `room` fds may be in flight: the other items answer AGAIN, and
    /// their leases are given back.
    fn send_cut(
        &mut self,
        client: ClientId,
        request: RequestId,
        grants: &[Granted],
        room: usize,
    ) -> Result<(), ()> {
        let mut grants = grants.to_vec();
        let mut leases = Vec::new();
        for grant in grants.iter_mut().filter(|grant| grant.status.is_ok()).skip(room) {
            leases.push(grant.lease);
            *grant = Granted::refused(grant.wanted, ErrorCode::Again.into());
        }
        self.send_whole(client, request, &grants, room)?;
        self.feedback.note_cut(client, leases);
        Ok(())
    }

    fn send_whole(
        &mut self,
        client: ClientId,
        request: RequestId,
        grants: &[Granted],
        fds: usize,
    ) -> Result<(), ()> {
        let core = &self.core;
        let data = |id| core.driver_data(id).copied();
        let slots = &mut self.scratch.slots;
        replies::write_granted(&mut self.writer, request, grants, slots, data);
        if fds == 0 {
            self.send_written(client);
            return Ok(());
        }
        self.send_with_fds(client, grants, fds)
    }

    /// Sends the message in the writer with the fds of the slots that it names. `Err`: not now; the
    /// client is blocked.
    fn send_with_fds(
        &mut self,
        client: ClientId,
        grants: &[Granted],
        fds: usize,
    ) -> Result<(), ()> {
        let connection = &mut self.connections[index(client)];
        let Some(socket) = connection.socket() else { return Ok(()) };
        let (bytes, slots) = (self.writer.written(), &self.scratch.slots);
        let send = || send_slots(socket, bytes, slots, &self.fds);
        let why = match self.calls.time(connection.shares_as, fds, send) {
            Ok(()) => {
                self.in_flight.note_sent(connection, fds);
                if self.admin.is_watched() {
                    self.note_grants(client, grants);
                }
                return Ok(());
            }
            Err(SendError::WouldBlock) => Blocked::Unread,
            Err(SendError::TooManyRefs) => Blocked::InFlight,
            Err(SendError::PeerGone) => {
                self.end_connection(client);
                return Ok(());
            }
            Err(error) => {
                log::error!("fds could not be sent to client {}: {error}", client.0);
                self.end_with(client, ErrorCode::Internal.into());
                return Ok(());
            }
        };
        self.block(client, why);
        Err(())
    }

    /// Answers a get with its fds. If that cannot be now, its leases are given back, and it is to
    /// be asked again: for so many groups at a time as the answer says.
    pub(super) fn send_got(
        &mut self,
        client: ClientId,
        request: RequestId,
        objects: &[GotObject],
        grants: &[Granted],
    ) {
        let room = self.room_for_fds(client, grants.len()).unwrap_or(0);
        if room < grants.len() {
            return self.give_back(client, request, grants, room);
        }
        let got = (objects, grants);
        let slots = &mut self.scratch.slots;
        objects::write_got(&mut self.writer, request, &self.core, got, slots);
        if self.send_with_fds(client, grants, grants.len()).is_err() {
            self.give_back(client, request, grants, 0);
        }
    }

    fn give_back(&mut self, client: ClientId, request: RequestId, grants: &[Granted], room: usize) {
        self.feedback.note_cut(client, grants.iter().map(|grant| grant.lease).collect());
        let status = Status::with_value(ErrorCode::Again, room as u64);
        self.reply_failed(client, request, status);
    }

    /// Sends what the core grants ahead, one message each. What cannot be sent is given back.
    pub(super) fn send_ahead(&mut self, client: ClientId, grants: &[Granted]) {
        let sent = self.send_each_ahead(client, grants);
        if sent < grants.len() {
            let leases = grants[sent..].iter().map(|grant| grant.lease).collect();
            self.feedback.note_cut(client, leases);
        }
        if sent > 0 && self.admin.is_watched() {
            self.note_grants(client, &grants[..sent]);
        }
    }

    fn send_each_ahead(&mut self, client: ClientId, grants: &[Granted]) -> usize {
        let connection = &self.connections[index(client)];
        let user = connection.shares_as;
        let Some(ahead) = connection.ahead.as_ref() else { return 0 };
        let core = &self.core;
        let data = |id| core.driver_data(id).copied();
        for (count, grant) in grants.iter().enumerate() {
            let grant = self.with_room(client, grant);
            let bytes = replies::write_granted(
                &mut self.writer,
                RequestId(0),
                std::slice::from_ref(&grant),
                &mut self.scratch.slots,
                data,
            );
            let slots = &self.scratch.slots;
            if self.calls.debts.is_away(user) {
                return count;
            }
            let send = || send_slots(ahead.as_fd(), bytes, slots, &self.fds);
            if let Err(error) = self.calls.time(user, slots.len(), send) {
                log::debug!("client {} is sent no more fds ahead: {error}", client.0);
                return count;
            }
        }
        grants.len()
    }
}

/// Sends a message with the fds of `slots`.
pub(crate) fn send_slots(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    slots: &[u32],
    table: &FdTable,
) -> Result<(), SendError> {
    let held = |slot: u32| table.held(slot).ok_or(SendError::BadFd);
    // One fd is the common case; the array for a full message is a kilobyte to fill.
    if let [slot] = slots {
        return fdbroker_scm::send_grant(socket, bytes, &[held(*slot)?]);
    }
    let mut fds = [socket; MAX_BATCH];
    for (place, slot) in fds.iter_mut().zip(slots) {
        *place = held(*slot)?;
    }
    fdbroker_scm::send_grant(socket, bytes, &fds[..slots.len().min(MAX_BATCH)])
}
