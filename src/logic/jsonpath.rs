//! Templates of `-o jsonpath`, `--sort-by` and custom columns: kubectl's grammar over JSON.
//!
//! A template is text with actions in braces. An action is a row of steps: each makes a list of values from the list
//! before. Unlike kubectl, `{.}` is the current value, and an empty list has no effect on the lists beside it.
//!
//! Source: client-go `util/jsonpath`.

use alloc::{borrow::ToOwned, boxed::Box, format, string::String, vec, vec::Vec};
use core::{cmp::Ordering, fmt::Write as _, mem};

use serde_json::Value;

use crate::api::Quantity;

/// Most bytes of a template.
pub const MAX_TEMPLATE_BYTES: usize = 64 * 1024;
/// Most bytes that a template prints.
pub const MAX_OUTPUT_BYTES: usize = 32 * 1024 * 1024;
/// Most values that all steps of a template find.
const MAX_VALUES: usize = 1_000_000;
/// Most ranges within each other.
const MAX_RANGES: usize = 16;

/// A template that cannot be read, or cannot be applied to an object.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TemplateError(Box<str>);

impl From<String> for TemplateError {
    fn from(text: String) -> Self {
        Self(text.into())
    }
}

impl From<TemplateError> for String {
    fn from(error: TemplateError) -> Self {
        error.0.into()
    }
}

impl From<&str> for TemplateError {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

/// A template that was read.
#[derive(Debug)]
pub struct Template(Vec<Piece>);

/// An action, or text between actions.
#[derive(Debug)]
struct Piece {
    steps: Vec<Step>,
    /// Pieces for each value that a `range` finds.
    body: Option<Vec<Self>>,
}

#[derive(Debug)]
enum Step {
    /// A key; empty for the value itself.
    Field(String),
    /// `*`
    Wildcard,
    /// `..`
    Recursive,
    /// `[start:end:step]`. `[n]` has no end.
    Slice(Option<i64>, SliceEnd, Option<i64>),
    /// `[?(left operator right)]`. An empty operator tests that `left` finds something.
    Filter(Vec<Self>, String, Vec<Self>),
    Union(Vec<Vec<Self>>),
    /// A text, number or truth value instead of the values.
    Literal(Value),
}

#[derive(Clone, Copy, Debug)]
enum SliceEnd {
    /// One item.
    Single,
    Last,
    At(i64),
}

impl Template {
    /// Reads a template. Errors: one line that says what is wrong.
    pub fn parse(text: &str) -> Result<Self, TemplateError> {
        if text.len() > MAX_TEMPLATE_BYTES {
            return Err(format!("longer than {MAX_TEMPLATE_BYTES} bytes").into());
        }
        let mut parser = Parser {
            rest: text,
            ..Parser::default()
        };
        parser.read_pieces(0).map(Self)
    }

    /// Reads the path of a column or of a sort key: `x.y`, `.x.y`, `{x.y}` or `{.x.y}`.
    pub fn parse_path(text: &str) -> Result<Self, TemplateError> {
        let inner = text.strip_prefix('{').and_then(|t| t.strip_suffix('}'));
        let inner = inner.unwrap_or(text);
        let inner = inner.strip_prefix('.').unwrap_or(inner);
        if inner.is_empty() || inner.contains(['{', '}']) {
            return Err(format!(
                "unexpected path {text:?}, expected 'a.b', '.a.b', '{{a.b}}' or '{{.a.b}}'"
            )
            .into());
        }
        Self::parse(&format!("{{.{inner}}}"))
    }

    /// Prints the template for `data`.
    pub fn render(&self, data: &Value) -> Result<String, TemplateError> {
        let mut out = String::new();
        Evaluation::default().print_pieces(&self.0, data, &mut out)?;
        Ok(out)
    }

