//! What an administrator does to the broker: evict, revoke, drain, and caps at run time. Must never
//! act for anyone but root and the broker's own user, nor without a line in the log, nor upon more
//! allocations in one message than a client could end in one.

use crate::admin::chosen::Chosen;
use crate::admin::rights::Sight;
use crate::admin::watch::unix_us;
use crate::limits::ADMIN_SLOTS_SCANNED;
use crate::server::parts::Server;
use fdbroker_core::Input;
use fdbroker_protocol::admin::{
    Act, ActOutcome, ActRecord, Filter, LimitChange, Page, SetLimit, act_flags,
};
use fdbroker_protocol::limits::{ENDS_PER_MESSAGE, MAX_ADMIN_MESSAGE_BYTES};
use fdbroker_protocol::{AllocationId, ErrorCode, Kind, NO_CAP, Resource, Scope};
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use std::fmt;
use std::os::fd::BorrowedFd;
use zerocopy::FromZeros;

const _: () = assert!(
    16 + size_of::<Page>() + ENDS_PER_MESSAGE * size_of::<ActRecord>() <= MAX_ADMIN_MESSAGE_BYTES
);

/// Whether a message is an act, a watch among them: its body is an [`Act`].
pub(crate) fn is_act(kind: Kind) -> bool {
    matches!(kind, Kind::AdminEvict | Kind::AdminRevoke | Kind::AdminDrain | Kind::AdminWatch)
}

/// The administrator, as the log names it. An error: it may not act, because it is neither root nor
/// the broker's own user.
fn actor(socket: BorrowedFd<'_>) -> Result<String, String> {
    let us = nix::unistd::geteuid().as_raw();
    let peer = getsockopt(&socket, PeerCredentials).map_err(|error| error.to_string())?;
    let name = format!("uid {} (pid {})", peer.uid(), peer.pid());
    if peer.uid() == 0 || peer.uid() == us { Ok(name) } else { Err(name) }
}

/// From when on a watch is to be told what has happened.
fn since_us(act: &Act) -> Option<u64> {
    let is_wanted = act.flags.get() & act_flags::SINCE != 0;
    is_wanted.then(|| match act.cursor.get() {
        u32::MAX => 0,
        ms => unix_us().saturating_sub(u64::from(ms) * 1000),
    })
}

/// A cap for the log.
struct Shown(u64);

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            NO_CAP => f.write_str("none"),
            cap => cap.fmt(f),
        }
    }
}

impl Server {
    /// Does what administrator `index` wants, and answers it.
    pub(super) fn answer_act(
        &mut self,
        index: usize,
        (kind, id): (Kind, u64),
        act: &Act,
    ) -> Result<(), ErrorCode> {
        let chosen = Chosen::of(act.filter.get(), act.value.get());
        let chosen = chosen.ok_or(ErrorCode::NotSupported)?;
        if kind == Kind::AdminWatch {
            if !self.start_watch(index, chosen, since_us(act)) {
                return Err(ErrorCode::Again);
            }
            self.writer.start(Kind::AdminEvents, id).finish(0, 0);
            return Ok(());
        }
        let is_dry = act.flags.get() & act_flags::DRY_RUN != 0;
        let actor = match self.admin.socket(index).map(actor) {
            Some(Ok(actor)) => actor,
            // A dry run changes nothing: every administrator may ask for it.
            _ if is_dry => String::new(),
            refused => {
                let who = refused.and_then(Result::err).unwrap_or_default();
                log::warn!(
                    "administrator {who}: {kind}: refused: not root, nor this broker's user"
                );
                return Err(ErrorCode::NotPermitted);
            }
        };
        match kind {
            Kind::AdminDrain => {
                let draining = act.flags.get() & act_flags::UNDO == 0;
                if !is_dry {
                    let what = if draining { "drain" } else { "drain --undo" };
                    log::info!("administrator {actor}: {what}");
                    self.step(Input::SetDraining { draining });
                }
                let status = self.view(Sight::Node).node_status();
                self.writer.start(Kind::AdminDrainReply, id).push(&status).finish(0, 0);
            }
            _ => {
                let spares = kind == Kind::AdminRevoke
                    && chosen.filter == Filter::Job
                    && !self.settings.end_with_job;
                let (page, ids, mut records) = self.choose(&chosen, act.cursor.get(), spares);
                self.act_upon(kind, is_dry, &ids, &mut records);
                let done = |record: &&ActRecord| record.outcome.get() == ActOutcome::Done as u32;
                let done = records.iter().filter(done).count();
                let (what, reply) = match kind {
                    Kind::AdminEvict => ("evict", Kind::AdminEvictReply),
                    _ => ("revoke", Kind::AdminRevokeReply),
                };
                if !is_dry && !records.is_empty() {
                    let of = records.len();
                    log::info!(
                        "administrator {actor}: {what} {chosen}: {done} of {of} allocations"
                    );
                }
                let reply = self.writer.start(reply, id).push(&page).push(&records[..]);
                reply.finish(records.len(), 0);
            }
        }
        Ok(())
    }

