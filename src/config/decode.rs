//! YAML or JSON text → JSON value → typed value.
//!
//! One reader for the configuration and for manifests. Its values are plain: `null` fields are dropped (Go reads them
//! as absent), merge keys (`<<`) are resolved, aliases are expanded within a budget. Documents are hostile until read:
//! size, depth, number of values and expanded size are bounded before memory is spent on them.

use alloc::collections::BTreeSet;
use core::fmt;

use serde::de::{self, DeserializeOwned, DeserializeSeed, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use crate::api::strict;

/// Limit of a document, bytes; reaching it is an error (SRC-20).
pub const MAX_DOCUMENT_BYTES: usize = 10 << 20;
/// Most maps and lists within each other. A pod has about 12; each level takes stack, and lanes have little.
pub const MAX_DEPTH: usize = 40;
/// Most values in one document, each expansion of an alias counted.
pub const MAX_VALUES: usize = 100_000;
/// Most bytes of all texts in one document, each expansion of an alias counted.
pub const MAX_TEXT_BYTES: usize = 2 * MAX_DOCUMENT_BYTES;
/// Most places in a YAML text where a value may start. The parser keeps about 150 bytes for each before it returns the
/// first value, so they are counted beforehand. A ConfigMap's 1 MiB of text may have a comma at every third byte.
const MAX_YAML_MARKS: usize = 400_000;
/// Most `[` and `{` open at once. The YAML scanner's time per token grows with them, so they are counted beforehand.
const MAX_OPEN_BRACKETS: usize = 500;

/// Most duplicate fields that are named, and bytes of the path of each: an operator reads no more messages.
const MAX_DUPLICATES: usize = 100;
const MAX_PATH_BYTES: usize = 500;

/// A document as plain JSON.
#[derive(Clone, Debug, PartialEq)]
pub struct DecodedDocument {
    /// The value, without `null` fields.
    pub value: Value,
    /// Paths of the first fields that occur twice in one map, in document order, each cut if it is long; the last
    /// occurrence is the one in `value`.
    pub duplicates: Vec<String>,
}

/// Reason why a text is not a document, or not the expected one.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// Larger than [`MAX_DOCUMENT_BYTES`].
    #[error("document is too large: {MAX_DOCUMENT_BYTES} bytes or more")]
    TooLarge,
    /// Not UTF-8 text.
    #[error("not UTF-8 text: bad byte at offset {0}")]
    NotText(usize),
    /// No content but space and comments.
    #[error("document is empty")]
    Empty,
    /// More than one document in one file.
    #[error("more than one document: a file holds one object")]
    Several,
    /// Neither YAML nor JSON, or over one of the limits.
    #[error("{0}")]
    Syntax(String),
    /// A value of the wrong kind.
    #[error("{path}: {message}")]
    Value {
        /// Path of the field, such as `spec.containers[0].image`.
        path: String,
        /// Kind of value that was found and the one that was expected.
        message: String,
    },
}

/// Reads one YAML or JSON document.
///
/// Leading and trailing empty documents (`---` alone) count as nothing; a second document with content is an error.
pub fn parse_document(bytes: &[u8]) -> Result<DecodedDocument, DecodeError> {
    decode_document(bytes, NullTreatment::Dropped)
}

/// Reads one merge patch, as [`parse_document`] does, but keeps `null` fields, for there they mean something.
pub fn parse_patch(bytes: &[u8]) -> Result<DecodedDocument, DecodeError> {
    decode_document(bytes, NullTreatment::Kept)
}

/// Treatment of fields that are `null`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum NullTreatment {
    #[default]
    Dropped,
    Kept,
}

fn decode_document(bytes: &[u8], nulls: NullTreatment) -> Result<DecodedDocument, DecodeError> {
    if bytes.len() >= MAX_DOCUMENT_BYTES {
        return Err(DecodeError::TooLarge);
    }
    let text = core::str::from_utf8(bytes).map_err(|e| DecodeError::NotText(e.valid_up_to()))?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if text.trim_start().starts_with('{')
        && let Ok(document) = parse_json(text, nulls)
    {
        return Ok(document);
    }
    parse_yaml(text, nulls)
}

