//! The JSON form of a resource, as `.model.json` gives it.

use std::sync::Arc;

use crate::component_context::{ComponentContext, ComponentResource};
use crate::model_registry::{ModelRequest, find_model_class};
use crate::model_value::ModelValue;

/// The largest number of containers around a component. Experience fragments that contain each other end here.
const NESTING_LIMIT: usize = 64;

/// Returns the JSON form of a resource, or nothing if no model exports its type.
///
/// Components below the resource are part of it, up to a fixed depth.
#[must_use]
pub fn export_resource(
    context: &Arc<dyn ComponentContext>,
    resource: &ComponentResource,
) -> Option<ModelValue> {
    export_nested(context, resource, 0)
}

/// Returns the JSON form of a resource inside a number of containers.
pub(crate) fn export_nested(
    context: &Arc<dyn ComponentContext>,
    resource: &ComponentResource,
    nesting: usize,
) -> Option<ModelValue> {
    if nesting > NESTING_LIMIT {
        return None;
    }
    let resource_type = resource.resource_type(&**context)?;
    let (_, factory) = find_model_class(&**context, &resource_type)?;
    let request =
        ModelRequest { nesting, ..ModelRequest::new(Arc::clone(context), resource.clone()) };
    match factory(&request) {
        ModelValue::Model(model) => Some(model.export().into()),
        other => (!other.is_null()).then_some(other),
    }
}
