//! Settings as TOML with a comment on each line.

use super::layers::join;
use serde_json::{Map, Value};
use std::{collections::BTreeMap, fmt::Write};

pub(super) fn toml(value: &Value, sources: &BTreeMap<String, String>) -> String {
    let mut text = String::new();
    if let Value::Object(table) = value {
        write_table(table, "", sources, &mut text);
    }
    text
}

/// Plain values first, as TOML needs it, then the tables.
fn write_table(
    table: &Map<String, Value>,
    at: &str,
    sources: &BTreeMap<String, String>,
    text: &mut String,
) {
    let is_table = |value: &Value| matches!(value, Value::Object(_));
    for (key, value) in table.iter().filter(|(_, value)| !is_table(value)) {
        let source = sources.get(&join(at, key)).map_or("default", |it| it);
        let line = match value {
            Value::Null => format!("# {key} is not set"),
            _ => format!("{key} = {}", literal(value)),
        };
        // Writing to a String does not fail.
        let _ = writeln!(text, "{line:<48} # {source}");
    }
    for (key, value) in table {
        if let Value::Object(inner) = value {
            let path = join(at, key);
            let _ = writeln!(text, "\n[{path}]");
            write_table(inner, &path, sources, text);
        }
    }
}

fn literal(value: &Value) -> String {
    toml::Value::try_from(value).map_or_else(|_| value.to_string(), |value| value.to_string())
}
