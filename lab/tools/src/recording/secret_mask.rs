//! Masks secrets in a recording: [`SECRET_PLACEHOLDER`] replaces every value whose name is that of a secret.
//!
//! In: an address, or a body and its media type. Out: the same text, still in its format.
//!
//! Invariant: a value whose name [`is_secret_name`] recognizes does not occur in the returned text, whatever it
//! contains.
//!
//! Not here: secrets without a name, such as one in the path of an address.

use std::sync::LazyLock;

use regex::{Captures, Regex};

/// The placeholder of a secret, to be replaced manually.
pub(crate) const SECRET_PLACEHOLDER: &str = "{secret}";

/// Words that indicate a secret in a name, also with an `s`.
const SECRET_NAME_WORDS: [&str; 8] =
    ["pass", "pwd", "secret", "token", "cookie", "signature", "sid", "authorization"];
/// Parts of secret names, written without word separators.
const SECRET_NAME_PARTS: [&str; 13] = [
    "password",
    "passwd",
    "passphrase",
    "passcode",
    "credential",
    "apikey",
    "secretkey",
    "accesskey",
    "sessionid",
    "sessionkey",
    "csrf",
    "xsrf",
    "authenti",
];
/// Suffixes of secret names.
const SECRET_NAME_SUFFIXES: [&str; 7] =
    ["pass", "pwd", "secret", "token", "session", "sessions", "sessid"];

/// Maximum nesting depth of pairs; the innermost pair is masked regardless of its name.
const MAX_PAIR_DEPTH: usize = 16;

/// Masks the path and query of an address.
pub(crate) fn mask_target(text: &str) -> String {
    match text.split_once('?') {
        Some((path, query)) => format!("{}?{}", mask_fields(path, &['/', ';']), mask_form(query)),
        None => mask_fields(text, &['/', ';']),
    }
}

/// Masks a body. The media type determines the format only if the body itself does not show it.
pub(crate) fn mask_body(text: &str, media_type: &str) -> String {
    let media_type = media_type.to_ascii_lowercase();
    let is = |part: &str| media_type.contains(part);
    let first = text.trim_start().chars().next();
    if is("multipart/") {
        mask_multipart(text)
    } else if matches!(first, Some('{' | '[')) && looks_like_json(text) {
        mask_json(text)
    } else if first == Some('<') || is("xml") {
        mask_markup(text)
    } else if is("x-www-form-urlencoded") || !text.trim().contains(char::is_whitespace) {
        mask_form(text)
    } else {
        mask_pairs(text)
    }
}

/// Masks the fields of a form or a query. A field without a name may contain an address with fields of its own.
fn mask_form(text: &str) -> String {
    let mask = |field: &str| match field.split_once('=') {
        Some((name, value)) if !is_secret_field(name) => {
            format!("{name}={}", mask_fields(value, &['?', ';']))
        }
        _ => mask_fields(field, &[]),
    };
    text.split('&').map(mask).collect::<Vec<String>>().join("&")
}

/// Masks `name=value` between separators.
fn mask_fields(text: &str, separators: &[char]) -> String {
    let mut out = String::with_capacity(text.len());
    for piece in text.split_inclusive(separators) {
        let field = piece.strip_suffix(separators).unwrap_or(piece);
        match field.split_once('=') {
            Some((name, value)) if !value.is_empty() && is_secret_field(name) => {
                out.push_str(&format!("{name}={SECRET_PLACEHOLDER}"));
            }
            _ => out.push_str(field),
        }
        out.push_str(piece.get(field.len()..).unwrap_or_default());
    }
    out
}

/// Returns true if a field is a secret; its name may be percent-encoded.
fn is_secret_field(name: &str) -> bool {
    is_secret_name(&percent_encoding::percent_decode_str(name).decode_utf8_lossy())
}

/// Returns true if values of this name are secrets. Unlike in data that is only displayed, a wrong guess makes a
/// request impossible to resend unchanged: `passengers`, `bypassCache` and `sessionTimeout` are not secrets.
fn is_secret_name(name: &str) -> bool {
    let words = split_name_words(name);
    let whole = words.concat();
    let is_known = |word: &String| {
        let singular = word.strip_suffix('s').unwrap_or(word);
        SECRET_NAME_WORDS.iter().any(|secret_word| word == secret_word || singular == *secret_word)
            || word.ends_with("auth")
    };
    words.iter().any(is_known)
        || SECRET_NAME_PARTS.iter().any(|part| whole.contains(part))
        || (SECRET_NAME_SUFFIXES.iter().any(|end| whole.ends_with(end))
            && !["bypass", "compass"].iter().any(|end| whole.ends_with(end)))
}

