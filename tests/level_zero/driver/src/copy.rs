//! The commands of lists: copy and fill. Must never write past the end of an allocation.

use crate::allocation::{Registry, registry};
use crate::answer::Failure;
use crate::limits::EVENT_TIMEOUT;
use crate::signal::Signal;
use level_zero_sys::ze_result_t;

/// One command, with the events that it waits for and the one that it signals.
pub struct Command {
    pub work: Work,
    pub waits: Vec<&'static Signal>,
    pub signals: Option<&'static Signal>,
}

pub enum Work {
    /// Each address is of this driver's memory or of the program's own.
    Copy {
        to: usize,
        from: usize,
        bytes: usize,
    },
    Fill {
        to: usize,
        pattern: Vec<u8>,
        bytes: usize,
    },
    Barrier,
}

impl Command {
    /// Runs the command to its end.
    ///
    /// # Safety
    /// Addresses that are not the driver's are the program's own memory, valid for as many bytes.
    /// Events live.
    pub unsafe fn run(&self) -> Result<(), Failure> {
        for signal in &self.waits {
            // No command runs beside the program: an event that is not signalled soon never will
            // be.
            signal.wait(EVENT_TIMEOUT).map_err(|_| ze_result_t::ZE_RESULT_ERROR_DEVICE_LOST)?;
        }
        // SAFETY: the caller's promise.
        unsafe { self.work.run(&mut registry()) }?;
        if let Some(signal) = self.signals {
            signal.set(true);
        }
        Ok(())
    }
}

impl Work {
    /// # Safety
    /// As [`Command::run`].
    unsafe fn run(&self, registry: &mut Registry) -> Result<(), Failure> {
        match self {
            Self::Copy { to, from, bytes } => {
                let to = place(registry, *to, *bytes)?;
                let from = place(registry, *from, *bytes)?;
                // SAFETY: each is inside an allocation, which the lock keeps, or the program's own
                // memory by its promise; they may overlap.
                unsafe { std::ptr::copy(from.cast_const(), to, *bytes) };
            }
            Self::Fill { to, pattern, bytes } => {
                let to = place(registry, *to, *bytes)?;
                for (i, byte) in pattern.iter().cycle().take(*bytes).enumerate() {
                    // SAFETY: `i` is below `bytes`, and so many bytes are inside; see above.
                    unsafe { to.wrapping_add(i).write(*byte) };
                }
            }
            Self::Barrier => {}
        }
        Ok(())
    }
}

/// Where the CPU finds the bytes of an address: for a device address, in the mapping of its object.
fn place(registry: &mut Registry, address: usize, bytes: usize) -> Result<*mut u8, Failure> {
    let Some(allocation) = registry.find(address) else {
        return Ok(std::ptr::with_exposed_provenance_mut(address));
    };
    let inside = address - allocation.base();
    if bytes > allocation.bytes - inside {
        return Err(ze_result_t::ZE_RESULT_ERROR_INVALID_SIZE.into());
    }
    Ok(allocation.object.memory.at(allocation.offset + inside))
}
