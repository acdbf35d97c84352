//! Records as JSON: text or null, bytes that are not UTF-8 as base64 under a
//! name of their own. Base64 is strict: standard alphabet, padded.

use super::reply::Failure;
use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use talweg_proto::v1;

/// A record as `POST …/records` takes it.
#[derive(Deserialize, Debug, Default)]
#[serde(deny_unknown_fields)]
pub struct RecordBody {
    #[serde(default)]
    pub key: Option<String>,
    #[serde(default)]
    pub key_base64: Option<String>,
    #[serde(default)]
    pub value: Option<String>,
    #[serde(default)]
    pub value_base64: Option<String>,
    #[serde(default)]
    pub headers: Value,
    #[serde(default)]
    pub partition: Option<u32>,
    #[serde(default)]
    pub timestamp: Option<i64>,
}

impl RecordBody {
    /// As the thin form has it.
    pub fn into_record(self) -> Result<v1::Record, Failure> {
        Ok(v1::Record {
            key: text_or_bytes("key", self.key, self.key_base64)?,
            value: text_or_bytes("value", self.value, self.value_base64)?,
            headers: headers(&self.headers)?,
            timestamp_ms: self.timestamp,
            partition: self.partition,
            ..Default::default()
        })
    }
}

fn text_or_bytes(
    field: &str,
    text: Option<String>,
    base64: Option<String>,
) -> Result<Option<Bytes>, Failure> {
    match (text, base64) {
        (Some(_), Some(_)) => Err(Failure::invalid(
            field,
            format!("give {field} or {field}_base64, not both"),
        )),
        (Some(text), None) => Ok(Some(text.into())),
        (None, Some(base64)) => decode(&format!("{field}_base64"), &base64).map(Some),
        (None, None) => Ok(None),
    }
}

/// Strict base64.
pub fn decode(field: &str, text: &str) -> Result<Bytes, Failure> {
    let bytes = STANDARD.decode(text);
    bytes
        .map(Bytes::from)
        .map_err(|e| Failure::invalid(field, format!("not padded standard base64: {e}")))
}

/// `[[name, value], …]`, or an object; a value is text, null or `{"base64": …}`.
fn headers(value: &Value) -> Result<Vec<v1::Header>, Failure> {
    match value {
        Value::Null => Ok(Vec::new()),
        Value::Array(pairs) => pairs
            .iter()
            .enumerate()
            .map(|(i, pair)| match pair.as_array().map(Vec::as_slice) {
                Some([Value::String(name), value]) => header(&format!("headers[{i}]"), name, value),
                _ => Err(Failure::invalid(
                    &format!("headers[{i}]"),
                    "must be [name, value]",
                )),
            })
            .collect(),
        Value::Object(map) => map
            .iter()
            .map(|(name, value)| header(&format!("headers.{name}"), name, value))
            .collect(),
        _ => Err(Failure::invalid(
            "headers",
            "must be [[name, value], …] or an object",
        )),
    }
}

fn header(field: &str, name: &str, value: &Value) -> Result<v1::Header, Failure> {
    let value = match value {
        Value::Null => None,
        Value::String(text) => Some(Bytes::from(text.clone())),
        Value::Object(map) if map.len() == 1 => match map.get("base64") {
            Some(Value::String(text)) => Some(decode(field, text)?),
            _ => return Err(bad_header(field)),
        },
        _ => return Err(bad_header(field)),
    };
    Ok(v1::Header {
        name: name.into(),
        value,
    })
}

fn bad_header(field: &str) -> Failure {
    Failure::invalid(field, "a header value is text, null or {\"base64\": text}")
}

/// A record as it is shown.
pub fn shown(record: &v1::FetchedRecord) -> Value {
    let mut object = Map::new();
    object.insert("offset".into(), record.offset.into());
    object.insert("timestamp".into(), record.timestamp_ms.into());
    put(&mut object, "key", record.key.as_ref());
    put(&mut object, "value", record.value.as_ref());
    let headers = record
        .headers
        .iter()
        .map(|h| json!([h.name, header_value(h.value.as_ref())]));
    object.insert("headers".into(), headers.collect());
    object.into()
}

fn put(object: &mut Map<String, Value>, name: &str, bytes: Option<&Bytes>) {
    match bytes.map(|b| std::str::from_utf8(b).map_err(|_| b)) {
        None => object.insert(name.into(), Value::Null),
        Some(Ok(text)) => object.insert(name.into(), text.into()),
        Some(Err(raw)) => object.insert(format!("{name}_base64"), STANDARD.encode(raw).into()),
    };
}

fn header_value(bytes: Option<&Bytes>) -> Value {
    match bytes.map(|b| std::str::from_utf8(b).map_err(|_| b)) {
        None => Value::Null,
        Some(Ok(text)) => text.into(),
        Some(Err(raw)) => json!({ "base64": STANDARD.encode(raw) }),
    }
}
