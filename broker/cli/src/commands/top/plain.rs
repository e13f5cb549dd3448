//! Turns a frame into text, for `--once`. Must never move the cursor, nor colour text that is not
//! for a terminal.

use ratatui::buffer::{Buffer, Cell};
use ratatui::style::{Color, Modifier};
use unicode_width::UnicodeWidthStr;

/// The lines of `buf` without trailing blanks; with SGR sequences for styles if `styled`.
pub fn text(buf: &Buffer, styled: bool) -> String {
    let mut text = String::new();
    for row in buf.content.chunks(usize::from(buf.area.width.max(1))) {
        let mut line = String::new();
        let mut style = String::new();
        // A wide character covers the next cell.
        let mut covered = 0;
        for cell in row {
            if covered > 0 {
                covered -= 1;
                continue;
            }
            covered = cell.symbol().width().saturating_sub(1);
            let wanted = if styled { sgr(cell) } else { String::new() };
            if wanted != style {
                line += "\x1b[0m";
                line += &wanted;
                style = wanted;
            }
            line += cell.symbol();
        }
        if !style.is_empty() {
            line += "\x1b[0m";
        }
        text += line.trim_end();
        text.push('\n');
    }
    text
}

/// The SGR sequence (ECMA-48) for a cell's style, for the styles that frames use.
fn sgr(cell: &Cell) -> String {
    let mut codes = Vec::new();
    for (modifier, code) in
        [(Modifier::BOLD, "1"), (Modifier::UNDERLINED, "4"), (Modifier::REVERSED, "7")]
    {
        if cell.modifier.contains(modifier) {
            codes.push(code);
        }
    }
    match cell.fg {
        Color::Red => codes.push("31"),
        Color::Green => codes.push("32"),
        Color::Yellow => codes.push("33"),
        _ => {}
    }
    if codes.is_empty() { String::new() } else { format!("\x1b[{}m", codes.join(";")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::layout::Rect;
    use ratatui::style::Style;

    #[test]
    fn text_when_not_styled_then_no_escape_codes_and_no_blanks_at_ends() {
        let mut buf = Buffer::empty(Rect::new(0, 0, 8, 2));
        buf.set_string(0, 0, "日a", Style::new().fg(Color::Red));
        assert_eq!(text(&buf, false), "日a\n\n");
    }

    #[test]
    fn text_when_styled_then_each_style_ends() {
        let mut buf = Buffer::empty(Rect::new(0, 0, 4, 1));
        buf.set_string(0, 0, "a", Style::new().fg(Color::Red).add_modifier(Modifier::BOLD));
        buf.set_string(1, 0, "b", Style::new());
        assert_eq!(text(&buf, true), "\x1b[0m\x1b[1;31ma\x1b[0mb\n");
    }
}
