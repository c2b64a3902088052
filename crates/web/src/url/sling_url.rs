//! Decomposition of URL paths into resource path, selectors, extension, suffix and path parameters, as in Sling.
//!
//! The publisher, which knows which resources exist, gets a [`SlingUrl`]. The dispatcher, which does not, gets every
//! [`SlingUrlReading`] that a publisher may arrive at, and applies the same code to it as the publisher.
//!
//! In: the raw path of a request (still percent-encoded) and a predicate that tells whether a resource exists at a
//! path. Out: a [`SlingUrl`]; or from a decoded path, its [`SlingUrlReading`]s.
//!
//! Rules
//! * The resource path is the longest prefix at which a resource exists and which is followed by the end of the path or
//!   a dot. Between that dot and the next slash are the selectors and, last, the extension; the suffix begins at the
//!   slash.
//! * Where no such resource exists, the path is split at the first dot, and [`SlingUrl::exists`] is false.
//! * `;name=value` after the resource path or the extension is a path parameter; a value with a dot is quoted
//!   (`;v='1.0'`) unless it is at the very end.
//! * `_jcr_content` means `jcr:content`, for every namespace prefix that content uses.
//!
//! Paths with `.` or `..` segments, control characters or broken percent escapes are refused here, so later code never
//! sees them.

use std::borrow::Cow;

use http::{HeaderMap, HeaderName};
use percent_encoding::percent_decode_str;

/// The request header in which a dispatcher lists the [`SlingUrlReading::depth`] of each reading of the path that its
/// filter refuses.
///
/// Only the publisher knows which reading is correct; if that one is listed, it responds as if nothing existed at the
/// path. A dispatcher never forwards the value that a client sends.
pub const REFUSED_READINGS: HeaderName = HeaderName::from_static("x-tympan-refused-readings");

/// The request path cannot belong to a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MalformedUrl {
    /// The path does not begin with a slash.
    #[error("the path does not begin with `/`")]
    NotAbsolute,
    /// A percent escape does not decode to UTF-8.
    #[error("the path contains a malformed percent escape")]
    InvalidEscape,
    /// The path has a `.` or `..` segment.
    #[error("the path has a `.` or `..` segment")]
    Traversal,
    /// The path contains a control character.
    #[error("the path contains a control character")]
    ControlCharacter,
    /// A quoted path parameter is not terminated.
    #[error("a quoted path parameter is not terminated")]
    UnclosedQuote,
}

/// The decoded parts of a request path.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SlingUrl {
    /// The path of the resource, whether or not it exists.
    pub path: String,
    /// True if a resource exists at `path`.
    pub exists: bool,
    /// The selectors in order, without empty ones.
    pub selectors: Vec<String>,
    /// The extension without its dot.
    pub extension: Option<String>,
    /// The suffix, from the slash after the extension.
    pub suffix: Option<String>,
    /// True if there is nothing between two dots, or after the last one: `b..html`, `b.`. Any number of such dots leads
    /// to the same resource.
    pub has_empty_parts: bool,
    /// The path parameters in order, without quotes.
    pub parameters: Vec<(String, String)>,
}

impl SlingUrl {
    /// Splits a raw request path.
    ///
    /// `exists` is called for longer prefixes first, at most once for each dot in the path.
    ///
    /// # Errors
    /// [`MalformedUrl`] for paths that cannot belong to a resource.
    pub fn split(raw: &str, exists: impl Fn(&str) -> bool) -> Result<Self, MalformedUrl> {
        let (path, parameters) = extract_parameters(raw)?;
        let path = match path {
            Cow::Borrowed(path) => decode_escapes(path)?,
            Cow::Owned(path) => Cow::Owned(decode_escapes(&path)?.into_owned()),
        };
        let path = match unmangle_namespaces(&path) {
            Some(path) => Cow::Owned(path),
            None => path,
        };
        check_resource_path(&path)?;
        let split = resource_path_candidates(&path).find(|prefix| exists(prefix));
        let resource = split.or_else(|| resource_path_candidates(&path).last()).unwrap_or("/");
        let mut url = Self {
            path: resource.to_owned(),
            exists: split.is_some(),
            parameters,
            ..Self::default()
        };
        url.parse_rest(path.get(resource.len()..).unwrap_or_default());
        Ok(url)
    }

