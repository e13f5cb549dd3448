//! The checks that need several devices in one machine: memory of one is opened on another, or
//! cannot be. Must never call a device's own memory another's.

use crate::Setup;
use crate::checks::{checked, done, lent, make};
use crate::node::Node;
use crate::peer::{Peer, ask_all, unexpected};
use crate::report::{Outcome, Ran, Report, ensure};
use crate::wire::{Answer, Command, Lent, Weights};
use fdbroker_client::cuda::Device;

/// More devices than a node has show nothing more.
const DEVICES: u32 = 8;
const BUFFERS: u32 = 8;

/// A rank on each device, connected to the node's broker.
fn ranks(node: &Node) -> Result<Vec<Peer>, String> {
    let count = Device::count().map_err(|error| error.to_string())?.min(DEVICES);
    ensure(count > 1, || "there is one device".into())?;
    let mut ranks = (0..count).map(|_| Peer::start()).collect::<Result<Vec<_>, _>>()?;
    ask_all(&mut ranks, |device| Command::Open { device: index(device) })?;
    ask_all(&mut ranks, |_| Command::Connect { socket: node.socket(), own_fds: 2 })?;
    Ok(ranks)
}

fn index(rank: usize) -> u32 {
    u32::try_from(rank).expect("few")
}

/// Each rank makes buffers on its device; `made[rank]` are their handles.
fn made(ranks: &mut [Peer], setup: &Setup, slots: u32) -> Result<Vec<Vec<Lent>>, String> {
    let answers =
        ask_all(ranks, |rank| make(BUFFERS, setup.granule, slots, 31 + u64::from(index(rank))))?;
    answers.into_iter().map(lent).collect()
}

fn nothing_is_left(mut ranks: Vec<Peer>, node: &Node) -> Outcome {
    ask_all(&mut ranks, |_| Command::Release)?;
    ask_all(&mut ranks, |_| Command::DropBuffers)?;
    for count in ["/mapped_leases/now", "/open_leases/now", "/stored_fds"] {
        node.until_count(count, 0)?;
    }
    Ok(Ran::Whole)
}

/// Each device opens the memory of each other one by handle; the owner finds all marks.
pub fn reached(setup: &Setup, report: &mut Report) -> Outcome {
    let node = Node::start(&[])?;
    let mut ranks = ranks(&node)?;
    let slots = index(ranks.len());
    let made = made(&mut ranks, setup, slots)?;
    let answers = ask_all(&mut ranks, |reader| {
        let others = made.iter().enumerate().filter(|(owner, _)| *owner != reader);
        let lent = others.flat_map(|(_, lent)| lent.iter().cloned()).collect();
        Command::Import { lent, slots, reader: index(reader) }
    })?;
    let opened = answers.iter().map(checked).sum::<Result<u64, _>>()?;
    let each = u64::from(BUFFERS) * setup.granule;
    let pairs = u64::from(slots) * u64::from(slots - 1);
    ensure(opened == pairs * each, || format!("{opened} bytes checked"))?;
    let answers = ask_all(&mut ranks, |owner| Command::CheckMarks { slots, owner: index(owner) })?;
    let own = answers.iter().map(checked).sum::<Result<u64, _>>()?;
    ensure(own == u64::from(slots) * each, || format!("{own} bytes of own buffers"))?;
    report.figure("devices", f64::from(slots), "");
    report.figure("bytes of other devices, checked", opened as f64, "B");
    nothing_is_left(ranks, &node)
}

/// Where devices have no way to each other's memory, an import says so, gives its lease back, and
/// disturbs nobody.
pub fn out_of_reach(setup: &Setup) -> Outcome {
    let node = Node::start(&[])?;
    let mut ranks = ranks(&node)?;
    let made = made(&mut ranks, setup, 0)?;
    for (reader, rank) in ranks.iter_mut().enumerate() {
        for (owner, lent) in made.iter().enumerate() {
            let code = match rank.ask(&Command::TryImport { lent: lent[0].clone() })? {
                Answer::Code { name } => name,
                other => return Err(unexpected(&other)),
            };
            let right = if reader == owner { "OK" } else { "NOT_SUPPORTED" };
            ensure(code == right, || format!("device {reader} of {owner}'s memory: {code}"))?;
        }
    }
    nothing_is_left(ranks, &node)
}

/// Objects put by the rank of one device are got by name on each other device: every byte right,
/// or, where the devices have no way to each other's memory, NOT_SUPPORTED.
pub fn objects(setup: &Setup, report: &mut Report, is_reached: bool) -> Outcome {
    let node = Node::start(&[])?;
    let mut ranks = ranks(&node)?;
    let mut got_bytes = 0;
    for owner in 0..ranks.len() {
        let weights = Weights {
            groups: 2,
            objects: 2,
            bytes: setup.granule,
            seed: 31 + u64::from(index(owner)),
        };
        done(&ranks[owner].ask(&Command::PutObjects { weights: weights.clone(), keep: false })?)?;
        for reader in (0..ranks.len()).filter(|reader| *reader != owner) {
            match ranks[reader].ask(&Command::GetObjects { weights: weights.clone() }) {
                Ok(Answer::Got { bytes, wrong_words: 0, .. }) if is_reached => got_bytes += bytes,
                Err(why) if !is_reached && why.contains("NOT_SUPPORTED") => {}
                Ok(other) => {
                    return Err(format!(
                        "device {reader}, device {owner}'s: {}",
                        unexpected(&other)
                    ));
                }
                Err(why) => return Err(why),
            }
            done(&ranks[reader].ask(&Command::DropObjects)?)?;
        }
        done(&ranks[owner].ask(&Command::DeleteObjects { weights })?)?;
    }
    if is_reached {
        report.figure("bytes of other devices' objects, checked", got_bytes as f64, "B");
    }
    nothing_is_left(ranks, &node)
}
