//! The orders that a peer carries out. Must never have two with one number.

/// An order to the peer. A peer has one piece of memory: the one that it allocated, opened or
/// imported last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Order {
    /// Allocate memory of `number` bytes.
    Allocate,
    /// Export the memory; answers the handle and a duplicate of its fd.
    Get,
    /// Open the handle unchanged.
    Open,
    /// Open the handle with the fd that comes along, moved off the exporter's number.
    OpenMoved,
    /// Open the handle with the fd that comes along, moved to the exporter's number.
    OpenAtSameNumber,
    /// Open the handle with the fd that process `number` has under the number in it; INVALID: it
    /// has none.
    OpenFetched,
    /// Open a handle made of that fd alone.
    OpenFdAlone,
    /// The same, made by zeMemGetIpcHandleFromFileDescriptorExp.
    OpenHandleOfFd,
    /// Open a handle made of the fd number alone.
    OpenNumberAlone,
    /// Fetch that fd, and keep it.
    Fetch,
    /// Open the handle with the fd that was fetched last.
    OpenWithFetched,
    /// Keep the handle, for the next OpenTiles.
    KeepHandle,
    /// Open the kept handles and this one as the tiles of one allocation.
    OpenTiles,
    /// Open and close the kept handles in their order, `salt` times, each with the fd that process
    /// `number` has under the number in it (0: as they are). Answers the nanoseconds.
    TimeOpenings,
    /// Open the handle of an event pool.
    OpenPool,
    /// The same, with the fd that process `number` has under the number in it.
    OpenPoolFetched,
    /// Close the pool.
    ClosePool,
    /// Signal the event of this number in the pool.
    SignalEvent,
    /// Answers 1 when the event of this number in the pool is signalled.
    IsSignalled,
    /// Import `number` bytes of the fd that comes along; answers 1 when the driver closed the fd.
    ImportFd,
    /// Answers where the memory is.
    Place,
    /// Write the pattern of this salt to the first `number` bytes.
    Write,
    /// Answers 1 when the first `number` bytes are the pattern of this salt.
    IsPattern,
    /// Close the memory by zeMemCloseIpcHandle.
    Close,
    /// Free the memory by zeMemFree.
    Free,
    /// Answers the number of the peer's open fds.
    CountFds,
    /// Answers 1 when the driver has nothing left.
    IsAllGivenBack,
}

pub const ORDERS: [Order; 27] = [
    Order::Allocate,
    Order::Get,
    Order::Open,
    Order::OpenMoved,
    Order::OpenAtSameNumber,
    Order::OpenFetched,
    Order::OpenFdAlone,
    Order::OpenHandleOfFd,
    Order::OpenNumberAlone,
    Order::Fetch,
    Order::OpenWithFetched,
    Order::KeepHandle,
    Order::OpenTiles,
    Order::TimeOpenings,
    Order::OpenPool,
    Order::OpenPoolFetched,
    Order::ClosePool,
    Order::SignalEvent,
    Order::IsSignalled,
    Order::ImportFd,
    Order::Place,
    Order::Write,
    Order::IsPattern,
    Order::Close,
    Order::Free,
    Order::CountFds,
    Order::IsAllGivenBack,
];
