//! The totals of one sample: times, bytes, and the response that is evaluated.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tympan_lab_plan::SampleResponse;

use super::sub_sample::SubSampleNode;
use crate::measurement::{ExchangeTrace, redact_head, trace_request_text, truncate_text};

/// The prefix of the message of a sample without a response.
pub(super) const NO_RESPONSE_PREFIX: &str = "Non HTTP response message: ";

/// The totals of a sample with its redirects and resources.
#[derive(Debug)]
pub(super) struct SampleTotals {
    pub(super) started: Instant,
    pub(super) ended: Instant,
    pub(super) first_byte: Instant,
    pub(super) connect_time: Duration,
    pub(super) sent_bytes: u64,
    pub(super) received_bytes: u64,
    pub(super) body_bytes: u64,
    pub(super) status: u16,
    pub(super) is_ok: bool,
    pub(super) data_type: &'static str,
    pub(super) response: SampleResponse,
    /// The server's own timing.
    pub(super) server_timing: Option<Box<str>>,
    /// The cache state that a header reports: true for a hit, false for none.
    pub(super) is_cache_hit: Option<bool>,
    /// The request as sent, if the exchange is traced.
    pub(super) traced_request: Option<Arc<[u8]>>,
    pub(super) media_type: String,
    /// Its sub-samples, if there is more than one exchange and rows include them.
    pub(super) sub_samples: Option<Box<SubSampleNode>>,
    /// The mark by which servers identify the sample.
    pub(super) sample_mark: Option<Box<str>>,
}

impl SampleTotals {
    /// Returns the totals of a sample that received no response, and ends now.
    pub(super) fn without_reply(response: SampleResponse, started: Instant, is_ok: bool) -> Self {
        Self {
            started,
            ended: Instant::now(),
            first_byte: started,
            connect_time: Duration::ZERO,
            sent_bytes: 0,
            received_bytes: response.body.len() as u64,
            body_bytes: response.body.len() as u64,
            status: response.code.parse().unwrap_or(0),
            is_ok,
            data_type: "text",
            response,
            server_timing: None,
            is_cache_hit: None,
            traced_request: None,
            media_type: String::new(),
            sub_samples: None,
            sample_mark: None,
        }
    }

    /// Returns the exchange, if it is traced.
    pub(super) fn exchange_trace(
        &self,
        label: &str,
        is_ok: bool,
        failure: &str,
    ) -> Option<ExchangeTrace> {
        let bytes = self.traced_request.as_ref()?;
        let response = &self.response;
        let elapsed = self.ended.saturating_duration_since(self.started);
        Some(ExchangeTrace {
            label: label.to_owned(),
            url: response.url.clone(),
            started_ms: 0,
            elapsed_us: u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX),
            code: response.code.clone(),
            message: response.message.clone(),
            is_ok,
            failure: failure.to_owned(),
            request: trace_request_text(bytes),
            head: redact_head(&response.headers),
            body: truncate_text(response.body.clone()),
            media_type: self.media_type.clone(),
            body_bytes: self.body_bytes,
        })
    }
}

/// Returns a duration in whole milliseconds.
pub(super) fn to_millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}
