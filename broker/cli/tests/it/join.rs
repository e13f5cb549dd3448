//! `run --join`: real processes meet at one broker, and leave in every way there is. The broker
//! must be there as long as any of them is, and nothing of it after the last.

use crate::common::job::{MEMBER, Member, Node, is_sleeping, kill_all};
use crate::common::{Running, TestDir, end, fdbroker, is_alive, run, signal, wait_for};
use crate::shared::not_run;
use fdbroker_client::Client;
use fdbrokerd::lock::DirectoryLock;
use serde_json::Value;
use std::io::Write;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

#[test]
fn join_when_eight_start_at_once_then_one_broker_is_there_until_the_last_has_gone() {
    let node = Node::new("eight");
    let script = format!("{MEMBER}; $F status --json");
    let started: Vec<_> = (0..8).map(|_| Running::start(node.rank("a", &script))).collect();
    let mut members: Vec<_> = started.into_iter().map(Member::joined).collect();
    let last = members.pop().expect("eight");
    let broker = last.broker_pid();
    assert_eq!(node.only("broker"), broker);
    node.only("keeper");
    for member in members {
        assert_eq!(member.incarnation(), last.incarnation());
        assert_eq!(member.leave().0, Some(0));
    }
    let incarnation = last.incarnation().to_owned();
    let (code, rest) = last.leave();
    assert_eq!(code, Some(0), "the broker was there for the last one");
    assert!(rest.contains(&incarnation), "{rest}");
    node.wait_until_empty();
    wait_for("end of the broker", || (!is_alive(broker)).then_some(()));
}

#[test]
fn join_when_they_come_and_go_then_the_broker_stays_as_long_as_any_is_there() {
    let node = Node::new("staggered");
    let mut member = Member::join(node.rank("a", MEMBER));
    let incarnation = member.incarnation().to_owned();
    for _ in 0..5 {
        let next = Member::join(node.rank("a", MEMBER));
        assert_eq!(next.incarnation(), incarnation);
        assert_eq!(member.leave().0, Some(0));
        member = next;
    }
    member.leave();
    node.wait_until_empty();
}

#[test]
fn join_when_last_out_meets_first_in_then_every_member_has_a_live_broker() {
    let node = Node::new("rapid");
    for round in 0..20 {
        let ranks: Vec<_> =
            (0..4).map(|_| Running::start(node.rank("a", "$F status --json"))).collect();
        for rank in ranks {
            let (code, stderr) = end(&rank.end());
            assert_eq!(code, Some(0), "round {round}: {stderr}");
        }
    }
    node.wait_until_empty();
}

#[test]
fn join_when_the_command_ends_then_its_own_status_and_pid() {
    let node = Node::new("status");
    let output = Running::start(node.rank("a", "echo $$; exit 7"));
    let pid = output.pid();
    let output = output.end();
    assert_eq!(output.status.code(), Some(7), "{}", end(&output).1);
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), pid.to_string());
    let output = Running::start(node.rank("a", "kill -KILL $$")).end();
    assert_eq!(output.status.signal(), Some(9));
    let command = ["run", "--join", "--job", "a", "--", "no-such-command-anywhere"];
    let mut unknown = node.on_node(fdbroker(&command));
    unknown.env("PATH", "/usr/bin");
    let (code, stderr) = end(&Running::start(unknown).end());
    assert_eq!(code, Some(127), "{stderr}");
    assert!(stderr.contains("cannot run no-such-command-anywhere"), "{stderr}");
    node.wait_until_empty();
}

#[test]
fn join_when_signalled_then_the_command_gets_it() {
    let node = Node::new("signals");
    for name in ["INT", "TERM", "HUP", "USR1"] {
        let script =
            format!("trap 'exit 9' {name}; $F status --json; while :; do sleep 0.02; done");
        let member = Member::join(node.rank("a", &script));
        member.running.signal(name);
        assert_eq!(member.leave().0, Some(9), "{name}");
    }
    node.wait_until_empty();
}

