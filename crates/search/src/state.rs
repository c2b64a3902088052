//! One state of the index: what a query asks, from its first page to its last.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tantivy::collector::Collector;
use tantivy::query::EnableScoring;
use tantivy::schema::Value;
use tympan_content::query::{FullText, Reader, TextHit, TextPage, TextRequest};
use tympan_content::{ChunkId, NodePath};

use crate::analyzer::every_stem_of;
use crate::document::is_indexed;
use crate::error::{Error, Result};
use crate::excerpt::{Marks, excerpt};
use crate::expand::{MAX_LOOKED_AT, Place};
use crate::facet::Facets;
use crate::index::{Served, Shared, document};
use crate::query::Planner;
use crate::suggest::{spellcheck, suggest};
use crate::top::{Found, Top};

/// The most hits of one page.
const MAX_PAGE: usize = 10_000;

/// The index as it was when this was made. It does not go on with the content.
#[derive(Clone)]
pub(crate) struct State {
    pub(crate) shared: Arc<Shared>,
    pub(crate) served: Arc<Served>,
}

impl State {
    fn planner<'a>(&'a self, property: Option<&'a str>) -> Planner<'a> {
        Planner {
            searcher: &self.served.searcher,
            fields: self.shared.fields(),
            dir: &self.served.build.dir,
            property,
            left: Cell::new(MAX_LOOKED_AT),
        }
    }

    fn answer(&self, request: &TextRequest) -> Result<TextPage> {
        let served = &self.served;
        let searcher = &served.searcher;
        let planned = self.planner(request.property.as_deref()).plan(request)?;
        let failed = |error| Error::of_index("read", &served.build.dir, error);
        let limit = request.limit.min(MAX_PAGE);
        let mut found = Vec::new();
        if limit > 0 {
            let after = request.after.as_ref();
            let after = after.map(|after| (after.score, after.path.as_str().to_owned()));
            let top = Top { limit, after };
            found = searcher.search(&*planned.query, &top).map_err(failed)?;
        }
        let facets = Facets { properties: &request.facets };
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
        let is_whole = request.after.is_none() && found.len() < limit;
        let estimate = if is_whole { found.len() as u64 } else { planned.estimate };
        let hits = self.hits(request, found)?;
        Ok(TextPage {
            hits,
            facets: request.facets.iter().cloned().zip(counts).collect(),
            estimate,
            indexed_root: served.snapshot.root_id(),
        })
    }

    fn hits(&self, request: &TextRequest, found: Vec<Found>) -> Result<Vec<TextHit>> {
        let marks = request.excerpt.then(|| Marks::of(&request.expression));
        let mut hits = Vec::with_capacity(found.len());
        for found in found {
            let excerpt = match &marks {
                None => None,
                Some(marks) => self.excerpt(marks, &found)?,
            };
            let path = NodePath::new(&found.path)?;
            hits.push(TextHit { path, score: found.score, excerpt });
        }
        Ok(hits)
    }

    fn excerpt(&self, marks: &Marks, found: &Found) -> Result<Option<String>> {
        let served = &self.served;
        let fields = self.shared.fields();
        let failed = |error| Error::of_index("read", &served.build.dir, error);
        let document = document(&served.searcher, found).map_err(failed)?;
        let Some(text) = document.get_first(fields.excerpt).and_then(|text| text.as_str()) else {
            return Ok(None);
        };
        let language = document.get_first(fields.language).and_then(|code| code.as_str());
        let tokenizers = served.searcher.index().tokenizers();
        let mut stems = language.and_then(|code| tokenizers.get(&every_stem_of(code)));
        Ok(Some(excerpt(marks, text, stems.as_mut())))
    }

    /// Runs a query; files that make no sense may make the library panic, and are built anew.
    fn guarded<T>(&self, run: impl FnOnce() -> Result<T>) -> tympan_content::Result<T> {
        self.shared.counters.queries.fetch_add(1, Ordering::Relaxed);
        let answer = catch_unwind(AssertUnwindSafe(run));
        let answer =
            answer.unwrap_or_else(|_| Err(Error::Damaged("reading it panicked".to_owned())));
        answer.map_err(|error| {
            self.shared.counters.failed_queries.fetch_add(1, Ordering::Relaxed);
            if matches!(error, Error::Damaged(_)) {
                self.shared.want_rebuild();
                self.shared.wake();
            }
            error.into()
        })
    }
}

impl FullText for State {
    fn search(&self, request: &TextRequest) -> tympan_content::Result<TextPage> {
        self.guarded(|| self.answer(request))
    }

    fn suggest(
        &self,
        prefix: &str,
        limit: usize,
        reader: Option<Reader<'_>>,
    ) -> tympan_content::Result<Vec<String>> {
        self.guarded(|| suggest(&self.planner(None), reader, prefix, limit))
    }

    fn spellcheck(
        &self,
        text: &str,
        limit: usize,
        reader: Option<Reader<'_>>,
    ) -> tympan_content::Result<Vec<String>> {
        self.guarded(|| spellcheck(&self.planner(None), reader, text, limit))
    }

    fn indexed_root(&self) -> Option<ChunkId> {
        Some(self.served.snapshot.root_id())
    }

    fn state(&self) -> Option<Arc<dyn FullText>> {
        Some(Arc::new(self.clone()))
    }

    fn covers(&self, path: &NodePath) -> bool {
        is_indexed(path)
    }

    fn has_property(&self, property: &str) -> tympan_content::Result<bool> {
        self.guarded(|| {
            let planner = self.planner(Some(property));
            for place in Place::of_property(planner.fields, property) {
                let is_used = place.is_used(planner.searcher);
                if is_used.map_err(|error| planner.failed(error))? {
                    return Ok(true);
                }
            }
            Ok(false)
        })
    }
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "State({})", self.served.snapshot.root_id())
    }
}
