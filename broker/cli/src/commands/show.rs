//! `fdbroker show`: all values of one allocation, then its holders; of an object first its own.
//! Must never show a later allocation in the same slot.

use crate::admin::viewing;
use crate::by_name::named::Named;
use crate::error::{Error, Result};
use crate::output::{Column, Columns, Output, Side};
use crate::records::{allocations, leases, objects};
use crate::table::{self, Fields, List, ListArgs};
use fdbroker_protocol::admin::AllocationRecord;

const HELP: &str = "\
Examples:
  fdbroker show 12.3
  fdbroker show model/a                 an object of this user, and the memory of its group
  fdbroker show 12.3 --json | jq .allocation.size_bytes

The form of WHAT decides: 12.3 is an allocation, even if an object is called so. object:12.3 is that object. Of an object its own values
come first, in the words of `fdbroker objects -H`, then those of the memory of its group, in the words of `fdbroker ls -H`: KEEP and
OWNER there are about allocations that programs register, and say nothing of how long an object stays. Of the objects of a job take
the column GROUP of `fdbroker objects --job`.

Exit status 4: the broker knows no such allocation or object.";

/// Show everything about one allocation or object, and its holders
#[derive(Debug, clap::Args)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// A handle (128 hex digits), SLOT.GENERATION or a virtual fd as `ls` shows them, or the name
    /// of an object
    #[arg(value_name = "WHAT")]
    pub subject: Named,
    /// One line of JSON
    #[arg(short = 'J', long)]
    pub json: bool,
}

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
        values(&objects::COLUMNS, info, &mut out)?;
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
