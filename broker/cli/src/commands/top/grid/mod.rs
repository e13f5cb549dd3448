//! Draws a table of records into a part of a frame, with as many columns and rows as fit. Must
//! never cut a number: a column without room for its numbers is left out.

use crate::table::{Column, Kind};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};
use unicode_width::UnicodeWidthStr;

/// Blanks between two columns.
const GAP: u16 = 1;
/// Most columns of the terminal for text.
const TEXT_WIDTH: u16 = 16;
/// Text is cut to this width, if one more column fits then. It still tells ranks apart, such as
/// `demo-rank-0`.
const LEAST_TEXT_WIDTH: u16 = 11;

/// Draws the headings, with the `marked` one underlined, and a line for each record that fits.
pub fn draw<R>(
    buf: &mut Buffer,
    area: Rect,
    columns: &[&Column<R>],
    records: &[&R],
    marked: Option<usize>,
) {
    if area.is_empty() {
        return;
    }
    let rows = records.iter().take(usize::from(area.height) - 1);
    let cells = |record: &&R| columns.iter().map(|it| it.value(record).shown()).collect();
    let rows: Vec<Vec<String>> = rows.map(cells).collect();
    let widths = widths(area.width, columns, &rows);
    let mut x = area.x;
    for (index, (column, width)) in columns.iter().zip(widths).enumerate() {
        let mut heading = Style::new().add_modifier(Modifier::BOLD);
        if marked == Some(index) {
            heading = heading.add_modifier(Modifier::UNDERLINED);
        }
        set(buf, (x, area.y), width, column, column.name, heading);
        for (row, y) in rows.iter().zip(area.y + 1..) {
            set(buf, (x, y), width, column, &row[index], Style::new());
        }
        x += width + GAP;
    }
}

/// Widths of the first columns, as many as fit.
fn widths<R>(room: u16, columns: &[&Column<R>], rows: &[Vec<String>]) -> Vec<u16> {
    let width = |text: &str| u16::try_from(text.width()).unwrap_or(u16::MAX);
    let widest = |(index, column): (usize, &&Column<R>)| {
        let content = rows.iter().map(|row| width(&row[index])).max().unwrap_or(0);
        let content = if column.kind == Kind::Text { content.min(TEXT_WIDTH) } else { content };
        content.max(width(column.name))
    };
    let mut widths: Vec<u16> = columns.iter().enumerate().map(widest).collect();
    let needed = |widths: &[u16]| -> u32 {
        widths.iter().map(|width| u32::from(*width) + u32::from(GAP)).sum::<u32>()
    };
    // The last column needs no gap.
    let room = u32::from(room) + u32::from(GAP);
    for (index, column) in columns.iter().enumerate() {
        let excess = u16::try_from(needed(&widths).saturating_sub(room)).unwrap_or(u16::MAX);
        if column.kind == Kind::Text && widths[index] > LEAST_TEXT_WIDTH {
            widths[index] = widths[index].saturating_sub(excess).max(LEAST_TEXT_WIDTH);
        }
    }
    while needed(&widths) > room && !widths.is_empty() {
        widths.pop();
    }
    widths
}

fn set<R>(
    buf: &mut Buffer,
    (x, y): (u16, u16),
    width: u16,
    column: &Column<R>,
    text: &str,
    style: Style,
) {
    let is_left = matches!(column.kind, Kind::Text | Kind::Flag | Kind::Allocation);
    let text_width = u16::try_from(text.width()).unwrap_or(u16::MAX);
    let blanks = if is_left { 0 } else { width.saturating_sub(text_width) };
    buf.set_stringn(x + blanks, y, text, (width - blanks).into(), style);
}

#[cfg(test)]
mod tests;
