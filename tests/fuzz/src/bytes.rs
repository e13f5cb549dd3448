//! Takes values from the front of an input, and zeros after its end, so that every input means
//! something. Must never panic.

/// What is left of an input.
#[derive(Clone, Copy, Debug)]
pub struct Bytes<'a>(pub &'a [u8]);

impl<'a> Bytes<'a> {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The next `most` bytes, or those that are left.
    pub fn take(&mut self, most: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(most.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// As many bytes as the next two say.
    pub fn block(&mut self) -> &'a [u8] {
        let length = self.u16();
        self.take(length.into())
    }

    pub fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut array = [0; N];
        let taken = self.take(N);
        array[..taken.len()].copy_from_slice(taken);
        array
    }

    pub fn u8(&mut self) -> u8 {
        self.array::<1>()[0]
    }

    pub fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    pub fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    pub fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    pub fn bool(&mut self) -> bool {
        self.u8() & 1 == 1
    }

    /// Below `end`, which is more than 0 and at most 256.
    pub fn below(&mut self, end: usize) -> usize {
        usize::from(self.u8()) % end
    }

    /// One of these, if there are any.
    pub fn one_of<T: Copy>(&mut self, all: &[T]) -> Option<T> {
        let index = self.u8();
        (!all.is_empty()).then(|| all[usize::from(index) % all.len()])
    }
}
