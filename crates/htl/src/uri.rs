//! The options that change addresses: `scheme`, `domain`, `path`, `selectors` and the like.
//!
//! An address is split as Java's `URI` does, its path as Sling splits one without knowing the resources: selectors,
//! extension and suffix begin at the first period.

use std::fmt::Write;

/// The evaluated options of an address; an option that is present without a value removes its part.
#[derive(Debug, Default)]
pub(crate) struct UriOptions {
    pub(crate) texts: Vec<(&'static str, String)>,
    pub(crate) selectors: Option<Vec<String>>,
    pub(crate) add_selectors: Vec<String>,
    pub(crate) remove_selectors: Vec<String>,
    /// The parameters that replace all.
    pub(crate) query: Option<QueryParameters>,
    pub(crate) add_query: QueryParameters,
    pub(crate) remove_query: Vec<String>,
}

/// Names and values.
pub(crate) type QueryParameters = Vec<(String, String)>;

impl UriOptions {
    /// Returns an option's text, or the part of the address if the option is absent or empty.
    fn text_or<'a>(&'a self, name: &str, part: &'a str) -> &'a str {
        match self.texts.iter().find(|(option, _)| *option == name) {
            Some((_, text)) if !text.is_empty() => text,
            _ => part,
        }
    }

    /// As [`UriOptions::text_or`], but an empty option removes the part.
    fn text_or_none<'a>(&'a self, name: &str, part: Option<&'a str>) -> Option<&'a str> {
        match self.texts.iter().find(|(option, _)| *option == name) {
            Some((_, text)) => Some(&**text).filter(|text| !text.is_empty()),
            None => part,
        }
    }

    fn changes_query(&self) -> bool {
        self.query.is_some() || !self.add_query.is_empty() || !self.remove_query.is_empty()
    }
}

/// Applies the options to an address; an address that is none stays as it is.
pub(crate) fn change_uri(address: &str, options: &UriOptions) -> String {
    let is_invalid = |next: char| {
        next.is_whitespace()
            || next.is_control()
            || matches!(next, '<' | '>' | '"' | '{' | '}' | '|' | '\\' | '^' | '`')
    };
    if address.contains(is_invalid) {
        return address.to_owned();
    }
    let (rest, fragment) = split_at_char(address, '#');
    let (scheme, rest) = split_scheme(rest);
    let fragment = options.text_or_none("fragment", fragment);
    let new_scheme = options.text_or("scheme", scheme.unwrap_or_default());
    let mut out = String::with_capacity(address.len() + 32);
    if !new_scheme.is_empty() {
        out.push_str(new_scheme);
        out.push(':');
    }
    if scheme.is_some() && !rest.starts_with('/') {
        // `mailto:a@b` and the like have no parts.
        out.push_str(rest);
        push_part(&mut out, '#', fragment);
        return out;
    }
    let (rest, query) = split_at_char(rest, '?');
    let (authority, path) = match rest.strip_prefix("//") {
        Some(rest) => {
            let end = rest.find('/').unwrap_or(rest.len());
            let (authority, path) = rest.split_at(end);
            (Some(authority), path)
        }
        None => (None, rest),
    };
    let (user, host, port) = split_authority(authority.unwrap_or_default());
    let host = options.text_or("domain", host);
    let has_host = !host.is_empty();
    let is_absolute = has_host || !new_scheme.is_empty();
    if has_host {
        out.push_str("//");
        out.push_str(user);
        out.push_str(host);
        out.push_str(port);
    }
    let path = changed_path(path, options, is_absolute);
    if !has_host && !new_scheme.is_empty() {
        // `example.com/path` with a scheme: its beginning becomes the host.
        out.push_str(if path.starts_with("//") { "" } else { "/" });
    }
    out.push_str(&quote_path(&path));
    if options.changes_query() {
        let query = changed_query(query.unwrap_or_default(), options);
        push_part(&mut out, '?', Some(&*query).filter(|query| !query.is_empty()));
    } else {
        push_part(&mut out, '?', query);
    }
    push_part(&mut out, '#', fragment);
    out
}

fn push_part(out: &mut String, mark: char, part: Option<&str>) {
    if let Some(part) = part {
        out.push(mark);
        out.push_str(part);
    }
}

fn split_at_char(text: &str, mark: char) -> (&str, Option<&str>) {
    match text.split_once(mark) {
        Some((before, behind)) => (before, Some(behind)),
        None => (text, None),
    }
}

fn split_scheme(address: &str) -> (Option<&str>, &str) {
    let Some((scheme, rest)) = address.split_once(':') else {
        return (None, address);
    };
    let is_scheme = scheme.starts_with(|first: char| first.is_ascii_alphabetic())
        && scheme
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.'));
    if is_scheme { (Some(scheme), rest) } else { (None, address) }
}

/// Splits into user with `@`, host, and port with `:`.
fn split_authority(authority: &str) -> (&str, &str, &str) {
    let host_start = authority.rfind('@').map_or(0, |at| at + 1);
    let (user, rest) = authority.split_at(host_start);
    let port_start = match rest.rfind(':') {
        Some(at)
            if rest
                .get(at + 1..)
                .is_some_and(|port| port.bytes().all(|byte| byte.is_ascii_digit())) =>
        {
            at
        }
        _ => rest.len(),
    };
    let (host, port) = rest.split_at(port_start);
    (user, host, port)
}

/// Joins paths with one slash between them.
pub(crate) fn join_paths(parts: [&str; 3]) -> String {
    let mut path = String::new();
    for part in parts {
        if part.trim().is_empty() {
            continue;
        }
        match (path.ends_with('/'), part.starts_with('/')) {
            (true, true) => path.push_str(part.get(1..).unwrap_or_default()),
            (false, false) if !path.is_empty() => {
                path.push('/');
                path.push_str(part);
            }
            _ => path.push_str(part),
        }
    }
    path
}

/// The parts of a path.
struct PathParts<'a> {
    resource: &'a str,
    selectors: Vec<&'a str>,
    extension: Option<&'a str>,
    suffix: Option<&'a str>,
}

