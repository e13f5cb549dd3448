//! The daemon as a process: start, modes, end, death, restart, and refused starts. Must never
//! depend on time.

use crate::common::*;
use crate::support::broker::{Broker, Setup};
use crate::support::hello::hello_message;
use crate::support::raw::{Raw, assert_silent, hello};
use fdbroker_protocol::page::{FUTEX_OWNER_DIED, LIVENESS_OFFSET, generation_offset, is_alive};
use fdbroker_protocol::{ErrorCode, Kind};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

pub fn word(page: &OwnedFd, offset: usize) -> u32 {
    let file = std::fs::File::from(page.try_clone().unwrap());
    let mut bytes = [0; 4];
    file.read_exact_at(&mut bytes, offset as u64).unwrap();
    u32::from_ne_bytes(bytes)
}

fn mode(path: &Path) -> u32 {
    std::fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn end_when_asked_then_clients_are_told_and_sockets_are_gone() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let mut broker = Broker::start();
        let client = Raw::connect(&broker.socket());
        broker.end_by(signal);
        assert_eq!(client.receive_event().unwrap().kind(), Kind::GoingAway);
        client.assert_ended();
        assert!(!broker.socket().exists());
        assert!(!broker.admin_socket().exists());
        assert!(!is_alive(word(client.generations(), LIVENESS_OFFSET)));
        let log = broker.log();
        // As a shell takes it.
        let serving = format!("fdbrokerd: serving FDBROKER_SOCKET={}", broker.socket().display());
        let admin = format!("FDBROKER_ADMIN_SOCKET={}", broker.admin_socket().display());
        assert!(log.contains(&serving) && log.contains(&admin), "{log}");
        assert!(log.contains("fdbrokerd: ended"), "{log}");
    }
}

#[test]
fn log_when_stderr_is_the_stream_that_the_service_manager_names_then_priorities_and_else_words() {
    let dir = tempfile::tempdir().unwrap();
    let log = tempfile::NamedTempFile::new().unwrap();
    let of = log.as_file().metadata().unwrap();
    let stream = format!("{}:{}", of.dev(), of.ino());
    for (stream, begin) in [(&*stream, "<6>serving "), ("1:1", "fdbrokerd: serving ")] {
        let stderr = std::fs::File::create(log.path()).unwrap();
        let mut command = program();
        command.arg("--private").arg(dir.path()).args(["--until-eof", "0"]);
        command.env("JOURNAL_STREAM", stream).stdin(Stdio::piped()).stderr(stderr);
        let mut child = command.spawn().unwrap();
        drop(child.stdin.take());
        assert!(child.wait().unwrap().success());
        let text = std::fs::read_to_string(log.path()).unwrap();
        assert!(text.starts_with(begin), "{text}");
    }
}

/// A journal that is stopped, say.
#[test]
fn stderr_when_nobody_reads_it_and_it_is_full_then_served_and_ended_all_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let (_reader, mut writer) = std::io::pipe().unwrap();
    fcntl(&writer, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
    while writer.write(&[b'x'; 4096]).is_ok() {}
    fcntl(&writer, FcntlArg::F_SETFL(OFlag::empty())).unwrap();
    let mut command = program();
    command.arg("--private").arg(dir.path()).args(["--ready-fd", "1", "--log", "debug"]);
    let mut child = command.stdout(Stdio::piped()).stderr(writer).spawn().unwrap();
    let mut ready = String::new();
    child.stdout.take().unwrap().read_to_string(&mut ready).unwrap();
    assert_eq!(ready, "READY\n");
    for _ in 0..3 {
        Raw::connect(&socket_in(dir.path())).register_blocks(2);
    }
    kill(Pid::from_raw(i32::try_from(child.id()).unwrap()), Signal::SIGTERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn end_when_the_signal_was_ignored_at_the_start_then_it_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let broker = program();
    let mut shell = Command::new("sh");
    shell.args(["-c", "trap '' TERM INT; exec \"$0\" \"$@\""]).arg(broker.get_program());
    shell.arg("--private").arg(dir.path()).args(["--ready-fd", "1"]);
    let mut child = wait_ready(shell);
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap());
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        kill(pid, signal).unwrap();
        // By now the daemon had its chance to end.
        drop(Raw::connect(&socket_in(dir.path())));
    }
    drop(Raw::connect(&socket_in(dir.path())));
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn end_when_until_eof_ends_then_as_by_a_signal() {
    let (ours, theirs) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC).unwrap();
    // The fd is inherited by its number.
    nix::fcntl::fcntl(&ours, nix::fcntl::FcntlArg::F_SETFD(nix::fcntl::FdFlag::empty())).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let number = ours.as_raw_fd().to_string();
    let mut command = program();
    command.arg("--private").arg(dir.path()).args(["--ready-fd", "1", "--until-eof", &number]);
    let mut child = wait_ready(command);
    let client = Raw::connect(&socket_in(dir.path()));
    drop(ours);
    drop(theirs);
    assert_eq!(client.receive_event().unwrap().kind(), Kind::GoingAway);
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn modes_when_private_then_nobody_else_may_connect() {
    let broker = Broker::start();
    let (socket, admin) = (broker.socket(), broker.dir().join("fdbroker-admin"));
    assert_eq!((mode(socket.parent().unwrap()), mode(&socket)), (0o700, 0o600));
    assert_eq!((mode(&admin), mode(&admin.join("admin.sock"))), (0o700, 0o600));
    for file in ["node.key", "generations", "lock"] {
        assert_eq!(mode(&admin.join(file)), 0o600, "{file}");
    }
}

