//! Property indexes: maps from values to node paths, defined below `/oak:index`, and some built-in ones.
//!
//! In: definitions in Oak's form (`oak:QueryIndexDefinition` of type `property`), and documents as commits change them.
//! Out: for each index a map beside the content map; key: the value's entry ([`crate::model::value_key`]), then the
//! node path.
//!
//! Invariants
//! * A map is complete or absent: it holds the empty key and every entry of the content at its root. While an index is
//!   being built its map is absent, and queries work without it.
//! * The name of a map is derived from its definition and from the subtypes of the types it names, so that after a
//!   change of the definition or of a type no entries of another index are found.
//! * An entry whose node has other types or paths than the definition requires may exist only if checking it needs
//!   another document; queries check every node they return.
//!
//! Not here: choosing an index (`query`), building one in the background (`index::build`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use parking_lot::Mutex;
use regex::Regex;
use tympan_store::{ChunkBatch, ChunkId, MapValue, SortedMap};

use crate::document::body::{BodyNode, DocumentBody};
use crate::document::borrowed_property::BorrowedValue;
use crate::model::node_path::is_path_within;
use crate::model::subtree::{MIXIN_TYPES, PRIMARY_TYPE};
use crate::model::value_key::{MULTI_VALUE_MARKER, NO_VALUE_FAMILY, ValueKey};
use crate::node_type::NodeTypes;
use crate::{NodePath, Property, Result, Subtree, local_name};

/// The prefix of the names of property index maps.
pub(crate) const MAP_NAME_PREFIX: &str = "property/";
/// The folder of definitions.
pub(crate) const DEFINITIONS_PATH: &str = "/oak:index";
/// Maximum number of property indexes: a root lists at most 200 maps.
const MAX_PROPERTY_INDEXES: usize = 120;

/// The function that a property index applies to a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IndexFunction {
    /// The values of a property.
    Value,
    /// The values of a property in upper case.
    UpperCase,
    /// The values of a property in lower case.
    LowerCase,
    /// The lengths of a property's values. No index supports it.
    Length,
    /// The name of the node.
    Name,
    /// The name of the node without its prefix.
    LocalName,
}

impl IndexFunction {
    /// Returns the function's name in SQL-2; `None` for plain values.
    fn sql2_name(self) -> Option<&'static str> {
        match self {
            Self::Value => None,
            Self::UpperCase => Some("upper"),
            Self::LowerCase => Some("lower"),
            Self::Length => Some("length"),
            Self::Name => Some("name"),
            Self::LocalName => Some("localname"),
        }
    }

    /// Returns true if it reads the name of a node and no property.
    fn is_name_function(self) -> bool {
        matches!(self, Self::Name | Self::LocalName)
    }

    /// Returns the key of a value in entries.
    fn value_key(self, value: BorrowedValue<'_>) -> Option<ValueKey<'_>> {
        let key = ValueKey::from_value(value)?;
        Some(match self {
            Self::UpperCase => ValueKey::owned_text(key.display_text().to_uppercase()),
            Self::LowerCase => ValueKey::owned_text(key.display_text().to_lowercase()),
            _ => key,
        })
    }

    /// Formats the function applied to a property.
    #[must_use]
    pub fn apply_to_name(self, property: &str) -> String {
        match self.sql2_name() {
            None => property.to_owned(),
            Some(function) => format!("{function}({property})"),
        }
    }
}

/// One property of one definition of a property index, or one function.
#[derive(Debug)]
pub struct PropertyIndex {
    /// The name of the definition.
    pub(crate) name: String,
    function: IndexFunction,
    /// The relative path of the node that has the property; empty for the indexed node itself.
    pub(crate) property_parent: String,
    /// The name of the property.
    pub(crate) property: String,
    /// The declared types and all their subtypes; nodes of other types are not indexed. Empty for all types.
    pub(crate) node_types: BTreeSet<String>,
    pub(crate) included_paths: Vec<NodePath>,
    excluded_paths: Vec<NodePath>,
    name_pattern: Option<Regex>,
    pub(crate) is_unique: bool,
    tags: Vec<String>,
    /// True if the definition requests a rebuild.
    pub(crate) needs_reindex: bool,
    /// The name of the map.
    pub(crate) map_name: String,
}

