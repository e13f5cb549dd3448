//! ls, clients, holders and show on a broker with memory in it: columns, filters, order, JSON, exit
//! statuses.

use crate::common::{Running, end, fdbroker, memfd, one_json_line, run, terminal};
use fdbroker_client::host::{Arena, HostBuffer, HostMemory};
use fdbroker_client::{Access, Client, Deadline, Deposit, Import, MemoryKind, Registration};
use fdbroker_protocol::{Gpu, Handle};
use nix::unistd::{Uid, User};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::{AsFd, AsRawFd};
use std::process::{Output, Stdio};
use std::time::Duration;

const PAGE_BYTES: usize = 4096;

/// A broker with an owner of five buffers of 1 to 5 pages, and a holder that has mapped the first
/// two.
struct Node {
    handles: Vec<Handle>,
    admin_socket: String,
    // Field order is drop order.
    _imports: Vec<Import>,
    _buffers: Vec<HostBuffer>,
    clients: [Client; 2],
    _broker: Running,
}

impl Node {
    fn start() -> Self {
        let script = "echo $FDBROKER_SOCKET; echo $FDBROKER_ADMIN_SOCKET; read line";
        let mut command = fdbroker(&["run", "--", "sh", "-c", script]);
        command.stdin(Stdio::piped());
        let mut broker = Running::start(command);
        let lines = BufReader::new(broker.0.stdout.as_mut().expect("piped")).lines();
        let places: Vec<String> = lines.take(2).map(|line| line.expect("readable")).collect();
        let deadline = Deadline::after(Duration::from_secs(30));
        let connect = |name: &str| {
            Client::builder().socket(&places[0]).name(name).connect().expect("a broker")
        };
        let (owner, holder) = (connect("owner one"), connect("holder"));
        let arena = Arena::new(&owner, HostMemory::Memfd, 16 * PAGE_BYTES).expect("an arena");
        let alloc = |pages: usize| arena.alloc(pages * PAGE_BYTES).expect("room");
        let buffers: Vec<HostBuffer> = (1..=5).map(alloc).collect();
        for buffer in &buffers {
            buffer.write_at(0, &vec![1; buffer.len()]).expect("in bounds");
        }
        let handles = arena.register(&buffers, deadline).expect("connected");
        let handles: Vec<Handle> = handles.into_iter().map(|it| it.expect("registered")).collect();
        let import = |handle| {
            let grant = holder.acquire(handle, deadline).expect("granted");
            grant.import(Access::Read, 0).expect("mapped")
        };
        let imports = handles[..2].iter().map(import).collect();
        holder.flush(deadline).expect("the broker knows that they are mapped");
        Node {
            handles,
            admin_socket: places[1].clone(),
            _imports: imports,
            _buffers: buffers,
            clients: [owner, holder],
            _broker: broker,
        }
    }

    /// A page of the owner's, by virtual fd, on a GPU as it says.
    fn register_virtual(&self) -> Registration {
        let mut deposit = Deposit::new(MemoryKind::Memfd, PAGE_BYTES as u64);
        // Far from the addresses of the arena.
        (deposit.virtual_fd, deposit.base) = (true, 1 << 62);
        deposit.facts.gpu = Gpu::cuda([0x5a; 16], Gpu::pack_pci(0, 0xc0, 0, 0), false);
        let deadline = Deadline::after(Duration::from_secs(30));
        let registered = self.clients[0].register(&deposit, memfd(1).as_fd(), deadline);
        registered.expect("registered")
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let mut command = fdbroker(arguments);
        command.env("FDBROKER_ADMIN_SOCKET", &self.admin_socket).output().expect("it starts")
    }

    /// Standard output of a command that must succeed.
    fn text(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert_eq!(end(&output), (Some(0), String::new()), "{arguments:?}");
        String::from_utf8(output.stdout).expect("UTF-8")
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let output = self.run(arguments);
        assert_eq!(end(&output), (Some(0), String::new()), "{arguments:?}");
        one_json_line(&output)
    }
}

/// The words of each line.
fn words(text: &str) -> Vec<Vec<&str>> {
    text.lines().map(|line| line.split_whitespace().collect()).collect()
}

fn id(handle: &Handle) -> String {
    handle.id().to_string()
}

