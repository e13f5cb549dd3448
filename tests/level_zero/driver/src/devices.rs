//! The devices of a process: cards and tiles, as ZE_FLAT_DEVICE_HIERARCHY and ZE_AFFINITY_MASK
//! leave them. Must never show a device that Intel's driver would hide.
//!
//! The rules are the specification's ("Device hierarchy" and "Affinity mask" in its core
//! programming guide), and where it is silent those of compute-runtime's source in 2025:
//! `parseAffinityMask` and `setDeviceHierarchyMode` of `ExecutionEnvironment`, `getDevice` and what
//! it exposes of `DriverHandleImp`, `getSubDevices`, `getRootDevice`, `getProperties` and
//! `canAccessPeer` of `DeviceImp`, `getUuid` and `generateUuidFromPciBusInfo` of `NEO::Device`.

use crate::answer::Failure;
use crate::opaque::{content, make};
use crate::settings::{Settings, Uuids, settings};
use level_zero_sys::{ze_device_handle_t, ze_result_t};
use std::collections::BTreeSet;
use std::ptr;
use std::sync::OnceLock;

/// Intel's PCI vendor id, which programs look for.
pub const VENDOR: u16 = 0x8086;
/// A PCI device id that no device of Intel has.
pub const DEVICE_ID: u16 = 0xfdb0;
/// The PCI bus of the first card; the next one is on the next bus.
const FIRST_BUS: u32 = 0xf0;

/// What zeDeviceGet shows, by ZE_FLAT_DEVICE_HIERARCHY.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hierarchy {
    /// Tiles, which know no card.
    Flat,
    /// Cards, which have sub-devices.
    Composite,
    /// Tiles, which know their card.
    Combined,
}

impl Hierarchy {
    /// Any other word is the product's default, which is FLAT for those that have tiles.
    pub fn from_word(word: &str) -> Self {
        match word {
            "COMPOSITE" => Self::Composite,
            "COMBINED" => Self::Combined,
            _ => Self::Flat,
        }
    }
}

/// Where memory is: a card, and the tile when it is one tile's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub card: u32,
    pub tile: Option<u32>,
}

impl Place {
    /// As one number, which is not 0: 16 * (card + 1), and the tile + 1.
    pub fn number(self) -> u32 {
        16 * (self.card + 1) + self.tile.map_or(0, |tile| tile + 1)
    }

    pub fn from_number(number: u32) -> Option<Self> {
        let card = (number / 16).checked_sub(1)?;
        Some(Self { card, tile: (number % 16).checked_sub(1) })
    }
}

/// The target of a device handle.
#[derive(Debug)]
pub struct Device {
    card: u32,
    /// The tiles of the card that it consists of.
    tiles: Vec<u32>,
    is_sub: bool,
    /// The card's number among those that this process sees.
    index: u32,
    root: Option<Handle>,
    subs: Vec<Handle>,
}

/// A device handle, which lives as long as the process.
#[derive(Clone, Copy, Debug)]
struct Handle(usize);

impl Handle {
    fn new(device: Device) -> Self {
        Self(make::<Device, u8>(device).expose_provenance())
    }

    fn pointer(self) -> ze_device_handle_t {
        ptr::with_exposed_provenance_mut(self.0)
    }
}

/// The handles that zeDeviceGet answers.
pub fn shown() -> Result<Vec<ze_device_handle_t>, Failure> {
    static SHOWN: OnceLock<Result<Vec<Handle>, String>> = OnceLock::new();
    let look = || settings().map_err(str::to_owned).and_then(look_around);
    let shown = SHOWN.get_or_init(look).as_ref().map_err(|error| {
        crate::trace::line(format_args!("{error}"));
        Failure::from(ze_result_t::ZE_RESULT_ERROR_UNINITIALIZED)
    })?;
    Ok(shown.iter().map(|handle| handle.pointer()).collect())
}

/// # Safety
/// `handle` is null or one of this driver's.
pub unsafe fn device(handle: ze_device_handle_t) -> Result<&'static Device, Failure> {
    // SAFETY: the caller's promise; devices are never destroyed.
    unsafe { content::<Device, _>(handle) }
}

