//! Blobs of an OCI layout: bytes under the name of their SHA-256.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::Result;
use oci_spec::image::{Descriptor, MediaType, Sha256Digest};
use serde::Serialize;
use sha2::{Digest as _, Sha256};

/// Files of a layout, by their path in it: a folder and an archive are two ways to write them.
pub(super) type Files = BTreeMap<String, Vec<u8>>;

/// Where a layout keeps its blobs (image-layout.md of the OCI image specification).
pub(super) const FOLDER: &str = "blobs/sha256";

/// The SHA-256 of bytes, in hexadecimal.
pub(super) fn sha256(bytes: &[u8]) -> String {
    let mut hex = String::new();
    for byte in Sha256::digest(bytes) {
        let _ = write!(hex, "{byte:02x}");
    }
    hex
}

/// The path of the blob that a descriptor names.
pub(super) fn path(of: &Descriptor) -> String {
    format!("{FOLDER}/{}", of.digest().digest())
}

/// Blobs on their way into a layout.
#[derive(Debug, Clone, Default)]
pub(super) struct Blobs(Files);

impl Blobs {
    /// Takes bytes in and gives what names them.
    pub(super) fn add(&mut self, kind: MediaType, bytes: Vec<u8>) -> Result<Descriptor> {
        let digest: Sha256Digest = sha256(&bytes).parse()?;
        let descriptor = Descriptor::new(kind, bytes.len() as u64, digest);
        self.0.insert(path(&descriptor), bytes);
        Ok(descriptor)
    }

    /// [`Blobs::add`] of a document.
    pub(super) fn add_json(&mut self, kind: MediaType, of: &impl Serialize) -> Result<Descriptor> {
        self.add(kind, json(of)?)
    }

    /// Takes in all of another's.
    pub(super) fn extend(&mut self, other: Blobs) {
        self.0.extend(other.0);
    }

    /// All of them, by path.
    pub(super) fn into_files(self) -> Files {
        self.0
    }
}

/// A document as bytes that are the same each time: the maps of annotations have no order of their
/// own, those of [`serde_json::Value`] are sorted.
pub(super) fn json(of: &impl Serialize) -> Result<Vec<u8>> {
    Ok(serde_json::to_vec(&serde_json::to_value(of)?)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn a_blob_lies_under_its_digest() {
        let mut blobs = Blobs::default();
        let empty = blobs.add(MediaType::EmptyJSON, b"{}".to_vec()).unwrap();
        let hex = "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a";
        assert_eq!(empty.digest().to_string(), format!("sha256:{hex}"));
        assert_eq!(empty.size(), 2);
        let files = blobs.into_files();
        assert_eq!(files[&format!("blobs/sha256/{hex}")], b"{}");
    }

    #[test]
    fn documents_are_the_same_bytes_each_time() {
        // Each map has a seed of its own.
        let document = || -> HashMap<String, u32> { (0..20).map(|n| (n.to_string(), n)).collect() };
        let first = json(&document()).unwrap();
        assert!((0..20).all(|_| json(&document()).unwrap() == first));
    }
}
