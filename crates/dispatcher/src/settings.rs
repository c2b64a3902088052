//! The section `[dispatcher]` of `tympan.toml`: what stood in httpd's configuration beside the module.
//!
//! In: what people wrote. Out: [`CompiledSettings`], with every pattern compiled. The converter (`httpd_converter`) writes this section
//! from a vhost file.
//!
//! Not here: farms, filters and caches (`config`); they stay in `dispatcher.any`.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http::{HeaderName, HeaderValue};
use serde::{Deserialize, Deserializer};
use tympan_web::body_limit::MinReadRate;

use crate::Error;
use crate::front_settings::{CertificateSettings, FrontSettings};
use crate::host_routing::{HostRoutes, RouteHost};
use crate::https_redirect::HttpsRedirectSettings;
use crate::log::LogLevel;
use crate::warm_up::WarmUpPlan;

/// `[dispatcher]`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DispatcherSettings {
    /// Whether the rules of `[[dispatcher.host]]` also change which page is looked up and asked for; default true. With
    /// false they only redirect, proxy and refuse, and farms see the URL as it was sent.
    pub use_processed_url: Option<bool>,
    /// Whether `/` is answered with 404 where no rule leads it elsewhere; default false.
    pub decline_root: bool,
    /// Whether renders get the path as it was sent, without `//` and `..` resolved; default false. The filter sees the
    /// resolved path in any case, so set it only where a render needs it.
    pub no_canon_url: bool,
    /// Whether `X-Forwarded-Host` chooses the farm; default false. Set it only where every visitor comes through a proxy
    /// that writes this header.
    pub use_forwarded_host: bool,
    /// Whether `Expires` and `Cache-Control` are taken out of answers that the dispatcher itself does not store; default
    /// false.
    pub restrict_uncacheable_content: bool,
    /// Which errors of renders get an error document: `"0"` none, `"1"` all, or ranges such as `"400-404,501"`; default
    /// none. The dispatcher's own errors get theirs always.
    pub pass_error: Option<String>,
    /// How long an unused connection to a render is kept; default 60 s, `"0s"` for none.
    #[serde(deserialize_with = "deserialize_duration")]
    pub keep_alive_timeout: Option<Duration>,
    /// Answers for errors, by status: a path that is served through the farm, a URL to redirect to, or a text.
    pub error_documents: BTreeMap<String, String>,
    /// Who may connect, and how.
    pub front: FrontSettings,
    /// How renders with `/secure "1"` are spoken to.
    pub renders: RenderTlsSettings,
    /// The second listener, for those who watch the dispatcher.
    pub admin: AdminSettings,
    /// The listener that sends visitors who come without TLS to `https`.
    pub https_redirect: HttpsRedirectSettings,
    /// What is fetched into the cache at the start.
    pub warm_up: WarmUpSettings,
    /// How much the dispatcher writes to its log: `error`, `warn`, `info` (default), `debug` or `trace`, as
    /// `DispatcherLogLevel` has it.
    pub log_level: Option<String>,
    /// Rules per host, tried in order; the first host whose name matches counts.
    pub host: Vec<HostSettings>,
}

/// `[dispatcher.renders]`: files in PEM.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RenderTlsSettings {
    /// Certificates by which those of renders must be signed; default those of the system.
    pub roots: Option<PathBuf>,
    /// What the dispatcher proves itself with to renders that ask; needs `roots`. Default nothing.
    pub certificate: Option<CertificateSettings>,
    /// What an answer that is to be stored must bring on average once it was waited for long enough, such as
    /// `"4 KiB/s after 30s"`; a slower one is given up, as visitors wait for it. Default `"500 B/s after 60s"`; `"0"` for
    /// none. Answers that are passed on may be as slow as they like, such as streams of events.
    pub min_rate: Option<String>,
}

impl RenderTlsSettings {
    /// Returns the files that are read.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        let own = self.certificate.iter().flat_map(|pair| [pair.chain.as_path(), &*pair.key]);
        own.chain(self.roots.as_deref())
    }
}

