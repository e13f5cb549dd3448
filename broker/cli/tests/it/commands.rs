//! status, ls, holders and run as their users meet them: outputs and exit statuses.

use crate::common::{
    Running, TestDir, end, fdbroker, is_alive, one_json_line, run, run_script, terminal, wait_for,
};
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};

#[test]
fn status_ls_and_holders_when_no_broker_then_exit_3_and_a_remedy() {
    for command in ["status", "ls", "holders", "jobs"] {
        let (code, stderr) = end(&run(&[command]));
        assert_eq!(code, Some(3), "{stderr}");
        assert!(
            stderr.contains("/nowhere/admin.sock") && stderr.contains("fdbroker run"),
            "{stderr}"
        );
    }
}

#[test]
fn any_command_when_used_wrongly_then_exit_2_and_what_is_right() {
    for arguments in [
        &["holders", "pid:x"][..],
        &["evict", "nonsense"],
        &["ls", "--colour"],
        &["run"],
        &["demo", "--ranks", "1"],
        &["demo", "--buffers", "0"],
        &["demo", "--size", "8"],
        &["demo", "--max-fds", "3"],
        &["demo", "--max-fds", "0"],
        &["run", "--max-fds", "0", "--", "true"],
        &["broker", "--max-fds", "0"],
        &["watch", "--filter", "nonsense"],
        &["watch", "--filter", "uid:nobody-at-all"],
        &["demo", "--memory", "floppy"],
        &[],
    ] {
        let (code, stderr) = end(&run(arguments));
        assert_eq!(code, Some(2), "{arguments:?}: {stderr}");
        assert!(!stderr.is_empty());
    }
}

#[test]
fn run_when_the_hard_limit_is_the_one_that_help_names_then_a_broker_serves() {
    let help = String::from_utf8(run(&["run", "--help"]).stdout).expect("UTF-8");
    let words: Vec<&str> = help.split_whitespace().collect();
    let fds = words.windows(5).find(|it| it[..4] == ["a", "hard", "limit", "of"]).expect("named");
    let limited =
        format!("ulimit -Sn {0} && ulimit -Hn {0} && $F run -q -- $F status --json", fds[4]);
    let mut shell = Command::new("sh");
    shell.args(["-c", &limited]).env("F", env!("CARGO_BIN_EXE_fdbroker"));
    let (code, stderr) = end(&shell.output().expect("a shell"));
    assert_eq!(code, Some(0), "{stderr}");
}

#[test]
fn status_and_ls_when_asked_for_json_inside_run_then_one_line_each() {
    let output =
        run_script("$F status --json && $F ls --json && $F holders --json && $F jobs --json");
    let (code, stderr) = end(&output);
    assert_eq!(code, Some(0), "{stderr}");
    let stdout = String::from_utf8(output.stdout).expect("UTF-8");
    let lines: Vec<serde_json::Value> =
        stdout.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(lines.len(), 4, "{stdout}");
    assert!(lines[0]["pid"].as_u64().is_some_and(|pid| pid > 0));
    assert_eq!(lines[0]["fds"]["now"], 0);
    assert!(lines[0]["fds"]["cap"].as_u64().is_some_and(|cap| cap > 0));
    assert_eq!(lines[1], serde_json::json!({ "scope": "node", "allocations": [] }));
    assert_eq!(lines[2], serde_json::json!({ "scope": "node", "holders": [] }));
    assert_eq!(lines[3], serde_json::json!({ "scope": "node", "jobs": [] }));
}

#[test]
fn status_and_ls_when_plain_then_tables_without_colour() {
    let output = run_script("$F status; $F ls; $F ls --no-headings");
    let stdout = String::from_utf8(output.stdout).expect("UTF-8");
    assert!(stdout.contains("RESOURCE") && stdout.contains("held_fds"), "{stdout}");
    assert_eq!(stdout.matches("ALLOCATION").count(), 1, "{stdout}");
    assert!(!stdout.contains('\x1b'), "{stdout}");
}

#[test]
fn holders_when_the_subject_is_unknown_then_exit_4() {
    let node = "0".repeat(16);
    let handle = format!("4644424801030000{node}{}", "0".repeat(96));
    for subject in ["99.1", "pid:1", "uid:4242", &handle] {
        let (code, stderr) = end(&run_script(&format!("$F holders {subject}")));
        assert_eq!(code, Some(4), "{subject}: {stderr}");
    }
}

#[test]
fn audit_when_there_is_no_such_process_then_exit_4_and_not_that_all_is_well() {
    // One more than Linux ever gives a process (PID_MAX_LIMIT, proc_sys_kernel(5)).
    for pid in ["4194305", "0"] {
        let (code, stderr) = end(&run_script(&format!("$F audit --json --pid {pid}")));
        assert_eq!(code, Some(4), "{pid}: {stderr}");
        assert!(stderr.contains(&format!("no process {pid} here")), "{stderr}");
    }
}