    /// Lists the values that the first action finds.
    pub fn find<'a>(&'a self, data: &'a Value) -> Result<Vec<&'a Value>, TemplateError> {
        let steps = self.0.first().map_or(&[][..], |piece| &piece.steps);
        Evaluation::default().apply_steps(steps, vec![data])
    }
}

#[derive(Default)]
struct Parser<'t> {
    rest: &'t str,
    /// `range` or `end`, if the action has that word.
    keyword: &'t str,
}

fn is_name_end(c: char) -> bool {
    matches!(
        c,
        ' ' | '\t' | '\r' | '\n' | '.' | ',' | '[' | ']' | '$' | '@' | '{' | '}'
    )
}

impl<'t> Parser<'t> {
    fn take(&mut self, bytes: usize) -> &'t str {
        let (taken, rest) = self.rest.split_at(bytes);
        self.rest = rest;
        taken
    }

    /// Reads to the end of the text, or of the range.
    fn read_pieces(&mut self, ranges: usize) -> Result<Vec<Piece>, TemplateError> {
        let mut pieces = Vec::new();
        // Bounded: each round takes bytes.
        loop {
            let text = self.take(self.rest.find('{').unwrap_or(self.rest.len()));
            if !text.is_empty() {
                let steps = vec![Step::Literal(text.into())];
                pieces.push(Piece { steps, body: None });
            }
            if self.rest.is_empty() {
                return Ok(pieces);
            }
            self.take(1);
            let steps = self.read_steps(false)?;
            let body = match mem::take(&mut self.keyword) {
                "" => None,
                "end" if ranges > 0 => return Ok(pieces),
                "end" => return Err("not in range, nothing to end".into()),
                _ if ranges == MAX_RANGES => {
                    return Err(format!("more than {MAX_RANGES} ranges within each other").into());
                }
                _ => Some(self.read_pieces(ranges + 1)?),
            };
            pieces.push(Piece { steps, body });
        }
    }

    /// Reads the steps to the brace that closes the action. `is_part`: to the end of the text, a part of an action.
    fn read_steps(&mut self, is_part: bool) -> Result<Vec<Step>, TemplateError> {
        let mut steps = Vec::new();
        // Bounded: each round takes bytes.
        while let Some(first) = self.rest.chars().next() {
            match first {
                '}' if !is_part => {
                    self.take(1);
                    return Ok(steps);
                }
                '\r' | '\n' => break,
                ' ' | '@' | '$' => {
                    self.take(1);
                }
                '[' if self.rest.starts_with("[?(") => steps.push(self.read_filter()?),
                '[' => {
                    let end = self.rest.find(['\n', ']']).unwrap_or(self.rest.len());
                    if !self.rest[end..].starts_with(']') {
                        return Err("unterminated array".into());
                    }
                    let text = self.take(end + 1);
                    steps.extend(read_array(&text[1..end])?);
                }
                '"' | '\'' => steps.push(self.read_quoted(first)?),
                '.' if self.rest.starts_with("..") => {
                    if matches!(steps.last(), Some(Step::Recursive)) {
                        return Err("invalid multiple recursive descent".into());
                    }
                    self.take(2);
                    steps.push(Step::Recursive);
                    if self
                        .rest
                        .starts_with(|c: char| c == '_' || c.is_ascii_alphanumeric())
                    {
                        steps.push(self.read_field());
                    }
                }
                '.' => {
                    self.take(1);
                    steps.push(self.read_field());
                }
                '+' | '-' | '0'..='9' => steps.push(self.read_number()?),
                c if c == '_' || c.is_ascii_alphanumeric() => {
                    let end = self.rest.find(is_name_end).unwrap_or(self.rest.len());
                    match self.take(end) {
                        word @ ("true" | "false") => {
                            steps.push(Step::Literal((word == "true").into()))
                        }
                        word @ ("range" | "end") if !is_part => self.keyword = word,
                        word => return Err(format!("unrecognized identifier {word}").into()),
                    }
                }
                other => {
                    return Err(format!(
                        "unrecognized character in action: U+{:04X} '{other}'",
                        u32::from(other)
                    )
                    .into());
                }
            }
        }
        match is_part && self.rest.is_empty() {
            true => Ok(steps),
            false => Err("unclosed action".into()),
        }
    }

    /// Reads a key. A backslash keeps the next character from ending it.
    fn read_field(&mut self) -> Step {
        let mut is_escaped = false;
        let end = self.rest.find(|c| {
            let is_end = !is_escaped && is_name_end(c);
            is_escaped = !is_escaped && c == '\\';
            is_end
        });
        match self.take(end.unwrap_or(self.rest.len())) {
            "*" => Step::Wildcard,
            name => Step::Field(name.replace('\\', "")),
        }
    }

    fn read_number(&mut self) -> Result<Step, TemplateError> {
        let digits = self.rest[1..].find(|c: char| c != '.' && !c.is_ascii_digit());
        let text = self.take(digits.map_or(self.rest.len(), |n| n + 1));
        let number = text.parse::<i64>().map(Value::from);
        let number = number.or_else(|_| text.parse::<f64>().map(Value::from));
        number
            .map(Step::Literal)
            .map_err(|_| format!("cannot parse number {text}").into())
    }

    fn read_quoted(&mut self, quote: char) -> Result<Step, TemplateError> {
        let mut is_escaped = false;
        let end = self.rest[1..].find(|c| {
            let is_end = c == '\n' || c == quote && !is_escaped;
            is_escaped = !is_escaped && c == '\\';
            is_end
        });
        let end = end.filter(|end| !self.rest[1 + end..].starts_with('\n'));
        let end = end.ok_or("unterminated quoted string")?;
        let quoted = &self.take(end + 2)[1..=end];
        let (mut text, mut chars) = (String::new(), quoted.chars());
        while let Some(c) = chars.next() {
            text.push(match c {
                '\\' => match chars.next() {
                    Some('n') => '\n',
                    Some('t') => '\t',
                    Some('r') => '\r',
                    Some(c @ ('\\' | '"' | '\'')) => c,
                    Some('u') => read_code(&mut chars).ok_or_else(|| wrong_text(quote, quoted))?,
                    _ => return Err(wrong_text(quote, quoted)),
                },
                c => c,
            });
        }
        Ok(Step::Literal(text.into()))
    }

    fn read_filter(&mut self) -> Result<Step, TemplateError> {
        self.take(3);
        // A bracket within the first quoted text does not end the filter.
        let (mut quote, mut is_closed, mut before) = (None, false, ' ');
        let end = self.rest.find(|c| {
            match quote {
                None if matches!(c, '"' | '\'') => quote = Some(c),
                Some(open) if c == open && before != '\\' => is_closed = true,
                _ => {}
            }
            before = c;
            c == '\n' || c == ')' && quote.is_some() == is_closed
        });
        let end = end.filter(|end| self.rest[*end..].starts_with(')'));
        let text = self.take(end.ok_or("unterminated filter")?);
        if !self.rest.starts_with(")]") {
            return Err("unclosed array expect ]".into());
        }
        self.take(2);
        let is_sign = |c| matches!(c, '!' | '<' | '>' | '=');
        let (left, rest) = text.split_at(text.find(is_sign).unwrap_or(text.len()));
        let right = rest.trim_start_matches(|c| is_sign(c) || c == '~');
        let operator = &rest[..rest.len() - right.len()];
        if !["", "==", "!=", "<", "<=", ">", ">="].contains(&operator) {
            return Err(format!("filter operator {operator} is not supported").into());
        }
        if left.is_empty() || right.is_empty() != operator.is_empty() {
            return Err(format!("invalid filter {text}").into());
        }
        Ok(Step::Filter(
            read_part(left)?,
            operator.to_owned(),
            read_part(right)?,
        ))
    }
}

