//! `ze_result_t` in words. Must never hide a number: a code that specification 1.12 does not have
//! is printed, too.

use crate::bindings::ze_result_t;
use crate::error::CallError;
use std::fmt;

macro_rules! names {
    ($($name:ident)*) => {
        impl ze_result_t {
            /// The specification's name of this code; `None` when 1.12 does not have it.
            pub fn name(self) -> Option<&'static str> {
                match self {
                    $(ze_result_t::$name => Some(stringify!($name)),)*
                    _ => None,
                }
            }
        }
    };
}

// All of 1.12's codes; written by regen.sh.
include!("result_names.rs");

impl fmt::Display for ze_result_t {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "{name} ({:#x})", self.0),
            None => write!(f, "an unknown code ({:#x})", self.0),
        }
    }
}

/// An answer as a result: every code but success is an error.
pub(crate) fn check(function: &'static str, code: ze_result_t) -> Result<(), CallError> {
    match code {
        ze_result_t::ZE_RESULT_SUCCESS => Ok(()),
        code => Err(CallError::Failed { function, code }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_of_the_specification_when_shown_has_its_name_and_its_number() {
        let shown = ze_result_t::ZE_RESULT_ERROR_INVALID_ARGUMENT.to_string();

        assert_eq!(shown, "ZE_RESULT_ERROR_INVALID_ARGUMENT (0x78000004)");
    }

    #[test]
    fn an_unknown_code_when_shown_keeps_its_number() {
        assert_eq!(ze_result_t(0x7800_beef).to_string(), "an unknown code (0x7800beef)");
    }

    #[test]
    fn every_answer_but_success_when_checked_is_an_error() {
        assert_eq!(check("zeInit", ze_result_t::ZE_RESULT_SUCCESS), Ok(()));
        let code = ze_result_t::ZE_RESULT_NOT_READY;
        let error = check("zeFenceQueryStatus", code).unwrap_err();
        assert_eq!(error.code(), Some(code));
        assert_eq!(error.to_string(), "zeFenceQueryStatus answered ZE_RESULT_NOT_READY (0x1)");
    }
}
