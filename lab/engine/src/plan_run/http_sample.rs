//! One HTTP sample in progress: request, credentials, redirects, embedded resources.
//!
//! Not here: the construction of a request (`request_builder`), and the processing of a finished sample (`sample`).

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tympan_lab_plan::model::PlanNodeKind;
use tympan_lab_plan::{
    AbsoluteUrl, HttpSamplerSpec, PlanNodeId, ResolvedHttpRequest, SampleResponse, decode_content,
    decode_text, embedded_resource_urls, format_url, stylesheet_imports,
};

use super::client_cache::{CacheFreshnessMode, CacheableExchange};
use super::digest_auth::{AuthChallenge, DigestedRequest};
use super::plan_thread::{PlanThread, ThreadPhase};
use super::sample::{NO_RESPONSE_PREFIX, SampleTotals};
use super::sub_sample::{
    FAILED_PART_MESSAGE, SubSampleExchange, SubSampleNode, failed_part_message,
};
use crate::load::{UserStep, UserTurn};
use crate::measurement::{SampleMarkGenerator, insert_mark_header};
use crate::net::{
    ExchangeFailure, ExchangeOutcome, MAX_REDIRECTS, ResponseRetention, TargetResponseHead,
};

/// A sample in progress.
#[derive(Debug)]
pub(super) struct HttpSampleExchange {
    node: PlanNodeId,
    request: ResolvedHttpRequest,
    redirect_count: usize,
    /// The current redirect repeats the request with its method and body.
    keeps_method: bool,
    /// The Java exception name and message, if the request could not be built.
    request_error: Option<(String, String)>,
    totals: Option<SampleTotals>,
    /// The sub-samples, if rows include them.
    sub_samples: Option<Box<SubSampleNode>>,
    /// Embedded resources in progress, in request order.
    pending_resources: Vec<EmbeddedResourceFetch>,
    /// Responses that requested the credentials that this sample has sent.
    auth_attempts: Option<AuthAttempts>,
    is_traced: bool,
    /// The mark by which servers identify the sample.
    sample_mark: Option<Box<str>>,
    /// The current request as sent, if the exchange is traced.
    traced_request: Option<Arc<[u8]>>,
}

/// An embedded resource: an image, a style sheet, an import of one, or the target of a redirect from one of them.
#[derive(Debug)]
struct EmbeddedResourceFetch {
    request: ResolvedHttpRequest,
    redirect_count: usize,
    /// Number of style sheets between it and the page.
    stylesheet_depth: usize,
    /// If rows include sub-samples: the path of this one, or before it is sent, the path of the one that refers to it.
    sub_sample_path: Vec<usize>,
    has_own_sub_sample: bool,
}

/// The exchanges before the final response, in which the server requested credentials.
#[derive(Debug, Clone, Copy)]
struct AuthAttempts {
    /// Send time of the first request, and its connect time.
    first_started: Instant,
    connect_time: Duration,
    /// Number of attempts, and whether they were for a digest.
    attempts: usize,
    is_digest: bool,
}

/// Maximum number of responses that report an expired nonce.
const MAX_STALE_NONCE_RETRIES: usize = 3;
/// Maximum nesting depth of style sheets, as in JMeter.
const MAX_STYLESHEET_DEPTH: usize = 5;
/// Maximum size in bytes of a body that is retained for extractors and assertions.
const MAX_RETAINED_BODY_BYTES: usize = 10 << 20;

