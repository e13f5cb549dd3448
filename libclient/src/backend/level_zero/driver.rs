//! The loader with its drivers and devices, found once per process, and the driver's answers as
//! stable codes. Must never be used in a forked child, nor report a driver that lacks what sharing
//! needs.

use crate::backend::device::driver::{lacks_fds, loaded};
use crate::error::Error;
use crate::fork::Process;
use crate::limits::{LEVEL_ZERO_CALL_FDS, LEVEL_ZERO_DEVICES, LEVEL_ZERO_START_FDS};
use fdbroker_protocol::gpu::{NO_PCI, WHOLE};
use fdbroker_protocol::{ErrorCode, Gpu};
use level_zero_sys::{
    CallError, LevelZero, LoadError, Structure, ze_device_handle_t, ze_device_properties_t,
    ze_device_property_flag_t, ze_driver_handle_t, ze_pci_address_ext_t, ze_pci_ext_properties_t,
    ze_result_t,
};
use std::ptr;
use std::sync::OnceLock;

/// Without these nothing can be shared. Others (Put, the fd functions) are used where the loader
/// has them.
const NEEDED: [&str; 18] = [
    "zeInit",
    "zeDriverGet",
    "zeDeviceGet",
    "zeDeviceGetProperties",
    "zeDeviceGetExternalMemoryProperties",
    "zeContextCreate",
    "zeContextDestroy",
    "zeCommandListCreateImmediate",
    "zeCommandListDestroy",
    "zeCommandListAppendMemoryCopy",
    "zeCommandListAppendMemoryFill",
    "zeMemAllocDevice",
    "zeMemFree",
    "zeMemGetAllocProperties",
    "zeMemGetAddressRange",
    "zeMemGetIpcHandle",
    "zeMemOpenIpcHandle",
    "zeMemCloseIpcHandle",
];

const SUB_DEVICE: u32 = ze_device_property_flag_t::ZE_DEVICE_PROPERTY_FLAG_SUBDEVICE.0;

/// The loader, initialised; one per process, for ever.
#[derive(Debug)]
pub struct Driver {
    pub ze: LevelZero,
    missing: Vec<&'static str>,
    process: Process,
}

/// A device and the driver it belongs to.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    pub driver: ze_driver_handle_t,
    pub device: ze_device_handle_t,
}

static DRIVER: OnceLock<Driver> = OnceLock::new();

impl Driver {
    /// The loader of this process.
    pub fn get() -> Result<&'static Driver, Error> {
        let driver = loaded(&DRIVER, || Self::start(LevelZero::load()))?;
        driver.check_process().map(|()| driver)
    }

    fn start(loaded: Result<LevelZero, LoadError>) -> Result<Self, Error> {
        let ze = loaded.map_err(|why| unless_fds_lack(absent(why)))?;
        let missing = ze.missing();
        if let Some(symbol) = NEEDED.iter().find(|needed| missing.contains(*needed)) {
            return Err(absent(format!(
                "the loader has no symbol {symbol}; install a newer one (Debian: libze1)"
            )));
        }
        // SAFETY: takes flags only, and may be called any number of times.
        unsafe { ze.zeInit(0) }.map_err(|why| {
            unless_fds_lack(absent(format!(
                "no driver: {why}; install the device's (Debian: intel-opencl-icd, libze-intel-gpu1)"
            )))
        })?;
        Ok(Driver { ze, missing, process: Process::current() })
    }

    /// Whether the loader has a function that is not needed.
    pub fn has(&self, function: &str) -> bool {
        !self.missing.contains(&function)
    }

    /// Whether this is the process that loaded it.
    pub fn is_current(&self) -> bool {
        self.process.is_current()
    }

    pub fn check_process(&self) -> Result<(), Error> {
        if self.is_current() {
            Ok(())
        } else {
            Err(absent("a child of fork(2) cannot use Level Zero; exec(2) first"))
        }
    }

    /// Which GPU, or tile of one, a device is. [`Gpu::NONE`]: its driver does not say.
    pub fn gpu(&self, found: Found) -> Gpu {
        let (mut properties, mut place) =
            (ze_device_properties_t::blank(), ze_pci_ext_properties_t::blank());
        // SAFETY: a device of the driver's; fills in one structure of the type it takes.
        let told = unsafe { self.ze.zeDeviceGetProperties(found.device, &raw mut properties) };
        if told.is_err() {
            return Gpu::NONE;
        }
        // SAFETY: as above.
        let told = unsafe { self.ze.zeDevicePciGetPropertiesExt(found.device, &raw mut place) };
        gpu_named(&properties, told.is_ok().then_some(place.address))
    }

    /// The devices of all drivers, in the loader's order.
    pub fn devices(&self) -> Result<Vec<Found>, Error> {
        let drivers = list(|count, out| {
            // SAFETY: `out` is null or has room for `count` handles.
            unsafe { self.ze.zeDriverGet(count, out) }
        })?;
        let mut found = Vec::new();
        for driver in drivers {
            let devices = list(|count, out| {
                // SAFETY: a driver of the loader's; `out` is null or has room for `count` handles.
                unsafe { self.ze.zeDeviceGet(driver, count, out) }
            })?;
            found.extend(devices.into_iter().map(|device| Found { driver, device }));
        }
        Ok(found)
    }
}

