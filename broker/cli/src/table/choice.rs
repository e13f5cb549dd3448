//! Finds columns by name, and chooses those of `-o`. Must never take one column for another.

use super::column::Column;
use crate::error::{Error, Result};

/// The column with this heading, in any case, or with this key in JSON.
pub fn find<R>(columns: &'static [Column<R>], name: &str) -> Result<&'static Column<R>> {
    let is_it = |column: &&Column<R>| column.name.eq_ignore_ascii_case(name) || column.key == name;
    columns.iter().find(is_it).ok_or_else(|| {
        let (name, names) = (name.escape_debug(), names(columns).join(", "));
        Error::Usage(format!("no column `{name}`; the columns are {names} (-H explains them)"))
    })
}

/// The headings of all columns.
pub fn names<R>(columns: &[Column<R>]) -> Vec<&'static str> {
    columns.iter().map(|column| column.name).collect()
}

/// The columns of `-o LIST`, each once. `+A,B` adds A and B to the default columns.
pub fn choose<R>(columns: &'static [Column<R>], list: &str) -> Result<Vec<&'static Column<R>>> {
    let (mut chosen, names) = match list.strip_prefix('+') {
        Some(more) => (defaults(columns), more),
        None => (Vec::new(), list),
    };
    for name in names.split(',') {
        // Users write `+A,+B` by habit.
        let name = name.trim();
        let column = find(columns, name.strip_prefix('+').unwrap_or(name))?;
        if !chosen.iter().any(|known: &&Column<R>| known.key == column.key) {
            chosen.push(column);
        }
    }
    Ok(chosen)
}

/// The columns of a table when `-o` is not given.
pub fn defaults<R>(columns: &'static [Column<R>]) -> Vec<&'static Column<R>> {
    columns.iter().filter(|column| column.is_default).collect()
}

#[cfg(test)]
mod tests {
    use super::super::column::Kind;
    use super::super::value::Value;
    use super::*;

    const COLUMNS: &[Column<u64>] = &[
        Column::new(Kind::Number, "SLOT", "slot", "", |it| Value::Number(*it)),
        Column::new(Kind::Size, "SIZE", "size_bytes", "", |it| Value::Size(*it)),
        Column::on_request(Kind::Number, "BASE", "base", "", |it| Value::Number(*it)),
    ];

    fn chosen(list: &str) -> Vec<&'static str> {
        choose(COLUMNS, list).expect("columns").iter().map(|column| column.name).collect()
    }

    #[test]
    fn choose_when_plus_then_added_to_the_default() {
        assert_eq!(chosen("+BASE"), ["SLOT", "SIZE", "BASE"]);
        assert_eq!(chosen("+base,+size_bytes"), ["SLOT", "SIZE", "BASE"]);
        assert_eq!(chosen("BASE, slot,BASE"), ["BASE", "SLOT"]);
    }

    #[test]
    fn choose_when_unknown_then_usage_and_every_column_named() {
        for list in ["NAME", "", "SLOT,", "+", "SLOT SIZE", "\x1b[2J"] {
            let error = choose(COLUMNS, list).expect_err(list);
            assert_eq!(error.exit_status(), crate::error::exit::USAGE);
            let message = error.to_string();
            assert!(message.contains("SLOT, SIZE, BASE") && !message.contains('\x1b'), "{message}");
        }
    }
}
