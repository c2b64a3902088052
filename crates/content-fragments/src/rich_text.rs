//! Texts of several lines: conversions between HTML, Markdown, plain text, and the JSON that AEM makes of rich text.
//!
//! In: a text with its media type. Out: the text in each format, and the paths that it refers to.
//!
//! Invariants
//! * HTML that was stored as HTML is returned byte for byte.
//! * Elements that are not known give their content. Elements deeper than [`MAX_DEPTH`] give theirs at that depth.
//!
//! Not here: removing scripts; a text is data of its client.

use std::cell::RefCell;

use html5ever::tendril::StrTendril;
use html5ever::tokenizer::{
    BufferQueue, TagKind, Token, TokenSink, TokenSinkResult, Tokenizer, TokenizerOpts,
};
use serde_json::{Value as Json, json};
use tympan_notation::escape_html;

/// Maximum depth of elements in a text.
const MAX_DEPTH: usize = 64;
/// Elements without content.
const VOID_ELEMENTS: [&str; 6] = ["br", "hr", "img", "input", "col", "wbr"];

/// The text of a field, with its media type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RichText {
    /// The text as it is stored.
    pub source: String,
    /// `text/html`, `text/x-markdown` or `text/plain`.
    pub media_type: String,
}

/// A part of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
enum RichNode {
    Text(String),
    Element { name: String, attributes: Vec<(String, String)>, children: Vec<RichNode> },
}

impl RichText {
    /// Returns the text as HTML.
    #[must_use]
    pub fn to_html(&self) -> String {
        match &*self.media_type {
            "text/x-markdown" | "text/markdown" => {
                let mut html = String::new();
                pulldown_cmark::html::push_html(
                    &mut html,
                    pulldown_cmark::Parser::new(&self.source),
                );
                html
            }
            "text/plain" => {
                let paragraphs = self.source.split("\n\n").filter(|part| !part.trim().is_empty());
                let paragraph = |part: &str| {
                    format!("<p>{}</p>", escape_html(part.trim_end()).replace('\n', "<br>"))
                };
                paragraphs.map(paragraph).collect::<Vec<_>>().join("\n")
            }
            _ => self.source.clone(),
        }
    }

    /// Returns the text as Markdown.
    #[must_use]
    pub fn to_markdown(&self) -> String {
        match &*self.media_type {
            "text/x-markdown" | "text/markdown" | "text/plain" => self.source.clone(),
            _ => {
                let mut text = MarkdownWriter::default();
                text.write_all(&parse_html(&self.source));
                text.finish()
            }
        }
    }

    /// Returns the text without markup.
    #[must_use]
    pub fn to_plain_text(&self) -> String {
        if self.media_type == "text/plain" {
            return self.source.clone();
        }
        let mut text = String::new();
        write_plain_text(&parse_html(&self.to_html()), &mut text);
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        let mut plain = String::new();
        for line in lines {
            if !(line.is_empty() && (plain.is_empty() || plain.ends_with("\n\n"))) {
                plain.push_str(line);
                plain.push('\n');
            }
        }
        plain.trim_end().to_owned()
    }

    /// Returns the text as a list of nodes, in AEM's format.
    #[must_use]
    pub fn to_json(&self) -> Json {
        Json::Array(block_nodes(&parse_html(&self.to_html())))
    }

    /// Returns the paths of content that the text links to or shows, each once, in order.
    #[must_use]
    pub fn references(&self) -> Vec<String> {
        let mut paths = Vec::new();
        collect_references(&parse_html(&self.to_html()), &mut paths);
        paths
    }
}

/// Collects a tree from the tags of a text. Open elements end with the element around them.
#[derive(Default)]
struct TreeSink {
    root: RefCell<Vec<RichNode>>,
    open: RefCell<Vec<OpenHtmlElement>>,
}

/// An element whose end was not read yet.
struct OpenHtmlElement {
    name: String,
    attributes: Vec<(String, String)>,
    children: Vec<RichNode>,
}