#[test]
fn join_when_a_member_is_killed_then_the_others_go_on_and_the_last_one_ends_it() {
    let node = Node::new("member-killed");
    let first = Member::join(node.rank("a", MEMBER));
    let second = Member::join(node.rank("a", &format!("{MEMBER}; exec $F status --json")));
    first.running.signal("KILL");
    assert_eq!(first.leave().0, None);
    let incarnation = second.incarnation().to_owned();
    let (code, rest) = second.leave();
    assert_eq!(code, Some(0));
    assert!(rest.contains(&incarnation), "{rest}");
    node.wait_until_empty();

    let alone = Member::join(node.rank("a", MEMBER));
    alone.running.signal("KILL");
    drop(alone);
    node.wait_until_empty();
}

#[test]
fn join_when_the_broker_is_killed_then_its_keeper_starts_another_five_times_and_then_who_joins() {
    let node = Node::new("broker-killed");
    let script = "$F status --json; while read line; do case $line in \
        again) until $F status --json 2>/dev/null; do sleep 0.02; done;; \
        *) $F status; echo $?;; esac; done";
    let mut first = Member::join(node.rank("a", script));
    let keeper = node.only("keeper");
    let mut stdin = first.running.0.stdin.take().expect("piped");
    let mut broker = first.broker_pid();
    for _ in 0..5 {
        kill_all(&[broker]);
        stdin.write_all(b"again\n").expect("it reads");
        let status: serde_json::Value = serde_json::from_str(&first.next_line()).expect("JSON");
        let next = u32::try_from(status["pid"].as_u64().expect("a pid")).expect("a pid");
        assert_ne!(next, broker);
        assert_eq!(node.only("keeper"), keeper);
        broker = next;
    }
    kill_all(&[broker]);
    stdin.write_all(b"once\n").expect("it reads");
    assert_eq!(first.next_line(), "3\n", "no broker answers");

    let second = Member::join(node.rank("a", MEMBER));
    let incarnation = second.incarnation().to_owned();
    stdin.write_all(b"again\n").expect("it reads");
    first.running.0.stdin = Some(stdin);
    let (code, rest) = first.leave();
    assert_eq!(code, Some(0));
    assert!(rest.contains(&incarnation), "the same place: {rest}");
    second.leave();
    node.wait_until_empty();
    // The room goes before its process does.
    wait_for("end of the keeper", || (!is_alive(keeper)).then_some(()));
}

#[test]
fn join_when_the_broker_is_killed_and_nobody_joins_then_nothing_is_left() {
    let node = Node::new("broker-killed-last");
    let member = Member::join(node.rank("a", MEMBER));
    signal(member.broker_pid(), "KILL");
    assert_eq!(member.leave().0, Some(0));
    node.wait_until_empty();
}

#[test]
fn join_when_the_keeper_is_killed_then_the_next_one_gets_a_broker_that_stays() {
    let node = Node::new("keeper-killed");
    let first = Member::join(node.rank("a", MEMBER));
    kill_all(&[node.only("keeper")]);
    // Its broker may still be ending.
    let second = Member::join(node.rank("a", &format!("{MEMBER}; $F status --json")));
    assert_ne!(second.incarnation(), first.incarnation());
    wait_for("end of the first broker", || (!is_alive(first.broker_pid())).then_some(()));
    first.leave();
    let incarnation = second.incarnation().to_owned();
    let (code, rest) = second.leave();
    assert_eq!(code, Some(0));
    assert!(rest.contains(&incarnation), "{rest}");
    node.wait_until_empty();
}

