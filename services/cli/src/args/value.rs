//! Values that options take.

use super::NamedPartition;
use std::str::FromStr;

/// URLs of gateways, at least one; each has a scheme and an authority.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bootstrap(pub Vec<String>);

impl FromStr for Bootstrap {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.split(',')
            .map(|part| url(part.trim()))
            .collect::<Result<_, _>>()
            .map(Self)
    }
}

/// `host:port` is taken for `http://host:port`.
fn url(text: &str) -> Result<String, String> {
    if text.starts_with("https://") {
        return Err("TLS is not built in this version; use http://".into());
    }
    let full = if text.contains("://") {
        text.to_owned()
    } else {
        format!("http://{text}")
    };
    let uri: tonic::transport::Uri = full
        .parse()
        .map_err(|_| format!("{text:?} is not a URL such as http://127.0.0.1:7070"))?;
    if uri.scheme_str() != Some("http") || uri.host().is_none_or(str::is_empty) {
        return Err(format!(
            "{text:?} is not a URL such as http://127.0.0.1:7070"
        ));
    }
    if uri.port_u16().is_none() {
        return Err(format!(
            "{text:?} names no port, such as http://127.0.0.1:7070"
        ));
    }
    if !matches!(uri.path(), "" | "/") || uri.query().is_some() {
        return Err(format!(
            "{text:?} has a path; only scheme, host and port are used"
        ));
    }
    Ok(full.trim_end_matches('/').to_owned())
}

/// `TOPIC:NUMBER`; a topic's name has no colon.
pub fn named_partition(text: &str) -> Result<NamedPartition, String> {
    let parts = text.split_once(':').filter(|(topic, _)| !topic.is_empty());
    let (topic, number) = parts.ok_or_else(|| format!("{text:?} is not TOPIC:NUMBER"))?;
    let partition = number
        .parse()
        .map_err(|_| format!("{number:?} is not the number of a partition"))?;
    Ok(NamedPartition {
        topic: topic.into(),
        partition,
    })
}

/// `name=value`; the name is not empty, the value may be and may hold `=`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    /// Before the first `=`.
    pub name: String,
    /// After it.
    pub value: String,
}

impl FromStr for Pair {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some(("", _)) => Err("the name before '=' is empty".into()),
            Some((name, value)) => Ok(Self {
                name: name.into(),
                value: value.into(),
            }),
            None => Err("must be name=value".into()),
        }
    }
}

/// Text that is not empty.
pub fn not_empty(text: &str) -> Result<String, String> {
    if text.is_empty() {
        Err("must not be empty".into())
    } else {
        Ok(text.into())
    }
}
