//! The states of an HTML parser that determine how an output must be escaped.
//!
//! Follows the tokenizer of the HTML standard (13.2.5), and tree construction for scripts, styles and other elements
//! without markup. Names are stored in lower case.

use super::code_state::{ScriptState, StyleState};
use super::output_escape::OutputEscape;
use super::url_state::{CodeUrlState, SrcsetState, UrlState};

/// Represents the part of a name that an output provides.
const OUTPUT_PLACEHOLDER: char = '\0';

/// Maximum length of stored names and values; longer ones, which are never relevant, are truncated.
const MAX_NAME_LENGTH: usize = 48;

/// Elements whose content is not markup and is not analyzed here.
const OPAQUE_ELEMENTS: [&str; 5] = ["iframe", "xmp", "noembed", "noframes", "plaintext"];

/// One state of the parser.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct EscapeContext {
    markup: MarkupState,
    tag: TagState,
    is_in_noscript: bool,
    /// True for XML, which has no elements with special rules.
    is_xml: bool,
    /// An error in the text so far that no output can correct.
    fault: Option<&'static str>,
}

/// The tag being read.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct TagState {
    name: String,
    is_end: bool,
    ends_with_slash: bool,
    /// The `type` of a script or the `rel` of a link.
    type_or_rel: Option<String>,
    is_refresh: bool,
    has_content_output: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum MarkupState {
    Text,
    /// After `<`.
    TagBegin,
    /// After `</`.
    EndTagBegin,
    /// After `<!`, with what follows.
    Declaration(String),
    /// A declaration or processing instruction, up to `>`.
    Ignored,
    Comment {
        dash_count: u8,
    },
    Cdata {
        bracket_count: u8,
    },
    TagName,
    InTag,
    AttributeName(String),
    AfterAttributeName(String),
    BeforeValue(String),
    Value {
        quote: Option<u8>,
        kind: AttributeValueKind,
    },
    /// Text only, up to the end tag; `end` is the part of the end tag read so far.
    RawText {
        end: String,
    },
    Opaque {
        end: String,
    },
    Script {
        script: ScriptState,
        is_known: bool,
        end: String,
    },
    Style {
        style: StyleState,
        end: String,
    },
}

/// The meaning of an attribute's value.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum AttributeValueKind {
    Plain,
    Url(UrlState),
    CodeUrl(CodeUrlState),
    Srcset(SrcsetState),
    Style(StyleState),
    /// Stored, because other attributes depend on it.
    Tracked(TrackedAttribute, String),
    Content,
    Refused(&'static str),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum TrackedAttribute {
    TypeOrRel,
    HttpEquiv,
}

impl EscapeContext {
    /// Returns the initial state of HTML templates.
    pub(super) fn html() -> Self {
        Self {
            markup: MarkupState::Text,
            tag: TagState::default(),
            is_in_noscript: false,
            is_xml: false,
            fault: None,
        }
    }

    /// Returns the initial state of XML templates.
    pub(super) fn xml() -> Self {
        Self { is_xml: true, ..Self::html() }
    }

    /// Returns the initial state of script and JSON templates.
    pub(super) fn script() -> Self {
        let markup =
            MarkupState::Script { script: ScriptState::new(), is_known: true, end: String::new() };
        Self { markup, is_xml: true, ..Self::html() }
    }

    /// Returns the initial state of style sheet templates.
    pub(super) fn style() -> Self {
        let markup = MarkupState::Style { style: StyleState::new(), end: String::new() };
        Self { markup, is_xml: true, ..Self::html() }
    }

    /// Returns true if a template, capture or macro of the same language may end here.
    pub(super) fn is_complete(&self) -> bool {
        match &self.markup {
            MarkupState::Text => true,
            // Templates that are entirely scripts or style sheets; those in HTML end with their element.
            MarkupState::Script { script, .. } => self.tag.name.is_empty() && script.is_complete(),
            MarkupState::Style { style, .. } => self.tag.name.is_empty() && style.is_complete(),
            _ => false,
        }
    }

