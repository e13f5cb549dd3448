//! Openers: the program opens memory that only a driver can open, and the import cache keeps it.
//! Must never call the program in a forked child, nor forget to close what was opened.

use crate::acquire::{describe, fdbroker_grant_t};
use crate::context::{context, fdbroker_t};
use crate::errors::fdbroker_code_t;
use crate::failure::Failure;
use crate::guard::guard;
use crate::import::{FDBROKER_IMPORT_READ, FDBROKER_IMPORT_WRITE};
use crate::register::memory_kind;
use crate::slot::inside_callback;
use fdbroker_client::{Access, Error, ErrorCode, Grant, ImportOpener, Opened};
use std::ffi::c_void;
use std::fmt;
use std::sync::Arc;

/// What was opened is a range of this process's addresses, in whole pages. The library has the
/// kernel leave it out of forked children (MADV_DONTFORK), where memory of the child's own may come
/// to lie there; all else is left to the opener.
pub const FDBROKER_OPENED_RANGE: u32 = 1;

/// Memory that an opener has opened. It comes filled in with the size of the allocation.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct fdbroker_opened_t {
    /// Bytes of this struct in the library; do not change it.
    pub struct_size: u64,
    /// The allocation's first byte, as users of the driver address it: ptr of an import is this
    /// plus the handle's offset.
    pub ptr: *mut c_void,
    /// Bytes that may be used from there, more than 0.
    pub size_bytes: u64,
    /// The opener's own, such as the driver's handle. The library does not look at it.
    pub data: *mut c_void,
    /// FDBROKER_OPENED_RANGE, or 0.
    pub flags: u32,
    pub reserved: u32,
}

/// Opens memory that an import does not find in the cache, on the thread that imports, and fills in
/// *opened. flags is FDBROKER_IMPORT_READ or FDBROKER_IMPORT_WRITE. The library closes grant->fd
/// after the call (a driver that closes the fd gets a dup(2) of it) and keeps the lease:
/// grant->lease is 0. FDBROKER_OK, or the code that the import answers. Many threads may be in it
/// at once. It must not throw or longjmp, nor call a function of this library that waits.
pub type fdbroker_open_fn = Option<
    unsafe extern "C" fn(
        user: *mut c_void,
        grant: *const fdbroker_grant_t,
        flags: u32,
        opened: *mut fdbroker_opened_t,
    ) -> fdbroker_code_t,
>;

/// Closes what fdbroker_open_fn has opened, once, when no import uses it and the cache does not
/// keep it any more. On any thread, the library thread too, and so under the rules of
/// fdbroker_recall_fn.
pub type fdbroker_close_fn =
    Option<unsafe extern "C" fn(user: *mut c_void, opened: *const fdbroker_opened_t)>;

/// Has open and close open all memory of a kind (FDBROKER_KIND_*) that fdbroker_import() does not
/// find in the cache. So imports of memory that only a driver can open get what the cache gives: a
/// hit without a message, limits, and memory that has ended is never current. NULL for both: the
/// library opens it, if the CPU can map it.
///
/// What is open already stays in the cache, and is closed by the close function that belongs to its
/// open function, at the latest in fdbroker_close(): keep the memory behind user until then.
/// Neither function is called in a forked child, which has none of it.
///
/// Errors: FDBROKER_NOT_CONNECTED (in a forked child), FDBROKER_INVALID_ARGUMENT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdbroker_set_opener(
    broker: *mut fdbroker_t,
    kind: u32,
    open: fdbroker_open_fn,
    close: fdbroker_close_fn,
    user: *mut c_void,
) -> fdbroker_code_t {
    guard(|| {
        // SAFETY: the caller's context, as the header states.
        let context = unsafe { context(broker, "set an opener") }?;
        let opener: Option<Arc<dyn ImportOpener>> = match (open, close) {
            (Some(open), Some(close)) => {
                Some(Arc::new(Opener(Arc::new(Functions { open, close, user }))))
            }
            (None, None) => None,
            _ => return Err(Failure::argument("set an opener: open and close belong together")),
        };
        Ok(context.cache.set_opener(memory_kind("set an opener", kind)?, opener)?)
    })
}

/// The program's functions, with their first argument.
struct Functions {
    open: unsafe extern "C" fn(
        *mut c_void,
        *const fdbroker_grant_t,
        u32,
        *mut fdbroker_opened_t,
    ) -> fdbroker_code_t,
    close: unsafe extern "C" fn(*mut c_void, *const fdbroker_opened_t),
    user: *mut c_void,
}

// SAFETY: `user` is handed to the functions and not touched here; the header says on which threads
// they run.
unsafe impl Send for Functions {}
// SAFETY: as above.
unsafe impl Sync for Functions {}

impl fmt::Debug for Functions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the program's opener")
    }
}

#[derive(Debug)]
struct Opener(Arc<Functions>);

/// Closed on drop. The cache drops nothing in a forked child.
#[derive(Debug)]
struct Memory {
    functions: Arc<Functions>,
    opened: fdbroker_opened_t,
}

// SAFETY: `opened` is handed to the program's function and not touched here, but for its size.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl ImportOpener for Opener {
    fn open(&self, grant: &Grant, access: Access) -> Result<Box<dyn Opened>, Error> {
        let functions = &self.0;
        let flags = match access {
            Access::Read => FDBROKER_IMPORT_READ,
            Access::ReadWrite | _ => FDBROKER_IMPORT_WRITE,
        };
        let described = describe(grant);
        let mut opened = fdbroker_opened_t {
            struct_size: size_of::<fdbroker_opened_t>() as u64,
            ptr: std::ptr::null_mut(),
            size_bytes: grant.info.facts.size_bytes,
            data: std::ptr::null_mut(),
            flags: 0,
            reserved: 0,
        };
        // SAFETY: the program's function and argument; both structs live over the call.
        let code = inside_callback(|| unsafe {
            (functions.open)(functions.user, &raw const described, flags, &raw mut opened)
        });
        let id = grant.info.id;
        if code != 0 {
            let known = u16::try_from(code).ok().and_then(ErrorCode::from_number);
            let context = format!("import {id}: the program's opener answered {code}");
            let error = Error::new(known.unwrap_or(ErrorCode::Internal), context);
            return Err(error.because("it could not open this memory; it knows why"));
        }
        let memory = Memory { functions: Arc::clone(functions), opened };
        if opened.size_bytes == 0 || opened.flags & !FDBROKER_OPENED_RANGE != 0 {
            let context = format!(
                "import {id}: the program's opener answered {} bytes, flags {:#x}",
                opened.size_bytes, opened.flags
            );
            let why = "an opener opens more than 0 bytes, and knows FDBROKER_OPENED_* alone";
            return Err(Error::new(ErrorCode::Internal, context).because(why));
        }
        Ok(Box::new(memory))
    }
}

impl Opened for Memory {
    fn as_ptr(&self) -> *mut u8 {
        self.opened.ptr.cast()
    }

    fn len(&self) -> usize {
        usize::try_from(self.opened.size_bytes).unwrap_or(usize::MAX)
    }

    fn is_range(&self) -> bool {
        self.opened.flags & FDBROKER_OPENED_RANGE != 0
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the program's function and argument, once for what its other function has opened.
        inside_callback(|| unsafe {
            (self.functions.close)(self.functions.user, &raw const self.opened)
        });
    }
}
