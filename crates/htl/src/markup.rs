//! The tokenizer: tags with their attributes, comments and text, each as a range of the source.
//!
//! It follows the states of the HTML standard as far as they decide where a tag ends; nothing is decoded, repaired or
//! lost: the tokens of a source, one after the other, are the source. Expressions may contain `<`, `>` and quotes.

use std::cell::Cell;
use std::ops::Range;

use crate::syntax::find_expression_end;

/// A part of the source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum MarkupToken {
    /// Text between tags, with expressions; also the content of `<script>`.
    Text(Range<usize>),
    /// A declaration such as `<!DOCTYPE html>`, without expressions.
    Declaration(Range<usize>),
    /// A comment, with expressions.
    Comment(Range<usize>),
    /// A comment of HTL, which is not written.
    HtlComment(Range<usize>),
    /// A start tag.
    StartTag(StartTag),
    /// An end tag.
    EndTag {
        /// The whole tag.
        range: Range<usize>,
        /// The name.
        name: Range<usize>,
    },
}

/// A start tag.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StartTag {
    /// The whole tag.
    pub(crate) range: Range<usize>,
    pub(crate) name: Range<usize>,
    pub(crate) attributes: Vec<TagAttribute>,
    /// Where the part behind the last attribute begins: white space, `>` or `/>`.
    pub(crate) tail: usize,
    pub(crate) is_self_closing: bool,
}

/// An attribute of a start tag.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TagAttribute {
    /// The attribute with the white space in front of it.
    pub(crate) range: Range<usize>,
    pub(crate) name: Range<usize>,
    /// The value without quotes.
    pub(crate) value: Option<Range<usize>>,
    pub(crate) quote: Option<u8>,
}

/// Iterates over the tokens of a source.
#[derive(Debug)]
pub(crate) struct MarkupTokenizer<'a> {
    source: &'a [u8],
    at: usize,
    /// The text behind a start tag of `<script>` ends only before its end tag.
    is_in_script: bool,
    /// A tag or an expression has no end: the rest is text. Searching for the end of each further one would take time
    /// that grows with the square of the source.
    has_open_end: Cell<bool>,
}

impl<'a> MarkupTokenizer<'a> {
    pub(crate) fn new(source: &'a str) -> Self {
        Self {
            source: source.as_bytes(),
            at: 0,
            is_in_script: false,
            has_open_end: Cell::new(false),
        }
    }

