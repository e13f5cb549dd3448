//! `fdbroker objects`: lists named objects. Must never hold more than a page of them, except for
//! `--sort`.

mod args;

pub use args::Args;

use crate::by_name::connect;
use crate::error::Result;
use crate::records::objects::COLUMNS;
use crate::table::List;
use fdbroker_client::Deadline;

/// Records handed on at a time.
const PAGE: usize = 256;

pub fn run(args: &Args) -> Result<()> {
    let Some(list) = List::new("objects", COLUMNS, &args.list)? else { return Ok(()) };
    let objects = connect(args.job)?;
    // Nobody is ever shown names of others, so no scope is said.
    list.print(None, |take| {
        let mut page = Vec::with_capacity(PAGE);
        // For all pages: the reader of stdout may take its time.
        for info in objects.list(&args.prefix, Deadline::longest()) {
            page.push(info?);
            if page.len() == PAGE {
                take(&page)?;
                page.clear();
            }
        }
        take(&page)
    })
}
