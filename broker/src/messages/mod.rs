//! Clients' messages: requests taken apart into the core's inputs, replies written. Must never send or receive.

pub mod replies;
pub mod requests;
