//! Which methods exist, from the descriptors that the code is made from.

use prost::Message;
use prost_types::{FileDescriptorProto, FileDescriptorSet};
use std::collections::BTreeSet;

/// All our .proto files.
pub(super) fn files() -> Vec<FileDescriptorProto> {
    FileDescriptorSet::decode(talweg_proto::DESCRIPTORS)
        .map(|set| set.file)
        .unwrap_or_default()
}

/// "/package.Service/Method" of every method of ours and of gRPC's health service.
pub(super) fn paths() -> impl Iterator<Item = String> {
    let ours = files().into_iter().flat_map(|file| {
        let package = file.package().to_owned();
        file.service.into_iter().flat_map(move |service| {
            let name = format!("{package}.{}", service.name());
            let path = move |method: &str| format!("/{name}/{method}");
            let methods = service.method.into_iter();
            methods.map(move |it| path(it.name())).collect::<Vec<_>>()
        })
    });
    let health = ["Check", "Watch"].map(|method| format!("/grpc.health.v1.Health/{method}"));
    ours.chain(health)
}

/// The files that define `services`, with everything they import.
pub(super) fn files_of(services: &[&str]) -> FileDescriptorSet {
    let files = files();
    let mut wanted = BTreeSet::new();
    let defines = |file: &&FileDescriptorProto| {
        let package = file.package();
        let name = |it: &str| format!("{package}.{it}");
        file.service
            .iter()
            .any(|it| services.contains(&name(it.name()).as_str()))
    };
    let mut queue: Vec<_> = files.iter().filter(defines).collect();
    while let Some(file) = queue.pop() {
        if wanted.insert(file.name().to_owned()) {
            let imported =
                |it: &&FileDescriptorProto| file.dependency.iter().any(|d| d == it.name());
            queue.extend(files.iter().filter(imported));
        }
    }
    let file = files.iter().filter(|it| wanted.contains(it.name()));
    FileDescriptorSet {
        file: file.cloned().collect(),
    }
}
