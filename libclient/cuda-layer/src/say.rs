//! The layer's lines on stderr. Must never print a line for each allocation.

use fdbroker_layer::Voice;
use std::fmt::Display;

/// The kinds of news, one bit each.
#[derive(Clone, Copy, Debug)]
#[repr(u32)]
pub enum News {
    NoBroker = 1,
    BrokerLost = 2,
    NotRegistered = 4,
    NotImported = 8,
    Waiting = 16,
    NoMalloc = 32,
    NotShared = 64,
    NotOpened = 128,
}

static VOICE: Voice = Voice::new("fdbroker-cuda");

/// Prints the line, unless one of this kind was printed before or FDBROKER_LOG is `off`.
pub fn once(news: News, text: impl Display) {
    VOICE.once(news as u32, text);
}
