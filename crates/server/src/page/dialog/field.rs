//! Fields of dialogs: what each resource type of Granite's and the Core Components' form vocabulary becomes in a form.
//!
//! In: the tree of a dialog ([`DialogNode`]). Out: tabs. A tab has the list of its fields, each with the property it
//! stores and how, and a layout: the fields between headings, texts and groups.
//!
//! What a field stores is what AEM's dialog stores, whose fields post to Sling's POST servlet: a text, unless the dialog
//! gives another type (`typeHint`, or a hidden field `name@TypeHint`); of a box the text of its `value` or
//! `uncheckedValue`; of a select without an empty option its first option.
//!
//! Not here: when a field is shown (`visibility`), and the values of the component (`stored_value`).

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value as Json, json};
use tympan_content::{JCR_CONTENT, NodePath, Property};
use tympan_render::dialog::find_component_node;

use super::data_source::{DialogOption, source_options};
use super::dialog_context::{DialogContext, MAX_NESTING_DEPTH, component_title, property_name};
use super::dialog_node::DialogNode;
use super::stored_value::form_value_json;
use super::visibility::VisibilityRules;
use crate::failure::Result;

/// The path below which AEM's dialogs include the tab with the styles of the policy.
const STYLE_TAB: &str = "cq/gui/components/authoring/dialog/style/";
/// The property with the chosen styles.
const STYLE_PROPERTY: &str = "cq:styleIds";
/// Where the variations of experience fragments lie.
const EXPERIENCE_FRAGMENTS: &str = "/content/experience-fragments";
/// Where assets lie.
const ASSETS: &str = "/content/dam";
/// The features of a plugin that names none.
const ALL_FEATURES: &str = "*";

/// What a node of a dialog is in a form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DialogItem {
    /// Tabs.
    Tabs,
    /// A group of items without a frame or title of its own.
    Container,
    /// A group of items with a frame.
    Well,
    /// A group of items with a title.
    Fieldset,
    /// Groups that fold.
    Accordion,
    /// A title above items.
    Heading,
    /// A text.
    Text,
    /// A notice.
    Alert,
    /// A field of this kind.
    Field(&'static str),
    /// A property that a page inherits unless it overrides it.
    Inherited,
    /// The featured image of the page.
    PagePicture,
    /// The titles of the panels of a container.
    ChildrenEditor,
    /// Features of plugins of the rich text editor, in a policy.
    Plugin,
    /// Something that needs no place in a form.
    Nothing,
    /// A type that is not known.
    Unknown,
}

impl DialogItem {
    /// Returns what a resource type is in a form.
    pub(super) fn of_type(resource_type: &str) -> Self {
        let Some((folder, name)) = resource_type.rsplit_once('/') else { return Self::Unknown };
        if folder.contains("renderconditions") || folder.contains("rendercondition") {
            return Self::Nothing;
        }
        let is_field = ["form", "dialog", "widgets"].iter().any(|part| folder.contains(part));
        match name {
            "textfield" | "autocomplete" | "password" | "userpicker" | "email" if is_field => {
                Self::Field("text")
            }
            "textarea" => Self::Field("textarea"),
            "richtext" => Self::Field("richtext"),
            "numberfield" => Self::Field("number"),
            "checkbox" | "switch" => Self::Field("checkbox"),
            "select" => Self::Field("select"),
            "radiogroup" | "buttongroup" => Self::Field("radio"),
            "fileupload"
            | "pathfield"
            | "pathbrowser"
            | "pagefield"
            | "assetfield"
            | "xffield"
            | "cfpicker"
            | "contentfragmentpicker"
            | "experiencefragmentpicker" => Self::Field("path"),
            "tagfield" | "tagspicker" => Self::Field("tags"),
            "datepicker" | "timepicker" => Self::Field("date"),
            "colorfield" => Self::Field("color"),
            "multifield" => Self::Field("multi"),
            "hidden" if is_field => Self::Field("hidden"),
            "allowedcomponents" => Self::Field("multi"),
            "tabs" => Self::Tabs,
            "well" => Self::Well,
            "fieldset" => Self::Fieldset,
            "accordion" => Self::Accordion,
            "heading" => Self::Heading,
            "text" if folder.ends_with("/foundation") => Self::Text,
            "alert" => Self::Alert,
            "inherited" => Self::Inherited,
            "pageimagethumbnail" => Self::PagePicture,
            "childreneditor" => Self::ChildrenEditor,
            "plugin" | "pluginfeature" => Self::Plugin,
            "container" | "fixedcolumns" | "include" | "imagedelegate" | "panel" | "section"
            | "dialog" | "wrapper" | "tab" | "collapsible" | "parentcontainer" => Self::Container,
            // Drawn by scripts only, or parts of other fields.
            "button" | "hyperlink" | "pagethumbnail" | "pagepreview" | "nextgendmthumbnail"
            | "mapper" | "list" | "option" | "options" | "values" | "hr" | "separator" => {
                Self::Nothing
            }
            _ => Self::Unknown,
        }
    }
}

