//! evict, revoke, drain and watch as administrators meet them, with a real broker whose clients are
//! in the test.

use crate::common::{Running, TestDir, end, fdbroker, one_json_line, run, signal, wait_for};
use fdbroker_client::{
    Access, Arena, Client, Deadline, Deposit, ErrorCode, Handle, HostBuffer, HostMemory, MemoryKind,
};
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use serde_json::Value;
use std::fs::Permissions;
use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

const SIZE: usize = 4096;

fn soon() -> Deadline {
    Deadline::from_ms(20_000)
}

/// A private broker whose job waits until this is dropped.
struct Broker {
    _job: Running,
    socket: PathBuf,
    admin: PathBuf,
}

impl Broker {
    fn start() -> Self {
        let script = "echo $FDBROKER_SOCKET; echo $FDBROKER_ADMIN_SOCKET; read line";
        let mut command = fdbroker(&["run", "--", "sh", "-c", script]);
        command.stdin(Stdio::piped());
        let mut job = Running::start(command);
        let mut lines = BufReader::new(job.0.stdout.take().expect("piped")).lines();
        let mut path = || PathBuf::from(lines.next().expect("a line").expect("readable"));
        let (socket, admin) = (path(), path());
        Broker { _job: job, socket, admin }
    }

    fn client(&self, name: &str) -> Client {
        Client::builder().name(name).socket(&self.socket).connect().expect("it serves")
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = fdbroker(arguments);
        command.env("FDBROKER_ADMIN_SOCKET", &self.admin);
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().expect("it starts")
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let output = self.run(arguments);
        assert_eq!(end(&output).0, Some(0), "{arguments:?}: {}", end(&output).1);
        one_json_line(&output)
    }

    /// The states of all allocations, sorted.
    fn states(&self) -> Vec<String> {
        let all = self.json(&["ls", "--json"]);
        let all = all["allocations"].as_array().expect("an array");
        let state = |one: &Value| one["state"].as_str().expect("text").to_owned();
        let mut states: Vec<String> = all.iter().map(state).collect();
        states.sort();
        states
    }
}

/// An owner with shared buffers.
struct Owner {
    buffers: Vec<HostBuffer>,
    handles: Vec<Handle>,
    _arena: Arena,
    _client: Client,
}

impl Owner {
    fn new(broker: &Broker, count: usize) -> Self {
        let client = broker.client("owner");
        let arena = Arena::new(&client, HostMemory::Memfd, count * SIZE).expect("memory");
        let alloc = |_| arena.alloc(SIZE).expect("room");
        let buffers: Vec<HostBuffer> = (0..count).map(alloc).collect();
        let register = |buffer: &HostBuffer| buffer.register(soon()).expect("registered");
        let handles = buffers.iter().map(register).collect();
        Owner { buffers, handles, _arena: arena, _client: client }
    }

    fn id(&self, index: usize) -> String {
        self.handles[index].id().to_string()
    }

    fn hex(&self, index: usize) -> String {
        self.handles[index].to_string()
    }
}

/// Memory that a deposit takes.
fn shareable(name: &str) -> std::fs::File {
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let memory = std::fs::File::from(memfd_create(name, flags).expect("memory"));
    memory.set_len(SIZE as u64).expect("room");
    let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_SEAL;
    fcntl(&memory, FcntlArg::F_ADD_SEALS(seals)).expect("sealed");
    memory
}

/// `text` with another digit at `place`.
fn damaged(text: &str, place: usize) -> String {
    let digit = if &text[place..=place] == "0" { "1" } else { "0" };
    format!("{}{digit}{}", &text[..place], &text[place + 1..])
}

fn pid() -> String {
    format!("pid:{}", std::process::id())
}

