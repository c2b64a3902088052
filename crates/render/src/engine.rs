//! The renderer: one request in, one answer out.
//!
//! In: a pinned snapshot and a [`RenderRequest`]. Out: a [`RenderResponse`], always; what goes wrong is an outcome.
//!
//! The order of decisions: client libraries, resolution, redirects, a script for the resource, a script for the content
//! of a page, the default output for the extension, the error page.
//!
//! Not here: who may ask (`server`), caching of fragments.

use std::sync::Arc;

use tympan_content::{Repository, Snapshot};

use crate::answer::{Answer, Drawn};
use crate::reads::Reader;
use crate::request::RenderRequest;
use crate::response::{Outcome, RenderResponse};
use crate::script::{RepositorySource, ScriptSource, ScriptTable};
use crate::template::environment;

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
    /// How many components may be drawn.
    pub components: usize,
    /// How many steps the templates may take together.
    pub steps: u64,
    /// How many bytes the components may write together, those of included ones counted at each level.
    pub bytes: usize,
}

impl Default for Limits {
    /// Depth and number of components as in Sling; steps for about a hundred times a large page.
    fn default() -> Self {
        Self {
            depth: 50,
            components: 1000,
            steps: 5_000_000,
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
        Self {
            options,
            table: Arc::new(ScriptTable::new(source, environment)),
        }
    }

    /// Answers a request.
    #[must_use]
    pub fn render(&self, snapshot: &Snapshot, request: &RenderRequest<'_>) -> RenderResponse {
        let reader = Arc::new(Reader::new(snapshot.clone(), request.recording));
        let mut response = match self.table.at(snapshot) {
            Ok(scripts) => {
                let (table, options) = (Arc::clone(&self.table), self.options);
                Answer {
                    options,
                    table,
                    scripts,
                    reader: Arc::clone(&reader),
                    request,
                }
                .respond()
            }
            Err(error) => {
                tracing::error!(error = %error, "scripts cannot be loaded");
                Drawn::message(Outcome::Error, "The scripts cannot be loaded.").into_response()
            }
        };
        if let Some(error) = reader.failure() {
            tracing::error!(file = request.path, error = %error, "content cannot be read");
            response =
                Drawn::message(Outcome::Error, "The content cannot be read.").into_response();
        }
        response.reads = reader.reads();
        response
    }
}
