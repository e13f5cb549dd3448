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
    let is_of_node = status.scope == Scope::Node as u8;
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
