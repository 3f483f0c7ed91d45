//! Messages of protobuf: one loop that reads, one that writes, and a table for each message.
//!
//! A table names fields by their numbers. The type of a field follows from its Rust type; `as` names the encoding of a
//! number that is not a plain varint. Numbers, texts and bytes are absent if they are 0 or empty, as proto3 has it; a
//! message, or an `Option`, is there or not. Unknown fields are skipped. Not supported: groups, extensions, and keeping
//! unknown fields.
//!
//! ```text
//! message! {
//!     struct Sandbox {
//!         1 id: String,
//!         2 created_at: i64,
//!         3 offset: i64 as Zigzag,
//!         4 linux: Option<Linux>,         // a message: there or not
//!         5 labels: BTreeMap<String, String>,
//!         6 ports: Vec<u32>,              // packed; read either way
//!         7 path: Option<String>, 8 handle: Option<u64>,
//!     } oneof [7 path, 8 handle]
//! }
//! ```
//!
//! Source: protobuf.dev, "Encoding" and the language guide of proto3.

mod decode;
mod encode;
mod fields;
#[cfg(test)]
mod tests;

use thiserror::Error;

pub use self::{decode::decode, encode::encode, fields::Number};

/// Limits of a message that is read.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Messages within each other.
    pub depth: u32,
    /// Entries of all lists and maps together, texts and nested messages.
    pub entries: usize,
    /// Bytes of memory, as far as a message makes them grow: a byte or two of it may stand for a large entry.
    pub bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            depth: 16,
            entries: 1 << 18,
            bytes: 48 << 20,
        }
    }
}

/// Reason why bytes are no message.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum Error {
    /// The message ends too early.
    #[error("a message that is cut")]
    Cut,
    /// A number of more than 64 bits, or a field's that there cannot be.
    #[error("a number that is too large")]
    Number,
    /// A field that is not written as its type is, or as nothing is.
    #[error("a field of the wrong type")]
    Type,
    /// A text that is not UTF-8.
    #[error("a text that is not UTF-8")]
    Text,
    /// The message holds more than the limits allow.
    #[error("a message that holds too much")]
    TooMuch,
}

/// A message with a table of its fields. See [`message`].
pub trait Message {
    /// Numbers of all fields, in the order in which they are written.
    fn numbers(&self) -> &'static [u32];
    /// The place of a field.
    fn slot(&mut self, number: u32) -> Option<Slot<'_>>;
    /// Removes the other fields of a `oneof`: this field is about to be read.
    fn choose(&mut self, number: u32);
}

/// Access to the values of a field.
pub enum Slot<'a> {
    /// Numbers, and how they are written.
    Number(Form, &'a mut dyn Numbers),
    /// Texts or bytes.
    Text(&'a mut dyn Texts),
    /// Messages.
    Message(&'a mut dyn Messages),
    /// A map.
    Map(&'a mut dyn Entries),
}

impl Slot<'_> {
    /// Returns the slot with another encoding of its numbers.
    #[must_use]
    pub fn formed(self, form: Form) -> Self {
        match self {
            Self::Number(_, numbers) => Self::Number(form, numbers),
            other => other,
        }
    }
}

/// Encoding of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `int32`, `int64`, `uint32`, `uint64`, `bool`, enumerations.
    Varint,
    /// `sint32`, `sint64`.
    Zigzag,
    /// `fixed32`, `sfixed32`, `float`.
    Fixed32,
    /// `fixed64`, `sfixed64`, `double`.
    Fixed64,
}

/// Wire types: they tell where a value ends. Groups, 3 and 4, are not in proto3.
const VARINT: u64 = 0;
const FIXED64: u64 = 1;
const LENGTH: u64 = 2;
const FIXED32: u64 = 5;

/// Numbers of a field: one, one or none, or a list. All forms are 64 bits here, signed ones extended.
pub trait Numbers {
    /// Number of values that are written: a 0 by itself is not.
    fn count(&self) -> usize;
    /// The value at this index.
    fn bits(&self, at: usize) -> u64;
    /// Adds a value to a list, or replaces the value. Returns the bytes of memory that it takes.
    fn put(&mut self, bits: u64) -> usize;
    /// Returns true for a list, which is written in one piece.
    fn is_list(&self) -> bool;
}

/// Texts or bytes of a field, as [`Numbers`] are.
pub trait Texts {
    /// Number of values that are written: an empty one by itself is not.
    fn count(&self) -> usize;
    /// The value at this index.
    fn bytes(&self, at: usize) -> &[u8];
    /// Adds a value to a list, or replaces the value. Returns the bytes of memory that it takes beside its text.
    fn put(&mut self, bytes: &[u8]) -> Result<usize, Error>;
}

/// Messages of a field: one or none, or a list.
pub trait Messages {
    /// Number of messages.
    fn count(&self) -> usize;
    /// The message at this index.
    fn message(&mut self, at: usize) -> Option<&mut dyn Message>;
    /// Returns the message to read into: the one that is there, or a new one.
    fn add(&mut self) -> &mut dyn Message;
    /// Bytes that a new one takes.
    fn entry_bytes(&self) -> usize;
}

/// Entries of a map. Each is written as a message of a key, 1, and a value, 2.
pub trait Entries {
    /// Reads one.
    fn read(&mut self, bytes: &[u8], rest: &mut Limits) -> Result<(), Error>;
    /// Hands over all, one after the other.
    fn each(&mut self, take: &mut dyn FnMut(&mut dyn Message));
}

/// A type that a field may have.
pub trait Field {
    /// Access to the field's values.
    fn slot(&mut self) -> Slot<'_>;
}

/// A type of which a field may have a list, or one or none.
pub trait Element: Sized {
    /// Access to the values of a list.
    fn list(list: &mut Vec<Self>) -> Slot<'_>;
    /// Access to a value that may be absent.
    fn option(option: &mut Option<Self>) -> Slot<'_>;
}

impl<E: Element> Field for Vec<E> {
    fn slot(&mut self) -> Slot<'_> {
        E::list(self)
    }
}

