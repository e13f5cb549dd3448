//! Moves of named objects.

pub(crate) mod charging;
pub(crate) mod ending;
pub(crate) mod evicting;
pub(crate) mod telling;