#[test]
fn join_when_a_keeper_was_killed_and_its_job_is_over_then_another_job_clears_its_place() {
    let node = Node::new("sweep");
    let first = Member::join(node.rank("a", MEMBER));
    let running = Member::join(node.rank("b", MEMBER));
    let keepers = node.processes("keeper");
    let room_of = |pid: &u32| {
        let line = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).expect("alive");
        PathBuf::from(line.split('\0').nth(2).expect("a directory"))
    };
    let broker_of = |pid: &u32| crate::common::children(*pid, "broker");
    let killed = keepers.iter().find(|pid| broker_of(pid) == [first.broker_pid()]);
    let (killed, left) = killed.map(|pid| (*pid, room_of(pid))).expect("a's keeper");
    kill_all(&[killed]);
    wait_for("end of the broker", || (!is_alive(first.broker_pid())).then_some(()));
    first.leave();
    assert!(left.exists(), "nobody is there to remove it");
    Member::join(node.rank("c", MEMBER)).leave();
    wait_for("removal", || (!left.exists()).then_some(()));
    let incarnation = running.incarnation().to_owned();
    let again = Member::join(node.rank("b", MEMBER));
    assert_eq!(again.incarnation(), incarnation, "a job that runs is left alone");
    running.leave();
    again.leave();
    node.wait_until_empty();
}

#[test]
fn join_when_everything_is_killed_then_the_same_job_starts_clean() {
    let node = Node::new("all-killed");
    let member = Member::join(node.rank("a", MEMBER));
    let incarnation = member.incarnation().to_owned();
    kill_all(&[node.only("keeper"), member.broker_pid(), member.running.pid()]);
    drop(member);
    assert_eq!(node.rooms().len(), 1);
    let next = Member::join(node.rank("a", MEMBER));
    assert_ne!(next.incarnation(), incarnation);
    next.leave();
    node.wait_until_empty();
}

#[test]
fn join_when_the_former_broker_is_still_ending_then_the_next_one_waits_for_it() {
    let node = Node::new("ending");
    let member = Member::join(node.rank("a", MEMBER));
    kill_all(&[node.only("keeper"), member.broker_pid(), member.running.pid()]);
    // In its place: what a broker holds until its very end.
    let directory = node.rooms().remove(0).join("fdbroker-admin");
    // Its lanes have the lock for a moment longer than it has.
    let ending = wait_for("end of the lanes", || DirectoryLock::take(&directory).ok());
    let next = Running::start(node.rank("a", MEMBER));
    wait_for("keeper that waits", || {
        node.processes("keeper").into_iter().find(|it| is_sleeping(*it))
    });
    drop(ending);
    Member::joined(next).leave();
    node.wait_until_empty();
}

#[test]
fn join_when_a_socket_was_inherited_then_replaced() {
    let node = Node::new("inherited");
    let dead = node.0.path().join("dead.sock");
    drop(std::os::unix::net::UnixListener::bind(&dead).expect("bound"));
    assert!(dead.symlink_metadata().expect("left").file_type().is_socket());
    let script = format!("{MEMBER}; echo $FDBROKER_SOCKET; echo $FDBROKER_ADMIN_SOCKET");
    let mut rank = node.rank("a", &script);
    rank.env("FDBROKER_SOCKET", &dead).env("FDBROKER_ADMIN_SOCKET", &dead);
    let (code, rest) = Member::join(rank).leave();
    assert_eq!(code, Some(0));
    let home = node.home();
    assert_eq!(rest.lines().count(), 2);
    assert!(rest.lines().all(|path| Path::new(path).starts_with(&home)), "{rest}");
    node.wait_until_empty();

    // One that lives is another job's, too.
    let script = format!("$F status --json; $F run --join --job b -- sh -c '{MEMBER}'");
    let mut outer = Member::join(node.rank("a", &script));
    let inner: Value = serde_json::from_str(&outer.next_line()).expect("JSON");
    assert_ne!(inner["incarnation"], outer.broker["incarnation"]);
    outer.leave();
    node.wait_until_empty();
}

