//! Makes a plan from what a browser asked for through the proxy.
//!
//! A page and what it is made of belong together: parts that came within a moment of their page are left out, since the
//! plan fetches a page's parts by itself if it is asked to. Pauses between pages become thinking times.
//!
//! Secrets stay out: `Authorization` and cookies of the recording are not written, nor are fields named like passwords.

use std::sync::LazyLock;
use std::time::Duration;

use regex::Regex;

use crate::draft::{Draft, Scenario, Step};
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
        steps.push(step(exchange));
        ended = Some(exchange.at + exchange.elapsed);
    }
    if left_out > 0 {
        remarks.push(format!(
            "Left out: {left_out} images, styles and scripts; `parts = true` fetches those of each page."
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
    let text = std::str::from_utf8(&exchange.body).unwrap_or_default();
    let body = if text.len() > MOST_BODY { String::new() } else { without_secrets(text) };
    Step {
        method: exchange.method.clone(),
        path: without_secrets(&exchange.target),
        headers,
        body,
        status: (exchange.status >= 400 && exchange.failure.is_none()).then_some(exchange.status),
        think: None,
    }
}

/// Returns a text without the values of fields that are named like secrets.
fn without_secrets(text: &str) -> String {
    #[expect(clippy::expect_used, reason = "the pattern is a constant")]
    static SECRET: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(
            r#"(?i)((?:^|[?&;{,"\s])"?[\w.:-]*(?:passw(?:or)?d|secret|token|api_?key)[\w-]*"?\s*[=:]\s*"?)[^&;"\s,}]+"#,
        )
        .expect("the pattern reads")
    });
    SECRET.replace_all(text, "${1}{secret}").into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: &str) {
        assert_eq!(without_secrets(text), expected);
    }

    #[test]
    fn secrets_do_not_enter_a_plan() {
        check("j_username=me&j_password=s3cret&x=1", "j_username=me&j_password={secret}&x=1");
        check("/a?token=abc&b=c", "/a?token={secret}&b=c");
        check(r#"{"user":"me","password":"s3cret"}"#, r#"{"user":"me","password":"{secret}"}"#);
        check(":cq_csrf_token=abc", ":cq_csrf_token={secret}");
        check("word=password", "word=password");
    }
}
