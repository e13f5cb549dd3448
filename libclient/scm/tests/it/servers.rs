//! Who serves a socket, by sockets of several users in directories of several owners.
//! Must never take the owner of a socket's file for its server.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use crate::shared::{as_user, full_name, not_run};
use fdbroker_scm::{Stranger, check_server};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, connect, listen, socket,
};
use nix::unistd::geteuid;
use std::fs::{Permissions, create_dir, set_permissions};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

const ROOT: u32 = 0;
/// Uids that no machine uses.
const SERVICE: u32 = 61_001;
const ALICE: u32 = 61_002;
const MALLORY: u32 = 61_003;

/// The path of a socket that a test's own child is to look at.
const PATH: &str = "FDBROKER_SCM_TEST_SOCKET";

struct Dir(PathBuf);

impl Dir {
    /// A directory of this user, into which everybody may put something.
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("fdb-{name}-{}", std::process::id()));
        create_dir(&path).unwrap();
        set_permissions(&path, Permissions::from_mode(0o1777)).unwrap();
        Dir(path)
    }

    fn owned_by(name: &str, uid: u32) -> Self {
        let dir = Dir::new(name);
        chown(&dir.0, Some(uid), None).unwrap();
        dir
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn unix() -> OwnedFd {
    socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None).unwrap()
}

fn serve(path: &Path) -> OwnedFd {
    let listener = unix();
    bind(listener.as_raw_fd(), &UnixAddr::new(path).unwrap()).unwrap();
    set_permissions(path, Permissions::from_mode(0o666)).unwrap();
    listen(&listener, Backlog::new(16).unwrap()).unwrap();
    listener
}

fn look(path: &Path) -> Result<(), Stranger> {
    let client = unix();
    connect(client.as_raw_fd(), &UnixAddr::new(path).unwrap()).unwrap();
    check_server(client.as_fd(), path)
}

#[test]
fn server_when_root_or_the_directorys_owner_or_the_caller_then_trusted_and_nobody_else() {
    if !geteuid().is_root() {
        return not_run("server_when_root_or_the_directorys_owner", "needs root, for more users");
    }
    for (server, owner, client, is_trusted) in [
        (ROOT, ALICE, MALLORY, true),
        (SERVICE, SERVICE, ALICE, true),
        (SERVICE, SERVICE, ROOT, true),
        (ALICE, ROOT, ALICE, true),
        (ALICE, MALLORY, ALICE, true),
        (MALLORY, ROOT, ALICE, false),
        (MALLORY, SERVICE, ALICE, false),
        (MALLORY, ALICE, ALICE, false),
        (MALLORY, ROOT, ROOT, false),
        // An ordinary user here, where all are known.
        (65_534, ROOT, ALICE, false),
        (65_534, 65_534, ALICE, true),
    ] {
        let dir = Dir::owned_by("servers", owner);
        let path = dir.0.join("broker.sock");
        let _listener = as_user(server, || serve(&path));
        for of_file in [server, owner, ROOT, client] {
            chown(&path, Some(of_file), None).unwrap();
            let found = as_user(client, || look(&path));
            let case = format!("server {server}, directory {owner}, client {client}: {found:?}");
            assert_eq!(found.is_ok(), is_trusted, "{case}");
            let Err(stranger) = found else { continue };
            assert_eq!(stranger.uid, server);
            let text = stranger.to_string();
            for part in [&format!("uid {server} serves it"), "FDBROKER_SOCKET", "administrator"] {
                assert!(text.contains(part), "no `{part}` in: {text}");
            }
        }
    }
}

#[test]
fn server_when_a_link_leads_to_its_own_directory_then_trusted_if_nobody_else_could_make_it() {
    if !geteuid().is_root() {
        return not_run("server_when_a_link_leads_to_its_own", "needs root, for more users");
    }
    let (named, own) = (Dir::new("named"), Dir::owned_by("own", MALLORY));
    let (path, socket) = (named.0.join("broker.sock"), own.0.join("any.sock"));
    let _listener = as_user(MALLORY, || serve(&socket));
    as_user(MALLORY, || symlink(&socket, &path)).unwrap();
    // The kernel may refuse to follow it (fs.protected_symlinks), for others than its maker.
    let client = unix();
    connect(client.as_raw_fd(), &UnixAddr::new(&socket).unwrap()).unwrap();
    let stranger = as_user(ALICE, || check_server(client.as_fd(), &path)).unwrap_err();
    assert!(stranger.to_string().contains("others may put"), "{stranger}");
    set_permissions(&named.0, Permissions::from_mode(0o755)).unwrap();
    assert_eq!(as_user(ALICE, || look(&path)), Ok(()), "the directory's owner has let it stay");
}

