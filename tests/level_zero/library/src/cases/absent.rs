//! Devices without sharing: absent drivers and forked children. No case here starts a broker.

use crate::fault::{Outcome, holds, same};
use fdbroker_client::level_zero::{Device, LevelZeroMemory};
use fdbroker_client::{ErrorCode, MemoryKind, backend};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};

pub fn no_driver() -> Outcome {
    let error = Device::open(0).err().ok_or("a device without a driver")?;

    same("code", error.code, ErrorCode::NotSupported)?;
    holds(error.to_string().contains("no driver"), || format!("no reason: {error}"))?;
    let named = backend::by_name("level-zero")?;
    same("kind", named.kind(), MemoryKind::DmaBuf)?;
    same("available", named.available().err(), Some(error.clone()))?;
    same("count", Device::count().err(), Some(error))
}

pub fn opened() -> Outcome {
    same("available", backend::by_name("level-zero")?.available().err(), None)?;
    same("count", Device::count()?, 1)?;
    let device = Device::open(0)?;

    holds(device.name().contains("test device"), || format!("name {}", device.name()))?;
    let error = Device::open(1).err().ok_or("a second device")?;
    same("code of a second device", error.code, ErrorCode::NotSupported)?;
    holds(error.to_string().contains("show 1"), || format!("no count: {error}"))?;
    let none = LevelZeroMemory::new(&device, 0).err().ok_or("0 bytes")?;
    same("code of 0 bytes", none.code, ErrorCode::BadHandle)?;
    let memory = LevelZeroMemory::new(&device, 100)?;
    let past = memory.write_at(1, &[0; 100]).err().ok_or("a write past the end")?;
    same("code of a write past the end", past.code, ErrorCode::BadHandle)?;
    memory.fill(10, 20, 7)?;
    let mut bytes = [0; 20];
    memory.read_at(10, &mut bytes)?;
    same("what was filled", bytes, [7; 20])
}

pub fn forked() -> Outcome {
    let device = Device::open(0)?;
    let memory = LevelZeroMemory::new(&device, 100)?;
    // SAFETY: the library has no thread here, and the child only calls it and ends.
    match unsafe { fork() }? {
        ForkResult::Child => {
            let refuses = |done: Result<(), fdbroker_client::Error>| {
                done.is_err_and(|why| why.code == ErrorCode::NotSupported)
            };
            let refused = refuses(Device::open(0).map(drop))
                && refuses(memory.write_at(0, &[1]))
                && refuses(memory.export().map(drop));
            drop((memory, device));
            // SAFETY: ends the child without the parent's exit handlers.
            unsafe { libc::_exit(i32::from(!refused)) }
        }
        ForkResult::Parent { child } => {
            same("the child", waitpid(child, None)?, WaitStatus::Exited(child, 0))?;
            // The child's drops have freed nothing in this process.
            Ok(memory.write_at(0, &[1])?)
        }
    }
}
