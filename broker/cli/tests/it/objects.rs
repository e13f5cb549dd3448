//! objects, put, get, rm, pin and watch --objects as their users meet them: outputs, bytes and exit
//! statuses.

use crate::common::{Running, TestDir, end, fdbroker, one_json_line, run, run_script};
use fdbroker_client::{Client, Deadline, NewObject, ObjectOptions, Place};
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

/// Rust's runtime opens /dev/null in their place.
#[test]
fn put_and_get_when_stdin_or_stdout_is_closed_then_refused_and_dev_null_is_taken() {
    let dir = TestDir::new("objects-closed");
    for name in ["-", "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"] {
        let text = format!("$F put a {name} <&- && exit 9; test $? = 1; $F objects --json");
        let output = script(&dir, &text);
        assert_eq!(one_json_line(&output)["objects"], serde_json::json!([]), "{name}");
        assert!(end(&output).1.contains("standard input is closed"), "{name}");
    }
    // Of both access modes: subprocess.DEVNULL of Python can be written to, too.
    let output =
        script(&dir, "$F put a - < /dev/null; $F put b - <> /dev/null; echo x > f; $F put c f <&-");
    let made = ["a  version 1  0 B", "b  version 2  0 B", "c  version 3  2 B"];
    assert_eq!(stdout(&output).lines().collect::<Vec<_>>(), made);
    let output = script(
        &dir,
        "printf x > f; $F put a f; $F get a >&- && exit 9; test $? = 1; $F get a > /dev/null",
    );
    assert_eq!(stdout(&output), "a  version 1  1 B\n");
    assert!(end(&output).1.contains("standard output is closed"));
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
fn put_when_it_asks_for_more_time_than_the_broker_allows_then_said_and_in_json() {
    let dir = TestDir::new("objects-cut");
    let output = script(
        &dir,
        "echo x > f; $F put a f --keep=2h --json; $F put b f --keep=2d --json; $F put c f --keep=2h; $F put d f --keep=2d",
    );
    let text = stdout(&output);
    let of = |line: &str| -> (f64, bool) {
        let made: serde_json::Value = serde_json::from_str(line).expect("JSON");
        (made["ttl_seconds"].as_f64().expect("a time"), made["ttl_is_cut"] == true)
    };
    let made: Vec<_> = text.lines().take(2).map(of).collect();
    assert!(made[0].0 > 3600.0 && !made[0].1, "{made:?}: two hours are allowed");
    assert!(made[1].0 > 3600.0 && made[1].1, "{made:?}");
    let says = end(&output).1;
    assert_eq!(says.matches("the most that the broker allows (limits.object_ttl_ms").count(), 1);
}

#[test]
fn get_when_several_or_what_their_names_begin_with_then_each_is_a_file_of_a_folder() {
    let dir = TestDir::new("objects-several");
    let output = script(
        &dir,
        "printf one > a.bin; printf two > b.bin; $F put m/ a.bin b.bin > /dev/null; printf three | $F put m/sub/c - > /dev/null
         $F get m/ -O new/folder; cat new/folder/a.bin new/folder/b.bin new/folder/sub/c; echo
         $F get m/sub/c m/a.bin -O two --json | tail -n 1; cat two/c two/a.bin; echo
         mkdir here; $F get m/a.bin -O here; cat here/a.bin; echo
         $F get x/ -O none && exit 9 || test $? = 4; test ! -e none
         $F get m/a.bin nope -O none && exit 9 || test $? = 4; test ! -e none
         echo x | $F put m/../y - > /dev/null; $F get m/ -O none && exit 9 || test $? = 2; test ! -e none",
    );
    let text = stdout(&output);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "m/a.bin  version 1  3 B", "{text}");
    assert_eq!(lines[3], "onetwothree", "{text}");
    let last: serde_json::Value = serde_json::from_str(lines[4]).expect("JSON");
    assert_eq!((&last["name"], &last["version"]), (&"m/a.bin".into(), &1.into()), "{text}");
    assert_eq!(lines[5..], ["threeone", "one"], "{text}");
}

