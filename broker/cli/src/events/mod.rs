//! The broker's events: the stream that receives them, and how they are shown. Must never store
//! events without a bound.

pub mod stream;
pub mod view;
