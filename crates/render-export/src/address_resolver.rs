//! Resolves addresses for the export: target, export decision, file name.
//!
//! Input: an address of this instance as a page writes it. Output: a [`ResolvedExportAddress`]: the target, whether it
//! is exported and under which file name. All decisive content is read through the [`AddressReader`], so that pages
//! with such an address depend on it.
//!
//! The order of decisions is that of OpenCms: the property `export` of the resource or its ancestors, the configured
//! default, the extension. Client libraries are exported wherever a page names them.
//!
//! Invariants
//! * Equivalent addresses have one [`ExportAddress`], regardless of their escapes.
//! * A file name has no segment that is empty, `.`, `..`, too long for file systems, or a directive to a web server
//!   (`.htaccess`), and no control character.
//! * A name below another file's name, such as a rendition below its asset, becomes a name beside it.

use percent_encoding::percent_decode_str;
use sha2::{Digest, Sha256};
use tympan_content::NodePath;
use tympan_render::{AddressReader, ImageAddress, RouteTarget, encode_path};
use tympan_web::sling_url::{SlingUrl, mangle_namespaces};

use crate::rule::ExportRule;

/// Property that says whether a resource and everything below it is exported: `true` or `false`.
pub(crate) const EXPORT_PROPERTY: &str = "export";
/// Property that replaces the path of a folder in file names.
pub(crate) const EXPORT_NAME_PROPERTY: &str = "exportname";
/// Property that is appended to the names of rendered files.
const EXPORT_SUFFIX_PROPERTY: &str = "exportsuffix";
/// Property that says whether a page is visited over an encrypted connection: `true`, `false`, or `both` to keep the
/// present scheme.
const SECURE_PROPERTY: &str = "secure";

/// The properties that apply to everything below their node.
pub(crate) const INHERITED_PROPERTIES: [&str; 4] =
    [EXPORT_PROPERTY, EXPORT_NAME_PROPERTY, EXPORT_SUFFIX_PROPERTY, SECURE_PROPERTY];

/// The name of a folder's own file.
const INDEX_FILE_NAME: &str = "index_export.html";
/// Maximum length of a path segment on most file systems, in bytes; temporary file names are no longer.
const MAX_SEGMENT_BYTES: usize = 255;
/// Maximum length of a file name, in bytes: the limit of operating systems, less some space for the export folder.
const MAX_FILE_NAME_BYTES: usize = 2048;

/// The configuration that applies where content says nothing.
#[derive(Debug, Clone)]
pub(crate) struct ExportRuleSet {
    /// The export decision for resources without a setting.
    pub is_exported_by_default: bool,
    /// Extensions that are exported without a setting, with their dot.
    pub suffixes: Vec<String>,
    /// Rules for parts of the site with their own folders.
    pub source_rules: Vec<ExportRule>,
}

impl ExportRuleSet {
    /// Returns the rule for a resource; `None` if no rule matches.
    pub(crate) fn rule_for(&self, source: &str) -> Option<&ExportRule> {
        self.source_rules.iter().find(|rule| rule.matches(source))
    }
}

/// An address of this instance in canonical form.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExportAddress {
    /// The path, percent-encoded.
    pub path: String,
    /// The query without `?`; empty if there is none.
    pub query: String,
}

impl std::fmt::Display for ExportAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.path)?;
        if self.query.is_empty() { Ok(()) } else { write!(f, "?{}", self.query) }
    }
}

impl ExportAddress {
    /// Parses the text form of an [`ExportAddress`].
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let (path, query) = text.split_once('?').unwrap_or((text, ""));
        Self { path: path.to_owned(), query: query.to_owned() }
    }
}

/// Reason why an address is not exported.
#[derive(Debug, Clone, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum NotExportedReason {
    /// The address is malformed.
    #[error("the address is malformed: {0}")]
    Malformed(String),
    /// The target does not exist, or the export's user may not read it.
    #[error("it does not exist, or the export's user may not read it")]
    Missing,
    /// The property `export` excludes it.
    #[error("`export` is false at `{0}`")]
    Excluded(String),
    /// It shows content of a single visitor.
    #[error("it depends on the visitor, so it cannot be a static file")]
    Personalized,
    /// No rule says that it is exported.
    #[error("`export` is not set, and the extension is not one that is always exported")]
    Undecided,
    /// The name is not a valid file name.
    #[error("{0}")]
    InvalidName(String),
}

