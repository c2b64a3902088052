//! Records: what one key of the content map holds, a short header and the body or its hash.
//!
//! The header carries what listings show (type, title, dates), so that listing a folder reads no bodies. All of it is
//! derived from the body, but for the order key. Its fields stay as they are stored until they are asked for. `docs/formats/document.md` gives the bytes.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use tympan_store::{Batch, ChunkId, ReadChunks, Value as Stored, body as bodies};

use crate::body::{self, Body};
use crate::boundary::is_own_content;
use crate::codec::{Cursor, put_bytes, put_number, put_signed};
use crate::order::OrderKey;
use crate::subtree::{JCR_CONTENT, PRIMARY_TYPE};
use crate::{Date, Property, Subtree, Value};

/// The version of the record's bytes.
const VERSION: u8 = 1;
/// Order keys that came from elsewhere are refused above this, twice what writers make.
const MAX_ORDER_BYTES: usize = 64;
/// Bodies up to this many bytes that name no blob stay in the record.
const INLINE_BYTES: usize = 256;

/// What listings show of a node without its body being read: the record's header, each field decoded when it is asked
/// for.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Summary {
    /// The primary type and the fields, as the record holds them.
    bytes: Bytes,
}

/// One record of the content map.
#[derive(Debug, Clone)]
pub(crate) struct Record {
    pub(crate) order: OrderKey,
    pub(crate) summary: Summary,
    pub(crate) body: BodyPlace,
}

/// Where a record's body is.
#[derive(Debug, Clone)]
pub(crate) enum BodyPlace {
    /// In the record itself.
    Inline(Bytes),
    /// In the chunk store.
    Stored(ChunkId),
    /// In memory, of a session that has not committed yet.
    Pending(Arc<Body>),
}

impl BodyPlace {
    /// Writes the body if it is not stored yet: gives its bytes if they stay in what refers to it, else its hash.
    ///
    /// # Errors
    /// If the body exceeds what the store can hold.
    pub(crate) fn store(
        &self,
        batch: &mut Batch,
    ) -> tympan_store::Result<(Option<&Bytes>, Option<ChunkId>)> {
        Ok(match self {
            Self::Inline(bytes) => (Some(bytes), None),
            Self::Stored(id) => (None, Some(*id)),
            Self::Pending(body)
                if body.bytes().len() <= INLINE_BYTES && body.blobs().is_empty() =>
            {
                (Some(body.bytes()), None)
            }
            Self::Pending(body) => (None, Some(bodies::write(batch, body.bytes(), body.blobs())?)),
        })
    }
}

impl Record {
    /// Makes the record of a document from its own tree (for a container: without its records' children).
    ///
    /// Gives nothing if the tree is deeper than bodies may be.
    pub(crate) fn of(tree: &Subtree, order: OrderKey) -> Option<Self> {
        let (bytes, blobs) = body::encode(tree);
        let body = Body::open(bytes.into(), blobs)?;
        Some(Self { order, summary: summary_of(tree), body: BodyPlace::Pending(Arc::new(body)) })
    }

    /// Writes the record, and its body beside it if that is too long to stay inside.
    ///
    /// # Errors
    /// If the body exceeds what the store can hold.
    pub(crate) fn encode(&self, batch: &mut Batch) -> tympan_store::Result<Stored> {
        let (inline, stored) = self.body.store(batch)?;
        let mut out = vec![VERSION, u8::from(inline.is_some())];
        put_bytes(&mut out, &self.order.0);
        out.extend_from_slice(&self.summary.bytes);
        if let Some(bytes) = inline {
            out.extend_from_slice(bytes);
        }
        Ok(Stored { bytes: out.into(), body: stored })
    }

    /// Reads a stored record, its header no further than is needed to find the parts; nothing if these make no sense.
    pub(crate) fn decode(stored: &Stored) -> Option<Self> {
        let mut cursor = Cursor::new(&stored.bytes, 0);
        if cursor.byte()? != VERSION {
            return None;
        }
        let is_inline = cursor.byte()? != 0;
        let order = OrderKey(stored.bytes.slice_ref(cursor.bytes()?));
        let start = cursor.at();
        cursor.text()?;
        let (end, body) = match stored.body {
            Some(id) if !is_inline => (stored.bytes.len(), BodyPlace::Stored(id)),
            None if is_inline => {
                for _ in 0..cursor.number()? {
                    cursor.byte()?;
                    cursor.bytes()?;
                }
                (cursor.at(), BodyPlace::Inline(stored.bytes.slice(cursor.at()..)))
            }
            _ => return None,
        };
        Some(Self { order, summary: Summary { bytes: stored.bytes.slice(start..end) }, body })
    }