/// A tab of a form.
#[derive(Debug, Default)]
struct FormTab {
    title: String,
    fields: Vec<Json>,
    items: Vec<Json>,
    conditions: Vec<Json>,
}

/// Makes the tabs of a form from the tree of a dialog.
pub(super) struct FormBuilder<'a> {
    context: &'a DialogContext<'a>,
    rules: VisibilityRules,
    /// Types of properties that hidden fields give, by property.
    type_hints: BTreeMap<String, String>,
    /// Properties that saving removes.
    removed: BTreeSet<String>,
    /// Names of the fields of the form so far.
    names: BTreeSet<String>,
    /// Resource types that are not known.
    unknown: BTreeSet<String>,
    /// How many lists with fields of their own surround the fields that are added.
    list_depth: usize,
}

impl<'a> FormBuilder<'a> {
    /// Prepares the form of a dialog.
    pub(super) fn new(context: &'a DialogContext<'a>, dialog: &DialogNode) -> Self {
        let mut type_hints = BTreeMap::new();
        let mut removed = BTreeSet::new();
        dialog.visit(&mut |node: &DialogNode| {
            let Some(name) = node.text("name") else { return };
            match property_name(&name).split_once('@') {
                Some((property, "TypeHint")) => {
                    type_hints.extend(node.text("value").map(|hint| (property.to_owned(), hint)));
                }
                Some((property, "Delete")) => {
                    removed.insert(property.to_owned());
                }
                _ => {}
            }
        });
        let rules = VisibilityRules::of_dialog(dialog);
        let (names, unknown) = (BTreeSet::new(), BTreeSet::new());
        Self { context, rules, type_hints, removed, names, unknown, list_depth: 0 }
    }

    /// Returns the tabs of the form, and the resource types of the dialog that are not known.
    ///
    /// # Errors
    /// If content cannot be read.
    pub(super) fn build(mut self, dialog: &DialogNode) -> Result<(Vec<Json>, Vec<String>)> {
        let mut tabs = Vec::new();
        let mut loose = FormTab { title: "Properties".to_owned(), ..FormTab::default() };
        self.add_tabs(dialog, &[], &mut tabs, &mut loose, 0)?;
        if !loose.items.is_empty() || !loose.fields.is_empty() {
            tabs.insert(0, loose);
        }
        let described = tabs.into_iter().filter(|tab| !tab.fields.is_empty()).map(|tab| {
            json!({
                "title": tab.title,
                "fields": tab.fields,
                "items": tab.items,
                "visible": all_of(&tab.conditions),
            })
        });
        Ok((described.collect(), self.unknown.into_iter().collect()))
    }

    /// Finds the tabs of a dialog at any depth of containers; items outside of tabs go to a tab of their own.
    fn add_tabs(
        &mut self,
        node: &DialogNode,
        conditions: &[Json],
        tabs: &mut Vec<FormTab>,
        loose: &mut FormTab,
        depth: usize,
    ) -> Result<()> {
        if depth > MAX_NESTING_DEPTH {
            return Ok(());
        }
        let has_tabs = |node: &DialogNode| {
            let mut found = false;
            node.visit(&mut |inner: &DialogNode| found |= item_of(inner) == DialogItem::Tabs);
            found
        };
        for item in node.items() {
            let conditions = joined(conditions, self.rules.shown_when(item));
            if item_of(item) == DialogItem::Tabs {
                for panel in item.items() {
                    let conditions = joined(&conditions, self.rules.shown_when(panel));
                    let title = match is_style_tab(panel) {
                        true => "Styles".to_owned(),
                        false => label_of(panel),
                    };
                    let mut tab = FormTab { title, conditions, ..FormTab::default() };
                    let own = tab.conditions.clone();
                    tab.items = self.panel_items(panel, &own, &mut tab.fields, depth + 1)?;
                    tabs.push(tab);
                }
            } else if has_tabs(item) {
                self.add_tabs(item, &conditions, tabs, loose, depth + 1)?;
            } else {
                let items = self.item(item, &conditions, &mut loose.fields, depth + 1)?;
                loose.items.extend(items);
            }
        }
        Ok(())
    }

