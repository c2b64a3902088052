//! The states of an HTML parser, as far as they decide how an output must be escaped.
//!
//! Follows the tokenizer of the HTML standard (13.2.5) with what tree construction adds for scripts, styles and other
//! elements that hold no markup. Names are kept in lower case.

use super::Escape;
use super::address::{Address, CodeAddress, Pictures};
use super::code::{Script, Style};

/// What stands for a part of a name that an output decides.
const PUT_OUT: char = '\0';

/// Names and facts longer than this are cut; none that matters is.
const LONGEST_NAME: usize = 48;

/// Elements whose content is neither markup nor understood here.
const OPAQUE: [&str; 5] = ["iframe", "xmp", "noembed", "noframes", "plaintext"];

/// One state of the parser.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Context {
    place: Place,
    tag: Tag,
    is_in_noscript: bool,
    /// XML has no elements of its own rules.
    is_xml: bool,
    /// What the text so far does that no output can make good.
    fault: Option<&'static str>,
}

/// The tag that is read.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Tag {
    name: String,
    is_end: bool,
    ends_with_slash: bool,
    /// The `type` of a script or the `rel` of a link.
    fact: Option<String>,
    is_refresh: bool,
    puts_out_content: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Place {
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
        dashes: u8,
    },
    Cdata {
        brackets: u8,
    },
    TagName,
    InTag,
    AttributeName(String),
    AfterAttributeName(String),
    BeforeValue(String),
    Value {
        quote: Option<u8>,
        kind: Kind,
    },
    /// Text alone, up to the end tag; `end` is what was read of it.
    TextAlone {
        end: String,
    },
    Opaque {
        end: String,
    },
    Script {
        script: Script,
        is_known: bool,
        end: String,
    },
    Style {
        style: Style,
        end: String,
    },
}

/// What the value of an attribute means.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Kind {
    Plain,
    Address(Address),
    Code(CodeAddress),
    Pictures(Pictures),
    Style(Style),
    /// Kept, as other attributes depend on it.
    Fact(Fact, String),
    Content,
    Refused(&'static str),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Fact {
    TypeOrRel,
    HttpEquiv,
}

impl Context {
    /// Returns where templates of HTML begin.
    pub(super) fn html() -> Self {
        Self {
            place: Place::Text,
            tag: Tag::default(),
            is_in_noscript: false,
            is_xml: false,
            fault: None,
        }
    }

    /// Returns where templates of XML begin.
    pub(super) fn xml() -> Self {
        Self { is_xml: true, ..Self::html() }
    }

    /// Returns where templates of scripts and JSON begin.
    pub(super) fn script() -> Self {
        let place = Place::Script { script: Script::new(), is_known: true, end: String::new() };
        Self { place, is_xml: true, ..Self::html() }
    }

    /// Returns where templates of styles begin.
    pub(super) fn style() -> Self {
        let place = Place::Style { style: Style::new(), end: String::new() };
        Self { place, is_xml: true, ..Self::html() }
    }

    /// Tells whether a template, capture or macro of the same language may end here.
    pub(super) fn is_at_rest(&self) -> bool {
        match &self.place {
            Place::Text => true,
            // Templates that are scripts or styles as a whole; those in HTML end with their element.
            Place::Script { script, .. } => self.tag.name.is_empty() && script.is_at_rest(),
            Place::Style { style, .. } => self.tag.name.is_empty() && style.is_at_rest(),
            _ => false,
        }
    }

