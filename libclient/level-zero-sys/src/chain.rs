//! Walks `pNext` chains for drivers and layers. Must never walk for ever.

use crate::bindings::ze_base_desc_t;
use crate::structure::Structure;
use std::ffi::c_void;

/// The most structures that are followed along one `pNext` chain. The specification has fewer
/// extension structures than this for all its functions together, so a longer chain is a circle or
/// garbage.
pub const MAX_CHAIN: usize = 64;

/// The first `T` in the chain that begins at `first`, a `pNext`. Null is an empty chain.
///
/// # Safety
/// `first` is null or begins a chain by the specification: each structure begins with `stype` and
/// `pNext`. All of them stay valid, and nobody writes to them, while the answer is used.
pub unsafe fn find<'a, T: Structure>(first: *const c_void) -> Option<&'a T> {
    // SAFETY: the caller's promise; `place` found this very type there.
    unsafe { place::<T>(first).map(|at| &*at) }
}

/// Like [`find`], for a structure that is to be filled in.
///
/// # Safety
/// As [`find`], and nobody else reads or writes the structure while the answer is used.
pub unsafe fn find_mut<'a, T: Structure>(first: *mut c_void) -> Option<&'a mut T> {
    // SAFETY: the caller's promise; `first` came from a mutable chain, so its structures may be
    // written.
    unsafe { place::<T>(first).map(|at| &mut *at.cast_mut()) }
}

/// # Safety
/// As [`find`].
unsafe fn place<T: Structure>(first: *const c_void) -> Option<*const T> {
    let mut at = first.cast::<ze_base_desc_t>();
    for _ in 0..MAX_CHAIN {
        if at.is_null() {
            return None;
        }
        // SAFETY: the caller's promise: every structure of the chain begins like `ze_base_desc_t`.
        let (stype, next) = unsafe { ((*at).stype, (*at).pNext) };
        if stype == T::STYPE {
            return Some(at.cast());
        }
        at = next.cast();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bindings::{
        ze_device_mem_alloc_desc_t, ze_external_memory_export_desc_t,
        ze_external_memory_import_fd_t,
    };
    use std::ptr;

    #[test]
    fn a_structure_when_it_is_second_in_the_chain_is_found() {
        let import = ze_external_memory_import_fd_t { fd: 7, ..Structure::blank() };
        let export = ze_external_memory_export_desc_t {
            pNext: ptr::from_ref(&import).cast(),
            ..Structure::blank()
        };
        let desc = ze_device_mem_alloc_desc_t {
            pNext: ptr::from_ref(&export).cast(),
            ..Structure::blank()
        };

        // SAFETY: three live structures, none written.
        let found = unsafe { find::<ze_external_memory_import_fd_t>(desc.pNext) };

        assert_eq!(found.map(|import| import.fd), Some(7));
    }

    #[test]
    fn a_chain_when_it_is_empty_or_holds_others_has_no_such_structure() {
        let export = ze_external_memory_export_desc_t::blank();

        // SAFETY: null, then one live structure.
        unsafe {
            assert!(find::<ze_external_memory_import_fd_t>(ptr::null()).is_none());
            let first = ptr::from_ref(&export).cast();
            assert!(find::<ze_external_memory_import_fd_t>(first).is_none());
        }
    }

    #[test]
    fn a_chain_when_it_is_a_circle_is_left() {
        let mut export = ze_external_memory_export_desc_t::blank();
        let place = &raw mut export;
        // SAFETY: `place` is live, and only this line writes it.
        unsafe { (*place).pNext = place.cast() };

        // SAFETY: as above; the walk is bounded.
        assert!(unsafe { find::<ze_external_memory_import_fd_t>(place.cast()) }.is_none());
    }
}
