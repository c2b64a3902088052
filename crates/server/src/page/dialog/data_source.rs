//! Data sources of dialogs: the options of selects and suggestions of text fields that AEM's servlets compute.
//!
//! In: the `datasource` node of a field, and the component that is edited. Out: options, or for a container the dialogs
//! that it shows.
//!
//! Each data source of the Core Components has its counterpart here; the table is in `docs/compat/aem-dialogs.md`.
//!
//! On failure: a data source that is not known gives no options, and the form says so.

use std::collections::BTreeMap;

use tympan_content::{LookupIndex, Node, NodePath, Property};
use tympan_render::dialog::find_component_node;

use super::dialog_context::{DialogContext, MAX_NESTING_DEPTH, component_title};
use super::dialog_node::DialogNode;
use crate::failure::Result;

/// Maximum number of options of a field.
const MAX_SOURCE_OPTIONS: usize = 1000;
/// The folders with workflow models.
const WORKFLOW_MODEL_FOLDERS: [&str; 2] =
    ["/var/workflow/models", "/conf/global/settings/workflow/models"];
/// The type of components that embed something.
const EMBEDDABLE_TYPES: [&str; 2] = [
    "core/wcm/components/embed/v1/embed/embeddable",
    "core/wcm/components/embed/v2/embed/embeddable",
];
/// The resource type of actions of forms.
const FORM_ACTION_TYPE: &str = "foundation/components/form/action";

/// One option of a field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DialogOption {
    pub(super) value: String,
    pub(super) text: String,
}

impl DialogOption {
    fn new(value: impl Into<String>, text: impl Into<String>) -> Self {
        Self { value: value.into(), text: text.into() }
    }
}

/// A data source, by the last segments of its resource type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DataSource {
    /// Heading elements and types that the policy allows.
    AllowedTypes,
    /// Colors that the policy allows.
    AllowedColors,
    /// Categories of client libraries.
    LibraryCategories,
    /// Actions of forms.
    FormActions,
    /// The settings of each action of forms.
    FormActionSettings,
    /// Workflow models.
    WorkflowModels,
    /// Image presets of Dynamic Media: none.
    ImagePresets,
    /// Elements of a content fragment.
    FragmentElements,
    /// Variations of a content fragment.
    FragmentVariations,
    /// Content fragment models.
    FragmentModels,
    /// Elements of the chosen model, with AEM's two common ones for sorting.
    FragmentOrder,
    /// Elements of the chosen model.
    ModelElements,
    /// Embeddable components that the policy allows.
    AllowedEmbeddables,
    /// The dialogs of embeddable components that the policy allows.
    EmbeddableDialogs,
    /// The design dialogs of all embeddable components.
    EmbeddableDesigns,
    /// All embeddable components.
    Embeddables,
    /// Languages, as `/libs/wcm/core/resources/languages` lists them.
    Languages,
}

impl DataSource {
    fn of_type(resource_type: &str) -> Option<Self> {
        let relative = resource_type.strip_prefix("core/wcm/components/").unwrap_or(resource_type);
        let is_embed = relative.starts_with("embed/");
        let is_model_list = relative.starts_with("contentfragmentlist/");
        let name = relative.trim_end_matches("/v1").rsplit('/').next().unwrap_or_default();
        Some(match name {
            "allowedtypes" | "allowedheadingelements" => Self::AllowedTypes,
            "allowedcolorswatches" => Self::AllowedColors,
            "clientlibrarycategories" => Self::LibraryCategories,
            "actiontype" => Self::FormActions,
            "actionsetting" => Self::FormActionSettings,
            "workflowmodel" => Self::WorkflowModels,
            "imagepresetdatasource" => Self::ImagePresets,
            "elements" if is_model_list => Self::ModelElements,
            "elements" => Self::FragmentElements,
            "variations" => Self::FragmentVariations,
            "models" if is_model_list => Self::FragmentModels,
            "orderby" if is_model_list => Self::FragmentOrder,
            "allowedembeddables" if is_embed => Self::AllowedEmbeddables,
            "embeddableoptions" if is_embed => Self::EmbeddableDialogs,
            "embeddesigntabs" if is_embed => Self::EmbeddableDesigns,
            "embeddables" if is_embed => Self::Embeddables,
            "languages" => Self::Languages,
            _ => return None,
        })
    }
}

