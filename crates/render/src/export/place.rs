//! Where an address leads and what it is called on disk: resolution, the decision to export, names of files.
//!
//! In: an address of this instance as a page writes it. Out: a [`Place`]: what stands there, whether it is exported and
//! under which file name. Everything that decides is read through the [`Reader`], so that whoever writes such an
//! address depends on it.
//!
//! The order of decisions is that of OpenCms: the property `export` of the resource or of what lies above it, the
//! configured default, the extension. Client libraries are exported wherever a page names them.
//!
//! Invariants
//! * Addresses that mean the same have one [`Address`], however their letters are escaped.
//! * A file name has no segment that is empty, `.`, `..`, longer than file systems take, or read as an order by a web
//!   server (`.htaccess`); and no control character.
//! * A name below another file's name, such as a rendition below its asset, is made a name beside it.

use percent_encoding::percent_decode_str;
use sha2::{Digest, Sha256};
use tympan_content::NodePath;

use super::rule::ExportRule;
use crate::image::ImageAddress;
use crate::library::Libraries;
use crate::link::encode_path;
use crate::page;
use crate::reads::Reader;
use crate::resolve::{Routes, Way};
use crate::url::{Url, mangle};

/// What says whether a resource is exported: `true` or `false`, for everything below it too.
pub(crate) const EXPORT: &str = "export";
/// What stands for the path of a folder in names of files.
pub(crate) const EXPORT_NAME: &str = "exportname";
/// What is added to the name of what is drawn.
const EXPORT_SUFFIX: &str = "exportsuffix";
/// Whether a page is visited by an encrypted connection: `true`, `false`, or `both` to stay with the present one.
const SECURE: &str = "secure";

/// The properties that decide about everything below the node that has them.
pub(crate) const DECIDING: [&str; 4] = [EXPORT, EXPORT_NAME, EXPORT_SUFFIX, SECURE];

/// The name of a folder's own file.
const INDEX: &str = "index_export.html";
/// What most file systems take for one segment, in bytes; the name of a file on its way is no longer.
const LONGEST_SEGMENT: usize = 255;
/// What operating systems take for a path, with room for the folder above.
const LONGEST_NAME: usize = 2048;

/// What decides where nothing is said in content.
#[derive(Debug, Clone)]
pub(crate) struct Rules {
    /// Whether a resource is exported about which nothing is said.
    pub default: bool,
    /// Extensions that are exported although nothing is said, with their dot.
    pub suffixes: Vec<String>,
    /// Parts of the site with folders of their own.
    pub by_source: Vec<ExportRule>,
}

impl Rules {
    /// Returns the rule for a resource, if there is one.
    pub(super) fn of(&self, source: &str) -> Option<&ExportRule> {
        self.by_source.iter().find(|rule| rule.fits(source))
    }
}

/// An address of this instance, written in one way.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address {
    /// The path, percent-encoded.
    pub path: String,
    /// The query without its mark; empty without one.
    pub query: String,
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.path)?;
        if self.query.is_empty() { Ok(()) } else { write!(f, "?{}", self.query) }
    }
}

impl Address {
    /// Reads what [`Address`] writes.
    #[must_use]
    pub fn of(text: &str) -> Self {
        let (path, query) = text.split_once('?').unwrap_or((text, ""));
        Self { path: path.to_owned(), query: query.to_owned() }
    }
}

/// Why something is not exported.
#[derive(Debug, Clone, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Unexported {
    /// The address cannot be understood.
    #[error("the address is malformed: {0}")]
    Malformed(String),
    /// There is nothing, or the user of the export may not read it.
    #[error("there is nothing that the export's user may read")]
    Missing,
    /// The property `export` says so.
    #[error("`export` is false at `{0}`")]
    Refused(String),
    /// It shows what is one visitor's alone.
    #[error("it shows who asks, so that it is no file for everybody")]
    Personal,
    /// Nothing says that it is.
    #[error("nothing says `export`, and the extension is none of those that are exported always")]
    Unsaid,
    /// The name cannot be that of a file.
    #[error("{0}")]
    Name(String),
}

/// What stands at an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A resource, drawn or sent.
    Resource,
    /// A picture of an asset in a size.
    Picture(ImageAddress),
    /// A file of a client library.
    Library,
}

