//! The exporter and image renderer of an instance.

use std::sync::Arc;

use tympan_content::Repository;
use tympan_render::Renderer;
use tympan_render_export::{ExportEnvironment, StaticExporter};

use crate::page::image_render::ExportImageRenderer;

/// The exporter and image renderer of an instance.
pub(crate) struct StaticExport {
    exporter: Arc<StaticExporter>,
    image_renderer: ExportImageRenderer,
}

impl StaticExport {
    pub(super) fn new(exporter: Arc<StaticExporter>, image_renderer: ExportImageRenderer) -> Self {
        Self { exporter, image_renderer }
    }

    /// Returns the exporter.
    pub(super) fn exporter(&self) -> &StaticExporter {
        &self.exporter
    }

    /// Returns what the exporter reads and renders with.
    pub(super) fn export_environment<'a>(
        &'a self,
        repository: &'a Repository,
        renderer: &'a Renderer,
    ) -> ExportEnvironment<'a> {
        ExportEnvironment { repository, renderer, images: &self.image_renderer }
    }
}