fn split_path(path: &str) -> PathParts<'_> {
    // Periods of `.` and `..` at the beginning separate nothing.
    let mut from = usize::from(path.starts_with('/'));
    while let Some(rest) = path.get(from..) {
        match rest.split('/').next() {
            Some("." | "..") => from += rest.find('/').map_or(rest.len(), |at| at + 1),
            _ => break,
        }
    }
    let Some(dot) = path.get(from..).and_then(|rest| rest.find('.')).map(|at| from + at) else {
        return PathParts { resource: path, selectors: Vec::new(), extension: None, suffix: None };
    };
    let (resource, rest) = path.split_at(dot);
    let rest = rest.get(1..).unwrap_or_default();
    let (names, suffix) = match rest.find('/') {
        Some(slash) => (rest.get(..slash).unwrap_or_default(), rest.get(slash..)),
        None => (rest, None),
    };
    let mut selectors: Vec<&str> = names.split('.').collect();
    let extension = selectors.pop();
    PathParts { resource, selectors, extension, suffix }
}

fn changed_path(path: &str, options: &UriOptions, is_absolute: bool) -> String {
    let parts = split_path(path);
    let resource = options.text_or("path", parts.resource);
    if resource.is_empty() {
        return path.to_owned();
    }
    let prepended = options.text_or("prependPath", "");
    let mut changed = join_paths([prepended, resource, options.text_or("appendPath", "")]);
    if is_absolute && !changed.starts_with('/') {
        changed.insert(0, '/');
    }
    let mut selectors: Vec<&str> = match &options.selectors {
        Some(selectors) => selectors.iter().map(|selector| &**selector).collect(),
        None => parts.selectors,
    };
    for selector in &options.add_selectors {
        if !selectors.contains(&&**selector) {
            selectors.push(selector);
        }
    }
    selectors
        .retain(|selector| !options.remove_selectors.iter().any(|removed| removed == selector));
    for selector in selectors {
        changed.push('.');
        changed.push_str(selector);
    }
    push_part(&mut changed, '.', options.text_or_none("extension", parts.extension));
    let suffix = options.text_or_none("suffix", parts.suffix).unwrap_or_default();
    let prepended = options.text_or("prependSuffix", "");
    let suffix = join_paths([prepended, suffix, options.text_or("appendSuffix", "")]);
    if !suffix.is_empty() && !suffix.starts_with('/') {
        changed.push('/');
    }
    changed.push_str(&suffix);
    changed
}

/// Encodes what a path may not contain. Percent escapes stay.
fn quote_path(path: &str) -> String {
    let mut out = String::with_capacity(path.len());
    for next in path.chars() {
        if next.is_ascii_control()
            || matches!(
                next,
                ' ' | '<' | '>' | '"' | '{' | '}' | '|' | '\\' | '^' | '`' | '?' | '#' | '[' | ']'
            )
        {
            write!(out, "%{:02X}", next as u32).unwrap_or_default();
        } else {
            out.push(next);
        }
    }
    out
}

fn changed_query(query: &str, options: &UriOptions) -> String {
    let mut parameters: QueryParameters = match &options.query {
        Some(parameters) => parameters.clone(),
        None => query
            .split('&')
            .filter_map(|pair| pair.split_once('='))
            .map(|(name, value)| (decode_form(name), decode_form(value)))
            .collect(),
    };
    for (name, value) in &options.add_query {
        // A further value stands behind those of the same name.
        match parameters.iter().rposition(|(other, _)| other == name) {
            Some(at) => parameters.insert(at + 1, (name.clone(), value.clone())),
            None => parameters.push((name.clone(), value.clone())),
        }
    }
    parameters.retain(|(name, _)| !options.remove_query.contains(name));
    let pairs: Vec<String> = parameters
        .iter()
        .map(|(name, value)| format!("{}={}", encode_form(name), encode_form(value)))
        .collect();
    pairs.join("&")
}

