//! Conversion of a document of the content to a document of the index.
//!
//! In: a node that has a record of its own. Out: its index document, which depends only on the record and its blobs.
//!
//! On failure: a part that cannot be read is omitted and named in the `failure` field. Only a transient problem (a
//! database that does not respond) is an error.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use tantivy::TantivyDocument;
use tantivy::schema::OwnedValue;
use tympan_content::{
    BorrowedNode, BorrowedProperty, BorrowedValue, Error as ContentError, JCR_CONTENT, JcrDate,
    MIXIN_TYPES, Node, NodePath, PRIMARY_TYPE, Repository, ValueType, is_path_within,
};
use tympan_content_query::{Error as QueryError, is_link_text, is_searched_property};
use tympan_notation::error_chain_text;

use crate::error::Result;
use crate::indexing::schema::SearchIndexFields;
use crate::language::{self, UNKNOWN_LANGUAGE};
use crate::text_extraction::{
    BlobTextExtractor, MAX_EXTRACTED_BYTES, looks_like_markup, strip_markup, truncate_text,
};

/// The maximum length of the text stored for excerpts, in bytes.
const MAX_EXCERPT_BYTES: usize = 16 << 10;
/// The maximum length of a facet value, in bytes.
const MAX_FACET_BYTES: usize = 128;
/// The maximum number of properties with facets in one document.
const MAX_FACETS: usize = 200;
/// The maximum number of failures recorded per document.
const MAX_FAILURES: usize = 10;
/// Trees that are not searched: users and their secrets, versions, and internal data of programs.
const EXCLUDED_TREES: [&str; 4] = ["/home", "/jcr:system", "/tmp", "/var"];
/// Properties whose words are indexed as titles, with a higher weight.
const TITLE_PROPERTIES: [&str; 6] =
    ["jcr:title", "dc:title", "pageTitle", "navTitle", "cq:tags", "dam:search_promote"];
/// The children of a document's node whose properties count as titles and facets like the node's own.
const OWN_PROPERTY_PATHS: [&str; 3] = ["", JCR_CONTENT, "jcr:content/metadata"];

/// The maximum length read of a value, tags included.
const MAX_VALUE_READ_BYTES: usize = 4 * MAX_EXTRACTED_BYTES;
/// The property that holds a file's bytes.
const JCR_DATA: &str = "jcr:data";
/// A value is indexed by its property once among this many values of the same property in a document, because
/// components often repeat values.
const RECENT_VALUE_COUNT: usize = 16;
/// The initial capacity of a document, in bytes.
const INITIAL_DOCUMENT_CAPACITY: usize = 2 << 10;
/// The maximum length of a property value indexed by property, in bytes; longer ones are indexed only among the words.
const MAX_EXACT_BYTES: usize = 128;

/// Returns true if a document is in the index.
pub(crate) fn is_indexed(path: &NodePath) -> bool {
    !EXCLUDED_TREES.iter().any(|tree| is_path_within(path.as_str(), tree))
}

/// Returns the key for the words of all properties of this name that are below the nodes in [`OWN_PROPERTY_PATHS`].
fn nested_property_key(name: &str) -> String {
    format!("*/{name}")
}

/// Returns the keys of the words of a property that a query names; empty for the words of files.
///
/// The property may belong to the document's own node or to one inside. A path near the document's node is matched
/// exactly. A bare name, and a path that leads deeper, are matched anywhere by the last name.
pub(crate) fn property_keys(property: &str) -> Vec<String> {
    let (parent, name) = property.rsplit_once('/').unwrap_or(("", property));
    if name == JCR_DATA {
        return Vec::new();
    }
    if !parent.is_empty() && OWN_PROPERTY_PATHS.contains(&parent) {
        return vec![property.to_owned()];
    }
    let near = OWN_PROPERTY_PATHS
        .iter()
        .map(|near| if near.is_empty() { name.to_owned() } else { format!("{near}/{name}") });
    near.chain([nested_property_key(name)]).collect()
}

/// Returns true if a node name is indexed: a search in a property of that name may refer to the node.
pub(crate) fn is_indexed_node_name(name: &str) -> bool {
    name.contains(':')
}

