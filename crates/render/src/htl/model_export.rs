//! The JSON form of resources that have a model (`.model.json`).

use std::sync::Arc;

use tympan_core_components::{AuthoringMode, ComponentContext, ComponentResource, export_resource};

use super::component_host::structure_of;
use super::model_context::SiteModelContext;
use crate::resource::ContentResource;
use crate::template::RenderScope;

/// Returns the JSON form of a resource; `None` if no model exports its type.
pub(crate) fn model_json(scope: &Arc<RenderScope>, resource: &ContentResource) -> Option<String> {
    let structure = structure_of(scope, resource);
    let selectors = &scope.request.url.selectors;
    let mode = AuthoringMode::Disabled;
    let context = SiteModelContext::new(Arc::clone(scope), selectors, structure, mode);
    let context: Arc<dyn ComponentContext> = Arc::new(context);
    let resource = ComponentResource::new(resource.path().as_str());
    export_resource(&context, &resource).map(|value| value.to_json().to_string())
}
