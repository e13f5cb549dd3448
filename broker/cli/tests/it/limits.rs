//! limits as its users meet it: shown, changed, and what is refused.

use crate::common::{Running, TestDir, end, fdbroker, one_json_line, run, run_script};
use crate::shared::not_run;
use serde_json::{Value, json};
use std::fs::{Permissions, set_permissions};
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// A user that owns nothing here.
const NOBODY: u32 = 65534;

fn lines(script: &str) -> Vec<Value> {
    let output = run_script(script);
    let (code, stderr) = end(&output);
    assert_eq!(code, Some(0), "{stderr}");
    let stdout = String::from_utf8(output.stdout).expect("UTF-8");
    stdout.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

#[test]
fn limits_set_when_json_then_former_and_new_values_and_the_status_has_the_cap() {
    let lines = lines(
        "$F limits set --json node.fds=100 job.held_bytes=8Gi && $F limits --json && $F status --json && \
         $F limits set --json job.held_bytes=none",
    );
    let [set, limits, status, back] = &lines[..] else { panic!("{lines:?}") };
    let changes = set["changes"].as_array().expect("a list");
    assert_eq!(changes[0]["limit"], "node.fds");
    assert!(changes[0]["former"].as_u64().is_some_and(|former| former > 100));
    assert_eq!(changes[0]["value"], 100);
    assert_eq!(set["dry_run"], false);
    let bytes = 8_u64 << 30;
    assert_eq!(changes[1], json!({ "limit": "job.held_bytes", "former": null, "value": bytes }));
    assert_eq!(
        (&limits["node"]["fds"], &limits["job"]["held_bytes"]),
        (&json!(100), &json!(bytes))
    );
    assert_eq!(status["fds"]["cap"], 100);
    assert_eq!(
        back["changes"][0],
        json!({ "limit": "job.held_bytes", "former": bytes, "value": null })
    );
}

#[test]
fn limits_set_when_dry_run_then_what_would_be_in_force_and_nothing_is_changed() {
    let lines = lines(
        "$F limits --json && $F limits set --dry-run --json client.allocations=3 node.connections=none && \
         $F limits --json",
    );
    assert_eq!(lines[0], lines[2]);
    assert_eq!(lines[1]["dry_run"], true);
    let changes = &lines[1]["changes"];
    assert_eq!(changes[0]["former"], lines[0]["client"]["allocations"]);
    assert_eq!(changes[0]["value"], 3);
    assert_eq!(
        changes[1]["value"], lines[0]["node"]["connections"],
        "limits.max_clients bounds it"
    );
}

#[test]
fn limits_when_plain_then_a_table_and_how_long_a_change_lasts() {
    let output = run_script("$F limits && $F limits set node.held_bytes=1Gi");
    let stdout = String::from_utf8(output.stdout).expect("UTF-8");
    assert!(stdout.starts_with("RESOURCE") && stdout.contains("kept_allocations"), "{stdout}");
    assert!(stdout.contains("node.held_bytes none -> 1 GiB"), "{stdout}");
    assert!(stdout.contains("until the broker restarts"), "{stdout}");
    assert!(!stdout.contains('*'), "{stdout}");
}

#[test]
fn limits_save_when_caps_were_set_then_marked_and_written_and_the_file_is_good() {
    let dir = TestDir::new("limits-save");
    let file = dir.path().join("fdbrokerd.toml");
    std::fs::write(&file, "# of the site\n[caps.node]\n# few\nfds = 9000 # much\n")
        .expect("written");
    let path = file.display();
    let output = run_script(&format!(
        "$F limits save {path} && $F limits set node.fds=4096 job.held_bytes=8Gi > /dev/null && \
         $F limits | grep '[*]' && $F limits --json && $F limits save {path} && $F config check {path}"
    ));
    let stdout = String::from_utf8(output.stdout.clone()).expect("UTF-8");
    assert_eq!(end(&output).0, Some(0), "{}", end(&output).1);
    for part in [
        "nothing to save",
        "4,096*",
        "8 GiB*",
        r#""set_at_run_time":["node.fds","job.held_bytes"]"#,
        "caps.node.fds = 4,096 is in",
        ": good",
    ] {
        assert!(stdout.contains(part), "{part} in {stdout}");
    }
    let saved = std::fs::read_to_string(&file).expect("there");
    let expected = "# of the site\n[caps.node]\n# few\nfds = 4096 # much\n";
    assert!(saved.starts_with(expected) && saved.contains("held_bytes = 8589934592"), "{saved}");
}

#[test]
fn limits_set_when_max_clients_bounds_it_then_the_value_in_force_and_what_bounds_it() {
    let output = run_script("$F limits set node.connections=none client.fds=3");
    let stdout = String::from_utf8(output.stdout).expect("UTF-8");
    let lines: Vec<&str> = stdout.lines().collect();
    let (former, in_force) = lines[0].split_once(" -> ").expect("a change");
    let former = former.strip_prefix("node.connections ").expect("a cap");
    let bound = "(limits.max_clients of the configuration bounds it)";
    assert_eq!(in_force, format!("{former} {bound}"));
    assert!(lines[1].ends_with(" -> 3"), "{stdout}");

    let lines = self::lines("$F limits set --json node.connections=none && $F limits --json");
    assert_eq!(lines[0]["changes"][0]["value"], lines[1]["node"]["connections"]);
    assert!(lines[1]["node"]["connections"].is_u64(), "{lines:?}");
}

#[test]
fn limits_set_when_one_is_broken_then_exit_2_and_no_broker_is_asked() {
    for wrong in ["node.fds=1X", "host.fds=1", "node.own_fds=1", "node.fds"] {
        let (code, stderr) = end(&run(&["limits", "set", "node.fds=1", wrong]));
        assert_eq!(code, Some(2), "{wrong}: {stderr}");
    }
    let (code, _) = end(&run(&["limits"]));
    assert_eq!(code, Some(3));
    let (code, _) = end(&run(&["limits", "set", "node.fds=1"]));
    assert_eq!(code, Some(3));
}

#[test]
fn limits_set_when_neither_root_nor_the_brokers_user_then_exit_4_and_nothing_is_changed() {
    if !nix::unistd::Uid::effective().is_root() {
        return not_run("limits_set_when_neither_root_nor_the_brokers_user", "it needs root");
    }
    let dir = TestDir::new("limits-other");
    let mut command = fdbroker(&["broker", "--ready-fd", "1", "--private"]);
    command.arg(dir.path());
    let mut broker = Running::start(command);
    let socket = dir.path().join("fdbroker-admin/admin.sock");
    // Not once the socket is there: the broker sets its mode after that.
    let mut said = [0; 6];
    let ready = broker.0.stdout.as_mut().expect("piped").read_exact(&mut said);
    assert!(ready.is_ok() && &said == b"READY\n", "it does not serve: {}", end(&broker.end()).1);
    // An administrator who lets everybody look does not let everybody change.
    for (path, mode) in [(socket.parent().expect("a directory"), 0o755), (&socket, 0o666)] {
        set_permissions(path, Permissions::from_mode(mode)).expect("own");
    }
    // The program itself may lie where that user may not look.
    let program = dir.path().join("fdbroker-copy");
    // By another process: a program cannot be started while one that another test forks has it open
    // for writing.
    let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_fdbroker")).arg(&program).status();
    assert!(copied.expect("cp(1)").success());
    set_permissions(dir.path(), Permissions::from_mode(0o755)).expect("own");
    let ask = |arguments: &[&str], uid: u32| {
        let mut command = Command::new(&program);
        command.args(arguments).env("FDBROKER_ADMIN_SOCKET", &socket).uid(uid);
        command.output().expect("the command starts")
    };
    let before = one_json_line(&ask(&["limits", "--json"], NOBODY));
    let (code, stderr) = end(&ask(&["limits", "set", "node.fds=1"], NOBODY));
    assert_eq!(code, Some(4), "{stderr}");
    assert!(stderr.contains("as root"), "{stderr}");
    assert_eq!(one_json_line(&ask(&["limits", "--json"], 0)), before);
}