/// `[dispatcher.admin]`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AdminSettings {
    /// Where it listens; default: nowhere.
    pub address: Option<SocketAddr>,
    /// What others than this machine show to read, and everyone to change something, as `Authorization: Bearer …`; at
    /// least 16 characters. Default: only this machine reads, and nobody changes anything.
    pub token: Option<String>,
}

/// `[dispatcher.warm_up]`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WarmUpSettings {
    /// A file that names pages: a URL or a path on each line, a sitemap, or an access log, whose pages that were asked for
    /// most come first. Default: nothing is fetched. Set it where a cold cache would send all visitors to the renders, as on
    /// machines that are made anew.
    pub from: Option<PathBuf>,
    /// So many pages at most; default 1000. More take longer and fill the disk with what may never be asked for.
    pub max_pages: Option<usize>,
    /// So many pages at once; default 2. Raise it where renders have nothing else to do at that time.
    pub concurrency: Option<usize>,
    /// The host at which paths are asked for where the file names none, as access logs do; default the first one that a farm
    /// writes out.
    pub host: Option<String>,
}

/// `[[dispatcher.host]]`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HostSettings {
    /// The names, which may hold `*` and `?`; without any the rules are for every host.
    pub names: Vec<String>,
    /// What `%{DOCUMENT_ROOT}` stands for.
    pub document_root: Option<PathBuf>,
    /// Headers that every answer gets, in place of a render's.
    pub headers: BTreeMap<String, String>,
    /// As `error_documents` above, and before them.
    pub error_documents: BTreeMap<String, String>,
    /// What happens before the cache is asked, in order.
    pub rule: Vec<RuleSettings>,
    /// What is answered with 403, once the rules led neither elsewhere nor to an end.
    pub access: Vec<AccessSettings>,
}

/// `[[dispatcher.host.rule]]`: a pattern and one of `rewrite`, `redirect`, `proxy`, `answer` and `pass`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RuleSettings {
    /// The regular expression that the decoded path, as the rules before left it, must hold; default any path.
    #[serde(rename = "match")]
    pub pattern: Option<String>,
    /// Whether the pattern's case does not count; default false.
    pub ignore_case: bool,
    /// What else must hold.
    pub when: Vec<ConditionSettings>,
    /// The path (and after `?` the query) that takes the place of the visitor's.
    pub rewrite: Option<String>,
    /// Where the visitor is sent.
    pub redirect: Option<String>,
    /// The `http` URL that answers in place of a farm, never cached.
    pub proxy: Option<String>,
    /// Whether that server gets the visitor's `RouteHost`; default false: it gets its own name. The visitor's stands in
    /// `X-Forwarded-Host` in any case. Set it for a server that chooses its site, or writes links, by `RouteHost`.
    pub keep_host: bool,
    /// A status that ends the request, such as 403 or 410.
    pub answer: Option<u16>,
    /// Whether the farms serve the request and no later rule counts; with `of_url` no later `proxy`.
    pub pass: bool,
    /// The status of a redirect; default 302.
    pub status: Option<u16>,
    /// Whether a rewrite is the last rule but for those with `of_url`; default false.
    pub last: bool,
    /// Whether the path that a rewrite makes is the URL's from then on, for `%{REQUEST_URI}`, `access` and rules with
    /// `of_url`, as `[PT]` has it; it is the last rewrite then. Default false.
    pub pass_through: bool,
    /// Whether the rule is for paths of URLs, as `RedirectKind` and `ProxyPass` are: it counts behind a `last` rewrite too, but
    /// not for a path that another rule rewrote without `pass_through`. Default false.
    pub of_url: bool,
    /// What becomes of the visitor's query: `"keep"` where the target has none (default), `"append"`, `"drop"`.
    pub query: Option<String>,
    /// Whether a redirect's target is sent as it is, without escaping; default false.
    pub no_escape: bool,
    /// Variables that later rules read as `%{ENV:NAME}`, with templates of their values, as `[E=NAME:VALUE]` sets them. A rule
    /// that does nothing else has `rewrite = "-"`.
    pub set: BTreeMap<String, String>,
    /// Whether all rewrites are tried again from the first one on once this one applied, as `[N]` has it; default false. What
    /// has not come to an end after 1,000 rounds is answered with 500.
    pub again: bool,
    /// How groups (`$1`, `%1`) are percent-encoded where they are put in, all but letters, digits and `_`: `"query"` writes `+`
    /// for a space, as `[B]` does, and `"path"` `%20`, as `[B,BNP]` does. Default: they are put in as they are.
    pub escape_groups: Option<String>,
    /// The characters that `escape_groups` encodes, and no others, as `[B=CHARACTERS]` has it. Default all but letters, digits
    /// and `_`.
    pub escape_only: Option<String>,
}

