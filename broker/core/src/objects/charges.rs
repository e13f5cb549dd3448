//! What objects are charged with: to their domain and the node alone, within caps and shares. Must never charge for a part of
//! what was asked.

use super::api::NewObject;
use super::groups::Member;
use crate::Core;
use crate::ledger::{Charge, ScopeId, ScopeRecord};
use crate::limits::OBJECT_RECORD_BYTES;
use fdbroker_protocol::{Resource, Scope, Status};

/// What an object is charged with while it has its name, or is made under it.
pub(super) fn of_member(member: &Member) -> [Charge; 2] {
    of_objects([(&*member.name, &*member.metadata)].into_iter())
}

/// The same of new ones.
pub(super) fn of_new(objects: &[NewObject<'_>]) -> [Charge; 2] {
    of_objects(objects.iter().map(|object| (object.name, object.metadata)))
}

/// The broker's memory for objects of these names and metadata.
fn of_objects<'a>(objects: impl ExactSizeIterator<Item = (&'a [u8], &'a [u8])>) -> [Charge; 2] {
    let count = objects.len() as u64;
    let opaque = objects.map(|(name, metadata)| (name.len() + metadata.len()) as u64);
    let bytes = count * OBJECT_RECORD_BYTES + opaque.sum::<u64>();
    [Charge(Resource::ObjectNames, count), Charge(Resource::MetadataBytes, bytes)]
}

/// What a kept group is charged with beside its fd and memory.
pub(super) fn of_kept(bytes: u64, pin: bool) -> [Charge; 3] {
    [
        Charge(Resource::KeptFds, 1),
        Charge(Resource::KeptBytes, bytes),
        Charge(Resource::PermanentBytes, if pin { bytes } else { 0 }),
    ]
}

/// How much of a resource that objects are charged with is counted in a scope.
pub(super) fn of_objects_in(resource: Resource) -> fn(&ScopeRecord) -> u64 {
    match resource {
        Resource::ObjectNames => |it| it.account.counted(Resource::ObjectNames),
        Resource::MetadataBytes => |it| it.account.counted(Resource::MetadataBytes),
        Resource::KeptFds => |it| it.account.counted(Resource::KeptFds),
        Resource::PermanentBytes => |it| it.account.counted(Resource::PermanentBytes),
        _ => |it| it.account.counted(Resource::KeptBytes),
    }
}

impl Core {
    /// Charges a client's domain, with all of these or none.
    pub(super) fn charge_objects(&mut self, client: u32, charges: &[Charge]) -> Result<(), Status> {
        let domain = self.clients[client].domain;
        let scope = self.clients.scope_of_domain(domain);
        for (done, charge) in charges.iter().enumerate() {
            if let Err(status) = self.charge_object(domain, scope, *charge) {
                charges[..done].iter().for_each(|charge| self.ledger.take(scope, *charge));
                self.count_refusal(client, status);
                return Err(self.as_told(client, status));
            }
        }
        Ok(())
    }

    fn charge_object(&mut self, domain: u32, scope: ScopeId, charge: Charge) -> Result<(), Status> {
        let Charge(resource, amount) = charge;
        if amount > self.share_of_objects(domain, resource) {
            let held = self.ledger[scope].account.counted(resource);
            let cap = held.saturating_add(self.share_of_objects(domain, resource));
            return Err(match self.ledger.fits(scope, None, charge) {
                Err(full) => self.no_quota(full),
                Ok(()) => Self::no_quota_limit(resource, Scope::Domain, cap).of_share(),
            });
        }
        self.ledger.charge(scope, charge).map_err(|full| self.no_quota(full))
    }

    /// How much more of a resource a domain may have.
    pub(super) fn share_of_objects(&self, domain: u32, resource: Resource) -> u64 {
        let most = self.ledger.caps().node[resource];
        self.share_after(domain, most, of_objects_in(resource), [0; 2])
    }

    /// Takes charges of a domain back.
    pub(super) fn release_objects(&mut self, domain: u32, charges: &[Charge]) {
        for charge in charges {
            self.ledger.release(self.clients.scope_of_domain(domain), *charge);
        }
        self.forget_domain_if_unused(domain);
    }
}
