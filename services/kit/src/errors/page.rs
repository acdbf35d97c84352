//! `docs/formats/errors.md` against the table, and the table against what the
//! .proto file promises in its comments.

use super::{ErrorCode, all_codes, json::effect_name, name, row};
use prost::Message;
use prost_types::FileDescriptorSet;
use std::{collections::BTreeMap, fmt::Write, fs, path::PathBuf};
use talweg_proto::v1::Effect;

/// The comment of each code in errors.proto, by number, on one line.
fn comments() -> BTreeMap<i32, String> {
    let set = FileDescriptorSet::decode(talweg_proto::DESCRIPTORS).expect("descriptors");
    let file = set
        .file
        .iter()
        .find(|it| it.name() == "talweg/v1/errors.proto");
    let file = file.expect("errors.proto");
    let at = file
        .enum_type
        .iter()
        .position(|it| it.name() == "ErrorCode");
    let at = at.expect("ErrorCode");
    let values = &file.enum_type[at].value;
    let locations = &file.source_code_info.as_ref().expect("comments").location;
    let comment = |index: usize| {
        // FileDescriptorProto.enum_type = 5, EnumDescriptorProto.value = 2.
        let path = [5, at as i32, 2, index as i32];
        let location = locations
            .iter()
            .find(|it| it.path == path)
            .expect("location");
        let words = location.leading_comments().split_whitespace();
        words.collect::<Vec<_>>().join(" ")
    };
    let numbers = values.iter().map(|value| value.number());
    numbers
        .enumerate()
        .map(|(index, number)| (number, comment(index)))
        .collect()
}

fn table() -> String {
    let comments = comments();
    let mut text = String::from(
        "| code | number | gRPC | HTTP | retry | effect | meaning |\n\
         | --- | --- | --- | --- | --- | --- | --- |\n",
    );
    for code in all_codes() {
        let row = row(code);
        let grpc = screaming(&format!("{:?}", row.grpc));
        let retry = if row.retriable { "yes" } else { "no" };
        let effect = effect_name(row.effect).replace('_', " ");
        let (number, http) = (code as i32, row.http);
        let meaning = &comments[&number];
        let name = name(code);
        writeln!(
            text,
            "| {name} | {number} | {grpc} | {http} | {retry} | {effect} | {meaning} |"
        )
        .expect("a String");
    }
    text
}

/// "FailedPrecondition" -> "FAILED_PRECONDITION".
fn screaming(camel: &str) -> String {
    let mut text = String::new();
    for letter in camel.chars() {
        if letter.is_uppercase() && !text.is_empty() {
            text.push('_');
        }
        text.push(letter.to_ascii_uppercase());
    }
    text
}

const BEGIN: &str = "<!-- table: begin -->\n";
const END: &str = "<!-- table: end -->\n";

/// The page lists what the code does. `UPDATE_DOCS=1` rewrites its table.
#[test]
fn the_page_is_the_table() {
    let here = std::env::var_os("CARGO_MANIFEST_DIR").expect("run by cargo");
    let path = PathBuf::from(here).join("../../docs/formats/errors.md");
    let page = fs::read_to_string(&path).expect("docs/formats/errors.md");
    let (before, rest) = page.split_once(BEGIN).expect("begin mark");
    let (listed, after) = rest.split_once(END).expect("end mark");
    let table = table();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&path, format!("{before}{BEGIN}{table}{END}{after}")).expect("rewrite");
    } else {
        assert_eq!(
            listed, table,
            "UPDATE_DOCS=1 cargo test -p talweg-kit rewrites it"
        );
    }
}

/// What the contract says in words about effect and retry is what the table does.
#[test]
fn the_table_keeps_what_the_contract_promises() {
    let comments = comments();
    for code in all_codes() {
        let (row, said) = (row(code), &comments[&(code as i32)]);
        let name = name(code);
        if said.contains("Not done") {
            assert_eq!(row.effect, Effect::NotDone, "{name}: {said}");
        }
        if said.contains("Unknown;") || said.ends_with("Unknown.") || said.contains("may have") {
            assert_eq!(row.effect, Effect::Unknown, "{name}: {said}");
        }
        if said.contains("Not done, retry") || said.contains(": retry after") {
            assert!(row.retriable, "{name}: {said}");
        }
        if said.contains("final") || said.contains("pointless") {
            assert!(!row.retriable, "{name}: {said}");
        }
    }
}

/// A code without a row does not compile; this finds one that nothing can send.
#[test]
fn every_code_of_the_contract_is_in_the_table() {
    let listed: Vec<i32> = all_codes().map(|code| code as i32).collect();
    let defined: Vec<i32> = comments()
        .into_keys()
        .filter(|number| *number != 0)
        .collect();
    assert_eq!(listed, defined);
    assert!(all_codes().all(|code| code != ErrorCode::Unspecified));
}