    /// Returns the layout of a tab's panel: of its items, or of itself if it is a field.
    fn panel_items(
        &mut self,
        panel: &DialogNode,
        conditions: &[Json],
        fields: &mut Vec<Json>,
        depth: usize,
    ) -> Result<Vec<Json>> {
        if is_style_tab(panel) {
            return Ok(self.style_fields(fields));
        }
        match item_of(panel) {
            DialogItem::Field(_) => self.item(panel, conditions, fields, depth),
            _ => self.items(panel, conditions, fields, depth),
        }
    }

    fn items(
        &mut self,
        node: &DialogNode,
        conditions: &[Json],
        fields: &mut Vec<Json>,
        depth: usize,
    ) -> Result<Vec<Json>> {
        let mut items = Vec::new();
        if depth > MAX_NESTING_DEPTH {
            return Ok(items);
        }
        for item in node.items() {
            let conditions = joined(conditions, self.rules.shown_when(item));
            items.extend(self.item(item, &conditions, fields, depth + 1)?);
        }
        Ok(items)
    }

    /// Adds the fields of an item and returns its layout. The conditions include its own.
    fn item(
        &mut self,
        node: &DialogNode,
        conditions: &[Json],
        fields: &mut Vec<Json>,
        depth: usize,
    ) -> Result<Vec<Json>> {
        if is_style_tab(node) {
            return Ok(self.style_fields(fields));
        }
        let own = self.rules.shown_when(node);
        let group = |style: &str, items: Vec<Json>| match items.is_empty() {
            true => Vec::new(),
            false => vec![json!({
                "item": "group", "style": style, "title": title_of(node), "items": items, "visible": all_of(&own),
            })],
        };
        Ok(match self.known_item(node)? {
            DialogItem::Field(kind) => self.field(node, kind, conditions, fields)?,
            DialogItem::Heading => vec![json!({
                "item": "heading", "text": node.text("text"), "visible": all_of(&own),
            })],
            DialogItem::Text => match node.text("text").filter(|text| !text.is_empty()) {
                Some(text) => {
                    vec![json!({ "item": "text", "text": text, "visible": all_of(&own) })]
                }
                None => Vec::new(),
            },
            // A notice that scripts show for a moment has no place here.
            DialogItem::Alert if node.is_set("granite:hidden") => Vec::new(),
            DialogItem::Alert => vec![json!({
                "item": "alert", "text": node.text("text"), "variant": node.text("variant"),
                "visible": all_of(&own),
            })],
            DialogItem::Inherited => self.inherited_field(node, conditions, fields)?,
            DialogItem::PagePicture => self.page_picture(&own)?,
            DialogItem::ChildrenEditor => self.panel_titles(fields)?,
            DialogItem::Plugin => self.plugin_field(node, fields),
            DialogItem::Nothing => Vec::new(),
            DialogItem::Well => group("well", self.items(node, conditions, fields, depth)?),
            DialogItem::Fieldset => group("fieldset", self.items(node, conditions, fields, depth)?),
            DialogItem::Tabs | DialogItem::Accordion => {
                let mut groups = Vec::new();
                for panel in node.items() {
                    let own = self.rules.shown_when(panel);
                    let conditions = joined(conditions, own.clone());
                    let items = self.panel_items(panel, &conditions, fields, depth + 1)?;
                    if !items.is_empty() {
                        groups.push(json!({
                            "item": "group", "style": "fieldset", "title": label_of(panel),
                            "items": items, "visible": all_of(&own),
                        }));
                    }
                }
                groups
            }
            DialogItem::Container | DialogItem::Unknown => {
                let items = match features_field(node) {
                    Some(field) => self.push(field, fields),
                    None => self.items(node, conditions, fields, depth)?,
                };
                if own.is_empty() { items } else { group("plain", items) }
            }
        })
    }

    /// Returns what a node is, by its type or the first known one of its super types.
    fn known_item(&mut self, node: &DialogNode) -> Result<DialogItem> {
        let kind = node.resource_type();
        if kind.is_empty() {
            return Ok(DialogItem::Container);
        }
        let mut next = kind.clone();
        for _ in 0..MAX_NESTING_DEPTH {
            let item = DialogItem::of_type(&next);
            if item != DialogItem::Unknown {
                return Ok(item);
            }
            let component = find_component_node(self.context.snapshot, &next)?;
            match component.and_then(|component| component.text("sling:resourceSuperType")) {
                Some(above) => next = above,
                None => break,
            }
        }
        self.unknown.insert(kind);
        // A field of an unknown type is edited as text.
        let is_field = node.property("name").is_some() && node.items().next().is_none();
        Ok(if is_field { DialogItem::Field("text") } else { DialogItem::Unknown })
    }