/// All property indexes of a state.
#[derive(Debug, Default)]
pub(crate) struct IndexDefinitions(pub(crate) Vec<Arc<PropertyIndex>>);

/// A cache of the definitions that were read last.
#[derive(Default)]
pub(crate) struct IndexDefinitionCache(pub(super) Mutex<Option<CachedIndexDefinitions>>);

/// Definitions with the state they were read from.
pub(super) struct CachedIndexDefinitions {
    pub(super) definitions_record: Option<MapValue>,
    pub(super) node_types: Arc<NodeTypes>,
    pub(super) definitions: Arc<IndexDefinitions>,
}

/// The indexes of every repository: definition, property.
const BUILT_IN_INDEXES: [(&str, &str); 6] = [
    ("cqModel", "cq:model"),
    ("cqTemplate", "cq:template"),
    ("cqTags", "cq:tags"),
    ("cqLastModified", "cq:lastModified"),
    ("jcrTitle", "jcr:title"),
    ("damSha1", "dam:sha1"),
];

/// Returns the indexes of every repository.
pub(crate) fn built_in_definitions() -> Arc<IndexDefinitions> {
    static BUILT: OnceLock<Arc<IndexDefinitions>> = OnceLock::new();
    let make = |(name, property): &(&str, &str)| {
        Arc::new(PropertyIndex::new(
            name,
            (IndexFunction::Value, property),
            &IndexDefinitionSettings::default(),
        ))
    };
    BUILT
        .get_or_init(|| Arc::new(IndexDefinitions(BUILT_IN_INDEXES.iter().map(make).collect())))
        .clone()
}

/// The settings that apply to all properties of one definition.
#[derive(Debug, Default)]
struct IndexDefinitionSettings {
    node_types: BTreeSet<String>,
    included_paths: Vec<NodePath>,
    excluded_paths: Vec<NodePath>,
    name_pattern: Option<String>,
    is_unique: bool,
    tags: Vec<String>,
    needs_reindex: bool,
}

impl PropertyIndex {
    fn new(
        name: &str,
        (reading, path): (IndexFunction, &str),
        terms: &IndexDefinitionSettings,
    ) -> Self {
        let (parents, property) = path.rsplit_once('/').unwrap_or(("", path));
        let IndexDefinitionSettings {
            node_types,
            included_paths,
            excluded_paths,
            name_pattern: pattern,
            is_unique,
            ..
        } = terms;
        // Patterns apply only to the values of properties.
        let pattern = pattern.as_ref().filter(|_| reading == IndexFunction::Value);
        let expression = reading.apply_to_name(path);
        // Includes everything that determines the entries.
        let definition = format!(
            "{expression}\n{node_types:?}\n{included_paths:?}\n{excluded_paths:?}\n{pattern:?}\n{is_unique}"
        );
        let hash = ChunkId::hash_of(definition.as_bytes()).to_string();
        let hash = hash.get(..16).unwrap_or(&hash);
        Self {
            name: name.to_owned(),
            function: reading,
            property_parent: parents.to_owned(),
            property: property.to_owned(),
            node_types: node_types.clone(),
            included_paths: included_paths.clone(),
            excluded_paths: excluded_paths.clone(),
            name_pattern: pattern.and_then(|pattern| Regex::new(&format!("^(?:{pattern})$")).ok()),
            is_unique: *is_unique,
            tags: terms.tags.clone(),
            needs_reindex: terms.needs_reindex,
            map_name: format!("{MAP_NAME_PREFIX}{hash}"),
        }
    }

    /// Returns the name of the definition.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the name of the map.
    #[must_use]
    pub fn map_name(&self) -> &str {
        &self.map_name
    }

    /// Returns the function that the index applies to a node.
    #[must_use]
    pub fn function(&self) -> IndexFunction {
        self.function
    }

    /// Returns the name of the property; empty if the function takes none.
    #[must_use]
    pub fn property(&self) -> &str {
        &self.property
    }

    /// Returns the relative path of the node that has the property; empty for the indexed node itself.
    #[must_use]
    pub fn property_parent(&self) -> &str {
        &self.property_parent
    }

    /// Returns true if the definition has a tag, by which queries may request it.
    #[must_use]
    pub fn has_tag(&self, tag: &str) -> bool {
        self.tags.iter().any(|own| own == tag)
    }

