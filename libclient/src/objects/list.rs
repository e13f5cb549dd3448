//! Lists of what is known of many objects, page by page. Must never ask for more than one page at a
//! time.

use super::info::ObjectInfo;
use super::options::Whose;
use super::wire;
use crate::deadline::Deadline;
use crate::error::Error;
use crate::interrupt::now;
use fdbroker_protocol::ErrorCode;

/// The names with a prefix, in the order of their bytes; see [`crate::Objects::list`]. Asks the
/// broker for the next page when it has given the last record of one. After an error it is over.
#[derive(Debug)]
pub struct ObjectList {
    whose: Whose,
    prefix: Box<str>,
    deadline: Deadline,
    page: std::vec::IntoIter<ObjectInfo>,
    /// The last name of the page before; empty: none was asked for.
    after: String,
    is_over: bool,
}

impl ObjectList {
    pub(super) fn new(whose: &Whose, prefix: &str, deadline: Deadline) -> Self {
        ObjectList {
            whose: whose.clone(),
            prefix: prefix.into(),
            deadline,
            page: Vec::new().into_iter(),
            after: String::new(),
            is_over: false,
        }
    }

    fn next_page(&mut self) -> Result<(), Error> {
        // One for all pages: a broker that answers each of them at once must not make a long list
        // endless. The first one is asked for whatever the deadline, as by any other call.
        if !self.after.is_empty() && now() >= self.deadline.given_up_at() {
            return Err(Error::timed_out(format!("list {} behind {}", self.prefix, self.after)));
        }
        let connection = self.whose.client.connection("list", self.deadline)?;
        let flags = self.whose.flags();
        let page = wire::list(&connection, flags, &self.prefix, &self.after, self.deadline)?;
        self.is_over = page.is_last;
        // So that it has an end, whatever the broker says.
        if !page.is_last && page.last <= self.after {
            let context = format!("list {}: a page does not go on", self.prefix);
            return Err(Error::new(ErrorCode::Protocol, context));
        }
        self.after = page.last;
        self.page = page.infos.into_iter();
        Ok(())
    }
}

impl Iterator for ObjectList {
    type Item = Result<ObjectInfo, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(info) = self.page.next() {
                return Some(Ok(info));
            }
            if self.is_over {
                return None;
            }
            if let Err(error) = self.next_page() {
                self.is_over = true;
                return Some(Err(error));
            }
        }
    }
}
