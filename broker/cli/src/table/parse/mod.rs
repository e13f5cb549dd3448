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
use std::borrow::Cow;

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
        if matches!(column.kind, Kind::Flag | Kind::Word(_)) && is_ordered {
            let kind = column.kind.name();
            return Err(self.error(&format!("{} is a {kind}: use == or !=", column.name)));
        }
        let value = match self.next()? {
            Token::Word("none") => Ok(Value::None("none")),
            Token::Word(text) => column.kind.parse(&self.with_unit(column.kind, text)?),
            Token::Quoted(text) => column.kind.parse(text),
            token => return Err(self.expected("a value", &token)),
        };
        let value = value.map_err(|problem| self.error(&format!("{}: {problem}", column.name)))?;
        Ok(Filter::Comparison(column, operator, value))
    }

    /// A number with the next word, if that is its unit: sizes and times as tables have them.
    fn with_unit(&mut self, kind: Kind, number: &'a str) -> Result<Cow<'a, str>> {
        if !matches!(kind, Kind::Size | Kind::Time)
            || !number.ends_with(|c: char| c.is_ascii_digit())
        {
            return Ok(number.into());
        }
        let before = self.at;
        if let Token::Word(unit) = self.next()? {
            let both = format!("{number} {unit}");
            if kind.parse(&both).is_ok() {
                return Ok(both.into());
            }
        }
        self.at = before;
        Ok(number.into())
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
            '=' | '!' | '~' => {
                let problem = format!("`{first}` is no operator: use one of == != < <= > >= =~");
                Err(self.error(&problem))
            }
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
mod tests;
