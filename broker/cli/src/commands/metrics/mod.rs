//! `fdbroker metrics`: the broker's numbers as OpenMetrics text, once or for a scraper. Must never have more than a
//! bounded number of series, whatever the number of users and jobs.

mod args;
mod gather;
mod listen;
mod render;
mod serve;

pub use args::Args;

use crate::admin::Admin;
use crate::error::Result;
use crate::output::Output;

/// Prints the metrics, or serves them until a signal ends it.
pub fn run(args: Args) -> Result<()> {
    match args.listen {
        None => print(),
        Some(listen) => serve::run(&listen),
    }
}

fn print() -> Result<()> {
    let page = render::page(Some(gather::gather(Admin::from_env()?)?));
    let mut out = Output::stdout();
    out.text(&page)?;
    out.finish()
}
