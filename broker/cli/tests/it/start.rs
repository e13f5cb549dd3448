//! A broker that programs start by themselves, as the library has it: `fdbroker objects` is such a
//! program. One broker for all, as long as any of them is connected and some seconds more, and
//! nothing of it after that.

use crate::common::job::{Node, kill_all};
use crate::common::{Running, end, fdbroker, is_alive, one_json_line, signal, wait_for};
use crate::shared::not_run;
use fdbroker_client::Client;
use serde_json::Value;
use std::fs::DirEntry;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// How long a broker stays without a client.
const LINGER: Duration = Duration::from_secs(5);

/// A node without a broker. `None`: this machine has a node service, and nothing is started.
fn node(name: &str) -> Option<Node> {
    if Path::new("/run/fdbroker").exists() {
        not_run(name, "/run/fdbroker is there, as of a node service");
        return None;
    }
    Some(Node::new(name))
}

/// A shell script on the node whose programs start a broker; `$F` is the command.
fn script(node: &Node, script: &str) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", script]);
    in_place(node, shell)
}

/// The same in a mount namespace of its own; exit status 77 where there can be none.
fn in_own_mounts(node: &Node, inner: &str) -> Command {
    let outer = "unshare -m true || exit 77; exec unshare -m sh -c \"$I\"";
    let mut outer = script(node, outer);
    outer.env("I", inner);
    outer
}

fn program(node: &Node, arguments: &[&str]) -> Command {
    in_place(node, fdbroker(arguments))
}

fn in_place(node: &Node, command: Command) -> Command {
    let mut command = node.on_node(command);
    for name in ["FDBROKER_SOCKET", "FDBROKER_ADMIN_SOCKET", "XDG_RUNTIME_DIR", "PBS_JOBID"] {
        command.env_remove(name);
    }
    command.env("FDBROKER_START", "1").stdin(Stdio::null());
    command
}

fn ended(command: Command) -> Output {
    Running::start(command).end()
}

/// Runs it to its end, which is to be a good one.
fn done(command: Command) -> Output {
    let output = ended(command);
    assert!(output.status.success(), "{}", end(&output).1);
    output
}

fn status(node: &Node) -> Value {
    one_json_line(&done(program(node, &["status", "--json"])))
}

/// The clients' socket of the one broker.
fn socket(node: &Node) -> PathBuf {
    let rooms = node.rooms();
    assert_eq!(rooms.len(), 1, "{rooms:?}");
    rooms[0].join("fdbroker/broker.sock")
}

fn connect(node: &Node) -> Client {
    Client::builder().socket(socket(node)).connect().expect("the broker answers")
}

#[test]
fn start_when_64_ask_at_once_then_one_broker_which_ends_after_the_last() {
    let Some(node) = node("start-64") else { return };
    let one = "$F objects && $F status --json";
    let all: Vec<_> = (0..64).map(|_| Running::start(script(&node, one))).collect();
    let mut incarnations: Vec<String> = Vec::new();
    for one in all {
        let output = one.end();
        assert!(output.status.success(), "{}", end(&output).1);
        let text = String::from_utf8(output.stdout).expect("UTF-8");
        let line = text.lines().last().expect("a line");
        let status: Value = serde_json::from_str(line).expect("JSON");
        incarnations.push(status["incarnation"].as_str().expect("one").into());
    }
    incarnations.dedup();
    assert_eq!(incarnations.len(), 1, "{incarnations:?}");
    node.only("keeper");
    node.only("broker");
    node.wait_until_empty();
}

#[test]
fn start_when_not_asked_for_then_nothing_is_started() {
    let Some(node) = node("start-unasked") else { return };
    for (variable, value) in [("FDBROKER_START", "0"), ("FDBROKER_START", ""), ("OTHER", "1")] {
        let mut command = program(&node, &["objects"]);
        command.env_remove("FDBROKER_START").env(variable, value);
        assert_eq!(end(&ended(command)).0, Some(3));
    }
    let mut command = program(&node, &["objects"]);
    command.env("FDBROKER_START", "maybe");
    let (code, stderr) = end(&ended(command));
    assert!(code == Some(1) && stderr.contains("FDBROKER_START=maybe"), "{code:?} {stderr}");
    assert!(!node.home().exists());
}

