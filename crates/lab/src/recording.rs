//! Makes a plan from what a browser asked for through the proxy.
//!
//! A page and what it is made of belong together: parts that came within a moment of their page are left out, since the
//! plan fetches a page's parts by itself if it is asked to. Pauses between pages become thinking times.
//!
//! Secrets stay out: `Authorization` and cookies of the recording are not written, nor are fields named like passwords.

use std::time::Duration;

use crate::draft::{Draft, Scenario, Step};
use crate::masked;
use crate::proxy::Exchange;

/// What becomes of a recording.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Options {
    /// Keeps images, styles and scripts as requests of their own.
    pub with_parts: bool,
}

/// Pauses below this are the browser's, not a person's.
const SHORTEST_PAUSE: Duration = Duration::from_millis(500);
/// Bodies that are longer stay out of the plan.
const MOST_BODY: usize = 64 * 1024;
const KEPT_HEADERS: [&str; 4] = ["accept", "accept-language", "content-type", "x-requested-with"];

/// Returns the plan of a recording: of the proxy, or of a browser's HAR file.
#[must_use]
pub fn plan(target: &str, exchanges: &[Exchange], options: Options) -> Draft {
    let mut steps: Vec<Step> = Vec::new();
    let mut remarks =
        vec!["Recorded; cookies and credentials of the recording are left out.".to_owned()];
    let mut left_out = 0u64;
    let mut without_body: Vec<String> = Vec::new();
    let mut ended: Option<Duration> = None;
    for exchange in exchanges {
        if !options.with_parts && is_part(exchange) {
            left_out += 1;
            ended = ended.max(Some(exchange.at + exchange.elapsed));
            continue;
        }
        let pause = ended.map(|ended| exchange.at.saturating_sub(ended)).unwrap_or_default();
        if pause >= SHORTEST_PAUSE
            && let Some(step) = steps.last_mut()
        {
            step.think = Some(format!("{}ms", pause.as_millis()));
        }
        let step = step(exchange);
        if body(exchange).is_none() {
            without_body.push(format!("{} {}", step.method, step.path));
        }
        steps.push(step);
        ended = Some(exchange.at + exchange.elapsed);
    }
    if left_out > 0 {
        remarks.push(format!(
            "Left out: {left_out} images, styles and scripts; `parts = true` fetches those of each page."
        ));
    }
    if !without_body.is_empty() {
        remarks.push(format!(
            "{} requests are without their bodies, which are no text or longer than {} KiB; write `body_file` or `files` by hand: {}.",
            without_body.len(),
            MOST_BODY / 1024,
            without_body.join(", ")
        ));
    }
    if steps.iter().any(|step| step.body.contains("{secret}") || step.path.contains("{secret}")) {
        remarks.push("Put in by hand what stands as {secret}.".to_owned());
    }
    Draft {
        remarks,
        name: "recording".to_owned(),
        target: target.to_owned(),
        load: vec![("users".to_owned(), "1".to_owned()), ("visits".to_owned(), "1".to_owned())],
        scenarios: vec![Scenario { name: "visit".to_owned(), weight: 1, steps }],
    }
}

/// Reports whether an exchange fetched a part of a page, by what came.
fn is_part(exchange: &Exchange) -> bool {
    let kind = exchange
        .answer_headers
        .iter()
        .find(|(name, _)| name.eq_ignore_ascii_case("content-type"))
        .map_or("", |(_, value)| value.as_str());
    exchange.method == "GET"
        && ["image/", "font/", "text/css", "text/javascript", "application/javascript"]
            .iter()
            .any(|part| kind.starts_with(part))
}

fn step(exchange: &Exchange) -> Step {
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
    Step {
        method: exchange.method.clone(),
        path: masked::target(&exchange.target),
        body: body(exchange).map(|text| masked::body(text, kind)).unwrap_or_default(),
        headers,
        status: (exchange.status >= 400 && exchange.failure.is_none()).then_some(exchange.status),
        think: None,
    }
}

/// Returns the body of a request; `None` if a plan cannot hold it.
fn body(exchange: &Exchange) -> Option<&str> {
    std::str::from_utf8(&exchange.body).ok().filter(|text| text.len() <= MOST_BODY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_that_a_plan_cannot_hold_are_told() {
        let sent = |target: &str, body: Vec<u8>| Exchange {
            at: Duration::ZERO,
            elapsed: Duration::ZERO,
            method: "POST".to_owned(),
            url: format!("http://h{target}"),
            target: target.to_owned(),
            headers: Vec::new(),
            body,
            status: 200,
            answer_headers: Vec::new(),
            answer: Vec::new(),
            failure: None,
        };
        let exchanges = [
            sent("/picture", vec![0xff, 0xd8]),
            sent("/long?token=x", vec![b'a'; MOST_BODY + 1]),
            sent("/whole", vec![b'a'; MOST_BODY]),
        ];
        let draft = plan("http://h", &exchanges, Options::default());
        let lengths: Vec<usize> =
            draft.scenarios[0].steps.iter().map(|step| step.body.len()).collect();
        assert_eq!(lengths, [0, 0, MOST_BODY]);
        let told = draft.remarks.iter().find(|remark| remark.contains("without their bodies"));
        let told = told.unwrap();
        assert!(told.starts_with("2 requests"), "{told}");
        assert!(told.ends_with("POST /picture, POST /long?token={secret}."), "{told}");
        let draft = plan("http://h", &exchanges[2..], Options::default());
        assert_eq!(draft.remarks.len(), 1, "{:?}", draft.remarks);
    }
}
