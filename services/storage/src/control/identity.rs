//! Who this node is: its id and its cluster, as a controller gave them, in one
//! small file in the first log folder.
//!
//! The file is replaced as a whole. One that cannot be read stops the start: a
//! node that forgets its id would come back as a stranger without its data.

use serde::{Deserialize, Serialize};
use std::{
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
};
use thiserror::Error;
use uuid::Uuid;

const FILE: &str = ".node";
const VERSION: u32 = 1;

/// Why the file cannot be used.
#[derive(Debug, Error)]
#[error("{path}: {reason}")]
pub struct IdentityError {
    path: String,
    reason: String,
}

/// The node's id and cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Identity {
    pub node_id: u32,
    pub cluster_id: Uuid,
}

/// The file, as JSON.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct IdentityFile {
    version: u32,
    node_id: u32,
    cluster_id: String,
}

impl Identity {
    pub fn new(node_id: u32, cluster_id: Uuid) -> Self {
        Self {
            node_id,
            cluster_id,
        }
    }

    /// None in a folder that no node has used.
    pub fn read(folder: &Path) -> Result<Option<Self>, IdentityError> {
        let path = folder.join(FILE);
        let failed = |reason: String| IdentityError {
            path: path.display().to_string(),
            reason,
        };
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(error.to_string())),
        };
        let file: IdentityFile =
            serde_json::from_slice(&bytes).map_err(|error| failed(error.to_string()))?;
        if file.version != VERSION || file.node_id == 0 {
            return Err(failed(format!(
                "version {} or node id {} is not known",
                file.version, file.node_id
            )));
        }
        let cluster_id =
            Uuid::parse_str(&file.cluster_id).map_err(|error| failed(error.to_string()))?;
        Ok(Some(Self {
            node_id: file.node_id,
            cluster_id,
        }))
    }

    /// Durable on return.
    pub fn write(&self, folder: &Path) -> Result<(), IdentityError> {
        let path = folder.join(FILE);
        self.replace(&path).map_err(|error| IdentityError {
            path: path.display().to_string(),
            reason: error.to_string(),
        })
    }

    fn replace(&self, path: &Path) -> io::Result<()> {
        let staged = PathBuf::from(format!("{}.new", path.display()));
        let mut file = File::create(&staged)?;
        let content = IdentityFile {
            version: VERSION,
            node_id: self.node_id,
            cluster_id: self.cluster_id.to_string(),
        };
        file.write_all(&serde_json::to_vec(&content)?)?;
        file.sync_all()?;
        fs::rename(&staged, path)?;
        match path.parent() {
            Some(folder) => File::open(folder)?.sync_all(),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_is_read_as_written_and_never_guessed() {
        let folder = tempfile::tempdir().expect("folder");
        assert_eq!(Identity::read(folder.path()).expect("none yet"), None);
        let identity = Identity::new(7, Uuid::from_u128(9));
        identity.write(folder.path()).expect("written");
        assert_eq!(Identity::read(folder.path()).expect("read"), Some(identity));
        for bad in [
            "",
            "{",
            r#"{"version":2,"node_id":7,"cluster_id":"00000000-0000-0000-0000-000000000009"}"#,
        ] {
            fs::write(folder.path().join(FILE), bad).expect("write");
            Identity::read(folder.path()).expect_err(bad);
        }
    }
}
