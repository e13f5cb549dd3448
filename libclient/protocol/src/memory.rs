//! The kinds of memory, and what the rest of the project may ask of a kind. Must never do IO.

use crate::error::FdType;
use crate::table::wire_enum;

wire_enum! {
    /// What an allocation's fd is.
    #[non_exhaustive]
    MemoryKind: u8 {
        /// A dma-buf. The broker proves its size.
        DmaBuf = 1, "dma-buf";
        /// A CUDA VMM export: an fd of /dev/nvidiactl. The owner claims its size.
        CudaVmm = 2, "cuda-vmm";
        /// A range of a memfd with the seals F_SEAL_SHRINK and F_SEAL_SEAL, and F_SEAL_GROW where
        /// it is shared beyond its uid; one for named objects has no F_SEAL_SEAL before its group
        /// is sealed. The broker proves its size.
        Memfd = 3, "memfd";
    }
}

impl MemoryKind {
    /// The kind of memory that an fd of this type is; `None`: an fd that cannot be shared.
    pub const fn of_fd_type(fd_type: FdType) -> Option<Self> {
        match fd_type {
            FdType::DmaBuf => Some(Self::DmaBuf),
            FdType::CudaVmm => Some(Self::CudaVmm),
            FdType::Memfd => Some(Self::Memfd),
            _ => None,
        }
    }

    /// Whether the inode of an fd tells which memory it is. All CUDA VMM fds have the inode of
    /// their device, so that only kcmp(2) tells them apart.
    pub const fn has_own_inode(self) -> bool {
        !matches!(self, Self::CudaVmm)
    }

    /// Whether the kernel says how many references there are to the memory, imports of drivers
    /// included (`count:` in the fdinfo of a dma-buf).
    pub const fn counts_references(self) -> bool {
        matches!(self, Self::DmaBuf)
    }

    /// Whether each use of the memory shows as a mapping in /proc/PID/maps. A driver's import of a
    /// dma-buf or of a CUDA VMM fd does not.
    pub const fn shows_each_import(self) -> bool {
        matches!(self, Self::Memfd)
    }

    /// Whether the CPU can map the fd.
    pub const fn is_mappable(self) -> bool {
        !matches!(self, Self::CudaVmm)
    }

    /// Whether an fd reaches more than its own allocation: all ranges of one memfd are one file.
    pub const fn shows_neighbours(self) -> bool {
        matches!(self, Self::Memfd)
    }

    /// Whether the CUDA driver can import the fd.
    pub const fn is_for_cuda(self) -> bool {
        matches!(self, Self::CudaVmm)
    }

    /// Whether the Level Zero driver may import the fd; the driver has the last word on a memfd.
    pub const fn is_for_level_zero(self) -> bool {
        matches!(self, Self::DmaBuf | Self::Memfd)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_fd_type_when_it_cannot_be_shared_then_none() {
        assert_eq!(MemoryKind::of_fd_type(FdType::DmaBuf), Some(MemoryKind::DmaBuf));
        assert_eq!(MemoryKind::of_fd_type(FdType::UnsealedMemfd), None);
        assert_eq!(MemoryKind::of_fd_type(FdType::Socket), None);
    }
}
