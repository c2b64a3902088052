//! Renders one address for the export: decision, bytes, links.

use std::sync::Arc;

use bytes::Bytes;
use tympan_content::{NodePath, Repository, Snapshot};
use tympan_notation::escape_html;
use tympan_render::{
    AddressReader, BlobBody, DependencySet, FileContainment, FileDelivery, ImageAddress,
    ReadRecording, RenderOutcome, RenderRequest, RenderResponse, RenderResponseBody, RequestFacts,
    SiteAddresses, decode_by_media_type, encode_by_media_type, encode_path, media_type,
};

use crate::address_resolver::{
    ExportAddress, ExportAddressKind, ExportAddressResolver, ExportRuleSet, NotExportedReason,
    ResolvedExportAddress,
};
use crate::environment::ExportEnvironment;
use crate::error::{ExportError, ExportResult};
use crate::manifest::ExportManifestEntry;
use crate::markup_rewrite::{self, AddressUse};
use crate::options::ExportOptions;
use crate::report::ExportFinding;

/// The outcome for an address.
#[derive(Debug)]
pub(crate) enum ExportOutcome {
    /// A rendered file.
    File(Box<RenderedExportFile>),
    /// It is not exported.
    NotExported(NotExportedReason),
    /// It shows the user, so that it has a name and no file. The recorded dependencies say when that may change.
    Personalized(Box<ExportManifestEntry>),
    /// It could not be rendered completely.
    Failed(String),
}

/// A rendered file that is not stored yet.
#[derive(Debug)]
pub(crate) struct RenderedExportFile {
    pub target: ResolvedExportAddress,
    pub content: ExportFileContent,
    pub content_type: String,
    pub dependencies: Arc<DependencySet>,
    /// The exported targets of its links.
    pub linked_targets: Vec<ResolvedExportAddress>,
    pub findings: Vec<ExportFinding>,
}

/// The bytes of a file.
#[derive(Debug)]
pub(crate) enum ExportFileContent {
    Bytes(Bytes),
    Blob(BlobBody),
}

impl ExportFileContent {
    /// Opens the bytes.
    pub(crate) fn open(&self, repository: &Repository) -> std::io::Result<Box<dyn std::io::Read>> {
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

/// State shared by the renderings of one snapshot.
pub(crate) struct ExportContext<'a> {
    pub environment: ExportEnvironment<'a>,
    pub options: &'a ExportOptions,
    /// The snapshot, as the export's user sees it.
    pub snapshot: Snapshot,
    rules: ExportRuleSet,
    addresses: SiteAddresses,
}

impl<'a> ExportContext<'a> {
    pub(crate) fn new(
        environment: ExportEnvironment<'a>,
        options: &'a ExportOptions,
        snapshot: Snapshot,
    ) -> ExportResult<Self> {
        let addresses = SiteAddresses::load(environment.renderer, &snapshot)
            .map_err(|error| ExportError::Scripts(Box::new(error)))?;
        Ok(Self { environment, options, rules: options.rule_set(), addresses, snapshot })
    }

