//! The lines of /proc that audit reads (proc_pid_status(5), proc_pid_fdinfo(5), proc_pid_maps(5);
//! for dma-bufs Documentation/filesystems/proc.rst). Must never trust a part that a process can
//! choose.

#[cfg(test)]
mod tests;

use super::ledger::MemoryKey;
use super::process::{Buffer, Process, Ring};
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
        // Its own choice, which must not reach a terminal as it is; the kernel escapes line ends
        // here.
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

/// What a line of maps maps, and how many bytes; `None` for all but shared memory. A file that is
/// called like a dma-buf and has the inode of one would have to be made on purpose, and by its
/// holder alone.
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

/// What follows a line of the fdinfo of a ring: `    0: /memfd:x (deleted)`, `    1: 0x7f.../4096`.
/// An empty place is `<none>` or left out.
fn listed<'a>(info: &'a str, name: &'static str) -> impl Iterator<Item = &'a str> {
    let after = info.lines().skip_while(move |line| !line.starts_with(name)).skip(1);
    after.map_while(|line| {
        let (number, what) = line.trim_start().split_once(": ")?;
        number.parse::<u64>().is_ok().then_some(what)
    })
}

/// What is registered with a ring, of its fdinfo. Files are told by their names, since the kernel
/// gives no inodes: a file that is called like memory counts as memory.
pub fn ring(info: &str, fd: i32) -> Ring {
    // Newer kernels give paths, older ones (up to 6.12) the last part alone.
    let is_memory = |path: &&str| {
        let name = path.trim_start_matches('/');
        name.starts_with("memfd:") || name.starts_with("dmabuf") || name.ends_with("nvidiactl")
    };
    let files = listed(info, "UserFiles:").filter(is_memory).count() as u64;
    let buffers = listed(info, "UserBufs:").filter(|what| what.starts_with("0x")).count() as u64;
    Ring { fd, files, buffers }
}

/// A line of the list (`dma_buf_debug_show` in drivers/dma-buf/dma-buf.c); `None` for its other
/// lines.
pub fn buffer(line: &str) -> Option<Buffer> {
    let parts: Vec<&str> = line.split('\t').map(str::trim).collect();
    let [size, _flags, _mode, count, exporter, inode, _name, ..] = parts.as_slice() else {
        return None;
    };
    Some(Buffer {
        inode: inode.parse().ok()?,
        size_bytes: size.parse().ok()?,
        references: count.parse().ok()?,
        exporter: exporter.chars().map(|c| if c.is_control() { '?' } else { c }).collect(),
    })
}
