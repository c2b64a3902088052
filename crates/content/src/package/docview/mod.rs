//! Docviews: XML files in which an element is a node and an attribute is a property.
//!
//! In: a file of a package. Out: the node that it describes with those below, each with the line where it stands.
//!
//! Invariants
//! * An element without attributes makes no node: it only tells the place among its siblings.
//! * Names and values are checked here, so that what a document describes can be stored.
//! * Writing a node and reading it again gives the same node (`write`).
//!
//! On failure: [`crate::Error::Package`] with file and line.
//!
//! Not here: where in the tree a document belongs (`entry`), and what it does to content (`apply`).

mod iso9075;
mod literal;
mod namespace;
pub(super) mod sysview;
mod write;

use std::collections::BTreeMap;

pub use literal::{Literal, parse as parse_value, write as write_value};
pub use namespace::Namespaces;
pub use write::write;
pub(super) use write::{Split, write_split};

use super::Counts;
use super::archive::{File, Limits};
use super::held;
use super::report::SkipReason;
use super::tree::{ImportNode, ImportProperty, Kind, Source, Superseded};
use super::xml::{Attribute, Element, Item, Xml};
use crate::package::MAX_FAULTS;
use crate::{Error, MIXIN_TYPES, PRIMARY_TYPE, Property, Result, Subtree, ValueType, check_name};
use namespace::Scopes;

/// A docview that was read.
#[derive(Debug)]
pub(super) struct Document {
    /// The node that the root element describes; its name is not known here.
    pub(super) root: ImportNode,
    /// Which prefixes it uses for which namespaces.
    pub(super) namespaces: BTreeMap<String, String>,
    pub(super) counts: Counts,
    /// Elements that are left out because of a sibling of the same name.
    pub(super) superseded: Vec<Superseded>,
}

/// What an XML file describes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Serialization {
    /// A node, as a docview: the root element is `jcr:root`.
    Docview,
    /// A node, as a sysview: the root element is `sv:node`.
    Sysview,
    /// No node: it is a file.
    Other,
}

/// Finds out by the beginning of an XML file what it describes.
pub(super) fn serialization_of(file: &File, beginning: &[u8]) -> Serialization {
    // The beginning may end inside of a character.
    let text = beginning.utf8_chunks().next().map_or("", |chunk| chunk.valid());
    let first = Xml::new(file, text.as_bytes()).and_then(|mut xml| xml.next());
    let Ok(Item::Open(element)) = first else {
        return Serialization::Other;
    };
    let mut scopes = Scopes::default();
    if is_root(&element, &mut scopes) {
        return Serialization::Docview;
    }
    scopes.open(&element);
    match scopes.resolve(&element.name).as_deref() {
        Some("sv:node") => Serialization::Sysview,
        _ => Serialization::Other,
    }
}

fn is_root(element: &Element, scopes: &mut Scopes) -> bool {
    scopes.open(element);
    let is_root = scopes.is_jcr_root(&element.name);
    if !is_root {
        scopes.close();
    }
    is_root
}

/// Reads the text of a docview as a node. What a node cannot hold is left out: elements that only tell the order, and
/// the mark of bytes that are kept elsewhere. `name` stands for the file in messages.
///
/// # Errors
/// [`crate::Error::Package`] with the line of the first fault.
pub fn read(name: &str, text: &[u8], limits: &Limits) -> Result<Subtree> {
    parse(&File::new(name), text, 0, limits).map(|document| to_subtree(document.root))
}

fn to_subtree(node: ImportNode) -> Subtree {
    let mut subtree = Subtree { name: node.name().to_owned(), ..Subtree::default() };
    for (name, property) in node.properties() {
        if let ImportProperty::Value(property) = property {
            subtree.properties.insert(name.clone(), property.clone());
        }
    }
    let children = node.into_children().into_iter();
    subtree.children =
        children.filter(|child| child.kind() != Kind::OrderOnly).map(to_subtree).collect();
    subtree
}

