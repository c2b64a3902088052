//! Records: the values of the content map. A record is a short header and the body or its hash.
//!
//! The header contains what listings show (type, title, dates), so that listing a folder reads no bodies. Everything in
//! it except the order key is derived from the body. Its fields are decoded only when requested.
//! `docs/formats/document.md` specifies the bytes.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use tympan_store::{ChunkBatch, ChunkId, MapValue, ReadChunks, body as bodies};

use crate::document::body::{self, DocumentBody};
use crate::document::boundary::{is_container, is_own_content};
use crate::document::codec::{
    ByteCursor, write_length_prefixed, write_signed_varint, write_varint,
};
use crate::model::order_key::OrderKey;
use crate::model::subtree::{JCR_CONTENT, PRIMARY_TYPE};
use crate::{JcrDate, NodePath, Property, Subtree, Value};

/// The format version of a record.
const RECORD_VERSION: u8 = 1;
/// The maximum length of an order key, twice what writers produce. Longer keys received from elsewhere are rejected.
const MAX_ORDER_KEY_BYTES: usize = 64;
/// Bodies of at most this many bytes that reference no blob are stored in the record.
const MAX_INLINE_BODY_BYTES: usize = 256;

/// The header of a record: what listings show of a node without reading its body. Each field is decoded when requested.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct NodeSummary {
    /// The primary type and the fields, in their stored form.
    bytes: Bytes,
}

/// One record of the content map.
#[derive(Debug, Clone)]
pub(crate) struct ContentRecord {
    pub(crate) order_key: OrderKey,
    pub(crate) summary: NodeSummary,
    pub(crate) body: RecordBody,
}

/// The location of a record's body.
#[derive(Debug, Clone)]
pub(crate) enum RecordBody {
    /// In the record itself.
    Inline(Bytes),
    /// In the chunk store.
    Stored(ChunkId),
    /// In memory, in a session that is not committed yet.
    Pending(Arc<DocumentBody>),
}

impl RecordBody {
    /// Writes the body if it is not stored yet. Returns its bytes if they are stored inline in the referring entry,
    /// otherwise its hash.
    ///
    /// # Errors
    /// If the body exceeds what the store can hold.
    pub(crate) fn write_to_batch(
        &self,
        batch: &mut ChunkBatch,
    ) -> tympan_store::Result<(Option<&Bytes>, Option<ChunkId>)> {
        Ok(match self {
            Self::Inline(bytes) => (Some(bytes), None),
            Self::Stored(id) => (None, Some(*id)),
            Self::Pending(body)
                if body.bytes().len() <= MAX_INLINE_BODY_BYTES && body.blobs().is_empty() =>
            {
                (Some(body.bytes()), None)
            }
            Self::Pending(body) => {
                (None, Some(bodies::write_body(batch, body.bytes(), body.blobs())?))
            }
        })
    }
}

impl ContentRecord {
    /// Creates the record of a document from its own tree (for a container: without the children that have records).
    ///
    /// Returns `None` if the tree is deeper than bodies may be.
    pub(crate) fn from_subtree(tree: &Subtree, order: OrderKey) -> Option<Self> {
        let (bytes, blobs) = body::encode_body(tree);
        let body = DocumentBody::open(bytes.into(), blobs)?;
        Some(Self {
            order_key: order,
            summary: summarize_subtree(tree),
            body: RecordBody::Pending(Arc::new(body)),
        })
    }

    /// Encodes the record, and writes its body to the batch if that is too long to be inline.
    ///
    /// # Errors
    /// If the body exceeds what the store can hold.
    pub(crate) fn encode(&self, batch: &mut ChunkBatch) -> tympan_store::Result<MapValue> {
        let (inline, stored) = self.body.write_to_batch(batch)?;
        let mut out = vec![RECORD_VERSION, u8::from(inline.is_some())];
        write_length_prefixed(&mut out, &self.order_key.0);
        out.extend_from_slice(&self.summary.bytes);
        if let Some(bytes) = inline {
            out.extend_from_slice(bytes);
        }
        Ok(MapValue { bytes: out.into(), body: stored })
    }

