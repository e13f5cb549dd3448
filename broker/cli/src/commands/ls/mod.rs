//! `fdbroker ls`: lists allocations. Must never decide how a list is printed: [`crate::table`] does.

mod args;

pub use args::Args;

use crate::admin::{Admin, Selection};
use crate::error::Result;
use crate::records::allocations::COLUMNS;
use crate::table::List;

pub fn run(args: &Args) -> Result<()> {
    match List::new("allocations", COLUMNS, &args.list)? {
        Some(list) => list.run(&mut Admin::from_env()?, Selection::ALL),
        None => Ok(()),
    }
}
