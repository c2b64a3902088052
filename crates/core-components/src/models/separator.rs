//! The separator component (`separator`): a horizontal rule, and the model that only tells what all components share.

use crate::component_core::{ComponentCore, component_model};
use crate::model_registry::ModelRequest;
use crate::model_value::{ModelMap, ModelValue};

/// The model of a separator.
#[derive(Debug)]
pub(crate) struct SeparatorModel {
    core: ComponentCore,
}

/// The model of any component: its identifier, data and style classes.
#[derive(Debug)]
pub(crate) struct PlainComponentModel {
    core: ComponentCore,
}

/// Makes the model of a separator.
pub(crate) fn create(request: &ModelRequest) -> ModelValue {
    ModelValue::model(SeparatorModel { core: ComponentCore::new(request) })
}

/// Makes the model of any component.
pub(crate) fn create_plain(request: &ModelRequest) -> ModelValue {
    ModelValue::model(PlainComponentModel { core: ComponentCore::new(request) })
}

impl SeparatorModel {
    fn is_decorative(&self) -> bool {
        self.core.is_set("isDecorative")
    }

    /// The exported form has no identifier and no data.
    fn export_map(&self) -> ModelMap {
        let mut map = ModelMap::new();
        self.core.export_end(&mut map, None);
        map
    }
}

impl PlainComponentModel {
    fn export_map(&self) -> ModelMap {
        let mut map = ModelMap::new();
        map.insert("id", self.core.id());
        self.core.export_end(&mut map, self.core.data());
        map
    }
}

component_model!(SeparatorModel { "decorative" => is_decorative });
component_model!(PlainComponentModel {});
