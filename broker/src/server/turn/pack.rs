//! This broker's state and fds, for its successor. What clients have sent and this broker has not
//! read stays in their sockets, for the successor to read; replies that a full socket did not take
//! go along. Must never change anything that could not go on here if the successor fails.

use crate::clients::connection::{client_id, index};
use crate::fds::jobs::Report;
use crate::handover::carriers::{CarryError, Outgoing};
use crate::handover::packing::{
    Packing, Parcel, Way, Whose, save_caller, save_connection, save_listener,
};
use crate::handover::state::{SavedHandshake, SavedSlot, State};
use crate::handover::{HandoverError, ledger};
use crate::limits::HANDOVER_TRIES;
use crate::server::parts::Server;
use fdbroker_core::ClientId;
use fdbroker_protocol::{ErrorCode, Resource};
use nix::sys::resource::{Resource as Rlimit, getrlimit, setrlimit};
use std::collections::HashMap;
use std::io;

/// What came of one try.
enum Packed {
    Whole(Parcel),
    /// Sockets of these clients and callers cannot be sent.
    Without(Vec<ClientId>, Vec<u64>),
}

impl Server {
    /// Packs everything up. Parked requests are answered AGAIN: their clients ask again, this
    /// broker or its successor.
    pub(crate) fn pack(&mut self, way: Way) -> Result<Parcel, HandoverError> {
        // Only the soft limit bounds what may be in flight.
        let limit = getrlimit(Rlimit::RLIMIT_NOFILE).ok();
        if let Some((_, hard)) = limit {
            let _ = setrlimit(Rlimit::RLIMIT_NOFILE, hard, hard);
        }
        let result = self.pack_in_tries(way);
        if let Some((soft, hard)) = limit {
            let _ = setrlimit(Rlimit::RLIMIT_NOFILE, soft, hard);
        }
        result
    }

    fn pack_in_tries(&mut self, way: Way) -> Result<Parcel, HandoverError> {
        for _ in 0..HANDOVER_TRIES {
            self.settle_all()?;
            match self.try_pack(way)? {
                Packed::Whole(parcel) => return Ok(parcel),
                Packed::Without(clients, callers) => {
                    clients.into_iter().for_each(|client| self.leave_behind(client));
                    callers.into_iter().for_each(|number| self.leave_caller_behind(number));
                }
            }
        }
        Err(HandoverError::InFlight { left: self.connections.len() })
    }

    /// Ends a connection one of whose sockets cannot be sent, and what lingers of it: else it would
    /// be in the way of every further try.
    pub(crate) fn leave_behind(&mut self, client: ClientId) {
        let text = "its connection is lost: the kernel does not send its socket";
        self.log_bad_client(client, &text);
        self.disconnect(client, ErrorCode::Internal.into());
        let connection = &mut self.connections[index(client)];
        let (uid, share) = (connection.domain.uid, connection.shares_as);
        let (lingering, ahead) = (connection.lingering.take(), connection.ahead.take());
        ahead.iter().for_each(|_| self.ahead.give_back(share, 1));
        for (socket, report) in [
            (lingering, Report::Retired(index(client), uid)),
            (ahead, Report::RetiredEvent(index(client), uid)),
        ] {
            socket.into_iter().for_each(|it| self.retire(index(client), it, report, false));
        }
    }

    fn leave_caller_behind(&mut self, number: u64) {
        let Some(caller) = self.connections.dismiss(number) else { return };
        self.turn_away(caller.socket, caller.domain, 0, ErrorCode::Internal.into());
    }

    /// Brings the loop to rest: nothing is parked, and nothing waits to be applied or retired.
    fn settle_all(&mut self) -> Result<(), HandoverError> {
        self.end_suspended();
        self.give_up_seals();
        for _ in 0..HANDOVER_TRIES {
            let mut effects = self.feedback.take_list();
            self.core.settle_parked(self.now, &mut effects);
            self.settle(effects);
            self.send_events();
            self.retire_sockets(usize::MAX);
            self.fds.flush();
            if self.parked_requests() == 0 {
                return Ok(());
            }
        }
        Err(HandoverError::Parked(self.parked_requests()))
    }

    fn parked_requests(&self) -> u64 {
        self.core.totals().node.now(Resource::ParkedRequests)
    }

