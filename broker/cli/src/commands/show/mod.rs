//! `fdbroker show`: all values of one allocation, then its holders. Must never show a later allocation in the same slot.

mod args;

pub use args::Args;

use crate::admin::viewing;
use crate::error::{Error, Result};
use crate::output::{Column, Columns, Output, Side};
use crate::records::{allocations, leases};
use crate::table::{Fields, List, ListArgs};
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
    let selection = subject.known(&mut admin)?;
    let records = admin.all::<AllocationRecord>(selection)?;
    let Some(record) = records.first() else {
        return Err(Error::NotFound("the allocation has ended meanwhile".into()));
    };
    let mut out = Output::stdout();
    if json {
        let columns: Vec<_> = allocations::COLUMNS.iter().collect();
        out.text(&format!("{{\"scope\":\"{}\",\"allocation\":", admin.scope_name()))?;
        out.json(&Fields { columns: &columns, record })?;
        out.text(",")?;
        list.write(&mut admin, selection, &mut out)?;
        out.text("}\n")?;
        return out.finish();
    }
    let rows = allocations::COLUMNS
        .iter()
        .map(|it| vec![it.name.into(), it.value(record).shown_exactly()]);
    Columns::new(HEADINGS, false).write(rows.collect(), &mut out)?;
    out.text("\n")?;
    list.write(&mut admin, selection, &mut out)?;
    out.finish()
}
