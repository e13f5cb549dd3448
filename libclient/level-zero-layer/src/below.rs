//! The functions below this layer: those that stood in the loader's tables, else the next ones in
//! the dynamic linker's order. Must never answer a function of this layer, which would call itself
//! for ever.

use crate::limits::DRIVERS;
use level_zero_sys::*;
use std::ffi::{CStr, c_void};
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, Ordering};

/// The loader's soname, the same since spec 1.0.
const LOADER: &CStr = c"libze_loader.so.1";

/// The answer for a function that this loader does not have.
pub const MISSING: ze_result_t = ze_result_t::ZE_RESULT_ERROR_UNSUPPORTED_FEATURE;

/// One function below. `F` is an `Option<fn>`, as in the tables.
pub struct Below<F> {
    name: &'static CStr,
    function: AtomicPtr<c_void>,
    kind: PhantomData<F>,
}

pub static CONTEXT_DESTROY: Below<ze_pfnContextDestroy_t> = Below::new(c"zeContextDestroy");
pub static ALLOC_DEVICE: Below<ze_pfnMemAllocDevice_t> = Below::new(c"zeMemAllocDevice");
pub static ALLOC_HOST: Below<ze_pfnMemAllocHost_t> = Below::new(c"zeMemAllocHost");
pub static ALLOC_SHARED: Below<ze_pfnMemAllocShared_t> = Below::new(c"zeMemAllocShared");
pub static EXTENSION: Below<ze_pfnDriverGetExtensionFunctionAddress_t> =
    Below::new(c"zeDriverGetExtensionFunctionAddress");
pub static POOL_DESTROY: Below<ze_pfnEventPoolDestroy_t> = Below::new(c"zeEventPoolDestroy");
pub static POOL_GET: Below<ze_pfnEventPoolGetIpcHandle_t> = Below::new(c"zeEventPoolGetIpcHandle");
pub static POOL_OPEN: Below<ze_pfnEventPoolOpenIpcHandle_t> =
    Below::new(c"zeEventPoolOpenIpcHandle");
pub static POOL_CLOSE: Below<ze_pfnEventPoolCloseIpcHandle_t> =
    Below::new(c"zeEventPoolCloseIpcHandle");
pub static POOL_PUT: Below<ze_pfnEventPoolPutIpcHandle_t> = Below::new(c"zeEventPoolPutIpcHandle");
pub static FREE: Below<ze_pfnMemFree_t> = Below::new(c"zeMemFree");
pub static FREE_EXT: Below<ze_pfnMemFreeExt_t> = Below::new(c"zeMemFreeExt");
pub static MAP: Below<ze_pfnVirtualMemMap_t> = Below::new(c"zeVirtualMemMap");
pub static UNMAP: Below<ze_pfnVirtualMemUnmap_t> = Below::new(c"zeVirtualMemUnmap");
pub static VIRTUAL_FREE: Below<ze_pfnVirtualMemFree_t> = Below::new(c"zeVirtualMemFree");
pub static PHYSICAL_CREATE: Below<ze_pfnPhysicalMemCreate_t> = Below::new(c"zePhysicalMemCreate");
pub static PHYSICAL_DESTROY: Below<ze_pfnPhysicalMemDestroy_t> =
    Below::new(c"zePhysicalMemDestroy");
pub static ALLOC_PROPERTIES: Below<ze_pfnMemGetAllocProperties_t> =
    Below::new(c"zeMemGetAllocProperties");
pub static DEVICE_PROPERTIES: Below<ze_pfnDeviceGetProperties_t> =
    Below::new(c"zeDeviceGetProperties");
pub static DEVICE_PLACE: Below<ze_pfnDevicePciGetPropertiesExt_t> =
    Below::new(c"zeDevicePciGetPropertiesExt");
