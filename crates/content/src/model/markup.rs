//! Locates attribute values and raw text in markup, as byte ranges.
//!
//! In: a text such as the HTML that an author typed. Out: the value of each attribute of each start tag and the content
//! of style sheets and scripts, as byte ranges of the text.
//!
//! Invariants
//! * The tokenizer of html5ever defines tags and attributes. A range is returned only if the attributes located in the
//!   tag are those that the tokenizer read.
//! * Any text is accepted, well-formed or not.
//!
//! The tokenizer reports no positions. It emits a tag when it reads the closing `>`, so the text is fed in pieces that
//! end after each `>` and before each `<`.

use std::cell::RefCell;
use std::ops::Range;

use html5ever::tendril::StrTendril;
use html5ever::tokenizer::states::RawKind;
use html5ever::tokenizer::{
    BufferQueue, Tag, TagKind, Token, TokenSink, TokenSinkResult, Tokenizer, TokenizerOpts,
};

/// A longer character reference is not recognized.
const MAX_CHARACTER_REFERENCE_BYTES: usize = 40;

/// A piece of markup that may contain addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum MarkupValue {
    /// The value of an attribute, without quotes.
    Attribute {
        /// The attribute's name, in lower case.
        name: String,
        /// The byte range of the value.
        range: Range<usize>,
    },
    /// The content of a style sheet or script.
    RawText {
        /// The byte range of the content.
        range: Range<usize>,
    },
}

/// Returns true if a text contains a tag.
pub(crate) fn has_markup_tags(text: &str) -> bool {
    let bytes = text.as_bytes();
    let begins = |(at, _): (usize, &str)| bytes.get(at + 1).is_some_and(u8::is_ascii_alphabetic);
    text.contains('>') && text.match_indices('<').any(begins)
}

/// Returns the values of markup that may contain addresses, in text order.
pub(crate) fn markup_values(text: &str) -> Vec<MarkupValue> {
    let mut values = Vec::new();
    let tokenizer = Tokenizer::new(TagSink::default(), TokenizerOpts::default());
    let input = BufferQueue::default();
    // The start of the text that the tokenizer has read and not yet emitted.
    let mut pending = None;
    let mut raw_text: Option<(String, usize)> = None;
    for range in split_markup(text) {
        let start = *pending.get_or_insert(range.start);
        input.push_back(StrTendril::from(text.get(range.clone()).unwrap_or_default()));
        // Scripts in the text are not run, so nothing interrupts the tokenizer.
        drop(tokenizer.feed(&input));
        let emitted = tokenizer.sink.emitted.take();
        if emitted.has_tokens {
            // The emitted tokens may be text before this piece, which then begins a tag.
            let can_begin_tag = text.get(range.clone()).is_some_and(|piece| piece.starts_with('<'));
            pending = (can_begin_tag && emitted.tag.is_none()).then_some(range.start);
        }
        let Some(tag) = emitted.tag else { continue };
        match tag.kind {
            TagKind::StartTag => {
                let source = text.get(start..range.end).unwrap_or_default();
                values.extend(attribute_values(&tag, source, start));
                if matches!(&*tag.name, "style" | "script") {
                    raw_text = Some((tag.name.to_string(), range.end));
                }
            }
            TagKind::EndTag => {
                let is_end = raw_text.as_ref().is_some_and(|(name, _)| **name == *tag.name);
                if let Some((_, content)) = raw_text.take_if(|_| is_end) {
                    let source = text.get(content..range.end).unwrap_or_default();
                    let length = source.rfind("</").unwrap_or(source.len());
                    values.push(MarkupValue::RawText { range: content..content + length });
                }
            }
        }
    }
    if let Some((_, content)) = raw_text {
        values.push(MarkupValue::RawText { range: content..text.len() });
    }
    values
}

/// Splits a text after each `>` and before each `<`.
fn split_markup(text: &str) -> impl Iterator<Item = Range<usize>> + '_ {
    let mut start = 0;
    std::iter::from_fn(move || {
        let rest = text.get(start..).filter(|rest| !rest.is_empty())?;
        let first = rest.chars().next().map_or(1, char::len_utf8);
        let end = match (rest.starts_with('>'), rest.get(first..)) {
            (false, Some(behind)) => match behind.find(['<', '>']) {
                Some(at) if behind.as_bytes().get(at) == Some(&b'>') => first + at + 1,
                Some(at) => first + at,
                None => rest.len(),
            },
            _ => first,
        };
        let piece = start..start + end;
        start = piece.end;
        Some(piece)
    })
}

/// The tokens that the tokenizer emitted for one piece of text.
#[derive(Debug, Default)]
struct EmittedTokens {
    has_tokens: bool,
    tag: Option<Tag>,
}

#[derive(Debug, Default)]
struct TagSink {
    emitted: RefCell<EmittedTokens>,
}

impl TokenSink for TagSink {
    type Handle = ();

