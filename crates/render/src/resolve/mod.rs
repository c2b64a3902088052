//! Where a request leads before its path is split: mappings, vanity paths and aliases.
//!
//! In: scheme, host and path of a request. Out: the path to split, or a redirect. The other way round: the address that
//! visitors see for a path.
//!
//! The order is Sling's: `/etc/map`, vanity paths, the path itself, vanity paths as they were asked for before `/etc/map`,
//! aliases.
//!
//! Invariants
//! * A table belongs to one state of content and is read once for it, by one of those who ask; a request costs look-ups in
//!   memory. One with many names is read again only after a change of names.
//! * Who may not see a target is not led there, by whatever name.
//! * Vanity paths and aliases are found by the indexes `slingVanityPath` and `slingAlias` below `/oak:index`. Without the index there are none: no request walks content.
//!
//! Not here: splitting a path into resource, selectors and extension (`url`).

mod mapping;
mod vanity;

use std::sync::Arc;

use parking_lot::{Mutex, RwLock};
use percent_encoding::percent_decode_str;
use tympan_content::query::{QueryEngine, Request, parse_sql2};
use tympan_content::{ChunkId, Node, NodePath, Snapshot, Viewer};

use self::mapping::Mappings;
use self::vanity::{Aliases, Vanities};
use crate::link::encode_path;
use crate::response::Redirect;
use crate::touched::Touched;

/// More nodes with vanity paths or aliases than this are left out, with a warning.
const MOST_NAMES: u64 = 50_000;
/// States whose tables are kept: the newest, and those of requests that began earlier or look at branches.
const STATES: usize = 4;
/// With more names, a table costs more to read than two states cost to compare.
const MANY_NAMES: usize = 100;

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
    /// Whether both indexes were there.
    is_whole: bool,
}

/// The routes of the states that were asked for lately.
#[derive(Debug, Default)]
pub(crate) struct RouteTable {
    known: RwLock<Vec<(Snapshot, Arc<Routes>)>>,
    /// Held by who reads routes.
    reading: Mutex<()>,
}

impl RouteTable {
    /// Returns the routes of a snapshot.
    pub(crate) fn at(&self, snapshot: &Snapshot, queries: &QueryEngine) -> Arc<Routes> {
        let root = snapshot.root_id();
        if let Some(routes) = self.known_at(root) {
            return routes;
        }
        // One reads them, and the others take what it has read.
        let _turn = self.reading.lock();
        if let Some(routes) = self.known_at(root) {
            return routes;
        }
        let snapshot = snapshot.seen_by(&Viewer::system());
        let latest = self.known.read().first().cloned();
        let same = latest.filter(|(known, routes)| {
            routes.is_whole && routes.len() >= MANY_NAMES && !are_led_otherwise(known, &snapshot)
        });
        let routes = match same {
            Some((_, routes)) => routes,
            None => Arc::new(Routes::read(&snapshot, queries)),
        };
        let mut known = self.known.write();
        known.insert(0, (snapshot, Arc::clone(&routes)));
        known.truncate(STATES);
        routes
    }

    fn known_at(&self, root: ChunkId) -> Option<Arc<Routes>> {
        let known = self.known.read();
        let found = known.iter().find(|(known, _)| known.root_id() == root);
        found.map(|(_, routes)| Arc::clone(routes))
    }
}

/// Tells whether routes may differ between two states.
fn are_led_otherwise(before: &Snapshot, after: &Snapshot) -> bool {
    // A state that cannot be compared any more may have had others.
    Touched::between(before, after).map_or(true, |touched| touched.is_everything())
}

impl Routes {
    fn read(snapshot: &Snapshot, queries: &QueryEngine) -> Self {
        let map = NodePath::new("/etc/map").ok().and_then(|path| snapshot.node(&path).ok()?);
        let vanities = nodes_with(snapshot, queries, "sling:vanityPath", "slingVanityPath");
        let aliases = nodes_with(snapshot, queries, "sling:alias", "slingAlias");
        Self {
            mappings: map.map(|map| Mappings::read(&map)).unwrap_or_default(),
            is_whole: vanities.is_some() && aliases.is_some(),
            vanities: Vanities::of(&vanities.unwrap_or_default()),
            aliases: Aliases::of(&aliases.unwrap_or_default()),
        }
    }

