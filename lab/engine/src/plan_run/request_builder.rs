//! Builds a sendable request from a resolved one: its target, and the headers that cookies and caches add.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tympan_lab_plan::{AbsoluteUrl, HttpSamplerSpec, ResolvedHttpRequest};

use super::plan_thread::{PlanThread, ResolvedTarget};
use crate::net::{LoadTarget, ResponseRetention, TargetRequest};

impl PlanThread {
    /// Builds a sendable request from a resolved one.
    pub(super) fn build_request(
        &mut self,
        request: &ResolvedHttpRequest,
        spec: &HttpSamplerSpec,
        keep: ResponseRetention,
    ) -> Result<TargetRequest, (String, String)> {
        let url = &request.url;
        let source = self.source_address(spec)?;
        let target = self
            .resolve_target(url, spec.host_addresses, source)
            .map_err(|_| ("java.net.UnknownHostException".to_owned(), url.host.clone()))?;
        let cookies = self.active_cookie_manager(spec).and_then(|manager_index| {
            self.ensure_cookie_jar(manager_index);
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
            let text = template.evaluate(&mut self.scope);
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

    /// Returns the cookie manager of a request, unless it ignores all cookies.
    pub(super) fn active_cookie_manager(&self, spec: &HttpSamplerSpec) -> Option<usize> {
        let manages = |index: &usize| {
            self.model.cookie_managers.get(*index).is_some_and(|manager| !manager.ignores_cookies)
        };
        spec.cookie_manager.filter(manages)
    }

    /// Returns the local address that the plan specifies.
    fn source_address(
        &mut self,
        spec: &HttpSamplerSpec,
    ) -> Result<Option<IpAddr>, (String, String)> {
        if spec.source_address.is_empty() {
            return Ok(None);
        }
        let text = spec.source_address.evaluate(&mut self.scope);
        match text.trim() {
            "" => Ok(None),
            text => text
                .parse()
                .map(Some)
                .map_err(|_| ("java.net.UnknownHostException".to_owned(), text.to_owned())),
        }
    }

    /// Returns the target of a URL, which is usually that of the last request.
    fn resolve_target(
        &mut self,
        url: &AbsoluteUrl,
        hosts: Option<usize>,
        source: Option<IpAddr>,
    ) -> crate::Result<Arc<LoadTarget>> {
        if let Some(led) = &self.last_target
            && (led.host_table, led.source_address) == (hosts, source)
            && (led.is_tls, led.port) == (url.is_tls, url.port)
            && led.host == url.host
        {
            return Ok(Arc::clone(&led.target));
        }
        let addresses = hosts.and_then(|index| self.plan_host_addresses(index, &url.host));
        let targets = &self.run_state.targets;
        let target = targets.get_or_resolve_at(
            url.is_tls,
            &url.host,
            url.port,
            addresses.as_deref(),
            source,
        )?;
        // An address with variables may differ for the next request.
        let is_fixed = addresses.is_none() || self.has_fixed_hosts(hosts);
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

    /// Returns the addresses that the plan itself assigns to a name.
    fn plan_host_addresses(&mut self, index: usize, host: &str) -> Option<String> {
        let model = Arc::clone(&self.model);
        let hosts = model.host_addresses.get(index)?;
        let entry = hosts
            .iter()
            .find(|(name, _)| name.evaluate(&mut self.scope).trim().eq_ignore_ascii_case(host))?;
        Some(entry.1.evaluate(&mut self.scope).into_owned())
    }

    fn has_fixed_hosts(&self, index: Option<usize>) -> bool {
        let hosts = index.and_then(|index| self.model.host_addresses.get(index));
        hosts.into_iter().flatten().all(|(name, addresses)| {
            name.as_literal().is_some() && addresses.as_literal().is_some()
        })
    }

    /// Creates the jar of a cookie manager with the plan's initial cookies, unless it exists.
    pub(super) fn ensure_cookie_jar(&mut self, index: usize) {
        if self.cookie_jars.contains_key(&index) {
            return;
        }
        let mut jar = super::cookie_jar::CookieJar::default();
        let model = Arc::clone(&self.model);
        if let Some(manager) = model.cookie_managers.get(index) {
            for ([name, value, domain, path], is_secure) in &manager.cookies {
                let mut text = |template: &tympan_lab_plan::TextTemplate| {
                    template.evaluate(&mut self.scope).into_owned()
                };
                let (name, value, domain, path) =
                    (text(name), text(value), text(domain), text(path));
                jar.set_plan_cookie(&name, &value, (&domain, &path), *is_secure);
            }
        }
        self.cookie_jars.insert(index, jar);
    }
}