/// Turns a JSON value into `T`; a wrong value is named with its path.
pub fn deserialize_value<T: DeserializeOwned>(value: &Value) -> Result<T, DecodeError> {
    strict::typed_from_value(value).map_err(|e| DecodeError::Value {
        path: e.path,
        message: e.message,
    })
}

fn parse_json(text: &str, nulls: NullTreatment) -> Result<DecodedDocument, serde_json::Error> {
    let mut budget = DecodeBudget::new(text, nulls);
    let mut reader = serde_json::Deserializer::from_str(text);
    let value = ValueSeed {
        budget: &mut budget,
    }
    .deserialize(&mut reader)?;
    reader.end()?;
    Ok(budget.into_document(value))
}

fn parse_yaml(text: &str, nulls: NullTreatment) -> Result<DecodedDocument, DecodeError> {
    check_shape(text)?;
    let mut found = None;
    for reader in serde_yaml_ng::Deserializer::from_str(text) {
        let mut budget = DecodeBudget::new(text, nulls);
        let value = ValueSeed {
            budget: &mut budget,
        }
        .deserialize(reader)
        .map_err(|e| DecodeError::Syntax(e.to_string()))?;
        if value.is_null() {
            continue;
        }
        if found.is_some() {
            return Err(DecodeError::Several);
        }
        found = Some(budget.into_document(value));
    }
    found.ok_or(DecodeError::Empty)
}

/// Bounds the memory and time that the YAML parser will spend on `text`, from the text alone. Overestimates: brackets
/// and commas inside quoted or block text count too, so the limits are far above any real manifest.
fn check_shape(text: &str) -> Result<(), DecodeError> {
    let mut marks = 0usize;
    let mut open = 0usize;
    let mut before = b'\n';
    for byte in text.bytes() {
        match byte {
            // An opening bracket starts a list or map only after a space or an indicator.
            b'[' | b'{'
                if matches!(
                    before,
                    b' ' | b'\t' | b'\r' | b'\n' | b'[' | b'{' | b',' | b':' | b'-' | b'?'
                ) =>
            {
                marks += 1;
                open += 1;
                if open > MAX_OPEN_BRACKETS {
                    return Err(DecodeError::Syntax(format!(
                        "more than {MAX_OPEN_BRACKETS} brackets are open at once"
                    )));
                }
            }
            b']' | b'}' => open = open.saturating_sub(1),
            b',' | b'\n' | b':' => marks += 1,
            // A list in a list on one line: `- - -`.
            b'-' | b'?' if matches!(before, b' ' | b'\n') => marks += 1,
            _ => {}
        }
        before = byte;
    }
    if marks > MAX_YAML_MARKS {
        return Err(DecodeError::Syntax(format!(
            "more than {MAX_YAML_MARKS} lines and separators"
        )));
    }
    Ok(())
}

/// Amounts read of one document so far, and the path at which the reader stands.
#[derive(Default)]
struct DecodeBudget<'t> {
    /// Text of the document.
    source: &'t str,
    values: usize,
    text: usize,
    path: Vec<String>,
    duplicates: Vec<String>,
    nulls: NullTreatment,
}

impl<'t> DecodeBudget<'t> {
    fn new(source: &'t str, nulls: NullTreatment) -> Self {
        Self {
            source,
            nulls,
            ..Self::default()
        }
    }

    fn count_value<E: de::Error>(&mut self) -> Result<(), E> {
        self.values += 1;
        if self.values > MAX_VALUES {
            return Err(E::custom(format_args!(
                "more than {MAX_VALUES} values (aliases expanded)"
            )));
        }
        Ok(())
    }

    fn count_text<E: de::Error>(&mut self, bytes: usize) -> Result<(), E> {
        self.text = self.text.saturating_add(bytes);
        if self.text > MAX_TEXT_BYTES {
            return Err(E::custom(format_args!(
                "more than {MAX_TEXT_BYTES} bytes of text (aliases expanded)"
            )));
        }
        Ok(())
    }

