//! JSON value → typed value, with the path of what is wrong.
//!
//! serde's derived code takes a list where a struct is asked for, field by field in the order of the source code. A
//! document that says `resources: []` is wrong, so this reader takes maps only.

use core::fmt;

use serde::de::value::{MapDeserializer, SeqDeserializer};
use serde::de::{self, DeserializeOwned, Deserializer, IntoDeserializer, Unexpected, Visitor};
use serde::forward_to_deserialize_any;
use serde_json::Value;

/// A value of the wrong kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrongValue {
    /// Path of the field, such as `spec.containers[0].image`; `.` for the whole.
    pub path: String,
    /// What was found and what was expected.
    pub message: String,
}

impl fmt::Display for WrongValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.message)
    }
}

/// Turns `value` into `T`; the first wrong value is named with its path.
pub fn typed<T: DeserializeOwned>(value: &Value) -> Result<T, WrongValue> {
    serde_path_to_error::deserialize(Strict(value)).map_err(|e| WrongValue {
        path: e.path().to_string(),
        message: e.inner().to_string(),
    })
}

#[derive(Clone, Copy)]
struct Strict<'de>(&'de Value);

impl<'de> IntoDeserializer<'de, serde_json::Error> for Strict<'de> {
    type Deserializer = Self;
    fn into_deserializer(self) -> Self {
        self
    }
}

impl<'de> Deserializer<'de> for Strict<'de> {
    type Error = serde_json::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        match self.0 {
            Value::Array(items) => {
                let mut items = SeqDeserializer::new(items.iter().map(Strict));
                let value = visitor.visit_seq(&mut items)?;
                items.end()?;
                Ok(value)
            }
            Value::Object(fields) => {
                let fields = fields
                    .iter()
                    .map(|(name, field)| (name.as_str(), Strict(field)));
                let mut fields = MapDeserializer::new(fields);
                let value = visitor.visit_map(&mut fields)?;
                fields.end()?;
                Ok(value)
            }
            scalar => scalar.deserialize_any(visitor),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        if self.0.is_array() {
            return Err(de::Error::invalid_type(Unexpected::Seq, &"a map"));
        }
        self.deserialize_any(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
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
    ) -> Result<V::Value, Self::Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        self.0.deserialize_enum(name, variants, visitor)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple
        tuple_struct map identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::api::{Pod, Secret};

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
                "spec.securityContext: invalid type: string \"x\", expected struct PodSecurityContext",
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
                "spec.containers[0].command[1]: invalid type: integer `1`, expected a string",
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
                "spec.terminationGracePeriodSeconds: invalid type: floating point `1.5`, expected i64",
            ),
        ] {
            let raw = json!({"metadata": {"name": "a"}, "spec": spec});
            let error = typed::<Pod>(&raw).expect_err(says).to_string();
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
            typed::<Pod>(&raw),
            Ok(serde_json::from_value(raw.clone()).expect("pod"))
        );
        let raw = json!({"metadata": {"name": "a"}, "data": {"a": "aGk="}});
        assert_eq!(
            typed::<Secret>(&raw),
            Ok(serde_json::from_value(raw.clone()).expect("secret"))
        );
    }
}
