//! The properties of an HTTP sampler, and the request built from them.
//!
//! The bytes are those that JMeter's default implementation sends: its headers, its form encoding, its rules for query
//! and body.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::sync::Arc;

use super::charset::JavaCharset;
use super::form_encoding::{decode_form_bytes, encode_form_bytes};
use super::template::TextTemplate;
use super::variable_scope::VariableScope;
use crate::absolute_url::AbsoluteUrl;

/// A request parameter.
#[derive(Debug, Clone)]
pub(super) struct HttpArgument {
    pub(super) name: TextTemplate,
    pub(super) value: TextTemplate,
    /// Set if the sampler encodes the value. Otherwise it is encoded already: a query contains it verbatim, a form
    /// decodes and encodes it.
    pub(super) needs_encoding: bool,
    /// `=`, or empty.
    pub(super) separator: String,
}

/// A file to upload.
#[derive(Debug, Clone)]
pub(super) struct FileUpload {
    pub(super) path: TextTemplate,
    pub(super) name: TextTemplate,
    pub(super) media_type: TextTemplate,
}

/// Credentials for URLs below a prefix.
#[derive(Debug, Clone)]
pub struct HttpCredentials {
    pub(super) url: TextTemplate,
    pub user: TextTemplate,
    pub password: TextTemplate,
    /// The required realm of the server; empty for any.
    pub realm: TextTemplate,
    /// Sent with the first request; otherwise only after a challenge, as a digest.
    pub(super) is_preemptive_basic: bool,
}

/// All properties of a request in a plan.
#[derive(Debug, Clone, Default)]
pub struct HttpSamplerSpec {
    pub(super) protocol: TextTemplate,
    pub(super) domain: TextTemplate,
    pub(super) port: TextTemplate,
    pub(super) path: TextTemplate,
    pub(super) method: TextTemplate,
    pub(super) arguments: Vec<HttpArgument>,
    pub(super) file_uploads: Vec<FileUpload>,
    /// The charset of parameters and bodies.
    pub(super) charset: JavaCharset,
    pub(super) is_raw_body: bool,
    /// True for Java's own client instead of Apache's: other headers.
    pub is_java_client: bool,
    /// True for a plan in the lab's own format: a query is only a query, and URLs are sent as written.
    pub is_toml_plan: bool,
    pub(super) is_multipart: bool,
    /// True if form parts have only the headers that browsers send.
    pub(super) is_browser_form: bool,
    /// True if redirects are followed, and each request is a sample of its own.
    pub follows_redirects: bool,
    /// True if redirects are followed as part of the same request.
    pub follows_redirects_silently: bool,
    /// True if the connection stays open.
    pub keep_alive: bool,
    /// Time limit of connecting in milliseconds; empty for none.
    pub connect_timeout: TextTemplate,
    /// Time limit of the response in milliseconds; empty for none.
    pub response_timeout: TextTemplate,
    pub(super) headers: Vec<(TextTemplate, TextTemplate)>,
    /// The index of the cookie manager in scope.
    pub cookie_manager: Option<usize>,
    /// The index of the cache manager in scope.
    pub cache_manager: Option<usize>,
    /// Credentials of the authorization managers in scope.
    pub credentials: Vec<HttpCredentials>,
    /// The index in [`super::model::PlanModel::host_addresses`] of the addresses for host names in this request.
    pub host_addresses: Option<usize>,
    /// The local address to send from; empty if the system chooses it.
    pub source_address: TextTemplate,
    /// Settings for embedded resources, if they are fetched too.
    pub embedded_resources: Option<EmbeddedResourceSpec>,
}

/// Settings for fetching embedded resources.
#[derive(Debug, Clone)]
pub struct EmbeddedResourceSpec {
    /// Number of concurrent requests.
    pub concurrency: usize,
    /// A pattern that the URLs must match.
    pub include_pattern: Option<TextTemplate>,
    /// A pattern that the URLs must not match.
    pub exclude_pattern: Option<TextTemplate>,
}

