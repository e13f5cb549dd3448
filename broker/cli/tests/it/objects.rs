//! objects, put, get, rm, pin and watch --objects as their users meet them: outputs, bytes and exit statuses.

use crate::common::{Running, TestDir, end, fdbroker, one_json_line, run, run_script};
use std::io::{BufRead, BufReader};
use std::process::Command;

/// Runs a script in a folder of the test's own, under `fdbroker run`; `$F` is the command.
fn script(dir: &TestDir, text: &str) -> std::process::Output {
    let mut command = fdbroker(&["run", "--", "sh", "-euc", text]);
    command.env("F", env!("CARGO_BIN_EXE_fdbroker")).current_dir(dir.path());
    command.output().expect("the command starts")
}

fn stdout(output: &std::process::Output) -> String {
    let (code, stderr) = end(output);
    assert_eq!(code, Some(0), "{stderr}");
    String::from_utf8(output.stdout.clone()).expect("UTF-8")
}

#[test]
fn put_when_its_process_has_ended_then_objects_and_get_have_it() {
    let dir = TestDir::new("objects-put");
    let bytes: Vec<u8> = (0..1_000_000_u32).flat_map(u32::to_le_bytes).collect();
    std::fs::write(dir.path().join("FILE"), bytes).expect("written");
    let output = script(
        &dir,
        "$F put model/a FILE && $F objects model/ -no NAME,SIZE,STATE,FLAGS && $F get model/a | cmp - FILE",
    );
    assert_eq!(stdout(&output), "model/a  version 1  3.8 MiB\nmodel/a  3.8 MiB  sealed  kept\n");
    assert!(end(&output).1.contains("--keep=TTL"), "says how long it stays");
}

#[test]
fn put_when_several_files_then_one_version_and_names_as_cp_would_give() {
    let dir = TestDir::new("objects-group");
    for name in ["a.bin", "b.bin"] {
        std::fs::write(dir.path().join(name), name).expect("written");
    }
    let output = script(
        &dir,
        "$F put m/ ./a.bin b.bin --meta epoch=7 --json; $F get m/b.bin; $F get m/a.bin --meta; $F get m/a.bin -O out --json; cat out",
    );
    let text = stdout(&output);
    let (first, rest) = text.split_once('\n').expect("lines");
    let made: serde_json::Value = serde_json::from_str(first).expect("JSON");
    assert_eq!(made["version"], 1);
    assert_eq!(made["objects"][1]["name"], "m/b.bin");
    assert!(made["ttl_seconds"].as_f64().is_some_and(|ttl| ttl > 1.0));
    let rest = rest.strip_prefix("b.binepoch=7").expect("bytes, then metadata");
    let (json, rest) = rest.split_once('\n').expect("a line");
    let got: serde_json::Value = serde_json::from_str(json).expect("JSON");
    let expected = serde_json::json!({
        "name": "m/a.bin", "version": 1, "size_bytes": 5, "kind": "memfd", "metadata_bytes": 7,
        "metadata": "epoch=7",
    });
    assert_eq!((got, rest), (expected, "a.bin"));
}

#[test]
fn put_and_pin_when_the_broker_is_private_then_said_once_that_nothing_outlives_it() {
    let dir = TestDir::new("objects-ends");
    let says = |text: &str| -> (String, usize) {
        let output =
            script(&dir, &format!("echo x | $F put m/a - > /dev/null 2>&1; echo y > f; {text}"));
        (stdout(&output), end(&output).1.matches("ends with this broker").count())
    };
    assert_eq!(says("cp f f2; $F put m/ f f2 --keep=1m").1, 1);
    assert_eq!(says("$F pin m/a"), ("m/a pinned\n".into(), 1));
    assert_eq!(says("$F put b f").1, 0, "no time was asked for");
    assert_eq!(says("$F pin m/a 2> /dev/null; $F pin m/a --unpin").1, 0);
    for (text, key) in [("$F put b f --pin --json", "version"), ("$F pin m/a --json", "objects")] {
        let (json, said) = says(text);
        let json: serde_json::Value =
            serde_json::from_str(json.lines().last().expect("a line")).expect("JSON");
        assert_eq!((&json["ends_with_broker"], said), (&true.into(), 1), "{json}");
        assert!(!json[key].is_null(), "{json}");
    }
}

#[test]
fn put_when_a_name_is_in_use_then_1_and_how_to_replace_it() {
    let dir = TestDir::new("objects-exists");
    let output = script(
        &dir,
        "echo one | $F put a -; echo two | $F put a - && exit 9 || test $? = 1; $F get a; echo two | $F put a - --replace; $F get a",
    );
    assert_eq!(stdout(&output), "a  version 1  4 B\none\na  version 2  4 B\ntwo\n");
    let stderr = end(&output).1;
    assert!(stderr.contains("a: EXISTS") && stderr.contains("--replace"), "{stderr}");
}

#[test]
fn get_rm_and_pin_when_there_is_no_such_object_then_4_and_the_others_are_done() {
    let dir = TestDir::new("objects-none");
    let output = script(
        &dir,
        "status() { wanted=$1; shift; set +e; \"$@\"; got=$?; set -e; test $got = $wanted || { echo \"$got not $wanted: $*\"; exit 1; }; }
         echo x | $F put a -; echo y | $F put b - --pin
         status 4 $F get nope; status 4 $F get nope --timeout 50ms; status 4 $F rm a nope; status 4 $F get a
         status 1 $F rm b --version 99; status 4 $F pin nope b; status 0 $F pin b --unpin; status 0 $F rm b --version 2
         status 4 $F rm b; $F objects --json",
    );
    let text = stdout(&output);
    assert!(text.ends_with("{\"objects\":[]}\n"), "{text}");
    assert!(text.contains("a removed\n") && text.contains("b unpinned\n"), "{text}");
    assert!(end(&output).1.contains("b: VERSION: it has version 2 now"), "{}", end(&output).1);
}

