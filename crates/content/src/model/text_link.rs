//! Links: references in texts, tags and policy names that are not evident from the property type.
//!
//! In: a property's name and a text of it. Out: the links in it, each with its candidate paths. A link may end with
//! selectors, an extension and a suffix, so it may denote several nodes. It refers to the first that exists, which is
//! the one with the longest path, as in the resolution of a URL.
//!
//! Links are found in whole texts and lines (`/content/site/en.html`), in attributes, style sheets and scripts of
//! markup, and in quotes and parentheses of other texts, such as JSON. A path in running text is not a link.
//!
//! Not here: properties that hold only an identifier or a path (`reference`).

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ops::Range;

use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};
use tympan_notation::escape_html;

use crate::model::markup::{DecodedText, MarkupValue, has_markup_tags, markup_values};
use crate::{NodePath, ReferenceKind, ValueType};

/// The roots of tags that are named by `namespace:path`.
const TAG_ROOTS: [&str; 2] = ["/content/cq:tags/", "/etc/tags/"];
/// The roots of link targets.
const LINK_TARGET_ROOTS: [&str; 5] = ["/content/", "/conf/", "/etc/", "/apps/", "/home/"];
/// The folder of policies below a settings path.
const POLICY_FOLDER: &str = "/settings/wcm/policies/";
/// The settings paths that are searched after those of the template and its ancestors.
const SHARED_SETTINGS_PATHS: [&str; 3] = ["/conf/global", "/apps", "/libs"];
/// The maximum length of a link, in bytes; longer text is not treated as a link.
const MAX_LINK_BYTES: usize = 2_000;
/// The maximum number of dots at which a link is cut.
const MAX_DOT_CUTS: usize = 8;
/// The characters that are percent-encoded in a URL.
const ESCAPED_CHARACTERS: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'#')
    .add(b'%')
    .add(b'<')
    .add(b'>')
    .add(b'?')
    .add(b'[')
    .add(b'\\')
    .add(b']')
    .add(b'^')
    .add(b'`')
    .add(b'{')
    .add(b'|')
    .add(b'}');
/// The same with the characters that would end a URL in quotes or parentheses.
const QUOTED_ESCAPED_CHARACTERS: &AsciiSet =
    &ESCAPED_CHARACTERS.add(b'\'').add(b'(').add(b')').add(b',');

/// A link in a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TextLink {
    /// The kind of the reference.
    pub(crate) kind: ReferenceKind,
    /// The candidate paths; the link refers to the first of them that exists.
    pub(crate) candidate_paths: Vec<String>,
    /// The byte range of the link in the text.
    range: Range<usize>,
    spelling: LinkSpelling,
}

impl TextLink {
    /// Returns true if the link may also be running text that begins with a path.
    pub(crate) fn can_be_prose(&self, text: &str) -> bool {
        let link = text.get(self.range.clone()).unwrap_or_default();
        self.spelling == LinkSpelling::Line && link.contains(char::is_whitespace)
    }
}

/// The notation of a link's path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LinkSpelling {
    /// A whole text or line.
    Line,
    /// The value of an attribute, or a part of one.
    Attribute,
    /// A URL in quotes or parentheses.
    Quoted,
    /// The name of a tag.
    TagName,
    /// The name of a policy.
    PolicyName,
}

/// Returns the links in a text of a property of the node at a path, in the order of the text.
pub(crate) fn find_links(
    node: &NodePath,
    property: &str,
    value_type: ValueType,
    text: &str,
) -> Vec<TextLink> {
    let is_text = matches!(value_type, ValueType::String | ValueType::Path | ValueType::Uri);
    if !is_text || text.is_empty() || is_component_property(property) {
        return Vec::new();
    }
    if let Some((kind, spelling, candidates)) = read_named_link(node, property, text) {
        return vec![TextLink {
            kind,
            candidate_paths: candidates,
            range: 0..text.len(),
            spelling,
        }];
    }
    // Most texts have no link. This check detects that without parsing markup.
    let may_link = LINK_TARGET_ROOTS.iter().any(|root| text.contains(root));
    let may_encode = || text.contains('<') && (text.contains("&#") || text.contains("&sol;"));
    if !may_link && !may_encode() {
        return Vec::new();
    }
    let mut links = Vec::new();
    if has_markup_tags(text) {
        for value in markup_values(text) {
            match value {
                MarkupValue::Attribute { name, range } => {
                    collect_attribute_links(&name, text, range, &mut links)
                }
                MarkupValue::RawText { range } => collect_quoted_links(text, range, &mut links),
            }
        }
        return links;
    }
    let mut start = 0;
    for line in text.split_inclusive('\n') {
        let trimmed = line.trim();
        let range = trimmed_range(start, line);
        if LINK_TARGET_ROOTS.iter().any(|root| trimmed.starts_with(root))
            && trimmed.len() <= MAX_LINK_BYTES
        {
            let mut candidates = vec![trimmed.trim_end_matches('/').to_owned()];
            candidates.extend(candidate_paths(trimmed));
            push_link(&mut links, candidates, range, LinkSpelling::Line);
        } else {
            collect_quoted_links(text, start..start + line.len(), &mut links);
        }
        start += line.len();
    }
    links
}

