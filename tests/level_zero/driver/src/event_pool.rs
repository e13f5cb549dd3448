//! Event pools in memory that other processes can import. The layout of their handles is
//! compute-runtime's (`IpcEventPoolData`). Must never leave an opened pool's fd to the
//! caller: Intel's closes it.

use crate::allocation::registry;
use crate::answer::Failure;
use crate::handle::HANDLE_BYTES;
use crate::import::{take_over, with_fd};
use crate::object::Object;
use crate::signal::{Signal, Word};
use level_zero_sys::ze_result_t;
use std::os::fd::RawFd;
use std::sync::Arc;

const INVALID: ze_result_t = ze_result_t::ZE_RESULT_ERROR_INVALID_ARGUMENT;

/// The number of events in a pool's handle.
const EVENTS: usize = 8;

/// A pool. Only one that is to be shared has memory; events of others live on their own.
pub struct Pool {
    count: u32,
    shared: Option<Arc<Object>>,
}

impl Pool {
    pub fn new(count: u32, is_shared: bool) -> Result<Self, Failure> {
        let shared = if is_shared { Some(memory(count as usize * Word::BYTES)?) } else { None };
        Ok(Self { count, shared })
    }

    /// The pool's memory in another process.
    pub fn open(handle: &[u8; HANDLE_BYTES]) -> Result<Self, Failure> {
        let count = u32::try_from(word(handle, EVENTS)).map_err(|_| INVALID)?;
        let object = import(handle)?;
        if count as usize * Word::BYTES <= object.memory.bytes() && count > 0 {
            Ok(Self { count, shared: Some(object) })
        } else {
            Err(INVALID.into())
        }
    }

    pub fn event(&self, index: u32) -> Result<Signal, Failure> {
        if index >= self.count {
            return Err(INVALID.into());
        }
        let Some(object) = &self.shared else { return Ok(Signal::new(false)) };
        let offset = index as usize * Word::BYTES;
        Ok(Signal::Shared(vec![Word { object: Arc::clone(object), offset }]))
    }

    /// The fd stays the driver's as long as the pool lives.
    pub fn handle(&self) -> Result<[u8; HANDLE_BYTES], Failure> {
        let object = self.shared.as_ref();
        let object = object.ok_or(ze_result_t::ZE_RESULT_ERROR_UNSUPPORTED_FEATURE)?;
        let mut bytes = [0; HANDLE_BYTES];
        put(&mut bytes, 0, fd_word(object.exported(false)?));
        put(&mut bytes, EVENTS, self.count.into());
        // One packet of one device, in memory that the host sees.
        bytes[20] = 1;
        bytes[24] = 1;
        bytes[29] = 1;
        Ok(bytes)
    }
}

fn memory(bytes: usize) -> Result<Arc<Object>, Failure> {
    const PAGE_BYTES: usize = 4096;
    let object = Object::allocate(bytes.max(1).next_multiple_of(PAGE_BYTES), None)?;
    registry().note_shared(&object);
    Ok(object)
}

fn import(handle: &[u8; HANDLE_BYTES]) -> Result<Arc<Object>, Failure> {
    let fd = RawFd::try_from(word(handle, 0)).map_err(|_| INVALID)?;
    let object = with_fd(fd, Object::import)?;
    registry().note_shared(&object);
    take_over(fd);
    Ok(object)
}

fn fd_word(fd: RawFd) -> u64 {
    fd.unsigned_abs().into()
}

fn word(bytes: &[u8; HANDLE_BYTES], at: usize) -> u64 {
    u64::from_ne_bytes(std::array::from_fn(|i| bytes[at + i]))
}

fn put(bytes: &mut [u8; HANDLE_BYTES], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_ne_bytes());
}
