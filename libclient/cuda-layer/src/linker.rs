//! dlsym(3) for the whole program: the driver's functions that the layer stands before are the
//! layer's, all else is the C library's answer. Must never hide the caller from it: RTLD_NEXT and
//! RTLD_DEFAULT depend on the caller's address.

use crate::functions::{self, INIT, Named};
use crate::{broker, dynamic};
use std::arch::naked_asm;
use std::ffi::{CStr, c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{null, null_mut};

/// What becomes of a call: a function to go on with, else an answer. The two registers in which C
/// gives back such a structure.
#[repr(C)]
struct Choice {
    go_on: *const c_void,
    answer: *mut c_void,
}

/// # Safety
/// That of dlsym(3).
#[cfg(target_arch = "x86_64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    // The C library's function is jumped to, with the registers and the stack of the caller's own
    // call: it reads its return address from the top of the stack.
    naked_asm!(
        ".cfi_startproc",
        "endbr64",
        "mov rdx, [rsp]",
        "push rdi",
        ".cfi_adjust_cfa_offset 8",
        "push rsi",
        ".cfi_adjust_cfa_offset 8",
        "sub rsp, 8",
        ".cfi_adjust_cfa_offset 8",
        "call {choose}",
        "add rsp, 8",
        ".cfi_adjust_cfa_offset -8",
        "pop rsi",
        ".cfi_adjust_cfa_offset -8",
        "pop rdi",
        ".cfi_adjust_cfa_offset -8",
        "test rax, rax",
        "jz 2f",
        "jmp rax",
        "2:",
        "mov rax, rdx",
        "ret",
        ".cfi_endproc",
        choose = sym choose,
    )
}

/// # Safety
/// That of dlsym(3).
#[cfg(target_arch = "aarch64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    // The C library's function is jumped to, with the registers of the caller's own call: it reads
    // its return address from x30. The branch is by x16, which may lead to the begin of a function
    // (BTI).
    naked_asm!(
        ".cfi_startproc",
        "hint #34",
        "stp x29, x30, [sp, #-32]!",
        ".cfi_adjust_cfa_offset 32",
        ".cfi_rel_offset x29, 0",
        ".cfi_rel_offset x30, 8",
        "stp x0, x1, [sp, #16]",
        "mov x29, sp",
        "mov x2, x30",
        "bl {choose}",
        "mov x16, x0",
        "mov x17, x1",
        "ldp x0, x1, [sp, #16]",
        "ldp x29, x30, [sp], #32",
        ".cfi_adjust_cfa_offset -32",
        ".cfi_restore x29",
        ".cfi_restore x30",
        "cbz x16, 2f",
        "br x16",
        "2:",
        "mov x0, x17",
        "ret",
        ".cfi_endproc",
        choose = sym choose,
    )
}

/// # Safety
/// That of dlsym(3); `caller` is an address in the code that has called it.
unsafe extern "C" fn choose(
    handle: *mut c_void,
    name: *const c_char,
    caller: *const c_void,
) -> Choice {
    let go_on = Choice { go_on: dynamic::dlsym() as *const c_void, answer: null_mut() };
    if name.is_null() {
        return go_on;
    }
    // SAFETY: the caller's promise.
    let name = unsafe { CStr::from_ptr(name) };
    if name == INIT {
        broker::note_driver();
        return go_on;
    }
    // SAFETY: the caller's promise.
    let found = catch_unwind(AssertUnwindSafe(|| unsafe {
        match functions::of_symbol(name) {
            Some(named) => find(named, handle, name, caller),
            None => find_by_library(handle, name),
        }
    }));
    match found {
        Ok(Some(answer)) => Choice { go_on: null(), answer },
        Ok(None) => go_on,
        Err(payload) => {
            // The payload's own drop may panic too.
            std::mem::forget(payload);
            go_on
        }
    }
}

/// The answer for a function of the layer; `None`: the C library's own.
///
/// # Safety
/// That of dlsym(3).
unsafe fn find(
    named: &Named,
    handle: *mut c_void,
    name: &CStr,
    caller: *const c_void,
) -> Option<*mut c_void> {
    match handle {
        // In the order of search this library comes before the driver: a caller before both finds
        // the layer's, and one behind the layer, as an interposer of the same function is, what the
        // layer would find.
        libc::RTLD_NEXT | libc::RTLD_DEFAULT if named.is_known() => None,
        // The first in the order of search is the layer's own symbol, which says nothing of a
        // driver.
        libc::RTLD_NEXT | libc::RTLD_DEFAULT => Some(nobodys(name)),
        library => {
            // SAFETY: the caller's promise.
            let found = unsafe { dynamic::symbol(library, name.as_ptr()) };
            if !found.is_null() && dynamic::is_own(found) && !named.is_known() {
                // The program's own handle leads to all that is preloaded.
                return Some(nobodys(name));
            }
            // A library that wraps the driver has functions of the same names; and a driver may be
            // made of two files, one of which looks for its functions in the other.
            let is_drivers = !found.is_null() && dynamic::is_in_driver(found);
            Some(if is_drivers && !dynamic::is_in_driver(caller) {
                named.instead_of(found)
            } else {
                found
            })
        }
    }
}

/// The answer for any other function: what this library has in the place of the C library's. A
/// program that opens that by its name, as Python's ctypes can, gets what it would get by linking
/// it. `None`: the C library's own answer.
///
/// # Safety
/// That of dlsym(3).
unsafe fn find_by_library(library: *mut c_void, name: &CStr) -> Option<*mut c_void> {
    if matches!(library, libc::RTLD_NEXT | libc::RTLD_DEFAULT) {
        return None;
    }
    // SAFETY: the caller's promise.
    let found = unsafe { dynamic::symbol(library, name.as_ptr()) };
    if found.is_null() || !dynamic::is_in_c_library(found) {
        return Some(found);
    }
    let own = dynamic::own(name);
    Some(if own.is_null() { found } else { own })
}

/// The answer for a function that only this library has: null, and dlerror(3) says so.
fn nobodys(name: &CStr) -> *mut c_void {
    // SAFETY: a C string.
    unsafe { dynamic::symbol(libc::RTLD_NEXT, name.as_ptr()) }
}