/// Returns the words of a name in lower case: `userPassword` has two, as does `user[password]`.
fn split_name_words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut was_small = false;
    for letter in name.chars() {
        if !letter.is_alphabetic() || (letter.is_uppercase() && was_small) {
            words.push(String::new());
        }
        if let Some(word) = words.last_mut().filter(|_| letter.is_alphabetic()) {
            word.extend(letter.to_lowercase());
        }
        was_small = letter.is_lowercase();
    }
    words.retain(|word| !word.is_empty());
    words
}

fn looks_like_json(text: &str) -> bool {
    let mut all = serde_json::Deserializer::from_str(text).into_iter::<serde::de::IgnoredAny>();
    all.all(|value| value.is_ok())
}

/// An open JSON array or object.
struct OpenJsonContainer {
    is_object: bool,
    /// True if all strings and numbers in it are secrets.
    is_all_secret: bool,
    /// True if the next string is the name of a field.
    expects_field_name: bool,
    /// True if the value that follows is a secret.
    is_field_secret: bool,
}

/// Masks strings and numbers of secret fields, also in nested arrays and objects.
fn mask_json(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut open: Vec<OpenJsonContainer> = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let is_secret = open.last().is_some_and(|open| open.is_all_secret || open.is_field_secret);
        let token = json_token(rest);
        rest = rest.get(token.len()..).unwrap_or_default();
        match first {
            '{' | '[' => open.push(OpenJsonContainer {
                is_object: first == '{',
                is_all_secret: is_secret,
                expects_field_name: first == '{',
                is_field_secret: false,
            }),
            '}' | ']' => drop(open.pop()),
            ',' => {
                if let Some(open) = open.last_mut() {
                    (open.expects_field_name, open.is_field_secret) = (open.is_object, false);
                }
            }
            '"' => {
                if let Some(open) = open.last_mut().filter(|open| open.expects_field_name) {
                    let name: String = serde_json::from_str(token).unwrap_or_default();
                    open.expects_field_name = false;
                    open.is_field_secret = self::is_secret_name(&name);
                } else if is_secret && token.len() > 2 {
                    out.push_str(&format!("\"{SECRET_PLACEHOLDER}\""));
                    continue;
                }
            }
            '-' | '0'..='9' if is_secret => {
                out.push_str(&format!("\"{SECRET_PLACEHOLDER}\""));
                continue;
            }
            _ => {}
        }
        out.push_str(token);
    }
    out
}

/// Returns the JSON string, number or character at the start of `rest`.
fn json_token(rest: &str) -> &str {
    let mut letters = rest.char_indices();
    let Some((_, first)) = letters.next() else { return rest };
    let end = match first {
        '"' => {
            let mut is_escaped = false;
            let end = letters.find(|(_, letter)| {
                let is_end = *letter == '"' && !is_escaped;
                is_escaped = *letter == '\\' && !is_escaped;
                is_end
            });
            end.map(|(at, _)| at + 1)
        }
        '-' | '0'..='9' => rest.find(|letter: char| {
            !letter.is_ascii_alphanumeric() && !matches!(letter, '+' | '-' | '.')
        }),
        _ => Some(first.len_utf8()),
    };
    rest.get(..end.unwrap_or(rest.len())).unwrap_or(rest)
}

/// Masks the parts of a multipart form whose names are secret.
fn mask_multipart(text: &str) -> String {
    let first = text.lines().find(|line| line.starts_with("--")).unwrap_or_default();
    if first.len() <= 2 {
        return mask_pairs(text);
    }
    let mut out = String::with_capacity(text.len());
    // Each part begins with its headers; an empty line separates them from its content.
    for (number, part) in text.split(first).enumerate() {
        if number > 0 {
            out.push_str(first);
        }
        let blank = ["\r\n\r\n", "\n\n"]
            .into_iter()
            .filter_map(|blank| part.find(blank).map(|at| at + blank.len()))
            .min();
        let Some((head, content)) = blank.and_then(|at| part.split_at_checked(at)) else {
            out.push_str(part);
            continue;
        };
        out.push_str(head);
        let end = content.trim_end_matches(['\r', '\n']);
        let is_secret = multipart_field_name(head).is_some_and(is_secret_name);
        out.push_str(if is_secret && !end.is_empty() { SECRET_PLACEHOLDER } else { end });
        out.push_str(content.get(end.len()..).unwrap_or_default());
    }
    out
}

