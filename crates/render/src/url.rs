//! Splits a URL path into resource path, selectors, extension, suffix and path parameters, as Sling does.
//!
//! In: the raw path of a request (still percent-encoded) and a question: does a resource exist at this path?
//! Out: a [`Url`].
//!
//! Rules
//! * The resource path is the longest prefix at which a resource exists and which the end of the path or a
//!   dot follows. Between that dot and the next slash stand selectors and, last, the extension; from the
//!   slash on it is the suffix.
//! * Where no such resource exists, the first dot splits, and [`Url::exists`] is false.
//! * `;name=value` after the resource path or the extension is a path parameter; a value with a dot is
//!   quoted (`;v='1.0'`) unless it stands at the very end.
//! * `_jcr_content` means `jcr:content`, for every namespace prefix that content uses.
//!
//! Paths with `.` or `..` segments, control characters or broken percent escapes are refused: nothing
//! below this point sees one.

use std::borrow::Cow;

use percent_encoding::percent_decode_str;

/// A request path that no resource can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MalformedUrl {
    /// The path does not begin with a slash.
    #[error("the path does not begin with `/`")]
    NotAbsolute,
    /// A percent escape does not decode to UTF-8.
    #[error("a percent escape is broken")]
    Escape,
    /// The path has a `.` or `..` segment.
    #[error("the path has a `.` or `..` segment")]
    Traversal,
    /// The path holds a control character.
    #[error("the path holds a control character")]
    Control,
    /// A quoted path parameter does not end.
    #[error("a quoted path parameter does not end")]
    Quote,
}

/// The parts of a request path, decoded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Url {
    /// The path of the resource, or where it would be.
    pub path: String,
    /// Tells whether a resource exists at `path`.
    pub exists: bool,
    /// The selectors in order; none is empty.
    pub selectors: Vec<String>,
    /// The extension without its dot.
    pub extension: Option<String>,
    /// Everything from the slash after the extension on.
    pub suffix: Option<String>,
    /// The path parameters in order, without quotes.
    pub parameters: Vec<(String, String)>,
}

impl Url {
    /// Splits a raw request path.
    ///
    /// `exists` is asked for longer prefixes first, at most once for each dot in the path.
    ///
    /// # Errors
    /// [`MalformedUrl`] for paths that no resource can have.
    pub fn split(raw: &str, exists: impl Fn(&str) -> bool) -> Result<Self, MalformedUrl> {
        let (path, parameters) = take_parameters(raw)?;
        let path = match path {
            Cow::Borrowed(path) => decode(path)?,
            Cow::Owned(path) => Cow::Owned(decode(&path)?.into_owned()),
        };
        let path = match unmangle(&path) {
            Some(path) => Cow::Owned(path),
            None => path,
        };
        check(&path)?;
        let split = cuts(&path).find(|prefix| exists(prefix));
        let resource = split.or_else(|| cuts(&path).last()).unwrap_or("/");
        let mut url = Self {
            path: resource.to_owned(),
            exists: split.is_some(),
            parameters,
            ..Self::default()
        };
        url.read_rest(path.get(resource.len()..).unwrap_or_default());
        Ok(url)
    }

    /// Reads what follows the resource path: empty, or a dot and more.
    fn read_rest(&mut self, rest: &str) {
        let Some(rest) = rest.strip_prefix('.') else {
            return;
        };
        let (head, suffix) = match rest.find('/') {
            Some(slash) => rest.split_at(slash),
            None => (rest, ""),
        };
        let (selectors, extension) = head.rsplit_once('.').unwrap_or(("", head));
        self.selectors = split_selectors(selectors);
        self.extension = Some(extension).filter(|text| !text.is_empty()).map(str::to_owned);
        self.suffix = Some(suffix).filter(|text| !text.is_empty()).map(str::to_owned);
    }

    /// Returns the selectors joined by dots; empty without any.
    #[must_use]
    pub fn selector_string(&self) -> String {
        self.selectors.join(".")
    }

    /// Tells whether a selector is present, at any place.
    #[must_use]
    pub fn has_selector(&self, name: &str) -> bool {
        self.selectors.iter().any(|selector| selector == name)
    }

    /// Returns the value of a path parameter.
    #[must_use]
    pub fn parameter(&self, name: &str) -> Option<&str> {
        self.parameters.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }
}

/// Splits a selector string at its dots; empty selectors vanish.
#[must_use]
pub fn split_selectors(text: &str) -> Vec<String> {
    text.split('.').filter(|selector| !selector.is_empty()).map(str::to_owned).collect()
}

/// Yields the prefixes at which a resource may end, longest first: the whole path, then up to each dot.
fn cuts(path: &str) -> impl Iterator<Item = &str> {
    let whole = if path.len() > 1 { path.strip_suffix('/').unwrap_or(path) } else { path };
    let dots = path.rmatch_indices('.').map(|(at, _)| path.get(..at).unwrap_or_default());
    std::iter::once(whole).chain(dots)
}

