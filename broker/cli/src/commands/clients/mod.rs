//! `fdbroker clients`: lists clients with their charges. Must never decide how a list is printed:
//! [`crate::table`] does.

mod args;

pub use args::Args;

use crate::admin::{Selection, viewing};
use crate::error::Result;
use crate::records::clients::COLUMNS;
use crate::table::List;

pub fn run(args: &Args) -> Result<()> {
    match List::new("clients", &COLUMNS, &args.list)? {
        Some(list) => list.run(&mut viewing::connect()?, Selection::ALL),
        None => Ok(()),
    }
}
