//! Types that fields may have.

use std::collections::BTreeMap;

use super::{
    Element, Entries, Error, Field, Form, Limits, Message, Messages, Numbers, Slot, Texts,
    decode::merge, number_field,
};

/// A number that a field may be.
pub trait Number: Copy + Default {
    /// Encoding of the number unless the table says otherwise.
    const FORM: Form;
    /// Returns the number as 64 bits, signed ones extended.
    fn to_bits(self) -> u64;
    /// Makes the number of the lowest of 64 bits, as far as there is room.
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
