//! What changes two owners or more, so that their sums stay right. Must never know of a request.

pub(crate) mod charging;
pub(crate) mod closing;
pub(crate) mod ending;
pub(crate) mod evicting;
pub(crate) mod keeping;
pub(crate) mod leasing;
pub(crate) mod lines;
pub(crate) mod noting;
pub(crate) mod objects;
pub(crate) mod pinning;
pub(crate) mod recalling;
pub(crate) mod reclaiming;
pub(crate) mod waiting;
