//! From a document of the content to a document of the index.
//!
//! In: a node that has a record of its own. Out: what the index keeps of it, which follows from the record and its
//! blobs alone.
//!
//! On failure: a part that cannot be read is left out and named in the `failure` field; only what may heal by itself
//! (a database that does not answer) is an error.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use tantivy::TantivyDocument;
use tantivy::schema::OwnedValue;
use tympan_content::query::{is_link, is_searched};
use tympan_content::{
    BorrowedNode, BorrowedProperty, BorrowedValue, Date, Error as ContentError, JCR_CONTENT,
    MIXIN_TYPES, Node, NodePath, PRIMARY_TYPE, Repository, ValueType,
};

use crate::error::{Result, chain};
use crate::extract::{Extractor, MAX_TEXT_BYTES, cut, looks_like_markup, strip};
use crate::language::{self, UNKNOWN};
use crate::schema::Fields;

/// The longest part of a text that is kept for showing.
const MAX_EXCERPT_BYTES: usize = 16 << 10;
/// Longer values are no facets.
const MAX_FACET_BYTES: usize = 128;
/// The most properties that one document has facets of.
const MAX_FACETS: usize = 200;
/// The most failures that are named.
const MAX_FAILURES: usize = 10;
/// Trees that nobody searches: users and their secrets, versions, what programs keep for themselves.
const OUTSIDE: [&str; 4] = ["/home", "/jcr:system", "/tmp", "/var"];
/// Properties whose words count more.
const TITLES: [&str; 6] =
    ["jcr:title", "dc:title", "pageTitle", "navTitle", "cq:tags", "dam:search_promote"];
/// The children of a document's node whose properties are titles and facets as the node's own are.
const NEAR: [&str; 3] = ["", JCR_CONTENT, "jcr:content/metadata"];

/// The longest part of a value that is read, tags included.
const MAX_READ_BYTES: usize = 4 * MAX_TEXT_BYTES;
/// The property that holds a file's bytes.
const JCR_DATA: &str = "jcr:data";
/// A value is indexed by its property once among so many of the same property in a document: components say the same
/// again and again.
const RECENT: usize = 16;
/// A document has about so many bytes at first.
const USUAL_BYTES: usize = 2 << 10;
/// Longer values of properties stand among the words alone, and are not indexed again by property.
const MAX_EXACT_BYTES: usize = 128;

/// Tells whether a document is in the index.
pub(crate) fn is_indexed(path: &NodePath) -> bool {
    let path = path.as_str();
    !OUTSIDE.iter().any(|outside| {
        path.strip_prefix(outside).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    })
}

/// Returns the key of the words of all properties of this name that lie below the nodes that are [`NEAR`].
fn deeper(name: &str) -> String {
    format!("*/{name}")
}

/// Returns the keys under which the words of a property stand that a query names; none for the words of files.
///
/// Its node may be the document's own or one inside: a path near the document's node is looked for exactly, a bare name
/// and a path that leads deeper everywhere by the last name.
pub(crate) fn keys_of(property: &str) -> Vec<String> {
    let (parent, name) = property.rsplit_once('/').unwrap_or(("", property));
    if name == JCR_DATA {
        return Vec::new();
    }
    if !parent.is_empty() && NEAR.contains(&parent) {
        return vec![property.to_owned()];
    }
    let near = NEAR
        .iter()
        .map(|near| if near.is_empty() { name.to_owned() } else { format!("{near}/{name}") });
    near.chain([deeper(name)]).collect()
}

/// Tells whether a name of a node is indexed: a search in a property of that name may mean the node.
pub(crate) fn has_prefix(name: &str) -> bool {
    name.contains(':')
}

/// Makes documents of the index.
#[derive(Debug, Clone)]
pub(crate) struct Digest {
    pub(crate) repository: Repository,
    pub(crate) extractor: Extractor,
    pub(crate) fields: Fields,
}

