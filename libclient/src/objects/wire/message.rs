//! What all requests about objects have: the check of a name, and how much fits into one message.
//! Must never let a name pass that the broker would take for a broken message.

use crate::error::Error;
use fdbroker_protocol::limits::{MAX_OBJECT_MESSAGE_BYTES, NAME_OF_OBJECT_BYTES};
use fdbroker_protocol::message::Header;
use fdbroker_protocol::{ErrorCode, MAX_BATCH, is_object_name};
use std::ops::Range;

/// BAD_HANDLE or TOO_LONG for what cannot be a name.
pub fn check_name(what: &str, name: &str) -> Result<(), Error> {
    if is_object_name(name.as_bytes()) {
        return Ok(());
    }
    if name.len() > NAME_OF_OBJECT_BYTES {
        return Err(Error::new(
            ErrorCode::TooLong,
            format!("{what}: a name of {} bytes", name.len()),
        ));
    }
    let why = "the name of an object has 1 to 255 bytes of UTF-8 without NUL";
    Err(Error::new(ErrorCode::BadHandle, format!("{what} {name:?}")).because(why))
}

/// As many of the parts from `begin` on as one message has room for, behind a head of so many
/// bytes; one at least.
pub fn chunk(begin: usize, sizes: impl Iterator<Item = usize>, head: usize) -> Range<usize> {
    let mut left = MAX_OBJECT_MESSAGE_BYTES - size_of::<Header>() - head;
    let fits = |size: &usize| {
        let fits = *size <= left;
        left = left.saturating_sub(*size);
        fits
    };
    let count = sizes.take(MAX_BATCH).take_while(fits).count();
    begin..begin + count
}