fn multipart_field_name(head: &str) -> Option<&str> {
    let line =
        head.lines().find(|line| line.to_ascii_lowercase().starts_with("content-disposition:"))?;
    let words = line.split(';').map(str::trim);
    words.filter_map(|parameter| parameter.split_once('=')).find_map(|(key, value)| {
        key.trim().eq_ignore_ascii_case("name").then(|| value.trim().trim_matches('"'))
    })
}

#[expect(clippy::expect_used, reason = "the patterns are constants")]
static ELEMENT_PATTERN: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"(<([\w:.-]+)(?:\s[^<>]*)?>\s*)(<!\[CDATA\[(?s:.*?)\]\]>|[^<\s][^<]*)(</)")
        .expect("the pattern is valid")
});
#[expect(clippy::expect_used, reason = "the patterns are constants")]
static ATTRIBUTE_PATTERN: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r#"(([\w:.-]+)\s*=\s*)("[^"<]+"|'[^'<]+')()"#).expect("the pattern is valid")
});
#[expect(clippy::expect_used, reason = "the patterns are constants")]
static PAIR_PATTERN: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r#"(["']?([\w:.\[\]%-]+)["']?[ \t]*[=:][ \t]*)("(?:[^"\\]|\\.)+"|'(?:[^'\\]|\\.)+'|[^&;"'\s,{}]+)()"#)
        .expect("the pattern is valid")
});