/// `[[dispatcher.host.access]]`: requests that are refused.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AccessSettings {
    /// Which path is meant: `"url"`, the one that was sent or that a rewrite with `pass_through` made of it, as `<Location>`
    /// has it; or `"file"`, the one that all rewrites led to, as `<Directory>` has it, which does not count for what is
    /// proxied; or `"sent"`, the one that was sent, whatever rules made of it. Default either of the first two, and what was
    /// sent where farms look that up (`use_processed_url = false`): leave it unless what rewrites lead to is meant to stay
    /// open.
    pub of: Option<String>,
    /// The regular expression that the decoded path must hold; default any path.
    #[serde(rename = "match")]
    pub pattern: Option<String>,
    /// What else must hold; `%{REQUEST_URI}` is the one path, and `%{REQUEST_FILENAME}` the other.
    pub when: Vec<ConditionSettings>,
}

/// A condition of a rule.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ConditionSettings {
    /// What is tested, with variables such as `%{HTTP_HOST}`, `%{REQUEST_URI}` (the path of the URL) or
    /// `%{HTTP:Accept-Language}`.
    pub test: String,
    /// The regular expression that it must hold.
    #[serde(rename = "match")]
    pub pattern: Option<String>,
    /// `"file"` or `"directory"`: what must stand at this path, in place of a pattern.
    pub is: Option<String>,
    /// Whether the opposite must hold.
    pub negate: bool,
    /// Whether the pattern's case does not count.
    pub ignore_case: bool,
    /// Whether it is enough that this condition or the next one holds.
    pub or: bool,
}

/// Settings that are ready for use.
#[derive(Debug, Clone, Default)]
pub(crate) struct CompiledSettings {
    pub(crate) declines_root_url: bool,
    pub(crate) sends_raw_url: bool,
    pub(crate) uses_forwarded_host: bool,
    pub(crate) restricts_uncacheable_content: bool,
    pub(crate) keep_alive: Option<Duration>,
    pub(crate) replaced_errors: Vec<RangeInclusive<u16>>,
    pub(crate) error_documents: BTreeMap<u16, String>,
    pub(crate) routes: HostRoutes,
    pub(crate) log_level: Option<LogLevel>,
    pub(crate) admin_token: Option<String>,
    /// What answers that are to be stored must bring.
    pub(crate) min_render_rate: Option<MinReadRate>,
    pub(crate) warm_up: WarmUpPlan,
}

impl CompiledSettings {
    /// Returns what a visitor gets in place of an error, if something is set.
    pub(crate) fn error_document<'a>(
        &'a self,
        host: Option<&'a RouteHost>,
        status: u16,
    ) -> Option<&'a str> {
        let own = host.and_then(|host| host.error_documents.get(&status));
        own.or_else(|| self.error_documents.get(&status)).map(String::as_str)
    }

    /// Tells whether an error of a render gets an error document.
    pub(crate) fn replaces_error(&self, status: u16) -> bool {
        self.replaced_errors.iter().any(|range| range.contains(&status))
    }
}

