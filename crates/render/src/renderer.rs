//! The renderer: one request in, one response out.
//!
//! Input: a pinned snapshot and a [`RenderRequest`]. Output: always a [`RenderResponse`]; failures are outcomes.
//!
//! The order of decisions: client libraries, persisted queries, mappings and vanity paths, resolution, aliases, redirects, a script for
//! the resource, a script for the content of a page, the default output for the extension, the error page.
//!
//! Not here: access control (`server`), caching of fragments.

use std::sync::Arc;

use tympan_content::{Repository, Snapshot, Viewer};
use tympan_content_fragments::{GraphqlAnswer, GraphqlRequest};
use tympan_content_query::QueryEngine;

use crate::backend::BackendRegistry;
use crate::dependency::content_reader::{ContentReader, ReadRecording};
use crate::fragment::FragmentCache;
use crate::graphql_answer::GraphqlService;
use crate::image_address::ImageSigningKey;
use crate::render_options::{RenderMode, RenderOptions};
use crate::request::RenderRequest;
use crate::request_renderer::{DraftResponse, RequestFault, RequestRenderer};
use crate::response::{RenderOutcome, RenderResponse};
use crate::script::{RepositoryScriptSource, ScriptCache, ScriptSource};
use crate::template::new_environment;
use crate::url::SlingUrl;
use crate::url_route::{UrlRouteTable, UrlRoutes};

/// Renders requests. One renderer serves all threads.
#[derive(Debug)]
pub struct Renderer {
    options: RenderOptions,
    script_cache: Arc<ScriptCache>,
    route_table: UrlRouteTable,
    query_engine: Arc<QueryEngine>,
    image_key: Option<ImageSigningKey>,
    backends: Option<Arc<BackendRegistry>>,
    fragments: Option<Arc<FragmentCache>>,
    graphql: Arc<GraphqlService>,
    is_timed: bool,
}

impl Renderer {
    /// Creates a renderer with the scripts of the repository.
    #[must_use]
    pub fn new(repository: &Repository, options: RenderOptions) -> Self {
        Self::with_scripts(Box::new(RepositoryScriptSource::new(repository.clone())), options)
    }

    /// Creates a renderer with another source of scripts.
    #[must_use]
    pub fn with_scripts(source: Box<dyn ScriptSource>, options: RenderOptions) -> Self {
        let environment = new_environment(options.mode, &options.limits);
        let queries = Arc::default();
        let table = Arc::new(ScriptCache::new(source, environment, options.mode));
        let routes = UrlRouteTable::default();
        let (image_key, back_ends, fragments) = (None, None, None);
        let is_timed = true;
        Self {
            options,
            script_cache: table,
            route_table: routes,
            query_engine: queries,
            image_key,
            backends: back_ends,
            fragments,
            graphql: Arc::default(),
            is_timed,
        }
    }

    /// Sets the query engine of the repository with its indexes; without it, searches scan every page.
    #[must_use]
    pub fn with_query_engine(self, queries: Arc<QueryEngine>) -> Self {
        Self { query_engine: queries, ..self }
    }

    /// Sets the key with which templates sign image addresses, so that these may have any size.
    #[must_use]
    pub fn with_image_key(self, key: ImageSigningKey) -> Self {
        Self { image_key: Some(key), ..self }
    }

    /// Sets the back ends whose data components may show.
    #[must_use]
    pub fn with_backends(self, back_ends: Arc<BackendRegistry>) -> Self {
        Self { backends: Some(back_ends), ..self }
    }

    /// Sets the cache for components that declare caching. Requests that record no reads do not use it.
    #[must_use]
    pub fn with_fragments(self, fragments: Arc<FragmentCache>) -> Self {
        Self { fragments: Some(fragments), ..self }
    }

    /// Disables the timing of components, to measure its cost.
    #[must_use]
    pub fn without_timing(self) -> Self {
        Self { is_timed: false, ..self }
    }

    /// Returns the fragment cache.
    #[must_use]
    pub fn fragments(&self) -> Option<&Arc<FragmentCache>> {
        self.fragments.as_ref()
    }

    /// Returns the back ends.
    #[must_use]
    pub fn backends(&self) -> Option<&BackendRegistry> {
        self.backends.as_deref()
    }

    /// Renders a request.
    #[must_use]
    pub fn render(&self, snapshot: &Snapshot, request: &RenderRequest<'_>) -> RenderResponse {
        self.render_request(snapshot, request, |renderer| renderer.render())
    }

