//! Sysviews: XML files in which an element `sv:node` is a node and an element `sv:property` with `sv:value` a property.
//!
//! In: a file of a package. Out: the same [`PackageDocument`] as from a docview. Binary values are part of the file, in
//! base64.
//!
//! On failure: [`crate::Error::InvalidPackage`] with file and line.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use tympan_content::{MIXIN_TYPES, PRIMARY_TYPE, Property, Value, ValueType, check_item_name};

use crate::Result;
use crate::archive::{PackageFileName, PackageLimits};
use crate::docview::PackageDocument;
use crate::docview::namespace::NamespaceScopes;
use crate::import_node::{
    ImportNode, ImportNodeKind, ImportProperty, PackageLocation, SupersededElement,
};
use crate::memory_usage;
use crate::package_counts::PackageCounts;
use crate::xml_reader::{XmlElement, XmlItem, XmlReader};

/// Parses a sysview whose root element describes a node with `depth` names in its path.
///
/// # Errors
/// At the first fault.
pub(crate) fn parse_sysview(
    file: &PackageFileName,
    bytes: &[u8],
    depth: usize,
    limits: &PackageLimits,
) -> Result<PackageDocument> {
    let mut reader = SysviewReader {
        file_name: file,
        limits,
        depth,
        scopes: NamespaceScopes::default(),
        open_nodes: Vec::new(),
        open_property: None,
        root: None,
        counts: PackageCounts::default(),
        superseded: Vec::new(),
    };
    let mut xml = XmlReader::new(file, bytes)?;
    let mut kinds = Vec::new();
    loop {
        match xml.next_item()? {
            XmlItem::StartElement(element) => kinds.push(reader.open_element(&element)?),
            XmlItem::EndElement => {
                reader.scopes.leave_element();
                match kinds.pop() {
                    Some(SysviewElement::Node) => reader.close_node(),
                    Some(SysviewElement::Property) => reader.close_property()?,
                    Some(SysviewElement::Value) => reader.close_value()?,
                    None => {}
                }
            }
            XmlItem::Text(text) => {
                reader.add_text(&text, kinds.last() == Some(&SysviewElement::Value))?
            }
            XmlItem::EndDocument => break,
        }
    }
    let SysviewReader { root, scopes, counts, superseded, .. } = reader;
    let root = root.ok_or_else(|| file.to_error(0, "the file contains no XML element"))?;
    Ok(PackageDocument { root, namespaces: scopes.into_used_namespaces(), counts, superseded })
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum SysviewElement {
    Node,
    Property,
    Value,
}

/// A property whose values are still being read.
struct SysviewProperty {
    name: String,
    value_type: ValueType,
    is_list: bool,
    values: Vec<String>,
    byte_count: usize,
    /// True if the current value is in base64 although it is a text.
    is_text_base64: bool,
    line: u32,
}

struct SysviewReader<'a> {
    file_name: &'a PackageFileName,
    limits: &'a PackageLimits,
    depth: usize,
    scopes: NamespaceScopes,
    open_nodes: Vec<ImportNode>,
    open_property: Option<SysviewProperty>,
    root: Option<ImportNode>,
    counts: PackageCounts,
    superseded: Vec<SupersededElement>,
}

