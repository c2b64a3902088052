//! The form components (`form/container`, `form/text`, `form/options`, `form/button`, `form/hidden`, v1 and v2).

use std::sync::Arc;

use crate::child_components::{child_components, export_children};
use crate::component_core::{ComponentCore, component_model};
use crate::link::{ComponentLink, RedirectPolicy, with_context_path};
use crate::model_registry::ModelRequest;
use crate::model_value::{ComponentModel, ModelMap, ModelValue};

/// The type of the area of an empty form in which an author drops fields.
const DROP_AREA_TYPE: &str = "wcm/foundation/components/responsivegrid/new";

/// Lines of a text area.
const DEFAULT_ROWS: i64 = 2;

/// The model of a form.
#[derive(Debug)]
pub(crate) struct FormContainerModel {
    core: ComponentCore,
}

/// The model of a text field.
#[derive(Debug)]
pub(crate) struct FormTextModel {
    core: ComponentCore,
}

/// The model of a choice.
#[derive(Debug)]
pub(crate) struct FormOptionsModel {
    core: ComponentCore,
}

/// The model of a button.
#[derive(Debug)]
pub(crate) struct FormButtonModel {
    core: ComponentCore,
}

/// The model of a hidden field.
#[derive(Debug)]
pub(crate) struct FormHiddenModel {
    core: ComponentCore,
}

/// One option of a choice.
#[derive(Debug)]
struct FormOption {
    text: Option<Arc<str>>,
    value: Option<Arc<str>>,
    is_selected: bool,
    is_disabled: bool,
}

/// Makes the model of a form.
pub(crate) fn create_container(request: &ModelRequest) -> ModelValue {
    ModelValue::model(FormContainerModel { core: ComponentCore::new(request) })
}

/// Makes the model of a text field.
pub(crate) fn create_text(request: &ModelRequest) -> ModelValue {
    ModelValue::model(FormTextModel { core: ComponentCore::new(request) })
}

/// Makes the model of a choice.
pub(crate) fn create_options(request: &ModelRequest) -> ModelValue {
    ModelValue::model(FormOptionsModel { core: ComponentCore::new(request) })
}

/// Makes the model of a button.
pub(crate) fn create_button(request: &ModelRequest) -> ModelValue {
    ModelValue::model(FormButtonModel { core: ComponentCore::new(request) })
}

/// Makes the model of a hidden field.
pub(crate) fn create_hidden(request: &ModelRequest) -> ModelValue {
    ModelValue::model(FormHiddenModel { core: ComponentCore::new(request) })
}

/// Returns the identifier of a field: the property `id`, else a prefix with a number made from the path.
fn field_id(core: &ComponentCore, prefix: &str) -> String {
    match core.filled_text("id") {
        Some(id) => id.to_string(),
        None => format!("{prefix}-{}", path_number(core.path())),
    }
}

/// Returns the number that identifies a path: the magnitude of one less than the hash that Java gives a string.
fn path_number(path: &str) -> u32 {
    let hash = path
        .encode_utf16()
        .fold(0_i32, |hash, unit| hash.wrapping_mul(31).wrapping_add(i32::from(unit)));
    hash.wrapping_sub(1).unsigned_abs()
}

/// Returns a property as text, else a default.
fn text_or(core: &ComponentCore, name: &str, default: &str) -> Arc<str> {
    core.text(name).unwrap_or_else(|| default.into())
}

impl FormContainerModel {
    fn id(&self) -> Option<Arc<str>> {
        self.core.filled_text("id")
    }

    fn method(&self) -> Arc<str> {
        text_or(&self.core, "method", "POST")
    }

    fn enctype(&self) -> Arc<str> {
        text_or(&self.core, "enctype", "multipart/form-data")
    }

    /// Returns the address that the form is sent to: the page that contains it.
    fn action(&self) -> Option<String> {
        let page = self.core.current_page()?;
        let path = self.core.context().map_path(&format!("{page}.html"));
        Some(with_context_path(self.core.context(), &path))
    }

    /// Returns the page to show after the form was sent, without an extension.
    fn redirect(&self) -> Option<String> {
        let redirect = self.core.filled_text("redirect")?;
        let context = self.core.context();
        let is_page = self.core.pages().is_page(&redirect);
        match is_page {
            true => ComponentLink::to_page(context, &redirect, RedirectPolicy::Keep).url,
            false => Some(with_context_path(context, &context.map_path(&redirect))),
        }
    }

    fn error_messages(&self) -> Vec<ModelValue> {
        match self.core.context().request().attributes.get("formErrorMessages") {
            Some(ModelValue::List(messages)) => messages.to_vec(),
            _ => Vec::new(),
        }
    }

