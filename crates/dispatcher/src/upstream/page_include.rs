//! Includes: a page is stored once for everyone, and the parts specific to a visitor are inserted when it is served.
//!
//! Input: a response whose render names, in headers `X-Tympan-Include`, the addresses that its body includes. Output:
//! the same response with the responses of these addresses in place of `<!--#include virtual="/a.html" -->` and
//! `<esi:include src="/a.html"/>`.
//!
//! Invariants
//! * Only an address that a header of the same response names is included, so that text entered by users never becomes
//!   an include.
//! * An include is requested on behalf of its visitor: with the same cookies, through the same filter and cache.
//! * Depth, number, bytes and time are bounded, so that pages that include each other end.
//! * A filled page has no validators, and is private if one of its parts is. It lives no longer than any of its parts,
//!   and carries their surrogate keys.
//!
//! On failure: a comment replaces the part, and the rest of the page is sent.
//!
//! Not here: storing pages with their headers (`page_fetch`).

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::future::join_all;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use http_body_util::BodyExt;
use parking_lot::Mutex;
use percent_encoding::percent_decode_str;
use tokio::time::Instant;

use crate::cache::cacheability::check_response_cacheable;
use crate::cache::not_cacheable_reason::NotCacheableReason;
use crate::cache::outcome::CacheOutcome;
use crate::cache::response_memory::DispatcherResponse;
use crate::cache::surrogate_key::SURROGATE_KEY_HEADER;
use crate::cache::ttl::{cache_directive_seconds, has_cache_directive};
use crate::cached_page_service::CachedPageService;
use crate::dispatcher_parts::DispatcherParts;
use crate::edge::own_response::own_response;
use crate::edge::response_body::{ResponseBody, empty_body, full_body};
use crate::observe::metrics::{DispatcherCounter, DispatcherMetrics};
use crate::request::auth_check::needs_permission;
use crate::request::decision::{RequestAction, decide_in_farm, decide_source};
use crate::request::exchange::RequestExchange;
use crate::request::sticky_cookie;
use crate::request::view::RequestView;
use crate::upstream::VisitorBody;
use crate::upstream::header_forwarding::{CONDITIONAL_HEADERS, INCLUDE_HEADER};

/// The maximum nesting depth of parts.
const MAX_INCLUDE_DEPTH: usize = 3;
/// The maximum number of parts of one page, at all depths together.
const MAX_INCLUDED_PARTS: usize = 64;
/// The maximum number of concurrent requests for parts.
const CONCURRENT_INCLUDES: usize = 8;
/// The maximum size of a page or part in bytes.
const MAX_INCLUDE_BYTES: usize = 16 * 1024 * 1024;
/// The timeout for a part, including its own parts.
const INCLUDE_TIMEOUT: Duration = Duration::from_secs(10);
/// The timeout for all parts of a page together.
const PAGE_INCLUDES_TIMEOUT: Duration = Duration::from_secs(20);

/// The replacement for a part that cannot be fetched.
const INCLUDE_PLACEHOLDER: &[u8] = b"<!-- this part cannot be shown -->";

/// Returns true if a response has includes.
pub(crate) fn has_includes(response: &DispatcherResponse) -> bool {
    response.headers().contains_key(INCLUDE_HEADER)
}

/// A section of a body.
#[derive(Debug, PartialEq, Eq)]
enum IncludePiece<'a> {
    Text(&'a [u8]),
    Include(&'a str),
}

/// The result of an include.
struct IncludedPart {
    bytes: Bytes,
    is_private: bool,
    headers: HeaderMap,
}

impl IncludedPart {
    fn placeholder() -> Self {
        // The next request may get the part itself.
        let bytes = Bytes::from_static(INCLUDE_PLACEHOLDER);
        Self { bytes, is_private: true, headers: HeaderMap::new() }
    }
}

/// The remaining lifetime in seconds for browsers, and for caches before them; `None` where the response does not state
/// it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct CacheLifetime {
    browser_seconds: Option<u64>,
    shared_cache_seconds: Option<u64>,
}