/// Refuses what cannot name a resource.
fn check(path: &str) -> Result<(), MalformedUrl> {
    if !path.starts_with('/') {
        return Err(MalformedUrl::NotAbsolute);
    }
    let has_control = match path.is_ascii() {
        true => path.bytes().any(|byte| byte.is_ascii_control()),
        false => path.chars().any(char::is_control),
    };
    if has_control {
        return Err(MalformedUrl::Control);
    }
    if path.contains("/.") && path.split('/').any(|segment| segment == "." || segment == "..") {
        return Err(MalformedUrl::Traversal);
    }
    Ok(())
}

/// Decodes percent escapes; a lone `%` is an error, not text.
fn decode(text: &str) -> Result<Cow<'_, str>, MalformedUrl> {
    if !text.contains('%') {
        return Ok(Cow::Borrowed(text));
    }
    let is_broken = |(at, _)| {
        let escape = text.get(at + 1..at + 3);
        !escape.is_some_and(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()))
    };
    if text.match_indices('%').any(is_broken) {
        return Err(MalformedUrl::Escape);
    }
    percent_decode_str(text).decode_utf8().map_err(|_| MalformedUrl::Escape)
}

/// A path without its parameters, and the parameters.
type Stripped<'a> = (Cow<'a, str>, Vec<(String, String)>);

/// Cuts the `;name=value` parameters out of a raw path.
fn take_parameters(raw: &str) -> Result<Stripped<'_>, MalformedUrl> {
    let Some((path, mut rest)) = raw.split_once(';') else {
        return Ok((Cow::Borrowed(raw), Vec::new()));
    };
    let mut path = path.to_owned();
    let mut parameters = Vec::new();
    loop {
        // After an extension, a dot can only belong to the value; before one, it begins the selectors.
        let after_extension = path.rsplit('/').next().is_some_and(|segment| segment.contains('.'));
        let (name, after) = split_before(rest, &['=', ';', '/', '.']);
        let (value, after) = match after.strip_prefix('=') {
            None => ("", after),
            Some(quoted) if quoted.starts_with('\'') => {
                let quoted = quoted.get(1..).unwrap_or_default();
                quoted.split_once('\'').ok_or(MalformedUrl::Quote)?
            }
            Some(plain) if after_extension => split_before(plain, &[';', '/']),
            Some(plain) => split_before(plain, &[';', '/', '.']),
        };
        if !name.is_empty() {
            parameters.push((decode(name)?.into_owned(), decode(value)?.into_owned()));
        }
        let (kept, next) =
            after.split_once(';').map_or((after, None), |(kept, next)| (kept, Some(next)));
        path.push_str(kept);
        match next {
            Some(next) => rest = next,
            None => return Ok((Cow::Owned(path), parameters)),
        }
    }
}

/// Splits a text before the first of the given characters.
fn split_before<'a>(text: &'a str, ends: &[char]) -> (&'a str, &'a str) {
    text.split_at(text.find(ends).unwrap_or(text.len()))
}

/// The namespace prefixes that stand mangled in URLs.
const PREFIXES: [&str; 17] = [
    "jcr",
    "nt",
    "mix",
    "rep",
    "sling",
    "cq",
    "dam",
    "granite",
    "oak",
    "wcm",
    "dc",
    "xmp",
    "xmpMM",
    "exif",
    "tiff",
    "photoshop",
    "crx",
];

/// Turns `_jcr_content` at the begin of a segment into `jcr:content`; nothing if no segment begins so.
fn unmangle(path: &str) -> Option<String> {
    if !path.contains("/_") {
        return None;
    }
    let segments = path.split('/').map(|segment| match split_mangled(segment) {
        Some((prefix, name)) => format!("{prefix}:{name}"),
        None => segment.to_owned(),
    });
    Some(segments.collect::<Vec<_>>().join("/"))
}

/// Finds the known prefix of a mangled segment.
fn split_mangled(segment: &str) -> Option<(&str, &str)> {
    let (prefix, name) = segment.strip_prefix('_')?.split_once('_')?;
    (!name.is_empty() && PREFIXES.contains(&prefix)).then_some((prefix, name))
}