/// What a device is by its properties and its PCI address; [`Gpu::NONE`]: its driver does not say.
///
/// A tile has its GPU's PCI address, and in FLAT nothing leads from it to its GPU. Its UUID is its
/// GPU's with the tile in the last byte where it was made of the PCI address, and that of no tile
/// where it was made of an ordinal, as old drivers did.
pub fn gpu_named(
    properties: &ze_device_properties_t,
    address: Option<ze_pci_address_ext_t>,
) -> Gpu {
    let mut uuid = properties.uuid.id;
    if uuid == [0; 16] {
        return Gpu::NONE;
    }
    let pci = address.map_or(NO_PCI, |it| Gpu::pack_pci(it.domain, it.bus, it.device, it.function));
    let is_sub = properties.flags & SUB_DEVICE != 0;
    let of_pci = u32::from(u16::from_le_bytes([uuid[0], uuid[1]])) == properties.vendorId
        && pci != NO_PCI
        && address.is_some_and(|it| u32::from(uuid[8]) == it.bus);
    let tile = match uuid[15] {
        number @ 1.. if of_pci => number - 1,
        _ if is_sub => u8::try_from(properties.subdeviceId).unwrap_or(WHOLE),
        _ => WHOLE,
    };
    if of_pci {
        uuid[15] = 0;
    }
    Gpu::level_zero(uuid, pci, tile)
}

/// Asks how many there are, then for so many.
fn list<T>(
    get: impl Fn(*mut u32, *mut *mut T) -> Result<(), CallError>,
) -> Result<Vec<*mut T>, Error> {
    let gone = |why: CallError| unless_fds_lack(absent(why));
    let mut count = 0;
    get(&raw mut count, ptr::null_mut()).map_err(gone)?;
    count = count.min(LEVEL_ZERO_DEVICES);
    let mut handles = vec![ptr::null_mut(); count as usize];
    if count > 0 {
        get(&raw mut count, handles.as_mut_ptr()).map_err(gone)?;
    }
    handles.truncate(count as usize);
    Ok(handles)
}

/// NOT_SUPPORTED, with what is missing.
pub fn absent(reason: impl std::fmt::Display) -> Error {
    Error::new(ErrorCode::NotSupported, format!("backend level-zero: {reason}"))
}

/// A call that failed on a device that is there.
pub fn failed(what: impl std::fmt::Display, why: CallError) -> Error {
    let code = code_of(why, || lacks_fds(LEVEL_ZERO_CALL_FDS));
    Error::new(code, format!("backend level-zero: {what}: {why}"))
}

/// While the driver is being found, whatever it refuses it is absent; but a full fd table is that.
pub fn unless_fds_lack(error: Error) -> Error {
    if lacks_fds(LEVEL_ZERO_START_FDS) {
        Error { code: ErrorCode::LocalFdLimit, ..error }
    } else {
        error
    }
}

/// The driver's answer as a stable code. It has none of its own for a full fd table: what it
/// answers then, it answers for other failures too, so the table is looked at.
fn code_of(why: CallError, lacks_fds: impl FnOnce() -> bool) -> ErrorCode {
    let unsupported = [
        ze_result_t::ZE_RESULT_ERROR_UNSUPPORTED_FEATURE,
        ze_result_t::ZE_RESULT_ERROR_UNSUPPORTED_ENUMERATION,
        ze_result_t::ZE_RESULT_ERROR_UNINITIALIZED,
    ];
    match why {
        CallError::Missing { .. } => ErrorCode::NotSupported,
        CallError::Failed { code, .. } if unsupported.contains(&code) => ErrorCode::NotSupported,
        CallError::Failed { .. } if lacks_fds() => ErrorCode::LocalFdLimit,
        CallError::Failed { .. } => ErrorCode::Internal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn start_when_there_is_no_loader_then_not_supported_in_the_linkers_words() {
        let why =
            LoadError::NotLoaded { library: "libze_loader.so.1".into(), reason: "gone".into() };
        let error = Driver::start(Err(why)).unwrap_err();
        assert_eq!(error.code, ErrorCode::NotSupported);
        for word in ["level-zero", "libze_loader.so.1", "gone", "libze1"] {
            assert!(error.to_string().contains(word), "no {word:?} in: {error}");
        }
    }

    #[test]
    fn code_of_when_the_table_is_full_then_local_fd_limit_but_not_for_what_is_unsupported() {
        let answer = |code| CallError::Failed { function: "zeMemGetIpcHandle", code };
        let out_of_memory = answer(ze_result_t::ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY);
        assert_eq!(code_of(out_of_memory, || true), ErrorCode::LocalFdLimit);
        assert_eq!(code_of(out_of_memory, || false), ErrorCode::Internal);
        let unsupported = answer(ze_result_t::ZE_RESULT_ERROR_UNSUPPORTED_FEATURE);
        assert_eq!(code_of(unsupported, || true), ErrorCode::NotSupported);
        let missing = CallError::Missing { function: "zeMemPutIpcHandle" };
        assert_eq!(code_of(missing, || true), ErrorCode::NotSupported);
    }
}
