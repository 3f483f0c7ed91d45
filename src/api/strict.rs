//! JSON text or value → typed value, with the path of what is wrong.
//!
//! The only way into a typed value: each type's reader is generated once, for this one reader of values, because every
//! further way costs hundreds of kilobytes of program.
//!
//! serde's derived code takes a list where a struct is asked for, field by field in the order of the source code. A
//! document that says `resources: []` is wrong, so this reader takes maps only.

use core::fmt;
use std::io;

use serde::Serialize;
use serde::de::value::BorrowedStrDeserializer;
use serde::de::{
    self, DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, Error as _, MapAccess,
    SeqAccess, Unexpected, VariantAccess, Visitor,
};
use serde_json::{Map, Value, map};

/// Memory that a document of a stranger may take once it is read, bytes; estimated from its text.
pub const MAX_FOREIGN_BYTES: usize = 24 << 20;

/// A value that a document must not have there. Its writer mends it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrongValue {
    /// Path of the field, such as `spec.containers[0].image`; `.` for the whole.
    pub path: String,
    /// Text that says what was found and what was expected.
    pub message: String,
}

impl fmt::Display for WrongValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.message)
    }
}

/// Turns `value` into `T`; the first wrong value is named with its path.
pub fn typed_from_value<T: DeserializeOwned>(value: &Value) -> Result<T, WrongValue> {
    T::deserialize(StrictDeserializer(value)).map_err(Located::into_wrong)
}

/// Reason why a text is not a `T`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JsonTextError {
    /// Not JSON.
    Syntax(String),
    /// JSON, with a value of the wrong kind.
    Value(WrongValue),
}

impl fmt::Display for JsonTextError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Syntax(text) => f.write_str(text),
            Self::Value(wrong) if wrong.path == "." => f.write_str(&wrong.message),
            Self::Value(wrong) => wrong.fmt(f),
        }
    }
}

impl WrongValue {
    /// Makes the error of the field at `path`.
    pub fn new(path: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            path: path.into(),
            message: message.into(),
        }
    }

    /// Drops the found value from the text: it may be a password in the wrong place.
    #[must_use]
    pub fn without_value(mut self) -> Self {
        self.message = match self.message.rsplit_once(", expected ") {
            Some((_, expected)) => format!("is of the wrong type, expected {expected}"),
            None => "is wrong".into(),
        };
        self
    }
}

impl JsonTextError {
    /// [`WrongValue::without_value`]; of a text that is not JSON only the place is told in any case.
    #[must_use]
    pub fn without_value(self) -> Self {
        match self {
            Self::Syntax(text) => Self::Syntax(text),
            Self::Value(wrong) => Self::Value(wrong.without_value()),
        }
    }
}

impl core::error::Error for WrongValue {}

impl core::error::Error for JsonTextError {}

impl From<JsonTextError> for io::Error {
    fn from(error: JsonTextError) -> Self {
        Self::new(io::ErrorKind::InvalidData, error)
    }
}

/// Reads one JSON text as a `T`.
pub fn from_json<T: DeserializeOwned>(text: &[u8]) -> Result<T, JsonTextError> {
    let value = parse_json_value(text).map_err(|e| JsonTextError::Syntax(e.to_string()))?;
    typed_from_value(&value).map_err(JsonTextError::Value)
}

/// [`from_json`] for text of a stranger (a registry, an image, a pod's author): refuses what would take more memory than
/// [`MAX_FOREIGN_BYTES`].
pub fn from_foreign_json<T: DeserializeOwned>(text: &[u8]) -> Result<T, JsonTextError> {
    if estimate_memory_bytes(text) > MAX_FOREIGN_BYTES {
        let most = MAX_FOREIGN_BYTES >> 20;
        return Err(JsonTextError::Syntax(format!(
            "it would take more than {most} MiB of memory"
        )));
    }
    from_json(text)
}

