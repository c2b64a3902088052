//! `/etc/map`: the mapping from host and path to a content path, and back.
//!
//! Entries lie at `/etc/map/<scheme>/<host>.<port>/…`. Each level matches its node's name, or the regular expression in
//! `sling:match`. `sling:internalRedirect` lists content paths, of which the first that resolves is used;
//! `sling:redirect` redirects the visitor. The longest pattern is tried first.

use regex::Regex;
use tympan_content::Node;

use super::route_target::{RouteTarget, read_redirect_kind, text_values};
use crate::page::link::encode_path;
use crate::response::RedirectKind;

/// Maximum number of repeated mappings of an address.
const MAX_MAPPING_STEPS: usize = 8;

/// Maximum depth of entries.
const MAX_MAPPING_DEPTH: usize = 12;

/// Maximum memory of a compiled pattern, in bytes.
const MAX_PATTERN_BYTES: usize = 256 * 1024;

/// All entries, sorted by pattern length, longest first.
#[derive(Debug, Default)]
pub(super) struct UrlMappings(Vec<UrlMapping>);

#[derive(Debug)]
struct UrlMapping {
    /// Scheme, host with port, and path, as far as the entry specifies them.
    prefix: String,
    /// The pattern of an entry with a `sling:match` level; otherwise the text itself is the prefix that matches.
    pattern: Option<Regex>,
    internal_paths: Vec<String>,
    external_redirect: Option<(String, RedirectKind)>,
}

impl UrlMappings {
    /// Reads the entries below `/etc/map`.
    pub(super) fn read_mappings(map: &Node) -> Self {
        let mut entries = Vec::new();
        collect_mappings(map, "", false, 0, &mut entries);
        entries.sort_by(|left, right| {
            right.prefix.len().cmp(&left.prefix.len()).then_with(|| left.prefix.cmp(&right.prefix))
        });
        Self(entries)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Resolves a host and a decoded path.
    pub(super) fn resolve(
        &self,
        scheme: &str,
        host: &str,
        path: &str,
        find: impl Fn(&str) -> bool,
    ) -> Option<RouteTarget> {
        if self.is_empty() || host.is_empty() {
            return None;
        }
        let mut key = mapping_key(scheme, host, path);
        let mut mapped = None;
        for _ in 0..MAX_MAPPING_STEPS {
            let target = self.0.iter().find_map(|entry| entry.resolve(&key, &find));
            match target {
                None => break,
                Some(RouteTarget::Internal(path)) => match path.split_once("://") {
                    // A full URL is mapped again.
                    Some((scheme, rest)) => {
                        let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
                        key = mapping_key(scheme, host, path);
                        mapped = Some(RouteTarget::Internal(path.to_owned()));
                    }
                    None => return Some(RouteTarget::Internal(path)),
                },
                elsewhere => return elsewhere,
            }
        }
        mapped
    }

    /// Returns the external address of a content path; entries with a pattern cannot be reversed.
    pub(super) fn external_url(
        &self,
        scheme: &str,
        host: &str,
        address_in: &str,
    ) -> Option<String> {
        if self.is_empty() || !address_in.starts_with('/') || address_in.starts_with("//") {
            return None;
        }
        let end = address_in.find(['?', '#']).unwrap_or(address_in.len());
        let (path, rest) = address_in.split_at(end);
        let here = mapping_key(scheme, host, "");
        let entries = self
            .0
            .iter()
            .filter(|entry| entry.pattern.is_none() && entry.external_redirect.is_none());
        let mut candidates: Vec<(usize, bool, String)> = entries
            .flat_map(|entry| {
                entry.internal_paths.iter().map(move |target| (entry, encode_path(target)))
            })
            .filter_map(|(entry, target)| {
                let below = strip_whole_prefix(path, &target)?;
                let (scheme, rest) = entry.prefix.split_once('/')?;
                let (host_port, folder) = rest.split_once('/').unwrap_or((rest, ""));
                let folder = if folder.is_empty() { String::new() } else { format!("/{folder}") };
                let below = format!("{}{below}", encode_path(&folder));
                let is_here = format!("{scheme}/{host_port}") == here;
                let origin = if is_here { String::new() } else { url_origin(scheme, host_port) };
                let below = if below.starts_with('/') { below } else { format!("/{below}") };
                Some((target.len(), is_here, format!("{origin}{below}")))
            })
            .collect();
        // The nearest target, and among equal ones the one on this host.
        candidates.sort_by_key(|(length, is_here, _)| (*length, *is_here));
        candidates.pop().map(|(_, _, url)| format!("{url}{rest}"))
    }
}

impl UrlMapping {
    fn resolve(&self, key: &str, find: impl Fn(&str) -> bool) -> Option<RouteTarget> {
        let replace: Box<dyn Fn(&str) -> String> = match &self.pattern {
            Some(pattern) => {
                pattern.is_match(key).then_some(())?;
                Box::new(move |target| pattern.replace(key, target).into_owned())
            }
            None => {
                let rest = strip_whole_prefix(key, &self.prefix)?;
                Box::new(move |target| format!("{}{rest}", target.trim_end_matches('/')))
            }
        };
        if let Some((target, kind)) = &self.external_redirect {
            let location = replace(target);
            let location =
                if location.starts_with('/') { encode_path(&location) } else { location };
            return Some(RouteTarget::Redirect { location, kind: *kind });
        }
        let targets: Vec<String> =
            self.internal_paths.iter().map(|target| replace(target)).collect();
        let resolves = |target: &&String| target.contains("://") || find(target);
        let selected_target = targets.iter().find(resolves).or_else(|| targets.first())?;
        Some(RouteTarget::Internal(if selected_target.is_empty() {
            "/".to_owned()
        } else {
            selected_target.clone()
        }))
    }
}

/// Returns the text after a prefix, if the prefix ends at a path boundary.
fn strip_whole_prefix<'a>(text: &'a str, begin: &str) -> Option<&'a str> {
    let rest = text.strip_prefix(begin.trim_end_matches('/'))?;
    (rest.is_empty() || rest.starts_with(['/', '.', '?', '#'])).then_some(rest)
}