impl<E: Element> Field for Option<E> {
    fn slot(&mut self) -> Slot<'_> {
        E::option(self)
    }
}

/// Makes structs with a table each, as the module says: `message! { struct Name { 1 field: Type, … } … }`, or one:
/// `message! { struct Name { 1 field: Type, … } oneof [1 field, …] }`.
#[macro_export]
#[doc(hidden)]
macro_rules! message_table {
    (
        $(#[$meta:meta])*
        $vis:vis struct $name:ident {
            $($(#[$field_meta:meta])* $number:literal $field:ident: $type:ty $(as $form:ident)?),* $(,)?
        }
        $(oneof [$($one_number:literal $one:ident),*])*
    ) => {
        $(#[$meta])*
        #[derive(Clone, Debug, Default, PartialEq)]
        $vis struct $name {
            $($(#[$field_meta])* $vis $field: $type,)*
        }

        impl $crate::proto::Message for $name {
            fn numbers(&self) -> &'static [u32] {
                &[$($number),*]
            }

            fn slot(&mut self, number: u32) -> Option<$crate::proto::Slot<'_>> {
                match number {
                    $($number => {
                        let slot = $crate::proto::Field::slot(&mut self.$field);
                        $(let slot = slot.formed($crate::proto::Form::$form);)?
                        Some(slot)
                    })*
                    _ => None,
                }
            }

            fn choose(&mut self, _number: u32) {
                $(if [$($one_number),*].contains(&_number) {
                    $(if _number != $one_number {
                        self.$one = None;
                    })*
                })*
            }
        }

        impl $crate::proto::Element for $name {
            fn list(list: &mut Vec<Self>) -> $crate::proto::Slot<'_> {
                $crate::proto::Slot::Message(list)
            }

            fn option(option: &mut Option<Self>) -> $crate::proto::Slot<'_> {
                $crate::proto::Slot::Message(option)
            }
        }
    };
    ($($(#[$meta:meta])* $vis:vis struct $name:ident { $($fields:tt)* })*) => {
        $($crate::proto::message! { $(#[$meta])* $vis struct $name { $($fields)* } })*
    };
}
pub use message_table as message;

/// Makes an open enumeration: `enumeration! { struct State { READY = 0, … } }`. Values that have no name are kept.
#[macro_export]
#[doc(hidden)]
macro_rules! enumeration_table {
    (
        $(#[$meta:meta])*
        $vis:vis struct $name:ident {
            $($(#[$value_meta:meta])* $value:ident = $number:literal),* $(,)?
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        $vis struct $name($vis i32);

        impl $name {
            $($(#[$value_meta])* $vis const $value: Self = Self($number);)*
        }

        impl $crate::proto::Number for $name {
            const FORM: $crate::proto::Form = $crate::proto::Form::Varint;

            fn to_bits(self) -> u64 {
                $crate::proto::Number::to_bits(self.0)
            }

            fn from_bits(bits: u64) -> Self {
                Self($crate::proto::Number::from_bits(bits))
            }
        }

        $crate::proto::number_field!($name);
    };
}
pub use enumeration_table as enumeration;

/// Makes a type of numbers one that fields may have.
#[macro_export]
#[doc(hidden)]
macro_rules! number_field {
    ($($type:ty),*) => {$(
        impl $crate::proto::Numbers for $type {
            fn count(&self) -> usize {
                usize::from($crate::proto::Number::to_bits(*self) != 0)
            }

            fn bits(&self, _at: usize) -> u64 {
                $crate::proto::Number::to_bits(*self)
            }

            fn put(&mut self, bits: u64) -> usize {
                *self = $crate::proto::Number::from_bits(bits);
                0
            }

            fn is_list(&self) -> bool {
                false
            }
        }

        impl $crate::proto::Field for $type {
            fn slot(&mut self) -> $crate::proto::Slot<'_> {
                $crate::proto::Slot::Number(<Self as $crate::proto::Number>::FORM, self)
            }
        }

        impl $crate::proto::Element for $type {
            fn list(list: &mut Vec<Self>) -> $crate::proto::Slot<'_> {
                $crate::proto::Slot::Number(<Self as $crate::proto::Number>::FORM, list)
            }

            fn option(option: &mut Option<Self>) -> $crate::proto::Slot<'_> {
                $crate::proto::Slot::Number(<Self as $crate::proto::Number>::FORM, option)
            }
        }
    )*};
}
pub use number_field;
