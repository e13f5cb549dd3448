//! The devices for which memory of objects is opened. Must never choose another device than was
//! said, or is its maker's GPU.

use crate::backend::ObjectDevice;
use crate::error::Error;
use fdbroker_protocol::{Facts, Gpu, MemoryKind};
use std::sync::Arc;

/// One of each driver, where the program said which.
#[derive(Clone, Debug, Default)]
pub(super) struct Devices {
    pub cuda: Option<Arc<dyn ObjectDevice>>,
    pub level_zero: Option<Arc<dyn ObjectDevice>>,
}

impl Devices {
    /// The one for which such memory is opened; `None`: it is for the CPU to map.
    pub fn choose(&self, facts: &Facts) -> Result<Option<Arc<dyn ObjectDevice>>, Error> {
        match (facts.kind, &self.cuda) {
            (MemoryKind::DmaBuf, _) => Ok(self.level_zero.clone()),
            (kind, Some(device)) if kind.is_for_cuda() => Ok(Some(Arc::clone(device))),
            (kind, None) if kind.is_for_cuda() => cuda_device_of(&facts.gpu).map(Some),
            _ => Ok(None),
        }
    }
}

/// The device of this process that is a GPU.
#[cfg(feature = "cuda")]
fn cuda_device_of(gpu: &Gpu) -> Result<Arc<dyn ObjectDevice>, Error> {
    use crate::backend::cuda::Device;
    Ok(Arc::new(Device::open(Device::ordinal_of(gpu)?)?))
}

#[cfg(not(feature = "cuda"))]
fn cuda_device_of(_: &Gpu) -> Result<Arc<dyn ObjectDevice>, Error> {
    Err(crate::backend::by_name("cuda").expect_err("it is not built in"))
}