/// Returns the index keys of the links of a text: their candidate paths, except a path that is the whole text, which is
/// in the index of references.
pub(crate) fn link_index_keys(
    node: &NodePath,
    property: &str,
    value_type: ValueType,
    text: &str,
) -> BTreeSet<String> {
    let links = find_links(node, property, value_type, text);
    let mut keys: BTreeSet<String> =
        links.into_iter().flat_map(|link| link.candidate_paths).collect();
    if is_plain_reference(value_type, text) {
        keys.remove(text);
    }
    keys
}

/// Returns true if a text is a path that the index of references holds unchanged.
pub(crate) fn is_plain_reference(value_type: ValueType, text: &str) -> bool {
    matches!(value_type, ValueType::String | ValueType::Path)
        && (text.starts_with("/content/") || text.starts_with("/conf/"))
        && !text.contains(char::is_whitespace)
}

/// Returns true if a property names a component, which has an index of its own.
fn is_component_property(property: &str) -> bool {
    matches!(property, "sling:resourceType" | "sling:resourceSuperType")
}

/// Returns true if a property holds tags, according to its name.
fn is_tag_property(property: &str) -> bool {
    let name = property.rsplit(':').next().unwrap_or(property);
    matches!(property, "cq:movedTo" | "cq:backlinks")
        || name.starts_with("tag")
        || name.contains("Tag")
}

/// Parses a text as the name of a tag or policy.
fn read_named_link(
    node: &NodePath,
    property: &str,
    text: &str,
) -> Option<(ReferenceKind, LinkSpelling, Vec<String>)> {
    if text.starts_with('/') || text.contains(char::is_whitespace) {
        return None;
    }
    if property == "cq:policy" {
        let candidates =
            policy_folders(node).iter().map(|folder| format!("{folder}{text}")).collect();
        return Some((ReferenceKind::Policy, LinkSpelling::PolicyName, candidates));
    }
    if is_tag_property(property) {
        let (space, rest) = match text.split_once(':') {
            Some((space, rest)) => (space, rest),
            // A tag without a namespace belongs to the default namespace.
            None if property == "cq:tags" => ("default", text),
            None => return None,
        };
        let tag = if rest.is_empty() { space.to_owned() } else { format!("{space}/{rest}") };
        let candidates: Vec<String> = TAG_ROOTS.iter().map(|root| format!("{root}{tag}")).collect();
        if candidates.iter().all(|path| NodePath::new(path).is_ok()) {
            return Some((ReferenceKind::Tag, LinkSpelling::TagName, candidates));
        }
    }
    None
}

/// Returns the folders, in search order, for a policy named by a mapping at a path.
fn policy_folders(mapping: &NodePath) -> Vec<String> {
    let mut folders = Vec::new();
    let mut next = mapping.as_str().split_once("/settings/").map(|(parent, _)| parent);
    while let Some(folder) = next.filter(|folder| !folder.is_empty() && *folder != "/conf") {
        folders.push(format!("{folder}{POLICY_FOLDER}"));
        next = folder.rsplit_once('/').map(|(above, _)| above);
    }
    folders.extend(
        SHARED_SETTINGS_PATHS.map(|settings_path| format!("{settings_path}{POLICY_FOLDER}")),
    );
    folders
}

