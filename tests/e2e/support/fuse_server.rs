//! A file server that hangs: it answers requests until its one file is open, then no more. Needs
//! root and /dev/fuse. Lives in a mount namespace of its own, so that its mount ends with it.

use super::peer::Link;
use nix::sched::{CloneFlags, unshare};
use std::ffi::CString;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;

// Numbers of linux/fuse.h.
const FUSE_GETATTR: u32 = 3;
const FUSE_OPEN: u32 = 14;
const FUSE_GETXATTR: u32 = 22;
const FUSE_INIT: u32 = 26;
const KERNEL_VERSION: u32 = 7;
const KERNEL_MINOR_VERSION: u32 = 31;
const FUSE_WRITEBACK_CACHE: u32 = 1 << 16;
const IN_HEADER_BYTES: usize = 40;
const INIT_OUT_BYTES: usize = 64;
const ATTR_OUT_BYTES: usize = 104;
const OPEN_OUT_BYTES: usize = 16;
const FILE_BYTES: usize = 4096;

/// Buffer for a request. INIT, GETATTR and OPEN are below 200 bytes; the kernel demands at least 8
/// KiB (FUSE_MIN_READ_BUFFER).
const REQUEST_BYTES: usize = 256 * 1024;

/// Said ahead of the directory: the server goes on until the file is to be written back. That hangs
/// then, as does the unmapping of a page that was written to, with the lock of the address space.
pub const WITH_A_WRITE: &str = "with a write";

/// Why a file server cannot run here; `None` if it can.
pub fn why_not() -> Option<&'static str> {
    if !nix::unistd::geteuid().is_root() {
        return Some("mounting needs root");
    }
    match File::options().read(true).write(true).open("/dev/fuse") {
        Ok(_) => None,
        Err(_) => Some("the kernel has no FUSE"),
    }
}

pub fn play(mut link: Link) {
    let mut dir = link.hear().expect("a directory");
    let is_written = dir == WITH_A_WRITE;
    if is_written {
        dir = link.hear().expect("a directory");
    }
    let mountpoint = format!("{dir}/hung");
    File::create(&mountpoint).expect("a file to mount on");
    unshare(CloneFlags::CLONE_NEWNS).expect("a mount namespace");
    mount("none", "/", "", libc::MS_REC | libc::MS_PRIVATE, "");
    let mut device = File::options().read(true).write(true).open("/dev/fuse").expect("fuse");
    let options = format!("fd={},rootmode=100644,user_id=0,group_id=0", device.as_raw_fd());
    mount("hung", &mountpoint, "fuse", libc::MS_NOSUID | libc::MS_NODEV, &options);
    link.say(&nix::unistd::gettid().to_string());
    while answer(&mut device, is_written).is_some_and(|it| is_written || it != FUSE_OPEN) {}
    link.say("hung");
    // Waits until the test ends this process. Then the kernel fails all calls that hang.
    let _ = link.hear();
}

/// Answers one request; returns its operation. `None`: it is one that is never answered.
fn answer(device: &mut File, is_written: bool) -> Option<u32> {
    let mut request = vec![0; REQUEST_BYTES];
    let length = device.read(&mut request).expect("a request");
    assert!(length >= IN_HEADER_BYTES);
    let word = |at: usize| u32::from_ne_bytes(request[at..at + 4].try_into().expect("4 bytes"));
    let (opcode, unique) = (word(4), &request[8..16]);
    let mut body = match opcode {
        FUSE_INIT => vec![0; INIT_OUT_BYTES],
        FUSE_GETATTR => vec![0; ATTR_OUT_BYTES],
        FUSE_OPEN => vec![0; OPEN_OUT_BYTES],
        FUSE_GETXATTR if is_written => Vec::new(),
        _ if is_written => return None,
        other => panic!("request {other} before the file was open"),
    };
    let mut put = |at: usize, value: u32| body[at..at + 4].copy_from_slice(&value.to_ne_bytes());
    match opcode {
        FUSE_INIT => {
            put(0, KERNEL_VERSION);
            put(4, KERNEL_MINOR_VERSION);
            // Size and times are the kernel's then, and written when the inode is.
            put(12, if is_written { FUSE_WRITEBACK_CACHE } else { 0 });
            // max_write: the least that FUSE allows.
            put(20, 4096);
        }
        // attr.size, attr.mode and attr.nlink: a regular file of one page.
        FUSE_GETATTR => {
            put(16 + 8, FILE_BYTES as u32);
            put(16 + 60, libc::S_IFREG | 0o644);
            put(16 + 64, 1);
        }
        _ => {}
    }
    let total = u32::try_from(16 + body.len()).expect("small");
    let mut reply = total.to_ne_bytes().to_vec();
    // There are no such attributes.
    let error = if opcode == FUSE_GETXATTR { -libc::ENOSYS } else { 0 };
    reply.extend_from_slice(&error.to_ne_bytes());
    reply.extend_from_slice(unique);
    reply.extend_from_slice(&body);
    device.write_all(&reply).expect("the kernel takes the answer");
    Some(opcode)
}

fn mount(source: &str, target: &str, kind: &str, flags: libc::c_ulong, options: &str) {
    let text = |text: &str| CString::new(text).expect("no zero byte");
    let (source, target, kind, options) = (text(source), text(target), text(kind), text(options));
    // SAFETY: four strings that outlive the call; the kernel only reads them.
    let failed = unsafe {
        libc::mount(source.as_ptr(), target.as_ptr(), kind.as_ptr(), flags, options.as_ptr().cast())
    };
    assert_eq!(failed, 0, "mount: {}", std::io::Error::last_os_error());
}