#[test]
fn evict_when_named_each_way_then_evicted_and_the_next_import_recalls() {
    let broker = Broker::start();
    let owner = Owner::new(&broker, 4);
    let user = broker.client("user");
    let lease = user.acquire(&owner.handles[0], soon()).expect("granted");
    let dry = broker.json(&["evict", "--all", "--dry-run", "--json"]);
    assert_eq!((&dry["summary"]["evicted"], &dry["summary"]["dry_run"]), (&4.into(), &true.into()));
    assert_eq!(broker.states(), ["held"; 4]);
    let done = broker.json(&["evict", &owner.id(0), &owner.hex(1), "--json"]);
    assert_eq!(done["summary"]["evicted"], 2);
    assert_eq!(done["summary"]["evicted_bytes"], 2 * SIZE);
    let text = String::from_utf8(broker.run(&["evict", &pid()]).stdout).expect("UTF-8");
    assert_eq!(text, "2 allocations (8 KiB) evicted; 2 evicted already\n");
    assert_eq!(broker.states(), ["evicted"; 4]);
    drop(lease);
    owner.buffers[0].write_at(0, b"again").expect("in range");
    let import = user.acquire(&owner.handles[0], soon()).expect("recalled").import(Access::Read, 0);
    let mut bytes = [0; 5];
    import.expect("mapped").read_at(0, &mut bytes).expect("in range");
    assert_eq!(&bytes, b"again");
}

#[test]
fn handle_when_a_digit_is_wrong_then_nothing_is_done_to_its_neighbour() {
    let broker = Broker::start();
    let owner = Owner::new(&broker, 2);
    // Of the slot: one digit is all that tells the two.
    let place = 33;
    let handle = damaged(&owner.hex(0), place);
    assert_eq!(handle[32..48], owner.hex(1)[32..48], "it names the neighbour");
    for arguments in [&["revoke", &handle, "--yes"][..], &["evict", &handle], &["show", &handle]] {
        let (status, said) = end(&broker.run(arguments));
        assert_eq!(status, Some(4), "{arguments:?}: {said}");
        assert!(said.contains("damaged"), "{arguments:?}: {said}");
    }
    assert_eq!(broker.states(), ["held"; 2]);
}

