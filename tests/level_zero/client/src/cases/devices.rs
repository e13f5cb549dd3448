//! Which devices a program sees, by ZE_FLAT_DEVICE_HIERARCHY and ZE_AFFINITY_MASK, and where their
//! memory is. The driver's `devices.rs` has the sources. No case here relies on a device's ordinal
//! in another process.

use super::loader::is_old;
use crate::apart::Switches;
use crate::fault::{Fault, Outcome, holds, same};
use crate::gpu::{Gpu, handle_fd, pattern};
use crate::peer::{Order, Peer};
use level_zero_sys::*;
use nix::fcntl::{FcntlArg, fcntl};
use std::ffi::{CStr, c_void};
use std::os::fd::BorrowedFd;
use std::ptr;

/// The bus of card 0.
const FIRST_BUS: u32 = 0xf0;
const BYTES: usize = 10_000;
const SALT: u16 = 7;

/// Two cards of two tiles each, and more variables.
macro_rules! two_by_two {
    ($($name:ident: $($variable:literal = $value:literal),*;)*) => {$(
        pub const $name: Switches = &[
            ("ZE_TEST_DRIVER_CARDS", "two"),
            ("ZE_TEST_DRIVER_TILES", "two"),
            $(($variable, $value),)*
        ];
    )*};
}
two_by_two! {
    FLAT: ;
    COMPOSITE: "ZE_FLAT_DEVICE_HIERARCHY" = "COMPOSITE";
    COMBINED: "ZE_FLAT_DEVICE_HIERARCHY" = "COMBINED";
    FLAT_0_3: "ZE_FLAT_DEVICE_HIERARCHY" = "FLAT", "ZE_AFFINITY_MASK" = "3,0";
    FLAT_NONE: "ZE_AFFINITY_MASK" = "1.0,4";
    COMPOSITE_1: "ZE_FLAT_DEVICE_HIERARCHY" = "COMPOSITE", "ZE_AFFINITY_MASK" = "1";
    COMPOSITE_01_1: "ZE_FLAT_DEVICE_HIERARCHY" = "COMPOSITE", "ZE_AFFINITY_MASK" = "1,0.1";
    COMBINED_123: "ZE_FLAT_DEVICE_HIERARCHY" = "COMBINED", "ZE_AFFINITY_MASK" = "1,2,3";
    ORDINAL: "ZE_TEST_DRIVER_UUIDS" = "ordinal";
    ORDINAL_23: "ZE_TEST_DRIVER_UUIDS" = "ordinal", "ZE_AFFINITY_MASK" = "2,3";
    APART: "ZE_TEST_DRIVER_PEERS" = "no";
}
pub const CARDS: Switches = &[("ZE_TEST_DRIVER_CARDS", "two")];

type Device = ze_device_handle_t;

/// The loader's devices, by functions that the bindings do not have.
struct Devices {
    ze: LevelZero,
    all: Vec<Device>,
}

/// The loader's function of a name; `None`: an old loader.
fn function(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: C strings; the loader stays loaded.
    let found = unsafe {
        libc::dlsym(libc::dlopen(c"libze_loader.so.1".as_ptr(), libc::RTLD_NOW), name.as_ptr())
    };
    (!found.is_null()).then_some(found)
}

/// What a call that fills a list answers.
fn list(call: impl Fn(*mut u32, *mut Device) -> ze_result_t) -> Result<Vec<Device>, Fault> {
    let mut count = 0;
    same("the count", call(&raw mut count, ptr::null_mut()), ze_result_t::ZE_RESULT_SUCCESS)?;
    let mut list = vec![ptr::null_mut(); count as usize];
    if count > 0 {
        let done = call(&raw mut count, list.as_mut_ptr());
        same("the list", done, ze_result_t::ZE_RESULT_SUCCESS)?;
    }
    same("its length", list.len(), count as usize)?;
    Ok(list)
}

// SAFETY, for every call in this file: handles come from the driver; out-pointers are to locals or
// to lists of that size; a function that dlsym(3) finds has the type of its name.
impl Devices {
    fn look() -> Result<Self, Fault> {
        let ze = LevelZero::load()?;
        let (mut count, mut driver) = (1, ptr::null_mut());
        // SAFETY: see above.
        unsafe {
            ze.zeInit(0)?;
            ze.zeDriverGet(&raw mut count, &raw mut driver)?;
        }
        let all = list(|count, out| {
            // SAFETY: see above.
            let done = unsafe { ze.zeDeviceGet(driver, count, out) };
            done.map_or(ze_result_t::ZE_RESULT_ERROR_UNKNOWN, |()| ze_result_t::ZE_RESULT_SUCCESS)
        })?;
        Ok(Self { ze, all })
    }

