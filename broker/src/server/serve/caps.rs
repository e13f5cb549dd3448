//! Caps changed at run time by administrators. Must never change one but for root and the broker's own user, nor
//! without a line in the log.

use crate::server::parts::Server;
use fdbroker_core::Input;
use fdbroker_protocol::admin::{LimitChange, SetLimit};
use fdbroker_protocol::{ErrorCode, Kind, NO_CAP, Resource, Scope, Writer};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use std::fmt;

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
    /// Changes one cap, if the administrator of connection `index` may.
    pub(super) fn set_limit<'w>(
        &mut self,
        index: usize,
        writer: &'w mut Writer,
        id: u64,
        set: &SetLimit,
    ) -> &'w [u8] {
        match self.try_set_limit(index, set) {
            Ok((former, value)) => {
                let change = LimitChange { former: former.into(), value: value.into() };
                writer.start(Kind::AdminSetLimitReply, id).push(&change);
                writer.finish(0, 0)
            }
            Err(code) => writer.failed(id, code.into()),
        }
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
