//! The whole: the books, and what both floors go by. Must never have state of its own.

use std::sync::Arc;

use crate::api::{Config, ConfigError};
use crate::books::Books;

/// The broker. See the crate's page.
#[derive(Debug)]
pub struct Core {
    pub(crate) books: Books,
    /// Its caps are those in the beginning; the ledger has those in force.
    pub(crate) config: Arc<Config>,
}

impl Core {
    /// An empty broker.
    ///
    /// # Errors
    /// When a number of the configuration cannot work; the message says which and why.
    pub fn new(mut config: Config) -> Result<Self, ConfigError> {
        config.check()?;
        config.bound_caps();
        let config = Arc::new(config);
        Ok(Core { books: Books::new(Arc::clone(&config)), config })
    }
}