    fn properties(&self, device: Device) -> Result<ze_device_properties_t, Fault> {
        let mut properties = ze_device_properties_t::blank();
        // SAFETY: see above.
        unsafe { self.ze.zeDeviceGetProperties(device, &raw mut properties)? };
        Ok(properties)
    }

    fn bus(&self, device: Device) -> Result<u32, Fault> {
        let mut pci = ze_pci_ext_properties_t::blank();
        // SAFETY: see above.
        unsafe { self.ze.zeDevicePciGetPropertiesExt(device, &raw mut pci)? };
        Ok(pci.address.bus)
    }

    fn subs(&self, device: Device) -> Result<Vec<Device>, Fault> {
        let get = function(c"zeDeviceGetSubDevices").ok_or("no zeDeviceGetSubDevices")?;
        type Get = unsafe extern "C" fn(Device, *mut u32, *mut Device) -> ze_result_t;
        // SAFETY: see above.
        let get = unsafe { std::mem::transmute::<*mut c_void, Get>(get) };
        // SAFETY: see above.
        list(|count, out| unsafe { get(device, count, out) })
    }

    /// CARD.TILE#ID: the tile's number + 1 in the UUID, 0 for a card; the sub-device's id; an s
    /// where it says that it is one; and what it consists of.
    fn text(&self, device: Device) -> Result<String, Fault> {
        let properties = self.properties(device)?;
        let (uuid, bus) = (properties.uuid.id, self.bus(device)?);
        same("the UUID's bus", u32::from(uuid[8]), bus)?;
        same("the UUID's vendor", uuid[..2].to_vec(), vec![0x86, 0x80])?;
        let is_sub =
            properties.flags & ze_device_property_flag_t::ZE_DEVICE_PROPERTY_FLAG_SUBDEVICE.0;
        let (card, id) = (bus - FIRST_BUS, properties.subdeviceId);
        let mut text = format!("{card}.{}#{id}{}", uuid[15], if is_sub == 0 { "" } else { "s" });
        let subs = self.subs(device)?;
        if !subs.is_empty() {
            let subs: Result<Vec<_>, _> = subs.into_iter().map(|sub| self.text(sub)).collect();
            text += &format!("({})", subs?.join(" "));
        }
        Ok(text)
    }
}

fn shows(expected: &[&str]) -> Outcome {
    let devices = Devices::look()?;
    let texts: Result<Vec<_>, _> = devices.all.iter().map(|one| devices.text(*one)).collect();
    same("devices", texts?, expected.iter().map(|text| (*text).to_owned()).collect())
}

pub fn flat() -> Outcome {
    shows(&["0.1#0", "0.2#1", "1.1#0", "1.2#1"])
}

pub fn composite() -> Outcome {
    shows(&["0.0#0(0.1#0s 0.2#1s)", "1.0#0(1.1#0s 1.2#1s)"])
}

pub fn combined() -> Outcome {
    shows(&["0.1#0s", "0.2#1s", "1.1#0s", "1.2#1s"])
}

pub fn cards() -> Outcome {
    shows(&["0.0#0", "1.0#0"])
}

/// A card of which one tile is left is that tile, though not as a sub-device.
pub fn flat_0_3() -> Outcome {
    shows(&["0.1#0", "1.2#0"])
}

pub fn composite_1() -> Outcome {
    shows(&["1.0#0(1.1#0s 1.2#1s)"])
}

pub fn composite_01_1() -> Outcome {
    shows(&["0.2#0", "1.0#0(1.1#0s 1.2#1s)"])
}

pub fn combined_123() -> Outcome {
    shows(&["0.2#0", "1.1#0s", "1.2#1s"])
}

/// The card's number in the process and no tile: the same for what are different tiles.
fn ordinals(expected: &[u8]) -> Outcome {
    let devices = Devices::look()?;
    let uuids: Result<Vec<_>, _> =
        devices.all.iter().map(|one| devices.properties(*one).map(|one| one.uuid.id)).collect();
    for (uuid, number) in uuids?.into_iter().zip(expected) {
        let (vendor, device) = (0x8086_u32.to_le_bytes(), 0xfdb0_u32.to_le_bytes());
        same("UUID", uuid.to_vec(), [vendor, device, [*number, 0, 0, 0], [0; 4]].concat())?;
    }
    same("devices", devices.all.len(), expected.len())
}

