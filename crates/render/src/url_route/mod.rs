//! Routing of a request before its path is split: mappings, vanity paths and aliases.
//!
//! Input: scheme, host and path of a request. Output: the path to split, or a redirect. In reverse: the external
//! address of a path.
//!
//! The order is Sling's: `/etc/map`, vanity paths, the path itself, vanity paths as requested before `/etc/map`,
//! aliases.
//!
//! Invariants
//! * A table belongs to one state of content and is read once for it, by one of the requests; other requests only need
//!   lookups in memory. A table with many names is read again only after a change of names.
//! * No name leads to a target that the viewer may not see.
//! * Vanity paths and aliases are found by the indexes `slingVanityPath` and `slingAlias` below `/oak:index`. Without
//!   the index there are none: no request walks content.
//!
//! Not here: splitting a path into resource, selectors and extension (`url`).

pub(crate) mod strict_url;

mod mapping;
mod route_target;
mod vanity;

use std::sync::Arc;

use parking_lot::{Mutex, RwLock};
use percent_encoding::percent_decode_str;
use tympan_content::{ChunkId, Node, NodePath, Snapshot, Viewer};
use tympan_content_query::{QueryEngine, QueryRequest, parse_sql2};

use self::mapping::UrlMappings;
pub use self::route_target::RouteTarget;
use self::vanity::{PathAliases, VanityPaths};
use crate::dependency::changed_aspects::ChangedAspects;
use crate::page::link::encode_path;

/// Maximum number of nodes with vanity paths or aliases; more are ignored with a warning.
const MAX_ROUTE_NAMES: u64 = 50_000;
/// Number of states with cached tables: the newest, and those of requests that began earlier or use branches.
const MAX_CACHED_STATES: usize = 4;
/// With more names than this, reading a table costs more than comparing two states.
const COMPARE_STATES_THRESHOLD: usize = 100;

/// Mappings, vanity paths and aliases of one state.
#[derive(Debug, Default)]
pub(crate) struct UrlRoutes {
    mappings: UrlMappings,
    vanities: VanityPaths,
    aliases: PathAliases,
    /// True if both indexes exist.
    is_complete: bool,
}

/// The routes of recently requested states.
#[derive(Debug, Default)]
pub(crate) struct UrlRouteTable {
    cached_routes: RwLock<Vec<(Snapshot, Arc<UrlRoutes>)>>,
    /// Held while routes are read.
    load_lock: Mutex<()>,
}

impl UrlRouteTable {
    /// Returns the routes of a snapshot.
    pub(crate) fn routes_at(&self, snapshot: &Snapshot, queries: &QueryEngine) -> Arc<UrlRoutes> {
        let root = snapshot.root_id();
        if let Some(routes) = self.cached_at(root) {
            return routes;
        }
        // One request reads them, and the others reuse the result.
        let _turn = self.load_lock.lock();
        if let Some(routes) = self.cached_at(root) {
            return routes;
        }
        let snapshot = snapshot.as_viewer(&Viewer::system());
        let latest = self.cached_routes.read().first().cloned();
        let same = latest.filter(|(cached_snapshot, routes)| {
            routes.is_complete
                && routes.name_count() >= COMPARE_STATES_THRESHOLD
                && !may_routes_differ(cached_snapshot, &snapshot)
        });
        let routes = match same {
            Some((_, routes)) => routes,
            None => Arc::new(UrlRoutes::read_routes(&snapshot, queries)),
        };
        let mut cached_routes = self.cached_routes.write();
        cached_routes.insert(0, (snapshot, Arc::clone(&routes)));
        cached_routes.truncate(MAX_CACHED_STATES);
        routes
    }

    fn cached_at(&self, root: ChunkId) -> Option<Arc<UrlRoutes>> {
        let cached_routes = self.cached_routes.read();
        let entry = cached_routes.iter().find(|(snapshot, _)| snapshot.root_id() == root);
        entry.map(|(_, routes)| Arc::clone(routes))
    }
}

/// Returns true if routes may differ between two states.
fn may_routes_differ(before: &Snapshot, after: &Snapshot) -> bool {
    // A state that can no longer be compared may have had other routes.
    ChangedAspects::between_snapshots(before, after)
        .map_or(true, |touched| touched.is_everything_changed())
}

