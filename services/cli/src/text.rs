//! Bytes as JSON text: a string where they are UTF-8, base64 where they are
//! not, null where there are none. The same shapes as on the gateway's HTTP.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Map, Value, json};

/// Sets `name` to text or null, or `name_base64` if the bytes are not UTF-8.
pub fn set_bytes(object: &mut Map<String, Value>, name: &str, bytes: Option<&[u8]>) {
    match bytes.map(std::str::from_utf8) {
        None => object.insert(name.into(), Value::Null),
        Some(Ok(text)) => object.insert(name.into(), text.into()),
        Some(Err(_)) => object.insert(
            format!("{name}_base64"),
            STANDARD.encode(bytes.unwrap_or_default()).into(),
        ),
    };
}

/// `[name, value]`, the value text, null or `{"base64": …}`.
pub fn header(name: &str, value: Option<&[u8]>) -> Value {
    let value = match value.map(std::str::from_utf8) {
        None => Value::Null,
        Some(Ok(text)) => text.into(),
        Some(Err(_)) => json!({ "base64": STANDARD.encode(value.unwrap_or_default()) }),
    };
    json!([name, value])
}

/// A topic, cluster or folder id as lower-case hyphenated text; empty if it is not 16 bytes.
pub fn id(bytes: &[u8]) -> String {
    uuid::Uuid::from_slice(bytes)
        .map(|id| id.hyphenated().to_string())
        .unwrap_or_default()
}

/// A node id; 0, "none", is null.
pub fn node(id: u32) -> Value {
    if id == 0 { Value::Null } else { id.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_base64_and_null_are_told_apart() {
        for (bytes, expected) in [
            (None, json!({"key": null})),
            (Some(&b""[..]), json!({"key": ""})),
            (Some("grün\0\"".as_bytes()), json!({"key": "grün\0\""})),
            (Some(&[0xff, 0xfe][..]), json!({"key_base64": "//4="})),
        ] {
            let mut object = Map::new();
            set_bytes(&mut object, "key", bytes);
            assert_eq!(Value::Object(object), expected);
        }
        assert_eq!(header("h", None), json!(["h", null]));
        assert_eq!(header("h", Some(b"")), json!(["h", ""]));
        assert_eq!(header("", Some(&[0x80])), json!(["", {"base64": "gA=="}]));
    }

    #[test]
    fn ids_are_lower_case_hyphenated() {
        assert_eq!(id(&[0xab; 16]), "abababab-abab-abab-abab-abababababab");
        assert_eq!(id(b""), "");
        assert_eq!((node(0), node(3)), (Value::Null, json!(3)));
    }
}