#[test]
fn ls_when_columns_are_chosen_then_those_in_table_and_json() {
    let node = Node::start();
    let text = node.text(&["ls", "-o", "size,NAME,open_leases", "--sort", "SIZE"]);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(
        lines[..3],
        [
            "  SIZE  NAME       OPEN_LEASES",
            " 4 KiB  owner one            0",
            " 8 KiB  owner one            0"
        ]
    );
    assert_eq!(lines.len(), 6);

    let added = node.text(&["ls", "-o", "+BASE,KEEP"]);
    let heading = words(&added)[0].clone();
    assert_eq!((heading[0], &heading[heading.len() - 2..]), ("ALLOCATION", &["BASE", "KEEP"][..]));

    let found = node.json(&["ls", "--json", "-o", "SIZE,KEEP,OWNER", "--sort", "SIZE:desc"]);
    let owner = std::process::id();
    let expected =
        serde_json::json!({ "size_bytes": 5 * PAGE_BYTES, "keep": false, "owner_pid": owner });
    assert_eq!(found["allocations"][0], expected);
}

#[test]
fn ls_when_json_then_every_column_with_its_type() {
    let node = Node::start();
    let columns = node.json(&["ls", "-H", "--json"]);
    node.register_virtual();
    let found = node.json(&["ls", "--json"]);
    let allocations = found["allocations"].as_array().expect("an array");
    assert_eq!(allocations.len(), 6);
    let full =
        allocations.iter().find(|it| !it["virtual_fd"].is_null()).expect("with a virtual fd");
    for column in columns["columns"].as_array().expect("an array") {
        let (key, kind) = (column["key"].as_str().expect("text"), column["type"].as_str());
        let value = &full[key];
        let is_right = match kind.expect("text") {
            // This user need not have a name, and the memory is of no object.
            "text" if ["owner_user", "object"].contains(&key) => {
                value.is_string() || value.is_null()
            }
            "text" | "word" | "allocation" => value.is_string(),
            "number" | "bytes" => value.is_u64(),
            "seconds" => value.is_f64(),
            "flag" => value.is_boolean(),
            other => panic!("no type {other}"),
        };
        assert!(is_right, "{key}: {value}");
    }
}

