//! One HTTP sample in progress: request, credentials, redirects, embedded resources.
//!
//! Not here: the construction of a request (`http_client`), and the processing of a finished sample (`sample`).

use std::sync::Arc;
use std::time::{Duration, Instant};

use tympan_lab_plan::model::{PlanModel, PlanNodeKind, SamplerAction};
use tympan_lab_plan::{
    AbsoluteUrl, HttpSamplerSpec, PlanNodeId, ResolvedHttpRequest, SampleResponse, VariableScope,
    decode_content, decode_text, embedded_resource_urls, format_url, stylesheet_imports,
};

use super::digest_auth::{AuthChallenge, DigestedRequest};
use super::http_client::PlanHttpClient;
use super::sample_totals::{NO_RESPONSE_PREFIX, SampleTotals};
use super::sub_sample::{
    FAILED_PART_MESSAGE, SubSampleExchange, SubSampleNode, failed_part_message,
};
use super::thread_context::ThreadContext;
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
    /// The bytes of the current request.
    request_bytes: Option<Arc<[u8]>>,
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

/// The next step of a sample.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "each sample is finished once; a box would allocate each time"
)]
pub(super) enum HttpSampleStep {
    /// The sample was answered by the cache, and is not recorded.
    Skipped,
    /// Requests are to be sent; the exchange goes on with their responses.
    Requested(Box<HttpSampleExchange>, UserStep),
    /// The sample is finished.
    Finished(PlanNodeId, SampleTotals),
}

/// Sends the HTTP samples of a thread.
#[derive(Debug)]
pub(super) struct HttpSampleSender<'a> {
    pub(super) client: &'a mut PlanHttpClient,
    pub(super) thread: &'a mut ThreadContext,
}