/// A request with all variables substituted.
#[derive(Debug, Clone)]
pub struct ResolvedHttpRequest {
    /// The method.
    pub method: Cow<'static, str>,
    /// The URL.
    pub url: AbsoluteUrl,
    /// The value of the `Connection` header, which comes first.
    pub(super) keep_alive: bool,
    /// Names and values in the order of sending, except `Connection` and `Content-Length`; a `Cookie` is sent only if
    /// the cookie manager has none.
    pub headers: Vec<(Arc<str>, Arc<str>)>,
    /// The media type of the body, if no header specifies it.
    pub media_type: Option<Arc<str>>,
    /// The body is announced even if it is empty.
    pub announces_body: bool,
    /// Set if empty segments of the path are omitted, as by Apache's client.
    pub(super) drops_empty_segments: bool,
    /// The credentials from the plan's authorization manager for this URL.
    pub authorization: Option<Arc<str>>,
    /// The body.
    pub body: Vec<u8>,
}

/// The media type of a form, without its charset.
const FORM_MEDIA_TYPE: &str = "application/x-www-form-urlencoded";
/// The user agent of Java's own client.
const JAVA_USER_AGENT: &str = concat!("Java/17 (tympan lab ", env!("CARGO_PKG_VERSION"), ")");
const JAVA_ACCEPT: &str = "text/html, image/gif, image/jpeg, */*; q=0.2";

/// The default user agent: that of JMeter's default implementation, because servers and dispatchers select responses by
/// it.
const USER_AGENT: &str =
    concat!("Apache-HttpClient/4.5.14 (tympan lab ", env!("CARGO_PKG_VERSION"), ")");