impl CacheLifetime {
    fn from_headers(headers: &HeaderMap) -> Self {
        let age = headers.get(header::AGE).and_then(|age| age.to_str().ok()?.trim().parse().ok());
        let left =
            |name| Some(cache_directive_seconds(headers, name)?.saturating_sub(age.unwrap_or(0)));
        let (own, shared) = (left("max-age"), left("s-maxage"));
        Self { browser_seconds: own.or(shared), shared_cache_seconds: shared.or(own) }
    }

    fn shortest(self, other: Self) -> Self {
        let least = |left: Option<u64>, right: Option<u64>| match (left, right) {
            (Some(left), Some(right)) => Some(left.min(right)),
            (left, right) => left.or(right),
        };
        Self {
            browser_seconds: least(self.browser_seconds, other.browser_seconds),
            shared_cache_seconds: least(self.shared_cache_seconds, other.shared_cache_seconds),
        }
    }

    /// Replaces the lifetime stated by a page; a page that states none stays unchanged.
    fn apply_to_headers(self, headers: &mut HeaderMap) {
        let has = |name| cache_directive_seconds(headers, name).is_some();
        let (has_own, has_shared) = (has("max-age"), has("s-maxage"));
        let (Some(own), Some(shared), true) =
            (self.browser_seconds, self.shared_cache_seconds, has_own || has_shared)
        else {
            return;
        };
        let lists = headers.get_all(header::CACHE_CONTROL).into_iter();
        let lists: Vec<_> = lists.map(|list| String::from_utf8_lossy(list.as_bytes())).collect();
        let mut directives: Vec<String> = Vec::new();
        for directive in lists.iter().flat_map(|list| list.split(',')).map(str::trim) {
            let name = directive.split('=').next().unwrap_or_default().trim();
            if name.eq_ignore_ascii_case("max-age") {
                directives.push(format!("max-age={own}"));
            } else if name.eq_ignore_ascii_case("s-maxage") {
                directives.push(format!("s-maxage={shared}"));
            } else if !directive.is_empty() {
                directives.push(directive.to_owned());
            }
        }
        if !has_shared && shared < own {
            directives.push(format!("s-maxage={shared}"));
        }
        if let Ok(control) = HeaderValue::from_bytes(directives.join(", ").as_bytes()) {
            headers.insert(header::CACHE_CONTROL, control);
        }
    }
}

/// The limits for the parts of one page.
struct IncludeBudget<'a> {
    remaining_parts: &'a AtomicUsize,
    /// The render that already produced a part of the page, if visitors stay with one.
    sticky_render: &'a Mutex<Option<String>>,
    depth: usize,
    deadline: Instant,
}

/// Fills the includes of pages.
#[derive(Debug)]
pub(crate) struct IncludeFiller {
    cached_page_service: Arc<CachedPageService>,
    metrics: Arc<DispatcherMetrics>,
}

impl IncludeFiller {
    pub(crate) fn new(
        parts: &DispatcherParts,
        cached_page_service: Arc<CachedPageService>,
    ) -> Self {
        Self { cached_page_service, metrics: Arc::clone(&parts.metrics) }
    }

    /// Fills the includes of a response.
    pub(crate) async fn fill_includes(
        &self,
        exchange: &RequestExchange<'_>,
        response: DispatcherResponse,
    ) -> DispatcherResponse {
        let left = AtomicUsize::new(MAX_INCLUDED_PARTS);
        let deadline = Instant::now() + PAGE_INCLUDES_TIMEOUT;
        let render = Mutex::new(exchange.render.clone());
        let budget =
            IncludeBudget { remaining_parts: &left, sticky_render: &render, depth: 0, deadline };
        self.fill_includes_within(exchange, response, &budget).await
    }