fn trimmed_range(start: usize, line: &str) -> Range<usize> {
    let begin = start + (line.len() - line.trim_start().len());
    begin..begin + line.trim().len()
}

/// Adds the links in an attribute.
fn collect_attribute_links(name: &str, text: &str, range: Range<usize>, links: &mut Vec<TextLink>) {
    let source = text.get(range.clone()).unwrap_or_default();
    let decoded = DecodedText::from_attribute(source);
    let is_list = matches!(name, "srcset" | "imagesrcset" | "style" | "ping");
    let whole = trimmed_range(0, &decoded.text);
    let address = decoded.text.get(whole.clone()).unwrap_or_default();
    let is_whole = !is_list && LINK_TARGET_ROOTS.iter().any(|root| address.starts_with(root));
    let spans = if is_whole {
        vec![whole]
    } else {
        address_ranges(&decoded.text, AddressDelimiters::NonAddress)
    };
    for span in spans {
        let offset = |at: usize| decoded.source_offset(at).map(|at| range.start + at);
        let (Some(start), Some(end)) = (offset(span.start), offset(span.end)) else { continue };
        let address = decoded.text.get(span).unwrap_or_default();
        add_address_link(address, start..end, LinkSpelling::Attribute, links);
    }
}

/// Adds the links in quotes or parentheses in a part of a text.
fn collect_quoted_links(text: &str, range: Range<usize>, links: &mut Vec<TextLink>) {
    let part = text.get(range.clone()).unwrap_or_default();
    for span in address_ranges(part, AddressDelimiters::Quotes) {
        let address = part.get(span.clone()).unwrap_or_default();
        let range = range.start + span.start..range.start + span.end;
        add_address_link(address, range, LinkSpelling::Quoted, links);
    }
}

fn add_address_link(
    address: &str,
    range: Range<usize>,
    spelling: LinkSpelling,
    links: &mut Vec<TextLink>,
) {
    if address.len() <= MAX_LINK_BYTES {
        push_link(links, candidate_paths(address), range, spelling);
    }
}

fn push_link(
    links: &mut Vec<TextLink>,
    candidates: Vec<String>,
    range: Range<usize>,
    spelling: LinkSpelling,
) {
    let mut unique: Vec<String> = Vec::new();
    for path in candidates {
        if NodePath::new(&path).is_ok() && !unique.contains(&path) {
            unique.push(path);
        }
    }
    unique.sort_by_key(|path| std::cmp::Reverse(path.len()));
    if !unique.is_empty() {
        links.push(TextLink {
            kind: ReferenceKind::Link,
            candidate_paths: unique,
            range,
            spelling,
        });
    }
}

/// What precedes a URL in a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AddressDelimiters {
    /// Any character that cannot be a part of a URL.
    NonAddress,
    /// A quote or an opening parenthesis.
    Quotes,
}

/// Returns the byte ranges of the URLs in a text.
fn address_ranges(text: &str, delimiters: AddressDelimiters) -> Vec<Range<usize>> {
    let mut spans = Vec::new();
    let mut from = 0;
    while let Some(rest) = text.get(from..) {
        let Some(at) = LINK_TARGET_ROOTS.iter().filter_map(|root| rest.find(root)).min() else {
            break;
        };
        let start = from + at;
        let before = text.get(..start).and_then(|before| before.chars().next_back());
        let begins = match delimiters {
            AddressDelimiters::NonAddress => {
                before.is_none_or(|before| !is_address_character(before))
            }
            AddressDelimiters::Quotes => before.is_some_and(|before| "\"'`(".contains(before)),
        };
        let address = text.get(start..).unwrap_or_default();
        let closing = match (delimiters, before) {
            // Inside quotes, only these characters end a URL.
            (AddressDelimiters::Quotes, Some(quote @ ('"' | '\'' | '`'))) => {
                address.find([quote, '\\', '\n'])
            }
            _ => address.find(is_address_end),
        };
        let end = start + closing.unwrap_or(address.len());
        if begins {
            spans.push(start..end);
        }
        from = end.max(start + 1);
    }
    spans
}

fn is_address_end(character: char) -> bool {
    character.is_whitespace() || "\"'<>()\\`{}|^,;".contains(character)
}

fn is_address_character(character: char) -> bool {
    character.is_alphanumeric() || "-_.~%/".contains(character)
}

