//! Prints a list. Must never hold more than a page without `--sort`, nor ask the broker before all
//! flags are checked.

use super::args::ListArgs;
use super::column::Column;
use super::filter::Filter;
use super::sort::{Order, Sorter};
use super::value::Value;
use super::{choice, parse};
use crate::admin::{Admin, Record, Selection, viewing};
use crate::error::Result;
use crate::output::{self, Columns, Output, Side, commas, say};
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::json;
use std::io::IsTerminal;

/// Rows that are aligned together. The first of them set the least widths of the columns.
const ROWS_AT_ONCE: usize = 256;

/// A list of records, with its flags checked.
pub struct List<R: 'static> {
    /// Key of the array in JSON.
    name: &'static str,
    columns: Vec<&'static Column<R>>,
    filter: Option<Filter<R>>,
    order: Option<Order<R>>,
    /// The columns are not chosen: those that fit are shown.
    fits: bool,
    is_json: bool,
    no_headings: bool,
}

impl<R: Clone> List<R> {
    /// Checks the flags. `None`: `-H` was given, and the columns are printed.
    pub fn new(
        name: &'static str,
        columns: &'static [Column<R>],
        args: &ListArgs,
    ) -> Result<Option<Self>> {
        if args.list_columns {
            list_columns(columns, args)?;
            return Ok(None);
        }
        let chosen = match &args.output {
            Some(list) => choice::choose(columns, list)?,
            None if args.json => columns.iter().collect(),
            None => choice::defaults(columns),
        };
        let filter = args.filter.as_deref().map(|text| parse::filter(columns, text));
        let order = args.sort.as_deref().map(|text| Order::parse(columns, text));
        Ok(Some(List {
            name,
            columns: chosen,
            filter: filter.transpose()?,
            order: order.transpose()?,
            fits: args.output.is_none(),
            is_json: args.json,
            no_headings: args.no_headings,
        }))
    }

    /// On a terminal the records with most in this column come first, unless they have an order.
    pub fn largest_first(mut self, columns: &'static [Column<R>], name: &str) -> Self {
        if self.order.is_none() && !self.is_json && std::io::stdout().is_terminal() {
            self.order = Order::parse(columns, &format!("{name}:desc")).ok();
        }
        self
    }

