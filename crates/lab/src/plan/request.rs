//! From a drawn request to one that can be sent: where it leads, and what cookies and caches add to it.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use super::actor::{Actor, Led};
use super::http::{Drawn, HttpSpec};
use crate::net::{Keep, Request, Target, Url};

impl Actor {
    /// Turns a drawn request into one that can be sent.
    pub(super) fn request(
        &mut self,
        drawn: &Drawn,
        spec: &HttpSpec,
        keep: Keep,
    ) -> Result<Request, (String, String)> {
        let url = &drawn.url;
        let source = self.source(spec)?;
        let target = self
            .target(url, spec.hosts, source)
            .map_err(|_| ("java.net.UnknownHostException".to_owned(), url.host.clone()))?;
        let cookies = self.cookies(spec).and_then(|place| {
            self.open_jar(place);
            self.jars.get(&place).and_then(|jar| jar.header(url))
        });
        let mut conditional;
        let mut sent = drawn;
        if let Some(place) = spec.cache
            && drawn.method == "GET"
        {
            let conditions = self
                .caches
                .entry(place)
                .or_default()
                .conditions(&drawn.shown_url(), &drawn.headers);
            if !conditions.is_empty() {
                conditional = drawn.clone();
                let shared = |(name, value): (String, String)| (name.into(), value.into());
                conditional.headers.extend(conditions.into_iter().map(shared));
                sent = &conditional;
            }
        }
        let bytes = sent.bytes(cookies.as_deref());
        let mut millis = |template: &super::template::Template| -> Option<Duration> {
            let text = template.draw(&mut self.scope);
            text.trim().parse().ok().filter(|&millis| millis > 0).map(Duration::from_millis)
        };
        Ok(Request {
            target,
            bytes: bytes.into(),
            is_head: drawn.method == "HEAD",
            keep,
            keep_alive: spec.keep_alive,
            connect_timeout: millis(&spec.connect_timeout),
            response_timeout: millis(&spec.response_timeout),
        })
    }

    /// Returns the cookie manager of a request, unless it is one that ignores all cookies.
    pub(super) fn cookies(&self, spec: &HttpSpec) -> Option<usize> {
        let manages =
            |place: &usize| self.model.cookies.get(*place).is_some_and(|manager| !manager.ignores);
        spec.cookies.filter(manages)
    }

    /// Returns the address of this machine that the plan wants to send from.
    fn source(&mut self, spec: &HttpSpec) -> Result<Option<IpAddr>, (String, String)> {
        if spec.source.is_empty() {
            return Ok(None);
        }
        let text = spec.source.draw(&mut self.scope);
        match text.trim() {
            "" => Ok(None),
            text => text
                .parse()
                .map(Some)
                .map_err(|_| ("java.net.UnknownHostException".to_owned(), text.to_owned())),
        }
    }

    /// Returns where a URL leads, which is mostly where the last one led.
    fn target(
        &mut self,
        url: &Url,
        hosts: Option<usize>,
        source: Option<IpAddr>,
    ) -> crate::Result<Arc<Target>> {
        if let Some(led) = &self.target
            && (led.hosts, led.source) == (hosts, source)
            && (led.is_tls, led.port) == (url.is_tls, url.port)
            && led.host == url.host
        {
            return Ok(Arc::clone(&led.target));
        }
        let given = hosts.and_then(|place| self.addresses(place, &url.host));
        let targets = &self.stage.targets;
        let target =
            targets.find_at((url.is_tls, &url.host, url.port), given.as_deref(), source)?;
        // What a plan writes with variables may be another address for the next request.
        let is_fixed = given.is_none() || self.has_fixed_hosts(hosts);
        self.target = is_fixed.then(|| Led {
            hosts,
            source,
            is_tls: url.is_tls,
            host: url.host.clone(),
            port: url.port,
            target: Arc::clone(&target),
        });
        Ok(target)
    }

    /// Returns the addresses that the plan itself gives a name.
    fn addresses(&mut self, place: usize, host: &str) -> Option<String> {
        let model = Arc::clone(&self.model);
        let hosts = model.hosts.get(place)?;
        let found = hosts
            .iter()
            .find(|(name, _)| name.draw(&mut self.scope).trim().eq_ignore_ascii_case(host))?;
        Some(found.1.draw(&mut self.scope).into_owned())
    }

    fn has_fixed_hosts(&self, place: Option<usize>) -> bool {
        let hosts = place.and_then(|place| self.model.hosts.get(place));
        hosts.into_iter().flatten().all(|(name, addresses)| {
            name.as_literal().is_some() && addresses.as_literal().is_some()
        })
    }

    /// Gives a cookie manager a jar of its own with the cookies that the plan begins with, unless it has one.
    pub(super) fn open_jar(&mut self, place: usize) {
        if self.jars.contains_key(&place) {
            return;
        }
        let mut jar = super::cookie::Jar::default();
        let model = Arc::clone(&self.model);
        if let Some(manager) = model.cookies.get(place) {
            for ([name, value, domain, path], is_secure) in &manager.cookies {
                let mut text = |template: &super::template::Template| {
                    template.draw(&mut self.scope).into_owned()
                };
                let (name, value, domain, path) =
                    (text(name), text(value), text(domain), text(path));
                jar.give(&name, &value, (&domain, &path), *is_secure);
            }
        }
        self.jars.insert(place, jar);
    }
}