#[test]
fn modes_when_service_then_all_may_connect_none_may_administrate_and_it_is_not_dumpable() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o777)).unwrap();
    let socket = socket_in(dir.path());
    let mut command = program();
    command.arg("--socket").arg(&socket).args(["--ready-fd", "1"]);
    let is_root = nix::unistd::geteuid().is_root();
    if is_root {
        command.uid(12345).gid(12345);
    }
    let mut child = wait_ready(command);
    let admin = dir.path().join("fdbroker-admin");
    assert_eq!((mode(socket.parent().unwrap()), mode(&socket)), (0o755, 0o666));
    assert_eq!((mode(&admin), mode(&admin.join("admin.sock"))), (0o700, 0o600));
    if is_root {
        // The files in /proc/PID of a process that is not dumpable belong to root (proc(5)).
        let environ = format!("/proc/{}/environ", child.id());
        let owner = std::fs::metadata(environ).unwrap().uid();
        assert_eq!(owner, 0);
        Raw::connect(&socket).register_blocks(2);
    }
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn death_when_killed_then_the_kernel_marks_the_page_and_a_new_broker_takes_over() {
    let mut broker = Broker::start();
    let mut client = Raw::connect(&broker.socket());
    let handle = client.register_blocks(1)[0];
    let slot = handle.prefix.slot;
    let before = word(client.generations(), LIVENESS_OFFSET);
    assert!(is_alive(before));
    assert_ne!(word(client.generations(), generation_offset(slot)), 0);

    broker.kill();
    let after = word(client.generations(), LIVENESS_OFFSET);
    assert_eq!(after & FUTEX_OWNER_DIED, FUTEX_OWNER_DIED);
    assert!(!is_alive(after));
    client.assert_ended();

    broker.restart_with(&["--set", "limits.grace_ms=100"]);
    let mut again = Raw::connect(&broker.socket());
    assert_ne!(again.reply().incarnation, client.reply().incarnation);
    assert!(
        !is_alive(word(client.generations(), LIVENESS_OFFSET)),
        "to who still maps it, it stays dead"
    );
    assert!(is_alive(word(again.generations(), LIVENESS_OFFSET)));
    // The key is the same. The owner gets its grace time to name the allocation again, and does
    // not.
    let status = again.acquire_once(&[handle], 20_000).grants()[0].status;
    assert_eq!(status.get().result(), Err(ErrorCode::Lost));
    let new = again.register_blocks(1)[0];
    assert!(new.prefix.generation > handle.prefix.generation);
}

#[test]
fn restart_when_key_or_page_is_missing_or_broken_then_both_are_new() {
    for (name, content) in [
        ("node.key", None),
        ("node.key", Some(&b"short"[..])),
        ("generations", None),
        ("generations", Some(&b"not a page"[..])),
    ] {
        let mut broker = Broker::start();
        let admin = broker.dir().join("fdbroker-admin");
        let key_path = admin.join("node.key");
        let key = std::fs::read(&key_path).unwrap();
        let handle = Raw::connect(&broker.socket()).register_blocks(1)[0];
        broker.terminate();
        let path = admin.join(name);
        match content {
            None => std::fs::remove_file(&path).unwrap(),
            Some(bytes) => std::fs::write(&path, bytes).unwrap(),
        }
        broker.restart();
        assert_ne!(std::fs::read(&key_path).unwrap(), key, "{name}");
        let mut client = Raw::connect(&broker.socket());
        let status = client.acquire_once(&[handle], 0).grants()[0].status;
        assert_eq!(status.get().result(), Err(ErrorCode::BadHandle), "{name}");
    }
}

#[test]
fn restart_when_the_number_of_slots_changed_then_generations_still_grow() {
    let mut broker = Setup::new().arguments(&["--set", "limits.max_slots=4"]).start();
    let mut client = Raw::connect(&broker.socket());
    let high = client.register_blocks(3).iter().map(|it| it.prefix.generation).max().unwrap();
    broker.terminate();
    broker.restart_with(&["--set", "limits.max_slots=8"]);
    let mut client = Raw::connect(&broker.socket());
    assert_eq!(client.reply().page_slots.get(), 8);
    assert!(client.register_blocks(1)[0].prefix.generation > high);
}