impl TreeSink {
    fn add(&self, node: RichNode) {
        let (mut open, mut root) = (self.open.borrow_mut(), self.root.borrow_mut());
        let siblings = open.last_mut().map_or(&mut *root, |element| &mut element.children);
        if let RichNode::Text(text) = &node
            && let Some(RichNode::Text(before)) = siblings.last_mut()
        {
            before.push_str(text);
            return;
        }
        siblings.push(node);
    }

    fn close(&self) {
        let element = self.open.borrow_mut().pop();
        if let Some(OpenHtmlElement { name, attributes, children }) = element {
            self.add(RichNode::Element { name, attributes, children });
        }
    }

    fn close_named(&self, name: &str) {
        let depth = self.open.borrow().iter().rposition(|open| open.name == name);
        let Some(depth) = depth else { return };
        while self.open.borrow().len() > depth {
            self.close();
        }
    }
}

impl TokenSink for TreeSink {
    type Handle = ();

    fn process_token(&self, token: Token, _line: u64) -> TokenSinkResult<()> {
        match token {
            Token::TagToken(tag) => {
                let name = tag.name.to_string();
                let is_void = VOID_ELEMENTS.contains(&&*name);
                match tag.kind {
                    TagKind::StartTag => {
                        if matches!(&*name, "p" | "li") {
                            self.close_open_sibling(&name);
                        }
                        let attributes = tag.attrs.iter();
                        let attributes = attributes
                            .map(|attribute| {
                                (attribute.name.local.to_string(), attribute.value.to_string())
                            })
                            .collect();
                        if is_void || tag.self_closing {
                            self.add(RichNode::Element { name, attributes, children: Vec::new() });
                        } else if self.open.borrow().len() < MAX_DEPTH {
                            let children = Vec::new();
                            self.open.borrow_mut().push(OpenHtmlElement {
                                name,
                                attributes,
                                children,
                            });
                        }
                    }
                    TagKind::EndTag if !is_void => self.close_named(&name),
                    TagKind::EndTag => {}
                }
            }
            Token::CharacterTokens(text) => {
                let text = text.to_string().replace('\u{a0}', " ");
                self.add(RichNode::Text(text));
            }
            _ => {}
        }
        TokenSinkResult::Continue
    }
}

impl TreeSink {
    /// Ends an element that a further one of its kind ends, as the rules of HTML have it.
    fn close_open_sibling(&self, name: &str) {
        if self.open.borrow().last().is_some_and(|open| open.name == name) {
            self.close();
        }
    }
}

fn parse_html(html: &str) -> Vec<RichNode> {
    let queue = BufferQueue::default();
    queue.push_back(StrTendril::from_slice(html));
    let tokenizer = Tokenizer::new(TreeSink::default(), TokenizerOpts::default());
    drop(tokenizer.feed(&queue));
    tokenizer.end();
    let sink = tokenizer.sink;
    while !sink.open.borrow().is_empty() {
        sink.close();
    }
    sink.root.into_inner()
}

fn attribute<'a>(attributes: &'a [(String, String)], name: &str) -> Option<&'a str> {
    attributes.iter().find(|(own, _)| own == name).map(|(_, value)| &**value)
}

fn collect_references(nodes: &[RichNode], paths: &mut Vec<String>) {
    for node in nodes {
        let RichNode::Element { attributes, children, .. } = node else { continue };
        for name in ["href", "src"] {
            let Some(address) = attribute(attributes, name) else { continue };
            let path = address.split(['?', '#']).next().unwrap_or_default();
            let path = path.strip_suffix(".html").unwrap_or(path);
            if path.starts_with("/content/") && !paths.iter().any(|known| known == path) {
                paths.push(path.to_owned());
            }
        }
        collect_references(children, paths);
    }
}

/// Returns true for elements that begin a line of their own.
fn is_block(name: &str) -> bool {
    matches!(
        name,
        "p" | "div"
            | "ul"
            | "ol"
            | "li"
            | "h1"
            | "h2"
            | "h3"
            | "h4"
            | "h5"
            | "h6"
            | "table"
            | "thead"
            | "tbody"
            | "tr"
            | "blockquote"
            | "pre"
            | "hr"
            | "section"
            | "article"
            | "figure"
    )
}