impl PlanThread {
    /// Begins an HTTP sample.
    pub(super) fn begin_http_sample(
        &mut self,
        node: PlanNodeId,
        spec: &HttpSamplerSpec,
        turn: &mut UserTurn<'_>,
    ) -> Option<UserStep> {
        let request = match spec.resolve(&mut self.scope) {
            Ok(request) => request,
            Err((exception, message)) => {
                self.scope.label_sample();
                let (code, message) = no_response_message(&exception, &message);
                let response = SampleResponse { code, message, ..SampleResponse::default() };
                self.finish_without_reply(node, response, turn.now, false);
                return None;
            }
        };
        self.scope.label_sample();
        if self.is_cached_fresh(&request, spec) {
            return None;
        }
        let exchange = Box::new(HttpSampleExchange {
            node,
            request,
            redirect_count: 0,
            keeps_method: false,
            request_error: None,
            totals: None,
            sub_samples: self.writes_sub_sample_rows(turn).then(Box::default),
            pending_resources: Vec::new(),
            auth_attempts: None,
            is_traced: turn.recorder.wants_trace(&self.scope.sample_label),
            sample_mark: self.run_state.sample_marks.as_ref().map(SampleMarkGenerator::next_mark),
            traced_request: None,
        });
        self.send_request(exchange, spec, turn)
    }

    /// Returns true if rows include sub-samples.
    fn writes_sub_sample_rows(&self, turn: &UserTurn<'_>) -> bool {
        self.run_state.writes_sub_samples && turn.recorder.wants_rows()
    }

    /// Returns true if the cache holds a fresh response, so that no request is needed.
    fn is_cached_fresh(&mut self, request: &ResolvedHttpRequest, spec: &HttpSamplerSpec) -> bool {
        let Some(cache_index) = spec.cache_manager.filter(|_| request.method == "GET") else {
            return false;
        };
        self.model.cache_managers.get(cache_index).is_some_and(|manager| manager.uses_expires)
            && self.caches.entry(cache_index).or_default().is_fresh(
                &request.display_url(),
                &request.headers,
                SystemTime::now(),
            )
    }

    fn send_request(
        &mut self,
        mut exchange: Box<HttpSampleExchange>,
        spec: &HttpSamplerSpec,
        turn: &mut UserTurn<'_>,
    ) -> Option<UserStep> {
        let keep = if exchange.is_traced {
            ResponseRetention::Body(MAX_RETAINED_BODY_BYTES)
        } else {
            self.required_response_parts(exchange.node, spec)
        };
        match self.build_request(&exchange.request, spec, keep) {
            Ok(mut request) => {
                exchange.keeps_method = false;
                if let Some(mark) = &exchange.sample_mark {
                    insert_mark_header(&mut request.encoded_bytes, mark);
                }
                exchange.traced_request =
                    exchange.is_traced.then(|| Arc::clone(&request.encoded_bytes));
                // The request is sent again after an authentication challenge, and after a redirect.
                if spec.credentials.is_empty() && !spec.follows_redirects_silently {
                    exchange.request.body.clear();
                }
                self.request_bytes = Some(Arc::clone(&request.encoded_bytes));
                self.phase = ThreadPhase::Exchange(exchange);
                Some(UserStep::Fetch(request))
            }
            Err(fault) => {
                exchange.request_error = Some(fault);
                self.fail_http_sample(&exchange, turn);
                None
            }
        }
    }

    /// Returns the parts of a response to retain.
    fn required_response_parts(
        &self,
        node: PlanNodeId,
        spec: &HttpSamplerSpec,
    ) -> ResponseRetention {
        let Some(PlanNodeKind::Sampler(sampler)) =
            self.model.nodes.get(node).map(|node| &node.kind)
        else {
            return ResponseRetention::Head;
        };
        let wants_body = !sampler.assertions.is_empty()
            || !sampler.post_processors.is_empty()
            || spec.embedded_resources.is_some()
            || self.model.retains_previous_sample;
        if wants_body {
            ResponseRetention::Body(MAX_RETAINED_BODY_BYTES)
        } else {
            ResponseRetention::Head
        }
    }

