//! The seeds: what a real library, broker and kernel say, written as the targets read it, and the
//! same with changes. Each run of `run.sh` writes them anew. Must never be random: the same program
//! writes the same files.

use crate::targets::wire::{Bodies, Layout, visit};
use fdbroker_protocol::limits::DRIVER_DATA_BYTES;
use fdbroker_protocol::message::*;
use fdbroker_protocol::object::*;
use fdbroker_protocol::page::{PAGE_MAGIC, PAGE_VERSION, page_bytes};
use fdbroker_protocol::{ErrorCode, FdType, Kind, Named, Resource, Scope, Status, Writer};
use fdbrokerd::cli::Args;
use fdbrokerd::config::ConfigFile;
use fdbrokerd::{Environment, Host, Settings};
use std::path::Path;

/// Writes every target's seeds to a directory of its name.
pub fn write_all(directory: &Path) {
    let seeds: [(&str, Vec<Vec<u8>>); 10] = [
        ("cgroup", cgroup()),
        ("config", config()),
        ("core", core()),
        ("daemon", daemon()),
        ("fdinfo", fdinfo()),
        ("handle", vec![vec![0; 29], vec![1; 64], (0..96).collect()]),
        ("library", library()),
        ("page", page()),
        ("saved", saved()),
        ("wire", wire()),
    ];
    for (target, seeds) in seeds {
        let directory = directory.join(target);
        std::fs::create_dir_all(&directory).expect("the directory can be made");
        for (number, seed) in seeds.iter().enumerate() {
            let path = directory.join(format!("seed-{number:04}"));
            std::fs::write(path, seed).expect("the file can be written");
        }
    }
}

/// Bytes without a pattern, the same ones each time for a number (splitmix64). A target that reads
/// its input as a list of acts plays a long story of them.
fn noise(number: u64, length: usize) -> Vec<u8> {
    let word = |index: u64| {
        let mut word = (number << 32 | index).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (word ^ word >> 31).to_le_bytes()
    };
    (1..).flat_map(word).take(length).collect()
}

/// Messages of every kind with zero, one and two items, a status of each sort, and messages that
/// lie about themselves.
fn wire() -> Vec<Vec<u8>> {
    let of_each_kind = |count| Kind::ALL.iter().map(move |kind| message(*kind, count, 0));
    let mut seeds: Vec<Vec<u8>> = [0, 1, 2].into_iter().flat_map(of_each_kind).collect();
    let mut writer = Writer::new();
    let statuses = statuses();
    writer.start(Kind::LeaseReply, 9);
    statuses.iter().for_each(|status| _ = writer.push(&status.to_bytes()));
    seeds.push(writer.finish(statuses.len(), 0).to_vec());
    let granted = message(Kind::Granted, 2, 5);
    seeds.extend((0..granted.len()).map(|length| granted[..length].to_vec()));
    seeds.push([&granted[..], &[0]].concat());
    for kind in [Kind::Hello, Kind::Granted, Kind::AdminJobsReply] {
        for at in 0..size_of::<Header>() {
            let mut changed = message(kind, 1, 0);
            changed[at] ^= 0xff;
            seeds.push(changed);
        }
    }
    seeds
}

/// A status of each error, cap and fd type, and some with numbers that have no name.
fn statuses() -> Vec<Status> {
    let mut all: Vec<Status> = ErrorCode::ALL.iter().map(|code| Status::error(*code)).collect();
    for resource in Resource::ALL {
        all.extend(Scope::ALL.iter().map(|scope| Status::no_quota(*resource, *scope, 64, 1)));
    }
    let quota = Status::no_quota(Resource::Fds, Scope::Node, 64, 0);
    all.extend([
        Status { resource: 99, ..quota },
        Status { scope: 99, ..quota },
        quota,
        Status::OK,
    ]);
    let fd_types = FdType::ALL.iter().map(|fd| *fd as u64).chain([99]);
    all.extend(fd_types.map(|fd| Status::with_value(ErrorCode::UnsupportedFd, fd)));
    all.push(Status::with_value(ErrorCode::Protocol, 2));
    all.push(Status { code: 999, ..Status::OK });
    all
}

