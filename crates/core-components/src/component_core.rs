//! What all components share: properties, policy, identifier, style classes, and the data layer.

use std::sync::{Arc, OnceLock};

use sha2::{Digest, Sha256};

use crate::component_context::{ComponentContext, ComponentResource};
use crate::component_data::ComponentData;
use crate::content_value::{ContentDate, ContentValue};
use crate::export_scope::ExportScope;
use crate::model_registry::ModelRequest;
use crate::model_value::{ModelMap, ModelValue};
use crate::page_reader::{PageReader, node_name};

/// The configuration that switches the data layer on.
const DATA_LAYER_CONFIGURATION: &str = "com.adobe.cq.wcm.core.components.internal.DataLayerConfig";

/// Digits of the hash in an identifier.
const ID_HASH_LENGTH: usize = 10;

/// The resource of a component, with its policy.
#[derive(Clone, Debug)]
pub(crate) struct ComponentCore {
    request: ModelRequest,
    policy: Arc<OnceLock<Option<String>>>,
}

impl ComponentCore {
    /// Creates the shared part of a model.
    pub(crate) fn new(request: &ModelRequest) -> ComponentCore {
        ComponentCore { request: request.clone(), policy: Arc::default() }
    }

    /// Returns the interface to content and services.
    pub(crate) fn context(&self) -> &dyn ComponentContext {
        &*self.request.context
    }

    /// Returns the shared handle of the interface.
    pub(crate) fn shared_context(&self) -> &Arc<dyn ComponentContext> {
        &self.request.context
    }

    /// Returns the place of the component in the export.
    pub(crate) fn export_scope(&self) -> &ExportScope {
        &self.request.export_scope
    }

    /// Returns the resource.
    pub(crate) fn resource(&self) -> &ComponentResource {
        &self.request.resource
    }

    /// Returns the path of the resource.
    pub(crate) fn path(&self) -> &str {
        self.request.resource.path()
    }

