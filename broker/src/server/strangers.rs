//! Hides from a client which process of another user holds most of what the node has run out of. Must never hide that from the journal and
//! from administrators, who hear of a refusal before its answer comes here.

use crate::clients::connection::index;
use crate::clients::connections::Connections;
use fdbroker_core::{ClientId, Effect, Effects};
use fdbroker_protocol::{ErrorCode, Scope, Status};

/// Leaves in each NO_QUOTA the pid of a process of the client's own domain alone.
pub(crate) fn hide(effects: &mut Effects, connections: &Connections) {
    let Effects { list, granted, registered, statuses, .. } = effects;
    for effect in list {
        match effect {
            Effect::Failed { client, status, .. } | Effect::Disconnect { client, status } => {
                hide_in(status, *client, connections);
            }
            Effect::Granted { client, range, .. } | Effect::Declared { client, range, .. } => {
                let items = granted[range.clone()].iter_mut().map(|item| &mut item.status);
                items.for_each(|status| hide_in(status, *client, connections));
            }
            Effect::Statuses { client, range, .. } => {
                let items = statuses[range.clone()].iter_mut();
                items.for_each(|status| hide_in(status, *client, connections));
            }
            Effect::Registered { client, range, .. } => {
                let items = registered[range.clone()].iter_mut().map(|item| &mut item.status);
                items.for_each(|status| hide_in(status, *client, connections));
            }
            _ => {}
        }
    }
}

fn hide_in(status: &mut Status, client: ClientId, connections: &Connections) {
    // The accounts of a narrower scope are of one domain.
    let is_of_node = status.scope() == Some(Scope::Node);
    if !is_of_node || status.pid == 0 || status.result() != Err(ErrorCode::NoQuota) {
        return;
    }
    let own = connections.get(index(client)).map(|connection| connection.domain);
    let is_own = connections.iter().any(|(_, connection)| {
        Some(connection.domain) == own && connection.pid == status.pid.get()
    });
    if !is_own {
        status.pid = 0.into();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clients::connection::client_id;
    use fdbroker_core::{DomainKey, Now, RequestId, SubordinateUids};
    use fdbroker_protocol::Resource;

    #[test]
    fn hide_when_the_largest_holder_is_of_another_domain_then_its_pid_goes_and_all_else_stays() {
        let uids = SubordinateUids::default();
        let mut connections = Connections::new(8, true, uids);
        let domains = [(0, 1000), (0, 1001), (1, 1000)];
        let numbers = domains.map(|(listener, uid)| {
            let (socket, _) = fdbroker_scm::seqpacket_pair().unwrap();
            connections.add(socket, DomainKey { listener, uid }, 70 + listener * 10 + uid, Now(0))
        });
        let pid_told = |scope, pid| {
            let status = Status::no_quota(Resource::Fds, scope, 64, pid);
            let (client, request) = (client_id(numbers[0]), RequestId(5));
            let list = vec![Effect::Failed { client, request, status }];
            let mut effects = Effects { list, statuses: vec![status], ..Effects::default() };
            let reply = fdbroker_core::StatusReply::Lease;
            effects.list.push(Effect::Statuses { client, request, reply, range: 0..1 });
            hide(&mut effects, &connections);
            let Some(Effect::Failed { status: told, .. }) = effects.list.first() else {
                panic!("it stays")
            };
            assert_eq!(
                (told.value, told.scope, told.code),
                (status.value, status.scope, status.code)
            );
            assert_eq!(effects.statuses[0], *told);
            told.pid.get()
        };
        assert_eq!(pid_told(Scope::Node, 1070), 1070, "its own");
        assert_eq!(pid_told(Scope::Node, 1071), 0, "another user's");
        assert_eq!(pid_told(Scope::Node, 1080), 0, "its user's, by another listener");
        assert_eq!(pid_told(Scope::Job, 4711), 4711, "of an account of its own domain");
    }
}