fn look_around(settings: &Settings) -> Result<Vec<Handle>, String> {
    let Settings { cards, tiles, hierarchy, .. } = *settings;
    let enabled = enabled(cards, tiles, hierarchy, &settings.mask)?;
    let cards = (0..).zip(enabled).filter(|(_, tiles)| !tiles.is_empty());
    let shown: Vec<_> = (0..)
        .zip(cards)
        .flat_map(|(index, (card, tiles))| make_card(index, card, tiles, hierarchy))
        .collect();
    if shown.is_empty() {
        return Err(format!("ZE_AFFINITY_MASK={} hides every device", settings.mask));
    }
    Ok(shown)
}

/// The tiles of each card that the mask leaves. Entries that name no device are passed over, and in
/// no order: a mask cannot reorder. One that is no number ends a program in Intel's driver.
fn enabled(
    cards: u32,
    tiles: u32,
    hierarchy: Hierarchy,
    mask: &str,
) -> Result<Vec<BTreeSet<u32>>, String> {
    let all = || (0..tiles).collect();
    if mask.is_empty() || mask == "default" {
        return Ok((0..cards).map(|_| all()).collect());
    }
    let mut enabled = vec![BTreeSet::new(); cards as usize];
    for entry in mask.split(',') {
        let numbers: Option<Vec<u32>> = entry.split('.').map(number).collect();
        match (hierarchy, numbers.as_deref()) {
            (_, None) => return Err(format!("ZE_AFFINITY_MASK={mask}: {entry} is no number")),
            (Hierarchy::Composite, Some([card])) if *card < cards => {
                enabled[*card as usize] = all();
            }
            (Hierarchy::Composite, Some([card, tile])) if *card < cards && *tile < tiles => {
                enabled[*card as usize].insert(*tile);
            }
            // Tiles are counted over all cards, and CARD.TILE names none.
            (Hierarchy::Flat | Hierarchy::Combined, Some([tile])) if *tile < cards * tiles => {
                enabled[(tile / tiles) as usize].insert(tile % tiles);
            }
            _ => {}
        }
    }
    Ok(enabled)
}

/// What strtoul(3) reads of it.
fn number(text: &str) -> Option<u32> {
    let text = text.trim_start();
    let (digits, radix) = match text.strip_prefix("0x") {
        Some(digits) => (digits, 16),
        None => (text, 10),
    };
    let end = digits.find(|digit: char| !digit.is_digit(radix)).unwrap_or(digits.len());
    u32::from_str_radix(&digits[..end], radix).ok()
}

/// The devices of one card that are shown. A card of one tile, or that is left one, has no
/// sub-devices, and is shown itself.
fn make_card(index: u32, card: u32, tiles: BTreeSet<u32>, hierarchy: Hierarchy) -> Vec<Handle> {
    let tiles: Vec<u32> = tiles.into_iter().collect();
    let part = |tiles, is_sub| Device { card, tiles, is_sub, index, root: None, subs: Vec::new() };
    if tiles.len() == 1 {
        return vec![Handle::new(part(tiles, false))];
    }
    let root = Handle::new(part(tiles.clone(), false));
    let sub = |tile| Handle::new(Device { root: Some(root), ..part(vec![tile], true) });
    let subs: Vec<_> = tiles.into_iter().map(sub).collect();
    // SAFETY: made just now, and nobody else has it.
    let root_device = unsafe { &mut *crate::opaque::content_mut::<Device, _>(root.pointer()) };
    root_device.subs.clone_from(&subs);
    if hierarchy == Hierarchy::Composite { vec![root] } else { subs }
}

impl Device {
    /// The PCI bus, which the tiles of a card share.
    pub fn bus(&self) -> u32 {
        FIRST_BUS + self.card
    }

    pub fn handle(&self) -> ze_device_handle_t {
        crate::opaque::handle_of(self)
    }

    /// Where its memory is: that of a card with sub-devices is on any of its tiles.
    pub fn place(&self) -> Place {
        let tile = match self.tiles[..] {
            [tile] => Some(tile),
            _ => None,
        };
        Place { card: self.card, tile }
    }

    /// Whether its memory has a part on each of several tiles.
    pub fn is_split(&self) -> bool {
        self.tiles.len() > 1
    }

    pub fn sub_device_id(&self) -> u32 {
        if self.is_sub { self.tiles[0] } else { 0 }
    }

