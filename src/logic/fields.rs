//! Fields of an object that is read by hand: each is taken once, and none may be left.

use alloc::{borrow::ToOwned as _, string::String, vec::Vec};

use serde_json::{Map, Value};

use crate::api::strict::WrongValue;

/// Longest text by default, bytes.
pub(crate) const MAX_TEXT: usize = 256;

/// Fields of an object that were not taken yet.
pub(crate) struct RemainingFields<'a> {
    path: &'a str,
    left: Map<String, Value>,
    /// Longest text, bytes.
    most: usize,
}

impl<'a> RemainingFields<'a> {
    /// `path`: of the object; empty for the whole document.
    pub(crate) fn from_value(value: Value, path: &'a str) -> Result<Self, WrongValue> {
        let Value::Object(left) = value else {
            let path = if path.is_empty() { "." } else { path };
            return Err(WrongValue::new(path, "must have fields"));
        };
        Ok(Self {
            path,
            left,
            most: MAX_TEXT,
        })
    }

    pub(crate) fn from_borrowed(value: &Value, path: &'a str) -> Result<Self, WrongValue> {
        Self::from_value(value.clone(), path)
    }

    /// Changes the longest text, in bytes.
    pub(crate) fn with_max_text_bytes(self, most: usize) -> Self {
        Self { most, ..self }
    }

    pub(crate) const fn path(&self) -> &'a str {
        self.path
    }

    /// Path of a field.
    pub(crate) fn field_path(&self, name: &str) -> String {
        match self.path {
            "" => name.to_owned(),
            path => format!("{path}.{name}"),
        }
    }

    pub(crate) fn wrong_field(&self, name: &str, message: impl Into<String>) -> WrongValue {
        WrongValue::new(self.field_path(name), message)
    }

    pub(crate) fn has_field(&self, name: &str) -> bool {
        self.left.contains_key(name)
    }

    pub(crate) fn take_field(&mut self, name: &str) -> Option<Value> {
        self.left.remove(name)
    }

    /// A text; empty without the field.
    pub(crate) fn take_text(&mut self, name: &str) -> Result<String, WrongValue> {
        match self.take_field(name) {
            None => Ok(String::new()),
            Some(value) => self.text_of_value(name, &value),
        }
    }

    fn text_of_value(&self, name: &str, value: &Value) -> Result<String, WrongValue> {
        let most = self.most;
        match value.as_str().filter(|text| text.len() <= most) {
            Some(text) => Ok(text.to_owned()),
            None => {
                let message = format!("is {value}, must be a text of at most {most} bytes");
                Err(self.wrong_field(name, message))
            }
        }
    }

    /// A list; empty without the field.
    pub(crate) fn take_list(&mut self, name: &str) -> Result<Vec<Value>, WrongValue> {
        match self.take_field(name) {
            None => Ok(Vec::new()),
            Some(Value::Array(list)) => Ok(list),
            Some(_) => Err(self.wrong_field(name, "must be a list")),
        }
    }

    /// A list of texts.
    pub(crate) fn take_texts(&mut self, name: &str) -> Result<Vec<String>, WrongValue> {
        let list = self.take_list(name)?;
        let all = list.iter().enumerate();
        all.map(|(n, value)| self.text_of_value(&format!("{name}[{n}]"), value))
            .collect()
    }

    pub(crate) fn take_number(
        &mut self,
        name: &str,
        low: u32,
        high: u32,
    ) -> Result<Option<u32>, WrongValue> {
        let Some(value) = self.take_field(name) else {
            return Ok(None);
        };
        self.number_of_value(name, &value, low, high).map(Some)
    }

    pub(crate) fn number_of_value(
        &self,
        name: &str,
        value: &Value,
        low: u32,
        high: u32,
    ) -> Result<u32, WrongValue> {
        let number = value.as_u64().and_then(|n| u32::try_from(n).ok());
        let number = number.filter(|n| (low..=high).contains(n));
        number.ok_or_else(|| {
            let message = format!("is {value}, must be a whole number from {low} to {high}");
            self.wrong_field(name, message)
        })
    }

    pub(crate) fn take_flag(&mut self, name: &str, without: bool) -> Result<bool, WrongValue> {
        match self.take_field(name) {
            None => Ok(without),
            Some(Value::Bool(flag)) => Ok(flag),
            Some(value) => {
                Err(self.wrong_field(name, format!("is {value}, must be true or false")))
            }
        }
    }

    /// Fails if a field was not taken.
    pub(crate) fn expect_empty(self) -> Result<(), WrongValue> {
        match self.left.keys().next() {
            None => Ok(()),
            Some(name) => Err(self.wrong_field(name, "is not known")),
        }
    }
}
