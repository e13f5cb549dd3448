//! Checks the devices and drivers that allocate memory. Must never load a driver into this process:
//! see `probe`.

use super::check::{Area, Check, number_in};
use super::probe::{self, Driver};
use crate::output::commas;
use std::fs::OpenOptions;
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

const AREA: Area = Area("devices");

/// Most device files of one directory: more GPUs than a node has.
const MOST_FILES: usize = 64;

pub fn checks() -> Vec<Check> {
    let mut checks = vec![udmabuf(), heaps()];
    checks.extend(nodes("render nodes", Path::new("/dev/dri"), "renderD"));
    checks.extend(nodes("NVIDIA devices", Path::new("/dev"), "nvidia"));
    checks.push(driver(
        "Level Zero",
        Driver::LevelZero,
        has_files(Path::new("/dev/dri"), "renderD"),
    ));
    checks.push(driver("CUDA", Driver::Cuda, Path::new("/dev/nvidiactl").exists()));
    checks
}

/// Opens a device for reading and writing.
fn open(path: &Path) -> Result<(), std::io::Error> {
    let mut options = OpenOptions::new();
    // A device that is opened exclusively elsewhere must not block this.
    options.read(true).write(true).custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC);
    options.open(path).map(drop)
}

fn denied(path: &Path) -> String {
    let group = std::fs::metadata(path)
        .map(|it| format!("group {} (mode {:o})", it.gid(), it.mode() & 0o777));
    let group = group.unwrap_or_else(|_| "its group".into());
    format!(
        "add this user to {group} of {}: usermod -aG GROUP USER; in a container pass the device in",
        path.display()
    )
}

fn udmabuf() -> Check {
    let (name, path) = ("udmabuf", Path::new("/dev/udmabuf"));
    let limit = |what: &str| number_in(&format!("/sys/module/udmabuf/parameters/{what}"));
    match open(path) {
        Ok(()) => match (limit("size_limit_mb"), limit("list_limit")) {
            (Some(size), Some(list)) => AREA.ok(
                name,
                format!(
                    "{}, at most {} MiB and {} ranges each",
                    path.display(),
                    commas(size),
                    commas(list)
                ),
            ),
            _ => AREA.ok(name, path.display().to_string()),
        },
        Err(cause) if cause.kind() == ErrorKind::NotFound => AREA.warn(
            name,
            "none: host memory is shared as sealed memfds, which GPU drivers do not import",
            "modprobe udmabuf (CONFIG_UDMABUF), if host memory is to be a dma-buf",
        ),
        Err(cause) => AREA.warn(name, format!("{}: {cause}", path.display()), denied(path)),
    }
}

fn heaps() -> Check {
    let name = "dma-heap";
    let files = files(Path::new("/dev/dma_heap"), "");
    if files.is_empty() {
        return AREA.ok(name, "none: only isolated host memory needs one");
    }
    let refused = files.iter().find_map(|path| Some((path, open(path).err()?)));
    match refused {
        Some((path, cause)) => {
            AREA.warn(name, format!("{}: {cause}", path.display()), denied(path))
        }
        None => AREA.ok(name, listed(&files)),
    }
}

/// Checks device files by name; `None`: there are none.
fn nodes(name: &'static str, folder: &Path, prefix: &str) -> Option<Check> {
    let files = files(folder, prefix);
    let refused = files.iter().find_map(|path| {
        let cause = open(path).err()?;
        // This user cannot mend a control device without driver, or a device that is opened
        // exclusively elsewhere.
        (cause.kind() == ErrorKind::PermissionDenied).then_some((path, cause))
    });
    match refused {
        _ if files.is_empty() => None,
        Some((path, cause)) => {
            Some(AREA.fail(name, format!("{}: {cause}", path.display()), denied(path)))
        }
        None => Some(AREA.ok(name, listed(&files))),
    }
}

/// Checks a driver. `has_device`: there is a device file of such a GPU.
fn driver(name: &'static str, driver: Driver, has_device: bool) -> Check {
    match probe::ask(driver) {
        Ok(devices) => AREA.ok(name, devices),
        Err(why) if has_device => {
            let remedy = match driver {
                Driver::LevelZero => {
                    "install the loader (libze1, level-zero) and the GPU's driver (intel-level-zero-gpu, libze-intel-gpu1)"
                }
                Driver::Cuda => {
                    "install the driver's libcuda.so.1 for this container or node, of the kernel module's version (nvidia-smi shows it)"
                }
            };
            AREA.warn(name, why, remedy)
        }
        Err(why) => AREA.ok(name, format!("no such GPU here ({why})")),
    }
}

fn has_files(folder: &Path, prefix: &str) -> bool {
    !files(folder, prefix).is_empty()
}

/// Files of a directory whose names begin with `prefix`, sorted, without directories.
fn files(folder: &Path, prefix: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let wanted = entries.filter(|entry| {
        entry.file_name().to_string_lossy().starts_with(prefix)
            && entry.file_type().is_ok_and(|kind| !kind.is_dir())
    });
    let mut files: Vec<PathBuf> = wanted.map(|entry| entry.path()).take(MOST_FILES).collect();
    files.sort();
    files
}

/// In one sentence, however many there are.
fn listed(files: &[PathBuf]) -> String {
    match files {
        [first, .., last] if files.len() > 3 => {
            format!("{} files, {} to {}", files.len(), first.display(), last.display())
        }
        _ => files.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::super::check::Verdict;
    use super::*;

    #[test]
    fn nodes_when_there_are_none_then_nothing_is_said() {
        assert_eq!(nodes("render nodes", Path::new("/no/such/folder"), "renderD"), None);
        assert_eq!(nodes("render nodes", Path::new("/dev"), "no such name"), None);
        let check = nodes("null", Path::new("/dev"), "null").expect("one is there");
        assert_eq!(
            (check.verdict, check.remedy, check.found.as_str()),
            (Verdict::Ok, None, "/dev/null")
        );
        let files = ["/dev/a0", "/dev/a1", "/dev/a2", "/dev/a3"].map(PathBuf::from);
        assert_eq!(listed(&files), "4 files, /dev/a0 to /dev/a3");
        assert_eq!(listed(&files[..2]), "/dev/a0, /dev/a1");
    }
}