    /// Decodes a stored record. Parses the header only as far as needed to find its parts; returns `None` if these are
    /// malformed.
    pub(crate) fn decode(stored: &MapValue) -> Option<Self> {
        let mut cursor = ByteCursor::new(&stored.bytes, 0);
        if cursor.read_byte()? != RECORD_VERSION {
            return None;
        }
        let is_inline = cursor.read_byte()? != 0;
        let order = OrderKey(stored.bytes.slice_ref(cursor.read_prefixed_bytes()?));
        let start = cursor.offset();
        cursor.read_prefixed_text()?;
        let (end, body) = match stored.body {
            Some(id) if !is_inline => (stored.bytes.len(), RecordBody::Stored(id)),
            None if is_inline => {
                for _ in 0..cursor.read_varint()? {
                    cursor.read_byte()?;
                    cursor.read_prefixed_bytes()?;
                }
                (cursor.offset(), RecordBody::Inline(stored.bytes.slice(cursor.offset()..)))
            }
            _ => return None,
        };
        Some(Self {
            order_key: order,
            summary: NodeSummary { bytes: stored.bytes.slice(start..end) },
            body,
        })
    }

    /// Decodes a record from an external source; returns `None` unless every byte of its header is valid.
    pub(crate) fn decode_strict(stored: &MapValue) -> Option<Self> {
        let record = Self::decode(stored)?;
        let is_sound = record.order_key.0.len() <= MAX_ORDER_KEY_BYTES
            && record.summary.validate_header().is_some();
        is_sound.then_some(record)
    }

    /// Returns the hash of the body; `None` while it is pending.
    pub(crate) fn body_id(&self) -> Option<ChunkId> {
        match &self.body {
            RecordBody::Stored(id) => Some(*id),
            RecordBody::Inline(bytes) => Some(ChunkId::hash_of(bytes)),
            RecordBody::Pending(_) => None,
        }
    }

    /// Reads the body from the store, or from the record itself. The inner `None` means that the bytes are malformed.
    ///
    /// # Errors
    /// If the store fails.
    pub(crate) fn read_body(
        &self,
        chunks: &dyn ReadChunks,
    ) -> tympan_store::Result<Option<Arc<DocumentBody>>> {
        Ok(match &self.body {
            RecordBody::Pending(body) => Some(body.clone()),
            RecordBody::Inline(bytes) => {
                DocumentBody::open(bytes.clone(), Vec::new()).map(Arc::new)
            }
            RecordBody::Stored(id) => {
                let stored = bodies::read_body(chunks, id)?;
                DocumentBody::open(stored.payload, stored.blobs).map(Arc::new)
            }
        })
    }
}

/// The tags of the header's fields.
mod field_tag {
    pub(super) const TITLE: u8 = 1;
    pub(super) const RESOURCE_TYPE: u8 = 2;
    pub(super) const TEMPLATE: u8 = 3;
    pub(super) const MODIFIED: u8 = 4;
    pub(super) const MODIFIED_BY: u8 = 5;
    pub(super) const ACTIVATED: u8 = 6;
    pub(super) const ACTIVATION: u8 = 7;
    pub(super) const HIDE_IN_NAV: u8 = 8;
}

impl NodeSummary {
    /// Returns the primary type.
    #[must_use]
    pub fn primary_type(&self) -> &str {
        ByteCursor::new(&self.bytes, 0).read_prefixed_text().unwrap_or_default()
    }

    /// Returns `jcr:title` of the content.
    #[must_use]
    pub fn title(&self) -> Option<&str> {
        self.text_field(field_tag::TITLE)
    }

    /// Returns `sling:resourceType` of the content.
    #[must_use]
    pub fn resource_type(&self) -> Option<&str> {
        self.text_field(field_tag::RESOURCE_TYPE)
    }

    /// Returns `cq:template` of the content.
    #[must_use]
    pub fn template(&self) -> Option<&str> {
        self.text_field(field_tag::TEMPLATE)
    }

    /// Returns `cq:lastModified`, else `jcr:lastModified`.
    #[must_use]
    pub fn last_modified(&self) -> Option<JcrDate> {
        decode_date(self.field(field_tag::MODIFIED)?)
    }

    /// Returns `cq:lastModifiedBy`, else `jcr:lastModifiedBy`.
    #[must_use]
    pub fn last_modified_by(&self) -> Option<&str> {
        self.text_field(field_tag::MODIFIED_BY)
    }

