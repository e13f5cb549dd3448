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
        (Some(listen), _) => serve::run(&listen),
        (None, Some(dir)) => write(&dir),
        (None, None) => print(),
    }
}

fn gather() -> Result<Gathered> {
    gather::gather(viewing::connect()?)
}

fn print() -> Result<()> {
    let page = render::page(Some(gather()?));
    let mut out = Output::stdout();
    out.text(&page)?;
    out.finish()
}

/// The file is written also where no broker answers: an old one would say that all is well.
fn write(dir: &Path) -> Result<()> {
    let (page, outcome) = match gather() {
        Ok(gathered) => (render::page(Some(gathered)), Ok(())),
        Err(error) => (render::page(None), Err(error)),
    };
    textfile::write(dir, &page)?;
    outcome
}