impl HttpSampleSender<'_> {
    /// Begins a sample.
    pub(super) fn begin_sample(
        &mut self,
        node: PlanNodeId,
        spec: &HttpSamplerSpec,
        turn: &mut UserTurn<'_>,
    ) -> HttpSampleStep {
        let request = match spec.resolve(&mut self.thread.scope) {
            Ok(request) => request,
            Err((exception, message)) => {
                self.thread.scope.label_sample();
                let (code, message) = no_response_message(&exception, &message);
                let response = SampleResponse { code, message, ..SampleResponse::default() };
                let totals = SampleTotals::without_reply(response, turn.now, false);
                return HttpSampleStep::Finished(node, totals);
            }
        };
        self.thread.scope.label_sample();
        if self.client.is_cached_fresh(&request, spec, &self.thread.model) {
            return HttpSampleStep::Skipped;
        }
        let writes_sub_samples =
            self.thread.run_state.writes_sub_samples && turn.recorder.wants_rows();
        let exchange = Box::new(HttpSampleExchange {
            node,
            request,
            redirect_count: 0,
            keeps_method: false,
            request_error: None,
            totals: None,
            sub_samples: writes_sub_samples.then(Box::default),
            pending_resources: Vec::new(),
            auth_attempts: None,
            is_traced: turn.recorder.wants_trace(&self.thread.scope.sample_label),
            sample_mark: self
                .thread
                .run_state
                .sample_marks
                .as_ref()
                .map(SampleMarkGenerator::next_mark),
            request_bytes: None,
            traced_request: None,
        });
        self.send_request(exchange, spec, turn)
    }

    fn send_request(
        &mut self,
        mut exchange: Box<HttpSampleExchange>,
        spec: &HttpSamplerSpec,
        turn: &mut UserTurn<'_>,
    ) -> HttpSampleStep {
        let keep = if exchange.is_traced {
            ResponseRetention::Body(MAX_RETAINED_BODY_BYTES)
        } else {
            required_response_parts(&self.thread.model, exchange.node, spec)
        };
        match self.client.build_request(&exchange.request, spec, keep, self.thread) {
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
                exchange.request_bytes = Some(Arc::clone(&request.encoded_bytes));
                HttpSampleStep::Requested(exchange, UserStep::Fetch(request))
            }
            Err(fault) => {
                exchange.request_error = Some(fault);
                self.fail_sample(&exchange, turn.now)
            }
        }
    }

    /// Processes the responses to the requests of an exchange.
    pub(super) fn resume_sample(
        &mut self,
        mut exchange: Box<HttpSampleExchange>,
        turn: &mut UserTurn<'_>,
    ) -> HttpSampleStep {
        let model = Arc::clone(&self.thread.model);
        let Some(PlanNodeKind::Sampler(sampler)) =
            model.nodes.get(exchange.node).map(|node| &node.kind)
        else {
            return HttpSampleStep::Skipped;
        };
        let SamplerAction::Http(spec) = &sampler.action else {
            return HttpSampleStep::Skipped;
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
        let Some(reply) = replies.into_iter().next() else { return HttpSampleStep::Skipped };
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
                    exchange.request.authorization = spec
                        .preemptive_authorization(&exchange.request.url, &mut self.thread.scope);
                    exchange.auth_attempts = None;
                    // Each hop has the sampler's name too, before the whole sample gets it.
                    if spec.follows_redirects {
                        self.thread.scope.label_sample();
                    }
                    return self.send_request(exchange, spec, turn);
                }
                Err(error) => {
                    exchange.request_error =
                        Some(("java.net.MalformedURLException".to_owned(), error.to_string()));
                    return self.fail_sample(&exchange, turn.now);
                }
            }
        }
        let page =
            exchange.totals.as_ref().filter(|sum| sum.is_ok && spec.embedded_resources.is_some());
        let url = &exchange.request.url;
        let Some(urls) = page.map(|sum| embedded_resource_urls(&sum.response.body, url)) else {
            return self.finish_sample(exchange);
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
        let login = spec.find_credentials(&request.url, &mut self.thread.scope)?;
        let realm = login.realm.evaluate(&mut self.thread.scope).into_owned();
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
                let user = login.user.evaluate(&mut self.thread.scope).into_owned();
                let password = login.password.evaluate(&mut self.thread.scope).into_owned();
                let nonce = format!("{:016x}", self.thread.scope.next_random());
                let sent = DigestedRequest {
                    method: &request.method,
                    target: &request.request_target(),
                    body: &request.body,
                };
                digest.authorization((&user, &password), sent, &nonce).into()
            }
            None if takes_basic => login.basic_authorization(&mut self.thread.scope),
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
            let text = template.as_ref()?.evaluate(&mut self.thread.scope).into_owned();
            self.client.resource_pattern(&text)
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
            let request = resource_request(url, &of.request, spec, &mut self.thread.scope);
            if !self.client.is_cached_fresh(&request, spec, &self.thread.model) {
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

    /// Sends the requests for resources; finishes the sample if there are none.
    fn fetch_resources(
        &mut self,
        mut exchange: Box<HttpSampleExchange>,
        spec: &HttpSamplerSpec,
        parts: Vec<EmbeddedResourceFetch>,
    ) -> HttpSampleStep {
        let mut requests = Vec::new();
        for mut part in parts {
            self.thread.scope.label_sample();
            if let Ok(request) = self.client.build_request(
                &part.request,
                spec,
                ResponseRetention::StyleSheet(MAX_RETAINED_BODY_BYTES),
                self.thread,
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
            return self.finish_sample(exchange);
        };
        let step = UserStep::FetchAll { requests, max_parallel: resource_options.concurrency };
        HttpSampleStep::Requested(exchange, step)
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
        self.client.store_response_state(&part.request, spec, status, &head, self.thread);
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
            let request = resource_request(url, &part.request, spec, &mut self.thread.scope);
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
        self.client.store_response_state(&exchange.request, spec, status, &head, self.thread);
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
            request: exchange.request_bytes.take(),
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

    /// Finishes a sample whose request could not be built.
    fn fail_sample(&mut self, exchange: &HttpSampleExchange, now: Instant) -> HttpSampleStep {
        let (exception, message) = exchange.request_error.clone().unwrap_or_default();
        let (code, message) = no_response_message(&exception, &message);
        let response = SampleResponse {
            url: exchange.request.display_url(),
            code,
            message,
            ..SampleResponse::default()
        };
        let started = exchange.totals.as_ref().map_or(now, |sum| sum.started);
        self.thread.scope.label_sample();
        let totals = SampleTotals::without_reply(response, started, false);
        HttpSampleStep::Finished(exchange.node, totals)
    }

    fn finish_sample(&mut self, mut exchange: Box<HttpSampleExchange>) -> HttpSampleStep {
        let Some(mut sum) = exchange.totals.take() else { return HttpSampleStep::Skipped };
        sum.sub_samples = exchange.sub_samples.take().filter(|subs| subs.has_sub_samples());
        sum.sample_mark = exchange.sample_mark.take();
        self.thread.scope.label_sample();
        HttpSampleStep::Finished(exchange.node, sum)
    }
}

/// Returns the parts of a response to retain.
fn required_response_parts(
    model: &PlanModel,
    node: PlanNodeId,
    spec: &HttpSamplerSpec,
) -> ResponseRetention {
    let Some(PlanNodeKind::Sampler(sampler)) = model.nodes.get(node).map(|node| &node.kind) else {
        return ResponseRetention::Head;
    };
    let wants_body = !sampler.assertions.is_empty()
        || !sampler.post_processors.is_empty()
        || spec.embedded_resources.is_some()
        || model.retains_previous_sample;
    if wants_body {
        ResponseRetention::Body(MAX_RETAINED_BODY_BYTES)
    } else {
        ResponseRetention::Head
    }
}

/// Returns the request for a resource, with the data common to all requests of the sample.
fn resource_request(
    url: AbsoluteUrl,
    like: &ResolvedHttpRequest,
    spec: &HttpSamplerSpec,
    scope: &mut VariableScope,
) -> ResolvedHttpRequest {
    let mut request = like.clone();
    request.method = "GET".into();
    request.body.clear();
    request.media_type = None;
    request.announces_body = false;
    request.authorization = spec.preemptive_authorization(&url, scope);
    request.url = url;
    request
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