/// What is gathered of one document.
struct Gathered<'a> {
    digest: &'a Digest,
    name: &'a str,
    /// The texts of properties, and those of files: a phrase spans neither.
    text: String,
    files: String,
    title: String,
    /// What is found although no text of a property says it: the name, and titles that are links.
    aside: String,
    properties: BTreeMap<String, Vec<String>>,
    /// Bytes in `properties`.
    property_bytes: usize,
    /// The path of the node that is read, relative to the document.
    at: String,
    /// The key of the property that is read.
    key: String,
    /// The keys of properties with values that are too long to be among `properties`.
    long: BTreeSet<String>,
    facets: BTreeMap<String, Vec<String>>,
    types: BTreeSet<String>,
    nodes: BTreeSet<String>,
    failures: Vec<String>,
}

impl Digest {
    /// Makes the document of a node, and tells whether a part of it failed.
    ///
    /// # Errors
    /// If the content cannot be read now but may be later.
    pub(crate) fn document(&self, node: &Node) -> Result<(TantivyDocument, bool)> {
        let name = node.name().replace(['_', '-'], " ");
        let mut gathered = Gathered {
            digest: self,
            name: node.name(),
            text: String::with_capacity(USUAL_BYTES),
            files: String::new(),
            title: name.clone(),
            aside: name,
            properties: BTreeMap::new(),
            property_bytes: 0,
            at: String::new(),
            key: String::new(),
            long: BTreeSet::new(),
            facets: BTreeMap::new(),
            types: BTreeSet::new(),
            nodes: BTreeSet::new(),
            failures: Vec::new(),
        };
        let mut language = None;
        match node.borrowed() {
            Some(root) => {
                let own = |at: BorrowedNode<'_>| language::of_code(at.text("jcr:language")?);
                language = own(root).or_else(|| own(root.child(JCR_CONTENT)?));
                gathered.node(root, "")?;
            }
            None => gathered.unreadable(node)?,
        }
        let language = language.or_else(|| language::of_path(node.path().as_str()));
        Ok(gathered.into_document(node.path(), language.unwrap_or(UNKNOWN)))
    }

    /// Makes the document of one that cannot be read at all.
    pub(crate) fn unreadable(&self, path: &NodePath, reason: &str) -> TantivyDocument {
        let mut document = TantivyDocument::new();
        document.add_text(self.fields.path, path.as_str());
        document.add_text(self.fields.failed, "true");
        document.add_text(self.fields.failure, reason);
        document
    }
}

