//! Decodes a terminal's bytes into keys, and applies keys to the user's choice. Must never read the
//! terminal, nor wait.

use super::model::{Filter, Order};
use std::time::Duration;

/// A key with a function in top.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    Char(char),
    Enter,
    Escape,
    Backspace,
    Up,
    Down,
    PageUp,
    PageDown,
    Home,
    End,
    /// Ctrl-C.
    Interrupt,
    /// Ctrl-Z.
    Suspend,
    /// Ctrl-L.
    Repaint,
}

const ESCAPE: u8 = 0x1b;
/// Most bytes of the escape sequence of a key; longer sequences are ignored.
const SEQUENCE_BYTES: usize = 16;
/// Longest wait for the rest of an escape sequence; then the key was Esc.
pub const SEQUENCE_WAIT: Duration = Duration::from_millis(50);

/// Decodes the bytes that a terminal sends (console_codes(4); xterm's cursor and editing keys).
#[derive(Debug, Default)]
pub struct Decoder {
    /// The begin of an incomplete sequence.
    pending: Vec<u8>,
}

impl Decoder {
    /// The keys of these bytes; unknown keys are left out.
    pub fn decode(&mut self, bytes: &[u8]) -> Vec<Key> {
        let mut all = std::mem::take(&mut self.pending);
        all.extend_from_slice(bytes);
        let (mut keys, mut rest) = (Vec::new(), all.as_slice());
        while !rest.is_empty() {
            let Some((key, length)) = first(rest) else {
                self.pending = rest.to_vec();
                break;
            };
            keys.extend(key);
            rest = &rest[length..];
        }
        keys
    }

    /// Whether a sequence is incomplete.
    pub fn is_waiting(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Ends a sequence that is incomplete after [`SEQUENCE_WAIT`].
    pub fn give_up(&mut self) -> Option<Key> {
        let pending = std::mem::take(&mut self.pending);
        (pending == [ESCAPE]).then_some(Key::Escape)
    }
}

/// The first key of `bytes`, if top knows it, and its length. `None`: the key is incomplete.
fn first(bytes: &[u8]) -> Option<(Option<Key>, usize)> {
    match bytes[0] {
        ESCAPE => sequence(bytes),
        b'\r' | b'\n' => Some((Some(Key::Enter), 1)),
        0x7f | 0x08 => Some((Some(Key::Backspace), 1)),
        0x03 => Some((Some(Key::Interrupt), 1)),
        0x1a => Some((Some(Key::Suspend), 1)),
        0x0c => Some((Some(Key::Repaint), 1)),
        byte if byte < 0x20 => Some((None, 1)),
        byte if byte.is_ascii() => Some((Some(Key::Char(byte.into())), 1)),
        byte => {
            // The first byte of UTF-8 gives the length.
            let length = match byte {
                0xc0..0xe0 => 2,
                0xe0..0xf0 => 3,
                0xf0..0xf8 => 4,
                _ => return Some((None, 1)),
            };
            let text = std::str::from_utf8(bytes.get(..length)?).ok();
            Some(match text.and_then(|text| text.chars().next()) {
                Some(character) => (Some(Key::Char(character)), length),
                None => (None, 1),
            })
        }
    }
}

fn sequence(bytes: &[u8]) -> Option<(Option<Key>, usize)> {
    let introducer = *bytes.get(1)?;
    if !matches!(introducer, b'[' | b'O') {
        return Some((Some(Key::Escape), 1));
    }
    let end = bytes.iter().skip(2).position(|byte| (0x40..0x7f).contains(byte));
    let end = match end.map(|index| index + 2) {
        None if bytes.len() < SEQUENCE_BYTES => return None,
        None => return Some((None, bytes.len())),
        Some(end) => end,
    };
    let key = match &bytes[2..=end] {
        b"A" => Some(Key::Up),
        b"B" => Some(Key::Down),
        b"H" | b"1~" | b"7~" => Some(Key::Home),
        b"F" | b"4~" | b"8~" => Some(Key::End),
        b"5~" => Some(Key::PageUp),
        b"6~" => Some(Key::PageDown),
        _ => None,
    };
    Some((key, end + 1))
}

/// Most characters of a filter: more than the longest name has.
const FILTER_CHARACTERS: usize = 40;

/// Intervals for the keys + and -, in ms.
const INTERVALS_MS: [u64; 9] = [100, 200, 500, 1000, 2000, 5000, 10_000, 30_000, 60_000];

/// Sizes of the last frame, for keys that scroll.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shown {
    /// Clients that match the filter.
    pub clients: usize,
    /// Clients that fit on the screen.
    pub page: usize,
}

#[derive(Clone, Debug, Default)]
pub struct Choice {
    pub order: Order,
    pub filter: Filter,
    /// The former filter, while the user types a new one.
    pub typing_over: Option<Filter>,
    pub is_paused: bool,
    pub helps: bool,
    /// Number of clients above the screen.
    pub scroll: usize,
    pub interval: Duration,
    pub shown: Shown,
}

/// What the loop does after a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    Draw,
    /// Clear the screen and draw a frame.
    Repaint,
    Suspend,
    Quit,
}

impl Choice {
    pub fn press(&mut self, key: Key) -> Act {
        match key {
            Key::Interrupt => return Act::Quit,
            Key::Suspend => return Act::Suspend,
            Key::Repaint => return Act::Repaint,
            _ if self.helps => self.helps = false,
            _ if self.typing_over.is_some() => self.type_filter(key),
            Key::Char('q') => return Act::Quit,
            Key::Char('h' | '?') => self.helps = true,
            Key::Char('p' | ' ') => self.is_paused = !self.is_paused,
            Key::Char('s') => self.order = self.order.next(),
            Key::Char('r') => self.order.reversed = !self.order.reversed,
            Key::Char('/') => self.typing_over = Some(std::mem::take(&mut self.filter)),
            Key::Char('+') => self.interval = step(self.interval, true),
            Key::Char('-') => self.interval = step(self.interval, false),
            Key::Escape => self.filter = Filter::default(),
            _ => self.move_by(key),
        }
        Act::Draw
    }

    /// Scrolls, at most until only the last client is on the screen.
    fn move_by(&mut self, key: Key) {
        let (page, last) = (self.shown.page.max(1), self.shown.clients.saturating_sub(1));
        let wanted = match key {
            Key::Up => self.scroll.saturating_sub(1),
            Key::Down => self.scroll + 1,
            Key::PageUp => self.scroll.saturating_sub(page),
            Key::PageDown => self.scroll + page,
            Key::Home => 0,
            Key::End => (last + 1).saturating_sub(page),
            _ => self.scroll,
        };
        self.scroll = wanted.min(last);
    }

    fn type_filter(&mut self, key: Key) {
        let text = &mut self.filter.0;
        match key {
            Key::Char(character) if text.chars().count() < FILTER_CHARACTERS => {
                text.push(character)
            }
            Key::Backspace => drop(text.pop()),
            Key::Enter => self.typing_over = None,
            Key::Escape => self.filter = self.typing_over.take().unwrap_or_default(),
            _ => {}
        }
        self.scroll = 0;
    }
}

/// The next longer or shorter interval.
fn step(interval: Duration, longer: bool) -> Duration {
    let mut steps = INTERVALS_MS.map(Duration::from_millis);
    if !longer {
        steps.reverse();
    }
    let is_next = |it: &Duration| if longer { *it > interval } else { *it < interval };
    steps.into_iter().find(is_next).unwrap_or(interval)
}

#[cfg(test)]
mod tests;