    /// Returns `cq:lastReplicated`.
    #[must_use]
    pub fn activation_date(&self) -> Option<JcrDate> {
        decode_date(self.field(field_tag::ACTIVATED)?)
    }

    /// Returns `cq:lastReplicationAction`: `Activate` or `Deactivate`.
    #[must_use]
    pub fn activation_action(&self) -> Option<&str> {
        self.text_field(field_tag::ACTIVATION)
    }

    /// Returns true if the last replication action of the document was an activation, so that visitors have it.
    #[must_use]
    pub fn is_activated(&self) -> bool {
        self.activation_action() == Some("Activate")
    }

    /// Returns true if `hideInNav` is set.
    #[must_use]
    pub fn is_hidden_in_nav(&self) -> bool {
        self.field(field_tag::HIDE_IN_NAV).is_some()
    }

    fn text_field(&self, tag_number: u8) -> Option<&str> {
        std::str::from_utf8(self.field(tag_number)?).ok()
    }

    fn field(&self, field_tag: u8) -> Option<&[u8]> {
        self.fields()?.find(|(tag, _)| *tag == field_tag).map(|(_, bytes)| bytes)
    }

    fn fields(&self) -> Option<impl Iterator<Item = (u8, &[u8])>> {
        let mut cursor = ByteCursor::new(&self.bytes, 0);
        cursor.read_prefixed_bytes()?;
        let count = cursor.read_varint()?;
        Some(
            (0..count)
                .map_while(move |_| Some((cursor.read_byte()?, cursor.read_prefixed_bytes()?))),
        )
    }

    /// Decodes everything; returns `None` if any byte is malformed.
    fn validate_header(&self) -> Option<()> {
        let mut cursor = ByteCursor::new(&self.bytes, 0);
        cursor.read_prefixed_text()?;
        for _ in 0..cursor.read_varint()? {
            let (tag, bytes) = (cursor.read_byte()?, cursor.read_prefixed_bytes()?);
            match tag {
                field_tag::TITLE
                | field_tag::RESOURCE_TYPE
                | field_tag::TEMPLATE
                | field_tag::MODIFIED_BY
                | field_tag::ACTIVATION => _ = std::str::from_utf8(bytes).ok()?,
                field_tag::MODIFIED | field_tag::ACTIVATED => _ = decode_date(bytes)?,
                field_tag::HIDE_IN_NAV => {}
                _ => return None,
            }
        }
        cursor.is_at_end().then_some(())
    }
}

impl fmt::Debug for NodeSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeSummary")
            .field("primary_type", &self.primary_type())
            .field("title", &self.title())
            .finish_non_exhaustive()
    }
}

fn decode_date(bytes: &[u8]) -> Option<JcrDate> {
    let mut cursor = ByteCursor::new(bytes, 0);
    let millis = cursor.read_signed_varint()?;
    Some(JcrDate { millis, offset_minutes: i16::try_from(cursor.read_signed_varint()?).ok()? })
}

/// Returns true if the tree is the `jcr:content` of a document, which provides what listings show, and not the
/// document's own node.
pub(crate) fn has_described_content(tree: &Subtree) -> bool {
    tree.child(JCR_CONTENT).is_some()
        && (is_own_content(tree.primary_type(), JCR_CONTENT) || tree.text("jcr:title").is_none())
}

