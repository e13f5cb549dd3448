//! Where processes meet at a broker that one of them starts: the home of a user, in it a room for
//! each job, and how a job is told. Must never start or end a broker.

pub mod home;
pub mod job;
pub mod room;
