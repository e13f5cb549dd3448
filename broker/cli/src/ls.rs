//! `fdbroker ls`: every allocation, page by page. Must never hold all of them at once: there may be a
//! million.

use crate::admin::{Admin, Record, Selection};
use crate::error::Result;
use crate::output::{Column, Columns, Output};
use crate::records::AllocationView;
use fdbroker_protocol::admin::AllocationRecord;
use serde::Serialize;

/// How a list is printed.
#[derive(Clone, Copy, Debug)]
pub struct Style {
    /// One line of JSON.
    pub json: bool,
    /// Leave out the heading of the table.
    pub no_headings: bool,
}

/// Prints the allocations of the broker that the environment names.
pub fn run(style: Style) -> Result<()> {
    let mut admin = Admin::from_env()?;
    let list = List { name: "allocations", columns: AllocationView::COLUMNS, style };
    list.print(
        &mut admin,
        Selection::ALL,
        |record: &AllocationRecord| AllocationView::from(record),
        AllocationView::row,
    )
}

/// A list of records: its name in JSON, its columns, its style.
pub struct List {
    /// Key of the array in JSON.
    pub name: &'static str,
    /// Columns of the table.
    pub columns: &'static [Column],
    /// How it is printed.
    pub style: Style,
}

impl List {
    /// Prints the records selected, each page as it comes: `{"NAME":[{...},...]}` or a table.
    pub fn print<R: Record, V: Serialize>(
        &self,
        admin: &mut Admin,
        selection: Selection,
        view: impl Fn(&R) -> V,
        row: impl Fn(&V) -> Vec<String>,
    ) -> Result<()> {
        let mut out = Output::stdout();
        match self.style.json {
            true => self.print_json(admin, selection, view, &mut out)?,
            false => {
                let mut table = Columns::new(self.columns, !self.style.no_headings);
                admin.each_page(selection, |page: &[R]| {
                    let rows = page.iter().map(|record| row(&view(record))).collect();
                    table.write(rows, &mut out)
                })?;
            }
        }
        out.finish()
    }

    fn print_json<R: Record, V: Serialize>(
        &self,
        admin: &mut Admin,
        selection: Selection,
        view: impl Fn(&R) -> V,
        out: &mut Output,
    ) -> Result<()> {
        out.text(&format!("{{\"{}\":[", self.name))?;
        let mut first = true;
        admin.each_page(selection, |page: &[R]| {
            for record in page {
                if !std::mem::take(&mut first) {
                    out.text(",")?;
                }
                out.json(&view(record))?;
            }
            Ok(())
        })?;
        out.text("]}\n")
    }
}
