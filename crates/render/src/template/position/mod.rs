//! Escaping by position: where in an HTML document each output of a template stands, found before it ever runs.
//!
//! In: the texts of all templates. Out: for each the text to compile, in which every output that does not stand in
//! plain text has the filter of its position, or a [`Refusal`] with line and caret.
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
//! Not here: the escaping itself (`output`).

mod address;
mod code;
#[cfg(test)]
mod comparison;
mod html;
mod pass;
mod refusal;
mod rewrite;

pub(crate) use pass::analyze;
pub(crate) use refusal::Refusal;
pub(crate) use rewrite::Rewritten;

/// How an output is written at its position.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Escape {
    /// Between tags. The formatter does this; no filter is needed.
    Text,
    /// In an element or comment that holds text alone: what is HTML already loses its tags.
    TextAlone,
    /// In a quoted attribute without a meaning of its own.
    Attribute,
    /// In a URL that is followed or loaded.
    Url(Reach),
    /// In a URL whose target runs or decides what runs.
    CodeUrl(Reach),
    /// A list of pictures with their sizes.
    Pictures,
    /// In the URL of one picture of such a list.
    Picture(Reach),
    /// The size of one picture of such a list.
    Size,
    /// A value in a script.
    Script,
    /// Within a text, comment or pattern of a script.
    ScriptText,
    /// A value in a style.
    Style,
    /// Within a text or comment of a style.
    StyleText,
    /// In a URL of a style.
    StyleUrl(Reach),
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
pub(super) enum Reach {
    /// All of it, with the scheme.
    Whole,
    /// What follows a begin that leaves the scheme open.
    Open,
    /// What follows a begin that settled the scheme.
    Rest,
}

impl Escape {
    /// Every escape that has a filter.
    pub(super) const ALL: [Self; 24] = [
        Self::TextAlone,
        Self::Attribute,
        Self::Url(Reach::Whole),
        Self::Url(Reach::Open),
        Self::Url(Reach::Rest),
        Self::CodeUrl(Reach::Whole),
        Self::CodeUrl(Reach::Open),
        Self::CodeUrl(Reach::Rest),
        Self::Pictures,
        Self::Picture(Reach::Whole),
        Self::Picture(Reach::Open),
        Self::Picture(Reach::Rest),
        Self::Size,
        Self::Script,
        Self::ScriptText,
        Self::Style,
        Self::StyleText,
        Self::StyleUrl(Reach::Whole),
        Self::StyleUrl(Reach::Open),
        Self::StyleUrl(Reach::Rest),
        Self::TagName,
        Self::HeadingLevel,
        Self::Flag,
        Self::NamePart,
    ];

    /// Returns the name of the filter.
    pub(super) fn filter(self) -> &'static str {
        match self {
            Self::Text => "tympan_text",
            Self::TextAlone => "tympan_text_alone",
            Self::Attribute => "tympan_attribute",
            Self::Url(Reach::Whole) => "tympan_url",
            Self::Url(Reach::Open) => "tympan_url_open",
            Self::Url(Reach::Rest) => "tympan_url_rest",
            Self::CodeUrl(Reach::Whole) => "tympan_code_url",
            Self::CodeUrl(Reach::Open) => "tympan_code_url_open",
            Self::CodeUrl(Reach::Rest) => "tympan_code_url_rest",
            Self::Pictures => "tympan_pictures",
            Self::Picture(Reach::Whole) => "tympan_picture",
            Self::Picture(Reach::Open) => "tympan_picture_open",
            Self::Picture(Reach::Rest) => "tympan_picture_rest",
            Self::Size => "tympan_size",
            Self::Script => "tympan_script",
            Self::ScriptText => "tympan_script_text",
            Self::Style => "tympan_style",
            Self::StyleText => "tympan_style_text",
            Self::StyleUrl(Reach::Whole) => "tympan_style_url",
            Self::StyleUrl(Reach::Open) => "tympan_style_url_open",
            Self::StyleUrl(Reach::Rest) => "tympan_style_url_rest",
            Self::TagName => "tympan_tag_name",
            Self::HeadingLevel => "tympan_heading_level",
            Self::Flag => "tympan_flag",
            Self::NamePart => "tympan_name_part",
        }
    }

    /// Returns the escape that is right in both of two places, if there is one.
    fn join(self, other: Self) -> Option<Self> {
        match (self, other) {
            (one, same) if one == same => Some(one),
            (Self::Text, Self::TextAlone) | (Self::TextAlone, Self::Text) => Some(Self::TextAlone),
            // The check of a whole URL is the strictest, and what passes it is harmless further on too.
            (Self::Url(_), Self::Url(_)) => Some(Self::Url(Reach::Whole)),
            (Self::Picture(_), Self::Picture(_)) => Some(Self::Picture(Reach::Whole)),
            (Self::StyleUrl(_), Self::StyleUrl(_)) => Some(Self::StyleUrl(Reach::Whole)),
            _ => None,
        }
    }
}
