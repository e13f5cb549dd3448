//! A file whose file server hangs: it answers until the file is open, and nothing after that. Needs root and
//! /dev/fuse; lives in a mount namespace of its own, so that nothing of it stays behind.

use super::memory::BLOCK_BYTES;
use super::peer::{Link, Peer};
use super::raw::Raw;
use super::wait::patience;
use fdbroker_client::{Client, Deposit};
use fdbroker_protocol::MemoryKind;
use nix::sched::{CloneFlags, unshare};
use std::ffi::CString;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;

// Of linux/fuse.h.
const FUSE_GETATTR: u32 = 3;
const FUSE_OPEN: u32 = 14;
const FUSE_INIT: u32 = 26;
const KERNEL_VERSION: u32 = 7;
const KERNEL_MINOR_VERSION: u32 = 31;
const IN_HEADER_BYTES: usize = 40;
const INIT_OUT_BYTES: usize = 64;
const ATTR_OUT_BYTES: usize = 104;
const OPEN_OUT_BYTES: usize = 16;

/// More than any request: INIT's, GETATTR's and OPEN's are below 200 bytes, and the kernel asks for at least 8 KiB.
const REQUEST_BYTES: usize = 256 * 1024;

/// Why there can be none here, if so.
pub fn why_not() -> Option<&'static str> {
    if !nix::unistd::geteuid().is_root() {
        return Some("mounting needs root");
    }
    match File::options().read(true).write(true).open("/dev/fuse") {
        Ok(_) => None,
        Err(_) => Some("the kernel has no FUSE"),
    }
}

/// A hung file: who serves it, and who has it open and can deposit it. No process that forks may have it open: a close
/// of it hangs, that of close-on-exec too. The fields are in the order in which they must end.
#[derive(Debug)]
pub struct HungFile {
    pub server: Peer,
    depositor: Peer,
}

impl HungFile {
    /// One in `dir`, and a client of the broker at `socket` that has it open.
    pub fn new(dir: &Path, socket: &Path) -> HungFile {
        let mut server = Peer::start("hung file server");
        // A thread's mount namespace is seen through that thread alone.
        let thread = server.ask(&dir.display().to_string());
        let path = format!("/proc/{}/task/{thread}/root{}/hung", server.pid(), dir.display());
        let mut depositor = Peer::start("hung file depositor");
        depositor.link.say(&format!("{} {path}", socket.display()));
        assert_eq!(server.hear(), "hung");
        assert_eq!(depositor.hear(), "open");
        HungFile { server, depositor }
    }

    /// What becomes of a deposit of it.
    pub fn deposit(&mut self) -> String {
        self.depositor.ask("deposit")
    }

    /// Sends a broken message with `count` fds of it.
    pub fn send_broken(&mut self, count: usize) {
        assert_eq!(self.depositor.ask(&format!("break {count}")), "sent");
    }
}

/// The part of the depositor.
pub fn play_depositor(mut link: Link) {
    let line = link.hear().expect("a socket and a path");
    let (socket, path) = line.split_once(' ').expect("two words");
    let client = Client::builder().socket(socket).name("depositor").connect().expect("connect");
    let file = File::open(path).expect("the server answers this");
    link.say("open");
    while let Some(line) = link.hear() {
        let answer = match line.strip_prefix("break ") {
            Some(count) => {
                let raw = Raw::connect(Path::new(socket));
                let count = count.parse().expect("a number");
                raw.send(&[0], &vec![file.as_fd(); count]).expect("sent");
                raw.assert_ended();
                "sent".to_owned()
            }
            None => {
                let deposit = Deposit::new(MemoryKind::Memfd, BLOCK_BYTES as u64);
                let outcome = client.register(&deposit, file.as_fd(), patience());
                outcome.expect_err("it is no memory").to_string()
            }
        };
        link.say(&answer);
    }
}

/// The part of the server.
pub fn play_server(mut link: Link) {
    let dir = link.hear().expect("a directory");
    let mountpoint = format!("{dir}/hung");
    File::create(&mountpoint).expect("a file to mount on");
    unshare(CloneFlags::CLONE_NEWNS).expect("a mount namespace");
    mount("none", "/", "", libc::MS_REC | libc::MS_PRIVATE, "");
    let mut device = File::options().read(true).write(true).open("/dev/fuse").expect("fuse");
    let options = format!("fd={},rootmode=100644,user_id=0,group_id=0", device.as_raw_fd());
    mount("hung", &mountpoint, "fuse", libc::MS_NOSUID | libc::MS_NODEV, &options);
    link.say(&nix::unistd::gettid().to_string());
    while answer(&mut device) != FUSE_OPEN {}
    link.say("hung");
    // Until the test ends it: the kernel then tells everyone who hangs.
    let _ = link.hear();
}

/// Answers one request; which it was.
fn answer(device: &mut File) -> u32 {
    let mut request = vec![0; REQUEST_BYTES];
    let length = device.read(&mut request).expect("a request");
    assert!(length >= IN_HEADER_BYTES);
    let word = |at: usize| u32::from_ne_bytes(request[at..at + 4].try_into().expect("4 bytes"));
    let (opcode, unique) = (word(4), &request[8..16]);
    let mut body = match opcode {
        FUSE_INIT => vec![0; INIT_OUT_BYTES],
        FUSE_GETATTR => vec![0; ATTR_OUT_BYTES],
        FUSE_OPEN => vec![0; OPEN_OUT_BYTES],
        other => panic!("request {other} before the file was open"),
    };
    let mut put = |at: usize, value: u32| body[at..at + 4].copy_from_slice(&value.to_ne_bytes());
    match opcode {
        FUSE_INIT => {
            put(0, KERNEL_VERSION);
            put(4, KERNEL_MINOR_VERSION);
            // max_write: the least there is.
            put(20, 4096);
        }
        // attr.mode and attr.nlink: a regular file.
        FUSE_GETATTR => {
            put(16 + 60, libc::S_IFREG | 0o644);
            put(16 + 64, 1);
        }
        _ => {}
    }
    let total = u32::try_from(16 + body.len()).expect("small");
    let mut reply = total.to_ne_bytes().to_vec();
    reply.extend_from_slice(&0_i32.to_ne_bytes());
    reply.extend_from_slice(unique);
    reply.extend_from_slice(&body);
    device.write_all(&reply).expect("the kernel takes the answer");
    opcode
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