pub static ADDRESS_RANGE: Below<ze_pfnMemGetAddressRange_t> = Below::new(c"zeMemGetAddressRange");
pub static GET: Below<ze_pfnMemGetIpcHandle_t> = Below::new(c"zeMemGetIpcHandle");
/// Functions that a program asks a driver for by name: each driver has its own.
pub static GET_TILES: [Below<zex_pfnMemGetIpcHandles_t>; DRIVERS] =
    [const { Below::new(c"zexMemGetIpcHandles") }; DRIVERS];
pub static OPEN_TILES: [Below<zex_pfnMemOpenIpcHandles_t>; DRIVERS] =
    [const { Below::new(c"zexMemOpenIpcHandles") }; DRIVERS];
pub static PUT: Below<ze_pfnMemPutIpcHandle_t> = Below::new(c"zeMemPutIpcHandle");
pub static OPEN: Below<ze_pfnMemOpenIpcHandle_t> = Below::new(c"zeMemOpenIpcHandle");
pub static CLOSE: Below<ze_pfnMemCloseIpcHandle_t> = Below::new(c"zeMemCloseIpcHandle");
pub static HANDLE_OF_FD: Below<ze_pfnMemGetIpcHandleFromFileDescriptorExp_t> =
    Below::new(c"zeMemGetIpcHandleFromFileDescriptorExp");
pub static FD_OF_HANDLE: Below<ze_pfnMemGetFileDescriptorFromIpcHandleExp_t> =
    Below::new(c"zeMemGetFileDescriptorFromIpcHandleExp");

impl<F: Copy> Below<F> {
    pub const fn new(name: &'static CStr) -> Self {
        assert!(size_of::<F>() == size_of::<*mut c_void>());
        Below { name, function: AtomicPtr::new(std::ptr::null_mut()), kind: PhantomData }
    }

    /// The function; `None` where the loader has none.
    pub fn get(&self) -> F {
        let mut function = self.function.load(Ordering::Acquire);
        if function.is_null() {
            function = next(self.name);
            if !function.is_null() {
                // A function that a table brought meanwhile goes first.
                let _ = self.function.compare_exchange(
                    std::ptr::null_mut(),
                    function,
                    Ordering::AcqRel,
                    Ordering::Relaxed,
                );
            }
        }
        // SAFETY: `F` is an `Option<fn>` (the statics above), for which null is `None`; the size is
        // checked. The function was found under its name, or in its place of a table: it has that
        // type.
        unsafe { std::mem::transmute_copy::<*mut c_void, F>(&function) }
    }

    /// Keeps a function that a driver gave for its name, unless it is another one than before:
    /// another driver's.
    pub fn is_this(&self, function: *mut c_void) -> bool {
        let (order, null) = (Ordering::AcqRel, std::ptr::null_mut());
        match self.function.compare_exchange(null, function, order, Ordering::Acquire) {
            Ok(_) => true,
            Err(before) => before == function,
        }
    }

    /// The name that a program asks for.
    pub fn name(&self) -> &'static CStr {
        self.name
    }

    /// Keeps the function that stood in a table.
    pub fn set(&self, function: F) {
        // SAFETY: as above, the other way.
        let function = unsafe { std::mem::transmute_copy::<F, *mut c_void>(&function) };
        self.function.store(function, Ordering::Release);
    }
}

/// A name of a function, which a macro has made with its NUL at the end.
pub const fn name(text: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(name) => name,
        Err(_) => panic!("one NUL, at the end"),
    }
}

static IS_LAYER: AtomicBool = AtomicBool::new(false);

/// The loader has shown its tables to this layer: its own functions lead here.
pub fn note_layer() {
    IS_LAYER.store(true, Ordering::Relaxed);
}

/// Whether it has.
pub fn is_layer() -> bool {
    IS_LAYER.load(Ordering::Relaxed)
}

/// The next function of this name behind the preloaded library, else the loader's. Null: none, or
/// not preloaded.
pub fn next(name: &CStr) -> *mut c_void {
    if !is_preloaded() {
        return std::ptr::null_mut();
    }
    // SAFETY: a C string; RTLD_NEXT is about this very library, which is in the global scope.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    if !found.is_null() {
        return found;
    }
    // When the program opens the loader itself, RTLD_NEXT does not find it.
    let loader = hold_loader();
    if loader.is_null() {
        std::ptr::null_mut()
    } else {
        // SAFETY: the loader's handle, and a C string.
        unsafe { libc::dlsym(loader, name.as_ptr()) }
    }
}

