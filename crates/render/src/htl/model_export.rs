//! The JSON form of resources that have a model (`.model.json`).

use std::sync::Arc;

use tympan_core_components::{AuthoringMode, ComponentContext, ComponentResource, export_resource};

use super::component_host::structure_of;
use super::model_context::SiteModelContext;
use crate::resource::ContentResource;
use crate::template::{ComponentFailure, RenderScope};

/// Returns the JSON form of a resource; `None` if no model exports its type.
///
/// # Errors
/// [`ComponentFailure`] if the resource exceeds the budget of an export.
pub(crate) fn model_json(
    scope: &Arc<RenderScope>,
    resource: &ContentResource,
) -> Result<Option<String>, ComponentFailure> {
    let structure = structure_of(scope, resource);
    let selectors = &scope.request.url.selectors;
    let mode = AuthoringMode::Disabled;
    let context = SiteModelContext::new(Arc::clone(scope), selectors, structure, mode);
    let context: Arc<dyn ComponentContext> = Arc::new(context);
    let resource = ComponentResource::new(resource.path().as_str());
    let exported = export_resource(&context, &resource)?;
    Ok(exported.map(|value| value.to_json().to_string()))
}