    /// Reads a record that came from elsewhere; nothing unless every byte of its header makes sense.
    pub(crate) fn decode_whole(stored: &Stored) -> Option<Self> {
        let record = Self::decode(stored)?;
        let is_sound = record.order.0.len() <= MAX_ORDER_BYTES && record.summary.check().is_some();
        is_sound.then_some(record)
    }

    /// Returns a hash of the body; nothing while it is pending.
    pub(crate) fn body_id(&self) -> Option<ChunkId> {
        match &self.body {
            BodyPlace::Stored(id) => Some(*id),
            BodyPlace::Inline(bytes) => Some(ChunkId::of(bytes)),
            BodyPlace::Pending(_) => None,
        }
    }

    /// Reads the body from the store, or from the record itself.
    ///
    /// # Errors
    /// If the store fails; the inner nothing means that the bytes make no sense.
    pub(crate) fn read_body(
        &self,
        chunks: &dyn ReadChunks,
    ) -> tympan_store::Result<Option<Arc<Body>>> {
        Ok(match &self.body {
            BodyPlace::Pending(body) => Some(body.clone()),
            BodyPlace::Inline(bytes) => Body::open(bytes.clone(), Vec::new()).map(Arc::new),
            BodyPlace::Stored(id) => {
                let stored = bodies::read(chunks, id)?;
                Body::open(stored.payload, stored.blobs).map(Arc::new)
            }
        })
    }
}

/// The tags of the header's fields.
mod tag {
    pub(super) const TITLE: u8 = 1;
    pub(super) const RESOURCE_TYPE: u8 = 2;
    pub(super) const TEMPLATE: u8 = 3;
    pub(super) const MODIFIED: u8 = 4;
    pub(super) const MODIFIED_BY: u8 = 5;
    pub(super) const ACTIVATED: u8 = 6;
    pub(super) const ACTIVATION: u8 = 7;
    pub(super) const HIDE_IN_NAV: u8 = 8;
}

impl Summary {
    /// Returns the primary type.
    #[must_use]
    pub fn primary_type(&self) -> &str {
        Cursor::new(&self.bytes, 0).text().unwrap_or_default()
    }

    /// Returns `jcr:title` of the content.
    #[must_use]
    pub fn title(&self) -> Option<&str> {
        self.text(tag::TITLE)
    }

    /// Returns `sling:resourceType` of the content.
    #[must_use]
    pub fn resource_type(&self) -> Option<&str> {
        self.text(tag::RESOURCE_TYPE)
    }

    /// Returns `cq:template` of the content.
    #[must_use]
    pub fn template(&self) -> Option<&str> {
        self.text(tag::TEMPLATE)
    }

    /// Returns `cq:lastModified`, else `jcr:lastModified`.
    #[must_use]
    pub fn modified(&self) -> Option<Date> {
        date(self.field(tag::MODIFIED)?)
    }

    /// Returns `cq:lastModifiedBy`, else `jcr:lastModifiedBy`.
    #[must_use]
    pub fn modified_by(&self) -> Option<&str> {
        self.text(tag::MODIFIED_BY)
    }

    /// Returns `cq:lastReplicated`.
    #[must_use]
    pub fn activated(&self) -> Option<Date> {
        date(self.field(tag::ACTIVATED)?)
    }

    /// Returns `cq:lastReplicationAction`: `Activate` or `Deactivate`.
    #[must_use]
    pub fn activation(&self) -> Option<&str> {
        self.text(tag::ACTIVATION)
    }

    /// Tells whether visitors have the document by what was said last about it: whether it was activated.
    #[must_use]
    pub fn is_activated(&self) -> bool {
        self.activation() == Some("Activate")
    }

    /// Tells whether `hideInNav` is set.
    #[must_use]
    pub fn hide_in_nav(&self) -> bool {
        self.field(tag::HIDE_IN_NAV).is_some()
    }

    fn text(&self, wanted: u8) -> Option<&str> {
        std::str::from_utf8(self.field(wanted)?).ok()
    }

    fn field(&self, wanted: u8) -> Option<&[u8]> {
        self.fields()?.find(|(tag, _)| *tag == wanted).map(|(_, bytes)| bytes)
    }

    fn fields(&self) -> Option<impl Iterator<Item = (u8, &[u8])>> {
        let mut cursor = Cursor::new(&self.bytes, 0);
        cursor.bytes()?;
        let count = cursor.number()?;
        Some((0..count).map_while(move |_| Some((cursor.byte()?, cursor.bytes()?))))
    }

    /// Decodes everything; nothing if any byte makes no sense.
    fn check(&self) -> Option<()> {
        let mut cursor = Cursor::new(&self.bytes, 0);
        cursor.text()?;
        for _ in 0..cursor.number()? {
            let (tag, bytes) = (cursor.byte()?, cursor.bytes()?);
            match tag {
                tag::TITLE
                | tag::RESOURCE_TYPE
                | tag::TEMPLATE
                | tag::MODIFIED_BY
                | tag::ACTIVATION => _ = std::str::from_utf8(bytes).ok()?,
                tag::MODIFIED | tag::ACTIVATED => _ = date(bytes)?,
                tag::HIDE_IN_NAV => {}
                _ => return None,
            }
        }
        cursor.is_at_end().then_some(())
    }
}

