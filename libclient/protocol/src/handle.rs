//! The handle: 64 bytes that name an allocation by value, and the keyed MAC that makes them hard to
//! forge. Holds no pointer, pid or fd number; must never resolve anything itself.

use crate::error::ErrorCode;
use crate::facts::Facts;
use crate::table::{wire_enum, with_wire_form};
use siphasher::sip::SipHasher24;
use siphasher::sip128::{Hasher128, SipHasher24 as SipHasher128};
use std::hash::Hasher;
use zerocopy::little_endian::{U16, U32, U64};

/// First four bytes of every handle.
pub const HANDLE_MAGIC: [u8; 4] = *b"FDBH";
/// Version of the handle's layout.
pub const HANDLE_VERSION: u8 = 1;
/// Bytes of a handle: those of `ze_ipc_mem_handle_t`, `cudaIpcMemHandle_t`, `CUmemFabricHandle`.
pub const HANDLE_BYTES: usize = 64;
/// Leading bytes that suffice to resolve a handle: those of a 32-byte HSA IPC handle.
pub const HANDLE_PREFIX_BYTES: usize = 32;
/// Bytes of the owner token.
pub const TOKEN_BYTES: usize = 16;

wire_enum! {
    /// Who may acquire an allocation, apart from its owner.
    #[non_exhaustive]
    Share: u8 {
        /// Clients of the owner's domain: the same listener and uid.
        Uid = 0, "uid";
        /// Clients of the same listener that have the owner's group.
        Gid = 1, "gid";
        /// Whoever presents the handle: the handle is the capability.
        Any = 2, "any";
    }
}

/// An allocation on this node: its slot in the registry and the slot's generation (never 0).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AllocationId {
    /// Number of the slot, from 0.
    pub slot: u32,
    /// Generation of the slot; grows with each allocation that used it, 0 = none.
    pub generation: u32,
}

impl std::fmt::Display for AllocationId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.slot, self.generation)
    }
}

impl std::str::FromStr for AllocationId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // Digits alone, as it is written: `+0.1` may be a name.
        let parse = |part: &str| part.parse::<u32>().ok().filter(|_| !part.starts_with('+'));
        text.split_once('.')
            .and_then(|(slot, generation)| Some((parse(slot)?, parse(generation)?)))
            .map(|(slot, generation)| AllocationId { slot, generation })
            .ok_or_else(|| {
                format!("`{text}` is no allocation id; write SLOT.GENERATION, such as 12.3")
            })
    }
}

with_wire_form! {
    /// The first 32 bytes of a handle: all that an acquire needs.
    HandlePrefix, HandlePrefixItem {
        /// `FDBH`.
        magic: [u8; 4], [u8; 4];
        /// 1, the version of this layout.
        version: u8, u8;
        /// A [`MemoryKind`](crate::memory::MemoryKind).
        kind: u8, u8;
        /// Reserved, 0.
        flags: u16, U16;
        /// Hash of the boot id, see [`node_id`].
        node: u64, U64;
        /// Number of the allocation's slot, from 0.
        slot: u32, U32;
        /// Generation of the slot, never 0 in a good handle.
        generation: u32, U32;
        /// SipHash-2-4 of the 24 bytes before it, under the node key.
        mac: u64, U64;
    }
}

with_wire_form! {
    /// A handle, plain old data: copy its 64 bytes by value through MPI, a file, anything.
    ///
    /// Bytes 32-63 are hints for the consumer and are not covered by the MAC: the grant's own size
    /// is what bounds an offset.
    Handle, HandleItem {
        /// What suffices to resolve it.
        prefix: HandlePrefix, HandlePrefixItem;
        /// Size of the allocation in bytes.
        size_bytes: u64, U64;
        /// Offset inside the allocation that the sender means, in bytes.
        offset_bytes: u64, U64;
        /// The owner's allocation id (Level Zero's `ze_memory_allocation_properties_t.id`, CUDA's
        /// buffer id).
        owner_allocation_id: u64, U64;
        /// The owner's own number of the device: a hint that nothing uses.
        device: u32, U32;
        /// The allocation's virtual fd, if it was registered with one; else 0.
        virtual_fd: u32, U32;
    }
}

const _: () = assert!(size_of::<HandleItem>() == HANDLE_BYTES);
const _: () = assert!(size_of::<HandlePrefixItem>() == HANDLE_PREFIX_BYTES);

impl HandlePrefix {
    /// The allocation named. Meaningless until the prefix is verified.
    pub fn id(&self) -> AllocationId {
        AllocationId { slot: self.slot, generation: self.generation }
    }

    /// What names an allocation and opens nothing.
    pub fn unsealed(id: AllocationId) -> Self {
        let AllocationId { slot, generation } = id;
        HandlePrefix { slot, generation, ..Self::from_bytes([0; HANDLE_PREFIX_BYTES]) }
    }
}

