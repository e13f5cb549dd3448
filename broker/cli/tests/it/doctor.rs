//! doctor as its users meet it: with a broker, without one, with one that is gone, and where a
//! limit is in the way.

use crate::common::{TestDir, end, fdbroker, one_json_line, run_script};
use serde_json::Value;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

/// The verdict of a check, and its remedy.
#[track_caller]
fn check<'r>(report: &'r Value, name: &str) -> (&'r str, Option<&'r str>) {
    let checks = report["checks"].as_array().expect("checks");
    let found = checks.iter().find(|check| check["name"] == name);
    let found = found.unwrap_or_else(|| panic!("no check {name:?}: {report}"));
    (found["verdict"].as_str().expect("a verdict"), found["remedy"].as_str())
}

#[test]
fn doctor_when_a_broker_serves_then_a_page_is_shared_and_nothing_fails() {
    let output = run_script("$F doctor --json && $F status --json");
    let (code, stderr) = end(&output);
    assert_eq!(code, Some(0), "{stderr}");
    let stdout = String::from_utf8(output.stdout).expect("UTF-8");
    let lines: Vec<Value> =
        stdout.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    for name in [
        "client's socket",
        "sharing a page",
        "virtual fds",
        "administrator's socket",
        "sealed memfd",
    ] {
        assert_eq!(check(&lines[0], name), ("ok", None));
    }
    // Where they are not built, they are not installed.
    for name in ["CUDA layer", "Level Zero layer"] {
        assert_ne!(check(&lines[0], name).0, "fail");
    }
    assert_eq!(lines[0]["fail"], 0);
    // It did not leave anything there.
    assert_eq!(lines[1]["open_leases"]["now"], 0);
    assert_eq!(lines[1]["mapped_leases"]["now"], 0);
}

#[test]
fn doctor_when_there_is_no_broker_then_warn_with_how_to_start_one_and_exit_5() {
    let output =
        fdbroker(&["doctor", "--json"]).env("FDBROKER_SOCKET", "/nowhere/broker.sock").output();
    let output = output.expect("the command starts");
    assert_eq!(end(&output).0, Some(5));
    let report = one_json_line(&output);
    let (verdict, remedy) = check(&report, "client's socket");
    assert_eq!(verdict, "warn");
    assert!(remedy.is_some_and(|remedy| remedy.contains("fdbroker run")));
    let output = fdbroker(&["doctor"]).env("FDBROKER_SOCKET", "/nowhere/broker.sock").output();
    let text = String::from_utf8(output.expect("the command starts").stdout).expect("UTF-8");
    assert!(text.ends_with(" fail; no broker serves this user\n"), "{text}");
}

/// The client's socket at `path` fails, exit status 5, and what to do has `remedy` in it.
#[track_caller]
fn assert_socket_fails(path: &std::path::Path, remedy: &str) {
    let output = fdbroker(&["doctor", "--json"]).env("FDBROKER_SOCKET", path).output();
    let output = output.expect("the command starts");
    assert_eq!(end(&output).0, Some(5));
    let report = one_json_line(&output);
    let (verdict, said) = check(&report, "client's socket");
    assert_eq!(verdict, "fail");
    assert!(said.is_some_and(|said| said.contains(remedy)), "{said:?}");
}

#[test]
fn doctor_when_nobody_listens_at_the_socket_any_more_then_fail_and_exit_5() {
    let dir = TestDir::new("doctor");
    let path = dir.path().join("broker.sock");
    drop(UnixListener::bind(&path).expect("bind"));
    assert_socket_fails(path.as_ref(), "start it again");
}

#[test]
fn doctor_when_the_socket_is_not_for_this_user_then_fail_with_its_mode_and_nothing_of_allocations()
{
    let dir = TestDir::new("doctor-denied");
    let path = dir.path().join("broker.sock");
    let _listener = UnixListener::bind(&path).expect("bind");
    std::fs::set_permissions(&path, Permissions::from_mode(0o000)).expect("ours");
    // The command may lie where only root gets at it.
    let program = dir.path().join("fdbroker");
    // By another process: one of another test's may inherit the fd that writes it, and nothing
    // written to can be started.
    let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_fdbroker")).arg(&program).status();
    assert!(copied.expect("cp runs").success());
    let mut command = Command::new(&program);
    command.args(["doctor", "--json"]).env("FDBROKER_SOCKET", &path).stdin(Stdio::null());
    if nix::unistd::geteuid().is_root() {
        std::fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).expect("ours");
        command.uid(65534);
    }
    let output = command.output().expect("the command starts");
    assert_eq!(end(&output).0, Some(5));
    let report = one_json_line(&output);
    let (verdict, remedy) = check(&report, "client's socket");
    assert_eq!(verdict, "fail");
    assert!(remedy.is_some_and(|remedy| remedy.contains("mode 0:")), "{remedy:?}");
    assert!(!report.to_string().contains("allocation belongs"), "{report}");
}

#[test]
fn doctor_when_the_path_is_longer_than_a_sockets_may_be_then_fail() {
    let path = format!("/tmp/{}/broker.sock", "x".repeat(100));
    assert_socket_fails(path.as_ref(), "shorter path");
}

#[test]
fn doctor_when_few_fds_are_allowed_then_fail_with_the_limit_and_what_raises_it() {
    let output = run_script("ulimit -n 100; $F doctor");
    let (code, stderr) = end(&output);
    assert_eq!(code, Some(5), "{stderr}");
    let stdout = String::from_utf8(output.stdout).expect("UTF-8");
    assert!(stdout.contains("soft 100, hard 100"), "{stdout}");
    assert!(stdout.contains("What to do:") && stdout.contains("LimitNOFILE="), "{stdout}");
    assert!(!stdout.contains('\x1b'), "{stdout}");
}
