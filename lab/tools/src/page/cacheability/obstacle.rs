//! Properties of an address or a response that prevent caching.

use std::fmt;
use std::sync::LazyLock;

use regex::Regex;
use tympan_lab_engine::load::probe_client::ProbeResponse;

/// A reason why a response is not cached, or is wrong when served from a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CacheObstacle {
    /// The address has a query string.
    QueryString,
    /// One script serves many files, selected by its query string.
    GenericScript,
    /// The address has no extension.
    NoExtension,
    /// The response does not declare a charset.
    NoCharset,
    /// The response has no media type.
    NoMediaType,
    /// The response sets a cookie.
    SetCookie,
    /// The response forbids storing.
    StorageForbidden,
    /// The content depends on cookies.
    CookieDependentBytes,
    /// The content depends on the visitor.
    PersonalizedBytes,
    /// The content differs between requests.
    VaryingBytes,
}

impl CacheObstacle {
    /// Returns the machine-readable name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::QueryString => "query-string",
            Self::GenericScript => "generic-script",
            Self::NoExtension => "no-extension",
            Self::NoCharset => "no-charset",
            Self::NoMediaType => "no-media-type",
            Self::SetCookie => "set-cookie",
            Self::StorageForbidden => "forbidden",
            Self::CookieDependentBytes => "cookie-dependent-bytes",
            Self::PersonalizedBytes => "personalized-bytes",
            Self::VaryingBytes => "varying-bytes",
        }
    }

    /// Returns the reason why it prevents caching.
    #[must_use]
    pub fn reason(self) -> &'static str {
        match self {
            Self::QueryString => {
                "a cache keyed by path stores no response to a URL with a query string"
            }
            Self::GenericScript => {
                "a script that serves files by a parameter has one path for all of them, so none can be \
                 cached"
            }
            Self::NoExtension => {
                "a URL without an extension is not stored as a file, and a stored one has no media type"
            }
            Self::NoCharset => {
                "a cache may not store the header that declares the charset, and browsers then guess it"
            }
            Self::NoMediaType => "without a media type, a cached response is shown as plain text",
            Self::SetCookie => {
                "a response that sets a cookie is either not cached or gives one visitor's cookie to all"
            }
            Self::StorageForbidden => "the response itself forbids storing it",
            Self::CookieDependentBytes => {
                "the cached response of one visitor is served to all, whatever their cookies are"
            }
            Self::PersonalizedBytes => {
                "the page contains content of the visitor, so it must not be served to another"
            }
            Self::VaryingBytes => {
                "the same request twice returns different bytes, so a cached response freezes one of them"
            }
        }
    }

    /// Returns the recommended fix.
    #[must_use]
    pub fn advice(self) -> &'static str {
        match self {
            Self::QueryString => {
                "put the parameters into selectors: gallery.html?event=christmas&page=1 becomes gallery.christmas.1.html"
            }
            Self::GenericScript => {
                "put the file into the path: download.jsp?file=2214 becomes download.2214.pdf"
            }
            Self::NoExtension => "add the extension of the content type to the URL, such as .html",
            Self::NoCharset => {
                "declare it in the page, <meta charset=\"utf-8\">, and in Content-Type"
            }
            Self::NoMediaType => "send a Content-Type",
            Self::SetCookie => "set cookies only at login, or with a script in the page",
            Self::StorageForbidden => "omit the header from pages that are the same for everyone",
            Self::CookieDependentBytes => "put the choice into the URL: main.large.html",
            Self::PersonalizedBytes => {
                "load the personal part separately: with a server side include or a script"
            }
            Self::VaryingBytes => "create the varying part on the client, or load it separately",
        }
    }
}

impl fmt::Display for CacheObstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

type ObstacleList = Vec<(CacheObstacle, String)>;

/// Returns the obstacles that follow from the address alone.
pub(super) fn address_obstacles(target: &str) -> ObstacleList {
    #[expect(clippy::expect_used, reason = "the pattern is a constant")]
    static SCRIPT: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(
            r"(?i)/(?:[^/?]*\.(?:jsp|jspx|php\d?|cgi|pl|asp|aspx|ashx|do|action|servlet)|[^/?]*(?:download|getfile|get_file|sendfile|fileserver)[^/?]*)\?(?:.*&)?(?:file|filename|id|doc|document|path|name|asset|img|image|attachment)=",
        )
        .expect("the pattern is valid")
    });
    let (path, query) = match target.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (target, None),
    };
    let mut obstacles = Vec::new();
    if SCRIPT.is_match(target) {
        obstacles.push((CacheObstacle::GenericScript, format!("`{}`", query.unwrap_or_default())));
    } else if let Some(query) = query {
        obstacles.push((CacheObstacle::QueryString, format!("`?{query}`")));
    }
    let name = path.rsplit('/').next().unwrap_or_default();
    if path != "/" && !name.contains('.') {
        let detail =
            if name.is_empty() { "it ends in `/`".to_owned() } else { format!("`{name}`") };
        obstacles.push((CacheObstacle::NoExtension, detail));
    }
    obstacles
}

