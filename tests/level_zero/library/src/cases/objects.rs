//! Named objects in memory of a device. Must never take a refusal for a success: it is one where
//! exports are memfds that cannot be sealed, and only there.

use crate::fault::{Outcome, holds, same};
use crate::gpu::pattern;
use crate::node::Node;
use crate::rank::{Rank, soon};
use fdbroker_client::{ErrorCode, NewObject, ObjectOptions, Place};

const BYTES: usize = 10_000;
const SALT: u16 = 40;

/// Two objects of one group, written through the driver. Who names the device reads them by it, who
/// does not by a mapping.
pub fn on_device(_node: &Node, rank: &mut Rank) -> Outcome {
    let new = [NewObject::new("first", 100), NewObject::new("second", BYTES as u64)];
    let expected = pattern(BYTES, SALT);
    let (objects, place) = (rank.client.objects(), Place::LevelZero(&rank.device));
    let created = objects.create(&new, place, ObjectOptions::default(), soon());
    if std::env::var_os("ZE_TEST_DRIVER_MEMORY").is_none() {
        let code = created.err().map(|error| error.code);
        return same("the broker's answer to a memfd", code, Some(ErrorCode::UnsupportedFd));
    }
    let mut group = created?;
    group.write_at(1, 0, &expected)?;
    group.seal(soon())?;

    let by_device = objects.with_level_zero(&rank.device);
    for (objects, device) in [(&by_device, Some(0)), (&objects, None)] {
        let object = objects.get("second", soon())?;
        same("the device", object.device(), device)?;
        same("has a device address", object.device_ptr().is_some(), device.is_some())?;
        let mut found = vec![0; BYTES];
        object.read_at(0, &mut found)?;
        holds(found == expected, || format!("{device:?}: other bytes"))?;
    }
    for name in ["first", "second"] {
        objects.delete(name, None, soon())?;
    }
    Ok(())
}
