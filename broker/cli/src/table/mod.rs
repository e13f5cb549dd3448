//! Lists of records. A list declares its columns once, for the table, JSON, `-o`, `--sort` and
//! `--filter`. Must never hold more records than one page, except for `--sort`.

mod args;
mod choice;
mod column;
mod filter;
mod literal;
mod parse;
mod print;
mod sort;
mod value;

pub use args::{ListArgs, after_help};
pub use choice::names;
pub use column::{Column, Kind};
pub use print::{Fields, List};
pub use value::Value;
