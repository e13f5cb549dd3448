//! Judges grants, and what is not granted, item by item. Must never look into the core.

use crate::action::show_status;
use crate::judge::ensure;
use crate::model::{Ask, Check, Lease, Model, Phase};
use crate::quotas::need_of;
use crate::step::{Grant, Quota, Step};
use crate::tally::Promise;
use fdbroker_core::{ClientId, Granted, LeaseId};
use fdbroker_protocol::{AllocationId, ErrorCode, Resource, Status};

impl Model {
    /// The items of a grant, each as it must be.
    pub fn granted(
        &mut self,
        step: &mut Step,
        (client, request): (ClientId, u64),
        items: &[Granted],
        deadline: u64,
    ) -> Check {
        let asked = self.answer(client, request)?;
        let Ask::Acquire { wanted, deadline: asked_until } = asked.ask else {
            return Err("a grant in answer to another request".into());
        };
        ensure!(deadline == asked_until, "a grant with deadline {deadline}, not {asked_until}");
        ensure!(items.len() == wanted.len(), "{} items for {}", items.len(), wanted.len());
        let cancelled = step.cancelled == Some((client.0, request));
        if cancelled {
            step.cancelled = None;
        }
        let phase = self.client(client.0)?.phase;
        ensure!(phase != Phase::Connected, "a grant to client {} before hello", client.0);
        let again = Status::error(ErrorCode::Again);
        let all_again = items.iter().all(|item| item.status == again) && !items.is_empty();
        ensure!(
            !all_again || deadline <= self.now || step.may_ask_again,
            "nothing is ready, and a request that may wait until {deadline} answers AGAIN"
        );
        step.asked.extend(wanted.iter().flatten());
        step.quota_of = None;
        let mut given = Vec::new();
        for (item, wanted) in items.iter().zip(&wanted) {
            ensure!(item.wanted == *wanted, "the items are in another order");
            if item.status.is_ok() {
                ensure!(!cancelled, "a cancelled request is granted");
                given.push(self.granted_ok(client.0, item)?);
            } else {
                self.not_granted(step, client.0, item, items.len(), cancelled)?;
            }
        }
        if !given.is_empty() {
            let sendable = self.client(client.0)?.sendable;
            ensure!(sendable, "fds for client {}, which has no room for a message", client.0);
            let was_supplied = wanted.iter().flatten().any(|id| self.pinned.contains(id));
            let (client, order) = (client.0, asked.order);
            step.grants.push(Grant { client, order, granted: given, was_supplied });
        }
        self.client_mut(client.0)?.answered.insert(request, asked.order);
        Ok(())
    }

    pub fn granted_ok(&mut self, client: u32, item: &Granted) -> Check<AllocationId> {
        let id = item.wanted.map_err(|code| format!("{code:?} is granted"))?;
        let allocation =
            self.live(id).ok_or_else(|| format!("{id} is granted; it has ended or never was"))?;
        ensure!(
            self.permitted(client, allocation),
            "{id} is granted to a client of another domain"
        );
        self.proofs.count(Promise::Handles, 1);
        ensure!(self.is_held(id), "{id} is granted while the broker has no fd of it");
        let d = &allocation.deposit;
        ensure!(item.facts == d.facts, "{id} is granted as {:?}, it is {:?}", item.facts, d.facts);
        ensure!(item.has_driver_data == d.driver_data.is_some(), "{id}: driver data mixed up");
        let lease = item.lease.0;
        ensure!(lease != 0, "{id} is granted without a lease");
        ensure!(!self.leases.contains_key(&lease), "lease {lease:#x} is given twice");
        let (slot, generation) = (lease as u32, (lease >> 32) as u32);
        let highest = self.lease_highest.entry(slot).or_insert(0);
        ensure!(generation > *highest, "lease {lease:#x} was given before");
        *highest = generation;
        self.leases
            .insert(lease, Lease { client, id, mapped: false, revoked: false, declared: false });
        if let Some(allocation) = self.allocations.get_mut(&id) {
            allocation.leases.insert(lease);
        }
        self.client_mut(client)?.leases.push(lease);
        Ok(id)
    }

    fn not_granted(
        &self,
        step: &mut Step,
        client: u32,
        item: &Granted,
        items: usize,
        cancelled: bool,
    ) -> Check {
        ensure!(item.lease == LeaseId(0), "a lease with {}", show_status(&item.status));
        let code = item.status.result().err().ok_or("unreachable: OK")?;
        let id = match item.wanted {
            Err(given) => {
                // In a batch, an item that waited for another may be told to ask again.
                let right = code == given || cancelled || code == ErrorCode::Again;
                ensure!(right, "{given:?} became {code:?}");
                return Ok(());
            }
            Ok(id) => id,
        };
        if cancelled {
            ensure!(code == ErrorCode::Cancelled, "cancelled, and answered {code:?}");
            return Ok(());
        }
        let shown = show_status(&item.status);
        let Some(allocation) = self.live(id) else {
            return self.check_ended_code(id, code, items);
        };
        let permitted = self.permitted(client, allocation);
        ensure!(
            permitted != (code == ErrorCode::NotPermitted) || code == ErrorCode::Again,
            "{id}: {shown}, permitted: {permitted}"
        );
        match code {
            ErrorCode::NotPermitted | ErrorCode::Again => Ok(()),
            // The allocation can no longer be named again, and is about to end.
            code if self.too_late(id) == Some(code) => Ok(()),
            ErrorCode::NoQuota => {
                let resource = Resource::from_number(item.status.resource);
                let place = matches!(
                    resource,
                    Some(Resource::HeldFds | Resource::HeldBytes | Resource::TablePlaces)
                );
                ensure!(
                    !place || items > 1 || !self.is_held(id),
                    "{id}: {shown}, which it does not need: its fd is here"
                );
                let owner = Some((allocation.owner, allocation.domain));
                let need = need_of(&item.status, allocation.deposit.facts.size_bytes, 2);
                let passing = false;
                let quota = Quota { status: item.status, client, owner, need, passing };
                match step.quotas.last_mut() {
                    Some(quotas) if step.quota_of == Some(client) => quotas.push(quota),
                    _ => step.quotas.push(vec![quota]),
                }
                step.quota_of = Some(client);
                Ok(())
            }
            ErrorCode::OwnerSilent => {
                ensure!(!self.is_held(id), "{id}: {shown} while its fd is here");
                match item.status.value {
                    0 => step.said_silent.push(allocation.owner),
                    value => {
                        let refused = allocation.refused.map_or(0, |code| code as u64);
                        ensure!(value == refused, "{id}: {shown}, the owner said {refused}");
                    }
                }
                Ok(())
            }
            _ => Err(format!("{id}: {shown}")),
        }
    }

    fn check_ended_code(&self, id: AllocationId, code: ErrorCode, items: usize) -> Check {
        let cause = self.ended.get(&id);
        self.proofs.count(Promise::Handles, 1);
        let right = match code {
            ErrorCode::Stale | ErrorCode::OwnerGone | ErrorCode::Lost => code == self.reason(id),
            ErrorCode::BadHandle => cause.is_none(),
            // A client of another domain may be told that it has no permission.
            ErrorCode::NotPermitted => cause.is_some(),
            ErrorCode::Again => items > 1,
            _ => false,
        };
        ensure!(right, "{id} ended with {cause:?} and answers {code:?}");
        Ok(())
    }
}
