//! Binaries of nodes: files, resources and the originals of assets.

use std::time::SystemTime;

use tympan_content::{BlobId, Node, Property, Value};

use crate::response::file_delivery::FileDelivery;
use crate::response::{BlobBody, media_type};

/// The stored binary of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StoredFile {
    /// The name of the requested node.
    pub node_name: String,
    /// The blob with the bytes.
    pub blob: BlobId,
    /// The media type from content, or derived from the name.
    pub media_type: String,
    /// The last modification.
    pub last_modified: Option<SystemTime>,
}

impl StoredFile {
    /// Finds the binary of an `nt:file`, `nt:resource` or `dam:Asset` (its original); `None` for other nodes.
    pub(crate) fn from_node(node: &Node) -> tympan_content::Result<Option<Self>> {
        let holder = match node.primary_type() {
            "nt:file" => node.child("jcr:content")?,
            "dam:Asset" => node.find_descendant("jcr:content/renditions/original/jcr:content")?,
            "nt:resource" | "oak:Resource" => Some(node.clone()),
            _ => None,
        };
        Ok(holder.and_then(|holder| Self::from_resource_node(&holder, node.name())))
    }

    /// Reads the properties of the node that contains the bytes.
    fn from_resource_node(holder: &Node, name: &str) -> Option<Self> {
        let data = holder.property("jcr:data")?;
        let Some(Value::Binary(blob)) = data.first() else {
            return None;
        };
        let extension = name.rsplit_once('.').map_or("", |(_, extension)| extension);
        let guess = || media_type(extension).into_owned();
        let media_type =
            holder.text("jcr:mimeType").filter(|text| !text.is_empty()).unwrap_or_else(guess);
        let last_modified =
            match holder.property("jcr:lastModified").as_ref().and_then(Property::first) {
                Some(Value::Date(date)) => Some(date.to_system_time()),
                _ => None,
            };
        Some(Self { node_name: name.to_owned(), blob: *blob, media_type, last_modified })
    }

    /// Returns the first hexadecimal digits of the hash, which distinguish versions of a file in URLs.
    pub(crate) fn short_hash(&self) -> String {
        short_digest_hex(self.blob.digest())
    }

    /// Returns the blob to send.
    pub(crate) fn to_blob_body(&self) -> BlobBody {
        let etag = format!("\"{:.32}\"", hex::encode(self.blob.digest()));
        BlobBody { id: self.blob, etag, last_modified: self.last_modified }
    }

    /// Returns the media type and headers for sending it.
    pub(crate) fn delivery(&self) -> FileDelivery {
        FileDelivery::new(&self.media_type, &self.node_name)
    }
}

/// Formats the first eight hexadecimal digits of a hash.
pub(crate) fn short_digest_hex(digest: &[u8]) -> String {
    format!("{:.8}", hex::encode(digest))
}
