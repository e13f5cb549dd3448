//! Reports of the closers that the core has not heard yet. Must never lose a report: the core would charge for the fd for
//! ever.

use crate::fds::closers::Report;
use crate::fds::table::FdTable;
use std::collections::VecDeque;

/// See the module.
#[derive(Default)]
pub struct Reports {
    list: VecDeque<Report>,
    /// The closers have more.
    is_more: bool,
}

impl Reports {
    /// The closers have something to report.
    pub fn note(&mut self) {
        self.is_more = true;
    }

    /// Whether there is one.
    pub fn is_waiting(&self) -> bool {
        self.is_more || !self.list.is_empty()
    }

    /// Takes what the closers have. How many there are now.
    pub fn fetch(&mut self, fds: &mut FdTable) -> usize {
        if std::mem::take(&mut self.is_more) {
            fds.take_reports(&mut self.list);
        }
        self.list.len()
    }

    /// The next one.
    pub fn pop(&mut self) -> Option<Report> {
        self.list.pop_front()
    }
}
