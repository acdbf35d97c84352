//! The wire contract keeps its promises: every element is explained, enums
//! have an UNSPECIFIED zero, each RPC has its own messages, and what is stable
//! never loses or changes a field.

use prost::Message;
use prost_types::{
    DescriptorProto, EnumDescriptorProto, FileDescriptorProto, FileDescriptorSet,
    source_code_info::Location,
};
use std::collections::{BTreeMap, BTreeSet};

/// Files whose content stays backward compatible from the first release on.
const STABLE: &[&str] = &[
    "common",
    "errors",
    "fetch",
    "produce",
    "producers",
    "topics",
];
const BASELINE: &str = include_str!("../contract/v1.txt");

fn files() -> Vec<FileDescriptorProto> {
    FileDescriptorSet::decode(talweg_proto::DESCRIPTORS)
        .expect("descriptors decode")
        .file
}

fn is_stable(file: &FileDescriptorProto) -> bool {
    STABLE
        .iter()
        .any(|name| file.name() == format!("talweg/v1/{name}.proto"))
}

/// Every fact about a file that a deployed client relies on, a line each.
fn facts(file: &FileDescriptorProto) -> BTreeSet<String> {
    let mut lines = BTreeSet::new();
    for message in &file.message_type {
        message_facts(file.package(), message, &mut lines);
    }
    for values in &file.enum_type {
        for value in &values.value {
            lines.insert(format!(
                "enum {}.{} {} = {}",
                file.package(),
                values.name(),
                value.name(),
                value.number()
            ));
        }
    }
    for service in &file.service {
        for method in &service.method {
            lines.insert(format!(
                "rpc {}.{}/{} {}{} -> {}{}",
                file.package(),
                service.name(),
                method.name(),
                if method.client_streaming() {
                    "stream "
                } else {
                    ""
                },
                method.input_type(),
                if method.server_streaming() {
                    "stream "
                } else {
                    ""
                },
                method.output_type(),
            ));
        }
    }
    lines
}

fn message_facts(scope: &str, message: &DescriptorProto, lines: &mut BTreeSet<String>) {
    let name = format!("{scope}.{}", message.name());
    for field in &message.field {
        let oneof = field
            .oneof_index
            .and_then(|i| message.oneof_decl.get(usize::try_from(i).ok()?))
            .map_or("", |oneof| oneof.name());
        lines.insert(format!(
            "field {name} {} = {} {:?} {:?} {} oneof:{oneof}",
            field.name(),
            field.number(),
            field.label(),
            field.r#type(),
            field.type_name(),
        ));
    }
    for nested in &message.nested_type {
        message_facts(&name, nested, lines);
    }
}

/// Lines of the baseline that are no longer true.
fn broken<'a>(baseline: &'a str, now: &BTreeSet<String>) -> Vec<&'a str> {
    baseline
        .lines()
        .filter(|line| !line.is_empty() && !now.contains(*line))
        .collect()
}

#[test]
fn stable_messages_stay_backward_compatible() {
    let now: BTreeSet<String> = files()
        .iter()
        .filter(|f| is_stable(f))
        .flat_map(facts)
        .collect();
    if std::env::var_os("TALWEG_UPDATE_CONTRACT").is_some() {
        let text: String = now.iter().map(|line| format!("{line}\n")).collect();
        std::fs::write(
            format!(
                "{}/contract/v1.txt",
                std::env::var("CARGO_MANIFEST_DIR").expect("run by cargo")
            ),
            text,
        )
        .expect("write");
        return;
    }
    let lost = broken(BASELINE, &now);
    assert!(
        lost.is_empty(),
        "these facts of the released contract changed:\n{}",
        lost.join("\n")
    );
    let unrecorded: Vec<_> = now
        .iter()
        .filter(|line| !BASELINE.lines().any(|b| b == *line))
        .collect();
    assert!(
        unrecorded.is_empty(),
        "new facts, record them with TALWEG_UPDATE_CONTRACT=1: {unrecorded:#?}"
    );
}