/// A user namespace with this map of uids and of gids.
struct Namespace(Child);

impl Namespace {
    fn new(map: &str) -> Self {
        let mut first = Command::new("unshare");
        let first = first.args(["-U", "cat"]).stdin(Stdio::piped()).spawn().unwrap();
        let of = |pid| std::fs::read_link(format!("/proc/{pid}/ns/user")).unwrap();
        while of(first.id()) == of(std::process::id()) {
            std::thread::sleep(Duration::from_millis(5));
        }
        for file in ["uid_map", "gid_map"] {
            std::fs::write(format!("/proc/{}/{file}", first.id()), map).unwrap();
        }
        Namespace(first)
    }

    /// Runs a test of this program in it, under the uid `uid` of it, with what `variables` say.
    fn run(&self, uid: u32, test: &str, program: &Path, variables: &[(&str, &Path)]) -> Output {
        let (pid, uid) = (self.0.id().to_string(), uid.to_string());
        let mut command = Command::new("nsenter");
        command.args(["-t", &pid, "-U", "-S", &uid, "-G", &uid, "--"]).arg(program);
        command.args(["--exact", test, "--nocapture"]).envs(variables.iter().copied());
        command.output().unwrap()
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn server_when_its_user_is_unknown_in_the_namespace_then_goes_on_with_one_warning() {
    if let Some(path) = std::env::var_os(PATH) {
        (0..3).for_each(|_| assert_eq!(look(path.as_ref()), Ok(())));
        return;
    }
    let name = "server_when_its_user_is_unknown_in_the_namespace_then_goes_on_with_one_warning";
    if !geteuid().is_root() {
        return not_run(name, "needs root, for more users");
    }
    let dir = Dir::new("unknown");
    let path = dir.0.join("broker.sock");
    let program = dir.0.join("program");
    // By another process: what a child of another test's has open for writing cannot be started.
    let copied = Command::new("cp").arg(std::env::current_exe().unwrap()).arg(&program).status();
    assert!(copied.unwrap().success());
    // Two ids are known, or 65,536 as in a pod: 65534 is one of them, and stands for others, too.
    for (map, uid) in [("0 200000 2", 0), ("0 200000 65536", 0), ("0 200000 65536", 65_534)] {
        let namespace = Namespace::new(map);
        for server in [ROOT, MALLORY] {
            let _ = std::fs::remove_file(&path);
            let _listener = as_user(server, || serve(&path));
            for (level, count) in [("", 1), ("warn", 1), ("error", 0), ("off", 0)] {
                let variables = [(PATH, &*path), ("FDBROKER_LOG", Path::new(level))];
                let output = namespace.run(uid, &full_name(name), &program, &variables);
                let stderr = String::from_utf8_lossy(&output.stderr);
                assert!(output.status.success(), "{map}: {stderr}");
                let warnings = stderr.matches("unknown in this user namespace").count();
                assert_eq!(warnings, count, "{map}, {level}: {stderr}");
            }
        }
    }
}

#[test]
fn server_when_known_in_the_namespace_then_judged_as_anywhere() {
    if let Some(path) = std::env::var_os(PATH) {
        let found = look(path.as_ref()).map_err(|stranger| stranger.uid);
        let expected = path.to_str().unwrap().ends_with("own.sock");
        assert_eq!(found.is_ok(), expected, "{found:?}");
        return;
    }
    let name = "server_when_known_in_the_namespace_then_judged_as_anywhere";
    if !geteuid().is_root() {
        return not_run(name, "needs root, for more users");
    }
    let dir = Dir::new("known");
    let program = dir.0.join("program");
    let copied = Command::new("cp").arg(std::env::current_exe().unwrap()).arg(&program).status();
    assert!(copied.unwrap().success());
    let namespace = Namespace::new("0 200000 65536");
    // Of the directory nobody is known: its owner is no server's.
    for (server, socket) in
        [(201_000, "own.sock"), (200_000, "root-own.sock"), (202_000, "foreign")]
    {
        let path = dir.0.join(socket);
        let _listener = as_user(server, || serve(&path));
        let output = namespace.run(1000, &full_name(name), &program, &[(PATH, &path)]);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && !stderr.contains("unknown"), "{socket}: {stderr}");
    }
}
