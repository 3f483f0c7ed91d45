//! Challenges: the credentials that a registry asks for with a 401.
//!
//! Source: RFC 7235 section 4.1; distribution `docs/content/spec/auth/token.md`.

/// A challenge of `WWW-Authenticate`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::image) enum Challenge {
    /// User and password with each request.
    Basic,
    /// A token, to be had at `realm`.
    Bearer {
        /// URL of the token service.
        realm: String,
        /// Service that the token is for.
        service: String,
        /// Scope of the token.
        scope: String,
    },
}

/// Parameters of one challenge looked at.
const MAX_PARAMETERS: usize = 32;

/// Reads a header's value; schemes that are not known are left out. Never fails: nonsense has no challenges.
pub(in crate::image) fn parse_challenges(text: &str) -> Vec<Challenge> {
    let mut challenges = Vec::new();
    let mut rest = text.trim_start_matches([' ', ',']);
    while !rest.is_empty() {
        let at = rest.find([' ', ',']).unwrap_or(rest.len());
        let (scheme, after) = rest.split_at(at);
        let (parameters, after) = parse_parameters(after.trim_start_matches(' '));
        let value = |name: &str| {
            parameters
                .iter()
                .find(|(key, _)| key.eq_ignore_ascii_case(name))
                .map_or_else(String::new, |(_, value)| value.clone())
        };
        if scheme.eq_ignore_ascii_case("basic") {
            challenges.push(Challenge::Basic);
        } else if scheme.eq_ignore_ascii_case("bearer") {
            challenges.push(Challenge::Bearer {
                realm: value("realm"),
                service: value("service"),
                scope: value("scope"),
            });
        }
        rest = after.trim_start_matches([' ', ',']);
    }
    challenges
}

/// Reads `key=value, key="value"` up to the next scheme; also returns the rest.
fn parse_parameters(text: &str) -> (Vec<(&str, String)>, &str) {
    let mut found = Vec::new();
    let mut rest = text;
    while found.len() < MAX_PARAMETERS {
        let start = rest.trim_start_matches([' ', ',']);
        let end = start.find(['=', ' ', ',']).unwrap_or(start.len());
        if !start[end..].starts_with('=') {
            // No parameter: the next scheme, or the end.
            return (found, start);
        }
        let key = &start[..end];
        let (value, after) = parse_parameter_value(&start[end + 1..]);
        found.push((key, value));
        rest = after;
    }
    (found, "")
}

fn parse_parameter_value(text: &str) -> (String, &str) {
    let Some(quoted) = text.strip_prefix('"') else {
        let end = text.find([',', ' ']).unwrap_or(text.len());
        return (text[..end].to_owned(), &text[end..]);
    };
    let mut value = String::new();
    let mut chars = quoted.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return (value, &quoted[at + 1..]),
            '\\' => value.extend(chars.next().map(|(_, c)| c)),
            c => value.push(c),
        }
    }
    (value, "")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bearer(realm: &str, service: &str, scope: &str) -> Challenge {
        Challenge::Bearer {
            realm: realm.into(),
            service: service.into(),
            scope: scope.into(),
        }
    }

    #[test]
    fn challenges() {
        for (text, want) in [
            ("Basic realm=\"x\"", vec![Challenge::Basic]),
            ("basic", vec![Challenge::Basic]),
            (
                "Bearer realm=\"https://a/t\",service=\"s\",scope=\"repository:a/b:pull,push\"",
                vec![bearer("https://a/t", "s", "repository:a/b:pull,push")],
            ),
            (
                "Bearer realm=\"q\\\"x\" , service=s, Basic realm=\"y\"",
                vec![bearer("q\"x", "s", ""), Challenge::Basic],
            ),
            ("Negotiate, Bearer REALM=r", vec![bearer("r", "", "")]),
            ("Bearer realm=\"open", vec![bearer("open", "", "")]),
            ("", vec![]),
            (",,, ,", vec![]),
            ("=,=", vec![]),
        ] {
            assert_eq!(parse_challenges(text), want, "{text}");
        }
    }
}