/// Reads a docview whose root element describes a node with `depth` names in its path.
///
/// # Errors
/// At the first fault.
pub(super) fn parse(file: &File, bytes: &[u8], depth: usize, limits: &Limits) -> Result<Document> {
    let mut reader = DocumentReader {
        file,
        limits,
        scopes: Scopes::default(),
        open: Vec::new(),
        root: None,
        counts: Counts::default(),
        superseded: Vec::new(),
        faults: Vec::new(),
    };
    let mut xml = Xml::new(file, bytes)?;
    loop {
        let step = xml.next().and_then(|item| match item {
            Item::Open(element) => reader.open(&element, depth).map(|()| true),
            Item::Close => {
                reader.close();
                Ok(true)
            }
            // FileVault passes over text, too.
            Item::Text(_) => Ok(true),
            Item::End => Ok(false),
        });
        match step {
            Ok(true) => {}
            Ok(false) => break,
            Err(error) => {
                reader.faults.push(error);
                break;
            }
        }
    }
    let DocumentReader { root, scopes, counts, superseded, faults, .. } = reader;
    if let Some(fault) = Error::of_package(faults) {
        return Err(fault);
    }
    let root = root.ok_or_else(|| file.error(0, "the file holds no element"))?;
    Ok(Document { root, namespaces: scopes.into_used(), counts, superseded })
}

struct DocumentReader<'a> {
    file: &'a File,
    limits: &'a Limits,
    scopes: Scopes,
    open: Vec<ImportNode>,
    root: Option<ImportNode>,
    counts: Counts,
    superseded: Vec<Superseded>,
    /// What is wrong with values, to be told together.
    faults: Vec<Error>,
}

