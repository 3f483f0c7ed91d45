//! Label selectors as `kubectl -l` takes them: `app=web,tier!=back,zone in (a,b),!old`.
//!
//! Source: k8s.io/apimachinery/pkg/labels/selector.go, without `gt` and `lt`, which only nodes use.

use alloc::{borrow::ToOwned, string::String, vec::Vec};

use serde_json::Value;

use crate::api::names::{is_label_value, is_qualified_name};

/// Requirements that an object has to meet, all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelSelector(Vec<LabelRequirement>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct LabelRequirement {
    key: String,
    /// Values that fit; none if any value does.
    values: Vec<String>,
    /// Set if the label must not fit. An absent label never fits.
    is_negated: bool,
}

impl LabelSelector {
    /// Parses a selector; `None` if it is malformed.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut is_in_list = false;
        let parts = text.split(|c| {
            match c {
                '(' => is_in_list = true,
                ')' => is_in_list = false,
                _ => {}
            }
            c == ',' && !is_in_list
        });
        parts
            .map(parse_requirement)
            .collect::<Option<_>>()
            .map(Self)
    }

    /// Returns true if an object has fitting labels. `object`: as JSON.
    #[must_use]
    pub fn matches(&self, object: &Value) -> bool {
        let labels = &object["metadata"]["labels"];
        self.0.iter().all(|wanted| {
            let fits = labels[&wanted.key].as_str().is_some_and(|label| {
                wanted.values.is_empty() || wanted.values.iter().any(|value| value == label)
            });
            fits != wanted.is_negated
        })
    }
}

fn parse_requirement(text: &str) -> Option<LabelRequirement> {
    let (key, list, is_negated) = if let Some((head, list)) = text.split_once('(') {
        let (key, operator) = head.trim().rsplit_once(char::is_whitespace)?;
        let is_negated = match operator {
            "in" => false,
            "notin" => true,
            _ => return None,
        };
        (key, Some(list.trim_end().strip_suffix(')')?), is_negated)
    } else if let Some((key, value)) = text.split_once("!=") {
        (key, Some(value), true)
    } else if let Some((key, value)) = text.split_once('=') {
        (key, Some(value.strip_prefix('=').unwrap_or(value)), false)
    } else {
        let text = text.trim();
        let key = text.strip_prefix('!');
        (key.unwrap_or(text), None, key.is_some())
    };
    let key = key.trim();
    let values = list.into_iter().flat_map(|list| list.split(','));
    let values: Vec<String> = values.map(|value| value.trim().to_owned()).collect();
    let is_sound = is_qualified_name(key) && values.iter().all(|value| is_label_value(value));
    is_sound.then(|| LabelRequirement {
        key: key.to_owned(),
        values,
        is_negated,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn objects_that_are_chosen() {
        // CMD-02
        let web = json!({"metadata": {"labels": {"app": "web", "example.com/tier": "front", "empty": ""}}});
        let bare = json!({"metadata": {"name": "bare"}});
        for (text, of_web, of_bare) in [
            ("app=web", true, false),
            ("app==web", true, false),
            (" app = web ", true, false),
            ("app=db", false, false),
            ("app!=web", false, true),
            ("app!=db", true, true),
            ("app", true, false),
            ("!app", false, true),
            ("empty=", true, false),
            ("app=,empty", false, false),
            ("example.com/tier=front,app=web", true, false),
            ("app=web,example.com/tier=back", false, false),
            ("app in (db, web),example.com/tier", true, false),
            ("app in (db)", false, false),
            ("app notin (db,web)", false, true),
        ] {
            let selector = LabelSelector::parse(text).expect(text);
            assert_eq!(selector.matches(&web), of_web, "{text}: web");
            assert_eq!(selector.matches(&bare), of_bare, "{text}: bare");
        }
        for bad in [
            "",
            ",",
            "=web",
            "!",
            "app=a b",
            "app in web",
            "app in (a",
            "app of (a)",
            "a b",
            "app>1",
        ] {
            assert_eq!(LabelSelector::parse(bad), None, "{bad}");
        }
    }
}
