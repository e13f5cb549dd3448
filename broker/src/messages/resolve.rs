//! From a virtual fd to the handle behind it, for a client of its owner's domain. Must never change
//! anything, nor tell a client of another domain whether a number names an allocation.

use crate::limits::NEIGHBOUR_LOOKS;
use crate::messages::replies::handle_of;
use crate::node::side::Identity;
use fdbroker_core::{AllocationView, ClientId, Core, RequestId};
use fdbroker_protocol::admin::AllocationState;
use fdbroker_protocol::limits::MAX_NEIGHBOURS;
use fdbroker_protocol::message::Resolve;
use fdbroker_protocol::{ErrorCode, Handle, Kind, VirtualFd, Writer};

/// The handle behind a virtual fd, and those of its neighbours, for a client of their owner's
/// domain.
///
/// # Errors
/// `BAD_HANDLE`: the number names nothing there. `AGAIN`: its owner has still to come back after a
/// crash.
pub fn write_resolved<'w>(
    writer: &'w mut Writer,
    identity: &Identity,
    core: &Core,
    client: ClientId,
    (request, wanted): (RequestId, &Resolve),
) -> Result<&'w [u8], ErrorCode> {
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
    let first = resolved(identity, &found).ok_or(ErrorCode::BadHandle)?;
    writer.start(Kind::Resolved, request.0).push(&first.to_bytes());
    let mut count = 1;
    let most = 1 + wanted.neighbours.get().min(MAX_NEIGHBOURS) as usize;
    let mut next = core.registered_after(slot);
    for _ in 0..NEIGHBOUR_LOOKS {
        let Some(slot) = next.filter(|_| count < most) else { break };
        let neighbour = core.allocation_of_domain(client, slot);
        if let Some(handle) = neighbour.and_then(|it| resolved(identity, &it)) {
            writer.push(&handle.to_bytes());
            count += 1;
        }
        next = core.registered_after(slot);
    }
    Ok(writer.finish(count, 0))
}

/// The handle of a live allocation that was registered with a virtual fd.
fn resolved(identity: &Identity, allocation: &AllocationView<'_>) -> Option<Handle> {
    let is_named = allocation.record.traits.has_virtual_fd() && allocation.record.is_live();
    is_named.then(|| handle_of(identity, allocation.id, &allocation.facts, true))
}
