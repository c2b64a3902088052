//! The words of a directive.

/// Splits a line at white space; quotes hold a word together, a backslash before a quote in them is dropped.
pub(super) fn split_words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut chars = line.chars().peekable();
    while let Some(first) = chars.next() {
        if first.is_whitespace() {
            continue;
        }
        let mut word = String::new();
        if matches!(first, '"' | '\'') {
            while let Some(char) = chars.next() {
                match char {
                    '\\' if chars.peek() == Some(&first) => word.extend(chars.next()),
                    char if char == first => break,
                    char => word.push(char),
                }
            }
        } else {
            word.push(first);
            while let Some(char) = chars.next_if(|char| !char.is_whitespace()) {
                word.push(char);
            }
        }
        words.push(word);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::split_words;

    #[test]
    fn quotes_hold_words_together() {
        let check =
            |line: &str, expected: &[&str]| assert_eq!(split_words(line), expected, "{line}");
        check("A b  c", &["A", "b", "c"]);
        check(r#"RewriteCond "%{A} b" !-f"#, &["RewriteCond", "%{A} b", "!-f"]);
        check(r#"Header set X "a \"b\" c""#, &["Header", "set", "X", "a \"b\" c"]);
        check(r"RewriteRule ^/(\d+)\.html$ -", &["RewriteRule", r"^/(\d+)\.html$", "-"]);
        check("Open \"never closed", &["Open", "never closed"]);
        check("", &[]);
    }
}