    fn process_token(&self, token: Token, _: u64) -> TokenSinkResult<()> {
        // A parse error can be reported inside a tag.
        if matches!(token, Token::ParseError(_)) {
            return TokenSinkResult::Continue;
        }
        let mut emitted = self.emitted.borrow_mut();
        emitted.has_tokens = true;
        let Token::TagToken(tag) = token else { return TokenSinkResult::Continue };
        let reading = match (tag.kind, &*tag.name) {
            (TagKind::StartTag, "script") => TokenSinkResult::RawData(RawKind::ScriptData),
            (TagKind::StartTag, "style" | "xmp" | "iframe" | "noembed" | "noframes") => {
                TokenSinkResult::RawData(RawKind::Rawtext)
            }
            (TagKind::StartTag, "title" | "textarea") => TokenSinkResult::RawData(RawKind::Rcdata),
            _ => TokenSinkResult::Continue,
        };
        emitted.tag = Some(tag);
        reading
    }
}

/// Locates the attributes of a start tag in the text that ends with it; empty if the result differs from what the
/// tokenizer read.
fn attribute_values(tag: &Tag, source: &str, offset: usize) -> Vec<MarkupValue> {
    let located = tag_start_offsets(source, &tag.name).find_map(|start| {
        let mut located: Vec<(String, Range<usize>)> = Vec::new();
        for (name, range) in locate_attributes(source, start + 1 + tag.name.len())? {
            // If two attributes have the same name, the first one counts.
            if !located.iter().any(|(located_name, _)| *located_name == name) {
                located.push((name, range));
            }
        }
        let is_same = located.len() == tag.attrs.len()
            && located.iter().zip(&tag.attrs).all(|((name, _), read)| **name == *read.name.local);
        is_same.then_some(located)
    });
    let located = located.into_iter().flatten().filter(|(_, range)| !range.is_empty());
    located
        .map(|(name, range)| MarkupValue::Attribute {
            name,
            range: range.start + offset..range.end + offset,
        })
        .collect()
}

/// Returns the offsets at which a tag with this name can begin.
fn tag_start_offsets<'a>(source: &'a str, name: &'a str) -> impl Iterator<Item = usize> + 'a {
    source.match_indices('<').map(|(at, _)| at).filter(move |at| {
        let candidate = source.get(at + 1..at + 1 + name.len());
        candidate.is_some_and(|candidate| candidate.eq_ignore_ascii_case(name))
    })
}

/// Returns the names in lower case and the value ranges of the attributes of a tag; `None` if the tag does not end at
/// the end of the source.
fn locate_attributes(source: &str, from: usize) -> Option<Vec<(String, Range<usize>)>> {
    let bytes = source.as_bytes();
    let is_space = |byte: u8| matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | 0x0c);
    let skip = |from: usize, is: &dyn Fn(u8) -> bool| {
        let length = bytes.iter().skip(from).position(|byte| !is(*byte));
        length.map_or(bytes.len(), |length| from + length)
    };
    let mut attributes = Vec::new();
    let mut at = from;
    loop {
        let start = skip(at, &|byte| is_space(byte) || byte == b'/');
        if bytes.get(start).is_none_or(|byte| *byte == b'>') {
            return (start + 1 == bytes.len()).then_some(attributes);
        }
        // A name may begin with `=`.
        let end = skip(start + 1, &|byte| !is_space(byte) && !matches!(byte, b'/' | b'>' | b'='));
        let name = source.get(start..end).unwrap_or_default().to_ascii_lowercase();
        let equals = skip(end, &is_space);
        if bytes.get(equals) != Some(&b'=') {
            attributes.push((name, end..end));
            at = equals;
            continue;
        }
        let value = skip(equals + 1, &is_space);
        let range = match bytes.get(value) {
            Some(quote @ (b'"' | b'\'')) => {
                let end = skip(value + 1, &|byte| byte != *quote);
                at = end + 1;
                value + 1..end
            }
            Some(b'>') | None => {
                at = value;
                value..value
            }
            Some(_) => {
                at = skip(value, &|byte| !is_space(byte) && byte != b'>');
                value..at
            }
        };
        attributes.push((name, range));
    }
}

/// A text with resolved character references, and a mapping to its source bytes.
#[derive(Debug)]
pub(crate) struct DecodedText {
    /// The text with references resolved.
    pub(crate) text: String,
    /// For each byte of the text, and its end, the offset in the source; `None` inside the expansion of a reference.
    offsets: Vec<Option<usize>>,
}

impl DecodedText {
    /// Creates the mapping for a text without resolving references.
    fn from_verbatim(source: &str) -> Self {
        Self { text: source.to_owned(), offsets: Vec::new() }
    }

    /// Resolves the character references in the value of an attribute.
    pub(crate) fn from_attribute(source: &str) -> Self {
        if !source.contains('&') {
            return Self::from_verbatim(source);
        }
        let (mut text, mut offsets) = (String::new(), Vec::new());
        let mut at = 0;
        while let Some(next) = source.get(at..).and_then(|rest| rest.chars().next()) {
            let reference = (next == '&').then(|| character_reference_at(source, at)).flatten();
            let (decoded, length) =
                reference.unwrap_or_else(|| (next.to_string(), next.len_utf8()));
            let bytes = decoded.len();
            offsets.extend((0..bytes).map(|byte| (byte == 0).then_some(at)));
            text.push_str(&decoded);
            at += length;
        }
        offsets.push(Some(source.len()));
        Self { text, offsets }
    }