    /// The allocations that this message is for, with records whose outcome is still to come, and
    /// where the next message goes on. Of an allocation that is not there the id is known. With
    /// `spares` records of named objects that are kept have their outcome, and no id: they stay.
    fn choose(
        &self,
        chosen: &Chosen,
        cursor: u32,
        spares: bool,
    ) -> (Page, Vec<AllocationId>, Vec<ActRecord>) {
        let mut page = Page { next_cursor: 0.into(), done: 1.into() };
        let view = self.view(Sight::Node);
        if let Some(id) = chosen.allocation() {
            let mut record = ActRecord::new_zeroed();
            let mut found = self.core.allocations(id.slot..id.slot.saturating_add(1));
            if let Some(found) = found.next().filter(|found| found.id == id) {
                record.allocation = view.allocation_record(&found);
            } else {
                record.allocation.slot = id.slot.into();
                record.allocation.generation = id.generation.into();
            }
            return (page, vec![id], vec![record]);
        }
        let end = cursor.saturating_add(ADMIN_SLOTS_SCANNED);
        if end < self.core.allocation_slots() {
            page = Page { next_cursor: end.into(), done: 0.into() };
        }
        let (mut ids, mut records) = (Vec::new(), Vec::new());
        for found in self.core.allocations(cursor..end) {
            if records.len() == ENDS_PER_MESSAGE {
                page = Page { next_cursor: found.id.slot.into(), done: 0.into() };
                break;
            }
            if view.is_chosen(chosen, &found) {
                let allocation = view.allocation_record(&found);
                let stays = spares && found.is_kept_object;
                let outcome = if stays { ActOutcome::Kept as u32 } else { 0 }.into();
                ids.extend((!stays).then_some(found.id));
                records.push(ActRecord { outcome, allocation, ..ActRecord::new_zeroed() });
            }
        }
        (page, ids, records)
    }

    fn act_upon(
        &mut self,
        kind: Kind,
        is_dry: bool,
        ids: &[AllocationId],
        records: &mut [ActRecord],
    ) {
        let is_evict = kind == Kind::AdminEvict;
        let outcomes: Vec<ActOutcome> = if is_dry {
            let core = &self.core;
            let outcome = |id: &AllocationId| match is_evict {
                true => core.evict_outcome(*id),
                false => core.revoke_outcome(*id),
            };
            ids.iter().map(outcome).collect()
        } else {
            let mut effects = self.feedback.take_list();
            let input = if is_evict { Input::Evict { ids } } else { Input::Revoke { ids } };
            self.core.step(self.now, input, &mut effects);
            let outcomes = effects.acted.iter().map(|acted| acted.outcome).collect();
            self.settle(effects);
            outcomes
        };
        let open = records.iter_mut().filter(|record| record.outcome.get() == 0);
        for (record, outcome) in open.zip(outcomes) {
            record.outcome = (outcome as u32).into();
        }
    }

    /// Changes one cap, if the administrator of connection `index` may.
    pub(super) fn set_limit(
        &mut self,
        index: usize,
        id: u64,
        set: &SetLimit,
    ) -> Result<(), ErrorCode> {
        let (former, value) = self.try_set_limit(index, set)?;
        let change = LimitChange { former: former.into(), value: value.into() };
        self.writer.start(Kind::AdminSetLimitReply, id).push(&change).finish(0, 0);
        Ok(())
    }

    /// The cap until now, and the cap in force from now on.
    fn try_set_limit(&mut self, index: usize, set: &SetLimit) -> Result<(u64, u64), ErrorCode> {
        let peer = self.admin.socket(index).and_then(|it| getsockopt(&it, PeerCredentials).ok());
        let peer = peer.ok_or(ErrorCode::NotPermitted)?;
        let (uid, pid) = (peer.uid(), peer.pid());
        let scope = Scope::from_number(set.scope).ok_or(ErrorCode::NotSupported)?;
        let resource = Resource::from_number(set.resource).ok_or(ErrorCode::NotSupported)?;
        if !resource.is_capped_in(scope) {
            return Err(ErrorCode::NotSupported);
        }
        if !may_set(uid, nix::unistd::geteuid().as_raw()) {
            log::warn!("pid {pid} (uid {uid}) may not set limit {scope}.{resource}");
            return Err(ErrorCode::NotPermitted);
        }
        let mut caps = self.core.caps();
        let asked = set.value.get();
        let former = std::mem::replace(&mut caps[scope][resource], asked);
        if set.dry_run != 0 {
            return Ok((former, self.core.bounded(caps)[scope][resource]));
        }
        self.step(Input::SetCaps { caps: &caps });
        let value = self.core.caps()[scope][resource];
        let bound = match resource {
            _ if value == asked => "",
            Resource::MetadataBytes => "; the table of objects bounds it",
            _ => "; limits.max_clients bounds it",
        };
        log::info!(
            "limit {scope}.{resource} {} -> {}, set by pid {pid} (uid {uid}) until the next reload or restart{bound}",
            Shown(former),
            Shown(value)
        );
        Ok((former, value))
    }
}

/// Whether an administrator with this uid may change what the broker with that uid does.
fn may_set(uid: u32, brokers: u32) -> bool {
    uid == 0 || uid == brokers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn may_set_when_neither_root_nor_the_brokers_user_then_not() {
        assert!(may_set(0, 990) && may_set(990, 990));
        assert!(!may_set(1000, 990) && !may_set(1000, 0));
    }
}
