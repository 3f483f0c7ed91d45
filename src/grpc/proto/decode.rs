//! Reading of messages.

use super::{Error, FIXED32, FIXED64, Form, LENGTH, Limits, Message, Slot, VARINT};

/// Reads bytes into a message that is empty or holds earlier ones: the last of a field counts, lists grow.
pub fn decode(message: &mut dyn Message, bytes: &[u8], limits: Limits) -> Result<(), Error> {
    let mut rest = limits;
    merge(message, bytes, &mut rest)
}

pub(super) fn merge(
    message: &mut dyn Message,
    bytes: &[u8],
    rest: &mut Limits,
) -> Result<(), Error> {
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
    pub(super) fn spend(&mut self, is_entry: bool, bytes: usize) -> Result<(), Error> {
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

impl Form {
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