impl HttpSamplerSpec {
    /// Substitutes the variables.
    ///
    /// # Errors
    /// The name of the Java exception that JMeter would fail with, and its message.
    pub fn resolve(
        &self,
        scope: &mut VariableScope,
    ) -> Result<ResolvedHttpRequest, (String, String)> {
        let method: Cow<'static, str> = match self.method.evaluate(scope).trim() {
            "" | "GET" => "GET".into(),
            "POST" => "POST".into(),
            "HEAD" => "HEAD".into(),
            method_name => method_name.to_uppercase().into(),
        };
        if !method.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-') {
            let message = format!("Invalid HTTP method: {method}");
            return Err(("java.net.ProtocolException".to_owned(), message));
        }
        let url = self.resolve_url(&method, scope)?;
        let mut headers: Vec<(Arc<str>, Arc<str>)> = Vec::with_capacity(self.headers.len() + 2);
        for (name, value) in &self.headers {
            let name = trim_header_value(name.evaluate_shared(scope));
            let value = value.evaluate_shared(scope);
            if name.is_empty() || name.eq_ignore_ascii_case("Content-Length") {
                continue;
            }
            // A plan that sets `Connection` itself gets the header twice, as in JMeter.
            headers.push((name, trim_header_value(value)));
        }
        if self.is_java_client {
            for (name, value) in [("User-Agent", JAVA_USER_AGENT), ("Accept", JAVA_ACCEPT)] {
                if !contains_header(&headers, name) {
                    headers.push((name.into(), value.into()));
                }
            }
        }
        let (body, media_type) = self.resolve_body(&method, scope)?;
        let authorization = self.preemptive_authorization(&url, scope);
        Ok(ResolvedHttpRequest {
            announces_body: self.sends_parameters_as_form(&method),
            drops_empty_segments: !self.is_toml_plan && !self.is_java_client,
            method,
            url,
            keep_alive: self.keep_alive,
            headers,
            media_type: media_type.map(Into::into),
            authorization,
            body,
        })
    }

    fn resolve_url(
        &self,
        method: &str,
        scope: &mut VariableScope,
    ) -> Result<AbsoluteUrl, (String, String)> {
        let mut path = self.path.evaluate(scope);
        // JMeter encodes spaces of the path, including a query in it, and nothing else.
        if !self.is_toml_plan && path.contains(' ') {
            path = path.replace(' ', "%20").into();
        }
        if path.starts_with("http://") || path.starts_with("https://") {
            return parse_url(&path, !self.is_toml_plan);
        }
        let (protocol, domain, port) =
            (self.protocol.evaluate(scope), self.domain.evaluate(scope), self.port.evaluate(scope));
        let (protocol, domain, port) = (protocol.trim(), domain.trim(), port.trim());
        let port = if port == "0" { "" } else { port };
        let mut target = String::with_capacity(path.len() + 1);
        if !path.starts_with('/') {
            target.push('/');
        }
        target.push_str(&path);
        let has_query = matches!(method, "GET" | "DELETE" | "OPTIONS")
            || (method == "HEAD" && self.is_toml_plan);
        if has_query && !self.is_raw_body {
            let query = self.query_string(scope);
            if !query.is_empty() {
                target.push(if path.contains('?') { '&' } else { '?' });
                target.push_str(&query);
            }
        }
        if let Some((is_tls, port)) = parse_simple_origin(protocol, domain, port)
            && target.bytes().all(is_literal_byte)
        {
            return Ok(AbsoluteUrl {
                is_tls,
                host: domain.to_owned(),
                port,
                path_and_query: target,
            });
        }
        let protocol = if protocol.is_empty() { "http" } else { protocol };
        let mut text = format!("{}://{domain}", protocol.to_ascii_lowercase());
        if !port.is_empty() {
            write!(text, ":{port}").ok();
        }
        text.push_str(&target);
        parse_url(&text, !self.is_toml_plan)
    }

    /// Returns the parameters as a form body. Values that are not to be encoded are encoded already, so JMeter decodes
    /// them first.
    fn form_body(&self, scope: &mut VariableScope) -> Result<String, (String, String)> {
        if self.is_java_client || self.is_toml_plan {
            return Ok(self.query_string(scope));
        }
        let mut out = String::new();
        for argument in &self.arguments {
            let mut name = argument.name.evaluate(scope).into_owned();
            if name.is_empty() {
                continue;
            }
            let mut value = argument.value.evaluate(scope).into_owned();
            if !argument.needs_encoding {
                (name, value) = (self.decode_parameter(&name)?, self.decode_parameter(&value)?);
            }
            if !out.is_empty() {
                out.push('&');
            }
            out.push_str(&self.encode_parameter(&name));
            out.push('=');
            out.push_str(&self.encode_parameter(&value));
        }
        Ok(out)
    }

    /// Encodes a text for a form or a query.
    fn encode_parameter(&self, text: &str) -> String {
        encode_form_bytes(&self.charset.encode(text))
    }

    /// Decodes a text of a form or a query.
    fn decode_parameter(&self, text: &str) -> Result<String, (String, String)> {
        Ok(self.charset.decode(&decode_form_bytes(&self.charset.encode(text))?).into_owned())
    }

    /// Returns the parameters as a query string.
    fn query_string(&self, scope: &mut VariableScope) -> String {
        let mut out = String::new();
        for argument in &self.arguments {
            let name = argument.name.evaluate(scope).into_owned();
            if name.is_empty() {
                continue;
            }
            let value = argument.value.evaluate(scope);
            if !out.is_empty() {
                out.push('&');
            }
            if argument.needs_encoding {
                out.push_str(&self.encode_parameter(&name));
                out.push_str(&argument.separator);
                out.push_str(&self.encode_parameter(&value));
            } else {
                out.push_str(&name);
                out.push_str(&argument.separator);
                out.push_str(&value);
            }
        }
        out
    }

    fn resolve_body(
        &self,
        method: &str,
        scope: &mut VariableScope,
    ) -> Result<(Vec<u8>, Option<String>), (String, String)> {
        let has_form = self.sends_parameters_as_form(method);
        if !self.is_toml_plan
            && !self.is_java_client
            && matches!(method, "HEAD" | "OPTIONS" | "TRACE")
        {
            return Ok((Vec::new(), None));
        }
        if has_form
            && (self.is_multipart
                || (!self.file_uploads.is_empty() && !self.is_single_file_upload()))
        {
            return self.multipart_body(scope);
        }
        if has_form
            && let (true, Some(file)) = (self.is_single_file_upload(), self.file_uploads.first())
        {
            let media_type = file.media_type.evaluate(scope).into_owned();
            let body = read_upload_file(&file.path, scope)?;
            return Ok((body, (!media_type.is_empty()).then_some(media_type)));
        }
        if self.is_raw_body || self.has_nameless_arguments() {
            let mut body = String::new();
            for argument in &self.arguments {
                let value = argument.value.evaluate(scope);
                if argument.needs_encoding && !self.is_raw_body {
                    body.push_str(&self.encode_parameter(&value));
                } else {
                    body.push_str(&value);
                }
            }
            if body.is_empty() && !has_form {
                return Ok((Vec::new(), None));
            }
            // Bodies from a text area have bare line feeds, both in the file and in JMeter's requests.
            let media_type = format!("text/plain; charset={}", self.charset.name());
            return Ok((self.charset.encode(&body).into_owned(), Some(media_type)));
        }
        if has_form {
            let form = self.form_body(scope)?;
            return Ok((
                form.into_bytes(),
                Some(format!("{FORM_MEDIA_TYPE}; charset={}", self.charset.name())),
            ));
        }
        Ok((Vec::new(), None))
    }

    /// Returns true if the parameters of a method are sent as a form. Apache's client sends those of a DELETE twice:
    /// JMeter puts them into the URL, and the client into the body.
    fn sends_parameters_as_form(&self, method: &str) -> bool {
        match method {
            "POST" | "PUT" | "PATCH" => true,
            "GET" | "HEAD" | "OPTIONS" | "TRACE" => false,
            _ => !self.is_toml_plan && !self.is_java_client,
        }
    }

    fn has_nameless_arguments(&self) -> bool {
        !self.arguments.is_empty() && self.arguments.iter().all(|argument| argument.name.is_empty())
    }

    fn is_single_file_upload(&self) -> bool {
        matches!(self.file_uploads.as_slice(), [file] if file.name.is_empty()) && !self.is_multipart
    }

    fn multipart_body(
        &self,
        scope: &mut VariableScope,
    ) -> Result<(Vec<u8>, Option<String>), (String, String)> {
        let boundary = format!("{:016x}{:016x}", scope.next_random(), scope.next_random());
        let mut body = Vec::new();
        for argument in &self.arguments {
            let name = argument.name.evaluate(scope).into_owned();
            if name.is_empty() {
                continue;
            }
            let value = argument.value.evaluate(scope);
            let more = match self.is_browser_form {
                true => String::new(),
                false => format!(
                    "Content-Type: text/plain; charset={}\r\nContent-Transfer-Encoding: 8bit\r\n",
                    self.charset.name()
                ),
            };
            body.extend_from_slice(
                format!(
                    "--{boundary}\r\nContent-Disposition: form-data; name=\"{name}\"\r\n{more}\r\n"
                )
                .as_bytes(),
            );
            body.extend_from_slice(&self.charset.encode(&value));
            body.extend_from_slice(b"\r\n");
        }
        for file in &self.file_uploads {
            let content = read_upload_file(&file.path, scope)?;
            let path = file.path.evaluate(scope).into_owned();
            let file_name = path.rsplit('/').next().unwrap_or_default().to_owned();
            let name = file.name.evaluate(scope).into_owned();
            let media_type = file.media_type.evaluate(scope);
            let media_type =
                if media_type.is_empty() { "application/octet-stream" } else { &media_type };
            let more = match self.is_browser_form {
                true => "",
                false => "Content-Transfer-Encoding: binary\r\n",
            };
            body.extend_from_slice(
                format!(
                    "--{boundary}\r\nContent-Disposition: form-data; name=\"{name}\"; filename=\"{file_name}\"\r\nContent-Type: {media_type}\r\n{more}\r\n"
                )
                .as_bytes(),
            );
            body.extend_from_slice(&content);
            body.extend_from_slice(b"\r\n");
        }
        body.extend_from_slice(format!("--{boundary}--\r\n").as_bytes());
        Ok((body, Some(format!("multipart/form-data; boundary={boundary}"))))
    }

    /// Returns the credentials for the first request to a URL.
    pub fn preemptive_authorization(
        &self,
        url: &AbsoluteUrl,
        scope: &mut VariableScope,
    ) -> Option<Arc<str>> {
        let login = self.find_credentials(url, scope)?;
        // Java's own client supports nothing else.
        (login.is_preemptive_basic || self.is_java_client).then(|| login.basic_authorization(scope))
    }

    /// Returns the credentials for a URL.
    pub fn find_credentials(
        &self,
        url: &AbsoluteUrl,
        scope: &mut VariableScope,
    ) -> Option<&HttpCredentials> {
        if self.credentials.is_empty() {
            return None;
        }
        let scheme = if url.is_tls { "https" } else { "http" };
        let whole = format!("{scheme}://{}:{}{}", url.host, url.port, url.path_and_query);
        let short = format!("{scheme}://{}{}", url.host, url.path_and_query);
        self.credentials.iter().find(|login| {
            let prefix = login.url.evaluate(scope);
            prefix.is_empty() || whole.starts_with(&*prefix) || short.starts_with(&*prefix)
        })
    }
}

