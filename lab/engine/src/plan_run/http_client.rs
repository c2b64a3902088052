//! The client of a thread: builds sendable requests from resolved ones, with the target, the cookies and the cache of
//! earlier responses.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tympan_lab_plan::model::PlanModel;
use tympan_lab_plan::{
    AbsoluteUrl, HttpSamplerSpec, RegexPattern, RegexPatternCache, ResolvedHttpRequest,
    VariableScope,
};

use super::client_cache::{CacheFreshnessMode, CacheableExchange, ClientCache};
use super::cookie_jar::CookieJar;
use super::thread_context::ThreadContext;
use crate::net::{LoadTarget, ResponseRetention, TargetRequest, TargetResponseHead};

/// A resolved host.
#[derive(Debug)]
struct ResolvedTarget {
    /// The address table that was used.
    host_table: Option<usize>,
    /// The local address.
    source_address: Option<IpAddr>,
    is_tls: bool,
    host: String,
    port: u16,
    target: Arc<LoadTarget>,
}

/// The cookies and caches of one thread, by manager.
#[derive(Debug, Default)]
pub(super) struct PlanHttpClient {
    cookie_jars: HashMap<usize, CookieJar>,
    caches: HashMap<usize, ClientCache>,
    /// The target of the last request.
    last_target: Option<ResolvedTarget>,
    /// The patterns that select embedded resources.
    resource_patterns: RegexPatternCache,
}

impl PlanHttpClient {
    /// Returns a pattern that selects embedded resources.
    pub(super) fn resource_pattern(&mut self, text: &str) -> Option<RegexPattern> {
        self.resource_patterns.full_match_pattern(text)
    }

    /// Clears the cookies and caches that do not outlast an iteration, or the user of the thread.
    pub(super) fn begin_iteration(&mut self, model: &PlanModel, is_new_user: bool) {
        for (index, manager) in model.cookie_managers.iter().enumerate() {
            let clears = if manager.is_controlled_by_group {
                is_new_user
            } else {
                manager.clears_each_iteration
            };
            if clears {
                self.cookie_jars.remove(&index);
            }
        }
        for (index, manager) in model.cache_managers.iter().enumerate() {
            if manager.clears_each_iteration || is_new_user {
                self.caches.remove(&index);
            }
        }
    }

    /// Builds a sendable request from a resolved one.
    pub(super) fn build_request(
        &mut self,
        request: &ResolvedHttpRequest,
        spec: &HttpSamplerSpec,
        keep: ResponseRetention,
        thread: &mut ThreadContext,
    ) -> Result<TargetRequest, (String, String)> {
        let url = &request.url;
        let source = source_address(spec, &mut thread.scope)?;
        let target = self
            .resolve_target(url, spec.host_addresses, source, thread)
            .map_err(|_| ("java.net.UnknownHostException".to_owned(), url.host.clone()))?;
        let cookies = active_cookie_manager(spec, &thread.model).and_then(|manager_index| {
            self.ensure_cookie_jar(manager_index, thread);
            self.cookie_jars.get(&manager_index).and_then(|jar| jar.cookie_header(url))
        });
        let mut conditional;
        let mut sent = request;
        if let Some(manager_index) = spec.cache_manager
            && request.method == "GET"
        {
            let conditions = self
                .caches
                .entry(manager_index)
                .or_default()
                .conditional_headers(&request.display_url(), &request.headers);
            if !conditions.is_empty() {
                conditional = request.clone();
                let shared = |(name, value): (String, String)| (name.into(), value.into());
                conditional.headers.extend(conditions.into_iter().map(shared));
                sent = &conditional;
            }
        }
        let bytes = sent.to_wire_bytes(cookies.as_deref());
        let mut millis = |template: &tympan_lab_plan::TextTemplate| -> Option<Duration> {
            let text = template.evaluate(&mut thread.scope);
            text.trim().parse().ok().filter(|&millis| millis > 0).map(Duration::from_millis)
        };
        Ok(TargetRequest {
            target,
            encoded_bytes: bytes.into(),
            is_head: request.method == "HEAD",
            retention: keep,
            uses_keep_alive: spec.keep_alive,
            connect_timeout: millis(&spec.connect_timeout),
            idle_timeout: millis(&spec.response_timeout),
        })
    }

    /// Returns the target of a URL, which is usually that of the last request.
    fn resolve_target(
        &mut self,
        url: &AbsoluteUrl,
        hosts: Option<usize>,
        source: Option<IpAddr>,
        thread: &mut ThreadContext,
    ) -> crate::Result<Arc<LoadTarget>> {
        if let Some(led) = &self.last_target
            && (led.host_table, led.source_address) == (hosts, source)
            && (led.is_tls, led.port) == (url.is_tls, url.port)
            && led.host == url.host
        {
            return Ok(Arc::clone(&led.target));
        }
        let addresses = hosts.and_then(|index| plan_host_addresses(index, &url.host, thread));
        let targets = &thread.run_state.targets;
        let target = targets.get_or_resolve_at(
            url.is_tls,
            &url.host,
            url.port,
            addresses.as_deref(),
            source,
        )?;
        // An address with variables may differ for the next request.
        let is_fixed = addresses.is_none() || has_fixed_hosts(hosts, &thread.model);
        self.last_target = is_fixed.then(|| ResolvedTarget {
            host_table: hosts,
            source_address: source,
            is_tls: url.is_tls,
            host: url.host.clone(),
            port: url.port,
            target: Arc::clone(&target),
        });
        Ok(target)
    }