impl Gathered<'_> {
    /// Gathers a node and what is below it. `name` is the name of the nearest node above a `jcr:content`, as a file's
    /// content has its name.
    fn node(&mut self, node: BorrowedNode<'_>, name: &str) -> Result<()> {
        let name =
            if node.name() == JCR_CONTENT || node.name().is_empty() { name } else { node.name() };
        let is_near = NEAR.contains(&self.at.as_str());
        for (property, value) in node.properties() {
            if property == PRIMARY_TYPE || property == MIXIN_TYPES {
                self.add_types(value);
            }
            if value.value_type() == ValueType::Binary {
                self.binaries(node, value, property, name)?;
                continue;
            }
            if property.starts_with("rep:") || property.starts_with("oak:") {
                continue;
            }
            self.set_key(property, is_near);
            self.texts(property, value, is_near);
            if is_near {
                self.facet(value);
            }
        }
        for child in node.children() {
            if has_prefix(child.name()) && !self.nodes.contains(child.name()) {
                self.nodes.insert(child.name().to_owned());
            }
            let length = self.at.len();
            if length > 0 {
                self.at.push('/');
            }
            self.at.push_str(child.name());
            let gathered = self.node(child, name);
            self.at.truncate(length);
            gathered?;
        }
        Ok(())
    }

    fn add_types(&mut self, value: BorrowedProperty<'_>) {
        for name in value.values().filter_map(BorrowedValue::as_str) {
            if !self.types.contains(name) {
                self.types.insert(name.to_owned());
            }
        }
    }

    /// Makes the key of a property of the node that is read.
    fn set_key(&mut self, property: &str, is_near: bool) {
        self.key.clear();
        self.key.push_str(if is_near { &self.at } else { "*" });
        if !self.key.is_empty() {
            self.key.push('/');
        }
        self.key.push_str(property);
    }

    /// Gathers the words of a property, whose key is set.
    fn texts(&mut self, property: &str, value: BorrowedProperty<'_>, is_near: bool) {
        let is_text = is_searched(property, value);
        let is_title = is_near && TITLES.contains(&property);
        for text in value.values().filter_map(BorrowedValue::as_str) {
            let text = text.get(..text.floor_char_boundary(MAX_READ_BYTES)).unwrap_or(text);
            let text = if looks_like_markup(text) { strip(text).into() } else { Cow::from(text) };
            let is_found = is_text && !is_link(&text);
            if is_found {
                add(&mut self.text, &text);
            }
            if is_title {
                add(&mut self.title, &text);
                if !is_found {
                    add(&mut self.aside, &text);
                }
            }
            if is_found && text.len() > MAX_EXACT_BYTES {
                if !self.long.contains(&self.key) {
                    self.long.insert(self.key.clone());
                }
            } else {
                self.short(text);
            }
        }
    }

    /// Adds a short value to those of the property whose key is set.
    fn short(&mut self, text: Cow<'_, str>) {
        if !self.properties.contains_key(&self.key) {
            self.properties.insert(self.key.clone(), Vec::new());
        }
        let Some(values) = self.properties.get_mut(&self.key) else { return };
        if values.iter().rev().take(RECENT).any(|known| *known == text) {
            return;
        }
        let mut text = text.into_owned();
        cut(&mut text, MAX_TEXT_BYTES.saturating_sub(self.property_bytes));
        self.property_bytes += text.len();
        values.push(text);
    }

    /// Gathers the values of a property near the document's node, whose key is set.
    fn facet(&mut self, value: BorrowedProperty<'_>) {
        if self.facets.len() >= MAX_FACETS {
            return;
        }
        let texts: Vec<String> = value.values().filter_map(facet_of).collect();
        if !texts.is_empty() {
            self.facets.insert(self.key.clone(), texts);
        }
    }

    /// Gathers the text of the blobs of a property.
    fn binaries(
        &mut self,
        node: BorrowedNode<'_>,
        value: BorrowedProperty<'_>,
        property: &str,
        name: &str,
    ) -> Result<()> {
        self.set_key(property, true);
        let relative = self.key.clone();
        // Of an asset's renditions only the uploaded one is what its author wrote.
        if relative.contains("renditions/") && !relative.contains("renditions/original/") {
            return Ok(());
        }
        let name = if name.is_empty() || name == "original" { self.name } else { name };
        let media_type = node.text("jcr:mimeType");
        if !self.digest.extractor.reads(media_type, name) {
            return Ok(());
        }
        for value in value.values() {
            let BorrowedValue::Binary(id) = value else { continue };
            let read = match self.digest.repository.blobs().open(&id) {
                Ok(Some(blob)) => self.digest.extractor.text_of(blob, media_type, name),
                Ok(None) => Err(format!("the blob `{id}` is missing")),
                Err(error) => {
                    let error = ContentError::from(error);
                    if error.is_transient() {
                        return Err(error.into());
                    }
                    Err(chain(&error))
                }
            };
            match read {
                Ok(text) => add(&mut self.files, &text),
                Err(reason) => self.fail(format!("{relative}: {reason}")),
            }
        }
        Ok(())
    }

    /// Notes that the body cannot be read.
    fn unreadable(&mut self, node: &Node) -> Result<()> {
        let failure = node.snapshot().failure();
        if let Some(ContentError::Store(error)) = failure
            && error.is_transient()
        {
            let wait = tympan_content::Error::FullText(error.to_string().into());
            return Err(crate::Error::Content(wait));
        }
        self.fail(
            failure.map_or_else(|| "its body cannot be read".to_owned(), |error| chain(error)),
        );
        Ok(())
    }

    fn fail(&mut self, reason: String) {
        if self.failures.len() < MAX_FAILURES {
            self.failures.push(reason);
        }
    }

    fn into_document(self, path: &NodePath, language: &'static str) -> (TantivyDocument, bool) {
        let fields = &self.digest.fields;
        let text = self.text.len() + self.files.len();
        let kept = text.min(MAX_EXCERPT_BYTES) + self.title.len() + self.property_bytes;
        let mut document = TantivyDocument::with_capacity(text + kept + USUAL_BYTES);
        document.add_text(fields.path, path.as_str());
        document.add_text(fields.within, path.as_str());
        let mut ancestor = path.parent();
        while let Some(above) = ancestor {
            document.add_text(fields.within, above.as_str());
            ancestor = above.parent();
        }
        for node_type in &self.types {
            document.add_text(fields.types, node_type);
        }
        for name in &self.nodes {
            document.add_text(fields.nodes, name);
        }
        document.add_text(fields.language, language);
        document.add_text(fields.title, &self.title);
        let stems = fields.stems.get(language);
        let words = [fields.words, fields.words, fields.files];
        for (field, text) in words.into_iter().zip([&self.text, &self.aside, &self.files]) {
            document.add_text(field, text);
            // Without a known language only accents make a difference.
            if let Some(stems) = stems.filter(|_| language != UNKNOWN || !text.is_ascii()) {
                document.add_text(*stems, text);
            }
        }
        document.add_field_value(fields.properties, &object(self.properties));
        for key in &self.long {
            document.add_text(fields.long, key);
        }
        document.add_field_value(fields.facets, &object(self.facets));
        let mut excerpt = self.text;
        cut(&mut excerpt, MAX_EXCERPT_BYTES);
        add(&mut excerpt, &self.files);
        cut(&mut excerpt, MAX_EXCERPT_BYTES);
        document.add_text(fields.excerpt, &excerpt);
        let is_failed = !self.failures.is_empty();
        if is_failed {
            document.add_text(fields.failed, "true");
        }
        for failure in &self.failures {
            document.add_text(fields.failure, failure);
        }
        (document, is_failed)
    }
}