/// Builds documents of the index.
#[derive(Debug, Clone)]
pub(crate) struct IndexDocumentBuilder {
    pub(crate) repository: Repository,
    pub(crate) extractor: BlobTextExtractor,
    pub(crate) fields: SearchIndexFields,
}

/// The collected content of one document.
struct IndexDocumentContent<'a> {
    builder: &'a IndexDocumentBuilder,
    name: &'a str,
    /// The texts of properties, and those of files, kept separate so that no phrase spans two of them.
    text: String,
    file_text: String,
    title: String,
    /// Words that are not in the text of a property: the name, and titles that are links.
    extra_words: String,
    properties: BTreeMap<String, Vec<String>>,
    /// The size of `properties`, in bytes.
    property_bytes: usize,
    /// The path of the current node, relative to the document.
    relative_path: String,
    /// The key of the current property.
    property_key: String,
    /// The keys of properties with values that are too long for `properties`.
    long_property_keys: BTreeSet<String>,
    facets: BTreeMap<String, Vec<String>>,
    node_types: BTreeSet<String>,
    node_names: BTreeSet<String>,
    failures: Vec<String>,
}

impl IndexDocumentBuilder {
    /// Builds the index document of a node; the second value is true if a part of it failed.
    ///
    /// # Errors
    /// If the content cannot be read now but may be later.
    pub(crate) fn build_document(&self, node: &Node) -> Result<(TantivyDocument, bool)> {
        let name = node.name().replace(['_', '-'], " ");
        let mut gathered = IndexDocumentContent {
            builder: self,
            name: node.name(),
            text: String::with_capacity(INITIAL_DOCUMENT_CAPACITY),
            file_text: String::new(),
            title: name.clone(),
            extra_words: name,
            properties: BTreeMap::new(),
            property_bytes: 0,
            relative_path: String::new(),
            property_key: String::new(),
            long_property_keys: BTreeSet::new(),
            facets: BTreeMap::new(),
            node_types: BTreeSet::new(),
            node_names: BTreeSet::new(),
            failures: Vec::new(),
        };
        let mut language = None;
        match node.as_borrowed() {
            Some(root) => {
                let own =
                    |at: BorrowedNode<'_>| language::language_of_code(at.text("jcr:language")?);
                language = own(root).or_else(|| own(root.child(JCR_CONTENT)?));
                gathered.add_node(root, "")?;
            }
            None => gathered.record_unreadable_body(node)?,
        }
        let language = language.or_else(|| language::language_of_path(node.path().as_str()));
        Ok(gathered.into_document(node.path(), language.unwrap_or(UNKNOWN_LANGUAGE)))
    }

    /// Builds the index document of a document that cannot be read at all.
    pub(crate) fn build_unreadable(&self, path: &NodePath, reason: &str) -> TantivyDocument {
        let mut document = TantivyDocument::new();
        document.add_text(self.fields.path, path.as_str());
        document.add_text(self.fields.has_failed, "true");
        document.add_text(self.fields.failure, reason);
        document
    }
}