/// Returns the candidate paths of a URL: its whole path, and the part before each dot. If its suffix is a content path,
/// the candidates of the suffix are included.
fn candidate_paths(address: &str) -> Vec<String> {
    let path = address_path(address);
    let mut all = vec![path.trim_end_matches('/').to_owned()];
    let dots = path.match_indices('.').take(MAX_DOT_CUTS);
    all.extend(dots.map(|(at, _)| path.get(..at).unwrap_or_default().to_owned()));
    let without_prefixes =
        all.iter().filter_map(|path| decode_namespace_names(path)).collect::<Vec<_>>();
    all.extend(without_prefixes);
    all
}

/// Returns the decoded path of a URL, without its query and fragment.
fn address_path(address: &str) -> Cow<'_, str> {
    let path = address.split(['?', '#']).next().unwrap_or_default();
    percent_decode_str(path).decode_utf8().unwrap_or(Cow::Borrowed(path))
}

/// Returns a path with URL-escaped namespaces (`_jcr_content`) converted to node names; `None` if no name is escaped.
fn decode_namespace_names(path: &str) -> Option<String> {
    if !path.contains("/_") {
        return None;
    }
    let name = |name: &str| -> Option<String> {
        let (prefix, rest) = name.strip_prefix('_')?.split_once('_')?;
        let is_name = !prefix.is_empty() && !rest.is_empty();
        is_name.then(|| format!("{prefix}:{rest}"))
    };
    let names = path.split('/').map(|segment| name(segment).unwrap_or_else(|| segment.to_owned()));
    let decoded = names.collect::<Vec<_>>().join("/");
    (decoded != path).then_some(decoded)
}

/// A text to rewrite for the move of a node.
#[derive(Debug)]
pub(crate) struct LinkRewrite<'a> {
    /// The original text.
    pub(crate) text: &'a str,
    /// The path of the moved node.
    pub(crate) source: &'a NodePath,
    /// Its new path.
    pub(crate) destination: &'a NodePath,
}

impl LinkRewrite<'_> {
    /// Returns the bytes that replace a part of the text, so that a link to `target` refers to its new path; `None` if
    /// the notation of the link does not allow it.
    pub(crate) fn replacement_for(
        &self,
        link: &TextLink,
        target: &NodePath,
    ) -> Option<(Range<usize>, String)> {
        let source = self.text.get(link.range.clone())?;
        let moved = target.rebase(self.source, self.destination)?;
        match link.spelling {
            LinkSpelling::TagName => {
                let tag = TAG_ROOTS.iter().find_map(|root| moved.as_str().strip_prefix(root));
                let name = match tag.map(|tag| tag.split_once('/').unwrap_or((tag, ""))) {
                    Some((space, rest)) => format!("{space}:{rest}"),
                    None => moved.as_str().to_owned(),
                };
                Some((link.range.clone(), name))
            }
            LinkSpelling::PolicyName => {
                let suffixes =
                    link.candidate_paths.iter().filter_map(|path| path.strip_suffix(source));
                let mut names = suffixes.filter_map(|prefix| moved.as_str().strip_prefix(prefix));
                let name = names.next().unwrap_or(moved.as_str());
                Some((link.range.clone(), name.to_owned()))
            }
            LinkSpelling::Line | LinkSpelling::Quoted => {
                let length = encoded_prefix_length(source, self.source.as_str())?;
                let is_literal = source.get(..length) == Some(self.source.as_str());
                let new = if link.spelling == LinkSpelling::Line && is_literal {
                    self.destination.as_str().to_owned()
                } else {
                    encode_address_path(
                        self.destination.as_str(),
                        source.get(..length)?,
                        link.spelling,
                    )
                };
                Some((link.range.start..link.range.start + length, new))
            }
            LinkSpelling::Attribute => {
                let decoded = DecodedText::from_attribute(source);
                let length = encoded_prefix_length(&decoded.text, self.source.as_str())?;
                let end = decoded.source_offset(length)?;
                let new = encode_address_path(
                    self.destination.as_str(),
                    decoded.text.get(..length)?,
                    link.spelling,
                );
                let range = link.range.start..link.range.start + end;
                Some((range, escape_html(&new)))
            }
        }
    }
}

