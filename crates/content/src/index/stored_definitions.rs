//! The definitions of property indexes in a state: read from its content, and cached.

use std::sync::Arc;

use tympan_store::{MapValue, ReadChunks, SortedMap};

use crate::document::boundary::is_container;
use crate::document::record::ContentRecord;
use crate::document::record_key;
use crate::index::property_index::{
    CachedIndexDefinitions, DEFINITIONS_PATH, IndexDefinitions, built_in_definitions,
};
use crate::node_type::read_stored_types;
use crate::snapshot::SnapshotView;
use crate::{NodePath, Result, Snapshot, Subtree};

impl IndexDefinitions {
    /// Reads the definitions of a state with pending edits.
    pub(crate) fn read_pending(view: &SnapshotView) -> Result<Arc<Self>> {
        let path = NodePath::new(DEFINITIONS_PATH)?;
        let folder = Snapshot::from_view(view.clone()).read_subtree(&path)?;
        let types = view.node_type_rules(None)?.node_types;
        Ok(folder.map_or_else(built_in_definitions, |folder| Self::from_folder(&folder, &types)))
    }

    /// Reads the definitions in a content map. Definitions that do not decode are ignored.
    pub(crate) fn read_stored(content: SortedMap, reads: &dyn ReadChunks) -> Result<Arc<Self>> {
        let Some(folder) = content.get(reads, &record_key::record_key_at(DEFINITIONS_PATH))? else {
            return Ok(built_in_definitions());
        };
        let tree = |stored: &MapValue| -> Result<Option<Subtree>> {
            let Some(record) = ContentRecord::decode(stored) else { return Ok(None) };
            Ok(record.read_body(reads)?.map(|body| body.subtree(body.root())))
        };
        let Some(mut folder) = tree(&folder)? else {
            return Ok(built_in_definitions());
        };
        let below = record_key::child_key_range(&NodePath::new(DEFINITIONS_PATH)?)?;
        for entry in content.range(reads, below.bounds()) {
            let (key, stored) = entry?;
            if let Some(mut child) = tree(&stored)? {
                record_key::record_name(&key)?.clone_into(&mut child.name);
                folder.children.push(child);
            }
        }
        let types = read_stored_types(content, reads)?;
        Ok(Self::from_folder(&folder, &types))
    }

    /// Returns the definitions of a stored state, from the cache if possible.
    pub(crate) fn read_cached(view: &SnapshotView) -> Result<Arc<Self>> {
        let reads = view.repository_state.chunk_reader();
        let record = view.content_map.get(reads, &record_key::record_key_at(DEFINITIONS_PATH))?;
        let Some(stored) = &record else {
            return Ok(built_in_definitions());
        };
        // The records of a folder's children may change without the folder's own record.
        let is_folder = ContentRecord::decode(stored)
            .is_some_and(|record| is_container("oak:index", record.summary.primary_type()));
        if is_folder {
            return Self::read_stored(view.content_map, reads);
        }
        let cache = &view.repository_state.cache.index_definitions.0;
        if let Some(cached) = &*cache.lock()
            && cached.definitions_record == record
            && (!cached.definitions.has_type_restrictions()
                || Arc::ptr_eq(&cached.node_types, &view.node_type_rules(None)?.node_types))
        {
            return Ok(cached.definitions.clone());
        }
        let types = view.node_type_rules(None)?.node_types;
        let definitions = Self::read_stored(view.content_map, reads)?;
        *cache.lock() = Some(CachedIndexDefinitions {
            definitions_record: record,
            node_types: types,
            definitions: definitions.clone(),
        });
        Ok(definitions)
    }
}
