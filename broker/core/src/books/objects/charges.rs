//! What objects are charged with: to their domain and the node alone, within caps and shares. Must
//! never charge for a part of what was asked.

use crate::api::NewObject;
use crate::books::ledger::{Charge, ScopeRecord};
use crate::books::objects::groups::Member;
use crate::limits::OBJECT_RECORD_BYTES;
use fdbroker_protocol::Resource;

/// What an object is charged with while it has its name, or is made under it.
pub(crate) fn of_member(member: &Member) -> [Charge; 2] {
    of_objects([(&*member.name, &*member.metadata)].into_iter())
}

/// The same of new ones.
pub(crate) fn of_new(objects: &[NewObject<'_>]) -> [Charge; 2] {
    of_objects(objects.iter().map(|object| (object.name, object.metadata)))
}

/// The broker's memory for objects of these names and metadata.
fn of_objects<'a>(objects: impl ExactSizeIterator<Item = (&'a [u8], &'a [u8])>) -> [Charge; 2] {
    let count = objects.len() as u64;
    let opaque = objects.map(|(name, metadata)| (name.len() + metadata.len()) as u64);
    let bytes = count * OBJECT_RECORD_BYTES + opaque.sum::<u64>();
    [Charge(Resource::ObjectNames, count), Charge(Resource::MetadataBytes, bytes)]
}

/// What a kept group is charged with beside its fd and memory.
pub(crate) fn of_kept(bytes: u64, is_host: bool, pin: bool) -> [Charge; 3] {
    let kept = if is_host { Resource::KeptBytes } else { Resource::KeptGpuBytes };
    [
        Charge(Resource::KeptFds, 1),
        Charge(kept, bytes),
        Charge(Resource::PermanentBytes, if pin { bytes } else { 0 }),
    ]
}

/// How much of a resource that objects are charged with is counted in a scope.
#[allow(clippy::wildcard_enum_match_arm, reason = "few resources have a rule of their own")]
pub(crate) fn of_objects_in(resource: Resource) -> fn(&ScopeRecord) -> u64 {
    match resource {
        Resource::ObjectNames => |it| it.account.counted(Resource::ObjectNames),
        Resource::MetadataBytes => |it| it.account.counted(Resource::MetadataBytes),
        Resource::KeptFds => |it| it.account.counted(Resource::KeptFds),
        Resource::PermanentBytes => |it| it.account.counted(Resource::PermanentBytes),
        Resource::KeptGpuBytes => |it| it.account.counted(Resource::KeptGpuBytes),
        _ => |it| it.account.counted(Resource::KeptBytes),
    }
}