impl DispatcherSettings {
    /// Compiles the settings.
    ///
    /// # Errors
    /// [`Error::Setting`] names the key and what to do.
    pub(crate) fn compile_settings(&self) -> Result<CompiledSettings, Error> {
        Ok(CompiledSettings {
            declines_root_url: self.decline_root,
            sends_raw_url: self.no_canon_url,
            uses_forwarded_host: self.use_forwarded_host,
            restricts_uncacheable_content: self.restrict_uncacheable_content,
            keep_alive: self.keep_alive_timeout,
            replaced_errors: parse_statuses(self.pass_error.as_deref().unwrap_or("0"))?,
            error_documents: parse_error_documents(&self.error_documents)?,
            routes: HostRoutes::compile(&self.host, self.use_processed_url.unwrap_or(true))?,
            log_level: self.log_level.as_deref().map(parse_log_level).transpose()?,
            admin_token: match &self.admin.token {
                Some(token) if token.len() < MIN_TOKEN_BYTES => {
                    let reason = format!("it needs at least {MIN_TOKEN_BYTES} characters");
                    return Err(settings_error("admin.token", reason));
                }
                token => token.clone(),
            },
            min_render_rate: parse_min_rate("renders.min_rate", self.renders.min_rate.as_deref())?,
            warm_up: WarmUpPlan::from_settings(&self.warm_up),
        })
    }
}

/// A token of random characters that nobody guesses.
const MIN_TOKEN_BYTES: usize = 16;

/// Reads a level's name, or its number in httpd's configuration.
pub(crate) fn parse_log_level(text: &str) -> Result<LogLevel, Error> {
    Ok(match text.to_ascii_lowercase().as_str() {
        "error" | "0" => LogLevel::Error,
        "warn" | "1" => LogLevel::Warn,
        "info" | "2" => LogLevel::Info,
        "debug" | "3" => LogLevel::Debug,
        "trace" | "4" => LogLevel::Trace,
        _ => {
            let reason = format!("`{text}` is none of error, warn, info, debug and trace");
            return Err(settings_error("log_level", reason));
        }
    })
}

pub(crate) fn settings_error(key: &str, reason: impl Into<String>) -> Error {
    Error::Setting { key: key.to_owned(), reason: reason.into() }
}

/// Reads `0`, `1` or a list such as `400-404,501`.
pub(crate) fn parse_statuses(text: &str) -> Result<Vec<RangeInclusive<u16>>, Error> {
    match text.trim().to_ascii_lowercase().as_str() {
        "" | "0" | "off" => return Ok(Vec::new()),
        "1" | "on" => return Ok(vec![400..=599]),
        _ => {}
    }
    let status = |text: &str| text.trim().parse::<u16>().ok();
    text.split(',')
        .map(|part| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            match (status(first), status(last)) {
                (Some(first), Some(last)) if first >= 400 && first <= last && last < 600 => {
                    Ok(first..=last)
                }
                _ => Err(settings_error(
                    "pass_error",
                    format!("`{part}` is no status from 400 to 599; write \"400-404,501\""),
                )),
            }
        })
        .collect()
}

pub(crate) fn parse_error_documents(
    documents: &BTreeMap<String, String>,
) -> Result<BTreeMap<u16, String>, Error> {
    let read = |(status, document): (&String, &String)| match status.parse::<u16>() {
        Ok(status) if (400..600).contains(&status) => Ok((status, document.clone())),
        _ => Err(settings_error(
            "error_documents",
            format!("`{status}` is no status from 400 to 599"),
        )),
    };
    documents.iter().map(read).collect()
}

pub(crate) fn parse_headers(
    headers: &BTreeMap<String, String>,
) -> Result<Vec<(HeaderName, HeaderValue)>, Error> {
    let read = |(name, value): (&String, &String)| {
        let header = HeaderName::from_bytes(name.as_bytes()).ok();
        match header.zip(HeaderValue::from_str(value).ok()) {
            Some(header) => Ok(header),
            None => Err(settings_error(
                "headers",
                format!("`{name}: {value}` cannot be sent as a header"),
            )),
        }
    };
    headers.iter().map(read).collect()
}

/// What a body may be waited for before its pace counts.
const BODY_RATE_GRACE: Duration = Duration::from_secs(60);
/// As httpd's `RequestReadTimeout` has it.
const DEFAULT_BODY_RATE: &str = "500 B/s";