    /// Returns true if only values that match a pattern are indexed.
    #[must_use]
    pub fn has_value_pattern(&self) -> bool {
        self.name_pattern.is_some()
    }

    /// Returns true if a value, as a text, is indexed.
    #[must_use]
    pub fn indexes_value(&self, text: &str) -> bool {
        self.name_pattern.as_ref().is_none_or(|pattern| pattern.is_match(text))
    }

    /// Returns true if nodes of all types are indexed.
    #[must_use]
    pub fn indexes_all_types(&self) -> bool {
        self.node_types.is_empty()
    }

    /// Returns true if the index has every node that has the property, whatever its type and path.
    #[must_use]
    pub fn indexes_all_nodes(&self) -> bool {
        self.property_parent.is_empty()
            && self.included_paths.is_empty()
            && self.excluded_paths.is_empty()
            && self.indexes_all_types()
    }

    /// Returns the relative path of the indexed property.
    fn property_path(&self) -> String {
        match &*self.property_parent {
            "" => self.property.clone(),
            parents => format!("{parents}/{}", self.property),
        }
    }

    /// Returns the indexed expression: a relative path of a property, or a function of one.
    pub(crate) fn expression(&self) -> String {
        self.function.apply_to_name(&self.property_path())
    }

    /// Returns the path of the indexed node, given the path of the node that has the property.
    fn indexed_node_path<'p>(&self, path: &'p str) -> Option<&'p str> {
        let above = match &*self.property_parent {
            "" => path,
            parents => path.strip_suffix(parents)?.strip_suffix('/')?,
        };
        let above = if above.is_empty() { "/" } else { above };
        let is_in = |node_path: &NodePath| is_path_within(above, node_path.as_str());
        let is_included = self.included_paths.is_empty() || self.included_paths.iter().any(is_in);
        (is_included && !self.excluded_paths.iter().any(is_in)).then_some(above)
    }

    /// Returns true if all nodes below a path, or all nodes if it is `None`, are indexed.
    #[must_use]
    pub fn covers_all_below(&self, below: Option<&NodePath>) -> bool {
        let subtree_path = below.map_or("/", NodePath::as_str);
        let is_included = self.included_paths.is_empty()
            || self
                .included_paths
                .iter()
                .any(|included| is_path_within(subtree_path, included.as_str()));
        let is_free = |excluded: &NodePath| {
            !is_path_within(subtree_path, excluded.as_str())
                && !is_path_within(excluded.as_str(), subtree_path)
        };
        is_included && self.excluded_paths.iter().all(is_free)
    }

    /// Returns true if nodes with these declared types are indexed.
    pub fn indexes_types<'t>(&self, mut types: impl Iterator<Item = &'t str>) -> bool {
        self.indexes_all_types() || types.any(|own| self.node_types.contains(own))
    }
}

impl IndexDefinitions {
    /// Returns true if any index depends on node types.
    pub(crate) fn has_type_restrictions(&self) -> bool {
        self.0.iter().any(|index| !index.node_types.is_empty())
    }

    /// Returns the names of all maps.
    pub(crate) fn map_names(&self) -> BTreeSet<&str> {
        self.0.iter().map(|index| &*index.map_name).collect()
    }

    /// Reads the definitions below a folder, and adds the built-in ones that they do not replace.
    pub(super) fn from_folder(folder: &Subtree, types: &NodeTypes) -> Arc<Self> {
        let read = |child| read_index_definition(child, types);
        let mut indexes: Vec<Arc<PropertyIndex>> =
            folder.children.iter().flat_map(read).map(Arc::new).collect();
        let is_replaced = |name: &str| folder.child(name).is_some();
        indexes.extend(
            built_in_definitions()
                .0
                .iter()
                .filter(|definition| !is_replaced(&definition.name))
                .cloned(),
        );
        let mut maps = BTreeSet::new();
        indexes.retain(|index| maps.insert(index.map_name.clone()));
        if indexes.len() > MAX_PROPERTY_INDEXES {
            tracing::warn!(reason = "too many property indexes", "some index definitions ignored");
            indexes.truncate(MAX_PROPERTY_INDEXES);
        }
        Arc::new(Self(indexes))
    }

