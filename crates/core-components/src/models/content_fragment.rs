//! Content fragments (`contentfragment`, v1) and lists of them (`contentfragmentlist`, v1 and v2).
//!
//! A fragment is an asset. Its elements are properties that a model in `/conf` describes, or, in older content, texts in
//! files that the asset itself lists.

use std::sync::Arc;

use crate::component_context::{ComponentContext, FragmentSearch};
use crate::component_core::{ComponentCore, component_model, generated_id};
use crate::component_data::ComponentData;
use crate::content_value::ContentValue;
use crate::model_registry::ModelRequest;
use crate::model_value::{ComponentModel, ModelMap, ModelValue};
use crate::page_reader::node_name;

/// The variation that every fragment has.
const MASTER: &str = "master";

/// The folder of all assets.
const ASSET_ROOT: &str = "/content/dam";

/// The grid between the paragraphs of a text.
const GRID_TYPE: &str = "dam/cfm/components/grid";

/// The media type of rich text.
const HTML: &str = "text/html";

/// The model of a fragment in a page.
#[derive(Debug)]
pub(crate) struct ContentFragmentModel {
    core: ComponentCore,
}

/// The model of a list of fragments.
#[derive(Debug)]
pub(crate) struct ContentFragmentListModel {
    core: ComponentCore,
}

/// A fragment, as lists and pages draw it.
#[derive(Clone, Debug)]
struct FragmentView {
    context: Arc<dyn ComponentContext>,
    id: String,
    path: String,
    variation: String,
    /// Names of the elements to draw; all if empty.
    elements: Vec<Arc<str>>,
    /// The type in JSON.
    resource_type: Arc<str>,
    data: Option<ComponentData>,
}

/// One element of a fragment.
#[derive(Clone, Debug)]
struct FragmentElement {
    name: Arc<str>,
    title: Arc<str>,
    /// The kind of value (`string`, `boolean`, `calendar`, ...); none for texts in files.
    data_type: Option<Arc<str>>,
    media_type: Option<Arc<str>>,
    is_multi_value: bool,
    value: ModelValue,
}

/// Makes the model of a fragment.
pub(crate) fn create(request: &ModelRequest) -> ModelValue {
    ModelValue::model(ContentFragmentModel { core: ComponentCore::new(request) })
}

/// Makes the model of a list of fragments.
pub(crate) fn create_list(request: &ModelRequest) -> ModelValue {
    ModelValue::model(ContentFragmentListModel { core: ComponentCore::new(request) })
}

impl FragmentView {
    fn text(&self, path: &str, name: &str) -> Option<Arc<str>> {
        self.context.property(path, name)?.to_text().filter(|text| !text.is_empty())
    }

    fn content(&self) -> String {
        format!("{}/jcr:content", self.path)
    }

    /// Returns whether the node is a fragment.
    fn is_fragment(&self) -> bool {
        let mark = self.context.property(&self.content(), "contentFragment");
        mark.and_then(|value| value.to_boolean()).unwrap_or(false)
    }

    fn title(&self) -> Arc<str> {
        self.text(&self.content(), "jcr:title").unwrap_or_else(|| node_name(&self.path).into())
    }

    fn description(&self) -> Option<Arc<str>> {
        self.text(&self.content(), "jcr:description")
    }

    fn name(&self) -> &str {
        node_name(&self.path)
    }

    /// Returns the path of the model: that in `/conf`, or the list of elements in the asset.
    fn model_path(&self) -> Option<String> {
        let data = format!("{}/data", self.content());
        if let Some(model) = self.text(&data, "cq:model") {
            return Some(model.to_string());
        }
        let model = format!("{}/model", self.content());
        self.context.node_exists(&model).then_some(model)
    }

    /// Returns the name of the model: `wknd/models/article` of the one in `/conf/wknd/settings/dam/cfm/models`.
    fn type_name(&self) -> Option<String> {
        let model = self.model_path()?;
        match model.strip_prefix("/conf/") {
            Some(rest) => Some(rest.replace("settings/dam/cfm/models", "models")),
            None => Some(model),
        }
    }

