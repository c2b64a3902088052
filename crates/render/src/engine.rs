//! The renderer: one request in, one answer out.
//!
//! In: a pinned snapshot and a [`RenderRequest`]. Out: a [`RenderResponse`], always; what goes wrong is an outcome.
//!
//! The order of decisions: client libraries, mappings and vanity paths, resolution, aliases, redirects, a script for the resource, a script for the content
//! of a page, the default output for the extension, the error page.
//!
//! Not here: who may ask (`server`), caching of fragments.

use std::sync::Arc;

use tympan_content::query::QueryEngine;
use tympan_content::{Repository, Snapshot, Viewer};

use crate::answer::{Answer, Drawn, Fault};
use crate::backend::BackEnds;
use crate::fragment::FragmentCache;
use crate::image::ImageKey;
use crate::reads::{Reader, Recording};
use crate::request::RenderRequest;
use crate::resolve::{RouteTable, Routes};
use crate::response::{Outcome, RenderResponse};
use crate::script::{RepositorySource, ScriptSource, ScriptTable};
use crate::template::environment;
use crate::url::Url;

/// Which role renders.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// For authors: failures show their cause, nodes without scripts show their properties.
    Author,
    /// For visitors: failures leave nothing but a log line.
    #[default]
    Publish,
}

/// The budgets of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// How deep components may include each other.
    pub depth: usize,
    /// How many bytes of stack the components may take; the thread needs 512 KiB more.
    pub stack: usize,
    /// How many components may be drawn.
    pub components: usize,
    /// How many steps the templates may take together.
    pub steps: u64,
    /// How many steps one component may take, so that a runaway leaves enough for the rest of the page.
    pub component_steps: u64,
    /// How many bytes the components may write together, those of included ones counted at each level.
    pub bytes: usize,
}

impl Default for Limits {
    /// Depth and number of components as in Sling; steps for about a hundred times a large page.
    fn default() -> Self {
        Self {
            depth: 50,
            stack: 1536 * 1024,
            components: 1000,
            steps: 5_000_000,
            component_steps: 1_000_000,
            bytes: 64 * 1024 * 1024,
        }
    }
}

/// How a renderer works.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options {
    /// Which role renders.
    pub mode: Mode,
    /// The budgets of one request.
    pub limits: Limits,
}

/// Draws requests. One renderer serves all threads.
#[derive(Debug)]
pub struct Renderer {
    options: Options,
    table: Arc<ScriptTable>,
    routes: RouteTable,
    queries: Arc<QueryEngine>,
    image_key: Option<ImageKey>,
    back_ends: Option<Arc<BackEnds>>,
    fragments: Option<Arc<FragmentCache>>,
    is_timed: bool,
}

impl Renderer {
    /// Makes a renderer with the scripts of the repository.
    #[must_use]
    pub fn new(repository: &Repository, options: Options) -> Self {
        Self::with_scripts(Box::new(RepositorySource::new(repository.clone())), options)
    }

    /// Makes a renderer with another source of scripts.
    #[must_use]
    pub fn with_scripts(source: Box<dyn ScriptSource>, options: Options) -> Self {
        let environment = environment(options.mode, &options.limits);
        let queries = Arc::default();
        let table = Arc::new(ScriptTable::new(source, environment));
        let routes = RouteTable::default();
        let (image_key, back_ends, fragments) = (None, None, None);
        let is_timed = true;
        Self { options, table, routes, queries, image_key, back_ends, fragments, is_timed }
    }

    /// Lets components search with the engine of the repository, and its indexes; one without them looks at every page.
    #[must_use]
    pub fn with_queries(self, queries: Arc<QueryEngine>) -> Self {
        Self { queries, ..self }
    }

    /// Lets templates sign addresses of pictures, so that they may name any size.
    #[must_use]
    pub fn with_image_key(self, key: ImageKey) -> Self {
        Self { image_key: Some(key), ..self }
    }

