//! Makes a plan from the requests that a browser sent through the proxy.
//!
//! A page and its parts are grouped: parts that arrive shortly after their page are left out, because the plan can
//! fetch a page's parts itself. Pauses between pages become think times.
//!
//! Secrets are left out: `Authorization` headers, cookies, and fields named like passwords are not written.

pub mod har;
pub mod recording_proxy;
pub mod replay;
mod secret_mask;
pub mod traffic_profile;

use std::time::Duration;

use tympan_lab_plan::plan_draft::{DraftScenario, DraftStep, PlanDraft};

use crate::recording::recording_proxy::ProxyExchange;

/// Options for converting a recording to a plan.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RecordingOptions {
    /// If true, images, styles and scripts become requests of their own.
    pub keeps_page_parts: bool,
}

/// Shorter pauses are the browser's, not a person's.
const MIN_PAUSE: Duration = Duration::from_millis(500);
/// Maximum length of a body in the plan; longer bodies are left out.
const MAX_PLAN_BODY_LEN: usize = 64 * 1024;
const KEPT_HEADERS: [&str; 4] = ["accept", "accept-language", "content-type", "x-requested-with"];

/// Returns the plan for a recording made by the proxy or read from a browser's HAR file.
#[must_use]
pub fn recording_to_plan(
    target: &str,
    exchanges: &[ProxyExchange],
    options: RecordingOptions,
) -> PlanDraft {
    let mut steps: Vec<DraftStep> = Vec::new();
    let mut remarks =
        vec!["Recorded; cookies and credentials of the recording are left out.".to_owned()];
    let mut left_out = 0u64;
    let mut without_body: Vec<String> = Vec::new();
    let mut ended: Option<Duration> = None;
    for exchange in exchanges {
        if !options.keeps_page_parts && is_page_part(exchange) {
            left_out += 1;
            ended = ended.max(Some(exchange.started_after + exchange.elapsed));
            continue;
        }
        let pause =
            ended.map(|ended| exchange.started_after.saturating_sub(ended)).unwrap_or_default();
        if pause >= MIN_PAUSE
            && let Some(step) = steps.last_mut()
        {
            step.think_time = Some(format!("{}ms", pause.as_millis()));
        }
        let step = to_plan_step(exchange);
        if plan_body(exchange).is_none() {
            without_body.push(format!("{} {}", step.method, step.path));
        }
        steps.push(step);
        ended = Some(exchange.started_after + exchange.elapsed);
    }
    if left_out > 0 {
        remarks.push(format!(
            "Left out: {left_out} images, styles and scripts; `parts = true` fetches those of each page."
        ));
    }
    if !without_body.is_empty() {
        remarks.push(format!(
            "{} requests lack their bodies, which are not text or longer than {} KiB; add `body_file` or \
             `files` by hand: {}.",
            without_body.len(),
            MAX_PLAN_BODY_LEN / 1024,
            without_body.join(", ")
        ));
    }
    if steps.iter().any(|step| step.body.contains("{secret}") || step.path.contains("{secret}")) {
        remarks.push("Replace {secret} by hand.".to_owned());
    }
    PlanDraft {
        comment_lines: remarks,
        name: "recording".to_owned(),
        target: target.to_owned(),
        load_settings: vec![
            ("users".to_owned(), "1".to_owned()),
            ("visits".to_owned(), "1".to_owned()),
        ],
        scenarios: vec![DraftScenario { name: "visit".to_owned(), weight: 1, steps }],
    }
}

/// Returns true if the response shows that an exchange fetched part of a page.
fn is_page_part(exchange: &ProxyExchange) -> bool {
    let kind = exchange
        .response_headers
        .iter()
        .find(|(name, _)| name.eq_ignore_ascii_case("content-type"))
        .map_or("", |(_, value)| value.as_str());
    exchange.method == "GET"
        && ["image/", "font/", "text/css", "text/javascript", "application/javascript"]
            .iter()
            .any(|part| kind.starts_with(part))
}

fn to_plan_step(exchange: &ProxyExchange) -> DraftStep {
    let mut headers: Vec<(String, String)> = exchange
        .headers
        .iter()
        .filter(|(name, value)| {
            KEPT_HEADERS.contains(&name.to_ascii_lowercase().as_str()) && value != "*/*"
        })
        .cloned()
        .collect();
    headers.sort();
    let kind = headers.iter().find(|(name, _)| name.eq_ignore_ascii_case("content-type"));
    let kind = kind.map_or("", |(_, value)| value.as_str());
    DraftStep {
        method: exchange.method.clone(),
        path: secret_mask::mask_target(&exchange.target),
        body: plan_body(exchange)
            .map(|text| secret_mask::mask_body(text, kind))
            .unwrap_or_default(),
        headers,
        expected_status: (exchange.status >= 400 && exchange.failure.is_none())
            .then_some(exchange.status),
        think_time: None,
    }
}

/// Returns the body of a request; `None` if a plan cannot contain it.
fn plan_body(exchange: &ProxyExchange) -> Option<&str> {
    std::str::from_utf8(&exchange.body).ok().filter(|text| text.len() <= MAX_PLAN_BODY_LEN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_that_a_plan_cannot_hold_are_reported() {
        let sent = |target: &str, body: Vec<u8>| ProxyExchange {
            started_after: Duration::ZERO,
            elapsed: Duration::ZERO,
            method: "POST".to_owned(),
            url: format!("http://h{target}"),
            target: target.to_owned(),
            headers: Vec::new(),
            body,
            status: 200,
            response_headers: Vec::new(),
            response_body: Vec::new(),
            failure: None,
        };
        let exchanges = [
            sent("/picture", vec![0xff, 0xd8]),
            sent("/long?token=x", vec![b'a'; MAX_PLAN_BODY_LEN + 1]),
            sent("/whole", vec![b'a'; MAX_PLAN_BODY_LEN]),
        ];
        let draft = recording_to_plan("http://h", &exchanges, RecordingOptions::default());
        let lengths: Vec<usize> =
            draft.scenarios[0].steps.iter().map(|step| step.body.len()).collect();
        assert_eq!(lengths, [0, 0, MAX_PLAN_BODY_LEN]);
        let body_remark =
            draft.comment_lines.iter().find(|remark| remark.contains("lack their bodies"));
        let body_remark = body_remark.unwrap();
        assert!(body_remark.starts_with("2 requests"), "{body_remark}");
        assert!(
            body_remark.ends_with("POST /picture, POST /long?token={secret}."),
            "{body_remark}"
        );
        let draft = recording_to_plan("http://h", &exchanges[2..], RecordingOptions::default());
        assert_eq!(draft.comment_lines.len(), 1, "{:?}", draft.comment_lines);
    }
}
