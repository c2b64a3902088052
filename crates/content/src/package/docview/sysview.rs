//! Sysviews: XML files in which an element `sv:node` is a node and an element `sv:property` with `sv:value` a property.
//!
//! In: a file of a package. Out: the same [`Document`] as from a docview. Bytes stand in the file itself, in base64.
//!
//! On failure: [`crate::Error::Package`] with file and line.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::super::archive::{File, Limits};
use super::super::held;
use super::super::tree::{ImportNode, ImportProperty, Kind, Source, Superseded};
use super::super::xml::{Element, Item, Xml};
use super::Document;
use super::namespace::Scopes;
use crate::package::Counts;
use crate::{MIXIN_TYPES, PRIMARY_TYPE, Property, Result, Value, ValueType, check_name};

/// Reads a sysview whose root element describes a node with `depth` names in its path.
///
/// # Errors
/// At the first fault.
pub(in crate::package) fn parse(
    file: &File,
    bytes: &[u8],
    depth: usize,
    limits: &Limits,
) -> Result<Document> {
    let mut reader = Reader {
        file,
        limits,
        depth,
        scopes: Scopes::default(),
        open: Vec::new(),
        property: None,
        root: None,
        counts: Counts::default(),
        superseded: Vec::new(),
    };
    let mut xml = Xml::new(file, bytes)?;
    let mut kinds = Vec::new();
    loop {
        match xml.next()? {
            Item::Open(element) => kinds.push(reader.open(&element)?),
            Item::Close => {
                reader.scopes.close();
                match kinds.pop() {
                    Some(Part::Node) => reader.close_node(),
                    Some(Part::Property) => reader.close_property()?,
                    Some(Part::Value) => reader.close_value()?,
                    None => {}
                }
            }
            Item::Text(text) => reader.text(&text, kinds.last() == Some(&Part::Value))?,
            Item::End => break,
        }
    }
    let Reader { root, scopes, counts, superseded, .. } = reader;
    let root = root.ok_or_else(|| file.error(0, "the file holds no element"))?;
    Ok(Document { root, namespaces: scopes.into_used(), counts, superseded })
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Node,
    Property,
    Value,
}

/// A property whose values are still being read.
struct OpenProperty {
    name: String,
    value_type: ValueType,
    is_list: bool,
    values: Vec<String>,
    bytes: usize,
    /// Whether the value that is being read is in base64 although it is a text.
    is_encoded: bool,
    line: u32,
}

struct Reader<'a> {
    file: &'a File,
    limits: &'a Limits,
    depth: usize,
    scopes: Scopes,
    open: Vec<ImportNode>,
    property: Option<OpenProperty>,
    root: Option<ImportNode>,
    counts: Counts,
    superseded: Vec<Superseded>,
}