/// Masks the contents of secret elements and attributes.
fn mask_markup(text: &str) -> String {
    let text = ELEMENT_PATTERN.replace_all(text, |captures: &Captures<'_>| mask_match(captures, 0));
    ATTRIBUTE_PATTERN
        .replace_all(&text, |captures: &Captures<'_>| mask_match(captures, 0))
        .into_owned()
}

/// Masks values after `=` and `:` in a text of unknown format.
fn mask_pairs(text: &str) -> String {
    mask_pairs_at_depth(text, 0)
}

/// Like [`mask_pairs`], for a text nested `depth` pairs deep.
fn mask_pairs_at_depth(text: &str, depth: usize) -> String {
    PAIR_PATTERN
        .replace_all(text, |captures: &Captures<'_>| mask_match(captures, depth))
        .into_owned()
}

/// Returns the text before a value, the value or [`SECRET_PLACEHOLDER`], and the text after it.
fn mask_match(captures: &Captures<'_>, depth: usize) -> String {
    let part = |index: usize| captures.get(index).map_or("", |part| part.as_str());
    let (before, name, value, behind) = (part(1), part(2), part(3), part(4));
    if !is_secret_field(name) {
        // The value may contain pairs of its own, as an address does.
        if depth >= MAX_PAIR_DEPTH {
            return format!("{before}{SECRET_PLACEHOLDER}{behind}");
        }
        return format!("{before}{}{behind}", mask_pairs_at_depth(value, depth + 1));
    }
    let quote = value.get(..1).filter(|first| matches!(*first, "\"" | "'")).unwrap_or_default();
    format!("{before}{quote}{SECRET_PLACEHOLDER}{quote}{behind}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(media_type: &str, text: &str, expected: &str) {
        assert_eq!(mask_body(text, media_type), expected);
    }

    #[test]
    fn names_of_secrets_are_distinguished_from_others() {
        let secret = "pass password PASSWORD password2 passwordConfirm user[password] userPassword j_password userpass \
            pwd newPwd secret client_secret secretKey token tokens access_token accessToken csrftoken X-CSRF-Header \
            api-key api_key apiKey APIKey apikey auth X-Auth-User oauth2 httpAuth authorization authentication \
            credentials session session_id sessionid jsessionid PHPSESSID connect.sid userSession cookie signature";
        for name in secret.split_whitespace() {
            assert!(is_secret_name(name), "{name}");
        }
        let plain = "passengers bypassCache bypass compass passage sessionTimeout session_length author authorId \
            coauthors inside side key keyword monkey tokenizer secretary user name x";
        for name in plain.split_whitespace() {
            assert!(!is_secret_name(name), "{name}");
        }
        assert_eq!(
            mask_target("/a?passengers=2&bypassCache=true"),
            "/a?passengers=2&bypassCache=true"
        );
        check("", r#"{"sessionTimeout":30}"#, r#"{"sessionTimeout":30}"#);
    }

    #[test]
    fn addresses_keep_no_secret() {
        let check = |text: &str, expected: &str| assert_eq!(mask_target(text), expected);
        check("/a?token=abc&b=c", "/a?token={secret}&b=c");
        check("/a;jsessionid=12?b=c", "/a;jsessionid={secret}?b=c");
        check("/a?user%5Bpass%5D=x&b", "/a?user%5Bpass%5D={secret}&b");
        check("/pass?b=pass&pwd=", "/pass?b=pass&pwd=");
        check("/a?author=ann", "/a?author=ann");
        check(
            "/a?password=a?b;c&d=/e?token=f;sid=1&g",
            "/a?password={secret}&d=/e?token={secret};sid={secret}&g",
        );
    }

    #[test]
    fn forms_keep_no_secret() {
        let form = "application/x-www-form-urlencoded; charset=UTF-8";
        check(form, "user=me&j_password=s3 cret&x=1", "user=me&j_password={secret}&x=1");
        check(
            form,
            "user%5Bpassword%5D=x&user%5Bname%5D=y",
            "user%5Bpassword%5D={secret}&user%5Bname%5D=y",
        );
        check("", ":cq_csrf_token=abc", ":cq_csrf_token={secret}");
        check("", "pwd=x", "pwd={secret}");
        check(form, "word=password", "word=password");
    }

    #[test]
    fn json_keeps_no_secret_and_its_form() {
        let json = "application/json";
        check(json, r#"{"password":"a b,c", "x":1}"#, r#"{"password":"{secret}", "x":1}"#);
        check(
            json,
            r#"{"pass\u0077ord":"a\"b\\","x":"\"y"}"#,
            r#"{"pass\u0077ord":"{secret}","x":"\"y"}"#,
        );
        check(
            json,
            r#"{"tokens":["a",{"of":-1.5e3}],"b":[{"pwd":true,"secret":null}],"c":"d"}"#,
            r#"{"tokens":["{secret}",{"of":"{secret}"}],"b":[{"pwd":true,"secret":null}],"c":"d"}"#,
        );
        check(
            "text/plain",
            "{\"pwd\":\"x\"}\n{\"pwd\":1}",
            "{\"pwd\":\"{secret}\"}\n{\"pwd\":\"{secret}\"}",
        );
        check(json, r#"["password","x"]"#, r#"["password","x"]"#);
        // Text that turns out not to be JSON is masked as plain text.
        check(json, r#"{password: "a b", x: 1"#, r#"{password: "{secret}", x: 1"#);
    }

    #[test]
    fn parts_of_forms_keep_no_secret() {
        let part = |name: &str, content: &str| {
            format!("--b\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{content}\r\n")
        };
        let whole = |secret: &str| {
            format!("{}{}--b--\r\n", part("user", "password=me"), part("user[password]", secret))
        };
        check("multipart/form-data; boundary=b", &whole("s3\r\ncret"), &whole(SECRET_PLACEHOLDER));
    }

    #[test]
    fn markup_keeps_no_secret() {
        check(
            "text/xml",
            "<a><wsse:Password Type=\"x\">s3 cret</wsse:Password><user>password</user></a>",
            "<a><wsse:Password Type=\"x\">{secret}</wsse:Password><user>password</user></a>",
        );
        check("", "<pwd>\n<![CDATA[a<b]]></pwd>", "<pwd>\n{secret}</pwd>");
        check("", "<login user='me' password='a b'/>", "<login user='me' password='{secret}'/>");
        check(
            "",
            "<UserToken><user>me</user></UserToken>",
            "<UserToken><user>me</user></UserToken>",
        );
    }

    #[test]
    fn other_texts_keep_no_secret() {
        check("text/plain", "user: me\npassword: s3cret\n", "user: me\npassword: {secret}\n");
        check("", "mutation { login(pwd: \"a b\") }", "mutation { login(pwd: \"{secret}\") }");
        check("", "the password is long", "the password is long");
        // Deeply nested text must not overflow the stack.
        let deep = mask_body(&format!("x {}password=y", "a=".repeat(100_000)), "");
        assert_eq!(deep, format!("x {}{SECRET_PLACEHOLDER}", "a=".repeat(MAX_PAIR_DEPTH + 1)));
        check("", "x a=b=password=y", "x a=b=password={secret}");
    }
}