#[test]
fn start_when_one_is_named_then_it_is_waited_for_and_none_is_started() {
    let Some(node) = node("start-named") else { return };
    let place = node.0.path().join("named");
    std::fs::create_dir(&place).expect("a directory");
    let mut waiting = program(&node, &["objects"]);
    waiting.env("FDBROKER_SOCKET", place.join("fdbroker/broker.sock"));
    let mut waiting = Running::start(waiting);
    std::thread::sleep(Duration::from_millis(300));
    assert!(waiting.0.try_wait().expect("own child").is_none(), "it waits");
    let private = place.to_str().expect("UTF-8");
    let service = Running::start(fdbroker(&["broker", "--private", private]));
    let output = waiting.end();
    assert!(output.status.success(), "{}", end(&output).1);
    service.signal("TERM");
    service.end();
    assert!(!node.home().exists());
}

#[test]
fn start_when_a_node_service_is_installed_then_none_is_started() {
    let Some(node) = node("start-service") else { return };
    // In a mount namespace of its own, which has the directory.
    let inner = "mount -t tmpfs none /run && mkdir /run/fdbroker && exec $F objects";
    let (code, stderr) = end(&ended(in_own_mounts(&node, inner)));
    if code == Some(77) {
        return not_run("start_when_a_node_service_is_installed", "no mount namespace");
    }
    assert_eq!(code, Some(3), "{stderr}");
    assert!(stderr.contains("/run/fdbroker/broker.sock"), "{stderr}");
    assert!(!node.home().exists());
}

#[test]
fn start_when_the_process_has_more_rights_than_its_user_then_nothing_is_started() {
    let Some(node) = node("start-secure") else { return };
    if !nix::unistd::Uid::effective().is_root() {
        return not_run("start_when_the_process_has_more_rights", "needs root, for another user");
    }
    std::fs::set_permissions(node.0.path(), PermissionsExt::from_mode(0o1777)).expect("ours");
    let other = node.0.path().join("fdbroker");
    std::fs::copy(env!("CARGO_BIN_EXE_fdbroker"), &other).expect("copied");
    std::os::unix::fs::chown(&other, Some(61_003), None).expect("root may");
    std::fs::set_permissions(&other, PermissionsExt::from_mode(0o4755)).expect("root may");
    let mut command = Command::new(&other);
    command.arg("objects");
    assert_eq!(end(&ended(in_place(&node, command))).0, Some(3));
    assert_eq!(std::fs::read_dir(node.0.path()).expect("there").count(), 1, "the copy alone");
}

#[test]
fn start_when_its_place_is_odd_then_the_broker_has_none_of_it() {
    let Some(node) = node("start-odd") else { return };
    let gone = node.0.path().join("gone");
    std::fs::create_dir(&gone).expect("a directory");
    // No stdin, no working directory, no rights for files, one core, settings of the program's own.
    let odd =
        "cd $D; rmdir $D; umask 0777; ulimit -S -n 64; exec taskset -c $C $F objects <&- 2>$E";
    let mut odd = script(&node, odd);
    let said = node.0.path().join("said");
    std::fs::write(&said, "").expect("written");
    let core = std::fs::read_to_string("/proc/self/status").expect("readable");
    let core = core.split("Cpus_allowed_list:\t").nth(1).expect("in every status");
    let core: String = core.chars().take_while(char::is_ascii_digit).collect();
    odd.env("D", &gone).env("E", &said).env("C", core);
    odd.env("LD_PRELOAD", "").env("FDBROKER_LOG", "off").env("FDBROKER_MAX_FDS", "7");
    done(odd);
    let broker = node.only("broker");
    for pid in [node.only("keeper"), broker] {
        let of = |name: &str| std::fs::read(format!("/proc/{pid}/{name}")).expect("alive");
        let [status, own] = [of("status"), std::fs::read("/proc/self/status").expect("readable")]
            .map(|text| String::from_utf8(text).expect("UTF-8"));
        let cores = |text: &str| {
            let line = text.lines().find(|line| line.starts_with("Cpus_allowed_list"));
            line.expect("in every status").to_owned()
        };
        assert_eq!(cores(&status), cores(&own));
        assert!(status.contains("Umask:\t0077"), "{status}");
        assert_eq!(std::fs::read_link(format!("/proc/{pid}/cwd")).expect("ours"), Path::new("/"));
        let environment = String::from_utf8_lossy(&of("environ")).into_owned();
        let is_others = |it: &str| it.starts_with("FDBROKER_") || it.starts_with("LD_PRELOAD");
        assert!(!environment.split('\0').any(is_others), "{environment}");
    }
    done(program(&node, &["stop"]));
    node.wait_until_empty();
}