    /// Returns what cannot be made good, if anything.
    pub(super) fn fault(&self) -> Option<&'static str> {
        self.fault
    }

    /// Says in words where this is.
    pub(super) fn describe(&self) -> String {
        let tag = self.tag.name.replace(PUT_OUT, "…");
        match &self.place {
            Place::Text => "text".to_owned(),
            Place::TagBegin | Place::EndTagBegin | Place::TagName => "the name of a tag".to_owned(),
            Place::Declaration(_) | Place::Ignored => "a declaration".to_owned(),
            Place::Comment { .. } => "a comment".to_owned(),
            Place::Cdata { .. } => "a CDATA section".to_owned(),
            Place::InTag | Place::AfterAttributeName(_) => format!("the tag `<{tag}>`"),
            Place::AttributeName(name) | Place::BeforeValue(name) => {
                format!("the attribute `{}` of `<{tag}>`", name.replace(PUT_OUT, "…"))
            }
            Place::Value { quote, .. } => {
                let quoted = if quote.is_some() { "a quoted" } else { "an unquoted" };
                format!("{quoted} value in `<{tag}>`")
            }
            Place::TextAlone { .. } | Place::Opaque { .. } => format!("the content of `<{tag}>`"),
            Place::Script { .. } => "a script".to_owned(),
            Place::Style { .. } => "a style".to_owned(),
        }
    }

    /// Reads a byte of static text.
    pub(super) fn step(&mut self, byte: u8) {
        let lower = byte.to_ascii_lowercase();
        match &mut self.place {
            Place::Text if byte == b'<' => self.place = Place::TagBegin,
            Place::Text => {}
            Place::TagBegin => self.begin_tag(lower),
            Place::EndTagBegin => self.begin_end_tag(lower),
            Place::Declaration(_) => self.step_declaration(byte),
            Place::Ignored if byte == b'>' => self.place = Place::Text,
            Place::Ignored => {}
            Place::Comment { dashes } => match byte {
                b'>' if *dashes >= 2 => self.place = Place::Text,
                b'-' => *dashes = (*dashes + 1).min(2),
                b'!' if *dashes >= 2 => {}
                _ => *dashes = 0,
            },
            Place::Cdata { brackets } => match byte {
                b'>' if *brackets >= 2 => self.place = Place::Text,
                b']' => *brackets = (*brackets + 1).min(2),
                _ => *brackets = 0,
            },
            Place::TagName => match byte {
                b'>' => self.end_tag(),
                b'/' => self.slash(),
                _ if byte.is_ascii_whitespace() => self.place = Place::InTag,
                _ => push(&mut self.tag.name, lower),
            },
            Place::InTag | Place::AfterAttributeName(_) => self.step_between(lower),
            Place::AttributeName(name) => match byte {
                b'>' => self.end_tag(),
                b'/' => self.slash(),
                b'=' => self.place = Place::BeforeValue(std::mem::take(name)),
                _ if byte.is_ascii_whitespace() => {
                    self.place = Place::AfterAttributeName(std::mem::take(name));
                }
                _ => push(name, lower),
            },
            Place::BeforeValue(_) => self.begin_value(byte),
            Place::Value { .. } => self.step_value(byte),
            Place::TextAlone { .. }
            | Place::Opaque { .. }
            | Place::Script { .. }
            | Place::Style { .. } => self.step_content(byte),
        }
    }

    fn begin_tag(&mut self, byte: u8) {
        match byte {
            b'a'..=b'z' => {
                self.tag = Tag { name: char::from(byte).to_string(), ..Tag::default() };
                self.place = Place::TagName;
            }
            b'/' => self.place = Place::EndTagBegin,
            b'!' => self.place = Place::Declaration(String::new()),
            b'?' => self.place = Place::Ignored,
            b'<' => {}
            _ => self.place = Place::Text,
        }
    }

    fn begin_end_tag(&mut self, byte: u8) {
        match byte {
            b'a'..=b'z' => {
                let name = char::from(byte).to_string();
                self.tag = Tag { name, is_end: true, ..Tag::default() };
                self.place = Place::TagName;
            }
            b'>' => self.place = Place::Text,
            _ => self.place = Place::Ignored,
        }
    }

    fn step_declaration(&mut self, byte: u8) {
        let Place::Declaration(text) = &mut self.place else {
            return;
        };
        text.push(char::from(byte));
        self.place = match text.as_str() {
            // `<!-->` and `<!--->` are whole comments.
            "--" => Place::Comment { dashes: 2 },
            "[CDATA[" => Place::Cdata { brackets: 0 },
            _ if byte == b'>' => Place::Text,
            text if "--".starts_with(text) || "[CDATA[".starts_with(text) => return,
            _ => Place::Ignored,
        };
    }

    fn step_between(&mut self, byte: u8) {
        match byte {
            b'>' => self.end_tag(),
            b'/' => self.slash(),
            b'=' if matches!(self.place, Place::AfterAttributeName(_)) => {
                let Place::AfterAttributeName(name) =
                    std::mem::replace(&mut self.place, Place::InTag)
                else {
                    return;
                };
                self.place = Place::BeforeValue(name);
            }
            _ if byte.is_ascii_whitespace() => {}
            _ => {
                self.tag.ends_with_slash = false;
                self.place = Place::AttributeName(char::from(byte).to_string());
            }
        }
    }

    fn slash(&mut self) {
        self.tag.ends_with_slash = true;
        self.place = Place::InTag;
    }

    fn begin_value(&mut self, byte: u8) {
        let Place::BeforeValue(name) = &self.place else {
            return;
        };
        match byte {
            b'>' => self.end_tag(),
            _ if byte.is_ascii_whitespace() => {}
            b'"' | b'\'' => {
                self.place = Place::Value { quote: Some(byte), kind: self.kind_of(name) };
            }
            _ => {
                self.place = Place::Value { quote: None, kind: self.kind_of(name) };
                self.step_value(byte);
            }
        }
    }

    fn step_value(&mut self, byte: u8) {
        let Place::Value { quote, kind } = &mut self.place else {
            return;
        };
        let ends = match quote {
            Some(quote) => byte == *quote,
            None => byte == b'>' || byte.is_ascii_whitespace(),
        };
        if !ends {
            return match kind {
                Kind::Address(address) => address.step(byte),
                Kind::Code(address) => address.step(byte),
                Kind::Pictures(pictures) => pictures.step(byte),
                Kind::Style(style) => style.step(byte),
                Kind::Fact(_, text) => push(text, byte.to_ascii_lowercase()),
                Kind::Plain | Kind::Content | Kind::Refused(_) => {}
            };
        }
        let is_quoted = quote.is_some();
        if let Kind::Fact(fact, text) = kind {
            let text = text.trim().to_owned();
            match fact {
                Fact::TypeOrRel => self.tag.fact = Some(text),
                Fact::HttpEquiv => {
                    self.tag.is_refresh = text == "refresh" || text.contains(PUT_OUT);
                }
            }
        }
        self.place = Place::InTag;
        if !is_quoted && byte == b'>' {
            self.end_tag();
        }
    }

    /// Reads the `>` of a tag.
    fn end_tag(&mut self) {
        let tag = &self.tag;
        if tag.is_refresh && tag.puts_out_content {
            self.fault = Some("where a page forwards to cannot be put out here; call `redirect`");
        }
        let has_own_rules = !tag.is_end && !self.is_xml;
        let is_empty = self.is_xml && tag.ends_with_slash;
        let end = String::new();
        self.place = match tag.name.as_str() {
            "script" if !tag.is_end && !is_empty => {
                let is_known = is_known_script(tag.fact.as_deref());
                Place::Script { script: Script::new(), is_known, end }
            }
            "style" if !tag.is_end && !is_empty => Place::Style { style: Style::new(), end },
            "title" | "textarea" if has_own_rules => Place::TextAlone { end },
            name if has_own_rules && OPAQUE.contains(&name) => Place::Opaque { end },
            _ => Place::Text,
        };
        if tag.name == "noscript" && !self.is_xml {
            self.is_in_noscript = !tag.is_end;
        }
        // All texts are alike, so that branches that end in text agree.
        self.tag = match self.place {
            Place::Text => Tag::default(),
            _ => Tag { name: std::mem::take(&mut self.tag.name), ..Tag::default() },
        };
    }

    /// Reads a byte of an element that ends with its end tag alone.
    fn step_content(&mut self, byte: u8) {
        let (Place::TextAlone { end }
        | Place::Opaque { end }
        | Place::Script { end, .. }
        | Place::Style { end, .. }) = &mut self.place
        else {
            return;
        };
        let wanted = format!("</{}", self.tag.name);
        let is_named = !self.tag.name.is_empty() && *end == wanted;
        if is_named && (byte == b'>' || byte == b'/' || byte.is_ascii_whitespace()) {
            self.tag.is_end = true;
            self.place = Place::InTag;
            if byte == b'>' {
                self.end_tag();
            }
            return;
        }
        let lower = byte.to_ascii_lowercase();
        if !self.tag.name.is_empty() && wanted.as_bytes().get(end.len()) == Some(&lower) {
            end.push(char::from(lower));
        } else {
            end.clear();
            if byte == b'<' && !self.tag.name.is_empty() {
                end.push('<');
            }
        }
        match &mut self.place {
            Place::Script { script, .. } => script.step(byte),
            Place::Style { style, .. } => style.step(byte),
            _ => {}
        }
    }

    /// Notes that something is put out here and returns how it is escaped.
    ///
    /// # Errors
    /// Why nothing can be put out here.
    pub(super) fn put_out(&mut self) -> Result<Escape, &'static str> {
        match &mut self.place {
            Place::Text if self.is_in_noscript => Ok(Escape::TextAlone),
            Place::Text => Ok(Escape::Text),
            Place::Comment { dashes } => {
                *dashes = 0;
                Ok(Escape::TextAlone)
            }
            Place::TagBegin | Place::EndTagBegin => {
                let is_end = self.place == Place::EndTagBegin;
                self.tag = Tag { name: PUT_OUT.to_string(), is_end, ..Tag::default() };
                self.place = Place::TagName;
                Ok(Escape::TagName)
            }
            Place::TagName if self.tag.name == "h" => {
                self.tag.name.push(PUT_OUT);
                Ok(Escape::HeadingLevel)
            }
            Place::InTag | Place::AfterAttributeName(_) => {
                self.place = Place::AttributeName(PUT_OUT.to_string());
                Ok(Escape::Flag)
            }
            Place::AttributeName(name)
                if name.starts_with("data-") || name.starts_with("aria-") =>
            {
                push(name, 0);
                Ok(Escape::NamePart)
            }
            Place::Value { quote: Some(_), .. } => self.put_out_value(),
            Place::BeforeValue(_) | Place::Value { quote: None, .. } => {
                Err("an output in a value needs quotes around the value")
            }
            Place::TextAlone { end }
            | Place::Opaque { end }
            | Place::Script { end, .. }
            | Place::Style { end, .. }
                if !end.is_empty() =>
            {
                Err("an output cannot be a part of an end tag")
            }
            Place::TextAlone { .. } => Ok(Escape::TextAlone),
            Place::Script { is_known: false, .. } => Err(
                "what reads a script of this type is not known, so nothing can be put out in it",
            ),
            Place::Script { script, .. } => Ok(script.put_out()),
            Place::Style { style, .. } => style.put_out(),
            Place::Opaque { .. } => Err("nothing can be put out in this element"),
            Place::TagName | Place::AttributeName(_) => {
                Err("an output cannot be a part of this name")
            }
            Place::Declaration(_) | Place::Ignored => {
                Err("nothing can be put out in a declaration")
            }
            Place::Cdata { .. } => Err("nothing can be put out in a CDATA section"),
        }
    }

    fn put_out_value(&mut self) -> Result<Escape, &'static str> {
        let Place::Value { kind, .. } = &mut self.place else {
            return Ok(Escape::Attribute);
        };
        match kind {
            Kind::Plain => Ok(Escape::Attribute),
            Kind::Address(address) => Ok(Escape::Url(address.put_out()?)),
            Kind::Code(address) => Ok(Escape::CodeUrl(address.put_out()?)),
            Kind::Pictures(pictures) => pictures.put_out(),
            Kind::Style(style) => style.put_out(),
            Kind::Fact(_, text) => {
                if !text.ends_with(PUT_OUT) {
                    text.push(PUT_OUT);
                }
                Ok(Escape::Attribute)
            }
            Kind::Content => {
                self.tag.puts_out_content = true;
                Ok(Escape::Attribute)
            }
            Kind::Refused(reason) => Err(reason),
        }
    }

    /// Finds out what the value of an attribute means.
    fn kind_of(&self, name: &str) -> Kind {
        let tag = self.tag.name.as_str();
        let is_animation = tag == "set" || tag.starts_with("animate");
        match (tag, name) {
            (_, name) if name.contains(PUT_OUT) && !name.contains('-') => {
                Kind::Refused("the name of this attribute is put out, so its meaning is not known")
            }
            (_, "srcdoc") => Kind::Refused("a document within an attribute cannot be put out"),
            (_, "ping") => Kind::Refused("a list of addresses cannot be put out"),
            (_, name) if is_handler(name) => Kind::Refused(
                "this attribute runs as a script; put the value in a `data-` attribute and read it there",
            ),
            (_, "values" | "attributename") if is_animation => {
                Kind::Refused("what an animation changes cannot be put out")
            }
            (_, "to" | "from" | "by") if is_animation => Kind::Address(Address::new()),
            (_, "style") => Kind::Style(Style::new()),
            (_, name) if name.ends_with("srcset") => Kind::Pictures(Pictures::new()),
            ("script", "src" | "href" | "xlink:href")
            | ("embed", "src")
            | ("object", "data" | "codebase" | "classid" | "archive")
            | ("base", "href")
            | ("html", "manifest") => Kind::Code(CodeAddress::new()),
            ("link", "href") if !is_harmless_link(self.tag.fact.as_deref()) => {
                Kind::Code(CodeAddress::new())
            }
            ("script", "type") | ("link", "rel") => Kind::Fact(Fact::TypeOrRel, String::new()),
            ("meta", "http-equiv") => Kind::Fact(Fact::HttpEquiv, String::new()),
            ("meta", "content") if self.tag.is_refresh => {
                Kind::Refused("where a page forwards to cannot be put out here; call `redirect`")
            }
            ("meta", "content") => Kind::Content,
            (_, name) if is_address(name) => Kind::Address(Address::new()),
            _ => Kind::Plain,
        }
    }
}