/// Returns the dialogs that a data source puts into a container; none for a source of options.
pub(super) fn source_items(context: &DialogContext<'_>, source: &DialogNode) -> Result<Vec<Node>> {
    let (components, dialog) = match DataSource::of_type(&source.resource_type()) {
        Some(DataSource::FormActionSettings) => (form_actions(context)?, "cq:dialog"),
        Some(DataSource::EmbeddableDialogs) => (allowed_embeddables(context)?, "cq:dialog"),
        Some(DataSource::EmbeddableDesigns) => (embeddables(context)?, "cq:design_dialog"),
        _ => return Ok(Vec::new()),
    };
    let mut dialogs = Vec::new();
    for component in components {
        dialogs.extend(component.child(dialog)?);
    }
    Ok(dialogs)
}

/// Returns the options of a data source; `None` if it is not known.
pub(super) fn source_options(
    context: &DialogContext<'_>,
    source: &DialogNode,
) -> Result<Option<Vec<DialogOption>>> {
    let Some(kind) = DataSource::of_type(&source.resource_type()) else { return Ok(None) };
    let mut options = match kind {
        DataSource::AllowedTypes => {
            let mut types = policy_texts(context, "allowedHeadingElements");
            if types.is_empty() {
                types = policy_texts(context, "allowedTypes");
            }
            types.into_iter().map(|name| DialogOption::new(&name, name.to_uppercase())).collect()
        }
        DataSource::AllowedColors => {
            let colors = policy_texts(context, "allowedColorSwatches").into_iter();
            colors.map(|color| DialogOption::new(&color, &color)).collect()
        }
        DataSource::LibraryCategories => library_categories(context)?,
        DataSource::FormActions => component_options(form_actions(context)?),
        DataSource::WorkflowModels => workflow_models(context)?,
        DataSource::FragmentElements => fragment_elements(context, source)?,
        DataSource::FragmentVariations => fragment_variations(context)?,
        DataSource::FragmentModels => fragment_models(context)?,
        DataSource::ModelElements => model_elements(context, stored(context, "modelPath"), false)?,
        DataSource::FragmentOrder => {
            let common = [
                ("", "None"),
                ("@jcr:content/jcr:title", "Title"),
                ("@jcr:content/jcr:lastModified", "Last Modified Date"),
            ];
            let mut options: Vec<DialogOption> =
                common.iter().map(|(value, text)| DialogOption::new(*value, *text)).collect();
            let elements = model_elements(context, stored(context, "modelPath"), true)?;
            options.extend(elements.into_iter().map(|element| DialogOption {
                value: format!("jcr:content/data/master/@{}", element.value),
                ..element
            }));
            options
        }
        DataSource::AllowedEmbeddables => component_options(allowed_embeddables(context)?),
        DataSource::Embeddables => component_options(embeddables(context)?),
        DataSource::Languages => languages(context)?,
        DataSource::ImagePresets
        | DataSource::FormActionSettings
        | DataSource::EmbeddableDialogs
        | DataSource::EmbeddableDesigns => Vec::new(),
    };
    options.truncate(MAX_SOURCE_OPTIONS);
    Ok(Some(options))
}

fn policy_texts(context: &DialogContext<'_>, name: &str) -> Vec<String> {
    let property = context.policy.as_ref().and_then(|policy| policy.property(name));
    let values = property.as_ref().map(Property::values).unwrap_or_default();
    values.iter().map(|value| value.to_text().into_owned()).collect()
}

fn stored(context: &DialogContext<'_>, name: &str) -> Option<String> {
    context.resource.text(name).filter(|text| !text.is_empty())
}

fn find(context: &DialogContext<'_>, path: &str) -> Result<Option<Node>> {
    Ok(NodePath::new(path).ok().map(|path| context.snapshot.node(&path)).transpose()?.flatten())
}

/// Returns the resource type of a component's node.
fn component_type(component: &Node) -> String {
    let path = component.path().as_str();
    let relative = path.strip_prefix("/apps/").or_else(|| path.strip_prefix("/libs/"));
    relative.unwrap_or(path).to_owned()
}