    fn all_elements(&self) -> Vec<FragmentElement> {
        let data = format!("{}/data", self.content());
        match self.context.node_exists(&data) {
            true => self.structured_elements(&data),
            false => self.text_elements(),
        }
    }

    /// Returns the elements to draw, in their order.
    fn elements(&self) -> Vec<FragmentElement> {
        let all = self.all_elements();
        if self.elements.is_empty() {
            return all;
        }
        let chosen = self.elements.iter();
        chosen
            .filter_map(|name| all.iter().find(|element| element.name == *name).cloned())
            .collect()
    }

    /// Returns the elements that a model describes.
    fn structured_elements(&self, data: &str) -> Vec<FragmentElement> {
        let Some(model) = self.model_path() else { return Vec::new() };
        let fields = format!("{model}/jcr:content/model/cq:dialog/content/items");
        let master = format!("{data}/{MASTER}");
        let variation = format!("{data}/{}", self.variation);
        let value = |name: &str| {
            self.context.property(&variation, name).or_else(|| self.context.property(&master, name))
        };
        let mut elements = Vec::new();
        for field in self.context.child_names(&fields) {
            let field = format!("{fields}/{field}");
            let Some(name) = self.text(&field, "name") else { continue };
            let value_type = self.text(&field, "valueType").unwrap_or_else(|| "string".into());
            let (kind, is_multi_value) = match value_type.strip_suffix("[]") {
                Some(kind) => (kind, true),
                None => (&*value_type, false),
            };
            let media_type = value(&format!("{name}@ContentType"))
                .and_then(|value| value.to_text())
                .or_else(|| self.text(&field, "default-mime-type"));
            let title = self.text(&field, "fieldLabel").unwrap_or_else(|| Arc::clone(&name));
            elements.push(FragmentElement {
                value: element_value(value(&name), is_multi_value),
                data_type: Some(kind.split('/').next().unwrap_or(kind).into()),
                title,
                name,
                media_type,
                is_multi_value,
            });
        }
        elements
    }

    /// Returns the elements of older content: texts in renditions of the asset and of the assets inside it.
    fn text_elements(&self) -> Vec<FragmentElement> {
        let folder = format!("{}/model/elements", self.content());
        let rendition = if self.variation == MASTER { "original" } else { &self.variation };
        let mut elements = Vec::new();
        for node in self.context.child_names(&folder) {
            let node = format!("{folder}/{node}");
            let Some(name) = self.text(&node, "name") else { continue };
            let asset = match self.text(&node, "assetName") {
                Some(asset) => format!("{}/subassets/{asset}", self.path),
                None => self.path.clone(),
            };
            let renditions = format!("{asset}/jcr:content/renditions");
            let file = [rendition, "original"]
                .into_iter()
                .map(|rendition| format!("{renditions}/{rendition}"))
                .find(|file| self.context.node_exists(file));
            let media_type = file
                .as_ref()
                .and_then(|file| self.text(&format!("{file}/jcr:content"), "jcr:mimeType"));
            let text = file.and_then(|file| self.context.text_file(&file)).unwrap_or_default();
            elements.push(FragmentElement {
                title: self.text(&node, "jcr:title").unwrap_or_else(|| Arc::clone(&name)),
                name,
                data_type: None,
                media_type,
                is_multi_value: false,
                value: text.into(),
            });
        }
        elements
    }

    fn element_values(&self) -> Vec<ModelValue> {
        self.elements().into_iter().map(ModelValue::model).collect()
    }

    /// Appends what the JSON of a fragment has.
    fn export_into(&self, map: &mut ModelMap) {
        map.insert("title", self.title());
        map.insert_present("description", self.description());
        map.insert_present("model", self.model_path());
        let elements = self.elements();
        let order = ModelValue::texts(elements.iter().map(|element| Arc::clone(&element.name)));
        let mut named = ModelMap::new();
        for element in elements {
            named.insert(Arc::clone(&element.name), ModelValue::model(element));
        }
        map.insert("elements", named);
        map.insert("elementsOrder", order);
    }
}

