//! Pages of hits: what they depend on, and for how long they are good while the full-text index comes up.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tympan_content::{ChunkId, NodePath};
use tympan_content_query::{
    FullTextHit, FullTextIndex, FullTextPage, FullTextRequest, QueryEngine, ReadableTextFn, Result,
};
use tympan_render::{
    ChangedAspects, ReadRecording, RenderMode, RenderOptions, RenderRequest, RenderResponse,
    Renderer, RequestFacts,
};

use crate::site::{Site, body_text};

const URL: &str = "/content/site/en.html";

/// An index that finds one page for each word, and has no state until it is told one.
#[derive(Debug, Clone, Default)]
struct Index(Arc<Mutex<Option<ChunkId>>>);

impl FullTextIndex for Index {
    fn search(&self, _: &FullTextRequest) -> Result<FullTextPage> {
        let path = NodePath::new("/content/site/en/apple")?;
        let hit =
            FullTextHit { path, score: 2.0, excerpt: Some("<strong>apple</strong>".to_owned()) };
        let indexed_root = self.0.lock().unwrap();
        Ok(FullTextPage { hits: vec![hit], facets: Vec::new(), estimated_total: 1, indexed_root })
    }

    fn suggest(&self, _: &str, _: usize, _: Option<ReadableTextFn<'_>>) -> Result<Vec<String>> {
        Ok(Vec::new())
    }

    fn spellcheck(&self, _: &str, _: usize, _: Option<ReadableTextFn<'_>>) -> Result<Vec<String>> {
        Ok(Vec::new())
    }

    fn indexed_root(&self) -> Option<ChunkId> {
        *self.0.lock()
    }

    fn pinned_state(&self) -> Option<Arc<dyn FullTextIndex>> {
        self.indexed_root().map(|_| Arc::new(self.clone()) as Arc<dyn FullTextIndex>)
    }

    fn covers(&self, _: &NodePath) -> bool {
        true
    }

    fn has_property(&self, _: &str) -> Result<bool> {
        Ok(false)
    }
}

#[test]
fn hits_of_an_index_that_is_behind_are_cached_by_nobody() {
    let site = Site::sample(RenderMode::Publish);
    site.script(
        "/apps/test/page/page.html.j2",
        "{% for hit in search(page, \"apple\").hits %}{{ hit.page.title }} {{ hit.excerpt }}{% endfor %}",
    );
    let (index, engine) = (Index::default(), QueryEngine::default());
    engine.set_full_text_index(Arc::new(index.clone()));
    let renderer = Renderer::new(&site.repository, RenderOptions::default());
    let renderer = renderer.with_query_engine(Arc::new(engine));
    let draw = || {
        let snapshot = site.repository.snapshot().unwrap();
        let request = RenderRequest { recording: ReadRecording::Paths, ..RenderRequest::get(URL) };
        renderer.render(&snapshot, &request)
    };
    let is_kept = |drawn: &RenderResponse| {
        let control = drawn.headers.iter().find(|(name, _)| *name == "cache-control");
        assert_eq!(control.map(|(_, value)| &**value), drawn.reads.max_age.map(|_| "no-store"));
        assert!(drawn.reads.max_age.is_none_or(|age| age == Duration::ZERO));
        assert_eq!(drawn.reads.is_uncacheable(), drawn.reads.facts.intersects(RequestFacts::TIME));
        !drawn.reads.is_uncacheable()
    };
    // While it is built, pages are looked at one by one, and no words are marked.
    let drawn = draw();
    assert_eq!((body_text(&drawn).trim(), is_kept(&drawn)), ("An apple", false));
    let head = || *index.0.lock() = Some(site.repository.head_root().unwrap());
    head();
    let drawn = draw();
    assert_eq!(body_text(&drawn), "An apple <strong>apple</strong>");
    assert!(is_kept(&drawn));
    // It hears of a change later than visitors may ask.
    let path = NodePath::new("/content/site/en/apple/jcr:content").unwrap();
    let before = site.repository.snapshot().unwrap();
    site.edit(|session| session.set_property(&path, "jcr:title", "One apple".into()).unwrap());
    let late = draw();
    assert_eq!((body_text(&late).trim(), is_kept(&late)), ("One apple", false));
    head();
    let drawn = draw();
    assert_eq!(body_text(&drawn), "One apple <strong>apple</strong>");
    assert!(is_kept(&drawn));
    // What is anywhere in the index weighs words.
    let elsewhere = NodePath::new("/content/dam/map.png/jcr:content/metadata").unwrap();
    let between = site.repository.snapshot().unwrap();
    site.edit(|session| session.set_property(&elsewhere, "dc:title", "apple".into()).unwrap());
    let after = site.repository.snapshot().unwrap();
    for (before, after) in [(&before, &between), (&between, &after)] {
        let touched = ChangedAspects::between_snapshots(before, after).unwrap();
        assert!(touched.affects(&drawn.reads.dependencies()));
    }
}