    /// Creates a resolver of addresses that records its dependencies in a reader.
    pub(crate) fn address_resolver<'r>(
        &'r self,
        reader: &'r AddressReader<'r>,
    ) -> ExportAddressResolver<'r> {
        ExportAddressResolver {
            reader,
            rules: &self.rules,
            scheme_and_host: self.options.scheme_and_host(),
        }
    }

    /// Resolves an address without rendering it.
    pub(crate) fn resolve(&self, address: &ExportAddress) -> ResolvedExportAddress {
        let reader = self.addresses.reader();
        self.address_resolver(&reader).resolve(&address.path, &address.query)
    }

    /// Renders an address.
    pub(crate) fn render_address(&self, address: &ExportAddress) -> ExportOutcome {
        let reader = self.addresses.reader();
        let resolver = self.address_resolver(&reader);
        let resolved = resolver.resolve(&address.path, &address.query);
        let file = match &resolved.file {
            Ok(file) => file.clone(),
            Err(reason) => return ExportOutcome::NotExported(reason.clone()),
        };
        let rendered = match &resolved.kind {
            ExportAddressKind::Image(picture) => self.render_image(&reader, picture),
            ExportAddressKind::Resource | ExportAddressKind::ClientLibrary => {
                self.render_resource(&resolver, &resolved)
            }
        };
        let RenderedAddress {
            content,
            content_type,
            dependencies: reads,
            linked_targets,
            findings,
            is_personalized,
        } = match rendered {
            Ok(rendered) => rendered,
            Err(outcome) => return outcome,
        };
        if let Some(error) = reader.failure() {
            return ExportOutcome::Failed(format!("cannot read the content: {error}"));
        }
        let reads = Arc::new(reads.union(&reader.take_dependencies()));
        if is_personalized {
            let source = resolved.source.clone();
            return ExportOutcome::Personalized(Box::new(ExportManifestEntry {
                file,
                source,
                hash: None,
                dependencies: reads,
            }));
        }
        ExportOutcome::File(Box::new(RenderedExportFile {
            target: resolved,
            content,
            content_type,
            dependencies: reads,
            linked_targets,
            findings,
        }))
    }

    fn render_image(
        &self,
        reader: &AddressReader<'_>,
        picture: &ImageAddress,
    ) -> ExportResult<RenderedAddress, ExportOutcome> {
        let node = NodePath::new(&picture.asset).ok().and_then(|path| reader.node_existence(&path));
        if let Some(node) = node {
            reader.record_document(&node);
        }
        Ok(RenderedAddress {
            content: ExportFileContent::Bytes(self.image_bytes(picture)?),
            content_type: media_type(picture.extension.name()).into_owned(),
            dependencies: DependencySet::default(),
            linked_targets: Vec::new(),
            findings: Vec::new(),
            is_personalized: false,
        })
    }

    /// Makes an image of an asset.
    fn image_bytes(&self, picture: &ImageAddress) -> ExportResult<Bytes, ExportOutcome> {
        match self.environment.images.render_image(&self.snapshot, picture) {
            Ok(Some(bytes)) => Ok(bytes),
            Ok(None) => Err(ExportOutcome::NotExported(NotExportedReason::Missing)),
            Err(reason) => Err(ExportOutcome::Failed(reason)),
        }
    }

    /// Renders a resource and replaces its links by the addresses of files.
    fn render_resource(
        &self,
        resolver: &ExportAddressResolver<'_>,
        resolved: &ResolvedExportAddress,
    ) -> ExportResult<RenderedAddress, ExportOutcome> {
        let (scheme, host) = self.options.scheme_and_host();
        let request = RenderRequest {
            method: "GET",
            path: &resolved.address.path,
            query: &resolved.address.query,
            scheme,
            host,
            recording: ReadRecording::Paths,
            is_static_export: true,
            ..RenderRequest::default()
        };
        let response = self.environment.renderer.render(&self.snapshot, &request);
        let reads = response.reads.dependencies();
        let is_personal = response.reads.facts.intersects(RequestFacts::USER);
        if is_personal {
            let (content, content_type) = (ExportFileContent::Bytes(Bytes::new()), String::new());
            let (linked_targets, findings) = (Vec::new(), Vec::new());
            return Ok(RenderedAddress {
                content,
                content_type,
                dependencies: reads,
                linked_targets,
                findings,
                is_personalized: is_personal,
            });
        }
        if response.failed_component_count > 0 {
            let count = response.failed_component_count;
            return Err(ExportOutcome::Failed(format!(
                "{count} of its components failed; see the log"
            )));
        }
        let mut page = PageLinkRewriter {
            context: self,
            resolver,
            target: resolved,
            linked_targets: Vec::new(),
            findings: Vec::new(),
        };
        page.report_volatile_content(&response);
        let content = match (&response.outcome, response.body) {
            (RenderOutcome::Ok, RenderResponseBody::Bytes(bytes)) => {
                ExportFileContent::Bytes(page.rewrite_links(&response.content_type, bytes))
            }
            (RenderOutcome::Ok, RenderResponseBody::Blob(blob)) => ExportFileContent::Blob(blob),
            (RenderOutcome::Ok, RenderResponseBody::Image(picture)) => {
                ExportFileContent::Bytes(self.image_bytes(&picture)?)
            }
            (RenderOutcome::Ok, RenderResponseBody::Empty) => {
                ExportFileContent::Bytes(Bytes::new())
            }
            (RenderOutcome::Redirect { location, .. }, _) => {
                let location = page
                    .rewrite_link(AddressUse::Navigation, location)
                    .unwrap_or_else(|| location.clone());
                ExportFileContent::Bytes(redirect_page(&location).into())
            }
            (RenderOutcome::NotFound, _) => {
                return Err(ExportOutcome::NotExported(NotExportedReason::Missing));
            }
            (RenderOutcome::Error, _) => {
                return Err(ExportOutcome::Failed("it cannot be rendered; see the log".to_owned()));
            }
            (outcome, _) => {
                return Err(ExportOutcome::Failed(format!("it was rendered as {outcome:?}")));
            }
        };
        let PageLinkRewriter { linked_targets, findings, .. } = page;
        let content_type = response.content_type.into_owned();
        Ok(RenderedAddress {
            content,
            content_type,
            dependencies: reads,
            linked_targets,
            findings,
            is_personalized: is_personal,
        })
    }
}

