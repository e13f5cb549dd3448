//! Draws a table of records into a part of a frame, with as many columns and rows as fit. Must never cut a number: a column
//! without room for its numbers is left out.

use crate::table::{Column, Kind};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};
use unicode_width::UnicodeWidthStr;

/// Blanks between two columns.
const GAP: u16 = 1;
/// Most columns of the terminal for text.
const TEXT_WIDTH: u16 = 16;
/// Text is cut to this width, if one more column fits then.
const LEAST_TEXT_WIDTH: u16 = 8;

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
mod tests {
    use super::super::model::client_columns;
    use super::super::tests::{client, lines};
    use super::*;

    fn drawn(width: u16, height: u16, pid: u32, name: &str) -> Vec<String> {
        let mut buf = Buffer::empty(Rect::new(0, 0, width, height));
        let record = client(pid, name);
        let area = buf.area;
        draw(&mut buf, area, &client_columns(), &[&record, &record], None);
        lines(&buf)
    }

    #[test]
    fn draw_when_wide_then_all_columns_aligned() {
        let expected = [
            "PID NAME   UID FDS SILENT HELD_FDS HELD_BYTES OPEN_LEASES MAPPED_LEASES ALLOCATIONS PARKED_REQUESTS",
            "  7 rank-0   0   0 no            0        0 B           0             0           0               0",
        ];
        assert_eq!(drawn(100, 2, 7, "rank-0"), expected);
    }

    #[test]
    fn draw_when_narrow_then_names_are_cut_and_the_last_columns_left_out() {
        let expected = ["       PID NAME     UID FDS", "4294967295 a very l   0   0"];
        assert_eq!(drawn(29, 2, u32::MAX, "a very long name"), expected);
        assert_eq!(drawn(9, 2, u32::MAX, "x"), ["", ""]);
    }

    #[test]
    fn draw_when_there_are_more_records_than_lines_then_the_first() {
        assert_eq!(drawn(100, 3, 7, "x").len(), 3);
        assert_eq!(drawn(100, 1, 7, "x").len(), 1);
        assert!(drawn(0, 0, 7, "x").is_empty());
    }

    #[test]
    fn draw_when_a_name_has_wide_characters_then_columns_stay_in_line() {
        let text = drawn(30, 2, 7, "日本");
        assert!(text[0].starts_with("PID NAME UID"), "{text:?}");
        assert!(text[1].starts_with("  7 日本   0"), "{text:?}");
    }
}
