//! `:operation=import`: structured content in one request, as Sling's content loader reads it.
//!
//! | `:contentType` | is |
//! |---|---|
//! | `json` | an object: members are properties, objects are children, lists are lists |
//! | `xml` | Sling's own form: `<node><name/><primaryNodeType/><property><name/><value/><type/></property>…</node>` |
//! | `jcr.xml` | a document view of JCR |
//! | `zip`, `jar` | an archive: folders and files |
//!
//! An archive that is a content package is not installed by this; packages have a door of their own.

use std::io::{Cursor, Read, Seek};

use quick_xml::Reader;
use quick_xml::events::Event;
use serde_json::Value as Json;
use tympan_content::{
    JCR_CONTENT, JcrDate, MIXIN_TYPES, NodeFields, NodePath, PRIMARY_TYPE, Property, Session,
    Subtree, Value, ValueType,
};
use tympan_content_package::{PackageLimits, docview};

use crate::failure::{RequestFailure, Result};

/// Maximum nesting depth.
const MAX_IMPORT_DEPTH: usize = 100;
/// Maximum number of entries in an archive.
const MAX_ARCHIVE_ENTRIES: usize = 50_000;
/// Maximum unpacked size of an archive, in bytes; lower for users by their limits.
const MAX_UNPACKED_BYTES: u64 = 4 * 1024 * 1024 * 1024;

/// The format of imported content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ImportFormat {
    Json,
    Xml,
    Docview,
    Archive,
}

impl ImportFormat {
    /// Returns the format for a value of `:contentType`.
    pub(crate) fn from_content_type(name: &str) -> Option<Self> {
        Some(match name {
            "json" => Self::Json,
            "xml" => Self::Xml,
            "jcr.xml" => Self::Docview,
            "zip" | "jar" => Self::Archive,
            _ => return None,
        })
    }
}

/// Parses imported content to a node; the bytes of files are stored in the process.
pub(crate) fn import_subtree<R: Read + Seek>(
    session: &mut Session,
    form: ImportFormat,
    mut content: R,
    now: JcrDate,
    limits: &PackageLimits,
) -> Result<Subtree> {
    if form == ImportFormat::Archive {
        return import_archive(session, content, now, limits);
    }
    let mut bytes = Vec::new();
    let limit = limits.max_document_bytes;
    content.by_ref().take(limit + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        return Err(RequestFailure::new(
            http::StatusCode::PAYLOAD_TOO_LARGE,
            "the content is too long",
        ));
    }
    match form {
        ImportFormat::Json => {
            check_json_counts(&bytes, limits)?;
            let value: Json = serde_json::from_slice(&bytes)
                .map_err(|error| import_failure(format!("the JSON cannot be read: {error}")))?;
            import_json(&value, 0)
        }
        ImportFormat::Xml => import_sling_xml(&bytes, limits),
        ImportFormat::Docview | ImportFormat::Archive => {
            let mut tree = docview::read_docview(":content", &bytes, limits)?;
            tree.properties
                .entry(PRIMARY_TYPE.to_owned())
                .or_insert(Property::name("nt:unstructured"));
            Ok(tree)
        }
    }
}

fn import_failure(message: impl Into<String>) -> RequestFailure {
    RequestFailure::new(http::StatusCode::UNPROCESSABLE_ENTITY, message)
}

/// The number of nodes, and of properties and their values, in content that is read.
#[derive(Debug, Default)]
struct ImportCounts {
    nodes: usize,
    values: usize,
}

impl ImportCounts {
    /// Returns an error if there are more than a viewer may import.
    fn check(&self, limits: &PackageLimits) -> Result<()> {
        let (subject, limit) = match self {
            Self { nodes, .. } if *nodes > limits.max_nodes => ("nodes", limits.max_nodes),
            Self { values, .. } if *values > limits.max_properties => {
                ("properties and values", limits.max_properties)
            }
            _ => return Ok(()),
        };
        Err(import_failure(format!(
            "the content has more than the limit of {limit} {subject}; import it in parts"
        )))
    }
}

/// Checks the number of nodes and values before JSON is parsed, because parsed values take many times the memory of
/// their text. Each object is a node; the other values follow a comma or an opening bracket.
fn check_json_counts(bytes: &[u8], limits: &PackageLimits) -> Result<()> {
    let mut counts = ImportCounts::default();
    let (mut is_in_text, mut is_escaped) = (false, false);
    for byte in bytes {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_in_text => is_escaped = true,
            b'"' => is_in_text = !is_in_text,
            _ if is_in_text => {}
            b'{' => counts.nodes += 1,
            b',' | b'[' => counts.values += 1,
            _ => {}
        }
    }
    counts.check(limits)
}

