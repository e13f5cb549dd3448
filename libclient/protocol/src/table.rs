//! The macros that make one list into everything that is read from it: an enumeration, its numbers
//! and names, and a struct with one value per row. Must never hold a row.

/// Makes an enumeration whose values have a number on the wire and a name in tables, JSON and
/// messages.
macro_rules! wire_enum {
    ($(#[$doc:meta])* $name:ident : $repr:ty { $($(#[$vdoc:meta])* $variant:ident = $number:literal, $text:expr;)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr($repr)]
        pub enum $name { $($(#[$vdoc])* $variant = $number,)* }

        impl $name {
            /// Every value, in the order of its number.
            pub const ALL: &'static [$name] = &[$($name::$variant,)*];

            /// All names, in the same order.
            pub const NAMES: &'static [&'static str] = &[$($text,)*];

            /// The value of a number on the wire; `None` when this release knows no such value.
            pub fn from_number(number: $repr) -> Option<Self> {
                match number { $($number => Some(Self::$variant),)* _ => None }
            }

            /// The name in tables, JSON and messages.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result { f.write_str(self.name()) }
        }
    };
}
pub(crate) use wire_enum;

/// Makes a plain struct, which is what the library shows, and its form in messages and records.
macro_rules! with_wire_form {
    ($(#[$doc:meta])* $name:ident, $item:ident { $($(#[$field_doc:meta])* $field:ident: $plain:ty, $wire:ty;)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name { $($(#[$field_doc])* pub $field: $plain,)* }

        #[doc = concat!("[`", stringify!($name), "`] in messages and records.")]
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, zerocopy::FromBytes, zerocopy::IntoBytes,
            zerocopy::KnownLayout, zerocopy::Immutable, zerocopy::Unaligned,
        )]
        #[repr(C)]
        pub struct $item { $($(#[$field_doc])* pub $field: $wire,)* }

        impl From<$name> for $item {
            fn from(plain: $name) -> Self { $item { $($field: plain.$field.into(),)* } }
        }

        impl From<$item> for $name {
            fn from(item: $item) -> Self { $name { $($field: item.$field.into(),)* } }
        }

        impl $item {
            /// What it says.
            pub fn get(self) -> $name { self.into() }
        }

        impl $name {
            /// As on the wire.
            pub fn to_bytes(self) -> [u8; size_of::<$item>()] {
                zerocopy::transmute!($item::from(self))
            }

            /// Any bytes are one; whether it is a good one is for its reader to say.
            pub fn from_bytes(bytes: [u8; size_of::<$item>()]) -> Self {
                let item: $item = zerocopy::transmute!(bytes);
                item.get()
            }
        }
    };
}
pub(crate) use with_wire_form;

/// Makes a table: an enumeration with one value per row, and a struct with one field per row that
/// is indexed by the enumeration. Rows are numbered 1, 2, 3, ... in their order; the field's name
/// is the row's name everywhere.
macro_rules! table {
    (
        $(#[$doc:meta])* enum $name:ident;
        $(#[$by_doc:meta])* struct $by:ident;
        $($variant:ident = $number:literal, $field:ident, $help:literal;)*
    ) => {
        $crate::table::wire_enum! {
            $(#[$doc])*
            $name: u8 { $(#[doc = $help] $variant = $number, stringify!($field);)* }
        }

        impl $name {
            /// How many rows there are.
            pub const COUNT: usize = Self::ALL.len();

            /// The place of the row in an array, from 0.
            pub const fn index(self) -> usize { self as usize - 1 }

            /// What the row counts: a phrase for help texts, without a capital or a full stop.
            pub const fn help(self) -> &'static str {
                match self { $(Self::$variant => $help,)* }
            }

            /// The row of this name.
            pub fn from_name(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|row| row.name() == name)
            }
        }

        const _: () = {
            let mut at = 0;
            while at < $name::COUNT {
                assert!($name::ALL[at].index() == at, "rows are numbered from 1 without a gap");
                at += 1;
            }
        };

        $(#[$by_doc])*
        #[derive(
            Clone, Copy, Debug, Default, PartialEq, Eq, zerocopy::FromBytes, zerocopy::IntoBytes,
            zerocopy::KnownLayout, zerocopy::Immutable, zerocopy::Unaligned,
        )]
        #[repr(C)]
        pub struct $by<T> { $(#[doc = $help] pub $field: T,)* }

        impl<T> $by<T> {
            /// One value per row, made by `value`.
            pub fn from_fn(mut value: impl FnMut($name) -> T) -> Self {
                Self { $($field: value($name::$variant),)* }
            }

            /// The rows with their values, in the table's order.
            pub fn iter(&self) -> impl Iterator<Item = ($name, &T)> {
                $name::ALL.iter().map(|row| (*row, &self[*row]))
            }

            /// The same rows with other values.
            pub fn map<U>(&self, mut value: impl FnMut(&T) -> U) -> $by<U> {
                $by::from_fn(|row| value(&self[row]))
            }
        }

        impl<T: Copy> $by<T> {
            /// The same value in every row.
            pub const fn all(value: T) -> Self { Self { $($field: value,)* } }
        }

        impl<T> std::ops::Index<$name> for $by<T> {
            type Output = T;
            fn index(&self, row: $name) -> &T {
                match row { $($name::$variant => &self.$field,)* }
            }
        }

        impl<T> std::ops::IndexMut<$name> for $by<T> {
            fn index_mut(&mut self, row: $name) -> &mut T {
                match row { $($name::$variant => &mut self.$field,)* }
            }
        }
    };
}
pub(crate) use table;
