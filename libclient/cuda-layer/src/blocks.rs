//! What the layer has made in the place of cuMemAlloc, what it has opened for cuIpcOpenMemHandle,
//! and which devices reach it. Plain data: must never call the driver or the broker, nor wait.

use crate::limits::BLOCKS_MOST;
use crate::result::{CuContext, CuDevicePtr, CuMemHandle};
use std::collections::{BTreeMap, HashMap};
use std::ffi::c_int;

/// What names an allocation at the broker: the begin of its handle.
pub type Name = [u8; 32];

/// A range of addresses that shows VMM memory where the program expects the driver's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    pub base: CuDevicePtr,
    /// Of the mapping, in bytes.
    pub size_bytes: usize,
    /// What the program has asked for, in bytes.
    pub asked_bytes: usize,
    /// A few bytes of the driver's own cuMemAlloc, made for this block in the same context: what
    /// the driver says of it holds for the block, and its end waits as the block's has to.
    pub twin: CuDevicePtr,
    pub context: CuContext,
    pub device: c_int,
}

/// Where it is from.
#[derive(Debug, PartialEq, Eq)]
pub enum Origin<L> {
    /// This process has made it; the layer's reference to its memory.
    Made(CuMemHandle),
    /// Opened so often; the lease is the mapping's.
    Opened { name: Name, opens: u64, lease: L },
}

/// A context whose device reaches the memory of another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    pub by: CuContext,
    pub device: c_int,
    pub of: CuContext,
}

/// The blocks of one process.
pub struct Blocks<L> {
    by_base: BTreeMap<CuDevicePtr, (Block, Origin<L>)>,
    /// Of what is opened, in each context once.
    opened: HashMap<(Name, CuContext), CuDevicePtr>,
    peers: Vec<Peer>,
    /// Those that a block was made or opened in.
    contexts: Vec<CuContext>,
}

/// What becomes of an end.
#[derive(Debug, PartialEq, Eq)]
pub enum End<L> {
    /// The driver's matter alone.
    Drivers,
    /// It is open elsewhere in the program.
    Counted,
    Last(Block, Origin<L>),
}

impl<L> Default for Blocks<L> {
    fn default() -> Self {
        let (peers, contexts) = (Vec::new(), Vec::new());
        Blocks { by_base: BTreeMap::new(), opened: HashMap::new(), peers, contexts }
    }
}

impl<L> Blocks<L> {
    pub fn is_full(&self) -> bool {
        self.by_base.len() >= BLOCKS_MOST
    }

    /// Notes a context that a block is to be in. Whether it is the first one.
    pub fn is_first_in(&mut self, context: CuContext) -> bool {
        let is_first = !self.contexts.contains(&context);
        if is_first {
            self.contexts.push(context);
        }
        is_first
    }

    /// Enters a block that these devices reach. Which others are to, because a peer was enabled
    /// meanwhile.
    pub fn enter(&mut self, block: Block, origin: Origin<L>, reached: &[c_int]) -> Vec<c_int> {
        if let Origin::Opened { name, .. } = &origin {
            self.opened.insert((*name, block.context), block.base);
        }
        self.by_base.insert(block.base, (block, origin));
        let mut devices = self.devices_of(block.context, block.device);
        devices.retain(|device| !reached.contains(device));
        devices
    }

    /// The devices that are to reach what a context has: its own, and those of its peers.
    pub fn devices_of(&self, context: CuContext, device: c_int) -> Vec<c_int> {
        let peers = self.peers.iter().filter(|peer| peer.of == context);
        let mut devices: Vec<_> = peers.map(|peer| peer.device).chain([device]).collect();
        devices.sort_unstable();
        devices.dedup();
        devices
    }

    /// The block that an address lies in, as far as the program has asked for it.
    pub fn at(&self, address: CuDevicePtr) -> Option<&(Block, Origin<L>)> {
        let (_, found) = self.by_base.range(..=address).next_back()?;
        let offset = usize::try_from(address - found.0.base).ok()?;
        (offset < found.0.asked_bytes).then_some(found)
    }

    /// Takes out what was made at this very address.
    pub fn take_made(&mut self, base: CuDevicePtr) -> Option<(Block, CuMemHandle)> {
        let (block, Origin::Made(handle)) = self.by_base.get(&base)? else { return None };
        let taken = (*block, *handle);
        self.by_base.remove(&base);
        Some(taken)
    }

    /// Opens once more what is open in this context. `is_current`: whether its handle is good.
    pub fn open_again(
        &mut self,
        name: Name,
        context: CuContext,
        is_current: impl FnOnce(&L) -> bool,
    ) -> Option<CuDevicePtr> {
        let base = *self.opened.get(&(name, context))?;
        match &mut self.by_base.get_mut(&base)?.1 {
            Origin::Opened { opens, lease, .. } if is_current(lease) => *opens += 1,
            _ => return None,
        }
        Some(base)
    }

    /// Closes once what was opened at this very address.
    pub fn close(&mut self, base: CuDevicePtr) -> End<L> {
        match self.by_base.get_mut(&base) {
            Some((_, Origin::Opened { opens, .. })) if *opens > 1 => {
                *opens -= 1;
                End::Counted
            }
            Some((_, Origin::Opened { .. })) => match self.take(base) {
                Some((block, origin)) => End::Last(block, origin),
                None => End::Drivers,
            },
            _ => End::Drivers,
        }
    }

    /// Takes out all that a context had, which is gone, and forgets whom it reached.
    pub fn end_context(&mut self, context: CuContext) -> Vec<(Block, Origin<L>)> {
        self.peers.retain(|peer| peer.by != context && peer.of != context);
        self.contexts.retain(|other| *other != context);
        let bases: Vec<_> = self.of_context(context).iter().map(|block| block.base).collect();
        bases.into_iter().filter_map(|base| self.take(base)).collect()
    }

    /// The contexts that blocks were made in, of a device.
    pub fn contexts_of(&self, device: c_int) -> Vec<CuContext> {
        let blocks = self.by_base.values().filter(|(block, _)| block.device == device);
        let mut contexts: Vec<_> = blocks.map(|(block, _)| block.context).collect();
        contexts.sort_unstable();
        contexts.dedup();
        contexts
    }

    /// A context reaches the memory of another from now on; the blocks that are there.
    pub fn enable(&mut self, peer: Peer) -> Vec<Block> {
        if !self.peers.contains(&peer) {
            self.peers.push(peer);
        }
        self.of_context(peer.of)
    }

    /// It does not any more; the blocks that its device reaches no longer.
    pub fn disable(&mut self, peer: Peer) -> Vec<Block> {
        self.peers.retain(|other| *other != peer);
        let reaches = |it: &Block| self.devices_of(it.context, it.device).contains(&peer.device);
        self.of_context(peer.of).into_iter().filter(|block| !reaches(block)).collect()
    }

    /// Takes out what stands at this very address.
    pub fn take(&mut self, base: CuDevicePtr) -> Option<(Block, Origin<L>)> {
        let (block, origin) = self.by_base.remove(&base)?;
        // Another thread may have opened it meanwhile at another address.
        if let Origin::Opened { name, .. } = &origin
            && self.opened.get(&(*name, block.context)) == Some(&base)
        {
            self.opened.remove(&(*name, block.context));
        }
        Some((block, origin))
    }

    fn of_context(&self, context: CuContext) -> Vec<Block> {
        let blocks = self.by_base.values().map(|(block, _)| *block);
        blocks.filter(|block| block.context == context).collect()
    }
}

#[cfg(test)]
mod tests;
