//! One HTTP sample under way: request, credentials, redirects, parts of the page.
//!
//! Not here: what a request is made of (`request`), and what becomes of the sample when it has ended (`sample`).

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use super::actor::{Actor, Phase};
use super::answer::{Answer, decode, to_text};
use super::cache::{Exchanged, Freshness};
use super::digest::{Challenge, Sent};
use super::embedded;
use super::http::{Drawn, HttpSpec, show};
use super::model::{Kind, NodeId};
use super::sample::{NO_ANSWER, Sum};
use super::subs::{LOST_PART, Leaf, Node, lost};
use crate::load::{Step, Turn};
use crate::net::{Failure, Head, Keep, MOST_HOPS, Reply, Url};
use crate::record::{Marks, put_mark};

/// A sample under way.
#[derive(Debug)]
pub(super) struct Exchange {
    node: NodeId,
    drawn: Drawn,
    hops: usize,
    /// The redirect under way repeats the request with its method and body.
    keeps_method: bool,
    /// The request that failed to become one, with Java's name and message.
    fault: Option<(String, String)>,
    sum: Option<Sum>,
    /// What the sample consists of, where rows tell it.
    subs: Option<Box<Node>>,
    /// Parts of the page that are on their way, in the order of their requests.
    parts: Vec<Part>,
    /// Answers that asked for credentials, which this sample has given.
    asked: Option<Asked>,
    is_traced: bool,
    /// By which servers know the sample.
    mark: Option<Box<str>>,
    /// The request under way as it was sent, if the exchange is kept whole.
    traced: Option<Arc<[u8]>>,
}

