//! `run --level-zero`: finds the Level Zero layer that belongs to this program, and the variables
//! that enable it. Must never run a command without the layer that was asked for.

use super::first;
use crate::error::Result;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The name that the Level Zero loader opens.
const LINK: &str = "libze_validation_layer.so.1";

/// The layer's file, as cargo names it.
const LIBRARY: &str = "libfdbroker_ze.so";

/// Where the link is, relative to the directory of an installed program, and of a program in a
/// build tree.
const INSTALLED: &str = "../lib/fdbroker/level-zero";
const BUILT: &str = "fdbroker-level-zero";

/// The variables that enable the layer: the loader's switch, LD_LIBRARY_PATH with the layer's
/// directory first, and LD_PRELOAD with the layer first, which makes its fd numbers good in every
/// process.
pub fn environment() -> Result<[(&'static str, OsString); 3]> {
    let dir = find()?;
    let layer = first("LD_PRELOAD", dir.join(LINK).into_os_string());
    let path = first("LD_LIBRARY_PATH", dir.into_os_string());
    Ok([
        ("ZE_ENABLE_VALIDATION_LAYER", "1".into()),
        ("LD_LIBRARY_PATH", path),
        ("LD_PRELOAD", layer),
    ])
}

/// What the loader's validation layer is told by: the layer stands in its place. The names are its
/// source's.
const OF_VALIDATION: [&str; 4] = [
    "ZE_ENABLE_PARAMETER_VALIDATION",
    "ZE_ENABLE_HANDLE_LIFETIME",
    "ZE_ENABLE_THREADING_VALIDATION",
    "ZEL_ENABLE_BASIC_LEAK_CHECKER",
];

/// What this environment asks the loader's validation layer for, in vain.
pub fn switched_off() -> Option<&'static str> {
    let is_on = |name: &&str| std::env::var_os(name).is_some_and(|value| value == "1");
    OF_VALIDATION.into_iter().find(is_on)
}

/// The layer's file.
pub fn library() -> Result<PathBuf> {
    let link = find()?.join(LINK);
    Ok(link.canonicalize().unwrap_or(link))
}

/// The directory of the layer that was installed, or built, with this program.
fn find() -> Result<PathBuf> {
    let absent = |here: String| {
        format!(
            "the Level Zero layer is neither in {here}/{INSTALLED} nor beside the program; install it \
             (systemd/install.sh), or build it: cargo build -p fdbroker-ze-layer"
        )
    };
    let unfit =
        "LD_LIBRARY_PATH and LD_PRELOAD; install fdbroker where the path has no `:`, `;` or space";
    let look = |here: &Path| installed(here).or_else(|| built(here));
    super::find(look, absent, (b":; ", unfit))
}

fn installed(here: &Path) -> Option<PathBuf> {
    let dir = here.join(INSTALLED).canonicalize().ok()?;
    dir.join(LINK).exists().then_some(dir)
}

/// A build tree has the library without the link. The link is made in a directory of its own, so
/// that no other library of the build tree is found through LD_LIBRARY_PATH.
fn built(here: &Path) -> Option<PathBuf> {
    here.join(LIBRARY).exists().then_some(())?;
    let dir = here.join(BUILT);
    let link = dir.join(LINK);
    if !link.exists() {
        // Another process may make the link at the same time. All that counts is that the link is
        // there.
        let _ = std::fs::create_dir(&dir);
        let _ = std::os::unix::fs::symlink(Path::new("..").join(LIBRARY), &link);
    }
    link.exists().then_some(dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn built_when_the_library_is_beside_the_program_then_a_link_in_a_directory_of_its_own() {
        let here = tempfile_dir();
        assert_eq!(built(&here), None);
        std::fs::write(here.join(LIBRARY), "").unwrap();
        let dir = built(&here).unwrap();
        assert!(dir.join(LINK).exists());
        assert_eq!(built(&here), Some(dir));
        std::fs::remove_dir_all(&here).unwrap();
    }

    #[test]
    fn installed_when_the_link_is_missing_then_not_found() {
        let root = tempfile_dir();
        let (bin, dir) = (root.join("bin"), root.join("lib/fdbroker/level-zero"));
        std::fs::create_dir_all(&bin).unwrap();
        std::fs::create_dir_all(&dir).unwrap();
        assert_eq!(installed(&bin), None);
        std::fs::write(dir.join(LINK), "").unwrap();
        assert_eq!(installed(&bin), Some(dir.canonicalize().unwrap()));
        std::fs::remove_dir_all(&root).unwrap();
    }

    fn tempfile_dir() -> PathBuf {
        nix::unistd::mkdtemp(&std::env::temp_dir().join("fdbroker-test-XXXXXX")).unwrap()
    }
}
