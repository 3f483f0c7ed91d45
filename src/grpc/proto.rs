//! Messages of protobuf: one loop that reads, one that writes, and a table for each message.
//!
//! A table names fields by their numbers. What a field is follows from its type; `as` says how a number is written where
//! that is not a plain varint. Numbers, texts and bytes are absent if they are 0 or empty, as proto3 has it; a message, or
//! whatever is an `Option`, is there or not. Unknown fields are skipped. Not supported: groups, extensions, and what is
//! unknown kept.
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

use std::collections::BTreeMap;

use thiserror::Error;

#[cfg(test)]
mod tests;

/// What reading may take.
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

/// Why something is no message.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum Error {
    /// It ends too early.
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
    /// More than the limits allow.
    #[error("a message that holds too much")]
    TooMuch,
}

/// What has a table. See [`message`].
pub trait Message {
    /// Numbers of all fields, in the order in which they are written.
    fn numbers(&self) -> &'static [u32];
    /// The place of a field.
    fn slot(&mut self, number: u32) -> Option<Slot<'_>>;
    /// This field is about to be read: those that exclude it go.
    fn choose(&mut self, number: u32);
}

/// Where a field's values are.
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
    /// The same, in another form of a number.
    #[must_use]
    pub fn formed(self, form: Form) -> Self {
        match self {
            Self::Number(_, numbers) => Self::Number(form, numbers),
            other => other,
        }
    }
}

/// How a number is written.
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

/// Numbers of a field: one, one or none, or a list. All forms are 64 bits here, signed ones extended.
pub trait Numbers {
    /// How many are written: a 0 by itself is not.
    fn count(&self) -> usize;
    /// One of them.
    fn bits(&self, at: usize) -> u64;
    /// Adds it to a list, or puts it in the place of what is there. Returns the bytes it takes.
    fn put(&mut self, bits: u64) -> usize;
    /// Whether they are a list, which is written in one piece.
    fn is_list(&self) -> bool;
}

/// Texts or bytes of a field, as [`Numbers`] are.
pub trait Texts {
    /// How many are written: an empty one by itself is not.
    fn count(&self) -> usize;
    /// One of them.
    fn bytes(&self, at: usize) -> &[u8];
    /// Adds it to a list, or puts it in the place of what is there. Returns the bytes it takes beside its text.
    fn put(&mut self, bytes: &[u8]) -> Result<usize, Error>;
}

/// Messages of a field: one or none, or a list.
pub trait Messages {
    /// How many there are.
    fn count(&self) -> usize;
    /// One of them.
    fn message(&mut self, at: usize) -> Option<&mut dyn Message>;
    /// The one that is there, or a new one: for what comes next.
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
    /// Where its values are.
    fn slot(&mut self) -> Slot<'_>;
}

/// A type of which a field may have a list, or one or none.
pub trait Element: Sized {
    /// Where a list's values are.
    fn list(list: &mut Vec<Self>) -> Slot<'_>;
    /// Where the one is.
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

/// Writes a message.
///
/// It is asked for its places as a reader asks, so that a table is one function; nothing of it changes.
pub fn encode(message: &mut dyn Message) -> Vec<u8> {
    let mut out = Vec::new();
    put_message(message, &mut out);
    out
}

fn put_message(message: &mut dyn Message, out: &mut Vec<u8>) {
    for &number in message.numbers() {
        match message.slot(number) {
            Some(Slot::Number(form, numbers)) => put_numbers(number, form, numbers, out),
            Some(Slot::Text(texts)) => {
                for at in 0..texts.count() {
                    let text = texts.bytes(at);
                    put_tag(number, LENGTH, out);
                    put_varint(length(text), out);
                    out.extend_from_slice(text);
                }
            }
            Some(Slot::Message(messages)) => {
                for at in 0..messages.count() {
                    if let Some(message) = messages.message(at) {
                        put_nested(number, message, out);
                    }
                }
            }
            Some(Slot::Map(entries)) => {
                entries.each(&mut |entry| put_nested(number, entry, out));
            }
            None => {}
        }
    }
}

fn put_nested(number: u32, message: &mut dyn Message, out: &mut Vec<u8>) {
    put_tag(number, LENGTH, out);
    let begin = out.len();
    put_message(message, out);
    put_length_before(begin, out);
}

fn put_numbers(number: u32, form: Form, numbers: &dyn Numbers, out: &mut Vec<u8>) {
    let count = numbers.count();
    if count == 0 {
        return;
    }
    if !numbers.is_list() {
        put_tag(number, form.wire(), out);
        return form.put(numbers.bits(0), out);
    }
    put_tag(number, LENGTH, out);
    let begin = out.len();
    for at in 0..count {
        form.put(numbers.bits(at), out);
    }
    put_length_before(begin, out);
}

/// The length of what was written since `begin`, put in front of it.
fn put_length_before(begin: usize, out: &mut Vec<u8>) {
    let end = out.len();
    put_varint(length(&out[begin..]), out);
    let added = out.len() - end;
    out[begin..].rotate_right(added);
}

/// How a value is told from the next. Groups, 3 and 4, are not in proto3.
const VARINT: u64 = 0;
const FIXED64: u64 = 1;
const LENGTH: u64 = 2;
const FIXED32: u64 = 5;

fn put_tag(number: u32, wire: u64, out: &mut Vec<u8>) {
    put_varint(u64::from(number) << 3 | wire, out);
}

fn put_varint(mut number: u64, out: &mut Vec<u8>) {
    while number >= 0x80 {
        out.push(0x80 | (number & 0x7f).to_le_bytes()[0]);
        number >>= 7;
    }
    out.push(number.to_le_bytes()[0]);
}

fn length(bytes: &[u8]) -> u64 {
    u64::try_from(bytes.len()).unwrap_or(u64::MAX)
}

impl Form {
    const fn wire(self) -> u64 {
        match self {
            Self::Varint | Self::Zigzag => VARINT,
            Self::Fixed32 => FIXED32,
            Self::Fixed64 => FIXED64,
        }
    }