    /// Processes the responses to the requests of an exchange.
    pub(super) fn resume_exchange(
        &mut self,
        mut exchange: Box<HttpSampleExchange>,
        turn: &mut UserTurn<'_>,
    ) -> Option<UserStep> {
        let model = Arc::clone(&self.model);
        let Some(PlanNodeKind::Sampler(sampler)) =
            model.nodes.get(exchange.node).map(|node| &node.kind)
        else {
            return None;
        };
        let tympan_lab_plan::model::SamplerAction::Http(spec) = &sampler.action else {
            return None;
        };
        let replies = std::mem::take(&mut turn.outcomes);
        if !exchange.pending_resources.is_empty() {
            let parts = std::mem::take(&mut exchange.pending_resources);
            let mut more = Vec::new();
            for (part, reply) in parts.into_iter().zip(replies) {
                more.extend(self.accept_resource(&mut exchange, part, *reply, spec));
            }
            return self.fetch_resources(exchange, spec, more);
        }
        let reply = replies.into_iter().next()?;
        if let Some(authorization) = self.authorize(&mut exchange, &reply, spec) {
            exchange.request.authorization = Some(authorization);
            return self.send_request(exchange, spec, turn);
        }
        let location = self.accept_reply(&mut exchange, *reply, spec);
        if location.is_some() && exchange.redirect_count >= MAX_REDIRECTS {
            exchange.mark_failed(ExchangeFailure::TooManyRedirects);
        } else if let Some(location) = location {
            exchange.redirect_count += 1;
            match exchange.request.url.join(&location) {
                Ok(url) => {
                    exchange.request.url = url;
                    if !exchange.keeps_method {
                        if exchange.request.method != "HEAD" {
                            exchange.request.method = "GET".into();
                        }
                        // The plan's headers are sent again, even those that describe a body that is dropped.
                        exchange.request.body.clear();
                        exchange.request.media_type = None;
                        exchange.request.announces_body = false;
                    }
                    // Credentials apply to their own URLs: they are not sent to other hosts.
                    exchange.request.authorization =
                        spec.preemptive_authorization(&exchange.request.url, &mut self.scope);
                    exchange.auth_attempts = None;
                    // Each hop has the sampler's name too, before the whole sample gets it.
                    if spec.follows_redirects {
                        self.scope.label_sample();
                    }
                    return self.send_request(exchange, spec, turn);
                }
                Err(error) => {
                    exchange.request_error =
                        Some(("java.net.MalformedURLException".to_owned(), error.to_string()));
                    self.fail_http_sample(&exchange, turn);
                    return None;
                }
            }
        }
        let page =
            exchange.totals.as_ref().filter(|sum| sum.is_ok && spec.embedded_resources.is_some());
        let url = &exchange.request.url;
        let Some(urls) = page.map(|sum| embedded_resource_urls(&sum.response.body, url)) else {
            self.finish_http_sample(exchange);
            return None;
        };
        let sub_sample_path = Vec::new();
        let page = EmbeddedResourceFetch {
            request: exchange.request.clone(),
            redirect_count: 0,
            stylesheet_depth: 0,
            sub_sample_path,
            has_own_sub_sample: true,
        };
        let parts = self.wanted_resources(urls, &page, spec);
        self.fetch_resources(exchange, spec, parts)
    }

