//! The demo's outcome for people: a few plain sentences and one table that needs no manual. Must
//! never round a number that decides whether it went well.

use crate::error::Result;
use crate::output::{Column, Columns, Output, Side, commas, human_size};
use fdbroker_demo::{DemoReport, Direct, Plan};

/// Prints the sentences and the table.
pub fn print(report: &DemoReport, plan: &Plan, out: &mut Output) -> Result<()> {
    const COLUMNS: &[Column] = &[
        Column("", Side::Left),
        Column("WITH FDBROKER", Side::Right),
        Column("DIRECTLY", Side::Right),
    ];
    const COLUMNS_WITHOUT_DIRECT: &[Column] = &[COLUMNS[0], COLUMNS[1]];
    out.text(&introduction(report, plan))?;
    let direct = report.without_broker.as_ref();
    let of_direct = |get: fn(&Direct) -> u64| direct.map_or("-".into(), |d| commas(get(d)));
    let mut rows = vec![
        row("fds needed on the node", needed(report), commas(plan.opens())),
        row(
            "fds in one process, at most",
            commas(report.fds.rank_peak),
            of_direct(|d| d.rank_peak),
        ),
        row("fds in the broker, at most", commas(report.fds.broker_peak), "-".into()),
        row("fds on the node, at most", commas(report.fds.node_peak), of_direct(|d| d.node_peak)),
        row("outcome", outcome(report), direct_outcome(report)),
    ];
    let columns = if direct.is_some() { COLUMNS } else { COLUMNS_WITHOUT_DIRECT };
    rows.iter_mut().for_each(|row| row.truncate(columns.len()));
    Columns::new(columns, true).write(rows, out)?;
    out.text(&conclusion(report, plan))
}

fn introduction(report: &DemoReport, plan: &Plan) -> String {
    let limit = report.fds.cap.map_or_else(
        || "The broker has no cap.".into(),
        |cap| {
            let cap = commas(cap);
            format!(
                "With fdbroker at most {cap} fds may be open on the whole node; directly, up to {cap} in each process."
            )
        },
    );
    format!(
        "{} processes share memory: each has {} buffers of {} ({}), and opens, checks and marks every\n\
         buffer of every other: {} times in all. Counted are file descriptors (fds) of that memory.\n{limit}\n\n",
        report.ranks,
        commas(report.buffers.into()),
        human_size(report.size_bytes),
        report.memory,
        commas(plan.opens()),
    )
}

fn needed(report: &DemoReport) -> String {
    report.fds.cap.map_or_else(|| "any number".into(), |cap| format!("{} (cap)", commas(cap)))
}

fn outcome(report: &DemoReport) -> String {
    if report.is_success() {
        "complete".into()
    } else {
        format!("{} words wrong, {} failures", commas(report.mismatches), commas(report.failures))
    }
}

fn direct_outcome(report: &DemoReport) -> String {
    match report.without_broker {
        None => "-".into(),
        Some(Direct { failed_at: None, .. }) => "complete".into(),
        Some(Direct { failed_rank: Some(rank), .. }) => format!("rank {rank} out of fds"),
        Some(_) => "out of fds".into(),
    }
}

fn conclusion(report: &DemoReport, plan: &Plan) -> String {
    let mut text = format!(
        "\nWith fdbroker: verified {} bytes, {} mismatches, {} failures, in {:.1} s. Counts in /proc, taken\n\
         {} times with all processes stopped, agree with the broker's.\n",
        commas(report.verified_bytes),
        commas(report.mismatches),
        commas(report.failures),
        report.elapsed_s,
        commas(report.samples),
    );
    match report.without_broker {
        None => {}
        Some(Direct { failed_at: Some(fds), .. }) => text.push_str(&format!(
            "Directly (SCM_RIGHTS from process to process, fds kept): ended after {} of {} fds.\n",
            commas(fds),
            commas(plan.opens()),
        )),
        Some(Direct { failed_at: None, node_peak, .. }) => text.push_str(&format!(
            "Directly (SCM_RIGHTS from process to process, fds kept): complete, with {} fds.\n",
            commas(node_peak),
        )),
    }
    text
}

fn row(what: &str, with: String, without: String) -> Vec<String> {
    vec![what.into(), with, without]
}
