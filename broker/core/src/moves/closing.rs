//! Fds on their way through the closers. Must never give their places away before they are closed.

use crate::api::{Arrived, ClientId, Effect, Lane, NONE, Ticket};
use crate::books::{Books, Client, Closing, REFUSED_FD, ScopeId};
use crate::moves::Step;

impl Books {
    /// The place of an fd of `client` becomes that of one in the closers; the charge stays until
    /// [`Core::closed`].
    pub(crate) fn closing(&mut self, client: u32, lane: Lane) -> Ticket {
        let Client { domain, scope, serial, .. } = self.clients[client];
        self.ticket(domain, scope, (client, serial), lane == Lane::Refused)
    }

    /// The same for an fd that its domain alone is charged for.
    pub(crate) fn closing_of_domain(&mut self, domain: u32) -> Ticket {
        self.ticket(domain, self.clients.scope_of_domain(domain), (NONE, 0), false)
    }

    fn ticket(&mut self, number: u32, payer: ScopeId, client: (u32, u64), refused: bool) -> Ticket {
        let domain = self.clients.domain(number);
        if refused {
            self.ledger.add(domain.scope, REFUSED_FD)
        } else {
            self.ledger.add_coming(payer, domain.slow, 1)
        }
        self.closings.begin(Closing { domain: number, client: Some(client), refused })
    }

    /// The arrived fd at `index`, whose place `client` is charged for, goes to a closer.
    pub(crate) fn close_arrived(&mut self, client: u32, index: u16, lane: Lane, step: &mut Step) {
        let ticket = self.closing(client, lane);
        step.fx.list.push(Effect::CloseArrived { index, ticket, lane });
        if lane == Lane::Refused {
            self.end_if_refused_pile_up(ClientId(client), step);
        }
    }

    /// An arrived fd that should not have come goes to a closer. A domain with too many of them
    /// loses the client.
    pub(crate) fn close_uninvited(
        &mut self,
        client: ClientId,
        index: u16,
        lane: Lane,
        step: &mut Step,
    ) {
        self.close_unreserved(client, index, lane, step);
        self.end_if_refused_pile_up(client, step);
    }

    /// The same for all fds of a message.
    pub(crate) fn close_all_uninvited(
        &mut self,
        client: ClientId,
        deposits: &[Arrived],
        step: &mut Step,
    ) {
        for (index, deposit) in (0..).zip(deposits) {
            self.close_uninvited(client, index, deposit.lane, step);
        }
    }

    /// An arrived fd that has no place goes to a closer: it is counted as refused, in the table
    /// only.
    pub(crate) fn close_unreserved(
        &mut self,
        client: ClientId,
        index: u16,
        lane: Lane,
        step: &mut Step,
    ) {
        let record = self.clients.find(client.0);
        let Some(domain) = record.map(|client| client.domain) else {
            // Nobody to count it for: the daemon closes what no effect claims.
            return;
        };
        self.ledger.set_unplaced(self.ledger.unplaced() + 1);
        self.ledger.add(self.clients.scope_of_domain(domain), REFUSED_FD);
        let ticket = self.closings.begin(Closing { domain, client: None, refused: true });
        step.fx.list.push(Effect::CloseArrived { index, ticket, lane });
    }

    /// Ends the connection that sent one refused fd too many for its domain.
    fn end_if_refused_pile_up(&mut self, client: ClientId, step: &mut Step) {
        let Some(domain) = self.client(client).map(|record| record.domain) else { return };
        if let Some(status) = self.too_many_refused(domain, 0) {
            step.fx.list.push(Effect::Disconnect { client, status });
        }
    }
}
