//! Renderers and image rendering, as `tympan.toml` configures them.

use std::path::Path;
use std::sync::Arc;

use tympan_assets::AssetCounters;
use tympan_content::Repository;
use tympan_render::{
    DirScriptSource, FragmentCache, RenderMode, RenderOptions, Renderer, RepositoryScriptSource,
};
use tympan_server::ImageOptions;
use tympan_terminal::CommandFault;

use crate::command::rendition_process::{self, RenderUrgency};
use crate::config::TympanConfig;

/// Returns the image rendering options.
pub(super) fn image_options(
    config: &TympanConfig,
    urgency: RenderUrgency,
    counters: Option<Arc<AssetCounters>>,
) -> ImageOptions {
    ImageOptions {
        decoder_pool: rendition_process::create_process_pool(config, urgency),
        limits: config.assets.processing_limits(),
        widths: config.assets.url_widths.clone(),
        max_parallel_renders: rendition_process::core_count(),
        asset_counters: counters,
    }
}

/// Creates a renderer with the template settings of the configuration.
pub(super) fn create_plain_renderer(
    repository: &Repository,
    mode: RenderMode,
    site: Option<&Path>,
    config: &TympanConfig,
) -> Result<Renderer, CommandFault> {
    let options = RenderOptions { mode, ..RenderOptions::default() };
    let renderer = match site {
        Some(site) => {
            let below = RepositoryScriptSource::new(repository.clone());
            Renderer::with_scripts(Box::new(DirScriptSource::new(site.to_owned(), below)), options)
        }
        None => Renderer::new(repository, options),
    };
    let back_ends = tympan_render::create_backends(&config.back_ends, &config.outgoing);
    let renderer = match back_ends.map_err(CommandFault::usage)? {
        Some(back_ends) => renderer.with_backends(back_ends),
        None => renderer,
    };
    Ok(match config.fragments.fragment_options().filter(|_| mode == RenderMode::Publish) {
        Some(options) => renderer.with_fragments(FragmentCache::new(options)),
        None => renderer,
    })
}
