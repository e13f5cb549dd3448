//! Applies what the core says, in its order, and hands back what could not be done. Must never call
//! the core in the middle of a list: what it has to hear waits until the list is done.

use crate::clients::connection::{Blocked, HelloReply, index};
use crate::clock;
use crate::fds::table::FdTable;
use crate::kernel;
use crate::messages::replies;
use crate::readiness::Source;
use crate::readiness::register;
use crate::server::parts::Server;
use crate::server::parts::feedback::Unsent;
use crate::server::settle::flow::{send_or_keep, send_to};
use fdbroker_core::{ClientId, Effect, Effects, Granted, RequestId};
use fdbroker_protocol::{ErrorCode, MAX_BATCH, MemoryKind, Status};
use fdbroker_scm::SendError;
use std::os::fd::{AsFd, BorrowedFd};

impl Server {
    /// Applies `effects`, then what follows from them, until nothing does. Takes the reused list
    /// and puts it back.
    pub(crate) fn settle(&mut self, mut effects: Effects) {
        loop {
            self.take_notes();
            // First: nobody is answered before what outlives this broker knows of it.
            self.kept.hear(&effects.kept, &self.core, &self.fds);
            for effect in &effects.list {
                self.apply(effect, &effects);
            }
            for us in &effects.recalled_us {
                self.waits.note_recall(*us);
            }
            effects = self.feedback.hand_back(&mut self.core, self.now, effects);
            if effects.list.is_empty() {
                self.take_notes();
                self.feedback.keep_list(effects);
                return;
            }
        }
    }

    /// Tells the core what it is to hear, if there is something, and applies what follows.
    pub(crate) fn settle_queues(&mut self) {
        if !self.feedback.is_empty() {
            let effects = self.feedback.take_list();
            self.settle(effects);
        }
    }

    fn apply(&mut self, effect: &Effect, all: &Effects) {
        match effect {
            Effect::Granted { client, request, range, deadline, seq } => {
                let (client, request) = (*client, *request);
                match self.send_granted(client, request, &all.granted[range.clone()]) {
                    Ok(fds) => {
                        let at = self.calls.last();
                        self.waits.end(client, request, fds, at, &mut self.connections);
                    }
                    Err(()) => {
                        let (range, deadline, seq) = (range.clone(), *deadline, *seq);
                        self.feedback.note_unsent(Unsent { client, request, range, deadline, seq });
                    }
                }
            }
            Effect::GrantedAhead { client, range } => {
                self.send_ahead(*client, &all.granted[range.clone()]);
            }
            Effect::Statuses { client, request, reply, range } => {
                let statuses = &all.statuses[range.clone()];
                let bytes = replies::write_statuses(&mut self.writer, *request, *reply, statuses);
                let sent = send_to(&mut self.connections, &mut self.calls, *client, bytes);
                self.after_send(*client, sent);
            }
            Effect::StoreArrived { index, slot } => {
                // The kind of a deposit is what its producer said and the daemon has checked; a supply is without one,
                // and of what was registered.
                let deposit = self.scratch.deposits.get(usize::from(*index));
                let kind = deposit.map(|deposit| deposit.kind).or(self.core.kind(*slot));
                let kind = kind.unwrap_or(MemoryKind::Memfd);
                let is_done = self.fds.store_arrived(*index, *slot, kind, deposit.is_none());
                expect(is_done, "store", *slot);
            }
            Effect::CloseArrived { index, ticket, lane } => {
                let is_done = self.fds.close_arrived(*index, *ticket, *lane);
                expect(is_done, "close on arrival", (*index).into());
            }
            Effect::CloseHeld { slot, ticket, uid } => {
                expect(self.fds.close_held(*slot, *uid, *ticket), "close", *slot);
            }
            Effect::Keep { slot } => {
                if let Some(kept) = self.core.kept(*slot) {
                    self.service.keep_store().keep(*slot, &kept, &self.fds);
                }
            }
            Effect::KeptChanged { slot } => {
                if let Some(kept) = self.core.kept(*slot) {
                    self.service.keep_store().change(*slot, &kept);
                }
            }
            Effect::Unkeep { slot } => self.service.keep_store().unkeep(*slot),
            Effect::Declared { client, request, range } => {
                let declared = &all.granted[range.clone()];
                let bytes = replies::write_declared(&mut self.writer, *request, declared);
                let sent = send_to(&mut self.connections, &mut self.calls, *client, bytes);
                self.after_send(*client, sent);
            }
            Effect::Publish { slot, generation } => {
                let is_done = self.node.page().publish(*slot, *generation, &self.core);
                expect(is_done, "publish", *slot);
            }
            Effect::Ended { index } => {
                if let Some(ended) = all.ended.get(*index) {
                    self.fds.remember(ended);
                }
            }
            Effect::Registered { client, request, range, deposit_credits } => {
                let bytes = replies::write_registered(
                    &mut self.writer,
                    self.node.identity(),
                    *request,
                    &all.registered[range.clone()],
                    &self.scratch.deposits,
                    *deposit_credits,
                );
                let sent = send_to(&mut self.connections, &mut self.calls, *client, bytes);
                self.after_send(*client, sent);
            }
            Effect::Welcome { client, request, deposit_credits } => {
                self.welcome(*client, *request, *deposit_credits);
            }
            Effect::Failed { client, request, status } => {
                self.reply_failed(*client, *request, *status);
            }
            Effect::Events { client } => self.connections.note_events(*client),
            Effect::ObjectsCreated { client, request, group, deposit_credits } => {
                self.send_created(*client, *request, *group, *deposit_credits);
            }
            Effect::ObjectsSealed { client, request, version } => {
                self.send_sealed(*client, *request, *version);
            }
            Effect::ObjectsGot { client, request, objects, grants } => {
                let (objects, grants) =
                    (&all.objects[objects.clone()], &all.granted[grants.clone()]);
                self.send_got(*client, *request, objects, grants);
            }
            Effect::Disconnect { client, status } => self.end_with(*client, *status),
            Effect::Forget { client } => self.forget(index(*client)),
        }
    }

