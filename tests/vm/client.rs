//! The clients of tests/vm/systemd.sh: an owner, a consumer that acquires all the time, and one
//! that acquires once. Must never hide an error: each is counted under its code, and every byte is
//! compared.

use fdbroker_client::{
    Access, Arena, Client, Deadline, Deposit, Handle, HostBuffer, HostMemory, Import,
    IsolatedBuffer, IsolatedMemory, Lease, Notice, Share,
};
use fdbroker_protocol::MemoryKind;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

mod hang;
mod objects;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// Bytes of each buffer: one page.
const BYTES: usize = 4096;
/// Longest call: more than a recall and a restart of the broker together take on an emulated
/// machine that is busy.
const DEADLINE_MS: u32 = 40_000;
/// The pause between two writes of the report.
const REPORT_EVERY: Duration = Duration::from_millis(100);
/// A consumer's pause after each buffer: several consumers together keep the broker busy, and leave
/// an emulated machine's processors time for the service manager.
const PAUSE: Duration = Duration::from_millis(5);
/// A consumer's pause after an error: without a broker, calls fail at once.
const PAUSE_AFTER_ERROR: Duration = Duration::from_millis(20);

const USAGE: &str = "usage:
  client deposit KIND COUNT FILE   deposits COUNT buffers, writes a line `SEED HANDLE` each to FILE, and stays
                                   KIND: recallable (an arena), resident, keep (outlives its owner)
  client hammer FILE REPORT        acquires all, keeps half of the leases (open and mapped), acquires and releases the
                                   rest over and over until REPORT.stop exists; counts go to REPORT ten times a second
  client get FILE                  acquires each once; prints how many answered what
  client keep COUNT PREFIX BYTES   makes COUNT kept objects PREFIX/0 and so on, of so many bytes each, and ends
  client hung-serve DIR            as root: serves a file, DIR/hung, until it is open; prints the number of its thread, and stays
  client hung-deposit PATH UID     as root: opens the file, and deposits it as this user; stays
  client objects COUNT PREFIX      gets each of these once and compares its bytes; prints how many answered what
FDBROKER_TEST_MEMORY: memfd (default) or udmabuf (real dma-bufs), of recallable and resident ones";

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("client: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["deposit", kind, count, file] => deposit(kind, count.parse()?, Path::new(file)),
        ["hammer", file, report] => hammer(Path::new(file), Path::new(report)),
        ["get", file] => get(Path::new(file)),
        ["keep", count, prefix, bytes] => objects::keep(count.parse()?, prefix, bytes.parse()?),
        ["objects", count, prefix] => objects::get(count.parse()?, prefix),
        ["hung-serve", dir] => hang::serve(Path::new(dir)),
        ["hung-deposit", path, uid] => hang::deposit(Path::new(path), uid.parse()?),
        _ => Err(USAGE.into()),
    }
}

/// The bytes of a buffer; no word of them is in a buffer of another seed.
fn pattern(seed: u64) -> Vec<u8> {
    let word = |index: u64| (seed << 16 | index).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (0..BYTES as u64 / 8).flat_map(|index| word(index).to_le_bytes()).collect()
}

fn deadline() -> Deadline {
    Deadline::from_ms(DEADLINE_MS)
}

// ---- the owner

/// Keeps the memory of a buffer until the process ends.
#[allow(dead_code, reason = "held, not used")]
enum Memory {
    Arena(HostBuffer),
    Isolated(IsolatedBuffer),
    Kept(File),
}

fn deposit(kind: &str, count: u64, file: &Path) -> Outcome<()> {
    let is_real = std::env::var("FDBROKER_TEST_MEMORY").as_deref() == Ok("udmabuf");
    let client = Client::builder().name("owner").own_fds(4).connect()?;
    let host = if is_real { HostMemory::Udmabuf } else { HostMemory::Memfd };
    let arena = match kind {
        "recallable" => Some(Arena::new(&client, host, BYTES * usize::try_from(count)?)?),
        _ => None,
    };
    let (mut held, mut lines) = (Vec::new(), String::new());
    for index in 0..count {
        let seed = u64::from(std::process::id()) << 16 | index;
        let (memory, handle) = match (kind, &arena) {
            ("recallable", Some(arena)) => recallable(arena, seed)?,
            ("resident", _) => resident(&client, is_real, seed)?,
            ("keep", _) => keep(&client, seed)?,
            _ => return Err(USAGE.into()),
        };
        held.push(memory);
        lines += &format!("{seed} {handle}\n");
    }
    replace(file, &lines)?;
    loop {
        std::thread::park();
    }
}

fn recallable(arena: &Arena, seed: u64) -> Outcome<(Memory, Handle)> {
    let buffer = arena.alloc(BYTES)?;
    buffer.write_at(0, &pattern(seed))?;
    let handle = buffer.register(deadline())?;
    Ok((Memory::Arena(buffer), handle))
}

fn resident(client: &Client, is_real: bool, seed: u64) -> Outcome<(Memory, Handle)> {
    let kind = if is_real { IsolatedMemory::DmaHeap } else { IsolatedMemory::Memfd };
    let buffer = IsolatedBuffer::new(client, kind, BYTES, Share::Uid, deadline())?;
    buffer.write_at(0, &pattern(seed))?;
    let handle = buffer.handle().ok_or("not shared")?;
    Ok((Memory::Isolated(buffer), handle))
}

