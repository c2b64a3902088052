//! Parses HAR files, in which browsers save their requests, as if they had passed through the recording proxy.
//!
//! In: the text of a file. Out: a [`HarFile`]: the exchanges with the site of the first request, and a summary of
//! omissions.
//!
//! Not here: the processing of the exchanges ([`crate::recording`]).

use std::collections::BTreeMap;
use std::time::Duration;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use serde_json::Value;

use crate::recording::recording_proxy::ProxyExchange;
use crate::{Error, Result};

/// The contents of a HAR file.
#[derive(Debug, Clone, PartialEq)]
pub struct HarFile {
    /// The site, such as `https://www.example.com`.
    pub target_site: String,
    /// Exchanges with this site, in chronological order.
    pub exchanges: Vec<ProxyExchange>,
    /// Number of requests to each other site.
    pub other_site_counts: BTreeMap<String, usize>,
    /// Number of requests without a response or not over HTTP.
    pub unanswered_count: usize,
    /// Number of requests with file uploads, whose content a HAR file does not include.
    pub file_upload_count: usize,
}

/// Parses a file called `name`; selects the requests to `site`, or to the site of the first request.
///
/// # Errors
/// [`Error::UnusableInput`] that names the invalid entry.
pub fn parse_har(text: &str, name: &str, site: Option<&str>) -> Result<HarFile> {
    let fault = |message: String| Error::UnusableInput(format!("{name}: {message}"));
    let document: HarDocument =
        serde_json::from_str(text.trim_start_matches('\u{feff}')).map_err(|error| {
            Error::UnusableInput(format!(
                "{name}:{}:{}: not JSON: {error}",
                error.line(),
                error.column()
            ))
        })?;
    let entries = document
        .log
        .and_then(|log| log.entries)
        .ok_or_else(|| fault("not a HAR file: it has no `log.entries`".to_owned()))?;
    let mut har = HarFile {
        target_site: site
            .map(|site| split_site_and_path(site).map_or_else(|| site.to_owned(), |(site, _)| site))
            .unwrap_or_default(),
        exchanges: Vec::new(),
        other_site_counts: BTreeMap::new(),
        unanswered_count: 0,
        file_upload_count: 0,
    };
    let mut read = Vec::new();
    for (number, entry) in entries.iter().enumerate() {
        let entry = ParsedHarEntry::from_har_entry(entry)
            .map_err(|message| fault(format!("entry {}: {message}", number + 1)))?;
        read.push(entry);
    }
    read.sort_by_key(|entry| entry.started_ms);
    let first = read.first().map_or(0, |entry| entry.started_ms);
    for entry in read {
        har.add_entry(entry, first);
    }
    if har.exchanges.is_empty() {
        return Err(fault(format!(
            "it contains no request to `{}` with a response",
            har.target_site
        )));
    }
    Ok(har)
}

/// The parsed fields of a file. Response bodies and additions of browsers, such as the initiator of a request, may make
/// up most of the file and be as deeply nested as the scripts.
#[derive(Deserialize)]
struct HarDocument {
    log: Option<HarLog>,
}

