//! The table of contents component (`tableofcontents`): which headings of the page it lists.
//!
//! A filter of the server that fills the placeholder in the page is not part of the model.

use std::sync::Arc;

use crate::component_core::{ComponentCore, component_model};
use crate::model_registry::ModelRequest;
use crate::model_value::{ModelMap, ModelValue};
use crate::models::title::HEADING_ELEMENTS;

/// The value of a policy that leaves the choice to the component.
const NO_RESTRICTION: &str = "norestriction";

/// The kinds of list.
const LIST_KINDS: [&str; 2] = ["bulleted", "numbered"];

/// The model of a table of contents.
#[derive(Debug)]
pub(crate) struct TableOfContentsModel {
    core: ComponentCore,
}

/// Makes the model.
pub(crate) fn create(request: &ModelRequest) -> ModelValue {
    ModelValue::model(TableOfContentsModel { core: ComponentCore::new(request) })
}

impl TableOfContentsModel {
    /// Returns a choice: the one that the policy restricts to, else that of the component, else the default.
    fn choice(
        &self,
        restriction: &str,
        name: &str,
        choices: &[&'static str],
        default: &'static str,
    ) -> &'static str {
        let known = |text: Arc<str>| choices.iter().copied().find(|choice| *choice == &*text);
        self.core
            .policy_text(restriction)
            .filter(|text| &**text != NO_RESTRICTION)
            .and_then(known)
            .or_else(|| self.core.text(name).and_then(known))
            .unwrap_or(default)
    }

    fn list_kind(&self) -> &'static str {
        self.choice("restrictListType", "listType", &LIST_KINDS, "bulleted")
    }

    fn first_heading(&self) -> &'static str {
        self.choice("restrictStartLevel", "startLevel", &HEADING_ELEMENTS, "h1")
    }

    fn last_heading(&self) -> &'static str {
        self.choice("restrictStopLevel", "stopLevel", &HEADING_ELEMENTS, "h6")
    }

    fn list_type(&self) -> ModelValue {
        let name = self.list_kind();
        ModelValue::Constant { name, value: name }
    }

    fn start_level(&self) -> ModelValue {
        let name = self.first_heading();
        ModelValue::Constant { name, value: name }
    }

    fn stop_level(&self) -> ModelValue {
        let name = self.last_heading();
        ModelValue::Constant { name, value: name }
    }

    fn classes(&self, name: &str) -> ModelValue {
        match self.core.policy_value(name).map(|value| value.to_texts()) {
            Some(classes) if !classes.is_empty() => ModelValue::texts(classes),
            _ => ModelValue::Null,
        }
    }

    fn include_classes(&self) -> ModelValue {
        self.classes("includeClasses")
    }

    fn ignore_classes(&self) -> ModelValue {
        self.classes("ignoreClasses")
    }

    fn export_map(&self) -> ModelMap {
        let mut map = ModelMap::new();
        map.insert("id", self.core.id());
        map.insert("listType", self.list_kind());
        map.insert("startLevel", self.first_heading());
        map.insert("stopLevel", self.last_heading());
        map.insert_present("includeClasses", self.include_classes());
        map.insert_present("ignoreClasses", self.ignore_classes());
        self.core.export_end(&mut map, None);
        map
    }
}

component_model!(TableOfContentsModel {
    "listType" => list_type,
    "startLevel" => start_level,
    "stopLevel" => stop_level,
    "includeClasses" => include_classes,
    "ignoreClasses" => ignore_classes,
});