    async fn fill_includes_within(
        &self,
        exchange: &RequestExchange<'_>,
        mut response: DispatcherResponse,
        budget: &IncludeBudget<'_>,
    ) -> DispatcherResponse {
        if exchange.view.method == Method::HEAD {
            remove_entity_headers(response.headers_mut());
            response.headers_mut().remove(INCLUDE_HEADER);
            return response;
        }
        if exchange.view.method == Method::GET && !is_complete_page(&response) {
            // The visitor's conditions and ranges refer to the bytes of a different page.
            response = self.request_whole_page(exchange).await;
        }
        let body = response.replace_body(empty_body());
        let named: Vec<HeaderValue> =
            response.headers().get_all(INCLUDE_HEADER).iter().cloned().collect();
        let named = named.iter().filter_map(|value| value.to_str().ok());
        let named: Vec<&str> = named.flat_map(str::split_ascii_whitespace).collect();
        response.headers_mut().remove(INCLUDE_HEADER);
        let bytes = match read_whole_body(body).await {
            Ok(bytes) => bytes,
            Err(reason) => {
                tracing::warn!(path = %exchange.view.path, reason, "cannot read a page with includes");
                return own_response(StatusCode::BAD_GATEWAY);
            }
        };
        let pieces = split_at_includes(&bytes, &named);
        let addresses = pieces.iter().filter_map(|piece| match piece {
            IncludePiece::Include(address) => Some(*address),
            IncludePiece::Text(_) => None,
        });
        let addresses: Vec<&str> = addresses.collect();
        let included_parts = self.fetch_parts(exchange, &addresses, budget).await;
        if !addresses.is_empty() {
            merge_part_headers(response.headers_mut(), &included_parts);
        }
        let filled = join_parts(&pieces, &included_parts);
        response.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(filled.len()));
        response.replace_body(full_body(filled));
        response
    }

    /// Fetches the parts for some addresses, in order.
    async fn fetch_parts(
        &self,
        exchange: &RequestExchange<'_>,
        addresses: &[&str],
        budget: &IncludeBudget<'_>,
    ) -> Vec<IncludedPart> {
        let mut included_parts = Vec::with_capacity(addresses.len());
        let mut rest = addresses;
        while !rest.is_empty() {
            // Until a render has produced something, the visitor's render is unknown.
            let is_bound = !needs_sticky_render(exchange) || budget.sticky_render.lock().is_some();
            let count = if is_bound { CONCURRENT_INCLUDES } else { 1 };
            let (batch, others) = rest.split_at(count.min(rest.len()));
            rest = others;
            let fetches = batch.iter().map(|address| async move {
                self.metrics.increment(DispatcherCounter::Includes);
                let now = Instant::now();
                let until = budget.deadline.min(now + INCLUDE_TIMEOUT);
                let part = tokio::time::timeout_at(until, self.fetch_part(exchange, address, budget));
                let reason = match now >= budget.deadline {
                    true => "the time limit for the includes of the page was reached",
                    false => match part.await {
                        Ok(Ok(part)) => return part,
                        Ok(Err(reason)) => reason,
                        Err(_elapsed) => "it timed out",
                    },
                };
                self.metrics.increment(DispatcherCounter::IncludeFailures);
                tracing::warn!(path = %exchange.view.path, file = *address, reason, "include failed");
                IncludedPart::placeholder()
            });
            included_parts.extend(join_all(fetches).await);
        }
        included_parts
    }

    /// Fetches the part at an address on behalf of the page's visitor.
    fn fetch_part<'a>(
        &'a self,
        exchange: &'a RequestExchange<'_>,
        address: &'a str,
        budget: &'a IncludeBudget<'_>,
    ) -> Pin<Box<dyn Future<Output = Result<IncludedPart, &'static str>> + Send + 'a>> {
        Box::pin(async move {
            let budget_result =
                budget
                    .remaining_parts
                    .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
            if budget_result.is_err() {
                return Err("the page has too many includes");
            }
            let (path, query) = address.split_once('?').unwrap_or((address, ""));
            let query = (!query.is_empty()).then(|| query.to_owned());
            let path =
                percent_decode_str(path).decode_utf8().map_err(|_| "it is not a valid path")?;
            let view =
                exchange.view.with_target(&path, query).map_err(|_| "it is not a valid path")?;
            let mut view = unconditional_get(view);
            if needs_sticky_render(exchange) {
                view.page_render = budget.sticky_render.lock().clone();
            }
            let mut inner = RequestExchange::new(exchange.farm, &view);
            let action = decide_in_farm(&exchange.farm.config, &view);
            let mut response = self.request_part(&mut inner, action).await;
            if let Some(render) = &inner.render {
                budget.sticky_render.lock().get_or_insert_with(|| render.clone());
            }
            if has_includes(&response) {
                if budget.depth + 1 >= MAX_INCLUDE_DEPTH {
                    return Err("the includes are nested too deeply");
                }
                let within = IncludeBudget { depth: budget.depth + 1, ..*budget };
                response = self.fill_includes_within(&inner, response, &within).await;
            }
            let status = response.status();
            if status != StatusCode::OK {
                return Err("its status is not 200");
            }
            let bytes = read_whole_body(response.replace_body(empty_body())).await?;
            let headers = std::mem::take(response.headers_mut());
            // A part requested for one visitor is private unless the render says otherwise.
            let is_own = matches!(inner.outcome, CacheOutcome::Pass(_))
                && !headers.contains_key(header::CACHE_CONTROL);
            let is_private = is_own
                || headers.contains_key(header::SET_COOKIE)
                || needs_permission(&inner)
                || check_response_cacheable(status, &headers).is_err();
            Ok(IncludedPart { bytes, is_private, headers })
        })
    }

    /// Requests a permitted page again, without the visitor's conditions.
    async fn request_whole_page(&self, exchange: &RequestExchange<'_>) -> DispatcherResponse {
        let view = unconditional_get(exchange.view.clone());
        let mut inner = RequestExchange::new(exchange.farm, &view);
        self.request_part(&mut inner, decide_source(&exchange.farm.config, &view)).await
    }

    async fn request_part(
        &self,
        exchange: &mut RequestExchange<'_>,
        action: RequestAction<'_>,
    ) -> DispatcherResponse {
        match action {
            RequestAction::Cache(file) if exchange.farm.docroot.is_some() => {
                self.cached_page_service.serve_from_docroot(exchange, &file).await
            }
            RequestAction::Cache(_) => {
                self.cached_page_service
                    .forward_uncached(exchange, VisitorBody::empty(), NotCacheableReason::NoDocroot)
                    .await
            }
            RequestAction::Pass(reason) => {
                self.cached_page_service
                    .forward_uncached(exchange, VisitorBody::empty(), reason)
                    .await
            }
            _ => own_response(StatusCode::NOT_FOUND),
        }
    }
}

