//! CUDA memory that somebody else in this process allocated, by address. Must never keep that
//! memory allocated for longer than a call.

use super::driver::{Context, absent};
use super::raw::{self, CuMemHandle, result};
use crate::api::client::Client;
use crate::backend::device::{ByAddress, Place};
use crate::deposit::Deposit;
use crate::error::Error;
use fdbroker_protocol::{ErrorCode, MemoryKind};
use std::ffi::c_void;
use std::os::fd::OwnedFd;

/// The allocation that somebody mapped at an address, held for the time of a call: for longer it
/// would stay allocated when its owner frees it.
#[derive(Debug)]
struct Retained<'a> {
    context: &'a Context,
    handle: CuMemHandle,
}

impl<'a> Retained<'a> {
    fn new(context: &'a Context, base: u64) -> Result<Self, Error> {
        let _entered = context.enter()?;
        let mut handle = 0;
        let address = usize::try_from(base).expect("64-bit addresses");
        let address: *mut c_void = std::ptr::without_provenance_mut(address);
        // SAFETY: writes one handle through the pointer; the address is looked up, not used.
        // Released once, in drop.
        let answer = unsafe { (context.driver.table.mem_retain)(&raw mut handle, address) };
        if matches!(answer, result::INVALID_VALUE | result::NOT_FOUND) {
            let why = "it is no VMM allocation, and CUDA shares no other memory by fds; in PyTorch, \
                       PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True makes it one";
            return Err(absent(format!("the memory at {base:#x} cannot be shared: {why}")));
        }
        context.driver.check(answer, || "cuMemRetainAllocationHandle".into())?;
        Ok(Retained { context, handle })
    }
}

impl Drop for Retained<'_> {
    fn drop(&mut self) {
        // SAFETY: retained once by `self`.
        self.context.end("cuMemRelease", |table| unsafe { (table.mem_release)(self.handle) });
    }
}

impl Context {
    /// NOT_SUPPORTED: what is mapped at `base` is of another device, or no fd can share it.
    fn check_shareable(&self, base: u64) -> Result<(), Error> {
        let retained = Retained::new(self, base)?;
        let mut prop = self.prop();
        // SAFETY: writes one struct through the pointer; the handle is held meanwhile.
        let answer =
            unsafe { (self.driver.table.mem_get_properties)(&raw mut prop, retained.handle) };
        self.driver.check(answer, || "cuMemGetAllocationPropertiesFromHandle".into())?;
        if prop.handle_types & raw::HANDLE_TYPE_POSIX_FD == 0 {
            let why = "it was allocated without CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR";
            return Err(absent(format!("the memory at {base:#x} cannot be shared: {why}")));
        }
        if prop.location.id != self.device {
            let of = prop.location.id;
            return Err(absent(format!(
                "the memory at {base:#x} is of device {of}; name that one"
            )));
        }
        Ok(())
    }
}

impl ByAddress for Context {
    fn find(&self, at: u64) -> Result<Place, Error> {
        let _entered = self.enter()?;
        let (mut base, mut bytes, mut id) = (0, 0, 0_u64);
        let table = &self.driver.table;
        // SAFETY: writes one address and one size through the pointers.
        let answer = unsafe { (table.mem_get_address_range)(&raw mut base, &raw mut bytes, at) };
        if matches!(answer, result::INVALID_VALUE | result::NOT_FOUND) {
            let context = format!("{at:#x} is no device memory of this process, or was freed");
            return Err(Error::new(ErrorCode::Stale, context));
        }
        self.driver.check(answer, || format!("cuMemGetAddressRange of {at:#x}"))?;
        let what = raw::POINTER_ATTRIBUTE_BUFFER_ID;
        // SAFETY: this attribute is an unsigned long long, which is written through the pointer.
        let answer =
            unsafe { (table.pointer_get_attribute)((&raw mut id).cast::<c_void>(), what, at) };
        self.driver.check(answer, || format!("cuPointerGetAttribute of {at:#x}"))?;
        Ok(Place { base, bytes: bytes as u64, id, is_device: true })
    }

    fn export_at(&self, base: u64) -> Result<OwnedFd, Error> {
        self.export(Retained::new(self, base)?.handle)
    }

    fn complete(&self, client: &Client, place: Place, deposit: &mut Deposit) -> Result<(), Error> {
        if client.own_fds() == 0 {
            return Err(absent("every export is a new fd, so `own_fds` must be 1 or more"));
        }
        deposit.facts.kind = MemoryKind::CudaVmm;
        self.check_shareable(place.base)
    }
}
