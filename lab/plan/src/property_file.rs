//! Reads Java properties files.

use std::collections::HashMap;

/// Parses a properties file. Each line holds a name and a value, separated by `=`, `:` or white space. `#` and `!`
/// begin comments. A backslash at the end of a line continues it on the next.
#[must_use]
pub fn parse_properties(text: &str) -> HashMap<String, String> {
    let mut properties = HashMap::new();
    let mut lines = text.trim_start_matches('\u{feff}').lines();
    while let Some(line) = lines.next() {
        let line = line.trim_start();
        if line.is_empty() || line.starts_with(['#', '!']) {
            continue;
        }
        let mut whole = line.to_owned();
        while continues_on_next_line(&whole) {
            whole.pop();
            let Some(next) = lines.next() else { break };
            whole.push_str(next.trim_start());
        }
        let (name, value) = split_property(&whole);
        properties.insert(unescape(name, ""), unescape(value, ""));
    }
    properties
}

/// Returns true if a line ends with an unescaped backslash.
fn continues_on_next_line(line: &str) -> bool {
    line.bytes().rev().take_while(|byte| *byte == b'\\').count() % 2 == 1
}

fn split_property(line: &str) -> (&str, &str) {
    let mut is_escaped = false;
    let end = line.find(|letter: char| {
        let is_end = !is_escaped && (matches!(letter, '=' | ':') || letter.is_whitespace());
        is_escaped = letter == '\\' && !is_escaped;
        is_end
    });
    let (name, rest) = line.split_at(end.unwrap_or(line.len()));
    let rest = rest.trim_start();
    (name, rest.strip_prefix(['=', ':']).unwrap_or(rest).trim_start())
}

/// Resolves Java's escapes. `more` lists escapes that only some texts have, such as `b`.
pub(crate) fn unescape(text: &str, more: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        if letter != '\\' {
            out.push(letter);
            continue;
        }
        match letters.next() {
            Some('n') => out.push('\n'),
            Some('r') => out.push('\r'),
            Some('t') => out.push('\t'),
            Some('f') => out.push('\u{c}'),
            Some('b') if more.contains('b') => out.push('\u{8}'),
            Some('u') => {
                let digits: String = letters.by_ref().take(4).collect();
                out.extend(u32::from_str_radix(&digits, 16).ok().and_then(char::from_u32));
            }
            plain_letter => out.extend(plain_letter),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_read_as_java_reads_them() {
        let text = "# remark\n! remark\n\nthreads=100\r\n  host : www.example.org \npath /a\nlong = one \\\n   two\n\
                    a\\=b=c\\u0041\\\\\nempty\nthreads = 5";
        let properties = parse_properties(text);
        for (name, value) in [
            ("threads", "5"),
            ("host", "www.example.org "),
            ("path", "/a"),
            ("long", "one two"),
            ("a=b", "cA\\"),
            ("empty", ""),
        ] {
            assert_eq!(properties.get(name).map(String::as_str), Some(value), "{name}");
        }
        assert_eq!(properties.len(), 6);
        assert_eq!(parse_properties("a=b\\").get("a").map(String::as_str), Some("b"));
    }
}