/// Returns true if visitors of the farm stay with one render, and this visitor has none yet.
fn needs_sticky_render(exchange: &RequestExchange<'_>) -> bool {
    let has_folders = !exchange.farm.config.sticky.paths.is_empty();
    has_folders && exchange.view.cookie(sticky_cookie::STICKY_COOKIE).is_none()
}

/// Reads a body to its end. Boxed, since the compiler cannot otherwise prove that the futures here are `Send`.
fn read_whole_body(
    mut body: ResponseBody,
) -> Pin<Box<dyn Future<Output = Result<Bytes, &'static str>> + Send>> {
    Box::pin(async move {
        let mut whole = BytesMut::new();
        while let Some(frame) = body.frame().await {
            let data =
                frame.map_err(|_| "the response is incomplete")?.into_data().unwrap_or_default();
            if whole.len() + data.len() > MAX_INCLUDE_BYTES {
                return Err("the response is too large");
            }
            whole.extend_from_slice(&data);
        }
        Ok(whole.freeze())
    })
}

/// Returns the request as a GET without conditions and ranges.
fn unconditional_get(mut view: RequestView) -> RequestView {
    view.method = Method::GET;
    for name in
        CONDITIONAL_HEADERS.into_iter().chain([header::ACCEPT_ENCODING, header::CONTENT_TYPE])
    {
        view.headers.remove(name);
    }
    view
}

/// Returns true if a body is that of the page, and can be read.
fn is_complete_page(response: &DispatcherResponse) -> bool {
    let is_part = matches!(response.status().as_u16(), 206 | 304 | 412 | 416);
    let encoding = response.headers().get(header::CONTENT_ENCODING);
    !is_part && encoding.is_none_or(|coding| coding.as_bytes().eq_ignore_ascii_case(b"identity"))
}