    /// Creates the jar of a cookie manager with the plan's initial cookies, unless it exists.
    fn ensure_cookie_jar(&mut self, index: usize, thread: &mut ThreadContext) {
        if self.cookie_jars.contains_key(&index) {
            return;
        }
        let mut jar = CookieJar::default();
        let model = Arc::clone(&thread.model);
        if let Some(manager) = model.cookie_managers.get(index) {
            for ([name, value, domain, path], is_secure) in &manager.cookies {
                let mut text = |template: &tympan_lab_plan::TextTemplate| {
                    template.evaluate(&mut thread.scope).into_owned()
                };
                let (name, value, domain, path) =
                    (text(name), text(value), text(domain), text(path));
                jar.set_plan_cookie(&name, &value, (&domain, &path), *is_secure);
            }
        }
        self.cookie_jars.insert(index, jar);
    }

    /// Returns true if the cache holds a fresh response, so that no request is needed.
    pub(super) fn is_cached_fresh(
        &mut self,
        request: &ResolvedHttpRequest,
        spec: &HttpSamplerSpec,
        model: &PlanModel,
    ) -> bool {
        let Some(cache_index) = spec.cache_manager.filter(|_| request.method == "GET") else {
            return false;
        };
        model.cache_managers.get(cache_index).is_some_and(|manager| manager.uses_expires)
            && self.caches.entry(cache_index).or_default().is_fresh(
                &request.display_url(),
                &request.headers,
                SystemTime::now(),
            )
    }

    /// Stores the cookies and the cache data of a response head.
    pub(super) fn store_response_state(
        &mut self,
        request: &ResolvedHttpRequest,
        spec: &HttpSamplerSpec,
        status: u16,
        head: &TargetResponseHead,
        thread: &mut ThreadContext,
    ) {
        if let Some(jar_index) = active_cookie_manager(spec, &thread.model) {
            self.ensure_cookie_jar(jar_index, thread);
            if let Some(jar) = self.cookie_jars.get_mut(&jar_index) {
                let take =
                    |cookie: &str| jar.set_from_response(cookie, &request.url, SystemTime::now());
                head.header_values("Set-Cookie").for_each(take);
            }
        }
        if let Some(cache_index) = spec.cache_manager
            && request.method == "GET"
        {
            let uses_expires = thread
                .model
                .cache_managers
                .get(cache_index)
                .is_some_and(|manager| manager.uses_expires);
            let freshness = if uses_expires {
                CacheFreshnessMode::JMeterHeuristic
            } else {
                CacheFreshnessMode::AlwaysRevalidate
            };
            let cache = self.caches.entry(cache_index).or_default();
            let exchanged = CacheableExchange {
                url: &request.display_url(),
                request_headers: &request.headers,
                status,
                head,
            };
            cache.record_response(&exchanged, freshness, SystemTime::now());
        }
    }
}

/// Returns the cookie manager of a request, unless it ignores all cookies.
fn active_cookie_manager(spec: &HttpSamplerSpec, model: &PlanModel) -> Option<usize> {
    let manages = |index: &usize| {
        model.cookie_managers.get(*index).is_some_and(|manager| !manager.ignores_cookies)
    };
    spec.cookie_manager.filter(manages)
}

/// Returns the local address that the plan specifies.
fn source_address(
    spec: &HttpSamplerSpec,
    scope: &mut VariableScope,
) -> Result<Option<IpAddr>, (String, String)> {
    if spec.source_address.is_empty() {
        return Ok(None);
    }
    let text = spec.source_address.evaluate(scope);
    match text.trim() {
        "" => Ok(None),
        text => text
            .parse()
            .map(Some)
            .map_err(|_| ("java.net.UnknownHostException".to_owned(), text.to_owned())),
    }
}

/// Returns the addresses that the plan itself assigns to a name.
fn plan_host_addresses(index: usize, host: &str, thread: &mut ThreadContext) -> Option<String> {
    let model = Arc::clone(&thread.model);
    let hosts = model.host_addresses.get(index)?;
    let entry = hosts
        .iter()
        .find(|(name, _)| name.evaluate(&mut thread.scope).trim().eq_ignore_ascii_case(host))?;
    Some(entry.1.evaluate(&mut thread.scope).into_owned())
}

fn has_fixed_hosts(index: Option<usize>, model: &PlanModel) -> bool {
    let hosts = index.and_then(|index| model.host_addresses.get(index));
    hosts
        .into_iter()
        .flatten()
        .all(|(name, addresses)| name.as_literal().is_some() && addresses.as_literal().is_some())
}
