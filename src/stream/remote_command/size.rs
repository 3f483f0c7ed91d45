//! Terminal sizes: JSON objects, one behind the other.

use serde::Deserialize;

/// Longest object, spaces in front of it included.
const MAX_BYTES: usize = 128;

/// Size of a terminal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct TerminalSize {
    /// Columns; at least 1.
    pub width: u16,
    /// Lines; at least 1.
    pub height: u16,
}

/// Reads sizes from pieces.
#[derive(Debug)]
pub(super) struct TerminalSizeReader {
    held: [u8; MAX_BYTES],
    len: usize,
    /// Set after a piece that is no size: as upstream, nothing further is read.
    broken: bool,
}

impl TerminalSizeReader {
    pub(super) const fn new() -> Self {
        Self {
            held: [0; MAX_BYTES],
            len: 0,
            broken: false,
        }
    }

    /// The newest size that ends in `piece`. One with a zero says nothing.
    pub(super) fn read_piece(&mut self, piece: &[u8]) -> Option<TerminalSize> {
        let mut newest = None;
        for byte in piece {
            if self.broken {
                break;
            }
            let Some(place) = self.held.get_mut(self.len) else {
                self.broken = true;
                break;
            };
            *place = *byte;
            self.len += 1;
            // No member is an object or a string with a brace.
            if *byte == b'}' {
                let object = self.held.get(..self.len).unwrap_or_default();
                match serde_json::from_slice::<TerminalSize>(object) {
                    Ok(size) if size.width > 0 && size.height > 0 => newest = Some(size),
                    Ok(_) => {}
                    Err(_) => self.broken = true,
                }
                self.len = 0;
            }
        }
        newest
    }
}