/// Adds a text to others, as long as all are not too long.
fn add(texts: &mut String, text: &str) {
    if texts.len() < MAX_TEXT_BYTES && !text.is_empty() {
        if !texts.is_empty() {
            texts.push('\n');
        }
        texts.push_str(text);
        cut(texts, MAX_TEXT_BYTES);
    }
}

fn object(properties: BTreeMap<String, Vec<String>>) -> OwnedValue {
    let values = |mut texts: Vec<String>| match texts.pop() {
        Some(text) if texts.is_empty() => OwnedValue::Str(text),
        last => OwnedValue::Array(texts.into_iter().chain(last).map(OwnedValue::Str).collect()),
    };
    OwnedValue::Object(properties.into_iter().map(|(key, texts)| (key, values(texts))).collect())
}

/// Returns the value as facets list it; nothing for values that are no categories.
fn facet_of(value: BorrowedValue<'_>) -> Option<String> {
    Some(match value {
        BorrowedValue::Text(_, text) if text.len() > MAX_FACET_BYTES => return None,
        BorrowedValue::Text(_, text) => text.to_owned(),
        BorrowedValue::Long(number) => number.to_string(),
        BorrowedValue::Boolean(truth) => truth.to_string(),
        // A day is a category, a moment is not.
        BorrowedValue::Date(date) => day_of(date),
        BorrowedValue::Binary(_) | BorrowedValue::Double(_) => return None,
    })
}

fn day_of(date: Date) -> String {
    let text = date.to_string();
    text.split('T').next().unwrap_or_default().to_owned()
}