    /// Adds a field to the form and returns its place in the layout; a second field for a property is left out.
    fn push(&mut self, field: Json, fields: &mut Vec<Json>) -> Vec<Json> {
        let Some(name) = field.get("name").and_then(Json::as_str).map(str::to_owned) else {
            return Vec::new();
        };
        let is_double = match self.list_depth {
            0 => !self.names.insert(name.clone()),
            _ => fields.iter().any(|other| other.get("name").is_some_and(|other| *other == name)),
        };
        if is_double {
            return Vec::new();
        }
        fields.push(field);
        vec![json!({ "item": "field", "name": name })]
    }

    fn field(
        &mut self,
        node: &DialogNode,
        kind: &'static str,
        conditions: &[Json],
        fields: &mut Vec<Json>,
    ) -> Result<Vec<Json>> {
        if let Some(panels) = self.panel_choice(node)? {
            return Ok(panels.map(|field| self.push(field, fields)).unwrap_or_default());
        }
        let Some(mut field) = self.field_json(node, kind)? else { return Ok(Vec::new()) };
        if let Some(object) = field.as_object_mut() {
            let enabled = self.rules.enabled_when(node);
            let required = self.rules.required_when(node);
            for (key, condition) in [
                ("visible", all_of(conditions)),
                ("enabled", all_of(&enabled)),
                (
                    "requiredWhen",
                    if required.is_empty() { Json::Null } else { json!({ "any": required }) },
                ),
            ] {
                if !condition.is_null() {
                    object.insert(key.to_owned(), condition);
                }
            }
        }
        Ok(self.push(field, fields))
    }

    /// Describes a field; `None` if it stores no property of the component.
    fn field_json(&mut self, node: &DialogNode, kind: &'static str) -> Result<Option<Json>> {
        let inner = if kind == "multi" { node.child("field") } else { None };
        let stored_name = match node.resource_type().ends_with("/fileupload") {
            true => node.text("fileReferenceParameter"),
            false => node.text("name").or_else(|| inner.and_then(|inner| inner.text("name"))),
        };
        let Some(name) = stored_name.map(|name| property_name(&name).to_owned()) else {
            return Ok(None);
        };
        if name.contains('@') || name.is_empty() {
            return Ok(None);
        }
        let is_multiple = node.is_set("multiple");
        let form_kind = match kind {
            // Chosen tags are a list, and so are suggestions of which several can be taken.
            "tags" if is_multiple || name == "cq:tags" => "multi",
            "tags" => "path",
            "text" if is_multiple => "multi",
            kind => kind,
        };
        let options = self.options_of(node, kind)?;
        // A choice of heading elements that the policy limits is shown if there is one. With one element there is none.
        if options.as_ref().is_some_and(|options| kind == "select" && options.len() < 2)
            && is_limited_by_policy(node)
        {
            if options.is_some_and(|options| options.len() == 1) {
                self.names.insert(name);
            }
            return Ok(None);
        }
        let mut field = json!({
            "name": name,
            "kind": form_kind,
            "label": label_of(node),
            "description": node.text("fieldDescription"),
            "placeholder": node.text("emptyText"),
            "required": node.is_set("required"),
            "value": self.default_value(node, kind, &name, options.as_deref()),
            "min": node.text("min"),
            "max": node.text("max"),
            "typeHint": self.type_hint(node, kind, &name),
        });
        let Some(object) = field.as_object_mut() else { return Ok(None) };
        let mut put = |key: &str, value: Json| {
            if !value.is_null() {
                object.insert(key.to_owned(), value);
            }
        };
        if node.is_set("disabled") || node.is_set("readOnly") {
            put("isReadOnly", true.into());
        }
        put("validation", node.text("validation").into());
        match kind {
            "number" => put("step", node.text("step").unwrap_or_else(|| "1".to_owned()).into()),
            "checkbox" => {
                put("checkedValue", checked_value(node).into());
                put("uncheckedValue", node.text("uncheckedValue").into());
            }
            "select" => {
                put("hasEmptyOption", has_empty_option(node).into());
                put("multiple", is_multiple.then_some(true).into());
            }
            "date" => {
                put("dateType", date_type(node).into());
                put("valueFormat", node.text("valueFormat").into());
                put("min", node.text("minDate").into());
                put("max", node.text("maxDate").into());
            }
            "path" => {
                put("root", path_root(node).into());
                put("picks", picked_kind(node).into());
                if node.resource_type().ends_with("/fileupload") {
                    for (key, parameter) in [("file", "name"), ("fileName", "fileNameParameter")] {
                        let name = node.text(parameter).map(|name| property_name(&name).to_owned());
                        put(key, name.into());
                    }
                    let file = node.text("name").map(|name| property_name(&name).to_owned());
                    let stored = file.map(|file| self.context.resource.find_descendant(&file));
                    put("hasFile", stored.transpose()?.flatten().is_some().into());
                }
            }
            "tags" => put("picks", "tag".into()),
            "richtext" => put("features", self.rich_text_features(node).into()),
            "hidden" if self.removed.contains(&name) => put("isRemoved", true.into()),
            _ => {}
        }
        if let Some(options) = &options {
            let key = if kind == "text" || kind == "color" { "suggestions" } else { "options" };
            let option =
                |option: &DialogOption| json!({ "value": option.value, "text": option.text });
            put(key, options.iter().map(option).collect());
        }
        let repeated = match (kind, inner) {
            ("tags", _) if form_kind == "multi" => {
                Some(json!({ "kind": "path", "picks": "tag", "name": name }))
            }
            ("text", _) if form_kind == "multi" => Some(json!({ "kind": "text", "name": name })),
            (_, Some(inner)) => Some(self.repeated_field(node, inner, &name)?),
            ("multi", None) => Some(json!({ "kind": "text", "name": name })),
            _ => None,
        };
        if let Some(repeated) = repeated {
            // A list of hidden values is kept as it is.
            let is_hidden = repeated.get("kind").is_some_and(|kind| kind == "hidden");
            put("field", repeated);
            if is_hidden || node.is_set("granite:hidden") {
                return Ok(None);
            }
        }
        Ok(Some(field))
    }

