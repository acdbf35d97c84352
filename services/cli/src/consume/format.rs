//! Records as lines.

use crate::{
    args::{ConsumeArgs, Format},
    text,
};
use serde_json::{Map, Value};
use talweg_proto::v1;

/// How records are printed; see the options of the same names.
#[derive(Clone, Debug)]
pub struct RecordFormat {
    format: Format,
    separator: Vec<u8>,
    null: Vec<u8>,
}

impl RecordFormat {
    /// As the options say.
    pub fn new(args: &ConsumeArgs) -> Self {
        Self {
            format: args.format,
            separator: args.key_separator.clone().into_bytes(),
            null: args.null.clone().into_bytes(),
        }
    }

    /// Appends the record and a line feed. Bytes of keys and values pass as they are, except in JSON.
    pub fn write(&self, partition: u32, record: &v1::FetchedRecord, line: &mut Vec<u8>) {
        match self.format {
            Format::Json => line.extend_from_slice(json(partition, record).to_string().as_bytes()),
            Format::Value => line.extend_from_slice(self.or_null(record.value.as_deref())),
            Format::KeyValue => {
                line.extend_from_slice(self.or_null(record.key.as_deref()));
                line.extend_from_slice(&self.separator);
                line.extend_from_slice(self.or_null(record.value.as_deref()));
            }
        }
        line.push(b'\n');
    }

    fn or_null<'a>(&'a self, bytes: Option<&'a [u8]>) -> &'a [u8] {
        bytes.unwrap_or(&self.null)
    }
}

/// `{"partition","offset","timestamp","key","value","headers"}`.
fn json(partition: u32, record: &v1::FetchedRecord) -> Value {
    let mut object = Map::new();
    object.insert("partition".into(), partition.into());
    object.insert("offset".into(), record.offset.into());
    object.insert("timestamp".into(), record.timestamp_ms.into());
    text::set_bytes(&mut object, "key", record.key.as_deref());
    text::set_bytes(&mut object, "value", record.value.as_deref());
    let headers: Vec<Value> = record
        .headers
        .iter()
        .map(|h| text::header(&h.name, h.value.as_deref()))
        .collect();
    object.insert("headers".into(), headers.into());
    object.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn record(key: Option<&'static [u8]>, value: Option<&'static [u8]>) -> v1::FetchedRecord {
        v1::FetchedRecord {
            offset: 5,
            timestamp_ms: -1,
            key: key.map(Into::into),
            value: value.map(Into::into),
            headers: vec![],
            leader_epoch: 0,
        }
    }

    fn line(format: Format, record: &v1::FetchedRecord) -> Vec<u8> {
        let format = RecordFormat {
            format,
            separator: b"|".to_vec(),
            null: b"NULL".to_vec(),
        };
        let mut line = Vec::new();
        format.write(3, record, &mut line);
        line
    }

    #[test]
    fn json_has_the_shape_that_scripts_depend_on() {
        let mut with_headers = record(None, Some(b""));
        let header = |name: &str, value: Option<&'static [u8]>| v1::Header {
            name: name.into(),
            value: value.map(Into::into),
        };
        with_headers.headers = vec![
            header("h", Some(b"v")),
            header("h", None),
            header("b", Some(b"\xff")),
        ];
        let parsed: Value =
            serde_json::from_slice(&line(Format::Json, &with_headers)).expect("JSON");
        assert_eq!(
            parsed,
            json!({"partition": 3, "offset": 5, "timestamp": -1, "key": null, "value": "",
                   "headers": [["h", "v"], ["h", null], ["b", {"base64": "/w=="}]]})
        );
    }

    #[test]
    fn bytes_that_are_not_text_are_base64_under_another_name() {
        let parsed: Value =
            serde_json::from_slice(&line(Format::Json, &record(Some(b"\xff"), Some(b"\xfe\n"))))
                .expect("JSON");
        assert_eq!(parsed["key_base64"], "/w==");
        assert_eq!(parsed["value_base64"], "/go=");
        assert!(parsed.get("key").is_none() && parsed.get("value").is_none());
    }

    #[test]
    fn text_formats_pass_bytes_and_name_null() {
        for (format, key, value, expected) in [
            (Format::Value, None, Some(&b"\xff\r"[..]), &b"\xff\r\n"[..]),
            (Format::Value, None, None, b"NULL\n"),
            (Format::Value, None, Some(b""), b"\n"),
            (Format::KeyValue, Some(&b"k"[..]), Some(b"v"), b"k|v\n"),
            (Format::KeyValue, None, Some(b"v"), b"NULL|v\n"),
            (Format::KeyValue, Some(b""), None, b"|NULL\n"),
        ] {
            assert_eq!(line(format, &record(key, value)), expected);
        }
    }
}