/// The kind of target of an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ExportAddressKind {
    /// A resource, rendered or sent as stored.
    Resource,
    /// A sized image of an asset.
    Image(ImageAddress),
    /// A file of a client library.
    ClientLibrary,
}

/// A resolved address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ResolvedExportAddress {
    pub address: ExportAddress,
    pub kind: ExportAddressKind,
    /// The resource that decides about the export.
    pub source: String,
    /// The file below the export's folder, or the reason why there is none.
    pub file: Result<String, NotExportedReason>,
    /// The value of `secure`.
    pub secure_setting: Option<String>,
    /// True if the address is that of the resource itself: no selectors, no suffix, no query.
    pub is_canonical: bool,
}

/// Resolves addresses in the same way as a request to the renderer.
pub(crate) struct ExportAddressResolver<'a> {
    pub reader: &'a AddressReader<'a>,
    pub rules: &'a ExportRuleSet,
    /// The scheme and host that links are written for.
    pub scheme_and_host: (&'a str, &'a str),
}

impl ExportAddressResolver<'_> {
    /// Resolves an address.
    pub(crate) fn resolve(&self, path: &str, query: &str) -> ResolvedExportAddress {
        match self.try_resolve(path, query) {
            Ok(resolved) => resolved,
            Err(reason) => ResolvedExportAddress {
                address: ExportAddress { path: path.to_owned(), query: query.to_owned() },
                kind: ExportAddressKind::Resource,
                source: String::new(),
                file: Err(reason),
                secure_setting: None,
                is_canonical: false,
            },
        }
    }

    fn try_resolve(
        &self,
        path: &str,
        query: &str,
    ) -> Result<ResolvedExportAddress, NotExportedReason> {
        if path.contains(';') {
            return Err(NotExportedReason::Malformed("it has parameters in its path".to_owned()));
        }
        let decoded = percent_decode_str(path).decode_utf8();
        let decoded =
            decoded.map_err(|_| NotExportedReason::Malformed("it is not UTF-8".to_owned()))?;
        if self.reader.is_client_library(&decoded) {
            return self.resolve_client_library(&decoded);
        }
        if let Some(location) = self.resolve_image(&decoded) {
            return Ok(location);
        }
        let exists = |path: &str| self.reader.resource_at(path).is_some();
        let (scheme, host) = self.scheme_and_host;
        let target = self.reader.resolve_route(scheme, host, path);
        let inner = match &target {
            Some(RouteTarget::Internal(inner)) => inner,
            // A redirect of the site itself has no resource that would decide.
            Some(RouteTarget::Redirect { .. }) => return Err(NotExportedReason::Missing),
            None => path,
        };
        let url = SlingUrl::split(inner, exists)
            .map_err(|error| NotExportedReason::Malformed(error.to_string()))?;
        if !url.exists {
            return Err(NotExportedReason::Missing);
        }
        // An alias or a vanity path is a separate address, and its file is named after it.
        let outer = target.is_some().then(|| decoded.to_string());
        Ok(self.resolve_resource(&url, outer.as_deref(), query))
    }

    /// Resolves a sized image, as the server does: a node with exactly this name takes precedence.
    fn resolve_image(&self, decoded: &str) -> Option<ResolvedExportAddress> {
        let picture = ImageAddress::parse(&encode_path(decoded))?;
        if self.reader.resource_at(decoded).is_some() {
            return None;
        }
        let asset = self.reader.resource_at(&picture.asset)?;
        if asset.primary_type() != "dam:Asset" {
            return None;
        }
        let rest = decoded.strip_prefix(&picture.asset)?;
        let extension = rest.rsplit_once('.').map(|(_, extension)| extension.to_owned());
        let url = SlingUrl {
            path: picture.asset.clone(),
            exists: true,
            extension,
            ..SlingUrl::default()
        };
        let decided = self.check_exported(&url);
        let name = self.apply_export_names(asset.path(), rest);
        Some(ResolvedExportAddress {
            address: ExportAddress { path: encode_path(decoded), query: String::new() },
            source: picture.asset.clone(),
            kind: ExportAddressKind::Image(picture),
            file: decided.and_then(|()| self.rule_file_name(asset.path().as_str(), name)),
            secure_setting: None,
            is_canonical: false,
        })
    }

    fn resolve_client_library(
        &self,
        decoded: &str,
    ) -> Result<ResolvedExportAddress, NotExportedReason> {
        Ok(ResolvedExportAddress {
            address: ExportAddress { path: encode_path(decoded), query: String::new() },
            kind: ExportAddressKind::ClientLibrary,
            source: decoded.to_owned(),
            file: self.rule_file_name(decoded, decoded.to_owned()),
            secure_setting: None,
            is_canonical: false,
        })
    }

    fn resolve_resource(
        &self,
        url: &SlingUrl,
        outer: Option<&str>,
        query: &str,
    ) -> ResolvedExportAddress {
        let rest = url_remainder(url);
        let own = match outer {
            Some(outer) => outer.to_owned(),
            None => format!("{}{rest}", if url.path == "/" { "/" } else { &url.path }),
        };
        let address = ExportAddress { path: encode_path(&own), query: query.to_owned() };
        let file = self.check_exported(url);
        let file = file
            .and_then(|()| self.rule_file_name(&url.path, self.file_name_for(url, outer, query)));
        let secure = NodePath::new(&url.path)
            .ok()
            .and_then(|path| self.inherited_property(&path, SECURE_PROPERTY));
        ResolvedExportAddress {
            kind: ExportAddressKind::Resource,
            source: url.path.clone(),
            is_canonical: query.is_empty()
                && outer.is_none()
                && url.selectors.is_empty()
                && url.suffix.is_none(),
            file,
            secure_setting: secure.map(|(_, text)| text),
            address,
        }
    }

    /// Puts the file of a resource into the folder of its rule, and rejects invalid names.
    fn rule_file_name(&self, source: &str, name: String) -> Result<String, NotExportedReason> {
        match self.rules.rule_for(source) {
            Some(rule) => validate_file_name(rule.file_in_folder(&name)),
            None => validate_file_name(name),
        }
    }

    /// Checks whether a resource is exported.
    fn check_exported(&self, url: &SlingUrl) -> Result<(), NotExportedReason> {
        let path = NodePath::new(&url.path).map_err(|_| NotExportedReason::Missing)?;
        let inherited = self.inherited_property(&path, EXPORT_PROPERTY);
        match inherited.as_ref().map(|(at, text)| (at, text.trim())) {
            Some((_, "true")) => return Ok(()),
            Some((at, "false")) => return Err(NotExportedReason::Excluded(at.to_string())),
            // As in OpenCms, any other value is ignored.
            _ if self.rules.is_exported_by_default => return Ok(()),
            _ => {}
        }
        let name = match &url.extension {
            Some(extension) => format!(".{extension}"),
            None => path.name().to_owned(),
        };
        let name = name.to_ascii_lowercase();
        match self.rules.suffixes.iter().any(|suffix| name.ends_with(&**suffix)) {
            true => Ok(()),
            false => Err(NotExportedReason::Undecided),
        }
    }

    /// Finds a property of a node, of its content, or of an ancestor; also returns the path where it was found.
    pub(crate) fn inherited_property(
        &self,
        path: &NodePath,
        name: &str,
    ) -> Option<(NodePath, String)> {
        let mut next = Some(path.clone());
        while let Some(path) = next {
            if let Some(node) = self.reader.node_existence(&path) {
                let own = self.reader.text_property(&node, name);
                let text = own.or_else(|| {
                    let content = self.reader.page_content(&node)?;
                    self.reader.text_property(&content, name)
                });
                if let Some(text) = text {
                    return Some((path, text));
                }
            }
            next = path.parent();
        }
        None
    }

    /// Returns the file name of a resource.
    fn file_name_for(&self, url: &SlingUrl, outer: Option<&str>, query: &str) -> String {
        let Ok(path) = NodePath::new(&url.path) else { return String::new() };
        if url.path == "/" && url.extension.is_none() {
            return add_hash_to_name(&format!("/{INDEX_FILE_NAME}"), query);
        }
        let is_folder = url.suffix.as_deref() == Some("/") && url.extension.is_none();
        let rest = match &url.suffix {
            Some(suffix) if !is_folder => {
                // A suffix would need a folder with the same name as a file.
                let head = url_remainder(&SlingUrl { suffix: None, ..url.clone() });
                add_hash_to_name(&head, suffix)
            }
            _ => url_remainder(&SlingUrl { suffix: None, ..url.clone() }),
        };
        let named = match outer {
            Some(outer) => outer.to_owned(),
            None => self.apply_export_names(&path, &rest),
        };
        let named = match self.rendered_suffix(url, &path) {
            Some(ending) if !named.ends_with(&ending) => format!("{named}{ending}"),
            _ => named,
        };
        add_hash_to_name(&named, query)
    }

    /// Returns the suffix for a rendered file whose name has no extension known to web servers.
    fn rendered_suffix(&self, url: &SlingUrl, path: &NodePath) -> Option<String> {
        let node = self.reader.node_existence(path)?;
        if is_file_type(node.primary_type()) || self.containing_file(path).is_some() {
            return None;
        }
        let inherited = self.inherited_property(path, EXPORT_SUFFIX_PROPERTY).map(|(_, text)| text);
        match (&url.extension, inherited) {
            (None, inherited) => Some(inherited.unwrap_or_else(|| ".html".to_owned())),
            (Some(_), Some(inherited)) => Some(inherited),
            (Some(_), None) => None,
        }
    }

    /// Returns the name of a resource and the rest of its URL, with the export names of its folders.
    fn apply_export_names(&self, path: &NodePath, rest: &str) -> String {
        if let Some(holder) = self.containing_file(path) {
            // Content below a file lies beside it on disk.
            let inner = path.as_str().strip_prefix(holder.as_str()).unwrap_or_default();
            let name = format!("{}{rest}", mangle_namespaces(inner));
            let ending = name.rsplit_once('.').map(|(_, ending)| ending);
            let ending = ending.filter(|ending| !ending.contains('/'));
            let hash = name_hash(&name);
            let ending = ending.map(|ending| format!(".{ending}")).unwrap_or_default();
            return self.apply_export_names(&holder, &format!("_{hash}{ending}"));
        }
        let Some((folder, name)) = self.inherited_property(path, EXPORT_NAME_PROPERTY) else {
            return format!("{}{rest}", mangle_namespaces(path.as_str()));
        };
        let name = name.trim().trim_matches('/');
        let inner = match folder.as_str() {
            "/" => path.as_str(),
            folder => path.as_str().strip_prefix(folder).unwrap_or_default(),
        };
        match (name, inner) {
            // The folder that represents the root keeps its own name.
            ("", "") => format!("/{}{rest}", mangle_namespaces(path.name())),
            ("", inner) => format!("{}{rest}", mangle_namespaces(inner)),
            (name, inner) => format!("/{name}{}{rest}", mangle_namespaces(inner)),
        }
    }

    /// Finds the file or asset that contains a node.
    fn containing_file(&self, path: &NodePath) -> Option<NodePath> {
        let mut next = path.parent();
        while let Some(path) = next.filter(|path| path.depth() > 0) {
            if self
                .reader
                .node_existence(&path)
                .is_some_and(|node| is_file_type(node.primary_type()))
            {
                return Some(path);
            }
            next = path.parent();
        }
        None
    }
}

