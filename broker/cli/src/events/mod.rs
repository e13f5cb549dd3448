//! What happens in the broker, as it tells those who watch it: a stream of events, and how one is shown. Must never hold what
//! nobody takes.

pub mod stream;
pub mod view;