impl IndexDocumentContent<'_> {
    /// Collects a node and everything below it. `name` is the name of the nearest node above a `jcr:content`, because a
    /// file's content has its name.
    fn add_node(&mut self, node: BorrowedNode<'_>, name: &str) -> Result<()> {
        let name =
            if node.name() == JCR_CONTENT || node.name().is_empty() { name } else { node.name() };
        let is_near = OWN_PROPERTY_PATHS.contains(&self.relative_path.as_str());
        for (property, value) in node.properties() {
            if property == PRIMARY_TYPE || property == MIXIN_TYPES {
                self.add_types(value);
            }
            if value.value_type() == ValueType::Binary {
                self.add_binary_text(node, value, property, name)?;
                continue;
            }
            if property.starts_with("rep:") || property.starts_with("oak:") {
                continue;
            }
            self.set_key(property, is_near);
            self.add_property_words(property, value, is_near);
            if is_near {
                self.add_facet(value);
            }
        }
        for child in node.children() {
            if is_indexed_node_name(child.name()) && !self.node_names.contains(child.name()) {
                self.node_names.insert(child.name().to_owned());
            }
            let length = self.relative_path.len();
            if length > 0 {
                self.relative_path.push('/');
            }
            self.relative_path.push_str(child.name());
            let gathered = self.add_node(child, name);
            self.relative_path.truncate(length);
            gathered?;
        }
        Ok(())
    }

    fn add_types(&mut self, value: BorrowedProperty<'_>) {
        for name in value.values().filter_map(BorrowedValue::as_str) {
            if !self.node_types.contains(name) {
                self.node_types.insert(name.to_owned());
            }
        }
    }

    /// Sets the key for a property of the current node.
    fn set_key(&mut self, property: &str, is_near: bool) {
        self.property_key.clear();
        self.property_key.push_str(if is_near { &self.relative_path } else { "*" });
        if !self.property_key.is_empty() {
            self.property_key.push('/');
        }
        self.property_key.push_str(property);
    }

    /// Collects the words of the property whose key is set.
    fn add_property_words(&mut self, property: &str, value: BorrowedProperty<'_>, is_near: bool) {
        let is_text = is_searched_property(property, value);
        let is_title = is_near && TITLE_PROPERTIES.contains(&property);
        for text in value.values().filter_map(BorrowedValue::as_str) {
            let text = text.get(..text.floor_char_boundary(MAX_VALUE_READ_BYTES)).unwrap_or(text);
            let text =
                if looks_like_markup(text) { strip_markup(text).into() } else { Cow::from(text) };
            let is_found = is_text && !is_link_text(&text);
            if is_found {
                append_text(&mut self.text, &text);
            }
            if is_title {
                append_text(&mut self.title, &text);
                if !is_found {
                    append_text(&mut self.extra_words, &text);
                }
            }
            if is_found && text.len() > MAX_EXACT_BYTES {
                if !self.long_property_keys.contains(&self.property_key) {
                    self.long_property_keys.insert(self.property_key.clone());
                }
            } else {
                self.add_short_value(text);
            }
        }
    }

    /// Adds a short value of the property whose key is set.
    fn add_short_value(&mut self, text: Cow<'_, str>) {
        if !self.properties.contains_key(&self.property_key) {
            self.properties.insert(self.property_key.clone(), Vec::new());
        }
        let Some(values) = self.properties.get_mut(&self.property_key) else { return };
        if values.iter().rev().take(RECENT_VALUE_COUNT).any(|value| *value == text) {
            return;
        }
        let mut text = text.into_owned();
        truncate_text(&mut text, MAX_EXTRACTED_BYTES.saturating_sub(self.property_bytes));
        self.property_bytes += text.len();
        values.push(text);
    }

    /// Collects the facet values of a property near the document's node; its key is set.
    fn add_facet(&mut self, value: BorrowedProperty<'_>) {
        if self.facets.len() >= MAX_FACETS {
            return;
        }
        let texts: Vec<String> = value.values().filter_map(facet_value).collect();
        if !texts.is_empty() {
            self.facets.insert(self.property_key.clone(), texts);
        }
    }

    /// Collects the text of the blobs of a property.
    fn add_binary_text(
        &mut self,
        node: BorrowedNode<'_>,
        value: BorrowedProperty<'_>,
        property: &str,
        name: &str,
    ) -> Result<()> {
        self.set_key(property, true);
        let relative = self.property_key.clone();
        // Of an asset's renditions, only the original is written by its author.
        if relative.contains("renditions/") && !relative.contains("renditions/original/") {
            return Ok(());
        }
        let name = if name.is_empty() || name == "original" { self.name } else { name };
        let media_type = node.text("jcr:mimeType");
        if !self.builder.extractor.may_have_text(media_type, name) {
            return Ok(());
        }
        for value in value.values() {
            let BorrowedValue::Binary(id) = value else { continue };
            let read = match self.builder.repository.blobs().open(&id) {
                Ok(Some(blob)) => self.builder.extractor.extract_text(blob, media_type, name),
                Ok(None) => Err(format!("the blob `{id}` is missing")),
                Err(error) => {
                    let error = ContentError::from(error);
                    if error.is_transient() {
                        return Err(error.into());
                    }
                    Err(error_chain_text(&error))
                }
            };
            match read {
                Ok(text) => append_text(&mut self.file_text, &text),
                Err(reason) => self.record_failure(format!("{relative}: {reason}")),
            }
        }
        Ok(())
    }

    /// Records that the body cannot be read.
    fn record_unreadable_body(&mut self, node: &Node) -> Result<()> {
        let failure = node.snapshot().failure();
        if let Some(ContentError::Store(error)) = failure
            && error.is_transient()
        {
            return Err(QueryError::FullText(error.to_string().into()).into());
        }
        self.record_failure(failure.map_or_else(
            || "its body cannot be decoded".to_owned(),
            |error| error_chain_text(error),
        ));
        Ok(())
    }

    fn record_failure(&mut self, reason: String) {
        if self.failures.len() < MAX_FAILURES {
            self.failures.push(reason);
        }
    }

    fn into_document(self, path: &NodePath, language: &'static str) -> (TantivyDocument, bool) {
        let fields = &self.builder.fields;
        let text = self.text.len() + self.file_text.len();
        let stored_bytes = text.min(MAX_EXCERPT_BYTES) + self.title.len() + self.property_bytes;
        let mut document =
            TantivyDocument::with_capacity(text + stored_bytes + INITIAL_DOCUMENT_CAPACITY);
        document.add_text(fields.path, path.as_str());
        document.add_text(fields.ancestor_paths, path.as_str());
        let mut ancestor = path.parent();
        while let Some(above) = ancestor {
            document.add_text(fields.ancestor_paths, above.as_str());
            ancestor = above.parent();
        }
        for node_type in &self.node_types {
            document.add_text(fields.node_types, node_type);
        }
        for name in &self.node_names {
            document.add_text(fields.node_names, name);
        }
        document.add_text(fields.language, language);
        document.add_text(fields.title, &self.title);
        let stems = fields.stems.get(language);
        let words = [fields.words, fields.words, fields.file_words];
        for (field, text) in words.into_iter().zip([&self.text, &self.extra_words, &self.file_text])
        {
            document.add_text(field, text);
            // Without a known language, only accents make a difference.
            if let Some(stems) = stems.filter(|_| language != UNKNOWN_LANGUAGE || !text.is_ascii())
            {
                document.add_text(*stems, text);
            }
        }
        document.add_field_value(fields.properties, &properties_to_object(self.properties));
        for key in &self.long_property_keys {
            document.add_text(fields.long_properties, key);
        }
        document.add_field_value(fields.facets, &properties_to_object(self.facets));
        let mut excerpt = self.text;
        truncate_text(&mut excerpt, MAX_EXCERPT_BYTES);
        append_text(&mut excerpt, &self.file_text);
        truncate_text(&mut excerpt, MAX_EXCERPT_BYTES);
        document.add_text(fields.excerpt, &excerpt);
        let is_failed = !self.failures.is_empty();
        if is_failed {
            document.add_text(fields.has_failed, "true");
        }
        for failure in &self.failures {
            document.add_text(fields.failure, failure);
        }
        (document, is_failed)
    }
}

