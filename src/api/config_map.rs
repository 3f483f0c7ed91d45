//! ConfigMap and Secret.

use alloc::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::ObjectMeta;

/// Bytes that are base64 text on the wire.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Base64Bytes(pub Vec<u8>);

impl Serialize for Base64Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use base64::Engine as _;
        serializer.serialize_str(&base64::engine::general_purpose::STANDARD.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for Base64Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        use base64::Engine as _;
        let mut text = String::deserialize(deserializer)?;
        text.retain(|c| !c.is_ascii_whitespace());
        base64::engine::general_purpose::STANDARD
            .decode(&text)
            .map(Self)
            .map_err(|_| de::Error::custom("not base64"))
    }
}

/// core/v1 ConfigMap.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
#[expect(
    missing_docs,
    reason = "field names and meanings are those of core/v1 ConfigMap"
)]
pub struct ConfigMap {
    pub metadata: ObjectMeta,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub data: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub binary_data: BTreeMap<String, Base64Bytes>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub immutable: Option<bool>,
}

/// core/v1 Secret. `stringData` is folded into `data` by whoever decodes a manifest.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
#[expect(
    missing_docs,
    reason = "field names and meanings are those of core/v1 Secret"
)]
pub struct Secret {
    pub metadata: ObjectMeta,
    pub data: BTreeMap<String, Base64Bytes>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub string_data: BTreeMap<String, String>,
    #[serde(rename = "type", skip_serializing_if = "String::is_empty")]
    pub kind: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub immutable: Option<bool>,
}

impl core::fmt::Debug for Secret {
    /// Names and keys only: values never reach a log.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Secret")
            .field("namespace", &self.metadata.namespace)
            .field("name", &self.metadata.name)
            .field("keys", &self.data.keys().chain(self.string_data.keys()))
            .finish_non_exhaustive()
    }
}
