//! The charset that an HTML page declares in its head, found by the WHATWG's prescan as far as real pages use it.
//!
//! Browsers read a page without `charset` in its `Content-Type` as its head declares. A program that sends or creates
//! such a page has to use the same charset.

/// Number of leading bytes that are searched for the declaration.
const CHARSET_SCAN_BYTES: usize = 1024;
/// Maximum length of a charset label, in bytes.
const MAX_CHARSET_LABEL_BYTES: usize = 40;

/// Returns the label of the charset that a page's `<meta>` declares, unchanged.
#[must_use]
pub fn declared_charset(page: &[u8]) -> Option<&str> {
    let head = page.get(..CHARSET_SCAN_BYTES.min(page.len()))?;
    let mut rest = head;
    loop {
        let start = find_bytes(rest, b"<")?;
        let after = rest.get(start..)?;
        if after.starts_with(b"<!--") {
            let end = find_bytes(after, b"-->")?;
            rest = after.get(end + 3..)?;
            continue;
        }
        let is_meta = after.get(..5).is_some_and(|name| name.eq_ignore_ascii_case(b"<meta"))
            && after.get(5).is_some_and(|byte| byte.is_ascii_whitespace() || *byte == b'/');
        let end = find_bytes(after, b">")?;
        if is_meta && let Some(label) = meta_charset_label(after.get(5..end)?) {
            return Some(label);
        }
        rest = after.get(1..)?;
    }
}

/// Returns the label in a `<meta>`, from `charset` or from the `content` of an `http-equiv`.
fn meta_charset_label(attributes: &[u8]) -> Option<&str> {
    const NAME: &[u8] = b"charset";
    let is_name = |window: &[u8]| window.eq_ignore_ascii_case(NAME);
    let at = attributes.windows(NAME.len()).position(is_name)?;
    let rest = attributes.get(at + NAME.len()..)?.trim_ascii_start();
    let rest = rest.strip_prefix(b"=")?.trim_ascii_start();
    let rest = rest.strip_prefix(b"\"").or(rest.strip_prefix(b"'")).unwrap_or(rest);
    let is_letter = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_:.".contains(byte);
    let length = rest.iter().take_while(|byte| is_letter(byte)).count();
    let label =
        rest.get(..length).filter(|label| (1..=MAX_CHARSET_LABEL_BYTES).contains(&label.len()))?;
    std::str::from_utf8(label).ok()
}

fn find_bytes(bytes: &[u8], pattern: &[u8]) -> Option<usize> {
    bytes.windows(pattern.len()).position(|window| window == pattern)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_declare_charsets() {
        let late = format!("<html>{}<meta charset=gbk>", " ".repeat(CHARSET_SCAN_BYTES));
        for (page, expected) in [
            ("<!DOCTYPE html><meta charset=\"utf-8\">", Some("utf-8")),
            (
                "<html><head><META http-equiv=\"Content-Type\" content=\"text/html; charset=gbk\">",
                Some("gbk"),
            ),
            ("<meta charset = 'Shift_JIS' >", Some("Shift_JIS")),
            ("<meta charset=big5>", Some("big5")),
            ("<meta name=\"a\" content=\"b\"><meta charset=gbk>", Some("gbk")),
            ("<!-- <meta charset=gbk> --><meta charset=big5>", Some("big5")),
            ("<title>a < b</title><meta charset=gbk>", Some("gbk")),
            ("<metadata charset=gbk>", None),
            ("<meta name=charset content=gbk>", None),
            ("<meta charset=>", None),
            ("<meta charset=gbk", None),
            (&*late, None),
            ("<!-- never ends", None),
            ("", None),
        ] {
            assert_eq!(declared_charset(page.as_bytes()), expected, "{page}");
        }
    }
}