#[test]
fn get_when_somebody_makes_it_meanwhile_then_it_waits_and_has_it() {
    let dir = TestDir::new("objects-wait");
    let output = script(
        &dir,
        "$F get late --timeout 60s & sleep 0.2; echo here | $F put late - -J > /dev/null; wait $!",
    );
    assert_eq!(stdout(&output), "here\n");
}

#[test]
fn put_when_used_wrongly_then_2_and_nothing_is_made() {
    let long = "x".repeat(256);
    let text = "x".repeat(4097);
    for arguments in [
        &["put", "a"][..],
        &["put", "", "-"],
        &["put", &long, "-"],
        &["put", "a", "b", "c"],
        &["put", "a/", "-"],
        &["put", "a/", "x/f", "y/f"],
        &["put", "a", "-", "--meta", &text],
        &["put", "a", "-", "--keep=1y"],
        &["put", "a", "-", "--pin", "--keep"],
        &["get", ""],
        &["get", "a", "--meta", "--json"],
        &["rm"],
        &["rm", "a", "b", "--version", "1"],
        &["rm", "a", "--version", "0"],
        &["pin"],
        &["watch", "--objects", "a", "--filter", "pid:1"],
        &["watch", "--job"],
        &["objects", "--sort", "COLOUR"],
    ] {
        let (code, stderr) = end(&run(arguments));
        assert_eq!(code, Some(2), "{arguments:?}: {stderr}");
    }
}

#[test]
fn objects_commands_when_no_broker_then_3_and_the_clients_socket_is_named() {
    for arguments in
        [&["objects"][..], &["get", "a"], &["rm", "a"], &["pin", "a"], &["watch", "--objects"]]
    {
        let mut command = fdbroker(arguments);
        let (code, stderr) =
            end(&command.env("FDBROKER_SOCKET", "/nowhere/b.sock").output().expect("it starts"));
        assert_eq!(code, Some(3), "{stderr}");
        assert!(stderr.contains("/nowhere/b.sock") && stderr.contains("fdbroker run"), "{stderr}");
    }
}

#[test]
fn put_when_a_file_cannot_be_read_then_1_and_no_name_appears() {
    let dir = TestDir::new("objects-unread");
    std::fs::write(dir.path().join("a"), "a").expect("written");
    let output = script(&dir, "$F put m/ a missing && exit 9 || test $? = 1; $F objects -J");
    assert_eq!(stdout(&output), "{\"objects\":[]}\n");
    assert!(end(&output).1.contains("missing"), "{}", end(&output).1);
}

#[test]
fn objects_when_a_name_has_what_a_terminal_obeys_then_only_json_has_it() {
    let output = run_script(
        "echo x | $F put \"$(printf 'a\\033[2Jb')\" - > /dev/null; $F objects -no NAME; $F objects -J -o NAME",
    );
    assert_eq!(stdout(&output), "a?[2Jb\n{\"objects\":[{\"name\":\"a\\u001b[2Jb\"}]}\n");
}

#[test]
fn objects_when_nothing_matches_then_an_empty_list_and_0() {
    let output = run_script("echo x | $F put a - > /dev/null; $F objects b --json");
    assert_eq!(one_json_line(&output), serde_json::json!({ "objects": [] }));
}

#[test]
fn watch_when_objects_come_and_go_then_each_event_is_a_line() {
    let dir = TestDir::new("objects-watch");
    let mut job = fdbroker(&["run", "--", "sh", "-c", "echo $FDBROKER_SOCKET; read line"]);
    job.stdin(std::process::Stdio::piped());
    let mut job = Running::start(job);
    let mut lines = BufReader::new(job.0.stdout.take().expect("piped")).lines();
    let socket = lines.next().expect("a line").expect("text");
    let ours = |arguments: &[&str]| -> Command {
        let mut command = fdbroker(arguments);
        command.env("FDBROKER_SOCKET", &socket).current_dir(dir.path());
        command
    };
    let mut watch = Running::start(ours(&["watch", "--objects", "m/", "--json"]));
    let mut events = BufReader::new(watch.0.stdout.take().expect("piped")).lines();
    std::fs::write(dir.path().join("f"), "text").expect("written");
    let first = std::thread::spawn(move || events.next());
    // Until it watches, nothing of what happens is told.
    for round in 0.. {
        for name in [&format!("m/{round}"), "other"] {
            let put = ours(&["put", name, "f", "--replace"]).output().expect("it starts");
            assert!(put.status.success(), "{}", end(&put).1);
        }
        if first.is_finished() {
            break;
        }
    }
    let line = first.join().expect("no panic").expect("a line").expect("text");
    let event: serde_json::Value = serde_json::from_str(&line).expect("JSON");
    assert_eq!(event["event"], "sealed");
    assert!(event["name"].as_str().is_some_and(|name| name.starts_with("m/")), "{event}");
    assert!(
        event["version"].as_u64() > Some(0) && event["time_seconds"].as_f64() > Some(1e9),
        "{event}"
    );
    watch.signal("INT");
    drop(job);
}