    /// Parses the text after the resource path: empty, or beginning with a dot.
    fn parse_rest(&mut self, rest: &str) {
        // A trailing slash after a resource path does not follow a dot.
        let reading = SlingUrlReading::from_rest("", if rest.starts_with('.') { rest } else { "" });
        self.selectors = split_selectors(reading.selectors.unwrap_or_default());
        self.extension = reading.extension.map(str::to_owned);
        self.suffix = reading.suffix.map(str::to_owned);
        let dotted = rest.split('/').next().unwrap_or_default();
        self.has_empty_parts = dotted.split('.').skip(1).any(str::is_empty);
    }

    /// Returns the depth of this reading of its path, like [`SlingUrlReading::depth`].
    #[must_use]
    pub fn depth(&self) -> usize {
        count_segments(self.suffix.as_deref())
    }

    /// Returns true if a dispatcher's filter refuses this reading, according to [`REFUSED_READINGS`] of its request.
    #[must_use]
    pub fn is_refused_by(&self, headers: &HeaderMap) -> bool {
        let mut lists = headers.get_all(REFUSED_READINGS).iter();
        let has_name = self.extension.is_some()
            || self.path.rsplit('/').next().is_some_and(|name| name.contains('.'));
        has_name
            && lists.any(|list| {
                let mut depths = list.as_bytes().split(|byte| *byte == b',');
                depths.any(|depth| {
                    let depth = std::str::from_utf8(depth.trim_ascii()).ok();
                    depth.and_then(|depth| depth.parse().ok()) == Some(self.depth())
                })
            })
    }

    /// Returns the selectors joined by dots; empty if there are none.
    #[must_use]
    pub fn selector_string(&self) -> String {
        self.selectors.join(".")
    }

    /// Returns true if the selector is present at any position.
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

/// The parts of a decoded path, if the extension is in a given one of its segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlingUrlReading<'a> {
    /// The text before the first dot of that segment.
    pub path: &'a str,
    /// The text between path and extension, joined by dots.
    pub selectors: Option<&'a str>,
    /// The text after the last dot of that segment.
    pub extension: Option<&'a str>,
    /// The text from the next slash on.
    pub suffix: Option<&'a str>,
}

impl<'a> SlingUrlReading<'a> {
    /// Returns the reading based on the text alone, which splits at the first dot. A path without a dot is only a path.
    #[must_use]
    pub fn by_first_dot(path: &'a str) -> Self {
        Self::all_readings(path).next().unwrap_or(Self {
            path,
            selectors: None,
            extension: None,
            suffix: None,
        })
    }

    /// Yields the possible readings of a publisher, depending on which resources exist: one for each segment with a
    /// dot.
    ///
    /// Folders and files may have dots in their names: `/dam/a.jpg/jcr:content.json` is the picture `/dam/a` with a
    /// suffix, or data of `/dam/a.jpg`. If the last name of a resource has a dot itself, its selectors are among those
    /// returned here.
    pub fn all_readings(path: &'a str) -> impl Iterator<Item = Self> {
        let mut from = Some(0);
        std::iter::from_fn(move || {
            let begin = from?;
            let dot = begin + path.get(begin..)?.find('.')?;
            let (before, rest) = path.split_at_checked(dot)?;
            from = rest.find('/').map(|slash| dot + slash);
            Some(Self::from_rest(before, rest))
        })
    }

    /// Parses the text after a resource path: empty, or beginning with a dot.
    fn from_rest(path: &'a str, rest: &'a str) -> Self {
        let present = |text: &&str| !text.is_empty();
        let rest = rest.strip_prefix('.').unwrap_or(rest);
        let (dotted, suffix) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let (selectors, extension) = dotted.rsplit_once('.').unwrap_or(("", dotted));
        Self {
            path,
            selectors: Some(selectors).filter(present),
            extension: Some(extension).filter(present),
            suffix: Some(suffix).filter(present),
        }
    }

