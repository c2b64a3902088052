//! Character sets by their Java names: of data files, of forms and request bodies, and of responses.

use std::borrow::Cow;

use encoding_rs::{
    BIG5, EUC_JP, EUC_KR, Encoding, GB18030, GBK, ISO_8859_2, ISO_8859_5, ISO_8859_7, ISO_8859_15,
    KOI8_R, SHIFT_JIS, UTF_8, WINDOWS_1250, WINDOWS_1251, WINDOWS_1252, WINDOWS_1253, WINDOWS_1254,
    WINDOWS_1255, WINDOWS_1256, WINDOWS_1257, WINDOWS_1258,
};

/// Java's names, each with lowercase aliases, and the encoding.
const NAMED_CHARSETS: [(&str, &[&str], &Encoding); 22] = [
    ("windows-1250", &["cp1250"], WINDOWS_1250),
    ("windows-1251", &["cp1251"], WINDOWS_1251),
    ("windows-1252", &["cp1252"], WINDOWS_1252),
    ("windows-1253", &["cp1253"], WINDOWS_1253),
    ("windows-1254", &["cp1254"], WINDOWS_1254),
    ("windows-1255", &["cp1255"], WINDOWS_1255),
    ("windows-1256", &["cp1256"], WINDOWS_1256),
    ("windows-1257", &["cp1257"], WINDOWS_1257),
    ("windows-1258", &["cp1258"], WINDOWS_1258),
    ("ISO-8859-2", &["iso8859_2", "iso8859-2", "latin2"], ISO_8859_2),
    ("ISO-8859-5", &["iso8859_5", "iso8859-5"], ISO_8859_5),
    ("ISO-8859-7", &["iso8859_7", "iso8859-7"], ISO_8859_7),
    ("ISO-8859-15", &["iso8859_15", "iso8859-15", "latin9", "latin-9"], ISO_8859_15),
    ("KOI8-R", &["koi8_r", "koi8"], KOI8_R),
    ("GBK", &["cp936", "windows-936"], GBK),
    ("GB2312", &["gb2312-80", "euc-cn", "euc_cn"], GBK),
    ("GB18030", &[], GB18030),
    ("Big5", &["csbig5"], BIG5),
    ("EUC-KR", &["euckr", "euc_kr", "ks_c_5601-1987"], EUC_KR),
    ("EUC-JP", &["eucjp", "euc_jp"], EUC_JP),
    ("Shift_JIS", &["sjis", "shift-jis", "ms_kanji"], SHIFT_JIS),
    ("windows-31j", &["ms932", "cp932"], SHIFT_JIS),
];

/// A character set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum JavaCharset {
    #[default]
    Utf8,
    Latin1,
    Ascii,
    /// One of `NAMED_CHARSETS`, by Java's name.
    Named(&'static str, &'static Encoding),
}

impl JavaCharset {
    /// Finds a charset by its name; an empty name means UTF-8.
    pub(crate) fn find(name: &str) -> Option<Self> {
        let name = name.trim().to_ascii_lowercase();
        Some(match name.as_str() {
            "" | "utf-8" | "utf8" => Self::Utf8,
            "us-ascii" | "ascii" => Self::Ascii,
            "iso-8859-1" | "iso8859-1" | "iso8859_1" | "iso_8859-1" | "latin1" => Self::Latin1,
            name => {
                let charset = NAMED_CHARSETS.iter().find(|(java, others, _)| {
                    java.eq_ignore_ascii_case(name) || others.contains(&name)
                });
                charset.map(|(java, _, encoding)| Self::Named(java, encoding))?
            }
        })
    }

    /// Returns Java's name of the charset.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Utf8 => UTF_8.name(),
            Self::Latin1 => "ISO-8859-1",
            Self::Ascii => "US-ASCII",
            Self::Named(name, _) => name,
        }
    }

    /// Decodes bytes; invalid bytes become a replacement character.
    pub(crate) fn decode(self, bytes: &[u8]) -> Cow<'_, str> {
        match self {
            Self::Utf8 => String::from_utf8_lossy(bytes),
            Self::Latin1 => bytes.iter().map(|&byte| char::from(byte)).collect(),
            Self::Ascii => bytes
                .iter()
                .map(|&byte| if byte.is_ascii() { char::from(byte) } else { '\u{fffd}' })
                .collect(),
            Self::Named(_, encoding) => encoding.decode_without_bom_handling(bytes).0,
        }
    }

    /// Encodes a text; a character outside the charset becomes a question mark, as in Java.
    pub(crate) fn encode(self, text: &str) -> Cow<'_, [u8]> {
        if self == Self::Utf8 || text.is_ascii() {
            return Cow::Borrowed(text.as_bytes());
        }
        let mut bytes = Vec::with_capacity(text.len());
        let mut buffer = [0; 4];
        for letter in text.chars() {
            match self {
                Self::Latin1 => bytes.push(u8::try_from(u32::from(letter)).unwrap_or(b'?')),
                Self::Named(_, encoding) => {
                    let (written, _, has_failed) = encoding.encode(letter.encode_utf8(&mut buffer));
                    if has_failed {
                        bytes.push(b'?');
                    } else {
                        bytes.extend_from_slice(&written);
                    }
                }
                Self::Utf8 | Self::Ascii => {
                    bytes.push(u8::try_from(letter).ok().filter(u8::is_ascii).unwrap_or(b'?'));
                }
            }
        }
        Cow::Owned(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_written_and_read_by_javas_names() {
        for (name, java, text, bytes) in [
            ("", "UTF-8", "ü", &b"\xc3\xbc"[..]),
            ("ISO8859_1", "ISO-8859-1", "ü€", b"\xfc?"),
            ("Cp1252", "windows-1252", "ü€", b"\xfc\x80"),
            ("us-ascii", "US-ASCII", "aü", b"a?"),
            ("gb2312", "GB2312", "\u{4e2d}", b"\xd6\xd0"),
            ("GBK", "GBK", "a\u{4e2d}", b"a\xd6\xd0"),
            ("sjis", "Shift_JIS", "\u{3042}", b"\x82\xa0"),
            ("windows-1251", "windows-1251", "\u{44f}\u{4e2d}", b"\xff?"),
        ] {
            let set = JavaCharset::find(name).unwrap();
            assert_eq!((set.name(), &*set.encode(text)), (java, bytes), "{name}");
            assert_eq!(set.decode(&set.encode("abc")), "abc");
        }
        assert_eq!(JavaCharset::find("Cp1252").unwrap().decode(b"\x80"), "€");
        assert_eq!(JavaCharset::find("latin1").unwrap().decode(b"\x80"), "\u{80}");
        for name in ["UTF-16", "x-mine", "${set}"] {
            assert_eq!(JavaCharset::find(name), None, "{name}");
        }
    }
}
