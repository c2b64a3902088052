//! The tables of model classes: by class name for scripts, by resource type for the exporter.

use std::sync::Arc;

use crate::component_context::{ComponentContext, ComponentResource};
use crate::model_value::ModelValue;
use crate::models;

/// What a script or the exporter asks a model for.
#[derive(Clone, Debug)]
pub struct ModelRequest {
    /// The content, the request and the services.
    pub context: Arc<dyn ComponentContext>,
    /// The resource that is drawn.
    pub resource: ComponentResource,
    /// The options of the `data-sly-use` expression, for example `categories`.
    pub options: Vec<(String, ModelValue)>,
}

impl ModelRequest {
    /// Creates a request without options.
    #[must_use]
    pub fn new(context: Arc<dyn ComponentContext>, resource: ComponentResource) -> ModelRequest {
        ModelRequest { context, resource, options: Vec::new() }
    }

    /// Returns an option.
    #[must_use]
    pub fn option(&self, name: &str) -> Option<&ModelValue> {
        self.options.iter().find(|(key, _)| key == name).map(|(_, value)| value)
    }
}

/// Makes the model of a class for a request.
pub type ModelFactory = fn(&ModelRequest) -> ModelValue;

/// A class, the resource types that the exporter draws with it, and its factory.
pub(crate) struct ModelClass {
    pub(crate) name: &'static str,
    pub(crate) resource_types: &'static [&'static str],
    pub(crate) factory: ModelFactory,
}

/// The largest number of super types that are followed.
const SUPER_TYPE_LIMIT: usize = 32;

/// Returns the factory of the model with a class name.
#[must_use]
pub fn find_model(class_name: &str) -> Option<ModelFactory> {
    models::CLASSES.iter().find(|class| class.name == class_name).map(|class| class.factory)
}

/// Returns the names of all classes that [`find_model`] knows.
pub fn model_class_names() -> impl Iterator<Item = &'static str> {
    models::CLASSES.iter().map(|class| class.name)
}

/// Returns the class and the factory of the model that the exporter uses for a resource type: its own, or that of the
/// nearest super type.
#[must_use]
pub fn find_model_class(
    context: &dyn ComponentContext,
    resource_type: &str,
) -> Option<(&'static str, ModelFactory)> {
    let mut resource_type = resource_type.to_owned();
    for _ in 0..SUPER_TYPE_LIMIT {
        let relative = relative_type(&resource_type);
        let class = models::CLASSES.iter().find(|class| class.resource_types.contains(&relative));
        if let Some(class) = class {
            return Some((class.name, class.factory));
        }
        resource_type = context.super_type(&resource_type)?;
    }
    None
}

/// Returns a resource type without its search path.
pub(crate) fn relative_type(resource_type: &str) -> &str {
    resource_type
        .strip_prefix("/apps/")
        .or_else(|| resource_type.strip_prefix("/libs/"))
        .unwrap_or(resource_type)
}