#[test]
fn evict_when_it_cannot_be_then_named_with_the_reason_and_exit_1_when_by_itself() {
    let broker = Broker::start();
    let client = broker.client("owner");
    let memory = shareable("resident");
    let deposit = Deposit::new(MemoryKind::Memfd, SIZE as u64);
    let registration = client.register(&deposit, memory.as_fd(), soon()).expect("registered");
    let id = registration.id().to_string();
    let output = broker.run(&["evict", &id]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(end(&output).0, Some(1), "{text}");
    assert!(text.contains(&id) && text.contains("resident") && text.contains("owner"), "{text}");
    let all = broker.json(&["evict", "--all", "--json"]);
    assert_eq!(all["refused"][0]["reason"], "resident");
    assert_eq!(all["refused"][0]["allocation"], id);
    assert_eq!(all["summary"]["evicted"], 0);
}

#[test]
fn acts_when_there_is_no_such_thing_then_exit_4_and_when_misused_then_2() {
    let broker = Broker::start();
    for arguments in [
        &["evict", "99.1"][..],
        &["evict", "pid:1"],
        &["revoke", "99.1", "--yes"],
        &["revoke", "uid:4242", "--yes"],
    ] {
        let (code, stderr) = end(&broker.run(arguments));
        assert_eq!(code, Some(4), "{arguments:?}: {stderr}");
    }
    for arguments in [
        &["evict"][..],
        &["evict", "--all", "1.1"],
        &["revoke"],
        &["revoke", "1.1"],
        &["drain", "--undo", "--wait", "1"],
        &["watch", "--filter", "nonsense"],
    ] {
        let (code, stderr) = end(&broker.run(arguments));
        assert_eq!(code, Some(2), "{arguments:?}: {stderr}");
    }
    for arguments in [&["evict", "--all"][..], &["revoke", "1.1", "-y"], &["drain"], &["watch"]] {
        assert_eq!(end(&run(arguments)).0, Some(3), "{arguments:?}");
    }
}

#[test]
fn acts_when_one_of_several_is_not_there_then_the_others_are_done_and_said_and_exit_4() {
    let broker = Broker::start();
    let owner = Owner::new(&broker, 2);
    for (arguments, done) in [
        (&["evict", "99.1", &owner.id(0), "--json"][..], "/summary/evicted"),
        (&["revoke", &owner.id(1), "99.1", "--yes", "--json"], "/revoked"),
    ] {
        let output = broker.run(arguments);
        let (code, stderr) = end(&output);
        assert_eq!(code, Some(4), "{arguments:?}: {stderr}");
        assert_eq!(stderr.matches("no allocation 99.1").count(), 1, "{arguments:?}: {stderr}");
        assert_eq!(one_json_line(&output).pointer(done), Some(&1.into()), "{arguments:?}");
    }
    assert_eq!(broker.states(), ["evicted"]);
    // Whatever it is named by.
    let output = broker.run(&["evict", "job:slurm:9", "pid:1", "uid:0", "--dry-run"]);
    let (code, stderr) = end(&output);
    let said = ["slurm:9", "process 1"].map(|what| stderr.matches(what).count());
    assert_eq!((code, said), (Some(4), [1, 1]), "{stderr}");
    // Where nothing is done nothing is printed, least of all half an object.
    let output = broker.run(&["evict", "99.1", "98.1", "--json"]);
    let (code, stderr) = end(&output);
    assert_eq!((code, output.stdout), (Some(4), vec![]), "{stderr}");
    assert!(stderr.contains("allocation 99.1") && stderr.contains("allocation 98.1"), "{stderr}");
}

#[test]
fn watch_when_its_reader_goes_away_then_it_ends_though_nothing_happens() {
    let broker = Broker::start();
    let mut watch = Running::start(broker.command(&["watch"]));
    drop(watch.0.stdout.take());
    let (code, stderr) = end(&watch.end());
    assert_eq!((code, stderr.as_str()), (Some(0), ""));
}

#[test]
fn revoke_when_held_then_stale_for_all_and_who_has_it_is_named() {
    let broker = Broker::start();
    let owner = Owner::new(&broker, 100);
    let user = broker.client("user");
    let import = user.acquire(&owner.handles[0], soon()).expect("granted").import(Access::Read, 0);
    let import = import.expect("mapped");
    let open = user.acquire(&owner.handles[1], soon()).expect("granted");
    user.flush(soon()).expect("the broker knows what is mapped");
    let dry = broker.json(&["revoke", &owner.id(0), "--dry-run", "--json"]);
    assert_eq!((&dry["revoked"], &dry["holders"][0]["mapped_leases"]), (&1.into(), &1.into()));
    assert_eq!(broker.states(), ["held"; 100]);
    let report = broker.json(&["revoke", &pid(), "--yes", "--json"]);
    assert_eq!((&report["revoked"], &report["dry_run"]), (&100.into(), &false.into()));
    let holders = report["holders"].as_array().expect("an array");
    assert_eq!(holders.len(), 1, "{report}");
    assert_eq!(
        (&holders[0]["name"], &holders[0]["pid"]),
        (&"user".into(), &std::process::id().into())
    );
    assert_eq!((&holders[0]["open_leases"], &holders[0]["mapped_leases"]), (&1.into(), &1.into()));
    for handle in &owner.handles[..3] {
        let error = user.acquire(handle, soon()).expect_err("revoked");
        assert_eq!(error.code, ErrorCode::Stale, "{error}");
    }
    drop((import, open));
    // The owner hears of the last lease's end, and then nothing is left of it.
    wait_for("empty list", || broker.states().is_empty().then_some(()));
}

#[test]
fn drain_when_leases_are_out_then_exit_1_names_who_and_later_drained() {
    let broker = Broker::start();
    let owner = Owner::new(&broker, 70);
    let user = broker.client("user");
    let lease = user.acquire(&owner.handles[0], soon()).expect("granted");
    let dry = broker.json(&["drain", "--dry-run", "--json"]);
    assert_eq!((&dry["draining"], &dry["evictable"]), (&false.into(), &70.into()));
    wait_for("end of what is evictable", || {
        let report = one_json_line(&broker.run(&["drain", "--wait", "0", "--json"]));
        (report["held_fds"] == 0).then_some(())
    });
    let output = broker.run(&["drain", "--wait", "1", "--json"]);
    assert_eq!(end(&output).0, Some(1));
    let report = one_json_line(&output);
    assert_eq!((&report["held_fds"], &report["open_leases"]), (&0.into(), &1.into()), "{report}");
    assert_eq!(report["left"][0]["name"], "user");
    assert_eq!(broker.json(&["status", "--json"])["draining"], true);
    let late = broker.client("late");
    let arena = Arena::new(&late, HostMemory::Memfd, SIZE).expect("memory");
    let buffer = arena.alloc(SIZE).expect("room");
    let error = buffer.register(soon()).expect_err("it came too late");
    assert_eq!(error.code, ErrorCode::ShuttingDown, "{error}");
    drop(late.acquire(&owner.handles[1], soon()).expect("what is there is served"));
    drop(lease);
    let output = broker.run(&["drain"]);
    assert_eq!(end(&output).0, Some(0));
    assert!(String::from_utf8_lossy(&output.stdout).starts_with("drained"), "{output:?}");
    assert_eq!(end(&broker.run(&["drain", "--undo"])).0, Some(0));
    assert_eq!(broker.json(&["status", "--json"])["draining"], false);
    buffer.register(soon()).expect("taken again");
}

#[test]
fn watch_when_things_happen_then_a_line_each_and_exit_0_when_interrupted() {
    let broker = Broker::start();
    let mut watch = Running::start(broker.command(&["watch", "--json"]));
    let lines = BufReader::new(watch.0.stdout.take().expect("piped")).lines();
    let mut events =
        lines.map(|line| serde_json::from_str::<Value>(&line.expect("readable")).expect("JSON"));
    // Whether it watches yet can only be seen by what it says.
    let seen = std::thread::scope(|scope| {
        let first = scope.spawn(|| events.next().expect("an event"));
        while !first.is_finished() {
            broker.client("probe");
            std::thread::sleep(Duration::from_millis(5));
        }
        first.join().expect("no panic")
    });
    assert_eq!(seen["name"], "probe");
    let owner = Owner::new(&broker, 1);
    let user = broker.client("user");
    drop(user.acquire(&owner.handles[0], soon()).expect("granted"));
    broker.json(&["evict", "--all", "--json"]);
    drop(user.acquire(&owner.handles[0], soon()).expect("recalled"));
    broker.json(&["revoke", &owner.id(0), "--yes", "--json"]);
    broker.run(&["drain", "--wait", "0"]);
    let mut found = Vec::new();
    while found.last().is_none_or(|last: &Value| last["event"] != "drain") {
        found.push(events.next().expect("an event"));
    }
    found.retain(|event| event["name"] != "probe");
    let kinds: Vec<&str> = found.iter().filter_map(|event| event["event"].as_str()).collect();
    let expected =
        ["connected", "deposit", "connected", "grant", "evict", "recall", "grant", "end", "drain"];
    assert_eq!(kinds, expected);
    assert_eq!((&found[3]["name"], &found[3]["allocation"]), (&"user".into(), &owner.id(0).into()));
    assert_eq!((&found[7]["name"], &found[7]["error"]), (&"owner".into(), &"STALE".into()));
    assert_eq!(found[1]["size_bytes"], SIZE);
    signal(watch.pid(), "INT");
    assert_eq!(end(&watch.end()).0, Some(0));
}

#[test]
fn watch_when_filtered_by_a_handle_or_an_id_then_events_of_that_allocation_and_of_the_node() {
    let broker = Broker::start();
    let owner = Owner::new(&broker, 2);
    for what in [owner.hex(1), owner.id(1)] {
        let mut watch = Running::start(broker.command(&["watch", "--json", "--filter", &what]));
        let lines = BufReader::new(watch.0.stdout.take().expect("piped")).lines();
        let mut events = lines
            .map(|line| serde_json::from_str::<Value>(&line.expect("readable")).expect("JSON"));
        std::thread::scope(|scope| {
            let first = scope.spawn(|| events.next().expect("an event"));
            while !first.is_finished() {
                broker.run(&["limits", "set", "node.mapped_leases=1000"]);
            }
            assert_eq!(first.join().expect("no panic")["event"], "caps");
        });
        let user = broker.client("user");
        for handle in &owner.handles {
            drop(user.acquire(handle, soon()).expect("granted"));
        }
        let seen = events.find(|event| event["event"] != "caps").expect("an event");
        assert_eq!((&seen["event"], &seen["allocation"]), (&"grant".into(), &owner.id(1).into()));
        signal(watch.pid(), "INT");
        assert_eq!(end(&watch.end()).0, Some(0));
    }
    let output = broker.run(&["watch", "--filter", &damaged(&owner.hex(1), 20)]);
    assert_eq!(end(&output).0, Some(4), "{}", end(&output).1);
}

#[test]
fn watch_when_the_broker_ends_then_said_and_exit_3() {
    let broker = Broker::start();
    let mut watch = Running::start(broker.command(&["watch", "--filter", "uid:0"]));
    let mut lines = BufReader::new(watch.0.stdout.take().expect("piped")).lines();
    std::thread::scope(|scope| {
        let first = scope.spawn(|| lines.next().expect("a line").expect("readable"));
        while !first.is_finished() {
            broker.run(&["drain", "--wait", "0"]);
            broker.run(&["drain", "--undo"]);
        }
        let line = first.join().expect("no panic");
        assert!(line.contains("drain"), "{line}");
    });
    drop(broker);
    let (code, stderr) = end(&watch.end());
    assert_eq!(code, Some(3), "{stderr}");
    assert!(stderr.contains("has ended"), "{stderr}");
}

/// Of a job whose last process is gone: what was kept is the job's still.
#[test]
fn acts_when_a_job_has_left_kept_memory_then_found_by_the_job_until_revoked() {
    let broker = Broker::start();
    let client = broker.client("owner");
    let memory = shareable("kept");
    let mut deposit = Deposit::new(MemoryKind::Memfd, SIZE as u64);
    deposit.keep = true;
    let kept = client.register(&deposit, memory.as_fd(), soon()).expect("registered");
    let jobs = broker.json(&["jobs", "--json"]);
    let job =
        jobs["jobs"][0]["job"].as_str().expect("whatever the cgroup of this test is").to_owned();
    drop(client);
    wait_for("end of the job", || {
        (broker.json(&["status", "--json"])["connections"]["now"] == 0).then_some(())
    });

    let jobs = broker.json(&["jobs", "--json"]);
    let [left] = &jobs["jobs"].as_array().expect("an array")[..] else { panic!("{jobs}") };
    assert_eq!(left["job"], job);
    let numbers = ["connections", "left_allocations", "held_fds"].map(|name| left[name].as_u64());
    assert_eq!(numbers, [Some(0), Some(1), Some(0)], "{left}");
    let list = broker.json(&["ls", "--json", "--filter", &format!("JOB == '{job}'")]);
    let id = Value::from(kept.id().to_string());
    assert_eq!(list["allocations"][0]["allocation"], id);
    assert_eq!(list["allocations"][0]["owner_pid"], Value::Null);
    for arguments in [&["--json"][..], &["--json", "--dry-run"]] {
        let stays = broker.json(&[&["evict", "--job", &job][..], arguments].concat());
        let stays = &stays["refused"][0];
        assert_eq!((&stays["allocation"], &stays["reason"]), (&id, &"kept".into()));
    }
    let dry = broker.json(&["revoke", "--job", &job, "--dry-run", "--json"]);
    assert_eq!((&dry["revoked"], broker.states().len()), (&1.into(), 1));

    let done = broker.json(&["revoke", "--job", &job, "--yes", "--json"]);
    assert_eq!((&done["revoked"], &done["revoked_bytes"]), (&1.into(), &SIZE.into()));
    assert_eq!(broker.states(), [""; 0]);
    assert_eq!(broker.json(&["jobs", "--json"])["jobs"], serde_json::json!([]));
    assert_eq!(end(&broker.run(&["revoke", "--job", &job, "--yes"])).0, Some(4));
}

/// Named objects with keep outlive their job.
#[test]
fn revoke_when_a_job_has_left_objects_then_they_are_listed_and_stay() {
    let script = "printf 1234567 | $F put left/a - --keep=1h > /dev/null 2>&1
        until $F status --json | grep -q 'connections.:{.now.:0,'; do sleep 0.01; done
        $F jobs --json; $F objects --all --json; $F ls --json; job=$($F jobs -no JOB)
        $F revoke --job \"$job\" --yes --json; $F revoke --job \"$job\" --yes; $F objects --json";
    let mut command = fdbroker(&["run", "--", "sh", "-uc", script]);
    let output = command.env("F", env!("CARGO_BIN_EXE_fdbroker")).output().expect("it starts");
    let text = String::from_utf8(output.stdout.clone()).expect("UTF-8");
    let json: Vec<Value> =
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let [jobs, all, ls, revoked, objects] = &json[..] else { panic!("{text}{}", end(&output).1) };
    let (job, object) = (&jobs["jobs"][0], &all["objects"][0]);
    assert_eq!((&job["objects"], &job["connections"]), (&1.into(), &0.into()), "{text}");
    assert_eq!((&object["name"], &object["job"]), (&"left/a".into(), &job["job"]), "{text}");
    assert_eq!(object["uid"], nix::unistd::geteuid().as_raw(), "{text}");
    let of = &ls["allocations"][0];
    assert_eq!((&of["object"], &of["owner_job"]), (&"left/a".into(), &job["job"]), "{text}");
    let stays = &revoked["stay"][0];
    assert_eq!((&stays["object"], &stays["reason"]), (&"left/a".into(), &"kept".into()));
    assert_eq!(
        (&revoked["revoked"], objects["objects"].as_array().map(Vec::len)),
        (&0.into(), Some(1))
    );
    assert!(text.contains("named objects outlive their job"), "{text}");
}

#[test]
fn revoke_when_the_configuration_ends_objects_with_their_job_then_kept_and_pinned_ones_end() {
    let dir = TestDir::new("end-with-job");
    let private = dir.path().to_str().expect("UTF-8");
    let all = ["broker", "--private", private, "--set", "end_with_job=true"];
    let service = Running::start(fdbroker(&all));
    let socket = dir.path().join("fdbroker/broker.sock");
    wait_for("a broker", || socket.exists().then_some(()));
    let script = "for it in 'kept --keep=1h' 'pinned --pin'; do
            echo 1 | $F put left/${it% *} - ${it#* } > /dev/null 2>&1
        done
        until $F status --json | grep -q 'connections.:{.now.:0,'; do sleep 0.01; done
        $F revoke --job \"$($F jobs -no JOB)\" --yes --json; $F objects --json";
    let mut command = Command::new("sh");
    command.args(["-uc", script]).env("F", env!("CARGO_BIN_EXE_fdbroker"));
    let output = command.env("FDBROKER_SOCKET", socket).output().expect("it starts");
    let text = String::from_utf8(output.stdout.clone()).expect("UTF-8");
    let json: Vec<Value> =
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let [revoked, objects] = &json[..] else { panic!("{text}{}", end(&output).1) };
    assert_eq!(revoked["revoked"], 2, "{text}");
    assert_eq!(objects["objects"].as_array().map(Vec::len), Some(0), "{text}");
    service.signal("TERM");
    service.end();
}

/// Who may look at a broker may not act for that reason.
#[test]
fn acts_when_neither_root_nor_the_brokers_user_then_denied_and_may_look() {
    if !nix::unistd::Uid::effective().is_root() {
        eprintln!("not run: only root can be somebody else");
        return;
    }
    let broker = Broker::start();
    let _owner = Owner::new(&broker, 1);
    let opened: Vec<_> = broker.admin.ancestors().take(3).collect();
    for path in opened.into_iter().filter(|path| path.starts_with(std::env::temp_dir())) {
        std::fs::set_permissions(path, Permissions::from_mode(0o777)).expect("ours");
    }
    // The command may lie where only root gets at it.
    let somewhere = TestDir::new("acts-of-nobody");
    let program = somewhere.path().join("fdbroker");
    // By another process: a program cannot be started while one that another test forks has it open
    // for writing.
    let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_fdbroker")).arg(&program).status();
    assert!(copied.expect("cp(1)").success());
    let as_nobody = |arguments: &[&str]| {
        let mut command = Command::new(&program);
        command.args(arguments).env("FDBROKER_ADMIN_SOCKET", &broker.admin).uid(65534);
        end(&command.stdin(Stdio::null()).output().expect("it starts"))
    };
    for arguments in
        [&["evict", "--all"][..], &["revoke", "uid:0", "--yes"], &["drain"], &["drain", "--undo"]]
    {
        let (code, stderr) = as_nobody(arguments);
        assert_eq!(code, Some(4), "{arguments:?}: {stderr}");
        assert!(stderr.contains("only root and the broker's user"), "{stderr}");
    }
    assert_eq!(as_nobody(&["status"]).0, Some(0));
    assert_eq!(as_nobody(&["evict", "--all", "--dry-run"]).0, Some(0));
    assert_eq!(broker.states(), ["held"]);
}
