//! The checks: each starts its own broker and ranks, and ends them. Must never depend on another
//! check.

use crate::Setup;
use crate::node::{Node, until, until_each};
use crate::peer::{Peer, ask_all, unexpected};
use crate::report::{Outcome, Ran, Report, ensure};
use crate::wire::{Answer, Command, Lent};
use nix::sys::resource::{Resource, getrlimit};
use serde_json::Value;
use std::time::{Duration, Instant};

const RANKS: usize = 8;
const BUFFERS: u32 = 32;

/// Free memory stands still after so many equal readings, so far apart.
const SETTLED_READINGS: usize = 4;
/// Between two looks for memory that is to come back within a millisecond.
const FREE_INTERVAL: Duration = Duration::from_micros(200);
const SETTLE_INTERVAL: Duration = Duration::from_millis(50);

/// Most fds that the driver may open by itself when a process first imports memory of another one,
/// however many imports follow.
const LAZY_FDS: u64 = 4;

/// The noise: memory that other processes' contexts and the driver may take or give back meanwhile,
/// as a share of the measured size.
const NOISE_SHARE: u64 = 16;

pub fn lent(answer: Answer) -> Result<Vec<Lent>, String> {
    match answer {
        Answer::Made { lent } => Ok(lent),
        other => Err(unexpected(&other)),
    }
}

/// Bytes checked, all of them right.
pub fn checked(answer: &Answer) -> Result<u64, String> {
    match answer {
        Answer::Checked { bytes, wrong_words: 0 } => Ok(*bytes),
        Answer::Checked { bytes, wrong_words } => {
            Err(format!("{wrong_words} words of {bytes} bytes are wrong"))
        }
        other => Err(unexpected(other)),
    }
}

/// Nothing failed.
pub fn done(answer: &Answer) -> Result<(), String> {
    match answer {
        Answer::Done => Ok(()),
        other => Err(unexpected(other)),
    }
}

fn fds(peers: &mut [Peer]) -> Result<Vec<(u64, u64)>, String> {
    let pair = |answer| match answer {
        Answer::Fds { all, vmm } => Ok((all, vmm)),
        other => Err(unexpected(&other)),
    };
    ask_all(peers, |_| Command::CountFds)?.into_iter().map(pair).collect()
}

fn code(peer: &mut Peer, lent: &Lent) -> Result<String, String> {
    match peer.ask(&Command::Try { lent: lent.clone() })? {
        Answer::Code { name } => Ok(name),
        other => Err(unexpected(&other)),
    }
}

pub fn make(count: u32, bytes: u64, slots: u32, seed: u64) -> Command {
    Command::Make { count, bytes, slots, seed }
}

fn import(lent: &[Lent]) -> Command {
    Command::Import { lent: lent.to_vec(), slots: 0, reader: 0 }
}

impl Setup {
    fn free(&self) -> Result<u64, String> {
        self.device.memory_info().map(|info| info.free_bytes).map_err(|error| error.to_string())
    }

    /// The free memory once it stands still: the driver may still be freeing memory of a process
    /// that has ended.
    pub fn settled(&self) -> Result<u64, String> {
        let mut readings: Vec<u64> = Vec::new();
        until("free device memory stands still", || {
            std::thread::sleep(SETTLE_INTERVAL);
            readings.push(self.free()?);
            let last = readings.iter().rev().take(SETTLED_READINGS);
            let stands = last.clone().count() == SETTLED_READINGS
                && last.clone().all(|free| Some(free) == readings.last());
            let free = readings.last().copied().unwrap_or(0);
            Ok(if stands { Ok(free) } else { Err(free) })
        })
    }

    /// Waits until `less` bytes fewer than `before` are free, give or take the noise. Returns how
    /// long it took, in ms.
    pub fn until_taken(&self, before: u64, less: u64, what: &str) -> Result<f64, String> {
        let (start, noise) = (Instant::now(), (self.large / NOISE_SHARE).max(self.granule));
        let what = format!("{what}: {less} bytes less are free than {before}");
        until_each(FREE_INTERVAL, &what, || {
            let free = self.free()?;
            let right = (free + less).abs_diff(before) <= noise;
            Ok(right.then(|| start.elapsed().as_secs_f64() * 1000.0).ok_or(free))
        })
    }
}

