//! The section `[dispatcher]` of `tympan.toml`: the settings of httpd's configuration outside the dispatcher module.
//!
//! These are the settings as written; `compiled_settings` compiles them. The converter (`httpd_converter`) writes this
//! section from a vhost file.
//!
//! Not here: farms, filters and caches (`config`); they stay in `dispatcher.any`.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::Deserialize;
use tympan_notation::DurationText;
use tympan_web::tls::{TlsIdentity, TlsTrust};

use crate::Error;
use crate::config::DispatcherConfig;
use crate::config::front_settings::{CertificateSettings, FrontSettings};
use crate::request::https_redirect::HttpsRedirectSettings;

/// `[dispatcher]`.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DispatcherSettings {
    /// If true, the rules of `[[dispatcher.host]]` also change the page that is looked up and requested; default true.
    /// If false, they only redirect, proxy and refuse, and farms see the URL as it was sent.
    pub use_processed_url: Option<bool>,
    /// If true, `/` is answered with 404 unless a rule rewrites or redirects it; default false.
    pub decline_root: bool,
    /// If true, renders get the path as it was sent, without `//` and `..` resolved; default false. The filter sees the
    /// resolved path in any case, so set it only where a render needs it.
    pub no_canon_url: bool,
    /// The treatment of slashes that a path has encoded as `%2F`: `"off"` (default) answers 404, `"on"` decodes them to
    /// `/`, and `"no_decode"` leaves them to renders, as with httpd's `AllowEncodedSlashes`. With `"no_decode"` the
    /// filter must allow the path both as it is and with decoded slashes, and the response is not cached. Set it only
    /// for renders that need such paths.
    pub encoded_slashes: Option<String>,
    /// If true, `X-Forwarded-Host` selects the farm; default false. Set it only where every visitor comes through a
    /// proxy that writes this header.
    pub use_forwarded_host: bool,
    /// If true, `Expires` and `Cache-Control` are removed from responses that the dispatcher itself does not store;
    /// default false.
    pub restrict_uncacheable_content: bool,
    /// The errors of renders that get an error document: `"0"` none, `"1"` all, or ranges such as `"400-404,501"`;
    /// default none. The dispatcher's own errors always get theirs.
    pub pass_error: Option<String>,
    /// The time for which an idle connection to a render is kept open; default 60 s, `"0s"` for none.
    pub keep_alive_timeout: Option<DurationText>,
    /// The responses to errors, by status: a path that is served through the farm, a URL to redirect to, or a text.
    pub error_documents: BTreeMap<String, String>,
    /// The connections that are accepted, and their limits.
    pub front: FrontSettings,
    /// The TLS settings for renders with `/secure "1"`.
    pub renders: RenderTlsSettings,
    /// The admin listener, for monitoring the dispatcher.
    pub admin: AdminSettings,
    /// The listener that redirects visitors without TLS to `https`.
    pub https_redirect: HttpsRedirectSettings,
    /// The pages that are fetched into the cache at the start.
    pub warm_up: WarmUpSettings,
    /// The log level of the dispatcher: `error`, `warn`, `info` (default), `debug` or `trace`, as in
    /// `DispatcherLogLevel`.
    pub log_level: Option<String>,
    /// Rules per host, tried in order; the first host whose name matches applies.
    pub host: Vec<HostSettings>,
}

/// `[dispatcher.renders]`: files in PEM.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RenderTlsSettings {
    /// The certificates that must have signed those of renders; default those of the system.
    pub roots: Option<PathBuf>,
    /// The client certificate for renders that ask for one; needs `roots`. Default none.
    pub certificate: Option<CertificateSettings>,
    /// The minimum average rate of a response to be stored after an initial time, such as `"4 KiB/s after 30s"`; a
    /// slower one is given up, as visitors wait for it. Default `"500 B/s after 60s"`; `"0"` for no limit. Responses
    /// that are only passed on, such as streams of events, may be slower.
    pub min_rate: Option<String>,
}

