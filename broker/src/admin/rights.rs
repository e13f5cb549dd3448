//! What a connection may see, and which requests it may make. Must never grow with time: it is
//! fixed when the connection comes.

use fdbroker_core::{DomainKey, NO_GROUP};
use fdbroker_protocol::Kind;

/// Of which domains a connection sees anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sight {
    /// Every domain: administrators, and members of the group of monitors.
    Node,
    /// One alone, which is the peer's: its listener and uid.
    Domain(DomainKey),
}

impl Sight {
    pub fn has(self, domain: DomainKey) -> bool {
        match self {
            Sight::Node => true,
            Sight::Domain(own) => domain == own,
        }
    }
}

/// The rights of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rights {
    pub sight: Sight,
    /// It came by the administrators' socket. Acts look at its user, too.
    pub may_act: bool,
}

impl Rights {
    /// By the administrators' socket.
    pub const ADMINISTRATOR: Rights = Rights { sight: Sight::Node, may_act: true };

    /// By a socket for looking, in the domain `own`: a member of the group `monitors` sees all.
    pub fn to_view(own: DomainKey, groups: &[u32], monitors: Option<u32>) -> Self {
        let is_monitor = monitors.is_some_and(|gid| gid != NO_GROUP && groups.contains(&gid));
        let sight = if is_monitor { Sight::Node } else { Sight::Domain(own) };
        Rights { sight, may_act: false }
    }

    /// Whether it may make a request of this kind.
    pub fn allow(self, kind: Kind) -> bool {
        match need(kind) {
            Need::Sight | Need::Nothing => true,
            Need::SightOfNode => self.sight == Sight::Node,
            Need::Act => self.may_act,
        }
    }
}

/// What a request needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// Any sight: the answer has what is in it.
    Sight,
    /// The sight of all, because the answer cannot be divided.
    SightOfNode,
    /// The right to act, also for a dry run.
    Act,
    /// It is no request of this socket, and is answered so.
    Nothing,
}

/// What a request of each kind needs. A new one needs the right to act until it is decided upon
/// here.
pub(crate) fn need(kind: Kind) -> Need {
    match kind {
        Kind::AdminStatus
        | Kind::AdminAllocations
        | Kind::AdminLeases
        | Kind::AdminClients
        | Kind::AdminJobs
        | Kind::AdminDomains
        | Kind::AdminObjects
        | Kind::AdminTombstones
        | Kind::AdminWatch => Need::Sight,
        // Caps are what the administrator has set, and every refusal names one.
        Kind::AdminLimits => Need::Sight,
        // How long things take, and what was refused, is counted for the node alone.
        Kind::AdminMetrics => Need::SightOfNode,
        kind if is_request(kind) => Need::Act,
        _ => Need::Nothing,
    }
}

/// Whether administrators and viewers ask so: their kinds are numbered from here on, and what the
/// broker says is odd.
fn is_request(kind: Kind) -> bool {
    kind as u16 >= Kind::AdminStatus as u16 && (kind as u16).is_multiple_of(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: DomainKey = DomainKey::new(1, 1000);

    fn of_need(wanted: Need) -> Vec<Kind> {
        Kind::ALL.iter().copied().filter(|kind| need(*kind) == wanted).collect()
    }

    #[test]
    fn need_when_a_kind_acts_then_it_is_in_this_list() {
        let acts = [
            Kind::AdminTakeover,
            Kind::AdminTakeoverStep,
            Kind::AdminSetLimit,
            Kind::AdminEvict,
            Kind::AdminRevoke,
            Kind::AdminDrain,
        ];
        assert_eq!(of_need(Need::Act), acts);
        assert_eq!(of_need(Need::SightOfNode), [Kind::AdminMetrics]);
        let replies = of_need(Need::Sight).into_iter().filter(|kind| kind.name().contains("reply"));
        assert_eq!(replies.count(), 0);
    }

    #[test]
    fn allow_when_a_user_looks_or_a_monitor_then_neither_may_act() {
        let user = Rights::to_view(OWN, &[1000, 44], Some(45));
        let monitor = Rights::to_view(OWN, &[1000, 45], Some(45));
        assert_eq!((user.sight, monitor.sight), (Sight::Domain(OWN), Sight::Node));
        for kind in of_need(Need::Act) {
            assert!(!user.allow(kind) && !monitor.allow(kind), "{kind}");
            assert!(Rights::ADMINISTRATOR.allow(kind), "{kind}");
        }
        assert!(!user.allow(Kind::AdminMetrics) && monitor.allow(Kind::AdminMetrics));
        assert!(of_need(Need::Sight).iter().all(|kind| user.allow(*kind)));
    }

    #[test]
    fn to_look_when_there_is_no_group_of_monitors_then_nobody_sees_all() {
        for monitors in [None, Some(NO_GROUP)] {
            let rights = Rights::to_view(OWN, &[0, 1000, NO_GROUP], monitors);
            assert_eq!(rights.sight, Sight::Domain(OWN));
        }
    }

    #[test]
    fn has_when_the_same_uid_comes_by_another_listener_then_it_is_another_domain() {
        let sight = Sight::Domain(OWN);
        assert!(sight.has(OWN) && Sight::Node.has(DomainKey::NOBODYS));
        assert!(!sight.has(DomainKey { listener: 0, ..OWN }) && !sight.has(DomainKey::NOBODYS));
    }
}
