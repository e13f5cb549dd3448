//! The 64 bytes of an IPC handle. Must never give them a meaning: it differs from driver to driver.

use crate::bindings::{ZE_MAX_IPC_HANDLE_SIZE, ze_ipc_mem_handle_t};

const SIZE: usize = ZE_MAX_IPC_HANDLE_SIZE as usize;
const _: () = assert!(size_of::<ze_ipc_mem_handle_t>() == SIZE);

impl ze_ipc_mem_handle_t {
    /// Its 64 bytes, as programs pass them on.
    pub fn to_bytes(self) -> [u8; SIZE] {
        self.data.map(|byte| byte.cast_unsigned())
    }

    /// The handle that [`to_bytes`](Self::to_bytes) gave these bytes of.
    pub fn from_bytes(bytes: [u8; SIZE]) -> Self {
        Self { data: bytes.map(|byte| byte.cast_signed()) }
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
