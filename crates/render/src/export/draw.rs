//! One address drawn for the export: decision, bytes, links.

use std::sync::Arc;

use bytes::Bytes;
use tympan_content::{NodePath, Repository, Snapshot};

use super::manifest::Entry;
use super::place::{Address, Kind, Place, Places, Rules, Unexported};
use super::report::Finding;
use super::rewrite::{self, Use};
use super::{Error, ExportOptions, Press, Result};
use crate::charset;
use crate::dependency::Dependencies;
use crate::file_delivery::{Containment, FileDelivery, SANDBOX};
use crate::image::ImageAddress;
use crate::library::Libraries;
use crate::link::encode_path;
use crate::reads::{Facts, Reader, Recording};
use crate::request::RenderRequest;
use crate::resolve::Routes;
use crate::response::{Blob, Body, Outcome, RenderResponse, media_type};
use crate::script::{ScriptTable, Scripts};

/// What an address has become.
#[derive(Debug)]
pub(super) enum Fate {
    /// A file.
    File(Box<Drawn>),
    /// It is not exported.
    Unexported(Unexported),
    /// It shows who asks, so that it has a name and no file. Its drawing tells when that may change.
    Personal(Box<Entry>),
    /// It could not be drawn, or not wholly.
    Failed(String),
}

/// A file to be.
#[derive(Debug)]
pub(super) struct Drawn {
    pub place: Place,
    pub content: Content,
    pub content_type: String,
    pub reads: Arc<Dependencies>,
    /// What it links to and is exported.
    pub links: Vec<Place>,
    pub findings: Vec<Finding>,
}

/// The bytes of a file.
#[derive(Debug)]
pub(super) enum Content {
    Bytes(Bytes),
    Blob(Blob),
}

impl Content {
    /// Opens the bytes.
    pub(super) fn open(&self, repository: &Repository) -> std::io::Result<Box<dyn std::io::Read>> {
        match self {
            Self::Bytes(bytes) => Ok(Box::new(std::io::Cursor::new(bytes.clone()))),
            Self::Blob(blob) => {
                let opened = repository.blobs().open(&blob.id).map_err(std::io::Error::other)?;
                let missing = || std::io::Error::other(format!("the blob {} is missing", blob.id));
                Ok(match opened.ok_or_else(missing)? {
                    tympan_content::BlobContent::Bytes(bytes) => {
                        Box::new(std::io::Cursor::new(bytes))
                    }
                    tympan_content::BlobContent::File { file, .. } => Box::new(file),
                })
            }
        }
    }
}

/// What drawings of one state share.
pub(super) struct Desk<'a> {
    pub press: Press<'a>,
    pub options: &'a ExportOptions,
    /// The state, as the export's user sees it.
    pub snapshot: Snapshot,
    rules: Rules,
    routes: Arc<Routes>,
    table: Arc<ScriptTable>,
    scripts: Arc<Scripts>,
}

impl<'a> Desk<'a> {
    pub(super) fn new(
        press: Press<'a>,
        options: &'a ExportOptions,
        snapshot: Snapshot,
    ) -> Result<Self> {
        let (table, routes) = press.renderer.ways(&snapshot);
        let scripts = table.at(&snapshot).map_err(|error| Error::Scripts(Box::new(error)))?;
        Ok(Self { press, options, rules: options.rules(), routes, table, scripts, snapshot })
    }

    /// Makes what resolves addresses, and notes in a reader what that depends on.
    pub(super) fn places<'r>(&'r self, reader: &'r Reader) -> Places<'r> {
        Places {
            reader,
            rules: &self.rules,
            routes: &self.routes,
            libraries: Libraries { scripts: &self.table, joined: self.scripts.libraries() },
            site: self.options.site(),
        }
    }

    pub(super) fn reader(&self) -> Reader {
        Reader::new(self.snapshot.clone(), Recording::Paths)
    }

    /// Finds out what an address is, without drawing it.
    pub(super) fn find(&self, address: &Address) -> Place {
        let reader = self.reader();
        self.places(&reader).find(&address.path, &address.query)
    }

