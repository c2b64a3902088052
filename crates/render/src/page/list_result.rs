//! The results of list queries.

use tympan_content::Snapshot;

use crate::dependency::content_reader::{ContentReader, ReadRecording};
use crate::dependency::path_dependency::{hash_bytes, hash_path, mix_bits};
use crate::page;
use crate::page::list_query::{ListQuery, ListQueryKind};

impl ListQuery {
    /// Returns a digest of the result in a state, as its viewer sees it, and the number of reads; `None` if content
    /// cannot be read.
    pub(crate) fn digest_results(&self, state: &Snapshot) -> Option<(u64, u64)> {
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
        });
        reader.failure().is_none().then_some((digest, reader.read_count()))
    }
}