impl RenderTlsSettings {
    /// Returns the files that are read.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        let own = self.certificate.iter().flat_map(|pair| [pair.chain.as_path(), &*pair.key]);
        own.chain(self.roots.as_deref())
    }

    /// Returns the certificates that the renders of a configuration are verified with; `None` if none of them uses TLS.
    ///
    /// # Errors
    /// If a file cannot be read or used, or if there is a client certificate without `roots`.
    pub fn read_trust(&self, config: &DispatcherConfig) -> Result<Option<TlsTrust>, Error> {
        let read = |file: &Path| {
            fs::read(file).map_err(|source| Error::Read { file: file.to_owned(), source })
        };
        let trust = match (&self.roots, &self.certificate) {
            (Some(roots), Some(own)) => {
                let own = TlsIdentity::from_pem(&read(&own.chain)?, &read(&own.key)?)
                    .map_err(Error::RenderTls)?;
                TlsTrust::with_identity(&read(roots)?, &own)
            }
            (Some(roots), None) => TlsTrust::from_pem(&read(roots)?),
            (None, Some(_)) => return Err(Error::MissingRenderRoots),
            (None, None) if config.has_secure_render() => TlsTrust::system_roots(),
            (None, None) => return Ok(None),
        };
        trust.map(Some).map_err(Error::RenderTls)
    }
}

/// `[dispatcher.admin]`.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AdminSettings {
    /// The address to listen on; default: none.
    pub address: Option<SocketAddr>,
    /// The token, sent as `Authorization: Bearer …`, that clients on other machines need to read, and all clients need
    /// to change something; at least 16 characters. Default: only this machine can read, and changes are not possible.
    #[schemars(extend("x-secret" = true))]
    pub token: Option<String>,
}

/// `[dispatcher.warm_up]`.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct WarmUpSettings {
    /// A file that names pages: a URL or a path on each line, a sitemap, or an access log, whose most requested pages
    /// come first. Default: nothing is fetched. Set it where a cold cache would send all visitors to the renders, as on
    /// newly created machines.
    pub from: Option<PathBuf>,
    /// The maximum number of pages; default 1000. More pages take longer and fill the disk with pages that may never be
    /// requested.
    pub max_pages: Option<usize>,
    /// The number of pages fetched at once; default 2. Raise it where renders are otherwise idle at that time.
    pub concurrency: Option<usize>,
    /// The host for paths without a host in the file, as in access logs; default the first literal host name of a farm.
    pub host: Option<String>,
}

/// `[[dispatcher.host]]`.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct HostSettings {
    /// The host names, which may contain `*` and `?`; without any, the rules apply to every host.
    pub names: Vec<String>,
    /// The value of `%{DOCUMENT_ROOT}`.
    pub document_root: Option<PathBuf>,
    /// Headers that every response gets, in place of a render's.
    pub headers: BTreeMap<String, String>,
    /// As `error_documents` above, and with precedence over it.
    pub error_documents: BTreeMap<String, String>,
    /// Rules applied before the cache look-up, in order.
    pub rule: Vec<RuleSettings>,
    /// Requests that are answered with 403, unless the rules redirected or ended them.
    pub access: Vec<AccessSettings>,
}