    /// Describes what a list repeats: a group of fields, or one field.
    fn repeated_field(
        &mut self,
        node: &DialogNode,
        inner: &DialogNode,
        name: &str,
    ) -> Result<Json> {
        let item = self.known_item(inner)?;
        if node.is_set("composite") {
            let mut fields = Vec::new();
            self.list_depth += 1;
            match item {
                DialogItem::Field(kind) => self.field(inner, kind, &[], &mut fields)?,
                _ => self.items(inner, &[], &mut fields, self.list_depth)?,
            };
            self.list_depth -= 1;
            return Ok(json!({ "kind": "group", "name": name, "fields": fields }));
        }
        let (inner, kind) = match item {
            DialogItem::Field(kind) => (inner, kind),
            // A container around the one field.
            _ => match inner.items().next().map(|inner| (inner, item_of(inner))) {
                Some((inner, DialogItem::Field(kind))) => (inner, kind),
                _ => (inner, "text"),
            },
        };
        Ok(self.field_json(inner, kind)?.unwrap_or_else(|| json!({ "kind": kind, "name": name })))
    }

    /// Returns the options of a select or radio group, or the suggestions of a text or color.
    fn options_of(&mut self, node: &DialogNode, kind: &str) -> Result<Option<Vec<DialogOption>>> {
        if !matches!(kind, "select" | "radio" | "text" | "color") {
            return Ok(None);
        }
        let source = node.child("datasource").or(node.child("granite:datasource"));
        if let Some(source) = source.filter(|source| !source.resource_type().is_empty()) {
            if let Some(options) = source_options(self.context, source)? {
                return Ok(Some(options));
            }
            self.unknown.insert(source.resource_type());
            return Ok(Some(Vec::new()));
        }
        if !matches!(kind, "select" | "radio") {
            return Ok(None);
        }
        let option = |node: &DialogNode| {
            let value = node.text("value").unwrap_or_default();
            let text = node.text("text").or_else(|| node.text("jcr:title"));
            DialogOption { text: text.unwrap_or_else(|| value.clone()), value }
        };
        let mut options: Vec<DialogOption> = node.items().map(option).collect();
        if node.is_set("ordered") {
            options.sort_by(|one, other| one.text.cmp(&other.text));
        }
        Ok(Some(options))
    }

    /// Returns the value that the form shows while the property is absent.
    fn default_value(
        &self,
        node: &DialogNode,
        kind: &str,
        name: &str,
        options: Option<&[DialogOption]>,
    ) -> Json {
        // Marks of options and boxes count for a component that was never saved; other defaults always.
        let counts = self.context.is_fresh || node.is_set("forceIgnoreFreshness");
        let marked = |mark: &str| {
            let marked = node.items().find(|option| option.is_set(mark)).filter(|_| counts);
            marked.and_then(|option| option.text("value"))
        };
        match kind {
            "checkbox" if counts && node.is_set("checked") => checked_value(node).into(),
            "checkbox" => Json::Null,
            "radio" => marked("checked").or_else(|| node.text("value")).into(),
            "select" if !node.is_set("multiple") => {
                let first =
                    options.and_then(<[DialogOption]>::first).map(|option| option.value.clone());
                let first = first.filter(|_| !has_empty_option(node));
                marked("selected").or_else(|| node.text("value")).or(first).into()
            }
            // The button's script moves the address of older content to the property of links.
            "path" if name == "linkURL" && self.removed.contains("link") => {
                self.context.resource.text("link").into()
            }
            _ => {
                let default = node.property("value").or(node.property("defaultValue"));
                default.map_or(Json::Null, form_value_json)
            }
        }
    }

