//! The 64 bytes of an IPC handle. Must never give them a meaning: it differs from driver to driver.

use crate::bindings::{ZE_MAX_IPC_HANDLE_SIZE, ze_ipc_event_pool_handle_t, ze_ipc_mem_handle_t};
use std::ffi::c_char;

const SIZE: usize = ZE_MAX_IPC_HANDLE_SIZE as usize;
const _: () = assert!(size_of::<ze_ipc_mem_handle_t>() == SIZE);
const _: () = assert!(size_of::<ze_ipc_event_pool_handle_t>() == SIZE);

/// The bytes of C's characters, which have a sign on some architectures.
pub fn bytes_of_characters<const LENGTH: usize>(text: [c_char; LENGTH]) -> [u8; LENGTH] {
    text.map(|character| character.to_ne_bytes()[0])
}

fn characters_of(bytes: [u8; SIZE]) -> [c_char; SIZE] {
    bytes.map(|byte| c_char::from_ne_bytes([byte]))
}

impl ze_ipc_mem_handle_t {
    /// Its 64 bytes, as programs pass them on.
    pub fn to_bytes(self) -> [u8; SIZE] {
        bytes_of_characters(self.data)
    }

    /// The handle that [`to_bytes`](Self::to_bytes) gave these bytes of.
    pub fn from_bytes(bytes: [u8; SIZE]) -> Self {
        Self { data: characters_of(bytes) }
    }
}

impl ze_ipc_event_pool_handle_t {
    /// Its 64 bytes, as programs pass them on.
    pub fn to_bytes(self) -> [u8; SIZE] {
        bytes_of_characters(self.data)
    }

    /// The handle that [`to_bytes`](Self::to_bytes) gave these bytes of.
    pub fn from_bytes(bytes: [u8; SIZE]) -> Self {
        Self { data: characters_of(bytes) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_when_put_into_a_handle_come_out_the_same() {
        let bytes = std::array::from_fn(|i| i.to_le_bytes()[0] ^ 5);

        assert_eq!(ze_ipc_mem_handle_t::from_bytes(bytes).to_bytes(), bytes);
    }
}
