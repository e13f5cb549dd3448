//! Prints results: plain tables for people, one line of JSON for programs, colours on terminals
//! only. Must never use `println!` or `eprintln!`, which panic if the reader is gone (`ls | head`).

pub mod terminal;
#[cfg(test)]
mod tests;

use crate::error::{Error, Result};
use indicatif::HumanCount;
use serde::Serialize;
use std::io::{self, BufWriter, IsTerminal, StdoutLock, Write};
use unicode_truncate::UnicodeTruncateStr;
use unicode_width::UnicodeWidthStr;

/// Writes a line to stderr. Errors, such as a full disk or a reader that is gone, are ignored and
/// do not change the exit status; `eprintln!` would panic.
macro_rules! say {
    ($($words:tt)*) => {{
        let _ = std::io::Write::write_all(
            &mut std::io::stderr(),
            (format!($($words)*) + "\n").as_bytes(),
        );
    }};
}
pub(crate) use say;

/// Buffered stdout. If the reader is gone, writing gives [`Error::OutputClosed`].
pub struct Output {
    out: BufWriter<StdoutLock<'static>>,
    colour: bool,
}

impl Output {
    pub fn stdout() -> Self {
        let stdout = io::stdout();
        let colour = colour_wanted(stdout.is_terminal());
        Output { out: BufWriter::new(stdout.lock()), colour }
    }

    /// Writes text as it is.
    pub fn text(&mut self, text: &str) -> Result<()> {
        self.out.write_all(text.as_bytes()).map_err(write_error)
    }

    /// Writes a line, bold on a terminal.
    pub fn heading(&mut self, line: &str) -> Result<()> {
        if self.colour {
            self.text(&format!("\x1b[1m{line}\x1b[0m\n"))
        } else {
            self.text(&format!("{line}\n"))
        }
    }

    /// Writes `value` as JSON, without a line end.
    pub fn json<T: Serialize>(&mut self, value: &T) -> Result<()> {
        serde_json::to_writer(&mut self.out, value)
            .map_err(|cause| write_error(io::Error::from(cause)))
    }

    /// Writes `value` as JSON, in a line of its own.
    pub fn json_line<T: Serialize>(&mut self, value: &T) -> Result<()> {
        self.json(value)?;
        self.text("\n")
    }

    /// Writes the buffer out, before more text follows.
    pub fn flush(&mut self) -> Result<()> {
        self.out.flush().map_err(write_error)
    }

    /// Writes the buffer out. Without this call an error at the end would be lost.
    pub fn finish(mut self) -> Result<()> {
        self.out.flush().map_err(write_error)
    }
}

/// Text that somebody else chose, without what a terminal would obey or would not show: such
/// characters, and the backslash, are written as in JSON.
pub fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\\' => shown.push_str("\\\\"),
            '\n' => shown.push_str("\\n"),
            '\r' => shown.push_str("\\r"),
            '\t' => shown.push_str("\\t"),
            c if !is_shown(c) => {
                let mut units = [0; 2];
                let units = c.encode_utf16(&mut units).iter();
                shown.extend(units.map(|unit| format!("\\u{unit:04x}")));
            }
            c => shown.push(c),
        }
    }
    shown
}

/// Whether a terminal shows a character and does not obey it.
pub fn is_shown(c: char) -> bool {
    !c.is_control() && !is_format(c)
}

/// Whether a character shows nothing by itself and changes how others look, or ends a line: the
/// categories Cf, Zl and Zp of Unicode 16.
fn is_format(c: char) -> bool {
    matches!(c,
        '\u{ad}' | '\u{600}'..='\u{605}' | '\u{61c}' | '\u{6dd}' | '\u{70f}' | '\u{890}'..='\u{891}' | '\u{8e2}' | '\u{180e}'
        | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2064}' | '\u{2066}'..='\u{206f}' | '\u{feff}'
        | '\u{fff9}'..='\u{fffb}' | '\u{110bd}' | '\u{110cd}' | '\u{13430}'..='\u{1343f}' | '\u{1bca0}'..='\u{1bca3}'
        | '\u{1d173}'..='\u{1d17a}' | '\u{e0001}' | '\u{e0020}'..='\u{e007f}')
}