fn component_options(components: Vec<Node>) -> Vec<DialogOption> {
    let option = |component: Node| {
        let kind = component_type(&component);
        let title = component_title(Some(&component), &kind);
        DialogOption::new(kind, title)
    };
    components.into_iter().map(option).collect()
}

/// Returns the components that act on posted forms: those of the type of actions.
fn form_actions(context: &DialogContext<'_>) -> Result<Vec<Node>> {
    let mut actions = Vec::new();
    let mut paths = context.snapshot.look_up_paths(LookupIndex::ResourceType, FORM_ACTION_TYPE)?;
    paths.truncate(MAX_SOURCE_OPTIONS);
    for path in paths {
        let is_component =
            path.as_str().starts_with("/apps/") || path.as_str().starts_with("/libs/");
        if is_component {
            actions.extend(context.snapshot.node(&path)?);
        }
    }
    Ok(actions)
}

fn allowed_embeddables(context: &DialogContext<'_>) -> Result<Vec<Node>> {
    let mut allowed = Vec::new();
    for kind in policy_texts(context, "allowedEmbeddables").into_iter().take(MAX_SOURCE_OPTIONS) {
        allowed.extend(find_component_node(context.snapshot, &kind)?);
    }
    Ok(allowed)
}

/// Returns all components whose super types lead to that of embeddable components.
fn embeddables(context: &DialogContext<'_>) -> Result<Vec<Node>> {
    let mut found = Vec::new();
    for path in context.snapshot.look_up_paths(LookupIndex::Type, "cq:Component")? {
        let Some(component) = context.snapshot.node(&path)? else { continue };
        let mut next = component.text("sling:resourceSuperType");
        for _ in 0..MAX_NESTING_DEPTH {
            let Some(kind) = next else { break };
            if EMBEDDABLE_TYPES.contains(&kind.as_str()) {
                found.push(component.clone());
                break;
            }
            let above = find_component_node(context.snapshot, &kind)?;
            next = above.and_then(|above| above.text("sling:resourceSuperType"));
        }
        if found.len() >= MAX_SOURCE_OPTIONS {
            break;
        }
    }
    Ok(found)
}

fn library_categories(context: &DialogContext<'_>) -> Result<Vec<DialogOption>> {
    let mut categories = BTreeMap::new();
    for path in context.snapshot.look_up_paths(LookupIndex::Type, "cq:ClientLibraryFolder")? {
        let Some(folder) = context.snapshot.node(&path)? else { continue };
        let property = folder.property("categories");
        for value in property.as_ref().map(Property::values).unwrap_or_default() {
            let category = value.to_text().into_owned();
            categories.insert(category.clone(), DialogOption::new(&category, &category));
        }
        if categories.len() >= MAX_SOURCE_OPTIONS {
            break;
        }
    }
    Ok(categories.into_values().collect())
}

fn workflow_models(context: &DialogContext<'_>) -> Result<Vec<DialogOption>> {
    let mut options = Vec::new();
    for folder in WORKFLOW_MODEL_FOLDERS {
        let Some(folder) = find(context, folder)? else { continue };
        for model in folder.listed_page(0, MAX_SOURCE_OPTIONS)? {
            let title = match model.text("title") {
                Some(title) => Some(title),
                None => model.child("jcr:content")?.and_then(|content| content.text("jcr:title")),
            };
            let name = title.unwrap_or_else(|| model.name().to_owned());
            options.push(DialogOption::new(model.path().as_str(), name));
        }
    }
    Ok(options)
}

/// Returns the elements of the fragment that the component shows; of its texts only, if it shows one text.
fn fragment_elements(
    context: &DialogContext<'_>,
    source: &DialogNode,
) -> Result<Vec<DialogOption>> {
    let Some(content) = fragment_content(context, source)? else { return Ok(Vec::new()) };
    let data = content.child("data")?;
    if let Some(model) = data.and_then(|data| data.text("cq:model")) {
        return model_elements(context, Some(model), false);
    }
    let mut options = Vec::new();
    if let Some(elements) = content.find_descendant("model/elements")? {
        for element in elements.children()?.into_iter().take(MAX_SOURCE_OPTIONS) {
            let Some(name) = element.text("name") else { continue };
            let title = element.text("jcr:title").unwrap_or_else(|| name.clone());
            options.push(DialogOption::new(name, title));
        }
    }
    Ok(options)
}

