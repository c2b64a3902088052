//! The results of list queries.

use tympan_content::Snapshot;
use tympan_content_fragments::FragmentIndexCache;

use crate::dependency::content_reader::{ContentReader, ReadRecording};
use crate::dependency::path_dependency::{hash_bytes, hash_path, mix_bits};
use crate::page;
use crate::page::list_query::{ListQuery, ListQueryKind};

impl ListQuery {
    /// Returns a digest of the result in a state, as its viewer sees it, and the number of reads; `None` if content
    /// cannot be read.
    pub(crate) fn digest_results(
        &self,
        state: &Snapshot,
        fragments: &FragmentIndexCache,
    ) -> Option<(u64, u64)> {
        if let ListQueryKind::Fragments { query, .. } = &self.kind {
            let index = fragments.index_at(state).ok()?;
            let page = query.evaluate(&index).ok()?;
            let ends = 1 + u64::from(page.has_next) + 2 * u64::from(page.has_previous);
            let digest = page.rows.iter().fold(ends, |digest, row| {
                let row_hash = hash_bytes(&row.variation) ^ hash_bytes(&row.cursor).rotate_left(1);
                mix_bits(mix_bits(digest ^ hash_path(&row.path)) ^ row_hash)
            });
            return Some((digest, page.rows.len() as u64));
        }
        let reader = ContentReader::new(state.clone(), ReadRecording::Count);
        let root = reader.node_existence(self.kind.root());
        let digest = root.map_or(0, |root| match &self.kind {
            ListQueryKind::Pages { order, tag, limit, .. } => {
                let pages = page::list_pages(&reader, &root, *order, tag.as_deref(), *limit);
                pages.iter().fold(1, |digest, page| mix_bits(digest ^ hash_path(page.path())))
            }
            ListQueryKind::Tags { .. } => {
                let counts = page::tag_counts_below(&reader, &root);
                counts.iter().fold(1, |digest, (id, count)| {
                    mix_bits(mix_bits(digest ^ hash_bytes(id)) ^ *count as u64)
                })
            }
            // Answered above, by an index.
            ListQueryKind::Fragments { .. } => 0,
        });
        reader.failure().is_none().then_some((digest, reader.read_count()))
    }
}