/// Turns `jcr:content` into `_jcr_content`, the opposite of what [`Url::split`] does.
#[must_use]
pub fn mangle(path: &str) -> String {
    let segments = path.split('/').map(|segment| match segment.split_once(':') {
        Some((prefix, name)) if PREFIXES.contains(&prefix) => format!("_{prefix}_{name}"),
        _ => segment.to_owned(),
    });
    segments.collect::<Vec<_>>().join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Splits with resources at the given paths and writes the parts as one line.
    fn split(raw: &str, resources: &[&str]) -> String {
        let url = match Url::split(raw, |path| resources.contains(&path)) {
            Ok(url) => url,
            Err(error) => return error.to_string(),
        };
        let mut text =
            format!("{} path={}", if url.exists { "found" } else { "missing" }, url.path);
        if !url.selectors.is_empty() {
            text += &format!(" sel={}", url.selectors.join(","));
        }
        text += &url.extension.map(|extension| format!(" ext={extension}")).unwrap_or_default();
        text += &url.suffix.map(|suffix| format!(" suffix={suffix}")).unwrap_or_default();
        for (name, value) in url.parameters {
            text += &format!(" ;{name}={value}");
        }
        text
    }

    #[track_caller]
    fn check(raw: &str, expected: &str) {
        assert_eq!(split(raw, &["/a/b"]), expected, "{raw}");
    }

    #[test]
    fn splits_as_the_table_of_sling_says() {
        check("/a/b", "found path=/a/b");
        check("/a/b.html", "found path=/a/b ext=html");
        check("/a/b.s1.html", "found path=/a/b sel=s1 ext=html");
        check("/a/b.s1.s2.html", "found path=/a/b sel=s1,s2 ext=html");
        check("/a/b.html/c/d", "found path=/a/b ext=html suffix=/c/d");
        check("/a/b.s1.html/c/d", "found path=/a/b sel=s1 ext=html suffix=/c/d");
        check("/a/b.s1.s2.html/c/d", "found path=/a/b sel=s1,s2 ext=html suffix=/c/d");
        check("/a/b.s1.s2.html/c/d.s.txt", "found path=/a/b sel=s1,s2 ext=html suffix=/c/d.s.txt");
        check("/a/b./c/d", "found path=/a/b suffix=/c/d");
        check("/a/b/c/d.s.txt", "missing path=/a/b/c/d sel=s ext=txt");
        check("/a/c.html/s.txt", "missing path=/a/c ext=html suffix=/s.txt");
        check("/a/c", "missing path=/a/c");
    }

    #[test]
    fn longer_resource_wins() {
        assert_eq!(split("/a/b.html", &["/a/b", "/a/b.html"]), "found path=/a/b.html");
        assert_eq!(split("/a/b.x.html", &["/a/b", "/a/b.x"]), "found path=/a/b.x ext=html");
        assert_eq!(split("/a.b/c.html", &["/a.b/c", "/a"]), "found path=/a.b/c ext=html");
        assert_eq!(split("/a.b/c.html", &["/a"]), "found path=/a ext=b suffix=/c.html");
        assert_eq!(split("/", &["/"]), "found path=/");
        assert_eq!(split("/.json", &["/"]), "found path=/ ext=json");
    }

    #[test]
    fn reads_odd_dots_and_slashes() {
        check("/a/b.", "found path=/a/b");
        check("/a/b/", "found path=/a/b");
        check("/a/b..html", "found path=/a/b ext=html");
        check("/a/b.s1..html", "found path=/a/b sel=s1 ext=html");
        check("/a/b.html/", "found path=/a/b ext=html suffix=/");
    }

    #[test]
    fn takes_path_parameters() {
        check("/a/b;v='1.0'.html", "found path=/a/b ext=html ;v=1.0");
        check("/a/b.html;v=1.0", "found path=/a/b ext=html ;v=1.0");
        check("/a/b.html;v=1.0/c", "found path=/a/b ext=html suffix=/c ;v=1.0");
        check("/a/b;v=1;w=2.html", "found path=/a/b ext=html ;v=1 ;w=2");
        check("/a/b;flag.html", "found path=/a/b ext=html ;flag=");
        check("/a/b;.html", "found path=/a/b ext=html");
        check("/a/b;v='1.0.html", "a quoted path parameter does not end");
        check("/a/b%3Bv=1.html", "missing path=/a/b;v=1 ext=html");
    }

    #[test]
    fn decodes_and_unmangles() {
        let exists = ["/a/jcr:content", "/a/_x_y", "/ä/b c"];
        assert_eq!(split("/a/_jcr_content.html", &exists), "found path=/a/jcr:content ext=html");
        assert_eq!(split("/a/jcr:content.html", &exists), "found path=/a/jcr:content ext=html");
        assert_eq!(split("/a/jcr%3Acontent.json", &exists), "found path=/a/jcr:content ext=json");
        assert_eq!(split("/a/_x_y.html", &exists), "found path=/a/_x_y ext=html");
        assert_eq!(split("/%C3%A4/b%20c.html", &exists), "found path=/ä/b c ext=html");
        assert_eq!(mangle("/a/jcr:content/x:y"), "/a/_jcr_content/x:y");
    }

    #[test]
    fn refuses_what_no_resource_can_have() {
        check("a/b", "the path does not begin with `/`");
        check("", "the path does not begin with `/`");
        check("/a/../b", "the path has a `.` or `..` segment");
        check("/a/%2e%2e/b", "the path has a `.` or `..` segment");
        check("/a%2F..%2Fb", "the path has a `.` or `..` segment");
        check("/a/./b", "the path has a `.` or `..` segment");
        check("/a%00", "the path holds a control character");
        check("/a%zz", "a percent escape is broken");
        check("/a%e4", "a percent escape is broken");
        check("/a%4", "a percent escape is broken");
    }
}
