//! The tests of the protocol: messages taken apart, and the page that documents them.

mod codec;
mod named;
mod page;