    /// Returns the credentials that a response requests, if the plan has them and they were not already rejected.
    fn authorize(
        &mut self,
        exchange: &mut HttpSampleExchange,
        reply: &ExchangeOutcome,
        spec: &HttpSamplerSpec,
    ) -> Option<Arc<str>> {
        // Java's own client sends its credentials immediately or never.
        if spec.credentials.is_empty() || spec.is_java_client {
            return None;
        }
        let response = reply.result.as_ref().ok().filter(|response| response.status == 401)?;
        let request = &exchange.request;
        let login = spec.find_credentials(&request.url, &mut self.scope)?;
        let realm = login.realm.evaluate(&mut self.scope).into_owned();
        let mut offered =
            AuthChallenge::parse_all(response.head.as_ref()?.header_values("WWW-Authenticate"));
        offered.retain(|challenge| realm.is_empty() || challenge.realm() == realm);
        let digest = offered.iter().find_map(|challenge| match challenge {
            AuthChallenge::Digest(digest) => Some(digest),
            AuthChallenge::Basic { .. } => None,
        });
        let takes_basic =
            offered.iter().any(|challenge| matches!(challenge, AuthChallenge::Basic { .. }));
        let attempts = exchange.auth_attempts;
        let gave_basic =
            request.authorization.is_some() && !attempts.is_some_and(|attempts| attempts.is_digest);
        let gave_digest = attempts.is_some_and(|attempts| attempts.is_digest);
        let times = attempts.map_or(0, |attempts| attempts.attempts);
        // Rejected credentials are not sent again, unless only the server's nonce had expired.
        let is_refused = (gave_basic && takes_basic)
            || (gave_digest && !digest.is_some_and(|digest| digest.is_stale))
            || times >= MAX_STALE_NONCE_RETRIES;
        if is_refused {
            return None;
        }
        let authorization: Arc<str> = match digest {
            Some(digest) => {
                let user = login.user.evaluate(&mut self.scope).into_owned();
                let password = login.password.evaluate(&mut self.scope).into_owned();
                let nonce = format!("{:016x}", self.scope.next_random());
                let sent = DigestedRequest {
                    method: &request.method,
                    target: &request.request_target(),
                    body: &request.body,
                };
                digest.authorization((&user, &password), sent, &nonce).into()
            }
            None if takes_basic => login.basic_authorization(&mut self.scope),
            None => return None,
        };
        exchange.auth_attempts = Some(AuthAttempts {
            first_started: attempts.map_or(reply.started_at, |attempts| attempts.first_started),
            connect_time: attempts.map_or(Duration::ZERO, |attempts| attempts.connect_time)
                + reply.connect_time,
            attempts: times + 1,
            is_digest: digest.is_some(),
        });
        Some(authorization)
    }

    /// Returns the resources that a page, or one of its style sheets, refers to, if they match the filter and are not
    /// in the cache.
    fn wanted_resources(
        &mut self,
        urls: Vec<AbsoluteUrl>,
        of: &EmbeddedResourceFetch,
        spec: &HttpSamplerSpec,
    ) -> Vec<EmbeddedResourceFetch> {
        let Some(resource_options) = spec.embedded_resources.as_ref().filter(|_| !urls.is_empty())
        else {
            return Vec::new();
        };
        let mut pattern = |template: &Option<tympan_lab_plan::TextTemplate>| {
            let text = template.as_ref()?.evaluate(&mut self.scope).into_owned();
            self.patterns.full_match_pattern(&text)
        };
        let (only, except) = (
            pattern(&resource_options.include_pattern),
            pattern(&resource_options.exclude_pattern),
        );
        let mut parts = Vec::new();
        for url in urls {
            let url_text = format_url(&url);
            let is_wanted = only.as_ref().is_none_or(|only| only.is_match(&url_text))
                && !except.as_ref().is_some_and(|except| except.is_match(&url_text));
            if !is_wanted {
                continue;
            }
            let request = self.resource_request(url, &of.request, spec);
            if !self.is_cached_fresh(&request, spec) {
                let sub_sample_path = of.sub_sample_path.clone();
                parts.push(EmbeddedResourceFetch {
                    request,
                    redirect_count: 0,
                    stylesheet_depth: of.stylesheet_depth,
                    sub_sample_path,
                    has_own_sub_sample: false,
                });
            }
        }
        parts
    }

    /// Returns the request for a resource, with the data common to all requests of the sample.
    fn resource_request(
        &mut self,
        url: AbsoluteUrl,
        like: &ResolvedHttpRequest,
        spec: &HttpSamplerSpec,
    ) -> ResolvedHttpRequest {
        let mut request = like.clone();
        request.method = "GET".into();
        request.body.clear();
        request.media_type = None;
        request.announces_body = false;
        request.authorization = spec.preemptive_authorization(&url, &mut self.scope);
        request.url = url;
        request
    }

