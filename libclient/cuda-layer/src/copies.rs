//! Copies of blocks that another device has: the driver copies its own memory between devices that
//! have not enabled each other. Must never touch a copy that the driver carries out as it is.

use crate::driver::{self, Function, MISSING};
use crate::mapping;
use crate::memory::blocks;
use crate::result::{
    CopyOf, CopyOfAsync, CuDevicePtr, CuResult, CuStream, Ends, INVALID_VALUE, Linear, LinearAsync,
    SUCCESS,
};

/// A copy that waits: `below` is the driver's, whose host pointers are addresses like all others.
///
/// # Safety
/// That of `below`.
pub unsafe fn copy(
    below: &Function<Linear>,
    to: CuDevicePtr,
    from: CuDevicePtr,
    bytes: usize,
) -> CuResult {
    let Some(below) = below.get() else { return MISSING };
    // SAFETY: the caller's promise.
    in_reach([to, from], || unsafe { below(to, from, bytes) })
}

/// As [`copy`], in a stream.
///
/// # Safety
/// That of `below`.
pub unsafe fn copy_async(
    below: &Function<LinearAsync>,
    to: CuDevicePtr,
    from: CuDevicePtr,
    bytes: usize,
    stream: CuStream,
) -> CuResult {
    let Some(below) = below.get() else { return MISSING };
    // SAFETY: the caller's promise.
    in_reach([to, from], || unsafe { below(to, from, bytes, stream) })
}

/// A copy of rows, whose ends stand in a structure.
///
/// # Safety
/// That of `below`.
pub unsafe fn copy_of<T: Ends>(below: &Function<CopyOf<T>>, what: *const T) -> CuResult {
    let Some(below) = below.get() else { return MISSING };
    // SAFETY: the caller's promise; without a structure the driver refuses.
    let ends = unsafe { what.as_ref() }.map_or([0; 2], Ends::ends);
    // SAFETY: the caller's promise.
    in_reach(ends, || unsafe { below(what) })
}

/// As [`copy_of`], in a stream.
///
/// # Safety
/// That of `below`.
pub unsafe fn copy_of_async<T: Ends>(
    below: &Function<CopyOfAsync<T>>,
    what: *const T,
    stream: CuStream,
) -> CuResult {
    let Some(below) = below.get() else { return MISSING };
    // SAFETY: the caller's promise; without a structure the driver refuses.
    let ends = unsafe { what.as_ref() }.map_or([0; 2], Ends::ends);
    // SAFETY: the caller's promise.
    in_reach(ends, || unsafe { below(what, stream) })
}

/// Copies, and where the driver refuses blocks of another device, once more when they are in reach.
fn in_reach(ends: [CuDevicePtr; 2], copy: impl Fn() -> CuResult) -> CuResult {
    match copy() {
        INVALID_VALUE if let_reach(ends) => copy(),
        code => code,
    }
}

/// Lets this thread's device reach the blocks of others that the addresses lie in, until a program
/// disables the peer. Whether there are any, and it does. A kernel reaches them then, too, which it
/// must not rely on.
fn let_reach(ends: [CuDevicePtr; 2]) -> bool {
    let Some((_, device)) = driver::current() else { return false };
    let foreign = {
        let blocks = blocks();
        let found = ends.map(|end| blocks.at(end).map(|(block, _)| *block));
        found.map(|block| block.filter(|block| block.device != device))
    };
    let reach = |base, bytes| mapping::reach(base, bytes, &[device], true) == SUCCESS;
    let mut found = foreign.iter().flatten().peekable();
    found.peek().is_some() && found.all(|block| reach(block.base, block.size_bytes))
}