#[test]
fn start_when_something_is_kept_then_the_broker_stays_and_stop_ends_it() {
    let Some(node) = node("start-kept") else { return };
    let file = node.0.path().join("file");
    std::fs::write(&file, "weights").expect("written");
    done(program(&node, &["put", "a", file.to_str().expect("UTF-8")]));
    let pid = status(&node)["pid"].as_u64();
    std::thread::sleep(2 * LINGER);
    // Without a word of starting: it is found.
    let mut get = program(&node, &["get", "a"]);
    get.env_remove("FDBROKER_START");
    assert_eq!(done(get).stdout, b"weights");
    let mut doctor = program(&node, &["doctor"]);
    doctor.env_remove("FDBROKER_START");
    let said = String::from_utf8(ended(doctor).stdout).expect("UTF-8");
    assert!(said.contains(&format!("{} answers", socket(&node).display())), "{said}");

    let shown = String::from_utf8(done(program(&node, &["status"])).stdout).expect("UTF-8");
    assert!(shown.contains("started by a program") && shown.contains("fdbroker stop"), "{shown}");
    let own = std::fs::read_to_string("/proc/self/cgroup").expect("readable");
    let unified = own.lines().find_map(|line| line.strip_prefix("0::"));
    let cgroup = unified.or(own.lines().next()).expect("a line");
    assert_eq!(status(&node)["started"]["cgroup"], cgroup);

    let client = connect(&node);
    let stopped = one_json_line(&done(program(&node, &["stop", "--json"])));
    assert_eq!((stopped["pid"].as_u64(), stopped["clients"].as_u64()), (pid, Some(1)));
    node.wait_until_empty();
    drop(client);
    let (code, stderr) = end(&ended(program(&node, &["stop"])));
    assert_eq!(code, Some(3), "{stderr}");
}

#[test]
fn stop_when_the_broker_is_another_kind_then_refused() {
    let Some(node) = node("stop-other") else { return };
    let output = ended(script(&node, "$F run -- $F stop"));
    let (code, stderr) = end(&output);
    assert!(code == Some(4) && stderr.contains("not started by a program"), "{code:?} {stderr}");
}

#[test]
fn start_when_the_broker_is_about_to_end_then_who_comes_has_a_broker() {
    let Some(_) = node("start-races") else { return };
    let nodes: Vec<_> = (0..12).map(|one| Node::new(&format!("start-race-{one}"))).collect();
    let racing = |(node, delay): (Node, Duration)| {
        done(program(&node, &["objects"]));
        std::thread::sleep(delay);
        done(program(&node, &["objects"]));
        node.wait_until_empty();
    };
    // The keeper looks twice a second.
    let delays = (0..12).map(|step| LINGER + Duration::from_millis(step * 50));
    std::thread::scope(|scope| {
        for one in nodes.into_iter().zip(delays) {
            scope.spawn(move || racing(one));
        }
    });
}

