//! A repository with an index over it, and probes.

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tympan_content::query::{FullText, TextExpression, TextHit, TextPage, TextRequest};
use tympan_content::{NodePath, Property, Repository, Subtree, Value};
use tympan_search::{Index, Options};

/// Longer than any healthy catch-up takes.
const PATIENCE: Duration = Duration::from_secs(120);

/// A repository in memory, with an index that follows it.
pub(crate) struct Site {
    pub(crate) repository: Repository,
    pub(crate) index: Index,
    pub(crate) folder: tempfile::TempDir,
}

impl Site {
    pub(crate) fn new() -> Self {
        Self::with(Options::default())
    }

    pub(crate) fn with(options: Options) -> Self {
        let repository = Repository::memory().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let index = Index::open(repository.clone(), folder.path(), options).unwrap();
        let site = Self { repository, index, folder };
        site.put("/content", Subtree::new("", "sling:Folder"));
        site
    }

    /// Puts a document and commits.
    pub(crate) fn put(&self, at: &str, tree: Subtree) {
        let mut session = self.repository.session("author").unwrap();
        session.put(&path(at), tree).unwrap();
        // What is indexed does not depend on what node types allow.
        session.follow();
        session.commit("edit", UNIX_EPOCH).unwrap();
    }

    pub(crate) fn remove(&self, at: &str) {
        let mut session = self.repository.session("author").unwrap();
        session.remove(&path(at)).unwrap();
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
            .with("jcr:mimeType", Property::text(media_type))
            .with("jcr:data", Property::Single(Value::Binary(blob)));
        session.put(&path(at), Subtree::new("", "nt:file").with_child(content)).unwrap();
        session.commit("upload", UNIX_EPOCH).unwrap();
    }

    pub(crate) fn caught_up(&self) -> &Index {
        assert!(self.index.catch_up(PATIENCE), "{:?}", self.index.status(now()));
        &self.index
    }

    /// Returns the paths that match, best first, without `/content/`.
    pub(crate) fn find(&self, expression: TextExpression) -> Vec<String> {
        names(&hits(self.caught_up(), &request(expression)))
    }

    /// Returns the paths that match, sorted.
    pub(crate) fn find_sorted(&self, expression: TextExpression) -> Vec<String> {
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
    let text = Subtree::new("text", "nt:unstructured").with("text", Property::text(text));
    let content = Subtree::new("jcr:content", "cq:PageContent")
        .with("jcr:title", Property::text(title))
        .with_child(text);
    Subtree::new("", "cq:Page").with_child(content)
}

pub(crate) fn term(text: &str) -> TextExpression {
    TextExpression::Term(text.to_owned())
}

pub(crate) fn request(expression: TextExpression) -> TextRequest {
    TextRequest {
        expression,
        property: None,
        node_types: Vec::new(),
        below: None,
        after: None,
        limit: 1000,
        facets: Vec::new(),
        excerpt: false,
    }
}

pub(crate) fn search(index: &Index, request: &TextRequest) -> TextPage {
    index.search(request).unwrap()
}

pub(crate) fn hits(index: &Index, request: &TextRequest) -> Vec<TextHit> {
    search(index, request).hits
}

pub(crate) fn names(hits: &[TextHit]) -> Vec<String> {
    let name = |hit: &TextHit| hit.path.as_str().trim_start_matches("/content/").to_owned();
    hits.iter().map(name).collect()
}

/// Returns everything that an index says about a set of probes, to be compared with another one.
pub(crate) fn probe(index: &Index) -> Vec<String> {
    let words = ["alpha", "beta", "gamma", "delta", "running", "häuser", "a", "0", "tree", "page"];
    let mut expressions: Vec<TextExpression> = words.iter().map(|word| term(word)).collect();
    // All documents.
    expressions.push(TextExpression::Not(Box::new(term("nosuchwordanywhere"))));
    expressions.push(TextExpression::Phrase("alpha beta".to_owned()));
    expressions.push(TextExpression::Prefix("al".to_owned()));
    expressions.push(TextExpression::Wildcard("*m*a".to_owned()));
    expressions.push(TextExpression::And(vec![term("alpha"), term("beta")]));
    let mut said = Vec::new();
    for expression in expressions {
        for property in [None, Some("jcr:title"), Some("jcr:content/jcr:title")] {
            let mut request = request(expression.clone());
            request.property = property.map(str::to_owned);
            request.excerpt = true;
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
    let index = Index::open(repository.clone(), folder, Options::default()).unwrap();
    assert!(index.catch_up(PATIENCE), "{:?}", index.status(now()));
    probe(&index)
}
