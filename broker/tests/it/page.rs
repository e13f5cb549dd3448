//! The generation page on a small file system. Must never fill one that another program uses: each
//! test mounts its own, in a mount namespace of the daemon.

use crate::common::*;
use crate::lifecycle::word;
use crate::support::raw::Raw;
use fdbroker_protocol::page::{LIVENESS_OFFSET, is_alive, page_bytes};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const SLOTS: u32 = 16_384;

/// A shell that runs a private broker in `dir`, on a tmpfs of `kib` that only its processes have
/// there; `start` is the shell's text.
fn broker_on_tmpfs(dir: &Path, kib: usize, start: &str) -> Command {
    let mut command = Command::new("unshare");
    if !nix::unistd::geteuid().is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    let mount =
        format!("mount -t tmpfs -o size={kib}k,mode=700 none \"$1\" && shift && {{ {start}; }}");
    command.args(["--mount", "sh", "-c", &mount, "sh"]).arg(dir).arg(program().get_program());
    command.arg("--private").arg(dir).args(["--ready-fd", "1"]);
    command.arg("--set").arg(format!("limits.max_slots={SLOTS}"));
    command
}

/// The directory as the process `pid` sees it.
fn seen_by(pid: u32, dir: &Path) -> PathBuf {
    let inside = dir.strip_prefix("/").unwrap();
    Path::new("/proc").join(pid.to_string()).join("root").join(inside)
}

/// Brokers on a full tmpfs, each started when the one before has been killed; a client of each
/// keeps its page.
#[test]
fn start_when_the_file_system_is_full_and_clients_keep_the_pages_of_killed_brokers_then_served() {
    const KILLS: usize = 4;
    let dir = tempfile::tempdir().unwrap();
    let lives = format!("for _ in {}; do \"$@\"; done; exec \"$@\"", "x ".repeat(KILLS));
    let mut command = broker_on_tmpfs(dir.path(), 4096, &lives);
    let mut shell = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut ready = BufReader::new(shell.stdout.take().unwrap()).lines();
    assert_eq!(ready.next().unwrap().unwrap(), "READY");
    let inside = seen_by(shell.id(), dir.path());
    fill(&inside.join("full"));
    let mut clients = Vec::new();
    for _ in 0..KILLS {
        let mut client = Raw::connect(&socket_in(&inside));
        assert_eq!(client.register_blocks(3).len(), 3);
        clients.push(client);
        let children = format!("/proc/{0}/task/{0}/children", shell.id());
        let broker = std::fs::read_to_string(children).unwrap().trim().parse().unwrap();
        kill(Pid::from_raw(broker), Signal::SIGKILL).unwrap();
        let again = ready.next().expect("the next broker is there");
        assert_eq!(again.unwrap(), "READY");
    }
    let mut words = clients.iter().map(|client| word(client.generations(), LIVENESS_OFFSET));
    assert!(words.all(|liveness| !is_alive(liveness)), "to who still maps it, each stays dead");
    let mut last = Raw::connect(&socket_in(&inside));
    assert_eq!(last.register_blocks(3).len(), 3);
    kill(Pid::from_raw(i32::try_from(shell.id()).unwrap()), Signal::SIGTERM).unwrap();
    assert_eq!(shell.wait().unwrap().code(), Some(0));
}

fn fill(path: &Path) {
    let mut file = File::create(path).unwrap();
    let full = loop {
        if let Err(error) = file.write_all(&[1; 4096]) {
            break error;
        }
    };
    assert_eq!(full.kind(), ErrorKind::StorageFull);
}

#[test]
fn start_when_the_page_does_not_fit_then_refused_with_a_remedy_and_nothing_is_left() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = broker_on_tmpfs(dir.path(), 64, "exec \"$@\"");
    let output = command.stdout(Stdio::null()).output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains("No space left on device"), "{error}");
    assert!(error.contains("make room") && error.contains("limits.max_slots"), "{error}");
}

#[test]
fn register_when_the_file_system_of_the_page_is_full_then_served_and_the_page_has_its_space() {
    let dir = tempfile::tempdir().unwrap();
    let mut child = wait_ready(broker_on_tmpfs(dir.path(), 4096, "exec \"$@\""));
    let inside = seen_by(child.id(), dir.path());
    fill(&inside.join("full"));
    let mut client = Raw::connect(&socket_in(&inside));
    let handles = client.register_blocks(64);
    assert_eq!(handles.len(), 64);
    // A client that reads a part of its map that has no space gets SIGBUS.
    let page = File::from(client.generations().try_clone().unwrap()).metadata().unwrap();
    assert!(page.blocks() * 512 >= page_bytes(SLOTS) as u64, "{} blocks", page.blocks());
    let grant = client.acquire_once(&handles[63..], 0).grants()[0];
    assert!(grant.status.get().is_ok());
    kill(Pid::from_raw(i32::try_from(child.id()).unwrap()), Signal::SIGTERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
}
