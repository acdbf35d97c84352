//! Environment and flags as figment layers, and questions about layers.

use figment::{
    Error, Figment, Metadata, Profile, Provider,
    value::{Dict, Map, Value},
};
use serde_json::Value as Json;
use std::ffi::OsString;

pub(super) const ENVIRONMENT: &str = "environment";
pub(super) const FLAG: &str = "flag";

/// `TALWEG_GATEWAY__`.
pub(super) fn environment_prefix(process: &str) -> String {
    format!("TALWEG_{}__", process.to_uppercase())
}

/// The variables with the prefix, as dotted keys.
pub(super) fn from_environment(
    prefix: &str,
    variables: impl Iterator<Item = (OsString, OsString)>,
) -> Vec<(String, String)> {
    let key = |name: &str| Some(name.strip_prefix(prefix)?.to_lowercase().replace("__", "."));
    variables
        .filter_map(|(name, value)| {
            // A value that is not text is replaced where it is not, and then
            // refused or shown like any other.
            Some((key(name.to_str()?)?, value.to_string_lossy().into_owned()))
        })
        .collect()
}

/// A layer of textual values; later entries win.
pub(super) struct Texts {
    layer: &'static str,
    data: Dict,
}

impl Texts {
    /// `shape` are the defaults: they say where text is to be taken as it is.
    pub(super) fn new(
        layer: &'static str,
        entries: impl IntoIterator<Item = (String, String)>,
        shape: &Json,
    ) -> Self {
        let mut data = Dict::new();
        for (key, text) in entries {
            let default = key.split('.').try_fold(shape, |at, part| at.get(part));
            insert(&mut data, &key, parse(&text, default));
        }
        Self { layer, data }
    }
}

impl Provider for Texts {
    fn metadata(&self) -> Metadata {
        Metadata::named(self.layer)
    }

    fn data(&self) -> Result<Map<Profile, Dict>, Error> {
        Ok(Map::from([(Profile::Default, self.data.clone())]))
    }
}

fn insert(data: &mut Dict, key: &str, value: Value) {
    match key.split_once('.') {
        None => drop(data.insert(key.to_owned(), value)),
        Some((table, rest)) => {
            let inner = data
                .entry(table.to_owned())
                .or_insert_with(|| Dict::new().into());
            if let Value::Dict(_, inner) = inner {
                insert(inner, rest, value);
            } else {
                // Both `a` and `a.b` were given; the later one stands and the
                // extraction refuses it if it does not fit.
                let mut table = Dict::new();
                insert(&mut table, rest, value);
                *inner = table.into();
            }
        }
    }
}

fn parse(text: &str, default: Option<&Json>) -> Value {
    let literal = || text.parse::<Value>().unwrap_or_else(|never| match never {});
    match default {
        Some(Json::String(_)) => Value::from(text),
        Some(Json::Array(_)) if !text.trim_start().starts_with('[') => {
            let items = text.split(',').map(str::trim).filter(|it| !it.is_empty());
            Value::from(items.map(Value::from).collect::<Vec<_>>())
        }
        _ => literal(),
    }
}

/// Where the value of a key came from, in words.
pub(super) fn source(figment: &Figment, prefix: &str, key: &str) -> String {
    match figment.find_metadata(key) {
        Some(metadata) => describe(metadata, prefix, key),
        None => "default".into(),
    }
}

pub(super) fn describe(metadata: &Metadata, prefix: &str, key: &str) -> String {
    if let Some(path) = metadata.source.as_ref().and_then(|it| it.file_path()) {
        return format!("file {}", path.display());
    }
    match &*metadata.name {
        ENVIRONMENT => {
            let name = key.to_uppercase().replace('.', "__");
            format!("environment {prefix}{name}")
        }
        FLAG => "flag".into(),
        _ => "default".into(),
    }
}

/// Dotted keys in `given` that the settings did not take.
pub(super) fn unknown_keys(given: &Json, taken: &Json, at: &str, found: &mut Vec<String>) {
    let (Json::Object(given), Json::Object(taken)) = (given, taken) else {
        return;
    };
    for (key, value) in given {
        let path = join(at, key);
        match taken.get(key) {
            Some(inner) => unknown_keys(value, inner, &path, found),
            None => found.push(path),
        }
    }
}

/// Dotted keys of everything that is not a table.
pub(super) fn leaves(value: &Json, at: &str, found: &mut Vec<String>) {
    match value {
        Json::Object(table) => {
            for (key, value) in table {
                leaves(value, &join(at, key), found);
            }
        }
        _ => found.push(at.to_owned()),
    }
}

pub(super) fn join(at: &str, key: &str) -> String {
    if at.is_empty() {
        key.to_owned()
    } else {
        format!("{at}.{key}")
    }
}
