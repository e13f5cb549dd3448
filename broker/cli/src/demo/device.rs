//! Device memory in the demo. What the CPU cannot read is copied to the host and checked there, all of it.
//! Must never check or mark a copy in place of the memory.

use super::pattern::{BufferId, Pattern, WORD_BYTES};
use crate::error::{Error, Result};
use fdbroker_client::Access;
use fdbroker_client::cuda::{CudaMemory, Device};
use std::os::fd::AsFd;
use std::sync::atomic::AtomicU64;

const WORD: usize = WORD_BYTES as usize;

/// Opens the first device and uses once what the demo will use, so that the fds which the driver opens for itself
/// are there before any is counted.
pub fn open() -> Result<Device> {
    let device = Device::open(0).map_err(failed)?;
    let warm_up = || {
        let memory = CudaMemory::new(&device, 1)?;
        memory.write_at(0, &[1; WORD])?;
        let (fd, bytes) = (memory.export()?, memory.len() as u64);
        let same = CudaMemory::import_fd(&device, fd.as_fd(), bytes, Access::ReadWrite)?;
        same.read_at(0, &mut [0; WORD])
    };
    warm_up().map_err(failed)?;
    Ok(device)
}

/// The size of buffers in whole granules of the device, in bytes.
pub fn round_up(size_bytes: u64) -> Result<u64> {
    Ok(size_bytes.next_multiple_of(open()?.granularity() as u64))
}

/// Writes a new buffer: empty slots, then the data.
pub fn fill(pattern: Pattern, id: BufferId, memory: &CudaMemory) -> Result<()> {
    let words: Vec<AtomicU64> = (0..memory.len() / WORD).map(|_| AtomicU64::new(0)).collect();
    pattern.fill(id, &words);
    let bytes: Vec<u8> =
        words.into_iter().flat_map(|word| word.into_inner().to_ne_bytes()).collect();
    memory.write_at(0, &bytes).map_err(failed)
}

/// A reader's part: checks every word and leaves its mark in the device memory. Returns how many words were wrong.
pub fn check_and_mark(
    pattern: Pattern,
    reader: u32,
    id: BufferId,
    memory: &CudaMemory,
) -> Result<u64> {
    let wrong = pattern.check_and_mark(reader, id, &read(memory)?);
    let mark = pattern.mark(reader, id).to_ne_bytes();
    memory.write_at(reader as usize * WORD, &mark).map_err(failed)?;
    Ok(wrong)
}

/// The owner's part at the end: every other rank's mark is there, and the data is still right.
pub fn check_all_marks(pattern: Pattern, id: BufferId, memory: &CudaMemory) -> Result<u64> {
    Ok(pattern.check_all_marks(id, &read(memory)?))
}

/// All of it, now.
fn read(memory: &CudaMemory) -> Result<Vec<AtomicU64>> {
    let mut bytes = vec![0; memory.len()];
    memory.read_at(0, &mut bytes).map_err(failed)?;
    let (words, _) = bytes.as_chunks::<WORD>();
    Ok(words.iter().map(|word| AtomicU64::new(u64::from_ne_bytes(*word))).collect())
}

fn failed(cause: fdbroker_client::Error) -> Error {
    Error::Other(cause.to_string())
}
