//! The fuzz targets, by name. Each takes any bytes, and panics when the product is wrong.

pub mod cgroup;
pub mod config;
pub mod core;
pub mod daemon;
pub mod fdinfo;
pub mod handle;
pub mod library;
pub mod page;
pub mod saved;
pub mod wire;

/// A target takes an input.
pub type Target = fn(&[u8]);

/// Every target with its name, which its folders of inputs have, too.
pub const ALL: &[(&str, Target)] = &[
    ("cgroup", cgroup::run),
    ("config", config::run),
    ("core", core::run),
    ("daemon", daemon::run),
    ("fdinfo", fdinfo::run),
    ("handle", handle::run),
    ("library", library::run),
    ("page", page::run),
    ("saved", saved::run),
    ("wire", wire::run),
];
