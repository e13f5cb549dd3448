//! The handle: a handle resolves if and only if this broker sealed it, whatever its hints say. An
//! input is the fields of one allocation, then changes of its handle. An input must never be able
//! to spell the key.

use crate::bytes::Bytes;
use fdbroker_protocol::{AllocationId, ErrorCode, Facts, Handle, MemoryKind, NodeKey};
use std::hash::{DefaultHasher, Hash, Hasher};

const NODE: u64 = 0x1122_3344_5566_7788;

pub fn run(data: &[u8]) {
    let key = key_of(data);
    assert_forged(&key, data);
    let mut bytes = Bytes(data);
    let id = AllocationId { slot: bytes.u32(), generation: bytes.u32() };
    let kind = MemoryKind::ALL[bytes.below(MemoryKind::ALL.len())];
    let (owner_allocation_id, device) = (bytes.u64(), bytes.u32());
    let facts =
        Facts::new(kind, bytes.u64()).owner_allocation_id(owner_allocation_id).device(device);
    let handle = key.seal(NODE, id, &facts);
    assert_eq!(key.open(NODE, &handle.prefix), Ok(id));
    let mut changed = handle.to_bytes();
    while !bytes.is_empty() {
        let at = bytes.below(changed.len());
        changed[at] ^= bytes.u8();
        let opened = key.open(NODE, &Handle::from_bytes(changed).prefix);
        if changed[..32] == handle.to_bytes()[..32] {
            assert_eq!(opened, Ok(id), "hints are no part of it")
        } else {
            assert!(opened.is_err(), "opens after a change: {changed:02x?}")
        }
    }
    let other = key.owner_token(AllocationId { generation: !id.generation, ..id });
    assert_ne!(key.owner_token(id), other);
    assert_eq!(key.open(!NODE, &handle.prefix), Err(ErrorCode::WrongNode));
}

/// Another key for each input: libFuzzer sees what is compared, and would write the right seal into
/// an input with the same key.
fn key_of(data: &[u8]) -> NodeKey {
    let mut key = [0; 32];
    for (number, part) in key.chunks_exact_mut(8).enumerate() {
        let mut hasher = DefaultHasher::new();
        (number, data).hash(&mut hasher);
        part.copy_from_slice(&hasher.finish().to_le_bytes());
    }
    NodeKey::from_bytes(key)
}

/// No input is a handle, because this broker did not seal it.
fn assert_forged(key: &NodeKey, data: &[u8]) {
    let parsed = Handle::from_slice(data);
    assert_eq!(parsed.is_ok(), data.len() == 64);
    if let Ok(handle) = parsed {
        assert_eq!(handle.to_bytes(), data);
        let opened = key.open(NODE, &handle.prefix);
        assert!(opened.is_err(), "a forged handle opens");
    }
}