/// Adds a byte to a name.
fn push(name: &mut String, byte: u8) {
    if name.len() < LONGEST_NAME {
        name.push(char::from(byte));
    }
}

/// Tells whether the value of an attribute is run, by browsers or by the usual libraries.
fn is_handler(name: &str) -> bool {
    let is_event = name.strip_prefix("on").is_some_and(|event| {
        !event.is_empty() && event.bytes().all(|byte| byte.is_ascii_alphanumeric())
    });
    is_event
        || name.starts_with(['@', ':', '(', '['])
        || ["v-", "x-", "ng-", "hx-on", "hx-vals"].iter().any(|prefix| name.starts_with(prefix))
}

/// Tells whether the value of an attribute is a URL.
fn is_address(name: &str) -> bool {
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
    // Scripts copy what such attributes of their own hold to where it is followed.
    let is_own =
        name.contains('-') && ["src", "href", "url", "uri"].iter().any(|part| name.contains(part));
    ADDRESSES.contains(&name) || is_own
}

/// Tells whether links of this `rel` load nothing that runs or styles.
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
    rel.is_some_and(|rel| rel.split_ascii_whitespace().all(|word| HARMLESS.contains(&word)))
}

/// Tells whether a script of this `type` is JavaScript or JSON.
fn is_known_script(media_type: Option<&str>) -> bool {
    let Some(media_type) = media_type else {
        return true;
    };
    let essence = media_type.split(';').next().unwrap_or_default().trim();
    matches!(
        essence,
        "" | "module" | "text/javascript" | "application/javascript" | "application/json"
    ) || (essence.ends_with("+json") && !essence.contains(PUT_OUT))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads a text in which `@` stands for an output and returns the escape of the last one.
    #[track_caller]
    fn check(text: &str, expected: Result<Escape, &str>) {
        let mut context = Context::html();
        let mut last = Err("nothing is put out");
        for byte in text.bytes() {
            match byte {
                b'@' => last = context.put_out(),
                byte => context.step(byte),
            }
        }
        match expected {
            Ok(_) => assert_eq!(last, expected, "{text}: {context:?}"),
            Err(part) => assert!(last.is_err_and(|error| error.contains(part)), "{text}: {last:?}"),
        }
    }

    #[test]
    fn knows_every_position() {
        use super::super::Reach;
        let whole = Reach::Whole;
        check("<p>@", Ok(Escape::Text));
        check("a < b @", Ok(Escape::Text));
        check("<!-- @", Ok(Escape::TextAlone));
        check("<!-- a --> @", Ok(Escape::Text));
        check("<!-->@", Ok(Escape::Text));
        check("<!-- a --!>@", Ok(Escape::Text));
        check("<TITLE>@", Ok(Escape::TextAlone));
        check("<textarea></textare>@", Ok(Escape::TextAlone));
        check("<title>a</TITLE >@", Ok(Escape::Text));
        check("<noscript>@", Ok(Escape::TextAlone));
        check("<noscript></noscript>@", Ok(Escape::Text));
        check("<p class=\"a @", Ok(Escape::Attribute));
        check("<p class = '@", Ok(Escape::Attribute));
        check("<p title='\">@", Ok(Escape::Attribute));
        check("<p class=@", Err("quotes"));
        check("<p class=a@", Err("quotes"));
        check("<p @", Ok(Escape::Flag));
        check("<p class='a'@", Ok(Escape::Flag));
        check("<p @='x", Ok(Escape::Flag));
        check("<p @='@", Err("name of this attribute"));
        check("<p data-@='@", Ok(Escape::Attribute));
        check("<p cl@", Err("part of this name"));
        check("<h@", Ok(Escape::HeadingLevel));
        check("</h@", Ok(Escape::HeadingLevel));
        check("<@", Ok(Escape::TagName));
        check("<@ class='@", Ok(Escape::Attribute));
        check("<scr@", Err("part of this name"));
        check("<a href=\"@", Ok(Escape::Url(whole)));
        check("<a\nHREF='/x?@", Ok(Escape::Url(Reach::Rest)));
        check("<a href='javascript:@", Err("scheme"));
        check("<img srcset='@", Ok(Escape::Pictures));
        check("<p data-image-src='@", Ok(Escape::Url(whole)));
        check("<p style='color: @", Ok(Escape::Style));
        check("<style>a { color: @", Ok(Escape::Style));
        check("<script>x = @", Ok(Escape::Script));
        check("<script>x = '@", Ok(Escape::ScriptText));
        check("<script>x = '</script>@", Ok(Escape::Text));
        check("<script>x = '</scripty> @", Ok(Escape::ScriptText));
        check("<script></scr@", Err("end tag"));
        check("<script type='application/ld+json'>@", Ok(Escape::Script));
        check("<script type='text/template'>@", Err("type"));
        check("<script type='@'>@", Err("type"));
        check("<script src='@", Ok(Escape::CodeUrl(whole)));
        check("<link rel='canonical' href='@", Ok(Escape::Url(whole)));
        check("<link rel='stylesheet' href='@", Ok(Escape::CodeUrl(whole)));
        check("<link href='@", Ok(Escape::CodeUrl(whole)));
        check("<link rel='@' href='@", Ok(Escape::CodeUrl(whole)));
        check("<p onclick='@", Err("runs as a script"));
        check("<p @click='@", Err(""));
        check("<iframe srcdoc='@", Err("document"));
        check("<iframe>@", Err("nothing can be put out"));
        check("<!DOCTYPE @", Err("declaration"));
        check("<![CDATA[ @", Err("CDATA"));
        check("<?xml @", Err("declaration"));
        check("<meta name='x' content='@", Ok(Escape::Attribute));
        check("<meta http-equiv='refresh' content='@", Err("redirect"));
        check("<svg><set to='@", Ok(Escape::Url(whole)));
        check("<svg><animate values='@", Err("animation"));
    }

    #[test]
    fn a_refresh_is_found_after_its_target() {
        let mut context = Context::html();
        "<meta content='".bytes().for_each(|byte| context.step(byte));
        context.put_out().unwrap();
        "' http-equiv='Refresh'>".bytes().for_each(|byte| context.step(byte));
        assert!(context.fault().is_some());
    }
}