fn is_file_type(primary_type: &str) -> bool {
    matches!(primary_type, "nt:file" | "dam:Asset")
}

/// Returns the part of a URL after the resource.
fn url_remainder(url: &SlingUrl) -> String {
    let mut rest = String::new();
    for selector in &url.selectors {
        rest.push('.');
        rest.push_str(selector);
    }
    if let Some(extension) = &url.extension {
        rest.push('.');
        rest.push_str(extension);
    }
    rest.push_str(url.suffix.as_deref().unwrap_or_default());
    rest
}

/// Inserts the hash of a text into a name before its extension; an empty text changes nothing.
fn add_hash_to_name(name: &str, text: &str) -> String {
    if text.is_empty() {
        return name.to_owned();
    }
    let hash = name_hash(text);
    let folder = name.rfind('/').map_or(0, |at| at + 1);
    match name.rfind('.').filter(|at| *at >= folder) {
        Some(at) => {
            let (stem, extension) = name.split_at(at);
            format!("{stem}_{hash}{extension}")
        }
        None => format!("{name}_{hash}"),
    }
}

/// Hashes a text for a name. The 32 bits of OpenCms would let visitors find two queries with one name.
fn name_hash(text: &str) -> String {
    format!("{:.32}", hex::encode(Sha256::digest(text)))
}