    /// Distinguishes the readings of one path: the number of segments after the extension.
    #[must_use]
    pub fn depth(&self) -> usize {
        count_segments(self.suffix)
    }
}

fn count_segments(suffix: Option<&str>) -> usize {
    suffix.unwrap_or_default().split('/').filter(|segment| !segment.is_empty()).count()
}

/// Returns a raw path without its `;name=value` parameters.
///
/// # Errors
/// [`MalformedUrl::UnclosedQuote`] or [`MalformedUrl::InvalidEscape`].
pub fn strip_parameters(raw: &str) -> Result<Cow<'_, str>, MalformedUrl> {
    Ok(extract_parameters(raw)?.0)
}

/// Returns a path without the text between each `;` and the next slash, which servlet containers remove.
#[must_use]
pub fn strip_to_slashes(path: &str) -> String {
    let segments = path.split('/').map(|segment| segment.split(';').next().unwrap_or_default());
    segments.collect::<Vec<_>>().join("/")
}

/// Splits a selector string at its dots; empty selectors are dropped.
#[must_use]
pub fn split_selectors(text: &str) -> Vec<String> {
    text.split('.').filter(|selector| !selector.is_empty()).map(str::to_owned).collect()
}

/// Yields the prefixes at which a resource path may end, longest first: the whole path, then up to each dot.
fn resource_path_candidates(path: &str) -> impl Iterator<Item = &str> {
    let whole = if path.len() > 1 { path.strip_suffix('/').unwrap_or(path) } else { path };
    let dots = path.rmatch_indices('.').map(|(at, _)| path.get(..at).unwrap_or_default());
    std::iter::once(whole).chain(dots)
}

/// Returns an error for a path that cannot name a resource.
fn check_resource_path(path: &str) -> Result<(), MalformedUrl> {
    if !path.starts_with('/') {
        return Err(MalformedUrl::NotAbsolute);
    }
    let has_control = match path.is_ascii() {
        true => path.bytes().any(|byte| byte.is_ascii_control()),
        false => path.chars().any(char::is_control),
    };
    if has_control {
        return Err(MalformedUrl::ControlCharacter);
    }
    if path.contains("/.") && path.split('/').any(|segment| segment == "." || segment == "..") {
        return Err(MalformedUrl::Traversal);
    }
    Ok(())
}

/// Decodes percent escapes; a `%` without two digits is an error, not text.
fn decode_escapes(text: &str) -> Result<Cow<'_, str>, MalformedUrl> {
    if !text.contains('%') {
        return Ok(Cow::Borrowed(text));
    }
    let is_broken = |(at, _)| {
        let escape = text.get(at + 1..at + 3);
        !escape.is_some_and(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()))
    };
    if text.match_indices('%').any(is_broken) {
        return Err(MalformedUrl::InvalidEscape);
    }
    percent_decode_str(text).decode_utf8().map_err(|_| MalformedUrl::InvalidEscape)
}

/// A path without its parameters, and the parameters.
type StrippedPath<'a> = (Cow<'a, str>, Vec<(String, String)>);

/// Removes the `;name=value` parameters from a raw path, and returns both.
fn extract_parameters(raw: &str) -> Result<StrippedPath<'_>, MalformedUrl> {
    let Some((path, mut rest)) = raw.split_once(';') else {
        return Ok((Cow::Borrowed(raw), Vec::new()));
    };
    let mut path = path.to_owned();
    let mut parameters = Vec::new();
    loop {
        // After an extension, a dot can only belong to the value; before an extension, it begins the selectors.
        let after_extension = path.rsplit('/').next().is_some_and(|segment| segment.contains('.'));
        let (name, after) = split_before_any(rest, &['=', ';', '/', '.']);
        let (value, after) = match after.strip_prefix('=') {
            None => ("", after),
            Some(quoted) if quoted.starts_with('\'') => {
                let quoted = quoted.get(1..).unwrap_or_default();
                quoted.split_once('\'').ok_or(MalformedUrl::UnclosedQuote)?
            }
            Some(plain) if after_extension => split_before_any(plain, &[';', '/']),
            Some(plain) => split_before_any(plain, &[';', '/', '.']),
        };
        if !name.is_empty() {
            parameters
                .push((decode_escapes(name)?.into_owned(), decode_escapes(value)?.into_owned()));
        }
        let (path_piece, next) = after
            .split_once(';')
            .map_or((after, None), |(path_piece, next)| (path_piece, Some(next)));
        path.push_str(path_piece);
        match next {
            Some(next) => rest = next,
            None => return Ok((Cow::Owned(path), parameters)),
        }
    }
}