pub fn all_to_all(setup: &Setup, report: &mut Report) -> Outcome {
    let (_, limit) = getrlimit(Resource::RLIMIT_NOFILE).map_err(|errno| errno.to_string())?;
    if limit < 2048 {
        return Ok(Ran::NotHere(format!("needs a hard limit of 2048 fds; it is {limit}")));
    }
    let node = Node::start(&[])?;
    let bytes = 2 * setup.granule;
    let mut ranks = Peer::ready(RANKS, &node.socket(), 2)?;
    let before = fds(&mut ranks)?;
    let slots = RANKS as u32;
    let made = ask_all(&mut ranks, |rank| make(BUFFERS, bytes, slots, 7 + rank as u64))?;
    let made = made.into_iter().map(lent).collect::<Result<Vec<_>, _>>()?;
    let others = |rank: usize| {
        let order = (1..RANKS).map(|step| (rank + step) % RANKS);
        order.flat_map(|owner| made[owner].iter().cloned()).collect::<Vec<_>>()
    };
    let start = Instant::now();
    let answers = ask_all(&mut ranks, |rank| {
        let (lent, reader) = (others(rank), u32::try_from(rank).expect("few"));
        Command::Import { lent, slots, reader }
    })?;
    let seconds = start.elapsed().as_secs_f64();
    let total = answers.iter().map(checked).sum::<Result<u64, _>>()?;
    let opens = (RANKS * (RANKS - 1)) as u64 * u64::from(BUFFERS);
    ensure(total == opens * bytes, || format!("{total} bytes checked, not {}", opens * bytes))?;

    // All is mapped now.
    let after = fds(&mut ranks)?;
    let in_broker = node.vmm_fds()?;
    let allocations = (RANKS as u64) * u64::from(BUFFERS);
    let more = before.iter().zip(&after).map(|(before, after)| after.0.saturating_sub(before.0));
    let more = more.max().unwrap_or(0);
    let with_context = after.iter().map(|after| after.0).max().unwrap_or(0);
    let vmm = after.iter().map(|after| after.1).max().unwrap_or(0);
    report.figure("processes", RANKS as f64, "");
    report.figure("buffers of each process", f64::from(BUFFERS), "");
    report.figure("imports mapped, all processes", opens as f64, "");
    report.figure("bytes checked all to all", total as f64, "B");
    report.figure(
        "time for it, copying to the host included",
        (seconds * 10.0).round() / 10.0,
        "s",
    );
    report.figure("fds of one process, all mapped: CUDA's own included", with_context as f64, "");
    report.figure("fds of /dev/nvidiactl among them", vmm as f64, "");
    report.figure("fds more than before it shared anything", more as f64, "");
    report.figure("VMM fds in the broker", in_broker as f64, "");
    ensure(more <= LAZY_FDS, || {
        format!("{more} fds more in a process than before: {before:?} {after:?}")
    })?;
    ensure(in_broker == allocations, || format!("{in_broker} VMM fds in the broker"))?;
    let mapped = node.count("/mapped_leases/now")?;
    ensure(mapped == opens, || format!("{mapped} mapped leases, not {opens}"))?;

    let marks =
        |rank: usize| Command::CheckMarks { slots, owner: u32::try_from(rank).expect("few") };
    let own = ask_all(&mut ranks, marks)?.iter().map(checked).sum::<Result<u64, _>>()?;
    ensure(own == allocations * bytes, || format!("{own} bytes of own buffers"))?;
    ask_all(&mut ranks, |_| Command::Release)?;
    ask_all(&mut ranks, |_| Command::DropBuffers)?;
    node.until_count("/mapped_leases/now", 0)?;
    node.until_count("/stored_fds", 0)?;
    node.until_vmm_fds(0)?;
    Ok(Ran::Whole)
}