    /// Returns the parts of a request's path as [`Renderer::render`] parses them; `None` if it is a redirect or
    /// malformed.
    #[must_use]
    pub fn resolve_url(
        &self,
        snapshot: &Snapshot,
        request: &RenderRequest<'_>,
    ) -> Option<SlingUrl> {
        let mut url = None;
        self.render_request(snapshot, request, |renderer| {
            url = renderer.resolved_url();
            DraftResponse::with_message(RenderOutcome::NotFound, "")
        });
        url
    }

    /// Renders the site's page for a fault that the caller found, such as `403`, with a one-sentence message.
    ///
    /// The outcome is [`RenderOutcome::Error`]; the caller knows the actual status.
    #[must_use]
    pub fn render_fault(
        &self,
        snapshot: &Snapshot,
        request: &RenderRequest<'_>,
        name: &str,
        message: &str,
    ) -> RenderResponse {
        let url = SlingUrl::split(request.path, |_| false).unwrap_or_default();
        let fault = RequestFault { handler_name: name, message };
        self.render_request(snapshot, request, |renderer| {
            renderer.render_fault(&url, &fault, RenderOutcome::Error)
        })
    }

    /// Runs a GraphQL query on the content fragments of a site, as the viewer of the snapshot sees them.
    ///
    /// # Errors
    /// If the site has no models, or content cannot be read.
    pub fn run_graphql(
        &self,
        snapshot: &Snapshot,
        site: &str,
        request: &GraphqlRequest,
    ) -> tympan_content_fragments::Result<GraphqlAnswer> {
        let reader = Arc::new(ContentReader::new(snapshot.clone(), ReadRecording::Count));
        let answer = self.graphql.run(&reader, site, request)?;
        match reader.failure() {
            Some(error) => {
                tracing::error!(error = %error, "cannot read content");
                Ok(GraphqlAnswer::refused("the content cannot be read"))
            }
            None => Ok(answer),
        }
    }

    /// Returns the scripts and the routes from addresses to resources.
    pub(crate) fn scripts_and_routes(
        &self,
        snapshot: &Snapshot,
    ) -> (Arc<ScriptCache>, Arc<UrlRoutes>) {
        (Arc::clone(&self.script_cache), self.route_table.routes_at(snapshot, &self.query_engine))
    }

    /// Returns the fragment cache if a request may use it: not in edit mode, and not for a state older than the newest
    /// one requested.
    fn usable_fragments(
        &self,
        snapshot: &Snapshot,
        request: &RenderRequest<'_>,
    ) -> Option<Arc<FragmentCache>> {
        let fragments = self.fragments.as_ref().filter(|_| {
            request.recording == ReadRecording::Paths
                && !request.is_edit_mode
                && matches!(request.method, "GET" | "HEAD")
        })?;
        fragments.advance_to(&snapshot.as_viewer(&Viewer::system())).then(|| Arc::clone(fragments))
    }

    /// Renders with the scripts of the snapshot and adds the records of the request.
    fn render_request(
        &self,
        snapshot: &Snapshot,
        request: &RenderRequest<'_>,
        draw: impl FnOnce(&RequestRenderer<'_>) -> DraftResponse,
    ) -> RenderResponse {
        let reader = ContentReader::new(snapshot.clone(), request.recording);
        let reader = Arc::new(match self.options.mode {
            RenderMode::Author => reader.with_merged_resources(),
            RenderMode::Publish => reader,
        });
        let draft = match self.script_cache.scripts_at(snapshot) {
            Ok(scripts) => draw(&RequestRenderer {
                options: self.options,
                script_cache: Arc::clone(&self.script_cache),
                scripts,
                reader: Arc::clone(&reader),
                routes: self.route_table.routes_at(snapshot, &self.query_engine),
                query_engine: Arc::clone(&self.query_engine),
                image_key: self.image_key,
                backends: self.backends.clone(),
                fragments: self.usable_fragments(snapshot, request),
                graphql: Arc::clone(&self.graphql),
                is_timed: self.is_timed,
                request,
            }),
            Err(error) => {
                tracing::error!(error = %error, "cannot load scripts");
                DraftResponse::with_message(RenderOutcome::Error, "The scripts cannot be loaded.")
            }
        };
        match reader.failure() {
            Some(error) => {
                tracing::error!(file = request.path, error = %error, "cannot read content");
                DraftResponse::with_message(RenderOutcome::Error, "The content cannot be read.")
            }
            None => draft,
        }
        .into_response(reader.take_reads())
    }
}