    /// In FLAT no device is a sub-device.
    pub fn says_it_is_sub(&self) -> bool {
        self.is_sub && hierarchy() != Hierarchy::Flat
    }

    /// In FLAT there is no way from a device to another.
    pub fn subs(&self) -> Vec<ze_device_handle_t> {
        let subs = if hierarchy() == Hierarchy::Flat { &[][..] } else { &self.subs };
        subs.iter().map(|sub| sub.pointer()).collect()
    }

    pub fn root(&self) -> ze_device_handle_t {
        let root = self.root.filter(|_| hierarchy() != Hierarchy::Flat);
        root.map_or(ptr::null_mut(), Handle::pointer)
    }

    pub fn reaches(&self, peer: &Self) -> bool {
        self.card == peer.card || settings().is_ok_and(|settings| settings.peers)
    }

    /// Vendor, device, revision, PCI address, and the tile + 1 where the card has several and this
    /// is one. Old runtimes took the card's number in the process, for its tiles, too.
    pub fn uuid(&self) -> [u8; 16] {
        let mut uuid = [0; 16];
        let Ok(settings) = settings() else { return uuid };
        match settings.uuids {
            Uuids::Pci => {
                uuid[..2].copy_from_slice(&VENDOR.to_le_bytes());
                uuid[2..4].copy_from_slice(&DEVICE_ID.to_le_bytes());
                uuid[8] = self.bus() as u8;
                let tile = self.place().tile.filter(|_| settings.tiles > 1);
                uuid[15] = tile.map_or(0, |tile| tile as u8 + 1);
            }
            Uuids::Ordinal => {
                uuid[..4].copy_from_slice(&u32::from(VENDOR).to_le_bytes());
                uuid[4..8].copy_from_slice(&u32::from(DEVICE_ID).to_le_bytes());
                uuid[8..12].copy_from_slice(&self.index.to_le_bytes());
            }
        }
        uuid
    }
}

fn hierarchy() -> Hierarchy {
    settings().map_or(Hierarchy::Flat, |settings| settings.hierarchy)
}

#[cfg(test)]
mod tests {
    use super::Hierarchy::{Combined, Composite, Flat};
    use super::*;

    /// Two cards of two tiles: "0.1" is tile 1 of card 0.
    fn left(hierarchy: Hierarchy, mask: &str) -> Result<String, String> {
        let enabled = enabled(2, 2, hierarchy, mask)?;
        let tiles = (0..).zip(&enabled).flat_map(|(card, tiles): (u32, _)| {
            tiles.iter().map(move |tile| format!("{card}.{tile}"))
        });
        Ok(tiles.collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn a_mask_when_composite_counts_cards_and_their_tiles() {
        for (mask, tiles) in [
            ("", "0.0 0.1 1.0 1.1"),
            ("default", "0.0 0.1 1.0 1.1"),
            ("1", "1.0 1.1"),
            ("1,0", "0.0 0.1 1.0 1.1"),
            ("0.1", "0.1"),
            ("1.0,0.1", "0.1 1.0"),
            ("0.1,0", "0.0 0.1"),
            ("0,0", "0.0 0.1"),
            ("2,0.2,1.1", "1.1"),
            ("7", ""),
        ] {
            assert_eq!(left(Composite, mask).as_deref(), Ok(tiles), "{mask}");
        }
    }

    #[test]
    fn a_mask_when_flat_counts_tiles_over_all_cards() {
        for hierarchy in [Flat, Combined] {
            for (mask, tiles) in [
                ("", "0.0 0.1 1.0 1.1"),
                ("1", "0.1"),
                ("3,0", "0.0 1.1"),
                ("1,1", "0.1"),
                ("0.1,2", "1.0"),
                ("1.0", ""),
                ("4,3", "1.1"),
                (" 2,0x1", "0.1 1.0"),
            ] {
                assert_eq!(left(hierarchy, mask).as_deref(), Ok(tiles), "{mask}");
            }
        }
    }

    #[test]
    fn a_mask_when_it_is_no_number_is_an_error() {
        for mask in ["x", "0,", ",0", "-1", "0.x"] {
            assert!(left(Composite, mask).is_err(), "{mask}");
        }
    }
}
