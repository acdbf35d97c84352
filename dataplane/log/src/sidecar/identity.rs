//! The folder's own files: `folder` (its id), `running` and `clean` (how the
//! last process ended).

use super::{
    Sidecar, SidecarError,
    wire::{Input, Output},
};
use talweg_types::{FolderId, Incarnation};

/// `folder`: written once, when the folder is first used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FolderFile {
    pub id: FolderId,
}

impl Sidecar for FolderFile {
    const KIND: u8 = 1;
    const VERSION: u8 = 1;

    fn encode_body(&self, out: &mut Vec<u8>) {
        out.put(self.id.as_bytes());
    }

    fn decode_body(_version: u8, body: &[u8]) -> Result<Self, SidecarError> {
        let mut input = Input(body);
        let id = FolderId::from_slice(input.bytes(16)?).ok_or(SidecarError::Malformed("id"))?;
        input.end()?;
        Ok(Self { id })
    }
}

/// `running` or `clean`: which boot, which mount, whose life.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MarkerFile {
    pub boot_id: String,
    pub mount_id: String,
    pub incarnation: Incarnation,
}

impl Sidecar for MarkerFile {
    const KIND: u8 = 2;
    const VERSION: u8 = 1;

    fn encode_body(&self, out: &mut Vec<u8>) {
        for text in [&self.boot_id, &self.mount_id] {
            out.put_count(text.len());
            out.put(text.as_bytes());
        }
        out.put_u64(self.incarnation.0);
    }

    fn decode_body(_version: u8, body: &[u8]) -> Result<Self, SidecarError> {
        let mut input = Input(body);
        let boot_id = text(&mut input)?;
        let mount_id = text(&mut input)?;
        let incarnation = Incarnation(input.u64()?);
        input.end()?;
        Ok(Self {
            boot_id,
            mount_id,
            incarnation,
        })
    }
}

fn text(input: &mut Input<'_>) -> Result<String, SidecarError> {
    let count = input.count(1)?;
    let bytes = input.bytes(count)?;
    String::from_utf8(bytes.to_vec()).map_err(|_| SidecarError::Malformed("text is not UTF-8"))
}
