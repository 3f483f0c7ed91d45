//! Output of `get`: formats, and the text of what was found in each.

use std::path::Path;

use serde_json::{Value, json};

use super::{
    super::{CliError, table},
    GetCommand,
    kinds::{IMAGES, ObjectKind},
    object_name,
};
use crate::{
    api::{WallTime, order::OrderExt as _, yaml::yaml_text},
    config,
    logic::jsonpath::{self, Template, TemplateError, escape_like_go},
    sys::clock,
};

/// Format of the output.
#[derive(Debug, Default)]
pub(in crate::cli) enum OutputFormat {
    #[default]
    Table,
    Wide,
    Json,
    Yaml,
    Name,
    JsonPath(Template),
    /// A table of these columns.
    Columns(Vec<TableColumn<Template>>),
}

/// Header of a column, which lives as long as the command, and the source of its cells.
pub(super) type TableColumn<T> = (&'static str, T);

pub(in crate::cli) fn parse_output_format(text: &str) -> Result<OutputFormat, CliError> {
    let is_templated = |(name, _): &(&str, &str)| {
        name.starts_with("jsonpath") || name.starts_with("custom-columns")
    };
    let parts = text.split_once('=').filter(is_templated);
    let (name, value) = parts.unwrap_or((text, ""));
    let of_file = || {
        let text = config::read_bounded(Path::new(value)).map(String::from_utf8);
        let text = text.map_err(|e| CliError::new(format!("cannot read {value}: {e}")))?;
        text.map_err(|_| CliError::new(format!("{value} is not UTF-8")))
    };
    let wrong = |e: TemplateError| CliError::new(format!("error parsing {name} {value}, {e}"));
    Ok(match name {
        "" => OutputFormat::Table,
        "wide" => OutputFormat::Wide,
        "json" => OutputFormat::Json,
        "yaml" => OutputFormat::Yaml,
        "name" => OutputFormat::Name,
        "jsonpath" | "jsonpath-file" | "custom-columns" | "custom-columns-file"
            if value.is_empty() =>
        {
            return Err(CliError::new(match name.starts_with("jsonpath") {
                true => "template format specified but no template given",
                false => "custom-columns format specified but no custom columns given",
            }));
        }
        "jsonpath" => OutputFormat::JsonPath(Template::parse(value).map_err(wrong)?),
        "jsonpath-file" => OutputFormat::JsonPath(Template::parse(&of_file()?).map_err(wrong)?),
        "custom-columns" => {
            OutputFormat::Columns(parse_columns(&mut value.split(',')).map_err(wrong)?)
        }
        "custom-columns-file" => {
            let text = of_file()?;
            let mut lines = text.lines();
            let mut line = || lines.next().unwrap_or("").split_whitespace();
            let (headers, paths) = (line(), line());
            if headers.clone().count() != paths.clone().count() {
                return Err(wrong(
                    "the two lines have different numbers of words".into(),
                ));
            }
            let columns: Vec<String> = headers
                .zip(paths)
                .map(|(h, p)| format!("{h}:{p}"))
                .collect();
            let mut columns = columns.iter().map(String::as_str);
            OutputFormat::Columns(parse_columns(&mut columns).map_err(wrong)?)
        }
        other => {
            let hint = match other.starts_with("go-template") {
                true => "; instead of go-template use jsonpath",
                false => "",
            };
            return Err(CliError::new(format!(
                "unable to match a printer suitable for the output format \"{other}\", allowed formats are: \
                 custom-columns,custom-columns-file,json,jsonpath,jsonpath-file,name,wide,yaml{hint}"
            )));
        }
    })
}

/// Reads columns of the form `HEADER:PATH`.
fn parse_columns(
    columns: &mut dyn Iterator<Item = &str>,
) -> Result<Vec<TableColumn<Template>>, TemplateError> {
    columns
        .map(|column| {
            let parts = column.split_once(':');
            let (header, path) = parts.ok_or_else(|| {
                format!("unexpected column {column:?}, expected <header>:<json-path-expr>")
            })?;
            Ok((&*header.to_owned().leak(), Template::parse_path(path)?))
        })
        .collect()
}

/// Writes `value` as JSON or YAML, or with a template.
pub(in crate::cli) fn object_text(
    value: &Value,
    output: &OutputFormat,
) -> Result<String, CliError> {
    match output {
        OutputFormat::Yaml => Ok(yaml_text(value)),
        OutputFormat::JsonPath(template) => template
            .render(value)
            .map_err(|e| CliError::new(format!("error executing jsonpath: {e}"))),
        // Each step is of four blanks. Strings have no line breaks in JSON, so a line begins with nothing but steps.
        _ => Ok(escape_like_go(&format!("{value:#}\n"))
            .split_inclusive('\n')
            .flat_map(|line| {
                [
                    &line[..line.len() - line.trim_start_matches(' ').len()],
                    line,
                ]
            })
            .collect()),
    }
}

impl GetCommand {
    /// Makes the text of what was found. `is_one`: a single object stands for itself, not in a list.
    pub(super) fn objects_text(
        &self,
        found: &[(&ObjectKind, Vec<Value>)],
        is_one: bool,
    ) -> Result<String, CliError> {
        let mut text = String::new();
        if matches!(self.output, OutputFormat::Name) {
            for (kind, items) in found {
                for item in items {
                    text += &format!("{}/{}\n", kind.names[1], object_name(item));
                }
            }
            return Ok(text);
        }
        let is_columns = matches!(self.output, OutputFormat::Columns(_));
        if !self.is_table() && !is_columns {
            let all: Vec<&Value> = found.iter().flat_map(|(_, items)| items).collect();
            return match all.as_slice() {
                [] if is_one => Ok(text),
                [one] if is_one => object_text(one, &self.output),
                // kubectl's kind of all that it has put together.
                _ => object_text(
                    &json!({
                        "apiVersion": "v1",
                        "kind": "List",
                        "metadata": {"resourceVersion": ""},
                        "items": all,
                    }),
                    &self.output,
                ),
            };
        }
        let now = clock::wall_now();
        let mut rows = Vec::new();
        for (n, (kind, items)) in found.iter().enumerate() {
            for item in items {
                rows.extend(self.object_rows(kind, item, now)?);
            }
            if kind.route == IMAGES.route && self.sort_by.is_none() {
                rows.stable_sort();
            }
            // Columns are those of all kinds: one table has all.
            let is_table = match is_columns {
                true => n + 1 == found.len(),
                false => !rows.is_empty(),
            };
            if !is_table {
                continue;
            }
            if !text.is_empty() {
                text.push('\n');
            }
            text += &self.table_text(kind, &rows);
            rows.clear();
        }
        Ok(text)
    }

    fn table_text(&self, kind: &ObjectKind, rows: &[Vec<String>]) -> String {
        table::render_table(&self.table_header(kind), rows, self.no_headers)
    }

    pub(super) fn table_header(&self, kind: &ObjectKind) -> Vec<&'static str> {
        if let OutputFormat::Columns(columns) = &self.output {
            return columns.iter().map(|(header, _)| *header).collect();
        }
        let is_wide = matches!(self.output, OutputFormat::Wide);
        let mut header = (kind.header)(self.all_namespaces, is_wide);
        header.extend(self.label_columns.iter().map(|(header, _)| *header));
        if self.show_labels {
            header.push("LABELS");
        }
        header
    }

    /// Makes the rows of an object, below [`Self::table_header`].
    pub(super) fn object_rows(
        &self,
        kind: &ObjectKind,
        item: &Value,
        now: WallTime,
    ) -> Result<Vec<Vec<String>>, CliError> {
        if let OutputFormat::Columns(columns) = &self.output {
            let cells = columns.iter().map(|(_, path)| column_cell(path, item));
            return Ok(vec![cells.collect::<Result<_, _>>()?]);
        }
        let is_wide = matches!(self.output, OutputFormat::Wide);
        let mut rows = (kind.rows)(item, now, self.all_namespaces, is_wide)?;
        let labels = item["metadata"]["labels"].as_object();
        for row in &mut rows {
            let header = (kind.header)(self.all_namespaces, is_wide);
            let name = header.iter().position(|header| *header == "NAME");
            if let Some(cell) = name
                .filter(|_| self.show_kind)
                .and_then(|at| row.get_mut(at))
            {
                cell.insert_str(0, &format!("{}/", kind.names[1]));
            }
            row.extend(self.label_columns.iter().map(|(_, label)| {
                let value = labels.and_then(|labels| labels.get(label)?.as_str());
                value.unwrap_or("").to_owned()
            }));
            if self.show_labels {
                let pairs = labels.into_iter().flatten();
                let pair = |(name, value): (&String, &Value)| {
                    format!("{name}={}", value.as_str().unwrap_or(""))
                };
                let pairs: Vec<String> = pairs.map(pair).collect();
                row.push(match pairs.is_empty() {
                    true => "<none>".to_owned(),
                    false => pairs.join(","),
                });
            }
        }
        Ok(rows)
    }
}

fn column_cell(path: &Template, item: &Value) -> Result<String, CliError> {
    let found = path.find(item).map_err(CliError::new)?;
    let mut cell = String::new();
    for (n, value) in found.iter().enumerate() {
        if n > 0 {
            cell.push(',');
        }
        jsonpath::push_go_text(value, &mut cell);
    }
    Ok(match found.is_empty() {
        true => "<none>".to_owned(),
        false => cell,
    })
}
