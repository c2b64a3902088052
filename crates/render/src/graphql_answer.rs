//! Answers of GraphQL on content fragments, with the dependencies that a page has.
//!
//! In: the address of a persisted query, or a query of a site's endpoint. Out: the answer.
//!
//! Invariants
//! * A property that an answer shows is recorded by its name, and a list by its query, so that a change of a fragment
//!   concerns only the answers that show it.
//! * Stored queries and models are read for all users, as the scripts of components are; fragments are read as the user
//!   sees them.
//! * An answer for a logged-in user is for that user alone.
//!
//! Not here: the language and the schema (`content-fragments`), HTTP (`server`).

use std::sync::Arc;

use percent_encoding::percent_decode_str;
use tympan_content::{Node, NodePath, Property};
use tympan_content_fragments::{
    FragmentContent, FragmentIndexCache, FragmentListQuery, FragmentPage, GLOBAL_SITE,
    GraphqlAnswer, GraphqlRequest, PersistedQuery, PersistedQueryAddress, SiteSchemaCache,
    model_folders,
};

use crate::dependency::content_reader::ContentReader;
use crate::page::list_query::{ListQuery, ListQueryKind};

/// The folder of fragments, as a path that needs no check.
const FRAGMENTS_ROOT: &str = "/content/dam";

/// Runs queries. One service serves all threads.
#[derive(Debug, Default)]
pub(crate) struct GraphqlService {
    schemas: SiteSchemaCache,
    fragments: Arc<FragmentIndexCache>,
}

/// The answer to a persisted query.
#[derive(Debug)]
pub(crate) enum PersistedAnswer {
    /// There is no such query.
    NotFound,
    /// An answer.
    Answer {
        /// JSON.
        body: Vec<u8>,
        /// The directives that are stored with the query.
        cache_control: Option<String>,
        /// False if caches must not hold it: it has errors only, or its address has variables of no effect.
        is_cacheable: bool,
    },
}

impl GraphqlService {
    /// Runs a query on the fragments of a site.
    ///
    /// # Errors
    /// If the site has no models, or content cannot be read.
    pub(crate) fn run(
        &self,
        reader: &Arc<ContentReader>,
        site: &str,
        request: &GraphqlRequest,
    ) -> tympan_content_fragments::Result<GraphqlAnswer> {
        let settings = reader.settings_snapshot();
        if site == GLOBAL_SITE {
            reader.record_subtree(&NodePath::new("/conf")?);
        }
        for folder in model_folders(settings, site)? {
            reader.record_subtree(&folder);
        }
        let schema = self.schemas.schema_at(settings, site)?;
        let content =
            RecordedContent { reader: Arc::clone(reader), fragments: Arc::clone(&self.fragments) };
        Ok(schema.execute(request, Arc::new(content)))
    }

    /// Runs the persisted query of an address, which is still percent-encoded.
    pub(crate) fn run_persisted(
        &self,
        reader: &Arc<ContentReader>,
        address: &str,
    ) -> PersistedAnswer {
        let decoded = percent_decode_str(address).decode_utf8().ok();
        let Some(address) = decoded.and_then(|path| PersistedQueryAddress::parse(&path)) else {
            return PersistedAnswer::NotFound;
        };
        let Ok(path) = address.node_path() else { return PersistedAnswer::NotFound };
        let node = reader.settings_subtree(&path);
        let query = node.map(|node| PersistedQuery::read(&node)).transpose();
        let query = match query.map(Option::flatten) {
            Ok(Some(query)) => query,
            Ok(None) => return PersistedAnswer::NotFound,
            Err(error) => return failed_answer(&error),
        };
        let cache_control = cache_control_text(&query);
        let request = GraphqlRequest {
            query: query.query,
            text_variables: address.variables,
            ..GraphqlRequest::default()
        };
        match self.run(reader, &address.site, &request) {
            Ok(answer) => PersistedAnswer::Answer {
                body: serde_json::to_vec(&answer.body).unwrap_or_default(),
                cache_control,
                is_cacheable: answer.has_data && !answer.has_unknown_variables,
            },
            Err(error) => failed_answer(&error),
        }
    }
}

/// Returns the answer to a query that cannot be run.
fn failed_answer(error: &tympan_content_fragments::Error) -> PersistedAnswer {
    let answer = GraphqlAnswer::refused(&error.to_string());
    PersistedAnswer::Answer {
        body: serde_json::to_vec(&answer.body).unwrap_or_default(),
        cache_control: None,
        is_cacheable: false,
    }
}

/// Returns the directives that are stored with a query, in the form of `Cache-Control`: those for caches of all visitors
/// have an `s-` before `max-age`.
fn cache_control_text(query: &PersistedQuery) -> Option<String> {
    let browser = query.cache_control.iter().map(|(name, seconds)| format!("{name}={seconds}"));
    let shared = query.surrogate_control.iter().map(|(name, seconds)| match &**name {
        "max-age" => format!("s-maxage={seconds}"),
        name => format!("{name}={seconds}"),
    });
    let is_directive = |directive: &String| {
        directive.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'='))
    };
    let directives: Vec<String> = browser.chain(shared).filter(is_directive).collect();
    (!directives.is_empty()).then(|| directives.join(", "))
}

/// Reads content for an answer, and records the reads.
struct RecordedContent {
    reader: Arc<ContentReader>,
    fragments: Arc<FragmentIndexCache>,
}

impl RecordedContent {
    fn read_page(&self, query: &FragmentListQuery) -> FragmentPage {
        let index = self.fragments.index_at(self.reader.viewer_snapshot());
        match index.and_then(|index| query.evaluate(&index)) {
            Ok(page) => page,
            Err(error) => {
                self.reader.record_failure(error);
                FragmentPage::default()
            }
        }
    }
}

impl FragmentContent for RecordedContent {
    fn node(&self, path: &NodePath) -> Option<Node> {
        self.reader.node_existence(path)
    }

    fn child(&self, node: &Node, name: &str) -> Option<Node> {
        self.reader.child_existence(node, name)
    }

    fn children(&self, node: &Node) -> Vec<Node> {
        self.reader.children_existence(node)
    }

    fn property(&self, node: &Node, name: &str) -> Option<Property> {
        self.reader.property(node, name)
    }

    fn properties(&self, node: &Node) -> Vec<(String, Property)> {
        self.reader.record_properties(node);
        node.properties()
    }

    fn select_fragments(&self, query: &FragmentListQuery) -> FragmentPage {
        let Ok(root) = NodePath::new(FRAGMENTS_ROOT) else { return FragmentPage::default() };
        let kind = ListQueryKind::Fragments { root, query: Box::new(query.clone()) };
        if ListQuery::new(kind.clone()).is_none() {
            // A query that is too long to be repeated depends on all fragments.
            self.reader.record_subtree(kind.root());
            return self.read_page(query);
        }
        self.reader.read_list(kind, || self.read_page(query))
    }

    fn count_fragments(&self, model: &str) -> usize {
        let index = self.fragments.index_at(self.reader.viewer_snapshot());
        index.map_or(0, |index| index.fragments_of(model).len())
    }
}