/// Reads the four digits of `\u`.
fn read_code(chars: &mut core::str::Chars<'_>) -> Option<char> {
    let digits: String = chars.by_ref().take(4).collect();
    let code = u32::from_str_radix(&digits, 16).ok()?;
    char::from_u32(code).filter(|_| digits.len() == 4)
}

fn wrong_text(quote: char, quoted: &str) -> TemplateError {
    format!("unquote string {quote}{quoted}{quote} error invalid syntax").into()
}

/// Reads steps that are a part of an action.
fn read_part(rest: &str) -> Result<Vec<Step>, TemplateError> {
    let mut parser = Parser {
        rest,
        ..Parser::default()
    };
    parser.read_steps(true)
}

/// Reads the text between brackets: items, a quoted path, or several of them.
fn read_array(text: &str) -> Result<Vec<Step>, TemplateError> {
    if text.contains(',') {
        let parts = text.split(',').map(|part| read_array(part.trim()));
        return Ok(vec![Step::Union(parts.collect::<Result<_, _>>()?)]);
    }
    let quoted = text.strip_prefix('\'').and_then(|t| t.strip_suffix('\''));
    if let Some(path) = quoted {
        return read_part(&format!(".{path}"));
    }
    let wrong = || TemplateError::from(format!("invalid array index {text}"));
    let number = |text: &str| match text {
        "" => Ok(None),
        text => text.parse::<i64>().map(Some).map_err(|_| wrong()),
    };
    let mut parts = text.split(':');
    let start = number(parts.next().unwrap_or("").trim_matches('*'))?;
    let end = match parts.next() {
        None if text == "*" => SliceEnd::Last,
        None => SliceEnd::Single,
        Some(end) => number(end)?.map_or(SliceEnd::Last, SliceEnd::At),
    };
    let step = number(parts.next().unwrap_or(""))?;
    if parts.next().is_some() || text.contains('*') && text != "*" {
        return Err(wrong());
    }
    Ok(vec![Step::Slice(start, end, step)])
}