impl HttpCredentials {
    /// Returns user and password in `Basic` format.
    pub fn basic_authorization(&self, scope: &mut VariableScope) -> Arc<str> {
        use base64::Engine as _;
        let user = self.user.evaluate(scope).into_owned();
        let password = self.password.evaluate(scope);
        let encoded =
            base64::engine::general_purpose::STANDARD.encode(format!("{user}:{password}"));
        format!("Basic {encoded}").into()
    }
}

/// Parses the scheme and port of a simply written origin: true for TLS, and the port.
fn parse_simple_origin(protocol: &str, domain: &str, port: &str) -> Option<(bool, u16)> {
    let is_tls = match protocol {
        "" | "http" => false,
        "https" => true,
        _ => return None,
    };
    let is_name = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'.' | b'-');
    if domain.is_empty() || !domain.bytes().all(is_name) {
        return None;
    }
    let default = if is_tls { 443 } else { 80 };
    let port = if port.is_empty() { default } else { port.parse().ok()? };
    Some((is_tls, port))
}

/// Returns true if a byte is literal in path and query, regardless of its neighbors.
fn is_literal_byte(byte: u8) -> bool {
    byte.is_ascii_graphic()
        && !is_forbidden_byte(byte)
        && !matches!(byte, b'#' | b'%' | b'[' | b']')
}