    /// Returns the error that no output can correct; `None` if there is none.
    pub(super) fn fault(&self) -> Option<&'static str> {
        self.fault
    }

    /// Describes this position.
    pub(super) fn describe(&self) -> String {
        let tag = self.tag.name.replace(OUTPUT_PLACEHOLDER, "…");
        match &self.markup {
            MarkupState::Text => "text".to_owned(),
            MarkupState::TagBegin | MarkupState::EndTagBegin | MarkupState::TagName => {
                "the name of a tag".to_owned()
            }
            MarkupState::Declaration(_) | MarkupState::Ignored => "a declaration".to_owned(),
            MarkupState::Comment { .. } => "a comment".to_owned(),
            MarkupState::Cdata { .. } => "a CDATA section".to_owned(),
            MarkupState::InTag | MarkupState::AfterAttributeName(_) => format!("the tag `<{tag}>`"),
            MarkupState::AttributeName(name) | MarkupState::BeforeValue(name) => {
                format!("the attribute `{}` of `<{tag}>`", name.replace(OUTPUT_PLACEHOLDER, "…"))
            }
            MarkupState::Value { quote, .. } => {
                let quoted = if quote.is_some() { "a quoted" } else { "an unquoted" };
                format!("{quoted} value in `<{tag}>`")
            }
            MarkupState::RawText { .. } | MarkupState::Opaque { .. } => {
                format!("the content of `<{tag}>`")
            }
            MarkupState::Script { .. } => "a script".to_owned(),
            MarkupState::Style { .. } => "a style".to_owned(),
        }
    }

    /// Reads a byte of static text.
    pub(super) fn read_byte(&mut self, byte: u8) {
        let lower = byte.to_ascii_lowercase();
        match &mut self.markup {
            MarkupState::Text if byte == b'<' => self.markup = MarkupState::TagBegin,
            MarkupState::Text => {}
            MarkupState::TagBegin => self.begin_tag(lower),
            MarkupState::EndTagBegin => self.begin_end_tag(lower),
            MarkupState::Declaration(_) => self.read_declaration_byte(byte),
            MarkupState::Ignored if byte == b'>' => self.markup = MarkupState::Text,
            MarkupState::Ignored => {}
            MarkupState::Comment { dash_count } => match byte {
                b'>' if *dash_count >= 2 => self.markup = MarkupState::Text,
                b'-' => *dash_count = (*dash_count + 1).min(2),
                b'!' if *dash_count >= 2 => {}
                _ => *dash_count = 0,
            },
            MarkupState::Cdata { bracket_count } => match byte {
                b'>' if *bracket_count >= 2 => self.markup = MarkupState::Text,
                b']' => *bracket_count = (*bracket_count + 1).min(2),
                _ => *bracket_count = 0,
            },
            MarkupState::TagName => match byte {
                b'>' => self.end_tag(),
                b'/' => self.end_attribute_with_slash(),
                _ if byte.is_ascii_whitespace() => self.markup = MarkupState::InTag,
                _ => push_name_byte(&mut self.tag.name, lower),
            },
            MarkupState::InTag | MarkupState::AfterAttributeName(_) => self.read_tag_byte(lower),
            MarkupState::AttributeName(name) => match byte {
                b'>' => self.end_tag(),
                b'/' => self.end_attribute_with_slash(),
                b'=' => self.markup = MarkupState::BeforeValue(std::mem::take(name)),
                _ if byte.is_ascii_whitespace() => {
                    self.markup = MarkupState::AfterAttributeName(std::mem::take(name));
                }
                _ => push_name_byte(name, lower),
            },
            MarkupState::BeforeValue(_) => self.begin_value(byte),
            MarkupState::Value { .. } => self.read_value_byte(byte),
            MarkupState::RawText { .. }
            | MarkupState::Opaque { .. }
            | MarkupState::Script { .. }
            | MarkupState::Style { .. } => self.read_content_byte(byte),
        }
    }

    fn begin_tag(&mut self, byte: u8) {
        match byte {
            b'a'..=b'z' => {
                self.tag = TagState { name: char::from(byte).to_string(), ..TagState::default() };
                self.markup = MarkupState::TagName;
            }
            b'/' => self.markup = MarkupState::EndTagBegin,
            b'!' => self.markup = MarkupState::Declaration(String::new()),
            b'?' => self.markup = MarkupState::Ignored,
            b'<' => {}
            _ => self.markup = MarkupState::Text,
        }
    }

    fn begin_end_tag(&mut self, byte: u8) {
        match byte {
            b'a'..=b'z' => {
                let name = char::from(byte).to_string();
                self.tag = TagState { name, is_end: true, ..TagState::default() };
                self.markup = MarkupState::TagName;
            }
            b'>' => self.markup = MarkupState::Text,
            _ => self.markup = MarkupState::Ignored,
        }
    }

    fn read_declaration_byte(&mut self, byte: u8) {
        let MarkupState::Declaration(text) = &mut self.markup else {
            return;
        };
        text.push(char::from(byte));
        self.markup = match text.as_str() {
            // `<!-->` and `<!--->` are whole comments.
            "--" => MarkupState::Comment { dash_count: 2 },
            "[CDATA[" => MarkupState::Cdata { bracket_count: 0 },
            _ if byte == b'>' => MarkupState::Text,
            text if "--".starts_with(text) || "[CDATA[".starts_with(text) => return,
            _ => MarkupState::Ignored,
        };
    }

    fn read_tag_byte(&mut self, byte: u8) {
        match byte {
            b'>' => self.end_tag(),
            b'/' => self.end_attribute_with_slash(),
            b'=' if matches!(self.markup, MarkupState::AfterAttributeName(_)) => {
                let MarkupState::AfterAttributeName(name) =
                    std::mem::replace(&mut self.markup, MarkupState::InTag)
                else {
                    return;
                };
                self.markup = MarkupState::BeforeValue(name);
            }
            _ if byte.is_ascii_whitespace() => {}
            _ => {
                self.tag.ends_with_slash = false;
                self.markup = MarkupState::AttributeName(char::from(byte).to_string());
            }
        }
    }

    fn end_attribute_with_slash(&mut self) {
        self.tag.ends_with_slash = true;
        self.markup = MarkupState::InTag;
    }

    fn begin_value(&mut self, byte: u8) {
        let MarkupState::BeforeValue(name) = &self.markup else {
            return;
        };
        match byte {
            b'>' => self.end_tag(),
            _ if byte.is_ascii_whitespace() => {}
            b'"' | b'\'' => {
                self.markup =
                    MarkupState::Value { quote: Some(byte), kind: self.attribute_value_kind(name) };
            }
            _ => {
                self.markup =
                    MarkupState::Value { quote: None, kind: self.attribute_value_kind(name) };
                self.read_value_byte(byte);
            }
        }
    }

    fn read_value_byte(&mut self, byte: u8) {
        let MarkupState::Value { quote, kind } = &mut self.markup else {
            return;
        };
        let ends = match quote {
            Some(quote) => byte == *quote,
            None => byte == b'>' || byte.is_ascii_whitespace(),
        };
        if !ends {
            return match kind {
                AttributeValueKind::Url(address) => address.read_byte(byte),
                AttributeValueKind::CodeUrl(address) => address.read_byte(byte),
                AttributeValueKind::Srcset(pictures) => pictures.read_byte(byte),
                AttributeValueKind::Style(style) => style.read_byte(byte),
                AttributeValueKind::Tracked(_, text) => {
                    push_name_byte(text, byte.to_ascii_lowercase())
                }
                AttributeValueKind::Plain
                | AttributeValueKind::Content
                | AttributeValueKind::Refused(_) => {}
            };
        }
        let is_quoted = quote.is_some();
        if let AttributeValueKind::Tracked(fact, text) = kind {
            let text = text.trim().to_owned();
            match fact {
                TrackedAttribute::TypeOrRel => self.tag.type_or_rel = Some(text),
                TrackedAttribute::HttpEquiv => {
                    self.tag.is_refresh = text == "refresh" || text.contains(OUTPUT_PLACEHOLDER);
                }
            }
        }
        self.markup = MarkupState::InTag;
        if !is_quoted && byte == b'>' {
            self.end_tag();
        }
    }

    /// Reads the `>` of a tag.
    fn end_tag(&mut self) {
        let tag = &self.tag;
        if tag.is_refresh && tag.has_content_output {
            self.fault = Some("the target of a redirect cannot be output here; call `redirect`");
        }
        let has_own_rules = !tag.is_end && !self.is_xml;
        let is_empty = self.is_xml && tag.ends_with_slash;
        let end = String::new();
        self.markup = match tag.name.as_str() {
            "script" if !tag.is_end && !is_empty => {
                let is_known = is_known_script(tag.type_or_rel.as_deref());
                MarkupState::Script { script: ScriptState::new(), is_known, end }
            }
            "style" if !tag.is_end && !is_empty => {
                MarkupState::Style { style: StyleState::new(), end }
            }
            "title" | "textarea" if has_own_rules => MarkupState::RawText { end },
            name if has_own_rules && OPAQUE_ELEMENTS.contains(&name) => MarkupState::Opaque { end },
            _ => MarkupState::Text,
        };
        if tag.name == "noscript" && !self.is_xml {
            self.is_in_noscript = !tag.is_end;
        }
        // All text states are equal, so that branches that end in text agree.
        self.tag = match self.markup {
            MarkupState::Text => TagState::default(),
            _ => TagState { name: std::mem::take(&mut self.tag.name), ..TagState::default() },
        };
    }

    /// Reads a byte of an element that only its end tag ends.
    fn read_content_byte(&mut self, byte: u8) {
        let (MarkupState::RawText { end }
        | MarkupState::Opaque { end }
        | MarkupState::Script { end, .. }
        | MarkupState::Style { end, .. }) = &mut self.markup
        else {
            return;
        };
        let end_tag = format!("</{}", self.tag.name);
        let is_named = !self.tag.name.is_empty() && *end == end_tag;
        if is_named && (byte == b'>' || byte == b'/' || byte.is_ascii_whitespace()) {
            self.tag.is_end = true;
            self.markup = MarkupState::InTag;
            if byte == b'>' {
                self.end_tag();
            }
            return;
        }
        let lower = byte.to_ascii_lowercase();
        if !self.tag.name.is_empty() && end_tag.as_bytes().get(end.len()) == Some(&lower) {
            end.push(char::from(lower));
        } else {
            end.clear();
            if byte == b'<' && !self.tag.name.is_empty() {
                end.push('<');
            }
        }
        match &mut self.markup {
            MarkupState::Script { script, .. } => script.read_byte(byte),
            MarkupState::Style { style, .. } => style.read_byte(byte),
            _ => {}
        }
    }

    /// Records an output at this position and returns its escape.
    ///
    /// # Errors
    /// The reason why no output is allowed here.
    pub(super) fn apply_output(&mut self) -> Result<OutputEscape, &'static str> {
        match &mut self.markup {
            MarkupState::Text if self.is_in_noscript => Ok(OutputEscape::RawText),
            MarkupState::Text => Ok(OutputEscape::Text),
            MarkupState::Comment { dash_count } => {
                *dash_count = 0;
                Ok(OutputEscape::RawText)
            }
            MarkupState::TagBegin | MarkupState::EndTagBegin => {
                let is_end = self.markup == MarkupState::EndTagBegin;
                self.tag = TagState {
                    name: OUTPUT_PLACEHOLDER.to_string(),
                    is_end,
                    ..TagState::default()
                };
                self.markup = MarkupState::TagName;
                Ok(OutputEscape::TagName)
            }
            MarkupState::TagName if self.tag.name == "h" => {
                self.tag.name.push(OUTPUT_PLACEHOLDER);
                Ok(OutputEscape::HeadingLevel)
            }
            MarkupState::InTag | MarkupState::AfterAttributeName(_) => {
                self.markup = MarkupState::AttributeName(OUTPUT_PLACEHOLDER.to_string());
                Ok(OutputEscape::Flag)
            }
            MarkupState::AttributeName(name)
                if name.starts_with("data-") || name.starts_with("aria-") =>
            {
                push_name_byte(name, 0);
                Ok(OutputEscape::NamePart)
            }
            MarkupState::Value { quote: Some(_), .. } => self.apply_value_output(),
            MarkupState::BeforeValue(_) | MarkupState::Value { quote: None, .. } => {
                Err("an output in an attribute value needs quotes around the value")
            }
            MarkupState::RawText { end }
            | MarkupState::Opaque { end }
            | MarkupState::Script { end, .. }
            | MarkupState::Style { end, .. }
                if !end.is_empty() =>
            {
                Err("an output cannot be part of an end tag")
            }
            MarkupState::RawText { .. } => Ok(OutputEscape::RawText),
            MarkupState::Script { is_known: false, .. } => Err(
                "the language of a script of this type is not known, so nothing can be output in it",
            ),
            MarkupState::Script { script, .. } => Ok(script.apply_output()),
            MarkupState::Style { style, .. } => style.apply_output(),
            MarkupState::Opaque { .. } => Err("nothing can be output in this element"),
            MarkupState::TagName | MarkupState::AttributeName(_) => {
                Err("an output cannot be part of this name")
            }
            MarkupState::Declaration(_) | MarkupState::Ignored => {
                Err("nothing can be output in a declaration")
            }
            MarkupState::Cdata { .. } => Err("nothing can be output in a CDATA section"),
        }
    }

    fn apply_value_output(&mut self) -> Result<OutputEscape, &'static str> {
        let MarkupState::Value { kind, .. } = &mut self.markup else {
            return Ok(OutputEscape::Attribute);
        };
        match kind {
            AttributeValueKind::Plain => Ok(OutputEscape::Attribute),
            AttributeValueKind::Url(address) => Ok(OutputEscape::Url(address.apply_output()?)),
            AttributeValueKind::CodeUrl(address) => {
                Ok(OutputEscape::CodeUrl(address.apply_output()?))
            }
            AttributeValueKind::Srcset(pictures) => pictures.apply_output(),
            AttributeValueKind::Style(style) => style.apply_output(),
            AttributeValueKind::Tracked(_, text) => {
                if !text.ends_with(OUTPUT_PLACEHOLDER) {
                    text.push(OUTPUT_PLACEHOLDER);
                }
                Ok(OutputEscape::Attribute)
            }
            AttributeValueKind::Content => {
                self.tag.has_content_output = true;
                Ok(OutputEscape::Attribute)
            }
            AttributeValueKind::Refused(reason) => Err(reason),
        }
    }

    /// Returns the meaning of an attribute's value.
    fn attribute_value_kind(&self, name: &str) -> AttributeValueKind {
        let tag = self.tag.name.as_str();
        let is_animation = tag == "set" || tag.starts_with("animate");
        match (tag, name) {
            (_, name) if name.contains(OUTPUT_PLACEHOLDER) && !name.contains('-') => {
                AttributeValueKind::Refused(
                    "the name of this attribute contains an output, so its meaning is not known",
                )
            }
            (_, "srcdoc") => {
                AttributeValueKind::Refused("a document in an attribute cannot be output")
            }
            (_, "ping") => AttributeValueKind::Refused("a list of addresses cannot be output"),
            (_, name) if is_script_attribute(name) => AttributeValueKind::Refused(
                "this attribute runs as a script; put the value in a `data-` attribute and read it there",
            ),
            (_, "values" | "attributename") if is_animation => AttributeValueKind::Refused(
                "the values or the attribute name of an animation cannot be \
                    output",
            ),
            (_, "to" | "from" | "by") if is_animation => AttributeValueKind::Url(UrlState::new()),
            (_, "style") => AttributeValueKind::Style(StyleState::new()),
            (_, name) if name.ends_with("srcset") => AttributeValueKind::Srcset(SrcsetState::new()),
            ("script", "src" | "href" | "xlink:href")
            | ("embed", "src")
            | ("object", "data" | "codebase" | "classid" | "archive")
            | ("base", "href")
            | ("html", "manifest") => AttributeValueKind::CodeUrl(CodeUrlState::new()),
            ("link", "href") if !is_harmless_link(self.tag.type_or_rel.as_deref()) => {
                AttributeValueKind::CodeUrl(CodeUrlState::new())
            }
            ("script", "type") | ("link", "rel") => {
                AttributeValueKind::Tracked(TrackedAttribute::TypeOrRel, String::new())
            }
            ("meta", "http-equiv") => {
                AttributeValueKind::Tracked(TrackedAttribute::HttpEquiv, String::new())
            }
            ("meta", "content") if self.tag.is_refresh => AttributeValueKind::Refused(
                "the target of a redirect cannot be output here; call `redirect`",
            ),
            ("meta", "content") => AttributeValueKind::Content,
            (_, name) if is_url_attribute(name) => AttributeValueKind::Url(UrlState::new()),
            _ => AttributeValueKind::Plain,
        }
    }
}

