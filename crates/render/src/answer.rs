//! One request answered: which script or default output it gets, and what becomes of the drawn text.

use std::borrow::Cow;
use std::cell::RefCell;
use std::sync::Arc;
use std::time::SystemTime;

use percent_encoding::percent_decode_str;
use tympan_content::query::QueryEngine;
use tympan_content::{Node, NodePath};

use crate::backend::BackEnds;
use crate::charset;
use crate::dump;
use crate::dynamic::INCLUDE_HEADER;
use crate::engine::{Mode, Options};
use crate::file::StoredFile;
use crate::file_delivery::SANDBOX;
use crate::fragment::{FragmentCache, Hole};
use crate::image::ImageKey;
use crate::json::{self, Form};
use crate::library::{Asked as LibraryAsked, Libraries, LibraryFile, Pin};
use crate::link::{self, Target, encode_path};
use crate::page;
use crate::reads::{Facts, Reader, Reads};
use crate::request::{Parameters, RenderRequest};
use crate::resolve::{Routes, Way};
use crate::resource::Resource;
use crate::response::{Body, HTML, Outcome, Redirect, RenderResponse, media_type};
use crate::script::{ERROR_TYPE, Script, ScriptTable, Scripts, Wanted};
use crate::strict_url::is_named;
use crate::template::{
    Asked, Failure, FragmentCounts, Fragments, Handover, Progress, Scope, Visitor, escape,
};
use crate::timing::Timing;
use crate::url::{MalformedUrl, Url};

/// The type of nodes that send elsewhere.
const REDIRECT_TYPE: &str = "sling:redirect";

/// A request on its way to an answer.
pub(crate) struct Answer<'a> {
    pub options: Options,
    pub table: Arc<ScriptTable>,
    pub scripts: Arc<Scripts>,
    pub reader: Arc<Reader>,
    pub routes: Arc<Routes>,
    pub queries: Arc<QueryEngine>,
    pub image_key: Option<ImageKey>,
    pub back_ends: Option<Arc<BackEnds>>,
    pub fragments: Option<Arc<FragmentCache>>,
    pub is_timed: bool,
    pub request: &'a RenderRequest<'a>,
}

/// A fault that has a page of its own.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fault<'a> {
    /// The name of the error handler's script: the number by which sites know the fault, such as `404`.
    pub name: &'a str,
    /// One sentence for visitors.
    pub message: &'a str,
}

/// What was drawn, before the records of the request are added.
#[derive(Debug)]
pub(crate) struct Drawn {
    outcome: Outcome,
    content_type: Cow<'static, str>,
    headers: Vec<(&'static str, String)>,
    body: Body,
    timing: Timing,
    failed_components: u32,
    fragments: FragmentCounts,
}

impl Drawn {
    /// Makes an answer of a body.
    fn new(
        outcome: Outcome,
        content_type: impl Into<Cow<'static, str>>,
        body: impl Into<Body>,
    ) -> Self {
        Self {
            outcome,
            content_type: content_type.into(),
            headers: Vec::new(),
            body: body.into(),
            timing: Timing::default(),
            failed_components: 0,
            fragments: FragmentCounts::default(),
        }
    }

    /// Makes an answer of one sentence.
    pub(crate) fn message(outcome: Outcome, text: &str) -> Self {
        let text = escape(text);
        let page = format!(
            "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{text}</title></head><body><p>{text}</p></body></html>\n"
        );
        Self::new(outcome, HTML, page)
    }

    /// Makes a redirect.
    fn redirect(location: String, kind: Redirect) -> Self {
        Self::new(Outcome::Redirect { location, kind }, HTML, Body::Empty)
    }

    /// Makes an answer of a stored binary.
    fn file(file: &StoredFile) -> Self {
        Self::new(Outcome::Ok, file.media_type.clone(), Body::Blob(file.to_blob()))
    }

    /// Makes an answer of a stored binary that an author may have uploaded: nothing in it may run as this site.
    fn upload(file: &StoredFile) -> Self {
        let delivery = file.delivery();
        let headers = delivery.headers().iter().map(|(name, value)| (*name, (*value).to_owned()));
        let headers = headers.collect();
        let body = Body::Blob(file.to_blob());
        Self { headers, ..Self::new(Outcome::Ok, delivery.into_media_type(), body) }
    }

