//! A repository with an index over it, and probes.

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tympan_content::{NodePath, Property, Repository, Subtree, Value};
use tympan_content_query::{
    FullTextExpression, FullTextHit, FullTextIndex, FullTextPage, FullTextRequest,
};
use tympan_search::{SearchIndex, SearchIndexOptions};

/// Longer than any healthy catch-up takes.
const PATIENCE: Duration = Duration::from_secs(120);

/// A repository in memory, with an index that follows it.
pub(crate) struct Site {
    pub(crate) repository: Repository,
    pub(crate) index: SearchIndex,
    pub(crate) folder: tempfile::TempDir,
}

impl Site {
    pub(crate) fn new() -> Self {
        Self::with(SearchIndexOptions::default())
    }

    pub(crate) fn with(options: SearchIndexOptions) -> Self {
        let repository = Repository::in_memory().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let index = SearchIndex::open(repository.clone(), folder.path(), options).unwrap();
        let site = Self { repository, index, folder };
        site.put("/content", Subtree::new("", "sling:Folder"));
        site
    }

    /// Puts a document and commits.
    pub(crate) fn put(&self, at: &str, tree: Subtree) {
        let mut session = self.repository.session("author").unwrap();
        session.put_node(&path(at), tree).unwrap();
        // What is indexed does not depend on what node types allow.
        session.mark_as_received();
        session.commit("edit", UNIX_EPOCH).unwrap();
    }

    pub(crate) fn remove(&self, at: &str) {
        let mut session = self.repository.session("author").unwrap();
        session.remove_node(&path(at)).unwrap();
        session.commit("remove", UNIX_EPOCH).unwrap();
    }

    /// Puts a page with a title and a text.
    pub(crate) fn page(&self, at: &str, title: &str, text: &str) {
        self.put(at, page(title, text));
    }

    /// Puts a file.
    pub(crate) fn file(&self, at: &str, media_type: &str, bytes: &[u8]) {
        let mut session = self.repository.session("author").unwrap();
        let blob = session.put_blob(&mut &bytes[..]).unwrap();
        let content = Subtree::new("jcr:content", "nt:resource")
            .with_property("jcr:mimeType", Property::text(media_type))
            .with_property("jcr:data", Property::Single(Value::Binary(blob)));
        session.put_node(&path(at), Subtree::new("", "nt:file").with_child(content)).unwrap();
        session.commit("upload", UNIX_EPOCH).unwrap();
    }

    pub(crate) fn caught_up(&self) -> &SearchIndex {
        assert!(self.index.wait_until_current(PATIENCE), "{:?}", self.index.status(now()));
        &self.index
    }

    /// Returns the paths that match, best first, without `/content/`.
    pub(crate) fn find(&self, expression: FullTextExpression) -> Vec<String> {
        names(&hits(self.caught_up(), &request(expression)))
    }

    /// Returns the paths that match, sorted.
    pub(crate) fn find_sorted(&self, expression: FullTextExpression) -> Vec<String> {
        let mut found = self.find(expression);
        found.sort();
        found
    }
}

pub(crate) fn now() -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(10)
}

pub(crate) fn path(text: &str) -> NodePath {
    NodePath::new(text).unwrap()
}

pub(crate) fn page(title: &str, text: &str) -> Subtree {
    let text = Subtree::new("text", "nt:unstructured").with_property("text", Property::text(text));
    let content = Subtree::new("jcr:content", "cq:PageContent")
        .with_property("jcr:title", Property::text(title))
        .with_child(text);
    Subtree::new("", "cq:Page").with_child(content)
}

pub(crate) fn term(text: &str) -> FullTextExpression {
    FullTextExpression::Term(text.to_owned())
}

pub(crate) fn request(expression: FullTextExpression) -> FullTextRequest {
    FullTextRequest {
        expression,
        property: None,
        node_types: Vec::new(),
        ancestor: None,
        after: None,
        limit: 1000,
        facets: Vec::new(),
        wants_excerpt: false,
    }
}

pub(crate) fn search(index: &SearchIndex, request: &FullTextRequest) -> FullTextPage {
    index.search(request).unwrap()
}

pub(crate) fn hits(index: &SearchIndex, request: &FullTextRequest) -> Vec<FullTextHit> {
    search(index, request).hits
}

pub(crate) fn names(hits: &[FullTextHit]) -> Vec<String> {
    let name = |hit: &FullTextHit| hit.path.as_str().trim_start_matches("/content/").to_owned();
    hits.iter().map(name).collect()
}

/// Returns everything that an index says about a set of probes, to be compared with another one.
pub(crate) fn probe(index: &SearchIndex) -> Vec<String> {
    let words = ["alpha", "beta", "gamma", "delta", "running", "häuser", "a", "0", "tree", "page"];
    let mut expressions: Vec<FullTextExpression> = words.iter().map(|word| term(word)).collect();
    // All documents.
    expressions.push(FullTextExpression::Not(Box::new(term("nosuchwordanywhere"))));
    expressions.push(FullTextExpression::Phrase("alpha beta".to_owned()));
    expressions.push(FullTextExpression::Prefix("al".to_owned()));
    expressions.push(FullTextExpression::Wildcard("*m*a".to_owned()));
    expressions.push(FullTextExpression::And(vec![term("alpha"), term("beta")]));
    let mut said = Vec::new();
    for expression in expressions {
        for property in [None, Some("jcr:title"), Some("jcr:content/jcr:title")] {
            let mut request = request(expression.clone());
            request.property = property.map(str::to_owned);
            request.wants_excerpt = true;
            request.limit = 10_000;
            request.facets = vec!["jcr:primaryType".to_owned(), "jcr:content/jcr:title".to_owned()];
            let page = search(index, &request);
            let mut hits: Vec<String> = page
                .hits
                .iter()
                .map(|hit| format!("{} {}", hit.path, hit.excerpt.as_deref().unwrap_or("-")))
                .collect();
            hits.sort();
            said.push(format!("{expression:?} {property:?}: {hits:?} {:?}", page.facets));
        }
    }
    let status = index.status(now()).unwrap();
    said.push(format!("{} documents, failed: {:?}", status.documents, status.first_failures));
    said
}

/// Builds an index from nothing and returns what it says.
pub(crate) fn probe_rebuilt(repository: &Repository, folder: &Path) -> Vec<String> {
    let index =
        SearchIndex::open(repository.clone(), folder, SearchIndexOptions::default()).unwrap();
    assert!(index.wait_until_current(PATIENCE), "{:?}", index.status(now()));
    probe(&index)
}
