//! metrics as scrapers meet them. Every family is seen to change, in a broker of a test's own, from
//! one value that the test predicts to another ([`every`] says if one is not); and the server. Must
//! never assert how fast anything is.

mod caps;
mod closing;
mod every;
mod fleet;
mod full;
mod lasting;
mod page;
mod recall;
mod rig;
mod seen;
mod server;
mod sharing;
mod state;
