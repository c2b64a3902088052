//! Renders one request: selects the script or default output, and processes the rendered text.

mod component_servlet;

use std::borrow::Cow;
use std::cell::RefCell;
use std::sync::Arc;
use std::time::SystemTime;

use percent_encoding::percent_decode_str;
use tympan_content::{Node, NodePath};
use tympan_content_query::QueryEngine;
use tympan_notation::escape_html;

use crate::backend::BackendRegistry;
use crate::client_library::client_library_file::{
    ClientLibraryFile, ClientLibraryResolver, RequestedLibraryFile as LibraryAsked, UrlHashMatch,
};
use crate::dependency::content_reader::{ContentReader, RequestFacts, RequestReads};
use crate::dynamic_inclusion::INCLUDE_HEADER;
use crate::fragment::{FragmentCache, FragmentHole, FragmentLookupCounts};
use crate::graphql_answer::{GraphqlService, PersistedAnswer};
use crate::htl::{HtlEngine, model_json};
use crate::image_address::ImageSigningKey;
use crate::page;
use crate::page::link::{self, AuthorLink, encode_path};
use crate::render_options::{RenderMode, RenderOptions};
use crate::request::{RenderRequest, RequestParameters};
use crate::resource::ContentResource;
use crate::response::charset;
use crate::response::file_delivery::SANDBOX_HEADER;
use crate::response::json_dump::{self, JsonDumpOptions};
use crate::response::resource_dump;
use crate::response::stored_file::StoredFile;
use crate::response::{
    HTML_MEDIA_TYPE, RedirectKind, RenderOutcome, RenderResponse, RenderResponseBody, media_type,
};
use crate::script::{CompiledScripts, ERROR_HANDLER_TYPE, ScriptCache, ScriptCriteria, ScriptInfo};
use crate::template::{
    ComponentFailure, MiniJinjaEngine, RenderProgress, RenderScope, RequestFragments,
    ResponseOverride, ScriptEngines, TemplateRequest, VariationContext,
};
use crate::timing::RenderTiming;
use crate::url::{MalformedUrl, SlingUrl};
use crate::url_route::strict_url::is_url_allowed;
use crate::url_route::{RouteTarget, UrlRoutes};

/// The beginning of the addresses of persisted queries.
const PERSISTED_QUERY_PREFIX: &str = "/graphql/execute.json/";
/// The type of nodes that redirect.
const REDIRECT_RESOURCE_TYPE: &str = "sling:redirect";

/// A request that is being rendered.
pub(crate) struct RequestRenderer<'a> {
    pub options: RenderOptions,
    pub script_cache: Arc<ScriptCache>,
    pub scripts: Arc<CompiledScripts>,
    pub reader: Arc<ContentReader>,
    pub routes: Arc<UrlRoutes>,
    pub query_engine: Arc<QueryEngine>,
    pub image_key: Option<ImageSigningKey>,
    pub backends: Option<Arc<BackendRegistry>>,
    pub fragments: Option<Arc<FragmentCache>>,
    pub graphql: Arc<GraphqlService>,
    pub is_timed: bool,
    pub request: &'a RenderRequest<'a>,
}

/// A fault with a page of its own.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RequestFault<'a> {
    /// The name of the error handler's script: the status number of the fault, such as `404`.
    pub handler_name: &'a str,
    /// A one-sentence message for visitors.
    pub message: &'a str,
}

/// A response without the records of the request.
#[derive(Debug)]
pub(crate) struct DraftResponse {
    outcome: RenderOutcome,
    content_type: Cow<'static, str>,
    headers: Vec<(&'static str, String)>,
    body: RenderResponseBody,
    timing: RenderTiming,
    failed_component_count: u32,
    fragment_counts: FragmentLookupCounts,
}

impl DraftResponse {
    /// Creates a response with a body.
    fn new(
        outcome: RenderOutcome,
        content_type: impl Into<Cow<'static, str>>,
        body: impl Into<RenderResponseBody>,
    ) -> Self {
        Self {
            outcome,
            content_type: content_type.into(),
            headers: Vec::new(),
            body: body.into(),
            timing: RenderTiming::default(),
            failed_component_count: 0,
            fragment_counts: FragmentLookupCounts::default(),
        }
    }

