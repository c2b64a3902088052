//! The pictures of image components, at the addresses that their models write.

use std::sync::Arc;

use tympan_core_components::{
    AuthoringMode, ComponentContext, ComponentImage, ComponentResource, find_component_image,
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
    let structure = structure_of(scope, resource);
    let selectors = &scope.request.url.selectors;
    let context =
        SiteModelContext::new(Arc::clone(scope), selectors, structure, AuthoringMode::Disabled);
    let context: Arc<dyn ComponentContext> = Arc::new(context);
    find_component_image(&context, &ComponentResource::new(path))
}