impl Reader<'_> {
    fn open(&mut self, element: &Element) -> Result<Part> {
        self.scopes.open(element);
        if self.scopes.count() > Scopes::LIMIT {
            let message = format!("more than {} namespaces are declared", Scopes::LIMIT);
            return Err(self.file.error(element.line, message));
        }
        let name = self.scopes.resolve(&element.name).unwrap_or_default();
        let is_inside = self.property.is_some();
        match name.as_str() {
            "sv:node" if !is_inside => self.open_node(element),
            "sv:property" if !is_inside && !self.open.is_empty() => self.open_property(element),
            "sv:value" if is_inside => self.open_value(element),
            _ => {
                let message =
                    format!("`{}` stands where no sysview has such an element", element.name);
                Err(self.file.error(element.line, message))
            }
        }
    }

    fn open_node(&mut self, element: &Element) -> Result<Part> {
        if self.depth + self.open.len() > self.limits.depth {
            let message = format!("nodes lie deeper than the limit of {}", self.limits.depth);
            return Err(self.file.error(element.line, message));
        }
        let name = if self.open.is_empty() {
            String::new()
        } else {
            let text = self.attribute(element, "sv:name").unwrap_or_default();
            self.name(&text, element.line)?
        };
        self.counts.nodes += 1;
        held::check(self.file, element.line, self.counts, self.limits)?;
        let source = Source::new(self.file.clone(), element.line);
        self.open.push(ImportNode::new(name, Kind::OrderOnly, BTreeMap::new(), source));
        Ok(Part::Node)
    }

    fn open_property(&mut self, element: &Element) -> Result<Part> {
        let name = self.attribute(element, "sv:name").unwrap_or_default();
        let name = self.name(&name, element.line)?;
        let text = self.attribute(element, "sv:type").unwrap_or_default();
        let value_type = ValueType::find(&text).ok_or_else(|| {
            let message = format!("`{text}` is not a type of values");
            self.file.error(element.line, message)
        })?;
        let is_list = self.attribute(element, "sv:multiple").as_deref() == Some("true");
        let line = element.line;
        let (values, bytes, is_encoded) = (Vec::new(), 0, false);
        self.property =
            Some(OpenProperty { name, value_type, is_list, values, bytes, is_encoded, line });
        Ok(Part::Property)
    }

    fn open_value(&mut self, element: &Element) -> Result<Part> {
        let is_encoded = element.attributes.iter().any(|attribute| {
            attribute.name.ends_with(":type") && attribute.value.ends_with(":base64Binary")
        });
        if let Some(property) = &mut self.property {
            property.values.push(String::new());
            property.is_encoded = is_encoded;
        }
        Ok(Part::Value)
    }

    fn text(&mut self, text: &str, is_value: bool) -> Result<()> {
        let Some(property) = self.property.as_mut().filter(|_| is_value) else {
            return Ok(());
        };
        property.bytes += text.len();
        if property.bytes > self.limits.value_bytes {
            let limit = self.limits.value_bytes;
            let message =
                format!("`{}`: the value is longer than the limit of {limit} bytes", property.name);
            return Err(self.file.error(property.line, message));
        }
        if let Some(value) = property.values.last_mut() {
            value.push_str(text);
        }
        Ok(())
    }

    fn close_value(&mut self) -> Result<()> {
        let file = self.file;
        let Some(property) = self
            .property
            .as_mut()
            .filter(|property| property.is_encoded && property.value_type != ValueType::Binary)
        else {
            return Ok(());
        };
        property.is_encoded = false;
        let line = property.line;
        if let Some(value) = property.values.last_mut() {
            let bytes = decode(value).map_err(|message| file.error(line, message))?;
            *value = String::from_utf8(bytes)
                .map_err(|_| file.error(line, "a text in base64 is not UTF-8"))?;
        }
        Ok(())
    }

    fn close_property(&mut self) -> Result<()> {
        let Some(property) = self.property.take() else {
            return Ok(());
        };
        let (name, line) = (property.name.clone(), property.line);
        let refuse = |message: String| self.file.error(line, format!("`{name}`: {message}"));
        let value = value_of(property).map_err(refuse)?;
        let Some(node) = self.open.last_mut() else {
            return Ok(());
        };
        if node.properties().contains_key(&name) {
            return Err(self.file.error(line, format!("the property `{name}` stands twice")));
        }
        node.set(&name, value);
        self.counts.attributes += 1;
        held::check(self.file, line, self.counts, self.limits)
    }

    fn close_node(&mut self) {
        let Some(node) = self.open.pop() else { return };
        if node.kind() == Kind::Content {
            self.counts.elements += 1;
            self.counts.pages += usize::from(node.primary_type() == Some("cq:Page"));
            self.counts.assets += usize::from(node.primary_type() == Some("dam:Asset"));
        }
        let path: String = self.open.iter().skip(1).flat_map(|open| ["/", open.name()]).collect();
        match self.open.last_mut() {
            Some(parent) => parent.push_last(node, &path, &mut self.superseded),
            None => self.root = Some(node),
        }
    }

    /// Finds an attribute by its name with the usual prefix.
    fn attribute(&mut self, element: &Element, name: &str) -> Option<String> {
        let mut attributes = element.attributes.iter();
        let found = attributes.find(|one| self.scopes.resolve(&one.name).as_deref() == Some(name));
        found.map(|one| one.value.clone())
    }

    fn name(&mut self, qualified: &str, line: u32) -> Result<String> {
        let name = self.scopes.resolve(qualified).ok_or_else(|| {
            let prefix = qualified.split(':').next().unwrap_or_default();
            self.file.error(line, format!("the prefix `{prefix}` of `{qualified}` is not declared"))
        })?;
        check_name(&name).map_err(|error| self.file.error(line, error.to_string()))?;
        Ok(name)
    }
}

fn value_of(property: OpenProperty) -> Result<ImportProperty, String> {
    let OpenProperty { name, value_type, is_list, values, .. } = property;
    let is_list = is_list || values.len() != 1 || name == MIXIN_TYPES;
    if value_type == ValueType::Binary {
        let values: Result<Vec<_>, String> = values.iter().map(|value| decode(value)).collect();
        return Ok(ImportProperty::Inline { values: values?, is_list });
    }
    let value_type = if matches!(name.as_str(), PRIMARY_TYPE | MIXIN_TYPES) {
        ValueType::Name
    } else {
        value_type
    };
    let values: crate::Result<Vec<Value>> =
        values.iter().map(|text| Value::parse(value_type, text)).collect();
    let mut values = values.map_err(|error| error.to_string())?;
    Ok(ImportProperty::Value(match values.pop() {
        Some(value) if !is_list => {
            if name == PRIMARY_TYPE {
                check_name(&value.to_text()).map_err(|error| error.to_string())?;
            }
            Property::Single(value)
        }
        last => {
            values.extend(last);
            if name == PRIMARY_TYPE {
                return Err("a node has one primary type".into());
            }
            Property::List(value_type, values)
        }
    }))
}

fn decode(text: &str) -> Result<Vec<u8>, String> {
    let plain: String = text.split_whitespace().collect();
    STANDARD.decode(plain).map_err(|error| format!("the bytes are no base64: {error}"))
}