/// A whole message: `byte` everywhere in its body, and as many fds as a library or broker sends
/// with it.
fn message(kind: Kind, count: usize, byte: u8) -> Vec<u8> {
    let mut body = Body { count, byte, counted: 0, bytes: Vec::new() };
    visit(kind, &mut body);
    let fds = match kind {
        Kind::HelloReply => 1,
        Kind::Register | Kind::Granted | Kind::Supply => body.counted,
        Kind::ObjectCreate => 1,
        _ => 0,
    };
    if kind == Kind::Hello {
        // Its magic, lowest and highest version.
        body.bytes[..12].copy_from_slice(b"fdbroker\x03\0\x03\0");
    }
    let mut writer = Writer::new();
    writer.start(kind, 9).push(&body.bytes[..]);
    writer.finish(body.counted, fds).to_vec()
}

/// Makes the body of a message out of one byte.
struct Body {
    /// Items, where the kind has some.
    count: usize,
    byte: u8,
    /// What the header is to count.
    counted: usize,
    bytes: Vec<u8>,
}

impl Body {
    fn push(&mut self, length: usize) {
        self.bytes.resize(self.bytes.len() + length, self.byte);
    }
}

impl Bodies for Body {
    fn empty(&mut self) {}

    fn body<T: Layout>(&mut self) {
        self.push(size_of::<T>());
    }

    fn items<T: Layout>(&mut self) {
        self.push(self.count * size_of::<T>());
        self.counted = self.count;
    }

    fn head_and_items<H: Layout, T: Layout>(&mut self) {
        self.body::<H>();
        self.items::<T>();
    }

    fn grants(&mut self) {
        self.items::<GrantItem>();
        if self.byte != 0 {
            self.push(self.count * DRIVER_DATA_BYTES);
        }
    }

    fn named<T: Layout + Named>(&mut self) {
        for _ in 0..self.count {
            let at = self.bytes.len();
            self.push(size_of::<T>());
            let item = T::read_from_bytes(&self.bytes[at..]).expect("as long as it is");
            self.push(item.name_bytes() + item.more_bytes());
        }
        self.counted = self.count;
    }

    fn head_and_named<H: Layout, T: Layout + Named>(&mut self) {
        self.body::<H>();
        self.named::<T>();
    }

    fn prefix(&mut self) {
        self.body::<ObjectPrefix>();
        self.push(2 * usize::from(self.byte));
    }

    fn got(&mut self) {
        self.body::<ObjectGotHead>();
        self.items::<ObjectGotItem>();
    }
}

/// What kernels print for dma-bufs and other fds (drivers/dma-buf/dma-buf.c, fs/proc/fd.c), and odd
/// sizes.
fn fdinfo() -> Vec<Vec<u8>> {
    let all = [
        "pos:\t0\nflags:\t02100002\nmnt_id:\t15\nino:\t12\nsize:\t65536\ncount:\t2\nexp_name:\tsystem\n",
        "pos:\t0\nflags:\t02\nmnt_id:\t15\nino:\t12\nsize:\t65536\ncount:\t2\nexp_name:\tudmabuf\nname:\tmine\n",
        "pos:\t0\nsize:\t4096\nname:\tx\nexp_name:\tforged\n",
        "pos:\t0\nflags:\t02\nmnt_id:\t15\nino:\t12\neventfd-count:                0\neventfd-id: 3\n",
        "size:\t1\nsize:\t 2 \nexp_name:",
    ];
    let sizes = "| |0|+7|-7|0x7|7 7|7a|007|                7|\x0b\x0c7\r|\u{a0}7\u{2003}|\u{7f}|\u{1f600}\
        |18446744073709551615|18446744073709551616";
    // Bytes that are not UTF-8, in each way.
    let not_text: [&[u8]; 6] =
        [b"\xff", b"\xc3(", b"\xe0\x80", b"\xed\xa0\x80", b"\xf0\x90\x80", b"\xf4\x90\x80\x80"];
    let sizes = sizes.split('|').map(str::as_bytes).chain(not_text);
    let of_size = |size: &[u8]| [&b"size:"[..], size, b"\nexp_name:\tx\n"].concat();
    begun(&all).into_iter().chain(sizes.map(of_size)).collect()
}

/// Cgroups as launchers and container runtimes name them.
fn cgroup() -> Vec<Vec<u8>> {
    begun(&[
        "0::/system.slice/slurmstepd.scope/job_81/step_0/user/task_3\n",
        "12:pids:/user.slice\n4:devices:/slurm/uid_1000/job_81/step_0/task_1\n0::/init.scope\n",
        "4:devices:/slurm_node1/uid_1000/job_/job_8a/job_81\n",
        "9:cpuset:/pbs_jobs.service/jobid/12.server/extra\n",
        "0::/system.slice/pbs_jobs.service/jobs/12.server\n",
        "0::/kubepods/burstable/pod1f3a-8e0c/0123abcd\n",
        "0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod1f_8e.slice/cri-abc.scope\n",
        "0::/user.slice/user-765.slice/user@765.service/app.slice/imp-shell-450-fPY66riwfnP.service\n",
        "0::/jobs/7186710\n",
        "0::/user.slice/user-1000.slice/session-3.scope\n",
        "1::2\n1::/longer\n\n:\n::\n0:\n\0\r\n",
    ])
}

