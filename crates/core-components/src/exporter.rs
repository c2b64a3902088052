//! The JSON form of a resource, as `.model.json` gives it.

use std::sync::Arc;

use crate::component_context::{ComponentContext, ComponentResource};
use crate::error::Result;
use crate::export_scope::ExportScope;
use crate::model_registry::{ModelRequest, find_model_class};
use crate::model_value::ModelValue;

/// The largest number of containers around a component.
const NESTING_LIMIT: usize = 64;

/// Returns the JSON form of a resource, or nothing if no model exports its type.
///
/// Components below the resource are part of it, up to a fixed depth. An experience fragment inside itself is empty.
///
/// # Errors
/// [`Error`](crate::Error) if the resource has too many components, or too large values.
pub fn export_resource(
    context: &Arc<dyn ComponentContext>,
    resource: &ComponentResource,
) -> Result<Option<ModelValue>> {
    let scope = ExportScope::default();
    let exported = match export_nested(context, resource, &scope) {
        Some(ModelValue::Map(map)) => Some(scope.count_output(Arc::unwrap_or_clone(map)).into()),
        other => other,
    };
    scope.check()?;
    Ok(exported)
}

/// Returns the JSON form of a resource inside containers; nothing once the budget of the export is exceeded. The caller
/// counts the values.
pub(crate) fn export_nested(
    context: &Arc<dyn ComponentContext>,
    resource: &ComponentResource,
    scope: &ExportScope,
) -> Option<ModelValue> {
    if scope.nesting > NESTING_LIMIT || !scope.count_component() {
        return None;
    }
    let resource_type = resource.resource_type(&**context)?;
    let (_, factory) = find_model_class(&**context, &resource_type)?;
    let request = ModelRequest {
        export_scope: scope.clone(),
        ..ModelRequest::new(Arc::clone(context), resource.clone())
    };
    match factory(&request) {
        ModelValue::Model(model) => Some(model.export().into()),
        other => (!other.is_null()).then_some(other),
    }
}
