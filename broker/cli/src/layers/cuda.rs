//! `run --cuda`: finds the CUDA layer that belongs to this program, and the variable that preloads
//! it. Must never run a command without the layer that was asked for.

use crate::error::{Error, Result};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The layer's file, as cargo names it.
const LIBRARY: &str = "libfdbroker_cuda.so";

/// Where it is, relative to the directory of an installed program. A build tree has it beside the
/// program.
const INSTALLED: &str = "../lib/fdbroker";

/// The variable of the dynamic linker: ld.so(8).
const PRELOAD: &str = "LD_PRELOAD";

/// The most entries of a program header table that are looked at: a program has some ten.
const ENTRIES_MOST: u16 = 256;

/// The variable that the layer reads: whether memory of cuMemAlloc is its own, too.
const MALLOC: &str = "FDBROKER_CUDA_MALLOC";

/// The variables that preload the layer into `command`, before what the user preloads, and tell it
/// what it is for.
pub fn environment(command: &[OsString], malloc: bool) -> Result<[(&'static str, OsString); 2]> {
    if let Some(program) = command.first().and_then(|name| look_up(name))
        && is_static(&program)
    {
        return Err(Error::Other(format!(
            "{} is linked statically: nothing can be preloaded into it, so --cuda is of no use; link it dynamically",
            program.display()
        )));
    }
    let malloc = if malloc { "1" } else { "0" };
    Ok([(PRELOAD, super::first(PRELOAD, find()?.into_os_string())), (MALLOC, malloc.into())])
}

/// The layer that was installed, or built, with this program.
pub fn find() -> Result<PathBuf> {
    let absent = |here: String| {
        format!(
            "the CUDA layer is neither {here}/{INSTALLED}/{LIBRARY} nor {here}/{LIBRARY}; install it \
             (systemd/install.sh), or build it: cargo build -p fdbroker-cuda-layer"
        )
    };
    let unfit = "LD_PRELOAD; install fdbroker where the path has no `:` and no space";
    let look = |here: &Path| in_dir(&here.join(INSTALLED)).or_else(|| in_dir(here));
    super::find(look, absent, (b": ", unfit))
}

fn in_dir(dir: &Path) -> Option<PathBuf> {
    dir.join(LIBRARY).canonicalize().ok()
}

/// The file that execvp(3) runs for this name; `None`: there is none, which exec will say.
fn look_up(name: &OsStr) -> Option<PathBuf> {
    if name.as_bytes().contains(&b'/') {
        return Some(name.into());
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(name)).find(|file| {
        let is_program =
            |about: std::fs::Metadata| about.is_file() && about.permissions().mode() & 0o111 != 0;
        file.metadata().is_ok_and(is_program)
    })
}

/// Whether it is a program that no dynamic linker starts: one without PT_INTERP, elf(5). A script,
/// or what is no program of 64 bits in this machine's byte order, is not.
fn is_static(program: &Path) -> bool {
    File::open(program).is_ok_and(|file| has_interpreter(&file) == Some(false))
}

/// `None`: it is no such program.
fn has_interpreter(file: &File) -> Option<bool> {
    const ELF_64: [u8; 5] = *b"\x7fELF\x02";
    const PT_INTERP: u32 = 3;
    if read::<5>(file, 0)? != ELF_64 {
        return None;
    }
    let table = u64::from_ne_bytes(read(file, 32)?);
    let entry_bytes = u16::from_ne_bytes(read(file, 54)?);
    let entries = u16::from_ne_bytes(read(file, 56)?).min(ENTRIES_MOST);
    for entry in 0..u64::from(entries) {
        let at = table.checked_add(entry * u64::from(entry_bytes))?;
        if u32::from_ne_bytes(read(file, at)?) == PT_INTERP {
            return Some(true);
        }
    }
    Some(false)
}

fn read<const BYTES: usize>(file: &File, at: u64) -> Option<[u8; BYTES]> {
    let mut bytes = [0; BYTES];
    file.read_exact_at(&mut bytes, at).ok()?;
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The begin of a program with one entry of this kind in its table.
    fn program(kind: u32) -> Vec<u8> {
        let mut bytes = vec![0; 64];
        bytes[..5].copy_from_slice(b"\x7fELF\x02");
        bytes[32..40].copy_from_slice(&64u64.to_ne_bytes());
        bytes[54..56].copy_from_slice(&56u16.to_ne_bytes());
        bytes[56..58].copy_from_slice(&1u16.to_ne_bytes());
        bytes.extend(kind.to_ne_bytes());
        bytes
    }

    #[test]
    fn is_static_when_the_program_names_no_dynamic_linker_then_yes() {
        let dir = nix::unistd::mkdtemp(&std::env::temp_dir().join("fdbroker-test-XXXXXX")).unwrap();
        let is_static_with = |bytes: &[u8]| {
            let path = dir.join("program");
            std::fs::write(&path, bytes).unwrap();
            is_static(&path)
        };
        assert!(is_static_with(&program(1)));
        assert!(!is_static_with(&program(3)));
        assert!(!is_static_with(b"#!/bin/sh\n"));
        assert!(!is_static_with(&program(1)[..40]));
        std::fs::remove_dir_all(&dir).unwrap();
        // This very program, as the kernel has it.
        assert!(!is_static(&std::env::current_exe().unwrap()));
    }

    #[test]
    fn look_up_when_it_has_a_slash_or_is_in_path_then_that_file() {
        assert_eq!(look_up(OsStr::new("./no/such")), Some("./no/such".into()));
        assert!(look_up(OsStr::new("sh")).unwrap().ends_with("sh"));
        assert_eq!(look_up(OsStr::new("no-such-program-anywhere")), None);
    }
}
