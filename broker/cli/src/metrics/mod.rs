//! `fdbroker metrics`: the broker's numbers as OpenMetrics text, once or for a scraper. Must never give more series than
//! a bounded number, however many users and jobs there are.

mod gather;
pub mod listen;
mod page;
mod render;
mod serve;

use crate::admin::Admin;
use crate::error::Result;
use crate::output::Output;
use listen::Listen;

/// Prints the metrics of the broker that the environment names.
pub fn print() -> Result<()> {
    let page = render::page(Some(&gather::gather(Admin::from_env()?)?));
    let mut out = Output::stdout();
    out.text(&page)?;
    out.finish()
}

/// Serves them until a signal ends it.
pub fn serve(listen: &Listen) -> Result<()> {
    serve::run(listen)
}
