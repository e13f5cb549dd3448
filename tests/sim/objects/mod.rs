//! Named objects in the simulator: worlds of their own, in which clients make, get and delete
//! objects of few names at random. Must only begin the worlds: `model.rs` judges.

mod action;
mod choose;
mod judge;
mod model;
mod table;
mod world;

use crate::model::Check;
use crate::report::{Stats, Trace};

pub use world::World;

/// The configuration of these worlds.
pub const CONFIG: &str = "objects";

/// Steps of one world.
const STEPS_PER_WORLD: u64 = 2_000;

/// Runs worlds of one seed; their counts.
pub fn world(seed: u64, trace: Trace) -> World {
    World::new(seed, trace)
}

/// Runs a world for about so many steps.
pub fn run(world: &mut World, steps: u64) -> Check {
    world.run(steps.min(STEPS_PER_WORLD))
}

/// Its counts.
pub fn total(world: &World) -> Stats {
    Stats { by_promise: world.model.proofs.counts(), ..world.stats }
}