/// An address, resolved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    pub address: Address,
    pub kind: Kind,
    /// The resource that decides.
    pub source: String,
    /// The file below the export's folder, or why there is none.
    pub file: Result<String, Unexported>,
    /// What `secure` says.
    pub secure: Option<String>,
    /// Whether the address is that of the resource itself: no selectors, no suffix, no query.
    pub is_plain: bool,
}

/// Resolves addresses as one request of the renderer does.
pub(crate) struct Places<'a> {
    pub reader: &'a Reader,
    pub rules: &'a Rules,
    pub routes: &'a Routes,
    pub libraries: Libraries<'a>,
    /// The scheme and host that links are written for.
    pub site: (&'a str, &'a str),
}

impl Places<'_> {
    /// Finds what stands at an address.
    pub(crate) fn find(&self, path: &str, query: &str) -> Place {
        match self.resolve(path, query) {
            Ok(place) => place,
            Err(reason) => Place {
                address: Address { path: path.to_owned(), query: query.to_owned() },
                kind: Kind::Resource,
                source: String::new(),
                file: Err(reason),
                secure: None,
                is_plain: false,
            },
        }
    }

    fn resolve(&self, path: &str, query: &str) -> Result<Place, Unexported> {
        if path.contains(';') {
            return Err(Unexported::Malformed("it has parameters in its path".to_owned()));
        }
        let decoded = percent_decode_str(path).decode_utf8();
        let decoded = decoded.map_err(|_| Unexported::Malformed("it is not UTF-8".to_owned()))?;
        if self.libraries.at_url(self.reader, &decoded).is_some() {
            return self.library(&decoded);
        }
        if let Some(place) = self.picture(&decoded) {
            return Ok(place);
        }
        let exists = |path: &str| self.reader.resource_at(path).is_some();
        let (scheme, host) = self.site;
        let way = self
            .routes
            .lead(scheme, host, path, |path| Url::split(path, exists).is_ok_and(|url| url.exists));
        let inner = match &way {
            Some(Way::Path(inner)) => inner,
            // A redirect of the site's own has no resource that would decide.
            Some(Way::Elsewhere { .. }) => return Err(Unexported::Missing),
            None => path,
        };
        let url =
            Url::split(inner, exists).map_err(|error| Unexported::Malformed(error.to_string()))?;
        if !url.exists {
            return Err(Unexported::Missing);
        }
        // An alias or a vanity path is an address of its own, whose file is named after it.
        let outer = way.is_some().then(|| decoded.to_string());
        Ok(self.resource(&url, outer.as_deref(), query))
    }

    /// Finds a picture in a size, as the server does: a node of just this name goes first.
    fn picture(&self, decoded: &str) -> Option<Place> {
        let picture = ImageAddress::of(&encode_path(decoded))?;
        if self.reader.resource_at(decoded).is_some() {
            return None;
        }
        let asset = self.reader.resource_at(&picture.asset)?;
        if asset.primary_type() != "dam:Asset" {
            return None;
        }
        let rest = decoded.strip_prefix(&picture.asset)?;
        let extension = rest.rsplit_once('.').map(|(_, extension)| extension.to_owned());
        let url = Url { path: picture.asset.clone(), exists: true, extension, ..Url::default() };
        let decided = self.decide(&url);
        let name = self.named(asset.path(), rest);
        Some(Place {
            address: Address { path: encode_path(decoded), query: String::new() },
            source: picture.asset.clone(),
            kind: Kind::Picture(picture),
            file: decided.and_then(|()| self.checked(asset.path().as_str(), name)),
            secure: None,
            is_plain: false,
        })
    }

    fn library(&self, decoded: &str) -> Result<Place, Unexported> {
        Ok(Place {
            address: Address { path: encode_path(decoded), query: String::new() },
            kind: Kind::Library,
            source: decoded.to_owned(),
            file: self.checked(decoded, decoded.to_owned()),
            secure: None,
            is_plain: false,
        })
    }

    fn resource(&self, url: &Url, outer: Option<&str>, query: &str) -> Place {
        let rest = rest_of(url);
        let own = match outer {
            Some(outer) => outer.to_owned(),
            None => format!("{}{rest}", if url.path == "/" { "/" } else { &url.path }),
        };
        let address = Address { path: encode_path(&own), query: query.to_owned() };
        let file = self.decide(url);
        let file = file.and_then(|()| self.checked(&url.path, self.file_of(url, outer, query)));
        let secure = NodePath::new(&url.path).ok().and_then(|path| self.inherited(&path, SECURE));
        Place {
            kind: Kind::Resource,
            source: url.path.clone(),
            is_plain: query.is_empty()
                && outer.is_none()
                && url.selectors.is_empty()
                && url.suffix.is_none(),
            file,
            secure: secure.map(|(_, text)| text),
            address,
        }
    }

    /// Puts the file of a resource into the folder that a rule has for it, and refuses what cannot be its name.
    fn checked(&self, source: &str, name: String) -> Result<String, Unexported> {
        match self.rules.of(source) {
            Some(rule) => checked(rule.place(&name)),
            None => checked(name),
        }
    }

    /// Decides whether a resource is exported.
    fn decide(&self, url: &Url) -> Result<(), Unexported> {
        let path = NodePath::new(&url.path).map_err(|_| Unexported::Missing)?;
        let said = self.inherited(&path, EXPORT);
        match said.as_ref().map(|(at, text)| (at, text.trim())) {
            Some((_, "true")) => return Ok(()),
            Some((at, "false")) => return Err(Unexported::Refused(at.to_string())),
            // As in OpenCms, any other value says nothing.
            _ if self.rules.default => return Ok(()),
            _ => {}
        }
        let name = match &url.extension {
            Some(extension) => format!(".{extension}"),
            None => path.name().to_owned(),
        };
        let name = name.to_ascii_lowercase();
        match self.rules.suffixes.iter().any(|suffix| name.ends_with(&**suffix)) {
            true => Ok(()),
            false => Err(Unexported::Unsaid),
        }
    }

    /// Finds a property of a node, of its content, or of what lies above, and where it stands.
    pub(crate) fn inherited(&self, path: &NodePath, name: &str) -> Option<(NodePath, String)> {
        let mut next = Some(path.clone());
        while let Some(path) = next {
            if let Some(node) = self.reader.glance(&path) {
                let own = self.reader.text(&node, name);
                let text = own.or_else(|| {
                    let content = page::content(self.reader, &node)?;
                    self.reader.text(&content, name)
                });
                if let Some(text) = text {
                    return Some((path, text));
                }
            }
            next = path.parent();
        }
        None
    }

    /// Names the file of a resource.
    fn file_of(&self, url: &Url, outer: Option<&str>, query: &str) -> String {
        let Ok(path) = NodePath::new(&url.path) else { return String::new() };
        if url.path == "/" && url.extension.is_none() {
            return with_hash(&format!("/{INDEX}"), query);
        }
        let is_folder = url.suffix.as_deref() == Some("/") && url.extension.is_none();
        let rest = match &url.suffix {
            Some(suffix) if !is_folder => {
                // A suffix would need a folder with the name of a file.
                let head = rest_of(&Url { suffix: None, ..url.clone() });
                with_hash(&head, suffix)
            }
            _ => rest_of(&Url { suffix: None, ..url.clone() }),
        };
        let named = match outer {
            Some(outer) => outer.to_owned(),
            None => self.named(&path, &rest),
        };
        let named = match self.drawn_ending(url, &path) {
            Some(ending) if !named.ends_with(&ending) => format!("{named}{ending}"),
            _ => named,
        };
        with_hash(&named, query)
    }

    /// Returns what is added to the name of what is drawn under a name that says nothing to web servers.
    fn drawn_ending(&self, url: &Url, path: &NodePath) -> Option<String> {
        let node = self.reader.glance(path)?;
        if is_file(node.primary_type()) || self.holder_of(path).is_some() {
            return None;
        }
        let said = self.inherited(path, EXPORT_SUFFIX).map(|(_, text)| text);
        match (&url.extension, said) {
            (None, said) => Some(said.unwrap_or_else(|| ".html".to_owned())),
            (Some(_), Some(said)) => Some(said),
            (Some(_), None) => None,
        }
    }

    /// Names a resource and what follows it, with the names that folders have been given.
    fn named(&self, path: &NodePath, rest: &str) -> String {
        if let Some(holder) = self.holder_of(path) {
            // What lies below a file in content lies beside it on disk.
            let inner = path.as_str().strip_prefix(holder.as_str()).unwrap_or_default();
            let name = format!("{}{rest}", mangle(inner));
            let ending = name.rsplit_once('.').map(|(_, ending)| ending);
            let ending = ending.filter(|ending| !ending.contains('/'));
            let hash = hash_of(&name);
            let ending = ending.map(|ending| format!(".{ending}")).unwrap_or_default();
            return self.named(&holder, &format!("_{hash}{ending}"));
        }
        let Some((folder, name)) = self.inherited(path, EXPORT_NAME) else {
            return format!("{}{rest}", mangle(path.as_str()));
        };
        let name = name.trim().trim_matches('/');
        let inner = match folder.as_str() {
            "/" => path.as_str(),
            folder => path.as_str().strip_prefix(folder).unwrap_or_default(),
        };
        match (name, inner) {
            // The folder that stands for the top keeps a name of its own.
            ("", "") => format!("/{}{rest}", mangle(path.name())),
            ("", inner) => format!("{}{rest}", mangle(inner)),
            (name, inner) => format!("/{name}{}{rest}", mangle(inner)),
        }
    }

    /// Finds the file or asset that a node is a part of.
    fn holder_of(&self, path: &NodePath) -> Option<NodePath> {
        let mut next = path.parent();
        while let Some(path) = next.filter(|path| path.depth() > 0) {
            if self.reader.glance(&path).is_some_and(|node| is_file(node.primary_type())) {
                return Some(path);
            }
            next = path.parent();
        }
        None
    }
}

