//! The seeds: what a real library, broker and kernel say, written as the targets read it. `run.sh --seeds` writes them
//! into the corpora. Must never be random: the same program writes the same files.

use fdbroker_protocol::admin::{Page, Query};
use fdbroker_protocol::message::*;
use fdbroker_protocol::page::{PAGE_MAGIC, PAGE_VERSION, page_bytes};
use fdbroker_protocol::{ErrorCode, Kind, Resource, Scope, Status, Writer};
use std::path::Path;
use zerocopy::{FromZeros, Immutable, IntoBytes};

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
        ("saved", core().iter().map(|input| crate::targets::core::saved(input)).collect()),
        ("wire", wire()),
    ];
    for (target, seeds) in seeds {
        let directory = directory.join(target);
        std::fs::create_dir_all(&directory).expect("the directory can be made");
        for (number, seed) in seeds.iter().enumerate() {
            let path = directory.join(format!("seed-{number:02}"));
            std::fs::write(path, seed).expect("the file can be written");
        }
    }
}

/// One message of each kind, with as many items as are usual.
fn wire() -> Vec<Vec<u8>> {
    let head = RegisterHead { credits_wanted: 2.into(), deadline_ms: 10.into() };
    let acquire = AcquireHead { deadline_ms: 10.into(), flags: 0.into() };
    let reply = RegisterReplyHead { deposit_credits: 1.into(), reserved: [0.into(); 3] };
    let quota = Status::no_quota(Resource::Fds, Scope::Node, 64, 1);
    let mut grants = [GrantItem::new_zeroed(), GrantItem::new_zeroed()];
    grants[1].driver_data_len = 5;
    let granted = [grants.as_bytes(), &[5; 64]].concat();
    let page = Page { next_cursor: 0.into(), done: 1.into() };
    let query = Query::new_zeroed();
    vec![
        message(Kind::Hello, 0, 0, &[hello().as_bytes()]),
        message(Kind::HelloReply, 0, 2, &[&zeros::<HelloReply>(1)]),
        message(Kind::Failed, 0, 0, &[quota.as_bytes()]),
        message(Kind::Register, 2, 2, &[head.as_bytes(), &zeros::<RegisterItem>(2)]),
        message(Kind::RegisterReply, 2, 0, &[reply.as_bytes(), &zeros::<Registered>(2)]),
        message(Kind::Unregister, 2, 0, &[&zeros::<AllocationItem>(2)]),
        message(Kind::UnregisterReply, 2, 0, &[quota.as_bytes(), Status::OK.as_bytes()]),
        message(Kind::Redeposit, 1, 0, &[head.as_bytes(), &zeros::<RedepositItem>(1)]),
        message(Kind::Acquire, 2, 0, &[acquire.as_bytes(), &[0; 64]]),
        message(Kind::Granted, 2, 1, &[&granted]),
        message(Kind::Cancel, 0, 0, &[]),
        message(Kind::Mapped, 1, 0, &[&zeros::<LeaseItem>(1)]),
        message(Kind::Release, 2, 0, &[&zeros::<LeaseItem>(2)]),
        message(Kind::LeaseReply, 1, 0, &[Status::error(ErrorCode::Stale).as_bytes()]),
        message(Kind::Declare, 1, 0, &[&zeros::<DeclareItem>(1)]),
        message(Kind::Recall, 1, 0, &[&zeros::<RecallItem>(1)]),
        message(Kind::Supply, 2, 2, &[&zeros::<SupplyItem>(2)]),
        message(Kind::Reclaim, 1, 0, &[&zeros::<LeaseItem>(1)]),
        message(Kind::Revoked, 1, 0, &[&zeros::<RevokedItem>(1)]),
        message(Kind::Drained, 1, 0, &[&zeros::<DrainedItem>(1)]),
        message(Kind::GoingAway, 0, 0, &[&zeros::<GoingAway>(1)]),
        message(Kind::AdminAllocations, 0, 0, &[query.as_bytes()]),
        message(Kind::AdminClientsReply, 0, 0, &[page.as_bytes()]),
        message(Kind::AdminLeasesReply, 1, 0, &[page.as_bytes(), &[0; 80]]),
    ]
}

fn message(kind: Kind, count: usize, fds: usize, parts: &[&[u8]]) -> Vec<u8> {
    let mut writer = Writer::new();
    writer.start(kind, 9);
    for part in parts {
        writer.push(*part);
    }
    writer.finish(count, fds).to_vec()
}

fn zeros<T: FromZeros + IntoBytes + Immutable>(count: usize) -> Vec<u8> {
    (0..count).flat_map(|_| T::new_zeroed().as_bytes().to_vec()).collect()
}

fn hello() -> Hello {
    let mut hello = Hello::new_zeroed();
    hello.magic = HELLO_MAGIC;
    (hello.version_min, hello.version_max) = (1.into(), 1.into());
    hello
}