/// Counts of what a template has found so far.
#[derive(Default)]
struct Evaluation {
    values: usize,
}

impl Evaluation {
    fn print_pieces(
        &mut self,
        pieces: &[Piece],
        data: &Value,
        out: &mut String,
    ) -> Result<(), TemplateError> {
        for piece in pieces {
            self.count_values(1)?;
            let found = self.apply_steps(&piece.steps, vec![data])?;
            for (n, value) in found.into_iter().enumerate() {
                if let Some(body) = &piece.body {
                    self.print_pieces(body, value, out)?;
                    continue;
                }
                if n > 0 {
                    out.push(' ');
                }
                if value.is_object() || value.is_array() || value.is_null() {
                    out.push_str(&escape_like_go(&format!("{value}")));
                } else {
                    push_go_text(value, out);
                }
                if out.len() > MAX_OUTPUT_BYTES {
                    return Err(format!("prints more than {MAX_OUTPUT_BYTES} bytes").into());
                }
            }
        }
        Ok(())
    }

    fn apply_steps<'a>(
        &mut self,
        steps: &'a [Step],
        mut values: Vec<&'a Value>,
    ) -> Result<Vec<&'a Value>, TemplateError> {
        for step in steps {
            let mut found = Vec::new();
            self.count_values(values.len() + 1)?;
            if let Step::Union(parts) = step {
                for part in parts {
                    found.extend(self.apply_steps(part, values.clone())?);
                    check_count(found.len())?;
                }
            } else if let Step::Literal(value) = step {
                found.push(value);
            } else {
                for value in values {
                    self.apply_step(step, value, &mut found)?;
                    check_count(found.len())?;
                }
            }
            values = found;
        }
        Ok(values)
    }

    fn count_values(&mut self, more: usize) -> Result<(), TemplateError> {
        self.values += more;
        check_count(self.values)
    }

    fn apply_step<'a>(
        &mut self,
        step: &'a Step,
        value: &'a Value,
        found: &mut Vec<&'a Value>,
    ) -> Result<(), TemplateError> {
        let items = match (step, value) {
            (Step::Field(name), value) if name.is_empty() => {
                found.push(value);
                return Ok(());
            }
            (Step::Field(name), value) => {
                found.extend(value.get(name));
                return Ok(());
            }
            (Step::Wildcard, value) => {
                found.extend(children(value));
                return Ok(());
            }
            (Step::Recursive, value) => {
                let below = children(value);
                if !below.is_empty() || value.as_str().is_some_and(|text| !text.is_empty()) {
                    found.push(value);
                }
                self.count_values(1)?;
                for child in below {
                    self.apply_step(step, child, found)?;
                }
                return Ok(());
            }
            (_, Value::Array(items)) => items,
            (Step::Slice(..), Value::Null) => return Ok(()),
            (_, other) => {
                let kind = if other.is_object() { "map" } else { "value" };
                return Err(format!("a {kind} is not an array: it has no items in []").into());
            }
        };
        match step {
            Step::Slice(start, end, step) => {
                for place in slice_places(items.len(), *start, *end, *step)? {
                    found.extend(items.get(place));
                }
            }
            Step::Filter(left, operator, right) => {
                for item in items {
                    let sides = [left, right].map(|side| self.apply_steps(side, vec![item]));
                    let holds = match (operator.as_str(), sides) {
                        ("", [left, _]) => left.is_ok_and(|found| !found.is_empty()),
                        (operator, [left, right]) => compare_sides(&left?, operator, &right?)?,
                    };
                    if holds {
                        found.push(item);
                    }
                }
            }
            Step::Field(_)
            | Step::Wildcard
            | Step::Recursive
            | Step::Union(_)
            | Step::Literal(_) => {}
        }
        Ok(())
    }
}

