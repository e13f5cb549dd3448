//! A saved state that has changed has another FORMAT. A deserializer that reads nothing walks
//! through the types of the state, and notes each field, variant and number in the order in which
//! they are written.

use super::State;
use crate::handover::ledger::FORMAT;
use serde::de::value::Error;
use serde::de::{self, Deserialize, DeserializeSeed, Deserializer, IntoDeserializer, Visitor};
use siphasher::sip::SipHasher13;
use std::hash::Hasher;

/// No enum of the state has more: each pass sees another variant of each.
const MOST_VARIANTS: u32 = 16;

/// The types, as far as one pass sees them.
struct Types {
    seen: String,
    pass: u32,
    /// Of the enum at hand.
    variant: u32,
}

/// So many elements or fields of one of them.
struct Elements<'a>(&'a mut Types, usize);

impl Types {
    fn note(&mut self, what: &str) {
        self.seen.push_str(what);
        self.seen.push(' ');
    }
}

/// Numbers are 1: error codes begin with it.
macro_rules! plain {
    ($($method:ident: $visit:ident($($value:expr)?);)*) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
            self.note(&stringify!($method)["deserialize_".len()..]);
            visitor.$visit($($value)?)
        })*
    };
}

impl<'de> Deserializer<'de> for &mut Types {
    type Error = Error;

    plain! {
        deserialize_bool: visit_bool(true);
        deserialize_i8: visit_i8(1);
        deserialize_i16: visit_i16(1);
        deserialize_i32: visit_i32(1);
        deserialize_i64: visit_i64(1);
        deserialize_u8: visit_u8(1);
        deserialize_u16: visit_u16(1);
        deserialize_u32: visit_u32(1);
        deserialize_u64: visit_u64(1);
        deserialize_u128: visit_u128(1);
        deserialize_f32: visit_f32(1.0);
        deserialize_f64: visit_f64(1.0);
        deserialize_char: visit_char('a');
        deserialize_str: visit_str("a");
        deserialize_string: visit_str("a");
        deserialize_bytes: visit_bytes(b"a");
        deserialize_byte_buf: visit_bytes(b"a");
        deserialize_unit: visit_unit();
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.note("option");
        visitor.visit_some(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.note("seq");
        visitor.visit_seq(Elements(self, 1))
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.note("map");
        visitor.visit_map(Elements(self, 1))
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, len: usize, to: V) -> Result<V::Value, Error> {
        self.note("tuple");
        to.visit_seq(Elements(self, len))
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.deserialize_tuple(len, visitor)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        fields.iter().for_each(|field| self.note(field));
        visitor.visit_seq(Elements(self, fields.len()))
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.deserialize_unit(visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        let count = u32::try_from(variants.len()).expect("few variants");
        assert!(count <= MOST_VARIANTS, "more variants than passes: {variants:?}");
        self.variant = self.pass % count;
        variants.iter().for_each(|variant| self.note(variant));
        visitor.visit_enum(self)
    }

    fn deserialize_any<V: Visitor<'de>>(self, _visitor: V) -> Result<V::Value, Error> {
        unreachable!("postcard knows no types but those of the records")
    }

    fn deserialize_identifier<V: Visitor<'de>>(self, _visitor: V) -> Result<V::Value, Error> {
        unreachable!("postcard writes no names")
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, _visitor: V) -> Result<V::Value, Error> {
        unreachable!("postcard skips nothing")
    }
}

impl<'de> de::SeqAccess<'de> for Elements<'_> {
    type Error = Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Error> {
        let Some(left) = self.1.checked_sub(1) else { return Ok(None) };
        self.1 = left;
        seed.deserialize(&mut *self.0).map(Some)
    }
}

impl<'de> de::MapAccess<'de> for Elements<'_> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Error> {
        de::SeqAccess::next_element_seed(self, seed)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Error> {
        seed.deserialize(&mut *self.0)
    }
}

impl<'de> de::EnumAccess<'de> for &mut Types {
    type Error = Error;
    type Variant = Self;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Self), Error> {
        let at: de::value::U32Deserializer<Error> = self.variant.into_deserializer();
        Ok((seed.deserialize(at)?, self))
    }
}

impl<'de> de::VariantAccess<'de> for &mut Types {
    type Error = Error;

    fn unit_variant(self) -> Result<(), Error> {
        Ok(())
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, Error> {
        seed.deserialize(self)
    }

    fn tuple_variant<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_tuple(len, visitor)
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.deserialize_struct("", fields, visitor)
    }
}

#[test]
fn format_when_the_saved_state_changes_then_it_has_another_number() {
    let mut hasher = SipHasher13::new();
    for pass in 0..MOST_VARIANTS {
        let mut types = Types { seen: String::new(), pass, variant: 0 };
        State::deserialize(&mut types).expect("types of records");
        assert!(types.seen.contains("driver_data"), "the core's records are among them");
        hasher.write(types.seen.as_bytes());
    }
    assert_eq!(
        (FORMAT, hasher.finish()),
        (17, 14_882_121_355_992_369_968),
        "the records of the saved state have changed: give FORMAT another number, then write both here"
    );
}
