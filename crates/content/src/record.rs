//! Records: what one key of the content map holds, a short header and the body or its hash.
//!
//! The header carries what listings show (type, title, dates), so that listing a folder reads no bodies. All of it is
//! derived from the body, but for the order key. `docs/formats/document.md` gives the bytes.

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
/// Bodies up to this many bytes that name no blob stay in the record.
const INLINE_BYTES: usize = 256;

/// What listings show of a node without its body being read.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Summary {
    /// The primary type.
    pub primary_type: String,
    /// `jcr:title` of the content.
    pub title: Option<String>,
    /// `sling:resourceType` of the content.
    pub resource_type: Option<String>,
    /// `cq:template` of the content.
    pub template: Option<String>,
    /// `cq:lastModified`, else `jcr:lastModified`.
    pub modified: Option<Date>,
    /// `cq:lastModifiedBy`, else `jcr:lastModifiedBy`.
    pub modified_by: Option<String>,
    /// `cq:lastReplicated`.
    pub activated: Option<Date>,
    /// `cq:lastReplicationAction`: `Activate` or `Deactivate`.
    pub activation: Option<String>,
    /// Whether `hideInNav` is set.
    pub hide_in_nav: bool,
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
        let (inline, stored) = match &self.body {
            BodyPlace::Inline(bytes) => (Some(bytes), None),
            BodyPlace::Stored(id) => (None, Some(*id)),
            BodyPlace::Pending(body)
                if body.bytes().len() <= INLINE_BYTES && body.blobs().is_empty() =>
            {
                (Some(body.bytes()), None)
            }
            BodyPlace::Pending(body) => {
                (None, Some(bodies::write(batch, body.bytes(), body.blobs())?))
            }
        };
        let mut out = vec![VERSION, u8::from(inline.is_some())];
        put_bytes(&mut out, &self.order.0);
        self.summary.encode(&mut out);
        if let Some(bytes) = inline {
            out.extend_from_slice(bytes);
        }
        Ok(Stored { bytes: out.into(), body: stored })
    }

    /// Reads a stored record; nothing if its bytes make no sense.
    pub(crate) fn decode(stored: &Stored) -> Option<Self> {
        let mut cursor = Cursor::new(&stored.bytes, 0);
        if cursor.byte()? != VERSION {
            return None;
        }
        let is_inline = cursor.byte()? != 0;
        let order = cursor.bytes()?;
        let order = OrderKey(stored.bytes.slice_ref(order));
        let summary = Summary::decode(&mut cursor)?;
        let body = match stored.body {
            Some(id) if !is_inline => BodyPlace::Stored(id),
            None if is_inline => BodyPlace::Inline(stored.bytes.slice(cursor.at()..)),
            _ => return None,
        };
        Some(Self { order, summary, body })
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

impl Summary {
    fn encode(&self, out: &mut Vec<u8>) {
        put_bytes(out, self.primary_type.as_bytes());
        let mut fields = Vec::new();
        let mut count = 0;
        let mut field = |tag: u8, bytes: &[u8]| {
            fields.push(tag);
            put_bytes(&mut fields, bytes);
            count += 1;
        };
        let texts = [
            (1, &self.title),
            (2, &self.resource_type),
            (3, &self.template),
            (5, &self.modified_by),
            (7, &self.activation),
        ];
        for (tag, text) in texts {
            if let Some(text) = text {
                field(tag, text.as_bytes());
            }
        }
        for (tag, date) in [(4, self.modified), (6, self.activated)] {
            if let Some(date) = date {
                let mut bytes = Vec::new();
                put_signed(&mut bytes, date.millis);
                put_signed(&mut bytes, i64::from(date.offset_minutes));
                field(tag, &bytes);
            }
        }
        if self.hide_in_nav {
            field(8, &[]);
        }
        put_number(out, count);
        out.extend_from_slice(&fields);
    }

    fn decode(cursor: &mut Cursor<'_>) -> Option<Self> {
        let mut summary = Self { primary_type: cursor.text()?.to_owned(), ..Self::default() };
        for _ in 0..cursor.number()? {
            let tag = cursor.byte()?;
            let bytes = cursor.bytes()?;
            let text = || Some(std::str::from_utf8(bytes).ok()?.to_owned());
            let date = || {
                let mut cursor = Cursor::new(bytes, 0);
                Some(Date {
                    millis: cursor.signed()?,
                    offset_minutes: i16::try_from(cursor.signed()?).ok()?,
                })
            };
            match tag {
                1 => summary.title = Some(text()?),
                2 => summary.resource_type = Some(text()?),
                3 => summary.template = Some(text()?),
                4 => summary.modified = Some(date()?),
                5 => summary.modified_by = Some(text()?),
                6 => summary.activated = Some(date()?),
                7 => summary.activation = Some(text()?),
                8 => summary.hide_in_nav = true,
                _ => return None,
            }
        }
        Some(summary)
    }
}

/// Derives what listings show from a document's tree.
fn summary_of(tree: &Subtree) -> Summary {
    let primary_type = tree.primary_type();
    let content = match tree.child(JCR_CONTENT) {
        Some(content)
            if is_own_content(primary_type, JCR_CONTENT) || tree.text("jcr:title").is_none() =>
        {
            content
        }
        _ => tree,
    };
    let text = |name: &str| content.text(name).map(str::to_owned);
    let date = |name: &str| match content.properties.get(name) {
        Some(Property::Single(Value::Date(date))) => Some(*date),
        _ => None,
    };
    let hide_in_nav = match content.properties.get("hideInNav").and_then(Property::first) {
        Some(Value::Boolean(truth)) => *truth,
        Some(value) => value.to_text() == "true",
        None => false,
    };
    Summary {
        primary_type: tree.text(PRIMARY_TYPE).unwrap_or("nt:unstructured").to_owned(),
        title: text("jcr:title"),
        resource_type: text("sling:resourceType"),
        template: text("cq:template"),
        modified: date("cq:lastModified").or_else(|| date("jcr:lastModified")),
        modified_by: text("cq:lastModifiedBy").or_else(|| text("jcr:lastModifiedBy")),
        activated: date("cq:lastReplicated"),
        activation: text("cq:lastReplicationAction"),
        hide_in_nav,
    }
}