/// About how many bytes the values of a JSON text take: at least half of them, whatever it is made of.
fn estimate_memory_bytes(text: &[u8]) -> usize {
    /// Size of a map's first node, which holds [`FIELDS`]. Later nodes are half full, so each field counts more there.
    const MAP_BYTES: usize = 640;
    const FIELDS: usize = 6;
    const FIELD_BYTES: usize = MAP_BYTES / FIELDS;
    /// In a list, whose room doubles as it grows.
    const ITEM_BYTES: usize = 2 * size_of::<Value>();
    /// Size of a text beside its characters.
    const TEXT_BYTES: usize = 32;
    let (mut maps, mut fields, mut commas, mut texts) = (0_usize, 0_usize, 0_usize, 0_usize);
    let mut bytes = text.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'{' => maps += 1,
            b':' => fields += 1,
            b',' => commas += 1,
            b'"' => {
                texts += 1;
                while let Some(byte) = bytes.next() {
                    match byte {
                        b'"' => break,
                        b'\\' => drop(bytes.next()),
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    // What separates no fields separates items.
    let items = (commas + maps).saturating_sub(fields);
    text.len()
        + maps * MAP_BYTES
        + fields.saturating_sub(maps * FIELDS) * FIELD_BYTES
        + items * ITEM_BYTES
        + texts * TEXT_BYTES
}

/// The JSON value of `value`. Goes by way of its text, so that each type's writer, too, is generated once.
pub fn to_value<T: Serialize>(value: &T) -> Result<Value, serde_json::Error> {
    serde_json::from_slice(&serde_json::to_vec(value)?)
}

/// Reads one JSON text.
#[inline(never)]
fn parse_json_value(text: &[u8]) -> serde_json::Result<Value> {
    serde_json::from_slice(text)
}

/// The error while it travels up to the whole; one pointer, since every reader returns it by value.
#[derive(Debug)]
struct Located(Box<WrongValue>);

impl Located {
    #[cold]
    #[inline(never)]
    fn new(message: String) -> Self {
        Self(Box::new(WrongValue {
            path: String::new(),
            message,
        }))
    }

    /// Places the error in field `name` of the value at hand.
    #[cold]
    #[inline(never)]
    fn in_field(mut self, name: &str) -> Self {
        let path = &mut self.0.path;
        if !path.is_empty() && !path.starts_with('[') {
            path.insert(0, '.');
        }
        path.insert_str(0, name);
        self
    }

    /// Places the error in item `index` of the value at hand.
    #[cold]
    #[inline(never)]
    fn in_item(self, index: usize) -> Self {
        self.in_field(&format!("[{index}]"))
    }

    #[cold]
    #[inline(never)]
    fn into_wrong(mut self) -> WrongValue {
        if self.0.path.is_empty() {
            self.0.path.push('.');
        }
        *self.0
    }
}

impl fmt::Display for Located {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl core::error::Error for Located {}

impl de::Error for Located {
    #[cold]
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self::new(message.to_string())
    }

    #[cold]
    #[inline(never)]
    fn invalid_type(found: Unexpected<'_>, expected: &dyn de::Expected) -> Self {
        let found = if matches!(found, Unexpected::Unit) {
            Unexpected::Other("null")
        } else {
            found
        };
        let expected = plain_words(expected);
        let hint = match found {
            Unexpected::Bool(_)
            | Unexpected::Unsigned(_)
            | Unexpected::Signed(_)
            | Unexpected::Float(_)
                if expected == "a string" =>
            {
                " in quotes"
            }
            _ => "",
        };
        Self::new(format!("invalid type: {found}, expected {expected}{hint}"))
    }

    #[cold]
    #[inline(never)]
    fn invalid_value(found: Unexpected<'_>, expected: &dyn de::Expected) -> Self {
        let expected = plain_words(expected);
        Self::new(format!("invalid value: {found}, expected {expected}"))
    }

    #[cold]
    #[inline(never)]
    fn invalid_length(length: usize, expected: &dyn de::Expected) -> Self {
        Self::new(format!("invalid length {length}, expected {expected}"))
    }
}

/// Says what is expected to a reader who does not know the types of this language.
fn plain_words(expected: &dyn de::Expected) -> String {
    let text = expected.to_string();
    let words = match text.as_str() {
        "u8" => "a whole number from 0 to 255",
        "u16" => "a whole number from 0 to 65535",
        "u32" => "a whole number from 0 to 4294967295",
        "u64" | "usize" => "a whole number from 0",
        "i32" => "a whole number up to 2147483647",
        "i64" => "a whole number",
        "f64" => "a number",
        name if name.starts_with("struct ") => "a map",
        _ => return text,
    };
    words.into()
}

#[derive(Clone, Copy)]
struct StrictDeserializer<'de>(&'de Value);

impl StrictDeserializer<'_> {
    #[cold]
    #[inline(never)]
    fn wrong(self, expected: &dyn de::Expected) -> Located {
        Located::invalid_type(
            match self.0 {
                Value::Null => Unexpected::Unit,
                Value::Bool(value) => Unexpected::Bool(*value),
                Value::Number(number) => {
                    if let Some(n) = number.as_u64() {
                        Unexpected::Unsigned(n)
                    } else if let Some(n) = number.as_i64() {
                        Unexpected::Signed(n)
                    } else {
                        Unexpected::Float(number.as_f64().unwrap_or(f64::NAN))
                    }
                }
                Value::String(text) => Unexpected::Str(text),
                Value::Array(_) => Unexpected::Seq,
                Value::Object(_) => Unexpected::Map,
            },
            expected,
        )
    }
}

// A method for each kind rather than one for all: what cannot be of that kind need not be generated for it.
macro_rules! number {
    ($($method:ident)*) => { $(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Located> {
            let Value::Number(number) = self.0 else {
                return Err(self.wrong(&visitor));
            };
            if let Some(n) = number.as_u64() {
                visitor.visit_u64(n)
            } else if let Some(n) = number.as_i64() {
                visitor.visit_i64(n)
            } else {
                visitor.visit_f64(number.as_f64().unwrap_or(f64::NAN))
            }
        }
    )* };
}

macro_rules! text {
    ($($method:ident)*) => { $(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Located> {
            match self.0 {
                Value::String(text) => visitor.visit_borrowed_str(text),
                _ => Err(self.wrong(&visitor)),
            }
        }
    )* };
}

impl<'de> Deserializer<'de> for StrictDeserializer<'de> {
    type Error = Located;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Located> {
        match self.0 {
            Value::Null => visitor.visit_unit(),
            Value::Bool(value) => visitor.visit_bool(*value),
            Value::Number(_) => self.deserialize_u64(visitor),
            Value::String(text) => visitor.visit_borrowed_str(text),
            Value::Array(_) => self.deserialize_seq(visitor),
            Value::Object(_) => self.deserialize_map(visitor),
        }
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Located> {
        match self.0 {
            Value::Bool(value) => visitor.visit_bool(*value),
            _ => Err(self.wrong(&visitor)),
        }
    }

    number!(
        deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64 deserialize_i128 deserialize_u8 deserialize_u16
        deserialize_u32 deserialize_u64 deserialize_u128 deserialize_f32 deserialize_f64
    );
    text!(deserialize_char deserialize_str deserialize_string deserialize_identifier);

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Located> {
        let Value::Array(list) = self.0 else {
            return Err(self.wrong(&visitor));
        };
        visitor.visit_seq(&mut StrictSeqAccess { list, next: 0 })
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Located> {
        let Value::Object(fields) = self.0 else {
            return Err(self.wrong(&visitor));
        };
        visitor.visit_map(StrictMapAccess::new(fields))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Located> {
        match self.0 {
            Value::Object(fields) => visitor.visit_map(StrictMapAccess::new(fields)),
            Value::Array(_) => Err(self.wrong(&"a map")),
            _ => Err(self.wrong(&visitor)),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Located> {
        if self.0.is_null() {
            visitor.visit_none()
        } else {
            visitor.visit_some(self)
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Located> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Located> {
        match self.0 {
            Value::String(name) => visitor.visit_enum(StrictEnumAccess {
                name,
                content: None,
            }),
            Value::Object(fields) if fields.len() == 1 => {
                let mut fields = fields.iter();
                let (name, content) = fields.next().ok_or_else(|| self.wrong(&visitor))?;
                visitor.visit_enum(StrictEnumAccess {
                    name,
                    content: Some(content),
                })
            }
            _ => Err(self.wrong(&"string or map with a single key")),
        }
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Located> {
        match self.0 {
            Value::Null => visitor.visit_unit(),
            _ => Err(self.wrong(&visitor)),
        }
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Located> {
        visitor.visit_unit()
    }

    fn deserialize_tuple<V: Visitor<'de>>(
        self,
        _length: usize,
        visitor: V,
    ) -> Result<V::Value, Located> {
        let Value::Array(list) = self.0 else {
            return Err(self.wrong(&visitor));
        };
        let mut items = StrictSeqAccess { list, next: 0 };
        let value = visitor.visit_seq(&mut items)?;
        if items.next < list.len() {
            return Err(Located::invalid_length(list.len(), &"fewer items"));
        }
        Ok(value)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        length: usize,
        visitor: V,
    ) -> Result<V::Value, Located> {
        self.deserialize_tuple(length, visitor)
    }

    serde::forward_to_deserialize_any! { bytes byte_buf unit_struct }
}

struct StrictSeqAccess<'de> {
    list: &'de [Value],
    next: usize,
}

impl<'de> SeqAccess<'de> for StrictSeqAccess<'de> {
    type Error = Located;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Located> {
        let index = self.next;
        let Some(item) = self.list.get(index) else {
            return Ok(None);
        };
        self.next += 1;
        match seed.deserialize(StrictDeserializer(item)) {
            Ok(item) => Ok(Some(item)),
            Err(e) => Err(e.in_item(index)),
        }
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.list.len() - self.next)
    }
}

struct StrictMapAccess<'de> {
    rest: map::Iter<'de>,
    /// The field whose name was read last.
    field: Option<(&'de str, &'de Value)>,
}

impl<'de> StrictMapAccess<'de> {
    fn new(fields: &'de Map<String, Value>) -> Self {
        Self {
            rest: fields.iter(),
            field: None,
        }
    }

    #[inline(never)]
    fn next_field(&mut self) -> Option<&'de str> {
        let (name, value) = self.rest.next()?;
        self.field = Some((name, value));
        Some(name)
    }
}

impl<'de> MapAccess<'de> for StrictMapAccess<'de> {
    type Error = Located;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Located> {
        match self.next_field() {
            None => Ok(None),
            Some(name) => match seed.deserialize(BorrowedStrDeserializer::new(name)) {
                Ok(key) => Ok(Some(key)),
                Err(e) => Err(Located::in_field(e, name)),
            },
        }
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Located> {
        let (name, value) = self.field.unwrap_or(("", &Value::Null));
        seed.deserialize(StrictDeserializer(value))
            .map_err(|e| e.in_field(name))
    }
}

struct StrictEnumAccess<'de> {
    name: &'de str,
    content: Option<&'de Value>,
}

impl<'de> EnumAccess<'de> for StrictEnumAccess<'de> {
    type Error = Located;
    type Variant = Self;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Self), Located> {
        let name = BorrowedStrDeserializer::new(self.name);
        seed.deserialize(name).map(|value| (value, self))
    }
}