/// Parses a JSON object to a node.
fn import_json(value: &Json, depth: usize) -> Result<Subtree> {
    let members =
        value.as_object().ok_or_else(|| import_failure("the JSON of a node must be an object"))?;
    if depth > MAX_IMPORT_DEPTH {
        return Err(import_failure(format!(
            "the JSON is nested deeper than {MAX_IMPORT_DEPTH} levels"
        )));
    }
    let mut tree = Subtree::default();
    for (name, member) in members {
        match member {
            Json::Object(_) => {
                let mut child = import_json(member, depth + 1)?;
                name.clone_into(&mut child.name);
                tree.put_child(child);
            }
            Json::Null => {}
            member => {
                let (name, hint) = split_type_hint(name);
                tree.properties.insert(name.to_owned(), import_json_property(name, member, hint)?);
            }
        }
    }
    tree.properties.entry(PRIMARY_TYPE.to_owned()).or_insert(Property::name("nt:unstructured"));
    Ok(tree)
}

/// Splits the type off a name such as `jcr:path:target`.
fn split_type_hint(name: &str) -> (&str, Option<ValueType>) {
    const HINTS: [(&str, ValueType); 4] = [
        ("jcr:reference:", ValueType::Reference),
        ("jcr:path:", ValueType::Path),
        ("jcr:name:", ValueType::Name),
        ("jcr:uri:", ValueType::Uri),
    ];
    let split =
        HINTS.iter().find_map(|(prefix, hint)| Some((name.strip_prefix(prefix)?, Some(*hint))));
    split.unwrap_or((name, None))
}

fn import_json_property(name: &str, member: &Json, hint: Option<ValueType>) -> Result<Property> {
    let hint = hint.or(matches!(name, PRIMARY_TYPE | MIXIN_TYPES).then_some(ValueType::Name));
    match member {
        Json::Array(items) => {
            let values = items
                .iter()
                .map(|item| import_json_value(item, hint))
                .collect::<Result<Vec<_>>>()?;
            let value_type =
                values.first().map_or(hint.unwrap_or(ValueType::String), Value::value_type);
            // A list has one type; mixed values are converted to text.
            if values.iter().all(|value| value.value_type() == value_type) {
                return Ok(Property::List(value_type, values));
            }
            let texts = values.iter().map(|value| Value::String(value.to_text().into_owned()));
            Ok(Property::List(ValueType::String, texts.collect()))
        }
        member => {
            let value = import_json_value(member, hint)?;
            let is_list = name == MIXIN_TYPES;
            Ok(if is_list {
                Property::List(ValueType::Name, vec![value])
            } else {
                Property::Single(value)
            })
        }
    }
}

fn import_json_value(item: &Json, hint: Option<ValueType>) -> Result<Value> {
    Ok(match item {
        Json::Bool(truth) => Value::Boolean(*truth),
        Json::Number(number) => match number.as_i64() {
            Some(number) => Value::Long(number),
            None => Value::Double(number.as_f64().unwrap_or_default()),
        },
        Json::String(text) => match hint {
            Some(hint) => Value::parse(hint, text)?,
            None => match looks_like_date(text).then(|| JcrDate::parse_lenient(text)) {
                Some(Ok(date)) => Value::Date(date),
                _ => Value::String(text.clone()),
            },
        },
        _ => {
            return Err(import_failure("a list can contain only strings, numbers and Booleans"));
        }
    })
}

/// Returns true if a text has one of the two date formats of Sling's JSON: ISO 8601 with offset, or ECMA.
fn looks_like_date(text: &str) -> bool {
    let bytes = text.as_bytes();
    let is_iso = bytes.len() >= 20 && bytes.get(4) == Some(&b'-') && bytes.get(10) == Some(&b'T');
    is_iso || text.contains(" GMT+") || text.contains(" GMT-")
}

/// The context of a text in Sling's XML.
#[derive(Debug, Default)]
struct XmlImportNode {
    tree: Subtree,
    mixins: Vec<Value>,
}

