//! Docviews: XML files in which an element is a node and an attribute is a property.
//!
//! In: a file of a package. Out: the node that it describes with its descendants, each with its line.
//!
//! Invariants
//! * An element without attributes creates no node: it only fixes the position among its siblings.
//! * Names and values are checked here, so that the described content can be stored.
//! * Writing a node and reading it again gives the same node (`docview_writer`).
//!
//! On failure: [`crate::Error::InvalidPackage`] with file and line.
//!
//! Not here: the path of a document in the tree (`entry`), and its effect on content (`installer`).

mod docview_writer;
mod iso9075;
mod literal;
mod namespace;
pub(crate) mod sysview;

use std::collections::BTreeMap;

pub use docview_writer::write_docview;
pub(crate) use docview_writer::{ChildPlacement, write_docview_split};
pub use literal::{DocviewLiteral, parse_literal, write_literal};
pub use namespace::DocviewNamespaces;

use tympan_content::{MIXIN_TYPES, PRIMARY_TYPE, Property, Subtree, ValueType, check_item_name};

use crate::archive::{PackageFileName, PackageLimits};
use crate::import_node::{
    ImportNode, ImportNodeKind, ImportProperty, PackageLocation, SupersededElement,
};
use crate::install_report::SkipReason;
use crate::memory_usage;
use crate::package_counts::{MAX_REPORTED_FAULTS, PackageCounts};
use crate::xml_reader::{XmlAttribute, XmlElement, XmlItem, XmlReader};
use crate::{Error, Result};
use namespace::NamespaceScopes;

/// A parsed docview.
#[derive(Debug)]
pub(crate) struct PackageDocument {
    /// The node of the root element; its name is not known here.
    pub(crate) root: ImportNode,
    /// The prefixes in use and their namespaces.
    pub(crate) namespaces: BTreeMap<String, String>,
    pub(crate) counts: PackageCounts,
    /// Elements that are ignored because of a sibling of the same name.
    pub(crate) superseded: Vec<SupersededElement>,
}

/// The kind of content of an XML file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum XmlSerialization {
    /// A node, as a docview: the root element is `jcr:root`.
    Docview,
    /// A node, as a sysview: the root element is `sv:node`.
    Sysview,
    /// No node: it is a plain file.
    Other,
}

/// Detects the kind of an XML file from its beginning.
pub(crate) fn detect_serialization(file: &PackageFileName, beginning: &[u8]) -> XmlSerialization {
    // The beginning may end inside a character.
    let text = beginning.utf8_chunks().next().map_or("", |chunk| chunk.valid());
    let first = XmlReader::new(file, text.as_bytes()).and_then(|mut xml| xml.next_item());
    let Ok(XmlItem::StartElement(element)) = first else {
        return XmlSerialization::Other;
    };
    let mut scopes = NamespaceScopes::default();
    if is_jcr_root(&element, &mut scopes) {
        return XmlSerialization::Docview;
    }
    scopes.enter_element(&element);
    match scopes.resolve_name(&element.name).as_deref() {
        Some("sv:node") => XmlSerialization::Sysview,
        _ => XmlSerialization::Other,
    }
}

fn is_jcr_root(element: &XmlElement, scopes: &mut NamespaceScopes) -> bool {
    scopes.enter_element(element);
    let is_root = scopes.is_jcr_root_name(&element.name);
    if !is_root {
        scopes.leave_element();
    }
    is_root
}

/// Parses the text of a docview as a node. Content that a node cannot hold is left out: elements that only fix the
/// order, and markers for bytes that are stored elsewhere. `name` identifies the file in messages.
///
/// # Errors
/// [`crate::Error::InvalidPackage`] with the line of the first fault.
pub fn read_docview(name: &str, text: &[u8], limits: &PackageLimits) -> Result<Subtree> {
    parse_docview(&PackageFileName::new(name), text, 0, limits)
        .map(|document| import_to_subtree(document.root))
}

fn import_to_subtree(node: ImportNode) -> Subtree {
    let mut subtree = Subtree { name: node.name().to_owned(), ..Subtree::default() };
    for (name, property) in node.properties() {
        if let ImportProperty::Value(property) = property {
            subtree.properties.insert(name.clone(), property.clone());
        }
    }
    let children = node.into_children().into_iter();
    subtree.children = children
        .filter(|child| child.kind() != ImportNodeKind::OrderOnly)
        .map(import_to_subtree)
        .collect();
    subtree
}