    /// Sends a grant with its fds, and says how many. `Err`: not now; the client is blocked until it has read, or
    /// others have.
    fn send_granted(
        &mut self,
        client: ClientId,
        request: RequestId,
        grants: &[Granted],
    ) -> Result<usize, ()> {
        let fds = grants.iter().filter(|grant| grant.status.is_ok()).count();
        if fds > 0 {
            let room = self.room_for_fds(client, fds)?;
            if room < fds {
                return self.send_cut(client, request, grants, room).map(|()| room);
            }
        }
        self.send_whole(client, request, grants, fds).map(|()| fds)
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
        let Some(connection) = self.connections.get_mut(index(client)) else { return Ok(()) };
        let core = &self.core;
        let data = |id| core.driver_data(id).map(|(length, bytes)| (length, *bytes));
        let bytes = replies::write_granted(
            &mut self.writer,
            request,
            grants,
            &mut self.scratch.slots,
            data,
        );
        if fds == 0 {
            let sent = send_or_keep(connection, &mut self.calls, bytes);
            self.after_send(client, sent);
            return Ok(());
        }
        let Some(socket) = connection.socket() else { return Ok(()) };
        let send = || send_slots(socket, bytes, &self.scratch.slots, &self.fds);
        let sent = self.calls.time(connection.shares_as, fds, send);
        match sent {
            Ok(()) => {
                self.in_flight.note_sent(connection, fds);
                if self.admin.is_watched() {
                    self.note_grants(client, grants);
                }
                Ok(())
            }
            Err(SendError::WouldBlock) => {
                self.block(client, Blocked::Unread);
                Err(())
            }
            Err(SendError::TooManyRefs) => {
                self.block(client, Blocked::InFlight);
                Err(())
            }
            Err(SendError::PeerGone) => {
                self.end_connection(client);
                Ok(())
            }
            Err(error) => {
                log::error!("a grant to client {} could not be sent: {error}", client.0);
                self.end_with(client, ErrorCode::Internal.into());
                Ok(())
            }
        }
    }

    /// Answers hello. The client's event socket is to join.
    fn welcome(&mut self, client: ClientId, request: RequestId, deposit_credits: u32) {
        let Some(connection) = self.connections.get_mut(index(client)) else { return };
        let Some(socket) = connection.socket() else { return };
        let (pid, uid) = (connection.pid, connection.domain.uid);
        let pidfd = kernel::peer_pidfd(socket, pid, uid, self.settings.kernel);
        let watched = pidfd.as_ref().map_or(Ok(()), |pidfd| {
            register(&self.poll, pidfd.as_fd(), Source::Process(index(client)))
        });
        match watched.and_then(|()| kernel::random()) {
            Ok(secret) => {
                (connection.pidfd, connection.secret) = (pidfd, u64::from_ne_bytes(secret));
                connection.hello_reply = Some(HelloReply { request, deposit_credits });
                let until = clock::after(self.now, self.settings.handshake_timeout);
                self.connections.await_events(index(client), until);
                self.send_hello_reply(client);
            }
            Err(error) => {
                log::error!("client {} cannot be let in: {error}", client.0);
                self.reply_failed(client, request, ErrorCode::Internal.into());
                self.end_with(client, ErrorCode::Internal.into());
            }
        }
    }

    /// Answers that a request failed as a whole.
    pub(crate) fn reply_failed(&mut self, client: ClientId, request: RequestId, status: Status) {
        self.waits.end(client, request, 0, self.now, &mut self.connections);
        let bytes = self.writer.failed(request.0, status);
        let sent = send_to(&mut self.connections, &mut self.calls, client, bytes);
        self.after_send(client, sent);
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

fn expect(is_done: bool, what: &str, number: u32) {
    if !is_done {
        // The core and the table disagree: a bug, but no reason to take everybody's fds away.
        log::error!("internal: cannot {what} {number}");
        debug_assert!(is_done, "cannot {what} {number}");
    }
}
