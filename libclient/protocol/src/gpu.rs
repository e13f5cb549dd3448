//! Which GPU memory is on, by what every process of the node calls it: its UUID. Must never hold an
//! ordinal: each process counts its GPUs anew.

use crate::table::{wire_enum, with_wire_form};
use std::fmt;
use zerocopy::little_endian::U32;

wire_enum! {
    /// Whose names for GPUs these are.
    GpuApi: u8 {
        /// No GPU, or an owner that did not say which.
        None = 0, "none";
        /// cuDeviceGetUuid_v2.
        Cuda = 1, "cuda";
        /// `ze_device_properties_t.uuid`.
        LevelZero = 2, "level-zero";
    }
}

/// [`Gpu::tile`] of all of a GPU.
pub const WHOLE: u8 = 0xff;

/// [`Gpu::pci`] where it is not known.
pub const NO_PCI: u32 = u32::MAX;

with_wire_form! {
    /// A GPU, 24 bytes; all 0: none, or not said. Owners claim it, and nobody has proved it.
    #[non_exhaustive]
    Gpu, GpuItem {
        /// As the driver says: of a MIG instance, the instance's own; of a tile, the root device's.
        uuid: [u8; 16], [u8; 16];
        /// Domain (16 bits), bus (8), device (5) and function (3); [`NO_PCI`] = not known.
        pci: u32, U32;
        /// Level Zero's number of the tile, or 0 for a MIG instance; [`WHOLE`] = all of the GPU.
        tile: u8, u8;
        /// A [`GpuApi`].
        api: u8, u8;
        /// Reserved, 0.
        #[doc(hidden)]
        reserved: [u8; 2], [u8; 2];
    }
}

impl Gpu {
    /// No GPU: host memory, or an owner that did not say.
    pub const NONE: Gpu = Gpu { uuid: [0; 16], pci: 0, tile: 0, api: 0, reserved: [0; 2] };

    /// One that CUDA knows. `is_instance`: it is a part of a GPU (MIG), with a UUID of its own.
    pub const fn cuda(uuid: [u8; 16], pci: u32, is_instance: bool) -> Gpu {
        let tile = if is_instance { 0 } else { WHOLE };
        Gpu { uuid, pci, tile, api: GpuApi::Cuda as u8, reserved: [0; 2] }
    }

    /// One that Level Zero knows: the UUID of the root device, and the tile, or [`WHOLE`].
    pub const fn level_zero(uuid: [u8; 16], pci: u32, tile: u8) -> Gpu {
        Gpu { uuid, pci, tile, api: GpuApi::LevelZero as u8, reserved: [0; 2] }
    }

    /// [`Gpu::pci`] of an address; [`NO_PCI`] when a number has too many bits.
    pub const fn pack_pci(domain: u32, bus: u32, device: u32, function: u32) -> u32 {
        if domain >> 16 != 0 || bus >> 8 != 0 || device >> 5 != 0 || function >> 3 != 0 {
            return NO_PCI;
        }
        domain << 16 | bus << 8 | device << 3 | function
    }

    /// Whether nobody said which.
    pub fn is_none(&self) -> bool {
        *self == Gpu::NONE
    }

    /// Whether this release can tell it from others: an API that it knows, and nothing reserved.
    pub fn is_sound(&self) -> bool {
        let is_known = GpuApi::from_number(self.api).is_some() && self.reserved == [0; 2];
        is_known && (self.api != GpuApi::None as u8 || self.is_none())
    }

    /// Whether the other can be this one: it is the same, or one of both is not said.
    pub fn may_be(&self, other: &Gpu) -> bool {
        self.is_none() || other.is_none() || self.is_same(other)
    }

    /// Whether both are one GPU, or one part of a GPU. Of no two it is known when one is not said.
    ///
    /// CUDA's UUIDs tell. Level Zero gives a GPU another UUID in each hierarchy, and old drivers
    /// made it of an ordinal, so there the PCI address comes first.
    pub fn is_same(&self, other: &Gpu) -> bool {
        let has_pci = self.pci != NO_PCI && other.pci != NO_PCI;
        match GpuApi::from_number(self.api) {
            _ if self.api != other.api => false,
            Some(GpuApi::Cuda) => self.uuid == other.uuid,
            Some(GpuApi::LevelZero) if self.tile != other.tile => false,
            Some(GpuApi::LevelZero) if has_pci => self.pci == other.pci,
            Some(GpuApi::LevelZero) => self.uuid == other.uuid,
            Some(GpuApi::None) | None => false,
        }
    }