/// Each text, and each of its beginnings: a file that has been read in part.
fn begun(texts: &[&str]) -> Vec<Vec<u8>> {
    let begun = |text: &&str| -> Vec<Vec<u8>> {
        (0..=text.len()).map(|end| text.as_bytes()[..end].to_vec()).collect()
    };
    texts.iter().flat_map(begun).collect()
}

/// The configuration as it is printed, each key alone with good and bad values, each variable of
/// the environment, and the other ways to write TOML.
fn config() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    let (owners, subordinate_uids) = (vec![0], Default::default());
    let memory_bytes = Some(64 << 30);
    let host =
        Host { euid: 0, hard_fds: 4096, open_fds: 8, owners, memory_bytes, subordinate_uids };
    let settings =
        Settings::resolve(&Args::default(), &Environment::default(), ConfigFile::default(), &host);
    let settings = settings.expect("the defaults can be used");
    let text = settings.to_string();
    seeds.extend((0..32).map(|choice| config_input(choice, "", "", &text)));
    for (key, ..) in settings.effective().filter(|(key, ..)| !key.starts_with("listener")) {
        for value in VALUES {
            let line = format!("{key} = {value}\n");
            seeds.push(config_input(0, "", "", &line));
            seeds.push(config_input(1, &line, "", ""));
        }
    }
    for name in ["SOCKET", "ADMIN_SOCKET", "TABLE_FDS", "MAX_FDS", "LOG"] {
        for value in ["77", "warn", "/x/y.sock", " 300 ", "-1"] {
            let variables = format!("FDBROKER_{name}={value}\nXDG_RUNTIME_DIR=/run/user/1");
            seeds.push(config_input(0, "", &variables, ""));
            seeds.push(config_input(9, "", &variables, ""));
        }
    }
    for text in TOML {
        seeds.push(config_input(0, "", "", text));
        seeds.push(config_input(9, text, "", text));
    }
    seeds
}

/// Values for every key: numbers at the ends of their types, a mode, a text, and a list.
const VALUES: [&str; 9] =
    ["0", "1", "300", "4294967295", "9223372036854775807", "-1", "0o660", "\"debug\"", "[1, 2.5]"];

/// Right and wrong TOML.
const TOML: [&str; 32] = [
    "log = 'debug' # a comment",
    "log = \"\"\"\n  warn\\\n \"\"\"",
    "log = '''error'''",
    r#"log = "\u0069\U0000006e\t\n\\\"\b\f\r\e""#,
    r#"log = "\x""#,
    "log = \"open",
    "log = '''open",
    "log = 1979-05-27T07:32:00.5-07:00",
    "log = 07:32:00",
    "log = true\nlog = false",
    "log = inf\nadmin_socket = -nan",
    "log = 1.5_0",
    "log = 1e-3",
    "caps = { node = { fds = 1_000, held_fds = 0x1f }, job.fds = 0b11 }",
    "caps.node = 3\n[caps.node]\nfds = 1",
    "\"caps\".'node'.fds = +7\n[caps]\n[caps.client]",
    "caps.\"\\u006eode\".fds = 1__0",
    "limits = [ 1, [\n 2 ], {}, # a comment\n ]",
    "limits.max_slots.more = 1",
    "listener = [{ path = \"/x\", mode = 0o6_0_0 }, { path = \"/x\" }]",
    "listener = []\n[[listener]]\n",
    "[[listener]]\n[[listener.path]]\n",
    "[[listener]]\npath = \"/a/b.sock\"\nmode = 0o660\n[[listener]]\npath = \"/c/d.sock\"\n",
    "[[listener]]\npath = \"/a/b.sock\"\nmode = 600\n[[listener]]\nmode = 0o1777\n",
    "[limits\n",
    "[limits]]\n",
    "= 3",
    "log",
    "log =",
    "\u{feff}log = \"info\"\r\n\r\nadmin_socket = \"/\u{e9}\"",
    "log = \"\u{1}\"",
    "admin_socket = \"relative\"",
];

