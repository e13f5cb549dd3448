//! Producers: fds deposited, handles out, and the handle of a pointer.
//! Must never keep or close the caller's fd.

use crate::errors::fdbroker_code_t;
use crate::events::is_open;
use crate::failure::{Failure, code_of_result};
use crate::guard::guard;
use crate::handle::{fdbroker_handle_t, one};
use crate::open::{context, fdbroker_t};
use crate::sized::{Growable, Input, slice, slice_mut};
use fdbroker_client::{Deadline, Deposit, Drained, DriverData, ErrorCode, MemoryKind, Share};
use std::ffi::{c_int, c_void};
use std::os::fd::BorrowedFd;

/// A dma-buf: its size is proved by the broker.
pub const FDBROKER_KIND_DMA_BUF: u32 = 1;
/// A CUDA VMM export: its size is claimed.
pub const FDBROKER_KIND_CUDA_VMM: u32 = 2;
/// A range of a memfd with F_SEAL_SHRINK and F_SEAL_SEAL: its size is proved by the broker.
pub const FDBROKER_KIND_MEMFD: u32 = 3;

/// Clients of the same socket and user may acquire it.
pub const FDBROKER_SHARE_UID: u32 = 0;
/// Clients of the same socket that have the owner's group.
pub const FDBROKER_SHARE_GID: u32 = 1;
/// Whoever presents the handle.
pub const FDBROKER_SHARE_ANY: u32 = 2;

/// The recall callback can export it again, so the broker may close its fd of it; otherwise it is resident.
pub const FDBROKER_RECALLABLE: u32 = 1;
/// It outlives this process, for a time.
pub const FDBROKER_KEEP: u32 = 2;

/// An allocation to register.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fdbroker_allocation_t {
    /// sizeof(fdbroker_allocation_t), set by the caller; in arrays of the first, for all.
    pub struct_size: u64,
    /// FDBROKER_KIND_*.
    pub kind: u32,
    /// FDBROKER_SHARE_*.
    pub share: u32,
    /// The owner's device ordinal.
    pub device: u32,
    /// FDBROKER_RECALLABLE, FDBROKER_KEEP.
    pub flags: u32,
    /// More than 0.
    pub size_bytes: u64,
    /// Where in the fd it begins, in bytes.
    pub fd_offset: u64,
    /// The owner's id of it (Level Zero's allocation id, CUDA's buffer id): another id at the same address is
    /// another allocation.
    pub owner_allocation_id: u64,
    /// Its address in this process; 0: none.
    pub base: u64,
    /// The driver's handle bytes, given with each grant; copied, the caller's.
    pub driver_data: *const c_void,
    /// At most 64.
    pub driver_data_len: u64,
}

// SAFETY: repr(C), struct_size first, no padding (2 * 2 * 4, then 8 each); the pointer may hold any bits until used.
unsafe impl Growable for fdbroker_allocation_t {
    const NAME: &'static str = "fdbroker_allocation_t";
    const LEAST_BYTES: u64 = 32;
    fn absent() -> Self {
        fdbroker_allocation_t {
            struct_size: size_of::<Self>() as u64,
            kind: 0,
            share: 0,
            device: 0,
            flags: 0,
            size_bytes: 0,
            fd_offset: 0,
            owner_allocation_id: 0,
            base: 0,
            driver_data: std::ptr::null(),
            driver_data_len: 0,
        }
    }
}

/// Registers one allocation: the broker gets a duplicate of its fd. The caller's stays the caller's, and may be closed
/// at once. The handle is good until fdbroker_unregister(), the end of the connection or of this process.
///
/// With base set there is one registration per allocation: the same device, base, size and id again give the handle
/// known, without asking the broker. Another size or id there, or a range that overlaps, means that the memory
/// there was freed: the old registration ends at once.
///
/// Errors: FDBROKER_NO_QUOTA, FDBROKER_UNSUPPORTED_FD (fdbroker_last_error() says what it is), FDBROKER_STALE (another
/// thread registered other memory there meanwhile), FDBROKER_NOT_SUPPORTED (inside a callback), FDBROKER_TIMED_OUT,
/// FDBROKER_NOT_CONNECTED, FDBROKER_INVALID_ARGUMENT (fd not open, too). *handle is all zero then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_register(
    broker: *mut fdbroker_t,
    allocation: *const fdbroker_allocation_t,
    fd: c_int,
    deadline_ms: u32,
    handle: *mut fdbroker_handle_t,
) -> fdbroker_code_t {
    let (fds, codes) = (&raw const fd, std::ptr::null_mut());
    // SAFETY: the caller's pointers, as the header states.
    guard(|| unsafe { register_all(broker, 1, allocation, fds, deadline_ms, handle, codes) })
}

/// Registers count allocations, fds[i] being that of allocations[i] (the same fd may stand there many times), 253 per
/// message. Fills all handles and all codes (codes may be NULL), in their order; those that failed are all zero.
/// FDBROKER_OK when all were registered, else the first failure.
///
/// Errors: of each as fdbroker_register().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_register_many(
    broker: *mut fdbroker_t,
    count: usize,
    allocations: *const fdbroker_allocation_t,
    fds: *const c_int,
    deadline_ms: u32,
    handles: *mut fdbroker_handle_t,
    codes: *mut fdbroker_code_t,
) -> fdbroker_code_t {
    // SAFETY: the caller's pointers, as the header states.
    guard(|| unsafe {
        register_all(broker, count, allocations, fds, deadline_ms, handles, codes)
    })
}

/// # Safety
/// The pointers are as the header states.
unsafe fn register_all(
    broker: *mut fdbroker_t,
    count: usize,
    allocations: *const fdbroker_allocation_t,
    fds: *const c_int,
    deadline_ms: u32,
    handles: *mut fdbroker_handle_t,
    codes: *mut fdbroker_code_t,
) -> Result<(), Failure> {
    // SAFETY: the caller's promise.
    let (handles, codes) = unsafe { (slice_mut(handles, count)?, slice_mut(codes, count)?) };
    let mut none = [];
    let handles = match handles {
        Some(handles) => handles,
        None if count == 0 => &mut none,
        None => {
            let failure = Failure::argument("handle is NULL");
            codes.into_iter().for_each(|codes| codes.fill(failure.code()));
            return Err(failure);
        }
    };
    let outcomes = (|| {
        // SAFETY: as above.
        let (context, allocations, fds) = unsafe {
            let context = context(broker, "register")?;
            (context, Input::new(allocations, count)?, slice(fds, count, "fds")?)
        };
        // SAFETY: as above; their driver data too.
        let deposits = fds.iter().enumerate().map(|(index, fd)| unsafe {
            deposit(&allocations.get(index)?, *fd).map(|deposit| (deposit, *fd))
        });
        register(context, deposits.collect(), Deadline::from_ms(deadline_ms))
    })();
    let outcomes = outcomes.unwrap_or_else(|failure| vec![Err(failure); count]);
    let mut first = Ok(());
    for (index, outcome) in outcomes.into_iter().enumerate() {
        if let Some(code) = codes.as_deref().and_then(|codes| codes.get(index)) {
            let _ = code;
        }
        match outcome {
            Ok(handle) => handles[index] = handle,
            Err(failure) => {
                handles[index] = fdbroker_handle_t::NONE;
                if first.is_ok() {
                    first = Err(failure);
                }
            }
        }
    }
    first
}
