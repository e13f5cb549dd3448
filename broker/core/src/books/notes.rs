//! What happens, for the journal and for whoever watches: noted as it happens, taken by the daemon after each step. Must cost
//! nothing where nobody wants it, and never keep more than a step can make.

use crate::api::Note;

/// Notes not taken yet.
#[derive(Debug, Default)]
pub struct Notes {
    pub(crate) is_on: bool,
    pub(crate) list: Vec<Note>,
    pub(crate) lost: u64,
}