#[test]
fn join_when_two_jobs_run_then_each_has_its_broker() {
    let node = Node::new("two-jobs");
    let (a, b) = (Member::join(node.rank("a", MEMBER)), Member::join(node.rank("b", MEMBER)));
    assert_ne!(a.incarnation(), b.incarnation());
    assert_eq!(node.processes("broker").len(), 2);
    a.leave();
    b.leave();
    node.wait_until_empty();
}

#[test]
fn join_when_unnamed_then_the_parent_process_is_the_job() {
    let node = Node::new("unnamed");
    let (a, b) = (Member::join(node.unnamed(MEMBER)), Member::join(node.unnamed(MEMBER)));
    assert_eq!(a.incarnation(), b.incarnation());
    let wrapper = "$F run --join -- sh -c '$F status --json; read line || :'; exit $?";
    let mut shell = Command::new("sh");
    shell.args(["-c", wrapper]);
    let c = Member::join(node.on_node(shell));
    assert_ne!(c.incarnation(), a.incarnation());
    for member in [a, b, c] {
        member.leave();
    }
    node.wait_until_empty();
}

#[test]
fn join_when_under_slurm_then_the_step_is_the_job_whatever_the_parents() {
    let node = Node::new("srun");
    let in_step = |step: &str| {
        let wrapper = "$F run --join -- sh -c '$F status --json; read line || :'; exit $?";
        let mut shell = Command::new("sh");
        shell.args(["-c", wrapper]);
        let mut shell = node.on_node(shell);
        shell.env("SLURM_JOB_ID", "17").env("SLURM_STEP_ID", step);
        shell
    };
    let mut direct = node.unnamed(MEMBER);
    direct.env("SLURM_JOB_ID", "17").env("SLURM_STEP_ID", "0");
    let members: Vec<_> =
        [in_step("0"), in_step("0"), direct].into_iter().map(Member::join).collect();
    let other = Member::join(in_step("1"));
    let incarnation = members[0].incarnation().to_owned();
    assert_ne!(other.incarnation(), incarnation);
    for member in members {
        assert_eq!(member.incarnation(), incarnation);
        assert_eq!(member.leave().0, Some(0));
    }
    other.leave();
    node.wait_until_empty();
}

#[test]
fn join_when_the_place_is_hostile_then_refused_with_a_remedy() {
    let node = Node::new("hostile");
    let home = node.home();
    let refused = |problem: &str| {
        let (code, stderr) = end(&Running::start(node.rank("a", "echo joined")).end());
        assert_eq!(code, Some(1), "{problem}: {stderr}");
        assert!(stderr.contains(problem) && stderr.contains("TMPDIR"), "{problem}: {stderr}");
    };
    let set_mode = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("ours");
    };
    for mode in [0o777, 0o750, 0o1777] {
        let _ = std::fs::create_dir(&home);
        set_mode(&home, mode);
        refused("its mode is");
    }
    std::fs::remove_dir(&home).expect("empty");
    let elsewhere = TestDir::new("join-elsewhere");
    set_mode(elsewhere.path(), 0o700);
    symlink(elsewhere.path(), &home).expect("a link");
    refused("symbolic link");
    assert!(elsewhere.is_empty());
    std::fs::remove_file(&home).expect("a link");
    set_mode(node.0.path(), 0o777);
    refused("all users may replace files");
    let _ = std::fs::remove_dir(&home);
    set_mode(node.0.path(), 0o1777);
    Member::join(node.rank("a", MEMBER)).leave();
    assert_eq!(home.metadata().expect("made").mode() & 0o777, 0o700);
    node.wait_until_empty();
}

#[test]
fn join_when_tmpdir_does_not_serve_then_tmp_does() {
    let node = Node::new("tmpdir");
    let long = node.0.path().join("x".repeat(60));
    std::fs::create_dir(&long).expect("a directory");
    for unusable in [long.to_str().expect("UTF-8"), "/nowhere", "relative"] {
        let mut rank = node.rank(&format!("tmpdir-{}", std::process::id()), MEMBER);
        rank.env("TMPDIR", unusable);
        let member = Member::join(rank);
        let broker = member.broker_pid();
        let line = std::fs::read_to_string(format!("/proc/{broker}/cmdline")).expect("alive");
        assert!(line.contains("\0/tmp/fdbroker-"), "{line}");
        assert_eq!(member.leave().0, Some(0));
        wait_for("end of the broker", || (!is_alive(broker)).then_some(()));
    }
}