pub fn killed_owner(setup: &Setup, report: &mut Report) -> Outcome {
    let node = Node::start(&[])?;
    let large = setup.large;
    let mut consumer = Peer::ready(1, &node.socket(), 2)?.remove(0);
    let before = setup.settled()?;
    let mut owner = Peer::ready(1, &node.socket(), 2)?.remove(0);
    let lent = lent(owner.ask(&make(1, large, 0, 11))?)?;
    ensure(checked(&consumer.ask(&import(&lent))?)? == large, || "not all was checked".into())?;
    node.until_count("/mapped_leases/now", 1)?;

    owner.kill();
    // The broker's fd is closed at once. From now on only the consumer's mapping pins the memory.
    node.until_count("/pinned_bytes/now", large)?;
    node.until_count("/closing_fds", 0)?;
    node.until_vmm_fds(0)?;
    setup.until_taken(before, large, "owner killed, consumer has it mapped")?;
    let again = consumer.ask(&Command::Recheck { lent: lent.clone(), slots: 0 })?;
    ensure(checked(&again)? == large, || "not all was checked again".into())?;
    let gone = code(&mut consumer, &lent[0])?;
    ensure(["STALE", "OWNER_GONE"].contains(&gone.as_str()), || format!("acquire: {gone}"))?;

    consumer.order(&Command::Release)?;
    let ms = setup.until_taken(before, 0, "last lease released after the owner's death")?;
    node.until_count("/pinned_bytes/now", 0)?;
    report.figure("bytes that stay while a consumer has a dead owner's memory", large as f64, "B");
    report.figure("given back after the last release, within", ms.ceil(), "ms");
    Ok(Ran::Whole)
}

pub fn killed_owner_unshared(setup: &Setup, report: &mut Report) -> Outcome {
    let node = Node::start(&[])?;
    let large = setup.large;
    let before = setup.settled()?;
    let mut owner = Peer::ready(1, &node.socket(), 2)?.remove(0);
    lent(owner.ask(&make(1, large, 0, 12))?)?;
    ensure(node.count("/held_bytes/now")? == large, || "the broker does not hold it".into())?;
    let free = setup.free()?;
    ensure(free + large <= before, || format!("{free} bytes are free after the allocation"))?;
    owner.kill();
    let ms = setup.until_taken(before, 0, "owner killed, nobody has it")?;
    node.until_count("/stored_fds", 0)?;
    report.figure("bytes of a killed owner that only the broker held", large as f64, "B");
    report.figure("given back after its death, within", ms.ceil(), "ms");
    Ok(Ran::Whole)
}

pub fn last_lease(setup: &Setup, report: &mut Report) -> Outcome {
    let node = Node::start(&[])?;
    let large = setup.large;
    let mut ranks = Peer::ready(3, &node.socket(), 2)?;
    let before = setup.settled()?;
    let lent = lent(ranks[0].ask(&make(1, large, 0, 13))?)?;
    setup.until_taken(before, large, "allocated")?;
    for consumer in &mut ranks[1..] {
        ensure(checked(&consumer.ask(&import(&lent))?)? == large, || "not all".into())?;
    }
    setup.until_taken(before, large, "imported twice: the same memory")?;
    ranks[0].order(&Command::DropBuffers)?;
    // Each holder is charged with all of it; the node counts it once.
    node.until_count("/pinned_bytes/now", large)?;
    node.until_count("/stored_fds", 0)?;
    setup.until_taken(before, large, "freed by its owner, two leases left")?;
    ranks[1].order(&Command::Release)?;
    node.until_count("/mapped_leases/now", 1)?;
    setup.until_taken(before, large, "one lease left")?;
    let again = ranks[2].ask(&Command::Recheck { lent: lent.clone(), slots: 0 })?;
    ensure(checked(&again)? == large, || "not all was checked again".into())?;
    let stale = code(&mut ranks[1], &lent[0])?;
    ensure(stale == "STALE", || format!("acquire of freed memory: {stale}"))?;
    ranks[2].order(&Command::Release)?;
    let ms = setup.until_taken(before, 0, "no lease left")?;
    node.until_count("/pinned_bytes/now", 0)?;
    report.figure(
        "bytes that stay until the last of two leases of freed memory",
        large as f64,
        "B",
    );
    report.figure("given back after the last release, within", ms.ceil(), "ms");
    Ok(Ran::Whole)
}

