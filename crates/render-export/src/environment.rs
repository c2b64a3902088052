//! The services that an export uses: content, the renderer, and the source of sized images.

use tympan_content::{Repository, Snapshot};
use tympan_render::{ImageAddress, Renderer};

use crate::error::ExportResult;

/// The user with whose rights everything is rendered. If the user does not exist, anonymous rights apply.
pub const EXPORT_USER: &str = "Export";

/// Renders sized images of assets.
pub trait ExportImageSource: std::fmt::Debug + Send + Sync {
    /// Returns the bytes; `None` if there is no such asset or the address is not permitted.
    ///
    /// # Errors
    /// A message, if the image cannot be rendered.
    fn render_image(
        &self,
        snapshot: &Snapshot,
        address: &ImageAddress,
    ) -> ExportResult<Option<bytes::Bytes>, String>;
}

/// The services that an export uses.
#[derive(Debug, Clone, Copy)]
pub struct ExportEnvironment<'a> {
    /// The content.
    pub repository: &'a Repository,
    /// Renders pages.
    pub renderer: &'a Renderer,
    /// Renders images.
    pub images: &'a dyn ExportImageSource,
}