#[test]
fn join_when_a_client_is_no_member_then_the_broker_stays_while_it_is_connected() {
    let node = Node::new("client");
    let script = format!("{MEMBER}; echo $FDBROKER_SOCKET");
    let member = Member::join(node.rank("a", &script));
    let (incarnation, broker) = (member.incarnation().to_owned(), member.broker_pid());
    let socket = node.rooms().remove(0).join("fdbroker/broker.sock");
    let client = Client::builder().socket(&socket).connect().expect("a broker");
    member.leave();
    let keeper = node.only("keeper");
    // It waits for locks without a limit; it sleeps only after it has found a client.
    wait_for("look of the keeper at its clients", || is_sleeping(keeper).then_some(()));
    let next = Member::join(node.rank("a", MEMBER));
    assert_eq!(next.incarnation(), incarnation);
    next.leave();
    assert!(is_alive(broker));
    drop(client);
    node.wait_until_empty();
}

#[test]
fn join_when_the_first_one_ends_then_nobody_holds_its_pipes() {
    let node = Node::new("pipes");
    // As a launcher does: more pipes than stdout and stderr.
    let mut first = Command::new("sh");
    first.args(["-c", "exec \"$F\" run --join --job a -- sh -c \"$S\" 8>&1 9>&2"]);
    first.env("S", MEMBER);
    let first = Member::join(node.on_node(first));
    let second = Member::join(node.rank("a", MEMBER));
    let keeper = node.only("keeper");
    for pid in [keeper, node.only("broker")] {
        let parent = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("alive");
        assert!(!parent.contains(&format!("PPid:\t{}\n", first.running.pid())), "{parent}");
    }
    // `leave` waits for the end of its stdout.
    assert_eq!(first.leave().0, Some(0));
    assert!(is_alive(keeper));
    second.leave();
    node.wait_until_empty();
}

#[test]
fn join_when_the_whole_job_is_signalled_then_the_keeper_stays_with_the_ranks() {
    let node = Node::new("job-signalled");
    let member = Member::join(node.rank("a", &format!("{MEMBER}; $F status --json")));
    let keeper = node.only("keeper");
    // As scancel(1) and the like do: every process that the job has started is signalled.
    for name in ["HUP", "INT", "TERM", "USR1", "USR2", "QUIT"] {
        signal(keeper, name);
        signal(member.broker_pid(), name);
    }
    let incarnation = member.incarnation().to_owned();
    let (code, rest) = member.leave();
    assert_eq!(code, Some(0));
    assert!(rest.contains(&incarnation), "{rest}");
    node.wait_until_empty();
}

#[test]
fn join_when_the_first_rank_is_bound_to_a_core_then_the_broker_is_not() {
    let node = Node::new("bound");
    let cores = |pid: u32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("alive");
        let line = status.lines().find(|line| line.starts_with("Cpus_allowed_list"));
        line.expect("in every status").to_owned()
    };
    let Some(first) =
        cores(std::process::id()).split([':', '\t', ',', '-']).nth(2).map(String::from)
    else {
        panic!("no cores")
    };
    let f = env!("CARGO_BIN_EXE_fdbroker");
    let mut bound = Command::new("taskset");
    bound.args(["-c", &first, f, "run", "--join", "--job", "a", "--", "sh", "-c", MEMBER]);
    let member = Member::join(node.on_node(bound));
    assert_eq!(cores(member.running.pid()), format!("Cpus_allowed_list:\t{first}"));
    assert_eq!(cores(member.broker_pid()), cores(std::process::id()));
    member.leave();
    node.wait_until_empty();
}