fn refused(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn start_when_another_broker_serves_the_place_then_refused_and_left_alone() {
    let broker = Broker::start();
    let error = refused(program().arg("--private").arg(broker.dir()));
    let place = broker.dir().display().to_string();
    assert!(error.contains("another broker serves") && error.contains(&place), "{error}");
    // The same socket with another administrator's directory.
    let dir = tempfile::tempdir().unwrap();
    let admin = dir.path().join("elsewhere/admin.sock");
    let socket = broker.socket();
    let error = refused(program().arg("--socket").arg(&socket).arg("--admin-socket").arg(admin));
    assert!(error.contains("another broker serves"), "{error}");
    Raw::connect(&broker.socket());
}

#[test]
fn start_when_the_admin_directory_is_writable_by_others_then_refused_with_remedy() {
    let dir = tempfile::tempdir().unwrap();
    let admin = dir.path().join("fdbroker-admin");
    std::fs::create_dir(&admin).unwrap();
    std::fs::set_permissions(&admin, PermissionsExt::from_mode(0o777)).unwrap();
    let error = refused(program().arg("--private").arg(dir.path()));
    assert!(error.contains("not safe") && error.contains("chmod go-w"), "{error}");
}

#[test]
fn start_when_the_fd_table_is_too_small_then_the_number_that_is_said_suffices_and_one_less_does_not()
 {
    let dir = tempfile::tempdir().unwrap();
    let refused_with = |fds: u64| {
        let mut program = program();
        refused(program.arg("--private").arg(dir.path()).args(["--table-fds", &fds.to_string()]))
    };
    let error = refused_with(100);
    let least = error.split("100 fds are too few: ").nth(1).and_then(|it| it.split(' ').next());
    let least: u64 = least.and_then(|it| it.parse().ok()).expect("a number of fds");
    assert!(error.contains(&format!("allow at least {least}")), "{error}");
    let error = refused_with(least - 1);
    assert!(error.contains(&format!("{least} are the least to serve with")), "{error}");
    let mut broker = Setup::new().arguments(&["--table-fds", &least.to_string()]).start();
    let mut client = Raw::connect(&broker.socket());
    assert_eq!(client.register_blocks(1).len(), 1);
    broker.terminate();
}

#[test]
fn start_when_the_user_may_have_few_processes_then_clients_are_let_in_or_an_error_names_the_limit()
{
    // To the kernel it is no limit of root's.
    let is_root = nix::unistd::geteuid().is_root();
    let mut served = 0;
    for tasks in 1..=8 {
        let setup = if is_root { Setup::new().service() } else { Setup::new() };
        match setup.tasks(tasks).try_start() {
            Ok(broker) => {
                Raw::connect(&broker.socket());
                served += 1;
            }
            Err(log) => assert!(log.contains("RLIMIT_NPROC"), "{tasks}: {log}"),
        }
    }
    assert!(served > 0 || !is_root);
}

#[test]
fn start_when_files_may_not_be_that_large_then_refused_and_not_killed() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = program();
    let limit = || Ok(setrlimit(Resource::RLIMIT_FSIZE, 1024, 1024)?);
    // SAFETY: setrlimit(2) is async-signal-safe.
    unsafe { command.pre_exec(limit) };
    let error = refused(command.arg("--private").arg(dir.path()));
    assert!(error.contains("File too large"), "{error}");
}

#[test]
fn table_when_1024_fds_are_allowed_then_served_and_never_more() {
    let mut broker = Setup::new().arguments(&["--table-fds", "1024"]).start();
    let mut client = Raw::connect(&broker.socket());
    let handles = client.register_blocks(300);
    assert_eq!(handles.len(), 300);
    assert!(broker.open_fds() < 1024 - 253);
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", broker.pid())).unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    assert_eq!(line.split_whitespace().nth(3), Some("1024"));
    broker.terminate();
}

#[test]
fn accept_when_no_fd_is_free_then_the_connection_waits_and_is_served_later() {
    let broker = Broker::start();
    let pid = broker.pid().as_raw();
    let set_soft = |soft: u64| {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: reads into and writes from one local structure.
        unsafe {
            assert_eq!(
                libc::prlimit(pid, libc::RLIMIT_NOFILE, std::ptr::null(), &raw mut limit),
                0
            );
            let former = limit.rlim_cur;
            limit.rlim_cur = soft;
            let set =
                libc::prlimit(pid, libc::RLIMIT_NOFILE, &raw const limit, std::ptr::null_mut());
            assert_eq!(set, 0);
            former
        }
    };
    // Not even an fd that the daemon has just closed.
    let former = set_soft(0);
    let waiting = Raw::silent(&broker.socket());
    waiting.send(&hello_message(&hello()), &[]).unwrap();
    assert_silent(waiting.socket.as_fd());
    set_soft(former);
    assert_eq!(waiting.receive().unwrap().kind(), Kind::HelloReply);
}