pub fn all_ordinals() -> Outcome {
    ordinals(&[0, 0, 1, 1])
}

/// Card 1 is this process's first.
pub fn masked_ordinals() -> Outcome {
    ordinals(&[0, 0])
}

/// The root of each device, as text; none is "-".
fn roots(expected: &[&str]) -> Outcome {
    let devices = Devices::look()?;
    let Some(get) = function(c"zeDeviceGetRootDevice") else {
        return holds(is_old()?, || "no zeDeviceGetRootDevice".to_owned());
    };
    type Get = unsafe extern "C" fn(Device, *mut Device) -> ze_result_t;
    // SAFETY: see above.
    let get = unsafe { std::mem::transmute::<*mut c_void, Get>(get) };
    let mut found = Vec::new();
    for device in &devices.all {
        let mut root = ptr::null_mut();
        // SAFETY: see above.
        same("root", unsafe { get(*device, &raw mut root) }, ze_result_t::ZE_RESULT_SUCCESS)?;
        found.push(if root.is_null() { "-".to_owned() } else { devices.text(root)? });
    }
    same("roots", found, expected.iter().map(|text| (*text).to_owned()).collect())
}

pub fn combined_roots() -> Outcome {
    let (first, second) = ("0.0#0(0.1#0s 0.2#1s)", "1.0#0(1.1#0s 1.2#1s)");
    roots(&[first, first, second, second])
}

pub fn no_roots() -> Outcome {
    roots(&["-"; 4])
}

pub fn composite_has_no_root() -> Outcome {
    roots(&["-"; 2])
}

/// Whether tile 0 of card 0 reaches each tile.
fn peers(expected: [bool; 4]) -> Outcome {
    let devices = Devices::look()?;
    let can = function(c"zeDeviceCanAccessPeer").ok_or("no zeDeviceCanAccessPeer")?;
    type Can = unsafe extern "C" fn(Device, Device, *mut ze_bool_t) -> ze_result_t;
    // SAFETY: see above.
    let can = unsafe { std::mem::transmute::<*mut c_void, Can>(can) };
    for (device, reached) in devices.all.iter().zip(expected) {
        let mut answer = 7;
        // SAFETY: see above.
        let done = unsafe { can(devices.all[0], *device, &raw mut answer) };
        same("zeDeviceCanAccessPeer", done, ze_result_t::ZE_RESULT_SUCCESS)?;
        same("its answer", answer, ze_bool_t::from(reached))?;
    }
    Ok(())
}

pub fn reached() -> Outcome {
    peers([true; 4])
}

pub fn apart() -> Outcome {
    peers([true, true, false, false])
}

/// Memory of the device of an ordinal is at `place`, also for a process that sees that device as
/// its first, and for one that does not see it.
fn stays(ordinal: usize, place: u64, masks: &[&str]) -> Outcome {
    let gpu = Gpu::open_device(ordinal)?;
    let memory = gpu.allocate(BYTES, true)?;
    gpu.write(memory, &pattern(BYTES, SALT))?;
    same("here", u64::from(gpu.place(memory)?), place)?;
    same("its device", gpu.device_of(memory)?, gpu.device)?;
    let handle = gpu.get(memory)?;
    // SAFETY: the driver's fd, which lives until the memory is freed.
    let fd = unsafe { BorrowedFd::borrow_raw(handle_fd(handle)) };
    for mask in masks {
        let peer = Peer::start_with(&[("ZE_AFFINITY_MASK", mask)])?;
        peer.tell_with(Order::OpenMoved, 0, 0, handle, Some(fd))??;
        // A udmabuf (ZE_TEST_DRIVER_MEMORY) does not tell where its memory is.
        if fcntl(fd, FcntlArg::F_GET_SEALS).is_ok() {
            same(mask, peer.number(Order::Place, 0, 0)?, place)?;
        }
        same("the peer reads", peer.number(Order::IsPattern, BYTES, SALT)?, 1)?;
        peer.tell(Order::Close, 0, 0)??;
        peer.finish()?;
    }
    gpu.free(memory)?;
    gpu.nothing_left()
}

/// 16 * (card + 1) + tile + 1.
pub fn tile_stays() -> Outcome {
    stays(2, 33, &["2", "0", "0,3"])
}

pub fn card_stays() -> Outcome {
    stays(1, 32, &["1", "0"])
}
