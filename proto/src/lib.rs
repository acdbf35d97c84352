//! Generated code for the .proto files beside this crate. What clients see is
//! in [`v1`]; [`controller`], [`storage`] and [`records`] are between our own
//! processes and our own stores.

/// What clients see.
pub mod v1 {
    #![allow(clippy::all, missing_docs)]
    tonic::include_proto!("talweg.v1");
}

/// Between the planes and the controller.
pub mod controller {
    /// The package's first version.
    pub mod v1 {
        #![allow(clippy::all, missing_docs)]
        tonic::include_proto!("talweg.controller.v1");
    }
}

/// Between gateways and coordinators.
pub mod coordinator {
    /// The package's first version.
    pub mod v1 {
        #![allow(clippy::all, missing_docs)]
        tonic::include_proto!("talweg.coordinator.v1");
    }
}

/// Between storage nodes, gateways and coordinators.
pub mod storage {
    /// The package's first version.
    pub mod v1 {
        #![allow(clippy::all, missing_docs)]
        tonic::include_proto!("talweg.storage.v1");
    }
}

/// What we store.
pub mod records {
    /// The package's first version.
    pub mod v1 {
        #![allow(clippy::all, missing_docs)]
        tonic::include_proto!("talweg.records.v1");
    }
}

/// The encoded `FileDescriptorSet` of all of the above, with comments; for
/// gRPC reflection and for the contract tests.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