/// Adds a byte to a name.
fn push_name_byte(name: &mut String, byte: u8) {
    if name.len() < MAX_NAME_LENGTH {
        name.push(char::from(byte));
    }
}

/// Returns true if browsers or common libraries run the value of an attribute.
fn is_script_attribute(name: &str) -> bool {
    let is_event = name.strip_prefix("on").is_some_and(|event| {
        !event.is_empty() && event.bytes().all(|byte| byte.is_ascii_alphanumeric())
    });
    is_event
        || name.starts_with(['@', ':', '(', '['])
        || ["v-", "x-", "ng-", "hx-on", "hx-vals"].iter().any(|prefix| name.starts_with(prefix))
}

/// Returns true if the value of an attribute is a URL.
fn is_url_attribute(name: &str) -> bool {
    const ADDRESSES: [&str; 18] = [
        "href",
        "xlink:href",
        "src",
        "action",
        "formaction",
        "poster",
        "cite",
        "background",
        "longdesc",
        "usemap",
        "data",
        "manifest",
        "icon",
        "codebase",
        "dynsrc",
        "lowsrc",
        "profile",
        "xml:base",
    ];
    // Scripts copy the values of such custom attributes to positions where they are followed.
    let is_own =
        name.contains('-') && ["src", "href", "url", "uri"].iter().any(|part| name.contains(part));
    ADDRESSES.contains(&name) || is_own
}