    /// Makes an answer of XML whose elements authors have named.
    fn document_view(text: String) -> Self {
        let (name, value) = SANDBOX;
        let headers = vec![(name, value.to_owned())];
        Self { headers, ..Self::new(Outcome::Ok, media_type("xml"), text) }
    }

    /// Adds what was read.
    pub(crate) fn into_response(mut self, reads: Reads) -> RenderResponse {
        if reads.facts.has(Facts::USER) {
            // What is one visitor's must not come to another, whichever cache stands between.
            self.headers.push(("cache-control", "private, no-cache".to_owned()));
            self.headers.push(("dispatcher", "no-cache".to_owned()));
        } else if reads.is_momentary() {
            // Caches that go by changes of content alone would keep it until the next one.
            self.headers.push(("cache-control", "no-store".to_owned()));
            self.headers.push(("dispatcher", "no-cache".to_owned()));
        } else if let Some(max_age) = reads.max_age {
            // Caches in front hear of changes of content, never of those of other systems.
            self.headers.push(("cache-control", format!("max-age={}", max_age.as_secs())));
        }
        if let Body::Bytes(page) = &self.body
            && let Some((content_type, page)) = charset::as_declared(&self.content_type, page)
        {
            self.content_type = content_type.into();
            self.body = Body::Bytes(page);
        }
        RenderResponse {
            outcome: self.outcome,
            content_type: self.content_type,
            headers: self.headers,
            body: self.body,
            reads,
            timing: self.timing,
            failed_components: self.failed_components,
            fragments: self.fragments,
        }
    }
}

/// Where a URL leads.
#[expect(
    clippy::large_enum_variant,
    reason = "taken apart where it is made, and nearly always a resource"
)]
enum Resolved {
    /// To another address.
    Elsewhere { location: String, kind: Redirect },
    /// To a resource, if there is one.
    Here(Url, Option<Node>),
}