    /// Returns the source offset of a byte of the text; `None` inside the expansion of a reference.
    pub(crate) fn source_offset(&self, at: usize) -> Option<usize> {
        if self.offsets.is_empty() { Some(at) } else { self.offsets.get(at).copied().flatten() }
    }
}

/// Returns the expansion of the character reference at an offset, and its length in bytes; `None` if there is none.
fn character_reference_at(source: &str, at: usize) -> Option<(String, usize)> {
    let rest = source.get(at..)?;
    let name = rest.bytes().skip(1).take(MAX_CHARACTER_REFERENCE_BYTES);
    let length = name.take_while(|byte| byte.is_ascii_alphanumeric() || *byte == b'#').count() + 1;
    let has_end = rest.as_bytes().get(length) == Some(&b';');
    let length = length + usize::from(has_end);
    let reference = rest.get(..length)?;
    // The next character decides whether a reference without `;` is valid.
    let behind = rest.get(length..)?.chars().next().filter(|next| !matches!(next, '"' | '\''));
    let behind = behind.map(String::from).unwrap_or_default();
    let value = decode_attribute_value(&format!("{reference}{behind}"))?;
    let decoded = value.strip_suffix(&*behind)?;
    (decoded != reference && !decoded.is_empty()).then(|| (decoded.to_owned(), length))
}

/// Decodes the value of an attribute in double quotes.
fn decode_attribute_value(source: &str) -> Option<String> {
    let tokenizer = Tokenizer::new(TagSink::default(), TokenizerOpts::default());
    let input = BufferQueue::default();
    input.push_back(StrTendril::from(format!("<a a=\"{source}\">")));
    drop(tokenizer.feed(&input));
    let tag = tokenizer.sink.emitted.take().tag?;
    tag.attrs.first().map(|attribute| attribute.value.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> Vec<String> {
        let value_text = |value: MarkupValue| match value {
            MarkupValue::Attribute { name, range } => format!("{name}={}", &text[range]),
            MarkupValue::RawText { range } => format!("raw {}", &text[range]),
        };
        markup_values(text).into_iter().map(value_text).collect()
    }

    #[track_caller]
    fn check(text: &str, expected: &[&str]) {
        assert_eq!(shown(text), expected, "{text}");
    }

    #[test]
    fn attributes_are_located_as_browsers_read_them() {
        check(r#"<a href="/a">x</a>"#, &["href=/a"]);
        check("a < b <<a href='/a' class=x>", &["href=/a", "class=x"]);
        check("&lt<a HREF=/a>", &["href=/a"]);
        check("<img alt=\"a>b<c\" src=/a/>", &["alt=a>b<c", "src=/a/"]);
        check("<a href='1' href='2' x>", &["href=1"]);
        check("<!-- <a href=1> --><a href=2>", &["href=2"]);
        check("<style>a{b:url(/a)}</style><a href=1>", &["raw a{b:url(/a)}", "href=1"]);
        check("<script>'<a href=1>'", &["raw '<a href=1>'"]);
        check("<title><a href=1></title><a href=2>", &["href=2"]);
        check("<a href=\"1", &[]);
        check("<a\n\thref\n=\n'1'\n>", &["href=1"]);
        check("ä<a b=\"ö\" c=ü>", &["b=ö", "c=ü"]);
    }

    #[test]
    fn references_are_resolved_with_their_places() {
        let decoded = DecodedText::from_attribute("a&amp;b&y=1&#47;c&copy=2&eacute;");
        assert_eq!(decoded.text, "a&b&y=1/c&copy=2é");
        assert_eq!(decoded.source_offset(2), Some(6));
        assert_eq!(decoded.source_offset(decoded.text.len()), Some(32));
        assert_eq!(decoded.source_offset(decoded.text.len() - 1), None);
    }

    proptest::proptest! {
        #[test]
        fn located_values_are_what_the_tokenizer_reads(
            text in "([<>/='\" a-z!&;#-]|href|src=|<a |<img|<!--|-->|<style>|</style>|&amp;|&#x41;|ä|\n){0,40}",
        ) {
            for value in markup_values(&text) {
                let MarkupValue::Attribute { name, range } = value else { continue };
                let source = &text[range.clone()];
                let quote = if source.contains('"') { '\'' } else { '"' };
                if source.contains(['"', '\'']) {
                    continue;
                }
                let tag = format!("<a {name}={quote}{source}{quote}>");
                let tokenizer = Tokenizer::new(TagSink::default(), TokenizerOpts::default());
                let input = BufferQueue::default();
                input.push_back(StrTendril::from(&*tag));
                drop(tokenizer.feed(&input));
                let read = tokenizer.sink.emitted.take().tag.unwrap();
                let decoded = DecodedText::from_attribute(source);
                proptest::prop_assert_eq!(&*read.attrs[0].value, &*decoded.text);
            }
        }
    }
}