fn check_count(values: usize) -> Result<(), TemplateError> {
    match values > MAX_VALUES {
        true => Err(format!("finds more than {MAX_VALUES} values").into()),
        false => Ok(()),
    }
}

fn children(value: &Value) -> Vec<&Value> {
    match value {
        Value::Object(fields) => fields.values().collect(),
        Value::Array(items) => items.iter().collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Vec::new(),
    }
}

/// Lists the places of a slice in an array of `len` items.
fn slice_places(
    len: usize,
    start: Option<i64>,
    end: SliceEnd,
    step: Option<i64>,
) -> Result<impl Iterator<Item = usize>, TemplateError> {
    let len = i64::try_from(len).unwrap_or(i64::MAX);
    let from_end = |at: i64| if at < 0 { at.saturating_add(len) } else { at };
    let start = from_end(start.unwrap_or(0));
    let end = match end {
        SliceEnd::Single => start.saturating_add(1),
        SliceEnd::Last => len,
        SliceEnd::At(end) => from_end(end),
    };
    for (index, is_out) in [
        (start, start < 0 || start >= len),
        (end.saturating_sub(1), end < 0 || end > len),
    ] {
        if start != end && is_out {
            return Err(format!("array index out of bounds: index {index}, length {len}").into());
        }
    }
    if start > end {
        return Err(format!("starting index {start} is greater than ending index {end}").into());
    }
    let step = step.unwrap_or(1);
    let step = usize::try_from(step).ok().filter(|step| *step > 0);
    let step = step.ok_or("step must be > 0")?;
    let place = |at| usize::try_from(at).unwrap_or(0);
    Ok((place(start)..place(end)).step_by(step))
}

