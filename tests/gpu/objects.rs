//! Named objects in device memory: weights that outlive the process that made them, and a broker
//! that is killed. Must never look at memory in the process that made it: readers are processes in
//! PID namespaces of their own.

use crate::Setup;
use crate::checks::{checked, done};
use crate::node::{Node, Paths, until};
use crate::peer::{Peer, unexpected};
use crate::report::{Outcome, Ran, Report, ensure};
use crate::support::manager::Manager;
use crate::wire::{Answer, Command, Weights};
use nix::sys::signal::Signal;

/// Groups, each with one piece of device memory, and objects of each: 32 GiB in all on a device
/// where `large` is 1 GiB.
const GROUPS: u32 = 4;
const OBJECTS: u32 = 8;
pub const COUNT: u64 = (GROUPS * OBJECTS) as u64;

/// Times for memory to come back: 10 times what is promised, so that a hang is seen and a busy
/// machine is not.
const LAST_LEASE_MS: f64 = 10.0;
const LAST_LEASE_OF_KEPT_MS: f64 = 100.0;

/// CU_MEM_ACCESS_FLAGS_PROT_READ (cuda.h).
const PROT_READ: u64 = 1;

/// A process in a PID namespace of its own with the device open: its context takes memory, too.
fn reader() -> Result<Peer, String> {
    let mut reader = Peer::start_apart()?;
    reader.order(&Command::Open { device: 0 })?;
    Ok(reader)
}

fn connect(peer: &mut Peer, node: &dyn Paths) -> Result<(), String> {
    peer.order(&Command::Connect { socket: node.socket(), own_fds: 2 })
}

fn maker(node: &dyn Paths) -> Result<Peer, String> {
    let mut maker = Peer::start()?;
    maker.order(&Command::Open { device: 0 })?;
    connect(&mut maker, node)?;
    Ok(maker)
}

/// The versions of the weights as this reader gets them: all of them there, every byte right.
fn read(reader: &mut Peer, weights: &Weights, bytes: u64) -> Result<Vec<u64>, String> {
    match reader.ask(&Command::GetObjects { weights: weights.clone() })? {
        Answer::Got { bytes: got, wrong_words: 0, versions } => {
            ensure(got == bytes, || format!("{got} bytes, not {bytes}"))?;
            Ok(versions)
        }
        other => Err(unexpected(&other)),
    }
}

fn is_read_only(reader: &mut Peer) -> Result<(), String> {
    match reader.ask(&Command::Access)? {
        Answer::Access { flags } => ensure(flags.is_none_or(|flags| flags == PROT_READ), || {
            format!("access {flags:?}, not read alone")
        }),
        other => Err(unexpected(&other)),
    }
}

/// The weights of a process that has ended, over the death of the broker.
pub fn kept(setup: &Setup, report: &mut Report) -> Outcome {
    if !nix::unistd::geteuid().is_root() {
        return Ok(Ran::NotHere("needs root for PID namespaces".into()));
    }
    let weights = Weights { groups: GROUPS, objects: OBJECTS, bytes: setup.large, seed: 17 };
    let bytes = COUNT * setup.large;
    let mut node = Manager::new(&["--log", "warn"]);
    // Where a stand-in is the driver, the daemon is to know its fds.
    for name in ["LD_LIBRARY_PATH", "LD_PRELOAD", "FDBROKER_CUDA_STUB_DIR"] {
        if let Ok(value) = std::env::var(name) {
            node.set(name, &value);
        }
    }
    node.start(&[]);
    let (mut first, mut second) = (reader()?, reader()?);
    let before = setup.settled()?;

    let mut maker = maker(&node)?;
    done(&maker.ask(&Command::PutObjects { weights: weights.clone(), keep: true })?)?;
    drop(maker);
    setup.until_taken(before, bytes, "put by a process that has ended")?;

    connect(&mut first, &node)?;
    let versions = read(&mut first, &weights, bytes)?;
    setup.until_taken(before, bytes, "opened by one reader, without a copy")?;
    is_read_only(&mut first)?;

    node.end(Signal::SIGKILL);
    let again = checked(&first.ask(&Command::RecheckObjects)?)?;
    ensure(again == bytes, || format!("{again} bytes checked while there is no broker"))?;
    node.start(&[]);

    connect(&mut second, &node)?;
    let after = read(&mut second, &weights, bytes)?;
    ensure(after == versions, || {
        format!("versions {after:?} after the kill, {versions:?} before")
    })?;
    setup.until_taken(before, bytes, "opened by two readers, without a copy")?;
    is_read_only(&mut second)?;

    done(&second.ask(&Command::DeleteObjects { weights })?)?;
    done(&first.ask(&Command::DropObjects)?)?;
    setup.until_taken(before, bytes, "deleted, and one reader has it still")?;
    let again = checked(&second.ask(&Command::RecheckObjects)?)?;
    ensure(again == bytes, || format!("{again} bytes checked of deleted objects"))?;
    second.tell(&Command::DropObjects)?;
    done(&second.hear()?)?;
    let ms = setup.until_taken(before, 0, "no reader left")?;
    ensure(ms <= LAST_LEASE_OF_KEPT_MS, || format!("kept memory came back after {ms:.1} ms"))?;
    report.figure(
        "bytes put by one process, got by two in PID namespaces of their own",
        bytes as f64,
        "B",
    );
    report.figure("deleted, given back after the last of two readers, within", ms.ceil(), "ms");
    Ok(Ran::Whole)
}

/// An object that is not kept: its memory comes back with the last lease, and with its maker.
pub fn not_kept(setup: &Setup, report: &mut Report) -> Outcome {
    if !nix::unistd::geteuid().is_root() {
        return Ok(Ran::NotHere("needs root for PID namespaces".into()));
    }
    let weights = Weights { groups: 1, objects: 2, bytes: setup.large, seed: 18 };
    let bytes = 2 * setup.large;
    let node = Node::start(&[])?;
    let mut reader = reader()?;
    connect(&mut reader, &node)?;
    let without_maker = setup.settled()?;
    let mut maker = maker(&node)?;
    let before = setup.settled()?;
    done(&maker.ask(&Command::PutObjects { weights: weights.clone(), keep: false })?)?;
    read(&mut reader, &weights, bytes)?;
    done(&maker.ask(&Command::DeleteObjects { weights: weights.clone() })?)?;
    setup.until_taken(before, bytes, "deleted, and a reader has it")?;
    reader.tell(&Command::DropObjects)?;
    done(&reader.hear()?)?;
    let ms = setup.until_taken(before, 0, "no reader left")?;
    ensure(ms <= LAST_LEASE_MS, || format!("memory came back after {ms:.1} ms"))?;
    report.figure(
        "an object that is not kept: given back after its last reader, within",
        ms.ceil(),
        "ms",
    );

    done(&maker.ask(&Command::PutObjects { weights, keep: false })?)?;
    setup.until_taken(before, bytes, "made again")?;
    maker.kill();
    let ms = setup.until_taken(without_maker, 0, "the maker was killed")?;
    report.figure("... after its maker was killed, within", ms.ceil(), "ms");
    until("no object is left", || {
        let names = node.count("/object_names/now")?;
        Ok((names == 0).then_some(()).ok_or(names))
    })?;
    Ok(Ran::Whole)
}
