//! Connecting again: to a broker that runs, that has ended, and that does not answer.

use super::*;
use crate::admin::ANSWER_LIMIT;
use fdbroker_protocol::page::LIVENESS_OFFSET;
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket,
};
use std::os::fd::{AsRawFd, OwnedFd};

/// Listens as a service manager does, which would start the broker at a connect.
fn listener(dir: &Path) -> OwnedFd {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let listener = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None).expect("a socket");
    let address = UnixAddr::new(&dir.join("admin.sock")).expect("short");
    bind(listener.as_raw_fd(), &address).expect("free");
    listen(&listener, Backlog::new(8).expect("small")).expect("listens");
    listener
}

fn is_asked(listener: &OwnedFd) -> bool {
    nix::sys::socket::accept(listener).is_ok()
}

fn write_page(dir: &Path, magic: u64, liveness: u32) {
    let mut header = [0; size_of::<PageHeader>()];
    header[..8].copy_from_slice(&magic.to_ne_bytes());
    header[LIVENESS_OFFSET..][..4].copy_from_slice(&liveness.to_ne_bytes());
    std::fs::write(dir.join(PAGE_NAME), header).expect("a page");
}

#[test]
fn connect_when_the_page_says_that_the_broker_has_died_then_nobody_is_asked_and_exit_3() {
    let dir = std::env::temp_dir().join(format!("fdb-again-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a directory");
    let (listener, path) = (listener(&dir), dir.join("admin.sock"));
    assert!(
        connect_to(&path, ANSWER_LIMIT).is_ok() && is_asked(&listener),
        "no page: nothing is known"
    );
    // FUTEX_OWNER_DIED, and a page that no broker has owned yet.
    for died in [0x4000_0000, 0x4000_0007, 0] {
        write_page(&dir, PAGE_MAGIC, died);
        let error = connect_to(&path, ANSWER_LIMIT).expect_err("none runs");
        assert_eq!(error.exit_status(), crate::error::exit::NO_BROKER);
        assert!(!is_asked(&listener), "{died:#x}: it is started");
    }
    let text =
        connect_to(&dir.join("missing.sock"), ANSWER_LIMIT).expect_err("none runs").to_string();
    assert!(text.contains("No such file"), "{text}");
    write_page(&dir, PAGE_MAGIC, 7);
    assert!(connect_to(&path, ANSWER_LIMIT).is_ok() && is_asked(&listener), "it lives");
    write_page(&dir, PAGE_MAGIC ^ 1, 0);
    assert!(connect_to(&path, ANSWER_LIMIT).is_ok() && is_asked(&listener), "no page of a broker");
    std::fs::remove_dir_all(&dir).expect("removed");
}