    fn drop_area_type(&self) -> &'static str {
        DROP_AREA_TYPE
    }

    fn export_map(&self) -> ModelMap {
        let mut map = ModelMap::new();
        map.insert_present("id", self.id());
        map.insert_present("name", self.id());
        map.insert("method", self.method());
        map.insert("enctype", self.enctype());
        map.insert_present("action", self.action());
        map.insert_present("redirect", self.redirect());
        map.insert("errorMessages", self.error_messages());
        map.insert("resourceTypeForDropArea", self.drop_area_type());
        export_children(&self.core, &child_components(&self.core), &|_, _| {}, &mut map);
        self.core.export_end(&mut map, self.core.data());
        map
    }
}

impl FormTextModel {
    fn id(&self) -> String {
        field_id(&self.core, "form-text")
    }

    fn name(&self) -> Arc<str> {
        text_or(&self.core, "name", "text")
    }

    fn title(&self) -> Arc<str> {
        self.core
            .text("jcr:title")
            .unwrap_or_else(|| self.core.context().translate("Text input field", None).into())
    }

    /// Returns what was sent before, else the value of the property.
    fn value(&self) -> Arc<str> {
        let name = self.name();
        match self.core.context().request().parameter(&name) {
            Some(value) => value.into(),
            None => text_or(&self.core, "value", ""),
        }
    }

    fn help_message(&self) -> Arc<str> {
        text_or(&self.core, "helpMessage", "")
    }

    fn placeholder(&self) -> Option<Arc<str>> {
        self.core.is_set("usePlaceholder").then(|| self.help_message())
    }

    fn input_type(&self) -> Arc<str> {
        text_or(&self.core, "type", "text")
    }

    fn is_read_only(&self) -> bool {
        self.core.is_set("readOnly")
    }

    fn is_required(&self) -> bool {
        self.core.is_set("required")
    }

    fn required_message(&self) -> Arc<str> {
        text_or(&self.core, "requiredMessage", "")
    }

    fn constraint_message(&self) -> Arc<str> {
        text_or(&self.core, "constraintMessage", "")
    }

    fn rows(&self) -> i64 {
        self.core.value("rows").and_then(|value| value.to_long()).unwrap_or(DEFAULT_ROWS)
    }

    fn hides_title(&self) -> bool {
        self.core.is_set("hideTitle")
    }

    fn default_value(&self) -> Arc<str> {
        text_or(&self.core, "defaultValue", "")
    }

    fn displays_validation(&self) -> bool {
        self.core.is_set_or_policy("displayValidation")
    }

    fn export_map(&self) -> ModelMap {
        let mut map = ModelMap::new();
        map.insert("id", self.id());
        map.insert("title", self.title());
        map.insert("name", self.name());
        map.insert("value", self.value());
        map.insert("helpMessage", self.help_message());
        map.insert_present("placeholder", self.placeholder());
        map.insert("type", self.input_type());
        map.insert("readOnly", self.is_read_only());
        map.insert("required", self.is_required());
        map.insert("requiredMessage", self.required_message());
        map.insert("constraintMessage", self.constraint_message());
        map.insert("rows", self.rows());
        map.insert("defaultValue", self.default_value());
        self.core.export_end(&mut map, self.core.data());
        map
    }
}

impl FormOptionsModel {
    fn id(&self) -> String {
        field_id(&self.core, "form-options")
    }

    fn name(&self) -> Option<Arc<str>> {
        self.core.text("name")
    }

    fn title(&self) -> Option<Arc<str>> {
        self.core.text("jcr:title")
    }

    fn help_message(&self) -> Option<Arc<str>> {
        self.core.text("helpMessage")
    }

    fn kind(&self) -> ModelValue {
        let (name, value) = match self.core.text("type").as_deref() {
            Some("radio") => ("RADIO", "radio"),
            Some("drop-down") => ("DROP_DOWN", "drop-down"),
            Some("multi-drop-down") => ("MULTI_DROP_DOWN", "multi-drop-down"),
            _ => ("CHECKBOX", "checkbox"),
        };
        ModelValue::Constant { name, value }
    }

    fn items(&self) -> Vec<ModelValue> {
        let folder = match self.core.text("source").as_deref() {
            Some("datasource") => return self.data_source_items(),
            Some("list") => match self.core.text("listPath") {
                Some(path) => path.to_string(),
                None => return Vec::new(),
            },
            _ => format!("{}/items", self.core.path()),
        };
        let context = self.core.context();
        context
            .child_names(&folder)
            .into_iter()
            .map(|name| {
                let node = format!("{folder}/{name}");
                self.option(&|name| context.property(&node, name).map(ModelValue::from))
            })
            .collect()
    }

    fn data_source_items(&self) -> Vec<ModelValue> {
        let Some(resource_type) = self.core.filled_text("datasourceRT") else { return Vec::new() };
        let items = self.core.context().data_source(&resource_type, self.core.resource());
        items.iter().map(|item| self.option(&|name| item.property(name))).collect()
    }