pub fn byte_cap(setup: &Setup, report: &mut Report) -> Outcome {
    let bytes = (setup.large / 16).next_multiple_of(setup.granule);
    let cap = 4 * bytes;
    let node = Node::start(&[format!("caps.node.held_bytes={cap}")])?;
    let mut ranks = Peer::ready(2, &node.socket(), 2)?;
    let lent = lent(ranks[0].ask(&make(16, bytes, 0, 17))?)?;
    let evicted = node.count("/evictions")?;
    ensure(evicted >= 12, || format!("{evicted} evictions with room for 4 of 16"))?;
    for _ in 0..2 {
        let total = checked(&ranks[1].ask(&import(&lent))?)?;
        ensure(total == 16 * bytes, || format!("{total} bytes checked"))?;
        ranks[1].order(&Command::Release)?;
    }
    let (peak, recalls) = (node.count("/held_bytes/peak")?, node.count("/recalls")?);
    ensure(peak <= cap, || format!("{peak} bytes held, the cap is {cap}"))?;
    ensure(recalls >= 12, || format!("{recalls} recalls"))?;
    report.figure("held_bytes cap for 16 buffers of a quarter of it each", cap as f64, "B");
    report.figure("most held", peak as f64, "B");
    report.figure("evictions", node.count("/evictions")? as f64, "");
    report.figure("recalls, every byte right after each", recalls as f64, "");
    Ok(Ran::Whole)
}

pub fn two_exports(setup: &Setup) -> Outcome {
    let node = Node::start(&[])?;
    let mut rank = Peer::ready(1, &node.socket(), 2)?.remove(0);
    match rank.ask(&Command::RegisterTwice { bytes: setup.granule })? {
        Answer::Twice { same_allocation: true } => {}
        Answer::Twice { .. } => return Err("two allocations".into()),
        other => return Err(unexpected(&other)),
    }
    node.until_count("/stored_fds", 1)?;
    let allocations = node.count("/allocations/now")?;
    ensure(allocations == 1, || format!("{allocations} allocations"))?;
    node.until_vmm_fds(1)?;
    Ok(Ran::Whole)
}

pub fn same_address(setup: &Setup) -> Outcome {
    let node = Node::start(&[])?;
    let mut ranks = Peer::ready(2, &node.socket(), 2)?;
    let mut reuse = |seed| match ranks[0].ask(&Command::Reuse { bytes: setup.granule, seed })? {
        Answer::Reused { lent, at_same_address } => Ok((lent, at_same_address)),
        other => Err(unexpected(&other)),
    };
    let (old, _) = reuse(1)?;
    let (new, same) = reuse(2)?;
    ensure(same, || "the driver did not give the same address again".into())?;
    let stale = code(&mut ranks[1], &old)?;
    ensure(stale == "STALE", || format!("acquire of the old handle: {stale}"))?;
    let total = checked(&ranks[1].ask(&import(&[new]))?)?;
    ensure(total == setup.granule, || format!("{total} bytes checked"))?;
    let allocations = node.count("/allocations/now")?;
    ensure(allocations == 1, || format!("{allocations} allocations"))?;
    Ok(Ran::Whole)
}

