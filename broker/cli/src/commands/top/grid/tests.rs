//! Tables at several widths.

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
        "PID NAME   UID FDS SILENT OWN_FDS HELD_FDS HELD_BYTES OPEN_LEASES MAPPED_LEASES ALLOCATIONS RESERVED_PLACES",
        "  7 rank-0   0   0 no           0        0        0 B           0             0           0               0",
    ];
    assert_eq!(drawn(108, 2, 7, "rank-0"), expected);
}

#[test]
fn draw_when_narrow_then_names_are_cut_and_the_last_columns_left_out() {
    let expected = ["       PID NAME        UID FDS", "4294967295 a very long   0   0"];
    assert_eq!(drawn(32, 2, u32::MAX, "a very long name"), expected);
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
