//! Content fragment models, as AEM stores them below `/conf/<site>/settings/dam/cfm/models`.
//!
//! In: the folder of models of a site. Out: each enabled model with its fields and their constraints.
//!
//! Invariants
//! * Fields have the order of the editor. A field whose name is no GraphQL name is left out.
//! * A type of field that is not known is left out, and tabs are.
//!
//! Not here: the values of fragments ([`crate::content_fragment`]), GraphQL ([`crate::graphql`]).

use std::collections::HashSet;

use tympan_content::{ChunkId, Node, NodePath, Snapshot};

use crate::{Error, Result};

/// The configuration whose models every site has.
pub const GLOBAL_SITE: &str = "global";
/// Maximum number of models of a site, and of fields of a model.
const MAX_MODELS: usize = 500;
const MAX_FIELDS: usize = 500;
/// The fields of a model below its node.
const FIELDS_PATH: &str = "jcr:content/model/cq:dialog/content/items";

/// A content fragment model.
#[derive(Debug, Clone, PartialEq)]
pub struct FragmentModel {
    /// The path of the model's node.
    pub path: NodePath,
    /// The title that authors see.
    pub title: String,
    /// The beginning of its queries, such as `adventure`.
    pub query_name: String,
    /// The name of its GraphQL type, such as `AdventureModel`.
    pub type_name: String,
    /// The fields.
    pub fields: Vec<ModelField>,
}

/// A field of a model.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelField {
    /// The name of the property that has the value.
    pub name: String,
    /// The label that authors see.
    pub label: String,
    /// The type of its values.
    pub field_type: FieldType,
    /// True if it has any number of values.
    pub is_list: bool,
    /// True if a value is needed.
    pub is_required: bool,
    /// True if no two fragments of the model may have the same value.
    pub is_unique: bool,
    /// Maximum number of characters.
    pub max_length: Option<usize>,
    /// The expression that a text must match.
    pub pattern: Option<String>,
    /// The smallest and the largest number.
    pub range: (Option<f64>, Option<f64>),
    /// The message of the model for a value that does not match.
    pub message: Option<String>,
}

/// The type of a field's values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FieldType {
    /// A line of text.
    Text,
    /// Text of several lines, with the media type of new texts.
    MultiLineText {
        /// `text/html`, `text/x-markdown` or `text/plain`.
        default_type: String,
    },
    /// A whole number.
    Integer,
    /// A number.
    Float,
    /// A truth value.
    Boolean,
    /// A calendar date.
    Date,
    /// A time of day.
    Time,
    /// A date with a time.
    DateTime,
    /// One of some texts.
    Enumeration {
        /// The values.
        options: Vec<String>,
    },
    /// Identifiers of tags.
    Tags,
    /// The path of an asset or a page.
    ContentReference,
    /// The path of a fragment.
    FragmentReference {
        /// The paths of the allowed models.
        models: Vec<String>,
    },
    /// JSON.
    Json,
}

impl FragmentModel {
    /// Reads a model; `None` if the node is none, or the model is not enabled.
    ///
    /// # Errors
    /// If the store fails.
    pub fn read(node: &Node) -> Result<Option<Self>> {
        let Some(content) = node.content_node()? else { return Ok(None) };
        let Some(items) = node.find_descendant(FIELDS_PATH)? else { return Ok(None) };
        if content.text("status").is_some_and(|status| status != "enabled") {
            return Ok(None);
        }
        let Some(query_name) = graphql_name(node.name()) else { return Ok(None) };
        let mut names = HashSet::new();
        let mut fields = Vec::new();
        for item in items.children()?.iter().take(MAX_FIELDS) {
            fields.extend(ModelField::read(item)?.filter(|field| names.insert(field.name.clone())));
        }
        Ok(Some(Self {
            path: node.path().clone(),
            title: content.text("jcr:title").unwrap_or_else(|| node.name().to_owned()),
            type_name: format!("{}Model", capitalize(&query_name)),
            query_name,
            fields,
        }))
    }

    /// Finds a field.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&ModelField> {
        self.fields.iter().find(|field| field.name == name)
    }
}