impl DocumentReader<'_> {
    fn open(&mut self, element: &Element, depth: usize) -> Result<()> {
        let name = if self.open.is_empty() {
            if !is_root(element, &mut self.scopes) {
                let message = format!("the root element is `{}`, not `jcr:root`", element.name);
                return Err(self.file.error(element.line, message));
            }
            String::new()
        } else {
            self.scopes.open(element);
            self.node_name(element)?
        };
        if depth + self.open.len() > self.limits.depth {
            let message = format!("nodes lie deeper than the limit of {}", self.limits.depth);
            return Err(self.file.error(element.line, message));
        }
        if self.scopes.count() > Scopes::LIMIT {
            let message = format!("more than {} namespaces are declared", Scopes::LIMIT);
            return Err(self.file.error(element.line, message));
        }
        let properties = self.properties(element)?;
        self.counts.nodes += 1;
        self.counts.attributes += properties.len();
        held::check(self.file, element.line, self.counts, self.limits)?;
        let kind = if properties.is_empty() { Kind::OrderOnly } else { Kind::Content };
        let source = Source::new(self.file.clone(), element.line);
        let node = ImportNode::new(name, kind, properties, source);
        if kind == Kind::Content {
            self.counts.elements += 1;
            self.counts.pages += usize::from(node.primary_type() == Some("cq:Page"));
            self.counts.assets += usize::from(node.primary_type() == Some("dam:Asset"));
        }
        self.open.push(node);
        Ok(())
    }

    /// Ends the innermost element. A later one takes the place of a sibling with the same name, as in FileVault over
    /// a repository that has no same-name siblings; there, one that says to be another, `name[2]`, is left out.
    fn close(&mut self) {
        self.scopes.close();
        let Some(node) = self.open.pop() else { return };
        if let Some(name) = further_sibling(node.name()) {
            let above = self.open.iter().skip(1).map(ImportNode::name);
            let names = above.map(|name| further_sibling(name).unwrap_or(name));
            let path: String = names.chain([name]).flat_map(|name| ["/", name]).collect();
            node.list_elements(&path, SkipReason::SameName, &mut self.superseded);
            return;
        }
        let path: String = match self.open.last().and_then(|parent| parent.child(node.name())) {
            Some(_) => self.open.iter().skip(1).flat_map(|open| ["/", open.name()]).collect(),
            None => String::new(),
        };
        match self.open.last_mut() {
            Some(parent) => parent.push_last(node, &path, &mut self.superseded),
            None => self.root = Some(node),
        }
    }

    fn properties(&mut self, element: &Element) -> Result<BTreeMap<String, ImportProperty>> {
        let mut properties = BTreeMap::new();
        for attribute in &element.attributes {
            if attribute.name == "xmlns" || attribute.name.starts_with("xmlns:") {
                continue;
            }
            let name = self.name(&attribute.name, attribute.line)?;
            let property = match self.property(&name, attribute) {
                Ok(property) => property,
                // What is wrong with one value is told together with what is wrong with others.
                Err(error) if self.faults.len() < MAX_FAULTS => {
                    self.faults.push(error);
                    continue;
                }
                Err(error) => return Err(error),
            };
            if let (PRIMARY_TYPE | MIXIN_TYPES, ImportProperty::Value(types)) = (&*name, &property)
            {
                // What a package calls a type by is a prefix that it uses.
                for one in types.values() {
                    drop(self.scopes.resolve(&one.to_text()));
                }
            }
            if properties.insert(name, property).is_some() {
                let message = format!("the attribute `{}` stands twice", attribute.name);
                return Err(self.file.error(attribute.line, message));
            }
        }
        Ok(properties)
    }

    fn property(&self, name: &str, attribute: &Attribute) -> Result<ImportProperty> {
        let refuse = |message: String| {
            Err(self.file.error(attribute.line, format!("`{}`: {message}", attribute.name)))
        };
        if attribute.value.len() > self.limits.value_bytes {
            let limit = self.limits.value_bytes;
            return refuse(format!("the value is longer than the limit of {limit} bytes"));
        }
        let property = match parse_value(&attribute.value, untyped(name)) {
            Ok(Literal::Property(property)) => property,
            Ok(Literal::Binary) => return Ok(ImportProperty::Kept),
            Ok(Literal::NoBytes { count, is_list }) => {
                return Ok(ImportProperty::Inline { values: vec![Vec::new(); count], is_list });
            }
            Err(message) => return refuse(message),
        };
        match (name, property) {
            (PRIMARY_TYPE, Property::Single(value)) => match check_name(&value.to_text()) {
                Ok(()) => Ok(ImportProperty::Value(Property::name(value.to_text()))),
                Err(error) => refuse(error.to_string()),
            },
            (PRIMARY_TYPE, Property::List(..)) => refuse("a node has one primary type".into()),
            (MIXIN_TYPES, Property::Single(value)) => {
                Ok(ImportProperty::Value(Property::List(value.value_type(), vec![value])))
            }
            (_, property) => Ok(ImportProperty::Value(property)),
        }
    }

    /// Returns the name of an element's node; with its number where that is a second sibling or later one of this name.
    fn node_name(&mut self, element: &Element) -> Result<String> {
        let decoded = self.decoded(&element.name, element.line)?;
        let base = decoded.strip_suffix("[1]").or_else(|| further_sibling(&decoded));
        let name = base.unwrap_or(&decoded);
        check_name(name).map_err(|error| self.file.error(element.line, error.to_string()))?;
        Ok(if decoded.ends_with("[1]") { name.to_owned() } else { decoded })
    }

    /// Returns the JCR name for an attribute's name in the document.
    fn name(&mut self, qualified: &str, line: u32) -> Result<String> {
        let name = self.decoded(qualified, line)?;
        check_name(&name).map_err(|error| self.file.error(line, error.to_string()))?;
        Ok(name)
    }

    fn decoded(&mut self, qualified: &str, line: u32) -> Result<String> {
        let resolved = self.scopes.resolve(qualified).ok_or_else(|| {
            let prefix = qualified.split(':').next().unwrap_or_default();
            let message = format!(
                "the prefix `{prefix}` of `{qualified}` is not declared; add its `xmlns:{prefix}`"
            );
            self.file.error(line, message)
        })?;
        Ok(iso9075::decode(&resolved))
    }
}

/// Returns the name without its number, if that is `[2]` or more: JCR's way to write siblings of the same name.
fn further_sibling(name: &str) -> Option<&str> {
    let (base, number) = name.strip_suffix(']')?.rsplit_once('[')?;
    let is_number = number.bytes().all(|byte| byte.is_ascii_digit());
    (is_number && number.parse::<u32>().is_ok_and(|number| number > 1)).then_some(base)
}

/// Returns the type of values that are written without one.
fn untyped(name: &str) -> ValueType {
    if matches!(name, PRIMARY_TYPE | MIXIN_TYPES) { ValueType::Name } else { ValueType::String }
}