    /// Returns the type with which the values of a field are stored.
    fn type_hint(&self, node: &DialogNode, kind: &str, name: &str) -> String {
        if let Some(hint) = node.text("typeHint").or_else(|| self.type_hints.get(name).cloned()) {
            return hint;
        }
        let is_multiple =
            kind == "multi" || node.is_set("multiple") || kind == "tags" && name == "cq:tags";
        if is_multiple { "String[]".to_owned() } else { "String".to_owned() }
    }

    /// Returns the features of a rich text, by plugin: of the policy if it has any, else of the dialog.
    fn rich_text_features(&self, node: &DialogNode) -> serde_json::Map<String, Json> {
        let mut features = serde_json::Map::new();
        let policy = self.context.policy.as_ref();
        let in_policy = policy.and_then(|policy| policy.child("rtePlugins").ok().flatten());
        let split =
            |text: String| text.split(',').map(|one| one.trim().to_owned()).collect::<Vec<_>>();
        if let Some(plugins) = in_policy {
            for plugin in plugins.children().unwrap_or_default() {
                let property = plugin.property("features");
                let values = property.as_ref().map(Property::values).unwrap_or_default();
                let list: Vec<String> =
                    values.iter().flat_map(|value| split(value.to_text().into_owned())).collect();
                features.insert(plugin.name().to_owned(), list.into());
            }
        } else if let Some(plugins) = node.child("rtePlugins") {
            for plugin in &plugins.children {
                let list: Vec<String> =
                    plugin.texts("features").into_iter().flat_map(split).collect();
                features.insert(plugin.name.clone(), list.into());
            }
        }
        features
    }

    /// Returns the choice among the panels of a container, for the fields by which scripts make it; `Some(None)` for
    /// fields that only those scripts use, `None` for other fields.
    fn panel_choice(&self, node: &DialogNode) -> Result<Option<Option<Json>>> {
        let hook = node.data().find(|(name, _)| name.ends_with("-dialog-edit-hook"));
        let Some((_, hook)) = hook else { return Ok(None) };
        let (name, is_multiple) = match hook.as_str() {
            "activeSelect" => ("activeItem", false),
            "expandedSelect" => ("expandedItems", true),
            "activeItem" | "expandedItems" | "expandedSelectSingle" => return Ok(Some(None)),
            _ => return Ok(None),
        };
        let mut options = Vec::new();
        for (panel, title) in self.panels()? {
            options.push(json!({ "value": panel, "text": title }));
        }
        if options.is_empty() {
            return Ok(Some(None));
        }
        Ok(Some(Some(json!({
            "name": name,
            "kind": "select",
            "label": label_of(node),
            "description": node.text("fieldDescription"),
            "multiple": is_multiple,
            "hasEmptyOption": true,
            "options": options,
            "typeHint": if is_multiple { "String[]" } else { "String" },
        }))))
    }

    /// Returns the panels of the container: the name and title of each.
    fn panels(&self) -> Result<Vec<(String, String)>> {
        let mut panels = Vec::new();
        for child in self.context.resource.children()? {
            let Some(kind) = child.resource_type() else { continue };
            let title = child.text("cq:panelTitle").or_else(|| child.text("jcr:title"));
            let title = match title {
                Some(title) => title,
                None => component_title(
                    find_component_node(self.context.snapshot, &kind)?.as_ref(),
                    &kind,
                ),
            };
            panels.push((child.name().to_owned(), title));
        }
        Ok(panels)
    }

    /// Adds a field for the title of each panel. Panels are added, moved and removed in the page itself.
    fn panel_titles(&mut self, fields: &mut Vec<Json>) -> Result<Vec<Json>> {
        let mut items = Vec::new();
        for (position, (panel, title)) in self.panels()?.into_iter().enumerate() {
            let field = json!({
                "name": format!("{panel}/cq:panelTitle"),
                "kind": "text",
                "label": format!("Panel {}", position + 1),
                "placeholder": title,
                "typeHint": "String",
            });
            items.extend(self.push(field, fields));
        }
        if items.is_empty() {
            return Ok(vec![json!({
                "item": "text", "text": "There are no panels yet. Add components to this one in the page.",
            })]);
        }
        Ok(items)
    }

