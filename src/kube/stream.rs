//! JSON as it arrives: a document, or a list of which one item at a time stands in memory.
//!
//! ```text
//! body ─▶ Body (unpacked) ─▶ fixed buffer ─▶ Stream (a budget of bytes) ─▶ serde_json ─▶ Value ─▶ typed
//! ```
//!
//! Whatever a peer sends, memory is bounded by one item's budget. `null` fields count as absent and are dropped, as is
//! `metadata.managedFields`, often half of an object, which nothing here reads.

use core::cell::Cell;
use core::fmt;
use std::io::{self, BufReader, Read};

use serde::Deserialize;
use serde::de::{self, DeserializeSeed, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Deserializer, Map, Number, Value};

use crate::api::strict::{self, WrongValue};

/// Largest item of a list, and largest object, bytes. etcd takes 1.5 MiB.
pub const MAX_ITEM_BYTES: u64 = 3 * 1024 * 1024;
/// Bytes that a list may have before its items, between two of them, and after them.
const MAX_ENVELOPE_BYTES: u64 = 64 * 1024;
/// Most values in one item. A ConfigMap of 1 MiB with a key for every ten bytes has as many.
const MAX_VALUES: u32 = 100_000;
/// Most maps and lists within each other. Each level takes stack, and lanes have little.
const MAX_DEPTH: u32 = 40;
/// Buffer of a stream, bytes.
pub(super) const BUFFER_BYTES: usize = 8 * 1024;

/// Reason why no document was read.
#[derive(Debug)]
pub(super) enum DocumentReadError {
    /// The body ended early, or its reading failed.
    Cut(String),
    /// The body is whole, but cannot be used.
    Wrong(String),
}

/// Fault of an item that makes its whole list invalid: the apiserver, or what stands for it, is at fault.
#[derive(Debug, thiserror::Error)]
pub(super) enum ListItemError {
    /// A field of the item's metadata is of another kind.
    #[error("metadata.{0}")]
    Meta(#[from] WrongValue),
    /// The item has no name, UID or version.
    #[error("an item has no identity")]
    Nameless,
}

/// Bytes with a budget.
pub(super) struct BudgetReader<'a> {
    input: BufReader<Box<dyn Read + 'a>>,
    budget: &'a Cell<u64>,
}

impl<'a> BudgetReader<'a> {
    /// `budget` can be set while the stream is read; a read beyond it fails.
    pub(super) fn new(input: Box<dyn Read + 'a>, budget: &'a Cell<u64>) -> Self {
        Self {
            input: BufReader::with_capacity(BUFFER_BYTES, input),
            budget,
        }
    }

    /// Passes over all up to and including the next `\n`; false if there is none. Not part of the budget.
    pub(super) fn skip_line(&mut self) -> io::Result<bool> {
        use io::BufRead as _;
        Ok(self.input.skip_until(b'\n')? > 0)
    }

    /// Returns true at the end of the input.
    pub(super) fn is_at_end(&mut self) -> io::Result<bool> {
        use io::BufRead as _;
        Ok(self.input.fill_buf()?.is_empty())
    }
}

impl Read for BudgetReader<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let left = self.budget.get();
        if left == 0 {
            return Err(io::Error::other(OverBudgetError));
        }
        let most = usize::try_from(left).map_or(buf.len(), |left| buf.len().min(left));
        let n = self.input.read(&mut buf[..most])?;
        self.budget.set(left - n as u64);
        Ok(n)
    }
}

#[derive(Debug, thiserror::Error)]
#[error("too long")]
pub(super) struct OverBudgetError;

impl DocumentReadError {
    pub(super) fn from_json(error: serde_json::Error) -> Self {
        use serde_json::error::Category;
        match error.classify() {
            Category::Io => Self::from_io(&error.into()),
            Category::Eof => Self::Cut("the answer ends early".into()),
            Category::Syntax | Category::Data => Self::Wrong(error.to_string()),
        }
    }

