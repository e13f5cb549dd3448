//! Putting: bytes that there are become a group of host objects. One file, written by one call and
//! sealed before the broker has it: nothing is mapped. Must never copy what the kernel can gather.

use super::memory::{Layout, write_sealed};
use super::options::{NewObject, ObjectOptions, Place, PutObject};
use super::whose::Whose;
use super::wire;
use crate::backend::closed_here;
use crate::deadline::Deadline;
use crate::error::Error;
use fdbroker_protocol::limits::MAX_GROUP;

pub(super) fn put_group(
    whose: &Whose,
    puts: &[PutObject<'_>],
    options: ObjectOptions,
    deadline: Deadline,
) -> Result<u64, Error> {
    let connection = whose.client.connection("put", deadline)?;
    let members: Vec<NewObject<'_>> = puts.iter().map(NewObject::from).collect();
    let layout = Layout::of(&members, &Place::Host, 0)?;
    let items = wire::Items::of(&members, &layout.members)?;
    let fd = write_sealed(&layout, puts)?;
    let file = fd.proved().ok_or_else(closed_here)?;
    let head = wire::host_head(whose.flags(), options, layout.size_bytes);
    let first = items.first_chunk(size_of_val(&head));
    let end = first.end;
    let number = wire::create(&connection, &head, &items, first, file, deadline)?.group;
    drop(fd);
    let sealed = wire::add(&connection, number, &items, end, deadline)
        .and_then(|()| wire::seal(&connection, number, deadline));
    // Of one that is sealed the broker says that it is.
    sealed.inspect_err(|_| wire::abort(&connection, number))
}

pub(super) fn put_many(
    whose: &Whose,
    puts: &[PutObject<'_>],
    options: ObjectOptions,
    deadline: Deadline,
) -> Result<Vec<u64>, Error> {
    let mut versions = Vec::with_capacity(puts.len());
    for group in puts.chunks(MAX_GROUP) {
        let version = put_group(whose, group, options, deadline)?;
        versions.resize(versions.len() + group.len(), version);
    }
    Ok(versions)
}

impl<'a> From<&PutObject<'a>> for NewObject<'a> {
    fn from(put: &PutObject<'a>) -> Self {
        let PutObject { name, bytes, metadata, expect } = *put;
        NewObject { metadata, expect, ..NewObject::new(name, bytes.len() as u64) }
    }
}
