//! Where a request leads before its path is split: mappings, vanity paths and aliases.
//!
//! In: scheme, host and path of a request. Out: the path to split, or a redirect. The other way round: the address that
//! visitors see for a path.
//!
//! The order is Sling's: `/etc/map`, vanity paths, the path itself, aliases.
//!
//! Invariants
//! * A table belongs to one state of content and is read once for it; a request costs look-ups in memory.
//! * Who may not see a target is not led there, by whatever name.
//! * Vanity paths and aliases are found by the indexes `slingVanityPath` and `slingAlias` below `/oak:index`. Without the index there are none: no request walks content.
//!
//! Not here: splitting a path into resource, selectors and extension (`url`).

mod mapping;
mod vanity;

use std::sync::Arc;

use parking_lot::RwLock;
use percent_encoding::percent_decode_str;
use tympan_content::query::{QueryEngine, Request, parse_sql2};
use tympan_content::{ChunkId, Node, NodePath, Snapshot, Viewer};

use self::mapping::Mappings;
use self::vanity::{Aliases, Vanities};
use crate::link::encode_path;
use crate::response::Redirect;

/// More nodes with vanity paths or aliases than this are left out, with a warning.
const MOST_NAMES: u64 = 50_000;

/// Where a request leads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Way {
    /// To this path, percent-encoded.
    Path(String),
    /// To another address.
    Elsewhere { location: String, kind: Redirect },
}

/// Mappings, vanity paths and aliases of one state.
#[derive(Debug, Default)]
pub(crate) struct Routes {
    mappings: Mappings,
    vanities: Vanities,
    aliases: Aliases,
}

/// The routes of the newest state that was asked for.
#[derive(Debug, Default)]
pub(crate) struct RouteTable(RwLock<Option<(ChunkId, Arc<Routes>)>>);

impl RouteTable {
    /// Returns the routes of a snapshot.
    pub(crate) fn at(&self, snapshot: &Snapshot, queries: &QueryEngine) -> Arc<Routes> {
        let root = snapshot.root_id();
        if let Some((known, routes)) = &*self.0.read()
            && *known == root
        {
            return Arc::clone(routes);
        }
        let routes = Arc::new(Routes::read(&snapshot.seen_by(&Viewer::system()), queries));
        *self.0.write() = Some((root, Arc::clone(&routes)));
        routes
    }
}

impl Routes {
    fn read(snapshot: &Snapshot, queries: &QueryEngine) -> Self {
        let map = NodePath::new("/etc/map").ok().and_then(|path| snapshot.node(&path).ok()?);
        Self {
            mappings: map.map(|map| Mappings::read(&map)).unwrap_or_default(),
            vanities: Vanities::of(&nodes_with(
                snapshot,
                queries,
                "sling:vanityPath",
                "slingVanityPath",
            )),
            aliases: Aliases::of(&nodes_with(snapshot, queries, "sling:alias", "slingAlias")),
        }
    }

    /// Finds out where a raw path leads; `find` tells whether the viewer sees a resource at a raw path.
    pub(crate) fn lead(
        &self,
        scheme: &str,
        host: &str,
        raw: &str,
        find: impl Fn(&str) -> bool,
    ) -> Option<Way> {
        if self.is_empty() {
            return None;
        }
        // Parameters of the path belong to what follows.
        let (path, parameters) = raw.split_at(raw.find(';').unwrap_or(raw.len()));
        let path = percent_decode_str(path).decode_utf8().ok()?;
        let with_parameters = |path: &str| format!("{}{parameters}", encode_path(path));
        let mapped = match self.mappings.lead(scheme, host, &path, |path| find(&encode_path(path)))
        {
            Some(Way::Path(path)) => Some(path),
            Some(elsewhere) => return Some(elsewhere),
            None => None,
        };
        let path = mapped.as_deref().unwrap_or(&path);
        let sees = |path: &NodePath| find(&encode_path(path.as_str()));
        match self.vanities.lead(path, sees) {
            Some(Way::Path(path)) => return Some(Way::Path(with_parameters(&path))),
            Some(elsewhere) => return Some(elsewhere),
            None => {}
        }
        let is_there = match mapped {
            // As it was sent it means the same.
            None if parameters.is_empty() => find(raw),
            _ => find(&encode_path(path)),
        };
        if is_there {
            return mapped.map(|path| Way::Path(with_parameters(&path)));
        }
        let aliased = self.aliases.lead(path);
        aliased.or(mapped).map(|path| Way::Path(with_parameters(&path)))
    }

    /// Returns the address that visitors of a host use for an address of content.
    pub(crate) fn outward(&self, scheme: &str, host: &str, address: String) -> String {
        self.mappings.outward(scheme, host, &address).unwrap_or(address)
    }

    /// Tells whether addresses depend on the host.
    pub(crate) fn has_mappings(&self) -> bool {
        !self.mappings.is_empty()
    }

    fn is_empty(&self) -> bool {
        self.mappings.is_empty() && self.vanities.is_empty() && self.aliases.is_empty()
    }
}

/// Finds the nodes below `/content` that have a property, by its index.
fn nodes_with(
    snapshot: &Snapshot,
    queries: &QueryEngine,
    property: &str,
    index: &str,
) -> Vec<Node> {
    // Named, the index is used even where the content is so small that a walk would cost less.
    let statement = format!(
        "SELECT * FROM [nt:base] AS node WHERE ISDESCENDANTNODE(node, '/content') AND node.[{property}] IS NOT NULL \
         OPTION(TRAVERSAL FAIL, INDEX NAME [{index}])"
    );
    let found = parse_sql2(&statement).ok().map(|query| {
        let mut request = Request::new(query);
        request.limit = Some(MOST_NAMES);
        request.component = "routes";
        queries.page(snapshot, &request)
    });
    match found {
        Some(Ok(page)) => {
            if page.cursor.is_some() {
                tracing::warn!(
                    reason = "too-many-names",
                    property,
                    "some names of pages are left out"
                );
            }
            page.rows.iter().filter_map(|row| row.node().cloned()).collect()
        }
        Some(Err(error)) => {
            tracing::debug!(property, %error, "no index of this property, so it names no pages");
            Vec::new()
        }
        None => Vec::new(),
    }
}

/// Returns the texts of a property.
fn texts(node: &Node, property: &str) -> Vec<String> {
    let property = node.property(property);
    property
        .map(|found| found.values().iter().map(|value| value.to_text().into_owned()).collect())
        .unwrap_or_default()
}

/// Reads the kind of a redirect.
fn redirect_kind(node: &Node, property: &str) -> Redirect {
    let number = texts(node, property).first().and_then(|text| text.parse().ok());
    number.and_then(Redirect::from_number).unwrap_or_default()
}
