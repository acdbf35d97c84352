//! Compiles the .proto files without protoc.

use prost::Message;
use std::{env, fs, path::PathBuf};

fn protos(folder: &str, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("proto folder") {
        let path = entry.expect("proto entry").path();
        if path.is_dir() {
            protos(path.to_str().expect("utf-8"), found);
        } else if path.extension().is_some_and(|e| e == "proto") {
            found.push(path);
        }
    }
}

fn main() {
    println!("cargo:rerun-if-changed=talweg");
    let mut files = Vec::new();
    protos("talweg", &mut files);
    files.sort();
    let descriptors = protox::compile(&files, ["."]).unwrap_or_else(|e| panic!("{e:?}"));
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("OUT_DIR"));
    fs::write(out.join("descriptors.bin"), descriptors.encode_to_vec()).expect("write descriptors");
    let mut config = tonic_prost_build::Config::new();
    config.bytes(["."]);
    tonic_prost_build::configure()
        .compile_fds_with_config(descriptors, config)
        .expect("generate code");
}
