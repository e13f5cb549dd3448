//! The times of export, import and a grant, as medians: with no VMM fd open anywhere on the node,
//! and while the broker holds one. Must never pass or fail by a time.

use crate::Setup;
use crate::checks::lent;
use crate::node::Node;
use crate::peer::{Peer, unexpected};
use crate::report::{Outcome, Ran, Report};
use crate::wire::{Answer, Command};

/// Rounds of export and import, and rounds of a grant, for each median.
const ROUNDS: u32 = 60;
const GRANT_ROUNDS: u32 = 200;

/// Two ranks: one exports, the other takes the fd by pidfd_getfd(2) and imports it.
struct Pair {
    exporter: Peer,
    importer: Peer,
    bytes: u64,
}

#[derive(Default)]
struct Costs {
    export: Vec<f64>,
    import: Vec<f64>,
    close: Vec<f64>,
    unmap: Vec<f64>,
}

impl Pair {
    /// The exporter closes its fd before the importer imports: so the importer's is the only fd of
    /// that memory.
    fn round(&mut self, costs: &mut Costs) -> Result<(), String> {
        let Answer::Exported { fd, us } = self.exporter.ask(&Command::Export)? else {
            return Err("no export".into());
        };
        costs.export.push(us);
        self.importer.order(&Command::Take { pid: self.exporter.pid(), fd })?;
        self.exporter.ask(&Command::CloseKept)?;
        match self.importer.ask(&Command::ImportTaken { bytes: self.bytes })? {
            Answer::ImportUs { import, close, unmap } => {
                costs.import.push(import);
                costs.close.push(close);
                costs.unmap.push(unmap);
                Ok(())
            }
            other => Err(unexpected(&other)),
        }
    }

    fn rounds(&mut self) -> Result<Costs, String> {
        let mut costs = Costs::default();
        for _ in 0..ROUNDS {
            self.round(&mut costs)?;
        }
        Ok(costs)
    }
}

pub fn measure(setup: &Setup, report: &mut Report) -> Outcome {
    let bytes = setup.granule;
    let node = Node::start(&[])?;
    let mut ranks = Peer::ready(2, &node.socket(), 2)?;
    let (importer, mut exporter) = (ranks.remove(1), ranks.remove(0));
    exporter.order(&Command::PrepareCosts { bytes })?;
    let mut pair = Pair { exporter, importer, bytes };
    // The first round is not measured.
    pair.round(&mut Costs::default())?;

    let cold = pair.rounds()?;
    let held = lent(pair.exporter.ask(&Command::Make { count: 1, bytes, slots: 0, seed: 41 })?)?;
    node.until_vmm_fds(1)?;
    let warm = pair.rounds()?;
    for (how, costs) in
        [("no other VMM fd open on the node", &cold), ("the broker holds one", &warm)]
    {
        report.median(format!("export, {how}"), &costs.export);
        report.median(format!("import + map, {how}"), &costs.import);
        report.median(format!("close of the imported fd, {how}"), &costs.close);
        report.median(format!("unmap, {how}"), &costs.unmap);
    }

    let rounds = GRANT_ROUNDS;
    grants(
        report,
        "held by the broker",
        &mut pair.importer,
        &Command::GrantCosts { lent: held, rounds },
    )?;
    drop(pair);

    // The broker has room for one of two: each acquire recalls the one that it does not hold.
    let node = Node::start(&[format!("caps.node.held_bytes={bytes}")])?;
    let mut ranks = Peer::ready(2, &node.socket(), 2)?;
    let two = lent(ranks[0].ask(&Command::Make { count: 2, bytes, slots: 0, seed: 43 })?)?;
    let command = Command::GrantCosts { lent: two, rounds };
    grants(report, "evicted, recalled from its owner", &mut ranks[1], &command)?;
    Ok(Ran::Whole)
}

fn grants(
    report: &mut Report,
    how: &str,
    rank: &mut Peer,
    command: &Command,
) -> Result<(), String> {
    match rank.ask(command)? {
        Answer::GrantUs { acquire, import, release } => {
            report.median(format!("grant round trip, {how}"), &acquire);
            report.median(format!("import + map + close of that grant, {how}"), &import);
            report.median(format!("unmap and release of it, {how}"), &release);
            Ok(())
        }
        other => Err(unexpected(&other)),
    }
}