/// The loader, which stays loaded from now on, and the drivers with it: a recall calls them from a
/// thread of its own, also after the program's dlclose(3). Null: it is not loaded.
pub fn hold_loader() -> *mut c_void {
    // SAFETY: a C string; NOLOAD runs nothing, and the count it adds only keeps the loader loaded.
    unsafe { libc::dlopen(LOADER.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) }
}

/// Whether this library was loaded before the Level Zero loader, by LD_PRELOAD. A layer always
/// comes after the loader.
pub fn is_preloaded() -> bool {
    static ANSWER: Answer = Answer::new();
    ANSWER.get_or_look(|| {
        let mut search = Search { own: own_base(), answer: None };
        // SAFETY: the callback gets the search it expects, which outlives the call.
        // dl_iterate_phdr(3).
        unsafe { libc::dl_iterate_phdr(Some(look_at), (&raw mut search).cast()) };
        search.answer.unwrap_or(false)
    })
}

/// Whether the functions of the C library that this library exports stand before the C library's:
/// then a virtual fd is good in this process. A library that the loader opened by itself comes too
/// late for that.
pub fn is_interposed() -> bool {
    static ANSWER: Answer = Answer::new();
    ANSWER.get_or_look(|| {
        // SAFETY: a C string; RTLD_DEFAULT searches as the dynamic linker does for the program.
        let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"close".as_ptr()) };
        !found.is_null() && base_of(found) == own_base()
    })
}

/// What is looked up once. Threads that come first at once each look: a child of fork(2) that
/// copies a lock in the middle would wait for ever.
struct Answer(AtomicU8);

impl Answer {
    const UNKNOWN: u8 = 2;

    const fn new() -> Self {
        Answer(AtomicU8::new(Self::UNKNOWN))
    }

    fn get_or_look(&self, look: impl FnOnce() -> bool) -> bool {
        match self.0.load(Ordering::Relaxed) {
            Self::UNKNOWN => {
                let answer = look();
                self.0.store(answer.into(), Ordering::Relaxed);
                answer
            }
            answer => answer != 0,
        }
    }
}

struct Search {
    own: *mut c_void,
    answer: Option<bool>,
}

/// Finds out whether this library or the loader was loaded first: objects come in the order of
/// loading.
unsafe extern "C" fn look_at(
    object: *mut libc::dl_phdr_info,
    _size: libc::size_t,
    search: *mut c_void,
) -> libc::c_int {
    // SAFETY: dl_iterate_phdr's promise, and that of its caller above.
    let (object, search) = unsafe { (&*object, &mut *search.cast::<Search>()) };
    let is_loader = !object.dlpi_name.is_null() && {
        // SAFETY: a C string that lives as long as the object.
        let name = unsafe { CStr::from_ptr(object.dlpi_name) }.to_bytes();
        let file = name.rsplit(|byte| *byte == b'/').next().unwrap_or(name);
        file.starts_with(b"libze_loader.so")
    };
    if object.dlpi_addr == search.own.addr() as u64 {
        search.answer = Some(true);
    } else if is_loader {
        search.answer = Some(false);
    }
    libc::c_int::from(search.answer.is_some())
}

/// The base address of this library.
fn own_base() -> *mut c_void {
    base_of((own_base as fn() -> *mut c_void) as *const c_void)
}

/// The base address of the library that has an address; dladdr(3). Null: none has.
fn base_of(inside: *const c_void) -> *mut c_void {
    // SAFETY: plain data, for which all zero is a value.
    let mut found: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: an address that is only looked up, and a structure to fill in.
    unsafe { libc::dladdr(inside, &raw mut found) };
    found.dli_fbase
}
