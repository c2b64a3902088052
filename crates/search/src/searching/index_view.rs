//! A view of one state of the index, used for all pages of a query.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tantivy::collector::Collector;
use tantivy::query::EnableScoring;
use tantivy::schema::Value;
use tympan_content::{ChunkId, NodePath};
use tympan_content_query::{
    FullTextHit, FullTextIndex, FullTextPage, FullTextRequest, ReadableTextFn,
};

use crate::analyzer::all_stems_name;
use crate::error::{Error, Result};
use crate::indexing::index_document::is_indexed;
use crate::indexing::index_state::{SearchIndexState, ServedBuild};
use crate::searching::excerpt::{HighlightTerms, make_excerpt};
use crate::searching::facet::FacetCollector;
use crate::searching::query_planner::TextQueryPlanner;
use crate::searching::suggestion::{spellcheck, suggest_completions};
use crate::searching::top_hit::{ScoredHit, TopHitsCollector};
use crate::searching::word_expansion::{MAX_SCANNED_WORDS, WordLocation};

/// The maximum number of hits per page.
const MAX_PAGE_HITS: usize = 10_000;

/// A fixed state of the index, which does not follow the content.
#[derive(Clone)]
pub(crate) struct SearchIndexView {
    pub(crate) index_state: Arc<SearchIndexState>,
    pub(crate) served_build: Arc<ServedBuild>,
}

impl SearchIndexView {
    fn planner<'a>(&'a self, property: Option<&'a str>) -> TextQueryPlanner<'a> {
        TextQueryPlanner {
            searcher: &self.served_build.searcher,
            fields: self.index_state.fields(),
            dir: &self.served_build.build.dir,
            property,
            remaining_scans: Cell::new(MAX_SCANNED_WORDS),
        }
    }

    fn answer_request(&self, request: &FullTextRequest) -> Result<FullTextPage> {
        let served = &self.served_build;
        let searcher = &served.searcher;
        let planned = self.planner(request.property.as_deref()).plan_request(request)?;
        let failed = |error| Error::index_access("read", &served.build.dir, error);
        let limit = request.limit.min(MAX_PAGE_HITS);
        let mut scored_hits = Vec::new();
        if limit > 0 {
            let after = request.after.as_ref();
            let after = after.map(|after| (after.score, after.path.as_str().to_owned()));
            let top = TopHitsCollector { limit, after_hit: after };
            scored_hits = searcher.search(&*planned.query, &top).map_err(failed)?;
        }
        let facets = FacetCollector { properties: &request.facets };
        let counts = if request.facets.is_empty() {
            Vec::new()
        } else {
            let scoring = EnableScoring::disabled_from_searcher(searcher);
            let weight = planned.query.weight(scoring).map_err(failed)?;
            let mut segments = Vec::new();
            for (ord, segment) in (0..).zip(searcher.segment_readers()) {
                segments.push(facets.collect_segment(&*weight, ord, segment).map_err(failed)?);
            }
            facets.merge_fruits(segments).map_err(failed)?
        };
        let is_whole = request.after.is_none() && scored_hits.len() < limit;
        let estimate = if is_whole { scored_hits.len() as u64 } else { planned.estimated_matches };
        let hits = self.load_hits(request, scored_hits)?;
        Ok(FullTextPage {
            hits,
            facets: request.facets.iter().cloned().zip(counts).collect(),
            estimated_total: estimate,
            indexed_root: served.snapshot.root_id(),
        })
    }

    fn load_hits(
        &self,
        request: &FullTextRequest,
        scored_hits: Vec<ScoredHit>,
    ) -> Result<Vec<FullTextHit>> {
        let marks =
            request.wants_excerpt.then(|| HighlightTerms::from_expression(&request.expression));
        let mut hits = Vec::with_capacity(scored_hits.len());
        for hit in scored_hits {
            let excerpt = match &marks {
                None => None,
                Some(marks) => self.hit_excerpt(marks, &hit)?,
            };
            let path = NodePath::new(&hit.path)?;
            hits.push(FullTextHit { path, score: hit.score, excerpt });
        }
        Ok(hits)
    }

    fn hit_excerpt(&self, marks: &HighlightTerms, hit: &ScoredHit) -> Result<Option<String>> {
        let served = &self.served_build;
        let fields = self.index_state.fields();
        let failed = |error| Error::index_access("read", &served.build.dir, error);
        let document = hit.load_document(&served.searcher).map_err(failed)?;
        let Some(text) = document.get_first(fields.excerpt).and_then(|text| text.as_str()) else {
            return Ok(None);
        };
        let language = document.get_first(fields.language).and_then(|code| code.as_str());
        let tokenizers = served.searcher.index().tokenizers();
        let mut stems = language.and_then(|code| tokenizers.get(&all_stems_name(code)));
        Ok(Some(make_excerpt(marks, text, stems.as_mut())))
    }

    /// Runs a query. Damaged files may make the library panic; the panic is caught, and the index is rebuilt.
    fn run_guarded<T>(&self, run: impl FnOnce() -> Result<T>) -> tympan_content_query::Result<T> {
        self.index_state.counters.queries.fetch_add(1, Ordering::Relaxed);
        let result = catch_unwind(AssertUnwindSafe(run));
        let result =
            result.unwrap_or_else(|_| Err(Error::Damaged("reading it caused a panic".to_owned())));
        result.map_err(|error| {
            self.index_state.counters.failed_queries.fetch_add(1, Ordering::Relaxed);
            if matches!(error, Error::Damaged(_)) {
                self.index_state.request_rebuild();
                self.index_state.wake_follower();
            }
            error.into()
        })
    }
}

impl FullTextIndex for SearchIndexView {
    fn search(&self, request: &FullTextRequest) -> tympan_content_query::Result<FullTextPage> {
        self.run_guarded(|| self.answer_request(request))
    }

    fn suggest(
        &self,
        prefix: &str,
        limit: usize,
        reader: Option<ReadableTextFn<'_>>,
    ) -> tympan_content_query::Result<Vec<String>> {
        self.run_guarded(|| suggest_completions(&self.planner(None), reader, prefix, limit))
    }

    fn spellcheck(
        &self,
        text: &str,
        limit: usize,
        reader: Option<ReadableTextFn<'_>>,
    ) -> tympan_content_query::Result<Vec<String>> {
        self.run_guarded(|| spellcheck(&self.planner(None), reader, text, limit))
    }

    fn indexed_root(&self) -> Option<ChunkId> {
        Some(self.served_build.snapshot.root_id())
    }

    fn pinned_state(&self) -> Option<Arc<dyn FullTextIndex>> {
        Some(Arc::new(self.clone()))
    }

    fn covers(&self, path: &NodePath) -> bool {
        is_indexed(path)
    }

    fn has_property(&self, property: &str) -> tympan_content_query::Result<bool> {
        self.run_guarded(|| {
            let planner = self.planner(Some(property));
            for location in WordLocation::of_property(planner.fields, property) {
                let is_used = location.is_used(planner.searcher);
                if is_used.map_err(|error| planner.query_error(error))? {
                    return Ok(true);
                }
            }
            Ok(false)
        })
    }
}

impl std::fmt::Debug for SearchIndexView {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "State({})", self.served_build.snapshot.root_id())
    }
}