impl From<HandlePrefix> for Handle {
    /// Without hints: 0 in all fields behind the prefix.
    fn from(prefix: HandlePrefix) -> Self {
        Handle { prefix, ..Self::from_bytes([0; HANDLE_BYTES]) }
    }
}

impl Handle {
    /// A handle of exactly 64 bytes; `BAD_HANDLE` for any other length.
    pub fn from_slice(bytes: &[u8]) -> Result<Self, ErrorCode> {
        bytes.try_into().map(Self::from_bytes).map_err(|_| ErrorCode::BadHandle)
    }

    /// The allocation named. Meaningless until the broker has verified it.
    pub fn id(&self) -> AllocationId {
        self.prefix.id()
    }

    /// The same allocation at `offset_bytes` inside it.
    pub fn at(mut self, offset_bytes: u64) -> Self {
        self.offset_bytes = offset_bytes;
        self
    }
}

/// 128 hex digits, as the commands of `fdbroker` take a handle.
impl std::fmt::Display for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.to_bytes().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl std::str::FromStr for Handle {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let what = "a handle is 128 hex digits";
        if text.len() != 2 * HANDLE_BYTES {
            return Err(what.into());
        }
        let mut bytes = [0; HANDLE_BYTES];
        for (byte, digits) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
            let digit = |at: usize| u8::try_from(char::from(digits[at]).to_digit(16)?).ok();
            *byte = digit(0).zip(digit(1)).map(|(high, low)| high << 4 | low).ok_or(what)?;
        }
        let handle = Handle::from_bytes(bytes);
        if handle.prefix.magic == HANDLE_MAGIC && handle.prefix.version == HANDLE_VERSION {
            Ok(handle)
        } else {
            Err("these 64 bytes are no handle of fdbroker: they do not begin with FDBH".into())
        }
    }
}

/// The broker's secret of 32 bytes: the first half keys the handle's MAC, the second half the owner
/// token. Never leaves the broker and its administrator's directory; does not print itself.
#[derive(Clone, PartialEq, Eq)]
pub struct NodeKey {
    mac: [u8; 16],
    token: [u8; 16],
}

impl std::fmt::Debug for NodeKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("NodeKey(secret)")
    }
}

impl NodeKey {
    /// Bytes of the secret: 16 for each of its two halves.
    pub const BYTES: usize = 32;

    /// From 32 random bytes (getrandom(2), or the key file in the administrator's directory).
    pub fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        let (mut mac, mut token) = ([0; 16], [0; 16]);
        mac.copy_from_slice(&bytes[..16]);
        token.copy_from_slice(&bytes[16..]);
        NodeKey { mac, token }
    }

    fn mac(&self, prefix: &HandlePrefix) -> u64 {
        self.hash(&prefix.to_bytes()[..24])
    }

    /// SipHash-2-4 under the key of the MAC. What else is hashed is of another length.
    pub(crate) fn hash(&self, bytes: &[u8]) -> u64 {
        let mut hasher = SipHasher24::new_with_key(&self.mac);
        hasher.write(bytes);
        hasher.finish()
    }

    /// Makes the handle of an allocation. The MAC covers id and kind; the other facts are hints.
    pub fn seal(&self, node: u64, id: AllocationId, facts: &Facts) -> Handle {
        let mut prefix = HandlePrefix {
            magic: HANDLE_MAGIC,
            version: HANDLE_VERSION,
            kind: facts.kind as u8,
            flags: 0,
            node,
            slot: id.slot,
            generation: id.generation,
            mac: 0,
        };
        prefix.mac = self.mac(&prefix);
        Handle {
            prefix,
            size_bytes: facts.size_bytes,
            offset_bytes: 0,
            owner_allocation_id: facts.owner_allocation_id,
            device: facts.device,
            virtual_fd: 0,
        }
    }

    /// The allocation that a prefix names, after magic, version, node and MAC have been checked.
    /// `BAD_HANDLE` or `WRONG_NODE`; random bytes never reach the registry.
    pub fn open(&self, node: u64, prefix: &HandlePrefix) -> Result<AllocationId, ErrorCode> {
        if prefix.magic != HANDLE_MAGIC || prefix.version != HANDLE_VERSION {
            return Err(ErrorCode::BadHandle);
        }
        if prefix.node != node {
            return Err(ErrorCode::WrongNode);
        }
        // Equality of two u64 is one instruction: no timing to learn the MAC from.
        if self.mac(prefix) != prefix.mac {
            return Err(ErrorCode::BadHandle);
        }
        Ok(prefix.id())
    }

    /// The owner token of an allocation: proves ownership at re-deposit. Derived, so the broker
    /// stores nothing for it; never part of the handle.
    pub fn owner_token(&self, id: AllocationId) -> [u8; TOKEN_BYTES] {
        let mut hasher = SipHasher128::new_with_key(&self.token);
        hasher.write_u32(id.slot);
        hasher.write_u32(id.generation);
        hasher.finish128().as_bytes()
    }

    /// Whether a token is that of an allocation. Takes as long whatever is wrong with it: how much
    /// of a forged one was right cannot be learnt.
    pub fn verify_token(&self, id: AllocationId, token: &[u8; TOKEN_BYTES]) -> bool {
        // One comparison of two numbers: no byte is looked at before another.
        u128::from_ne_bytes(self.owner_token(id)) == u128::from_ne_bytes(*token)
    }
}

