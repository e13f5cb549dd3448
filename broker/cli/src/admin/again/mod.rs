//! Connects to a broker again after it has ended. Must never start a broker: with socket activation
//! a mere connect would start the service, which an administrator may have stopped on purpose.

use crate::admin::{Admin, find_socket};
use crate::error::{Error, Result};
use fdbroker_protocol::page::{PAGE_MAGIC, PageHeader, is_alive};
use fdbrokerd::names::PAGE_NAME;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;
use zerocopy::FromBytes;

/// Connects to the broker that this process's environment names, if it runs; `patience` bounds the
/// connect and each answer.
pub fn connect_within(patience: Duration) -> Result<Admin> {
    connect_to(&find_socket(|name| std::env::var_os(name)), patience)
}

fn connect_to(path: &Path, patience: Duration) -> Result<Admin> {
    if has_died(&path.with_file_name(PAGE_NAME)) {
        // The socket is looked at for the cause alone: one that appears after the look is the
        // service manager's.
        let ended = || io::Error::new(io::ErrorKind::NotConnected, "its process has ended");
        let cause = path.metadata().err().unwrap_or_else(ended);
        return Err(Error::NoBroker { path: path.to_owned(), cause });
    }
    Admin::connect_within(path, patience)
}

/// Whether the broker of this generation page has ended. The kernel marks the page at the end of
/// the broker, whatever the reason. `false` if the page cannot be read or has another layout.
fn has_died(page: &Path) -> bool {
    // All layouts have the magic and the liveness word at the same place.
    let mut header = [0; size_of::<PageHeader>()];
    if File::open(page).and_then(|file| file.read_exact_at(&mut header, 0)).is_err() {
        return false;
    }
    PageHeader::read_from_bytes(&header)
        .is_ok_and(|it| it.magic == PAGE_MAGIC && !is_alive(it.liveness.into_inner()))
}

#[cfg(test)]
mod tests;
