//! Named objects in the cases that are hard: the real daemon, real processes, the bare protocol
//! where a library would not do such a thing, and the real library. Each complaint about other
//! stores of objects is a test here. Run by `tests/objects/run.sh`.

#[path = "../common/mod.rs"]
mod common;
#[path = "../e2e/support/mod.rs"]
#[allow(dead_code, reason = "the end to end tests use all of it")]
mod support;
mod wire;

mod charges;
mod cuda;
mod deaths;
mod getting;
mod groups;
mod library;
mod lists;
mod making;
mod names;
mod sealing;
mod users;
mod watching;

/// Every part that a helper of a test may play.
const PARTS: &[support::peer::Part] = &[
    ("maker", wire::play),
    ("changing", lists::play_changing),
    ("children", library::play_children),
];