/// The node's id: a hash of the kernel's boot id (/proc/sys/kernel/random/boot_id, trimmed), equal
/// for every broker of one boot. The key is a constant: this is a name, not a secret.
pub fn node_id(boot_id: &str) -> u64 {
    let mut hasher = SipHasher24::new_with_key(b"fdbroker node id");
    hasher.write(boot_id.trim().as_bytes());
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::MemoryKind;

    fn sealed() -> (NodeKey, Handle) {
        let key = NodeKey::from_bytes([7; 32]);
        let id = AllocationId { slot: 12, generation: 3 };
        let facts = Facts::new(MemoryKind::DmaBuf, 65536).owner_allocation_id(99).device(1);
        let handle = key.seal(42, id, &facts);
        (key, handle)
    }

    #[test]
    fn open_when_sealed_by_same_key_then_names_the_allocation() {
        let (key, handle) = sealed();
        let copy = Handle::from_slice(&handle.to_bytes()).expect("64 bytes");
        assert_eq!(key.open(42, &copy.prefix), Ok(AllocationId { slot: 12, generation: 3 }));
        assert_eq!(copy.size_bytes, 65536);
    }

    #[test]
    fn open_when_any_single_bit_of_the_prefix_flips_then_refused() {
        let (key, handle) = sealed();
        for bit in 0..HANDLE_PREFIX_BYTES * 8 {
            let mut bytes = handle.to_bytes();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let opened = key.open(42, &Handle::from_bytes(bytes).prefix);
            let expected =
                if (64..128).contains(&bit) { ErrorCode::WrongNode } else { ErrorCode::BadHandle };
            assert_eq!(opened, Err(expected), "bit {bit}");
        }
    }

    #[test]
    fn open_when_hints_change_then_still_the_same_allocation() {
        let (key, handle) = sealed();
        assert!(key.open(42, &handle.at(4096).prefix).is_ok());
    }

    #[test]
    fn open_when_key_or_node_differs_then_refused() {
        let (key, handle) = sealed();
        let other = NodeKey::from_bytes([8; 32]);
        assert_eq!(other.open(42, &handle.prefix), Err(ErrorCode::BadHandle));
        assert_eq!(key.open(43, &handle.prefix), Err(ErrorCode::WrongNode));
    }

    #[test]
    fn from_slice_when_not_64_bytes_then_bad_handle() {
        for length in [0, 32, 63, 65] {
            assert_eq!(Handle::from_slice(&vec![0; length]), Err(ErrorCode::BadHandle));
        }
    }

    #[test]
    fn owner_token_when_id_or_key_differs_then_differs() {
        let (key, handle) = sealed();
        let token = key.owner_token(handle.id());
        assert_eq!(token, key.owner_token(handle.id()));
        assert_ne!(token, key.owner_token(AllocationId { slot: 12, generation: 4 }));
        assert_ne!(token, NodeKey::from_bytes([8; 32]).owner_token(handle.id()));
    }

    #[test]
    fn verify_token_when_any_bit_flips_or_it_is_anothers_then_refused() {
        let (key, handle) = sealed();
        let id = handle.id();
        let token = key.owner_token(id);
        assert!(key.verify_token(id, &token));
        for bit in 0..TOKEN_BYTES * 8 {
            let mut forged = token;
            forged[bit / 8] ^= 1 << (bit % 8);
            assert!(!key.verify_token(id, &forged), "bit {bit}");
        }
        assert!(!key.verify_token(AllocationId { slot: 13, ..id }, &token));
    }

    #[test]
    fn node_id_when_boot_id_differs_then_differs() {
        assert_ne!(node_id("a"), node_id("b"));
        assert_eq!(node_id("a\n"), node_id("a"));
    }

    #[test]
    fn parse_when_the_text_is_a_handles_then_that_handle_and_no_other_text() {
        let (_, handle) = sealed();
        let text = handle.to_string();
        assert_eq!((text.len(), text.parse()), (128, Ok(handle)));
        assert_eq!(text.to_uppercase().parse(), Ok(handle));
        let nothing = "0".repeat(128);
        for wrong in ["", &text[1..], &format!("{text}0"), &format!("+{}", &text[1..]), &nothing] {
            assert!(wrong.parse::<Handle>().is_err(), "{wrong}");
        }
    }
}
