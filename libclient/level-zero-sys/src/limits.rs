//! Every bound of this crate, with its reason. Must never hold a bound without its reason.

/// The most structures that are followed along one `pNext` chain. The specification has fewer
/// extension structures than this for all its functions together, so a longer chain is a circle or
/// garbage.
pub const MAX_CHAIN: usize = 64;