    /// Collects the entries of one node's properties as pairs of map and key.
    pub(crate) fn collect_node_entries(
        &self,
        path: &NodePath,
        body: &DocumentBody,
        chain: &[BodyNode],
        entries: &mut BTreeSet<(String, Vec<u8>)>,
    ) {
        let Some(node) = chain.last() else { return };
        for index in self.0.iter().filter(|index| index.function.is_name_function()) {
            let is_wanted = index.indexes_types(node_type_names(body, *node));
            let Some(subject) = index.indexed_node_path(path.as_str()).filter(|_| is_wanted) else {
                continue;
            };
            let name = match index.function {
                IndexFunction::LocalName => local_name(path.name()),
                _ => path.name(),
            };
            let entry = [&ValueKey::text(name).entry_prefix(), subject.as_bytes()].concat();
            entries.insert((index.map_name.clone(), entry));
        }
        for (name, property) in body.properties(*node) {
            let is_read = |index: &&Arc<PropertyIndex>| {
                index.property == name && !index.function.is_name_function()
            };
            for index in self.0.iter().filter(is_read) {
                let Some(subject) = index.indexed_node_path(path.as_str()) else { continue };
                let height = if index.property_parent.is_empty() {
                    0
                } else {
                    index.property_parent.split('/').count()
                };
                // A node of another document is indexed whatever its types are.
                let owner = chain.len().checked_sub(height + 1).and_then(|at| chain.get(at));
                if owner.is_some_and(|owner| !index.indexes_types(node_type_names(body, *owner))) {
                    continue;
                }
                let keys = property.values().filter_map(|value| index.function.value_key(value));
                let mut keys = keys.peekable();
                if keys.peek().is_none() && index.name_pattern.is_none() {
                    entries.insert((
                        index.map_name.clone(),
                        [&[NO_VALUE_FAMILY], subject.as_bytes()].concat(),
                    ));
                }
                let mut count = 0;
                for key in keys {
                    count += 1;
                    if count == 2 {
                        entries.insert((
                            index.map_name.clone(),
                            [&[MULTI_VALUE_MARKER], subject.as_bytes()].concat(),
                        ));
                    }
                    let is_wanted = index.name_pattern.as_ref().is_none_or(|pattern| {
                        key.as_text().is_none_or(|text| pattern.is_match(text))
                    });
                    if is_wanted {
                        let entry = [&key.entry_prefix(), subject.as_bytes()].concat();
                        entries.insert((index.map_name.clone(), entry));
                    }
                }
            }
        }
    }
}

/// Removes the maps without a definition, or whose definition now requests a rebuild.
pub(crate) fn drop_stale_maps(
    maps: &mut BTreeMap<String, SortedMap>,
    before: &IndexDefinitions,
    after: &IndexDefinitions,
) {
    let asks = |definitions: &IndexDefinitions, map: &str| {
        definitions.0.iter().any(|index| index.map_name == map && index.needs_reindex)
    };
    maps.retain(|name, _| {
        let is_known = after.0.iter().any(|index| index.map_name == *name);
        !name.starts_with(MAP_NAME_PREFIX)
            || (is_known && (asks(before, name) || !asks(after, name)))
    });
}

/// Returns a node's primary type and mixins.
fn node_type_names(body: &DocumentBody, node: BodyNode) -> impl Iterator<Item = &str> {
    [PRIMARY_TYPE, MIXIN_TYPES]
        .into_iter()
        .filter_map(move |name| body.property(node, name))
        .flat_map(|property| property.values().filter_map(|value| value.as_str()))
}

/// Returns the value of every existing entry.
pub(crate) fn presence_value() -> MapValue {
    MapValue { bytes: Bytes::new(), body: None }
}

/// Creates an empty map for each index; it holds the empty key, which distinguishes it from an absent map.
pub(crate) fn create_empty_maps(
    definitions: &IndexDefinitions,
    batch: &mut ChunkBatch,
) -> Result<BTreeMap<String, SortedMap>> {
    let mut maps = BTreeMap::new();
    for index in &definitions.0 {
        let map = SortedMap::build(batch, std::iter::once((Vec::new(), presence_value())))?;
        maps.insert(index.map_name.clone(), map);
    }
    Ok(maps)
}