    /// Adds the fields of a property that a page inherits: a box that overrides it, and the text.
    fn inherited_field(
        &mut self,
        node: &DialogNode,
        conditions: &[Json],
        fields: &mut Vec<Json>,
    ) -> Result<Vec<Json>> {
        let Some(property) = node.text("prop") else { return Ok(Vec::new()) };
        let heading = node.text("heading").unwrap_or_else(|| property.clone());
        let marker = format!("{property}_override");
        let mut inherited = None;
        let mut next =
            self.context.resource.parent()?.map(|page| page.parent()).transpose()?.flatten();
        for _ in 0..MAX_NESTING_DEPTH {
            let Some(page) = next.filter(|page| inherited.is_none() && page.is_page()) else {
                break;
            };
            inherited = page.content_node()?.and_then(|content| content.text(&property));
            next = page.parent()?;
        }
        let visible = all_of(conditions);
        let mut items = self.push(
            json!({
                "name": marker, "kind": "checkbox", "label": format!("Override: {heading}"), "visible": visible,
                "checkedValue": "true", "typeHint": "String",
            }),
            fields,
        );
        items.extend(self.push(
            json!({
                "name": property, "kind": "text", "label": heading, "placeholder": inherited, "visible": visible,
                "enabled": { "field": marker, "in": ["true"] }, "typeHint": "String",
            }),
            fields,
        ));
        Ok(items)
    }

    /// Returns the featured image of the page that the component links to, else of its own page.
    fn page_picture(&self, conditions: &[Json]) -> Result<Vec<Json>> {
        let resource = self.context.resource;
        let linked = resource.text("linkURL").filter(|path| path.starts_with('/'));
        let own =
            resource.path().as_str().split_once(&format!("/{JCR_CONTENT}")).map(|(page, _)| page);
        let Some(page) = linked.or(own.map(str::to_owned)) else { return Ok(Vec::new()) };
        let image = NodePath::new(&format!("{page}/{JCR_CONTENT}/cq:featuredimage")).ok();
        let image = image.map(|path| self.context.snapshot.node(&path)).transpose()?.flatten();
        let picture = image.and_then(|image| image.text("fileReference"));
        Ok(vec![match picture {
            Some(path) => json!({ "item": "picture", "path": path, "visible": all_of(conditions) }),
            None => json!({
                "item": "text", "text": "The page has no featured image.", "visible": all_of(conditions),
            }),
        }])
    }

    /// Adds the choice of styles that the policy offers.
    fn style_fields(&mut self, fields: &mut Vec<Json>) -> Vec<Json> {
        let groups = self
            .context
            .policy
            .as_ref()
            .and_then(|policy| policy.child("cq:styleGroups").ok().flatten());
        let mut described = Vec::new();
        for group in groups.map(|groups| groups.children().unwrap_or_default()).unwrap_or_default()
        {
            let styles = group.child("cq:styles").ok().flatten();
            let styles =
                styles.map(|styles| styles.children().unwrap_or_default()).unwrap_or_default();
            let option = |style: &tympan_content::Node| {
                let value = style.text("cq:styleId")?;
                Some(
                    json!({ "text": style.text("cq:styleLabel").unwrap_or_else(|| value.clone()), "value": value }),
                )
            };
            let options: Vec<Json> = styles.iter().filter_map(option).collect();
            if !options.is_empty() {
                let multiple =
                    group.text("cq:styleGroupMultiple").is_some_and(|text| text == "true");
                described.push(json!({
                    "label": group.text("cq:styleGroupLabel"), "multiple": multiple, "options": options,
                }));
            }
        }
        if described.is_empty() {
            return Vec::new();
        }
        let field = json!({
            "name": STYLE_PROPERTY, "kind": "styles", "label": "Styles", "groups": described, "typeHint": "String[]",
        });
        self.push(field, fields)
    }

    /// Adds the features of a plugin of the rich text editor, in the dialog of a policy.
    fn plugin_field(&mut self, node: &DialogNode, fields: &mut Vec<Json>) -> Vec<Json> {
        let Some(name) = node.text("name") else { return Vec::new() };
        let features = node.text("features").unwrap_or_else(|| ALL_FEATURES.to_owned());
        let default = node.is_set("defaultEnabled").then(|| features.clone());
        let field = json!({
            "name": format!("rtePlugins/{name}/features"), "kind": "checkbox", "label": label_of(node),
            "checkedValue": features, "uncheckedValue": "-", "value": default, "typeHint": "String",
        });
        self.push(field, fields)
    }
}