fn fragment_content(context: &DialogContext<'_>, source: &DialogNode) -> Result<Option<Node>> {
    let path = stored(context, "fragmentPath").or_else(|| source.text("fragmentPath"));
    let Some(path) = path.filter(|path| !path.is_empty()) else { return Ok(None) };
    find(context, &format!("{path}/jcr:content"))
}

/// Returns the variations of the fragment: the master, and those that the fragment lists.
fn fragment_variations(context: &DialogContext<'_>) -> Result<Vec<DialogOption>> {
    let mut options = vec![DialogOption::new("master", "Master")];
    let Some(content) = fragment_content(context, &DialogNode::default())? else {
        return Ok(options);
    };
    if let Some(data) = content.child("data")? {
        let is_variation = |node: &Node| node.name() != "master";
        for node in data.children()?.into_iter().filter(is_variation).take(MAX_SOURCE_OPTIONS) {
            let title = node.text("jcr:title").unwrap_or_else(|| node.name().to_owned());
            options.push(DialogOption::new(node.name(), title));
        }
    } else if let Some(variations) = content.find_descendant("model/variations")? {
        for node in variations.children()?.into_iter().take(MAX_SOURCE_OPTIONS) {
            let title = node.text("jcr:title").unwrap_or_else(|| node.name().to_owned());
            options.push(DialogOption::new(
                node.text("name").unwrap_or_else(|| node.name().to_owned()),
                title,
            ));
        }
    }
    Ok(options)
}

/// Returns the models of content fragments: templates below `settings/dam/cfm/models` of configurations.
fn fragment_models(context: &DialogContext<'_>) -> Result<Vec<DialogOption>> {
    let mut options = Vec::new();
    for path in context.snapshot.look_up_paths(LookupIndex::Type, "cq:Template")? {
        if !path.as_str().contains("/settings/dam/cfm/models/") {
            continue;
        }
        let Some(model) = context.snapshot.node(&path)? else { continue };
        let title = model.child("jcr:content")?.and_then(|content| content.text("jcr:title"));
        options.push(DialogOption::new(
            path.as_str(),
            title.unwrap_or_else(|| model.name().to_owned()),
        ));
        if options.len() >= MAX_SOURCE_OPTIONS {
            break;
        }
    }
    Ok(options)
}

/// Returns the elements that a model describes, or only those that hold one text.
fn model_elements(
    context: &DialogContext<'_>,
    model: Option<String>,
    is_text_only: bool,
) -> Result<Vec<DialogOption>> {
    let Some(model) = model else { return Ok(Vec::new()) };
    let Some(fields) =
        find(context, &format!("{model}/jcr:content/model/cq:dialog/content/items"))?
    else {
        return Ok(Vec::new());
    };
    let mut options = Vec::new();
    for field in fields.children()?.into_iter().take(MAX_SOURCE_OPTIONS) {
        let Some(name) = field.text("name") else { continue };
        let value_type = field.text("valueType").unwrap_or_else(|| "string".to_owned());
        if is_text_only && value_type != "string" {
            continue;
        }
        let title = field.text("fieldLabel").unwrap_or_else(|| name.clone());
        options.push(DialogOption::new(name, title));
    }
    Ok(options)
}

fn languages(context: &DialogContext<'_>) -> Result<Vec<DialogOption>> {
    let Some(folder) = find_component_node(context.snapshot, "wcm/core/resources/languages")?
    else {
        return Ok(Vec::new());
    };
    let mut options = Vec::new();
    for language in folder.children()?.into_iter().take(MAX_SOURCE_OPTIONS) {
        let name = language.text("language").unwrap_or_else(|| language.name().to_owned());
        let country = language.text("country").filter(|country| country != "*");
        let text = country.map_or_else(|| name.clone(), |country| format!("{name} ({country})"));
        options.push(DialogOption::new(language.name(), text));
    }
    options.sort_by(|one, other| one.text.cmp(&other.text));
    Ok(options)
}
