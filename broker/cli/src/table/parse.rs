//! Reads `--filter`. Must never recurse deeper than a named bound.
//!
//! ```text
//! any        = all { "or" all }
//! all        = part { "and" part }
//! part       = "(" any ")" | COLUMN OPERATOR VALUE
//! ```

use super::choice::find;
use super::column::{Column, Kind};
use super::filter::{Filter, Operator};
use super::value::Value;
use crate::error::{Error, Result};

/// Longest filter: room for a hundred comparisons, and far below the limit of a command line.
pub const FILTER_BYTES: usize = 4096;
/// Deepest nesting of parentheses. Each level is one of recursion, here and for each record.
pub const FILTER_DEPTH: u32 = 32;

/// Reads a filter of `columns`.
pub fn filter<R>(columns: &'static [Column<R>], text: &str) -> Result<Filter<R>> {
    if text.len() > FILTER_BYTES {
        let message = format!("--filter: {} bytes, at most {FILTER_BYTES} are read", text.len());
        return Err(Error::Usage(message));
    }
    let mut parser = Parser { columns, text, at: 0 };
    let filter = parser.any(0)?;
    match parser.next()? {
        Token::End => Ok(filter),
        token => Err(parser.expected("`and`, `or` or the end", &token)),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token<'a> {
    Open,
    Close,
    Operator(Operator),
    Word(&'a str),
    Quoted(&'a str),
    End,
}

struct Parser<'a, R: 'static> {
    columns: &'static [Column<R>],
    text: &'a str,
    /// Where the next token begins, in bytes.
    at: usize,
}

impl<'a, R> Parser<'a, R> {
    fn any(&mut self, depth: u32) -> Result<Filter<R>> {
        let mut parts = vec![self.all(depth)?];
        while self.take_word("or")? {
            parts.push(self.all(depth)?);
        }
        Ok(one_or(parts, Filter::Any))
    }

    fn all(&mut self, depth: u32) -> Result<Filter<R>> {
        let mut parts = vec![self.part(depth)?];
        while self.take_word("and")? {
            parts.push(self.part(depth)?);
        }
        Ok(one_or(parts, Filter::All))
    }

    fn part(&mut self, depth: u32) -> Result<Filter<R>> {
        match self.next()? {
            Token::Open if depth == FILTER_DEPTH => {
                Err(self.error(&format!("more than {FILTER_DEPTH} parentheses in each other")))
            }
            Token::Open => {
                let inner = self.any(depth + 1)?;
                match self.next()? {
                    Token::Close => Ok(inner),
                    token => Err(self.expected("`and`, `or` or `)`", &token)),
                }
            }
            Token::Word(name) => self.comparison(name),
            token => Err(self.expected("a column or `(`", &token)),
        }
    }

    fn comparison(&mut self, name: &str) -> Result<Filter<R>> {
        let column = find(self.columns, name)?;
        let operator = match self.next()? {
            Token::Operator(operator) => operator,
            token => return Err(self.expected("one of == != < <= > >= =~", &token)),
        };
        if operator == Operator::Contains && column.kind != Kind::Text {
            let kind = column.kind.name();
            return Err(self.error(&format!("=~ is for text, and {} is {kind}", column.name)));
        }
        let is_ordered = !matches!(operator, Operator::Equal | Operator::Unequal);
        if column.kind == Kind::Flag && is_ordered {
            return Err(self.error(&format!("{} is a flag: use == or !=", column.name)));
        }
        let value = match self.next()? {
            Token::Word("none") => Ok(Value::None("none")),
            Token::Word(text) | Token::Quoted(text) => column.kind.parse(text),
            token => return Err(self.expected("a value", &token)),
        };
        let value = value.map_err(|problem| self.error(&format!("{}: {problem}", column.name)))?;
        Ok(Filter::Comparison(column, operator, value))
    }

    /// Takes the next token if it is this word, in any case.
    fn take_word(&mut self, word: &str) -> Result<bool> {
        let before = self.at;
        let is_it = matches!(self.next()?, Token::Word(found) if found.eq_ignore_ascii_case(word));
        if !is_it {
            self.at = before;
        }
        Ok(is_it)
    }

    fn next(&mut self) -> Result<Token<'a>> {
        let text = self.text;
        let rest = text[self.at..].trim_start();
        self.at = text.len() - rest.len();
        let Some(first) = rest.chars().next() else { return Ok(Token::End) };
        let written = Operator::WRITTEN.iter().find(|(written, _)| rest.starts_with(written));
        if let Some((written, operator)) = written {
            self.at += written.len();
            return Ok(Token::Operator(*operator));
        }
        match first {
            '(' | ')' => {
                self.at += 1;
                Ok(if first == '(' { Token::Open } else { Token::Close })
            }
            '"' | '\'' => match rest[1..].find(first) {
                Some(length) => {
                    self.at += length + 2;
                    Ok(Token::Quoted(&rest[1..=length]))
                }
                None => Err(self.error("a quotation mark without its end")),
            },
            '=' | '!' | '~' => Err(self.error("no operator: use one of == != < <= > >= =~")),
            _ => {
                let is_end = |c: char| c.is_whitespace() || "()=!<>~\"'".contains(c);
                let word = &rest[..rest.find(is_end).unwrap_or(rest.len())];
                self.at += word.len();
                Ok(Token::Word(word))
            }
        }
    }

    fn expected(&self, what: &str, found: &Token<'_>) -> Error {
        match found {
            Token::End => self.error(&format!("it ends where {what} is expected")),
            _ => self.error(&format!("{what} is expected before this")),
        }
    }

    /// An error that shows the text up to the place of the problem.
    fn error(&self, problem: &str) -> Error {
        let read = self.text[..self.at].escape_debug();
        Error::Usage(format!(
            "--filter: {problem}: `{read}`; `--help` shows how filters are written"
        ))
    }
}

/// Joins the parts, unless there is only one.
fn one_or<R>(mut parts: Vec<Filter<R>>, join: fn(Vec<Filter<R>>) -> Filter<R>) -> Filter<R> {
    match (parts.pop(), parts.is_empty()) {
        (Some(part), true) => part,
        (last, _) => {
            parts.extend(last);
            join(parts)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fdbroker_protocol::AllocationId;

    const COLUMNS: &[Column<u64>] = &[
        Column::new(Kind::Size, "SIZE", "size_bytes", "", |it| Value::Size(*it)),
        Column::new(Kind::Text, "NAME", "name", "", |_| Value::word("x")),
        Column::new(Kind::Flag, "KEEP", "keep", "", |_| Value::Flag(true)),
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
            ("SIZE = 1", "no operator"),
            ("SIZE ==", "a value"),
            ("SIZE == ==", "a value"),
            ("SIZE == 1 SIZE == 2", "`and`, `or` or the end"),
            ("SIZE == 1 and", "a column or `(`"),
            ("or SIZE == 1", "no column `or`"),
            ("(SIZE == 1", "`)`"),
            ("SIZE == 1)", "`and`, `or` or the end"),
            ("()", "a column or `(`"),
            ("COLOUR == red", "SIZE, NAME, KEEP"),
            ("SIZE == 1.5MiB", "a whole number with"),
            ("SIZE =~ 1", "=~ is for text"),
            ("KEEP < yes", "== or !="),
            ("KEEP == maybe", "yes or no"),
            ("NAME == 'x", "quotation mark"),
            ("NAME == \"", "quotation mark"),
            ("\"NAME\" == x", "a column or `(`"),
            ("NAME ~ x", "no operator"),
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
        for text in ["\x1b[2J", "SIZE == \x1b[2J", "NAME == é'", "é\u{3000}==", "NAME == '\u{0}"]
        {
            assert!(!error(text).contains('\x1b'));
        }
    }

    /// Tries all short sequences of tokens: none may panic.
    #[test]
    fn filter_when_any_short_sequence_of_tokens_then_an_answer() {
        const PIECES: &[&str] =
            &["(", ")", "SIZE", "==", "=", "1", "and", "or", "'", "é", " ", "<"];
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
}