    fn try_pack(&self, way: Way) -> Result<Packed, HandoverError> {
        let outgoing = Outgoing::new().map_err(HandoverError::Write)?;
        let mut packing = Packing { outgoing, owners: HashMap::new() };
        let state = self.fill(&mut packing, way).map_err(|error| match error {
            CarryError::Os(error) => HandoverError::Write(error),
            CarryError::InFlight => {
                let stored = usize::try_from(self.core.totals().gauges.stored_fds);
                let all = self.connections.len().saturating_add(stored.unwrap_or(usize::MAX));
                HandoverError::InFlight { left: all.saturating_sub(packing.owners.len()) }
            }
        })?;
        let (mut lost, mut callers) = (Vec::new(), Vec::new());
        for (number, error) in packing.outgoing.unsendable() {
            match packing.owners.get(number) {
                Some(Whose::Client(client)) => lost.push(*client),
                Some(Whose::Caller(number)) => callers.push(*number),
                Some(Whose::Slot(slot)) => {
                    return Err(HandoverError::Held { slot: *slot, error: *error });
                }
                _ => return Err(HandoverError::Write(io::Error::other(error.to_string()))),
            }
        }
        if !lost.is_empty() || !callers.is_empty() {
            return Ok(Packed::Without(lost, callers));
        }
        Ok(Packed::Whole(Parcel {
            ledger: ledger::write(&state).map_err(HandoverError::Write)?,
            carriers: packing.outgoing.into_ends(),
            clients: state.connections.len(),
            held: state.slots.iter().filter(|slot| slot.fd.is_some()).count(),
        }))
    }

    fn fill<'a>(&'a self, packing: &mut Packing<'a>, way: Way) -> Result<State, CarryError> {
        let page = packing.add(self.node.page().reader(), Whose::Broker)?;
        let lock = match way {
            Way::Successor => Some(packing.add(self.node.lock(), Whose::Broker)?),
            Way::Store => None,
        };
        let until_eof = self.node.until_eof();
        let until_eof = until_eof.map(|fd| packing.add(fd, Whose::Broker)).transpose()?;
        let administration = self.admin.listeners().map(|it| save_listener(packing, it, way));
        let administration = administration.collect::<Result<_, _>>()?;
        let listeners = self.door.listeners().map(|it| save_listener(packing, it, way));
        let listeners = listeners.collect::<Result<_, _>>()?;
        let mut connections = Vec::with_capacity(self.connections.len());
        let mut callers = Vec::new();
        // Users that look connect again.
        let callers_to_be = self.connections.lobby.callers().iter();
        for (number, it) in callers_to_be.filter(|(_, it)| !it.is_viewer) {
            let whose = Whose::Caller(*number);
            callers.push(save_caller(packing, &it.socket, (it.domain, it.pid, it.until), whose)?);
        }
        for (index, it) in &self.connections {
            let client = client_id(index);
            match &it.socket {
                // A successor hears nothing of the facts that were asked for: it reads the hello
                // itself.
                Some(socket) if !it.is_known => {
                    let (caller, whose) = ((it.domain, it.pid, it.expires), Whose::Client(client));
                    callers.push(save_caller(packing, socket, caller, whose)?);
                }
                _ => connections.push(save_connection(packing, client, it)?),
            }
        }
        callers.sort_by_key(|caller| caller.until_us);
        let mut slots = Vec::new();
        for (slot, kind, fd) in self.fds.slots() {
            let fd = fd.map(|fd| packing.add(fd, Whose::Slot(slot))).transpose()?;
            slots.push(SavedSlot { slot, kind: kind as u8, fd, files: self.fds.files(slot) });
        }
        packing.outgoing.flush()?;
        let handshakes = self.connections.handshakes().iter().map(|handshake| SavedHandshake {
            client: handshake.client.0,
            serial: handshake.serial,
            until_us: handshake.until.0,
        });
        Ok(State {
            core: Some(self.core.save()),
            node: self.node.identity().node,
            page,
            incarnation: self.node.page().incarnation(),
            page_slots: self.node.page().slots(),
            started_us: self.waits.started().0,
            next_serial: self.connections.last_serial(),
            metrics: *self.waits.metrics(),
            lock,
            until_eof,
            administration,
            listeners,
            connections,
            callers,
            handshakes: handshakes.collect(),
            slots,
            tombstones: self.fds.tombstones.save(),
            past: self.past.save(),
            journal: self.journal.save(),
            debts: self.calls.debts.save(),
            fds: packing.outgoing.count(),
        })
    }
}
