//! `fdbroker clients`: lists clients with their charges. Must never decide how a list is printed: [`crate::table`] does.

mod args;

pub use args::Args;

use crate::admin::{Admin, Selection};
use crate::error::Result;
use crate::records::clients::COLUMNS;
use crate::table::List;

pub fn run(args: &Args) -> Result<()> {
    match List::new("clients", &COLUMNS, &args.list)? {
        Some(list) => list.run(&mut Admin::from_env()?, Selection::ALL),
        None => Ok(()),
    }
}