/// Returns the choice among the features of one plugin, if a container of a policy's dialog holds such.
fn features_field(node: &DialogNode) -> Option<Json> {
    let is_feature = |item: &&DialogNode| item.resource_type().ends_with("/pluginfeature");
    let features: Vec<&DialogNode> = node.items().filter(is_feature).collect();
    let plugin = node.data_text("name").filter(|_| !features.is_empty())?;
    let option =
        |feature: &&DialogNode| json!({ "value": feature.text("name"), "text": label_of(feature) });
    Some(json!({
        "name": format!("rtePlugins/{plugin}/features"), "kind": "select", "multiple": true, "label": plugin,
        "options": features.iter().map(option).collect::<Vec<Json>>(), "typeHint": "String[]",
    }))
}

/// Returns what a node is, by its type alone.
fn item_of(node: &DialogNode) -> DialogItem {
    match node.resource_type().as_str() {
        "" => DialogItem::Container,
        kind => DialogItem::of_type(kind),
    }
}

/// Returns true if the policy says which heading elements a select offers.
fn is_limited_by_policy(node: &DialogNode) -> bool {
    let source = node.child("datasource").or(node.child("granite:datasource"));
    source.is_some_and(|source| {
        let kind = source.resource_type();
        kind.ends_with("/allowedtypes") || kind.contains("/allowedheadingelements")
    })
}

fn is_style_tab(node: &DialogNode) -> bool {
    node.text("path").is_some_and(|path| path.contains(STYLE_TAB))
}

fn joined(conditions: &[Json], own: Vec<Json>) -> Vec<Json> {
    conditions.iter().cloned().chain(own).collect()
}

/// Returns the condition that all of these hold; null if there are none.
fn all_of(conditions: &[Json]) -> Json {
    match conditions {
        [] => Json::Null,
        [one] => one.clone(),
        all => json!({ "all": all }),
    }
}

/// Returns the value that a box stores when it is checked.
fn checked_value(node: &DialogNode) -> String {
    node.text("value").unwrap_or_else(|| "on".to_owned())
}

/// Returns true if no option of a select needs to be chosen.
fn has_empty_option(node: &DialogNode) -> bool {
    node.is_set("emptyOption") || node.property("emptyText").is_some() || node.is_set("multiple")
}

fn date_type(node: &DialogNode) -> &'static str {
    match node.text("type").as_deref() {
        _ if node.resource_type().ends_with("/timepicker") => "time",
        Some("time") => "time",
        // The type of a date picker is a date, unless it says otherwise.
        Some("datetime") => "datetime",
        _ => "date",
    }
}

fn path_root(node: &DialogNode) -> Option<String> {
    let kind = node.resource_type();
    node.text("rootPath").or_else(|| match kind.rsplit('/').next() {
        Some("xffield" | "experiencefragmentpicker") => Some(EXPERIENCE_FRAGMENTS.to_owned()),
        Some("cfpicker" | "contentfragmentpicker" | "assetfield") => Some(ASSETS.to_owned()),
        _ => None,
    })
}

/// Returns the kind of content that a path field chooses; `None` for any.
fn picked_kind(node: &DialogNode) -> Option<&'static str> {
    let kind = node.resource_type();
    let types = node.text("nodeTypes").unwrap_or_default();
    match kind.rsplit('/').next()? {
        "fileupload" | "assetfield" => Some("asset"),
        "cfpicker" | "contentfragmentpicker" => Some("fragment"),
        "pagefield" if types.is_empty() || types.trim() == "cq:Page" => Some("page"),
        "xffield" | "experiencefragmentpicker" => Some("page"),
        _ if types.contains("dam:Asset") && !types.contains("cq:Page") => Some("asset"),
        _ if !types.is_empty() && types.split(',').all(|kind| kind.trim().ends_with("older")) => {
            Some("place")
        }
        _ => None,
    }
}

fn title_of(node: &DialogNode) -> Option<String> {
    node.text("jcr:title").or_else(|| node.text("fieldLabel")).filter(|title| !title.is_empty())
}

/// Returns the label of a field or tab: its label, title or text, else what it shows while it is empty, else its name.
fn label_of(node: &DialogNode) -> String {
    let texts = ["fieldLabel", "jcr:title", "text", "emptyText"].into_iter();
    let mut texts = texts.filter_map(|name| node.text(name)).filter(|text| !text.trim().is_empty());
    texts.next().unwrap_or_else(|| readable_name(&node.name))
}

/// Returns the name of a node as words: `altValue` as `Alt value`.
fn readable_name(name: &str) -> String {
    let mut words = String::new();
    for character in name.chars() {
        match character {
            '-' | '_' | ':' => words.push(' '),
            character if character.is_uppercase() && !words.is_empty() && !words.ends_with(' ') => {
                words.push(' ');
                words.extend(character.to_lowercase());
            }
            character if words.is_empty() => words.extend(character.to_uppercase()),
            character => words.push(character),
        }
    }
    words
}
