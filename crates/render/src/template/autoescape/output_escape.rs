//! The escapes of outputs, by position.

/// The escape of an output at its position.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum OutputEscape {
    /// Between tags. The formatter does this; no filter is needed.
    Text,
    /// In an element or comment that contains only text: existing HTML loses its tags.
    RawText,
    /// In a quoted attribute without a special meaning.
    Attribute,
    /// In a URL that is followed or loaded.
    Url(UrlExtent),
    /// In a URL whose target runs or decides what runs.
    CodeUrl(UrlExtent),
    /// A list of images with their sizes.
    Srcset,
    /// In the URL of one image of such a list.
    SrcsetUrl(UrlExtent),
    /// The size of one image of such a list.
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

/// The part of a URL that an output provides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum UrlExtent {
    /// The whole URL, including the scheme.
    Whole,
    /// The part after a prefix that leaves the scheme open.
    SchemeOpen,
    /// The part after a prefix that determines the scheme.
    SchemeSettled,
}

impl OutputEscape {
    /// Every escape that has a filter.
    pub(crate) const ALL_FILTERED: [Self; 24] = [
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
    pub(crate) fn filter_name(self) -> &'static str {
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

    /// Returns the escape that is correct at both positions; `None` if there is none.
    pub(super) fn join_escape(self, other: Self) -> Option<Self> {
        match (self, other) {
            (escape, same) if escape == same => Some(escape),
            (Self::Text, Self::RawText) | (Self::RawText, Self::Text) => Some(Self::RawText),
            // The check of a whole URL is the strictest, and its result is harmless after a prefix, too.
            (Self::Url(_), Self::Url(_)) => Some(Self::Url(UrlExtent::Whole)),
            (Self::SrcsetUrl(_), Self::SrcsetUrl(_)) => Some(Self::SrcsetUrl(UrlExtent::Whole)),
            (Self::StyleUrl(_), Self::StyleUrl(_)) => Some(Self::StyleUrl(UrlExtent::Whole)),
            _ => None,
        }
    }
}
