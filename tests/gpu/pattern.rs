//! The contents of device memory, and how they are checked. The first words are slots for the marks
//! of readers; each 8-byte word after them is a function of the buffer's key and the word's index.
//! Must never leave a byte unchecked.

use fdbroker_client::Error;
use fdbroker_client::cuda::CudaMemory;

/// Bytes copied between device and host at a time.
const CHUNK_BYTES: usize = 8 << 20;
const WORD: usize = 8;

/// SplitMix64's finalizer: every bit of the input reaches every bit of the output.
pub fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn word(key: u64, index: usize) -> u64 {
    mix(key.wrapping_add((index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)))
}

/// The mark that `reader` leaves in its slot; never 0.
fn mark(key: u64, reader: u32) -> u64 {
    mix(key ^ mix(u64::from(reader) + 1)) | 1
}

/// Writes a new buffer: empty slots (0), then the data.
pub fn fill(memory: &CudaMemory, key: u64, slots: u32) -> Result<(), Error> {
    fill_by(memory.len(), key, slots, |at, bytes| memory.write_at(at, bytes))
}

/// The same of any memory of so many bytes, which `write` writes from a place on.
pub fn fill_by(
    total: usize,
    key: u64,
    slots: u32,
    mut write: impl FnMut(usize, &[u8]) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut bytes = vec![0; CHUNK_BYTES.min(total)];
    for begin in (0..total).step_by(CHUNK_BYTES) {
        let len = CHUNK_BYTES.min(total - begin);
        for (at, chunk) in bytes[..len].as_chunks_mut::<WORD>().0.iter_mut().enumerate() {
            let index = begin / WORD + at;
            let value = if index < slots as usize { 0 } else { word(key, index) };
            *chunk = value.to_le_bytes();
        }
        write(begin, &bytes[..len])?;
    }
    Ok(())
}

/// Words after the slots that are wrong.
pub fn check(memory: &CudaMemory, key: u64, slots: u32) -> Result<u64, Error> {
    check_by(memory.len(), key, slots, |at, bytes| memory.read_at(at, bytes))
}

/// The same of any memory of so many bytes, which `read` reads from a place on.
pub fn check_by(
    total: usize,
    key: u64,
    slots: u32,
    read: impl Fn(usize, &mut [u8]) -> Result<(), Error>,
) -> Result<u64, Error> {
    let (mut wrong, mut bytes) = (0, vec![0; CHUNK_BYTES.min(total)]);
    for begin in (0..total).step_by(CHUNK_BYTES) {
        let len = CHUNK_BYTES.min(total - begin);
        read(begin, &mut bytes[..len])?;
        for (at, chunk) in bytes[..len].as_chunks::<WORD>().0.iter().enumerate() {
            let index = begin / WORD + at;
            let right = index < slots as usize || u64::from_le_bytes(*chunk) == word(key, index);
            wrong += u64::from(!right);
        }
    }
    Ok(wrong)
}

/// Leaves the reader's mark.
pub fn leave_mark(memory: &CudaMemory, key: u64, reader: u32) -> Result<(), Error> {
    memory.write_at(reader as usize * WORD, &mark(key, reader).to_le_bytes())
}

/// Slots that do not hold their reader's mark; the owner's own must be 0.
pub fn check_marks(memory: &CudaMemory, key: u64, slots: u32, owner: u32) -> Result<u64, Error> {
    let mut bytes = vec![0; slots as usize * WORD];
    memory.read_at(0, &mut bytes)?;
    let is_wrong = |(reader, chunk): (u32, &[u8; WORD])| {
        let expected = if reader == owner { 0 } else { mark(key, reader) };
        u64::from_le_bytes(*chunk) != expected
    };
    Ok((0..).zip(bytes.as_chunks::<WORD>().0).filter(|slot| is_wrong(*slot)).count() as u64)
}
