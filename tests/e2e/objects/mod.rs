//! Named objects with the real daemon: every call, its errors, and what the deaths of clients,
//! other makers and other brokers do to them; by the bare protocol where a library would not do
//! such a thing, and by the real library. Each complaint about other stores is a test here.

mod charges;
mod cuda;
mod deaths;
mod getting;
mod groups;
mod inheriting;
mod kept;
mod library;
mod lists;
mod maker;
mod making;
mod mapped;
mod names;
mod sealing;
mod starts;
mod successors;
mod touching;
mod users;
mod watching;

use crate::support::peer::Part;

/// What a helper of these tests may play.
pub const MAKER: Part = ("maker", maker::play);
pub const CHANGING: Part = ("changing", lists::play_changing);
pub const CHILDREN: Part = ("children", library::play_children);