impl ModelField {
    fn read(item: &Node) -> Result<Option<Self>> {
        let text = |name: &str| item.text(name).filter(|text| !text.is_empty());
        let Some(name) = text("name").filter(|name| is_graphql_name(name)) else { return Ok(None) };
        let Some(field_type) = read_field_type(item)? else { return Ok(None) };
        let data = item.child("granite:data")?;
        let constraint =
            |name: &str| data.as_ref()?.property(name)?.first()?.to_text().parse().ok();
        let data_text = |name: &str| data.as_ref()?.text(name).filter(|text| !text.is_empty());
        let is_list = field_type == FieldType::Tags
            || text("valueType").is_some_and(|kind| kind.ends_with("[]"))
            || text("multiple").is_some();
        let is_set = |name: &str| text(name).is_some_and(|value| value == "on" || value == "true");
        Ok(Some(Self {
            label: text("fieldLabel")
                .or_else(|| text("cfm-element"))
                .unwrap_or_else(|| name.clone()),
            is_list,
            is_required: is_set("required"),
            is_unique: is_set("unique"),
            max_length: text("maxlength").and_then(|length| length.parse().ok()),
            pattern: data_text("validationRegex"),
            range: (constraint("number-min"), constraint("number-max")),
            message: data_text("customErrorMsg"),
            name,
            field_type,
        }))
    }
}

/// Reads the type of a field; `None` for tabs and unknown types.
fn read_field_type(item: &Node) -> Result<Option<FieldType>> {
    let value_type = item.text("valueType").unwrap_or_default();
    let value_type = value_type.trim_end_matches("[]");
    let Some(meta_type) = item.text("metaType") else { return Ok(None) };
    Ok(Some(match &*meta_type {
        "text-single" => FieldType::Text,
        "text-multi" => FieldType::MultiLineText {
            default_type: item.text("default-mime-type").unwrap_or_else(|| "text/html".to_owned()),
        },
        "number"
            if value_type == "double" || item.text("typeHint").as_deref() == Some("double") =>
        {
            FieldType::Float
        }
        "number" => FieldType::Integer,
        "boolean" => FieldType::Boolean,
        "date" => match (value_type, item.text("type").as_deref()) {
            ("calendar/date", _) | (_, Some("date")) => FieldType::Date,
            ("calendar/time", _) | (_, Some("time")) => FieldType::Time,
            _ => FieldType::DateTime,
        },
        "enumeration" => FieldType::Enumeration { options: read_options(item)? },
        "tags" => FieldType::Tags,
        "reference" => FieldType::ContentReference,
        "fragment-reference" => FieldType::FragmentReference {
            models: item.property("fragmentmodelreference").map_or_else(Vec::new, |models| {
                models.values().iter().map(|model| model.to_text().into_owned()).collect()
            }),
        },
        "json" => FieldType::Json,
        _ => return Ok(None),
    }))
}

fn read_options(item: &Node) -> Result<Vec<String>> {
    let Some(options) = item.child("optionsmultifield")? else { return Ok(Vec::new()) };
    Ok(options.children()?.iter().filter_map(|option| option.text("fieldValue")).collect())
}

/// The models of one site.
#[derive(Debug, Clone)]
pub struct SiteModels {
    /// The models in the order of their folders; those of the site, then the global ones.
    pub models: Vec<FragmentModel>,
}

impl SiteModels {
    /// Reads the enabled models of a site; for the global endpoint, those of all sites. The snapshot must see them:
    /// visitors need not.
    ///
    /// # Errors
    /// [`Error::NoModels`]; errors of the store.
    pub fn read(snapshot: &Snapshot, site: &str) -> Result<Self> {
        let mut models: Vec<FragmentModel> = Vec::new();
        for node in model_nodes(snapshot, site)? {
            let Some(mut model) = FragmentModel::read(&node)? else { continue };
            // Two models of one name: the later ones are numbered, as their types need different names.
            let name = model.query_name.clone();
            let mut number = 1;
            while models.iter().any(|other| other.query_name == model.query_name) {
                number += 1;
                model.query_name = format!("{name}{number}");
            }
            model.type_name = format!("{}Model", capitalize(&model.query_name));
            models.push(model);
        }
        if models.is_empty() {
            return Err(Error::NoModels { site: site.to_owned() });
        }
        Ok(Self { models })
    }