/// The renderer's result for an address.
struct RenderedAddress {
    content: ExportFileContent,
    content_type: String,
    dependencies: DependencySet,
    linked_targets: Vec<ResolvedExportAddress>,
    findings: Vec<ExportFinding>,
    /// True if the output shows the user.
    is_personalized: bool,
}

/// Rewrites the addresses of a page.
struct PageLinkRewriter<'a> {
    context: &'a ExportContext<'a>,
    resolver: &'a ExportAddressResolver<'a>,
    target: &'a ResolvedExportAddress,
    linked_targets: Vec<ResolvedExportAddress>,
    findings: Vec<ExportFinding>,
}

impl<'a> PageLinkRewriter<'a> {
    fn report_volatile_content(&mut self, response: &RenderResponse) {
        let address = || self.target.address.to_string();
        let facts = response.reads.facts;
        if response.reads.max_age.is_some() || facts.intersects(RequestFacts::TIME) {
            self.findings.push(ExportFinding::Volatile { address: address() });
        }
        // A web server only knows the file name and its own configuration, not the response headers.
        if let (true, Ok(file)) = (response.is_sandboxed(), &self.target.file) {
            let by_name = FileDelivery::new("", file).containment();
            let has_disposition =
                response.headers.iter().any(|(name, _)| *name == "content-disposition");
            if by_name == FileContainment::Sandbox || !has_disposition {
                self.findings
                    .push(ExportFinding::ActiveContent { address: address(), file: file.clone() });
            }
        }
    }

    /// Replaces the addresses in a page or style sheet by those of files.
    fn rewrite_links(&mut self, content_type: &str, bytes: Bytes) -> Bytes {
        let kind = content_type.split(';').next().unwrap_or_default().trim();
        let Some(text) = decode_by_media_type(content_type, &bytes) else { return bytes };
        let written = match kind {
            "text/html" => markup_rewrite::rewrite_html(&text, |kind, address| {
                self.rewrite_link(kind, address)
            }),
            "text/css" => markup_rewrite::rewrite_css(&text, |address| {
                self.rewrite_link(AddressUse::Subresource, address)
            }),
            _ => return bytes.clone(),
        };
        if written == text {
            return bytes.clone();
        }
        encode_by_media_type(content_type, written)
    }

    /// Returns the replacement of an address; `None` if it stays unchanged.
    fn rewrite_link(&mut self, kind: AddressUse, address: &str) -> Option<String> {
        let (path, query, fragment) = self.split_own_address(address)?;
        if kind == AddressUse::ScriptFetch {
            let written = format!("{}{fragment}", self.non_exported_url(&path, &query));
            return (written != address).then_some(written);
        }
        let resolved = self.resolver.resolve(&path, &query);
        let scheme = self.other_scheme_server(kind, resolved.secure_setting.as_deref());
        let written = match &resolved.file {
            Ok(file) => {
                let url = self.exported_url(file, &resolved.source, scheme);
                self.linked_targets.push(resolved);
                url
            }
            Err(reason) => {
                if matches!(reason, NotExportedReason::Missing | NotExportedReason::Malformed(_)) {
                    let (page, link) = (self.target.address.to_string(), address.to_owned());
                    self.findings.push(ExportFinding::BrokenLink { address: page, link });
                }
                format!("{scheme}{}", self.non_exported_url(&path, &query))
            }
        };
        let written = format!("{written}{fragment}");
        (written != address).then_some(written)
    }

    /// Returns the URL of a resource that is rendered for each request.
    fn non_exported_url(&self, path: &str, query: &str) -> String {
        let mark = if query.is_empty() { "" } else { "?" };
        format!("{}{path}{mark}{query}", self.context.options.dynamic_prefix)
    }