    /// Returns how many names there are.
    fn len(&self) -> usize {
        self.vanities.len() + self.aliases.len()
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
        let asked = percent_decode_str(path).decode_utf8().ok()?;
        let with_parameters = |path: &str| format!("{}{parameters}", encode_path(path));
        let mapped = match self.mappings.lead(scheme, host, &asked, |path| find(&encode_path(path)))
        {
            Some(Way::Path(path)) => Some(path),
            Some(elsewhere) => return Some(elsewhere),
            None => None,
        };
        let path = mapped.as_deref().unwrap_or(&asked);
        let sees = |path: &NodePath| find(&encode_path(path.as_str()));
        let vanity = |path: &str| {
            Some(match self.vanities.lead(path, sees)? {
                Way::Path(path) => Way::Path(with_parameters(&path)),
                elsewhere @ Way::Elsewhere { .. } => elsewhere,
            })
        };
        if let Some(way) = vanity(path) {
            return Some(way);
        }
        let is_there = match mapped {
            // As it was sent it means the same.
            None if parameters.is_empty() => find(raw),
            _ => find(&encode_path(path)),
        };
        if is_there {
            return mapped.map(|path| Way::Path(with_parameters(&path)));
        }
        // Vanity paths are whole paths, and know nothing of the folder that stands for a host.
        if mapped.is_some()
            && let Some(way) = vanity(&asked)
        {
            return Some(way);
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

/// Finds the nodes below `/content` that have a property, by its index; nothing without the index.
fn nodes_with(
    snapshot: &Snapshot,
    queries: &QueryEngine,
    property: &str,
    index: &str,
) -> Option<Vec<Node>> {
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
            Some(page.rows.iter().filter_map(|row| row.node().cloned()).collect())
        }
        Some(Err(error)) => {
            tracing::debug!(property, %error, "no index of this property, so it names no pages");
            None
        }
        None => None,
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

    /// Makes pages with vanity paths, and the indexes by which they are found.
    fn repository(pages: usize) -> Repository {
        let repository = Repository::memory().unwrap();
        let index = |name: &str, property: &str| {
            let names = vec![Value::String(property.to_owned())];
            Subtree::new(name, "oak:QueryIndexDefinition")
                .with("type", "property")
                .with("propertyNames", Property::List(ValueType::String, names))
        };
        edit(&repository, |session| {
            let indexes = Subtree::new("oak:index", "nt:unstructured")
                .with_child(index("slingVanityPath", "sling:vanityPath"))
                .with_child(index("slingAlias", "sling:alias"));
            session.put(&path("/oak:index"), indexes).unwrap();
            session.put(&path("/content"), Subtree::new("content", "sling:Folder")).unwrap();
            for number in 0..pages {
                let content = Subtree::new("jcr:content", "cq:PageContent")
                    .with("sling:vanityPath", &*format!("/{number}"));
                let page = Subtree::new("", "cq:Page").with_child(content);
                session.put(&path(&format!("/content/{number}")), page).unwrap();
            }
        });
        repository.build_indexes().unwrap();
        repository
    }

    #[test]
    fn many_names_are_read_again_after_a_change_of_names_only() {
        let repository = repository(MANY_NAMES);
        let (table, queries) = (RouteTable::default(), QueryEngine::default());
        let routes = || table.at(&repository.snapshot().unwrap(), &queries);
        let leads = |routes: &Routes, asked: &str| routes.lead("http", "", asked, |_| true);
        let before = repository.snapshot().unwrap();
        let first = routes();
        assert_eq!(leads(&first, "/7"), Some(Way::Path("/content/7.html".to_owned())));
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
        assert_eq!(leads(&second, "/other"), Some(Way::Path("/content/7.html".to_owned())));
        assert_ne!(leads(&second, "/7"), leads(&first, "/7"));
        // A request that began earlier, or looks at a branch, costs the others nothing.
        assert!(Arc::ptr_eq(&first, &table.at(&before, &queries)));
        assert!(Arc::ptr_eq(&second, &routes()));
        edit(&repository, |session| session.remove(&path("/content/7")).unwrap());
        assert_ne!(leads(&routes(), "/other"), leads(&second, "/other"));
    }

    #[test]
    fn one_reads_the_names_for_all_who_ask() {
        let repository = repository(MANY_NAMES);
        let (table, queries) = (RouteTable::default(), QueryEngine::default());
        let snapshot = repository.snapshot().unwrap();
        let begin = std::sync::Barrier::new(8);
        let routes: Vec<Arc<Routes>> = std::thread::scope(|scope| {
            let ask = || {
                begin.wait();
                table.at(&snapshot, &queries)
            };
            let asking: Vec<_> = (0..8).map(|_| scope.spawn(ask)).collect();
            asking.into_iter().map(|one| one.join().unwrap()).collect()
        });
        assert!(routes.iter().all(|one| Arc::ptr_eq(one, &routes[0])));
    }
}