#[test]
fn pin_when_one_of_a_group_is_named_then_said_that_all_are_pinned() {
    let dir = TestDir::new("objects-group-pin");
    let output = script(
        &dir,
        "echo x > f; echo y > g; $F put m/ f g > /dev/null 2>&1; $F pin m/f; $F pin m/f m/g --unpin; $F rm m/g nope && exit 9 || test $? = 4; $F pin m/f",
    );
    assert_eq!(
        stdout(&output),
        "m/f pinned\nm/f unpinned\nm/g unpinned\nm/g removed\nm/f pinned\n"
    );
    let says = end(&output).1;
    let of_group = "m/f is of a group of 2 names (1 given here): all of them are pinned";
    assert_eq!(
        (says.matches(of_group).count(), says.matches("of a group").count()),
        (1, 1),
        "{says}"
    );
    assert!(
        says.contains("nope: NOT_FOUND: no object has this name; `fdbroker objects`"),
        "{says}"
    );
}

#[test]
fn put_when_it_replaces_a_version_then_it_lasts_as_that_unless_told_otherwise() {
    let dir = TestDir::new("objects-inherit");
    let output = script(
        &dir,
        "echo x > f; $F put a f --pin > /dev/null; $F put a f --replace --json; $F ls -no ALLOCATION
         $F put a f --replace --pin --json; $F put a f --replace --no-pin --json
         $F put a f --replace --keep=2h --json; $F put a f --replace --json; $F put a f --replace --keep --json
         $F put a f --replace --keep=2h --json; $F put a f --replace --keep=0 --json
         $F pin a > /dev/null; $F put a f --replace --keep=2h --json; $F put a f --replace > /dev/null",
    );
    let text = stdout(&output);
    let mut lines: Vec<&str> = text.lines().collect();
    let allocation = lines.remove(1);
    let made = lines.iter().map(|line| serde_json::from_str(line).expect("JSON"));
    let made: Vec<serde_json::Value> = made.collect();
    assert_eq!(made[0]["group"], allocation, "{text}");
    let is = |key: &str| made.iter().map(|it| it[key] == true).collect::<Vec<_>>();
    let [yes, no] = [true, false];
    assert_eq!(is("pinned"), [yes, yes, no, no, no, no, no, no, yes], "{text}");
    assert_eq!(is("pin_is_inherited"), [yes, no, no, no, no, no, no, no, yes], "{text}");
    let hours = |it: &serde_json::Value| it["ttl_seconds"].as_f64().map(|it| (it / 3600.0).ceil());
    let times: Vec<_> = made[2..8].iter().map(hours).collect();
    assert_eq!(times, [24.0, 2.0, 2.0, 24.0, 2.0, 24.0].map(Some), "{text}");
    let says = end(&output).1;
    assert_eq!(says.matches("pinned, as the version was that it replaces").count(), 1, "{says}");
}