impl<'de> VariantAccess<'de> for StrictEnumAccess<'de> {
    type Error = Located;

    fn unit_variant(self) -> Result<(), Located> {
        match self.content {
            None | Some(Value::Null) => Ok(()),
            Some(content) => Err(StrictDeserializer(content)
                .wrong(&"unit variant")
                .in_field(self.name)),
        }
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, Located> {
        let content = StrictDeserializer(self.content.unwrap_or(&Value::Null));
        seed.deserialize(content).map_err(|e| e.in_field(self.name))
    }

    fn tuple_variant<V: Visitor<'de>>(
        self,
        length: usize,
        visitor: V,
    ) -> Result<V::Value, Located> {
        StrictDeserializer(self.content.unwrap_or(&Value::Null))
            .deserialize_tuple(length, visitor)
            .map_err(|e| e.in_field(self.name))
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Located> {
        StrictDeserializer(self.content.unwrap_or(&Value::Null))
            .deserialize_struct("", fields, visitor)
            .map_err(|e| e.in_field(self.name))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{Pod, Secret};

    #[test]
    fn small_texts_that_become_large_values_are_refused() {
        let read = |text: &str| from_foreign_json::<Value>(text.as_bytes());
        let list = |item: &str, times: usize| format!("[{}]", vec![item; times].join(","));
        const MIB: usize = 1 << 20;
        for (what, text) in [
            ("maps of one field", list(r#"{"":0}"#, 4 * MIB / 7)),
            (
                "maps within maps",
                list(r#"{"":{"":{"":{"":0}}}}"#, 4 * MIB / 22),
            ),
            ("short texts", list(r#""a""#, MIB)),
            ("numbers", list("0", 2 * MIB)),
        ] {
            let Err(refused) = read(&text).map(drop) else {
                panic!("{what}");
            };
            let refused = refused.to_string();
            assert!(refused.contains("MiB of memory"), "{refused}");
        }
        let keys = |n: usize| {
            (0..n)
                .map(|n| format!("\"key-{n}\":\"{{,:[\\\"\""))
                .collect::<Vec<_>>()
        };
        for (what, text) in [
            ("one long text", format!("\"{}\"", "{,:[".repeat(MIB))),
            ("100,000 fields", format!("{{{}}}", keys(100_000).join(","))),
            (
                "what a large index has",
                list(
                    &format!(
                        r#"{{"mediaType":"m","digest":"{:064}","size":1,"platform":{{"os":"linux"}}}}"#,
                        0
                    ),
                    10_000,
                ),
            ),
        ] {
            assert!(read(&text).is_ok(), "{what}");
        }
        assert!(read("{").is_err() && read("").is_err() && read("\"\\").is_err());
    }

    #[test]
    fn wrong_values() {
        for (spec, says) in [
            (json!([]), "spec: invalid type: sequence, expected a map"),
            (
                json!({"containers": [["c", "i"]]}),
                "spec.containers[0]: invalid type: sequence, expected a map",
            ),
            (
                json!({"containers": [{"resources": []}]}),
                "spec.containers[0].resources: invalid type: sequence, expected a map",
            ),
            (
                json!({"securityContext": []}),
                "spec.securityContext: invalid type: sequence, expected a map",
            ),
            (
                json!({"securityContext": "x"}),
                "spec.securityContext: invalid type: string \"x\", expected a map",
            ),
            (
                json!({"containers": {}}),
                "spec.containers: invalid type: map, expected a sequence",
            ),
            (
                json!({"hostNetwork": "yes"}),
                "spec.hostNetwork: invalid type: string \"yes\", expected a boolean",
            ),
            (
                json!({"containers": [{"command": ["a", 1]}]}),
                "spec.containers[0].command[1]: invalid type: integer `1`, expected a string in quotes",
            ),
            (
                json!({"restartPolicy": "Maybe"}),
                "spec.restartPolicy: unknown variant `Maybe`, expected one of `Always`, `OnFailure`, `Never`",
            ),
            (
                json!({"containers": [{"resources": {"limits": {"cpu": "x"}}}]}),
                "spec.containers[0].resources.limits.cpu: \"x\" is not a quantity",
            ),
            (
                json!({"terminationGracePeriodSeconds": 1.5}),
                "spec.terminationGracePeriodSeconds: invalid type: floating point `1.5`, expected a whole number",
            ),
        ] {
            let raw = json!({"metadata": {"name": "a"}, "spec": spec});
            let error = typed_from_value::<Pod>(&raw).expect_err(says).to_string();
            assert!(error.starts_with(says), "{error}");
        }
    }

    #[test]
    fn right_values() {
        let raw = json!({
            "metadata": {"name": "a", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z", "labels": {"a": "b"}},
            "spec": {"restartPolicy": "Never", "containers": [{"name": "c", "resources": {"limits": {"cpu": 1, "memory": "1Mi"}},
                "livenessProbe": {"httpGet": {"port": "http"}}, "ports": [{"containerPort": 80}]}], "unknown": [[{}]]},
        });
        assert_eq!(
            typed_from_value::<Pod>(&raw),
            Ok(serde_json::from_value(raw.clone()).expect("pod"))
        );
        let raw = json!({"metadata": {"name": "a"}, "data": {"a": "aGk="}});
        assert_eq!(
            typed_from_value::<Secret>(&raw),
            Ok(serde_json::from_value(raw.clone()).expect("secret"))
        );
    }
}