fn keep(client: &Client, seed: u64) -> Outcome<(Memory, Handle)> {
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let file = File::from(memfd_create(c"kept", flags)?);
    file.write_all_at(&pattern(seed), 0)?;
    fcntl(&file, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_SEAL))?;
    let mut deposit = Deposit::new(MemoryKind::Memfd, BYTES as u64);
    deposit.keep = true;
    let registration = client.register(&deposit, file.as_fd(), deadline())?;
    Ok((Memory::Kept(file), registration.handle))
}

// ---- consumers

/// Outcomes and notices by name, with their numbers.
type Counts = Arc<Mutex<BTreeMap<String, u64>>>;

fn count(counts: &Counts, name: impl Into<String>) {
    *counts.lock().expect("no panic under it").entry(name.into()).or_default() += 1;
}

/// Whether the imported bytes are the pattern of `seed`.
fn compare(import: &Import, seed: u64) -> bool {
    let mut bytes = vec![0; BYTES];
    import.read_at(0, &mut bytes).is_ok() && bytes == pattern(seed)
}

/// Acquires, maps and compares; answers `ok`, `WRONG_BYTES` or the error's code.
fn look(client: &Client, handle: &Handle, seed: u64) -> String {
    let import = client.acquire(handle, deadline()).and_then(|it| it.import(Access::Read, 0));
    match import {
        Ok(import) if compare(&import, seed) => "ok".into(),
        Ok(_) => "WRONG_BYTES".into(),
        Err(error) => format!("{:?}", error.code),
    }
}

fn get(file: &Path) -> Outcome<()> {
    let client = Client::builder().name("visitor").connect()?;
    let counts = Counts::default();
    for (seed, handle) in read(file)? {
        count(&counts, look(&client, &handle, seed));
    }
    println!("{}", text(&counts));
    Ok(())
}

/// A lease that is never given back while the test runs.
enum Kept {
    Mapped(u64, Box<Import>),
    Open(Lease, #[allow(dead_code, reason = "held, not used")] std::os::fd::OwnedFd),
}

impl Kept {
    fn is_good(&self) -> bool {
        match self {
            Kept::Mapped(seed, import) => import.is_current() && compare(import, *seed),
            Kept::Open(lease, _) => lease.is_current(),
        }
    }
}

fn hammer(file: &Path, report: &Path) -> Outcome<()> {
    let counts = Counts::default();
    let told = Arc::clone(&counts);
    let on_notice = move |notice| {
        let name = match notice {
            Notice::Disconnected => "disconnected",
            Notice::Reconnected { .. } => "reconnected",
            Notice::Revoked { .. } => "revoked",
            _ => return,
        };
        count(&told, name);
    };
    let client = Client::builder().name("hammer").on_notice(on_notice).connect()?;
    let all = read(file)?;
    let (keep, hammered) = all.split_at(all.len() / 2);
    let mut kept = Vec::new();
    for (index, (seed, handle)) in keep.iter().enumerate() {
        let grant = client.acquire(handle, deadline())?;
        kept.push(match index % 2 {
            0 => Kept::Mapped(*seed, Box::new(grant.import(Access::Read, 0)?)),
            _ => Kept::Open(grant.lease, grant.fd),
        });
    }
    let stop = suffixed(report, ".stop");
    let mut reported = None;
    for (seed, handle) in hammered.iter().cycle() {
        let outcome = look(&client, handle, *seed);
        std::thread::sleep(if outcome == "ok" { PAUSE } else { PAUSE_AFTER_ERROR });
        count(&counts, outcome);
        if reported.is_none_or(|at: Instant| at.elapsed() >= REPORT_EVERY) {
            let good = kept.iter().filter(|it| it.is_good()).count();
            replace(report, &format!("good={good} {}\n", text(&counts)))?;
            reported = Some(Instant::now());
            if stop.exists() {
                break;
            }
        }
    }
    Ok(())
}

// ---- files

fn text(counts: &Counts) -> String {
    let counts = counts.lock().expect("no panic under it");
    counts.iter().map(|(name, count)| format!("{name}={count}")).collect::<Vec<_>>().join(" ")
}

fn suffixed(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Replaces the whole file at once: other processes read it meanwhile.
fn replace(path: &Path, text: &str) -> std::io::Result<()> {
    let new = suffixed(path, ".new");
    std::fs::write(&new, text)?;
    std::fs::rename(new, path)
}

/// Reads the seeds and handles that `deposit` wrote.
fn read(file: &Path) -> Outcome<Vec<(u64, Handle)>> {
    let line = |line: &str| {
        let (seed, digits) = line.split_once(' ')?;
        Some((seed.parse().ok()?, digits.parse().ok()?))
    };
    let text = std::fs::read_to_string(file)?;
    let all: Option<Vec<_>> = text.lines().map(line).collect();
    all.ok_or_else(|| format!("{}: not written by `client deposit`", file.display()).into())
}
