//! `fdbroker show`: all values of one allocation, then its holders; of an object first its own.
//! Must never show a later allocation in the same slot.

mod args;

pub use args::Args;

use crate::admin::viewing;
use crate::error::{Error, Result};
use crate::output::{Column, Columns, Output, Side};
use crate::records::{allocations, leases, objects};
use crate::table::{self, Fields, List, ListArgs};
use fdbroker_protocol::admin::AllocationRecord;

const HEADINGS: [Column; 2] = [Column("WHAT", Side::Left), Column("VALUE", Side::Left)];

/// Prints the allocation that `subject` names.
pub fn run(Args { subject, json }: Args) -> Result<()> {
    if !subject.is_allocation() {
        let message = "show takes an allocation (a handle, SLOT.GENERATION or virtual fd as `fdbroker ls` shows them) or an object's name; \
                       `fdbroker holders` takes pid:N, uid:N and job:NAME";
        return Err(Error::Usage(message.into()));
    }
    let args = ListArgs { json, ..ListArgs::default() };
    let Some(list) = List::new("holders", leases::COLUMNS, &args)? else { return Ok(()) };
    let mut admin = viewing::connect()?;
    let (selection, object) = subject.known(&mut admin)?;
    let records = admin.all::<AllocationRecord>(selection)?;
    let Some(record) = records.first() else {
        let message = "the allocation has ended meanwhile, or is another user's; `fdbroker holders` lists leases of it";
        return Err(Error::NotFound(message.into()));
    };
    let mut out = Output::stdout();
    if json {
        out.text(&format!("{{\"scope\":\"{}\",", admin.scope_name()))?;
        if let Some(info) = &object {
            let columns: Vec<_> = objects::COLUMNS.iter().collect();
            out.text("\"object\":")?;
            out.json(&Fields { columns: &columns, record: info })?;
            out.text(",")?;
        }
        let columns: Vec<_> = allocations::COLUMNS.iter().collect();
        out.text("\"allocation\":")?;
        out.json(&Fields { columns: &columns, record })?;
        out.text(",")?;
        list.write(&mut admin, selection, &mut out)?;
        out.text("}\n")?;
        return out.finish();
    }
    if let Some(info) = &object {
        values(objects::COLUMNS, info, &mut out)?;
    }
    values(allocations::COLUMNS, record, &mut out)?;
    list.write(&mut admin, selection, &mut out)?;
    out.finish()
}

/// A line for each column, and an empty one.
fn values<R>(columns: &[table::Column<R>], record: &R, out: &mut Output) -> Result<()> {
    let rows = columns.iter().map(|it| vec![it.name.into(), it.value(record).shown_exactly()]);
    Columns::new(HEADINGS, false).write(rows.collect(), out)?;
    out.text("\n")
}
