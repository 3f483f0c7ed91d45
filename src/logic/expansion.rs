//! `$(NAME)` in env values, command lines and subPathExpr (ENV-05).

/// Expands every reference in `text`.
///
/// - `$(NAME)`: what `lookup` answers; left as written if it answers nothing. No recursion into the answer.
/// - `$$`: one dollar, so that `$$(NAME)` stays a literal. Any other dollar stays.
/// - Source: Kubernetes `third_party/forked/golang/expansion`.
pub fn expand(text: &str, mut lookup: impl FnMut(&str) -> Option<String>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        let after = &rest[at + 1..];
        if let Some(tail) = after.strip_prefix('$') {
            out.push('$');
            rest = tail;
        } else if let Some((name, tail)) = after
            .strip_prefix('(')
            .and_then(|tail| tail.split_once(')'))
        {
            match lookup(name) {
                Some(value) => out.push_str(&value),
                None => out.extend(["$(", name, ")"]),
            }
            rest = tail;
        } else {
            out.push('$');
            rest = after;
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references() {
        // ENV-05
        for (text, want) in [
            ("", ""),
            ("plain", "plain"),
            ("$(A)", "1"),
            ("$(A)$(B)", "12"),
            ("x$(A)y", "x1y"),
            ("$(NO)", "$(NO)"),
            ("$()", "$()"),
            ("$$", "$"),
            ("$$(A)", "$(A)"),
            ("$$$(A)", "$1"),
            ("$$$$(A)", "$$(A)"),
            ("$(A", "$(A"),
            ("$($$", "$($"),
            ("$A $ é$é", "$A $ é$é"),
            ("cost: 5$", "cost: 5$"),
            ("$(REF)", "$(A)"),
            ("$(A $(A)", "$(A $(A)"),
            ("$( A)", "$( A)"),
            ("))$(A)((", "))1(("),
        ] {
            let got = expand(text, |name| match name {
                "A" => Some("1".into()),
                "B" => Some("2".into()),
                "REF" => Some("$(A)".into()),
                _ => None,
            });
            assert_eq!(got, want, "{text:?}");
        }
    }
}
