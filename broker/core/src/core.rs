//! The whole, whose floors are above the books. Must never have state of its own.

use crate::api::{Config, ConfigError};
use crate::books::Books;

/// The broker. See the crate's page.
#[derive(Debug)]
pub struct Core {
    pub(crate) books: Books,
}

impl Core {
    /// An empty broker.
    ///
    /// # Errors
    /// When a number of the configuration cannot work; the message says which and why.
    pub fn new(mut config: Config) -> Result<Self, ConfigError> {
        config.check()?;
        config.bound_caps();
        Ok(Core { books: Books::new(config) })
    }
}