    fn put(self, bits: u64, out: &mut Vec<u8>) {
        match self {
            Self::Varint => put_varint(bits, out),
            Self::Zigzag => {
                let sign = (bits.cast_signed() >> 63).cast_unsigned();
                put_varint(bits << 1 ^ sign, out);
            }
            Self::Fixed32 => out.extend(&bits.to_le_bytes()[..4]),
            Self::Fixed64 => out.extend(bits.to_le_bytes()),
        }
    }

    fn take(self, input: &mut Input<'_>) -> Result<u64, Error> {
        Ok(match self {
            Self::Varint => input.varint()?,
            Self::Zigzag => {
                let value = input.varint()?;
                value >> 1 ^ 0_u64.wrapping_sub(value & 1)
            }
            Self::Fixed32 => u64::from(u32::from_le_bytes(input.array()?)),
            Self::Fixed64 => u64::from_le_bytes(input.array()?),
        })
    }
}

/// Reads a message into one that is empty or holds what came before it: the last of a field counts, lists grow.
pub fn decode(message: &mut dyn Message, bytes: &[u8], limits: Limits) -> Result<(), Error> {
    let mut rest = limits;
    merge(message, bytes, &mut rest)
}

fn merge(message: &mut dyn Message, bytes: &[u8], rest: &mut Limits) -> Result<(), Error> {
    rest.depth = rest.depth.checked_sub(1).ok_or(Error::TooMuch)?;
    let mut input = Input { bytes };
    while !input.bytes.is_empty() {
        let tag = input.varint()?;
        let number = u32::try_from(tag >> 3).map_err(|_| Error::Number)?;
        if number == 0 {
            return Err(Error::Number);
        }
        message.choose(number);
        match message.slot(number) {
            Some(slot) => take(slot, tag & 7, &mut input, rest)?,
            None => input.skip(tag & 7)?,
        }
    }
    rest.depth += 1;
    Ok(())
}

fn take(slot: Slot<'_>, wire: u64, input: &mut Input<'_>, rest: &mut Limits) -> Result<(), Error> {
    if let Slot::Number(form, numbers) = slot {
        if wire == form.wire() {
            let bits = form.take(input)?;
            return rest.spend(numbers.is_list(), numbers.put(bits));
        }
        if wire != LENGTH || !numbers.is_list() {
            return Err(Error::Type);
        }
        let mut packed = Input {
            bytes: input.piece()?,
        };
        while !packed.bytes.is_empty() {
            let bits = form.take(&mut packed)?;
            rest.spend(true, numbers.put(bits))?;
        }
        return Ok(());
    }
    if wire != LENGTH {
        return Err(Error::Type);
    }
    let piece = input.piece()?;
    match slot {
        Slot::Number(..) => Err(Error::Type),
        Slot::Text(texts) => {
            rest.spend(true, piece.len())?;
            rest.spend(false, texts.put(piece)?)
        }
        Slot::Message(messages) => {
            rest.spend(true, messages.entry_bytes())?;
            merge(messages.add(), piece, rest)
        }
        Slot::Map(entries) => entries.read(piece, rest),
    }
}

impl Limits {
    fn spend(&mut self, is_entry: bool, bytes: usize) -> Result<(), Error> {
        let entries = self.entries.checked_sub(usize::from(is_entry));
        self.entries = entries.ok_or(Error::TooMuch)?;
        self.bytes = self.bytes.checked_sub(bytes).ok_or(Error::TooMuch)?;
        Ok(())
    }
}

struct Input<'a> {
    bytes: &'a [u8],
}