    /// Finds a model by its path.
    #[must_use]
    pub fn model_at(&self, path: &str) -> Option<&FragmentModel> {
        self.models.iter().find(|model| model.path.as_str() == path)
    }

    /// Finds a model by the name of its GraphQL type.
    #[must_use]
    pub fn model_of_type(&self, type_name: &str) -> Option<&FragmentModel> {
        self.models.iter().find(|model| model.type_name == type_name)
    }
}

/// Returns what identifies the models of a site in a state: their paths, and hashes of their content.
///
/// # Errors
/// If the store fails.
pub fn models_fingerprint(
    snapshot: &Snapshot,
    site: &str,
) -> Result<Vec<(NodePath, Option<ChunkId>)>> {
    Ok(model_nodes(snapshot, site)?
        .iter()
        .map(|node| (node.path().clone(), node.body_id()))
        .collect())
}

/// Returns the folders that may have models of a site.
///
/// # Errors
/// If the store fails.
pub fn model_folders(snapshot: &Snapshot, site: &str) -> Result<Vec<NodePath>> {
    let sites = match site {
        GLOBAL_SITE => {
            let conf = NodePath::new("/conf")?;
            let sites = snapshot.node(&conf)?.map(|conf| conf.listed_children()).transpose()?;
            sites.unwrap_or_default().iter().map(|site| site.name().to_owned()).collect()
        }
        _ => vec![site.to_owned(), GLOBAL_SITE.to_owned()],
    };
    let path = |site: &String| NodePath::new(&format!("/conf/{site}/settings/dam/cfm/models"));
    // A name that is no name of a node has no models.
    Ok(sites.iter().filter_map(|site| path(site).ok()).collect())
}

fn model_nodes(snapshot: &Snapshot, site: &str) -> Result<Vec<Node>> {
    let mut nodes = Vec::new();
    for folder in model_folders(snapshot, site)? {
        let Some(folder) = snapshot.node(&folder)? else { continue };
        let models = folder.children()?;
        nodes.extend(models.into_iter().filter(|node| node.name() != tympan_content::JCR_CONTENT));
    }
    nodes.truncate(MAX_MODELS);
    Ok(nodes)
}

/// Returns true if a name is one of GraphQL, and not reserved.
fn is_graphql_name(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
        && !name.starts_with("__")
        && name.chars().all(|character| character.is_ascii_alphanumeric() || character == '_')
}

/// Returns the name of a model in queries: the words of its node's name in camel case.
fn graphql_name(name: &str) -> Option<String> {
    let is_part = |character: char| character.is_ascii_alphanumeric() || character == '_';
    let mut words = name.split(|character| !is_part(character)).filter(|word| !word.is_empty());
    let mut camel = words.next().map(|first| {
        let (head, rest) = first.split_at(1);
        format!("{}{rest}", head.to_ascii_lowercase())
    })?;
    words.for_each(|word| camel.push_str(&capitalize(word)));
    is_graphql_name(&camel).then_some(camel)
}

/// Returns a word of ASCII letters with a capital.
fn capitalize(word: &str) -> String {
    let mut letters = word.chars();
    letters.next().map_or_else(String::new, |first| {
        format!("{}{}", first.to_ascii_uppercase(), letters.as_str())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_nodes_become_names_of_queries() {
        let check = |name: &str, expected: Option<&str>| {
            assert_eq!(graphql_name(name).as_deref(), expected, "{name}");
        };
        check("adventure", Some("adventure"));
        check("Offer", Some("offer"));
        check("magazine-article", Some("magazineArticle"));
        check("a.b c_d", Some("aBC_d"));
        check("404-page", None);
        check("--", None);
        check("größe", Some("grE"));
        check("__type", None);
    }
}