/// Validates a file name, and removes its leading slash.
pub(crate) fn validate_file_name(name: String) -> Result<String, NotExportedReason> {
    let name = match name.strip_suffix('/') {
        Some(folder) => format!("{folder}/{INDEX_FILE_NAME}"),
        None => name,
    };
    let refuse = |why: &str| {
        Err(NotExportedReason::InvalidName(format!("`{name}` is not a valid file name: {why}")))
    };
    let inner = name.trim_start_matches('/');
    if inner.len() > MAX_FILE_NAME_BYTES {
        return refuse("it is too long");
    }
    for segment in inner.split('/') {
        match segment {
            "" => return refuse("a segment is empty"),
            "." | ".." => return refuse("it leads out of its folder"),
            _ if segment.len() > MAX_SEGMENT_BYTES => return refuse("a segment is too long"),
            _ if segment.chars().any(char::is_control) => {
                return refuse("it holds a control character");
            }
            _ if segment.to_ascii_lowercase().starts_with(".ht") => {
                return refuse("web servers treat it as configuration");
            }
            _ => {}
        }
    }
    Ok(inner.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_get_the_hash_of_what_they_cannot_hold() {
        assert_eq!(add_hash_to_name("/a/b.html", ""), "/a/b.html");
        let named = add_hash_to_name("/a.x/b.html", "q=1");
        assert!(named.starts_with("/a.x/b_") && named.ends_with(".html"), "{named}");
        assert_eq!(named.len(), "/a.x/b_.html".len() + 32);
        assert!(add_hash_to_name("/a.x/b", "q=1").starts_with("/a.x/b_"));
        assert_ne!(add_hash_to_name("/b.html", "q=1"), add_hash_to_name("/b.html", "q=2"));
    }

    #[test]
    fn names_that_no_file_may_have_are_refused() {
        assert_eq!(validate_file_name("/a/b.html".to_owned()), Ok("a/b.html".to_owned()));
        assert_eq!(validate_file_name("/a/".to_owned()), Ok(format!("a/{INDEX_FILE_NAME}")));
        assert_eq!(validate_file_name("/".to_owned()), Ok(INDEX_FILE_NAME.to_owned()));
        assert_eq!(validate_file_name("/ä/b c%".to_owned()), Ok("ä/b c%".to_owned()));
        let long = format!("/{}", "x".repeat(256));
        let deep = "/abcdefg".repeat(300);
        for bad in [
            "",
            "/a//b",
            "/../a",
            "/a/..",
            "/a/./b",
            "/a\nb",
            "/a\0",
            "/.htaccess",
            "/a/.HTpasswd",
            &long,
            &deep,
        ] {
            assert!(validate_file_name(bad.to_owned()).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn addresses_are_read_back() {
        for text in ["/a.html", "/a.html?b=c?d", "/"] {
            assert_eq!(ExportAddress::parse(text).to_string(), text);
        }
    }
}