/// `[[dispatcher.host.rule]]`: a pattern and one of `rewrite`, `redirect`, `proxy`, `answer` and `pass`.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RuleSettings {
    /// The regular expression that must match within the decoded path, as left by earlier rules; default any path.
    #[serde(rename = "match")]
    pub pattern: Option<String>,
    /// If true, the pattern ignores case; default false.
    pub ignore_case: bool,
    /// Further conditions that must hold.
    pub when: Vec<ConditionSettings>,
    /// The path (and after `?` the query) that replaces the visitor's.
    pub rewrite: Option<String>,
    /// The target of a redirect.
    pub redirect: Option<String>,
    /// The `http` URL of a server that responds in place of a farm; the response is never cached. With `ws://` in place
    /// of `http://` the server may also open WebSockets.
    pub proxy: Option<String>,
    /// If true, that server gets the visitor's `Host`; default false: it gets its own name. The visitor's is in
    /// `X-Forwarded-Host` in any case. Set it for a server that selects its site, or writes links, by `Host`.
    pub keep_host: bool,
    /// A status that ends the request, such as 403 or 410.
    pub answer: Option<u16>,
    /// If true, the farms serve the request and no later rule applies; with `of_url` no later `proxy`.
    pub pass: bool,
    /// The status of a redirect; default 302.
    pub status: Option<u16>,
    /// If true, a rewrite is the last rule except for those with `of_url`; default false.
    pub last: bool,
    /// If true, the path that a rewrite produces becomes the URL's path for `%{REQUEST_URI}`, `access` and rules with
    /// `of_url`, as with `[PT]`; it is then the last rewrite. Default false.
    pub pass_through: bool,
    /// If true, the rule applies to URL paths, as `Redirect` and `ProxyPass` do: it also applies after a `last`
    /// rewrite, but not to a path that another rule rewrote without `pass_through`. Default false.
    pub of_url: bool,
    /// The handling of the visitor's query: `"keep"` where the target has none (default), `"append"`, `"drop"`.
    pub query: Option<String>,
    /// If true, a redirect's target is sent unchanged, without escaping; default false.
    pub no_escape: bool,
    /// Variables that later rules read as `%{ENV:NAME}`, with templates of their values, as `[E=NAME:VALUE]` sets them.
    /// A rule without any other action has `rewrite = "-"`.
    pub set: BTreeMap<String, String>,
    /// If true, all rewrites are tried again from the first one after this one applied, as with `[N]`; default false. A
    /// request that has not ended after 1,000 rounds is answered with 500.
    pub again: bool,
    /// The percent-encoding of inserted groups (`$1`, `%1`), which encodes all characters except letters, digits and
    /// `_`: `"query"` writes `+` for a space, as `[B]` does, and `"path"` `%20`, as `[B,BNP]` does. Default: they are
    /// inserted unchanged.
    pub escape_groups: Option<String>,
    /// The only characters that `escape_groups` encodes, as with `[B=CHARACTERS]`. Default all except letters, digits
    /// and `_`.
    pub escape_only: Option<String>,
}

/// `[[dispatcher.host.access]]`: requests that are refused.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AccessSettings {
    /// The path to check: `"url"`, the path as sent or as changed by a rewrite with `pass_through`, as in `<Location>`;
    /// `"file"`, the path that results from all rewrites, as in `<Directory>`, which does not apply to proxied
    /// requests; or `"sent"`, the path as sent, regardless of rules. Default either of the first two, and the path as
    /// sent where farms look that up (`use_processed_url = false`): do not set it unless the result of rewrites is
    /// meant to stay accessible.
    pub of: Option<String>,
    /// The regular expression that must match within the decoded path; default any path.
    #[serde(rename = "match")]
    pub pattern: Option<String>,
    /// Further conditions that must hold; `%{REQUEST_URI}` is the URL path, and `%{REQUEST_FILENAME}` the path looked
    /// up.
    pub when: Vec<ConditionSettings>,
}

/// A condition of a rule.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ConditionSettings {
    /// The text to test, with variables such as `%{HTTP_HOST}`, `%{REQUEST_URI}` (the path of the URL) or
    /// `%{HTTP:Accept-Language}`.
    pub test: String,
    /// The regular expression that must match within the text.
    #[serde(rename = "match")]
    pub pattern: Option<String>,
    /// `"file"` or `"directory"`: the type that must exist at this path, in place of a pattern.
    pub is: Option<String>,
    /// If true, the condition is negated.
    pub negate: bool,
    /// If true, the pattern ignores case.
    pub ignore_case: bool,
    /// If true, it is sufficient that this condition or the next one holds.
    pub or: bool,
}
