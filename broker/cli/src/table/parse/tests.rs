//! Filters that are right, wrong, and at their bounds.

use super::*;
use fdbroker_protocol::AllocationId;

const COLUMNS: &[Column<u64>] = &[
    Column::new(Kind::Size, "SIZE", "size_bytes", "", |it| Value::Size(*it)),
    Column::new(Kind::Text, "NAME", "name", "", |_| Value::word("x")),
    Column::new(Kind::Flag, "KEEP", "keep", "", |_| Value::Flag(true)),
    Column::new(Kind::Word(&["open", "mapped"]), "STATE", "state", "", |_| Value::word("open")),
];

fn error(text: &str) -> String {
    match filter(COLUMNS, text) {
        Ok(_) => panic!("`{text}` was taken"),
        Err(error) => {
            assert_eq!(error.exit_status(), crate::error::exit::USAGE);
            error.to_string()
        }
    }
}

#[test]
fn filter_when_broken_then_what_is_expected_is_said() {
    for (text, part) in [
        ("", "a column or `(`"),
        ("   ", "a column or `(`"),
        ("SIZE", "one of =="),
        ("SIZE 1", "one of =="),
        ("SIZE = 1", "`=` is no operator"),
        ("SIZE ==", "a value"),
        ("SIZE == ==", "a value"),
        ("SIZE == 1 SIZE == 2", "`and`, `or` or the end"),
        ("SIZE == 1 and", "a column or `(`"),
        ("or SIZE == 1", "no column `or`"),
        ("(SIZE == 1", "`)`"),
        ("SIZE == 1)", "`and`, `or` or the end"),
        ("()", "a column or `(`"),
        ("COLOUR == red", "SIZE, NAME, KEEP, STATE"),
        ("SIZE == 1.5MiB", "a whole number with"),
        ("SIZE =~ 1", "=~ is for text"),
        ("KEEP < yes", "== or !="),
        ("KEEP == maybe", "yes or no"),
        ("STATE == opened", "`opened` is not one of open, mapped"),
        ("STATE < open", "a word: use == or !="),
        ("STATE =~ o", "=~ is for text"),
        ("NAME == 'x", "quotation mark"),
        ("NAME == \"", "quotation mark"),
        ("\"NAME\" == x", "a column or `(`"),
        ("NAME ~ x", "`~` is no operator"),
    ] {
        let message = error(text);
        assert!(message.contains(part), "{text}: {message}");
    }
}

#[test]
fn filter_when_hostile_then_an_error_and_no_terminal_codes() {
    let deep = |levels: usize| format!("{}SIZE==1{}", "(".repeat(levels), ")".repeat(levels));
    assert!(filter(COLUMNS, &deep(FILTER_DEPTH as usize)).is_ok());
    assert!(error(&deep(FILTER_DEPTH as usize + 1)).contains("parentheses"));
    assert!(error(&"(".repeat(FILTER_BYTES)).contains("parentheses"));
    assert!(error(&" ".repeat(FILTER_BYTES + 1)).contains("at most"));
    let long = vec!["SIZE==1"; 300].join(" or ");
    assert!(filter(COLUMNS, &long).is_ok());
    for text in ["\x1b[2J", "SIZE == \x1b[2J", "NAME == é'", "é\u{3000}==", "NAME == '\u{0}"] {
        assert!(!error(text).contains('\x1b'));
    }
}

/// Tries all short sequences of tokens: none may panic.
#[test]
fn filter_when_any_short_sequence_of_tokens_then_an_answer() {
    const PIECES: &[&str] = &["(", ")", "SIZE", "==", "=", "1", "and", "or", "'", "é", " ", "<"];
    let mut taken = 0;
    for number in 0..PIECES.len().pow(5) {
        let mut rest = number;
        let mut text = String::new();
        for _ in 0..5 {
            text.push_str(PIECES[rest % PIECES.len()]);
            rest /= PIECES.len();
        }
        taken += usize::from(filter(COLUMNS, &text).is_ok());
    }
    assert!(taken > 0);
}

#[test]
fn filter_when_a_size_is_written_as_tables_have_it_then_taken_and_what_follows_too() {
    for text in ["SIZE == 8 GiB", "SIZE == 8Gi and NAME == x", "SIZE >= 8 GiB or KEEP == no"] {
        let filter = filter(COLUMNS, text).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert!(filter.has(&(8 << 30)) && !filter.has(&7), "{text}");
    }
}

struct Row(u64, Option<u32>, &'static str, bool);

const ROW_COLUMNS: &[Column<Row>] = &[
    Column::new(Kind::Size, "SIZE", "size_bytes", "", |it| Value::Size(it.0)),
    Column::new(Kind::Number, "OWNER", "owner_pid", "", |it| Value::number_or(it.1, "gone")),
    Column::new(Kind::Text, "NAME", "name", "", |it| Value::word(it.2)),
    Column::new(Kind::Flag, "KEEP", "keep", "", |it| Value::Flag(it.3)),
    Column::new(Kind::Time, "AGE", "age_seconds", "", |it| Value::Time(it.0)),
    Column::new(Kind::Allocation, "ALLOCATION", "allocation", "", |it| {
        Value::Allocation(AllocationId { slot: 12, generation: it.1.unwrap_or(0) })
    }),
];

fn has(text: &str, row: &Row) -> bool {
    filter(ROW_COLUMNS, text).unwrap_or_else(|error| panic!("{error}")).has(row)
}

#[test]
fn filter_when_each_operator_then_as_written() {
    let row = Row(65536, Some(7), "rank 3", true);
    for (filter, expected) in [
        ("SIZE == 64KiB", true),
        ("SIZE!=65536", false),
        ("SIZE < 64KiB", false),
        ("SIZE <= 64KiB", true),
        ("SIZE > 1KiB", true),
        ("size_bytes >= 1MiB", false),
        ("NAME =~ rank", true),
        ("NAME =~ 'k 3'", true),
        ("NAME =~ Rank", false),
        ("NAME == \"rank 3\"", true),
        ("KEEP == yes", true),
        ("KEEP != true", false),
        ("AGE > 1m", true),
        ("age > 66", false),
        ("ALLOCATION == 12.7", true),
        ("ALLOCATION < 12.8", true),
        ("OWNER == 0x7", true),
    ] {
        assert_eq!(has(filter, &row), expected, "{filter}");
    }
}

#[test]
fn filter_when_joined_then_and_before_or_and_parentheses_first() {
    let row = Row(1, Some(7), "x", false);
    assert!(has("SIZE == 1 or SIZE == 2 and OWNER == 8", &row));
    assert!(!has("(SIZE == 1 or SIZE == 2) and OWNER == 8", &row));
    assert!(has("((SIZE==1))AND(owner==7 Or NAME==y)", &row));
}

#[test]
fn filter_when_a_value_is_missing_then_only_none_and_unequal_find_it() {
    let gone = Row(1, None, "none", false);
    for filter in ["OWNER < 9", "OWNER >= 0", "OWNER == 0", "OWNER != none", "OWNER <= none"] {
        assert!(!has(filter, &gone), "{filter}");
    }
    assert!(has("OWNER == none", &gone) && has("OWNER != 7", &gone));
    assert!(has("OWNER != none", &Row(1, Some(0), "", false)));
    // In quotes it is a text like any other.
    assert!(has("NAME == 'none'", &gone) && !has("NAME == none", &gone));
}