pub fn under_256(setup: &Setup, report: &mut Report) -> Outcome {
    const COUNT: u32 = 2000;
    const LIMIT: u64 = 256;
    let node = Node::start(&[format!("caps.node.fds={LIMIT}")])?;
    let mut ranks = vec![Peer::start()?, Peer::start()?];
    ask_all(&mut ranks, |_| Command::Limit { fds: LIMIT })?;
    ask_all(&mut ranks, |_| Command::Open { device: 0 })?;
    let socket = node.socket();
    ask_all(&mut ranks, |_| Command::Connect { socket: socket.clone(), own_fds: 4 })?;
    let start = Instant::now();
    let lent = lent(ranks[0].ask(&make(COUNT, setup.granule, 0, 23))?)?;
    let total = checked(&ranks[1].ask(&import(&lent))?)?;
    let seconds = start.elapsed().as_secs_f64();
    ensure(total == u64::from(COUNT) * setup.granule, || format!("{total} bytes checked"))?;
    let mapped = node.count("/mapped_leases/now")?;
    ensure(mapped == u64::from(COUNT), || format!("{mapped} mapped leases"))?;
    let peak = node.count("/fds/peak")?;
    ensure(peak <= LIMIT, || format!("{peak} fds on the node"))?;
    let fds = fds(&mut ranks)?;
    report.figure(
        "allocations registered, imported and mapped under RLIMIT_NOFILE 256",
        f64::from(COUNT),
        "",
    );
    report.figure("fds of shared memory on the node, at most (cap 256)", peak as f64, "");
    report.figure("fds of the owner at the end, CUDA's own included", fds[0].0 as f64, "");
    report.figure("fds of the consumer at the end, CUDA's own included", fds[1].0 as f64, "");
    report.figure("evictions", node.count("/evictions")? as f64, "");
    report.figure("time, every byte written and checked", (seconds * 10.0).round() / 10.0, "s");
    Ok(Ran::Whole)
}

pub fn full_table(setup: &Setup) -> Outcome {
    let node = Node::start(&[])?;
    let mut owner = Peer::ready(1, &node.socket(), 2)?.remove(0);
    let lent = lent(owner.ask(&make(1, setup.granule, 0, 29))?)?.remove(0);
    let mut rank = Peer::start()?;
    rank.order(&Command::Limit { fds: 512 })?;
    rank.order(&Command::Open { device: 0 })?;
    rank.order(&Command::Connect { socket: node.socket(), own_fds: 2 })?;
    match rank.ask(&Command::FillTable { lent })? {
        Answer::Full { export, import, export_after, wrong_words } => {
            ensure(export == "LOCAL_FD_LIMIT", || format!("export: {export}"))?;
            // An import needs no fd on some drivers.
            let right = ["LOCAL_FD_LIMIT", "OK"].contains(&import.as_str());
            ensure(right, || format!("import: {import}"))?;
            ensure(export_after == "OK", || format!("export after: {export_after}"))?;
            ensure(wrong_words == 0, || format!("{wrong_words} words read wrong after it"))?;
            Ok(Ran::Whole)
        }
        other => Err(unexpected(&other)),
    }
}

pub fn dma_bufs(setup: &Setup, report: &mut Report) -> Outcome {
    if !setup.device.exports_dma_bufs() {
        return Ok(Ran::NotHere("the device exports none".into()));
    }
    let node = Node::start(&[])?;
    let mut ranks = Peer::ready(2, &node.socket(), 2)?;
    let lent = lent(ranks[0].ask(&Command::DmaBufs { bytes: setup.granule })?)?;
    ensure(lent.len() == 2, || "not both were registered".into())?;
    for lent in &lent {
        match ranks[1].ask(&Command::Look { lent: lent.clone() })? {
            Answer::Looked { exporter, bytes } => {
                ensure(exporter != "none", || "no dma-buf".into())?;
                ensure(bytes == setup.granule, || format!("{bytes} bytes"))?;
            }
            other => return Err(unexpected(&other)),
        }
    }
    report.figure("dma-bufs of device memory held by the broker", 2.0, "");
    Ok(Ran::Whole)
}