fn is_file(primary_type: &str) -> bool {
    matches!(primary_type, "nt:file" | "dam:Asset")
}

/// Writes what follows the resource in a URL.
fn rest_of(url: &Url) -> String {
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

/// Puts the hash of a text into a name before its extension; an empty text changes nothing.
fn with_hash(name: &str, text: &str) -> String {
    if text.is_empty() {
        return name.to_owned();
    }
    let hash = hash_of(text);
    let folder = name.rfind('/').map_or(0, |at| at + 1);
    match name.rfind('.').filter(|at| *at >= folder) {
        Some(at) => {
            let (stem, extension) = name.split_at(at);
            format!("{stem}_{hash}{extension}")
        }
        None => format!("{name}_{hash}"),
    }
}

/// Hashes a text for a name: OpenCms's 32 bits would let visitors find two queries with one name.
fn hash_of(text: &str) -> String {
    Sha256::digest(text).iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

/// Refuses what cannot be the name of a file, and takes the slash away that it begins with.
pub(crate) fn checked(name: String) -> Result<String, Unexported> {
    let name = match name.strip_suffix('/') {
        Some(folder) => format!("{folder}/{INDEX}"),
        None => name,
    };
    let refuse = |why: &str| Err(Unexported::Name(format!("`{name}` is no name of a file: {why}")));
    let inner = name.trim_start_matches('/');
    if inner.len() > LONGEST_NAME {
        return refuse("it is too long");
    }
    for segment in inner.split('/') {
        match segment {
            "" => return refuse("a part of it is empty"),
            "." | ".." => return refuse("it leads out of its folder"),
            _ if segment.len() > LONGEST_SEGMENT => return refuse("a part of it is too long"),
            _ if segment.chars().any(char::is_control) => {
                return refuse("it holds a control character");
            }
            _ if segment.to_ascii_lowercase().starts_with(".ht") => {
                return refuse("web servers take it for orders");
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
        assert_eq!(with_hash("/a/b.html", ""), "/a/b.html");
        let named = with_hash("/a.x/b.html", "q=1");
        assert!(named.starts_with("/a.x/b_") && named.ends_with(".html"), "{named}");
        assert_eq!(named.len(), "/a.x/b_.html".len() + 32);
        assert!(with_hash("/a.x/b", "q=1").starts_with("/a.x/b_"));
        assert_ne!(with_hash("/b.html", "q=1"), with_hash("/b.html", "q=2"));
    }

    #[test]
    fn names_that_no_file_may_have_are_refused() {
        assert_eq!(checked("/a/b.html".to_owned()), Ok("a/b.html".to_owned()));
        assert_eq!(checked("/a/".to_owned()), Ok(format!("a/{INDEX}")));
        assert_eq!(checked("/".to_owned()), Ok(INDEX.to_owned()));
        assert_eq!(checked("/ä/b c%".to_owned()), Ok("ä/b c%".to_owned()));
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
            assert!(checked(bad.to_owned()).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn addresses_are_read_back() {
        for text in ["/a.html", "/a.html?b=c?d", "/"] {
            assert_eq!(Address::of(text).to_string(), text);
        }
    }
}
