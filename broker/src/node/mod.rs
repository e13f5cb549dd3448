//! What the broker has of its node: sockets, directories and their lock, the generation page and
//! the records beside it, signals. Must never know of clients.

pub(crate) mod config_file;
pub mod directories;
pub mod error;
pub mod generation_page;
pub mod leftovers;
pub mod listeners;
pub mod lock;
pub mod mark;
pub mod names;
pub mod namespace;
pub mod records;
pub mod shared_map;
pub mod side;
pub mod signals;
pub mod warden;
