//! The layer's kinds of news, each said once per process. Must never print a line for each handle.

use fdbroker_layer::Voice;
use std::fmt::Display;

/// The kinds of news, one bit each.
#[derive(Clone, Copy, Debug)]
#[repr(u32)]
pub enum News {
    NoBroker = 1,
    BrokerLost = 2,
    NotRegistered = 4,
    NotOpened = 8,
    OtherNode = 16,
    Waiting = 32,
    NoFreeFd = 64,
}

/// Prints the line, unless one of this kind was printed before or FDBROKER_LOG is `off`.
pub fn once(news: News, text: impl Display) {
    static VOICE: Voice = Voice::new("fdbroker-level-zero");
    VOICE.once(news as u32, text);
}