/// A part of a page: an image, a style sheet, one that it imports, or where one of them leads to.
#[derive(Debug)]
struct Part {
    drawn: Drawn,
    hops: usize,
    /// How many style sheets stand between it and the page.
    depth: usize,
    /// Where rows tell what the sample consists of: its place there, or before it is sent, that of what refers to it.
    place: Vec<usize>,
    has_place: bool,
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

/// Most answers of a server that its nonce is too old.
const MOST_ASKED: usize = 3;
/// Deepest nesting of style sheets, as in JMeter.
const MOST_DEPTH: usize = 5;
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
                self.scope.label_sample();
                let (code, message) = no_answer(&exception, &message);
                let answer = Answer { code, message, ..Answer::default() };
                self.finish_plain(node, answer, turn.now, false);
                return None;
            }
        };
        self.scope.label_sample();
        if self.is_fresh(&drawn, spec) {
            return None;
        }
        let exchange = Box::new(Exchange {
            node,
            drawn,
            hops: 0,
            keeps_method: false,
            fault: None,
            sum: None,
            subs: self.tells_subs(turn).then(Box::default),
            parts: Vec::new(),
            asked: None,
            is_traced: turn.recorder.wants_trace(&self.scope.sampler),
            mark: self.stage.marks.as_ref().map(Marks::take_next),
            traced: None,
        });
        self.send(exchange, spec, turn)
    }

    /// Reports whether rows tell what samples consist of.
    fn tells_subs(&self, turn: &Turn<'_>) -> bool {
        self.stage.tells_subs && turn.recorder.wants_rows()
    }

    /// Reports whether a request needs not be sent, because the cache holds what it asks for.
    fn is_fresh(&mut self, drawn: &Drawn, spec: &HttpSpec) -> bool {
        let Some(place) = spec.cache.filter(|_| drawn.method == "GET") else { return false };
        self.model.caches.get(place).is_some_and(|manager| manager.uses_expires)
            && self.caches.entry(place).or_default().is_fresh(
                &drawn.shown_url(),
                &drawn.headers,
                SystemTime::now(),
            )
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
            Ok(mut request) => {
                exchange.keeps_method = false;
                if let Some(mark) = &exchange.mark {
                    put_mark(&mut request.bytes, mark);
                }
                exchange.traced = exchange.is_traced.then(|| Arc::clone(&request.bytes));
                // It is sent again where the server asks for credentials, and where a redirect says so.
                if spec.logins.is_empty() && !spec.follows_silently {
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
        let wants_body = !sampler.judges.is_empty()
            || !sampler.after.is_empty()
            || spec.embedded.is_some()
            || self.model.keeps_previous;
        if wants_body { Keep::Body(MOST_BODY) } else { Keep::Head }
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
        if !exchange.parts.is_empty() {
            let parts = std::mem::take(&mut exchange.parts);
            let mut more = Vec::new();
            for (part, reply) in parts.into_iter().zip(replies) {
                more.extend(self.take_part(&mut exchange, part, *reply, spec));
            }
            return self.fetch_parts(exchange, spec, more);
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
                    if !exchange.keeps_method {
                        if exchange.drawn.method != "HEAD" {
                            exchange.drawn.method = "GET".into();
                        }
                        // What the plan's headers say goes along, also of a body that does not.
                        exchange.drawn.body.clear();
                        exchange.drawn.media_type = None;
                        exchange.drawn.has_body = false;
                    }
                    // Credentials are for their own addresses: another host is not told them.
                    exchange.drawn.authorization =
                        spec.credentials(&exchange.drawn.url, &mut self.scope);
                    exchange.asked = None;
                    // Each hop is named by the sampler too, before the whole is.
                    if spec.follows {
                        self.scope.label_sample();
                    }
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
        let page = exchange.sum.as_ref().filter(|sum| sum.is_ok && spec.embedded.is_some());
        let url = &exchange.drawn.url;
        let Some(urls) = page.map(|sum| embedded::references(&sum.answer.body, url)) else {
            self.finish(exchange);
            return None;
        };
        let place = Vec::new();
        let page =
            Part { drawn: exchange.drawn.clone(), hops: 0, depth: 0, place, has_place: true };
        let parts = self.parts(urls, &page, spec);
        self.fetch_parts(exchange, spec, parts)
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
                    Sent { method: &drawn.method, target: &drawn.target(), body: &drawn.body };
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

    /// Returns the parts that a page, or a style sheet of it, refers to, as far as they are wanted and not in the cache.
    fn parts(&mut self, urls: Vec<Url>, of: &Part, spec: &HttpSpec) -> Vec<Part> {
        let Some(wanted) = spec.embedded.as_ref().filter(|_| !urls.is_empty()) else {
            return Vec::new();
        };
        let mut pattern = |template: &Option<super::template::Template>| {
            let text = template.as_ref()?.draw(&mut self.scope).into_owned();
            self.patterns.find_whole(&text)
        };
        let (only, except) = (pattern(&wanted.only), pattern(&wanted.except));
        let mut parts = Vec::new();
        for url in urls {
            let shown = show(&url);
            let is_wanted = only.as_ref().is_none_or(|only| only.is_match(&shown))
                && !except.as_ref().is_some_and(|except| except.is_match(&shown));
            if !is_wanted {
                continue;
            }
            let drawn = self.part_at(url, &of.drawn, spec);
            if !self.is_fresh(&drawn, spec) {
                let place = of.place.clone();
                parts.push(Part { drawn, hops: 0, depth: of.depth, place, has_place: false });
            }
        }
        parts
    }

    /// Returns the request for a part, with what all requests of the sample carry.
    fn part_at(&mut self, url: Url, like: &Drawn, spec: &HttpSpec) -> Drawn {
        let mut drawn = like.clone();
        drawn.method = "GET".into();
        drawn.body.clear();
        drawn.media_type = None;
        drawn.has_body = false;
        drawn.authorization = spec.credentials(&url, &mut self.scope);
        drawn.url = url;
        drawn
    }

    /// Sends the requests for parts; finishes the sample if there are none.
    fn fetch_parts(
        &mut self,
        mut exchange: Box<Exchange>,
        spec: &HttpSpec,
        parts: Vec<Part>,
    ) -> Option<Step> {
        let mut requests = Vec::new();
        for mut part in parts {
            self.scope.label_sample();
            if let Ok(request) = self.request(&part.drawn, spec, Keep::Style(MOST_BODY)) {
                requests.push(request);
                if let Some(subs) = exchange.subs.as_mut().filter(|_| !part.has_place) {
                    part.place = subs.open(&part.place);
                    part.has_place = true;
                }
                exchange.parts.push(part);
            }
        }
        let Some(wanted) = spec.embedded.as_ref().filter(|_| !requests.is_empty()) else {
            self.finish(exchange);
            return None;
        };
        self.phase = Phase::Exchange(exchange);
        Some(Step::FetchAll { requests, parallel: wanted.parallel })
    }

    /// Adds a part of the page to the sample; returns what is to be fetched for it.
    fn take_part(
        &mut self,
        exchange: &mut Exchange,
        part: Part,
        reply: Reply,
        spec: &HttpSpec,
    ) -> Vec<Part> {
        let failure = reply.result.as_ref().err().copied();
        let response = reply.result.unwrap_or_default();
        let (status, head) = (response.status, response.head.unwrap_or_default());
        self.remember(&part.drawn, spec, status, &head);
        let location = redirect_of(&head, status, "GET", spec);
        let is_lost = location.is_some() && part.hops >= MOST_HOPS;
        let (code, message) = words_of(failure, status, &head);
        let leaf = Leaf {
            url: part.drawn.shown_url(),
            code,
            message,
            is_ok: (200..400).contains(&status) && !is_lost,
            data_type: data_type(head.header("Content-Type"), status),
            started: reply.started,
            first_byte: reply.first_byte,
            ended: reply.ended,
            connect: reply.connect,
            sent: reply.sent,
            received: reply.received,
        };
        let is_ok = leaf.is_ok;
        exchange.add_part(&leaf);
        if let Some(node) = exchange.subs.as_mut().and_then(|subs| subs.at(&part.place)) {
            if spec.follows { node.add(leaf) } else { node.extend(leaf) }
        }
        if let Some(location) = location.filter(|_| !is_lost) {
            let Ok(url) = part.drawn.url.join(&location) else { return Vec::new() };
            let drawn = self.part_at(url, &part.drawn, spec);
            return vec![Part { drawn, hops: part.hops + 1, ..part }];
        }
        if !is_ok || !head.is_style() || part.depth >= MOST_DEPTH {
            return Vec::new();
        }
        let body = decode(response.body, head.header("Content-Encoding"));
        let references = embedded::imports(&to_text(body, head.header("Content-Type")));
        let urls = references.iter().filter_map(|one| part.drawn.url.join(one).ok()).collect();
        let part = Part { depth: part.depth + 1, ..part };
        self.parts(urls, &part, spec)
    }

    /// Adds a reply to the sample; returns where a redirect leads.
    fn take_reply(
        &mut self,
        exchange: &mut Exchange,
        reply: Reply,
        spec: &HttpSpec,
    ) -> Option<String> {
        let failure = reply.result.as_ref().err().copied();
        let response = reply.result.unwrap_or_default();
        let (status, head) = (response.status, response.head.unwrap_or_default());
        let (code, message) = words_of(failure, status, &head);
        self.remember(&exchange.drawn, spec, status, &head);
        let content_type = head.header("Content-Type");
        let body = to_text(decode(response.body, head.header("Content-Encoding")), content_type);
        let data_type = data_type(content_type, status);
        let traced = exchange.traced.take();
        // Only an exchange that is kept whole tells it.
        let media_type = content_type.filter(|_| traced.is_some()).unwrap_or_default().to_owned();
        let location = redirect_of(&head, status, &exchange.drawn.method, spec);
        exchange.keeps_method =
            spec.follows_silently && matches!(status, 307 | 308) && exchange.drawn.method == "POST";
        let answer = Answer {
            url: exchange.drawn.shown_url(),
            code,
            message,
            headers: head.into_text(),
            request: self.request.take(),
            body,
            body_bytes: response.body_bytes,
            ..Answer::default()
        };
        let asked = exchange.asked;
        let started = asked.map_or(reply.started, |asked| asked.started);
        let connect = asked.map_or(Duration::ZERO, |asked| asked.connect) + reply.connect;
        if let Some(subs) = &mut exchange.subs {
            let leaf = Leaf {
                url: answer.url.clone(),
                code: answer.code.clone(),
                message: answer.message.clone(),
                is_ok: (200..400).contains(&status),
                data_type,
                started,
                first_byte: reply.first_byte,
                ended: reply.ended,
                connect,
                sent: reply.sent,
                received: reply.received,
            };
            if spec.follows { subs.add(leaf) } else { subs.extend(leaf) }
        }
        exchange.add(Sum {
            started,
            ended: reply.ended,
            first_byte: reply.first_byte,
            connect,
            sent: reply.sent,
            received: reply.received,
            body: response.body_bytes,
            status,
            is_ok: (200..400).contains(&status),
            data_type,
            answer,
            server_timing: response.server_timing,
            is_hit: response.is_hit,
            traced,
            media_type,
            subs: None,
            mark: None,
        });
        location
    }

    /// Lets the jar of cookies and the cache take what an answer's head says.
    fn remember(&mut self, drawn: &Drawn, spec: &HttpSpec, status: u16, head: &Head) {
        if let Some(place) = self.cookies(spec) {
            self.open_jar(place);
            if let Some(jar) = self.jars.get_mut(&place) {
                let take = |cookie: &str| jar.take(cookie, &drawn.url, SystemTime::now());
                head.all("Set-Cookie").for_each(take);
            }
        }
        if let Some(place) = spec.cache
            && drawn.method == "GET"
        {
            let uses_expires =
                self.model.caches.get(place).is_some_and(|manager| manager.uses_expires);
            let freshness = if uses_expires { Freshness::JMeter } else { Freshness::Unused };
            let cache = self.caches.entry(place).or_default();
            let exchanged =
                Exchanged { url: &drawn.shown_url(), request: &drawn.headers, status, head };
            cache.note(&exchanged, freshness, SystemTime::now());
        }
    }

    /// Finishes a sample whose request failed to become one.
    fn fail(&mut self, exchange: &Exchange, turn: &mut Turn<'_>) {
        let (exception, message) = exchange.fault.clone().unwrap_or_default();
        let (code, message) = no_answer(&exception, &message);
        let answer = Answer { url: exchange.drawn.shown_url(), code, message, ..Answer::default() };
        let started = exchange.sum.as_ref().map_or(turn.now, |sum| sum.started);
        self.scope.label_sample();
        self.finish_plain(exchange.node, answer, started, false);
    }

    fn finish(&mut self, mut exchange: Box<Exchange>) {
        if let Some(mut sum) = exchange.sum.take() {
            sum.subs = exchange.subs.take().filter(|subs| subs.is_several());
            sum.mark = exchange.mark.take();
            self.scope.label_sample();
            self.conclude(exchange.node, sum);
        }
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
        (sum.answer.code, sum.answer.message) = no_answer(failure.exception(), failure.words());
        if let Some(subs) = &mut self.subs {
            subs.fail(&sum.answer.code, &sum.answer.message);
        }
    }

    /// Adds a part: when its last byte came, and bytes that were sent and received for it.
    fn add_part(&mut self, part: &Leaf) {
        let Some(sum) = &mut self.sum else { return };
        sum.ended = sum.ended.max(part.ended);
        sum.sent += part.sent;
        sum.received += part.received;
        if part.is_ok {
            return;
        }
        if sum.is_ok {
            sum.is_ok = false;
            sum.answer.message = LOST_PART.to_owned();
        }
        sum.answer.message.push_str(&lost(&part.url, &part.code, &part.message));
    }
}

/// Returns the code and the message of what came.
fn words_of(failure: Option<Failure>, status: u16, head: &Head) -> (String, String) {
    match failure {
        None => (status.to_string(), head.reason().to_owned()),
        Some(failure) => no_answer(failure.exception(), failure.words()),
    }
}

/// Returns JMeter's code and message of a sample that has no answer, by the name and the words of Java's exception.
fn no_answer(exception: &str, words: &str) -> (String, String) {
    (format!("Non HTTP response code: {exception}"), format!("{NO_ANSWER}{words}"))
}

/// Returns where an answer sends on to, if it is followed.
fn redirect_of(head: &Head, status: u16, method: &str, spec: &HttpSpec) -> Option<String> {
    let is_safe = matches!(method, "GET" | "HEAD");
    // JMeter itself turns every method into a GET; Apache's client follows for few, and Java's for all.
    let is_redirect = match status {
        301 | 302 if spec.follows_silently && !spec.is_java => is_safe || method == "POST",
        301..=303 => true,
        307 | 308 if spec.follows_silently && !spec.is_java => is_safe || method == "POST",
        308 => !spec.is_own || is_safe,
        307 => is_safe,
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