    /// Returns the URL of the file of a resource.
    fn exported_url(&self, file: &str, source: &str, scheme: &str) -> String {
        const INDEX: &str = "index_export.html";
        let rules = self.resolver.rules;
        let (own, rule) = (rules.rule_for(&self.target.source), rules.rule_for(source));
        let file = rule.map_or(file, |rule| rule.name_in_folder(file));
        let folder = file.strip_suffix(INDEX).filter(|rest| rest.is_empty() || rest.ends_with('/'));
        let public_path = encode_path(&format!("/{}", folder.unwrap_or(file)));
        let options = self.context.options;
        let prefix = rule.map_or(&options.prefix, |rule| &rule.prefix);
        let is_relative =
            rule.and_then(|rule| rule.has_relative_links).unwrap_or(options.has_relative_links);
        // Files of two rules may be on different servers.
        let is_beside = is_relative && own == rule && scheme.is_empty();
        match &self.target.file {
            Ok(from) if is_beside => {
                let from = own.map_or(&**from, |own| own.name_in_folder(from));
                relative_url(&encode_path(&format!("/{from}")), &public_path)
            }
            // A prefix with a server has its own scheme.
            _ if prefix.contains("://") => format!("{prefix}{public_path}"),
            _ => format!("{scheme}{prefix}{public_path}"),
        }
    }

    /// Returns the server prefix of an address that must be visited with another scheme than the page.
    fn other_scheme_server(&self, kind: AddressUse, target: Option<&str>) -> &'a str {
        let options = self.context.options;
        let is_secure = self.target.secure_setting.as_deref() == Some("true");
        match (kind, target) {
            (AddressUse::Subresource | AddressUse::ScriptFetch, _) | (_, Some("both")) => "",
            (AddressUse::Navigation, Some("true")) if !is_secure => &options.secure_server_url,
            (AddressUse::Navigation, Some("true")) => "",
            (AddressUse::Navigation, _) if is_secure => &options.server_url,
            (AddressUse::Navigation, _) => "",
        }
    }

    /// Splits an address of this site into path, query and fragment (with `#`).
    fn split_own_address(&self, address: &str) -> Option<(String, String, String)> {
        let options = self.context.options;
        let servers = [&options.server_url, &options.secure_server_url];
        let own_path = servers.iter().filter(|server| !server.is_empty()).find_map(|server| {
            let rest = address.strip_prefix(server.as_str())?;
            (rest.is_empty() || rest.starts_with(['/', '?', '#'])).then_some(rest)
        });
        let (inner, fragment) = match own_path.unwrap_or(address).find('#') {
            Some(at) => own_path.unwrap_or(address).split_at(at),
            None => (own_path.unwrap_or(address), ""),
        };
        let (path, query) = inner.split_once('?').unwrap_or((inner, ""));
        let has_scheme = path.split('/').next().is_some_and(|head| head.contains(':'));
        if path.starts_with("//") || has_scheme || path.contains('\\') {
            return None;
        }
        let path = match path {
            // A link to the page itself; a bare fragment stays unchanged.
            "" if query.is_empty() && own_path.is_none() => return None,
            "" => self.target.address.path.clone(),
            path if path.starts_with('/') => remove_dot_segments(path),
            path => {
                let own = &self.target.address.path;
                let folder = own.get(..=own.rfind('/')?)?;
                remove_dot_segments(&format!("{folder}{path}"))
            }
        };
        Some((path, query.to_owned(), fragment.to_owned()))
    }
}

/// Resolves `.` and `..` as browsers do.
fn remove_dot_segments(path: &str) -> String {
    let mut output_segments: Vec<&str> = Vec::new();
    let mut segments = path.split('/').skip(1).peekable();
    while let Some(segment) = segments.next() {
        let is_last = segments.peek().is_none();
        match segment {
            "." | ".." => {
                if segment == ".." {
                    output_segments.pop();
                }
                if is_last {
                    output_segments.push("");
                }
            }
            segment => output_segments.push(segment),
        }
    }
    format!("/{}", output_segments.join("/"))
}

/// Returns one URL path relative to another.
fn relative_url(from: &str, to: &str) -> String {
    let from: Vec<&str> = from.split('/').skip(1).collect();
    let to: Vec<&str> = to.split('/').skip(1).collect();
    let folders = from.len().saturating_sub(1);
    let most = folders.min(to.len().saturating_sub(1));
    let common = from.iter().zip(&to).take(most).take_while(|(left, right)| left == right).count();
    let mut parts = vec![".."; folders - common];
    parts.extend(to.get(common..).unwrap_or_default());
    let path = parts.join("/");
    // An empty path would mean the page, and a colon a scheme.
    match path.split('/').next() {
        Some(head) if head.is_empty() || head.contains(':') => format!("./{path}"),
        _ => path,
    }
}

/// Returns a page that redirects browsers, as a file cannot set a status.
fn redirect_page(location: &str) -> String {
    let location = escape_html(location);
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
            assert_eq!(relative_url(from, to), expected, "{from} {to}");
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
            assert_eq!(remove_dot_segments(path), expected, "{path}");
        }
    }
}
