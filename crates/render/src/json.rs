//! A resource as JSON: `.json`, `.N.json`, `.infinity.json`, with `.tidy` and `.harray`, as Sling's default GET writes it.

use tympan_content::{BorrowedNode, BorrowedProperty, BorrowedValue, Node, ValueType};

use crate::reads::Reader;

/// More nodes than this in one answer are refused, unless only the children were asked for.
pub(crate) const MAX_NODES: usize = 200;

/// Room for a node of few properties.
const FEW_BYTES: usize = 512;

/// How deep and in which form to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Form {
    /// Levels of children; nothing for all.
    pub depth: Option<usize>,
    /// Indented, for people.
    pub tidy: bool,
    /// Children as an array that keeps their order.
    pub harray: bool,
}

impl Form {
    /// Reads the selectors; nothing if one of them makes no sense.
    pub(crate) fn of(selectors: &[String]) -> Option<Self> {
        let mut form = Self { depth: Some(0), ..Self::default() };
        for selector in selectors {
            match selector.as_str() {
                "tidy" => form.tidy = true,
                "harray" => form.harray = true,
                "infinity" => form.depth = None,
                number => form.depth = Some(number.parse().ok()?),
            }
        }
        Some(form)
    }
}

/// The answer to a request for JSON.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The resource.
    Whole(Vec<u8>),
    /// There are too many nodes: the URLs that can be asked, deepest first, as a JSON array.
    Choices(Vec<u8>),
}

/// Writes a node and its descendants down to the form's depth.
pub(crate) fn write(reader: &Reader, node: &Node, form: Form) -> Answer {
    if let Some(allowed) = depth_over_limit(reader, node, form.depth) {
        let urls: Vec<String> =
            (0..=allowed).rev().map(|depth| format!("{}.{depth}.json", node.path())).collect();
        return Answer::Choices(serde_json::to_vec(&urls).unwrap_or_default());
    }
    let mut writer = Writer { reader, form, out: Vec::with_capacity(FEW_BYTES), indent: 0 };
    writer.node(node, None, form.depth);
    if form.tidy {
        writer.out.push(b'\n');
    }
    Answer::Whole(writer.out)
}

/// Returns the greatest depth that stays below the limit, if the wanted depth does not.
///
/// A depth of 1 is never refused, as in Sling.
fn depth_over_limit(reader: &Reader, node: &Node, depth: Option<usize>) -> Option<usize> {
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
            if count + next.len() > MAX_NODES {
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
struct Writer<'a> {
    reader: &'a Reader,
    form: Form,
    out: Vec<u8>,
    indent: usize,
}

impl Writer<'_> {
    /// Writes an object with properties, and children as far as the depth reaches.
    fn node(&mut self, node: &Node, name: Option<&str>, depth: Option<usize>) {
        self.open(b'{');
        let mut is_first = true;
        if let Some(name) = name {
            self.key("__name__", &mut is_first);
            self.text(name);
        }
        for (name, property) in node.borrowed().into_iter().flat_map(BorrowedNode::properties) {
            // Not even its hash is for anybody's eyes.
            if name == "rep:password" {
                continue;
            }
            if property.value_type() == ValueType::Binary {
                self.key(&format!(":{name}"), &mut is_first);
            } else {
                self.key(name, &mut is_first);
            }
            self.property(property);
        }
        if depth != Some(0) {
            let below = depth.map(|depth| depth - 1);
            self.children(self.reader.children(node), below, &mut is_first);
        }
        self.close(b'}', is_first);
    }

    /// Writes children by name, or as an array.
    fn children(&mut self, children: Vec<Node>, depth: Option<usize>, is_first: &mut bool) {
        if !self.form.harray {
            for child in children {
                self.key(child.name(), is_first);
                self.node(&child, None, depth);
            }
            return;
        }
        if children.is_empty() {
            return;
        }
        self.key("__children__", is_first);
        self.open(b'[');
        let mut is_first_child = true;
        for child in children {
            self.separate(&mut is_first_child);
            self.node(&child, Some(child.name()), depth);
        }
        self.close(b']', is_first_child);
    }

    /// Writes a single value, or a list of them.
    fn property(&mut self, property: BorrowedProperty<'_>) {
        if !property.is_list() {
            return property.first().into_iter().for_each(|value| self.value(value));
        }
        self.open(b'[');
        let mut is_first = true;
        for value in property.values() {
            self.separate(&mut is_first);
            self.value(value);
        }
        self.close(b']', is_first);
    }

    /// Writes one value: numbers and truth values as such, dates in ECMA's form, binaries as their length.
    fn value(&mut self, value: BorrowedValue<'_>) {
        match value {
            BorrowedValue::Text(_, text) => self.text(text),
            BorrowedValue::Binary(blob) => self.write(&blob.length().to_string()),
            BorrowedValue::Date(date) => self.text(&date.to_ecma()),
            BorrowedValue::Double(number) if number.is_finite() => {
                drop(serde_json::to_writer(&mut self.out, &number));
            }
            BorrowedValue::Double(_) => self.text(&value.to_value().to_text()),
            BorrowedValue::Long(_) | BorrowedValue::Boolean(_) => {
                self.write(&value.to_value().to_text());
            }
        }
    }

    /// Writes a text in quotes.
    fn text(&mut self, text: &str) {
        // A string always serializes, and a vector takes all of it.
        drop(serde_json::to_writer(&mut self.out, text));
    }

    /// Writes a text that needs no escape.
    fn write(&mut self, text: &str) {
        self.out.extend_from_slice(text.as_bytes());
    }

    /// Writes a name and its colon.
    fn key(&mut self, name: &str, is_first: &mut bool) {
        self.separate(is_first);
        self.text(name);
        self.write(if self.form.tidy { ": " } else { ":" });
    }

    /// Begins the next member of an object or array.
    fn separate(&mut self, is_first: &mut bool) {
        if !*is_first {
            self.out.push(b',');
        }
        *is_first = false;
        self.new_line();
    }

    fn open(&mut self, bracket: u8) {
        self.out.push(bracket);
        self.indent += 1;
    }

    fn close(&mut self, bracket: u8, is_empty: bool) {
        self.indent -= 1;
        if !is_empty {
            self.new_line();
        }
        self.out.push(bracket);
    }

    fn new_line(&mut self) {
        if self.form.tidy {
            self.out.push(b'\n');
            self.out.extend(std::iter::repeat_n(b' ', 2 * self.indent));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_selectors() {
        let form = |text: &str| Form::of(&crate::url::split_selectors(text));
        assert_eq!(form(""), Some(Form { depth: Some(0), tidy: false, harray: false }));
        assert_eq!(form("tidy.3"), Some(Form { depth: Some(3), tidy: true, harray: false }));
        assert_eq!(
            form("harray.tidy.infinity"),
            Some(Form { depth: None, tidy: true, harray: true })
        );
        assert_eq!(form("nonsense"), None);
        assert_eq!(form("-1"), None);
    }
}