    /// Such as `0000:c0:00.0`; `None`: not known.
    pub fn pci_address(&self) -> Option<String> {
        let pci = self.pci;
        let [domain, bus] = [pci >> 16, pci >> 8 & 0xff];
        let [device, function] = [pci >> 3 & 0x1f, pci & 7];
        (!self.is_none() && pci != NO_PCI)
            .then(|| format!("{domain:04x}:{bus:02x}:{device:02x}.{function}"))
    }
}

/// As `nvidia-smi` prints it, or Level Zero's UUID with the tile; `-` for none.
impl fmt::Display for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match GpuApi::from_number(self.api) {
            Some(GpuApi::None) | None => return f.write_str("-"),
            Some(GpuApi::Cuda) if self.tile == WHOLE => f.write_str("GPU-")?,
            Some(GpuApi::Cuda) => f.write_str("MIG-")?,
            Some(GpuApi::LevelZero) => {}
        }
        for (index, byte) in self.uuid.iter().enumerate() {
            if matches!(index, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        if self.api == GpuApi::LevelZero as u8 && self.tile != WHOLE {
            write!(f, " tile {}", self.tile)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UUID: [u8; 16] = [0xfd, 0xb0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13];
    const OTHER: [u8; 16] = [9; 16];

    #[test]
    fn gpu_when_printed_then_as_its_own_tools_do() {
        let text = "fdb00001-0203-0405-0607-08090a0b0c0d";
        assert_eq!(Gpu::cuda(UUID, NO_PCI, false).to_string(), format!("GPU-{text}"));
        assert_eq!(Gpu::cuda(UUID, NO_PCI, true).to_string(), format!("MIG-{text}"));
        assert_eq!(Gpu::level_zero(UUID, NO_PCI, WHOLE).to_string(), text);
        assert_eq!(Gpu::level_zero(UUID, NO_PCI, 1).to_string(), format!("{text} tile 1"));
        assert_eq!(Gpu::NONE.to_string(), "-");
    }

    #[test]
    fn pci_when_packed_then_the_address_is_had_back_and_too_large_numbers_are_not() {
        let gpu = Gpu::cuda(UUID, Gpu::pack_pci(0x10, 0xc1, 0x1f, 7), false);
        assert_eq!(gpu.pci_address().as_deref(), Some("0010:c1:1f.7"));
        assert_eq!(Gpu::cuda(UUID, NO_PCI, false).pci_address(), None);
        assert_eq!(Gpu::NONE.pci_address(), None);
        for (domain, bus, device, function) in
            [(1 << 16, 0, 0, 0), (0, 256, 0, 0), (0, 0, 32, 0), (0, 0, 0, 8)]
        {
            assert_eq!(Gpu::pack_pci(domain, bus, device, function), NO_PCI);
        }
    }

    #[test]
    fn gpus_when_compared_then_cuda_goes_by_uuid_and_level_zero_by_address_and_tile() {
        let (here, there) = (Gpu::pack_pci(0, 1, 0, 0), Gpu::pack_pci(0, 2, 0, 0));
        assert!(Gpu::cuda(UUID, here, false).is_same(&Gpu::cuda(UUID, NO_PCI, false)));
        assert!(!Gpu::cuda(UUID, here, false).is_same(&Gpu::cuda(OTHER, here, false)));
        assert!(Gpu::level_zero(UUID, here, 0).is_same(&Gpu::level_zero(OTHER, here, 0)));
        assert!(!Gpu::level_zero(UUID, here, 0).is_same(&Gpu::level_zero(UUID, here, WHOLE)));
        assert!(!Gpu::level_zero(UUID, here, 0).is_same(&Gpu::level_zero(UUID, there, 0)));
        assert!(Gpu::level_zero(UUID, here, 0).is_same(&Gpu::level_zero(UUID, NO_PCI, 0)));
        assert!(!Gpu::level_zero(UUID, here, WHOLE).is_same(&Gpu::cuda(UUID, here, false)));
        assert!(!Gpu::NONE.is_same(&Gpu::NONE));
    }

    #[test]
    fn gpu_when_of_an_unknown_api_or_with_reserved_bytes_then_not_sound() {
        let gpu = Gpu::cuda(UUID, 0, false);
        assert!(gpu.is_sound() && Gpu::NONE.is_sound());
        for wrong in [
            Gpu { api: 3, ..gpu },
            Gpu { reserved: [0, 1], ..gpu },
            Gpu { api: 0, ..gpu },
            Gpu { tile: 1, ..Gpu::NONE },
        ] {
            assert!(!wrong.is_sound(), "{wrong:?}");
        }
    }
}