#[test]
fn put_when_the_broker_does_not_keep_then_it_does_not_say_so() {
    let dir = TestDir::new("objects-not-kept");
    let output = script(&dir, "echo x > f; $F put a f; $F put b f --keep=2d; $F put c f --pin");
    let says = end(&output).1;
    assert!(!says.contains("kept for"), "{says}");
    assert_eq!(
        says.matches("it ends 24 h 0 min after the last use, or with the broker").count(),
        2,
        "{says}"
    );
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
fn audit_when_nobody_reads_kept_and_pinned_objects_then_no_finding() {
    let dir = TestDir::new("objects-audit");
    let output = script(
        &dir,
        "echo x > f; $F put a f > /dev/null; $F put m/ f --pin > /dev/null; $F ls -no OWNER; $F audit --json",
    );
    let text = stdout(&output);
    let json = text.strip_prefix("gone\ngone\n").expect("two allocations without an owner");
    let json: serde_json::Value = serde_json::from_str(json).expect("JSON");
    assert_eq!(json["findings"], serde_json::json!([]), "{json}");
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
fn get_when_its_reader_is_slow_then_its_lease_lasts_until_the_last_byte() {
    let dir = TestDir::new("objects-slow");
    // More than a pipe holds.
    let output = script(
        &dir,
        "head -c 1000000 /dev/zero > f; $F put a f > /dev/null
         $F get a | { head -c 1 > /dev/null; $F objects -no LEASES; $F holders -no NAME; cat > /dev/null; }
         $F objects -no LEASES",
    );
    assert_eq!(stdout(&output), "1\nfdbroker\n0\n");
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
        &["get", "a", "b"],
        &["get", "m/"],
        &["get", "a", "b", "-O", "folder", "--meta"],
        &["put", "w1", "FILE", "--keep", "2h"],
        &["rm"],
        &["rm", "a", "b", "--version", "1"],
        &["rm", "a", "--version", "0"],
        &["pin"],
        &["rm", "m/", "--prefix", "--version", "1"],
        &["rm", "", "--prefix"],
        &["put", "a", "-", "--expect", "-1"],
        &["watch", "--objects", "a", "--filter", "pid:1"],
        &["watch", "--job"],
        &["objects", "--sort", "COLOUR"],
    ] {
        let (code, stderr) = end(&run(arguments));
        assert_eq!(code, Some(2), "{arguments:?}: {stderr}");
    }
}

#[test]
fn watch_when_objects_and_since_then_2_and_why_there_is_no_past() {
    let (code, stderr) = end(&run(&["watch", "--objects", "--since", "5m"]));
    assert_eq!(code, Some(2), "{stderr}");
    assert!(stderr.contains("keeps none of objects") && stderr.contains("--sort AGE"), "{stderr}");
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
fn objects_when_a_name_has_what_a_terminal_obeys_then_text_and_json_escape_it() {
    let output = run_script(
        "echo x | $F put \"$(printf 'a\\033[2Jb')\" - > /dev/null; $F objects -no NAME; $F objects -J -o NAME",
    );
    assert_eq!(stdout(&output), "a\\u001b[2Jb\n{\"objects\":[{\"name\":\"a\\u001b[2Jb\"}]}\n");
}

#[test]
fn objects_when_nothing_matches_then_an_empty_list_and_0() {
    let output = run_script("echo x | $F put a - > /dev/null; $F objects b --json");
    assert_eq!(one_json_line(&output), serde_json::json!({ "objects": [] }));
}

/// In the scripts: what a command must end with.
const STATUS: &str = "status() { wanted=$1; shift; set +e; \"$@\"; got=$?; set -e; test $got = $wanted || { echo \"$got not $wanted: $*\"; exit 9; }; }\n";

#[test]
fn show_and_holders_when_an_objects_name_then_the_memory_of_its_group() {
    let dir = TestDir::new("objects-show");
    let output = script(
        &dir,
        &format!(
            "{STATUS} echo x > f; $F put m/ f --json; $F put 9.9 f --json; $F put 4711 f --json
             $F show m/f -J; $F show object:9.9 -J; $F show 4711 -J
             head -c 1000000 /dev/zero | $F put big - > /dev/null 2>&1
             $F get big | {{ head -c 1 > /dev/null; $F holders big -no NAME; cat > /dev/null; }}
             status 4 $F show nope; status 4 $F holders 12; status 4 $F show 9.9; status 2 $F show pid:1"
        ),
    );
    let text = stdout(&output);
    let lines: Vec<&str> = text.lines().collect();
    let json =
        |line: usize| -> serde_json::Value { serde_json::from_str(lines[line]).expect("JSON") };
    for line in 0..3 {
        let (made, shown) = (json(line), json(line + 3));
        assert_eq!(made["group"], shown["allocation"]["allocation"], "{text}");
        assert_eq!(made["objects"][0]["name"], shown["object"]["name"], "{text}");
        assert_eq!(made["version"], shown["object"]["version"], "{text}");
    }
    assert_eq!(lines[6..], ["fdbroker"], "{text}");
    let says = end(&output).1;
    for part in [
        "no object of this user has the name nope (`fdbroker objects` lists them); `nope` is none of: a handle",
        "no object of this user has the name 12 (`fdbroker objects` lists them); `12` may be a process",
        "no allocation 9.9",
        "an object of this name is object:9.9",
    ] {
        assert!(says.contains(part), "{part}: {says}");
    }
}

#[test]
fn show_when_the_sockets_are_of_two_brokers_then_refused() {
    let dir = TestDir::new("objects-two");
    let output = script(
        &dir,
        "echo x | $F put a - > /dev/null 2>&1; export OUTER=$FDBROKER_ADMIN_SOCKET
         $F run -- sh -euc 'echo x | $F put a - > /dev/null 2>&1; $F show a > /dev/null
         FDBROKER_ADMIN_SOCKET=$OUTER $F show a && exit 9 || test $? = 1'",
    );
    assert_eq!(stdout(&output), "");
    assert!(end(&output).1.contains("name the same broker"), "{}", end(&output).1);
}

#[test]
fn put_when_a_version_is_expected_then_only_that_one_is_replaced() {
    let dir = TestDir::new("objects-expect");
    let output = script(
        &dir,
        &format!(
            "{STATUS} echo 1 > f; echo 2 > g; $F put new f --expect 0; status 1 $F put new g --expect 0 --json
             $F put new g --expect 1; status 1 $F put new f --expect 1; status 1 $F put none f --expect 7; $F get new
             $F put m/ f g --expect 0; $F put m/ g f --expect 3 --replace; $F put m/f f --replace
             status 1 $F put m/ f g --expect 4; $F get m/g"
        ),
    );
    let expected = "new  version 1  2 B
{\"objects\":[{\"done\":false,\"error\":\"VERSION\",\"name\":\"new\"}]}
new  version 2  2 B
2
m/f  version 3  2 B
m/g  version 3  2 B
m/g  version 4  2 B
m/f  version 4  2 B
m/f  version 5  2 B
2
";
    assert_eq!(stdout(&output), expected);
    let says = end(&output).1;
    for part in [
        "new: VERSION: it has version 2 now, which is not what --expect says; nothing is put",
        "none: VERSION: no object has this name now",
        "one of the names: VERSION: it has version 5 now",
    ] {
        assert!(says.contains(part), "{part}: {says}");
    }
}

#[test]
fn rm_when_a_prefix_then_all_that_begin_so_and_how_many() {
    let dir = TestDir::new("objects-prefix");
    // More than one page.
    let output = script(
        &dir,
        &format!(
            "{STATUS} i=0; while [ $i -lt 150 ]; do echo x > f$i; i=$((i+1)); done
             $F put m/ f* > /dev/null 2>&1; $F put m/b/ f* --pin > /dev/null 2>&1; $F put models f0 > /dev/null 2>&1
             status 4 $F rm m/; $F objects m/ -no NAME | wc -l; $F rm m/ --prefix; $F objects -no NAME
             status 4 $F rm m/ --prefix; $F put n/ f1 f2 > /dev/null 2>&1; status 4 $F rm n/ m/ --prefix --json"
        ),
    );
    let expected = "300
300 objects removed whose names begin with m/
models
{\"prefix\":\"n/\",\"removed\":2,\"stay\":0,\"objects\":[]}
{\"prefix\":\"m/\",\"removed\":0,\"stay\":0,\"objects\":[]}
";
    assert_eq!(stdout(&output), expected);
    let says = end(&output).1;
    assert_eq!(says.matches("--prefix removes all objects whose names begin so").count(), 1);
    assert_eq!(says.matches("m/: NOT_FOUND: no object's name begins so").count(), 2, "{says}");
}

#[test]
fn rm_when_a_prefix_and_one_is_in_the_making_then_it_stays_and_is_named() {
    let mut job = fdbroker(&["run", "--", "sh", "-c", "echo $FDBROKER_SOCKET; read line"]);
    job.stdin(std::process::Stdio::piped());
    let mut job = Running::start(job);
    let mut lines = BufReader::new(job.0.stdout.take().expect("piped")).lines();
    let socket = lines.next().expect("a line").expect("text");
    let objects = Client::builder().socket(&socket).connect().expect("it serves").objects();
    let (options, soon) = (ObjectOptions::default(), Deadline::from_ms(60_000));
    objects.put("m/a", b"x", options, soon).expect("made");
    let making = objects.create(&[NewObject::new("m/b", 1)], Place::Host, options, soon);
    let making = making.expect("begun");
    let mut rm = fdbroker(&["rm", "m/", "--prefix", "--json"]);
    let output = rm.env("FDBROKER_SOCKET", &socket).output().expect("it starts");
    let stays = serde_json::json!({ "name": "m/b", "done": false, "error": "NOT_SEALED" });
    let expected =
        serde_json::json!({ "prefix": "m/", "removed": 1, "stay": 1, "objects": [stays] });
    assert_eq!(one_json_line(&output), expected);
    assert_eq!(end(&output).0, Some(1), "{}", end(&output).1);
    making.seal(soon).expect("nobody took its name");
    drop(job);
}

#[test]
fn get_when_asked_for_json_and_it_cannot_be_had_then_an_object_of_the_form_of_rm() {
    let dir = TestDir::new("objects-json");
    let output = script(
        &dir,
        &format!(
            "{STATUS} echo x | $F put a - > /dev/null 2>&1; status 4 $F get nope -J; status 4 $F rm nope -J; status 4 $F pin nope -J
             status 4 $F get nope -J --timeout 300ms; status 4 $F get nope/ -J -O d; status 4 $F get a nope -J -O d
             echo y > a; echo z > b; status 1 $F put a a -J"
        ),
    );
    let json = |line: &str| -> serde_json::Value { serde_json::from_str(line).expect("JSON") };
    let found: Vec<serde_json::Value> = stdout(&output).lines().map(json).collect();
    let undone = |name: &str, error: Option<&str>| serde_json::json!({ "name": name, "done": false, "error": error });
    for line in &found[..3] {
        assert_eq!(
            line["objects"],
            serde_json::json!([undone("nope", Some("NOT_FOUND"))]),
            "{line}"
        );
    }
    let rest = [
        vec![undone("nope", Some("TIMED_OUT"))],
        vec![undone("nope/", Some("NOT_FOUND"))],
        vec![undone("a", None), undone("nope", Some("NOT_FOUND"))],
        vec![undone("a", Some("EXISTS"))],
    ];
    let rest = rest.map(|objects| serde_json::json!({ "objects": objects }));
    assert_eq!(found[3..], rest);
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

#[test]
fn get_when_the_broker_answers_late_then_it_is_waited_for_and_what_is_not_there_is_not() {
    let dir = TestDir::new("objects-late");
    let output = script(
        &dir,
        r#"
P=$($F status --json | sed 's/.*"pid":\([0-9]*\),"draining.*/\1/')
echo here | $F put model/a - >&2
B=$(date +%s%N); $F get model/b 2>&1 && exit 9; test $? = 4
test $((($(date +%s%N) - B) / 1000000)) -lt 5000
(sleep 0.5; kill -CONT "$P") &
kill -STOP "$P"
$F get model/a
wait
"#,
    );
    let text = stdout(&output);
    assert!(text.contains("no object has this name") && text.ends_with("\nhere\n"), "{text}");
}

#[test]
fn commands_when_the_broker_is_stopped_then_they_end_in_time_and_say_so_and_it_goes_on() {
    let dir = TestDir::new("objects-stopped");
    let output = script(
        &dir,
        r#"
P=$($F status --json | sed 's/.*"pid":\([0-9]*\),"draining.*/\1/')
kill -STOP "$P"
trap 'kill -CONT "$P"' EXIT
set +e
B=$(date +%s%N); $F get model/a --timeout 100ms 2>get; G=$?; E=$(date +%s%N)
$F status 2>status; S=$?
kill -CONT "$P"
set -e
echo here | $F put model/a - >&2
$F get model/a
echo "$G $S $(((E - B) / 1000000))"
cat get status
"#,
    );
    let text = stdout(&output);
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("here"));
    let numbers: Vec<u64> =
        lines.next().expect("a line").split(' ').map(|it| it.parse().expect("a number")).collect();
    // The broker does not answer, and far sooner than the 10 s of commands that have no deadline.
    assert_eq!(numbers[..2], [6, 6], "{text}");
    assert!(numbers[2] < 2000, "{} ms", numbers[2]);
    let said: Vec<&str> = lines.collect();
    assert_eq!(said.len(), 2, "{text}");
    for line in said {
        assert!(line.contains("does not answer") && line.contains("it is stopped"), "{line}");
    }
}
