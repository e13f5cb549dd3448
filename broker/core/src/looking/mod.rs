//! The core as others see it: views, what is saved, what is restored, the invariants. Must never be
//! asked by a move.

pub(crate) mod events;
pub(crate) mod former;
pub(crate) mod invariants;
pub(crate) mod objects;
pub(crate) mod remembered;
pub(crate) mod restore;
pub(crate) mod saved;
pub(crate) mod view;