/// Parses Sling's XML format.
fn import_sling_xml(bytes: &[u8], limits: &PackageLimits) -> Result<Subtree> {
    let mut counts = ImportCounts::default();
    let mut reader = Reader::from_reader(bytes);
    reader.config_mut().trim_text(true);
    let mut nodes: Vec<XmlImportNode> = Vec::new();
    let mut path: Vec<String> = Vec::new();
    let mut text = String::new();
    let mut property: Option<(String, Vec<String>, String)> = None;
    let broken =
        |error: &dyn std::fmt::Display| import_failure(format!("the XML cannot be read: {error}"));
    loop {
        match reader.read_event().map_err(|error| broken(&error))? {
            Event::Start(start) => {
                let name = start.local_name().as_ref().to_owned();
                if path.len() > 2 * MAX_IMPORT_DEPTH {
                    return Err(import_failure("the XML is nested too deeply"));
                }
                match name.as_str() {
                    "node" => {
                        counts.nodes += 1;
                        nodes.push(XmlImportNode::default());
                    }
                    "property" => property = Some((String::new(), Vec::new(), String::new())),
                    _ => counts.values += 1,
                }
                counts.check(limits)?;
                text.clear();
                path.push(name);
            }
            Event::Text(piece) => text.push_str(&piece),
            Event::GeneralRef(entity) => {
                let resolved = entity.resolve_char_ref().ok().flatten();
                let name: &str = &entity;
                let entity_text = quick_xml::escape::resolve_xml_entity(name);
                match (resolved, entity_text) {
                    (Some(letter), _) => text.push(letter),
                    (None, Some(entity_text)) => text.push_str(entity_text),
                    _ => {
                        return Err(import_failure(format!(
                            "the XML has an unknown entity `{name}`"
                        )));
                    }
                }
            }
            Event::CData(piece) => text.push_str(&piece),
            Event::End(_) => {
                let Some(name) = path.pop() else {
                    return Err(import_failure("the XML has an end tag without a start tag"));
                };
                if let Some(done) = close_xml_element(&name, &mut text, &mut property, &mut nodes)?
                {
                    return Ok(done);
                }
            }
            Event::Eof => return Err(import_failure("the XML ends before its node is closed")),
            _ => {}
        }
    }
}

/// Processes the end of an element; returns the node when the outermost one ends.
fn close_xml_element(
    element: &str,
    text: &mut String,
    property: &mut Option<(String, Vec<String>, String)>,
    nodes: &mut Vec<XmlImportNode>,
) -> Result<Option<Subtree>> {
    let text = std::mem::take(text);
    match (element, property.as_mut()) {
        ("name", Some((name, ..))) => *name = text,
        ("value", Some((_, values, _))) => values.push(text),
        ("type", Some((.., kind))) => *kind = text,
        ("property", Some(_)) => {
            let Some((name, values, kind)) = property.take() else { return Ok(None) };
            let value_type = ValueType::find(&kind).unwrap_or(ValueType::String);
            let read = |text: &String| match value_type {
                ValueType::Date => Ok(Value::Date(JcrDate::parse_lenient(text)?)),
                _ => Value::parse(value_type, text),
            };
            let values = values.iter().map(read).collect::<Result<Vec<_>, _>>()?;
            let made = match <[Value; 1]>::try_from(values) {
                Ok([value]) => Property::Single(value),
                Err(values) => Property::List(value_type, values),
            };
            let node = nodes
                .last_mut()
                .ok_or_else(|| import_failure("a property is outside of a node"))?;
            node.tree.properties.insert(name, made);
        }
        ("name", None) => {
            nodes.last_mut().into_iter().for_each(|node| node.tree.name.clone_from(&text))
        }
        ("primaryNodeType", None) => nodes.last_mut().into_iter().for_each(|node| {
            node.tree.properties.insert(PRIMARY_TYPE.to_owned(), Property::name(&*text));
        }),
        ("mixinNodeType", None) => {
            nodes
                .last_mut()
                .into_iter()
                .for_each(|node| node.mixins.push(Value::Name(text.clone())));
        }
        ("node", None) => {
            let Some(XmlImportNode { mut tree, mixins }) = nodes.pop() else { return Ok(None) };
            if !mixins.is_empty() {
                tree.properties
                    .insert(MIXIN_TYPES.to_owned(), Property::List(ValueType::Name, mixins));
            }
            let kind = Property::name("nt:unstructured");
            tree.properties.entry(PRIMARY_TYPE.to_owned()).or_insert(kind);
            match nodes.last_mut() {
                Some(parent) => parent.tree.put_child(tree),
                None => return Ok(Some(tree)),
            }
        }
        _ => {}
    }
    Ok(None)
}