fn encode_form(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'-' | b'*' | b'_' => {
                out.push(char::from(byte))
            }
            b' ' => out.push('+'),
            _ => write!(out, "%{byte:02X}").unwrap_or_default(),
        }
    }
    out
}

fn decode_form(text: &str) -> String {
    let text = text.replace('+', " ");
    percent_encoding::percent_decode_str(&text).decode_utf8_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(address: &str, options: &[(&'static str, &str)], expected: &str) {
        let mut all = UriOptions::default();
        for (name, text) in options {
            let selectors =
                || text.split('.').filter(|part| !part.is_empty()).map(str::to_owned).collect();
            match *name {
                "selectors" => all.selectors = Some(selectors()),
                "addSelectors" => all.add_selectors = selectors(),
                "removeSelectors" => all.remove_selectors = selectors(),
                "removeQuery" => all.remove_query = selectors(),
                "query" | "addQuery" => {
                    let pairs = text.split('&').filter_map(|pair| pair.split_once('='));
                    let pairs =
                        pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
                    if *name == "query" { all.query = Some(pairs) } else { all.add_query = pairs }
                }
                name => all.texts.push((name, (*text).to_owned())),
            }
        }
        assert_eq!(change_uri(address, &all), expected, "{address} {options:?}");
    }

    #[test]
    fn changes_schemes_and_domains() {
        check(
            "//example.com/path/page.html",
            &[("scheme", "http")],
            "http://example.com/path/page.html",
        );
        check("http://example.com/p.html", &[("scheme", "https")], "https://example.com/p.html");
        check("http://example.com/p.html", &[("scheme", "")], "http://example.com/p.html");
        check("///path/page.html", &[("domain", "example.org")], "//example.org/path/page.html");
        check(
            "http:///path/page.html",
            &[("domain", "example.org")],
            "http://example.org/path/page.html",
        );
        check("http://u@a.com:80/p.html", &[("domain", "b.org")], "http://u@b.org:80/p.html");
        check("mailto:a@b.c", &[("extension", "html")], "mailto:a@b.c");
        check("a b", &[("extension", "html")], "a b");
    }

    #[test]
    fn changes_paths() {
        check("one", &[("appendPath", "two")], "one/two");
        check("/one/", &[("appendPath", "/two/")], "/one/two/");
        check("path", &[("prependPath", "..")], "../path");
        check("path", &[("prependPath", "/"), ("appendPath", "/")], "/path/");
        check(
            "http://example.com/path/page.html",
            &[("prependPath", "foo")],
            "http://example.com/foo/path/page.html",
        );
        check(
            "path/page.selector.html/suffix?key=value#fragment",
            &[("appendPath", "appended")],
            "path/page/appended.selector.html/suffix?key=value#fragment",
        );
        check(
            "http://example.com/this/one.selector.html/suffix?key=value#fragment",
            &[("path", "that/two")],
            "http://example.com/that/two.selector.html/suffix?key=value#fragment",
        );
        check("/a/b.html", &[("path", "")], "/a/b.html");
        check("../a.html", &[("extension", "json")], "../a.json");
        check("a", &[("appendPath", "b c")], "a/b%20c");
    }

    #[test]
    fn changes_selectors_extension_and_suffix() {
        check("path/page.woo.foo.html", &[("selectors", "foo.bar")], "path/page.foo.bar.html");
        check(
            "path/page.woo.foo.html",
            &[("addSelectors", "foo.bar")],
            "path/page.woo.foo.bar.html",
        );
        check("path/page.woo.foo.html", &[("removeSelectors", "foo.bar")], "path/page.woo.html");
        check("path/page.woo.foo.html", &[("selectors", "")], "path/page.html");
        check("path/page", &[("extension", "html")], "path/page.html");
        check("path/page.selector.json", &[("extension", "html")], "path/page.selector.html");
        check("path/page.json/suffix", &[("extension", "html")], "path/page.html/suffix");
        check("path/page.json", &[("extension", "")], "path/page");
        check("path/page.html/some/suffix", &[("suffix", "my/suffix")], "path/page.html/my/suffix");
        check(
            "path/page.html/suffix",
            &[("prependSuffix", "prepended")],
            "path/page.html/prepended/suffix",
        );
        check(
            "path/page.html/suffix",
            &[("appendSuffix", "appended")],
            "path/page.html/suffix/appended",
        );
        check("path/page.html/suffix", &[("suffix", "")], "path/page.html");
    }

    #[test]
    fn changes_queries_and_fragments() {
        check("/s", &[("query", "q=a b&q=c")], "/s?q=a+b&q=c");
        check("/s?s=1", &[("addQuery", "q=2&s=3")], "/s?s=1&s=3&q=2");
        check("/s?s=1&q=2", &[("removeQuery", "q")], "/s?s=1");
        check("/s?s=1&q=2", &[("query", "")], "/s");
        check("/s?a%20b=1&flag#f", &[("fragment", "g")], "/s?a%20b=1&flag#g");
        check("page#one", &[("fragment", "")], "page");
    }
}