    /// Creates a response of one sentence.
    pub(crate) fn with_message(outcome: RenderOutcome, text: &str) -> Self {
        let text = escape_html(text);
        let page = format!(
            "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{text}</title></head><body><p>{text}</p></body></html>\n"
        );
        Self::new(outcome, HTML_MEDIA_TYPE, page)
    }

    /// Creates a redirect.
    fn redirect_to(location: String, kind: RedirectKind) -> Self {
        Self::new(
            RenderOutcome::Redirect { location, kind },
            HTML_MEDIA_TYPE,
            RenderResponseBody::Empty,
        )
    }

    /// Creates a response of a stored binary.
    fn from_stored_file(file: &StoredFile) -> Self {
        Self::new(
            RenderOutcome::Ok,
            file.media_type.clone(),
            RenderResponseBody::Blob(file.to_blob_body()),
        )
    }

    /// Creates a response of a stored binary that an author may have uploaded: nothing in it may run as this site.
    fn from_uploaded_file(file: &StoredFile) -> Self {
        let delivery = file.delivery();
        let headers = delivery.headers().iter().map(|(name, value)| (*name, (*value).to_owned()));
        let headers = headers.collect();
        let body = RenderResponseBody::Blob(file.to_blob_body());
        Self { headers, ..Self::new(RenderOutcome::Ok, delivery.into_media_type(), body) }
    }

    /// Creates an XML response whose element names come from authors.
    fn from_document_view(text: String) -> Self {
        let (name, value) = SANDBOX_HEADER;
        let headers = vec![(name, value.to_owned())];
        Self { headers, ..Self::new(RenderOutcome::Ok, media_type("xml"), text) }
    }

    /// Adds the recorded reads.
    pub(crate) fn into_response(mut self, reads: RequestReads) -> RenderResponse {
        if reads.facts.intersects(RequestFacts::USER) {
            // A personalized response must not reach other visitors through any cache.
            self.headers.push(("cache-control", "private, no-cache".to_owned()));
            self.headers.push(("dispatcher", "no-cache".to_owned()));
        } else if reads.is_uncacheable() {
            // Caches that only follow content changes would retain it until the next one.
            self.headers.push(("cache-control", "no-store".to_owned()));
            self.headers.push(("dispatcher", "no-cache".to_owned()));
        } else if let Some(max_age) = reads.max_age {
            // Caches in front are notified of content changes, but never of changes in other systems.
            self.headers.push(("cache-control", format!("max-age={}", max_age.as_secs())));
        }
        if let RenderResponseBody::Bytes(page) = &self.body
            && let Some((content_type, page)) =
                charset::encode_as_declared(&self.content_type, page)
        {
            self.content_type = content_type.into();
            self.body = RenderResponseBody::Bytes(page);
        }
        RenderResponse {
            outcome: self.outcome,
            content_type: self.content_type,
            headers: self.headers,
            body: self.body,
            reads,
            timing: self.timing,
            failed_component_count: self.failed_component_count,
            fragment_counts: self.fragment_counts,
        }
    }
}

/// The target of a URL.
#[expect(
    clippy::large_enum_variant,
    reason = "taken apart where it is made, and nearly always a resource"
)]
enum UrlResolution {
    /// To another address.
    Redirect { location: String, redirect_kind: RedirectKind },
    /// To a resource, if there is one.
    Resource(SlingUrl, Option<Node>),
}