/// Reads an archive as a tree of folders and files.
fn import_archive<R: Read + Seek>(
    session: &mut Session,
    content: R,
    now: JcrDate,
    limits: &PackageLimits,
) -> Result<Subtree> {
    let broken = |error: zip::result::ZipError| {
        import_failure(format!("the archive cannot be read: {error}"))
    };
    let mut archive = zip::ZipArchive::new(content).map_err(broken)?;
    let max_entries = limits.max_nodes.min(MAX_ARCHIVE_ENTRIES);
    if archive.len() > max_entries {
        return Err(import_failure(format!("the archive has more than {max_entries} entries")));
    }
    let max_bytes = limits.max_total_bytes.min(MAX_UNPACKED_BYTES);
    let too_large = || {
        import_failure(format!("the archive unpacks to more than the limit of {max_bytes} bytes"))
    };
    // An honest directory refuses the archive before any of it is stored.
    let mut declared_bytes = 0_u64;
    for index in 0..archive.len() {
        let size = archive.by_index_raw(index).map_err(broken)?.size();
        declared_bytes = declared_bytes.saturating_add(size);
    }
    if declared_bytes > max_bytes {
        return Err(too_large());
    }
    let mut root = Subtree::new("", "nt:folder");
    let mut left = max_bytes;
    for index in 0..archive.len() {
        let mut entry = archive.by_index(index).map_err(broken)?;
        let name = entry.name().map_err(broken)?.into_owned();
        let path = NodePath::root().resolve(name.trim_end_matches('/'))?;
        let names: Vec<&str> = path.names().collect();
        let is_outside = name.starts_with('/') || name.split('/').any(|segment| segment == "..");
        if is_outside {
            return Err(import_failure(format!(
                "the archive entry `{name}` leads outside the target"
            )));
        }
        if names.len() > MAX_IMPORT_DEPTH {
            return Err(import_failure(format!(
                "the archive entry `{name}` is nested deeper than {MAX_IMPORT_DEPTH} levels"
            )));
        }
        let Some((last, folders)) = names.split_last() else { continue };
        let folder = folders.iter().fold(&mut root, |folder, name| subfolder_mut(folder, name));
        if entry.is_dir() {
            subfolder_mut(folder, last);
            continue;
        }
        let mut limited = (&mut entry).take(left + 1);
        let mut counted = CountingReader { reader: &mut limited, bytes_read: 0 };
        let blob = session.put_blob(&mut counted)?;
        left = left.checked_sub(counted.bytes_read).ok_or_else(too_large)?;
        let media_type = mime_guess::from_path(*last).first_or_octet_stream().to_string();
        let resource = Subtree::new(JCR_CONTENT, "nt:resource")
            .with_property("jcr:data", Value::Binary(blob))
            .with_property("jcr:mimeType", Property::text(media_type))
            .with_property("jcr:lastModified", Value::Date(now));
        folder.put_child(Subtree::new(*last, "nt:file").with_child(resource));
    }
    Ok(root)
}

/// A reader that counts the bytes read.
struct CountingReader<'a, R> {
    reader: &'a mut R,
    bytes_read: u64,
}

impl<R: Read> Read for CountingReader<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let read = self.reader.read(buffer)?;
        self.bytes_read += read as u64;
        Ok(read)
    }
}

/// Returns a subfolder; creates it if it does not exist.
fn subfolder_mut<'a>(folder: &'a mut Subtree, name: &str) -> &'a mut Subtree {
    folder.child_or_insert_with(name, || Subtree::new(name, "nt:folder"))
}

/// The treatment of existing content.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ImportMergePolicy {
    /// True if existing nodes are replaced completely.
    pub(crate) replaces_nodes: bool,
    /// True if existing properties are overwritten.
    pub(crate) replaces_properties: bool,
}

/// Stores an imported node at a path; returns the paths of created nodes.
pub(crate) fn put_imported_tree(
    session: &mut Session,
    path: &NodePath,
    tree: Subtree,
    merging: ImportMergePolicy,
    created: &mut Vec<String>,
) -> Result<()> {
    let Some(NodeFields { properties: stored, .. }) = session.read_node_fields(path)? else {
        collect_created_paths(path, &tree, created);
        return Ok(session.put_node(path, tree)?);
    };
    if merging.replaces_nodes {
        collect_created_paths(path, &tree, created);
        return Ok(session.replace_node(path, tree)?);
    }
    let Subtree { properties, children, .. } = tree;
    for (name, property) in properties {
        let stored = stored.get(&name);
        let is_kept = stored.is_some() && (!merging.replaces_properties || name == PRIMARY_TYPE);
        if !is_kept && stored != Some(&property) {
            session.set_property(path, &name, property)?;
        }
    }
    for child in children {
        put_imported_tree(session, &path.child(&child.name)?, child, merging, created)?;
    }
    Ok(())
}

fn collect_created_paths(path: &NodePath, tree: &Subtree, created: &mut Vec<String>) {
    created.push(path.to_string());
    for child in &tree.children {
        if let Ok(path) = path.child(&child.name) {
            collect_created_paths(&path, child, created);
        }
    }
}

/// Wraps a text as a file-like reader.
pub(crate) fn text_reader(text: &str) -> Cursor<&[u8]> {
    Cursor::new(text.as_bytes())
}
