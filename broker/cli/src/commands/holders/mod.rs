//! `fdbroker holders`: lists leases. Must never print an empty list for a subject that does not
//! exist.

mod args;

pub use args::Args;

use crate::admin::{Selection, viewing};
use crate::error::Result;
use crate::records::leases::COLUMNS;
use crate::table::List;

/// Prints the leases of a subject, or all leases.
pub fn run(args: Args) -> Result<()> {
    let Some(list) = List::new("holders", COLUMNS, &args.list)? else { return Ok(()) };
    let mut admin = viewing::connect()?;
    let selection = match args.subject {
        None => Selection::ALL,
        Some(subject) => subject.known(&mut admin)?.0,
    };
    list.run(&mut admin, selection)
}
