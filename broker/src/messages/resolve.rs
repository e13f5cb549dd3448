//! From a virtual fd to the handle behind it, for a client of its owner's domain. Must never change
//! anything, nor tell a client of another domain whether a number names an allocation.

use crate::limits::NEIGHBOUR_LOOKS;
use crate::messages::replies::handle_of;
use crate::node::side::Identity;
use fdbroker_core::{AllocationView, ClientId, Core, RequestId, Wanted};
use fdbroker_protocol::admin::AllocationState;
use fdbroker_protocol::limits::MAX_NEIGHBOURS;
use fdbroker_protocol::message::Resolve;
use fdbroker_protocol::{ErrorCode, Kind, VirtualFd, Writer};

/// What is behind a virtual fd, then its neighbours, for a client of their owner's domain.
///
/// # Errors
/// `BAD_HANDLE`: the number names nothing there. `AGAIN`: its owner has still to come back after a
/// crash.
pub fn find(
    identity: &Identity,
    core: &Core,
    client: ClientId,
    wanted: &Resolve,
    all: &mut Vec<Wanted>,
) -> Result<(), ErrorCode> {
    all.clear();
    let number = i32::try_from(wanted.virtual_fd.get()).ok().and_then(VirtualFd::new);
    let fd = number.ok_or(ErrorCode::BadHandle)?;
    let slot = identity.key.slot_of(fd);
    let found = core.allocation_of_domain(client, slot).ok_or(ErrorCode::BadHandle)?;
    if identity.key.virtual_fd(found.id) != Some(fd) {
        return Err(ErrorCode::BadHandle);
    }
    if found.state == AllocationState::Reserved {
        return Err(ErrorCode::Again);
    }
    if !is_named(&found) {
        return Err(ErrorCode::BadHandle);
    }
    all.push(Ok(found.id));
    let most = 1 + u32::from(wanted.neighbours.get()).min(MAX_NEIGHBOURS) as usize;
    let mut next = core.registered_after(slot);
    for _ in 0..NEIGHBOUR_LOOKS {
        let Some(slot) = next.filter(|_| all.len() < most) else { break };
        let neighbour = core.allocation_of_domain(client, slot).filter(is_named);
        all.extend(neighbour.map(|it| Ok(it.id)));
        next = core.registered_after(slot);
    }
    Ok(())
}

/// The handles of what was found just now.
pub fn write_resolved<'w>(
    writer: &'w mut Writer,
    identity: &Identity,
    core: &Core,
    (client, request): (ClientId, RequestId),
    found: &[Wanted],
) -> &'w [u8] {
    writer.start(Kind::Resolved, request.0);
    for id in found.iter().flatten() {
        if let Some(it) = core.allocation_of_domain(client, id.slot) {
            writer.push(&handle_of(identity, *id, &it.facts, true).to_bytes());
        }
    }
    writer.finish(found.len(), 0)
}

/// Whether it lives, and was registered with a virtual fd.
fn is_named(allocation: &AllocationView<'_>) -> bool {
    allocation.record.traits.has_virtual_fd() && allocation.record.is_live()
}
