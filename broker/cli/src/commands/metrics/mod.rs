//! `fdbroker metrics`: the broker's numbers as OpenMetrics text, once or for a scraper, and as a
//! file for node_exporter. Must never have more than a bounded number of series, whatever the
//! number of users and jobs.

mod args;
mod gather;
mod listen;
mod render;
mod serve;
mod textfile;

pub use args::Args;

use crate::admin::viewing;
use crate::error::Result;
use crate::output::Output;
use gather::Gathered;
use std::path::Path;

/// Prints the metrics, writes them into a file, or serves them until a signal ends it.
pub fn run(args: Args) -> Result<()> {
    match (args.listen, args.textfile) {
        (Some(listen), _) => serve::run(&listen, !args.without_jobs),
        (None, Some(dir)) => write(&dir, !args.without_jobs),
        (None, None) => print(!args.without_jobs),
    }
}

fn gather(with_jobs: bool) -> Result<Gathered> {
    gather::gather(viewing::connect()?, with_jobs)
}

fn print(with_jobs: bool) -> Result<()> {
    let page = render::page(Some(gather(with_jobs)?));
    let mut out = Output::stdout();
    out.text(&page)?;
    out.finish()
}

/// The file is written also where no broker answers: an old one would say that all is well.
fn write(dir: &Path, with_jobs: bool) -> Result<()> {
    let (page, outcome) = match gather(with_jobs) {
        Ok(gathered) => (render::page(Some(gathered)), Ok(())),
        Err(error) => (render::page(None), Err(error)),
    };
    textfile::write(dir, textfile::METRICS, &page)?;
    outcome
}

/// The file of an audit, with each kind of finding.
pub fn write_audit(dir: &Path, is_complete: bool, counts: Vec<(&'static str, u64)>) -> Result<()> {
    textfile::write(dir, textfile::AUDIT, &render::audit(is_complete, counts))
}
