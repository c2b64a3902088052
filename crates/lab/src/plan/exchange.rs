//! One HTTP sample: request, redirects, parts of the page, extractors, assertions, and its row.

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use super::actor::{Actor, Led, Phase};
use super::answer::{Answer, decode, to_text};
use super::digest::{Challenge, Sent};
use super::embedded;
use super::http::{Drawn, HttpSpec, show};
use super::judge::{Judge, Verdict};
use super::model::{After, Kind, NodeId, OnError};
use crate::load::{Step, Turn};
use crate::net::{Failure, Head, Keep, MOST_HOPS, Reply, Request, Target, Url};
use crate::record::jtl::Row;
use crate::record::{Sample, Trace, cut, request_text, without_secrets};

/// A sample under way.
#[derive(Debug)]
pub(super) struct Exchange {
    node: NodeId,
    drawn: Drawn,
    hops: usize,
    /// The request that failed to become one, with Java's name and message.
    fault: Option<(String, String)>,
    sum: Option<Sum>,
    /// Parts of the page are on their way.
    fetches_parts: bool,
    /// Answers that asked for credentials, which this sample has given.
    asked: Option<Asked>,
    is_traced: bool,
    /// The request under way as it was sent, if the exchange is kept whole.
    traced: Option<Arc<[u8]>>,
}

/// What came before the answer that counts: the server asked for credentials.
#[derive(Debug, Clone, Copy)]
struct Asked {
    /// When the first request was sent, and how long connecting took.
    started: Instant,
    connect: Duration,
    /// How often, and whether it was for a digest.
    times: usize,
    is_digest: bool,
}

/// What redirects and parts add up to.
#[derive(Debug)]
struct Sum {
    started: Instant,
    ended: Instant,
    first_byte: Instant,
    connect: Duration,
    sent: u64,
    received: u64,
    body: u64,
    status: u16,
    is_ok: bool,
    data_type: &'static str,
    answer: Answer,
    /// What the server said of its own time.
    server_timing: Option<Box<str>>,
    /// The request as it was sent, if the exchange is kept whole.
    traced: Option<Arc<[u8]>>,
    media_type: String,
}

/// A finished sample, to be told at the end of the turn.
#[derive(Debug)]
pub(super) struct Finished {
    label: Arc<str>,
    is_transaction: bool,
    /// Inside a transaction that stands for its samples.
    is_hidden: bool,
    /// When it was due, if that is known.
    due: Option<Instant>,
    started: Instant,
    first_byte: Instant,
    ended: Instant,
    idle: Duration,
    connect: Duration,
    status: u16,
    is_ok: bool,
    received: u64,
    body: u64,
    sent: u64,
    code: Cow<'static, str>,
    message: Message,
    failure: String,
    data_type: &'static str,
    url: Cow<'static, str>,
    server_timing: Option<Box<str>>,
    trace: Option<Box<Trace>>,
}

/// What a sample says, put into words where somebody reads it.
#[derive(Debug)]
enum Message {
    Text(String),
    /// Samples of a transaction, and how many of them failed.
    Transaction(u64, u64),
}

impl Message {
    fn text(&self) -> Cow<'_, str> {
        match self {
            Self::Text(text) => text.as_str().into(),
            Self::Transaction(calls, failed) => format!(
                "Number of samples in transaction : {calls}, number of failing samples : {failed}"
            )
            .into(),
        }
    }
}

/// How the message of a sample without an answer begins.
const NO_ANSWER: &str = "Non HTTP response message: ";
/// Most answers of a server that its nonce is too old.
const MOST_ASKED: usize = 3;
/// Bytes of a body that are kept for extractors and assertions.
const MOST_BODY: usize = 10 << 20;

