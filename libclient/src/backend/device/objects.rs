//! Devices as named objects know them. Must never depend on a driver's types.

use super::sharing::MemoryDevice;
use crate::api::client::Client;
use crate::backend::device_memory::{DeviceMemory, ObjectDevice};
use crate::books::grant::Grant;
use crate::error::Error;
use crate::map::Access;
use fdbroker_protocol::Facts;

impl<D: MemoryDevice> ObjectDevice for D {
    fn ordinal(&self) -> u32 {
        MemoryDevice::ordinal(self)
    }

    fn make(&self, client: &Client, bytes: usize) -> Result<(Box<dyn DeviceMemory>, Facts), Error> {
        let memory = self.allocate(bytes)?;
        let kind = self.identify(client, &memory)?.kind;
        let facts = Facts::new(kind, memory.size() as u64)
            .device(MemoryDevice::ordinal(self))
            .gpu(self.gpu());
        Ok((Box::new(memory), facts))
    }

    fn open(&self, grant: &Grant) -> Result<Box<dyn DeviceMemory>, Error> {
        Ok(Box::new(self.import(grant, Access::Read)?))
    }
}