/// Returns true if Java rejects a byte in a URL.
fn is_forbidden_byte(byte: u8) -> bool {
    matches!(byte, b'"' | b'<' | b'>' | b'\\' | b'^' | b'`' | b'{' | b'|' | b'}')
}

/// Returns true if the path of a target has an empty segment before its last one.
fn has_empty_segment(target: &str) -> bool {
    target.split('?').next().is_some_and(|path| path.contains("//"))
}

/// Removes empty segments of a path, except the last one. Apache's client then decodes and re-encodes the others.
fn without_empty_segments(target: &str) -> String {
    let (path, query) = match target.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (target, None),
    };
    let segments: Vec<&str> = path.split('/').skip(1).collect();
    let mut out = String::with_capacity(target.len());
    for (index, segment) in segments.iter().enumerate() {
        if segment.is_empty() && index + 1 < segments.len() {
            continue;
        }
        out.push('/');
        let decoded = percent_encoding::percent_decode_str(segment).decode_utf8_lossy();
        for byte in decoded.bytes() {
            let is_plain = byte.is_ascii_alphanumeric() || b"_-.*!~'();:@&=+$,".contains(&byte);
            if is_plain {
                out.push(char::from(byte));
            } else {
                write!(out, "%{byte:02X}").ok();
            }
        }
    }
    if let Some(query) = query {
        out.push('?');
        out.push_str(query);
    }
    out
}