impl SysviewReader<'_> {
    fn open_element(&mut self, element: &XmlElement) -> Result<SysviewElement> {
        self.scopes.enter_element(element);
        if self.scopes.declaration_count() > NamespaceScopes::MAX_DECLARATIONS {
            let message =
                format!("more than {} namespaces are declared", NamespaceScopes::MAX_DECLARATIONS);
            return Err(self.file_name.to_error(element.line, message));
        }
        let name = self.scopes.resolve_name(&element.name).unwrap_or_default();
        let is_inside = self.open_property.is_some();
        match name.as_str() {
            "sv:node" if !is_inside => self.open_node(element),
            "sv:property" if !is_inside && !self.open_nodes.is_empty() => {
                self.open_property(element)
            }
            "sv:value" if is_inside => self.open_value(element),
            _ => {
                let message =
                    format!("the element `{}` is not allowed here in a sysview", element.name);
                Err(self.file_name.to_error(element.line, message))
            }
        }
    }

    fn open_node(&mut self, element: &XmlElement) -> Result<SysviewElement> {
        if self.depth + self.open_nodes.len() > self.limits.max_depth {
            let message =
                format!("nodes are nested deeper than the limit of {}", self.limits.max_depth);
            return Err(self.file_name.to_error(element.line, message));
        }
        let name = if self.open_nodes.is_empty() {
            String::new()
        } else {
            let text = self.find_attribute(element, "sv:name").unwrap_or_default();
            self.resolve_name(&text, element.line)?
        };
        self.counts.elements_with_order += 1;
        memory_usage::check_counts(self.file_name, element.line, self.counts, self.limits)?;
        let source = PackageLocation::new(self.file_name.clone(), element.line);
        self.open_nodes.push(ImportNode::new(
            name,
            ImportNodeKind::OrderOnly,
            BTreeMap::new(),
            source,
        ));
        Ok(SysviewElement::Node)
    }

    fn open_property(&mut self, element: &XmlElement) -> Result<SysviewElement> {
        let name = self.find_attribute(element, "sv:name").unwrap_or_default();
        let name = self.resolve_name(&name, element.line)?;
        let text = self.find_attribute(element, "sv:type").unwrap_or_default();
        let value_type = ValueType::find(&text).ok_or_else(|| {
            let message = format!("`{text}` is not a property type");
            self.file_name.to_error(element.line, message)
        })?;
        let is_list = self.find_attribute(element, "sv:multiple").as_deref() == Some("true");
        let line = element.line;
        let (values, bytes, is_encoded) = (Vec::new(), 0, false);
        self.open_property = Some(SysviewProperty {
            name,
            value_type,
            is_list,
            values,
            byte_count: bytes,
            is_text_base64: is_encoded,
            line,
        });
        Ok(SysviewElement::Property)
    }

    fn open_value(&mut self, element: &XmlElement) -> Result<SysviewElement> {
        let is_encoded = element.attributes.iter().any(|attribute| {
            attribute.name.ends_with(":type") && attribute.value.ends_with(":base64Binary")
        });
        if let Some(property) = &mut self.open_property {
            property.values.push(String::new());
            property.is_text_base64 = is_encoded;
        }
        Ok(SysviewElement::Value)
    }

    fn add_text(&mut self, text: &str, is_value: bool) -> Result<()> {
        let Some(property) = self.open_property.as_mut().filter(|_| is_value) else {
            return Ok(());
        };
        property.byte_count += text.len();
        if property.byte_count > self.limits.max_value_bytes {
            let limit = self.limits.max_value_bytes;
            let message =
                format!("`{}`: the value is longer than the limit of {limit} bytes", property.name);
            return Err(self.file_name.to_error(property.line, message));
        }
        if let Some(value) = property.values.last_mut() {
            value.push_str(text);
        }
        Ok(())
    }

    fn close_value(&mut self) -> Result<()> {
        let file = self.file_name;
        let Some(property) = self
            .open_property
            .as_mut()
            .filter(|property| property.is_text_base64 && property.value_type != ValueType::Binary)
        else {
            return Ok(());
        };
        property.is_text_base64 = false;
        let line = property.line;
        if let Some(value) = property.values.last_mut() {
            let bytes = decode_base64(value).map_err(|message| file.to_error(line, message))?;
            *value = String::from_utf8(bytes)
                .map_err(|_| file.to_error(line, "a base64-encoded text is not UTF-8"))?;
        }
        Ok(())
    }

    fn close_property(&mut self) -> Result<()> {
        let Some(property) = self.open_property.take() else {
            return Ok(());
        };
        let (name, line) = (property.name.clone(), property.line);
        let refuse =
            |message: String| self.file_name.to_error(line, format!("`{name}`: {message}"));
        let value = build_property(property).map_err(refuse)?;
        let Some(node) = self.open_nodes.last_mut() else {
            return Ok(());
        };
        if node.properties().contains_key(&name) {
            return Err(self
                .file_name
                .to_error(line, format!("the property `{name}` occurs twice")));
        }
        node.set_property(&name, value);
        self.counts.attributes += 1;
        memory_usage::check_counts(self.file_name, line, self.counts, self.limits)
    }

    fn close_node(&mut self) {
        let Some(node) = self.open_nodes.pop() else { return };
        if node.kind() == ImportNodeKind::Content {
            self.counts.elements += 1;
            self.counts.pages += usize::from(node.primary_type() == Some("cq:Page"));
            self.counts.assets += usize::from(node.primary_type() == Some("dam:Asset"));
        }
        let path: String =
            self.open_nodes.iter().skip(1).flat_map(|open| ["/", open.name()]).collect();
        match self.open_nodes.last_mut() {
            Some(parent) => parent.put_child(node, &path, &mut self.superseded),
            None => self.root = Some(node),
        }
    }

    /// Finds an attribute by its name with the usual prefix.
    fn find_attribute(&mut self, element: &XmlElement, name: &str) -> Option<String> {
        let mut attributes = element.attributes.iter();
        let matching_attribute = attributes
            .find(|candidate| self.scopes.resolve_name(&candidate.name).as_deref() == Some(name));
        matching_attribute.map(|attribute| attribute.value.clone())
    }

    fn resolve_name(&mut self, qualified: &str, line: u32) -> Result<String> {
        let name = self.scopes.resolve_name(qualified).ok_or_else(|| {
            let prefix = qualified.split(':').next().unwrap_or_default();
            self.file_name
                .to_error(line, format!("the prefix `{prefix}` of `{qualified}` is not declared"))
        })?;
        check_item_name(&name).map_err(|error| self.file_name.to_error(line, error.to_string()))?;
        Ok(name)
    }
}

fn build_property(property: SysviewProperty) -> Result<ImportProperty, String> {
    let SysviewProperty { name, value_type, is_list, values, .. } = property;
    let is_list = is_list || values.len() != 1 || name == MIXIN_TYPES;
    if value_type == ValueType::Binary {
        let values: Result<Vec<_>, String> =
            values.iter().map(|value| decode_base64(value)).collect();
        return Ok(ImportProperty::InlineBinary { values: values?, is_list });
    }
    let value_type = if matches!(name.as_str(), PRIMARY_TYPE | MIXIN_TYPES) {
        ValueType::Name
    } else {
        value_type
    };
    let values: tympan_content::Result<Vec<Value>> =
        values.iter().map(|text| Value::parse(value_type, text)).collect();
    let mut values = values.map_err(|error| error.to_string())?;
    Ok(ImportProperty::Value(match values.pop() {
        Some(value) if !is_list => {
            if name == PRIMARY_TYPE {
                check_item_name(&value.to_text()).map_err(|error| error.to_string())?;
            }
            Property::Single(value)
        }
        last => {
            values.extend(last);
            if name == PRIMARY_TYPE {
                return Err("a node must have exactly one primary type".into());
            }
            Property::List(value_type, values)
        }
    }))
}

fn decode_base64(text: &str) -> Result<Vec<u8>, String> {
    let plain: String = text.split_whitespace().collect();
    STANDARD.decode(plain).map_err(|error| format!("the value is not valid base64: {error}"))
}
