//! The answer to a get of objects: a grant for each group, and where the objects are in it.
//! Must never lose a grant of an answer that cannot be used.

use super::acquire::{Arrived, Outcome, outcome};
use crate::books::grant::Grant;
use crate::error::Error;
use crate::wire::call::{Reply, check_count};
use crate::wire::connection::Connection;
use fdbroker_protocol::{DecodeError, ErrorCode, Kind};

/// The answer to a get.
#[derive(Debug)]
pub struct Answer {
    /// One for each group.
    pub grants: Vec<Grant>,
    /// One for each name.
    pub items: Vec<AnswerItem>,
}

/// What a name leads to.
#[derive(Debug)]
pub struct AnswerItem {
    pub version: u64,
    pub offset: u64,
    pub size_bytes: u64,
    /// Index among the grants.
    pub grant: usize,
    pub metadata_bytes: usize,
    /// All of it, or none.
    pub metadata: Box<[u8]>,
}

/// What cannot be used of it is given back.
pub fn read_got(
    connection: &Connection,
    reply: Reply<'_>,
    count: usize,
) -> Result<Result<Answer, Error>, DecodeError> {
    let got = reply.message.got()?;
    check_count(Kind::ObjectGot, got.items.len(), count)?;
    let mut arrived = Arrived::new(reply.fds, usize::from(reply.message.fd_count));
    let mut blocks = got.driver_data.iter();
    let mut grants = Vec::with_capacity(got.grants.len());
    for item in got.grants {
        grants.push(outcome(connection, item, None, &mut blocks, &mut arrived));
    }
    let mut metadata = got.metadata;
    let mut items = Vec::with_capacity(got.items.len());
    for item in got.items {
        let (here, rest) = metadata.split_at(item.metadata_here.into());
        metadata = rest;
        items.push(AnswerItem {
            version: item.version.get(),
            offset: item.offset.get(),
            size_bytes: item.size_bytes.get(),
            grant: item.grant.get().into(),
            metadata_bytes: item.metadata_len.get().into(),
            metadata: here.into(),
        });
    }
    let granted = |outcome: Outcome| match outcome {
        Outcome::Granted(grant) => Ok(grant),
        Outcome::NoRoom => Err(Error::new(ErrorCode::LocalFdLimit, "get")),
        Outcome::Again => Err(Error::new(ErrorCode::Again, "get")),
        Outcome::Refused(status) => Err(Error::from_status(status, "get")),
    };
    Ok(grants
        .into_iter()
        .map(granted)
        .collect::<Result<_, _>>()
        .map(|grants| Answer { grants, items }))
}