    pub(super) fn from_io(error: &io::Error) -> Self {
        if is_over_budget(error) {
            Self::Wrong(format!("a part of it has more than {MAX_ITEM_BYTES} bytes"))
        } else {
            Self::Cut(error.to_string())
        }
    }
}

pub(super) fn is_over_budget(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|e| e.is::<OverBudgetError>())
}

/// Reads one document of at most [`MAX_ITEM_BYTES`], and the end of the body.
pub(super) fn read_document(input: Box<dyn Read + '_>) -> Result<Value, DocumentReadError> {
    let budget = Cell::new(MAX_ITEM_BYTES);
    let mut stream = BudgetReader::new(input, &budget);
    let mut reader = Deserializer::from_reader(&mut stream);
    let value = PrunedValue::new(&Cell::new(0))
        .deserialize(&mut reader)
        .and_then(|value| reader.end().map(|()| value));
    match value {
        Ok(Value::Object(map)) => Ok(Value::Object(map)),
        Ok(_) => Err(DocumentReadError::Wrong("it is no object".into())),
        Err(e) => Err(DocumentReadError::from_json(e)),
    }
}

/// Metadata of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ListMeta {
    /// Version at which all items were true.
    pub resource_version: String,
    /// Token of the next page; empty on the last.
    #[serde(rename = "continue")]
    pub continues: String,
}

/// Reads a list, or one page of it, and hands each item to `each`. Returns what the list says of itself and the number
/// of its items.
///
/// - Errors: also after items were handed out. Those are then worth nothing.
pub(super) fn read_list_items(
    input: Box<dyn Read + '_>,
    most: usize,
    each: &mut dyn FnMut(Value) -> Result<(), ListItemError>,
) -> Result<(ListMeta, usize), DocumentReadError> {
    let budget = Cell::new(MAX_ENVELOPE_BYTES);
    let mut stream = BudgetReader::new(input, &budget);
    let mut reader = Deserializer::from_reader(&mut stream);
    let mut count = 0;
    let page = ListPage {
        budget: &budget,
        most,
        count: &mut count,
        each,
    };
    let meta = page
        .deserialize(&mut reader)
        .and_then(|meta| reader.end().map(|()| meta));
    match meta {
        Ok(meta) => Ok((meta, count)),
        Err(e) => Err(DocumentReadError::from_json(e)),
    }
}

/// The object around the items.
struct ListPage<'a> {
    budget: &'a Cell<u64>,
    most: usize,
    count: &'a mut usize,
    each: &'a mut dyn FnMut(Value) -> Result<(), ListItemError>,
}

impl<'de> DeserializeSeed<'de> for ListPage<'_> {
    type Value = ListMeta;
    fn deserialize<D: de::Deserializer<'de>>(self, reader: D) -> Result<ListMeta, D::Error> {
        reader.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for ListPage<'_> {
    type Value = ListMeta;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut fields: A) -> Result<ListMeta, A::Error> {
        let (mut meta, mut has_items) = (None, false);
        while let Some(name) = fields.next_key::<String>()? {
            match name.as_str() {
                "items" if has_items => return Err(A::Error::custom("it has items twice")),
                "items" => {
                    has_items = true;
                    fields.next_value_seed(ListItems(&mut self))?;
                }
                "metadata" => {
                    let value = fields.next_value_seed(PrunedValue::new(&Cell::new(0)))?;
                    let read = strict::typed_from_value::<ListMeta>(&value);
                    meta = Some(read.map_err(|e| A::Error::custom(format_args!("metadata.{e}")))?);
                }
                _ => {
                    fields.next_value::<IgnoredAny>()?;
                }
            }
            self.budget.set(MAX_ENVELOPE_BYTES);
        }
        match meta {
            Some(meta) if has_items && !meta.resource_version.is_empty() => Ok(meta),
            _ => Err(A::Error::custom("it is no list")),
        }
    }
}

struct ListItems<'a, 'b>(&'a mut ListPage<'b>);

