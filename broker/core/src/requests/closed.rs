//! What the daemon says of closers and files. Must never refuse it.

use crate::api::{DomainKey, NONE, Ticket};
use crate::books::{Charge, Closing, REFUSED_FD};
use crate::core::Core;
use fdbroker_protocol::Resource;

impl Core {
    /// Closes of a domain's fds take long, or do so no more.
    pub(crate) fn set_slow(&mut self, key: DomainKey, slow: bool) {
        let Some(number) = self.books.clients.find_domain(key) else { return };
        let domain = self.books.clients.domain_mut(number);
        if std::mem::replace(&mut domain.slow, slow) == slow {
            return;
        }
        self.books.ledger.set_slow(domain.scope, slow);
    }

    /// A closer has closed it: the charge ends.
    pub(crate) fn closed(&mut self, ticket: Ticket) {
        let Some(closing) = self.books.closings.end(ticket) else { return };
        let Closing { domain, client, refused } = closing;
        let of_domain = self.books.clients.scope_of_domain(domain);
        if refused {
            self.books.ledger.take(of_domain, REFUSED_FD);
        }
        let Some((number, serial)) = client else {
            self.books.ledger.set_unplaced(self.books.ledger.unplaced() - 1);
            return self.books.forget_domain_if_unused(domain);
        };
        let is_slow = self.books.clients.domain(domain).slow;
        let owner = self.books.clients.find(number).filter(|owner| owner.serial == serial);
        let (scope, owner) = owner.map_or((of_domain, NONE), |owner| (owner.scope, number));
        self.books.ledger.take_coming(scope, is_slow, u64::from(!refused));
        self.books.release_from(owner, domain, Charge(Resource::HeldFds, 1));
    }

    /// What files pin now, by the slot of any allocation of each. Their payers may be above their
    /// caps then.
    pub(crate) fn measure(&mut self, measured: &[(u32, u64)]) {
        for (slot, bytes) in measured {
            if self.books.allocations.is_full(*slot) && self.books.has_file(*slot) {
                let stake = self.books.allocations[*slot].file;
                let file = self.books.files.stakes[stake].file;
                self.books.change_file(file, |pinned| pinned.file.pinned_bytes = *bytes);
            }
        }
    }
}
