//! What is read of several owners. Must never change one.

mod accounts;
mod files;
pub(crate) mod items;
mod objects;
mod rooms;
mod shares;