pub fn one_list(setup: &Setup) -> Outcome {
    let node = Node::start(&[])?;
    let mut rank = Peer::ready(1, &node.socket(), 2)?.remove(0);
    rank.order(&Command::Host)?;
    lent(rank.ask(&make(1, setup.granule, 0, 31))?)?;
    let list = node.ls()?;
    let rows = list["allocations"].as_array().map(Vec::as_slice).unwrap_or_default();
    let mut kinds: Vec<&str> = rows.iter().filter_map(|row| row["kind"].as_str()).collect();
    kinds.sort_unstable();
    ensure(kinds == ["cuda-vmm", "memfd"], || format!("`fdbroker ls` shows {kinds:?}"))?;
    let held = |row: &Value| row["state"].as_str() == Some("held");
    ensure(rows.iter().all(held), || format!("not all held: {list}"))?;
    Ok(Ran::Whole)
}

/// All CUDA fds have the inode of their device: only kcmp(2) tells the fds of one allocation from
/// those of another.
pub fn audit(setup: &Setup) -> Outcome {
    if !std::path::Path::new("/dev/nvidiactl").exists() {
        return Ok(Ran::NotHere("no /dev/nvidiactl, so no fd that audit takes for CUDA's".into()));
    }
    let node = Node::start(&[])?;
    let mut ranks = Peer::ready(2, &node.socket(), 2)?;
    let mut stranger = Peer::start()?;
    let lent = lent(ranks[0].ask(&make(4, setup.granule, 0, 41))?)?;
    let ids = lent.iter().map(|lent| lent.handle().map(|handle| handle.id().to_string()));
    let ids = ids.collect::<Result<Vec<_>, _>>()?;
    let fds = match ranks[1].ask(&Command::Hold { lent })? {
        Answer::Held { fds } => fds,
        other => return Err(unexpected(&other)),
    };
    let holder = ranks[1].pid();
    let expect = |what: &str, expected: &[(&str, i32, &str)]| {
        let expected: Vec<_> = expected
            .iter()
            .map(|(kind, pid, id)| ((*kind).to_owned(), i64::from(*pid), (*id).to_owned()))
            .collect();
        let found = node.audit()?;
        ensure(found == expected, || format!("{what}: audit finds {found:?}, not {expected:?}"))
    };
    expect("four fds with four leases", &[])?;
    ranks[1].order(&Command::Take { pid: holder, fd: fds[2] })?;
    let leak = ("leak", holder, ids[2].as_str());
    expect("a second fd of the third", &[leak])?;
    stranger.order(&Command::Take { pid: holder, fd: fds[1] })?;
    expect("an fd of the second in a stranger", &[leak, ("stray", stranger.pid(), &ids[1])])?;
    // Without an fd of its own the broker cannot tell which allocation an fd is; the others it can.
    node.evict(&ids[1])?;
    node.until_vmm_fds(3)?;
    expect("the second evicted", &[leak])?;
    ranks[1].ask(&Command::CloseKept)?;
    expect("the second fd of the third closed", &[])?;
    Ok(Ran::Whole)
}

pub fn cache(setup: &Setup, report: &mut Report) -> Outcome {
    let node = Node::start(&[])?;
    let mut ranks = Peer::ready(2, &node.socket(), 2)?;
    let lent = lent(ranks[0].ask(&make(1, setup.granule, 0, 37))?)?.remove(0);
    match ranks[1].ask(&Command::Cache { lent, rounds: 10 })? {
        Answer::Cached { hits: 0, .. } => {
            Ok(Ran::NotHere("this library's cache keeps nothing".into()))
        }
        Answer::Cached { same_pointer, bytes, misses, hits, hit_ns } => {
            ensure(same_pointer && bytes == setup.granule, || "another mapping each time".into())?;
            ensure((misses, hits) == (1, 9), || format!("{misses} misses, {hits} hits"))?;
            report.figure("cached import of device memory: hit and release", hit_ns.round(), "ns");
            Ok(Ran::Whole)
        }
        other => Err(unexpected(&other)),
    }
}