    fn rest(&self, at: usize) -> &'a [u8] {
        self.source.get(at..).unwrap_or_default()
    }

    fn byte(&self, at: usize) -> Option<u8> {
        self.source.get(at).copied()
    }

    /// Returns the byte behind the next occurrence of `needle`.
    fn find_behind(&self, at: usize, needle: &[u8]) -> Option<usize> {
        memchr::memmem::find(self.rest(at), needle).map(|found| at + found + needle.len())
    }

    /// Returns the byte behind an expression.
    fn expression_end(&self, start: usize) -> Option<usize> {
        if self.has_open_end.get() {
            return None;
        }
        let end = find_expression_end(self.source, start);
        self.has_open_end.set(end.is_none());
        end
    }

    /// Returns the token that begins with `<` at a byte, or `None` if that is text.
    fn markup(&self, start: usize) -> Option<MarkupToken> {
        if self.has_open_end.get() {
            return None;
        }
        let token = self.markup_token(start);
        self.has_open_end.set(token.is_none() && self.begins_markup(start));
        token
    }

    fn markup_token(&self, start: usize) -> Option<MarkupToken> {
        let rest = self.rest(start);
        match rest.get(1)? {
            b'!' if rest.starts_with(b"<!--") => {
                if rest.starts_with(b"<!--/*")
                    && let Some(end) = self.find_behind(start + 6, b"*/-->")
                {
                    return Some(MarkupToken::HtlComment(start..end));
                }
                // `<!-->` and `<!--->` are whole comments.
                let end = self.find_behind(start + 2, b"-->").unwrap_or(self.source.len());
                Some(MarkupToken::Comment(start..end))
            }
            b'!' if rest.starts_with(b"<![CDATA[") => {
                let end = self.find_behind(start, b"]]>").unwrap_or(self.source.len());
                Some(MarkupToken::Text(start..end))
            }
            b'!' | b'?' => {
                let end = self.find_behind(start, b">")?;
                Some(MarkupToken::Declaration(start..end))
            }
            b'/' if rest.get(2)?.is_ascii_alphabetic() => {
                let end = self.find_behind(start, b">")?;
                let name = start + 2..self.name_end(start + 2);
                Some(MarkupToken::EndTag { range: start..end, name })
            }
            byte if byte.is_ascii_alphabetic() => self.start_tag(start).map(MarkupToken::StartTag),
            _ => None,
        }
    }

    fn name_end(&self, start: usize) -> usize {
        let is_end = |byte: &u8| byte.is_ascii_whitespace() || matches!(byte, b'/' | b'>');
        start + self.rest(start).iter().position(is_end).unwrap_or(self.rest(start).len())
    }

    fn skip_space(&self, start: usize) -> usize {
        start + self.rest(start).iter().take_while(|byte| byte.is_ascii_whitespace()).count()
    }

    fn start_tag(&self, start: usize) -> Option<StartTag> {
        let name = start + 1..self.name_end(start + 1);
        let mut attributes = Vec::new();
        let mut tail = name.end;
        let mut at = name.end;
        loop {
            at = self.skip_space(at);
            match self.byte(at)? {
                b'>' => {
                    let range = start..at + 1;
                    let is_self_closing = self.byte(at - 1) == Some(b'/') && at > tail;
                    return Some(StartTag { range, name, attributes, tail, is_self_closing });
                }
                // A slash that does not end the tag stands for white space.
                b'/' => at += 1,
                _ => {
                    let attribute = self.attribute(tail, at)?;
                    at = attribute.range.end;
                    tail = at;
                    attributes.push(attribute);
                }
            }
        }
    }

    /// Reads the attribute whose name begins at `name_start`; the white space in front of it begins at `start`.
    fn attribute(&self, start: usize, name_start: usize) -> Option<TagAttribute> {
        let is_end = |byte: &u8| byte.is_ascii_whitespace() || matches!(byte, b'/' | b'>' | b'=');
        // A name may begin with an equals sign, by the standard.
        let length = self.rest(name_start + 1).iter().position(is_end)?;
        let name = name_start..name_start + 1 + length;
        let equals = self.skip_space(name.end);
        if self.byte(equals)? != b'=' {
            return Some(TagAttribute { range: start..name.end, name, value: None, quote: None });
        }
        let value_start = self.skip_space(equals + 1);
        match self.byte(value_start)? {
            quote @ (b'"' | b'\'') => {
                let value = value_start + 1..self.quoted_end(value_start + 1, quote)?;
                let range = start..value.end + 1;
                Some(TagAttribute { range, name, value: Some(value), quote: Some(quote) })
            }
            _ => {
                let mut end = value_start;
                loop {
                    match self.byte(end)? {
                        b'>' => break,
                        byte if byte.is_ascii_whitespace() => break,
                        b'$' if self.byte(end + 1) == Some(b'{') => {
                            end = self.expression_end(end).unwrap_or(end + 1);
                        }
                        _ => end += 1,
                    }
                }
                // The slash of `<a href=x/>` belongs to the value, by the standard.
                let value = Some(value_start..end);
                Some(TagAttribute { range: start..end, name, value, quote: None })
            }
        }
    }

    /// Finds the quote that ends a value. Quotes inside an expression end it only if the expression is whole in front of
    /// them.
    fn quoted_end(&self, start: usize, quote: u8) -> Option<usize> {
        let mut at = start;
        loop {
            at += memchr::memchr2(quote, b'$', self.rest(at))?;
            if self.byte(at) == Some(quote) {
                return Some(at);
            }
            if self.byte(at + 1) == Some(b'{')
                && at.checked_sub(1).and_then(|at| self.byte(at)) != Some(b'\\')
            {
                let plain_end = at + memchr::memchr(quote, self.rest(at))?;
                let before = self.source.get(..plain_end).unwrap_or_default();
                let end = find_expression_end(before, at)
                    .or_else(|| self.expression_end(at))
                    .unwrap_or(plain_end);
                at = end;
            } else {
                at += 1;
            }
        }
    }

    /// Returns the end of the text that begins at a byte.
    fn text_end(&self, start: usize) -> usize {
        let mut at = start;
        loop {
            if self.has_open_end.get() {
                return self.source.len();
            }
            let Some(found) = memchr::memchr2(b'<', b'$', self.rest(at)) else {
                return self.source.len();
            };
            at += found;
            if self.byte(at) == Some(b'<') {
                if at > start && self.begins_markup(at) {
                    return at;
                }
                at += 1;
            } else if self.byte(at + 1) == Some(b'{') {
                at = self.expression_end(at).unwrap_or(at + 2);
            } else {
                at += 1;
            }
        }
    }

    fn begins_markup(&self, at: usize) -> bool {
        match self.rest(at).get(1) {
            Some(b'!' | b'?') => true,
            Some(b'/') => self.rest(at).get(2).is_some_and(u8::is_ascii_alphabetic),
            Some(byte) => byte.is_ascii_alphabetic(),
            None => false,
        }
    }

    /// Returns the start of the end tag of a script.
    fn script_end(&self) -> usize {
        let mut at = self.at;
        while let Some(found) = memchr::memmem::find(self.rest(at), b"</") {
            at += found;
            let name = self.rest(at + 2);
            let is_end = name.get(..6).is_some_and(|name| name.eq_ignore_ascii_case(b"script"))
                && name
                    .get(6)
                    .is_none_or(|byte| byte.is_ascii_whitespace() || matches!(byte, b'/' | b'>'));
            if is_end {
                return at;
            }
            at += 2;
        }
        self.source.len()
    }
}