impl Actor {
    /// Begins an HTTP sample.
    pub(super) fn begin(
        &mut self,
        node: NodeId,
        spec: &HttpSpec,
        turn: &mut Turn<'_>,
    ) -> Option<Step> {
        let drawn = match spec.draw(&mut self.scope) {
            Ok(drawn) => drawn,
            Err((exception, message)) => {
                let answer = Answer {
                    code: format!("Non HTTP response code: {exception}"),
                    message: format!("Non HTTP response message: {message}"),
                    ..Answer::default()
                };
                self.finish_plain(node, answer, turn.now, false);
                return None;
            }
        };
        if let Some(cache) = spec.cache
            && self.model.caches.get(cache).is_some_and(|manager| manager.uses_expires)
            && self.caches.entry(cache).or_default().is_fresh(&drawn.shown_url(), SystemTime::now())
        {
            return None;
        }
        let exchange = Box::new(Exchange {
            node,
            drawn,
            hops: 0,
            fault: None,
            sum: None,
            fetches_parts: false,
            asked: None,
            is_traced: turn.recorder.wants_trace(&self.scope.sampler),
            traced: None,
        });
        self.send(exchange, spec, turn)
    }

    fn send(
        &mut self,
        mut exchange: Box<Exchange>,
        spec: &HttpSpec,
        turn: &mut Turn<'_>,
    ) -> Option<Step> {
        let keep =
            if exchange.is_traced { Keep::Body(MOST_BODY) } else { self.keep(exchange.node, spec) };
        match self.request(&exchange.drawn, spec, keep) {
            Ok(request) => {
                exchange.traced = exchange.is_traced.then(|| Arc::clone(&request.bytes));
                // It is sent again where the server asks for credentials.
                if spec.logins.is_empty() {
                    exchange.drawn.body.clear();
                }
                self.request = Some(Arc::clone(&request.bytes));
                self.phase = Phase::Exchange(exchange);
                Some(Step::Fetch(request))
            }
            Err(fault) => {
                exchange.fault = Some(fault);
                self.fail(&exchange, turn);
                None
            }
        }
    }

    /// Returns what of a response has to be kept.
    fn keep(&self, node: NodeId, spec: &HttpSpec) -> Keep {
        let Some(Kind::Sampler(sampler)) = self.model.nodes.get(node).map(|node| &node.kind) else {
            return Keep::Head;
        };
        let wants_body =
            !sampler.judges.is_empty() || !sampler.after.is_empty() || spec.embedded.is_some();
        if wants_body { Keep::Body(MOST_BODY) } else { Keep::Head }
    }