#[test]
fn start_when_stopped_while_others_come_then_each_has_a_broker() {
    let Some(node) = node("stop-races") else { return };
    done(program(&node, &["objects"]));
    for _ in 0..5 {
        let stop = Running::start(program(&node, &["stop"]));
        let next = Running::start(script(&node, "$F stop; $F objects && $F status --json"));
        let output = next.end();
        assert!(output.status.success(), "{}", end(&output).1);
        stop.end();
    }
    done(program(&node, &["stop"]));
    node.wait_until_empty();
}

#[test]
fn start_when_the_starter_is_killed_in_the_middle_then_nothing_hangs_and_nothing_is_left() {
    let Some(node) = node("start-killed") else { return };
    let starter = || {
        let mut command = program(&node, &["start"]);
        command.stdin(Stdio::piped());
        let mut running = Running::start(command);
        let mut stdout = BufReader::new(running.0.stdout.take().expect("piped"));
        let mut line = String::new();
        stdout.read_line(&mut line).expect("readable");
        assert!(line.starts_with("READY /"), "{line:?}");
        running
    };
    for word in ["start", "keeper"] {
        // At any of its steps.
        for step in 0..8 {
            let running = Running::start({
                let mut command = program(&node, &["start"]);
                command.stdin(Stdio::piped());
                command
            });
            std::thread::sleep(Duration::from_millis(step * 4));
            let pids = if word == "start" { vec![running.pid()] } else { node.processes("keeper") };
            for pid in pids {
                // It may have ended by itself.
                let _ = Command::new("kill").args(["-KILL", &pid.to_string()]).output();
                wait_for("end of the killed", || (!is_alive(pid)).then_some(()));
            }
            drop(running);
        }
        done(program(&node, &["objects"]));
    }
    done(program(&node, &["stop"]));
    node.wait_until_empty();
    // Its program's connection counts from here on; until then it is the starter's.
    let running = starter();
    std::thread::sleep(LINGER + Duration::from_secs(2));
    let client = connect(&node);
    running.signal("KILL");
    running.end();
    std::thread::sleep(LINGER + Duration::from_secs(2));
    assert!(is_alive(node.only("broker")));
    drop(client);
    node.wait_until_empty();
}

#[test]
fn start_when_keeper_and_broker_were_killed_then_the_socket_they_left_does_no_harm() {
    let Some(node) = node("start-stale") else { return };
    // Each would see to the other's end.
    let kill_both = || {
        let (keeper, broker) = (node.only("keeper"), node.only("broker"));
        signal(keeper, "STOP");
        kill_all(&[broker, keeper]);
    };
    done(program(&node, &["objects"]));
    let client = connect(&node);
    let before = status(&node)["incarnation"].clone();
    kill_both();
    assert!(socket(&node).exists(), "it is left");
    done(program(&node, &["objects"]));
    assert_ne!(status(&node)["incarnation"], before);
    // The library of who was there finds the next one at the same place.
    wait_for("connection", || client.is_connected().then_some(()));
    drop(client);
    // One that was asked to end, and was killed before it had.
    let room = node.rooms().remove(0);
    kill_both();
    std::fs::write(room.join("stop"), "").expect("written");
    done(program(&node, &["objects"]));
    node.wait_until_empty();
}

#[test]
fn start_when_the_broker_begins_then_it_has_the_lock_of_its_room_until_it_has_ended() {
    let Some(node) = node("start-taken") else { return };
    done(program(&node, &["objects"]));
    let lock = node.rooms()[0].join("keeper");
    let has = |fd: std::io::Result<DirEntry>| std::fs::read_link(fd?.path()).map(|it| it == lock);
    // A broker whose keeper is killed at its first step must keep the next one out.
    for process in ["keeper", "broker"] {
        let fds = std::fs::read_dir(format!("/proc/{}/fd", node.only(process))).expect("alive");
        assert!(fds.map(has).any(|has| has.unwrap_or(false)), "{process}");
    }
    node.wait_until_empty();
}