/// Returns the value of an element: no value of one is an empty list of several.
fn element_value(value: Option<ContentValue>, is_multi_value: bool) -> ModelValue {
    match (value, is_multi_value) {
        (Some(ContentValue::List(values)), false) => {
            values.first().cloned().map(ModelValue::from).into()
        }
        (Some(ContentValue::List(values)), true) => ContentValue::List(values).into(),
        (Some(value), true) => ModelValue::list([ModelValue::from(value)]),
        (Some(value), false) => value.into(),
        (None, true) => ModelValue::list([]),
        (None, false) => ModelValue::Null,
    }
}

impl ContentFragmentModel {
    fn view(&self) -> Option<FragmentView> {
        let path = self.core.filled_text("fragmentPath")?;
        let view = FragmentView {
            context: Arc::clone(self.core.shared_context()),
            id: self.core.id(),
            path: path.trim_end_matches('/').to_owned(),
            variation: self
                .core
                .filled_text("variationName")
                .map_or_else(|| MASTER.to_owned(), |name| name.to_string()),
            elements: self
                .core
                .value("elementNames")
                .map(|value| value.to_texts())
                .unwrap_or_default(),
            resource_type: self.core.resource_type(),
            data: None,
        };
        view.is_fragment().then_some(view)
    }

    fn title(&self) -> Option<Arc<str>> {
        Some(self.view()?.title())
    }

    fn description(&self) -> Option<Arc<str>> {
        self.view()?.description()
    }

    fn name(&self) -> Option<String> {
        Some(self.view()?.name().to_owned())
    }

    fn type_name(&self) -> Option<String> {
        self.view()?.type_name()
    }

    fn elements(&self) -> Vec<ModelValue> {
        self.view().map(|view| view.element_values()).unwrap_or_default()
    }

    fn grid_type(&self) -> &'static str {
        GRID_TYPE
    }

    /// Returns what the page editor needs to change the fragment.
    fn editor_json(&self) -> Option<String> {
        let view = self.view()?;
        let mut map = ModelMap::new();
        map.insert("title", view.title());
        map.insert("path", view.path.as_str());
        map.insert_present("variation", (view.variation != MASTER).then(|| view.variation.clone()));
        map.insert("elements", ModelValue::texts(view.elements.iter().map(Arc::clone)));
        Some(ModelValue::from(map).to_json().to_string())
    }

    /// Returns the paragraphs of the single text that the component shows, where it is to show paragraphs.
    fn paragraphs(&self) -> ModelValue {
        if self.core.text("displayMode").as_deref() != Some("singleText") {
            return ModelValue::Null;
        }
        let elements = self.view().map(|view| view.elements()).unwrap_or_default();
        let Some(text) = elements.first().and_then(|element| element.html()) else {
            return ModelValue::Null;
        };
        let blocks = html_blocks(&text);
        if self.core.text("paragraphScope").as_deref() != Some("range") {
            return ModelValue::texts(blocks);
        }
        let ranges = self.core.text("paragraphRange").unwrap_or_else(|| "".into());
        let counts_headings = self.core.is_set("paragraphHeadings");
        ModelValue::texts(blocks_in_ranges(blocks, &ranges, counts_headings))
    }

    fn data(&self) -> Option<ComponentData> {
        let data = self.core.data()?;
        Some(ComponentData { title: self.title(), description: self.description(), ..data })
    }

    fn export_map(&self) -> ModelMap {
        let mut map = ModelMap::new();
        map.insert("id", self.core.id());
        if let Some(view) = self.view() {
            view.export_into(&mut map);
        }
        map.insert_present("paragraphs", self.paragraphs());
        map.insert(":items", ModelMap::new());
        map.insert(":itemsOrder", Vec::new());
        self.core.export_end(&mut map, self.data());
        map
    }
}