#[test]
fn gpus_when_memory_is_on_one_then_its_sums_in_the_list_and_in_metrics() {
    let node = Node::start();
    node.register_virtual();
    let uuid = "GPU-5a5a5a5a-5a5a-5a5a-5a5a-5a5a5a5a5a5a";
    let found = &node.json(&["gpus", "--json"])["gpus"];
    assert_eq!(found.as_array().map(Vec::len), Some(1), "{found}");
    assert_eq!((&found[0]["gpu"], &found[0]["size_bytes"]), (&uuid.into(), &PAGE_BYTES.into()));
    let page = node.text(&["metrics"]);
    let labels = format!(r#"{{gpu="{uuid}",pci="0000:c0:00.0",api="cuda"}}"#);
    for line in [format!("shared_bytes{labels} {PAGE_BYTES}"), format!("allocations{labels} 1")] {
        assert!(page.contains(&format!("fdbroker_gpu_{line}")), "{line}: {page}");
    }
}

/// Times that are younger than this are of this test.
const HOUR_S: f64 = 3600.0;

#[test]
fn ls_when_allocations_have_ages_then_in_json_table_and_filter() {
    let node = Node::start();
    let found = node.json(&["ls", "--json", "-o", "AGE,LAST_USED,MAPPED_LEASES"]);
    for one in found["allocations"].as_array().expect("an array") {
        let [age, unused] =
            ["age_seconds", "last_used_seconds"].map(|key| one[key].as_f64().expect("a number"));
        assert!((0.0..HOUR_S).contains(&age) && (0.0..=age).contains(&unused), "{one}");
    }
    for (filter, count) in [
        ("AGE < 1h and LAST_USED < 1h", 5),
        ("AGE >= 1h", 0),
        ("LAST_USED > 3600", 0),
        ("AGE != none", 5),
    ] {
        let text = node.text(&["ls", "-n", "-o", "AGE", "--filter", filter]);
        assert_eq!(text.lines().count(), count, "{filter}: {text}");
    }
    let sorted = node.json(&["ls", "--json", "-o", "AGE", "--sort", "AGE:desc"]);
    let ages = sorted["allocations"].as_array().expect("an array").iter();
    assert!(ages.map(|it| it["age_seconds"].as_f64()).is_sorted_by(|a, b| a >= b), "{sorted}");
    let text = node.text(&["ls"]);
    assert!(words(&text)[0].windows(2).any(|it| it == ["AGE", "LAST_USED"]), "{text}");
}

#[test]
fn clients_when_listed_then_command_age_and_user_of_each_process() {
    let node = Node::start();
    let name = std::fs::read_to_string("/proc/self/comm").expect("readable");
    let name = name.trim_end();
    let user = User::from_uid(Uid::effective()).expect("a database of users").map(|it| it.name);
    let found = node.json(&["clients", "--json", "-o", "COMMAND,AGE,USER"]);
    let clients = found["clients"].as_array().expect("an array");
    for client in clients {
        assert_eq!(client["command"], name);
        assert_eq!(client["user"].as_str(), user.as_deref());
        assert!(client["age_seconds"].as_f64().is_some_and(|it| it < 24.0 * HOUR_S), "{client}");
    }
    assert_eq!(clients.len(), 2);
    let filter = format!("COMMAND == '{name}' and AGE < 1d");
    let text = node.text(&["clients", "-n", "-o", "COMMAND", "--filter", &filter]);
    assert_eq!(text, format!("{name}\n{name}\n"));
    let text = node.text(&["clients"]);
    assert!(words(&text)[0].starts_with(&["PID", "NAME", "USER", "JOB", "FDS"]), "{text}");
}

/// What a command prints on a terminal with so many columns.
fn on_terminal(node: &Node, arguments: &[&str], columns: u16) -> String {
    let (mut ours, theirs) = terminal(columns);
    let mut command = fdbroker(arguments);
    command.env("FDBROKER_ADMIN_SOCKET", &node.admin_socket).env("NO_COLOR", "1").stdout(theirs);
    let mut child = command.spawn().expect("it starts");
    // Its end of the terminal is closed here, too.
    drop(command);
    let mut text = Vec::new();
    // The last process has closed the terminal: EIO instead of an end.
    let _ = ours.read_to_end(&mut text);
    assert!(child.wait().expect("it ends").success());
    String::from_utf8(text).expect("UTF-8").replace("\r\n", "\n")
}

#[test]
fn lists_when_the_terminal_is_narrow_then_text_is_cut_and_ages_are_whole() {
    let node = Node::start();
    let arguments = ["clients", "-o", "NAME,AGE,PID,SILENT", "--sort", "NAME"];
    for (columns, name) in [(200, "owner one"), (28, "owner o")] {
        let text = on_terminal(&node, &arguments, columns);
        assert_eq!(words(&text)[0], ["NAME", "AGE", "PID", "SILENT"]);
        let last = text.lines().last().expect("two clients");
        assert!(last.starts_with(name) && last.ends_with("  no"), "{text}");
        assert_eq!(last.contains("owner o\u{2026}"), columns == 28, "{text}");
    }
}

/// Of lists on a terminal the columns that fit are shown, and what is largest comes first.
#[test]
fn lists_when_on_a_terminal_then_they_fit_and_the_largest_is_first() {
    let node = Node::start();
    for list in ["ls", "clients", "jobs", "holders", "status"] {
        let [narrow, wide] = [80, 200].map(|columns| on_terminal(&node, &[list], columns));
        for (text, columns) in [(&narrow, 80), (&wide, 200)] {
            let widest = text.lines().map(|line| line.chars().count()).max();
            assert!(widest.is_some_and(|it| it <= columns), "{list} at {columns}: {text}");
        }
        let piped = node.text(&[list]);
        let count = |text: &str| words(text).iter().map(Vec::len).max();
        assert!(count(&narrow) <= count(&wide) && count(&wide) <= count(&piped), "{list}");
        assert!(!piped.contains('\u{2026}'), "whole: {piped}");
    }
    let narrow = on_terminal(&node, &["ls"], 80);
    let lines = words(&narrow);
    assert_eq!(lines[0][..5], ["ALLOCATION", "SIZE", "STATE", "OWNER", "NAME"]);
    assert_eq!((lines.len(), &lines[1][1..3]), (6, &["20", "KiB"][..]), "{narrow}");
    let wide = on_terminal(&node, &["ls"], 300);
    assert!(words(&wide)[0].ends_with(&["UID", "VIRTUAL_FD", "INODE"]), "{wide}");
    let chosen = on_terminal(&node, &["ls", "-o", "+BASE", "--sort", "SIZE"], 80);
    assert!(words(&chosen)[0].ends_with(&["INODE", "BASE"]), "what is asked for is there");
    assert_eq!(words(&chosen)[1][1..3], ["4", "KiB"]);
}

#[test]
fn lists_when_of_a_user_then_theirs_alone() {
    let node = Node::start();
    let me = Uid::current().to_string();
    for (list, key, count) in [("ls", "allocations", 5), ("clients", "clients", 2)] {
        let of = |arguments: &[&str]| {
            let found = node.json(&[&[list, "--json"], arguments].concat());
            found[key].as_array().map(Vec::len)
        };
        assert_eq!(of(&["--me"]), Some(count));
        assert_eq!(of(&["--user", &me]), Some(count));
        assert_eq!(of(&["--user", "4000000000"]), Some(0));
    }
    assert_eq!(end(&node.run(&["ls", "--user", "no such user"])).0, Some(2));
    assert_eq!(end(&node.run(&["ls", "--user", "0", "--me"])).0, Some(2));
}

#[test]
fn fd_when_it_is_memory_of_the_broker_then_which_whose_and_by_which_right() {
    let node = Node::start();
    let (memory, other) = (memfd(1), memfd(1));
    let mut deposit = Deposit::new(MemoryKind::Memfd, PAGE_BYTES as u64);
    deposit.base = 1 << 62;
    let deadline = Deadline::after(Duration::from_secs(30));
    let registered = node.clients[0].register(&deposit, memory.as_fd(), deadline);
    let id = registered.expect("registered").id().to_string();
    let of = |fd: i32| format!("{}/{fd}", std::process::id());
    let found = node.json(&["fd", &of(memory.as_raw_fd()), "--json"]);
    let one = &found["allocations"][0];
    assert_eq!((&one["allocation"], &one["has_it"]), (&id.as_str().into(), &"its owner".into()));
    let text = node.text(&["fd", &of(memory.as_raw_fd())]);
    assert!(text.contains(&format!("allocation {id} (4 KiB) of process")), "{text}");
    for (which, status, said) in [
        (of(other.as_raw_fd()), 4, "that this broker does not know"),
        (of(1_000_000), 4, "has no fd 1000000"),
        (of(0), 4, "no memory that can be shared"),
        ("12".into(), 2, "PID/N"),
    ] {
        let (code, stderr) = end(&node.run(&["fd", &which]));
        assert_eq!(code, Some(status), "{which}: {stderr}");
        assert!(stderr.contains(said), "{which}: {stderr}");
    }
}

#[test]
fn headings_when_a_column_counts_a_part_of_something_then_they_say_of_what() {
    let node = Node::start();
    let jobs = node.text(&["jobs"]);
    let headings = words(&jobs)[0].clone();
    for heading in ["FDS_PEAK", "FDS_CAP", "OBJECTS", "LEFT_ALLOCATIONS"] {
        assert!(headings.contains(&heading), "{headings:?}");
    }
    let allocations = node.text(&["ls"]);
    assert!(words(&allocations)[0].contains(&"WAITERS"), "{allocations}");
}

#[test]
fn ls_when_filtered_and_sorted_then_those_in_that_order() {
    let node = Node::start();
    let sizes = |arguments: &[&str]| -> Vec<u64> {
        let found = node.json(&[&["ls", "--json"], arguments].concat());
        let found = found["allocations"].as_array().expect("an array");
        found.iter().map(|it| it["size_bytes"].as_u64().expect("a number") / 4096).collect()
    };
    assert_eq!(sizes(&["--filter", "SIZE > 8KiB", "--sort", "SIZE:desc"]), [5, 4, 3]);
    assert_eq!(
        sizes(&["--filter", "MAPPED_LEASES == 1 or SIZE == 20480", "--sort", "size"]),
        [1, 2, 5]
    );
    assert_eq!(sizes(&["--filter", "NAME == 'owner one' and OWNER == none"]), [0; 0]);
    let first = id(&node.handles[0]);
    assert_eq!(sizes(&["--filter", &format!("ALLOCATION == {first}")]), [1]);
    let text = node.text(&["ls", "--no-headings", "--filter", "SIZE < 1KiB"]);
    assert_eq!(text, "");
    let text = node.text(&["ls", "--filter", "SIZE < 1KiB"]);
    assert!(text.starts_with("ALLOCATION") && text.lines().count() == 1, "{text}");
}

#[test]
fn lists_when_used_wrongly_then_exit_2_before_any_broker_is_asked() {
    for arguments in [
        &["ls", "-o", "COLOUR"][..],
        &["ls", "--sort", "SIZE:up"],
        &["ls", "--filter", "SIZE > "],
        &["ls", "--filter", "COLOUR == 1"],
        &["ls", "--filter", "STATE == hold"],
        &["ls", "--filter", "SIZE > 8XB"],
        &["ls", "--filter", "AGE > 5y"],
        &["ls", "--filter", "KEEP == maybe"],
        &["ls", "--filter", "UID == root"],
        &["ls", "--filter", "ALLOCATION == 12"],
        &["ls", "--filter", "SIZE => 1"],
        &["objects", "--filter", "COMMAND == sh"],
        &["clients", "--filter", "SILENT > no"],
        &["holders", "-o", ""],
        &["show", "pid:1"],
        &["show"],
    ] {
        let (code, stderr) = end(&run(arguments));
        assert_eq!(code, Some(2), "{arguments:?}: {stderr}");
    }
    let (_, stderr) = end(&run(&["ls", "-o", "COLOUR"]));
    assert!(stderr.contains("ALLOCATION, SIZE, STATE, OWNER"), "{stderr}");
    for list in ["ls", "clients", "holders"] {
        let (code, stderr) = end(&run(&[list, "-H"]));
        assert_eq!(code, Some(0), "{stderr}");
        assert_eq!(end(&run(&[list])).0, Some(3));
    }
    assert_eq!(end(&run(&["show", "1.1"])).0, Some(3));
}

#[test]
fn clients_when_listed_then_each_process_with_what_it_has() {
    let node = Node::start();
    let found = node.json(&["clients", "--json", "--sort", "NAME"]);
    let clients = found["clients"].as_array().expect("an array");
    let names: Vec<&str> = clients.iter().filter_map(|it| it["name"].as_str()).collect();
    assert_eq!(names, ["holder", "owner one"]);
    assert_eq!(clients[0]["mapped_leases"], 2);
    assert_eq!(clients[1]["allocations"], 5);
    assert_eq!(clients[1]["held_bytes"], 15 * PAGE_BYTES);
    for client in clients {
        assert_eq!(client["pid"], std::process::id());
        assert_eq!(client["uid"], Uid::effective().as_raw());
        assert_eq!(client["silent"], false);
        assert!(client["own_fds"].is_u64(), "{client}");
        for of_others in ["domains", "table_fds", "refused_fds"] {
            assert_eq!(client.get(of_others), None, "clients are never charged for {of_others}");
        }
    }
    let jobs = node.text(&["jobs", "-H"]);
    assert!(jobs.contains("OWN_FDS") && !jobs.contains("TABLE_FDS"), "{jobs}");
    let text = node.text(&["clients", "-o", "NAME,MAPPED_LEASES", "--filter", "MAPPED_LEASES > 0"]);
    assert_eq!(text, "NAME    MAPPED_LEASES\nholder              2\n");
}

#[test]
fn holders_when_a_subject_and_a_filter_then_what_both_choose() {
    let node = Node::start();
    let count = |arguments: &[&str]| {
        let found = node.json(&[&["holders", "--json"], arguments].concat());
        found["holders"].as_array().expect("an array").len()
    };
    let first = id(&node.handles[0]);
    assert_eq!(count(&[]), 2);
    assert_eq!(count(&[&first]), 1);
    assert_eq!(count(&[&format!("pid:{}", std::process::id())]), 2);
    assert_eq!(count(&["--filter", "STATE == mapped and NAME == holder and AGE < 1h"]), 2);
    assert_eq!(count(&["--filter", &format!("ALLOCATION != {first}")]), 1);
    assert_eq!(count(&[&id(&node.handles[4])]), 0);
}

#[test]
fn show_when_an_allocation_then_all_of_it_and_its_holders() {
    let node = Node::start();
    let (first, last) = (id(&node.handles[0]), id(&node.handles[4]));
    let found = node.json(&["show", &first, "--json"]);
    assert_eq!(found["allocation"]["allocation"], first);
    assert_eq!(found["allocation"]["size_bytes"], PAGE_BYTES);
    assert_eq!(found["holders"][0]["name"], "holder");
    let hex = node.handles[4].to_string();
    let found = node.json(&["show", &hex, "--json"]);
    assert_eq!(found["allocation"]["allocation"], last);
    assert_eq!(found["holders"], serde_json::json!([]));

    let registration = node.register_virtual();
    let number = registration.virtual_fd().expect("asked for").to_string();
    let found = node.json(&["show", &number, "--json"]);
    assert_eq!(found["allocation"]["allocation"], registration.id().to_string());
    assert_eq!(found["allocation"]["virtual_fd"].to_string(), number);

    let text = node.text(&["show", &last]);
    let lines = words(&text);
    assert!(lines.contains(&vec!["SIZE", "20", "KiB", "(20480)"]), "{text}");
    assert!(lines.contains(&vec!["RECALLABLE", "yes"]), "{text}");
    assert!(lines.last().is_some_and(|line| line[0] == "HOLDER"), "{text}");

    for nothing in ["999999.1", "2147483647"] {
        let (code, stderr) = end(&node.run(&["show", nothing]));
        assert_eq!(code, Some(4), "{stderr}");
        assert!(stderr.contains("fdbroker ls"), "{stderr}");
    }
}