fn write_plain_text(nodes: &[RichNode], text: &mut String) {
    for node in nodes {
        match node {
            RichNode::Text(part) => text.push_str(&collapse_space(part, text)),
            RichNode::Element { name, children, .. } => {
                if is_block(name) && !text.is_empty() && !text.ends_with('\n') {
                    text.push('\n');
                }
                write_plain_text(children, text);
                match &**name {
                    "br" => text.push('\n'),
                    "td" | "th" => text.push('\t'),
                    name if is_block(name) && !text.ends_with('\n') => text.push('\n'),
                    _ => {}
                }
            }
        }
    }
}

/// Collapses white space as a browser shows it, after the text before it.
fn collapse_space(part: &str, before: &str) -> String {
    let mut collapsed = String::with_capacity(part.len());
    let mut is_after_space = before.is_empty() || before.ends_with([' ', '\n']);
    for character in part.chars() {
        if character.is_whitespace() {
            if !is_after_space {
                collapsed.push(' ');
            }
            is_after_space = true;
        } else {
            collapsed.push(character);
            is_after_space = false;
        }
    }
    collapsed
}

/// Writes the blocks of a text as AEM's nodes. Text between blocks becomes a paragraph.
fn block_nodes(nodes: &[RichNode]) -> Vec<Json> {
    let mut blocks = Vec::new();
    let mut inline: Vec<&RichNode> = Vec::new();
    for node in nodes {
        match node {
            RichNode::Element { name, children, .. } if is_block(name) => {
                flush_inline(&mut inline, &mut blocks);
                blocks.extend(block_node(name, children));
            }
            node => inline.push(node),
        }
    }
    flush_inline(&mut inline, &mut blocks);
    blocks
}

fn flush_inline(inline: &mut Vec<&RichNode>, blocks: &mut Vec<Json>) {
    let nodes: Vec<RichNode> = inline.drain(..).cloned().collect();
    let content = inline_nodes(&nodes, &[]);
    let is_blank = |node: &Json| {
        node.get("value").and_then(Json::as_str).is_some_and(|text| text.trim().is_empty())
    };
    if !content.iter().all(is_blank) {
        blocks.push(json!({ "nodeType": "paragraph", "content": content }));
    }
}

fn block_node(name: &str, children: &[RichNode]) -> Vec<Json> {
    let node = |kind: &str, content: Vec<Json>| json!({ "nodeType": kind, "content": content });
    match name {
        "p" => vec![node("paragraph", inline_nodes(children, &[]))],
        "h1" | "h2" | "h3" | "h4" | "h5" | "h6" => vec![json!({
            "nodeType": "header", "style": name, "content": inline_nodes(children, &[]),
        })],
        "ul" => vec![node("unordered-list", list_items(children))],
        "ol" => vec![node("ordered-list", list_items(children))],
        "li" => vec![node("list-item", item_content(children))],
        "table" => vec![node("table", table_rows(children))],
        "blockquote" => vec![node("quote", item_content(children))],
        "pre" => vec![node("code", inline_nodes(children, &[]))],
        "hr" => vec![json!({ "nodeType": "line" })],
        _ => block_nodes(children),
    }
}

fn elements(nodes: &[RichNode]) -> impl Iterator<Item = (&str, &[RichNode])> {
    nodes.iter().filter_map(|node| match node {
        RichNode::Element { name, children, .. } => Some((&**name, &**children)),
        RichNode::Text(_) => None,
    })
}

fn list_items(nodes: &[RichNode]) -> Vec<Json> {
    elements(nodes)
        .map(|(_, children)| json!({ "nodeType": "list-item", "content": item_content(children) }))
        .collect()
}

/// The content of an element that may hold text or blocks.
fn item_content(nodes: &[RichNode]) -> Vec<Json> {
    if elements(nodes).any(|(name, _)| is_block(name)) {
        block_nodes(nodes)
    } else {
        inline_nodes(nodes, &[])
    }
}

fn table_rows(nodes: &[RichNode]) -> Vec<Json> {
    let mut rows = Vec::new();
    for (name, children) in elements(nodes) {
        if name == "tr" {
            let cells = elements(children).map(
                |(_, cell)| json!({ "nodeType": "table-data", "content": item_content(cell) }),
            );
            rows.push(json!({ "nodeType": "table-row", "content": cells.collect::<Vec<_>>() }));
        } else {
            rows.extend(table_rows(children));
        }
    }
    rows
}