/// Returns the position at which Java finds an invalid escape in a URL.
fn find_malformed_escape(text: &str) -> Option<usize> {
    text.match_indices('%').map(|(at, _)| at).find(|at| {
        let digits = text.as_bytes().get(at + 1..at + 3).unwrap_or_default();
        digits.len() < 2 || !digits.iter().all(u8::is_ascii_hexdigit)
    })
}

/// Returns the position of a bracket in the path of a URL, which Java rejects.
fn find_path_bracket(text: &str) -> Option<usize> {
    let authority = text.find("://").map_or(0, |at| at + 3);
    let end = text.find(['?', '#']).unwrap_or(text.len());
    let start = authority + text.get(authority..end)?.find('/')?;
    text.get(start..end)?.find(['[', ']']).map(|at| start + at)
}

/// Parses a URL as Java does, which rejects some characters; plans in TOML may have invalid escapes and brackets.
fn parse_url(text: &str, is_strict: bool) -> Result<AbsoluteUrl, (String, String)> {
    let is_illegal = |c: char| {
        c.is_whitespace() || c.is_control() || u8::try_from(c).is_ok_and(is_forbidden_byte)
    };
    let bracket = if is_strict { find_path_bracket(text) } else { None };
    if is_strict
        && bracket.is_none()
        && text.find(is_illegal).is_none()
        && let Some(at) = find_malformed_escape(text)
    {
        let message = format!("Malformed escape pair at index {at}: {text}");
        return Err(("java.net.URISyntaxException".to_owned(), message));
    }
    if let Some(at) = bracket.into_iter().chain(text.find(is_illegal)).min() {
        let is_query = text.find('?').is_some_and(|query| query < at);
        let part = if is_query { "query" } else { "path" };
        let message = format!("Illegal character in {part} at index {at}: {text}");
        return Err(("java.net.URISyntaxException".to_owned(), message));
    }
    AbsoluteUrl::parse(&encode_non_ascii(text))
        .map_err(|error| ("java.net.MalformedURLException".to_owned(), error.to_string()))
}

fn read_upload_file(
    path: &TextTemplate,
    scope: &mut VariableScope,
) -> Result<Vec<u8>, (String, String)> {
    let path = path.evaluate(scope).into_owned();
    let missing =
        |reason: String| ("java.io.FileNotFoundException".to_owned(), format!("{path} ({reason})"));
    let at = scope.run_context.files.locate(&path).map_err(&missing)?;
    std::fs::read(at).map_err(|error| missing(error.to_string()))
}