    fn enter<E: de::Error>(&mut self, step: String) -> Result<(), E> {
        if self.path.len() >= MAX_DEPTH {
            return Err(E::custom(format_args!(
                "more than {MAX_DEPTH} maps and lists within each other"
            )));
        }
        self.path.push(step);
        Ok(())
    }

    /// Notes a field of the map at hand.
    fn note_duplicate(&mut self, name: &str) {
        if self.duplicates.len() < MAX_DUPLICATES {
            self.duplicates.push(join_path(&self.path, name));
        }
    }

    fn into_document(self, value: Value) -> DecodedDocument {
        DecodedDocument {
            value,
            duplicates: self.duplicates,
        }
    }
}

/// `a.b[0].c` from steps that carry their own brackets, as much of it as [`MAX_PATH_BYTES`] hold.
fn join_path(path: &[String], last: &str) -> String {
    let mut text = String::new();
    for step in path.iter().map(String::as_str).chain([last]) {
        if !text.is_empty() && !step.starts_with('[') {
            text.push('.');
        }
        let room = MAX_PATH_BYTES.saturating_sub(text.len());
        text.push_str(&step[..step.floor_char_boundary(room)]);
        if step.len() > room {
            text.push('…');
            break;
        }
    }
    text
}

struct ValueSeed<'a, 't> {
    budget: &'a mut DecodeBudget<'t>,
}

impl<'de> DeserializeSeed<'de> for ValueSeed<'_, '_> {
    type Value = Value;
    fn deserialize<D: de::Deserializer<'de>>(self, reader: D) -> Result<Value, D::Error> {
        self.budget.count_value()?;
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ValueSeed<'_, '_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value without a tag of its own")
    }
    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
    fn visit_some<D: de::Deserializer<'de>>(self, reader: D) -> Result<Value, D::Error> {
        reader.deserialize_any(self)
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
    fn visit_str<E: de::Error>(self, value: &str) -> Result<Value, E> {
        self.budget.count_text(value.len())?;
        Ok(value.into())
    }
    fn visit_string<E: de::Error>(self, value: String) -> Result<Value, E> {
        self.budget.count_text(value.len())?;
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        loop {
            self.budget.enter(format!("[{}]", list.len()))?;
            let item = items.next_element_seed(ValueSeed {
                budget: self.budget,
            })?;
            self.budget.path.pop();
            match item {
                Some(item) => list.push(item),
                None => return Ok(Value::Array(list)),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        let mut seen_null = BTreeSet::new();
        let mut merged = Vec::new();
        while let Some(FieldKey { name, is_merge }) = fields.next_key_seed(FieldKeySeed {
            source: self.budget.source,
        })? {
            self.budget.count_text(name.len())?;
            self.budget.enter(name.clone())?;
            let value = fields.next_value_seed(ValueSeed {
                budget: self.budget,
            })?;
            self.budget.path.pop();
            if is_merge {
                merged.push(value);
                continue;
            }
            if map.contains_key(&name) || seen_null.contains(&name) {
                self.budget.note_duplicate(&name);
            }
            if value.is_null() && self.budget.nulls == NullTreatment::Dropped {
                map.remove(&name);
                seen_null.insert(name);
            } else {
                map.insert(name, value);
            }
        }
        for value in merged {
            apply_merge_key(&mut map, value, &seen_null).map_err(de::Error::custom)?;
        }
        Ok(Value::Object(map))
    }
}

/// YAML 1.1 merge key: fields of `value` that `map` does not have itself.
fn apply_merge_key(
    map: &mut Map<String, Value>,
    value: Value,
    own_nulls: &BTreeSet<String>,
) -> Result<(), &'static str> {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                if !own_nulls.contains(&name) {
                    map.entry(name).or_insert(value);
                }
            }
            Ok(())
        }
        Value::Array(items) => items.into_iter().try_for_each(|item| match item {
            Value::Object(_) => apply_merge_key(map, item, own_nulls),
            _ => Err("a merge key (<<) takes a map or a list of maps"),
        }),
        _ => Err("a merge key (<<) takes a map or a list of maps"),
    }
}

/// A field name. YAML allows numbers and booleans there; they become text as in upstream's reader.
struct FieldKey {
    name: String,
    /// Set for a plain `<<`, whose value is merged. With quotes it is a name as any other.
    is_merge: bool,
}

