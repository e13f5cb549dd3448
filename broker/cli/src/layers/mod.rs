//! The layers for programs that know nothing of fdbroker: where they are, and the variables that
//! put them before a program. Must never load one into this process.

pub mod cuda;
pub mod level_zero;

use crate::error::{Error, Result};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// What `look` finds from this program's folder on; `absent` says in which places of it there is
/// nothing. Bytes in `partings` part paths in the variables that the path is for (ld.so(8)):
/// `unfit` says which, and what to do.
fn find(
    look: impl FnOnce(&Path) -> Option<PathBuf>,
    absent: impl FnOnce(String) -> String,
    (partings, unfit): (&[u8], &str),
) -> Result<PathBuf> {
    let program = std::env::current_exe().ok();
    let here = program.as_deref().and_then(Path::parent);
    let found = here.and_then(look).ok_or_else(|| {
        let here = here.map_or("its directory".into(), |here| here.display().to_string());
        Error::Other(absent(here))
    })?;
    if found.as_os_str().as_bytes().iter().any(|byte| partings.contains(byte)) {
        return Err(Error::Other(format!("{} cannot stand in {unfit}", found.display())));
    }
    Ok(found)
}

/// `value`, and behind it what the variable has already.
fn first(variable: &str, mut value: OsString) -> OsString {
    if let Some(before) = std::env::var_os(variable).filter(|before| !before.is_empty()) {
        value.push(":");
        value.push(before);
    }
    value
}