#[test]
fn join_when_few_fds_are_allowed_then_the_membership_finds_its_place() {
    let node = Node::new("few-fds");
    let mut few = Command::new("sh");
    few.args(["-c", "ulimit -S -n 32; exec \"$F\" run --join --job a -- sh -c \"$S\""]);
    few.env("S", MEMBER);
    let member = Member::join(node.on_node(few));
    let fds = std::fs::read_dir(format!("/proc/{}/fd", member.running.pid())).expect("alive");
    let is_membership = |path: PathBuf| {
        std::fs::read_link(path)
            .is_ok_and(|file| file.file_name().is_some_and(|it| it == "members"))
    };
    let found: Vec<_> = fds.flatten().filter(|entry| is_membership(entry.path())).collect();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].file_name(), "16");
    assert_eq!(member.leave().0, Some(0));
    node.wait_until_empty();
}

#[test]
fn join_when_used_wrongly_then_exit_2() {
    for arguments in [
        &["run", "--join", "--json", "--", "true"][..],
        &["run", "--job", "a", "--", "true"],
        &["run", "--join"],
    ] {
        let (code, stderr) = end(&run(arguments));
        assert_eq!(code, Some(2), "{arguments:?}: {stderr}");
    }
}

#[test]
fn join_when_the_broker_cannot_start_then_its_own_words_and_no_command() {
    let node = Node::new("no-start");
    let mut rank = node.rank("a", "echo ran");
    rank.env("FDBROKER_MAX_FDS", "many");
    let output = Running::start(rank).end();
    let (code, stderr) = end(&output);
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("did not start") && stderr.contains("FDBROKER_MAX_FDS"), "{stderr}");
    assert!(output.stdout.is_empty());
    assert!(node.rooms().is_empty(), "{:?}", node.rooms());
}

#[test]
fn join_when_under_open_mpi_then_all_ranks_have_one_broker() {
    let options: &[&str] = &["--allow-run-as-root", "--oversubscribe"];
    under_mpi("join_when_under_open_mpi", "mpirun.openmpi", options);
}

#[test]
fn join_when_under_mpich_then_all_ranks_have_one_broker() {
    under_mpi("join_when_under_mpich", "mpirun.mpich", &[]);
}

fn under_mpi(test_name: &str, launcher: &str, options: &[&str]) {
    if Command::new(launcher).arg("--version").output().is_err() {
        return not_run(test_name, &format!("there is no {launcher}"));
    }
    let node = Node::new(launcher.trim_start_matches("mpirun."));
    let joined = r#"exec "$F" run --join -- sh -c "$S""#;
    // The rank itself, and with a shell of its own above it.
    for (round, prefix) in [joined, r#""$F" run --join -- sh -c "$S"; exit $?"#].iter().enumerate()
    {
        let all = node.0.path().join(format!("all-{round}"));
        std::fs::create_dir(&all).expect("a directory");
        // All are there at once, so that one broker serves them all.
        let script = "$F status --json; : > $ALL/$$; until [ $(ls $ALL | wc -l) -ge 4 ]; do sleep 0.02; done";
        let mut command = Command::new(launcher);
        command.args(options).args(["-n", "4", "sh", "-c", prefix]);
        let mut command = node.on_node(command);
        command.env("S", script).env("ALL", &all).stdin(Stdio::null());
        command.env("FDBROKER_SOCKET", "/nowhere/another.sock");
        let output = Running::start(command).end();
        assert!(output.status.success(), "{launcher}: {}", end(&output).1);
        let stdout = String::from_utf8(output.stdout).expect("UTF-8");
        let brokers: Vec<Value> =
            stdout.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        assert_eq!(brokers.len(), 4, "{stdout}");
        for broker in &brokers {
            assert_eq!(broker["incarnation"], brokers[0]["incarnation"], "{stdout}");
        }
        node.wait_until_empty();
    }
}