impl<'a> Input<'a> {
    fn varint(&mut self) -> Result<u64, Error> {
        let mut value = 0;
        for shift in (0..70).step_by(7) {
            let (first, rest) = self.bytes.split_first().ok_or(Error::Cut)?;
            self.bytes = rest;
            let part = u64::from(first & 0x7f);
            if shift == 63 && part > 1 {
                break;
            }
            value |= part << shift;
            if first & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Error::Number)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        let (first, rest) = self.bytes.split_first_chunk().ok_or(Error::Cut)?;
        self.bytes = rest;
        Ok(*first)
    }

    fn piece(&mut self) -> Result<&'a [u8], Error> {
        let len = usize::try_from(self.varint()?).map_err(|_| Error::Cut)?;
        let (piece, rest) = self.bytes.split_at_checked(len).ok_or(Error::Cut)?;
        self.bytes = rest;
        Ok(piece)
    }

    fn skip(&mut self, wire: u64) -> Result<(), Error> {
        match wire {
            VARINT => self.varint().map(|_| ()),
            FIXED64 => self.array::<8>().map(|_| ()),
            LENGTH => self.piece().map(|_| ()),
            FIXED32 => self.array::<4>().map(|_| ()),
            _ => Err(Error::Type),
        }
    }
}

/// A number that a field may be.
pub trait Number: Copy + Default {
    /// How it is written unless the table says otherwise.
    const FORM: Form;
    /// As 64 bits, signed ones extended.
    fn to_bits(self) -> u64;
    /// From the lowest of 64 bits, as far as there is room.
    fn from_bits(bits: u64) -> Self;
}

impl<N: Number> Numbers for Vec<N> {
    fn count(&self) -> usize {
        self.len()
    }

    fn bits(&self, at: usize) -> u64 {
        self.get(at).copied().unwrap_or_default().to_bits()
    }

    fn put(&mut self, bits: u64) -> usize {
        self.push(N::from_bits(bits));
        size_of::<N>()
    }

    fn is_list(&self) -> bool {
        true
    }
}

impl<N: Number> Numbers for Option<N> {
    fn count(&self) -> usize {
        usize::from(self.is_some())
    }

    fn bits(&self, _at: usize) -> u64 {
        self.unwrap_or_default().to_bits()
    }

    fn put(&mut self, bits: u64) -> usize {
        *self = Some(N::from_bits(bits));
        0
    }

    fn is_list(&self) -> bool {
        false
    }
}

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

number_field!(i32, i64, u32, u64, bool, f32, f64);