/// Reads a field name of the document `source`.
struct FieldKeySeed<'t> {
    source: &'t str,
}

impl<'de> DeserializeSeed<'de> for FieldKeySeed<'_> {
    type Value = FieldKey;
    fn deserialize<D: de::Deserializer<'de>>(self, reader: D) -> Result<FieldKey, D::Error> {
        reader.deserialize_any(self)
    }
}

fn field_key<E>(name: impl ToString) -> Result<FieldKey, E> {
    Ok(FieldKey {
        name: name.to_string(),
        is_merge: false,
    })
}

impl<'de> Visitor<'de> for FieldKeySeed<'_> {
    type Value = FieldKey;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a field name")
    }
    /// Reads a name that stands in the document as it is. The readers tell nothing of quotes, but a name between quotes
    /// has one before it.
    fn visit_borrowed_str<E>(self, name: &'de str) -> Result<FieldKey, E> {
        let at = name
            .as_ptr()
            .addr()
            .wrapping_sub(self.source.as_ptr().addr());
        let before = self.source.as_bytes().get(at.wrapping_sub(1));
        Ok(FieldKey {
            name: name.into(),
            is_merge: name == "<<" && !matches!(before, Some(b'"' | b'\'')),
        })
    }
    /// Reads a name that stands in the document in another form, with quotes.
    fn visit_str<E>(self, name: &str) -> Result<FieldKey, E> {
        field_key(name)
    }
    fn visit_bool<E>(self, name: bool) -> Result<FieldKey, E> {
        field_key(name)
    }
    fn visit_i64<E>(self, name: i64) -> Result<FieldKey, E> {
        field_key(name)
    }
    fn visit_u64<E>(self, name: u64) -> Result<FieldKey, E> {
        field_key(name)
    }
    fn visit_f64<E>(self, name: f64) -> Result<FieldKey, E> {
        field_key(name)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(text: &str) -> Result<DecodedDocument, DecodeError> {
        parse_document(text.as_bytes())
    }

    #[test]
    fn documents() {
        // SRC-35
        for (name, text, value) in [
            (
                "yaml",
                "a: 1\nb: [x, 'y']\n",
                json!({"a": 1, "b": ["x", "y"]}),
            ),
            ("json", "{\"a\": \"\\ud83d\\ude00\"}", json!({"a": "😀"})),
            ("yaml that starts like json", "{a: 1}", json!({"a": 1})),
            (
                "nulls are absent",
                "a: null\nb: ~\nc:\nd: 1",
                json!({"d": 1}),
            ),
            (
                "number as key",
                "1: a\ntrue: b",
                json!({"1": "a", "true": "b"}),
            ),
            (
                "empty documents around",
                "---\n---\na: 1\n---\n",
                json!({"a": 1}),
            ),
            ("byte order mark", "\u{feff}a: 1", json!({"a": 1})),
            (
                "alias and merge key",
                "x: &x {a: 1, b: 2}\ny:\n  <<: *x\n  b: 3",
                json!({"x": {"a": 1, "b": 2}, "y": {"a": 1, "b": 3}}),
            ),
            (
                "merge key takes a list, first wins",
                "y:\n  <<: [{a: 1}, {a: 2, b: 2}]",
                json!({"y": {"a": 1, "b": 2}}),
            ),
            (
                "merge key behind letters of several bytes, with an anchor and at the beginning",
                "<<: {a: é}\n\"ä\": {<<: {b: 1}}\nc:\n  &k <<: {b: 2}\n",
                json!({"a": "é", "ä": {"b": 1}, "c": {"b": 2}}),
            ),
            (
                "a name with quotes is no merge key",
                "é: {\"<<\": {a: 1}}\nb:\n  '<<': 1\nc:\n  \"\\x3c<\": 2\nd:\n  ? |-\n    <<\n  : 3\n",
                json!({"é": {"<<": {"a": 1}}, "b": {"<<": 1}, "c": {"<<": 2}, "d": {"<<": 3}}),
            ),
            (
                "nor is it in JSON",
                "{\"a\": {\"<<\": {\"b\": 1}}}",
                json!({"a": {"<<": {"b": 1}}}),
            ),
        ] {
            let document = read(text).expect(name);
            assert_eq!(document.value, value, "{name}");
            assert_eq!(document.duplicates, Vec::<String>::new(), "{name}");
        }
    }

    #[test]
    fn what_is_said_of_duplicates_is_short() {
        let twice = "\"a\": 1, ".repeat(3000);
        let long = "k".repeat(10_000);
        let text = format!("{{\"{long}\": {{{twice} \"b\": 1}}}}");
        let document = read(&text).expect("a document");
        let said: usize = document.duplicates.iter().map(String::len).sum();
        assert!(said < 100_000, "{said} bytes");
        assert!(document.duplicates.len() > 10, "some are named");
        assert!(document.duplicates[0].starts_with("kkk"));
    }

    #[test]
    fn null_fields_cost_no_more_than_others() {
        const FIELDS: usize = 20_000;
        let time = |value: &str| {
            let fields: Vec<_> = (0..FIELDS).map(|n| format!("f{n}: {value}")).collect();
            let text = fields.join("\n");
            let begun = crate::sys::clock::mono_now();
            read(&text).expect("a document");
            (crate::sys::clock::mono_now() - begun).as_millis().max(1)
        };
        let (ones, nulls) = (time("1"), time("null"));
        assert!(nulls < ones * 5, "{nulls} ms, {ones} ms with numbers");
    }

    #[test]
    fn duplicates_are_named() {
        let document = read("a:\n- b: 1\n  b: 2\nc: 1\nc:\n").expect("lenient");
        assert_eq!(document.value, json!({"a": [{"b": 2}]}));
        assert_eq!(document.duplicates, ["a[0].b", "c"]);
    }

    #[test]
    fn wrong_values_have_a_path() {
        let document = read("spec:\n  containers:\n  - name: a\n    image: [1]\n").expect("yaml");
        let error =
            deserialize_value::<crate::api::Pod>(&document.value).expect_err("image is a list");
        assert_eq!(
            error.to_string(),
            "spec.containers[0].image: invalid type: sequence, expected a string"
        );
    }

    #[test]
    fn hostile() {
        let bomb = {
            let mut text = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
            for n in 1..10 {
                let alias = format!("*a{}, ", n - 1).repeat(10);
                text += &format!("a{n}: &a{n} [{alias}]\n");
            }
            text
        };
        let fat_alias = format!("a: &a {}\nb: [{}]", "x".repeat(1 << 20), "*a, ".repeat(100));
        for (name, text, says) in [
            ("empty", String::new(), "document is empty"),
            (
                "comments only",
                "# nothing\n---\n".into(),
                "document is empty",
            ),
            (
                "two documents",
                "a: 1\n---\nb: 1\n".into(),
                "more than one document",
            ),
            ("alias bomb", bomb, "values (aliases expanded)"),
            ("alias of a large text", fat_alias, "bytes of text"),
            ("alias of itself", "a: &a [*a]".into(), "within each other"),
            ("deep flow", "[".repeat(9 << 20), "brackets"),
            ("deep flow, spaced", "[ ".repeat(4 << 20), "brackets"),
            ("deep flow, few", "[".repeat(300), "within each other"),
            ("deep json", "{\"a\":".repeat(400), "within each other"),
            ("deep block", "- ".repeat(5000), "within each other"),
            ("very deep block", "- ".repeat(4 << 20), "separators"),
            ("many values", "- a\n".repeat(190_000), "values"),
            ("10 MiB", " ".repeat(MAX_DOCUMENT_BYTES), "too large"),
            ("tag", "a: !x 1".into(), "tag"),
            ("not a number", "a: .nan".into(), "JSON form"),
            ("bad syntax", "a: [1\nb: 2\n".into(), "line"),
        ] {
            let error = read(&text).expect_err(name).to_string();
            assert!(error.contains(says), "{name}: {error}");
        }
        assert!(matches!(
            parse_document(b"a: \xff"),
            Err(DecodeError::NotText(3))
        ));
    }
}