/// Returns the number of bytes at the beginning of a URL that encode a path; `None` if the URL does not begin with that
/// path.
fn encoded_prefix_length(address: &str, path: &str) -> Option<usize> {
    let bytes = address.as_bytes();
    let mut at = 0;
    let hex = |at: usize| {
        let digits = address.get(at..at + 2).filter(|digits| digits.is_ascii())?;
        u8::from_str_radix(digits, 16).ok()
    };
    for byte in path.bytes() {
        let (decoded_byte, length) = match bytes.get(at)? {
            b'%' => match hex(at + 1) {
                Some(decoded) if decoded == byte => (decoded, 3),
                _ => (b'%', 1),
            },
            literal_byte => (*literal_byte, 1),
        };
        if decoded_byte != byte {
            return None;
        }
        at += length;
    }
    let is_end = bytes.get(at).is_none_or(|next| matches!(next, b'/' | b'.' | b'?' | b'#'));
    is_end.then_some(at)
}

/// Encodes a path for a URL. Non-ASCII characters are encoded as in the URL before the change, or left unchanged.
fn encode_address_path(path: &str, before: &str, spelling: LinkSpelling) -> String {
    let set = if spelling == LinkSpelling::Attribute {
        ESCAPED_CHARACTERS
    } else {
        QUOTED_ESCAPED_CHARACTERS
    };
    if !before.is_ascii() || !before.contains('%') {
        let part = |character: char| match character.is_ascii() {
            true => utf8_percent_encode(character.encode_utf8(&mut [0; 4]), set).to_string(),
            false => character.to_string(),
        };
        return path.chars().map(part).collect();
    }
    utf8_percent_encode(path, set).to_string()
}