impl fmt::Debug for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Summary")
            .field("primary_type", &self.primary_type())
            .field("title", &self.title())
            .finish_non_exhaustive()
    }
}

fn date(bytes: &[u8]) -> Option<Date> {
    let mut cursor = Cursor::new(bytes, 0);
    let millis = cursor.signed()?;
    Some(Date { millis, offset_minutes: i16::try_from(cursor.signed()?).ok()? })
}

/// Tells whether it is the `jcr:content` of a document that says what listings show of it, not the document's own node.
pub(crate) fn has_described_content(tree: &Subtree) -> bool {
    tree.child(JCR_CONTENT).is_some()
        && (is_own_content(tree.primary_type(), JCR_CONTENT) || tree.text("jcr:title").is_none())
}

/// Derives what listings show from a document's tree.
pub(crate) fn summary_of(tree: &Subtree) -> Summary {
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
        (tag::TITLE, content.text("jcr:title")),
        (tag::RESOURCE_TYPE, content.text("sling:resourceType")),
        (tag::TEMPLATE, content.text("cq:template")),
        (tag::MODIFIED_BY, modified_by),
        (tag::ACTIVATION, content.text("cq:lastReplicationAction")),
    ];
    let dates = [
        (tag::MODIFIED, date("cq:lastModified").or(date("jcr:lastModified"))),
        (tag::ACTIVATED, date("cq:lastReplicated")),
    ];
    let mut fields = Vec::new();
    let mut count = 0;
    let mut put = |tag: u8, bytes: &[u8]| {
        fields.push(tag);
        put_bytes(&mut fields, bytes);
        count += 1;
    };
    for (tag, text) in texts.into_iter().filter_map(|(tag, text)| Some((tag, text?))) {
        put(tag, text.as_bytes());
    }
    for (tag, date) in dates.into_iter().filter_map(|(tag, date)| Some((tag, date?))) {
        let mut bytes = Vec::new();
        put_signed(&mut bytes, date.millis);
        put_signed(&mut bytes, i64::from(date.offset_minutes));
        put(tag, &bytes);
    }
    if hide_in_nav {
        put(tag::HIDE_IN_NAV, &[]);
    }
    let mut bytes = Vec::with_capacity(fields.len() + 32);
    put_bytes(&mut bytes, tree.text(PRIMARY_TYPE).unwrap_or("nt:unstructured").as_bytes());
    put_number(&mut bytes, count);
    bytes.extend_from_slice(&fields);
    Summary { bytes: bytes.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page() -> Subtree {
        let content = Subtree::new(JCR_CONTENT, "cq:PageContent")
            .with("jcr:title", "Title")
            .with("sling:resourceType", "site/page")
            .with("cq:lastModifiedBy", "ann")
            .with("cq:lastModified", Value::Date(Date { millis: -7, offset_minutes: 60 }))
            .with("hideInNav", Value::Boolean(true));
        Subtree::new("page", "cq:Page").with_child(content)
    }

    #[test]
    fn a_header_reads_back_field_by_field() {
        let record = Record::of(&page(), OrderKey::first()).unwrap();
        let stored = record.encode(&mut Batch::new()).unwrap();
        let read = Record::decode_whole(&stored).unwrap();
        let summary = &read.summary;
        assert_eq!((summary, &read.order), (&record.summary, &OrderKey::first()));
        assert_eq!(summary.primary_type(), "cq:Page");
        assert_eq!((summary.title(), summary.template()), (Some("Title"), None));
        assert_eq!(summary.modified(), Some(Date { millis: -7, offset_minutes: 60 }));
        assert_eq!((summary.modified_by(), summary.activation()), (Some("ann"), None));
        assert!(summary.hide_in_nav() && summary.activated().is_none());
        assert_eq!(Summary::default().title(), None);
    }

    #[test]
    fn records_from_elsewhere_are_checked_whole() {
        let page = page().with("text", "too long to stay in the record ".repeat(20).as_str());
        let stored = Record::of(&page, OrderKey::first()).unwrap().encode(&mut Batch::new());
        let stored = stored.unwrap();
        for at in 0..stored.bytes.len() {
            let mut cut = stored.clone();
            cut.bytes.truncate(at);
            assert!(Record::decode_whole(&cut).is_none(), "cut at {at}");
        }
        let mut more = stored.bytes.to_vec();
        more.push(0);
        let more = Stored { bytes: more.into(), body: stored.body };
        assert!(Record::decode_whole(&stored).is_some() && Record::decode_whole(&more).is_none());
    }
}