/// Reads one definition; returns nothing if it has another type or is disabled.
fn read_index_definition(node: &Subtree, types: &NodeTypes) -> Vec<PropertyIndex> {
    if node.text("type") != Some("property") {
        return Vec::new();
    }
    let texts = |name: &str| -> Vec<String> {
        let values = node.properties.get(name).map(Property::values).unwrap_or_default();
        values.iter().map(|value| value.to_text().into_owned()).collect()
    };
    let is_true = |name: &str| texts(name).first().is_some_and(|text| text == "true");
    let paths =
        |name: &str| texts(name).iter().filter_map(|text| NodePath::new(text).ok()).collect();
    let declared = texts("declaringNodeTypes");
    let kinds = declared.iter().flat_map(|name| types.subtypes(name).map(str::to_owned));
    let terms = IndexDefinitionSettings {
        node_types: kinds.chain(declared.iter().cloned()).collect(),
        included_paths: paths("includedPaths"),
        excluded_paths: paths("excludedPaths"),
        name_pattern: texts("valuePattern").pop().filter(|pattern| !pattern.is_empty()),
        is_unique: is_true("unique"),
        tags: texts("tags"),
        needs_reindex: is_true("reindex"),
    };
    if terms.name_pattern.as_ref().is_some_and(|pattern| Regex::new(pattern).is_err()) {
        let reason = "its valuePattern is not a valid regular expression";
        tracing::warn!(path = node.name, reason, "index definition ignored");
        return Vec::new();
    }
    let names = texts("propertyNames");
    let properties = names.iter().map(|name| (IndexFunction::Value, name.clone()));
    let functions = texts("function");
    let functions = functions.iter().filter_map(|text| {
        let read = parse_index_function(text);
        if read.is_none() {
            let reason = "its function is not supported in an index";
            tracing::warn!(path = node.name, reason, "index function ignored");
        }
        read
    });
    properties
        .chain(functions)
        .map(|(reading, path)| PropertyIndex::new(&node.name, (reading, &path), &terms))
        .collect()
}

/// Parses a function in the syntax of XPath (`fn:lower-case(jcr:content/@jcr:title)`) or SQL-2
/// (`lower([jcr:content/jcr:title])`).
fn parse_index_function(text: &str) -> Option<(IndexFunction, String)> {
    let (function, argument) = text.trim().strip_suffix(')')?.split_once('(')?;
    let reading = match function.trim().to_ascii_lowercase().as_str() {
        "fn:upper-case" | "upper" => IndexFunction::UpperCase,
        "fn:lower-case" | "lower" => IndexFunction::LowerCase,
        "fn:name" | "name" => IndexFunction::Name,
        "fn:local-name" | "localname" => IndexFunction::LocalName,
        _ => return None,
    };
    let argument = argument.trim();
    let argument =
        argument.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(argument);
    let (parents, name) = argument.rsplit_once('/').unwrap_or(("", argument));
    let name = name.strip_prefix('@').unwrap_or(name);
    let is_path = |path: &str| path.split('/').all(|name| crate::check_item_name(name).is_ok());
    match (reading.is_name_function(), parents, name) {
        (true, "", "" | ".") => Some((reading, String::new())),
        (true, ..) => None,
        (false, "", name) if is_path(name) => Some((reading, name.to_owned())),
        (false, parents, name) if is_path(parents) && is_path(name) => {
            Some((reading, format!("{parents}/{name}")))
        }
        (false, ..) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_read_as_both_languages_write_them() {
        let read = |text: &str| {
            parse_index_function(text).map(|(reading, path)| reading.apply_to_name(&path))
        };
        for (text, expected) in [
            ("fn:upper-case(@jcr:title)", Some("upper(jcr:title)")),
            ("fn:lower-case(jcr:content/@jcr:title)", Some("lower(jcr:content/jcr:title)")),
            ("lower([jcr:content/jcr:title])", Some("lower(jcr:content/jcr:title)")),
            (" UPPER( [x] ) ", Some("upper(x)")),
            ("fn:name()", Some("name()")),
            ("name(.)", Some("name()")),
            ("fn:local-name()", Some("localname()")),
            ("localname(x)", None),
            ("lower()", None),
            ("lower([a//b])", None),
            ("fn:lower-case(@a", None),
            ("length([x])", None),
            ("lower(upper([x]))", None),
            ("", None),
        ] {
            assert_eq!(read(text).as_deref(), expected, "{text}");
        }
    }
}
