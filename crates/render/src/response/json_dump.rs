//! A resource as JSON: `.json`, `.N.json`, `.infinity.json`, with `.tidy` and `.harray`, as Sling's default GET writes it.

use tympan_content::{BorrowedNode, BorrowedProperty, BorrowedValue, Node, ValueType};

use crate::dependency::content_reader::ContentReader;

/// Maximum number of nodes in one response, unless only the children were requested.
const MAX_JSON_NODES: usize = 200;

/// Initial capacity for a node with few properties, in bytes.
const MIN_NODE_CAPACITY: usize = 512;

/// Depth and format of the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct JsonDumpOptions {
    /// Levels of children; `None` for all.
    pub depth: Option<usize>,
    /// True to indent the output.
    pub is_indented: bool,
    /// True to write children as an array that preserves their order.
    pub has_child_arrays: bool,
}

impl JsonDumpOptions {
    /// Parses the selectors; `None` if one of them is invalid.
    pub(crate) fn from_selectors(selectors: &[String]) -> Option<Self> {
        let mut form = Self { depth: Some(0), ..Self::default() };
        for selector in selectors {
            match selector.as_str() {
                "tidy" => form.is_indented = true,
                "harray" => form.has_child_arrays = true,
                "infinity" => form.depth = None,
                number => form.depth = Some(number.parse().ok()?),
            }
        }
        Some(form)
    }
}

/// The response to a request for JSON.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum JsonDump {
    /// The resource.
    Complete(Vec<u8>),
    /// There are too many nodes: the URLs that may be requested, deepest first, as a JSON array.
    DepthChoices(Vec<u8>),
}

/// Writes a node and its descendants down to the form's depth.
pub(crate) fn write_json(reader: &ContentReader, node: &Node, form: JsonDumpOptions) -> JsonDump {
    if let Some(allowed) = depth_over_limit(reader, node, form.depth) {
        let urls: Vec<String> =
            (0..=allowed).rev().map(|depth| format!("{}.{depth}.json", node.path())).collect();
        return JsonDump::DepthChoices(serde_json::to_vec(&urls).unwrap_or_default());
    }
    let mut writer = JsonDumpWriter {
        reader,
        options: form,
        output: Vec::with_capacity(MIN_NODE_CAPACITY),
        indent: 0,
    };
    writer.write_node(node, None, form.depth);
    if form.is_indented {
        writer.output.push(b'\n');
    }
    JsonDump::Complete(writer.output)
}

/// Returns the greatest depth within the limit; `None` if the requested depth is within it.
///
/// A depth of 1 is never refused, as in Sling.
fn depth_over_limit(reader: &ContentReader, node: &Node, depth: Option<usize>) -> Option<usize> {
    if depth.is_some_and(|depth| depth < 2) {
        return None;
    }
    let mut level = reader.children(node);
    let mut count = level.len();
    let mut at = 1;
    while !level.is_empty() && depth.is_none_or(|depth| at < depth) {
        let mut next = Vec::new();
        for node in &level {
            next.extend(reader.children(node));
            if count + next.len() > MAX_JSON_NODES {
                return Some(at);
            }
        }
        count += next.len();
        level = next;
        at += 1;
    }
    None
}

/// Writes JSON into bytes.
struct JsonDumpWriter<'a> {
    reader: &'a ContentReader,
    options: JsonDumpOptions,
    output: Vec<u8>,
    indent: usize,
}