fn config_input(choice: u8, set: &str, environment: &str, text: &str) -> Vec<u8> {
    [&[choice][..], &block(set.as_bytes()), &block(environment.as_bytes()), text.as_bytes()]
        .concat()
}

fn block(bytes: &[u8]) -> Vec<u8> {
    let length = u16::try_from(bytes.len()).expect("a short one");
    [&length.to_le_bytes()[..], bytes].concat()
}

/// Pages with few and with the most generations, of another size or version, and cut short.
fn page() -> Vec<Vec<u8>> {
    let page = |slots: u32, version: u32, high: u32| {
        let mut bytes = vec![0; page_bytes(slots.min(64))];
        bytes[..8].copy_from_slice(&PAGE_MAGIC.to_ne_bytes());
        bytes[8..12].copy_from_slice(&version.to_ne_bytes());
        bytes[12..16].copy_from_slice(&slots.to_ne_bytes());
        bytes[28..32].copy_from_slice(&high.to_ne_bytes());
        bytes
    };
    let input = |how: u8, page: &[u8]| {
        let key = vec![7; if how & 1 != 0 { 32 } else { usize::from(how >> 3) }];
        [&[how][..], &key, page].concat()
    };
    let header = |slots, version, high| page(slots, version, high)[..40].to_vec();
    vec![
        input(5, &header(16, PAGE_VERSION, 9)),
        input(5, &header(64, PAGE_VERSION, 1 << 30)),
        input(5, &header(16, PAGE_VERSION, u32::MAX)),
        input(5, &header(16, PAGE_VERSION, u32::MAX - 1)),
        input(5, &header(16, PAGE_VERSION + 1, 3)),
        input(1, &header(16, PAGE_VERSION, 3)),
        input(1, &page(16, PAGE_VERSION, 12)),
        input(4, &header(16, PAGE_VERSION, 3)),
        input(1, &header(16, PAGE_VERSION, 3)[..20]),
    ]
}

/// Two clients: one has a buffer that the other acquires, maps and gives back; recalls; deaths; a
/// crash. Then noise.
fn core() -> Vec<Vec<u8>> {
    let no_caps = [0_u8; 4];
    let few = [&[63, 6, 3, 15, 4, 4, 9][..], &[0, 0, 0]].concat();
    // The last two: no slots of a broker before, and whose those would be.
    let limits = [63, 3, 2, 2, 0, 1, 3, 0, 0];
    let restart = [18, 0];
    let connect = |client: u8| [5, client, 0, 0].to_vec();
    let register = |client: u8, more: u8| [2, client, 1, 0, more, 0, 3, 9].to_vec();
    let acquire = |client: u8| [4, client, 1, 1, 0, 1, 0, 60, 0].to_vec();
    let release = |client: u8| [7, client, 1, 1, 2, 0, 0].to_vec();
    let mapped = |client: u8| [7, client, 2, 1, 2, 0].to_vec();
    let start = [connect(0), connect(1)].concat();
    let pair = [register(0, 1), acquire(1), mapped(1), release(1), vec![8, 0, 1, 0, 1, 0]].concat();
    let recall = [register(0, 1), register(0, 1), acquire(1), vec![11, 0, 1, 0, 1, 1, 0]].concat();
    let deaths =
        [register(0, 7), acquire(1), vec![0, 0], vec![16, 0, 255, 15], vec![15, 0, 3]].concat();
    let crash =
        [register(0, 1), vec![14, 0, 0, 1, 1, 1, 0, 0, 1], vec![14, 1, 0, 0, 1, 1, 0, 1]].concat();
    let caps = vec![17, 0, 1, 2, 0, 0, 0];
    // Made by the first, sealed, got by the second, deleted; one that is kept and replaces it.
    let create = |what: u8| [20, 0, what, 0, 0, 4, 0, 0, 0, 255, 3].to_vec();
    let create_kept = [20, 0, 48, 0, 0, 4, 0, 0, 255, 15, 0, 255, 3].to_vec();
    let seal = |group: u8| [21, 0, 5, 0, group, 1, 0].to_vec();
    let get = [22, 1, 9, 0, 0, 0, 60].to_vec();
    let delete = [23, 1, 12, 0, 0, 0, 0].to_vec();
    let watch = [20, 1, 15, 0, 0, 1].to_vec();
    let named =
        [watch, get.clone(), create(0), seal(0), get, create_kept, seal(1), delete].concat();
    let stories = [&no_caps[..], &few[..]].into_iter().flat_map(|config| {
        [&pair, &recall, &deaths, &crash, &named]
            .map(|acts| [config, &limits[..], &start, acts, &restart, &caps, acts].concat())
    });
    let without_caps = |number| [&no_caps[..], &limits, &noise(number, 800)].concat();
    let with_caps = |number| noise(number, 800);
    stories.chain((0..32).map(without_caps)).chain((32..64).map(with_caps)).collect()
}

