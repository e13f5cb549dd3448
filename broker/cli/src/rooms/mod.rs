//! Where processes meet at a broker that one of them starts: the home of a user, in it a room for
//! each job, and how a job is told. Must never start or end a broker.

pub mod home;
pub mod job;
pub mod room;

use home::Home;
use job::Job;
use room::Room;
use std::ffi::OsString;
use std::path::Path;

/// The room of the broker that programs of this user start by themselves, should there be one.
/// `variable` looks into the environment.
pub fn started(variable: impl Fn(&str) -> Option<OsString>) -> Option<Room> {
    let name = Job::of_started(&variable).directory_name().ok()?;
    let temporary = variable("TMPDIR");
    Home::find(temporary, &name)?.existing_room(&name)
}

/// The room whose broker has its administrators' socket there, if programs have started that
/// broker.
pub fn of_started(admin_socket: &Path) -> Option<Room> {
    let path = admin_socket.parent()?.parent()?;
    let is_room = job::is_of_started(path) && room::check_directory(path).is_ok();
    is_room.then(|| Room::at(path))
}