/// Applies replacements to a text; those that overlap an earlier one are skipped.
pub(crate) fn apply_replacements(
    text: &str,
    mut replacements: Vec<(Range<usize>, String)>,
) -> String {
    replacements.sort_by_key(|(range, _)| range.start);
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    for (range, new) in replacements {
        let Some(unchanged_text) = text.get(at..range.start) else { continue };
        out.push_str(unchanged_text);
        out.push_str(&new);
        at = range.end;
    }
    out.push_str(text.get(at..).unwrap_or_default());
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node() -> NodePath {
        NodePath::new("/conf/s/settings/wcm/templates/t/policies/jcr:content/root").unwrap()
    }

    #[track_caller]
    fn check(property: &str, text: &str, expected: &[&str]) {
        let keys = link_index_keys(&node(), property, ValueType::String, text);
        let mut expected = expected.to_vec();
        expected.sort_unstable();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        assert_eq!(keys, expected, "{text}");
    }

    #[test]
    fn texts_have_the_keys_of_what_they_link_to() {
        check("text", "nothing", &[]);
        check("text", "/content/a", &[]);
        check("link", "/content/a.html", &["/content/a"]);
        check(
            "link",
            "/content/a.b.html?x=/content/y#z",
            &["/content/a", "/content/a.b", "/content/a.b.html"],
        );
        check("link", "/content/a b", &["/content/a b"]);
        check("text", "see /content/b in the text", &[]);
        check(
            "text",
            r#"<p>/content/no <a href="/content/s/t.html?x=1#y">it</a> <img src='/content/dam/x.jpg'></p>"#,
            &["/content/dam/x", "/content/dam/x.jpg", "/content/s/t", "/content/s/t.html"],
        );
        check(
            "text",
            r#"<img srcset="/content/dam/a.png 1x, /content/dam/b.png 2x">"#,
            &["/content/dam/a", "/content/dam/a.png", "/content/dam/b", "/content/dam/b.png"],
        );
        check("text", "<p style='b:url(/content/dam/a%20b)'>", &["/content/dam/a b"]);
        check("text", "<a href='/content/dam/a b'>", &["/content/dam/a b"]);
        check("text", "<a href='&#47;content/a&amp;b'>", &["/content/a&b"]);
        check("text", r#"{"link":"/content/a b","x":["/conf/c"]}"#, &["/content/a b", "/conf/c"]);
        check("text", "[it](/content/a) and url('/content/b')", &["/content/a", "/content/b"]);
        check("text", r#"<a href="https://example.com/content/x">"#, &[]);
        check("text", "<!-- <a href='/content/x'> -->", &[]);
        check(
            "text",
            "<a href='/content/a/_jcr_content/b'>",
            &["/content/a/_jcr_content/b", "/content/a/jcr:content/b"],
        );
        check("cq:tags", "ns:red/dark", &["/content/cq:tags/ns/red/dark", "/etc/tags/ns/red/dark"]);
        check("cq:tags", "red", &["/content/cq:tags/default/red", "/etc/tags/default/red"]);
        check("filterTags", "ns:red", &["/content/cq:tags/ns/red", "/etc/tags/ns/red"]);
        check("other", "ns:red", &[]);
        check("stage", "ns:red", &[]);
        check(
            "cq:policy",
            "site/text/policy_1",
            &[
                "/conf/s/settings/wcm/policies/site/text/policy_1",
                "/conf/global/settings/wcm/policies/site/text/policy_1",
                "/apps/settings/wcm/policies/site/text/policy_1",
                "/libs/settings/wcm/policies/site/text/policy_1",
            ],
        );
    }

    /// Rewrites every link whose path is at or below the moved one.
    fn rewritten(property: &str, text: &str, (from, to): (&str, &str)) -> String {
        let (from, to) = (NodePath::new(from).unwrap(), NodePath::new(to).unwrap());
        let rewrite = LinkRewrite { text, source: &from, destination: &to };
        let links = find_links(&node(), property, ValueType::String, text);
        let replacements = links.iter().filter_map(|link| {
            let mut targets = link.candidate_paths.iter().map(|path| NodePath::new(path).unwrap());
            let target = targets.rfind(|path| path.is_within(&from))?;
            rewrite.replacement_for(link, &target)
        });
        apply_replacements(text, replacements.collect())
    }

    #[test]
    fn only_the_path_of_a_link_is_rewritten() {
        let check = |text: &str, expected: &str| {
            assert_eq!(rewritten("text", text, ("/content/s/a", "/content/s/b c")), expected);
        };
        check("/content/s/a", "/content/s/b c");
        check("/content/s/a/sub.html?x", "/content/s/b c/sub.html?x");
        check("/content/s/ab", "/content/s/ab");
        check("x/content/s/a", "x/content/s/a");
        check(
            "<p CLASS=x>\n<a  href = \"/content/s/a.html?x=1&y=2#z\" >1 < 2</a><a href='/content/s/a-b'>",
            "<p CLASS=x>\n<a  href = \"/content/s/b%20c.html?x=1&y=2#z\" >1 < 2</a><a href='/content/s/a-b'>",
        );
        check("<a href=/content/%73/a>", "<a href=/content/s/b%20c>");
        check("<a href='&#x2f;content/s/a.html'>", "<a href='/content/s/b%20c.html'>");
        check(
            "<img srcset='/content/s/a/x.png 1x,/content/s/a/y.png 2x'>",
            "<img srcset='/content/s/b%20c/x.png 1x,/content/s/b%20c/y.png 2x'>",
        );
        check(r#"{"a":"/content/s/a","b":1}"#, r#"{"a":"/content/s/b%20c","b":1}"#);
        check("<p>/content/s/a</p>", "<p>/content/s/a</p>");
        check(
            "<p data-x='{&quot;a&quot;:&quot;/content/s/a&quot;}'>",
            "<p data-x='{&quot;a&quot;:&quot;/content/s/b%20c&quot;}'>",
        );
        let quoted = rewritten("t", "<a href='/content/a'>", ("/content/a", "/content/b'&c"));
        assert_eq!(quoted, "<a href='/content/b&#39;&amp;c'>");
    }

    #[test]
    fn names_of_tags_and_policies_are_rewritten() {
        let tag = |text: &str| {
            rewritten("cq:tags", text, ("/content/cq:tags/ns/red", "/content/cq:tags/ns/rouge"))
        };
        assert_eq!(tag("ns:red"), "ns:rouge");
        assert_eq!(tag("ns:red/dark"), "ns:rouge/dark");
        assert_eq!(tag("ns:redder"), "ns:redder");
        let policies = "/conf/s/settings/wcm/policies";
        let policy = rewritten(
            "cq:policy",
            "site/text/p1",
            (&format!("{policies}/site/text"), &format!("{policies}/site/title")),
        );
        assert_eq!(policy, "site/title/p1");
    }
}
