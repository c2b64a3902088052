//! Persisted queries, as AEM stores them: `/conf/<site>/settings/graphql/persistentQueries/<name>`, with the text in
//! `jcr:content/jcr:data`.
//!
//! In: an address, or the body of a request to store a query. Out: where it is stored, its text, its variables.

use std::io::Read;

use serde_json::{Map, Value as Json};
use tympan_content::{BlobId, JcrDate, Node, NodePath, Property, Snapshot, Subtree, Value};

use crate::graphql::{MAX_QUERY_BYTES, parse_bounded};
use crate::{Error, Result};

/// The resource types of stored queries.
const QUERY_TYPE: &str = "graphql/persistent/query";
const CONTENT_TYPE: &str = "graphql/persistent/query/content";
/// The folder of the queries of a site.
const QUERIES_FOLDER: &str = "settings/graphql/persistentQueries";

/// The name of a persisted query, with the variables of a request.
#[derive(Debug, Clone, PartialEq)]
pub struct PersistedQueryAddress {
    /// The configuration.
    pub site: String,
    /// The name of the query.
    pub name: String,
    /// The variables as texts, in order.
    pub variables: Vec<(String, String)>,
}

impl PersistedQueryAddress {
    /// Reads the decoded part of a path after `/graphql/execute.json/`, as `<site>/<name>;<variable>=<value>;…`.
    #[must_use]
    pub fn parse(path: &str) -> Option<Self> {
        let (path, rest) = path.split_once(';').unwrap_or((path, ""));
        let (site, name) = path.trim_end_matches('/').split_once('/')?;
        let is_name =
            |name: &str| !name.is_empty() && tympan_content::check_item_name(name).is_ok();
        if !is_name(site) || !is_name(name) {
            return None;
        }
        let variables = rest.split(';').filter_map(|pair| pair.split_once('='));
        let variables = variables.map(|(name, value)| (name.trim().to_owned(), value.to_owned()));
        Some(Self { site: site.to_owned(), name: name.to_owned(), variables: variables.collect() })
    }

    /// Returns the path of the stored query.
    ///
    /// # Errors
    /// If a name is no name of a node.
    pub fn node_path(&self) -> Result<NodePath> {
        Ok(persisted_queries_folder(&self.site)?.child(&self.name)?)
    }
}

/// Returns the folder of the stored queries of a site.
///
/// # Errors
/// If the site is no name of a node.
pub fn persisted_queries_folder(site: &str) -> Result<NodePath> {
    tympan_content::check_item_name(site)?;
    Ok(NodePath::new(&format!("/conf/{site}/{QUERIES_FOLDER}"))?)
}

/// A query to store, or a stored one.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PersistedQuery {
    /// The text of the query.
    pub query: String,
    /// Directives of `Cache-Control`: for browsers.
    pub cache_control: Map<String, Json>,
    /// Directives for caches of all visitors.
    pub surrogate_control: Map<String, Json>,
}

impl PersistedQuery {
    /// Reads the body of a request to store a query: the query alone, or JSON with `query`, `cache-control` and
    /// `surrogate-control`.
    ///
    /// # Errors
    /// [`Error::PersistedQuery`] if there is no query, or a directive is no number.
    pub fn parse(body: &str) -> Result<Self> {
        let refuse = |reason: &str| Err(Error::PersistedQuery { reason: reason.to_owned() });
        let wrapped = serde_json::from_str::<Map<String, Json>>(body).ok();
        let query = match &wrapped {
            Some(wrapped) => match wrapped.get("query").and_then(Json::as_str) {
                Some(query) => query.to_owned(),
                None => return refuse("the JSON has no text `query`"),
            },
            None => body.to_owned(),
        };
        if query.trim().is_empty() {
            return refuse("the query is empty");
        }
        if query.len() > MAX_QUERY_BYTES {
            return refuse("the query is longer than 64 KiB");
        }
        if let Err(reason) = parse_bounded(&query) {
            return refuse(&reason);
        }
        let directives = ["cache-control", "surrogate-control"].map(|name| {
            let wrapped = wrapped.as_ref().and_then(|wrapped| wrapped.get(name));
            wrapped.and_then(Json::as_object).cloned().unwrap_or_default()
        });
        if directives.iter().flatten().any(|(_, seconds)| seconds.as_u64().is_none()) {
            return refuse("the directives of `cache-control` and `surrogate-control` are seconds");
        }
        let [cache_control, surrogate_control] = directives;
        Ok(Self { query, cache_control, surrogate_control })
    }

    /// Reads a stored query; `None` if the node is none.
    ///
    /// # Errors
    /// If the store fails.
    pub fn read(node: &Node) -> Result<Option<Self>> {
        if node.resource_type().as_deref() != Some(QUERY_TYPE) {
            return Ok(None);
        }
        let Some(content) = node.content_node()? else { return Ok(None) };
        let Some(data) = content.property("jcr:data") else { return Ok(None) };
        let query = match data.first() {
            Some(Value::Binary(blob)) => read_text(node.snapshot(), blob)?,
            Some(text) => text.to_text().into_owned(),
            None => return Ok(None),
        };
        let directives = |name: &str| {
            let text = content.text(name)?;
            serde_json::from_str(&text).ok()
        };
        Ok(Some(Self {
            query,
            cache_control: directives("cache-control").unwrap_or_default(),
            surrogate_control: directives("surrogate-control").unwrap_or_default(),
        }))
    }

    /// Returns the node of the query; the text is the value of the binary `data`.
    #[must_use]
    pub fn to_subtree(&self, name: &str, data: Value, now: JcrDate) -> Subtree {
        let mut content = Subtree::new("jcr:content", "nt:unstructured")
            .with_property("jcr:data", Property::Single(data))
            .with_property("jcr:mimeType", "text/html")
            .with_property("jcr:lastModified", Property::Single(Value::Date(now)))
            .with_property("sling:resourceType", CONTENT_TYPE);
        for (name, directives) in
            [("cache-control", &self.cache_control), ("surrogate-control", &self.surrogate_control)]
        {
            if !directives.is_empty() {
                let text = Json::Object(directives.clone()).to_string();
                content = content.with_property(name, &*text);
            }
        }
        Subtree::new(name, "nt:unstructured")
            .with_property("jcr:created", Property::Single(Value::Date(now)))
            .with_property("sling:resourceType", QUERY_TYPE)
            .with_child(content)
    }
}

fn read_text(snapshot: &Snapshot, blob: &BlobId) -> Result<String> {
    let mut text = Vec::new();
    let limit = MAX_QUERY_BYTES as u64 + 1;
    let content = snapshot.open_blob(blob)?;
    content.into_reader().take(limit).read_to_end(&mut text).map_err(|error| {
        Error::PersistedQuery { reason: format!("its text cannot be read: {error}") }
    })?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}