#[test]
fn a_renumbered_or_removed_field_is_caught() {
    let mut produce = files()
        .into_iter()
        .find(|f| f.name() == "talweg/v1/produce.proto")
        .expect("produce");
    let record = produce
        .message_type
        .iter_mut()
        .find(|m| m.name() == "Record")
        .expect("Record");
    let value = record
        .field
        .iter_mut()
        .find(|f| f.name() == "value")
        .expect("value");
    value.number = Some(99);
    let lost = broken(
        BASELINE,
        &files()
            .iter()
            .filter(|f| is_stable(f) && f.name() != produce.name())
            .flat_map(facts)
            .chain(facts(&produce))
            .collect(),
    );
    assert_eq!(lost.len(), 1, "{lost:?}");
    assert!(lost[0].contains("Record value = 2"));
}

/// The comments of a file by descriptor path.
fn comments(file: &FileDescriptorProto) -> BTreeMap<Vec<i32>, String> {
    let documented = |location: &Location| {
        let text = location.leading_comments().trim().to_owned();
        (location.path.clone(), text)
    };
    file.source_code_info
        .iter()
        .flat_map(|info| info.location.iter().map(documented))
        .collect()
}

fn require(
    found: &BTreeMap<Vec<i32>, String>,
    path: &[i32],
    what: String,
    missing: &mut Vec<String>,
) {
    if found.get(path).is_none_or(|text| text.len() < 4) {
        missing.push(what);
    }
}

fn index(i: usize) -> i32 {
    i32::try_from(i).expect("small")
}

fn enum_comments(
    found: &BTreeMap<Vec<i32>, String>,
    path: Vec<i32>,
    values: &EnumDescriptorProto,
    missing: &mut Vec<String>,
) {
    require(found, &path, values.name().to_owned(), missing);
    for (v, value) in values.value.iter().enumerate() {
        let path = [path.clone(), vec![2, index(v)]].concat();
        require(
            found,
            &path,
            format!("{}.{}", values.name(), value.name()),
            missing,
        );
    }
}

#[test]
fn every_message_field_enum_value_service_and_rpc_has_its_comment() {
    let mut missing = Vec::new();
    for file in files().iter().filter(|f| f.package().starts_with("talweg")) {
        let found = comments(file);
        for (m, message) in file.message_type.iter().enumerate() {
            require(
                &found,
                &[4, index(m)],
                message.name().to_owned(),
                &mut missing,
            );
            for (f, field) in message.field.iter().enumerate() {
                let what = format!("{}.{}", message.name(), field.name());
                require(&found, &[4, index(m), 2, index(f)], what, &mut missing);
            }
        }
        for (e, values) in file.enum_type.iter().enumerate() {
            enum_comments(&found, vec![5, index(e)], values, &mut missing);
        }
        for (s, service) in file.service.iter().enumerate() {
            require(
                &found,
                &[6, index(s)],
                service.name().to_owned(),
                &mut missing,
            );
            for (r, method) in service.method.iter().enumerate() {
                let what = format!("{}/{}", service.name(), method.name());
                require(&found, &[6, index(s), 2, index(r)], what, &mut missing);
            }
        }
    }
    assert!(missing.is_empty(), "without a comment: {missing:#?}");
}

#[test]
fn zero_is_unspecified_and_each_rpc_has_its_own_messages() {
    let mut used = BTreeMap::new();
    for file in files().iter().filter(|f| f.package().starts_with("talweg")) {
        for values in &file.enum_type {
            let zero = values
                .value
                .iter()
                .find(|v| v.number() == 0)
                .expect("a zero value");
            assert!(zero.name().ends_with("_UNSPECIFIED"), "{}", values.name());
        }
        for service in &file.service {
            for method in &service.method {
                for (kind, suffix) in [
                    (method.input_type(), "Request"),
                    (method.output_type(), "Response"),
                ] {
                    let expected = format!(".{}.{}{suffix}", file.package(), method.name());
                    assert_eq!(kind, expected, "{}/{}", service.name(), method.name());
                    *used.entry(kind.to_owned()).or_insert(0) += 1;
                }
            }
        }
    }
    assert!(used.values().all(|count| *count == 1), "{used:?}");
}

#[test]
fn what_is_not_built_is_marked_unstable() {
    for name in ["transactions"] {
        let files = files();
        let file = files
            .iter()
            .find(|f| f.name() == format!("talweg/v1/{name}.proto"))
            .expect(name);
        let found = comments(file);
        for (m, message) in file.message_type.iter().enumerate() {
            let text = &found[&vec![4, index(m)]];
            assert!(text.starts_with("UNSTABLE"), "{name}: {}", message.name());
        }
    }
}