/// Splits HTML after each element that is a block of its own.
fn html_blocks(html: &str) -> Vec<String> {
    const ENDS: [&str; 14] = [
        "</p>",
        "</h1>",
        "</h2>",
        "</h3>",
        "</h4>",
        "</h5>",
        "</h6>",
        "</ul>",
        "</ol>",
        "</table>",
        "</blockquote>",
        "</pre>",
        "</dl>",
        "</div>",
    ];
    let mut blocks = Vec::new();
    let mut rest = html.trim();
    while !rest.is_empty() {
        // The end of the element that the block begins with, not of one inside it.
        let element: String = rest
            .strip_prefix('<')
            .unwrap_or("p")
            .chars()
            .take_while(char::is_ascii_alphanumeric)
            .collect();
        let own_end = format!("</{}>", element.to_ascii_lowercase());
        let end = ENDS.contains(&own_end.as_str()).then(|| rest.find(&own_end)).flatten();
        let end = end
            .map(|start| start + own_end.len())
            .or_else(|| ENDS.iter().filter_map(|end| Some(rest.find(end)? + end.len())).min());
        let (block, after) = rest.split_at_checked(end.unwrap_or(rest.len())).unwrap_or((rest, ""));
        blocks.push(block.trim().to_owned());
        rest = after.trim_start();
    }
    blocks
}

/// Keeps the blocks in ranges such as `1;3-5;9-*`. Headings that do not count go with the paragraph after them.
fn blocks_in_ranges(blocks: Vec<String>, ranges: &str, counts_headings: bool) -> Vec<String> {
    let parsed: Vec<(usize, usize)> = ranges
        .split([';', ','])
        .filter_map(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let first = match first.trim() {
                "*" => 1,
                text => text.parse().ok()?,
            };
            let last = match last.trim() {
                "*" => usize::MAX,
                text => text.parse().ok()?,
            };
            Some((first, last))
        })
        .collect();
    let mut number = 0;
    let is_heading = |block: &str| {
        block.get(..2).is_some_and(|start| start.eq_ignore_ascii_case("<h"))
            && block.as_bytes().get(2).is_some_and(u8::is_ascii_digit)
    };
    blocks
        .into_iter()
        .filter(|block| {
            let position = if is_heading(block) && !counts_headings {
                number + 1
            } else {
                number += 1;
                number
            };
            parsed.iter().any(|(first, last)| (*first..=*last).contains(&position))
        })
        .collect()
}

impl ContentFragmentListModel {
    fn views(&self) -> Vec<FragmentView> {
        let Some(model) = self.core.filled_text("modelPath") else { return Vec::new() };
        let text = |name: &str| self.core.filled_text(name).map(|text| text.to_string());
        let texts =
            |name: &str| self.core.value(name).map(|value| value.to_texts()).unwrap_or_default();
        let limit = self.core.value("maxItems").and_then(|value| value.to_long());
        let context = self.core.shared_context();
        let paths = context.search_fragments(&FragmentSearch {
            model: model.to_string(),
            root: text("parentPath").unwrap_or_else(|| ASSET_ROOT.to_owned()),
            tags: texts("tagNames").iter().map(ToString::to_string).collect(),
            order_by: text("orderBy").unwrap_or_else(|| "jcr:created".to_owned()),
            is_descending: text("sortOrder").as_deref() == Some("desc"),
            limit: limit.and_then(|limit| usize::try_from(limit).ok()).filter(|limit| *limit > 0),
        });
        let id = self.core.id();
        let elements = texts("elementNames");
        paths
            .into_iter()
            .map(|path| FragmentView {
                context: Arc::clone(context),
                id: generated_id(&format!("{id}-item"), &path),
                variation: MASTER.to_owned(),
                elements: elements.clone(),
                resource_type: "dam:Asset".into(),
                data: None,
                path,
            })
            .filter(FragmentView::is_fragment)
            .collect()
    }

    fn items(&self) -> Vec<ModelValue> {
        self.views().into_iter().map(ModelValue::model).collect()
    }

    fn export_map(&self) -> ModelMap {
        let mut map = ModelMap::new();
        map.insert("id", self.core.id());
        map.insert("items", self.items());
        self.core.export_end(&mut map, self.core.data());
        map
    }
}