/// Appends a text, up to the maximum total length.
fn append_text(texts: &mut String, text: &str) {
    if texts.len() < MAX_EXTRACTED_BYTES && !text.is_empty() {
        if !texts.is_empty() {
            texts.push('\n');
        }
        texts.push_str(text);
        truncate_text(texts, MAX_EXTRACTED_BYTES);
    }
}

fn properties_to_object(properties: BTreeMap<String, Vec<String>>) -> OwnedValue {
    let values = |mut texts: Vec<String>| match texts.pop() {
        Some(text) if texts.is_empty() => OwnedValue::Str(text),
        last => OwnedValue::Array(texts.into_iter().chain(last).map(OwnedValue::Str).collect()),
    };
    OwnedValue::Object(properties.into_iter().map(|(key, texts)| (key, values(texts))).collect())
}

/// Returns the facet value for a property value; `None` for values that are not categories.
fn facet_value(value: BorrowedValue<'_>) -> Option<String> {
    Some(match value {
        BorrowedValue::Text(_, text) if text.len() > MAX_FACET_BYTES => return None,
        BorrowedValue::Text(_, text) => text.to_owned(),
        BorrowedValue::Long(number) => number.to_string(),
        BorrowedValue::Boolean(truth) => truth.to_string(),
        // A day is a category, a point in time is not.
        BorrowedValue::Date(date) => format_day(date),
        BorrowedValue::Binary(_) | BorrowedValue::Double(_) => return None,
    })
}

fn format_day(date: JcrDate) -> String {
    let text = date.to_string();
    text.split('T').next().unwrap_or_default().to_owned()
}