impl<'de> DeserializeSeed<'de> for ListItems<'_, '_> {
    type Value = ();
    fn deserialize<D: de::Deserializer<'de>>(self, reader: D) -> Result<(), D::Error> {
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ListItems<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of items")
    }

    /// Go's empty list.
    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        loop {
            self.0.budget.set(MAX_ITEM_BYTES);
            let Some(item) = items.next_element_seed(PrunedValue::new(&Cell::new(0)))? else {
                return Ok(());
            };
            if *self.0.count >= self.0.most {
                let most = self.0.most;
                return Err(A::Error::custom(format_args!(
                    "it has more than {most} items"
                )));
            }
            *self.0.count += 1;
            (self.0.each)(item).map_err(A::Error::custom)?;
        }
    }
}

/// A value without `null` fields and without `metadata.managedFields`.
#[derive(Clone, Copy)]
pub(super) struct PrunedValue<'a> {
    values: &'a Cell<u32>,
    depth: u32,
    is_metadata: bool,
}

impl<'a> PrunedValue<'a> {
    /// `values`: how many were read before.
    pub(super) const fn new(values: &'a Cell<u32>) -> Self {
        Self {
            values,
            depth: 0,
            is_metadata: false,
        }
    }

    fn enter_level<E: de::Error>(self, is_metadata: bool) -> Result<Self, E> {
        if self.depth >= MAX_DEPTH {
            return Err(E::custom(format_args!(
                "more than {MAX_DEPTH} maps and lists within each other"
            )));
        }
        Ok(Self {
            depth: self.depth + 1,
            is_metadata,
            ..self
        })
    }
}