    /// Sends the requests for resources; finishes the sample if there are none.
    fn fetch_resources(
        &mut self,
        mut exchange: Box<HttpSampleExchange>,
        spec: &HttpSamplerSpec,
        parts: Vec<EmbeddedResourceFetch>,
    ) -> Option<UserStep> {
        let mut requests = Vec::new();
        for mut part in parts {
            self.scope.label_sample();
            if let Ok(request) = self.build_request(
                &part.request,
                spec,
                ResponseRetention::StyleSheet(MAX_RETAINED_BODY_BYTES),
            ) {
                requests.push(request);
                if let Some(subs) =
                    exchange.sub_samples.as_mut().filter(|_| !part.has_own_sub_sample)
                {
                    part.sub_sample_path = subs.open_part(&part.sub_sample_path);
                    part.has_own_sub_sample = true;
                }
                exchange.pending_resources.push(part);
            }
        }
        let Some(resource_options) =
            spec.embedded_resources.as_ref().filter(|_| !requests.is_empty())
        else {
            self.finish_http_sample(exchange);
            return None;
        };
        self.phase = ThreadPhase::Exchange(exchange);
        Some(UserStep::FetchAll { requests, max_parallel: resource_options.concurrency })
    }

    /// Adds a resource to the sample; returns the further resources to fetch for it.
    fn accept_resource(
        &mut self,
        exchange: &mut HttpSampleExchange,
        part: EmbeddedResourceFetch,
        reply: ExchangeOutcome,
        spec: &HttpSamplerSpec,
    ) -> Vec<EmbeddedResourceFetch> {
        let failure = reply.result.as_ref().err().copied();
        let response = reply.result.unwrap_or_default();
        let (status, head) = (response.status, response.head.unwrap_or_default());
        self.store_response_state(&part.request, spec, status, &head);
        let location = redirect_target(&head, status, "GET", spec);
        let is_lost = location.is_some() && part.redirect_count >= MAX_REDIRECTS;
        let (code, message) = code_and_message(failure, status, &head);
        let leaf = SubSampleExchange {
            url: part.request.display_url(),
            code,
            message,
            is_ok: (200..400).contains(&status) && !is_lost,
            data_type: data_type(head.header("Content-Type"), status),
            start: reply.started_at,
            first_byte: reply.first_byte_at,
            end: reply.ended_at,
            connect_time: reply.connect_time,
            sent_bytes: reply.sent_bytes,
            received_bytes: reply.received_bytes,
        };
        let is_ok = leaf.is_ok;
        exchange.add_resource(&leaf);
        if let Some(node) =
            exchange.sub_samples.as_mut().and_then(|subs| subs.part_at(&part.sub_sample_path))
        {
            if spec.follows_redirects {
                node.add_exchange(leaf)
            } else {
                node.extend_last_exchange(leaf)
            }
        }
        if let Some(location) = location.filter(|_| !is_lost) {
            let Ok(url) = part.request.url.join(&location) else { return Vec::new() };
            let request = self.resource_request(url, &part.request, spec);
            return vec![EmbeddedResourceFetch {
                request,
                redirect_count: part.redirect_count + 1,
                ..part
            }];
        }
        if !is_ok || !head.is_style_sheet() || part.stylesheet_depth >= MAX_STYLESHEET_DEPTH {
            return Vec::new();
        }
        let body = decode_content(response.body, head.header("Content-Encoding"));
        let references = stylesheet_imports(&decode_text(body, head.header("Content-Type")));
        let urls = references
            .iter()
            .filter_map(|reference| part.request.url.join(reference).ok())
            .collect();
        let part = EmbeddedResourceFetch { stylesheet_depth: part.stylesheet_depth + 1, ..part };
        self.wanted_resources(urls, &part, spec)
    }