impl ResolvedHttpRequest {
    /// Returns path and query as sent.
    pub fn request_target(&self) -> Cow<'_, str> {
        if self.drops_empty_segments && has_empty_segment(&self.url.path_and_query) {
            return without_empty_segments(&self.url.path_and_query).into();
        }
        self.url.path_and_query.as_str().into()
    }

    /// Returns the bytes to write.
    pub fn to_wire_bytes(&self, cookies: Option<&str>) -> Vec<u8> {
        let headers: usize =
            self.headers.iter().map(|(name, value)| name.len() + value.len() + 4).sum();
        let authorization = self.authorization.as_deref().map_or(0, str::len);
        let length = self.url.path_and_query.len() + headers + authorization + self.body.len();
        let mut text = String::with_capacity(length + cookies.map_or(0, str::len) + 256);
        text.push_str(&self.method);
        text.push(' ');
        text.push_str(&self.request_target());
        text.push_str(" HTTP/1.1\r\n");
        push_header(&mut text, "Connection", if self.keep_alive { "keep-alive" } else { "close" });
        // The manager's cookies replace the first cookies that the plan writes itself.
        let mut manager = cookies;
        for (name, value) in &self.headers {
            match manager.filter(|_| name.eq_ignore_ascii_case("Cookie")) {
                Some(cookies) => {
                    push_header(&mut text, "Cookie", cookies);
                    manager = None;
                }
                None => push_header(&mut text, name, value),
            }
        }
        if let Some(media_type) =
            self.media_type.as_ref().filter(|_| !contains_header(&self.headers, "Content-Type"))
        {
            push_header(&mut text, "Content-Type", media_type);
        }
        if let Some(authorization) = &self.authorization {
            push_header(&mut text, "Authorization", authorization);
        }
        if !contains_header(&self.headers, "Host") {
            text.push_str("Host: ");
            push_authority(&mut text, &self.url);
            text.push_str("\r\n");
        }
        if !contains_header(&self.headers, "User-Agent") {
            push_header(&mut text, "User-Agent", USER_AGENT);
        }
        if let Some(cookies) = manager {
            push_header(&mut text, "Cookie", cookies);
        }
        if !self.body.is_empty() || self.announces_body {
            write!(text, "Content-Length: {}\r\n", self.body.len()).ok();
        }
        text.push_str("\r\n");
        let mut bytes = text.into_bytes();
        bytes.extend_from_slice(&self.body);
        bytes
    }

    /// Returns the URL as shown in results.
    pub fn display_url(&self) -> String {
        format_url(&self.url)
    }
}

/// Returns a URL as shown in results: the default port of the scheme is omitted.
pub fn format_url(url: &AbsoluteUrl) -> String {
    let mut text = String::with_capacity(url.host.len() + url.path_and_query.len() + 16);
    text.push_str(if url.is_tls { "https://" } else { "http://" });
    push_authority(&mut text, url);
    text.push_str(&url.path_and_query);
    text
}

/// Appends host and port; the default port of the scheme is omitted.
fn push_authority(text: &mut String, url: &AbsoluteUrl) {
    text.push_str(&url.host);
    if url.port != if url.is_tls { 443 } else { 80 } {
        write!(text, ":{}", url.port).ok();
    }
}

fn push_header(text: &mut String, name: &str, value: &str) {
    text.push_str(name);
    text.push_str(": ");
    text.push_str(value);
    text.push_str("\r\n");
}

fn contains_header(headers: &[(Arc<str>, Arc<str>)], name: &str) -> bool {
    headers.iter().any(|(header_name, _)| header_name.eq_ignore_ascii_case(name))
}

/// Trims whitespace from the text; a line break in a value would start another header.
fn trim_header_value(text: Arc<str>) -> Arc<str> {
    let trimmed = text.trim();
    let has_breaks = trimmed.bytes().any(|byte| matches!(byte, b'\r' | b'\n'));
    if !has_breaks && trimmed.len() == text.len() {
        return text;
    }
    trimmed.replace(['\r', '\n'], " ").into()
}

fn encode_non_ascii(text: &str) -> Cow<'_, str> {
    if text.is_ascii() {
        return Cow::Borrowed(text);
    }
    let mut out = String::new();
    for c in text.chars() {
        if c.is_ascii() {
            out.push(c);
        } else {
            let mut bytes = [0; 4];
            for byte in c.encode_utf8(&mut bytes).bytes() {
                write!(out, "%{byte:02X}").ok();
            }
        }
    }
    Cow::Owned(out)
}