/// Reads `"500 B/s after 60s"`, where the time may be missing; nothing for `"0"`.
pub(crate) fn parse_min_rate(key: &str, text: Option<&str>) -> Result<Option<MinReadRate>, Error> {
    let text = text.unwrap_or(DEFAULT_BODY_RATE).trim();
    let (rate, grace) = match text.split_once(" after ") {
        Some((rate, grace)) => (rate, parse_duration(grace)),
        None => (text, Some(BODY_RATE_GRACE)),
    };
    let Some((rate, grace)) = parse_byte_rate(rate).zip(grace) else {
        let reason =
            format!("`{text}` is no rate; write \"4 KiB/s\", \"4 KiB/s after 30s\" or \"0\"");
        return Err(settings_error(key, reason));
    };
    Ok(NonZeroU64::new(rate)
        .map(|bytes_per_second| MinReadRate { grace_period: grace, bytes_per_second }))
}

/// Reads `4 KiB/s` as bytes in a second.
fn parse_byte_rate(text: &str) -> Option<u64> {
    let size = text.trim().strip_suffix("/s").unwrap_or(text.trim()).trim_end();
    let at = size.find(|char: char| !char.is_ascii_digit()).unwrap_or(size.len());
    let (number, unit) = size.split_at(at);
    let number: u64 = number.parse().ok()?;
    match unit.trim() {
        "" if number == 0 => Some(0),
        "B" => Some(number),
        "KiB" => number.checked_mul(1024),
        "MiB" => number.checked_mul(1024 * 1024),
        _ => None,
    }
}

/// Reads `"30s"`.
fn deserialize_duration<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Duration>, D::Error> {
    let text = String::deserialize(deserializer)?;
    parse_duration(&text)
        .map(Some)
        .ok_or_else(|| serde::de::Error::custom(format!("`{text}` is no duration; write \"30s\"")))
}

fn parse_duration(text: &str) -> Option<Duration> {
    let text = text.trim();
    let at = text.find(|char: char| !char.is_ascii_digit())?;
    let (number, unit) = text.split_at(at);
    let number: u64 = number.parse().ok()?;
    Some(match unit.trim() {
        "ms" => Duration::from_millis(number),
        "s" => Duration::from_secs(number),
        "min" => Duration::from_secs(number.checked_mul(60)?),
        "h" => Duration::from_secs(number.checked_mul(3600)?),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::{parse_duration, parse_min_rate, parse_statuses};
    use std::time::Duration;

    #[test]
    fn statuses_are_ranges() {
        let check = |text: &str, inside: &[u16], outside: &[u16]| {
            let ranges = parse_statuses(text).unwrap();
            let holds = |status: &u16| ranges.iter().any(|range| range.contains(status));
            assert!(inside.iter().all(holds), "{text}");
            assert!(!outside.iter().any(holds), "{text}");
        };
        check("0", &[], &[404, 500]);
        check("1", &[400, 404, 599], &[200, 302]);
        check("400-411,413-417", &[400, 411, 413, 417], &[412, 418, 500]);
        check("404", &[404], &[403, 405]);
        for broken in ["200", "404-400", "x", "400-600", "400-"] {
            assert!(parse_statuses(broken).is_err(), "{broken}");
        }
    }

    #[test]
    fn rates_need_a_unit() {
        let read = |text| {
            parse_min_rate("k", text).map(|pace| pace.map(|pace| pace.bytes_per_second.get()))
        };
        for (text, expected) in [
            (None, Some(500)),
            (Some("4 KiB/s"), Some(4096)),
            (Some("1MiB"), Some(1024 * 1024)),
            (Some(" 20 B/s "), Some(20)),
            (Some("0"), None),
            (Some("0 B/s"), None),
        ] {
            assert_eq!(read(text).unwrap(), expected, "{text:?}");
        }
        let pace = parse_min_rate("k", Some("1 B/s after 300ms")).unwrap().unwrap();
        assert_eq!(pace.grace_period, Duration::from_millis(300));
        for broken in [
            "500",
            "",
            "-1 B",
            "1 GB/s",
            "x",
            "99999999999999999999 B",
            "20000000000000 MiB",
            "1 B/s after",
            "1 B/s after 3",
        ] {
            assert!(read(Some(broken)).is_err(), "{broken}");
        }
    }

    #[test]
    fn spans_need_a_unit() {
        assert_eq!(parse_duration("60s"), Some(Duration::from_secs(60)));
        assert_eq!(parse_duration("2 min"), Some(Duration::from_secs(120)));
        assert_eq!(parse_duration("60"), None);
    }
}
