//! The JSON form of a resource, as `.model.json` gives it.

use std::sync::Arc;

use crate::component_context::{ComponentContext, ComponentResource};
use crate::model_registry::{ModelRequest, find_model_class};
use crate::model_value::ModelValue;

/// Returns the JSON form of a resource, or nothing if no model exports its type.
#[must_use]
pub fn export_resource(
    context: &Arc<dyn ComponentContext>,
    resource: &ComponentResource,
) -> Option<ModelValue> {
    let resource_type = resource.resource_type(&**context)?;
    let (_, factory) = find_model_class(&**context, &resource_type)?;
    let model = factory(&ModelRequest::new(Arc::clone(context), resource.clone()));
    match model {
        ModelValue::Model(model) => Some(model.export().into()),
        other => (!other.is_null()).then_some(other),
    }
}