#[test]
fn start_when_its_place_is_removed_then_the_broker_ends_and_the_next_program_has_one() {
    let Some(node) = node("start-removed") else { return };
    for part in ["fdbroker/broker.sock", "fdbroker-admin", ""] {
        done(program(&node, &["objects"]));
        let client = connect(&node);
        let broker = node.only("broker");
        let removed = match part {
            "" => node.home(),
            part => node.rooms()[0].join(part),
        };
        if removed.is_dir() {
            std::fs::remove_dir_all(removed).expect("ours");
        } else {
            std::fs::remove_file(removed).expect("ours");
        }
        wait_for("end", || (!is_alive(broker)).then_some(()));
        drop(client);
    }
    done(program(&node, &["objects"]));
    done(program(&node, &["stop"]));
    node.wait_until_empty();
}

#[test]
fn start_when_the_broker_hangs_then_named_with_what_ends_it_and_that_does() {
    let Some(node) = node("start-hung") else { return };
    done(program(&node, &["objects"]));
    signal(node.only("broker"), "STOP");
    let (code, stderr) = end(&ended(program(&node, &["get", "a", "--timeout", "3s"])));
    assert!(code == Some(6) && stderr.contains("`fdbroker stop` ends it"), "{code:?} {stderr}");
    let said = String::from_utf8(done(program(&node, &["stop"])).stdout).expect("UTF-8");
    assert!(said.contains("its clients lost"), "{said}");
    node.wait_until_empty();
}

#[test]
fn start_when_the_broker_is_killed_then_its_keeper_starts_another() {
    let Some(node) = node("start-broker-killed") else { return };
    done(program(&node, &["objects"]));
    let client = connect(&node);
    let (keeper, broker) = (node.only("keeper"), node.only("broker"));
    kill_all(&[broker]);
    wait_for("another broker", || node.processes("broker").first().copied());
    wait_for("connection", || client.is_connected().then_some(()));
    assert_eq!(node.only("keeper"), keeper);
    drop(client);
    node.wait_until_empty();
}

#[test]
fn start_when_the_session_ends_then_the_broker_does_but_not_at_a_schedulers_signal() {
    let Some(node) = node("start-term") else { return };
    done(program(&node, &["objects"]));
    signal(node.only("keeper"), "TERM");
    wait_for("end", || node.processes("broker").is_empty().then_some(()));

    let in_job = |arguments: &[&str]| {
        let mut command = program(&node, arguments);
        command.env("SLURM_JOB_ID", "17");
        command
    };
    done(in_job(&["objects"]));
    signal(node.only("keeper"), "TERM");
    let mut other = in_job(&["objects"]);
    other.env("SLURM_STEP_ID", "0");
    done(other);
    assert_eq!(node.processes("keeper").len(), 2, "a broker for each step");
    done(in_job(&["stop"]));
    node.wait_until_no_process();
}

#[test]
fn start_when_the_place_is_full_or_hostile_then_an_error_with_a_remedy_and_nothing_is_left() {
    let Some(node) = node("start-full") else { return };
    std::fs::create_dir(node.home()).expect("a directory");
    std::fs::set_permissions(node.home(), PermissionsExt::from_mode(0o777)).expect("ours");
    let (code, stderr) = end(&ended(program(&node, &["objects"])));
    assert!(code == Some(3) && stderr.contains("its mode is 0777"), "{code:?} {stderr}");
    std::fs::remove_dir(node.home()).expect("empty");

    let inner = "mount -t tmpfs -o nr_inodes=6 none $TMPDIR && exec $F objects";
    let (code, stderr) = end(&ended(in_own_mounts(&node, inner)));
    if code == Some(77) {
        return not_run("start_when_the_place_is_full", "no mount namespace");
    }
    assert!(code == Some(3) && stderr.contains("No space left"), "{code:?} {stderr}");
    wait_for("end", || node.processes("keeper").is_empty().then_some(()));
}