    /// Returns a reader of pages.
    pub(crate) fn pages(&self) -> PageReader<'_> {
        PageReader::new(self.context())
    }

    /// Returns the resource type.
    pub(crate) fn resource_type(&self) -> Arc<str> {
        self.resource().resource_type(self.context()).unwrap_or_else(|| "".into())
    }

    /// Returns a property.
    pub(crate) fn value(&self, name: &str) -> Option<ContentValue> {
        self.resource().property(self.context(), name)
    }

    /// Returns a property as text.
    pub(crate) fn text(&self, name: &str) -> Option<Arc<str>> {
        self.value(name)?.to_text()
    }

    /// Returns a property as a text with visible characters.
    pub(crate) fn filled_text(&self, name: &str) -> Option<Arc<str>> {
        self.text(name).filter(|text| !text.trim().is_empty())
    }

    /// Returns a property as a boolean.
    pub(crate) fn boolean(&self, name: &str) -> Option<bool> {
        self.value(name)?.to_boolean()
    }

    /// Returns whether a property is true.
    pub(crate) fn is_set(&self, name: &str) -> bool {
        self.boolean(name).unwrap_or(false)
    }

    /// Returns the path of the policy.
    fn policy_path(&self) -> Option<&str> {
        self.policy
            .get_or_init(|| {
                // An image that another component delegates to follows the policy of that component's image.
                let delegate =
                    self.request.context.request().parameter("contentPolicyDelegatePath");
                match delegate.filter(|path| self.context().node_exists(path)) {
                    Some(path) => self.context().content_policy(&ComponentResource::new(path)),
                    None => self.context().content_policy(self.resource()),
                }
            })
            .as_deref()
    }

    /// Returns a property of the policy.
    pub(crate) fn policy_value(&self, name: &str) -> Option<ContentValue> {
        self.context().property(self.policy_path()?, name)
    }

    /// Returns a text of the policy with visible characters.
    pub(crate) fn policy_text(&self, name: &str) -> Option<Arc<str>> {
        self.policy_value(name)?.to_text().filter(|text| !text.trim().is_empty())
    }

    /// Returns whether a property of the policy is true.
    pub(crate) fn is_policy_set(&self, name: &str) -> bool {
        self.policy_value(name).and_then(|value| value.to_boolean()).unwrap_or(false)
    }

    /// Returns a property, else that of the policy.
    pub(crate) fn value_or_policy(&self, name: &str) -> Option<ContentValue> {
        self.value(name).or_else(|| self.policy_value(name))
    }

    /// Returns whether a property, or else that of the policy, is true.
    pub(crate) fn is_set_or_policy(&self, name: &str) -> bool {
        self.value_or_policy(name).and_then(|value| value.to_boolean()).unwrap_or(false)
    }

    /// Returns the page that is rendered, else the page that contains the resource.
    pub(crate) fn current_page(&self) -> Option<String> {
        self.context().current_page().or_else(|| self.pages().containing_page(self.path()))
    }

    /// Returns the identifier: the property `id`, else the name of the component and a hash of the path.
    pub(crate) fn id(&self) -> String {
        let id = self.text("id").unwrap_or_default();
        let words: Vec<&str> = id.split_whitespace().collect();
        if !words.is_empty() {
            return words.join("-");
        }
        generated_id(node_name(&self.resource_type()), self.path())
    }

    /// Returns the classes of the chosen styles.
    pub(crate) fn style_classes(&self) -> Option<String> {
        let ids = self.value("cq:styleIds").map(|value| value.to_texts()).unwrap_or_default();
        let policy = self.policy_path()?;
        let mut classes: Vec<Arc<str>> = Vec::new();
        classes.extend(self.policy_text("cq:styleDefaultClasses"));
        let groups = format!("{policy}/cq:styleGroups");
        for group in self.context().child_names(&groups) {
            let styles = format!("{groups}/{group}/cq:styles");
            for style in self.context().child_names(&styles) {
                let style = format!("{styles}/{style}");
                let text = |name: &str| self.context().property(&style, name)?.to_text();
                if text("cq:styleId").is_some_and(|id| ids.contains(&id)) {
                    classes.extend(text("cq:styleClasses"));
                }
            }
        }
        (!classes.is_empty()).then(|| classes.join(" "))
    }

    /// Returns when the component changed, else when it was created.
    pub(crate) fn modified(&self) -> Option<ContentDate> {
        ["jcr:lastModified", "jcr:created"].into_iter().find_map(|name| self.value(name)?.to_date())
    }

    /// Returns whether the data layer is switched on for the resource.
    pub(crate) fn is_data_layer_enabled(&self) -> bool {
        is_data_layer_enabled(self.context(), self.path())
    }

    /// Returns the data of the component, if the data layer is switched on.
    pub(crate) fn data(&self) -> Option<ComponentData> {
        self.is_data_layer_enabled().then(|| ComponentData {
            id: self.id(),
            resource_type: Some(self.resource_type()),
            modified: self.modified(),
            ..ComponentData::default()
        })
    }

    /// Returns a property that every component has.
    pub(crate) fn property(&self, name: &str) -> Option<ModelValue> {
        Some(match name {
            "id" => self.id().into(),
            "data" => self.data().into(),
            "appliedCssClasses" => self.style_classes().into(),
            "exportedType" => self.resource_type().into(),
            _ => return None,
        })
    }

    /// Appends the members that every component's JSON ends with.
    pub(crate) fn export_end(&self, map: &mut ModelMap, data: Option<ComponentData>) {
        map.insert_present("appliedCssClassNames", self.style_classes());
        map.insert(":type", self.resource_type());
        if let Some(data) = data {
            map.insert("dataLayer", data.to_map());
        }
    }
}

/// The names of the properties that every component has.
pub(crate) const SHARED_PROPERTY_NAMES: [&str; 4] =
    ["id", "data", "appliedCssClasses", "exportedType"];

/// Returns an identifier from a prefix and a path.
pub(crate) fn generated_id(prefix: &str, path: &str) -> String {
    let mut hash = hex::encode(Sha256::digest(path.as_bytes()));
    hash.truncate(ID_HASH_LENGTH);
    format!("{prefix}-{hash}")
}

/// Returns whether the data layer is switched on for a resource.
pub(crate) fn is_data_layer_enabled(context: &dyn ComponentContext, path: &str) -> bool {
    context
        .configuration(path, DATA_LAYER_CONFIGURATION)
        .and_then(|node| context.property(&node, "enabled"))
        .and_then(|value| value.to_boolean())
        .unwrap_or(false)
}

/// Implements [`ComponentModel`](crate::ComponentModel) for a model with a field `core`, from a table of names and
/// methods; the other names are those that every component has.
macro_rules! component_model {
    ($model:ty { $($name:literal => $method:ident),* $(,)? }) => {
        impl $crate::model_value::ComponentModel for $model {
            fn property(&self, name: &str) -> Option<$crate::model_value::ModelValue> {
                match name {
                    $($name => Some($crate::model_value::ModelValue::from(self.$method())),)*
                    _ => self.core.property(name),
                }
            }

            fn property_names(&self) -> Vec<&'static str> {
                let mut names = vec![$($name),*];
                for name in $crate::component_core::SHARED_PROPERTY_NAMES {
                    if !names.contains(&name) {
                        names.push(name);
                    }
                }
                names
            }

            fn export(&self) -> $crate::model_value::ModelMap {
                self.export_map()
            }
        }
    };
}
pub(crate) use component_model;
