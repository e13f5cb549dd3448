//! What held fds pin is charged, by files where these are known. Must never charge a domain twice
//! for a file, nor refuse that one grows.

use crate::api::{File, NONE};
use crate::books::files::{Pinned, pages};
use crate::books::{Allocation, Books, Charge, ScopeId};
use fdbroker_protocol::{Resource, Scope};

impl Books {
    /// The fd of an allocation is held from now on. `charged`: bytes that its owner was charged
    /// with for it already.
    pub(crate) fn pin(&mut self, slot: u32, file: Option<File>, charged: u64) {
        let allocation = &self.allocations[slot];
        let (owner, domain, size) = (allocation.owner, allocation.domain, allocation.size_bytes);
        let is_resident = !allocation.traits.is_evictable();
        let Some(File { id, pinned_bytes }) = file else {
            self.allocations.set_file(slot, NONE);
            self.change_resident(domain, [0, if is_resident { size } else { 0 }]);
            return self.charge_difference(owner, domain, charged, size);
        };
        let known = self.files.find(domain, id);
        let file = known.unwrap_or_else(|| self.files.insert(domain, id, charged));
        self.allocations.set_file(slot, self.files.join(file, owner));
        let resident = self.files.enter(file, slot, is_resident);
        self.change_resident(domain, resident);
        if known.is_some() {
            self.charge_difference(owner, domain, charged, 0);
        }
        self.measure_file(file, pinned_bytes);
    }

    pub(crate) fn change_resident(&mut self, domain: u32, [former, now]: [u64; 2]) {
        if former != now {
            self.ledger.change_resident(self.clients.scope_of_domain(domain), former, now);
        }
    }

    /// The fd of an allocation is held no more.
    pub(crate) fn let_go(&mut self, slot: u32) {
        let Allocation { owner, domain, file: stake, size_bytes, traits, .. } =
            self.allocations[slot];
        let is_resident = !traits.is_evictable();
        if stake == NONE {
            self.change_resident(domain, [if is_resident { size_bytes } else { 0 }, 0]);
            return self.release_from(owner, domain, Charge(Resource::HeldBytes, size_bytes));
        }
        let file = self.files.stakes[stake].file;
        self.allocations.set_file(slot, pages(self.files.files[file].bytes));
        let resident = self.files.leave(file, slot, is_resident);
        self.change_resident(domain, resident);
        self.leave_file(stake);
    }

    /// The held allocation in a slot is another owner's from now on ([`NONE`]: its domain's alone).
    pub(crate) fn move_pin(&mut self, slot: u32, owner: u32) {
        let stake = self.allocations[slot].file;
        if stake != NONE {
            let file = self.files.stakes[stake].file;
            self.allocations.set_file(slot, self.files.join(file, owner));
            self.leave_file(stake);
        }
    }

    /// A held allocation is in the order of eviction now, or no more.
    pub(crate) fn set_evictable(&mut self, slot: u32, is_evictable: bool) {
        let stake = self.allocations[slot].file;
        if stake != NONE {
            let file = self.files.stakes[stake].file;
            let evictable = &mut self.files.files[file].evictable;
            *evictable = if is_evictable { *evictable + 1 } else { *evictable - 1 };
        }
    }

    /// An allocation has ended and is leased. The node counts what it pins, each byte of a file
    /// that is known only once.
    pub(crate) fn pin_ended(&mut self, slot: u32, file: Option<File>) {
        let size = self.allocations[slot].size_bytes;
        let bytes = file.map_or(size, |file| self.files.end(slot, size, file));
        self.ledger.add(ScopeId::NODE, Charge(Resource::PinnedBytes, bytes));
    }

    pub(crate) fn measure_file(&mut self, file: u32, bytes: u64) {
        let pinned = &mut self.files.files[file];
        let (domain, was_resident) = (pinned.domain, pinned.resident_bytes());
        let former = std::mem::replace(&mut pinned.bytes, bytes);
        let resident = [was_resident, pinned.resident_bytes()];
        let payer = self.files.first_owner(file).expect("a file has stakes");
        self.charge_difference(payer, domain, former, bytes);
        self.change_resident(domain, resident);
    }

    /// Changes what a client, or a domain alone, is charged with from `former` to `now` bytes,
    /// whatever the caps.
    fn charge_difference(&mut self, owner: u32, domain: u32, former: u64, now: u64) {
        let scope = self.payer(owner, domain);
        if former > now {
            self.ledger.release(scope, Charge(Resource::HeldBytes, former - now));
        } else if now > former {
            let charge = Charge(Resource::HeldBytes, now - former);
            let is_above = self.ledger.grow(scope, None, charge);
            self.drain_soon(is_above);
        }
    }

    fn leave_file(&mut self, stake: u32) {
        let file = self.files.stakes[stake].file;
        let Pinned { domain, bytes, .. } = self.files.files[file];
        let former = self.files.first_owner(file).expect("a file has stakes");
        self.files.leave_stake(stake);
        let charge = Charge(Resource::HeldBytes, bytes);
        match self.files.first_owner(file) {
            None => {
                self.files.remove(file);
                self.release_from(former, domain, charge);
            }
            Some(next) if next != former => {
                let [former, next] = [former, next].map(|owner| self.payer(owner, domain));
                self.ledger.release_below(Scope::Domain, former, charge);
                let is_above = self.ledger.grow(next, Some(Scope::Domain), charge);
                self.drain_soon(is_above);
            }
            Some(_) => {}
        }
    }
}