/// The lowest 32 of them.
fn low(bits: u64) -> u32 {
    let [a, b, c, d, ..] = bits.to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

macro_rules! number {
    ($($type:ty, $form:ident, $to:expr, $from:expr;)*) => {$(
        impl Number for $type {
            const FORM: Form = Form::$form;

            fn to_bits(self) -> u64 {
                $to(self)
            }

            fn from_bits(bits: u64) -> Self {
                $from(bits)
            }
        }
    )*};
}
number! {
    i32, Varint, |n| i64::from(n).cast_unsigned(), |bits| low(bits).cast_signed();
    i64, Varint, Self::cast_unsigned, u64::cast_signed;
    u32, Varint, u64::from, low;
    u64, Varint, |n| n, |bits| bits;
    bool, Varint, u64::from, |bits| bits != 0;
    f32, Fixed32, |n: Self| u64::from(n.to_bits()), |bits| Self::from_bits(low(bits));
    f64, Fixed64, Self::to_bits, Self::from_bits;
}

/// A text or bytes that a field may be.
trait Text: Sized {
    fn to_bytes(&self) -> &[u8];
    fn from_bytes(bytes: &[u8]) -> Result<Self, Error>;
}

impl Text for String {
    fn to_bytes(&self) -> &[u8] {
        self.as_bytes()
    }

    fn from_bytes(bytes: &[u8]) -> Result<Self, Error> {
        let text = core::str::from_utf8(bytes).map_err(|_| Error::Text)?;
        Ok(text.into())
    }
}

impl Text for Vec<u8> {
    fn to_bytes(&self) -> &[u8] {
        self
    }

    fn from_bytes(bytes: &[u8]) -> Result<Self, Error> {
        Ok(bytes.to_vec())
    }
}

impl<T: Text> Texts for Vec<T> {
    fn count(&self) -> usize {
        self.len()
    }

    fn bytes(&self, at: usize) -> &[u8] {
        self.get(at).map_or(&[], T::to_bytes)
    }

    fn put(&mut self, bytes: &[u8]) -> Result<usize, Error> {
        self.push(T::from_bytes(bytes)?);
        Ok(size_of::<T>())
    }
}

impl<T: Text> Texts for Option<T> {
    fn count(&self) -> usize {
        usize::from(self.is_some())
    }

    fn bytes(&self, _at: usize) -> &[u8] {
        self.as_ref().map_or(&[], T::to_bytes)
    }

    fn put(&mut self, bytes: &[u8]) -> Result<usize, Error> {
        *self = Some(T::from_bytes(bytes)?);
        Ok(0)
    }
}

macro_rules! text {
    ($($type:ty),*) => {$(
        impl Texts for $type {
            fn count(&self) -> usize {
                usize::from(!self.is_empty())
            }

            fn bytes(&self, _at: usize) -> &[u8] {
                self.to_bytes()
            }

            fn put(&mut self, bytes: &[u8]) -> Result<usize, Error> {
                *self = Text::from_bytes(bytes)?;
                Ok(0)
            }
        }

        impl Field for $type {
            fn slot(&mut self) -> Slot<'_> {
                Slot::Text(self)
            }
        }

        impl Element for $type {
            fn list(list: &mut Vec<Self>) -> Slot<'_> {
                Slot::Text(list)
            }

            fn option(option: &mut Option<Self>) -> Slot<'_> {
                Slot::Text(option)
            }
        }
    )*};
}
text!(String, Vec<u8>);

impl<M: Message + Default> Messages for Vec<M> {
    fn count(&self) -> usize {
        self.len()
    }

    fn message(&mut self, at: usize) -> Option<&mut dyn Message> {
        self.get_mut(at).map(|message| message as _)
    }

    fn add(&mut self) -> &mut dyn Message {
        let at = self.len();
        self.push(M::default());
        &mut self[at]
    }

    fn entry_bytes(&self) -> usize {
        size_of::<M>()
    }
}

impl<M: Message + Default> Messages for Option<M> {
    fn count(&self) -> usize {
        usize::from(self.is_some())
    }

    fn message(&mut self, _at: usize) -> Option<&mut dyn Message> {
        self.as_mut().map(|message| message as _)
    }

    fn add(&mut self) -> &mut dyn Message {
        self.get_or_insert_default()
    }

    fn entry_bytes(&self) -> usize {
        0
    }
}

/// An entry of a map on its way.
#[derive(Default)]
struct Entry<K, V> {
    key: K,
    value: V,
}

impl<K: Field, V: Field> Message for Entry<K, V> {
    fn numbers(&self) -> &'static [u32] {
        &[1, 2]
    }

    fn slot(&mut self, number: u32) -> Option<Slot<'_>> {
        match number {
            1 => Some(self.key.slot()),
            2 => Some(self.value.slot()),
            _ => None,
        }
    }

    fn choose(&mut self, _number: u32) {}
}

/// Values that are messages are `Option<M>`, and `Some` if they were read.
impl<K: Field + Ord + Clone + Default, V: Field + Default> Entries for BTreeMap<K, V> {
    fn read(&mut self, bytes: &[u8], rest: &mut Limits) -> Result<(), Error> {
        let mut entry = Entry::<K, V>::default();
        merge(&mut entry, bytes, rest)?;
        // A value that is not there is an empty message.
        if let Slot::Message(value) = entry.value.slot() {
            value.add();
        }
        rest.spend(true, size_of::<(K, V)>())?;
        self.insert(entry.key, entry.value);
        Ok(())
    }

    fn each(&mut self, take: &mut dyn FnMut(&mut dyn Message)) {
        for (key, value) in self {
            let mut entry = Entry {
                key: key.clone(),
                value: core::mem::take(value),
            };
            take(&mut entry);
            *value = entry.value;
        }
    }
}

impl<K: Field + Ord + Clone + Default, V: Field + Default> Field for BTreeMap<K, V> {
    fn slot(&mut self) -> Slot<'_> {
        Slot::Map(self)
    }
}

/// Makes a struct with a table, as the module says: `message! { struct Name { 1 field: Type, … } oneof [1 field, …] }`.
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