/// Returns true if links of this `rel` load neither code nor styles.
fn is_harmless_link(rel: Option<&str>) -> bool {
    const HARMLESS: [&str; 13] = [
        "alternate",
        "author",
        "canonical",
        "help",
        "icon",
        "apple-touch-icon",
        "license",
        "next",
        "prev",
        "search",
        "shortcut",
        "up",
        "mask-icon",
    ];
    rel.is_some_and(|rel| rel.split_ascii_whitespace().all(|token| HARMLESS.contains(&token)))
}

/// Returns true if a script of this `type` is JavaScript or JSON.
fn is_known_script(media_type: Option<&str>) -> bool {
    let Some(media_type) = media_type else {
        return true;
    };
    let essence = media_type.split(';').next().unwrap_or_default().trim();
    matches!(
        essence,
        "" | "module" | "text/javascript" | "application/javascript" | "application/json"
    ) || (essence.ends_with("+json") && !essence.contains(OUTPUT_PLACEHOLDER))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads a text in which `@` represents an output and returns the escape of the last one.
    #[track_caller]
    fn check(text: &str, expected: Result<OutputEscape, &str>) {
        let mut context = EscapeContext::html();
        let mut last = Err("nothing is put out");
        for byte in text.bytes() {
            match byte {
                b'@' => last = context.apply_output(),
                byte => context.read_byte(byte),
            }
        }
        match expected {
            Ok(_) => assert_eq!(last, expected, "{text}: {context:?}"),
            Err(part) => assert!(last.is_err_and(|error| error.contains(part)), "{text}: {last:?}"),
        }
    }

    #[test]
    fn knows_every_position() {
        use super::super::output_escape::UrlExtent;
        let whole = UrlExtent::Whole;
        check("<p>@", Ok(OutputEscape::Text));
        check("a < b @", Ok(OutputEscape::Text));
        check("<!-- @", Ok(OutputEscape::RawText));
        check("<!-- a --> @", Ok(OutputEscape::Text));
        check("<!-->@", Ok(OutputEscape::Text));
        check("<!-- a --!>@", Ok(OutputEscape::Text));
        check("<TITLE>@", Ok(OutputEscape::RawText));
        check("<textarea></textare>@", Ok(OutputEscape::RawText));
        check("<title>a</TITLE >@", Ok(OutputEscape::Text));
        check("<noscript>@", Ok(OutputEscape::RawText));
        check("<noscript></noscript>@", Ok(OutputEscape::Text));
        check("<p class=\"a @", Ok(OutputEscape::Attribute));
        check("<p class = '@", Ok(OutputEscape::Attribute));
        check("<p title='\">@", Ok(OutputEscape::Attribute));
        check("<p class=@", Err("quotes"));
        check("<p class=a@", Err("quotes"));
        check("<p @", Ok(OutputEscape::Flag));
        check("<p class='a'@", Ok(OutputEscape::Flag));
        check("<p @='x", Ok(OutputEscape::Flag));
        check("<p @='@", Err("name of this attribute"));
        check("<p data-@='@", Ok(OutputEscape::Attribute));
        check("<p cl@", Err("part of this name"));
        check("<h@", Ok(OutputEscape::HeadingLevel));
        check("</h@", Ok(OutputEscape::HeadingLevel));
        check("<@", Ok(OutputEscape::TagName));
        check("<@ class='@", Ok(OutputEscape::Attribute));
        check("<scr@", Err("part of this name"));
        check("<a href=\"@", Ok(OutputEscape::Url(whole)));
        check("<a\nHREF='/x?@", Ok(OutputEscape::Url(UrlExtent::SchemeSettled)));
        check("<a href='javascript:@", Err("scheme"));
        check("<img srcset='@", Ok(OutputEscape::Srcset));
        check("<p data-image-src='@", Ok(OutputEscape::Url(whole)));
        check("<p style='color: @", Ok(OutputEscape::Style));
        check("<style>a { color: @", Ok(OutputEscape::Style));
        check("<script>x = @", Ok(OutputEscape::Script));
        check("<script>x = '@", Ok(OutputEscape::ScriptText));
        check("<script>x = '</script>@", Ok(OutputEscape::Text));
        check("<script>x = '</scripty> @", Ok(OutputEscape::ScriptText));
        check("<script></scr@", Err("end tag"));
        check("<script type='application/ld+json'>@", Ok(OutputEscape::Script));
        check("<script type='text/template'>@", Err("type"));
        check("<script type='@'>@", Err("type"));
        check("<script src='@", Ok(OutputEscape::CodeUrl(whole)));
        check("<link rel='canonical' href='@", Ok(OutputEscape::Url(whole)));
        check("<link rel='stylesheet' href='@", Ok(OutputEscape::CodeUrl(whole)));
        check("<link href='@", Ok(OutputEscape::CodeUrl(whole)));
        check("<link rel='@' href='@", Ok(OutputEscape::CodeUrl(whole)));
        check("<p onclick='@", Err("runs as a script"));
        check("<p @click='@", Err(""));
        check("<iframe srcdoc='@", Err("document"));
        check("<iframe>@", Err("nothing can be output"));
        check("<!DOCTYPE @", Err("declaration"));
        check("<![CDATA[ @", Err("CDATA"));
        check("<?xml @", Err("declaration"));
        check("<meta name='x' content='@", Ok(OutputEscape::Attribute));
        check("<meta http-equiv='refresh' content='@", Err("redirect"));
        check("<svg><set to='@", Ok(OutputEscape::Url(whole)));
        check("<svg><animate values='@", Err("animation"));
    }

    #[test]
    fn a_refresh_is_found_after_its_target() {
        let mut context = EscapeContext::html();
        "<meta content='".bytes().for_each(|byte| context.read_byte(byte));
        context.apply_output().unwrap();
        "' http-equiv='Refresh'>".bytes().for_each(|byte| context.read_byte(byte));
        assert!(context.fault().is_some());
    }
}