impl Answer<'_> {
    /// Splits the URL and draws what it resolves to.
    pub(crate) fn draw(&self) -> Drawn {
        if let Some(drawn) = self.draw_library() {
            return drawn;
        }
        match self.resolve() {
            Ok(Resolved::Elsewhere { location, kind }) => self.send_on(&location, kind),
            Ok(Resolved::Here(url, Some(node))) if url.exists && self.is_named(&url, &node) => {
                self.draw_resource(&url, &node)
            }
            Ok(Resolved::Here(url, _)) => self.draw_missing(&url),
            Err(error) => Drawn::message(Outcome::BadRequest, &format!("Bad request: {error}.")),
        }
    }

    /// Returns the parts of the URL as they are drawn from; nothing where nothing is drawn.
    pub(crate) fn url(&self) -> Option<Url> {
        match self.resolve().ok()? {
            Resolved::Here(url, _) => Some(url),
            Resolved::Elsewhere { .. } => None,
        }
    }

    /// Finds out where the URL leads.
    fn resolve(&self) -> Result<Resolved, MalformedUrl> {
        if self.routes.has_mappings() {
            self.reader.note_fact(Facts::HOST);
        }
        // What a route asked for last is mostly what is drawn then.
        let asked = RefCell::new(None);
        let way =
            self.routes.lead(self.request.scheme, self.request.host, self.request.path, |path| {
                let found = self.find(path);
                let exists = found.as_ref().is_ok_and(|(url, _)| url.exists);
                *asked.borrow_mut() = Some((path.to_owned(), found));
                exists
            });
        let path = match way {
            Some(Way::Elsewhere { location, kind }) => {
                return Ok(Resolved::Elsewhere { location, kind });
            }
            Some(Way::Path(path)) => Cow::Owned(path),
            None => Cow::Borrowed(self.request.path),
        };
        let known = asked.into_inner().filter(|(asked, _)| *asked == path);
        let (url, node) = known.map_or_else(|| self.find(&path), |(_, found)| found)?;
        Ok(Resolved::Here(url, node))
    }

    /// Splits a raw path, and finds the node that its resource is.
    fn find(&self, path: &str) -> Result<(Url, Option<Node>), MalformedUrl> {
        let found = RefCell::new(None);
        let url = Url::split(path, |path| {
            let node = self.reader.resource_at(path);
            let exists = node.is_some();
            *found.borrow_mut() = node;
            exists
        })?;
        Ok((url, found.into_inner()))
    }

    /// Draws a client library's file.
    fn draw_library(&self) -> Option<Drawn> {
        if !Libraries::may_be_at(self.request.path) {
            return None;
        }
        let path = percent_decode_str(self.request.path).decode_utf8().ok()?;
        let libraries = Libraries { scripts: &self.table, joined: self.scripts.libraries() };
        let LibraryAsked { file, extension, pin } = libraries.at_url(&self.reader, &path)?;
        let mut drawn = match file {
            LibraryFile::Stored(file) => Drawn::file(&file),
            LibraryFile::Live(bytes) => {
                Drawn::new(Outcome::Ok, media_type(&extension), Body::Bytes(bytes))
            }
        };
        match pin {
            Pin::Unpinned => {}
            Pin::Right => {
                let forever = "public, max-age=31536000, immutable".to_owned();
                drawn.headers.push(("cache-control", forever));
            }
            // Anybody can make up such addresses, and each would be a file of caches.
            Pin::Other => drawn.headers.push(("dispatcher", "no-cache".to_owned())),
        }
        Some(drawn)
    }

    /// Tells whether the selectors and the suffix of a URL are named where its site wants that. What changes something has
    /// no page that a cache would keep.
    fn is_named(&self, url: &Url, node: &Node) -> bool {
        !matches!(self.request.method, "GET" | "HEAD")
            || is_named(&self.reader, &self.scripts, url, node)
    }

    /// Draws an existing resource.
    fn draw_resource(&self, url: &Url, node: &Node) -> Drawn {
        if let Some(redirect) = self.redirect_of(url, node, "sling:target") {
            return redirect;
        }
        let resource = Resource::of(node.clone());
        if let Some(script) = self.find_script(url, &resource) {
            return self.draw_with(url, &resource, &script);
        }
        if node.is_page()
            && let Some(content) = page::content(&self.reader, node)
        {
            if let Some(redirect) = self.redirect_of(url, &content, "cq:redirectTarget") {
                return redirect;
            }
            let content = Resource::of(content);
            if let Some(script) = self.find_script(url, &content) {
                return self.draw_with(url, &content, &script);
            }
        }
        match self.request.method {
            "GET" | "HEAD" => self.draw_default(url, &resource),
            _ => Drawn::message(Outcome::MethodNotAllowed, "Nothing here handles this method."),
        }
    }

    /// Finds the script for a resource.
    fn find_script(&self, url: &Url, resource: &Resource) -> Option<Arc<Script>> {
        let wanted = Wanted {
            method: self.request.method,
            selectors: &url.selectors,
            extension: url.extension.as_deref(),
        };
        if let Some(node) = resource.node() {
            self.reader.note_type(node);
        }
        let (resource_type, super_type) = (resource.resource_type(), resource.super_type());
        self.scripts.find(&self.reader, (resource_type, super_type), &wanted)
    }

    /// Makes the redirect that a node asks for, unless the editor wants to see the node itself.
    fn redirect_of(&self, url: &Url, node: &Node, target: &str) -> Option<Drawn> {
        let is_page_view = url.extension.as_deref().is_none_or(|extension| extension == "html");
        if !is_page_view || self.request.edit {
            return None;
        }
        self.reader.note_type(node);
        if target == "sling:target" && node.resource_type().as_deref() != Some(REDIRECT_TYPE) {
            return None;
        }
        let target = self.reader.text(node, target).filter(|target| !target.is_empty())?;
        let own_path = match link::read(&target) {
            Target::Path { path, .. } => Some(path),
            Target::Other(_) | Target::Blocked => None,
        };
        if own_path.is_some_and(|path| path.strip_suffix(".html").unwrap_or(path) == url.path) {
            // A browser would be sent round and round.
            return None;
        }
        let status = self.reader.property(node, "sling:status");
        let number = status.as_ref().and_then(|status| status.first()?.to_text().parse().ok());
        let kind = number.and_then(Redirect::from_number).unwrap_or_default();
        let location = page::href(&self.reader, &target);
        let location = self.routes.outward(self.request.scheme, self.request.host, location);
        // An address of another site is sent as its author wrote it.
        Some(match own_path {
            Some(_) => self.send_on(&location, kind),
            None => Drawn::redirect(location, kind),
        })
    }

    /// Makes a redirect that keeps the query of the request: campaigns are counted by it.
    fn send_on(&self, location: &str, kind: Redirect) -> Drawn {
        self.reader.note_fact(Facts::PARAMETERS);
        Drawn::redirect(link::with_query(location, self.request.query), kind)
    }

    /// Draws a resource with a script.
    fn draw_with(&self, url: &Url, resource: &Resource, script: &Script) -> Drawn {
        let extension = url.extension.as_deref().unwrap_or("html");
        let scope = self.scope(url, extension, resource.path(), None);
        let selectors: Arc<[String]> = url.selectors.clone().into();
        let hole = Hole {
            path: resource.path().clone(),
            forced: None,
            selectors: Arc::clone(&selectors),
            is_itself: true,
            around: None,
        };
        let find = || Ok(resource.clone());
        let draw = |resource: &Resource| scope.draw(resource, script, selectors);
        let mut drawn = match scope.draw_kept(&hole, find, draw) {
            Ok(text) => match scope.take_handover() {
                Some(handover) => self.hand_over(url, handover),
                None => Drawn::new(Outcome::Ok, media_type(extension), text),
            },
            Err(failure) => self.draw_failure(url, &scope, resource, &failure),
        };
        if drawn.timing.rows.is_empty() {
            drawn.timing = scope.take_timing();
        }
        drawn.failed_components += scope.failures();
        if let Some(addresses) = scope.take_included() {
            drawn.headers.push((INCLUDE_HEADER, addresses));
        }
        // Who fills in includes must not get from a cache what others get, nor they what is for those.
        if scope.varies_by_capability() {
            drawn.headers.push(("vary", "surrogate-capability".to_owned()));
        }
        if let Some(warnings) = scope.take_warnings() {
            drawn.headers.push(("x-tympan-warning", warnings));
        }
        drawn.fragments = scope.fragment_counts();
        drawn
    }

    /// Answers what a script asked for instead of its own text.
    fn hand_over(&self, url: &Url, handover: Handover) -> Drawn {
        match handover {
            Handover::Redirect { location, kind } => Drawn::redirect(location, kind),
            Handover::Missing => self.draw_missing(url),
            Handover::Picture(picture) => match picture.draw() {
                Ok(bytes) => Drawn::new(Outcome::Ok, "image/png", bytes),
                Err(reason) => {
                    tracing::warn!(file = self.request.path, reason, "picture of a text failed");
                    let fault = Fault { name: "500", message: "This picture cannot be shown." };
                    self.draw_fault(url, &fault, Outcome::Error)
                }
            },
            Handover::File(path) => {
                match self.reader.node(&path).and_then(|node| self.file_of(&node)) {
                    Some(file) => Drawn::upload(&file),
                    None => self.draw_missing(url),
                }
            }
        }
    }

    /// Draws a page whose own script failed: the cause for authors, the error page for visitors.
    fn draw_failure(
        &self,
        url: &Url,
        scope: &Scope,
        resource: &Resource,
        failure: &Failure,
    ) -> Drawn {
        let path = resource.path().as_str();
        scope.note_failure(failure, path);
        match self.options.mode {
            Mode::Author => {
                Drawn::new(Outcome::Error, HTML, failure.placeholder(Mode::Author, path))
            }
            Mode::Publish => {
                let fault = Fault { name: "500", message: "This page cannot be shown." };
                self.draw_fault(url, &fault, Outcome::Error)
            }
        }
    }

    /// Draws what exists but has no script.
    fn draw_default(&self, url: &Url, resource: &Resource) -> Drawn {
        let Some(node) = resource.node() else {
            return self.draw_missing(url);
        };
        self.reader.note_properties(node);
        match url.extension.as_deref() {
            Some("json") => self.draw_json(url, node),
            Some("xml") => match dump::xml(&self.reader, node) {
                Some(text) => Drawn::document_view(text),
                None => {
                    let text = format!(
                        "Bad request: these are more than {} nodes; build a package of them.",
                        dump::MAX_XML_NODES
                    );
                    Drawn::message(Outcome::BadRequest, &text)
                }
            },
            Some("txt") => Drawn::new(Outcome::Ok, media_type("txt"), dump::text(resource)),
            Some("html") if self.options.mode == Mode::Author => {
                Drawn::new(Outcome::Ok, HTML, dump::html(&self.reader, resource))
            }
            None | Some("res") => match self.file_of(node) {
                Some(file) => Drawn::upload(&file),
                None if node.is_page() => {
                    let path = encode_path(node.path().as_str());
                    self.send_on(&format!("{path}.html"), Redirect::Found)
                }
                None => self.draw_missing(url),
            },
            _ => self.draw_missing(url),
        }
    }

    /// Draws a resource as JSON.
    fn draw_json(&self, url: &Url, node: &Node) -> Drawn {
        let Some(form) = Form::of(&url.selectors) else {
            let text = format!("Bad request: `{}` is no depth.", url.selector_string());
            return Drawn::message(Outcome::BadRequest, &text);
        };
        let (outcome, text) = match json::write(&self.reader, node, form) {
            json::Answer::Whole(text) => (Outcome::Ok, text),
            json::Answer::Choices(text) => (Outcome::MultipleChoices, text),
        };
        Drawn::new(outcome, media_type("json"), text)
    }

    /// Draws the page that says that nothing is there.
    fn draw_missing(&self, url: &Url) -> Drawn {
        let fault = Fault { name: "404", message: "There is no such page." };
        self.draw_fault(url, &fault, Outcome::NotFound)
    }

    /// Draws a fault with the page that the site has for it, else with an error handler, or as a bare sentence.
    pub(crate) fn draw_fault(&self, url: &Url, fault: &Fault<'_>, outcome: Outcome) -> Drawn {
        let path = NodePath::new(&url.path).unwrap_or_else(|_| NodePath::root());
        let of_site = self.error_page(&path, fault).and_then(|resource| {
            let script = self.find_script(&html(url), &resource)?;
            self.draw_fault_with(url, fault, &resource, &script)
        });
        let drawn = of_site.or_else(|| {
            let wanted = Wanted { method: "GET", selectors: &[], extension: Some("html") };
            self.scripts.note_types(&self.reader, ERROR_TYPE, None);
            let script = self.scripts.find_error_handler(fault.name, &wanted)?;
            self.draw_fault_with(url, fault, &Resource::missing(path), &script)
        });
        match drawn {
            Some(drawn) => Drawn { outcome, ..drawn },
            None => Drawn::message(outcome, fault.message),
        }
    }

    /// Draws a fault with a script; nothing if the script fails itself.
    fn draw_fault_with(
        &self,
        url: &Url,
        fault: &Fault<'_>,
        resource: &Resource,
        script: &Script,
    ) -> Option<Drawn> {
        let scope = self.scope(url, "html", resource.path(), Some(fault));
        match scope.draw(resource, script, Arc::default()) {
            Ok(text) => {
                let mut drawn = Drawn::new(Outcome::Error, HTML, text);
                drawn.timing = scope.take_timing();
                drawn.failed_components = scope.failures();
                Some(drawn)
            }
            Err(failure) => {
                scope.note_failure(&failure, script.path());
                None
            }
        }
    }

    /// Finds the content of the page that a site has for a fault: the nearest page above names the folder of such pages
    /// in `errorPages`, and there lies `404`, or `default`.
    fn error_page(&self, path: &NodePath, fault: &Fault<'_>) -> Option<Resource> {
        let mut next = page::containing(&self.reader, path);
        while let Some(page) = next {
            let content = page::content(&self.reader, &page);
            let folder = content.and_then(|content| self.reader.text(&content, "errorPages"));
            if let Some(folder) = folder {
                let named = self.reader.node_at(&format!("{folder}/{}", fault.name));
                let found = named.or_else(|| self.reader.node_at(&format!("{folder}/default")))?;
                return page::content(&self.reader, &found).map(Resource::of);
            }
            next = page.path().parent().and_then(|above| page::containing(&self.reader, &above));
        }
        None
    }

    /// Makes what the components of this request share.
    fn scope(
        &self,
        url: &Url,
        extension: &str,
        path: &NodePath,
        fault: Option<&Fault<'_>>,
    ) -> Arc<Scope> {
        let request = Asked {
            method: self.request.method.to_owned(),
            scheme: self.request.scheme.to_owned(),
            host: self.request.host.to_owned(),
            raw: format!("{}{}", self.request.path, self.query()),
            url: url.clone(),
            extension: extension.to_owned(),
            parameters: Parameters::parse(self.request.query),
            edit: self.request.edit && fault.is_none(),
            error: fault.map(|fault| (fault.name.to_owned(), fault.message.to_owned())),
            user: self.request.visitor.user.to_owned(),
            form: Parameters::parse(self.request.form),
            fills_includes: self.request.fills_includes,
            becomes_file: self.request.becomes_file,
            is_offline: self.request.is_offline,
        };
        Arc::new(Scope {
            scripts: Arc::clone(&self.scripts),
            reader: Arc::clone(&self.reader),
            routes: Arc::clone(&self.routes),
            queries: Arc::clone(&self.queries),
            image_key: self.image_key,
            back_ends: self.back_ends.clone(),
            path: path.clone(),
            request,
            mode: self.options.mode,
            limits: self.options.limits,
            table: Arc::clone(&self.table),
            fragments: self.fragments_if_kept(),
            progress: Progress::new(self.is_timed),
        })
    }

    /// Returns the fragments as this request uses them, if any component is kept.
    fn fragments_if_kept(&self) -> Option<Fragments> {
        let cache = self.fragments.as_ref().filter(|_| self.scripts.keeps_any());
        cache.map(|cache| self.fragments_of(cache))
    }

    /// Returns the fragments as this request uses them.
    fn fragments_of(&self, cache: &Arc<FragmentCache>) -> Fragments {
        let asked = &self.request.visitor;
        let site = self.request.path.split('/').take(3).collect::<Vec<_>>().join("/");
        Fragments {
            cache: Arc::clone(cache),
            root: self.reader.root(),
            now: SystemTime::now(),
            user: asked.user.to_owned(),
            sight: self.reader.sight(),
            flex: self.request.flex,
            seeker: cache.new_seeker(),
            visitor: Visitor {
                site,
                scheme: self.request.scheme.to_owned(),
                port: asked.port,
                ip: asked.ip.map(|ip| ip.to_string()).unwrap_or_default(),
                device: device_of(asked.user_agent).to_owned(),
                locale: asked.locale.to_owned(),
            },
        }
    }

    /// Returns the query with its mark; empty without one.
    fn query(&self) -> String {
        match self.request.query {
            "" => String::new(),
            query => format!("?{query}"),
        }
    }

    /// Finds the binary behind a node.
    fn file_of(&self, node: &Node) -> Option<StoredFile> {
        // The parts of a file or asset lie in the document of its node and are reached past the reader.
        self.reader.note_document(node);
        self.reader.note_properties(node);
        match StoredFile::of(node) {
            Ok(file) => file,
            Err(error) => {
                self.reader.fail(error);
                None
            }
        }
    }
}

/// Returns the URL of a fault as scripts for pages are looked up: its own selectors mean nothing to them.
fn html(url: &Url) -> Url {
    Url { path: url.path.clone(), extension: Some("html".to_owned()), ..Url::default() }
}

/// Tells apart what kind of device a browser runs on, as OpenCms does by its default.
fn device_of(user_agent: &str) -> &'static str {
    let has = |word: &str| user_agent.contains(word);
    if has("iPad") || has("Tablet") || (has("Android") && !has("Mobile")) {
        "tablet"
    } else if has("Mobile") || has("iPhone") {
        "mobile"
    } else {
        "desktop"
    }
}