    /// Lets components show the data of other systems.
    #[must_use]
    pub fn with_back_ends(self, back_ends: Arc<BackEnds>) -> Self {
        Self { back_ends: Some(back_ends), ..self }
    }

    /// Keeps what components draw, as far as they say so. Requests that record nothing do without.
    #[must_use]
    pub fn with_fragments(self, fragments: Arc<FragmentCache>) -> Self {
        Self { fragments: Some(fragments), ..self }
    }

    /// Takes no times of components, to measure what taking them costs.
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
    pub fn back_ends(&self) -> Option<&BackEnds> {
        self.back_ends.as_deref()
    }

    /// Answers a request.
    #[must_use]
    pub fn render(&self, snapshot: &Snapshot, request: &RenderRequest<'_>) -> RenderResponse {
        self.answer(snapshot, request, |answer| answer.draw())
    }

    /// Returns the parts of a request's path as [`Renderer::render`] reads them; nothing if it leads to another address, or
    /// cannot be read.
    #[must_use]
    pub fn read_url(&self, snapshot: &Snapshot, request: &RenderRequest<'_>) -> Option<Url> {
        let mut url = None;
        self.answer(snapshot, request, |answer| {
            url = answer.url();
            Drawn::message(Outcome::NotFound, "")
        });
        url
    }

    /// Draws the site's page for a fault that the caller found, such as `403`, with one sentence about it.
    ///
    /// The outcome is [`Outcome::Error`]; the caller knows better.
    #[must_use]
    pub fn render_fault(
        &self,
        snapshot: &Snapshot,
        request: &RenderRequest<'_>,
        name: &str,
        message: &str,
    ) -> RenderResponse {
        let url = Url::split(request.path, |_| false).unwrap_or_default();
        let fault = Fault { name, message };
        self.answer(snapshot, request, |answer| answer.draw_fault(&url, &fault, Outcome::Error))
    }

    /// Returns the scripts and the routes that lead from an address to a resource.
    pub(crate) fn ways(&self, snapshot: &Snapshot) -> (Arc<ScriptTable>, Arc<Routes>) {
        (Arc::clone(&self.table), self.routes.at(snapshot, &self.queries))
    }

    /// Returns the fragment cache if a request may use it: editors draw everything, and so does who looks at an older
    /// state than the newest that was asked for.
    fn usable_fragments(
        &self,
        snapshot: &Snapshot,
        request: &RenderRequest<'_>,
    ) -> Option<Arc<FragmentCache>> {
        let fragments = self.fragments.as_ref().filter(|_| {
            request.recording == Recording::Paths
                && !request.edit
                && matches!(request.method, "GET" | "HEAD")
        })?;
        fragments.follow(&snapshot.seen_by(&Viewer::system())).then(|| Arc::clone(fragments))
    }

    /// Draws with the scripts of the snapshot and adds the records of the request.
    fn answer(
        &self,
        snapshot: &Snapshot,
        request: &RenderRequest<'_>,
        draw: impl FnOnce(&Answer<'_>) -> Drawn,
    ) -> RenderResponse {
        let reader = Arc::new(Reader::new(snapshot.clone(), request.recording));
        let drawn = match self.table.at(snapshot) {
            Ok(scripts) => draw(&Answer {
                options: self.options,
                table: Arc::clone(&self.table),
                scripts,
                reader: Arc::clone(&reader),
                routes: self.routes.at(snapshot, &self.queries),
                queries: Arc::clone(&self.queries),
                image_key: self.image_key,
                back_ends: self.back_ends.clone(),
                fragments: self.usable_fragments(snapshot, request),
                is_timed: self.is_timed,
                request,
            }),
            Err(error) => {
                tracing::error!(error = %error, "scripts cannot be loaded");
                Drawn::message(Outcome::Error, "The scripts cannot be loaded.")
            }
        };
        match reader.failure() {
            Some(error) => {
                tracing::error!(file = request.path, error = %error, "content cannot be read");
                Drawn::message(Outcome::Error, "The content cannot be read.")
            }
            None => drawn,
        }
        .into_response(reader.take_reads())
    }
}