#[test]
fn start_when_there_is_no_program_or_a_wrong_one_then_its_words_and_within_the_deadline() {
    let Some(node) = node("start-program") else { return };
    let with = |text: &str| {
        let path = node.0.path().join("other");
        std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).expect("written");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).expect("ours");
        let mut command = program(&node, &["get", "a", "--timeout", "500ms"]);
        command.env("FDBROKER_PROGRAM", &path);
        let began = Instant::now();
        let (code, stderr) = end(&ended(command));
        assert!(began.elapsed() < Duration::from_secs(30), "{text}");
        assert_eq!(code, Some(3), "{text}: {stderr}");
        stderr
    };
    assert!(with("echo fdbroker: no such word >&2; exit 2").contains("no such word"));
    assert!(with("exit 0").contains("without a word"));
    assert!(with("yes").contains("start a broker"));
    assert!(with("exec sleep 20").contains("by the deadline"));
    let mut command = program(&node, &["objects"]);
    command.env("FDBROKER_PROGRAM", "/nowhere/fdbroker");
    let (code, stderr) = end(&ended(command));
    assert!(code == Some(1) && stderr.contains("/nowhere/fdbroker"), "{code:?} {stderr}");
    assert!(!node.home().exists());
}

/// A node with a user's manager, in a pid, a cgroup and a mount namespace of its own; exit status
/// 77 where there can be none. `$I` is what runs there.
const WITH_MANAGER: &str = r#"
    unshare -mCpf --mount-proc true && [ -x /lib/systemd/systemd ] || exit 77
    mkdir -p "$TMPDIR/cgroups" && mount -t cgroup2 none "$TMPDIR/cgroups" || exit 77
    own=$TMPDIR/cgroups/fdbroker-test-$$
    mkdir "$own" && echo $$ > "$own/cgroup.procs" || exit 77
    unshare -mCpf --mount-proc sh -c "$I"
    status=$?
    echo $$ > "$TMPDIR/cgroups/cgroup.procs"
    find "$own" -depth -type d -exec rmdir {} ';'
    exit $status
"#;

/// Its begin: until the manager answers.
const MANAGER: &str = r#"
    umount -l /sys/fs/cgroup
    mount -t cgroup2 none /sys/fs/cgroup && mount -t tmpfs none /run || exit 77
    mkdir -p /run/systemd/system /run/user/0
    export XDG_RUNTIME_DIR=/run/user/0 SYSTEMD_IGNORE_CHROOT=1
    /lib/systemd/systemd --user > "$TMPDIR/manager" 2>&1 & manager=$!
    until [ -e /run/user/0/systemd/private ]; do kill -0 $manager || exit 77; sleep 0.02; done
"#;

fn with_manager(node: &Node, inner: &str) -> Option<Output> {
    let mut outer = Command::new("unshare");
    outer.args(["-m", "sh", "-c", WITH_MANAGER]);
    let mut outer = in_place(node, outer);
    outer.env("I", format!("{MANAGER}\n{inner}"));
    let output = ended(outer);
    (output.status.code() != Some(77)).then_some(output)
}

#[test]
fn start_when_the_users_manager_answers_then_the_broker_is_a_unit_of_its_own_else_it_starts_anyway()
{
    let test = "start_when_the_users_manager_answers";
    let Some(node) = node("start-unit") else { return };
    if !nix::unistd::Uid::effective().is_root() {
        return not_run(test, "needs root, for namespaces");
    }
    let own = "$F objects && $F status --json && $F stop";
    let hangs = "kill -STOP $manager; $F objects && $F status --json && $F stop";
    for (script, is_unit) in [(own, true), (hangs, false)] {
        let Some(output) = with_manager(&node, script) else {
            return not_run(test, "systemd --user cannot run in namespaces here");
        };
        assert!(output.status.success(), "{}", end(&output).1);
        let text = String::from_utf8(output.stdout).expect("UTF-8");
        let line = text.lines().find(|line| line.starts_with('{')).expect("JSON");
        let status: Value = serde_json::from_str(line).expect("JSON");
        let cgroup = status["started"]["cgroup"].as_str().expect("a path");
        assert_eq!(cgroup.ends_with(".scope"), is_unit, "{cgroup}");
    }
}