impl RequestRenderer<'_> {
    /// Parses the URL and renders its target.
    pub(crate) fn render(&self) -> DraftResponse {
        if let Some(response) = self.render_client_library() {
            return response;
        }
        if let Some(address) = self.request.path.strip_prefix(PERSISTED_QUERY_PREFIX) {
            return self.render_persisted_query(address);
        }
        match self.resolve_url() {
            Ok(UrlResolution::Redirect { location, redirect_kind }) => {
                self.redirect_with_query(&location, redirect_kind)
            }
            Ok(UrlResolution::Resource(url, Some(node)))
                if url.exists && self.is_declared_url(&url, &node) =>
            {
                self.render_resource(&url, &node)
            }
            Ok(UrlResolution::Resource(url, _)) => self.render_not_found(&url),
            Err(error) => DraftResponse::with_message(
                RenderOutcome::BadRequest,
                &format!("Bad request: {error}."),
            ),
        }
    }

    /// Returns the parsed URL that is rendered; `None` if nothing is rendered.
    pub(crate) fn resolved_url(&self) -> Option<SlingUrl> {
        match self.resolve_url().ok()? {
            UrlResolution::Resource(url, _) => Some(url),
            UrlResolution::Redirect { .. } => None,
        }
    }

    /// Resolves the URL.
    fn resolve_url(&self) -> Result<UrlResolution, MalformedUrl> {
        if self.routes.has_mappings() {
            self.reader.record_fact(RequestFacts::HOST);
        }
        // The resource that a route checked last is usually the one that is rendered.
        let last_lookup = RefCell::new(None);
        let target = self.routes.resolve(
            self.request.scheme,
            self.request.host,
            self.request.path,
            |path| {
                let lookup = self.find_resource_node(path);
                let exists = lookup.as_ref().is_ok_and(|(url, _)| url.exists);
                *last_lookup.borrow_mut() = Some((path.to_owned(), lookup));
                exists
            },
        );
        let path = match target {
            Some(RouteTarget::Redirect { location, kind }) => {
                return Ok(UrlResolution::Redirect { location, redirect_kind: kind });
            }
            Some(RouteTarget::Internal(path)) => Cow::Owned(path),
            None => Cow::Borrowed(self.request.path),
        };
        let last_lookup =
            last_lookup.into_inner().filter(|(checked_path, _)| *checked_path == path);
        let (url, node) = last_lookup
            .map_or_else(|| self.find_resource_node(&path), |(_, lookup_result)| lookup_result)?;
        Ok(UrlResolution::Resource(url, node))
    }

    /// Splits a raw path, and finds its resource's node.
    fn find_resource_node(&self, path: &str) -> Result<(SlingUrl, Option<Node>), MalformedUrl> {
        let last_node = RefCell::new(None);
        let url = SlingUrl::split(path, |path| {
            let node = self.reader.resource_at(path);
            let exists = node.is_some();
            *last_node.borrow_mut() = node;
            exists
        })?;
        Ok((url, last_node.into_inner()))
    }

    /// Renders a file of a client library.
    fn render_client_library(&self) -> Option<DraftResponse> {
        if !ClientLibraryResolver::may_be_library_url(self.request.path) {
            return None;
        }
        let path = percent_decode_str(self.request.path).decode_utf8().ok()?;
        let libraries = ClientLibraryResolver {
            script_cache: &self.script_cache,
            joined_libraries: self.scripts.client_libraries(),
        };
        let LibraryAsked { file, extension, hash_match } =
            libraries.find_by_url(&self.reader, &path)?;
        let mut response = match file {
            ClientLibraryFile::Stored(file) => DraftResponse::from_stored_file(&file),
            ClientLibraryFile::LiveBytes(bytes) => DraftResponse::new(
                RenderOutcome::Ok,
                media_type(&extension),
                RenderResponseBody::Bytes(bytes),
            ),
        };
        match hash_match {
            UrlHashMatch::NoHash => {}
            UrlHashMatch::Match => {
                let forever = "public, max-age=31536000, immutable".to_owned();
                response.headers.push(("cache-control", forever));
            }
            // Anyone can invent such addresses, and each would occupy a file in caches.
            UrlHashMatch::Mismatch => response.headers.push(("dispatcher", "no-cache".to_owned())),
        }
        Some(response)
    }

    /// Renders the answer to a persisted query; the address is that of the query, with its variables.
    fn render_persisted_query(&self, address: &str) -> DraftResponse {
        if !matches!(self.request.method, "GET" | "HEAD") {
            return DraftResponse::with_message(
                RenderOutcome::MethodNotAllowed,
                "A persisted query is run with GET.",
            );
        }
        let is_anonymous = self.request.visitor.user.is_empty();
        if !is_anonymous {
            self.reader.record_fact(RequestFacts::USER);
        }
        match self.graphql.run_persisted(&self.reader, address) {
            PersistedAnswer::Answer { body, cache_control, is_cacheable } => {
                let mut response = DraftResponse::new(RenderOutcome::Ok, media_type("json"), body);
                if !is_cacheable {
                    response.headers.push(("cache-control", "no-store".to_owned()));
                    response.headers.push(("dispatcher", "no-cache".to_owned()));
                } else if let Some(directives) = cache_control.filter(|_| is_anonymous) {
                    response.headers.push(("cache-control", directives));
                }
                response
            }
            PersistedAnswer::NotFound => DraftResponse::with_message(
                RenderOutcome::NotFound,
                "There is no such persisted query.",
            ),
        }
    }

    /// Returns true if the selectors and the suffix of a URL are declared, or the site does not require it. Requests
    /// that change something produce no page that a cache would store.
    fn is_declared_url(&self, url: &SlingUrl, node: &Node) -> bool {
        !matches!(self.request.method, "GET" | "HEAD")
            || component_servlet::answers(url)
            || is_url_allowed(&self.reader, &self.scripts, url, node)
    }

    /// Renders an existing resource.
    fn render_resource(&self, url: &SlingUrl, node: &Node) -> DraftResponse {
        if let Some(redirect) = self.node_redirect(url, node, "sling:target") {
            return redirect;
        }
        let resource = ContentResource::from_node(node.clone());
        if let Some(script) = self.find_script(url, &resource) {
            return self.render_with_script(url, &resource, &script);
        }
        if node.is_page()
            && let Some(content) = page::page_content(&self.reader, node)
        {
            if let Some(redirect) = self.node_redirect(url, &content, "cq:redirectTarget") {
                return redirect;
            }
            let content = ContentResource::from_node(content);
            if let Some(script) = self.find_script(url, &content) {
                return self.render_with_script(url, &content, &script);
            }
        }
        match self.request.method {
            "GET" | "HEAD" => self.render_default(url, &resource),
            _ => DraftResponse::with_message(
                RenderOutcome::MethodNotAllowed,
                "Nothing here handles this method.",
            ),
        }
    }

    /// Finds the script for a resource.
    fn find_script(&self, url: &SlingUrl, resource: &ContentResource) -> Option<Arc<ScriptInfo>> {
        let criteria = ScriptCriteria {
            method: self.request.method,
            selectors: &url.selectors,
            extension: url.extension.as_deref(),
        };
        if let Some(node) = resource.node() {
            self.reader.record_type(node);
        }
        let (resource_type, super_type) = (resource.resource_type(), resource.super_type());
        self.scripts.find_script(&self.reader, (resource_type, super_type), &criteria)
    }

    /// Creates the redirect that a node declares, unless the editor requests the node itself.
    fn node_redirect(&self, url: &SlingUrl, node: &Node, target: &str) -> Option<DraftResponse> {
        let is_page_view = url.extension.as_deref().is_none_or(|extension| extension == "html");
        if !is_page_view || self.request.is_edit_mode {
            return None;
        }
        self.reader.record_type(node);
        if target == "sling:target"
            && node.resource_type().as_deref() != Some(REDIRECT_RESOURCE_TYPE)
        {
            return None;
        }
        let target = self.reader.text_property(node, target).filter(|target| !target.is_empty())?;
        let own_path = match link::parse_author_link(&target) {
            AuthorLink::Path { path, .. } => Some(path),
            AuthorLink::External(_) | AuthorLink::Blocked => None,
        };
        if own_path.is_some_and(|path| path.strip_suffix(".html").unwrap_or(path) == url.path) {
            // The browser would be redirected in a loop.
            return None;
        }
        let status = self.reader.property(node, "sling:status");
        let number = status.as_ref().and_then(|status| status.first()?.to_text().parse().ok());
        let kind = number.and_then(RedirectKind::from_number).unwrap_or_default();
        let location = page::sanitize_href(&self.reader, &target);
        let location = self.routes.external_url(self.request.scheme, self.request.host, location);
        // An address of another site is sent as its author wrote it.
        Some(match own_path {
            Some(_) => self.redirect_with_query(&location, kind),
            None => DraftResponse::redirect_to(location, kind),
        })
    }

    /// Creates a redirect that preserves the query of the request, which campaign tracking needs.
    fn redirect_with_query(&self, location: &str, kind: RedirectKind) -> DraftResponse {
        self.reader.record_fact(RequestFacts::PARAMETERS);
        DraftResponse::redirect_to(link::append_query(location, self.request.query), kind)
    }

    /// Renders a resource with a script.
    fn render_with_script(
        &self,
        url: &SlingUrl,
        resource: &ContentResource,
        script: &ScriptInfo,
    ) -> DraftResponse {
        let extension = url.extension.as_deref().unwrap_or("html");
        let scope = self.new_scope(url, extension, resource.path(), None);
        let selectors: Arc<[String]> = url.selectors.clone().into();
        let hole = FragmentHole {
            path: resource.path().clone(),
            forced_type: None,
            selectors: Arc::clone(&selectors),
            renders_node_itself: true,
            child_inclusions: None,
        };
        let find = || Ok(resource.clone());
        let draw = |resource: &ContentResource| scope.render_resource(resource, script, selectors);
        let mut response = match scope.render_cached(&hole, find, draw) {
            Ok(text) => match scope.take_response_override() {
                Some(handover) => self.apply_override(url, handover),
                None => DraftResponse::new(RenderOutcome::Ok, media_type(extension), text),
            },
            Err(failure) => self.render_failure(url, &scope, resource, &failure),
        };
        if response.timing.rows.is_empty() {
            response.timing = scope.take_timing();
        }
        response.failed_component_count += scope.failure_count();
        if let Some(addresses) = scope.take_included_urls() {
            response.headers.push((INCLUDE_HEADER, addresses));
        }
        // Clients that fill in includes must not get the variant of others from a cache, nor the other way round.
        if scope.varies_by_include_support() {
            response.headers.push(("vary", "surrogate-capability".to_owned()));
        }
        if let Some(warnings) = scope.take_warnings() {
            response.headers.push(("x-tympan-warning", warnings));
        }
        response.fragment_counts = scope.fragment_counts();
        response
    }

    /// Creates the response that a script requested in place of its text.
    fn apply_override(&self, url: &SlingUrl, handover: ResponseOverride) -> DraftResponse {
        match handover {
            ResponseOverride::Redirect { location, kind } => {
                DraftResponse::redirect_to(location, kind)
            }
            ResponseOverride::NotFound => self.render_not_found(url),
            ResponseOverride::TextPicture(picture) => match picture.render_png() {
                Ok(bytes) => DraftResponse::new(RenderOutcome::Ok, "image/png", bytes),
                Err(reason) => {
                    tracing::warn!(
                        file = self.request.path,
                        reason,
                        "cannot render a text as an image"
                    );
                    let fault = RequestFault {
                        handler_name: "500",
                        message: "This image cannot be shown.",
                    };
                    self.render_fault(url, &fault, RenderOutcome::Error)
                }
            },
            ResponseOverride::File(path) => {
                match self.reader.node(&path).and_then(|node| self.find_stored_file(&node)) {
                    Some(file) => DraftResponse::from_uploaded_file(&file),
                    None => self.render_not_found(url),
                }
            }
        }
    }

    /// Renders a page whose own script failed: the cause for authors, the error page for visitors.
    fn render_failure(
        &self,
        url: &SlingUrl,
        scope: &RenderScope,
        resource: &ContentResource,
        failure: &ComponentFailure,
    ) -> DraftResponse {
        let path = resource.path().as_str();
        scope.record_failure(failure, path);
        match self.options.mode {
            RenderMode::Author => DraftResponse::new(
                RenderOutcome::Error,
                HTML_MEDIA_TYPE,
                failure.placeholder(RenderMode::Author, path),
            ),
            RenderMode::Publish => {
                let fault =
                    RequestFault { handler_name: "500", message: "This page cannot be shown." };
                self.render_fault(url, &fault, RenderOutcome::Error)
            }
        }
    }

    /// Renders a resource without a script.
    fn render_default(&self, url: &SlingUrl, resource: &ContentResource) -> DraftResponse {
        let Some(node) = resource.node() else {
            return self.render_not_found(url);
        };
        self.reader.record_properties(node);
        if let Some(response) = self.render_component_servlet(url, resource, node) {
            return response;
        }
        match url.extension.as_deref() {
            Some("json") => {
                let is_model = url.selectors.first().is_some_and(|selector| selector == "model");
                let model = is_model.then(|| self.render_model_json(url, node)).flatten();
                model.unwrap_or_else(|| self.render_json(url, node))
            }
            Some("xml") => match resource_dump::write_document_view(&self.reader, node) {
                Some(text) => DraftResponse::from_document_view(text),
                None => {
                    let text = format!(
                        "Bad request: there are more than {} nodes; build a package of them.",
                        resource_dump::MAX_XML_NODES
                    );
                    DraftResponse::with_message(RenderOutcome::BadRequest, &text)
                }
            },
            Some("txt") => DraftResponse::new(
                RenderOutcome::Ok,
                media_type("txt"),
                resource_dump::write_plain_text(resource),
            ),
            Some("html") if self.options.mode == RenderMode::Author => DraftResponse::new(
                RenderOutcome::Ok,
                HTML_MEDIA_TYPE,
                resource_dump::write_html(&self.reader, resource),
            ),
            None | Some("res") => match self.find_stored_file(node) {
                Some(file) => DraftResponse::from_uploaded_file(&file),
                None if node.is_page() => {
                    let path = encode_path(node.path().as_str());
                    self.redirect_with_query(&format!("{path}.html"), RedirectKind::Found)
                }
                None => self.render_not_found(url),
            },
            _ => self.render_not_found(url),
        }
    }

    /// Renders the JSON form of a resource's model; `None` if it has none.
    fn render_model_json(&self, url: &SlingUrl, node: &Node) -> Option<DraftResponse> {
        let content = match node.is_page() {
            true => page::page_content(&self.reader, node)?,
            false => node.clone(),
        };
        let resource = ContentResource::from_node(content);
        let scope = self.new_scope(url, "json", resource.path(), None);
        match model_json(&scope, &resource) {
            Ok(text) => Some(DraftResponse::new(RenderOutcome::Ok, media_type("json"), text?)),
            Err(failure) => {
                let mut response = self.render_failure(url, &scope, &resource, &failure);
                response.failed_component_count += scope.failure_count();
                Some(response)
            }
        }
    }

    /// Renders a resource as JSON.
    fn render_json(&self, url: &SlingUrl, node: &Node) -> DraftResponse {
        let Some(form) = JsonDumpOptions::from_selectors(&url.selectors) else {
            let text = format!("Bad request: `{}` is not a depth.", url.selector_string());
            return DraftResponse::with_message(RenderOutcome::BadRequest, &text);
        };
        let (outcome, text) = match json_dump::write_json(&self.reader, node, form) {
            json_dump::JsonDump::Complete(text) => (RenderOutcome::Ok, text),
            json_dump::JsonDump::DepthChoices(text) => (RenderOutcome::MultipleChoices, text),
        };
        DraftResponse::new(outcome, media_type("json"), text)
    }

    /// Renders the "not found" page.
    fn render_not_found(&self, url: &SlingUrl) -> DraftResponse {
        let fault = RequestFault { handler_name: "404", message: "There is no such page." };
        self.render_fault(url, &fault, RenderOutcome::NotFound)
    }

    /// Renders a fault with the site's page for it, or else with an error handler, or as a bare sentence.
    pub(crate) fn render_fault(
        &self,
        url: &SlingUrl,
        fault: &RequestFault<'_>,
        outcome: RenderOutcome,
    ) -> DraftResponse {
        let path = NodePath::new(&url.path).unwrap_or_else(|_| NodePath::root());
        let of_site = self.find_error_page(&path, fault).and_then(|resource| {
            let script = self.find_script(&fault_page_url(url), &resource)?;
            self.render_fault_with_script(url, fault, &resource, &script)
        });
        let response = of_site.or_else(|| {
            let criteria =
                ScriptCriteria { method: "GET", selectors: &[], extension: Some("html") };
            self.scripts.record_script_folders(&self.reader, ERROR_HANDLER_TYPE, None);
            let script = self.scripts.find_error_handler(fault.handler_name, &criteria)?;
            self.render_fault_with_script(url, fault, &ContentResource::missing(path), &script)
        });
        match response {
            Some(response) => DraftResponse { outcome, ..response },
            None => DraftResponse::with_message(outcome, fault.message),
        }
    }

    /// Renders a fault with a script; `None` if the script itself fails.
    fn render_fault_with_script(
        &self,
        url: &SlingUrl,
        fault: &RequestFault<'_>,
        resource: &ContentResource,
        script: &ScriptInfo,
    ) -> Option<DraftResponse> {
        let scope = self.new_scope(url, "html", resource.path(), Some(fault));
        match scope.render_resource(resource, script, Arc::default()) {
            Ok(text) => {
                let mut response = DraftResponse::new(RenderOutcome::Error, HTML_MEDIA_TYPE, text);
                response.timing = scope.take_timing();
                response.failed_component_count = scope.failure_count();
                Some(response)
            }
            Err(failure) => {
                scope.record_failure(&failure, script.path());
                None
            }
        }
    }

    /// Finds the content of a site's page for a fault: the nearest ancestor page names the folder of such pages in
    /// `errorPages`, which contains `404` or `default`.
    fn find_error_page(
        &self,
        path: &NodePath,
        fault: &RequestFault<'_>,
    ) -> Option<ContentResource> {
        let mut next = page::containing_page(&self.reader, path);
        while let Some(page) = next {
            let content = page::page_content(&self.reader, &page);
            let folder =
                content.and_then(|content| self.reader.text_property(&content, "errorPages"));
            if let Some(folder) = folder {
                let named = self.reader.node_at(&format!("{folder}/{}", fault.handler_name));
                let error_page =
                    named.or_else(|| self.reader.node_at(&format!("{folder}/default")))?;
                return page::page_content(&self.reader, &error_page)
                    .map(ContentResource::from_node);
            }
            next =
                page.path().parent().and_then(|above| page::containing_page(&self.reader, &above));
        }
        None
    }

    /// Creates the state that the components of this request share.
    fn new_scope(
        &self,
        url: &SlingUrl,
        extension: &str,
        path: &NodePath,
        fault: Option<&RequestFault<'_>>,
    ) -> Arc<RenderScope> {
        let request = TemplateRequest {
            method: self.request.method.to_owned(),
            scheme: self.request.scheme.to_owned(),
            host: self.request.host.to_owned(),
            raw_url: format!("{}{}", self.request.path, self.query_with_mark()),
            url: url.clone(),
            extension: extension.to_owned(),
            parameters: RequestParameters::parse(self.request.query),
            is_edit_mode: self.request.is_edit_mode && fault.is_none(),
            error: fault.map(|fault| (fault.handler_name.to_owned(), fault.message.to_owned())),
            user: self.request.visitor.user.to_owned(),
            form: RequestParameters::parse(self.request.form),
            supports_includes: self.request.supports_includes,
            is_static_export: self.request.is_static_export,
            is_offline: self.request.is_offline,
        };
        Arc::new(RenderScope {
            scripts: Arc::clone(&self.scripts),
            reader: Arc::clone(&self.reader),
            routes: Arc::clone(&self.routes),
            query_engine: Arc::clone(&self.query_engine),
            image_key: self.image_key,
            backends: self.backends.clone(),
            path: path.clone(),
            request,
            mode: self.options.mode,
            limits: self.options.limits,
            script_cache: Arc::clone(&self.script_cache),
            engines: ScriptEngines { mini_jinja: &MiniJinjaEngine, htl: &HtlEngine },
            fragments: self.fragments_if_cached(),
            progress: RenderProgress::new(self.is_timed),
        })
    }

    /// Returns the fragment access of this request; `None` if no component is cached.
    fn fragments_if_cached(&self) -> Option<RequestFragments> {
        let cache = self.fragments.as_ref().filter(|_| self.scripts.has_cached_components());
        cache.map(|cache| self.request_fragments(cache))
    }

    /// Returns the fragment access of this request.
    fn request_fragments(&self, cache: &Arc<FragmentCache>) -> RequestFragments {
        let visitor = &self.request.visitor;
        let site = self.request.path.split('/').take(3).collect::<Vec<_>>().join("/");
        RequestFragments {
            cache: Arc::clone(cache),
            root: self.reader.root(),
            now: SystemTime::now(),
            user: visitor.user.to_owned(),
            access_fingerprint: self.reader.access_fingerprint(),
            cache_override: self.request.cache_override,
            requester_id: cache.new_requester_id(),
            variation: VariationContext {
                site,
                scheme: self.request.scheme.to_owned(),
                port: visitor.port,
                ip: visitor.ip.map(|ip| ip.to_string()).unwrap_or_default(),
                device: classify_device(visitor.user_agent).to_owned(),
                locale: visitor.locale.to_owned(),
            },
        }
    }

    /// Returns the query with `?`; empty if there is none.
    fn query_with_mark(&self) -> String {
        match self.request.query {
            "" => String::new(),
            query => format!("?{query}"),
        }
    }

    /// Finds the stored binary of a node.
    fn find_stored_file(&self, node: &Node) -> Option<StoredFile> {
        // The parts of a file or asset lie in the document of its node and are read without the reader.
        self.reader.record_document(node);
        self.reader.record_properties(node);
        match StoredFile::from_node(node) {
            Ok(file) => file,
            Err(error) => {
                self.reader.record_failure(error);
                None
            }
        }
    }
}

/// Returns a fault's URL for script lookup: its own selectors have no meaning for page scripts.
fn fault_page_url(url: &SlingUrl) -> SlingUrl {
    SlingUrl { path: url.path.clone(), extension: Some("html".to_owned()), ..SlingUrl::default() }
}

/// Classifies the device of a browser, as OpenCms does by default.
fn classify_device(user_agent: &str) -> &'static str {
    let has = |keyword: &str| user_agent.contains(keyword);
    if has("iPad") || has("Tablet") || (has("Android") && !has("Mobile")) {
        "tablet"
    } else if has("Mobile") || has("iPhone") {
        "mobile"
    } else {
        "desktop"
    }
}
