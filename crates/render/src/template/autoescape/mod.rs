//! Escaping by position: where in an HTML document each output of a template stands, found before it ever runs.
//!
//! In: the texts of all templates. Out: for each the text to compile, in which every output that does not stand in
//! plain text has the filter of its position, or a [`TemplateRefusal`] with line and caret.
//!
//! A pass over the syntax tree carries the states that an HTML parser can be in (`html`, with `code` for scripts and
//! styles and `address` for URLs) through branches, loops, captures, macros, blocks and includes. Where branches leave
//! several states, all of them are followed; they must agree where something is put out.
//!
//! Invariants
//! * An output is escaped for every state in which it can be reached, or the template is refused.
//! * Captures, macros and templates begin and end in plain text, so their results are HTML wherever they go; a template
//!   that is included inside a tag is compiled once more for that place.
//!
//! Not here: the escaping itself (`output_filter`).

mod analysis;
mod code_state;
mod context;
#[cfg(test)]
mod pass_comparison;
mod refusal;
mod rewrite;
mod url_state;

pub(crate) use analysis::analyze_templates;
pub(crate) use refusal::TemplateRefusal;
pub(crate) use rewrite::RewrittenTemplate;

/// How an output is written at its position.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum OutputEscape {
    /// Between tags. The formatter does this; no filter is needed.
    Text,
    /// In an element or comment that holds text alone: what is HTML already loses its tags.
    RawText,
    /// In a quoted attribute without a meaning of its own.
    Attribute,
    /// In a URL that is followed or loaded.
    Url(UrlExtent),
    /// In a URL whose target runs or decides what runs.
    CodeUrl(UrlExtent),
    /// A list of pictures with their sizes.
    Srcset,
    /// In the URL of one picture of such a list.
    SrcsetUrl(UrlExtent),
    /// The size of one picture of such a list.
    SrcsetSize,
    /// A value in a script.
    Script,
    /// Within a text, comment or pattern of a script.
    ScriptText,
    /// A value in a style.
    Style,
    /// Within a text or comment of a style.
    StyleText,
    /// In a URL of a style.
    StyleUrl(UrlExtent),
    /// The name of an element.
    TagName,
    /// The digit in the name of a heading.
    HeadingLevel,
    /// An attribute without a value, such as `checked`.
    Flag,
    /// A part of the name of a `data-` or `aria-` attribute.
    NamePart,
}

/// How much of a URL an output can decide.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum UrlExtent {
    /// All of it, with the scheme.
    Whole,
    /// What follows a begin that leaves the scheme open.
    SchemeOpen,
    /// What follows a begin that settled the scheme.
    SchemeSettled,
}

impl OutputEscape {
    /// Every escape that has a filter.
    pub(super) const ALL_FILTERED: [Self; 24] = [
        Self::RawText,
        Self::Attribute,
        Self::Url(UrlExtent::Whole),
        Self::Url(UrlExtent::SchemeOpen),
        Self::Url(UrlExtent::SchemeSettled),
        Self::CodeUrl(UrlExtent::Whole),
        Self::CodeUrl(UrlExtent::SchemeOpen),
        Self::CodeUrl(UrlExtent::SchemeSettled),
        Self::Srcset,
        Self::SrcsetUrl(UrlExtent::Whole),
        Self::SrcsetUrl(UrlExtent::SchemeOpen),
        Self::SrcsetUrl(UrlExtent::SchemeSettled),
        Self::SrcsetSize,
        Self::Script,
        Self::ScriptText,
        Self::Style,
        Self::StyleText,
        Self::StyleUrl(UrlExtent::Whole),
        Self::StyleUrl(UrlExtent::SchemeOpen),
        Self::StyleUrl(UrlExtent::SchemeSettled),
        Self::TagName,
        Self::HeadingLevel,
        Self::Flag,
        Self::NamePart,
    ];

    /// Returns the name of the filter.
    pub(super) fn filter_name(self) -> &'static str {
        match self {
            Self::Text => "tympan_text",
            Self::RawText => "tympan_text_alone",
            Self::Attribute => "tympan_attribute",
            Self::Url(UrlExtent::Whole) => "tympan_url",
            Self::Url(UrlExtent::SchemeOpen) => "tympan_url_open",
            Self::Url(UrlExtent::SchemeSettled) => "tympan_url_rest",
            Self::CodeUrl(UrlExtent::Whole) => "tympan_code_url",
            Self::CodeUrl(UrlExtent::SchemeOpen) => "tympan_code_url_open",
            Self::CodeUrl(UrlExtent::SchemeSettled) => "tympan_code_url_rest",
            Self::Srcset => "tympan_pictures",
            Self::SrcsetUrl(UrlExtent::Whole) => "tympan_picture",
            Self::SrcsetUrl(UrlExtent::SchemeOpen) => "tympan_picture_open",
            Self::SrcsetUrl(UrlExtent::SchemeSettled) => "tympan_picture_rest",
            Self::SrcsetSize => "tympan_size",
            Self::Script => "tympan_script",
            Self::ScriptText => "tympan_script_text",
            Self::Style => "tympan_style",
            Self::StyleText => "tympan_style_text",
            Self::StyleUrl(UrlExtent::Whole) => "tympan_style_url",
            Self::StyleUrl(UrlExtent::SchemeOpen) => "tympan_style_url_open",
            Self::StyleUrl(UrlExtent::SchemeSettled) => "tympan_style_url_rest",
            Self::TagName => "tympan_tag_name",
            Self::HeadingLevel => "tympan_heading_level",
            Self::Flag => "tympan_flag",
            Self::NamePart => "tympan_name_part",
        }
    }

    /// Returns the escape that is right in both of two places, if there is one.
    fn join_escape(self, other: Self) -> Option<Self> {
        match (self, other) {
            (one, same) if one == same => Some(one),
            (Self::Text, Self::RawText) | (Self::RawText, Self::Text) => Some(Self::RawText),
            // The check of a whole URL is the strictest, and what passes it is harmless further on too.
            (Self::Url(_), Self::Url(_)) => Some(Self::Url(UrlExtent::Whole)),
            (Self::SrcsetUrl(_), Self::SrcsetUrl(_)) => Some(Self::SrcsetUrl(UrlExtent::Whole)),
            (Self::StyleUrl(_), Self::StyleUrl(_)) => Some(Self::StyleUrl(UrlExtent::Whole)),
            _ => None,
        }
    }
}