/// Returns the obstacles of a response with status 200.
pub(super) fn response_obstacles(target: &str, response: &ProbeResponse) -> ObstacleList {
    let mut obstacles = Vec::new();
    let kind = response.header("Content-Type").unwrap_or_default().to_ascii_lowercase();
    let has_charset = kind.contains("charset=");
    if kind.is_empty() && !response.body.is_empty() {
        obstacles.push((CacheObstacle::NoMediaType, "no Content-Type".to_owned()));
    } else if kind.starts_with("text/") && !has_charset && !declares_charset(response) {
        obstacles.push((CacheObstacle::NoCharset, format!("Content-Type `{kind}`")));
    }
    for cookie in response.header_values("Set-Cookie") {
        let name = cookie.split('=').next().unwrap_or_default();
        obstacles.push((CacheObstacle::SetCookie, format!("`{name}`")));
    }
    if let Some(detail) = storage_prohibition(response) {
        obstacles.push((CacheObstacle::StorageForbidden, format!("{detail} on {target}")));
    }
    obstacles
}

/// Returns true if a page declares its charset in its head, or a style sheet in its first line.
fn declares_charset(response: &ProbeResponse) -> bool {
    let start = response.body.get(..response.body.len().min(4096)).unwrap_or_default();
    if start.starts_with(b"\xef\xbb\xbf") {
        return true;
    }
    let start = String::from_utf8_lossy(start).to_ascii_lowercase();
    match response.media_type().as_str() {
        "text/html" => start
            .split("<meta")
            .skip(1)
            .any(|tag| tag.split('>').next().is_some_and(|tag| tag.contains("charset="))),
        "text/css" => start.trim_start().starts_with("@charset"),
        _ => false,
    }
}

fn storage_prohibition(response: &ProbeResponse) -> Option<String> {
    for (name, value) in &response.headers {
        let text = value.to_ascii_lowercase();
        let has_directive =
            |directive: &str| text.split(',').any(|part| part.trim().starts_with(directive));
        let is_so = match name.to_ascii_lowercase().as_str() {
            "cache-control" => {
                has_directive("no-store") || has_directive("no-cache") || has_directive("private")
            }
            "pragma" | "dispatcher" => has_directive("no-cache"),
            "vary" => {
                has_directive("*") || has_directive("cookie") || has_directive("authorization")
            }
            _ => false,
        };
        if is_so {
            return Some(format!("`{name}: {value}`"));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(target: &str, expected: &[&str]) {
        let names: Vec<&str> =
            address_obstacles(target).iter().map(|(obstacle, _)| obstacle.name()).collect();
        assert_eq!(names, expected, "{target}");
    }

    #[test]
    fn addresses_are_judged_by_the_guide_s_examples() {
        check("/pictures/gallery.html?event=christmas&page=1", &["query-string"]);
        check("/pictures/gallery.christmas.1.html", &[]);
        check("/download.jsp?file=2214", &["generic-script"]);
        check("/files/download?x=1&id=7", &["generic-script", "no-extension"]);
        check("/download.2214.pdf", &[]);
        check("/news/main.large.html", &[]);
        check("/news", &["no-extension"]);
        check("/news/", &["no-extension"]);
        check("/", &[]);
        check("/search?q=a", &["query-string", "no-extension"]);
    }

    #[test]
    fn answers_are_judged_by_their_headers() {
        let response_with = |headers: &[(&str, &str)], body: &str| ProbeResponse {
            status: 200,
            headers: headers
                .iter()
                .map(|(name, value)| ((*name).into(), (*value).into()))
                .collect(),
            body: body.into(),
            ..ProbeResponse::default()
        };
        let names = |response: &ProbeResponse| -> Vec<&str> {
            response_obstacles("/x.html", response)
                .iter()
                .map(|(obstacle, _)| obstacle.name())
                .collect()
        };
        let html = ("Content-Type", "text/html");
        assert_eq!(names(&response_with(&[html], "<p>")), ["no-charset"]);
        assert!(
            names(&response_with(&[html], "<META http-equiv=x content=\"a; charset=gbk\">"))
                .is_empty()
        );
        assert!(
            names(&response_with(&[("Content-Type", "text/html;charset=utf-8")], "<p>")).is_empty()
        );
        assert!(names(&response_with(&[("Content-Type", "image/png")], "x")).is_empty());
        assert_eq!(names(&response_with(&[], "x")), ["no-media-type"]);
        assert_eq!(
            names(&response_with(&[("Content-Type", "image/png"), ("Set-Cookie", "a=b")], "x")),
            ["set-cookie"]
        );
        for (name, value) in [
            ("Cache-Control", "max-age=0, no-store"),
            ("Dispatcher", "no-cache"),
            ("Vary", "Accept-Encoding, Cookie"),
        ] {
            let response = response_with(&[("Content-Type", "image/png"), (name, value)], "x");
            assert_eq!(names(&response), ["forbidden"], "{name}");
        }
        let vary =
            response_with(&[("Content-Type", "image/png"), ("Vary", "Accept-Encoding")], "x");
        assert!(names(&vary).is_empty());
    }
}
