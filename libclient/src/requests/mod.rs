//! What a rank asks of the broker: one file for each kind of request.
//! Must never answer what the broker asks of this client: `serve` does.

pub(crate) mod acquire;
pub(crate) mod acquiring;
pub(crate) mod ahead;
pub(crate) mod early;
pub(crate) mod flush;
pub(crate) mod got;
pub(crate) mod inherited;
pub(crate) mod register;
pub(crate) mod registering;
pub(crate) mod resolve;
pub(crate) mod started;
pub(crate) mod unregister;
