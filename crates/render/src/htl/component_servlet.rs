//! What models of components give to answer the addresses that they write: pictures, and hits of searches.

use std::sync::Arc;

use tympan_core_components::{
    AuthoringMode, ComponentContext, ComponentImage, ComponentResource, find_component_image,
    search_results,
};

use super::component_host::structure_of;
use super::model_context::SiteModelContext;
use crate::resource::ContentResource;
use crate::template::RenderScope;

/// Returns the picture of a component; `path` is its path, which is that of a component in the template's structure if
/// the page itself is requested.
pub(crate) fn component_picture(
    scope: &Arc<RenderScope>,
    resource: &ContentResource,
    path: &str,
) -> Option<ComponentImage> {
    find_component_image(&model_context(scope, resource), &ComponentResource::new(path))
}

/// Returns the hits of a search component as JSON; `None` for other components.
pub(crate) fn component_search_hits(
    scope: &Arc<RenderScope>,
    content: &ContentResource,
    path: &str,
) -> Option<String> {
    let hits = search_results(&model_context(scope, content), &ComponentResource::new(path))?;
    Some(hits.to_json().to_string())
}

fn model_context(
    scope: &Arc<RenderScope>,
    resource: &ContentResource,
) -> Arc<dyn ComponentContext> {
    let structure = structure_of(scope, resource);
    let selectors = &scope.request.url.selectors;
    let mode = AuthoringMode::Disabled;
    Arc::new(SiteModelContext::new(Arc::clone(scope), selectors, structure, mode))
}