impl Iterator for MarkupTokenizer<'_> {
    type Item = MarkupToken;

    fn next(&mut self) -> Option<MarkupToken> {
        let start = self.at;
        if start >= self.source.len() {
            return None;
        }
        if self.is_in_script {
            self.is_in_script = false;
            let end = self.script_end();
            if end > start {
                self.at = end;
                return Some(MarkupToken::Text(start..end));
            }
        }
        if self.byte(start) == Some(b'<')
            && let Some(token) = self.markup(start)
        {
            self.at = match &token {
                MarkupToken::Text(range)
                | MarkupToken::Declaration(range)
                | MarkupToken::Comment(range)
                | MarkupToken::HtlComment(range)
                | MarkupToken::EndTag { range, .. } => range.end,
                MarkupToken::StartTag(tag) => {
                    let name = self.source.get(tag.name.clone()).unwrap_or_default();
                    self.is_in_script =
                        !tag.is_self_closing && name.eq_ignore_ascii_case(b"script");
                    tag.range.end
                }
            };
            return Some(token);
        }
        self.at = self.text_end(start);
        Some(MarkupToken::Text(start..self.at))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn range_of(token: &MarkupToken) -> Range<usize> {
        match token {
            MarkupToken::Text(range)
            | MarkupToken::Declaration(range)
            | MarkupToken::Comment(range)
            | MarkupToken::HtlComment(range)
            | MarkupToken::EndTag { range, .. } => range.clone(),
            MarkupToken::StartTag(tag) => tag.range.clone(),
        }
    }

    fn check(source: &str, expected: &str) {
        let tokens: Vec<String> = MarkupTokenizer::new(source)
            .map(|token| match &token {
                MarkupToken::Text(range) => format!("text({})", &source[range.clone()]),
                MarkupToken::Declaration(range) => format!("decl({})", &source[range.clone()]),
                MarkupToken::Comment(range) => format!("comment({})", &source[range.clone()]),
                MarkupToken::HtlComment(range) => format!("htl({})", &source[range.clone()]),
                MarkupToken::EndTag { name, .. } => format!("end({})", &source[name.clone()]),
                MarkupToken::StartTag(tag) => {
                    let attributes: Vec<String> = tag
                        .attributes
                        .iter()
                        .map(|attribute| {
                            let value = attribute.value.clone().map(|value| &source[value]);
                            format!("{}={value:?}", &source[attribute.name.clone()])
                        })
                        .collect();
                    let close = if tag.is_self_closing { "/" } else { "" };
                    format!("start({} {}{close})", &source[tag.name.clone()], attributes.join(" "))
                }
            })
            .collect();
        assert_eq!(tokens.join(" "), expected, "{source}");
    }

    #[test]
    fn splits_markup() {
        check("a<b>c</b >", "text(a) start(b ) text(c) end(b)");
        check(
            "<a href=x/ title='<>' b = \"c\"  checked/>",
            "start(a href=Some(\"x/\") title=Some(\"<>\") b=Some(\"c\") checked=None/)",
        );
        check("<br/><sly data-sly-x />", "start(br /) start(sly data-sly-x=None/)");
        check("1 < 2 <3 <- </ >", "text(1 < 2 <3 <- </ >)");
        check("<!DOCTYPE html><?xml?>", "decl(<!DOCTYPE html>) decl(<?xml?>)");
        check(
            "<!-- a --><!--/* <b> --> */-->x<!-->y",
            "comment(<!-- a -->) htl(<!--/* <b> --> */-->) text(x) comment(<!-->) text(y)",
        );
        check("<![CDATA[<a>]]>b", "text(<![CDATA[<a>]]>) text(b)");
        check("<a", "text(<a)");
        check("<a b=\"c>", "text(<a b=\"c>)");
    }

    #[test]
    fn expressions_hide_markup() {
        check("${a < b}<i>", "text(${a < b}) start(i )");
        check("${'<b>'}<i>", "text(${'<b>'}) start(i )");
        check("<a b=\"${'x' == \"y\"}\">", "start(a b=Some(\"${'x' == \\\"y\\\"}\"))");
        check("<a b=${c > 'd e'}>", "start(a b=Some(\"${c > 'd e'}\"))");
        check("<a b='$' c=\"$${d}\">", "start(a b=Some(\"$\") c=Some(\"$${d}\"))");
        check("<a b=\"${it's}\">x", "start(a b=Some(\"${it's}\")) text(x)");
    }

    #[test]
    fn scripts_are_text() {
        check(
            "<SCRIPT>if (a<b) '</p>'</script ><p>",
            "start(SCRIPT ) text(if (a<b) '</p>') end(script) start(p )",
        );
        check("<script></script>", "start(script ) end(script)");
        check("<script>x", "start(script ) text(x)");
    }

    proptest! {
        #[test]
        fn tokens_are_the_whole_source(source in "[<>/=\"'a-c ${}!@\\-\\[\\]\\\\script]{0,60}") {
            let mut at = 0;
            for token in MarkupTokenizer::new(&source) {
                let range = range_of(&token);
                prop_assert_eq!(range.start, at);
                prop_assert!(range.end > at);
                at = range.end;
            }
            prop_assert_eq!(at, source.len());
        }
    }
}