    /// Turns a drawn request into one that can be sent.
    fn request(
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
        let cookies = spec.cookies.and_then(|place| {
            self.open_jar(place);
            self.jars.get(&place).and_then(|jar| jar.header(url))
        });
        let mut conditional;
        let mut sent = drawn;
        if let Some(place) = spec.cache
            && drawn.method == "GET"
        {
            let conditions = self.caches.entry(place).or_default().conditions(&drawn.shown_url());
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

    fn open_jar(&mut self, place: usize) {
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

    /// Takes the replies to what an exchange sent.
    pub(super) fn go_on(
        &mut self,
        mut exchange: Box<Exchange>,
        turn: &mut Turn<'_>,
    ) -> Option<Step> {
        let model = Arc::clone(&self.model);
        let Some(Kind::Sampler(sampler)) = model.nodes.get(exchange.node).map(|node| &node.kind)
        else {
            return None;
        };
        let super::model::Action::Http(spec) = &sampler.action else { return None };
        let replies = std::mem::take(&mut turn.replies);
        if exchange.fetches_parts {
            exchange.add_parts(&replies);
            self.finish(exchange);
            return None;
        }
        let reply = replies.into_iter().next()?;
        if let Some(authorization) = self.authorize(&mut exchange, &reply, spec) {
            exchange.drawn.authorization = Some(authorization);
            return self.send(exchange, spec, turn);
        }
        let location = self.take_reply(&mut exchange, *reply, spec);
        if location.is_some() && exchange.hops >= MOST_HOPS {
            exchange.lose(Failure::Redirects);
        } else if let Some(location) = location {
            exchange.hops += 1;
            match exchange.drawn.url.join(&location) {
                Ok(url) => {
                    exchange.drawn.url = url;
                    if exchange.drawn.method != "HEAD" {
                        exchange.drawn.method = "GET".into();
                    }
                    exchange.drawn.body.clear();
                    exchange
                        .drawn
                        .headers
                        .retain(|(name, _)| !name.eq_ignore_ascii_case("Content-Type"));
                    // Credentials are for their own addresses: another host is not told them.
                    exchange.drawn.authorization =
                        spec.credentials(&exchange.drawn.url, &mut self.scope);
                    exchange.asked = None;
                    return self.send(exchange, spec, turn);
                }
                Err(error) => {
                    exchange.fault =
                        Some(("java.net.MalformedURLException".to_owned(), error.to_string()));
                    self.fail(&exchange, turn);
                    return None;
                }
            }
        }
        if let Some(wanted) = &spec.embedded
            && let Some(requests) = self.parts(&exchange, spec, wanted)
        {
            exchange.fetches_parts = true;
            self.phase = Phase::Exchange(exchange);
            return Some(Step::FetchAll { requests, parallel: wanted.parallel });
        }
        self.finish(exchange);
        None
    }

    /// Returns the credentials that an answer asks for, if the plan has them and they were not given in vain.
    fn authorize(
        &mut self,
        exchange: &mut Exchange,
        reply: &Reply,
        spec: &HttpSpec,
    ) -> Option<Arc<str>> {
        // Java's own client gives what it has at once, or nothing.
        if spec.logins.is_empty() || spec.is_java {
            return None;
        }
        let response = reply.result.as_ref().ok().filter(|response| response.status == 401)?;
        let drawn = &exchange.drawn;
        let login = spec.login(&drawn.url, &mut self.scope)?;
        let realm = login.realm.draw(&mut self.scope).into_owned();
        let mut offered = Challenge::read(response.head.as_ref()?.all("WWW-Authenticate"));
        offered.retain(|one| realm.is_empty() || one.realm() == realm);
        let digest = offered.iter().find_map(|one| match one {
            Challenge::Digest(digest) => Some(digest),
            Challenge::Basic { .. } => None,
        });
        let takes_basic = offered.iter().any(|one| matches!(one, Challenge::Basic { .. }));
        let asked = exchange.asked;
        let gave_basic =
            drawn.authorization.is_some() && !asked.is_some_and(|asked| asked.is_digest);
        let gave_digest = asked.is_some_and(|asked| asked.is_digest);
        let times = asked.map_or(0, |asked| asked.times);
        // What was refused once is not given again, unless only the server's nonce was too old.
        let is_refused = (gave_basic && takes_basic)
            || (gave_digest && !digest.is_some_and(|digest| digest.is_stale))
            || times >= MOST_ASKED;
        if is_refused {
            return None;
        }
        let answer: Arc<str> = match digest {
            Some(digest) => {
                let user = login.user.draw(&mut self.scope).into_owned();
                let password = login.password.draw(&mut self.scope).into_owned();
                let nonce = format!("{:016x}", self.scope.random());
                let sent =
                    Sent { method: &drawn.method, target: &drawn.url.target, body: &drawn.body };
                digest.answer((&user, &password), sent, &nonce).into()
            }
            None if takes_basic => login.basic(&mut self.scope),
            None => return None,
        };
        exchange.asked = Some(Asked {
            started: asked.map_or(reply.started, |asked| asked.started),
            connect: asked.map_or(Duration::ZERO, |asked| asked.connect) + reply.connect,
            times: times + 1,
            is_digest: digest.is_some(),
        });
        Some(answer)
    }

    /// Returns the requests for the parts of a page; `None` if there are none.
    fn parts(
        &mut self,
        exchange: &Exchange,
        spec: &HttpSpec,
        wanted: &super::http::Embedded,
    ) -> Option<Vec<Request>> {
        let sum = exchange.sum.as_ref().filter(|sum| sum.is_ok)?;
        let mut pattern = |template: &Option<super::template::Template>| {
            let text = template.as_ref()?.draw(&mut self.scope).into_owned();
            self.patterns.find_whole(&text)
        };
        let (only, except) = (pattern(&wanted.only), pattern(&wanted.except));
        let mut requests = Vec::new();
        for reference in embedded::references(&sum.answer.body) {
            let Ok(url) = exchange.drawn.url.join(&reference) else { continue };
            let shown = show(&url);
            let is_wanted = only.as_ref().is_none_or(|only| only.is_match(&shown))
                && !except.as_ref().is_some_and(|except| except.is_match(&shown));
            if !is_wanted {
                continue;
            }
            let mut drawn = exchange.drawn.clone();
            drawn.url = url;
            drawn.method = "GET".into();
            drawn.body.clear();
            drawn.authorization = spec.credentials(&drawn.url, &mut self.scope);
            if let Ok(request) = self.request(&drawn, spec, Keep::Nothing) {
                requests.push(request);
            }
        }
        (!requests.is_empty()).then_some(requests)
    }

    /// Adds a reply to the sample; returns where a redirect leads.
    fn take_reply(
        &mut self,
        exchange: &mut Exchange,
        reply: Reply,
        spec: &HttpSpec,
    ) -> Option<String> {
        let url = &exchange.drawn.url;
        let mut server_timing = None;
        let (status, code, message, is_ok, head, body, body_bytes) = match reply.result {
            Ok(response) => {
                server_timing = response.server_timing;
                let head = response.head.unwrap_or_default();
                let is_ok = (200..400).contains(&response.status);
                let code = response.status.to_string();
                (
                    response.status,
                    code,
                    head.reason().to_owned(),
                    is_ok,
                    head,
                    response.body,
                    response.body_bytes,
                )
            }
            Err(failure) => (
                0,
                format!("Non HTTP response code: {}", failure.exception()),
                format!("Non HTTP response message: {}", failure.words()),
                false,
                Head::default(),
                Vec::new(),
                0,
            ),
        };
        if let Some(place) = spec.cookies {
            self.open_jar(place);
            if let Some(jar) = self.jars.get_mut(&place) {
                head.all("Set-Cookie").for_each(|cookie| jar.take(cookie, url, SystemTime::now()));
            }
        }
        if let Some(place) = spec.cache
            && exchange.drawn.method == "GET"
        {
            self.caches.entry(place).or_default().note(
                &show(url),
                status,
                &head,
                SystemTime::now(),
            );
        }
        let content_type = head.header("Content-Type");
        let text = to_text(decode(body, head.header("Content-Encoding")), content_type);
        let data_type = data_type(content_type, status);
        let traced = exchange.traced.take();
        // Only an exchange that is kept whole tells it.
        let media_type = content_type.filter(|_| traced.is_some()).unwrap_or_default().to_owned();
        let location = redirect_of(&head, status, &exchange.drawn.method, spec);
        let answer = Answer {
            url: show(url),
            code,
            message,
            headers: head.into_text(),
            request: self.request.take(),
            body: text,
            body_bytes,
            ..Answer::default()
        };
        let asked = exchange.asked;
        exchange.add(Sum {
            started: asked.map_or(reply.started, |asked| asked.started),
            ended: reply.ended,
            first_byte: reply.first_byte,
            connect: asked.map_or(Duration::ZERO, |asked| asked.connect) + reply.connect,
            sent: reply.sent,
            received: reply.received,
            body: body_bytes,
            status,
            is_ok,
            data_type,
            answer,
            server_timing,
            traced,
            media_type,
        });
        location
    }

    fn fail(&mut self, exchange: &Exchange, turn: &mut Turn<'_>) {
        let (exception, message) = exchange.fault.clone().unwrap_or_default();
        let answer = Answer {
            url: exchange.drawn.shown_url(),
            code: format!("Non HTTP response code: {exception}"),
            message: format!("Non HTTP response message: {message}"),
            ..Answer::default()
        };
        let started = exchange.sum.as_ref().map_or(turn.now, |sum| sum.started);
        self.finish_plain(exchange.node, answer, started, false);
    }

    /// Finishes a sample that had no reply.
    pub(super) fn finish_plain(
        &mut self,
        node: NodeId,
        answer: Answer,
        started: Instant,
        is_ok: bool,
    ) {
        let now = Instant::now();
        let sum = Sum {
            started,
            ended: now,
            first_byte: started,
            connect: Duration::ZERO,
            sent: 0,
            received: answer.body.len() as u64,
            body: answer.body.len() as u64,
            status: answer.code.parse().unwrap_or(0),
            is_ok,
            data_type: "text",
            answer,
            server_timing: None,
            traced: None,
            media_type: String::new(),
        };
        self.conclude(node, sum);
    }

    fn finish(&mut self, mut exchange: Box<Exchange>) {
        if let Some(sum) = exchange.sum.take() {
            self.conclude(exchange.node, sum);
        }
    }

    /// Judges a sample and notes it.
    fn conclude(&mut self, node: NodeId, mut sum: Sum) {
        let model = Arc::clone(&self.model);
        let Some(Kind::Sampler(sampler)) = model.nodes.get(node).map(|node| &node.kind) else {
            return;
        };
        sum.answer.elapsed_ms = millis(sum.ended.saturating_duration_since(sum.started));
        sum.answer.bytes = sum.received;
        let mut is_ok = sum.is_ok;
        let mut failure = String::new();
        if sampler.judges.iter().any(Judge::assumes_success) && sum.status != 0 {
            is_ok = true;
        }
        let mut actions = Vec::new();
        // A script that is a sampler itself may say that it is none: nothing looks at it then.
        let was_ignored = sum.answer.said.is_ignored;
        for after in sampler.after.iter().filter(|_| !was_ignored) {
            match after {
                After::Extract(extractor) => {
                    extractor.run(&sum.answer, &mut self.scope, &mut self.patterns);
                }
                After::Script(script) => is_ok = self.run_after(script, &mut sum.answer, is_ok),
                After::OnError(action) => actions.push(*action),
            }
        }
        for judge in sampler.judges.iter().filter(|_| !was_ignored) {
            let verdict = match judge {
                Judge::Script(script) => self.run_judge(script, &mut sum.answer, &mut is_ok),
                _ => judge.judge(&sum.answer, &mut self.scope, &mut self.patterns),
            };
            match verdict {
                Verdict::Right | Verdict::RightAtLast => {}
                Verdict::Wrong(fault) => {
                    is_ok = false;
                    if failure.is_empty() {
                        failure = fault;
                    }
                }
            }
        }
        self.last_ok = is_ok;
        self.scope.set("JMeterThread.last_sample_ok", if is_ok { "true" } else { "false" });
        let said = sum.answer.said;
        if !said.is_ignored {
            self.note_sample(sum, is_ok, failure);
        }
        for (is_said, action) in [
            (said.stops_thread, OnError::StopThread),
            (said.stops_test, OnError::StopTest),
            (said.starts_next_loop, OnError::NextLoop),
        ] {
            if is_said {
                self.take_error(action);
            }
        }
        if !is_ok {
            actions.push(self.squad.on_error);
            for action in actions {
                if action != OnError::Continue {
                    self.take_error(action);
                    break;
                }
            }
        }
    }

    /// Adds a sample to what is to be told.
    fn note_sample(&mut self, sum: Sum, is_ok: bool, failure: String) {
        let hidden = self.enter_transactions(&sum, is_ok);
        let trace = sum.trace(&self.scope.sampler, is_ok, &failure).map(Box::new);
        self.finished.push(Finished {
            label: Arc::clone(&self.scope.sampler),
            is_transaction: false,
            is_hidden: hidden,
            due: self.due.take(),
            started: sum.started,
            first_byte: sum.first_byte,
            ended: sum.ended,
            idle: Duration::ZERO,
            connect: sum.connect,
            status: sum.status,
            is_ok,
            received: sum.received,
            body: sum.body,
            sent: sum.sent,
            code: sum.answer.code.into(),
            message: Message::Text(sum.answer.message),
            failure,
            data_type: sum.data_type,
            url: sum.answer.url.into(),
            server_timing: sum.server_timing,
            trace,
        });
    }

    /// Adds a sample to the transactions it stands in; true if one of them stands for it.
    fn enter_transactions(&mut self, sum: &Sum, is_ok: bool) -> bool {
        let model = Arc::clone(&self.model);
        let mut is_hidden = false;
        for (node, state) in self.states.iter_mut().enumerate() {
            let Some(open) = &mut state.open else { continue };
            let Some(Kind::Transaction { is_parent, with_timers }) =
                model.nodes.get(node).map(|node| &node.kind)
            else {
                continue;
            };
            if !with_timers {
                open.idle += sum.started.saturating_duration_since(open.previous_end);
            }
            open.previous_end = sum.ended;
            open.failed += u64::from(!is_ok);
            open.received += sum.received;
            open.sent += sum.sent;
            open.latency += sum.first_byte.saturating_duration_since(sum.started);
            open.connect += sum.connect;
            open.children += sum.ended.saturating_duration_since(sum.started);
            is_hidden |= is_parent;
        }
        is_hidden
    }

    /// Ends a transaction and notes its sample.
    pub(super) fn end_transaction(&mut self, node: NodeId) {
        let model = Arc::clone(&self.model);
        let Some(entry) = model.nodes.get(node) else { return };
        let Kind::Transaction { is_parent, with_timers } = &entry.kind else { return };
        let Some(open) = self.states.get_mut(node).and_then(|state| state.open.take()) else {
            return;
        };
        if open.calls == 0 {
            return;
        }
        let now = Instant::now();
        let mut idle = open.idle;
        if !with_timers {
            idle += now.saturating_duration_since(open.previous_end);
        }
        let is_hidden = self.states.iter().enumerate().any(|(other, state)| {
            let kind = model.nodes.get(other).map(|node| &node.kind);
            state.open.is_some() && matches!(kind, Some(Kind::Transaction { is_parent: true, .. }))
        });
        if *is_parent && !with_timers {
            idle = now.saturating_duration_since(open.started).saturating_sub(open.children);
        }
        let is_ok = open.failed == 0;
        self.finished.push(Finished {
            label: entry.name.share(&mut self.scope),
            is_transaction: true,
            is_hidden,
            due: None,
            started: open.started,
            first_byte: open.started + open.latency,
            ended: now,
            idle,
            connect: open.connect,
            status: if is_ok { 200 } else { 0 },
            is_ok,
            received: open.received,
            body: open.received,
            sent: open.sent,
            code: if is_ok { "200" } else { "" }.into(),
            message: Message::Transaction(open.calls, open.failed),
            failure: String::new(),
            data_type: "",
            url: "null".into(),
            server_timing: None,
            trace: None,
        });
    }

    /// Tells the recorder what was finished.
    pub(super) fn tell(&mut self, turn: &mut Turn<'_>) {
        if self.finished.is_empty() {
            return;
        }
        let mut all = std::mem::take(&mut self.finished);
        for finished in all.drain(..) {
            let elapsed = finished
                .ended
                .saturating_duration_since(finished.started)
                .saturating_sub(finished.idle);
            let label = turn.recorder.label_of(&finished.label, finished.is_transaction);
            let message = if finished.is_ok { Cow::Borrowed("") } else { finished.message.text() };
            let reason = match (finished.is_ok, finished.failure.as_str()) {
                (true, _) => None,
                (false, "") if finished.status == 0 => Some(&*message),
                // Where nothing was answered, that is the reason, and not what was expected of the answer.
                (false, _) if message.starts_with(NO_ANSWER) => Some(&*message),
                (false, "") => Some("status"),
                (false, failure) => Some(failure),
            };
            turn.recorder.sample(&Sample {
                label,
                intended: finished.due.map_or(finished.started, |due| due.min(finished.started)),
                started: finished.started,
                first_byte: finished.first_byte,
                ended: finished.started + elapsed,
                connect: finished.connect,
                status: finished.status,
                failure: reason,
                received: finished.received,
                body: finished.body,
                sent: finished.sent,
            });
            if let Some(header) = &finished.server_timing {
                turn.recorder.phases(label, header);
            }
            if let Some(trace) = finished.trace {
                turn.recorder.trace(finished.started, *trace);
            }
            if finished.is_hidden {
                continue;
            }
            if !finished.is_transaction {
                let start = self.stage.epoch_ms(finished.started);
                let mut tally = self.stage.tally.lock().unwrap_or_else(PoisonError::into_inner);
                tally.0.add(start, millis(elapsed), finished.is_ok);
                tally.1.add(start, millis(elapsed), finished.is_ok);
            }
            if turn.recorder.wants_rows() {
                let group_threads = self.squad.active.load(Ordering::Relaxed);
                let row = Row {
                    elapsed: millis(elapsed),
                    label: (&*finished.label).into(),
                    code: finished.code.as_ref().into(),
                    message: finished.message.text(),
                    thread: self.scope.thread_name.as_ref().into(),
                    data_type: finished.data_type.into(),
                    is_ok: finished.is_ok,
                    failure: finished.failure.into(),
                    bytes: finished.received,
                    sent: finished.sent,
                    group_threads,
                    all_threads: self.stage.threads().active.max(group_threads),
                    url: finished.url.as_ref().into(),
                    latency: millis(
                        finished.first_byte.saturating_duration_since(finished.started),
                    ),
                    idle: millis(finished.idle),
                    connect: millis(finished.connect),
                    ..Row::default()
                };
                turn.recorder.row(finished.started, row);
            }
        }
        // Its room serves the next sample.
        self.finished = all;
    }
}

impl Sum {
    /// Returns the exchange, if it is kept whole.
    fn trace(&self, label: &str, is_ok: bool, failure: &str) -> Option<Trace> {
        let bytes = self.traced.as_ref()?;
        let answer = &self.answer;
        let elapsed = self.ended.saturating_duration_since(self.started);
        Some(Trace {
            label: label.to_owned(),
            url: answer.url.clone(),
            started_ms: 0,
            elapsed_us: u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX),
            code: answer.code.clone(),
            message: answer.message.clone(),
            is_ok,
            failure: failure.to_owned(),
            request: request_text(bytes),
            head: without_secrets(&answer.headers),
            body: cut(answer.body.clone()),
            media_type: self.media_type.clone(),
            body_bytes: self.body,
        })
    }
}

impl Exchange {
    /// Adds a hop: the whole lasts from the first start to the last end and tells what the last one told.
    fn add(&mut self, hop: Sum) {
        self.sum = Some(match self.sum.take() {
            None => hop,
            Some(before) => Sum {
                started: before.started,
                first_byte: before.first_byte,
                connect: before.connect,
                sent: before.sent + hop.sent,
                received: before.received + hop.received,
                body: before.body + hop.body,
                ..hop
            },
        });
    }

    /// Makes what came a failure.
    fn lose(&mut self, failure: Failure) {
        let Some(sum) = &mut self.sum else { return };
        (sum.is_ok, sum.status) = (false, 0);
        sum.answer.code = format!("Non HTTP response code: {}", failure.exception());
        sum.answer.message = format!("Non HTTP response message: {}", failure.words());
    }

    fn add_parts(&mut self, replies: &[Box<Reply>]) {
        let Some(sum) = &mut self.sum else { return };
        for reply in replies {
            sum.ended = sum.ended.max(reply.ended);
            sum.received += reply.received;
            sum.sent += reply.sent;
            let is_ok =
                reply.result.as_ref().is_ok_and(|response| (200..400).contains(&response.status));
            if !is_ok && sum.is_ok {
                sum.is_ok = false;
                sum.answer.message = "Embedded resource download error:".to_owned();
            }
        }
    }
}

/// Returns where an answer sends on to, if it is followed.
fn redirect_of(head: &Head, status: u16, method: &str, spec: &HttpSpec) -> Option<String> {
    let is_redirect = match status {
        301..=303 => true,
        307 | 308 => matches!(method, "GET" | "HEAD"),
        _ => false,
    };
    let follows = spec.follows || spec.follows_silently;
    head.header("Location").filter(|_| follows && is_redirect).map(str::to_owned)
}

/// Returns JMeter's word for what an answer holds.
fn data_type(content_type: Option<&str>, status: u16) -> &'static str {
    match content_type {
        None if status == 0 => "text",
        None => "",
        Some(kind) if is_binary(kind) => "bin",
        Some(_) => "text",
    }
}

fn is_binary(content_type: &str) -> bool {
    ["image/", "audio/", "video/"].iter().any(|kind| content_type.starts_with(kind))
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}