/// The ledgers of the brokers in the seeds of `core`, and the first four with each of their bytes
/// changed in turn.
fn saved() -> Vec<Vec<u8>> {
    let mut seeds: Vec<Vec<u8>> =
        core().iter().map(|story| crate::targets::core::saved(story)).collect();
    for ledger in seeds[..4].to_vec() {
        for at in 0..ledger.len() {
            for change in [0x01, 0xff] {
                let mut changed = ledger.clone();
                changed[at] ^= change;
                seeds.push(changed);
            }
        }
    }
    seeds
}

/// A hello and the usual requests; a message of each kind on both sockets; then noise.
fn daemon() -> Vec<Vec<u8>> {
    // Choice, client, kind, count, id; the values that this kind reads; changes, fds, wait.
    let send = |client: u8, kind: u8, count: u8, with: &[u8]| {
        [&[6, client, kind, count, 0][..], with, &[0, 0, 0]].concat()
    };
    let hello = |client: u8| send(client, 0, 0, &[]);
    let start = [hello(0), hello(1)].concat();
    let register = send(0, 1, 2, &[3, 9, 65, 80]);
    let acquire = send(1, 3, 2, &[9, 0, 1]);
    let release = send(1, 5, 1, &[1, 0, 0]);
    let rest = [
        send(0, 6, 1, &[0]),
        send(0, 7, 1, &[0, 65]),
        send(1, 8, 1, &[0, 1]),
        send(0, 9, 1, &[0, 0]),
    ]
    .concat();
    let admin: Vec<u8> = (0..4).flat_map(|kind| [3, 0, kind, 0, 0, 0, 0]).collect();
    let raw = |client: u8, event: u8, bytes: &[u8]| {
        [&[2, client, event, 0][..], &block(bytes), &[4, client, 5, client]].concat()
    };
    let mut seeds = vec![
        [&start[..], &register, &acquire, &release, &rest].concat(),
        [&start[..], &register, &register, &register, &register, &acquire, &admin].concat(),
        [&start[..], &register, &acquire, &[1, 0, 4, 0], &release, &admin].concat(),
    ];
    for kind in Kind::ALL {
        let both = |count| {
            let message = message(*kind, count, 0);
            [raw(0, 0, &message), raw(0, 1, &message)].concat()
        };
        seeds.push([&hello(0)[..], &both(0), &hello(0), &both(1)].concat());
    }
    seeds.extend((0..16).map(|number| [&start[..], &noise(number, 400)].concat()));
    seeds
}

/// Calls and a script of good answers; a message of each kind as the answer; then noise.
fn library() -> Vec<Vec<u8>> {
    // With a good page and reply to hello.
    let input = |calls: &[u8], answers: &[(u8, &[u8])]| {
        let mut bytes = [&block(calls)[..], &[0], &block(&[])].concat();
        for (how, answer) in answers {
            bytes.push(*how);
            bytes.extend(block(answer));
        }
        bytes
    };
    let calls = [64, 1, 4, 65, 2, 2, 5, 71, 1, 70, 9, 3, 5];
    let good: [(u8, &[u8]); 6] = [
        (2, &[17, 0]),
        (3, &[1, 0, 1, 0, 0, 0, 1, 0]),
        (2, &[4, 0, 1, 0]),
        (3, &[2, 2, 1, 0, 0, 0, 1, 0, 2]),
        (2, &[0, 1, 0]),
        (2, &[25, 3, 0]),
    ];
    let mut seeds = vec![input(&calls, &good)];
    for message in Kind::ALL.iter().map(|kind| message(*kind, 1, 0)) {
        let hello = [&block(&calls)[..], &[0], &block(&message)].concat();
        seeds.push(hello);
        let is_event = message[0] & 0xf0 == 0x40;
        let how = if is_event { 1 } else { 16 };
        seeds.push(input(&calls, &[(how, &message), (2, &[17, 0]), (how, &message)]));
    }
    for number in 0..16 {
        let (calls, answers) = (noise(number, 40), noise(number + 16, 400));
        let answers: Vec<(u8, &[u8])> = answers.chunks(20).map(|one| (one[0], &one[1..])).collect();
        seeds.push(input(&calls, &answers));
    }
    seeds
}