    /// Draws an address.
    pub(super) fn draw(&self, address: &Address) -> Fate {
        let reader = self.reader();
        let places = self.places(&reader);
        let place = places.find(&address.path, &address.query);
        let file = match &place.file {
            Ok(file) => file.clone(),
            Err(reason) => return Fate::Unexported(reason.clone()),
        };
        let rendered = match &place.kind {
            Kind::Picture(picture) => self.picture(&reader, picture),
            Kind::Resource | Kind::Library => self.render(&places, &place),
        };
        let Rendered { content, content_type, reads, links, findings, is_personal } = match rendered
        {
            Ok(rendered) => rendered,
            Err(fate) => return fate,
        };
        if let Some(error) = reader.failure() {
            return Fate::Failed(format!("the content cannot be read: {error}"));
        }
        let reads = Arc::new(reads.union(&reader.take_reads().dependencies()));
        if is_personal {
            let source = place.source.clone();
            return Fate::Personal(Box::new(Entry { file, source, hash: None, reads }));
        }
        Fate::File(Box::new(Drawn { place, content, content_type, reads, links, findings }))
    }

    fn picture(&self, reader: &Reader, picture: &ImageAddress) -> Result<Rendered, Fate> {
        let node = NodePath::new(&picture.asset).ok().and_then(|path| reader.glance(&path));
        if let Some(node) = node {
            reader.note_document(&node);
        }
        match self.press.pictures.picture(&self.snapshot, picture) {
            Ok(Some(bytes)) => Ok(Rendered {
                content: Content::Bytes(bytes),
                content_type: media_type(picture.ending.name()).into_owned(),
                reads: Dependencies::default(),
                links: Vec::new(),
                findings: Vec::new(),
                is_personal: false,
            }),
            Ok(None) => Err(Fate::Unexported(Unexported::Missing)),
            Err(reason) => Err(Fate::Failed(reason)),
        }
    }

    /// Draws a resource and puts the addresses of files into it.
    fn render(&self, places: &Places<'_>, place: &Place) -> Result<Rendered, Fate> {
        let (scheme, host) = self.options.site();
        let request = RenderRequest {
            method: "GET",
            path: &place.address.path,
            query: &place.address.query,
            scheme,
            host,
            recording: Recording::Paths,
            becomes_file: true,
            ..RenderRequest::default()
        };
        let response = self.press.renderer.render(&self.snapshot, &request);
        let reads = response.reads.dependencies();
        let is_personal = response.reads.facts.has(Facts::USER);
        if is_personal {
            let (content, content_type) = (Content::Bytes(Bytes::new()), String::new());
            let (links, findings) = (Vec::new(), Vec::new());
            return Ok(Rendered { content, content_type, reads, links, findings, is_personal });
        }
        if response.failed_components > 0 {
            let count = response.failed_components;
            return Err(Fate::Failed(format!("{count} components of it failed; the log says why")));
        }
        let mut page = Page { desk: self, places, place, links: Vec::new(), findings: Vec::new() };
        page.note_what_changes(&response);
        let content = match (&response.outcome, response.body) {
            (Outcome::Ok, Body::Bytes(bytes)) => {
                Content::Bytes(page.rewrite(&response.content_type, bytes))
            }
            (Outcome::Ok, Body::Blob(blob)) => Content::Blob(blob),
            (Outcome::Ok, Body::Empty) => Content::Bytes(Bytes::new()),
            (Outcome::Redirect { location, .. }, _) => {
                let location = page.link(Use::Link, location).unwrap_or_else(|| location.clone());
                Content::Bytes(redirect_page(&location).into())
            }
            (Outcome::NotFound, _) => return Err(Fate::Unexported(Unexported::Missing)),
            (Outcome::Error, _) => {
                return Err(Fate::Failed("it cannot be drawn; the log says why".to_owned()));
            }
            (other, _) => return Err(Fate::Failed(format!("it is answered as {other:?}"))),
        };
        let Page { links, findings, .. } = page;
        let content_type = response.content_type.into_owned();
        Ok(Rendered { content, content_type, reads, links, findings, is_personal })
    }
}

/// What a renderer has made of an address.
struct Rendered {
    content: Content,
    content_type: String,
    reads: Dependencies,
    links: Vec<Place>,
    findings: Vec<Finding>,
    /// Whether it shows who asks.
    is_personal: bool,
}

/// A page whose addresses are looked at.
struct Page<'a> {
    desk: &'a Desk<'a>,
    places: &'a Places<'a>,
    place: &'a Place,
    links: Vec<Place>,
    findings: Vec<Finding>,
}

