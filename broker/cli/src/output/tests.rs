//! Tables, sizes, times and cuts, as people read them.

use super::*;

#[test]
fn human_size_when_round_then_no_decimals() {
    assert_eq!(human_size(0), "0 B");
    assert_eq!(human_size(1), "1 B");
    assert_eq!(human_size(1023), "1023 B");
    assert_eq!(human_size(1024), "1 KiB");
    assert_eq!(human_size(1025), "1.0 KiB");
    assert_eq!(human_size(65536), "64 KiB");
    assert_eq!(human_size(1536 * 1024), "1.5 MiB");
    assert_eq!(human_size(u64::MAX), "16.0 EiB");
}

#[test]
fn human_size_when_just_below_a_unit_then_never_1024_of_the_one_below() {
    for (index, units) in ["KiB MiB", "MiB GiB", "GiB TiB", "TiB PiB", "PiB EiB"].iter().enumerate()
    {
        let (below, above) = units.split_once(' ').expect("two");
        let unit = 1u64 << (10 * (index + 1));
        // The first size that is shown as one of the unit above: 1023.95 of the unit below, rounded
        // up.
        let first = unit * 1023 + (unit * 95).div_ceil(100);
        let shown = [
            (unit * 1023, format!("1023 {below}")),
            (unit * 1023 + unit / 100 * 94, format!("1023.9 {below}")),
            (first - unit / 1024, format!("1023.9 {below}")),
            (first, format!("1.0 {above}")),
            (unit * 1023 + unit / 100 * 99, format!("1.0 {above}")),
            (unit * 1024 - 1, format!("1.0 {above}")),
            (unit * 1024, format!("1 {above}")),
            (unit * 1024 + 1, format!("1.0 {above}")),
        ];
        for (bytes, text) in shown {
            assert_eq!(human_size(bytes), text, "{bytes}");
        }
    }
}

#[test]
fn columns_when_written_in_parts_then_aligned_as_in_the_first() {
    const COLUMNS: &[Column] = &[Column("NAME", Side::Left), Column("COUNT", Side::Right)];
    let row = |name: &str, count: &str| vec![name.to_owned(), count.to_owned()];
    let mut table = Columns::new(COLUMNS, true);
    let mut text = table.format(vec![row("a long name", "1")]);
    text += &table.format(vec![]);
    text += &table.format(vec![row("b", "22")]);
    assert_eq!(text, "NAME         COUNT\na long name      1\nb               22\n");
    assert_eq!(Columns::new(COLUMNS, false).format(vec![row("b", "2")]), "b  2\n");
    assert_eq!(Columns::new(COLUMNS, true).format(vec![]), "NAME  COUNT\n");
}

#[test]
fn columns_when_there_is_little_room_then_long_text_is_cut_and_nothing_else() {
    const COLUMNS: &[Column] = &[
        Column("NAME", Side::LeftOrCut),
        Column("ID", Side::Left),
        Column("JOB", Side::LeftOrCut),
        Column("COUNT", Side::Right),
    ];
    let row = ["a name of its own", "1000000.1000000", "job 日本語 of somebody", "123456"];
    let row: Vec<String> = row.map(str::to_owned).into();
    let format = |room| {
        let mut table = Columns::new(COLUMNS, false);
        table.room = room;
        table.format(vec![row.clone(), row.clone()])
    };
    let whole = "a name of its own  1000000.1000000  job 日本語 of somebody  123456\n";
    assert_eq!(format(None), whole.repeat(2));
    assert_eq!(format(Some(200)), whole.repeat(2));
    let cut = "a name of i…  1000000.1000000  job 日本語 …  123456\n";
    assert_eq!(format(Some(51)), cut.repeat(2));
    let least = "a name …  1000000.1000000  job 日…  123456\n";
    assert_eq!(format(Some(10)), least.repeat(2));
}

#[test]
fn commas_when_long_then_groups_of_three() {
    assert_eq!(commas(0), "0");
    assert_eq!(commas(999), "999");
    assert_eq!(commas(11_200), "11,200");
    assert_eq!(commas(157_286_400), "157,286,400");
}

#[test]
fn counted_when_one_then_no_plural() {
    assert_eq!(counted(1, "job"), "1 job");
    assert_eq!(counted(1, "process") + &counted(2, "process"), "1 process2 processes");
    assert_eq!(counted(0, "job") + &counted(2000, "x"), "0 jobs2,000 xs");
}

#[test]
fn seconds_when_written_as_json_then_to_the_millisecond() {
    for (ms, text) in [(0, "0.0"), (1, "0.001"), (430_591, "430.591"), (86_400_000, "86400.0")] {
        assert_eq!(serde_json::to_string(&seconds(ms)).expect("a number"), text);
    }
}

#[test]
fn seconds_of_us_when_a_time_of_today_then_to_the_microsecond() {
    let texts = [(7, "7e-6"), (1_790_000_000_000_001, "1790000000.000001")];
    for (us, text) in texts {
        assert_eq!(serde_json::to_string(&seconds_of_us(us)).expect("a number"), text);
    }
}

#[test]
fn human_time_when_each_unit_then_readable() {
    assert_eq!(human_time(850), "850 ms");
    assert_eq!(human_time(12_345), "12.3 s");
    assert_eq!(human_time(245_000), "4 min 5 s");
    assert_eq!(human_time(10_920_000), "3 h 2 min");
}

#[test]
fn printable_when_text_would_move_the_cursor_or_turn_its_direction_then_shown_as_in_json() {
    for name in [
        "line\nbreak",
        "tab\tand\rreturn",
        "right\u{202e}to left",
        "\u{1b}[2J",
        "\u{e0041}tag",
        "a\\nb",
    ] {
        let shown = printable(name);
        assert!(shown.chars().all(|c| c.is_ascii_graphic() || c == ' '), "{shown}");
        let again: String = serde_json::from_str(&format!("\"{shown}\"")).expect("as in JSON");
        assert_eq!(again, name);
    }
    assert_eq!(printable("plain/ümlaut \u{1f600}"), "plain/ümlaut \u{1f600}");
    assert_eq!(printable("\u{202e}x"), "\\u202ex");
}

#[test]
fn columns_when_not_all_fit_then_the_first_are_shown_and_others_where_there_is_room() {
    const COLUMNS: &[Column] = &[
        Column("NAME", Side::LeftOrCut),
        Column("SIZE", Side::Right),
        Column("WIDE_NUMBER", Side::Right),
        Column("KIND", Side::Left),
    ];
    let row = |name: &str| [name, "64 KiB", "1", "memfd"].map(str::to_owned).to_vec();
    let format = |room, rows| {
        let columns = Columns::new(COLUMNS, true);
        Columns { room: Some(room), is_to_fit: true, ..columns }.format(rows)
    };
    let long = "a name of more than twenty characters";
    assert_eq!(format(20, vec![row("a")]), "NAME    SIZE  KIND\na     64 KiB  memfd\n");
    assert_eq!(format(40, vec![row(long)]).lines().map(|line| line.width()).max(), Some(40));
    assert!(!format(40, vec![row(long)]).contains("WIDE_NUMBER"));
    assert!(format(80, vec![row(long)]).contains(long), "all fit");
    assert_eq!(format(1, vec![]), "NAME\n", "one is always there");
    let mut table = Columns { room: Some(20), is_to_fit: true, ..Columns::new(COLUMNS, false) };
    let parts = [table.format(vec![row("a")]), table.format(vec![row("b")])];
    assert_eq!(parts, ["a  64 KiB  memfd\n", "b  64 KiB  memfd\n"], "later parts have the same");
}