    /// Adds a response to the sample; returns the target of a redirect.
    fn accept_reply(
        &mut self,
        exchange: &mut HttpSampleExchange,
        reply: ExchangeOutcome,
        spec: &HttpSamplerSpec,
    ) -> Option<String> {
        let failure = reply.result.as_ref().err().copied();
        let response = reply.result.unwrap_or_default();
        let (status, head) = (response.status, response.head.unwrap_or_default());
        let (code, message) = code_and_message(failure, status, &head);
        self.store_response_state(&exchange.request, spec, status, &head);
        let content_type = head.header("Content-Type");
        let body = decode_text(
            decode_content(response.body, head.header("Content-Encoding")),
            content_type,
        );
        let data_type = data_type(content_type, status);
        let traced = exchange.traced_request.take();
        // Only a traced exchange needs it.
        let media_type = content_type.filter(|_| traced.is_some()).unwrap_or_default().to_owned();
        let location = redirect_target(&head, status, &exchange.request.method, spec);
        exchange.keeps_method = spec.follows_redirects_silently
            && matches!(status, 307 | 308)
            && exchange.request.method == "POST";
        let sample_response = SampleResponse {
            url: exchange.request.display_url(),
            code,
            message,
            headers: head.into_text(),
            request: self.request_bytes.take(),
            body,
            body_bytes: response.body_bytes,
            ..SampleResponse::default()
        };
        let attempts = exchange.auth_attempts;
        let started = attempts.map_or(reply.started_at, |attempts| attempts.first_started);
        let connect =
            attempts.map_or(Duration::ZERO, |attempts| attempts.connect_time) + reply.connect_time;
        if let Some(subs) = &mut exchange.sub_samples {
            let leaf = SubSampleExchange {
                url: sample_response.url.clone(),
                code: sample_response.code.clone(),
                message: sample_response.message.clone(),
                is_ok: (200..400).contains(&status),
                data_type,
                start: started,
                first_byte: reply.first_byte_at,
                end: reply.ended_at,
                connect_time: connect,
                sent_bytes: reply.sent_bytes,
                received_bytes: reply.received_bytes,
            };
            if spec.follows_redirects {
                subs.add_exchange(leaf)
            } else {
                subs.extend_last_exchange(leaf)
            }
        }
        exchange.add_hop(SampleTotals {
            started,
            ended: reply.ended_at,
            first_byte: reply.first_byte_at,
            connect_time: connect,
            sent_bytes: reply.sent_bytes,
            received_bytes: reply.received_bytes,
            body_bytes: response.body_bytes,
            status,
            is_ok: (200..400).contains(&status),
            data_type,
            response: sample_response,
            server_timing: response.server_timing,
            is_cache_hit: response.is_cache_hit,
            traced_request: traced,
            media_type,
            sub_samples: None,
            sample_mark: None,
        });
        location
    }