impl<'a> Page<'a> {
    fn note_what_changes(&mut self, response: &RenderResponse) {
        let address = || self.place.address.to_string();
        let facts = response.reads.facts;
        if response.reads.max_age.is_some() || facts.has(Facts::TIME) {
            self.findings.push(Finding::Changing { address: address() });
        }
        // A web server goes by the name of a file, and by what it was told of the place.
        let has = |wanted: &str| response.headers.iter().any(|(name, _)| *name == wanted);
        if let (true, Ok(file)) = (has(SANDBOX.0), &self.place.file) {
            let by_name = FileDelivery::of("", file).containment();
            if by_name == Containment::Sandbox || !has("content-disposition") {
                self.findings.push(Finding::Active { address: address(), file: file.clone() });
            }
        }
    }

    /// Puts the addresses of files into a page or style sheet.
    fn rewrite(&mut self, content_type: &str, bytes: Bytes) -> Bytes {
        let kind = content_type.split(';').next().unwrap_or_default().trim();
        let Some(text) = charset::text_of(content_type, &bytes) else { return bytes };
        let written = match kind {
            "text/html" => rewrite::html(&text, |kind, address| self.link(kind, address)),
            "text/css" => rewrite::css(&text, |address| self.link(Use::Part, address)),
            _ => return bytes.clone(),
        };
        if written == text {
            return bytes.clone();
        }
        charset::bytes_of(content_type, written)
    }

    /// Returns what stands for an address; nothing if it stays as it is.
    fn link(&mut self, kind: Use, address: &str) -> Option<String> {
        let (path, query, fragment) = self.own_path(address)?;
        if kind == Use::Visitor {
            let written = format!("{}{fragment}", self.dynamic_url(&path, &query));
            return (written != address).then_some(written);
        }
        let place = self.places.find(&path, &query);
        let scheme = self.scheme(kind, place.secure.as_deref());
        let written = match &place.file {
            Ok(file) => {
                let url = self.url_of(file, &place.source, scheme);
                self.links.push(place);
                url
            }
            Err(reason) => {
                if matches!(reason, Unexported::Missing | Unexported::Malformed(_)) {
                    let (page, link) = (self.place.address.to_string(), address.to_owned());
                    self.findings.push(Finding::Broken { address: page, link });
                }
                format!("{scheme}{}", self.dynamic_url(&path, &query))
            }
        };
        let written = format!("{written}{fragment}");
        (written != address).then_some(written)
    }

    /// Returns the URL of what is drawn for each request.
    fn dynamic_url(&self, path: &str, query: &str) -> String {
        let mark = if query.is_empty() { "" } else { "?" };
        format!("{}{path}{mark}{query}", self.desk.options.dynamic_prefix)
    }

    /// Returns the URL of the file of a resource.
    fn url_of(&self, file: &str, source: &str, scheme: &str) -> String {
        const INDEX: &str = "index_export.html";
        let rules = self.places.rules;
        let (own, rule) = (rules.of(&self.place.source), rules.of(source));
        let file = rule.map_or(file, |rule| rule.inner(file));
        let folder = file.strip_suffix(INDEX).filter(|rest| rest.is_empty() || rest.ends_with('/'));
        let shown = encode_path(&format!("/{}", folder.unwrap_or(file)));
        let options = self.desk.options;
        let prefix = rule.map_or(&options.prefix, |rule| &rule.prefix);
        let is_relative = rule.and_then(|rule| rule.is_relative).unwrap_or(options.is_relative);
        // Files of two rules may be on two servers.
        let is_beside = is_relative && own == rule && scheme.is_empty();
        match &self.place.file {
            Ok(from) if is_beside => {
                let from = own.map_or(&**from, |own| own.inner(from));
                relative(&encode_path(&format!("/{from}")), &shown)
            }
            // A prefix with a server has its own scheme.
            _ if prefix.contains("://") => format!("{prefix}{shown}"),
            _ => format!("{scheme}{prefix}{shown}"),
        }
    }

