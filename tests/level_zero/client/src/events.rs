//! Event pools and the handles of tiles, as a program calls them. Must never take one function for
//! another.

use crate::fault::Fault;
use crate::gpu::{Address, Gpu};
use level_zero_sys::*;
use std::ffi::{CStr, c_void};
use std::ptr;

pub type Pool = ze_event_pool_handle_t;
pub type Event = ze_event_handle_t;

const IPC: u32 = ze_event_pool_flag_t::ZE_EVENT_POOL_FLAG_IPC.0;

// SAFETY, for every call in this file: handles come from the driver and live; out-pointers are to
// locals; what the driver answers under a name has that name's type.
impl Gpu {
    /// A pool of this many events, for other processes, too.
    pub fn create_pool(&self, count: u32, is_shared: bool) -> Result<Pool, CallError> {
        let flags = if is_shared { IPC } else { 0 };
        let desc = ze_event_pool_desc_t { count, flags, ..Structure::blank() };
        let mut pool = ptr::null_mut();
        let no_devices = ptr::null_mut();
        let (desc, out) = (&raw const desc, &raw mut pool);
        // SAFETY: see above.
        unsafe { self.level_zero.zeEventPoolCreate(self.context, desc, 0, no_devices, out)? };
        Ok(pool)
    }

    pub fn destroy_pool(&self, pool: Pool) -> Result<(), CallError> {
        // SAFETY: see above.
        unsafe { self.level_zero.zeEventPoolDestroy(pool) }
    }

    /// The handle of a pool, as the bytes that a program passes on.
    pub fn get_pool(&self, pool: Pool) -> Result<ze_ipc_mem_handle_t, CallError> {
        let mut handle = ze_ipc_event_pool_handle_t::default();
        // SAFETY: see above.
        unsafe { self.level_zero.zeEventPoolGetIpcHandle(pool, &raw mut handle)? };
        Ok(ze_ipc_mem_handle_t { data: handle.data })
    }

    pub fn put_pool(&self, handle: ze_ipc_mem_handle_t) -> Result<(), CallError> {
        let handle = ze_ipc_event_pool_handle_t { data: handle.data };
        // SAFETY: see above.
        unsafe { self.level_zero.zeEventPoolPutIpcHandle(self.context, handle) }
    }

    pub fn open_pool(&self, handle: ze_ipc_mem_handle_t) -> Result<Pool, CallError> {
        let handle = ze_ipc_event_pool_handle_t { data: handle.data };
        let mut pool = ptr::null_mut();
        let out = &raw mut pool;
        // SAFETY: see above.
        unsafe { self.level_zero.zeEventPoolOpenIpcHandle(self.context, handle, out)? };
        Ok(pool)
    }

    pub fn close_pool(&self, pool: Pool) -> Result<(), CallError> {
        // SAFETY: see above.
        unsafe { self.level_zero.zeEventPoolCloseIpcHandle(pool) }
    }

    pub fn create_event(&self, pool: Pool, index: u32) -> Result<Event, CallError> {
        let desc = ze_event_desc_t { index, ..Structure::blank() };
        let mut event = ptr::null_mut();
        // SAFETY: see above.
        unsafe { self.level_zero.zeEventCreate(pool, &raw const desc, &raw mut event)? };
        Ok(event)
    }

    pub fn destroy_event(&self, event: Event) -> Result<(), CallError> {
        // SAFETY: see above.
        unsafe { self.level_zero.zeEventDestroy(event) }
    }

    pub fn signal(&self, event: Event) -> Result<(), CallError> {
        // SAFETY: see above.
        unsafe { self.level_zero.zeEventHostSignal(event) }
    }

    pub fn is_signalled(&self, event: Event) -> Result<bool, CallError> {
        // SAFETY: see above.
        match unsafe { self.level_zero.zeEventQueryStatus(event) } {
            Ok(()) => Ok(true),
            Err(error) if error.code() == Some(ze_result_t::ZE_RESULT_NOT_READY) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The function of a name, as `F`.
    fn extension<F: Copy>(&self, name: &CStr) -> Result<F, CallError> {
        let mut function: *mut c_void = ptr::null_mut();
        let out = &raw mut function;
        // SAFETY: see above; the name is a C string, and `F` the pointer of its function.
        unsafe {
            self.level_zero.zeDriverGetExtensionFunctionAddress(self.driver, name.as_ptr(), out)?;
            Ok(std::mem::transmute_copy::<*mut c_void, F>(&function))
        }
    }

    /// The handles of all tiles, as MPICH asks for them: the number first.
    pub fn get_tiles(&self, address: Address) -> Result<Vec<ze_ipc_mem_handle_t>, Fault> {
        let get: zex_pfnMemGetIpcHandles_t = self.extension(c"zexMemGetIpcHandles")?;
        let get = get.ok_or("no function")?;
        let mut count = 0;
        // SAFETY: see above; null asks for the number alone.
        let code = unsafe { get(self.context, address, &raw mut count, ptr::null_mut()) };
        checked("zexMemGetIpcHandles", code)?;
        let mut handles = vec![ze_ipc_mem_handle_t::default(); count as usize];
        // SAFETY: see above; room for as many handles.
        let code = unsafe { get(self.context, address, &raw mut count, handles.as_mut_ptr()) };
        checked("zexMemGetIpcHandles", code)?;
        Ok(handles)
    }

    pub fn open_tiles(&self, handles: &[ze_ipc_mem_handle_t]) -> Result<Address, Fault> {
        let open: zex_pfnMemOpenIpcHandles_t = self.extension(c"zexMemOpenIpcHandles")?;
        let open = open.ok_or("no function")?;
        let mut handles = handles.to_vec();
        let count = u32::try_from(handles.len())?;
        let mut address = ptr::null_mut();
        let (list, out) = (handles.as_mut_ptr(), &raw mut address);
        // SAFETY: see above; as many handles.
        let code = unsafe { open(self.context, self.device, count, list, 0, out) };
        Ok(checked("zexMemOpenIpcHandles", code).map(|()| address)?)
    }
}

fn checked(function: &'static str, code: ze_result_t) -> Result<(), CallError> {
    match code {
        ze_result_t::ZE_RESULT_SUCCESS => Ok(()),
        code => Err(CallError::Failed { function, code }),
    }
}
