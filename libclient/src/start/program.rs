//! Where the program `fdbroker` is. Must never be asked by a process that has more rights than the
//! user who has set its environment.

use crate::env::Variable;
use crate::error::Error;
use fdbroker_protocol::ErrorCode;
use nix::unistd::{AccessFlags, access};
use std::ffi::{CStr, OsStr, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Where it is from the library's folder: as installed (`lib/`, `lib/TRIPLE/`), in the wheel, and
/// as built.
const BESIDE: [&str; 4] = ["fdbroker", "../bin/fdbroker", "../../bin/fdbroker", "../fdbroker"];

/// The program that the environment names, else the one beside the library, else that of PATH.
pub(super) fn find() -> Result<PathBuf, Error> {
    if let Some(named) = Variable::of_process("FDBROKER_PROGRAM") {
        let named = PathBuf::from(named.value);
        let named = std::path::absolute(&named).unwrap_or(named);
        return is_program(&named).then(|| named.clone()).ok_or_else(|| {
            let what =
                format!("start a broker: FDBROKER_PROGRAM={} is no program", named.display());
            Error::new(ErrorCode::NotSupported, what).because("correct or unset it")
        });
    }
    let beside = library_folder().into_iter().flat_map(|folder| BESIDE.map(|it| folder.join(it)));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&path).map(|folder| folder.join("fdbroker"));
    beside.chain(on_path).find(|path| is_program(path)).ok_or_else(|| {
        Error::new(ErrorCode::NotSupported, "start a broker: there is no program fdbroker")
            .because("it is neither beside the library nor in a folder of PATH; install it, or name it in FDBROKER_PROGRAM")
    })
}

fn is_program(path: &Path) -> bool {
    path.is_absolute() && path.is_file() && access(path, AccessFlags::X_OK).is_ok()
}

/// The folder of the file that this code was loaded from: of the library, or of a program that has
/// it inside.
fn library_folder() -> Option<PathBuf> {
    // SAFETY: a struct of pointers, for which zeros are valid.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    let here: *const c_void = (find as fn() -> _ as *const ()).cast();
    // SAFETY: the address is one of this code, and the struct lives over the call.
    let found = unsafe { libc::dladdr(here, &raw mut info) };
    if found == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the loader's own text, which lives as long as this code.
    let name = OsStr::from_bytes(unsafe { CStr::from_ptr(info.dli_fname) }.to_bytes());
    // Of the program itself it is what the program was called by.
    let file =
        if Path::new(name).is_absolute() { name.into() } else { std::env::current_exe().ok()? };
    file.parent().map(Path::to_owned)
}
