//! What a broker that was killed left behind: slots reserved for those who name them again, and what ends when
//! nobody does. Must never let such a slot be given to another allocation.

use crate::Core;
use crate::api::{Config, Deposit, Effects, Former, Kept, Lane, Now};
use crate::config::ConfigError;
use crate::limits::{RESERVED_ENDS_PER_STEP, RESERVED_SCAN_PER_STEP, SLOTS_BEFORE_REUSE};
use crate::slots::{NONE, Slots};
use crate::state::{Allocation, Grace, Orphan, State, Timer};
use fdbroker_protocol::{AllocationId, ErrorCode, MemoryKind, Share};

/// Stands for what is not known of a slot until it is named again. Anybody may wait for it.
const UNKNOWN: Deposit = Deposit {
    checked: Ok(()),
    lane: Lane::Accepted,
    kind: MemoryKind::Memfd,
    share: Share::Any,
    recallable: false,
    keep: false,
    device: 0,
    size_bytes: 0,
    fd_offset: 0,
    owner_allocation_id: 0,
    base: 0,
    driver_data: None,
};

impl Core {
    /// Begins anew after a broker that was killed: what was live on its generation page is reserved for those who
    /// name it again within `grace_us`, and what it kept lives on without its owner for `keep_ttl_us`.
    /// `first_generation` must be above every generation of the page.
    ///
    /// # Errors
    /// When a number of the configuration cannot work, or `former` does not fit it; the message says which.
    pub fn after_crash(config: Config, former: Former<'_>, now: Now) -> Result<Core, ConfigError> {
        let mut core = Core::new(config)?;
        let mut live = former.live.to_vec();
        live.sort_unstable();
        let reserved = live.iter().map(|id| {
            let allocation = Allocation::new(&UNKNOWN, NONE, NONE, State::Reserved);
            (id.slot, id.generation, allocation)
        });
        let (most, first) = (core.config.max_slots, core.config.first_generation);
        core.allocations = Slots::holding(most, first, SLOTS_BEFORE_REUSE, reserved).ok_or_else(|| {
            ConfigError::new(format!(
                "the former generation page does not fit max_slots = {most} and first_generation = {first}: \
                 keep max_slots as it was, or remove the page to begin anew"
            ))
        })?;
        core.reserved = u32::try_from(live.len()).expect("at most max_slots");
        for kept in former.kept {
            core.keep_former(kept, now)?;
        }
        if !former.kept.is_empty() {
            // There may be more of them than the caps allow now: they stay until they end.
            core.caps_changed();
        }
        if core.reserved > 0 {
            let until = Now(now.0.saturating_add(core.config.grace_us));
            core.grace = Grace::Until(until);
            core.timers.insert((until, Timer::Grace));
        }
        core.assert_invariants();
        Ok(core)
    }

    /// The fd of a slot has outlived the crash: it lives on without its owner.
    fn keep_former(&mut self, kept: &Kept, now: Now) -> Result<(), ConfigError> {
        let Kept { id, domain: key, gid, job, deposit } = kept;
        let found = self.allocations.get(id.slot, id.generation);
        let is_reserved = found.is_some_and(|found| found.state == State::Reserved);
        let wrong = |why| ConfigError::new(format!("the kept allocation {id} {why}"));
        if !is_reserved || !deposit.keep || !deposit.has_sound_range() {
            return Err(wrong("is not one of the former generation page"));
        }
        if self.table_room() == 0 {
            return Err(wrong("does not fit table_fds: raise RLIMIT_NOFILE"));
        }
        let Some(domain) = self.domain(*key) else {
            return Err(wrong("is of one domain too many: raise max_domains"));
        };
        let allocation = Allocation::new(deposit, NONE, domain, State::Resident);
        self.allocations[id.slot] = allocation;
        if let Some(data) = deposit.driver_data {
            self.driver_data.insert(id.slot, data);
        }
        self.reserved -= 1;
        self.held_now += 1;
        for charge in Self::charges_of_kept(deposit.size_bytes) {
            self.accounts(None, domain).add(charge);
        }
        self.table.peak = self.table.peak.max(self.table_now());
        let until = Now(now.0.saturating_add(self.config.keep_ttl_us));
        let job = job.map(|(job, name)| self.job((*key, job), name));
        self.add_orphan(id.slot, Orphan { until, gid: *gid, job });
        Ok(())
    }

    /// Slots of before a crash that nobody has named again yet.
    pub fn reserved(&self) -> u32 {
        self.reserved
    }

    /// Whether it is too late to name a reserved slot again.
    pub(crate) fn is_grace_over(&self) -> bool {
        matches!(self.grace, Grace::Ending(_))
    }

    /// What to say of an allocation that is not there.
    pub(crate) fn absent(&self, id: AllocationId) -> ErrorCode {
        match id.generation < self.config.first_generation {
            true => ErrorCode::OwnerGone,
            false => ErrorCode::Stale,
        }
    }

    /// Ends reserved slots that nobody has named in time, a bounded number at a time.
    pub(crate) fn end_reserved(&mut self, fx: &mut Effects) {
        let Grace::Ending(from) = self.grace else { return };
        let most = from.saturating_add(RESERVED_SCAN_PER_STEP).min(self.allocations.slots());
        let mut at = from;
        let mut ended = 0;
        while at < most && ended < RESERVED_ENDS_PER_STEP && self.reserved > 0 {
            if self.is_reserved(at) {
                self.end(at, ErrorCode::OwnerGone, fx);
                self.drain_if_done(at);
                ended += 1;
            }
            at += 1;
        }
        self.grace = if self.reserved == 0 { Grace::None } else { Grace::Ending(at) };
    }

    fn is_reserved(&self, slot: u32) -> bool {
        self.allocations.is_full(slot) && self.allocations[slot].state == State::Reserved
    }

    /// A reserved slot has been named again: when it was the last, nothing is waited for any more.
    pub(crate) fn not_reserved(&mut self) {
        self.reserved -= 1;
        self.stop_grace_if_done();
    }

    /// Ends the grace time when there is nothing that it is for.
    pub(crate) fn stop_grace_if_done(&mut self) {
        if let Grace::Until(at) = self.grace
            && self.reserved == 0
        {
            self.timers.remove(&(at, Timer::Grace));
            self.grace = Grace::None;
        }
    }
}