impl UrlRoutes {
    fn read_routes(snapshot: &Snapshot, queries: &QueryEngine) -> Self {
        let map = NodePath::new("/etc/map").ok().and_then(|path| snapshot.node(&path).ok()?);
        let vanities =
            nodes_with_property(snapshot, queries, "sling:vanityPath", "slingVanityPath");
        let aliases = nodes_with_property(snapshot, queries, "sling:alias", "slingAlias");
        Self {
            mappings: map.map(|map| UrlMappings::read_mappings(&map)).unwrap_or_default(),
            is_complete: vanities.is_some() && aliases.is_some(),
            vanities: VanityPaths::from_nodes(&vanities.unwrap_or_default()),
            aliases: PathAliases::from_nodes(&aliases.unwrap_or_default()),
        }
    }

    /// Returns the number of names.
    fn name_count(&self) -> usize {
        self.vanities.len() + self.aliases.len()
    }

    /// Resolves a raw path; `find` returns true if the viewer sees a resource at a raw path.
    pub(crate) fn resolve(
        &self,
        scheme: &str,
        host: &str,
        raw: &str,
        find: impl Fn(&str) -> bool,
    ) -> Option<RouteTarget> {
        if self.is_empty() {
            return None;
        }
        // Path parameters belong to the rest of the path.
        let (path, parameters) = raw.split_at(raw.find(';').unwrap_or(raw.len()));
        let decoded_path = percent_decode_str(path).decode_utf8().ok()?;
        let with_parameters = |path: &str| format!("{}{parameters}", encode_path(path));
        let mapped = match self
            .mappings
            .resolve(scheme, host, &decoded_path, |path| find(&encode_path(path)))
        {
            Some(RouteTarget::Internal(path)) => Some(path),
            Some(elsewhere) => return Some(elsewhere),
            None => None,
        };
        let path = mapped.as_deref().unwrap_or(&decoded_path);
        let sees = |path: &NodePath| find(&encode_path(path.as_str()));
        let vanity = |path: &str| {
            Some(match self.vanities.resolve(path, sees)? {
                RouteTarget::Internal(path) => RouteTarget::Internal(with_parameters(&path)),
                elsewhere @ RouteTarget::Redirect { .. } => elsewhere,
            })
        };
        if let Some(target) = vanity(path) {
            return Some(target);
        }
        let is_there = match mapped {
            // The path has the same meaning as requested.
            None if parameters.is_empty() => find(raw),
            _ => find(&encode_path(path)),
        };
        if is_there {
            return mapped.map(|path| RouteTarget::Internal(with_parameters(&path)));
        }
        // Vanity paths are whole paths, without the folder that represents a host.
        if mapped.is_some()
            && let Some(target) = vanity(&decoded_path)
        {
            return Some(target);
        }
        let aliased = self.aliases.resolve(path);
        aliased.or(mapped).map(|path| RouteTarget::Internal(with_parameters(&path)))
    }

    /// Returns the external address of a content address for visitors of a host.
    pub(crate) fn external_url(&self, scheme: &str, host: &str, address: String) -> String {
        self.mappings.external_url(scheme, host, &address).unwrap_or(address)
    }

    /// Returns true if addresses depend on the host.
    pub(crate) fn has_mappings(&self) -> bool {
        !self.mappings.is_empty()
    }

    fn is_empty(&self) -> bool {
        self.mappings.is_empty() && self.vanities.is_empty() && self.aliases.is_empty()
    }
}

