//! What a handle leads to. Must never lead to another allocation than the handle's own:
//! one wrong digit could name another slot.

use crate::admin::Admin;
use crate::error::{Error, Result};
use fdbroker_protocol::{AllocationId, ErrorCode, Handle, NodeKey};
use fdbrokerd::names::KEY_NAME;
use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// The allocation of `handle`. The handle is checked with the broker's key. A user who may not read
/// the key can look, but not evict or revoke: then only the node in the handle is checked.
///
/// # Errors
/// NOT_FOUND: the handle is of another node or broker, or damaged.
pub fn id(handle: &Handle, admin: &mut Admin) -> Result<AllocationId> {
    let node = admin.status()?.node.get();
    check(handle, node, read_key(&admin.path().with_file_name(KEY_NAME)))
}

fn check(handle: &Handle, node: u64, key: Option<NodeKey>) -> Result<AllocationId> {
    let is_of_node = handle.prefix.node == node;
    let opened = match key {
        Some(key) => key.open(node, &handle.prefix),
        None if is_of_node => Ok(handle.id()),
        None => Err(ErrorCode::WrongNode),
    };
    opened.map_err(|code| Error::NotFound(match code {
        ErrorCode::WrongNode => "this is a handle of another node, or of this one before a reboot; handles are good on their own node only",
        _ => "this handle is of another broker on this node, or damaged; ask the broker that made it (FDBROKER_ADMIN_SOCKET), or copy all 128 digits again",
    }.into()))
}

/// `None`: this user may not read the key, or the file is not a key.
fn read_key(path: &Path) -> Option<NodeKey> {
    let mut options = OpenOptions::new();
    // The broker owns the directory: nothing that it puts there may make root wait.
    options.read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW | libc::O_CLOEXEC);
    let mut bytes = [0; NodeKey::BYTES];
    options.open(path).ok()?.read_exact(&mut bytes).ok()?;
    Some(NodeKey::from_bytes(bytes))
}

#[cfg(test)]
mod tests;