    /// Returns the server before an address that is to be visited with another scheme than the page.
    fn scheme(&self, kind: Use, target: Option<&str>) -> &'a str {
        let options = self.desk.options;
        let is_secure = self.place.secure.as_deref() == Some("true");
        match (kind, target) {
            (Use::Part | Use::Visitor, _) | (_, Some("both")) => "",
            (Use::Link, Some("true")) if !is_secure => &options.secure_server,
            (Use::Link, Some("true")) => "",
            (Use::Link, _) if is_secure => &options.server,
            (Use::Link, _) => "",
        }
    }

    /// Returns path, query and fragment (with its mark) of an address of this site.
    fn own_path(&self, address: &str) -> Option<(String, String, String)> {
        let options = self.desk.options;
        let servers = [&options.server, &options.secure_server];
        let mine = servers.iter().filter(|server| !server.is_empty()).find_map(|server| {
            let rest = address.strip_prefix(server.as_str())?;
            (rest.is_empty() || rest.starts_with(['/', '?', '#'])).then_some(rest)
        });
        let (inner, fragment) = match mine.unwrap_or(address).find('#') {
            Some(at) => mine.unwrap_or(address).split_at(at),
            None => (mine.unwrap_or(address), ""),
        };
        let (path, query) = inner.split_once('?').unwrap_or((inner, ""));
        let has_scheme = path.split('/').next().is_some_and(|head| head.contains(':'));
        if path.starts_with("//") || has_scheme || path.contains('\\') {
            return None;
        }
        let path = match path {
            // The page itself; a bare fragment stays as it is.
            "" if query.is_empty() && mine.is_none() => return None,
            "" => self.place.address.path.clone(),
            path if path.starts_with('/') => without_dots(path),
            path => {
                let own = &self.place.address.path;
                let folder = own.get(..=own.rfind('/')?)?;
                without_dots(&format!("{folder}{path}"))
            }
        };
        Some((path, query.to_owned(), fragment.to_owned()))
    }
}

/// Resolves `.` and `..` as browsers do.
fn without_dots(path: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    let mut segments = path.split('/').skip(1).peekable();
    while let Some(segment) = segments.next() {
        let is_last = segments.peek().is_none();
        match segment {
            "." | ".." => {
                if segment == ".." {
                    kept.pop();
                }
                if is_last {
                    kept.push("");
                }
            }
            segment => kept.push(segment),
        }
    }
    format!("/{}", kept.join("/"))
}

/// Writes one URL path as seen from another.
fn relative(from: &str, to: &str) -> String {
    let from: Vec<&str> = from.split('/').skip(1).collect();
    let to: Vec<&str> = to.split('/').skip(1).collect();
    let folders = from.len().saturating_sub(1);
    let most = folders.min(to.len().saturating_sub(1));
    let common = from.iter().zip(&to).take(most).take_while(|(left, right)| left == right).count();
    let mut parts = vec![".."; folders - common];
    parts.extend(to.get(common..).unwrap_or_default());
    let path = parts.join("/");
    // Nothing would mean the page, and a colon a scheme.
    match path.split('/').next() {
        Some(head) if head.is_empty() || head.contains(':') => format!("./{path}"),
        _ => path,
    }
}

/// Writes the page that sends browsers elsewhere, as a file cannot answer with a status.
fn redirect_page(location: &str) -> String {
    let location = crate::template::escape(location);
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Moved</title>\
         <meta http-equiv=\"refresh\" content=\"0; url={location}\"><link rel=\"canonical\" href=\"{location}\">\
         </head><body><p><a href=\"{location}\">Moved here</a></p></body></html>\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relative_addresses_lead_from_file_to_file() {
        for (from, to, expected) in [
            ("/a/b.html", "/a/c.html", "c.html"),
            ("/a/b.html", "/c.html", "../c.html"),
            ("/b.html", "/a/c.html", "a/c.html"),
            ("/a/b/c.html", "/a/d/e.css", "../d/e.css"),
            ("/a/b.html", "/a/", "./"),
            ("/a/b.html", "/", "../"),
            ("/b.html", "/x:y.html", "./x:y.html"),
            ("/a/b.html", "/a/b.html", "b.html"),
        ] {
            assert_eq!(relative(from, to), expected, "{from} {to}");
        }
    }

    #[test]
    fn dots_are_resolved_as_browsers_do() {
        for (path, expected) in [
            ("/a/./b", "/a/b"),
            ("/a/../b", "/b"),
            ("/../../b", "/b"),
            ("/a/b/..", "/a/"),
            ("/a/.", "/a/"),
            ("/", "/"),
        ] {
            assert_eq!(without_dots(path), expected, "{path}");
        }
    }
}