/// Adjusts the headers of a page that is filled with parts.
fn merge_part_headers(headers: &mut HeaderMap, included_parts: &[IncludedPart]) {
    let lifetime =
        included_parts.iter().fold(CacheLifetime::from_headers(headers), |lifetime, part| {
            // A private part makes the whole page private.
            if part.is_private {
                lifetime
            } else {
                lifetime.shortest(CacheLifetime::from_headers(&part.headers))
            }
        });
    remove_entity_headers(headers);
    if included_parts.iter().any(|part| part.is_private) {
        let mut all =
            std::iter::once(&*headers).chain(included_parts.iter().map(|part| &part.headers));
        let forbids = all.any(|headers| has_cache_directive(headers, "no-store"));
        let private = if forbids { "private, no-store" } else { "private, no-cache" };
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static(private));
    } else {
        lifetime.apply_to_headers(headers);
    }
    for part in included_parts {
        for name in [header::SET_COOKIE, SURROGATE_KEY_HEADER] {
            for value in part.headers.get_all(&name) {
                let is_second = sticky_cookie::is_sticky_cookie(value)
                    && headers.get_all(&name).iter().any(sticky_cookie::is_sticky_cookie);
                if !is_second {
                    headers.append(name.clone(), value.clone());
                }
            }
        }
    }
}

/// Removes the headers that describe a body which is going to change.
fn remove_entity_headers(headers: &mut HeaderMap) {
    for name in [
        header::CONTENT_LENGTH,
        header::ETAG,
        header::LAST_MODIFIED,
        header::ACCEPT_RANGES,
        header::AGE,
        header::EXPIRES,
    ] {
        headers.remove(name);
    }
}