#[derive(Deserialize)]
struct HarLog {
    entries: Option<Vec<HarEntry>>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct HarEntry {
    started_date_time: Option<String>,
    time: Option<f64>,
    request: Option<Value>,
    response: Option<HarResponse>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct HarResponse {
    status: Value,
    headers: Value,
    content: Option<HarContent>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct HarContent {
    mime_type: Option<String>,
}

struct ParsedHarEntry {
    started_ms: i64,
    site: String,
    has_file_upload: bool,
    exchange: ProxyExchange,
}

impl HarFile {
    fn add_entry(&mut self, entry: ParsedHarEntry, first: i64) {
        let is_http = entry.site.starts_with("http://") || entry.site.starts_with("https://");
        if !is_http || entry.exchange.status == 0 {
            self.unanswered_count += 1;
            return;
        }
        if self.target_site.is_empty() {
            self.target_site.clone_from(&entry.site);
        }
        if entry.site != self.target_site {
            *self.other_site_counts.entry(entry.site).or_default() += 1;
            return;
        }
        self.file_upload_count += usize::from(entry.has_file_upload);
        let since = u64::try_from(entry.started_ms - first).unwrap_or(0);
        self.exchanges
            .push(ProxyExchange { started_after: Duration::from_millis(since), ..entry.exchange });
    }

    /// Returns the omissions as text.
    #[must_use]
    pub fn describe_omissions(&self) -> Vec<String> {
        let mut remarks = Vec::new();
        for (site, count) in &self.other_site_counts {
            remarks.push(format!("Left out: {count} requests to {site}."));
        }
        if self.unanswered_count > 0 {
            remarks.push(format!(
                "Left out: {} requests that have no response or are not HTTP.",
                self.unanswered_count
            ));
        }
        if self.file_upload_count > 0 {
            remarks.push(format!(
                "{} requests sent files, which a HAR file does not contain: write `files` by hand.",
                self.file_upload_count
            ));
        }
        remarks
    }
}

impl ParsedHarEntry {
    fn from_har_entry(entry: &HarEntry) -> Result<Self, String> {
        let request = entry.request.as_ref().ok_or("it has no `request`")?;
        let text =
            |value: &Value, key: &str| value.get(key).and_then(Value::as_str).map(str::to_owned);
        let started = entry.started_date_time.as_ref().ok_or("it has no `startedDateTime`")?;
        let started_ms = started
            .parse::<jiff::Timestamp>()
            .map_err(|_| format!("`{started}` is not a timestamp"))?
            .as_millisecond();
        let method = text(request, "method").ok_or("its request has no `method`")?;
        let url = text(request, "url").ok_or("its request has no `url`")?;
        let (site, target) =
            split_site_and_path(&url).ok_or_else(|| format!("`{url}` is not a URL"))?;
        let elapsed = entry.time.unwrap_or(0.0).max(0.0);
        let status =
            entry.response.as_ref().and_then(|response| response.status.as_u64()).unwrap_or(0);
        let (body, has_files) = request.get("postData").map(request_body).unwrap_or_default();
        let exchange = ProxyExchange {
            started_after: Duration::ZERO,
            elapsed: Duration::try_from_secs_f64(elapsed / 1000.0).unwrap_or_default(),
            method,
            url,
            target,
            headers: parse_headers(request.get("headers")),
            body,
            status: u16::try_from(status).unwrap_or(0),
            response_headers: entry.response.as_ref().map(response_headers).unwrap_or_default(),
            response_body: Vec::new(),
            failure: None,
        };
        Ok(Self { started_ms, site, has_file_upload: has_files, exchange })
    }
}

/// Splits a URL into its site and its path with the query; characters that are invalid in a URL are percent-encoded.
fn split_site_and_path(url: &str) -> Option<(String, String)> {
    let (scheme, rest) = url.split_once("://")?;
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let host = rest.get(..end)?.rsplit('@').next()?.to_ascii_lowercase();
    let path = rest.get(end..)?.split('#').next()?;
    let slash = if path.starts_with('/') { "" } else { "/" };
    let mut target = slash.to_owned();
    for letter in path.chars() {
        let is_fine = letter.is_ascii_graphic() && !"\"<>\\^`{|}".contains(letter);
        if is_fine {
            target.push(letter);
        } else {
            target.extend(utf8_percent_encode(&letter.to_string(), NON_ALPHANUMERIC));
        }
    }
    Some((format!("{}://{host}", scheme.to_ascii_lowercase()), target))
}

fn parse_headers(list: Option<&Value>) -> Vec<(String, String)> {
    let list = list.and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    list.iter()
        .filter_map(|header| {
            let name = header.get("name")?.as_str()?;
            // The pseudo-headers of HTTP/2 are part of the request line here.
            let is_own = !name.is_empty() && !name.starts_with(':');
            is_own.then(|| {
                (
                    name.to_owned(),
                    header.get("value").and_then(Value::as_str).unwrap_or("").to_owned(),
                )
            })
        })
        .collect()
}

fn response_headers(response: &HarResponse) -> Vec<(String, String)> {
    let mut all = parse_headers(Some(&response.headers));
    let kind = response.content.as_ref().and_then(|content| content.mime_type.as_ref());
    if let Some(kind) = kind
        && !all.iter().any(|(name, _)| name.eq_ignore_ascii_case("content-type"))
    {
        all.push(("Content-Type".to_owned(), kind.clone()));
    }
    all
}

/// Returns the body of a request, and true if it held files.
fn request_body(data: &Value) -> (Vec<u8>, bool) {
    let fields = data.get("params").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let has_files = fields.iter().any(|field| field.get("fileName").is_some());
    if let Some(text) = data.get("text").and_then(Value::as_str).filter(|text| !text.is_empty()) {
        return (text.as_bytes().to_vec(), has_files);
    }
    // Browsers store the fields of a form instead of its text; some encode them, others do not.
    let encode = |text: &str| {
        let plain = percent_encoding::percent_decode_str(text).decode_utf8_lossy().into_owned();
        utf8_percent_encode(&plain, NON_ALPHANUMERIC).to_string()
    };
    let pairs: Vec<String> = fields
        .iter()
        .filter(|field| field.get("fileName").is_none())
        .filter_map(|field| {
            let value = field.get("value").and_then(Value::as_str).unwrap_or("");
            Some(format!("{}={}", encode(field.get("name")?.as_str()?), encode(value)))
        })
        .collect();
    (pairs.join("&").into_bytes(), has_files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_split_and_made_fit_for_a_plan() {
        let check = |url: &str, site: &str, target: &str| {
            assert_eq!(
                split_site_and_path(url),
                Some((site.to_owned(), target.to_owned())),
                "{url}"
            );
        };
        check("https://A.example:8443/x?q={a|b}#c", "https://a.example:8443", "/x?q=%7Ba%7Cb%7D");
        check("http://me:secret@h", "http://h", "/");
        check("http://h?x", "http://h", "/?x");
        check("http://h/ä", "http://h", "/%C3%A4");
        assert_eq!(split_site_and_path("about:blank"), None);
    }

    #[test]
    fn what_is_no_har_is_reported_with_its_place() {
        let check = |text: &str, expected: &str| {
            let fault = parse_har(text, "x.har", None).unwrap_err().to_string();
            assert!(fault.contains(expected), "{fault}");
        };
        check("{", "x.har:1:1: not JSON");
        check("{}", "`log.entries`");
        check(r#"{"log":{"entries":[{}]}}"#, "entry 1: it has no `request`");
        check(
            r#"{"log":{"entries":[{"request":{"method":"GET","url":"http://h/"},"startedDateTime":"x"}]}}"#,
            "entry 1: `x` is not a timestamp",
        );
        check(r#"{"log":{"entries":[]}}"#, "it contains no request to `");
    }

    #[test]
    fn what_browsers_add_is_passed_over_however_deep_it_is() {
        // A browser records the initiator of a request: the stack of a script, with the stacks that led to it.
        let stack = format!("{}{{}}{}", "{\"parent\":".repeat(5_000), "}".repeat(5_000));
        let text = format!(
            r#"{{"log":{{"entries":[{{"_initiator":{stack},"startedDateTime":"2026-01-02T03:04:05.006Z","time":7,
            "request":{{"method":"GET","url":"https://Shop.example/a"}},
            "response":{{"status":200,"headers":[],"content":{{"mimeType":"text/html","text":"<p>","x":{stack}}}}}}}]}}}}"#
        );
        for site in [None, Some("https://SHOP.example/")] {
            let har = parse_har(&text, "x.har", site).unwrap();
            let exchange = &har.exchanges[0];
            assert_eq!((exchange.target.as_str(), exchange.status), ("/a", 200));
            assert_eq!(
                exchange.response_headers,
                [("Content-Type".to_owned(), "text/html".to_owned())]
            );
        }
    }

    #[test]
    fn forms_are_taken_from_their_fields() {
        let data = serde_json::json!({ "params": [
            { "name": "a b", "value": "1%202" }, { "name": "f", "fileName": "x.png" }, { "name": "c" },
        ]});
        let (text, has_files) = request_body(&data);
        assert_eq!(
            (String::from_utf8(text).unwrap().as_str(), has_files),
            ("a%20b=1%202&c=", true)
        );
    }
}