/// What kernels print for dma-bufs and for others (drivers/dma-buf/dma-buf.c, fs/proc/fd.c).
fn fdinfo() -> Vec<Vec<u8>> {
    let all = [
        "pos:\t0\nflags:\t02100002\nmnt_id:\t15\nino:\t12\nsize:\t65536\ncount:\t2\nexp_name:\tsystem\n",
        "pos:\t0\nflags:\t02\nmnt_id:\t15\nino:\t12\nsize:\t65536\ncount:\t2\nexp_name:\tudmabuf\nname:\tmine\n",
        "pos:\t0\nsize:\t4096\nname:\tx\nexp_name:\tforged\n",
        "pos:\t0\nflags:\t02\nmnt_id:\t15\nino:\t12\neventfd-count:                0\neventfd-id: 3\n",
        "size:\t18446744073709551616\nexp_name:\tsystem\n",
        "size:\t1\nsize:\t 2 \nexp_name:",
    ];
    all.iter().map(|text| text.as_bytes().to_vec()).collect()
}

/// As launchers and container runtimes make them.
fn cgroup() -> Vec<Vec<u8>> {
    let all = [
        "0::/system.slice/slurmstepd.scope/job_81/step_0/user/task_3\n",
        "12:pids:/user.slice\n4:devices:/slurm/uid_1000/job_81/step_0/task_1\n0::/init.scope\n",
        "9:cpuset:/pbs_jobs.service/jobid/12.server/extra\n",
        "0::/system.slice/pbs_jobs.service/jobs/12.server\n",
        "0::/kubepods/burstable/pod1f3a-8e0c/0123abcd\n",
        "0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod1f_8e.slice/cri-abc.scope\n",
        "0::/user.slice/user-765.slice/user@765.service/app.slice/imp-shell-450-fPY66riwfnP.service\n",
        "0::/jobs/7186710\n",
        "0::/user.slice/user-1000.slice/session-3.scope\n",
    ];
    all.iter().map(|text| text.as_bytes().to_vec()).collect()
}

fn config() -> Vec<Vec<u8>> {
    let whole = "admin_socket = \"/a/admin.sock\"\nlog = \"debug\"\n[[listener]]\npath = \"/a/b.sock\"\nmode = 0o660\n\
        [[listener]]\npath = \"/c/d.sock\"\n[caps.node]\nfds = 100\n[caps.domain]\nheld_fds = 9\n[caps.job]\nfds = 7\n\
        [caps.client]\nopen_leases = 5\nkept_allocations = 1\n[limits]\nmax_slots = 16\nrecall_timeout_ms = 5\n\
        max_clients = 3\nmax_clients_per_uid = 2\nkeep_ttl_ms = 1\ngrace_ms = 2\nhandshake_timeout_ms = 9\n";
    let odd = "[limits]\ntable_fds = 18446744073709551615\nmax_slots = 4294967295\nbase_credits = 3\nmax_credits = 2\n";
    let set = "limits.max_clients=64\ncaps.node.fds=4096\nlimits.recall_timeout_ms=500";
    let environment = "FDBROKER_MAX_FDS=77\nFDBROKER_LOG=warn\nFDBROKER_SOCKET=/x/y.sock";
    vec![
        config_input(0, "", "", whole),
        config_input(1, set, "", "[caps.job]\nmapped_leases = 3\n"),
        config_input(8, set, environment, whole),
        config_input(28, "", environment, odd),
        config_input(16, "log=\"nothing\"", "XDG_RUNTIME_DIR=/run/user/1\n", "log = \"error\"\n"),
    ]
}

fn config_input(choice: u8, set: &str, environment: &str, text: &str) -> Vec<u8> {
    [&[choice][..], &block(set.as_bytes()), &block(environment.as_bytes()), text.as_bytes()]
        .concat()
}

fn block(bytes: &[u8]) -> Vec<u8> {
    let length = u16::try_from(bytes.len()).expect("a short one");
    [&length.to_le_bytes()[..], bytes].concat()
}

/// A page of 16 slots after 9 generations; one of other sizes; a torn one.
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

/// Two clients, one with a buffer that the other acquires, maps and gives back; one that is recalled; deaths.
fn core() -> Vec<Vec<u8>> {
    let no_caps = [0_u8; 4];
    let few = [&[63, 6, 3, 15, 4, 4, 9][..], &[0, 0, 0]].concat();
    let limits = [63, 3, 2, 2, 0, 1, 3, 0];
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
    [&no_caps[..], &few[..]]
        .iter()
        .flat_map(|config| {
            [&pair, &recall, &deaths, &crash]
                .map(|acts| [*config, &limits[..], &start, acts, &restart, &caps, acts].concat())
        })
        .collect()
}

/// A hello and the usual requests; then bytes as they stand.
fn daemon() -> Vec<Vec<u8>> {
    // choice, client, kind, count, id; what the kind reads; changes, fds, wait.
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
    for message in wire() {
        seeds.push([&hello(0)[..], &raw(0, 0, &message), &raw(0, 1, &message)].concat());
    }
    seeds
}

/// Calls and a script of good answers; then every message as the answer.
fn library() -> Vec<Vec<u8>> {
    // A good page and hello.
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
    for message in wire() {
        let hello = [&block(&calls)[..], &[0], &block(&message)].concat();
        seeds.push(hello);
        let is_event = message[0] & 0xf0 == 0x40;
        let how = if is_event { 1 } else { 16 };
        seeds.push(input(&calls, &[(how, &message), (2, &[17, 0]), (how, &message)]));
    }
    seeds
}