    /// Stores the cookies and the cache data of a response head.
    fn store_response_state(
        &mut self,
        request: &ResolvedHttpRequest,
        spec: &HttpSamplerSpec,
        status: u16,
        head: &TargetResponseHead,
    ) {
        if let Some(jar_index) = self.active_cookie_manager(spec) {
            self.ensure_cookie_jar(jar_index);
            if let Some(jar) = self.cookie_jars.get_mut(&jar_index) {
                let take =
                    |cookie: &str| jar.set_from_response(cookie, &request.url, SystemTime::now());
                head.header_values("Set-Cookie").for_each(take);
            }
        }
        if let Some(cache_index) = spec.cache_manager
            && request.method == "GET"
        {
            let uses_expires = self
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

    /// Finishes a sample whose request could not be built.
    fn fail_http_sample(&mut self, exchange: &HttpSampleExchange, turn: &mut UserTurn<'_>) {
        let (exception, message) = exchange.request_error.clone().unwrap_or_default();
        let (code, message) = no_response_message(&exception, &message);
        let response = SampleResponse {
            url: exchange.request.display_url(),
            code,
            message,
            ..SampleResponse::default()
        };
        let started = exchange.totals.as_ref().map_or(turn.now, |sum| sum.started);
        self.scope.label_sample();
        self.finish_without_reply(exchange.node, response, started, false);
    }

    fn finish_http_sample(&mut self, mut exchange: Box<HttpSampleExchange>) {
        if let Some(mut sum) = exchange.totals.take() {
            sum.sub_samples = exchange.sub_samples.take().filter(|subs| subs.has_sub_samples());
            sum.sample_mark = exchange.sample_mark.take();
            self.scope.label_sample();
            self.finish_sample(exchange.node, sum);
        }
    }
}

impl HttpSampleExchange {
    /// Adds a hop: the whole sample lasts from the first start to the last end and has the response of the last hop.
    fn add_hop(&mut self, hop: SampleTotals) {
        self.totals = Some(match self.totals.take() {
            None => hop,
            Some(before) => SampleTotals {
                started: before.started,
                first_byte: before.first_byte,
                connect_time: before.connect_time,
                sent_bytes: before.sent_bytes + hop.sent_bytes,
                received_bytes: before.received_bytes + hop.received_bytes,
                body_bytes: before.body_bytes + hop.body_bytes,
                ..hop
            },
        });
    }

    /// Marks the sample as failed.
    fn mark_failed(&mut self, failure: ExchangeFailure) {
        let Some(sum) = &mut self.totals else { return };
        (sum.is_ok, sum.status) = (false, 0);
        (sum.response.code, sum.response.message) =
            no_response_message(failure.jmeter_exception(), failure.description());
        if let Some(subs) = &mut self.sub_samples {
            subs.add_failure(&sum.response.code, &sum.response.message);
        }
    }

    /// Adds a resource: the time of its last byte, and its sent and received bytes.
    fn add_resource(&mut self, part: &SubSampleExchange) {
        let Some(sum) = &mut self.totals else { return };
        sum.ended = sum.ended.max(part.end);
        sum.sent_bytes += part.sent_bytes;
        sum.received_bytes += part.received_bytes;
        if part.is_ok {
            return;
        }
        if sum.is_ok {
            sum.is_ok = false;
            sum.response.message = FAILED_PART_MESSAGE.to_owned();
        }
        sum.response.message.push_str(&failed_part_message(&part.url, &part.code, &part.message));
    }
}

/// Returns the code and the message of the response.
fn code_and_message(
    failure: Option<ExchangeFailure>,
    status: u16,
    head: &TargetResponseHead,
) -> (String, String) {
    match failure {
        None => (status.to_string(), head.reason().to_owned()),
        Some(failure) => no_response_message(failure.jmeter_exception(), failure.description()),
    }
}

/// Returns JMeter's code and message of a sample without a response, from the name and message of the Java exception.
fn no_response_message(exception: &str, words: &str) -> (String, String) {
    (format!("Non HTTP response code: {exception}"), format!("{NO_RESPONSE_PREFIX}{words}"))
}

/// Returns the redirect target of a response, if redirects are followed.
fn redirect_target(
    head: &TargetResponseHead,
    status: u16,
    method: &str,
    spec: &HttpSamplerSpec,
) -> Option<String> {
    let is_safe = matches!(method, "GET" | "HEAD");
    // JMeter itself turns every method into a GET; Apache's client follows redirects for few methods, and Java's for
    // all.
    let is_redirect = match status {
        301 | 302 if spec.follows_redirects_silently && !spec.is_java_client => {
            is_safe || method == "POST"
        }
        301..=303 => true,
        307 | 308 if spec.follows_redirects_silently && !spec.is_java_client => {
            is_safe || method == "POST"
        }
        308 => !spec.is_toml_plan || is_safe,
        307 => is_safe,
        _ => false,
    };
    let follows = spec.follows_redirects || spec.follows_redirects_silently;
    head.header("Location").filter(|_| follows && is_redirect).map(str::to_owned)
}

/// Returns JMeter's data type of a response.
fn data_type(content_type: Option<&str>, status: u16) -> &'static str {
    match content_type {
        None if status == 0 => "text",
        None => "",
        Some(kind) if is_binary_type(kind) => "bin",
        Some(_) => "text",
    }
}

fn is_binary_type(content_type: &str) -> bool {
    ["image/", "audio/", "video/"].iter().any(|kind| content_type.starts_with(kind))
}
