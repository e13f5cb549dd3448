//! `fdbroker top` where there is no terminal: one frame, usage and exit statuses. tests/top/run.sh
//! has a terminal.

use crate::common::{LIMIT, TestDir, end, fdbroker, run, run_script};

#[test]
fn top_when_no_broker_then_exit_3_and_a_remedy() {
    let (code, stderr) = end(&run(&["top", "--once"]));
    assert_eq!(code, Some(3), "{stderr}");
    assert!(stderr.contains("/nowhere/admin.sock") && stderr.contains("fdbroker run"), "{stderr}");
}

#[test]
fn top_when_not_on_a_terminal_then_exit_2_and_the_remedy() {
    let (code, stderr) = end(&run(&["top"]));
    assert_eq!(code, Some(2), "{stderr}");
    assert!(stderr.contains("--once"), "{stderr}");
}

#[test]
fn top_when_the_interval_is_wrong_then_exit_2() {
    for interval in ["0", "0.05", "x", "4000"] {
        let (code, stderr) = end(&run(&["top", "--once", "--interval", interval]));
        assert_eq!(code, Some(2), "{stderr}");
        assert!(stderr.contains("--interval"), "{stderr}");
    }
}

#[test]
fn top_once_when_a_demo_holds_buffers_then_they_are_in_the_frame_as_plain_text() {
    // The demo's ranks hold everything open until they are looked at; it is ended then.
    let script = format!(
        "$F demo --ranks 2 --buffers 10 --hold 600 > /dev/null 2>&1 & demo=$!
         for _ in $(seq {}); do
           [ \"$($F holders --json | grep -o '\"lease\"' | wc -l)\" -ge 20 ] && break; sleep 0.05
         done
         $F top --once --interval 0.1; kill $demo; wait $demo",
        LIMIT.as_millis() / 50
    );
    let output = run_script(&script);
    let (text, stderr) = (String::from_utf8(output.stdout).expect("UTF-8"), end_of(&output.stderr));
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 24, "{text}{stderr}");
    assert!(lines.iter().all(|line| line.chars().count() <= 80), "{text}");
    assert!(!text.contains('\x1b'), "{text}");
    assert!(lines[0].starts_with("fdbroker top: broker "), "{text}");
    assert!(lines[0].contains(" 2 connections"), "{text}");
    assert!(lines[1].starts_with("fds ") && lines[1].contains('#'), "{text}");
    assert!(text.contains("grants"), "{text}");
    assert!(text.contains("CLIENTS 2, by FDS descending"), "{text}");
    assert!(text.contains("OLDEST LEASES, open ones first: 0 open of 20"), "{text}");
}

#[test]
fn top_once_when_something_happens_between_its_looks_then_it_is_among_the_events() {
    // Drained again and again until a frame has it.
    let script = format!(
        "(while :; do $F drain --wait 0; $F drain --undo; done > /dev/null 2>&1) & busy=$!
         for _ in $(seq {}); do
           $F top --once --interval 0.2 > $T; grep -q '^[0-9:.]*Z  drain$' $T && break
         done
         cat $T; rm $T; kill $busy; wait $busy",
        LIMIT.as_millis() / 200
    );
    let file = TestDir::new("top-once");
    let frame = file.path().join("frame");
    let script = script.replace("$T", frame.to_str().expect("UTF-8"));
    let output = run_script(&script);
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let events = text.split("EVENTS, newest first").nth(1).expect("a part of the frame");
    assert!(events.contains("Z  drain\n"), "{text}{}", end_of(&output.stderr));
}

#[test]
fn top_once_when_its_reader_is_gone_then_quiet() {
    let (_, stderr) = end(&run_script("$F top --once --interval 0.1 | true"));
    assert!(!stderr.contains("panicked") && !stderr.contains("Broken pipe"), "{stderr}");
}

#[test]
fn top_when_asked_for_help_then_it_says_which_keys_there_are() {
    let output = fdbroker(&["top", "--help"]).output().expect("the command starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("q quit") && text.contains("--interval"), "{text}");
}

fn end_of(stderr: &[u8]) -> String {
    String::from_utf8_lossy(stderr).into_owned()
}
