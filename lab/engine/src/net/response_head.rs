//! The head of a response as it was received.

/// A response head as received: one text, and the offsets of names and values in it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TargetResponseHead {
    /// Status line and headers, one line each; bytes that are not UTF-8 are replaced.
    text: String,
    /// The range of the reason phrase.
    reason_range: (u32, u32),
    header_offsets: Vec<HeaderOffsets>,
}

/// The offsets of a header: its value begins two bytes after its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct HeaderOffsets {
    start: u32,
    name_end: u32,
    end: u32,
}

impl TargetResponseHead {
    /// Creates a head from a status line (`version` as in `HTTP/1.1`) and headers.
    pub fn new<'a>(
        version: &str,
        status: u16,
        reason: &str,
        headers: impl Iterator<Item = (&'a str, &'a [u8])>,
        size: usize,
    ) -> Self {
        // Heads are limited to far less than 32 bits can count.
        let text_len = |text: &String| u32::try_from(text.len()).unwrap_or(u32::MAX);
        let mut text = String::with_capacity(size + 16);
        text.push_str(version);
        text.push(' ');
        for divisor in [100, 10, 1] {
            text.push(char::from(b'0' + (status / divisor % 10) as u8));
        }
        text.push(' ');
        let from = text_len(&text);
        text.push_str(reason);
        let reason = (from, text_len(&text));
        text.push('\n');
        let mut marks = Vec::with_capacity(16);
        for (name, value) in headers {
            let start = text_len(&text);
            text.push_str(name);
            let name_end = text_len(&text);
            text.push_str(": ");
            match std::str::from_utf8(value) {
                Ok(value) => text.push_str(value),
                Err(_) => text.push_str(&String::from_utf8_lossy(value)),
            }
            marks.push(HeaderOffsets { start, name_end, end: text_len(&text) });
            text.push('\n');
        }
        Self { text, reason_range: reason, header_offsets: marks }
    }

    fn slice(&self, from: u32, to: u32) -> &str {
        self.text.get(from as usize..to as usize).unwrap_or_default()
    }

    /// Returns the headers: names as sent, and values.
    pub(crate) fn headers(&self) -> impl Iterator<Item = (&str, &str)> {
        self.header_offsets.iter().map(|mark| {
            (self.slice(mark.start, mark.name_end), self.slice(mark.name_end + 2, mark.end))
        })
    }

    /// Returns the first value of the header `name`, ignoring case.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mark = self.header_offsets.iter().find(|mark| self.is_header_named(mark, name))?;
        Some(self.slice(mark.name_end + 2, mark.end))
    }

    fn is_header_named(&self, mark: &HeaderOffsets, name: &str) -> bool {
        // Compare lengths first, because most names differ in length already.
        (mark.name_end - mark.start) as usize == name.len()
            && self.slice(mark.start, mark.name_end).eq_ignore_ascii_case(name)
    }

    /// Returns true if the body is a style sheet.
    pub(crate) fn is_style_sheet(&self) -> bool {
        let media_type = self.header("Content-Type").unwrap_or_default();
        media_type.trim_start().get(..8).is_some_and(|kind| kind.eq_ignore_ascii_case("text/css"))
    }

    /// Returns the reason phrase.
    pub(crate) fn reason(&self) -> &str {
        self.slice(self.reason_range.0, self.reason_range.1)
    }

    /// Returns the head as received, one line each.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns the head as received, without a copy.
    pub(crate) fn into_text(self) -> String {
        self.text
    }

    /// Returns all values of the header `name`.
    pub fn header_values<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> + use<'a> {
        self.header_offsets
            .iter()
            .filter(move |mark| self.is_header_named(mark, name))
            .map(|mark| self.slice(mark.name_end + 2, mark.end))
    }
}
