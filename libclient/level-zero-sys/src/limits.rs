//! Every bound of this crate, with its reason. Must never hold a bound without its reason.

/// Most structures followed along one `pNext` chain. The specification defines fewer extension structures than this for
/// all functions together; a longer chain is a circle or garbage, and following it must end.
pub const MAX_CHAIN: usize = 64;
