//! What follows from long calls: a user that owes is away, gets its turns back when it has paid,
//! and in the end has no connections. Must never touch a socket of a user that has owed but to end
//! it: a lane closes those.

use crate::clients::connection::{client_id, index};
use crate::clients::debts::LongCall;
use crate::clock;
use crate::limits::{LONG_CALLS_APART, RETURNS_PER_WAKE, SHUT_OUT_TIME};
use crate::server::parts::Server;
use fdbroker_core::{ClientId, DomainKey, Now, PodKey};
use fdbroker_protocol::LogTopic;
use std::collections::HashSet;

/// A user as the log has it.
fn named(DomainKey { uid, pod, .. }: DomainKey) -> String {
    match pod {
        PodKey::NONE => format!("uid {uid}"),
        PodKey([high, low]) => format!("pod {high:016x}{low:016x}"),
    }
}

impl Server {
    /// Hears of the debts of this wake.
    pub(crate) fn note_debts(&mut self) {
        while let Some(call) = self.calls.debts.take_news() {
            self.admin.set_away(call.user, true);
            self.log_long_call(&call);
            let served = self.served_since(LONG_CALLS_APART);
            if self.calls.debts.is_too_much(&call, served.into_iter()) {
                self.shut_out(call.user);
            }
        }
    }

    fn log_long_call(&mut self, call: &LongCall) {
        let LongCall { user, at, us, until, is_first, .. } = *call;
        if is_first && self.journal.allows(LogTopic::LongCalls, user.uid, self.now) {
            log::warn!(
                "messages of {} took {us} us of the loop (many poll its sockets, a filter, or interrupts \
                 came in them); that user is not served for {} ms",
                named(user),
                (until.0 - at.0) / 1000
            );
        }
    }

    /// The users of which a message was read in the time before now.
    fn served_since(&self, time: std::time::Duration) -> HashSet<DomainKey> {
        let all = self.connections.iter().map(|(_, it)| it);
        let served =
            all.filter(|it| it.read_at > Now(0) && clock::after(it.read_at, time) > self.now);
        served.map(|it| it.shares_as).collect()
    }

    /// Ends the connections of a user in their turns: there may be a thousand.
    fn shut_out(&mut self, user: DomainKey) {
        if self.journal.allows(LogTopic::LongCalls, user.uid, self.now) {
            log::warn!(
                "messages of {} took the loop long again and again: its connections end, and it gets none for {} s",
                named(user),
                SHUT_OUT_TIME.as_secs()
            );
        }
        for client in self.clients_of(user) {
            self.connections[index(client)].has_died = true;
            self.connections.enqueue(client);
        }
        for index in self.admin.connections_of(user) {
            self.end_admin(index);
        }
    }

    fn clients_of(&self, user: DomainKey) -> Vec<ClientId> {
        let all = self.connections.iter().filter(|(_, it)| it.shares_as == user);
        all.map(|(number, _)| client_id(number)).collect()
    }

    /// Users that have paid go on, a few clients at a time.
    pub(crate) fn take_back_users(&mut self) {
        if clock::is_due(self.calls.debts.due(), self.now) {
            for user in self.calls.debts.take_back(self.now) {
                self.admin.set_away(user, false);
                self.returning.extend(self.clients_of(user));
            }
        }
        for _ in 0..RETURNS_PER_WAKE {
            let Some(client) = self.returning.pop_front() else { return };
            self.take_back_client(client);
        }
    }

    fn take_back_client(&mut self, client: ClientId) {
        let Some(connection) = self.connections.get(index(client)) else { return };
        let (is_blocked, has_events) = (connection.blocked.is_some(), connection.has_events);
        if is_blocked {
            self.retry(client);
        }
        self.flush_event(client);
        if has_events {
            self.connections.note_events(client);
        }
        self.connections.enqueue(client);
    }
}
