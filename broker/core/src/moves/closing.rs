//! Fds on their way through the closers. Must never give their places away before they are closed.

use crate::api::{Arrived, ClientId, Effect, Lane, Ticket};
use crate::books::clients::Domain;
use crate::books::{Books, Closing, REFUSED_FD};
use crate::moves::Step;

impl Books {
    /// The place of an fd of `owner`, or of its domain alone ([`crate::api::NONE`]), becomes that
    /// of one in the closers; the charge stays until [`Core::closed`].
    pub(crate) fn closing(&mut self, owner: u32, domain: u32, lane: Lane) -> Ticket {
        let Domain { scope, slow, .. } = *self.clients.domain(domain);
        let owned = self.clients.find(owner).map(|owner| (owner.scope, owner.serial));
        let (payer, serial) = owned.unwrap_or((scope, 0));
        let refused = lane == Lane::Refused;
        if refused {
            self.ledger.add(scope, REFUSED_FD)
        } else {
            self.ledger.add_coming(payer, slow, 1)
        }
        self.closings.begin(Closing { domain, client: Some((owner, serial)), refused })
    }

    /// The arrived fd at `index`, whose place `client` is charged for, goes to a closer.
    pub(crate) fn close_arrived(&mut self, client: u32, index: u16, lane: Lane, step: &mut Step) {
        let ticket = self.closing(client, self.clients[client].domain, lane);
        step.fx.list.push(Effect::CloseArrived { index, ticket, lane });
        if lane == Lane::Refused {
            self.end_if_refused_pile_up(ClientId(client), step);
        }
    }

    /// An arrived fd that should not have come goes to a closer. A domain with too many of them
    /// loses the client.
    pub(crate) fn close_uninvited(&mut self, client: ClientId, fd: (u16, Lane), step: &mut Step) {
        self.close_unreserved(client, fd, step);
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
            self.close_uninvited(client, (index, deposit.lane), step);
        }
    }

    /// An arrived fd that has no place goes to a closer: it is counted as refused, in the table
    /// only.
    pub(crate) fn close_unreserved(
        &mut self,
        client: ClientId,
        (index, lane): (u16, Lane),
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