fn compare_sides(left: &[&Value], operator: &str, right: &[&Value]) -> Result<bool, TemplateError> {
    let (left, right) = match (left, right) {
        ([], _) | (_, []) => return Ok(false),
        ([left], [right]) => (*left, *right),
        _ => return Err("can only compare one element at a time".into()),
    };
    let order = match (left, right) {
        (Value::Bool(a), Value::Bool(b)) if ["==", "!="].contains(&operator) => a.cmp(b),
        (Value::String(a), Value::String(b)) => a.cmp(b),
        (Value::Number(_), Value::Number(_)) => compare_numbers(left, right),
        _ => {
            return Err(format!("incompatible types for {operator}: {left}, {right}").into());
        }
    };
    Ok(match operator {
        "==" => order.is_eq(),
        "!=" => order.is_ne(),
        "<" => order.is_lt(),
        "<=" => order.is_le(),
        ">" => order.is_gt(),
        _ => order.is_ge(),
    })
}

fn compare_numbers(a: &Value, b: &Value) -> Ordering {
    match (a.as_i64(), b.as_i64()) {
        (Some(a), Some(b)) => a.cmp(&b),
        _ => {
            let float = |value: &Value| value.as_f64().unwrap_or(0.0);
            float(a).total_cmp(&float(b))
        }
    }
}

/// Compares two sort keys as `kubectl get --sort-by`: numbers and quantities by amount, other texts by their bytes. A sort
/// needs one order of all values, so kinds come one after the other, and other texts behind quantities.
#[must_use]
pub fn compare_sort_keys(a: &Value, b: &Value) -> Ordering {
    match (a, b) {
        (Value::Number(_), Value::Number(_)) => compare_numbers(a, b),
        (Value::Bool(a), Value::Bool(b)) => a.cmp(b),
        (Value::String(a), Value::String(b)) => match (Quantity::parse(a), Quantity::parse(b)) {
            (Ok(a), Ok(b)) => (a.value(), a.milli_value()).cmp(&(b.value(), b.milli_value())),
            (Err(_), Err(_)) => a.cmp(b),
            (a, b) => b.is_ok().cmp(&a.is_ok()),
        },
        _ => kind_rank(a).cmp(&kind_rank(b)),
    }
}

fn kind_rank(value: &Value) -> u8 {
    match value {
        Value::Null => 0,
        Value::Bool(_) => 1,
        Value::Number(_) => 2,
        Value::String(_) => 3,
        Value::Array(_) | Value::Object(_) => 4,
    }
}

/// Escapes what Go's JSON has as escapes, so that it can stand in HTML. `json`: a text of JSON, where these stand in strings
/// only.
#[must_use]
pub fn escape_like_go(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        match c {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out
}

/// Writes a value as Go prints it: `map[a:1 b:[x y]]`. Cells of custom columns have this form.
pub fn push_go_text(value: &Value, out: &mut String) {
    let mut space = "";
    match value {
        Value::Null => out.push_str("<nil>"),
        Value::String(text) => out.push_str(text),
        Value::Array(items) => {
            out.push('[');
            for item in items {
                out.push_str(mem::replace(&mut space, " "));
                push_go_text(item, out);
            }
            out.push(']');
        }
        Value::Object(fields) => {
            out.push_str("map[");
            for (name, field) in fields {
                out.push_str(mem::replace(&mut space, " "));
                out.push_str(name);
                out.push(':');
                push_go_text(field, out);
            }
            out.push(']');
        }
        Value::Number(number) if number.is_f64() => {
            push_go_float(number.as_f64().unwrap_or(0.0), out);
        }
        Value::Bool(_) | Value::Number(_) => {
            let _ = write!(out, "{value}");
        }
    }
}

/// Writes a number with a fraction as Go's `%v`: very small and very large ones have a power of two digits or more.
fn push_go_float(number: f64, out: &mut String) {
    let text = format!("{number:e}");
    let (digits, power) = text.split_once('e').unwrap_or((&text, "0"));
    let _ = match power.parse::<i32>().unwrap_or(0) {
        -4..21 => write!(out, "{number}"),
        power => write!(out, "{digits}e{power:+03}"),
    };
}

#[cfg(test)]
mod tests;