/// Whether to colour: on a terminal, unless NO_COLOR says no (<https://no-color.org>).
pub fn colour_wanted(is_terminal: bool) -> bool {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    is_terminal && !refused && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// Says something to people at a terminal that no script needs: nothing where stderr is none.
pub fn aside(remark: &str) {
    if io::stderr().is_terminal() {
        let (dim, end) = if colour_wanted(true) { ("\x1b[2m", "\x1b[0m") } else { ("", "") };
        say!("{dim}fdbroker: {remark}{end}");
    }
}

/// The error for output that could not be written.
pub fn write_error(cause: io::Error) -> Error {
    match cause.kind() {
        io::ErrorKind::BrokenPipe => Error::OutputClosed,
        _ => Error::Os { what: "write the output".into(), cause },
    }
}

/// A column: heading and alignment.
#[derive(Clone, Copy, Debug)]
pub struct Column(pub &'static str, pub Side);

/// The alignment of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// For text.
    Left,
    /// For text that may be cut on a narrow terminal.
    LeftOrCut,
    /// For numbers.
    Right,
}

/// Blanks between two columns.
const GAP: usize = 2;
/// Smallest width of cut text. A narrower terminal wraps the lines.
const LEAST_CUT: usize = 8;
/// Width that text needs for its column to be shown.
const FAIR_CUT: usize = 20;
/// Marks the place of a cut.
const CUT: char = '…';

/// A table that is printed part by part, so that it may be of any length. The first part sets the
/// least widths of the columns; later parts can only widen them.
pub struct Columns {
    columns: Vec<Column>,
    widths: Vec<usize>,
    heading_due: bool,
    /// Width of a line, if it is limited.
    room: Option<usize>,
    /// Columns that do not fit are still to be left out.
    is_to_fit: bool,
    /// Which cells of a row are shown; empty: all.
    shown: Vec<bool>,
}

impl Columns {
    /// A table with these columns.
    pub fn new(columns: impl AsRef<[Column]>, headings: bool) -> Self {
        let columns = columns.as_ref().to_vec();
        Columns {
            widths: vec![0; columns.len()],
            columns,
            heading_due: headings,
            room: None,
            is_to_fit: false,
            shown: Vec::new(),
        }
    }

    /// Limits the lines to the width of the terminal, if stdout is one. With `fits` columns are
    /// left out that the first rows leave no room for, beside those before them.
    pub fn within_the_terminal(mut self, fits: bool) -> Self {
        self.room = terminal::size(io::stdout()).map(|(columns, _)| columns.into());
        self.is_to_fit = fits;
        self
    }

    pub fn write(&mut self, rows: Vec<Vec<String>>, out: &mut Output) -> Result<()> {
        let heading = self.heading_due;
        let text = self.format(rows);
        let mut lines = text.lines();
        if heading && let Some(line) = lines.next() {
            out.heading(line)?;
        }
        for line in lines {
            out.text(line)?;
            out.text("\n")?;
        }
        Ok(())
    }

    /// The next rows as text, with the heading if it is due.
    fn format(&mut self, mut rows: Vec<Vec<String>>) -> String {
        if rows.is_empty() && !self.heading_due {
            return String::new();
        }
        if let Some(room) = self.room {
            if std::mem::take(&mut self.is_to_fit) {
                self.fit(&rows, room);
            }
            for row in rows.iter_mut().filter(|_| !self.shown.is_empty()) {
                let mut shown = self.shown.iter();
                row.retain(|_| *shown.next().unwrap_or(&true));
            }
            self.cut(&mut rows, room);
        }
        let heading = std::mem::take(&mut self.heading_due)
            .then(|| self.columns.iter().map(|column| column.0.to_owned()).collect::<Vec<_>>());
        for row in heading.iter().chain(&rows) {
            for (known, cell) in self.widths.iter_mut().zip(row) {
                *known = (*known).max(cell.width());
            }
        }
        let mut text = String::new();
        for row in heading.iter().chain(&rows) {
            self.push_line(row, &mut text);
        }
        text
    }

    fn push_line(&self, row: &[String], text: &mut String) {
        let mut blanks = 0;
        for ((cell, width), column) in row.iter().zip(&self.widths).zip(&self.columns) {
            let padding = width - cell.width();
            let (before, after) = if column.1 == Side::Right { (padding, 0) } else { (0, padding) };
            // Blanks, of empty cells too, are written only before more text: no line ends with
            // blanks.
            blanks += before;
            if !cell.is_empty() {
                text.extend(std::iter::repeat_n(' ', blanks));
                text.push_str(cell);
                blanks = 0;
            }
            blanks += after + GAP;
        }
        text.push('\n');
    }

    fn widest(&self, rows: &[Vec<String>], index: usize) -> usize {
        let cells = rows.iter().filter_map(|row| row.get(index)).map(|cell| cell.width());
        let known = self.columns[index].0.len().max(self.widths[index]);
        cells.max().unwrap_or(0).max(known)
    }

    /// Leaves out each column that has no room beside those before it; the first one stays.
    fn fit(&mut self, rows: &[Vec<String>], room: usize) {
        let mut left = room + GAP;
        let fits = (0..self.columns.len()).map(|index| {
            let (widest, column) = (self.widest(rows, index), self.columns[index]);
            let needed = GAP
                + match column.1 {
                    Side::LeftOrCut => widest.min(FAIR_CUT.max(column.0.len())),
                    Side::Left | Side::Right => widest,
                };
            let fits = index == 0 || needed <= left;
            left = left.saturating_sub(if fits { needed } else { 0 });
            fits
        });
        self.shown = fits.collect();
        let mut shown = self.shown.iter();
        self.columns.retain(|_| *shown.next().unwrap_or(&true));
        self.widths.truncate(self.columns.len());
    }

    /// Cuts text, the widest columns first, until a line fits into `room`.
    fn cut(&self, rows: &mut [Vec<String>], room: usize) {
        let mut widths: Vec<usize> =
            (0..self.columns.len()).map(|index| self.widest(rows, index)).collect();
        let gaps = GAP * widths.len().saturating_sub(1);
        let mut excess = (widths.iter().sum::<usize>() + gaps).saturating_sub(room);
        while excess > 0 {
            let cuttable = self.columns.iter().zip(&mut widths).filter(|(column, width)| {
                column.1 == Side::LeftOrCut && **width > LEAST_CUT.max(column.0.len())
            });
            let Some((_, width)) = cuttable.max_by_key(|(_, width)| **width) else { break };
            *width -= 1;
            excess -= 1;
        }
        for row in rows {
            for ((cell, width), column) in row.iter_mut().zip(&widths).zip(&self.columns) {
                if column.1 == Side::LeftOrCut && cell.width() > *width {
                    *cell = cut_to(cell, *width);
                }
            }
        }
    }
}

/// Text in lines that fit the terminal, if stdout is one.
pub fn wrapped(text: &str) -> String {
    let room = terminal::size(io::stdout()).map_or(usize::MAX, |(columns, _)| columns.into());
    let (mut lines, mut used) = (String::with_capacity(text.len()), 0);
    for word in text.split(' ') {
        let fits = used == 0 || used + 1 + word.width() <= room;
        lines.push_str(if used == 0 {
            ""
        } else if fits {
            " "
        } else {
            "\n"
        });
        used = if fits { used + usize::from(used > 0) } else { 0 } + word.width();
        lines.push_str(word);
    }
    lines
}

/// The beginning of `text`, with a mark that there is more.
fn cut_to(text: &str, width: usize) -> String {
    let (start, _) = text.unicode_truncate(width.saturating_sub(1));
    format!("{start}{CUT}")
}

/// A size for people: `64 KiB`, `1.5 MiB`. Whole numbers of a unit are exact, others have one
/// decimal.
#[allow(clippy::cast_precision_loss)] // one decimal is shown
pub fn human_size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    // With one decimal this is 1024.0, which is 1.0 of the next unit.
    const NEXT_UNIT: f64 = 1023.95;
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let amount = |power: u32| bytes as f64 / (1u64 << (10 * power)) as f64;
    let mut power = bytes.ilog2() / 10;
    if amount(power) >= NEXT_UNIT {
        power += 1;
    }
    let (unit, name) = (1u64 << (10 * power), UNITS[power as usize - 1]);
    match bytes % unit {
        0 => format!("{} {name}", bytes / unit),
        _ => format!("{:.1} {name}", amount(power)),
    }
}

/// A number with commas: `11,200`.
pub fn commas(number: u64) -> String {
    HumanCount(number).to_string()
}

/// A number with its noun: `1 job`, `2 jobs`, `2 processes`.
pub fn counted(number: u64, thing: &str) -> String {
    let ending = match number {
        1 => "",
        _ if thing.ends_with('s') => "es",
        _ => "s",
    };
    format!("{} {thing}{ending}", commas(number))
}

/// A time span in seconds, for JSON.
pub fn seconds(ms: u64) -> f64 {
    ms as f64 / 1000.0
}

/// A time span, or a time since 1970, in seconds, for JSON.
pub fn seconds_of_us(us: u64) -> f64 {
    us as f64 / 1_000_000.0
}

/// A time span for people: `850 ms`, `12.3 s`, `4 min 5 s`, `3 h 2 min`.
pub fn human_time(ms: u64) -> String {
    match ms {
        0..1_000 => format!("{ms} ms"),
        1_000..60_000 => format!("{}.{} s", ms / 1000, ms % 1000 / 100),
        60_000..3_600_000 => format!("{} min {} s", ms / 60_000, ms % 60_000 / 1000),
        _ => format!("{} h {} min", ms / 3_600_000, ms % 3_600_000 / 60_000),
    }
}
