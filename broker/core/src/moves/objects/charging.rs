//! Objects are charged to their domain and the node alone, within caps and shares. Must never
//! charge for a part of what was asked.

use crate::books::objects::charges::of_kept;
use crate::books::{Books, Charge, ScopeId};
use crate::moves::Step;
use fdbroker_protocol::{Scope, Status};

impl Books {
    /// Charges a client's domain, with all of these or none.
    pub(crate) fn charge_objects(&mut self, client: u32, charges: &[Charge]) -> Result<(), Status> {
        let domain = self.clients[client].domain;
        let scope = self.clients.scope_of_domain(domain);
        for (done, charge) in charges.iter().enumerate() {
            if let Err(status) = self.charge_object(domain, scope, *charge) {
                charges[..done].iter().for_each(|charge| self.ledger.take(scope, *charge));
                return Err(self.refused(client, status));
            }
        }
        Ok(())
    }

    fn charge_object(&mut self, domain: u32, scope: ScopeId, charge: Charge) -> Result<(), Status> {
        let Charge(resource, amount) = charge;
        self.ledger.fits(scope, None, charge).map_err(|full| self.no_quota(full))?;
        let share = self.share_of_objects(domain, resource);
        if amount > share {
            let cap = self.ledger[scope].account.counted(resource).saturating_add(share);
            return Err(Self::no_quota_limit(resource, Scope::Domain, cap).of_share());
        }
        self.ledger.add(scope, charge);
        Ok(())
    }

    /// Takes charges of a domain back.
    pub(crate) fn release_objects(&mut self, domain: u32, charges: &[Charge]) {
        for charge in charges {
            self.ledger.release(self.clients.scope_of_domain(domain), *charge);
        }
        self.forget_domain_if_unused(domain);
    }

    /// Charges for keeping a group, with all of it or none. Refused while the client is above its
    /// cap of held bytes, as its files have grown: else what cannot be charged any more would stay
    /// for good. Evictable groups that are kept make room; AGAIN: more of them than one step may
    /// end.
    pub(crate) fn charge_kept(
        &mut self,
        client: u32,
        (size, is_host): (u64, bool),
        pin: bool,
        step: &mut Step,
    ) -> Result<(), Status> {
        if let Some(above) = self.above_held_bytes(client) {
            return Err(self.refusal(client, above));
        }
        self.evict_kept_for(self.clients[client].domain, (size, is_host), pin, step)?;
        self.charge_objects(client, &of_kept(size, is_host, pin))
    }
}