#[test]
fn ls_when_its_reader_is_gone_then_quiet() {
    let (_, stderr) = end(&run_script("$F status | true; $F ls --json | true; $F ls | head -0"));
    assert!(!stderr.contains("panicked") && !stderr.contains("Broken pipe"), "{stderr}");
}

#[test]
fn help_and_version_when_they_cannot_be_written_then_exit_1_and_when_nobody_reads_quiet() {
    let full = || std::fs::OpenOptions::new().write(true).open("/dev/full").expect("a device");
    for arguments in [&["--help"][..], &["--version"], &["help", "ls"], &["limits", "set", "-h"]] {
        let output = fdbroker(arguments).stdout(full()).output().expect("it starts");
        let (code, stderr) = end(&output);
        assert_eq!(code, Some(1), "{arguments:?}: {stderr}");
        assert!(stderr.contains("cannot write the output"), "{arguments:?}: {stderr}");
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let output = fdbroker(arguments).stdout(writer).output().expect("it starts");
        assert_eq!(end(&output), (Some(0), String::new()), "{arguments:?}");
    }
}

#[test]
fn any_command_when_stderr_cannot_be_written_then_its_exit_status_all_the_same() {
    for (arguments, expected) in
        [(&["ls"][..], 3), (&["holders", "pid:x"], 2), (&["run", "--", "sh", "-c", "exit 7"], 7)]
    {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("a device");
        let status = fdbroker(arguments).stderr(full).status().expect("it starts");
        assert_eq!(status.code(), Some(expected), "{arguments:?}");
    }
}

#[test]
fn run_when_stderr_is_a_terminal_then_the_socket_is_said_for_another_one() {
    let (mut ours, theirs) = terminal(200);
    let mut command = fdbroker(&["run", "--", "sh", "-c", "echo $FDBROKER_SOCKET"]);
    command.env("NO_COLOR", "1").stderr(theirs);
    let output = command.output().expect("it starts");
    // Its end of the terminal is closed here, too.
    drop(command);
    let mut text = Vec::new();
    // The last process has closed the terminal: EIO instead of an end.
    let _ = ours.read_to_end(&mut text);
    let text = String::from_utf8(text).expect("UTF-8");
    let socket = String::from_utf8(output.stdout).expect("UTF-8");
    assert!(text.contains(&format!("export FDBROKER_SOCKET={}\r\n", socket.trim_end())), "{text}");
    let (_, stderr) = end(&run_script("true"));
    assert!(!stderr.contains("export"), "a script's log has no use for it: {stderr}");
}

#[test]
fn run_when_the_command_ends_then_its_exit_status_and_no_word_of_what_was_not_shared() {
    for (script, expected) in
        [("exit 0", 0), ("exit 7", 7), ("kill -TERM $$", 143), ("kill -KILL $$", 137)]
    {
        let (code, stderr) = end(&run_script(script));
        assert_eq!(code, Some(expected), "{script}: {stderr}");
        assert_eq!(stderr, "", "{script}");
    }
}

/// Refused at a full cap, and then not: each time an object is deleted, there is room for one.
const UNDER_A_TIGHT_CAP: &str = "
    $F limits set node.object_names=1 > limits
    for name in 1 2 3 4 5; do
        echo $name > file
        until $F put $name file > out 2> refused; do $F rm $((name - 1)) >> out; done
    done
    grep -q NO_QUOTA refused || $F status | grep -q '[1-9] refusals'";

fn under_a_tight_cap(name: &str, options: &[&str]) -> String {
    let dir = TestDir::new(name);
    let mut command = fdbroker(&["run"]);
    command.args(options).args(["--", "sh", "-euc", UNDER_A_TIGHT_CAP]).current_dir(dir.path());
    let output = command.env("F", env!("CARGO_BIN_EXE_fdbroker")).output().expect("it starts");
    let (code, stderr) = end(&output);
    assert_eq!(code, Some(0), "{stderr}");
    stderr
}

#[test]
fn run_when_a_job_is_refused_and_succeeds_in_the_end_then_stderr_is_the_closing_line_alone() {
    let stderr = under_a_tight_cap("run-tight", &[]);
    let begin = "fdbroker: the job shared memory: at most 1 allocation at a time, with ";
    assert!(stderr.starts_with(begin) && stderr.lines().count() == 1, "{stderr}");
    assert!(stderr.contains("handed out 0 times, asked for again 0 times, in "), "{stderr}");
}

#[test]
fn run_when_quiet_then_a_good_job_leaves_stderr_empty() {
    assert_eq!(under_a_tight_cap("run-quiet", &["--quiet"]), "");
}

#[test]
fn run_when_the_brokers_log_is_wanted_then_in_words_without_priorities_and_quiet_counts_more() {
    let stderr = |arguments: &[&str]| {
        let mut command = fdbroker(arguments);
        end(&command.env("FDBROKER_LOG", "info").output().expect("it starts")).1
    };
    let said = stderr(&["run", "--", "true"]);
    assert!(said.contains("fdbrokerd: serving ") && !said.contains('<'), "{said}");
    assert_eq!(stderr(&["run", "--quiet", "--", "true"]), "");
}

