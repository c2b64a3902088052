//! The tables of model classes: by class name for scripts, by resource type for the exporter.

use std::sync::Arc;

use crate::component_context::{ComponentContext, ComponentResource};
use crate::export_scope::ExportScope;
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
    /// The place of the resource in the export.
    pub(crate) export_scope: ExportScope,
}

impl ModelRequest {
    /// Creates a request without options.
    #[must_use]
    pub fn new(context: Arc<dyn ComponentContext>, resource: ComponentResource) -> ModelRequest {
        ModelRequest {
            context,
            resource,
            options: Vec::new(),
            export_scope: ExportScope::default(),
        }
    }

    /// Returns the same request with one more option.
    #[must_use]
    pub fn with_option(mut self, name: &str, value: impl Into<ModelValue>) -> ModelRequest {
        self.options.push((name.to_owned(), value.into()));
        self
    }

    /// Returns an option.
    #[must_use]
    pub fn option(&self, name: &str) -> Option<&ModelValue> {
        self.options.iter().find(|(key, _)| key == name).map(|(_, value)| value)
    }
}

/// Makes the model of a class for a request. The version of the component (`v1`, `v2`, ...) follows from the resource
/// type and its super types.
pub type ModelFactory = fn(&ModelRequest) -> ModelValue;

/// A class that scripts name.
pub(crate) struct ModelClass {
    /// The class name.
    pub(crate) name: &'static str,
    /// The resource types that the exporter draws with the class: `title` for every version of
    /// `core/wcm/components/title`, or a complete resource type.
    pub(crate) exported_types: &'static [&'static str],
    /// Makes the model.
    pub(crate) factory: ModelFactory,
}

/// The largest number of super types that are followed.
const SUPER_TYPE_LIMIT: usize = 32;

/// The folder of the Core Components, relative to the search path.
const CORE_FOLDER: &str = "core/wcm/components/";

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
    type_chain(context, resource_type).iter().find_map(|resource_type| {
        let mut classes = models::CLASSES.iter();
        let exact = classes.find(|class| class.exported_types.contains(&resource_type.as_str()));
        let class = exact.or_else(|| {
            models::CLASSES.iter().find(|class| class.exports_version_of(resource_type))
        })?;
        Some((class.name, class.factory))
    })
}

impl ModelClass {
    /// Returns whether the exporter draws a version of a core component with this class.
    fn exports_version_of(&self, resource_type: &str) -> bool {
        let mut exported = self.exported_types.iter();
        exported.any(|component| core_version(resource_type, component).is_some())
    }
}

/// Returns the version in a resource type of a core component: of `core/wcm/components/title/v3/title`, 3; without a
/// version, 1.
fn core_version(resource_type: &str, component: &str) -> Option<u8> {
    let rest = resource_type.strip_prefix(CORE_FOLDER)?.strip_prefix(component)?;
    if rest.is_empty() {
        return Some(1);
    }
    let digits: String =
        rest.strip_prefix("/v")?.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

/// Returns the version of a component: that of the nearest type in the chain of super types, else the newest.
pub(crate) fn component_version(
    context: &dyn ComponentContext,
    resource_type: &str,
    component: &str,
    newest: u8,
) -> u8 {
    type_chain(context, resource_type)
        .iter()
        .find_map(|resource_type| core_version(resource_type, component))
        .unwrap_or(newest)
}

/// Returns a resource type and its super types, without search paths.
pub(crate) fn type_chain(context: &dyn ComponentContext, resource_type: &str) -> Vec<String> {
    let mut chain = vec![relative_type(resource_type).to_owned()];
    while chain.len() < SUPER_TYPE_LIMIT
        && let Some(last) = chain.last()
        && let Some(super_type) = context.super_type(last)
    {
        let super_type = relative_type(&super_type).to_owned();
        if chain.contains(&super_type) {
            break;
        }
        chain.push(super_type);
    }
    chain
}

/// Returns a resource type without its search path.
pub(crate) fn relative_type(resource_type: &str) -> &str {
    resource_type
        .strip_prefix("/apps/")
        .or_else(|| resource_type.strip_prefix("/libs/"))
        .unwrap_or(resource_type)
}