impl<'de> DeserializeSeed<'de> for PrunedValue<'_> {
    type Value = Value;
    fn deserialize<D: de::Deserializer<'de>>(self, reader: D) -> Result<Value, D::Error> {
        self.values.set(self.values.get() + 1);
        if self.values.get() > MAX_VALUES {
            return Err(D::Error::custom(format_args!(
                "more than {MAX_VALUES} values"
            )));
        }
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for PrunedValue<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }
    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }
    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }
    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }
    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Value, E> {
        Number::from_f64(value)
            .map(Value::Number)
            .ok_or_else(|| E::custom("infinite numbers have no JSON form"))
    }
    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let below = self.enter_level(false)?;
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(below)? {
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(name) = fields.next_key::<String>()? {
            if self.is_metadata && name == "managedFields" {
                fields.next_value::<IgnoredAny>()?;
                continue;
            }
            let below = self.enter_level(self.depth == 0 && name == "metadata")?;
            let value = fields.next_value_seed(below)?;
            if !value.is_null() {
                map.insert(name, value);
            }
        }
        Ok(Value::Object(map))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(text: &[u8]) -> Result<Value, DocumentReadError> {
        read_document(Box::new(text))
    }

    fn read_list(text: &[u8]) -> (Result<(ListMeta, usize), DocumentReadError>, Vec<Value>) {
        let mut items = Vec::new();
        let result = read_list_items(Box::new(text), 3, &mut |item| {
            items.push(item);
            Ok(())
        });
        (result, items)
    }

    #[test]
    fn a_document_is_read_whole_or_not() {
        let text =
            br#"{"metadata":{"name":"a","managedFields":[{"x":[1,{"y":null}]}],"labels":null},
            "spec":{"n":1,"f":1.5,"b":true,"l":[null,-1,"\u00e9"],"managedFields":1}} "#;
        assert_eq!(
            read(text).expect("document"),
            json!({"metadata": {"name": "a"},
                "spec": {"n": 1, "f": 1.5, "b": true, "l": [null, -1, "é"], "managedFields": 1}})
        );
        for end in 0..text.len() - 1 {
            let error = read(&text[..end]).expect_err("half");
            assert!(
                matches!(error, DocumentReadError::Cut(_)),
                "{end}: {error:?}"
            );
        }
        let deep = [b"{\"a\":".repeat(41), b"1".to_vec(), b"}".repeat(41)].concat();
        let many = format!("{{\"a\":[{}1]}}", "1,".repeat(100_000));
        let long = format!("{{\"a\":\"{}\"}}", "x".repeat(3 << 20));
        for text in [
            &b"[]"[..],
            b"1",
            b"{} {}",
            b"{} x",
            b"{\"a\":}",
            b"{\"a\":\"\xff\"}",
            b"<html>",
            &deep,
            many.as_bytes(),
            long.as_bytes(),
        ] {
            let shown = String::from_utf8_lossy(&text[..text.len().min(40)]).into_owned();
            let error = read(text).expect_err(&shown);
            assert!(
                matches!(error, DocumentReadError::Wrong(_)),
                "{shown}: {error:?}"
            );
        }
    }

    #[test]
    fn a_list_is_read_item_by_item() {
        // SRC-30 OFF-03
        let text = br#"{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"7","continue":"c","remainingItemCount":2},
            "items":[{"metadata":{"name":"a","managedFields":[]}},{"metadata":{"name":"b"}}]}
            "#;
        let (result, items) = read_list(text);
        let (meta, count) = result.expect("list");
        assert_eq!(
            (meta.resource_version.as_str(), meta.continues.as_str()),
            ("7", "c")
        );
        assert_eq!(count, 2);
        assert_eq!(
            items,
            [
                json!({"metadata": {"name": "a"}}),
                json!({"metadata": {"name": "b"}})
            ]
        );
        // Wherever it is cut, it is no list.
        let text = text.trim_ascii_end();
        for end in 0..text.len() {
            let (result, _) = read_list(&text[..end]);
            assert!(matches!(result, Err(DocumentReadError::Cut(_))), "{end}");
        }
        // Metadata last, Go's empty list, none at all.
        for (text, want) in [
            (
                &br#"{"items":[{}],"metadata":{"resourceVersion":"1"}}"#[..],
                Some(1),
            ),
            (
                br#"{"items":null,"metadata":{"resourceVersion":"1"}}"#,
                Some(0),
            ),
            (
                br#"{"items":[],"metadata":{"resourceVersion":"1","continue":null}}"#,
                Some(0),
            ),
            (
                br#"{"items":[{},{},{},{}],"metadata":{"resourceVersion":"1"}}"#,
                None,
            ),
            (br#"{"metadata":{"resourceVersion":"1"}}"#, None),
            (br#"{"items":[]}"#, None),
            (br#"{"items":[],"metadata":{}}"#, None),
            (
                br#"{"items":[],"items":[],"metadata":{"resourceVersion":"1"}}"#,
                None,
            ),
            (br#"{"items":{},"metadata":{"resourceVersion":"1"}}"#, None),
            (br#"{"items":[],"metadata":{"resourceVersion":1}}"#, None),
            (br#"{"kind":"Status","status":"Success"}"#, None),
            (br#"[]"#, None),
        ] {
            let (result, _) = read_list(text);
            let shown = String::from_utf8_lossy(text);
            match want {
                Some(count) => assert_eq!(result.expect(&shown).1, count),
                None => assert!(
                    matches!(result, Err(DocumentReadError::Wrong(_))),
                    "{shown}"
                ),
            }
        }
    }

    #[test]
    fn each_item_has_its_own_budget() {
        let item = format!(r#"{{"a":"{}"}}"#, "x".repeat(2 << 20));
        let text = |n: usize| {
            let items = vec![item.as_str(); n].join(",");
            format!(r#"{{"metadata":{{"resourceVersion":"1"}},"items":[{items}]}}"#)
        };
        assert_eq!(read_list(text(3).as_bytes()).0.expect("list").1, 3);
        let huge = text(1).replace(&item, &format!(r#"{{"a":"{}"}}"#, "x".repeat(4 << 20)));
        let (result, items) = read_list(huge.as_bytes());
        assert!(matches!(result, Err(DocumentReadError::Wrong(_))));
        assert_eq!(items, Vec::<Value>::new());
        let around = format!(r#"{{"x":"{}","items":[]}}"#, "x".repeat(1 << 20));
        assert!(matches!(
            read_list(around.as_bytes()).0,
            Err(DocumentReadError::Wrong(_))
        ));
    }
}