#[test]
fn run_when_there_is_no_such_command_then_127_and_a_message() {
    // A folder that the caller may not enter would make it "permission denied".
    let mut command = fdbroker(&["run", "--", "no-such-command-anywhere"]);
    let (code, stderr) = end(&command.env("PATH", "/usr/bin").output().expect("it starts"));
    assert_eq!(code, Some(127));
    assert!(stderr.contains("cannot run no-such-command-anywhere"), "{stderr}");
    let (code, _) = end(&run(&["run", "--", "/"]));
    assert_eq!(code, Some(126));
}

#[test]
fn run_when_json_then_the_summary_is_one_object() {
    let (code, stderr) = end(&run(&["run", "--max-fds", "100", "--json", "--", "true"]));
    assert_eq!(code, Some(0), "{stderr}");
    let summary: serde_json::Value = serde_json::from_str(stderr.trim()).expect("JSON");
    assert_eq!(summary["fds"]["cap"], 100);
}

#[test]
fn run_when_signalled_then_the_command_gets_it_and_nothing_is_left() {
    for name in ["INT", "TERM", "HUP"] {
        let dir = TestDir::new(&format!("run-{name}"));
        let script = format!("trap 'exit 9' {name}; echo ready; while :; do sleep 0.02; done");
        let mut command = fdbroker(&["run", "--", "sh", "-c", &script]);
        command.env("TMPDIR", dir.path());
        let mut running = Running::start(command);
        let mut line = String::new();
        let stdout = running.0.stdout.as_mut().expect("piped");
        BufReader::new(stdout).read_line(&mut line).expect("readable");
        assert_eq!(line, "ready\n");
        assert!(!dir.is_empty(), "the runtime directory is under TMPDIR");
        running.signal(name);
        let (code, stderr) = end(&running.end());
        assert_eq!(code, Some(9), "{name}: {stderr}");
        assert!(dir.is_empty(), "{name}");
    }
}

#[test]
fn run_when_it_is_killed_then_its_broker_ends_too_and_its_directory_goes_away() {
    let dir = TestDir::new("run-killed");
    let mut command = fdbroker(&["run", "--", "sh", "-c", "$F status --json; read line"]);
    command.env("F", env!("CARGO_BIN_EXE_fdbroker")).env("TMPDIR", dir.path());
    command.stdin(Stdio::piped());
    let mut running = Running::start(command);
    let mut line = String::new();
    let stdout = running.0.stdout.as_mut().expect("piped");
    BufReader::new(stdout).read_line(&mut line).expect("readable");
    let status: serde_json::Value = serde_json::from_str(&line).expect("JSON");
    let broker = u32::try_from(status["pid"].as_u64().expect("a pid")).expect("a pid");
    assert!(is_alive(broker));
    running.signal("KILL");
    wait_for("end of the broker", || (!is_alive(broker)).then_some(()));
    assert!(dir.is_empty(), "the broker's directory is left behind");
    // The job itself goes on, as with any parent that is killed, until its stdin ends.
    drop(running.0.stdin.take());
    let mut rest = String::new();
    let stdout = running.0.stdout.as_mut().expect("piped");
    stdout.read_to_string(&mut rest).expect("the job ends");
}

#[test]
fn run_when_its_broker_is_killed_then_another_serves_in_its_place_five_times() {
    let script = r#"pid=0; for round in 1 2 3 4 5 6; do last=$pid;
        until pid=$($F status --json 2>/dev/null | sed -n 's/.*"pid":\([0-9]*\).*/\1/p') &&
            [ "${pid:-$last}" != $last ]; do sleep 0.02; done;
        echo $FDBROKER_SOCKET; kill -9 $pid; done;
        while [ -e $FDBROKER_SOCKET ]; do sleep 0.02; done; $F status; echo $?; exit 7"#;
    let output = run_script(script);
    let (code, stderr) = end(&output);
    assert_eq!(code, Some(7), "{stderr}");
    let stdout = String::from_utf8_lossy(&output.stdout);
    let lines: Vec<&str> = stdout.lines().collect();
    assert_eq!((lines.len(), lines[6]), (7, "3"), "{stdout}");
    assert!(lines[..6].iter().all(|place| *place == lines[0]), "{stdout}");
    assert_eq!(stderr.matches("it is started again").count(), 5, "{stderr}");
    assert_eq!(stderr.matches("the command goes on without it").count(), 1, "{stderr}");
}

#[test]
fn run_when_inside_another_run_then_the_inner_broker_serves() {
    let output = run_script("$F run -- $F status --json 2>/dev/null; $F status --json >&2");
    let inner = one_json_line(&output);
    assert!(!end(&output).1.contains(&format!("\"pid\":{}", inner["pid"])));
}
