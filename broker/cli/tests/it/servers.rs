//! Another user serves the sockets of the broker: no command tells that server anything, or
//! believes it.

use crate::common::{TestDir, end, fdbroker};
use crate::shared::{as_user, not_run};
use nix::sys::socket::{
    AddressFamily, Backlog, MsgFlags, SockFlag, SockType, UnixAddr, accept4, bind, listen, recv,
    socket,
};
use std::fs::{Permissions, create_dir, set_permissions};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// A uid that no machine uses.
const MALLORY: u32 = 61_003;

fn serve(path: &Path) -> OwnedFd {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let listener = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None).expect("a socket");
    bind(listener.as_raw_fd(), &UnixAddr::new(path).expect("short")).expect("bound");
    listen(&listener, Backlog::new(64).expect("few")).expect("it listens");
    listener
}

/// How many came, and how many bytes they sent.
fn heard(listener: &OwnedFd) -> (usize, usize) {
    let (mut connections, mut bytes) = (0, 0);
    while let Ok(one) = accept4(listener, SockFlag::SOCK_NONBLOCK) {
        connections += 1;
        bytes += recv(one.as_raw_fd(), &mut [0; 4096], MsgFlags::empty()).unwrap_or(0);
    }
    (connections, bytes)
}

#[test]
fn commands_when_another_user_serves_then_refused_by_name_and_nothing_is_sent() {
    let name = "commands_when_another_user_serves_then_refused_by_name_and_nothing_is_sent";
    if !nix::unistd::geteuid().is_root() {
        return not_run(name, "needs root, for another user");
    }
    let dir = TestDir::new("strangers");
    let [run, admin] = ["run", "run-admin"].map(|name| dir.path().join(name));
    for path in [&run, &admin] {
        create_dir(path).expect("a directory");
        set_permissions(path, Permissions::from_mode(0o1777)).expect("ours");
    }
    let file = dir.path().join("file");
    std::fs::write(&file, "bytes").expect("written");
    let clients = as_user(MALLORY, || serve(&run.join("broker.sock")));
    let administrators = as_user(MALLORY, || serve(&admin.join("admin.sock")));
    let viewers = as_user(MALLORY, || serve(&run.join("view.sock")));
    let asked = |arguments: &[&str], admin_socket: &str, listener: &OwnedFd, status: i32| {
        let mut command = fdbroker(arguments);
        command.env("FDBROKER_SOCKET", run.join("broker.sock"));
        command.env("FDBROKER_ADMIN_SOCKET", admin.join(admin_socket));
        let output = command.output().expect("the command starts");
        let (code, stderr) = end(&output);
        let text = stderr + &String::from_utf8_lossy(&output.stdout);
        assert_eq!(code, Some(status), "{arguments:?}: {text}");
        assert!(text.contains("uid 61003 serves it"), "{arguments:?}: {text}");
        assert!(!text.contains("allocation belongs"), "{arguments:?}: {text}");
        let (connections, bytes) = heard(listener);
        assert!(connections > 0 && bytes == 0, "{arguments:?}: {connections}, {bytes}");
    };
    let file = file.to_str().expect("UTF-8");
    asked(&["put", "name", file], "admin.sock", &clients, 4);
    asked(&["get", "name", "-O", "/dev/null"], "admin.sock", &clients, 4);
    asked(&["doctor"], "admin.sock", &clients, 5);
    heard(&administrators);
    for command in ["status", "ls", "jobs", "audit"] {
        asked(&[command], "admin.sock", &administrators, 4);
    }
    asked(&["drain"], "admin.sock", &administrators, 4);
    // No administrators' socket is there: the socket for looking is asked.
    asked(&["status"], "none.sock", &viewers, 4);
}
