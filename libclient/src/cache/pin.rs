//! A pin as a number: the entry, the stripe of the thread that pinned it, and the entry's
//! incarnation. Must never be trusted: callers keep it and may give back anything.

use crate::limits::{CACHE_ENTRIES, PIN_STRIPES};
use crate::sync::low_half;
use std::num::NonZeroU64;

/// An import in use taken apart, for users that cannot keep a borrow: 8 bytes, plain. Give it back
/// once, by [`crate::ImportCache::release`]; what is not given back stays open until the cache
/// ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pin(NonZeroU64);

/// Where a pin's stripe and incarnation begin; the entry number is below.
const STRIPE_SHIFT: u32 = 25;
const INCARNATION_SHIFT: u32 = 32;
const _: () = assert!(CACHE_ENTRIES <= 1 << STRIPE_SHIFT);
const _: () = assert!(PIN_STRIPES <= 1 << (INCARNATION_SHIFT - STRIPE_SHIFT));

impl Pin {
    /// Of an entry that is open, so that its incarnation is not 0.
    #[inline]
    pub(super) fn new(number: u32, stripe: usize, incarnation: u32) -> Self {
        let low = u64::from(number) | (stripe as u64) << STRIPE_SHIFT;
        let pin = NonZeroU64::new(low | u64::from(incarnation) << INCARNATION_SHIFT);
        Pin(pin.expect("the incarnation of an open entry is not 0"))
    }

    #[inline]
    pub(super) fn number(self) -> u32 {
        low_half(self.0.get()) & ((1 << STRIPE_SHIFT) - 1)
    }

    #[inline]
    pub(super) fn stripe(self) -> usize {
        (low_half(self.0.get()) >> STRIPE_SHIFT) as usize
    }

    #[inline]
    pub(super) fn incarnation(self) -> u32 {
        low_half(self.0.get() >> INCARNATION_SHIFT)
    }

    /// The number for [`Pin::from_u64`]; never 0.
    pub fn to_u64(self) -> u64 {
        self.0.get()
    }

    /// From [`Pin::to_u64`]; `None` for 0. Whether it is a pin is for the cache to say.
    pub fn from_u64(number: u64) -> Option<Self> {
        NonZeroU64::new(number).map(Pin)
    }
}