component_model!(ContentFragmentModel {
    "title" => title,
    "description" => description,
    "name" => name,
    "type" => type_name,
    "elements" => elements,
    "paragraphs" => paragraphs,
    "gridResourceType" => grid_type,
    "editorJSON" => editor_json,
    "data" => data,
});

component_model!(ContentFragmentListModel {
    "items" => items,
    "listItems" => items,
});

impl FragmentElement {
    /// Returns the value as HTML, where it is a text of that type.
    fn html(&self) -> Option<String> {
        let text = self.value.as_text()?;
        (self.media_type.as_deref() == Some(HTML)).then(|| text.to_owned())
    }
}

impl ComponentModel for FragmentView {
    fn property(&self, name: &str) -> Option<ModelValue> {
        Some(match name {
            "id" => self.id.as_str().into(),
            "title" => self.title().into(),
            "description" => self.description().into(),
            "name" => self.name().into(),
            "type" => self.type_name().into(),
            "elements" => self.element_values().into(),
            "gridResourceType" => GRID_TYPE.into(),
            "paragraphs" | "editorJSON" => ModelValue::Null,
            "data" => self.data.clone().into(),
            _ => return None,
        })
    }

    fn property_names(&self) -> Vec<&'static str> {
        vec![
            "id",
            "title",
            "description",
            "name",
            "type",
            "elements",
            "gridResourceType",
            "paragraphs",
            "editorJSON",
            "data",
        ]
    }

    fn export(&self) -> ModelMap {
        let mut map = ModelMap::new();
        self.export_into(&mut map);
        map.insert(":type", Arc::clone(&self.resource_type));
        map
    }
}

impl ComponentModel for FragmentElement {
    fn property(&self, name: &str) -> Option<ModelValue> {
        Some(match name {
            "name" => Arc::clone(&self.name).into(),
            "title" => Arc::clone(&self.title).into(),
            "dataType" => self.data_type.clone().into(),
            "value" => self.value.clone(),
            "html" => self.html().into(),
            "isMultiLine" | "multiLine" => {
                (self.media_type.is_some() && !self.is_multi_value).into()
            }
            "isMultiValue" | "multiValue" => self.is_multi_value.into(),
            "exportedType" => self.media_type.clone().into(),
            _ => return None,
        })
    }

    fn property_names(&self) -> Vec<&'static str> {
        vec![
            "name",
            "title",
            "dataType",
            "value",
            "html",
            "isMultiLine",
            "multiLine",
            "isMultiValue",
            "multiValue",
            "exportedType",
        ]
    }

    fn export(&self) -> ModelMap {
        let mut map = ModelMap::new();
        map.insert("title", Arc::clone(&self.title));
        map.insert_present("dataType", self.data_type.clone());
        map.insert_present("value", self.value.clone());
        map.insert("multiValue", self.is_multi_value);
        map.insert_present(":type", self.media_type.clone());
        map
    }
}

#[cfg(test)]
mod tests {
    use super::{blocks_in_ranges, html_blocks};

    #[test]
    fn html_is_split_into_blocks() {
        let html = "<h2>A</h2>\n<p>one</p><ul><li><p>two</p></li></ul>three";
        let blocks = ["<h2>A</h2>", "<p>one</p>", "<ul><li><p>two</p></li></ul>", "three"];
        assert_eq!(html_blocks(html), blocks);
        assert!(html_blocks("  ").is_empty());
    }

    #[test]
    fn ranges_count_paragraphs_or_all_blocks() {
        let blocks = || html_blocks("<h2>A</h2><p>1</p><p>2</p><h2>B</h2><p>3</p>");
        assert_eq!(blocks_in_ranges(blocks(), "1", false), ["<h2>A</h2>", "<p>1</p>"]);
        assert_eq!(blocks_in_ranges(blocks(), "1", true), ["<h2>A</h2>"]);
        assert_eq!(blocks_in_ranges(blocks(), "3-*", false), ["<h2>B</h2>", "<p>3</p>"]);
        assert_eq!(blocks_in_ranges(blocks(), "2;x;5-4", false), ["<p>2</p>"]);
    }
}