/// Writes text with its formats, links and pictures.
fn inline_nodes(nodes: &[RichNode], formats: &[&str]) -> Vec<Json> {
    let mut content = Vec::new();
    for node in nodes {
        match node {
            RichNode::Text(text) => {
                if text.is_empty() {
                    continue;
                }
                let mut node = json!({ "nodeType": "text", "value": text });
                if !formats.is_empty()
                    && let Some(fields) = node.as_object_mut()
                {
                    fields.insert("format".to_owned(), json!({ "variants": formats }));
                }
                content.push(node);
            }
            RichNode::Element { name, attributes, children } => match &**name {
                "a" => {
                    let mut text = String::new();
                    write_plain_text(children, &mut text);
                    let mut data =
                        json!({ "href": attribute(attributes, "href").unwrap_or_default() });
                    for name in ["title", "target"] {
                        if let (Some(value), Some(fields)) =
                            (attribute(attributes, name), data.as_object_mut())
                        {
                            fields.insert(name.to_owned(), value.into());
                        }
                    }
                    content.push(json!({ "nodeType": "link", "data": data, "value": text }));
                }
                "img" => content.push(json!({
                    "nodeType": "reference",
                    "data": {
                        "path": attribute(attributes, "src").unwrap_or_default(),
                        "alt": attribute(attributes, "alt").unwrap_or_default(),
                    },
                })),
                "br" => content.push(json!({ "nodeType": "line-break" })),
                name => {
                    let format = match name {
                        "b" | "strong" => Some("bold"),
                        "i" | "em" => Some("italic"),
                        "u" => Some("underline"),
                        "s" | "strike" | "del" => Some("strike"),
                        "sub" => Some("subscript"),
                        "sup" => Some("superscript"),
                        "code" => Some("code"),
                        _ => None,
                    };
                    let formats: Vec<&str> = formats.iter().copied().chain(format).collect();
                    content.extend(inline_nodes(children, &formats));
                }
            },
        }
    }
    content
}

/// Writes HTML as Markdown.
#[derive(Default)]
struct MarkdownWriter {
    text: String,
    /// The marker of each open list, and the number of its next item.
    lists: Vec<Option<u32>>,
}

impl MarkdownWriter {
    fn write_all(&mut self, nodes: &[RichNode]) {
        nodes.iter().for_each(|node| self.write(node));
    }

    fn write(&mut self, node: &RichNode) {
        let (name, attributes, children) = match node {
            RichNode::Text(text) => {
                let text = collapse_space(text, &self.text);
                for character in text.chars() {
                    if matches!(character, '*' | '_' | '`' | '[' | ']' | '\\') {
                        self.text.push('\\');
                    }
                    self.text.push(character);
                }
                return;
            }
            RichNode::Element { name, attributes, children } => (&**name, attributes, children),
        };
        match name {
            "h1" | "h2" | "h3" | "h4" | "h5" | "h6" => {
                self.begin_block();
                let level = name.get(1..).and_then(|level| level.parse().ok()).unwrap_or(1);
                self.text.push_str(&"#".repeat(level));
                self.text.push(' ');
                self.write_all(children);
                self.begin_block();
            }
            "ul" | "ol" => {
                if self.lists.is_empty() {
                    self.begin_block();
                }
                self.lists.push((name == "ol").then_some(1));
                self.write_all(children);
                self.lists.pop();
                self.begin_block();
            }
            "li" => {
                self.begin_line();
                self.text.push_str(&"    ".repeat(self.lists.len().saturating_sub(1)));
                match self.lists.last_mut() {
                    Some(Some(number)) => {
                        self.text.push_str(&format!("{number}. "));
                        *number += 1;
                    }
                    _ => self.text.push_str("* "),
                }
                self.write_all(children);
                self.begin_line();
            }
            "b" | "strong" => self.write_between("**", children),
            "i" | "em" => self.write_between("*", children),
            "code" => self.write_between("`", children),
            "br" => self.text.push_str("  \n"),
            "hr" => {
                self.begin_block();
                self.text.push_str("---");
                self.begin_block();
            }
            "a" => {
                self.text.push('[');
                self.write_all(children);
                self.text
                    .push_str(&format!("]({})", attribute(attributes, "href").unwrap_or_default()));
            }
            "img" => {
                let value = |name| attribute(attributes, name).unwrap_or_default();
                self.text.push_str(&format!("![{}]({})", value("alt"), value("src")));
            }
            name if is_block(name) && self.lists.is_empty() => {
                self.begin_block();
                self.write_all(children);
                self.begin_block();
            }
            _ => self.write_all(children),
        }
    }

