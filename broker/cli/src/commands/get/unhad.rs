//! Why an object cannot be had, in words of `fdbroker get`. Must never print them.

use crate::by_name::at;
use crate::output::printable;
use fdbroker_protocol::ErrorCode;

/// Why one of the objects cannot be had, with what to do about it here.
pub fn unhad(names: &[String], mut error: fdbroker_client::Error) -> fdbroker_client::Error {
    let of_one = at(&error).and_then(|index| names.get(index));
    let Some(name) = of_one.filter(|_| error.code == ErrorCode::NotFound) else { return error };
    error.context = printable(name);
    error.because(
        "no object has this name; `fdbroker objects` lists them, --timeout 30s waits until it is made",
    )
}
