//! `[caps.SCOPE]` of the configuration file: the keys are the resources that the table allows in
//! the scope. Must never take an unknown key: a misspelt cap would silently be no cap.

use super::CapsSections;
use fdbroker_protocol::{Resource, Scope, parse_cap};
use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error, MapAccess, Visitor};
use std::fmt;

/// For serde's `deserialize_with`.
pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<CapsSections, D::Error> {
    from.deserialize_map(Scopes)
}

/// `[caps]`: one section per scope.
struct Scopes;

impl<'de> Visitor<'de> for Scopes {
    type Value = CapsSections;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("sections of caps, such as [caps.node]")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut sections = CapsSections::default();
        while let Some(scope) = map.next_key_seed(Key(Scope::ALL, Scope::name))? {
            sections[scope] = map.next_value_seed(Section(scope))?;
        }
        Ok(sections)
    }
}

/// `[caps.SCOPE]`: one cap per resource that can be capped there.
struct Section(Scope);

impl<'de> DeserializeSeed<'de> for Section {
    type Value = fdbroker_protocol::ByResource<Option<u64>>;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Self::Value, D::Error> {
        from.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Section {
    type Value = fdbroker_protocol::ByResource<Option<u64>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "caps of the scope {}, such as fds = 4096", self.0)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let all = Resource::ALL.iter().copied();
        let allowed: Vec<_> = all.filter(|resource| resource.is_capped_in(self.0)).collect();
        let mut caps = Self::Value::default();
        while let Some(resource) = map.next_key_seed(Key(&allowed, Resource::name))? {
            caps[resource] = Some(map.next_value::<Cap>()?.0);
        }
        Ok(caps)
    }
}

/// A number, or text such as "8Gi" or "none".
struct Cap(u64);

impl<'de> Deserialize<'de> for Cap {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(CapVisitor)
    }
}

struct CapVisitor;

impl Visitor<'_> for CapVisitor {
    type Value = Cap;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number that is not negative, or text such as \"8Gi\" or \"none\"")
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Cap, E> {
        Ok(Cap(number))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Cap, E> {
        let negative = || E::invalid_value(serde::de::Unexpected::Signed(number), &self);
        u64::try_from(number).map(Cap).map_err(|_| negative())
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Cap, E> {
        parse_cap(text).map(Cap).map_err(E::custom)
    }
}

/// A key that must be the name of one of these rows.
struct Key<'a, T>(&'a [T], fn(T) -> &'static str);

impl<'de, T: Copy> DeserializeSeed<'de> for Key<'_, T> {
    type Value = T;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<T, D::Error> {
        from.deserialize_identifier(self)
    }
}

impl<T: Copy> Visitor<'_> for Key<'_, T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        let Key(rows, name) = self;
        rows.iter().copied().find(|row| name(*row) == text).ok_or_else(|| {
            let names: Vec<_> = rows.iter().map(|row| format!("`{}`", name(*row))).collect();
            E::custom(format!("unknown field `{text}`, expected one of {}", names.join(", ")))
        })
    }
}