    fn write_between(&mut self, mark: &str, children: &[RichNode]) {
        self.text.push_str(mark);
        self.write_all(children);
        self.text.push_str(mark);
    }

    fn begin_line(&mut self) {
        self.text.truncate(self.text.trim_end_matches(' ').len());
        if !self.text.is_empty() && !self.text.ends_with('\n') {
            self.text.push('\n');
        }
    }

    fn begin_block(&mut self) {
        self.begin_line();
        if !self.text.is_empty() && !self.text.ends_with("\n\n") {
            self.text.push('\n');
        }
    }

    fn finish(self) -> String {
        self.text.trim().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn html(source: &str) -> RichText {
        RichText { source: source.to_owned(), media_type: "text/html".to_owned() }
    }

    #[test]
    fn rich_text_has_four_formats() {
        let text = html(
            "<h2>Bring</h2>\n<p>Your <b>own</b>&nbsp;board &amp; <a href=\"/content/a.html#b\">wax</a></p>\n<ul>\n<li>one</li><li>two<ul><li>three</li></ul></li>\n</ul>",
        );
        assert_eq!(
            text.to_markdown(),
            "## Bring\n\nYour **own** board & [wax](/content/a.html#b)\n\n* one\n* two\n    * three"
        );
        assert_eq!(text.to_plain_text(), "Bring\nYour own board & wax\none\ntwo\nthree");
        assert_eq!(text.references(), ["/content/a"]);
        assert_eq!(
            text.to_json(),
            json!([
                { "nodeType": "header", "style": "h2", "content": [{ "nodeType": "text", "value": "Bring" }] },
                { "nodeType": "paragraph", "content": [
                    { "nodeType": "text", "value": "Your " },
                    { "nodeType": "text", "value": "own", "format": { "variants": ["bold"] } },
                    { "nodeType": "text", "value": " board & " },
                    { "nodeType": "link", "data": { "href": "/content/a.html#b" }, "value": "wax" },
                ] },
                { "nodeType": "unordered-list", "content": [
                    { "nodeType": "list-item", "content": [{ "nodeType": "text", "value": "one" }] },
                    { "nodeType": "list-item", "content": [
                        { "nodeType": "paragraph", "content": [{ "nodeType": "text", "value": "two" }] },
                        { "nodeType": "unordered-list", "content": [
                            { "nodeType": "list-item", "content": [{ "nodeType": "text", "value": "three" }] },
                        ] },
                    ] },
                ] },
            ])
        );
    }

    #[test]
    fn other_formats_become_html() {
        let of = |source: &str, media_type: &str| RichText {
            source: source.to_owned(),
            media_type: media_type.to_owned(),
        };
        assert_eq!(
            of("# A\n\n*b*", "text/x-markdown").to_html(),
            "<h1>A</h1>\n<p><em>b</em></p>\n"
        );
        assert_eq!(of("# A\n\n*b*", "text/x-markdown").to_plain_text(), "A\nb");
        assert_eq!(of("a < b\nc\n\nd", "text/plain").to_html(), "<p>a &lt; b<br>c</p>\n<p>d</p>");
    }

    #[test]
    fn a_deep_text_takes_no_stack() {
        let deep = format!("{}x", "<div><b>".repeat(100_000));
        assert_eq!(html(&deep).to_plain_text(), "x");
        assert!(html(&deep).to_json().to_string().contains("\"x\""));
        assert_eq!(html("<p>one<p>two</ul></p></p>").to_plain_text(), "one\ntwo");
    }
}