    /// Prints the records as a table, or as `{"NAME":[{...},...]}`, with `scope` before it where
    /// there is one.
    pub fn print(
        self,
        scope: Option<&str>,
        each_page: impl FnOnce(Taker<'_, R>) -> Result<()>,
    ) -> Result<()> {
        let (mut out, is_json) = (Output::stdout(), self.is_json);
        if is_json {
            out.text("{")?;
            if let Some(scope) = scope {
                out.text(&format!("\"scope\":\"{scope}\","))?;
            }
        }
        self.write_pages(each_page, &mut out)?;
        if is_json {
            out.text("}\n")?;
        }
        out.finish()
    }

    /// Writes the records that `each_page` hands on, a page at a time, as a table or as the member
    /// `"NAME":[{...},...]` of a JSON object.
    fn write_pages(
        self,
        each_page: impl FnOnce(Taker<'_, R>) -> Result<()>,
        out: &mut Output,
    ) -> Result<()> {
        let List { name, columns, filter, order, fits, is_json, no_headings } = self;
        let mut rows = if is_json {
            out.text(&format!("\"{name}\":["))?;
            Rows::Json { columns, is_first: true }
        } else {
            let heading = |it: &&Column<R>| output::Column(it.name, it.kind.side());
            let headings: Vec<_> = columns.iter().map(heading).collect();
            let table = Columns::new(headings, !no_headings).within_the_terminal(fits);
            Rows::Table { columns, table, waiting: Vec::new() }
        };
        let is_wanted = |record: &R| filter.as_ref().is_none_or(|filter| filter.has(record));
        let left_out = match order {
            None => {
                each_page(&mut |page: &[R]| {
                    let mut wanted = page.iter().filter(|record| is_wanted(record));
                    wanted.try_for_each(|record| rows.push(record, out))
                })?;
                0
            }
            Some(order) => {
                let mut sorter = Sorter::new(order);
                each_page(&mut |page: &[R]| {
                    page.iter().filter(|it| is_wanted(it)).for_each(|it| sorter.push(it.clone()));
                    Ok(())
                })?;
                let (records, left_out) = sorter.finish();
                records.iter().try_for_each(|record| rows.push(record, out))?;
                left_out
            }
        };
        rows.finish(out)?;
        if left_out > 0 {
            if is_json {
                out.text(&format!(",\"left_out\":{left_out}"))?;
            }
            let left_out = commas(left_out);
            say!("fdbroker: the last {left_out} records in this order are left out; use --filter");
        }
        Ok(())
    }
}

impl<R: Record + Copy> List<R> {
    /// Prints the selected records that the broker has of a kind, as the arguments say. `largest`:
    /// see [`List::largest_first`].
    pub fn show(
        name: &'static str,
        columns: &'static [Column<R>],
        (args, selection): (&ListArgs, Selection),
        largest: &str,
    ) -> Result<()> {
        let Some(list) = Self::new(name, columns, args)? else { return Ok(()) };
        list.largest_first(columns, largest).run(&mut viewing::connect()?, selection)
    }

    /// Prints the selected records of the broker.
    pub fn run(self, admin: &mut Admin, selection: Selection) -> Result<()> {
        self.print(Some(admin.scope_name()), |take| admin.each_page(selection, take))
    }

    /// Writes the selected records of the broker as a table, or as a member of a JSON object.
    pub fn write(self, admin: &mut Admin, selection: Selection, out: &mut Output) -> Result<()> {
        self.write_pages(|take| admin.each_page(selection, take), out)
    }
}

/// Takes a page of records.
pub type Taker<'a, R> = &'a mut dyn FnMut(&[R]) -> Result<()>;

/// Rows on their way to the output.
enum Rows<R: 'static> {
    Json { columns: Vec<&'static Column<R>>, is_first: bool },
    Table { columns: Vec<&'static Column<R>>, table: Columns, waiting: Vec<Vec<String>> },
}

impl<R> Rows<R> {
    fn push(&mut self, record: &R, out: &mut Output) -> Result<()> {
        match self {
            Rows::Json { columns, is_first } => {
                if !std::mem::take(is_first) {
                    out.text(",")?;
                }
                out.json(&Fields { columns: &*columns, record })
            }
            Rows::Table { columns, table, waiting } => {
                waiting.push(columns.iter().map(|it| it.value(record).shown()).collect());
                match waiting.len() {
                    ROWS_AT_ONCE => table.write(std::mem::take(waiting), out),
                    _ => Ok(()),
                }
            }
        }
    }

    /// Writes the rows that still wait, and the headings if there were no rows.
    fn finish(self, out: &mut Output) -> Result<()> {
        match self {
            Rows::Json { .. } => out.text("]"),
            Rows::Table { mut table, waiting, .. } => table.write(waiting, out),
        }
    }
}

/// A record as a JSON object: the keys and values of some columns.
pub struct Fields<'a, R: 'static> {
    /// The columns that become members.
    pub columns: &'a [&'static Column<R>],
    /// The record that has the values.
    pub record: &'a R,
}

impl<R> Serialize for Fields<'_, R> {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.columns.len()))?;
        for column in self.columns {
            map.serialize_entry(column.key, &column.value(self.record))?;
        }
        map.end()
    }
}

/// `-H`: prints the columns and their help.
fn list_columns<R>(columns: &[Column<R>], args: &ListArgs) -> Result<()> {
    let mut out = Output::stdout();
    if args.json {
        let each = |it: &Column<R>| {
            let (kind, is_default) = (it.kind.name(), it.is_default);
            json!({ "column": it.name, "key": it.key, "type": kind, "default": is_default, "help": it.help })
        };
        out.json_line(&json!({ "columns": columns.iter().map(each).collect::<Vec<_>>() }))?;
        return out.finish();
    }
    let headings = ["COLUMN", "KEY", "TYPE", "DEFAULT", "WHAT"];
    let headings = headings.map(|name| output::Column(name, Side::Left));
    let row = |it: &Column<R>| {
        let is_default = Value::Flag(it.is_default).shown();
        vec![it.name.into(), it.key.into(), it.kind.name().into(), is_default, it.help.into()]
    };
    Columns::new(headings, !args.no_headings).write(columns.iter().map(row).collect(), &mut out)?;
    out.finish()
}
