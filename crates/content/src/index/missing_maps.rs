//! The index maps that a state lacks, built from its content.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use tympan_store::{ChunkBatch, ChunkStore, MapValue, ReadChunks, SortedMap};

use crate::document::record::ContentRecord;
use crate::document::record_key;
use crate::index::property_index::{IndexDefinitions, create_empty_maps};
use crate::index::{IndexEdits, IndexMapSelection, LINK_MAP, create_empty_link_map};
use crate::{NodePath, Result};

/// Adds the maps of property indexes, and the map of links, that a small state lacks.
pub(crate) fn build_missing_maps(
    chunks: &dyn ChunkStore,
    batch: &mut ChunkBatch,
    content: SortedMap,
    maps: &mut BTreeMap<String, SortedMap>,
) -> Result<()> {
    let definitions = IndexDefinitions::read_stored(content, chunks)?;
    let missing = definitions.0.iter().filter(|index| !maps.contains_key(&index.map_name));
    let missing = Arc::new(IndexDefinitions(missing.cloned().collect()));
    let mut built = create_empty_maps(&missing, batch)?;
    let lacks_links = !maps.contains_key(LINK_MAP);
    if lacks_links {
        built.insert(LINK_MAP.to_owned(), create_empty_link_map(batch)?);
    }
    let mut edits = IndexEdits::new(map_selection_for(lacks_links), missing);
    for entry in content.range(chunks, (Bound::Unbounded, Bound::Unbounded)) {
        let (key, stored) = entry?;
        record_document_change(&mut edits, &key, [None, Some(&stored)], chunks)?;
    }
    edits.apply(&mut built, chunks, batch)?;
    maps.extend(built);
    Ok(())
}

/// Returns the maps that a build creates.
pub(super) fn map_selection_for(has_links: bool) -> IndexMapSelection {
    if has_links {
        IndexMapSelection::PropertiesAndLinks
    } else {
        IndexMapSelection::PropertyIndexes
    }
}

/// Records the old and new form of a document. A document that does not decode has no entries.
pub(super) fn record_document_change(
    edits: &mut IndexEdits,
    key: &[u8],
    sides: [Option<&MapValue>; 2],
    reads: &dyn ReadChunks,
) -> Result<()> {
    let path: NodePath = record_key::record_path(key)?;
    let read = |stored: Option<&MapValue>| -> Result<_> {
        let Some(record) = stored.and_then(ContentRecord::decode) else { return Ok(None) };
        let body = record.read_body(reads)?;
        Ok(body.map(|body| (record, body)))
    };
    let [old, new] = sides;
    let (old, new) = (read(old)?, read(new)?);
    let old = old.as_ref().map(|(record, body)| (record, &**body));
    let new = new.as_ref().map(|(record, body)| (record, &**body));
    edits.record_change(&path, old, new);
    Ok(())
}