/// Parses a docview whose root element describes a node with `depth` names in its path.
///
/// # Errors
/// At the first fault.
pub(crate) fn parse_docview(
    file: &PackageFileName,
    bytes: &[u8],
    depth: usize,
    limits: &PackageLimits,
) -> Result<PackageDocument> {
    let mut reader = DocviewReader {
        file_name: file,
        limits,
        scopes: NamespaceScopes::default(),
        open_nodes: Vec::new(),
        root: None,
        counts: PackageCounts::default(),
        superseded: Vec::new(),
        faults: Vec::new(),
    };
    let mut xml = XmlReader::new(file, bytes)?;
    loop {
        let step = xml.next_item().and_then(|item| match item {
            XmlItem::StartElement(element) => reader.open_element(&element, depth).map(|()| true),
            XmlItem::EndElement => {
                reader.close_element();
                Ok(true)
            }
            // FileVault ignores text, too.
            XmlItem::Text(_) => Ok(true),
            XmlItem::EndDocument => Ok(false),
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
    let DocviewReader { root, scopes, counts, superseded, faults, .. } = reader;
    if let Some(fault) = Error::from_package_faults(faults) {
        return Err(fault);
    }
    let root = root.ok_or_else(|| file.to_error(0, "the file contains no XML element"))?;
    Ok(PackageDocument { root, namespaces: scopes.into_used_namespaces(), counts, superseded })
}

struct DocviewReader<'a> {
    file_name: &'a PackageFileName,
    limits: &'a PackageLimits,
    scopes: NamespaceScopes,
    open_nodes: Vec<ImportNode>,
    root: Option<ImportNode>,
    counts: PackageCounts,
    superseded: Vec<SupersededElement>,
    /// Faults of values, to be reported together.
    faults: Vec<Error>,
}

impl DocviewReader<'_> {
    fn open_element(&mut self, element: &XmlElement, depth: usize) -> Result<()> {
        let name = if self.open_nodes.is_empty() {
            if !is_jcr_root(element, &mut self.scopes) {
                let message = format!("the root element is `{}`, not `jcr:root`", element.name);
                return Err(self.file_name.to_error(element.line, message));
            }
            String::new()
        } else {
            self.scopes.enter_element(element);
            self.read_node_name(element)?
        };
        if depth + self.open_nodes.len() > self.limits.max_depth {
            let message =
                format!("nodes are nested deeper than the limit of {}", self.limits.max_depth);
            return Err(self.file_name.to_error(element.line, message));
        }
        if self.scopes.declaration_count() > NamespaceScopes::MAX_DECLARATIONS {
            let message =
                format!("more than {} namespaces are declared", NamespaceScopes::MAX_DECLARATIONS);
            return Err(self.file_name.to_error(element.line, message));
        }
        let properties = self.read_properties(element)?;
        self.counts.elements_with_order += 1;
        self.counts.attributes += properties.len();
        memory_usage::check_counts(self.file_name, element.line, self.counts, self.limits)?;
        let kind =
            if properties.is_empty() { ImportNodeKind::OrderOnly } else { ImportNodeKind::Content };
        let source = PackageLocation::new(self.file_name.clone(), element.line);
        let node = ImportNode::new(name, kind, properties, source);
        if kind == ImportNodeKind::Content {
            self.counts.elements += 1;
            self.counts.pages += usize::from(node.primary_type() == Some("cq:Page"));
            self.counts.assets += usize::from(node.primary_type() == Some("dam:Asset"));
        }
        self.open_nodes.push(node);
        Ok(())
    }

    /// Closes the innermost element. A later element replaces a sibling with the same name, as in FileVault on a
    /// repository without same-name siblings. As there, an element with an index, such as `name[2]`, is left out.
    fn close_element(&mut self) {
        self.scopes.leave_element();
        let Some(node) = self.open_nodes.pop() else { return };
        if let Some(name) = base_of_indexed_name(node.name()) {
            let above = self.open_nodes.iter().skip(1).map(ImportNode::name);
            let names = above.map(|name| base_of_indexed_name(name).unwrap_or(name));
            let path: String = names.chain([name]).flat_map(|name| ["/", name]).collect();
            node.collect_elements(&path, SkipReason::SameName, &mut self.superseded);
            return;
        }
        let path: String = match self.open_nodes.last().and_then(|parent| parent.child(node.name()))
        {
            Some(_) => self.open_nodes.iter().skip(1).flat_map(|open| ["/", open.name()]).collect(),
            None => String::new(),
        };
        match self.open_nodes.last_mut() {
            Some(parent) => parent.put_child(node, &path, &mut self.superseded),
            None => self.root = Some(node),
        }
    }

    fn read_properties(
        &mut self,
        element: &XmlElement,
    ) -> Result<BTreeMap<String, ImportProperty>> {
        let mut properties = BTreeMap::new();
        for attribute in &element.attributes {
            if attribute.name == "xmlns" || attribute.name.starts_with("xmlns:") {
                continue;
            }
            let name = self.resolve_name(&attribute.name, attribute.line)?;
            let property = match self.read_property(&name, attribute) {
                Ok(property) => property,
                // Faults of values are collected and reported together.
                Err(error) if self.faults.len() < MAX_REPORTED_FAULTS => {
                    self.faults.push(error);
                    continue;
                }
                Err(error) => return Err(error),
            };
            if let (PRIMARY_TYPE | MIXIN_TYPES, ImportProperty::Value(types)) = (&*name, &property)
            {
                // The prefix of a type that the package names counts as used.
                for type_value in types.values() {
                    drop(self.scopes.resolve_name(&type_value.to_text()));
                }
            }
            if properties.insert(name, property).is_some() {
                let message = format!("the attribute `{}` occurs twice", attribute.name);
                return Err(self.file_name.to_error(attribute.line, message));
            }
        }
        Ok(properties)
    }

    fn read_property(&self, name: &str, attribute: &XmlAttribute) -> Result<ImportProperty> {
        let refuse = |message: String| {
            Err(self.file_name.to_error(attribute.line, format!("`{}`: {message}", attribute.name)))
        };
        if attribute.value.len() > self.limits.max_value_bytes {
            let limit = self.limits.max_value_bytes;
            return refuse(format!("the value is longer than the limit of {limit} bytes"));
        }
        let property = match parse_literal(&attribute.value, default_value_type(name)) {
            Ok(DocviewLiteral::Property(property)) => property,
            Ok(DocviewLiteral::ExternalBinary) => return Ok(ImportProperty::Preserved),
            Ok(DocviewLiteral::EmptyBinary { value_count, is_list }) => {
                return Ok(ImportProperty::InlineBinary {
                    values: vec![Vec::new(); value_count],
                    is_list,
                });
            }
            Err(message) => return refuse(message),
        };
        match (name, property) {
            (PRIMARY_TYPE, Property::Single(value)) => match check_item_name(&value.to_text()) {
                Ok(()) => Ok(ImportProperty::Value(Property::name(value.to_text()))),
                Err(error) => refuse(error.to_string()),
            },
            (PRIMARY_TYPE, Property::List(..)) => {
                refuse("a node must have exactly one primary type".into())
            }
            (MIXIN_TYPES, Property::Single(value)) => {
                Ok(ImportProperty::Value(Property::List(value.value_type(), vec![value])))
            }
            (_, property) => Ok(ImportProperty::Value(property)),
        }
    }

    /// Returns the name of an element's node, with its index if it is the second or a later sibling of this name.
    fn read_node_name(&mut self, element: &XmlElement) -> Result<String> {
        let decoded = self.decode_name(&element.name, element.line)?;
        let base = decoded.strip_suffix("[1]").or_else(|| base_of_indexed_name(&decoded));
        let name = base.unwrap_or(&decoded);
        check_item_name(name)
            .map_err(|error| self.file_name.to_error(element.line, error.to_string()))?;
        Ok(if decoded.ends_with("[1]") { name.to_owned() } else { decoded })
    }

    /// Returns the JCR name of an attribute in the document.
    fn resolve_name(&mut self, qualified: &str, line: u32) -> Result<String> {
        let name = self.decode_name(qualified, line)?;
        check_item_name(&name).map_err(|error| self.file_name.to_error(line, error.to_string()))?;
        Ok(name)
    }

    fn decode_name(&mut self, qualified: &str, line: u32) -> Result<String> {
        let resolved = self.scopes.resolve_name(qualified).ok_or_else(|| {
            let prefix = qualified.split(':').next().unwrap_or_default();
            let message = format!(
                "the prefix `{prefix}` of `{qualified}` is not declared; add its `xmlns:{prefix}`"
            );
            self.file_name.to_error(line, message)
        })?;
        Ok(iso9075::decode_name(&resolved))
    }
}

/// Returns the name without its index if that is `[2]` or higher, which is JCR's notation for same-name siblings.
fn base_of_indexed_name(name: &str) -> Option<&str> {
    let (base, number) = name.strip_suffix(']')?.rsplit_once('[')?;
    let is_number = number.bytes().all(|byte| byte.is_ascii_digit());
    (is_number && number.parse::<u32>().is_ok_and(|number| number > 1)).then_some(base)
}

/// Returns the type of values that are written without a type.
fn default_value_type(name: &str) -> ValueType {
    if matches!(name, PRIMARY_TYPE | MIXIN_TYPES) { ValueType::Name } else { ValueType::String }
}