/// Formats scheme, host and path for matching: always with the port, even if it is the default one.
fn mapping_key(scheme: &str, host: &str, path: &str) -> String {
    let (name, port) = match host.rsplit_once(':') {
        Some((name, port))
            if !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()) =>
        {
            (name, port)
        }
        _ => (host, if scheme == "https" { "443" } else { "80" }),
    };
    format!("{scheme}/{}.{port}{path}", name.to_ascii_lowercase())
}

/// Formats a scheme and a host with port as a URL origin.
fn url_origin(scheme: &str, host_port: &str) -> String {
    match host_port.rsplit_once('.') {
        Some((host, "80")) if scheme == "http" => format!("http://{host}"),
        Some((host, "443")) if scheme == "https" => format!("https://{host}"),
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => {
            format!("{scheme}://{host}:{port}")
        }
        _ => format!("{scheme}://{host_port}"),
    }
}

fn collect_mappings(
    node: &Node,
    above: &str,
    is_pattern: bool,
    depth: usize,
    entries: &mut Vec<UrlMapping>,
) {
    if depth > MAX_MAPPING_DEPTH {
        return;
    }
    for child in node.children().unwrap_or_default() {
        let own = child.text("sling:match");
        let is_pattern = is_pattern || own.is_some();
        let level = own.unwrap_or_else(|| child.name().to_owned());
        let text = if above.is_empty() { level } else { format!("{above}/{level}") };
        let internal = text_values(&child, "sling:internalRedirect");
        let external = text_values(&child, "sling:redirect").into_iter().next();
        let external = external.map(|target| (target, read_redirect_kind(&child, "sling:status")));
        collect_mappings(&child, &text, is_pattern, depth + 1, entries);
        if internal.is_empty() && external.is_none() {
            continue;
        }
        let pattern = is_pattern.then(|| {
            regex::RegexBuilder::new(&format!("^(?:{text})")).size_limit(MAX_PATTERN_BYTES).build()
        });
        match pattern.transpose() {
            Ok(pattern) => entries.push(UrlMapping {
                prefix: text,
                pattern,
                internal_paths: internal,
                external_redirect: external,
            }),
            Err(error) => {
                tracing::warn!(path = child.path().as_str(), %error, "skipped a mapping with an invalid \
                    pattern");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(
        text: &str,
        is_pattern: bool,
        internal: &[&str],
        external: Option<&str>,
    ) -> UrlMapping {
        UrlMapping {
            prefix: text.to_owned(),
            pattern: is_pattern.then(|| Regex::new(&format!("^(?:{text})")).unwrap()),
            internal_paths: internal.iter().map(|path| (*path).to_owned()).collect(),
            external_redirect: external.map(|target| (target.to_owned(), RedirectKind::Found)),
        }
    }

    fn mappings() -> UrlMappings {
        let mut entries = vec![
            entry("http/www.example.com.80", false, &["/content/site/en"], None),
            entry("http/www.example.com.80/de", false, &["/content/site/de"], None),
            entry("http/example.com.80", false, &[], Some("http://www.example.com")),
            entry("http/other.org.8080", false, &["http://www.example.com/de"], None),
            entry("https?/[^/]+\\.shop\\.[0-9]+", true, &["/content/none", "/content/shop"], None),
            entry("http/old.org.80/(.+)\\.htm$", true, &["/content/$1.html"], None),
        ];
        entries.sort_by_key(|entry| std::cmp::Reverse(entry.prefix.len()));
        UrlMappings(entries)
    }

    #[track_caller]
    fn check(url: &str, expected: &str) {
        let (scheme, rest) = url.split_once("://").unwrap();
        let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let target =
            mappings().resolve(scheme, host, path, |path| path.starts_with("/content/shop"));
        let target = match target {
            None => "-".to_owned(),
            Some(RouteTarget::Internal(path)) => path,
            Some(RouteTarget::Redirect { location, .. }) => format!("-> {location}"),
        };
        assert_eq!(target, expected, "{url}");
    }

    #[test]
    fn leads_inward() {
        check("http://www.example.com/a.html", "/content/site/en/a.html");
        check("http://WWW.Example.com:80/a.html", "/content/site/en/a.html");
        check("http://www.example.com/", "/content/site/en/");
        check("http://www.example.com.html", "-");
        check("http://www.example.com/de/a.html", "/content/site/de/a.html");
        check("http://www.example.com/de.html", "/content/site/de.html");
        check("http://www.example.com/demo.html", "/content/site/en/demo.html");
        check("https://www.example.com/a.html", "-");
        check("http://example.com/a.html", "-> http://www.example.com/a.html");
        check("http://other.org:8080/a.html", "/content/site/de/a.html");
        check("https://x.shop/a.html", "/content/shop/a.html");
        check("http://old.org/a/b.htm", "/content/a/b.html");
        check("http://unknown.org/a.html", "-");
    }

    #[track_caller]
    fn check_outward(host: &str, address: &str, expected: &str) {
        let url = mappings().external_url("http", host, address);
        assert_eq!(url.as_deref().unwrap_or("-"), expected, "{address}");
    }

    #[test]
    fn leads_outward() {
        check_outward(
            "www.example.com",
            "/content/site/en/a.html?b=/content/site/en#c",
            "/a.html?b=/content/site/en#c",
        );
        check_outward("www.example.com", "/content/site/de/a.html", "/de/a.html");
        check_outward(
            "elsewhere.org",
            "/content/site/de/a.html",
            "http://www.example.com/de/a.html",
        );
        check_outward("www.example.com", "/content/site/english/a.html", "-");
        check_outward("www.example.com", "/content/shop/a.html", "-");
        check_outward("www.example.com", "https://x/content/site/en", "-");
        check_outward("www.example.com", "//content/site/en", "-");
    }
}
