//! Clients' messages: requests taken apart into the core's inputs, replies written, virtual fds
//! resolved. Must never send or receive.

pub mod objects;
pub mod replies;
pub mod requests;
pub mod resolve;