/// Splits a text before the first of the given characters.
fn split_before_any<'a>(text: &'a str, ends: &[char]) -> (&'a str, &'a str) {
    text.split_at(text.find(ends).unwrap_or(text.len()))
}

/// The namespace prefixes that are mangled in URLs.
const MANGLED_PREFIXES: [&str; 17] = [
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

/// Converts `_jcr_content` at the beginning of a segment to `jcr:content`; `None` if no segment has such a prefix.
#[must_use]
pub fn unmangle_namespaces(path: &str) -> Option<String> {
    if !path.contains("/_") {
        return None;
    }
    let segments = path.split('/').map(|segment| match split_mangled_segment(segment) {
        Some((prefix, name)) => format!("{prefix}:{name}"),
        None => segment.to_owned(),
    });
    Some(segments.collect::<Vec<_>>().join("/"))
}

/// Splits the known prefix off a mangled segment.
fn split_mangled_segment(segment: &str) -> Option<(&str, &str)> {
    let (prefix, name) = segment.strip_prefix('_')?.split_once('_')?;
    (!name.is_empty() && MANGLED_PREFIXES.contains(&prefix)).then_some((prefix, name))
}

/// Converts `jcr:content` to `_jcr_content`, the reverse of [`SlingUrl::split`].
#[must_use]
pub fn mangle_namespaces(path: &str) -> String {
    let segments = path.split('/').map(|segment| match segment.split_once(':') {
        Some((prefix, name)) if MANGLED_PREFIXES.contains(&prefix) => format!("_{prefix}_{name}"),
        _ => segment.to_owned(),
    });
    segments.collect::<Vec<_>>().join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Splits a path with resources at the given paths, and returns the parts as one line.
    fn split(raw: &str, resources: &[&str]) -> String {
        let url = match SlingUrl::split(raw, |path| resources.contains(&path)) {
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

    #[track_caller]
    fn check_readings(path: &str, expected: &[&str]) {
        let written = SlingUrlReading::all_readings(path).map(|reading| {
            let mut text = format!("path={}", reading.path);
            let parts = [
                ("sel", reading.selectors),
                ("ext", reading.extension),
                ("suffix", reading.suffix),
            ];
            for (name, value) in parts {
                text += &value.map(|value| format!(" {name}={value}")).unwrap_or_default();
            }
            text
        });
        assert_eq!(written.collect::<Vec<_>>(), expected, "{path}");
        let first = SlingUrlReading::all_readings(path).next();
        let none = SlingUrlReading { path, selectors: None, extension: None, suffix: None };
        assert_eq!(SlingUrlReading::by_first_dot(path), first.unwrap_or(none));
    }

    #[test]
    fn each_segment_with_a_dot_is_a_reading() {
        check_readings("/a/b", &[]);
        check_readings("/", &[]);
        check_readings("/a/b.html", &["path=/a/b ext=html"]);
        check_readings("/a/b.print.a4.html", &["path=/a/b sel=print.a4 ext=html"]);
        check_readings("/a/b.html/c/d", &["path=/a/b ext=html suffix=/c/d"]);
        check_readings(
            "/a/b.x.html/c.d/e.f",
            &[
                "path=/a/b sel=x ext=html suffix=/c.d/e.f",
                "path=/a/b.x.html/c ext=d suffix=/e.f",
                "path=/a/b.x.html/c.d/e ext=f",
            ],
        );
        check_readings("/home/path/suffix.ext", &["path=/home/path/suffix ext=ext"]);
        check_readings("/a.b/", &["path=/a ext=b suffix=/"]);
        check_readings("/a.", &["path=/a"]);
        check_readings("/.stat", &["path=/ ext=stat"]);
        check_readings(
            "/content.tidy.-1.blubber.json",
            &["path=/content sel=tidy.-1.blubber ext=json"],
        );
        check_readings(
            "/etc.clientlibs/x.infinity.json",
            &[
                "path=/etc ext=clientlibs suffix=/x.infinity.json",
                "path=/etc.clientlibs/x sel=infinity ext=json",
            ],
        );
    }

    #[test]
    fn a_refused_reading_is_known_by_what_follows_its_extension() {
        let is_refused = |raw: &str, resources: &[&str], list: &str| {
            let url = SlingUrl::split(raw, |path| resources.contains(&path)).unwrap();
            let mut headers = HeaderMap::new();
            headers.insert(REFUSED_READINGS, list.parse().unwrap());
            url.is_refused_by(&headers)
        };
        let path = "/a.b/c.json";
        assert!(is_refused(path, &["/a.b/c"], "0"));
        assert!(is_refused(path, &["/a.b/c.json"], "3, 0"), "a file's own name counts");
        assert!(!is_refused(path, &["/a"], "0"), "that one is a suffix");
        assert!(is_refused(path, &["/a"], "1"));
        assert!(is_refused("/a.b/c.json/", &["/a.b/c"], "0"));
        assert!(!is_refused("/a.b/c", &["/a.b/c"], "0"), "it has no extension");
        assert!(!is_refused(path, &["/a.b/c"], "x"));
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
    fn dots_without_anything_between_them_are_noted() {
        let check = |raw: &str, expected: bool| {
            let url = SlingUrl::split(raw, |path| matches!(path, "/a/b" | "/a/c.jpg")).unwrap();
            assert_eq!(url.has_empty_parts, expected, "{raw}");
        };
        for plain in ["/a/b", "/a/b/", "/a/b.html", "/a/b.x.html", "/a/b.html/c..d", "/a/c.jpg"] {
            check(plain, false);
        }
        for odd in
            ["/a/b.", "/a/b..html", "/a/b.x..html", "/a/b./c", "/a/c.jpg.", "/a/c.jpg./d.html"]
        {
            check(odd, true);
        }
    }

    #[test]
    fn takes_path_parameters() {
        check("/a/b;v='1.0'.html", "found path=/a/b ext=html ;v=1.0");
        check("/a/b.html;v=1.0", "found path=/a/b ext=html ;v=1.0");
        check("/a/b.html;v=1.0/c", "found path=/a/b ext=html suffix=/c ;v=1.0");
        check("/a/b;v=1;w=2.html", "found path=/a/b ext=html ;v=1 ;w=2");
        check("/a/b;flag.html", "found path=/a/b ext=html ;flag=");
        check("/a/b;.html", "found path=/a/b ext=html");
        check("/a/b;v='1.0.html", "a quoted path parameter is not terminated");
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
        assert_eq!(mangle_namespaces("/a/jcr:content/x:y"), "/a/_jcr_content/x:y");
    }

    #[test]
    fn refuses_what_no_resource_can_have() {
        check("a/b", "the path does not begin with `/`");
        check("", "the path does not begin with `/`");
        check("/a/../b", "the path has a `.` or `..` segment");
        check("/a/%2e%2e/b", "the path has a `.` or `..` segment");
        check("/a%2F..%2Fb", "the path has a `.` or `..` segment");
        check("/a/./b", "the path has a `.` or `..` segment");
        check("/a%00", "the path contains a control character");
        check("/a%zz", "the path contains a malformed percent escape");
        check("/a%e4", "the path contains a malformed percent escape");
        check("/a%4", "the path contains a malformed percent escape");
    }
}
