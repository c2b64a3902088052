//! The text component (`text`, v1 and v2): plain or rich text.

use std::sync::Arc;

use crate::component_core::{ComponentCore, component_model};
use crate::component_data::ComponentData;
use crate::model_registry::ModelRequest;
use crate::model_value::{ModelMap, ModelValue};

/// The model of a text.
#[derive(Debug)]
pub(crate) struct TextModel {
    core: ComponentCore,
}

/// Makes the model.
pub(crate) fn create(request: &ModelRequest) -> ModelValue {
    ModelValue::model(TextModel { core: ComponentCore::new(request) })
}

impl TextModel {
    fn text(&self) -> Option<Arc<str>> {
        self.core.text("text")
    }

    fn is_rich_text(&self) -> bool {
        self.core.is_set("textIsRich")
    }

    fn data(&self) -> Option<ComponentData> {
        let text = self.text().unwrap_or_else(|| "".into());
        Some(ComponentData { text: Some(text), ..self.core.data()? })
    }

    fn export_map(&self) -> ModelMap {
        let mut map = ModelMap::new();
        map.insert("id", self.core.id());
        map.insert_present("text", self.text());
        map.insert("richText", self.is_rich_text());
        self.core.export_end(&mut map, self.data());
        map
    }
}

component_model!(TextModel {
    "text" => text,
    "isRichText" => is_rich_text,
    "richText" => is_rich_text,
    "data" => data,
});