/// Derives the header from a document's tree.
pub(crate) fn summarize_subtree(tree: &Subtree) -> NodeSummary {
    let content = match tree.child(JCR_CONTENT) {
        Some(content) if has_described_content(tree) => content,
        _ => tree,
    };
    let date = |name: &str| match content.properties.get(name) {
        Some(Property::Single(Value::Date(date))) => Some(*date),
        _ => None,
    };
    let hide_in_nav = match content.properties.get("hideInNav").and_then(Property::first) {
        Some(Value::Boolean(truth)) => *truth,
        Some(value) => value.to_text() == "true",
        None => false,
    };
    let modified_by = content.text("cq:lastModifiedBy").or(content.text("jcr:lastModifiedBy"));
    let texts = [
        (field_tag::TITLE, content.text("jcr:title")),
        (field_tag::RESOURCE_TYPE, content.text("sling:resourceType")),
        (field_tag::TEMPLATE, content.text("cq:template")),
        (field_tag::MODIFIED_BY, modified_by),
        (field_tag::ACTIVATION, content.text("cq:lastReplicationAction")),
    ];
    let dates = [
        (field_tag::MODIFIED, date("cq:lastModified").or(date("jcr:lastModified"))),
        (field_tag::ACTIVATED, date("cq:lastReplicated")),
    ];
    let mut fields = Vec::new();
    let mut count = 0;
    let mut put = |tag: u8, bytes: &[u8]| {
        fields.push(tag);
        write_length_prefixed(&mut fields, bytes);
        count += 1;
    };
    for (tag, text) in texts.into_iter().filter_map(|(tag, text)| Some((tag, text?))) {
        put(tag, text.as_bytes());
    }
    for (tag, date) in dates.into_iter().filter_map(|(tag, date)| Some((tag, date?))) {
        let mut bytes = Vec::new();
        write_signed_varint(&mut bytes, date.millis);
        write_signed_varint(&mut bytes, i64::from(date.offset_minutes));
        put(tag, &bytes);
    }
    if hide_in_nav {
        put(field_tag::HIDE_IN_NAV, &[]);
    }
    let mut bytes = Vec::with_capacity(fields.len() + 32);
    write_length_prefixed(
        &mut bytes,
        tree.text(PRIMARY_TYPE).unwrap_or("nt:unstructured").as_bytes(),
    );
    write_varint(&mut bytes, count);
    bytes.extend_from_slice(&fields);
    NodeSummary { bytes: bytes.into() }
}

/// Returns true if a record is a folder or page, whose children may have records of their own.
pub(crate) fn is_container_record(path: &NodePath, record: Option<&ContentRecord>) -> bool {
    record.is_some_and(|record| is_container(path.name(), record.summary.primary_type()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page() -> Subtree {
        let content = Subtree::new(JCR_CONTENT, "cq:PageContent")
            .with_property("jcr:title", "Title")
            .with_property("sling:resourceType", "site/page")
            .with_property("cq:lastModifiedBy", "ann")
            .with_property(
                "cq:lastModified",
                Value::Date(JcrDate { millis: -7, offset_minutes: 60 }),
            )
            .with_property("hideInNav", Value::Boolean(true));
        Subtree::new("page", "cq:Page").with_child(content)
    }

    #[test]
    fn a_header_reads_back_field_by_field() {
        let record = ContentRecord::from_subtree(&page(), OrderKey::first()).unwrap();
        let stored = record.encode(&mut ChunkBatch::new()).unwrap();
        let read = ContentRecord::decode_strict(&stored).unwrap();
        let summary = &read.summary;
        assert_eq!((summary, &read.order_key), (&record.summary, &OrderKey::first()));
        assert_eq!(summary.primary_type(), "cq:Page");
        assert_eq!((summary.title(), summary.template()), (Some("Title"), None));
        assert_eq!(summary.last_modified(), Some(JcrDate { millis: -7, offset_minutes: 60 }));
        assert_eq!((summary.last_modified_by(), summary.activation_action()), (Some("ann"), None));
        assert!(summary.is_hidden_in_nav() && summary.activation_date().is_none());
        assert_eq!(NodeSummary::default().title(), None);
    }

    #[test]
    fn records_from_elsewhere_are_checked_whole() {
        let page =
            page().with_property("text", "too long to stay in the record ".repeat(20).as_str());
        let stored = ContentRecord::from_subtree(&page, OrderKey::first())
            .unwrap()
            .encode(&mut ChunkBatch::new());
        let stored = stored.unwrap();
        for at in 0..stored.bytes.len() {
            let mut cut = stored.clone();
            cut.bytes.truncate(at);
            assert!(ContentRecord::decode_strict(&cut).is_none(), "cut at {at}");
        }
        let mut more = stored.bytes.to_vec();
        more.push(0);
        let more = MapValue { bytes: more.into(), body: stored.body };
        assert!(
            ContentRecord::decode_strict(&stored).is_some()
                && ContentRecord::decode_strict(&more).is_none()
        );
    }
}
