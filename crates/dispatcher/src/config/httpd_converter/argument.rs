//! The arguments of a directive, and static conditions of containers.

/// Splits a line at white space; quoted text is one word, and a backslash before a quote in it is removed.
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

/// The httpd version assumed as the source.
const HTTPD_VERSION: [u32; 3] = [2, 4, 62];

/// Evaluates a version condition such as `<IfVersion >= 2.4>`.
pub(super) fn matches_httpd_version(argument: &str) -> bool {
    let (is_negated, argument) = match argument.strip_prefix('!') {
        Some(argument) => (true, argument),
        None => (false, argument),
    };
    let number = argument.trim_start_matches(['<', '>', '=', '~']);
    let operator = argument.strip_suffix(number).unwrap_or_default();
    let mut requested_version = [0_u32; 3];
    for (part, text) in requested_version.iter_mut().zip(number.trim().split('.')) {
        let Ok(number) = text.parse() else { return true };
        *part = number;
    }
    let holds = match operator {
        ">" => HTTPD_VERSION > requested_version,
        ">=" => HTTPD_VERSION >= requested_version,
        "<" => HTTPD_VERSION < requested_version,
        "<=" => HTTPD_VERSION <= requested_version,
        _ => HTTPD_VERSION == requested_version,
    };
    holds != is_negated
}

/// Evaluates a constant condition such as `<If "0 == 1">`, after variables are replaced; `None` if it depends on the
/// request.
pub(super) fn evaluate_static_condition(argument: &str) -> Option<bool> {
    let words = split_words(argument.trim().trim_matches('"'));
    let [left, operator, right] = words.as_slice() else { return None };
    if [left, right].iter().any(|side| side.contains(['%', '$', '(', '{'])) {
        return None;
    }
    match operator.as_str() {
        "==" | "=" | "-eq" => Some(left == right),
        "!=" | "-ne" => Some(left != right),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::{evaluate_static_condition, matches_httpd_version, split_words};

    #[test]
    fn versions_are_those_of_2_4() {
        for argument in [">= 2.4", ">2.2", "< 2.5", "!< 2.4", "<= 2.4.62", "= 2.4.62"] {
            assert!(matches_httpd_version(argument), "{argument}");
        }
        for argument in ["< 2.4", "<= 2.2.34", "= 2.2", "!>= 2.4", ">= 2.5"] {
            assert!(!matches_httpd_version(argument), "{argument}");
        }
    }

    #[test]
    fn comparisons_of_texts_are_judged() {
        for (argument, expected) in [
            (r#""0 == 1""#, Some(false)),
            (r#""1 == 1""#, Some(true)),
            (r#""'a' != 'b'""#, Some(true)),
            (r#""1 -eq 2""#, Some(false)),
            (r#""${UNSET} == 1""#, None),
            (r#""%{HTTP_HOST} == 'x'""#, None),
            (r#""1 == 1 && 2 == 3""#, None),
            ("", None),
        ] {
            assert_eq!(evaluate_static_condition(argument), expected, "{argument}");
        }
    }

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