/// Finds the nodes below `/content` that have a property, by its index; none without the index.
fn nodes_with_property(
    snapshot: &Snapshot,
    queries: &QueryEngine,
    property: &str,
    index: &str,
) -> Option<Vec<Node>> {
    // Naming the index forces its use even if the content is so small that a walk would cost less.
    let statement = format!(
        "SELECT * FROM [nt:base] AS node WHERE ISDESCENDANTNODE(node, '/content') AND node.[{property}] IS NOT NULL \
         OPTION(TRAVERSAL FAIL, INDEX NAME [{index}])"
    );
    let result = parse_sql2(&statement).ok().map(|query| {
        let mut request = QueryRequest::new(query);
        request.limit = Some(MAX_ROUTE_NAMES);
        request.component = "routes";
        queries.query_page(snapshot, &request)
    });
    match result {
        Some(Ok(page)) => {
            if page.cursor.is_some() {
                tracing::warn!(
                    reason = "too-many-names",
                    property,
                    "too many page names; some are left out"
                );
            }
            Some(page.rows.iter().filter_map(|row| row.node().cloned()).collect())
        }
        Some(Err(error)) => {
            tracing::debug!(property, %error, "property has no index, so it names no pages");
            None
        }
        None => None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use tympan_content::{Property, Repository, Session, Subtree, Value, ValueType};

    use super::*;

    fn path(text: &str) -> NodePath {
        NodePath::new(text).unwrap()
    }

    fn edit(repository: &Repository, change: impl FnOnce(&mut Session)) {
        let mut session = repository.session("test").unwrap();
        change(&mut session);
        session.commit("test", SystemTime::UNIX_EPOCH).unwrap();
    }

    /// Creates pages with vanity paths, and their indexes.
    fn repository(pages: usize) -> Repository {
        let repository = Repository::in_memory().unwrap();
        let index = |name: &str, property: &str| {
            let names = vec![Value::String(property.to_owned())];
            Subtree::new(name, "oak:QueryIndexDefinition")
                .with_property("type", "property")
                .with_property("propertyNames", Property::List(ValueType::String, names))
        };
        edit(&repository, |session| {
            let indexes = Subtree::new("oak:index", "nt:unstructured")
                .with_child(index("slingVanityPath", "sling:vanityPath"))
                .with_child(index("slingAlias", "sling:alias"));
            session.put_node(&path("/oak:index"), indexes).unwrap();
            session.put_node(&path("/content"), Subtree::new("content", "sling:Folder")).unwrap();
            for number in 0..pages {
                let content = Subtree::new("jcr:content", "cq:PageContent")
                    .with_property("sling:vanityPath", &*format!("/{number}"));
                let page = Subtree::new("", "cq:Page").with_child(content);
                session.put_node(&path(&format!("/content/{number}")), page).unwrap();
            }
        });
        repository.build_indexes().unwrap();
        repository
    }

    #[test]
    fn many_names_are_read_again_after_a_change_of_names_only() {
        let repository = repository(COMPARE_STATES_THRESHOLD);
        let (table, queries) = (UrlRouteTable::default(), QueryEngine::default());
        let routes = || table.routes_at(&repository.snapshot().unwrap(), &queries);
        let leads = |routes: &UrlRoutes, requested_path: &str| {
            routes.resolve("http", "", requested_path, |_| true)
        };
        let before = repository.snapshot().unwrap();
        let first = routes();
        assert_eq!(leads(&first, "/7"), Some(RouteTarget::Internal("/content/7.html".to_owned())));
        let content = path("/content/7/jcr:content");
        let set = |name: &str| {
            edit(&repository, |session| {
                session.set_property(&content, name, "/other".into()).unwrap();
            });
        };
        set("jcr:title");
        assert!(Arc::ptr_eq(&first, &routes()), "a title is no name");
        set("sling:vanityPath");
        let second = routes();
        assert_eq!(
            leads(&second, "/other"),
            Some(RouteTarget::Internal("/content/7.html".to_owned()))
        );
        assert_ne!(leads(&second, "/7"), leads(&first, "/7"));
        // A request that began earlier, or uses a branch, does not affect the others.
        assert!(Arc::ptr_eq(&first, &table.routes_at(&before, &queries)));
        assert!(Arc::ptr_eq(&second, &routes()));
        edit(&repository, |session| session.remove_node(&path("/content/7")).unwrap());
        assert_ne!(leads(&routes(), "/other"), leads(&second, "/other"));
    }

    #[test]
    fn one_reads_the_names_for_all_who_ask() {
        let repository = repository(COMPARE_STATES_THRESHOLD);
        let (table, queries) = (UrlRouteTable::default(), QueryEngine::default());
        let snapshot = repository.snapshot().unwrap();
        let begin = std::sync::Barrier::new(8);
        let routes: Vec<Arc<UrlRoutes>> = std::thread::scope(|scope| {
            let ask = || {
                begin.wait();
                table.routes_at(&snapshot, &queries)
            };
            let asking: Vec<_> = (0..8).map(|_| scope.spawn(ask)).collect();
            asking.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(routes.iter().all(|one| Arc::ptr_eq(one, &routes[0])));
    }
}
