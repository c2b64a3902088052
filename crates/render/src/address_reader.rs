//! Resolution of addresses without rendering, for callers that must agree with it, such as the static export.
//!
//! In: a snapshot, and addresses as pages write them. Out: the resources, routes and client libraries that a request for
//! them would reach, and the [`DependencySet`] of everything that was read for the answers.
//!
//! On failure: a lookup that fails returns "not found" and stores the error in [`AddressReader::failure`], which the
//! caller checks before it uses an answer.

use std::sync::Arc;

use tympan_content::{Node, NodePath, Snapshot};

use crate::Result;
use crate::client_library::client_library_file::ClientLibraryResolver;
use crate::dependency::DependencySet;
use crate::dependency::content_reader::{ContentReader, ReadRecording};
use crate::page;
use crate::renderer::Renderer;
use crate::script::{CompiledScripts, ScriptCache};
use crate::url::SlingUrl;
use crate::url_route::{RouteTarget, UrlRoutes};

/// The routes and client libraries of a site at one snapshot.
#[derive(Debug)]
pub struct SiteAddresses {
    snapshot: Snapshot,
    routes: Arc<UrlRoutes>,
    script_cache: Arc<ScriptCache>,
    scripts: Arc<CompiledScripts>,
}

impl SiteAddresses {
    /// Loads the routes and scripts of a snapshot, which a renderer shares among all its users.
    ///
    /// # Errors
    /// If the scripts cannot be read.
    pub fn load(renderer: &Renderer, snapshot: &Snapshot) -> Result<Self> {
        let (script_cache, routes) = renderer.scripts_and_routes(snapshot);
        let scripts = script_cache.scripts_at(snapshot)?;
        Ok(Self { snapshot: snapshot.clone(), routes, script_cache, scripts })
    }

    /// Creates a reader without any recorded dependencies.
    #[must_use]
    pub fn reader(&self) -> AddressReader<'_> {
        let content = ContentReader::new(self.snapshot.clone(), ReadRecording::Paths);
        AddressReader { addresses: self, content }
    }
}

/// Resolves addresses and records what the answers depend on.
#[derive(Debug)]
pub struct AddressReader<'a> {
    addresses: &'a SiteAddresses,
    content: ContentReader,
}

impl AddressReader<'_> {
    /// Returns true if a decoded URL path is the address of a file of a client library.
    #[must_use]
    pub fn is_client_library(&self, path: &str) -> bool {
        let libraries = ClientLibraryResolver {
            script_cache: &self.addresses.script_cache,
            joined_libraries: self.addresses.scripts.client_libraries(),
        };
        libraries.find_by_url(&self.content, path).is_some()
    }

    /// Returns the target of a raw URL path for visitors of a host, by mappings, vanity paths and aliases; `None` if the
    /// path leads to a resource by itself, or nowhere.
    #[must_use]
    pub fn resolve_route(&self, scheme: &str, host: &str, path: &str) -> Option<RouteTarget> {
        self.addresses.routes.resolve(scheme, host, path, |path| {
            SlingUrl::split(path, |path| self.resource_at(path).is_some())
                .is_ok_and(|url| url.exists)
        })
    }

    /// Finds the resource at a decoded path. Only its existence and primary type are recorded.
    #[must_use]
    pub fn resource_at(&self, path: &str) -> Option<Node> {
        self.content.resource_at(path)
    }

    /// Finds a node. Only its existence and primary type are recorded.
    #[must_use]
    pub fn node_existence(&self, path: &NodePath) -> Option<Node> {
        self.content.node_existence(path)
    }

    /// Reads the text of a property of a node, and records it.
    #[must_use]
    pub fn text_property(&self, node: &Node, name: &str) -> Option<String> {
        self.content.text_property(node, name)
    }

    /// Finds the content node of a page. Only its existence and primary type are recorded.
    #[must_use]
    pub fn page_content(&self, page: &Node) -> Option<Node> {
        page::page_content(&self.content, page)
    }

    /// Records a whole document as read, for an answer that another service gives about it.
    pub fn record_document(&self, node: &Node) {
        self.content.record_document(node);
    }

    /// Returns the first error of a lookup.
    #[must_use]
    pub fn failure(&self) -> Option<&tympan_content::Error> {
        self.content.failure()
    }

    /// Takes the dependencies of all answers so far.
    #[must_use]
    pub fn take_dependencies(&self) -> DependencySet {
        self.content.take_reads().dependencies()
    }
}
