//! The lines of /proc that audit reads (proc_pid_status(5), proc_pid_fdinfo(5), proc_pid_maps(5); for dma-bufs
//! Documentation/filesystems/proc.rst). Must never trust a part that a process can choose.

use super::ledger::MemoryKey;
use super::process::Process;
use fdbroker_protocol::MemoryKind;

/// The number of a line `name:\tnumber`, the first of that name.
pub fn field(text: &str, name: &str) -> Option<u64> {
    value(text, name)?.split_ascii_whitespace().next()?.parse().ok()
}

fn value<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

/// Who a process is; `None` for the kernel's own threads, which have no memory and no fds.
pub fn status(text: &str) -> Option<Process> {
    let state = value(text, "State")?.chars().next()?;
    let is_dead = state == 'Z' || state == 'X';
    if value(text, "VmSize").is_none() && !is_dead {
        return None;
    }
    Some(Process {
        // Its own choice, which must not reach a terminal as it is; the kernel escapes line ends here.
        command: value(text, "Name")?
            .chars()
            .map(|c| if c.is_control() { '?' } else { c })
            .collect(),
        state,
        parent: u32::try_from(field(text, "PPid")?).ok()?,
        uid: u32::try_from(field(text, "Uid")?).ok()?,
        ..Process::default()
    })
}

/// Memory that an fdinfo proves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// What it is.
    pub kind: MemoryKind,
    /// References to a dma-buf.
    pub references: Option<u64>,
}

/// What the fdinfo of an fd proves it to be; memfds have this mount.
pub fn memory(info: &str, memfd_mount: u64) -> Option<Memory> {
    // `name:` is the last line of a dma-buf's, and its holder chooses it.
    let proved = || info.lines().take_while(|line| !line.starts_with("name:"));
    if proved().any(|line| line.starts_with("exp_name:")) {
        let references = proved().find_map(|line| line.strip_prefix("count:")?.trim().parse().ok());
        return Some(Memory { kind: MemoryKind::DmaBuf, references });
    }
    let is_memfd = field(info, "mnt_id") == Some(memfd_mount);
    is_memfd.then_some(Memory { kind: MemoryKind::Memfd, references: None })
}

/// What a line of maps maps, and how many bytes; `None` for all but shared memory. A file that is called like a dma-buf
/// and has the inode of one would have to be made on purpose, and by its holder alone.
pub fn mapping(line: &str, memfd_device: &str) -> Option<(MemoryKey, u64)> {
    let mut parts = line.split_ascii_whitespace();
    let (start, end) = parts.next()?.split_once('-')?;
    let (_permissions, _offset) = (parts.next()?, parts.next()?);
    let (device, number) = (parts.next()?, parts.next()?.parse().ok()?);
    let kind = match parts.next()? {
        name if name.starts_with("/memfd:") && device == memfd_device => MemoryKind::Memfd,
        name if name.starts_with("/dmabuf:") => MemoryKind::DmaBuf,
        _ => return None,
    };
    let hex = |text| u64::from_str_radix(text, 16).ok();
    Some((MemoryKey { kind, number }, hex(end)?.saturating_sub(hex(start)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_when_a_process_then_who_it_is_and_none_for_a_kernel_thread() {
        let text = "Name:\tapp\x1b x\nState:\tT (stopped)\nPPid:\t7\nUid:\t1000\t0\t0\t0\nVmSize:\t10 kB\n";
        let process = status(text).expect("a process");
        let said = (process.command.as_str(), process.state, process.parent, process.uid);
        assert_eq!(said, ("app? x", 'T', 7, 1000));
        let thread = "Name:\tkworker\nState:\tI (idle)\nPPid:\t2\nUid:\t0\t0\t0\t0\n";
        assert_eq!(status(thread), None);
        assert!(status(&thread.replace("I (idle)", "Z (zombie)")).is_some());
    }

    #[test]
    fn memory_when_memfd_dma_buf_or_neither_then_told_apart() {
        let common = "pos:\t0\nflags:\t02\nmnt_id:\t7\nino:\t5\n";
        let found = |text: &str| memory(text, 7).map(|memory| (memory.kind, memory.references));
        assert_eq!(found(common), Some((MemoryKind::Memfd, None)));
        assert_eq!(found(&common.replace('7', "8")), None);
        let dma_buf =
            format!("{common}size:\t4096\ncount:\t3\nexp_name:\tudmabuf\nname:\tx\ncount:\t9\n");
        assert_eq!(found(&dma_buf), Some((MemoryKind::DmaBuf, Some(3))));
        let forged = common.replace('7', "8") + "name:\tx\nexp_name:\tx\n";
        assert_eq!(found(&forged), None);
    }

    #[test]
    fn mapping_when_memfd_of_the_kernels_own_mount_or_dma_buf_then_its_key_and_size() {
        let line = "7f40f07af000-7f40f07b1000 rw-s 00000000 00:01 45818     /memfd:x (deleted)\n";
        let key = MemoryKey { kind: MemoryKind::Memfd, number: 45818 };
        assert_eq!(mapping(line, "00:01"), Some((key, 8192)));
        assert_eq!(mapping(line, "00:02"), None);
        let key = MemoryKey { kind: MemoryKind::DmaBuf, number: 45818 };
        assert_eq!(mapping(&line.replace("memfd", "dmabuf"), "00:02"), Some((key, 8192)));
        for line in ["", "7f-80 r--p 0 00:01 4", "7f-80 r--p 0 00:01 4 /dev/zero (deleted)"] {
            assert_eq!(mapping(line, "00:01"), None);
        }
    }

    #[test]
    fn field_when_twice_then_the_first() {
        assert_eq!(field("ino:\t5\nino:\t6\n", "ino"), Some(5));
        assert_eq!(field("inode:\t5\n", "ino"), None);
    }
}
