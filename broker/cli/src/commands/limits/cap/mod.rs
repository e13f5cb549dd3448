//! A cap and its value as a user writes them. Must never guess a unit.

#[cfg(test)]
mod tests;

use crate::records;
use fdbroker_protocol::admin::{Limits, LimitsReply};
use fdbroker_protocol::{NO_CAP, Resource, Scope, parse_cap};
use std::str::FromStr;

/// One cap of one scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// The scope that the cap is for.
    pub scope: Scope,
    /// The resource that it limits.
    pub resource: Resource,
}

impl std::fmt::Display for Limit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.scope, self.resource)
    }
}

impl Limit {
    /// The cap in force; [`NO_CAP`]: none.
    pub fn of(self, limits: &Limits) -> u64 {
        limits[self.scope][self.resource].get()
    }

    /// A value of this cap, for people.
    pub fn show(self, cap: u64) -> String {
        match cap {
            NO_CAP => "none".into(),
            cap => records::amount(self.resource, cap),
        }
    }
}

/// A cap and its new value: `SCOPE.RESOURCE=VALUE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Assignment {
    pub limit: Limit,
    /// The value; [`NO_CAP`]: none.
    pub value: u64,
}

impl FromStr for Assignment {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let form = "write SCOPE.RESOURCE=VALUE, such as node.fds=4096";
        let (name, value) = text.split_once('=').ok_or(form)?;
        let (scope, resource) = name.split_once('.').ok_or(form)?;
        let scope = Scope::from_name(scope)
            .ok_or_else(|| format!("no scope `{scope}`; use {}", scopes().join(", ")))?;
        let capped = || {
            let capped = Resource::ALL.iter().filter(|it| it.is_capped_in(scope));
            capped.map(|it| it.name()).collect::<Vec<_>>().join(", ")
        };
        let name = resource;
        let resource = Resource::from_name(name)
            .ok_or_else(|| format!("no resource `{name}`; a {scope} has caps of {}", capped()))?;
        if !resource.is_capped_in(scope) {
            return Err(format!("a {scope} has no cap of `{name}`; it has caps of {}", capped()));
        }
        let limit = Limit { scope, resource };
        Ok(Assignment { limit, value: parse_cap(value)? })
    }
}

/// The caps that are not as configured.
pub fn changed(reply: &LimitsReply) -> Vec<Limit> {
    let all = Scope::WIDEST_FIRST.into_iter();
    let all = all.flat_map(|scope| Resource::capped().map(move |it| Limit { scope, resource: it }));
    let all = all.filter(|it| it.resource.is_capped_in(it.scope));
    all.filter(|it| it.of(&reply.in_force) != it.of(&reply.configured)).collect()
}

/// The names of the scopes, the widest first.
pub fn scopes() -> [&'static str; 4] {
    Scope::WIDEST_FIRST.map(Scope::name)
}