impl JsonDumpWriter<'_> {
    /// Writes an object with properties, and with children down to the depth.
    fn write_node(&mut self, node: &Node, name: Option<&str>, depth: Option<usize>) {
        self.open_bracket(b'{');
        let mut is_first = true;
        if let Some(name) = name {
            self.write_key("__name__", &mut is_first);
            self.write_string(name);
        }
        for (name, property) in node.as_borrowed().into_iter().flat_map(BorrowedNode::properties) {
            // Not even the password's hash is exposed.
            if name == "rep:password" {
                continue;
            }
            if property.value_type() == ValueType::Binary {
                self.write_key(&format!(":{name}"), &mut is_first);
            } else {
                self.write_key(name, &mut is_first);
            }
            self.write_property(property);
        }
        if depth != Some(0) {
            let below = depth.map(|depth| depth - 1);
            self.write_children(self.reader.children(node), below, &mut is_first);
        }
        self.close_bracket(b'}', is_first);
    }

    /// Writes children by name, or as an array.
    fn write_children(&mut self, children: Vec<Node>, depth: Option<usize>, is_first: &mut bool) {
        if !self.options.has_child_arrays {
            for child in children {
                self.write_key(child.name(), is_first);
                self.write_node(&child, None, depth);
            }
            return;
        }
        if children.is_empty() {
            return;
        }
        self.write_key("__children__", is_first);
        self.open_bracket(b'[');
        let mut is_first_child = true;
        for child in children {
            self.begin_member(&mut is_first_child);
            self.write_node(&child, Some(child.name()), depth);
        }
        self.close_bracket(b']', is_first_child);
    }

    /// Writes a single value, or a list of them.
    fn write_property(&mut self, property: BorrowedProperty<'_>) {
        if !property.is_list() {
            return property.first().into_iter().for_each(|value| self.write_value(value));
        }
        self.open_bracket(b'[');
        let mut is_first = true;
        for value in property.values() {
            self.begin_member(&mut is_first);
            self.write_value(value);
        }
        self.close_bracket(b']', is_first);
    }

    /// Writes one value: numbers and booleans as such, dates in ECMA format, binaries as their length.
    fn write_value(&mut self, value: BorrowedValue<'_>) {
        match value {
            BorrowedValue::Text(_, text) => self.write_string(text),
            BorrowedValue::Binary(blob) => self.write_raw(&blob.length().to_string()),
            BorrowedValue::Date(date) => self.write_string(&date.to_ecma()),
            BorrowedValue::Double(number) if number.is_finite() => {
                drop(serde_json::to_writer(&mut self.output, &number));
            }
            BorrowedValue::Double(_) => self.write_string(&value.to_value().to_text()),
            BorrowedValue::Long(_) | BorrowedValue::Boolean(_) => {
                self.write_raw(&value.to_value().to_text());
            }
        }
    }

    /// Writes a quoted string.
    fn write_string(&mut self, text: &str) {
        // A string always serializes, and a vector takes all of it.
        drop(serde_json::to_writer(&mut self.output, text));
    }

    /// Writes a text that needs no escaping.
    fn write_raw(&mut self, text: &str) {
        self.output.extend_from_slice(text.as_bytes());
    }

    /// Writes a name and its colon.
    fn write_key(&mut self, name: &str, is_first: &mut bool) {
        self.begin_member(is_first);
        self.write_string(name);
        self.write_raw(if self.options.is_indented { ": " } else { ":" });
    }

    /// Begins the next member of an object or array.
    fn begin_member(&mut self, is_first: &mut bool) {
        if !*is_first {
            self.output.push(b',');
        }
        *is_first = false;
        self.write_new_line();
    }

    fn open_bracket(&mut self, bracket: u8) {
        self.output.push(bracket);
        self.indent += 1;
    }

    fn close_bracket(&mut self, bracket: u8, is_empty: bool) {
        self.indent -= 1;
        if !is_empty {
            self.write_new_line();
        }
        self.output.push(bracket);
    }

    fn write_new_line(&mut self) {
        if self.options.is_indented {
            self.output.push(b'\n');
            self.output.extend(std::iter::repeat_n(b' ', 2 * self.indent));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_selectors() {
        let form = |text: &str| JsonDumpOptions::from_selectors(&crate::url::split_selectors(text));
        assert_eq!(
            form(""),
            Some(JsonDumpOptions { depth: Some(0), is_indented: false, has_child_arrays: false })
        );
        assert_eq!(
            form("tidy.3"),
            Some(JsonDumpOptions { depth: Some(3), is_indented: true, has_child_arrays: false })
        );
        assert_eq!(
            form("harray.tidy.infinity"),
            Some(JsonDumpOptions { depth: None, is_indented: true, has_child_arrays: true })
        );
        assert_eq!(form("nonsense"), None);
        assert_eq!(form("-1"), None);
    }
}
