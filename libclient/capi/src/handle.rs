//! The handle by value: the C type, and reading its fields. Must never claim that a handle is
//! genuine.

use crate::errors::fdbroker_code_t;
use crate::failure::Failure;
use crate::guard::guard;
use crate::sized::{Growable, check_count, slice, write};
use fdbroker_client::{ErrorCode, Handle};
use fdbroker_protocol::handle::{HANDLE_MAGIC, HANDLE_VERSION};

/// A handle: 64 bytes that name an allocation of this node, and a place inside it. Pass on all 64
/// bytes unchanged, by value: through MPI, a file, anything. Compare handles by
/// fdbroker_handle_same(), not by memcmp().
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fdbroker_handle_t {
    pub bytes: [u8; 64],
}

/// The fields of a handle, for printing. node, slot and generation name the allocation; the other
/// fields are hints of its owner.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fdbroker_handle_info_t {
    /// sizeof(fdbroker_handle_info_t), set by the caller.
    pub struct_size: u64,
    /// The version of the handle's layout.
    pub version: u32,
    /// FDBROKER_KIND_*.
    pub kind: u32,
    /// A hash of the node's boot id.
    pub node: u64,
    pub slot: u32,
    pub generation: u32,
    /// The size of the allocation, in bytes.
    pub size_bytes: u64,
    /// Where in the allocation the exported pointer is, in bytes.
    pub offset_bytes: u64,
    pub owner_allocation_id: u64,
    /// The owner's own number of the device, which means nothing in other processes.
    pub device: u32,
    pub reserved: u32,
}

// SAFETY: repr(C), struct_size first, no padding (4 + 4 beside each other), integers only.
unsafe impl Growable for fdbroker_handle_info_t {
    const NAME: &'static str = "fdbroker_handle_info_t";
    const LEAST_BYTES: u64 = 32;
}

impl From<Handle> for fdbroker_handle_t {
    fn from(handle: Handle) -> Self {
        fdbroker_handle_t { bytes: handle.to_bytes() }
    }
}

impl fdbroker_handle_t {
    /// No handle: a call that fails writes this.
    pub(crate) const NONE: Self = fdbroker_handle_t { bytes: [0; 64] };

    pub(crate) fn get(&self) -> Handle {
        Handle::from_bytes(self.bytes)
    }
}

/// Reads the fields of a handle. Needs no context and sends nothing. It proves nothing: only the
/// broker can tell whether the handle is genuine and current. Also inside a callback and in a
/// forked child.
///
/// Errors: FDBROKER_BAD_HANDLE (the bytes are no handle of this version),
/// FDBROKER_INVALID_ARGUMENT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_handle_parse(
    handle: *const fdbroker_handle_t,
    info: *mut fdbroker_handle_info_t,
) -> fdbroker_code_t {
    guard(|| {
        // SAFETY: the caller's pointers, as the header states.
        let handle = unsafe { one(handle) }?;
        let prefix = &handle.prefix;
        if prefix.magic != HANDLE_MAGIC || prefix.version != HANDLE_VERSION {
            let text = "parse: no handle of this version begins so; pass all 64 bytes unchanged";
            return Err(Failure::new(ErrorCode::BadHandle, text));
        }
        let parsed = fdbroker_handle_info_t {
            struct_size: 0,
            version: prefix.version.into(),
            kind: prefix.kind.into(),
            node: prefix.node,
            slot: prefix.slot,
            generation: prefix.generation,
            size_bytes: handle.size_bytes,
            offset_bytes: handle.offset_bytes,
            owner_allocation_id: handle.owner_allocation_id,
            device: handle.device,
            reserved: 0,
        };
        // SAFETY: as above.
        unsafe { write(info, &parsed) }
    })
}

/// 1 when both handles name the same allocation, whatever their offsets; else 0, also for NULL and
/// for bytes that are no handle. Needs no context and sends nothing. Also inside a callback and in
/// a forked child.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_handle_same(
    handle: *const fdbroker_handle_t,
    other: *const fdbroker_handle_t,
) -> i32 {
    // SAFETY: the caller's pointers, as the header states.
    let (Some(handle), Some(other)) = (unsafe { (handle.as_ref(), other.as_ref()) }) else {
        return 0;
    };
    // All but the first 32 bytes are offset and hints.
    let (one, two) = (handle.get().prefix, other.get().prefix);
    i32::from(one.magic == HANDLE_MAGIC && one == two)
}

/// One handle of the caller.
///
/// # Safety
/// `handle` is NULL, or points to a handle.
pub(crate) unsafe fn one(handle: *const fdbroker_handle_t) -> Result<Handle, Failure> {
    // SAFETY: the caller's promise.
    let handle = unsafe { handle.as_ref() };
    handle.map(fdbroker_handle_t::get).ok_or_else(|| Failure::argument("handle is NULL"))
}

/// The caller's handles.
///
/// # Safety
/// `handles` is NULL, or points to `count` handles.
pub(crate) unsafe fn many(
    handles: *const fdbroker_handle_t,
    count: usize,
) -> Result<Vec<Handle>, Failure> {
    check_count(count)?;
    // SAFETY: the caller's promise.
    let handles = unsafe { slice(handles, count, "handles") }?;
    Ok(handles.iter().map(fdbroker_handle_t::get).collect())
}