/// Splits a body at its includes; only named addresses are includes.
fn split_at_includes<'a>(bytes: &'a [u8], named: &[&'a str]) -> Vec<IncludePiece<'a>> {
    let mut pieces = Vec::new();
    let (mut from, mut at) = (0, 0);
    while let Some(offset) = bytes.get(at..).and_then(|rest| rest.iter().position(|&b| b == b'<')) {
        at += offset;
        let rest = bytes.get(at..).unwrap_or_default();
        let tag = parse_include_tag(rest).and_then(|(address, length)| {
            let address = named.iter().find(|candidate| candidate.as_bytes() == address)?;
            Some((*address, length))
        });
        match tag {
            Some((address, length)) => {
                pieces.push(IncludePiece::Text(bytes.get(from..at).unwrap_or_default()));
                pieces.push(IncludePiece::Include(address));
                at += length;
                from = at;
            }
            None => at += 1,
        }
    }
    pieces.push(IncludePiece::Text(bytes.get(from..).unwrap_or_default()));
    pieces
}

/// Parses an include at the beginning of a text; returns its address and length.
fn parse_include_tag(text: &[u8]) -> Option<(&[u8], usize)> {
    let (rest, name, end): (_, &[u8], &[u8]) = match text.strip_prefix(b"<!--#include") {
        Some(rest) => (rest, b"virtual", b"-->"),
        None => (text.strip_prefix(b"<esi:include")?, b"src", b"/>"),
    };
    let rest = skip_blanks(rest).filter(|after| after.len() < rest.len())?;
    let rest = skip_blanks(rest.strip_prefix(name)?)?.strip_prefix(b"=")?;
    let rest = skip_blanks(rest)?;
    let (quote, rest) = rest.split_first().filter(|(quote, _)| matches!(quote, b'"' | b'\''))?;
    let length = rest.iter().position(|byte| byte == quote)?;
    let (address, rest) = rest.split_at(length);
    let rest = skip_blanks(rest.get(1..)?)?.strip_prefix(end)?;
    Some((address, text.len() - rest.len()))
}

fn skip_blanks(text: &[u8]) -> Option<&[u8]> {
    text.get(text.iter().take_while(|byte| byte.is_ascii_whitespace()).count()..)
}

/// Replaces the includes by their parts.
fn join_parts(pieces: &[IncludePiece<'_>], parts: &[IncludedPart]) -> Bytes {
    let mut parts = parts.iter();
    let mut joined = BytesMut::new();
    for piece in pieces {
        match piece {
            IncludePiece::Text(text) => joined.extend_from_slice(text),
            IncludePiece::Include(_) => {
                joined.extend_from_slice(
                    parts.next().map_or(INCLUDE_PLACEHOLDER, |part| &part.bytes),
                );
            }
        }
    }
    joined.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_lives_as_long_as_its_shortest_part() {
        let check = |page: &'static str, parts: &[&'static str], expected: &str| {
            let headers = |control: &'static str| {
                let (control, age) = control.split_once(" at ").unwrap_or((control, "0"));
                HeaderMap::from_iter([
                    (header::CACHE_CONTROL, HeaderValue::from_static(control)),
                    (header::AGE, HeaderValue::from_static(age)),
                ])
            };
            let part = |control: &&'static str| IncludedPart {
                bytes: Bytes::new(),
                is_private: control.contains("private") || control.contains("no-store"),
                headers: headers(control),
            };
            let included_parts: Vec<IncludedPart> = parts.iter().map(part).collect();
            let mut page_headers = headers(page);
            merge_part_headers(&mut page_headers, &included_parts);
            assert_eq!(page_headers[header::CACHE_CONTROL], expected, "{page} {parts:?}");
            assert!(!page_headers.contains_key(header::AGE));
        };
        check("public, max-age=3600", &["max-age=60", "public"], "public, max-age=60");
        check("max-age=60", &["max-age=3600"], "max-age=60");
        check("max-age=60 at 20", &["max-age=60 at 15"], "max-age=40");
        check("max-age=60", &["max-age=60 at 90"], "max-age=0");
        check("Max-Age=60, s-maxage=600", &["max-age=90"], "max-age=60, s-maxage=90");
        check("max-age=60", &["max-age=60, s-maxage=5"], "max-age=60, s-maxage=5");
        check("s-maxage=60", &["max-age=5"], "s-maxage=5");
        check("public", &["max-age=5"], "public");
        check("max-age=60", &["private, max-age=5"], "private, no-cache");
        check("max-age=60", &["private", "no-store"], "private, no-store");
        check("no-store", &["private"], "private, no-store");
    }

    /// Checks the includes found in a text, if `/a.html` and `/b c.html` are named.
    fn check(text: &str, expected: &[&str]) {
        let pieces = split_at_includes(text.as_bytes(), &["/a.html", "/b%20c.html"]);
        let addresses = pieces.iter().filter_map(|piece| match piece {
            IncludePiece::Include(address) => Some(*address),
            IncludePiece::Text(_) => None,
        });
        assert_eq!(addresses.collect::<Vec<_>>(), expected, "{text}");
        let length: usize = pieces
            .iter()
            .map(|piece| if let IncludePiece::Text(text) = piece { text.len() } else { 0 })
            .sum();
        assert!(length <= text.len());
        if expected.is_empty() {
            assert_eq!(pieces, [IncludePiece::Text(text.as_bytes())]);
        }
    }

    #[test]
    fn finds_named_includes_only() {
        check("<!--#include virtual=\"/a.html\" -->", &["/a.html"]);
        check("x<!--#include virtual='/b%20c.html'-->y", &["/b%20c.html"]);
        check("<!--#include   virtual = \"/a.html\"\n-->", &["/a.html"]);
        check("<esi:include src=\"/a.html\"/>", &["/a.html"]);
        check(
            "<esi:include src=\"/a.html\" />z<!--#include virtual=\"/a.html\" -->",
            &["/a.html"; 2],
        );
        check("<<!--#include virtual=\"/a.html\" -->", &["/a.html"]);
        // Not named, or not an include.
        check("<!--#include virtual=\"/c.html\" -->", &[]);
        check("<!--#include virtual=\"/a.html?x\" -->", &[]);
        check("<!--#include file=\"/a.html\" -->", &[]);
        check("<!--#includevirtual=\"/a.html\" -->", &[]);
        check("<!--#include virtual=\"/a.html", &[]);
        check("<!--#include virtual=\"/a.html\" --", &[]);
        check("<!--#exec cmd=\"ls\" -->", &[]);
        check("&lt;!--#include virtual=\"/a.html\" --&gt;", &[]);
        check("<esi:include src=\"/a.html\">", &[]);
        check("<", &[]);
        check("", &[]);
    }
}