    /// Creates an option from its properties. Values that were sent with the request select options in place of the
    /// properties.
    fn option(&self, property: &dyn Fn(&str) -> Option<ModelValue>) -> ModelValue {
        let text = |name: &str| property(name).and_then(|value| value.as_text().map(Arc::from));
        let is_set = |name: &str| match property(name) {
            Some(ModelValue::Boolean(value)) => value,
            Some(value) => value.as_text().is_some_and(|text| text.eq_ignore_ascii_case("true")),
            None => false,
        };
        let value: Option<Arc<str>> = text("value");
        let name = self.name().unwrap_or_else(|| "".into());
        let request = self.core.context().request();
        let mut sent = request.parameter_values(&name).peekable();
        let is_selected = match sent.peek() {
            Some(_) => sent.any(|sent| value.as_deref() == Some(sent)),
            None => is_set("selected"),
        };
        let is_disabled = is_set("disabled");
        ModelValue::model(FormOption { text: text("text"), value, is_selected, is_disabled })
    }

    fn export_map(&self) -> ModelMap {
        let mut map = ModelMap::new();
        map.insert("id", self.id());
        map.insert_present("title", self.title());
        map.insert_present("name", self.name());
        map.insert_present("helpMessage", self.help_message());
        map.insert("type", self.kind());
        map.insert("items", self.items());
        self.core.export_end(&mut map, self.core.data());
        map
    }
}

impl FormButtonModel {
    fn id(&self) -> String {
        field_id(&self.core, "form-button")
    }

    fn name(&self) -> Arc<str> {
        text_or(&self.core, "name", "")
    }

    fn value(&self) -> Arc<str> {
        text_or(&self.core, "value", "")
    }

    fn title(&self) -> Arc<str> {
        self.core
            .text("jcr:title")
            .unwrap_or_else(|| self.core.context().translate("Submit", None).into())
    }

    fn kind(&self) -> ModelValue {
        match self.core.text("type").as_deref() {
            Some("button") => ModelValue::Constant { name: "BUTTON", value: "button" },
            _ => ModelValue::Constant { name: "SUBMIT", value: "submit" },
        }
    }

    fn export_map(&self) -> ModelMap {
        let mut map = ModelMap::new();
        map.insert("id", self.id());
        map.insert("title", self.title());
        map.insert("name", self.name());
        map.insert("value", self.value());
        map.insert("type", self.kind());
        self.core.export_end(&mut map, self.core.data());
        map
    }
}

impl FormHiddenModel {
    fn id(&self) -> String {
        field_id(&self.core, "form-hidden")
    }

    fn name(&self) -> Arc<str> {
        text_or(&self.core, "name", "hidden")
    }

    fn value(&self) -> Arc<str> {
        text_or(&self.core, "value", "")
    }

    fn title(&self) -> Option<Arc<str>> {
        self.core.text("jcr:title")
    }

    fn export_map(&self) -> ModelMap {
        let mut map = ModelMap::new();
        map.insert("id", self.id());
        map.insert_present("title", self.title());
        map.insert("name", self.name());
        map.insert("value", self.value());
        self.core.export_end(&mut map, self.core.data());
        map
    }
}

component_model!(FormContainerModel {
    "id" => id,
    "name" => id,
    "method" => method,
    "enctype" => enctype,
    "action" => action,
    "redirect" => redirect,
    "errorMessages" => error_messages,
    "resourceTypeForDropArea" => drop_area_type,
});

component_model!(FormTextModel {
    "id" => id,
    "name" => name,
    "title" => title,
    "value" => value,
    "helpMessage" => help_message,
    "placeholder" => placeholder,
    "type" => input_type,
    "readOnly" => is_read_only,
    "required" => is_required,
    "requiredMessage" => required_message,
    "constraintMessage" => constraint_message,
    "rows" => rows,
    "hideTitle" => hides_title,
    "defaultValue" => default_value,
    "displayValidation" => displays_validation,
});

component_model!(FormOptionsModel {
    "id" => id,
    "name" => name,
    "title" => title,
    "helpMessage" => help_message,
    "type" => kind,
    "items" => items,
});

component_model!(FormButtonModel {
    "id" => id,
    "name" => name,
    "title" => title,
    "value" => value,
    "type" => kind,
});

component_model!(FormHiddenModel {
    "id" => id,
    "name" => name,
    "title" => title,
    "value" => value,
});

impl ComponentModel for FormOption {
    fn property(&self, name: &str) -> Option<ModelValue> {
        Some(match name {
            "text" => self.text.clone().into(),
            "value" => self.value.clone().into(),
            "selected" => self.is_selected.into(),
            "disabled" => self.is_disabled.into(),
            _ => return None,
        })
    }

    fn property_names(&self) -> Vec<&'static str> {
        vec!["text", "value", "selected", "disabled"]
    }

    fn export(&self) -> ModelMap {
        let mut map = ModelMap::new();
        map.insert_present("text", self.text.clone());
        map.insert_present("value", self.value.clone());
        map.insert("disabled", self.is_disabled);
        map.insert("selected", self.is_selected);
        map
    }
}
