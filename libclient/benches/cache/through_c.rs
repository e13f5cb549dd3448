//! The import cache through the C ABI: the shared library, loaded and called as a C program does.
//! Must never call the Rust library.

use crate::daemon::{Daemon, built, given};
use crate::world::DEADLINE_MS;
use fdbroker_client::{Handle, MemoryKind};
use libloading::Library;
use std::ffi::c_void;
use std::hint::black_box;
use std::path::PathBuf;
use std::process::Command;
use std::ptr::{null, null_mut, without_provenance_mut};

/// fdbroker_import_t.
#[repr(C)]
#[derive(Clone, Copy)]
struct Import {
    ptr: *mut c_void,
    size_bytes: u64,
    pin: u64,
    slot: u32,
    generation: u32,
}

const NONE: Import = Import { ptr: null_mut(), size_bytes: 0, pin: 0, slot: 0, generation: 0 };

/// The first fields of fdbroker_opened_t.
#[repr(C)]
struct Opened {
    struct_size: u64,
    ptr: *mut c_void,
}

type Context = *mut c_void;
type OpenMemory = extern "C" fn(*mut c_void, *const c_void, u32, &mut Opened) -> i32;
type CloseMemory = extern "C" fn(*mut c_void, *const c_void);
type OpenContext = unsafe extern "C" fn(*const c_void, *mut Context) -> i32;
type SetOpener = unsafe extern "C" fn(Context, u32, OpenMemory, CloseMemory, *mut c_void) -> i32;
type ImportOne = unsafe extern "C" fn(Context, *const Handle, u32, u32, *mut Import) -> i32;
type ImportMany =
    unsafe extern "C" fn(Context, usize, *const Handle, u32, u32, *mut Import, *mut i32) -> i32;
type Release = unsafe extern "C" fn(Context, *mut Import) -> i32;

/// A context of the C library, whose opener hands out an address.
pub struct ThroughC {
    context: Context,
    import: ImportOne,
    import_many: ImportMany,
    release: Release,
}

extern "C" fn open_memory(_: *mut c_void, _: *const c_void, _: u32, opened: &mut Opened) -> i32 {
    opened.ptr = without_provenance_mut(0x1000);
    0
}

extern "C" fn close_memory(_: *mut c_void, _: *const c_void) {}

/// The shared library, built and linked now.
fn linked() -> PathBuf {
    let archive = built("fdbroker-capi", "libfdbroker.a");
    let folder = archive.parent().expect("it is in a folder");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/capi/link.sh");
    let linked = Command::new(script).arg(folder).status();
    assert!(linked.is_ok_and(|status| status.success()), "{script} failed");
    folder.join("capi/libfdbroker.so.0")
}

impl ThroughC {
    /// Connects. The library stays loaded, and the context open, until the process ends.
    pub fn connect(daemon: &Daemon) -> Self {
        let path = given("FDBROKER_LIBRARY").unwrap_or_else(linked);
        // SAFETY: our own library; its types are those of fdbroker.h.
        unsafe {
            std::env::set_var("FDBROKER_SOCKET", daemon.socket());
            let library: &Library = Box::leak(Box::new(Library::new(&path).expect("loaded")));
            let open = library.get::<OpenContext>(b"fdbroker_open\0").expect("declared");
            let set_opener = library.get::<SetOpener>(b"fdbroker_set_opener\0").expect("declared");
            let mut context = null_mut();
            assert_eq!(open(null(), &raw mut context), 0, "fdbroker_open");
            let kind = MemoryKind::Memfd as u32;
            assert_eq!(set_opener(context, kind, open_memory, close_memory, null_mut()), 0);
            ThroughC {
                context,
                import: *library.get(b"fdbroker_import\0").expect("declared"),
                import_many: *library.get(b"fdbroker_import_many\0").expect("declared"),
                release: *library.get(b"fdbroker_import_release\0").expect("declared"),
            }
        }
    }

    /// Imports many, and leaves them in the cache.
    pub fn fill(&self, handles: &[Handle]) {
        let (mut imports, count) = (vec![NONE; handles.len()], handles.len());
        let (from, to) = (handles.as_ptr(), imports.as_mut_ptr());
        // SAFETY: both arrays have `count` elements; codes may be NULL.
        let code = unsafe {
            (self.import_many)(self.context, count, from, 0, DEADLINE_MS, to, null_mut())
        };
        assert_eq!(code, 0, "fdbroker_import_many");
        for import in &mut imports {
            // SAFETY: an import that was not given back.
            assert_eq!(unsafe { (self.release)(self.context, import) }, 0);
        }
    }

    /// Import and release of what is in the cache.
    #[inline]
    pub fn hit(&self, handle: &Handle) {
        let mut import = NONE;
        // SAFETY: one handle, one import, given back at once.
        let codes = unsafe {
            let imported =
                (self.import)(self.context, black_box(handle), 0, DEADLINE_MS, &raw mut import);
            black_box(import.ptr);
            (imported, (self.release)(self.context, &raw mut import))
        };
        assert_eq!(codes, (0, 0));
    }
}
