//! What an HTTP sampler says, and the request that it becomes.
//!
//! The bytes are those that JMeter's default implementation sends: its headers, its form encoding, its rule of what is a
//! query and what a body.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::sync::Arc;

use super::charset::Charset;
use super::scope::Scope;
use super::template::Template;
use crate::net::Url;

/// A parameter.
#[derive(Debug, Clone)]
pub(super) struct Argument {
    pub(super) name: Template,
    pub(super) value: Template,
    /// Encoded by the sampler; else it is encoded already: a query has it as it stands, a form decodes and encodes it.
    pub(super) encodes: bool,
    /// `=`, or nothing.
    pub(super) separator: String,
}

/// A file that is sent.
#[derive(Debug, Clone)]
pub(super) struct FilePart {
    pub(super) path: Template,
    pub(super) name: Template,
    pub(super) media_type: Template,
}

/// Credentials for URLs below a prefix.
#[derive(Debug, Clone)]
pub(super) struct Login {
    pub(super) url: Template,
    pub(super) user: Template,
    pub(super) password: Template,
    /// What the server has to call what it guards; empty for anything.
    pub(super) realm: Template,
    /// Sent with the first request already; else only where the server asks, with a digest.
    pub(super) is_basic: bool,
}

/// Everything about a request that a plan gives.
#[derive(Debug, Clone, Default)]
pub(super) struct HttpSpec {
    pub(super) protocol: Template,
    pub(super) domain: Template,
    pub(super) port: Template,
    pub(super) path: Template,
    pub(super) method: Template,
    pub(super) arguments: Vec<Argument>,
    pub(super) files: Vec<FilePart>,
    /// In which parameters and bodies are written.
    pub(super) charset: Charset,
    pub(super) is_raw: bool,
    /// Java's own client instead of Apache's: other headers.
    pub(super) is_java: bool,
    /// A plan of the lab's own: a query is nothing but a query, and addresses are sent as they are written.
    pub(super) is_own: bool,
    pub(super) is_multipart: bool,
    /// Parts of a form say no more of themselves than browsers let them.
    pub(super) is_browser_form: bool,
    pub(super) follows: bool,
    pub(super) follows_silently: bool,
    pub(super) keep_alive: bool,
    pub(super) connect_timeout: Template,
    pub(super) response_timeout: Template,
    pub(super) headers: Vec<(Template, Template)>,
    /// The cookie manager in scope.
    pub(super) cookies: Option<usize>,
    /// The cache manager in scope.
    pub(super) cache: Option<usize>,
    pub(super) logins: Vec<Login>,
    /// Where in [`super::model::Model::hosts`] the addresses stand that names have for this request.
    pub(super) hosts: Option<usize>,
    /// The address of this machine that requests are sent from; empty for the system's choice.
    pub(super) source: Template,
    /// Parts of the page are fetched too; how many at a time.
    pub(super) embedded: Option<Embedded>,
}

/// How parts of a page are fetched.
#[derive(Debug, Clone)]
pub(super) struct Embedded {
    pub(super) parallel: usize,
    pub(super) only: Option<Template>,
    pub(super) except: Option<Template>,
}

/// A request whose places are filled in.
#[derive(Debug, Clone)]
pub(super) struct Drawn {
    pub(super) method: Cow<'static, str>,
    pub(super) url: Url,
    /// What the header `Connection` says, which comes first.
    pub(super) keep_alive: bool,
    /// Names and values in the order of sending, `Connection` and `Content-Length` excepted; a `Cookie` is sent only
    /// where the cookie manager has none.
    pub(super) headers: Vec<(Arc<str>, Arc<str>)>,
    /// The type of the body, where no header says it.
    pub(super) media_type: Option<Arc<str>>,
    /// A body is announced even if it is empty.
    pub(super) has_body: bool,
    /// Empty segments of the path are not sent, as by Apache's client.
    pub(super) drops_empty_segments: bool,
    /// The credentials of the plan's authorization manager for this address.
    pub(super) authorization: Option<Arc<str>>,
    pub(super) body: Vec<u8>,
}

/// The media type of a form, without its character set.
const FORM: &str = "application/x-www-form-urlencoded";
/// What Java's own client sends.
const JAVA_AGENT: &str = concat!("Java/17 (tympan lab ", env!("CARGO_PKG_VERSION"), ")");
const JAVA_ACCEPT: &str = "text/html, image/gif, image/jpeg, */*; q=0.2";

/// The name that the engine's requests carry where a plan gives none: the one of JMeter's default implementation,
/// because servers and dispatchers decide by it.
const USER_AGENT: &str =
    concat!("Apache-HttpClient/4.5.14 (tympan lab ", env!("CARGO_PKG_VERSION"), ")");

impl HttpSpec {
    /// Fills in the places.
    ///
    /// # Errors
    /// Java's name of what JMeter would fail with, and its message.
    pub(super) fn draw(&self, scope: &mut Scope) -> Result<Drawn, (String, String)> {
        let method: Cow<'static, str> = match self.method.draw(scope).trim() {
            "" | "GET" => "GET".into(),
            "POST" => "POST".into(),
            "HEAD" => "HEAD".into(),
            other => other.to_uppercase().into(),
        };
        if !method.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-') {
            let message = format!("Invalid HTTP method: {method}");
            return Err(("java.net.ProtocolException".to_owned(), message));
        }
        let url = self.draw_url(&method, scope)?;
        let mut headers: Vec<(Arc<str>, Arc<str>)> = Vec::with_capacity(self.headers.len() + 2);
        for (name, value) in &self.headers {
            let name = clean(name.share(scope));
            let value = value.share(scope);
            if name.is_empty() || name.eq_ignore_ascii_case("Content-Length") {
                continue;
            }
            // A plan that says `Connection` itself gets it twice, as in JMeter.
            headers.push((name, clean(value)));
        }
        if self.is_java {
            for (name, value) in [("User-Agent", JAVA_AGENT), ("Accept", JAVA_ACCEPT)] {
                if !has(&headers, name) {
                    headers.push((name.into(), value.into()));
                }
            }
        }
        let (body, media_type) = self.draw_body(&method, scope)?;
        let authorization = self.credentials(&url, scope);
        Ok(Drawn {
            has_body: self.sends_form(&method),
            drops_empty_segments: !self.is_own && !self.is_java,
            method,
            url,
            keep_alive: self.keep_alive,
            headers,
            media_type: media_type.map(Into::into),
            authorization,
            body,
        })
    }

    fn draw_url(&self, method: &str, scope: &mut Scope) -> Result<Url, (String, String)> {
        let mut path = self.path.draw(scope);
        // JMeter encodes spaces of the path, and of the query that stands there, and nothing else of them.
        if !self.is_own && path.contains(' ') {
            path = path.replace(' ', "%20").into();
        }
        if path.starts_with("http://") || path.starts_with("https://") {
            return parse_url(&path, !self.is_own);
        }
        let (protocol, domain, port) =
            (self.protocol.draw(scope), self.domain.draw(scope), self.port.draw(scope));
        let (protocol, domain, port) = (protocol.trim(), domain.trim(), port.trim());
        let port = if port == "0" { "" } else { port };
        let mut target = String::with_capacity(path.len() + 1);
        if !path.starts_with('/') {
            target.push('/');
        }
        target.push_str(&path);
        let has_query =
            matches!(method, "GET" | "DELETE" | "OPTIONS") || (method == "HEAD" && self.is_own);
        if has_query && !self.is_raw {
            let query = self.draw_form(scope);
            if !query.is_empty() {
                target.push(if path.contains('?') { '&' } else { '?' });
                target.push_str(&query);
            }
        }
        if let Some((is_tls, port)) = plain_place(protocol, domain, port)
            && target.bytes().all(is_plain)
        {
            return Ok(Url { is_tls, host: domain.to_owned(), port, target });
        }
        let protocol = if protocol.is_empty() { "http" } else { protocol };
        let mut text = format!("{}://{domain}", protocol.to_ascii_lowercase());
        if !port.is_empty() {
            write!(text, ":{port}").ok();
        }
        text.push_str(&target);
        parse_url(&text, !self.is_own)
    }

    /// Returns the parameters as the body of a form. What is not to be encoded is encoded already, so that JMeter
    /// decodes it first.
    fn draw_form_body(&self, scope: &mut Scope) -> Result<String, (String, String)> {
        if self.is_java || self.is_own {
            return Ok(self.draw_form(scope));
        }
        let mut out = String::new();
        for argument in &self.arguments {
            let mut name = argument.name.draw(scope).into_owned();
            if name.is_empty() {
                continue;
            }
            let mut value = argument.value.draw(scope).into_owned();
            if !argument.encodes {
                (name, value) = (self.decode(&name)?, self.decode(&value)?);
            }
            if !out.is_empty() {
                out.push('&');
            }
            out.push_str(&self.encode(&name));
            out.push('=');
            out.push_str(&self.encode(&value));
        }
        Ok(out)
    }

    /// Encodes a text for a form or a query.
    fn encode(&self, text: &str) -> String {
        encode_form_bytes(&self.charset.encode(text))
    }

    /// Decodes what is encoded in that way.
    fn decode(&self, text: &str) -> Result<String, (String, String)> {
        Ok(self.charset.decode(&decode_form_bytes(&self.charset.encode(text))?).into_owned())
    }

    /// Returns the parameters as a query.
    fn draw_form(&self, scope: &mut Scope) -> String {
        let mut out = String::new();
        for argument in &self.arguments {
            let name = argument.name.draw(scope).into_owned();
            if name.is_empty() {
                continue;
            }
            let value = argument.value.draw(scope);
            if !out.is_empty() {
                out.push('&');
            }
            if argument.encodes {
                out.push_str(&self.encode(&name));
                out.push_str(&argument.separator);
                out.push_str(&self.encode(&value));
            } else {
                out.push_str(&name);
                out.push_str(&argument.separator);
                out.push_str(&value);
            }
        }
        out
    }

    fn draw_body(
        &self,
        method: &str,
        scope: &mut Scope,
    ) -> Result<(Vec<u8>, Option<String>), (String, String)> {
        let has_form = self.sends_form(method);
        if !self.is_own && !self.is_java && matches!(method, "HEAD" | "OPTIONS" | "TRACE") {
            return Ok((Vec::new(), None));
        }
        if has_form && (self.is_multipart || (!self.files.is_empty() && !self.is_single_file())) {
            return self.draw_multipart(scope);
        }
        if has_form && let (true, Some(file)) = (self.is_single_file(), self.files.first()) {
            let media_type = file.media_type.draw(scope).into_owned();
            let body = read_file(&file.path, scope)?;
            return Ok((body, (!media_type.is_empty()).then_some(media_type)));
        }
        if self.is_raw || self.has_nameless_arguments() {
            let mut body = String::new();
            for argument in &self.arguments {
                let value = argument.value.draw(scope);
                if argument.encodes && !self.is_raw {
                    body.push_str(&self.encode(&value));
                } else {
                    body.push_str(&value);
                }
            }
            if body.is_empty() && !has_form {
                return Ok((Vec::new(), None));
            }
            // Bodies that come from a text area have bare line feeds in the file and in what JMeter sends.
            let media_type = format!("text/plain; charset={}", self.charset.name());
            return Ok((self.charset.encode(&body).into_owned(), Some(media_type)));
        }
        if has_form {
            let form = self.draw_form_body(scope)?;
            return Ok((
                form.into_bytes(),
                Some(format!("{FORM}; charset={}", self.charset.name())),
            ));
        }
        Ok((Vec::new(), None))
    }

    /// Reports whether parameters of a method are sent as a form. Apache's client sends those of a DELETE twice: JMeter
    /// puts them into the address, and the client into the body.
    fn sends_form(&self, method: &str) -> bool {
        match method {
            "POST" | "PUT" | "PATCH" => true,
            "GET" | "HEAD" | "OPTIONS" | "TRACE" => false,
            _ => !self.is_own && !self.is_java,
        }
    }

    fn has_nameless_arguments(&self) -> bool {
        !self.arguments.is_empty() && self.arguments.iter().all(|argument| argument.name.is_empty())
    }

    fn is_single_file(&self) -> bool {
        matches!(self.files.as_slice(), [file] if file.name.is_empty()) && !self.is_multipart
    }

    fn draw_multipart(
        &self,
        scope: &mut Scope,
    ) -> Result<(Vec<u8>, Option<String>), (String, String)> {
        let boundary = format!("{:016x}{:016x}", scope.random(), scope.random());
        let mut body = Vec::new();
        for argument in &self.arguments {
            let name = argument.name.draw(scope).into_owned();
            if name.is_empty() {
                continue;
            }
            let value = argument.value.draw(scope);
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
        for file in &self.files {
            let content = read_file(&file.path, scope)?;
            let path = file.path.draw(scope).into_owned();
            let shown = path.rsplit('/').next().unwrap_or_default().to_owned();
            let name = file.name.draw(scope).into_owned();
            let media_type = file.media_type.draw(scope);
            let media_type =
                if media_type.is_empty() { "application/octet-stream" } else { &media_type };
            let more = match self.is_browser_form {
                true => "",
                false => "Content-Transfer-Encoding: binary\r\n",
            };
            body.extend_from_slice(
                format!(
                    "--{boundary}\r\nContent-Disposition: form-data; name=\"{name}\"; filename=\"{shown}\"\r\nContent-Type: {media_type}\r\n{more}\r\n"
                )
                .as_bytes(),
            );
            body.extend_from_slice(&content);
            body.extend_from_slice(b"\r\n");
        }
        body.extend_from_slice(format!("--{boundary}--\r\n").as_bytes());
        Ok((body, Some(format!("multipart/form-data; boundary={boundary}"))))
    }

    /// Returns the credentials that go with the first request for an address.
    pub(super) fn credentials(&self, url: &Url, scope: &mut Scope) -> Option<Arc<str>> {
        let login = self.login(url, scope)?;
        // Java's own client knows nothing else.
        (login.is_basic || self.is_java).then(|| login.basic(scope))
    }

    /// Returns the credentials for an address.
    pub(super) fn login(&self, url: &Url, scope: &mut Scope) -> Option<&Login> {
        if self.logins.is_empty() {
            return None;
        }
        let scheme = if url.is_tls { "https" } else { "http" };
        let whole = format!("{scheme}://{}:{}{}", url.host, url.port, url.target);
        let short = format!("{scheme}://{}{}", url.host, url.target);
        self.logins.iter().find(|login| {
            let prefix = login.url.draw(scope);
            prefix.is_empty() || whole.starts_with(&*prefix) || short.starts_with(&*prefix)
        })
    }
}

impl Login {
    /// Returns user and password as `Basic` has them.
    pub(super) fn basic(&self, scope: &mut Scope) -> Arc<str> {
        use base64::Engine as _;
        let user = self.user.draw(scope).into_owned();
        let password = self.password.draw(scope);
        let encoded =
            base64::engine::general_purpose::STANDARD.encode(format!("{user}:{password}"));
        format!("Basic {encoded}").into()
    }
}

/// Returns whether a place is one of TLS, and its port, if it is written as nearly all are.
fn plain_place(protocol: &str, domain: &str, port: &str) -> Option<(bool, u16)> {
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

/// Reports whether a byte stands for itself in path and query, whatever is beside it.
fn is_plain(byte: u8) -> bool {
    byte.is_ascii_graphic() && !is_forbidden(byte) && !matches!(byte, b'#' | b'%' | b'[' | b']')
}

/// Reports whether Java refuses a byte in an address.
fn is_forbidden(byte: u8) -> bool {
    matches!(byte, b'"' | b'<' | b'>' | b'\\' | b'^' | b'`' | b'{' | b'|' | b'}')
}

/// Reports whether the path of a target has a segment without a name before its last one.
fn has_empty_segment(target: &str) -> bool {
    target.split('?').next().is_some_and(|path| path.contains("//"))
}

/// Leaves empty segments of a path out, but for the last one. Apache's client decodes and encodes the others then.
fn without_empty_segments(target: &str) -> String {
    let (path, query) = match target.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (target, None),
    };
    let segments: Vec<&str> = path.split('/').skip(1).collect();
    let mut out = String::with_capacity(target.len());
    for (place, segment) in segments.iter().enumerate() {
        if segment.is_empty() && place + 1 < segments.len() {
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

/// Returns where Java finds an escape in an address that is none.
fn malformed_escape(text: &str) -> Option<usize> {
    text.match_indices('%').map(|(at, _)| at).find(|at| {
        let digits = text.as_bytes().get(at + 1..at + 3).unwrap_or_default();
        digits.len() < 2 || !digits.iter().all(u8::is_ascii_hexdigit)
    })
}

/// Decodes what a form holds, as Java does.
pub(super) fn decode_form(text: &str) -> Result<String, (String, String)> {
    decode_form_bytes(text.as_bytes()).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

fn decode_form_bytes(text: &[u8]) -> Result<Vec<u8>, (String, String)> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        match byte {
            b'+' => bytes.push(b' '),
            b'%' => {
                let fault = |words: &str| {
                    (
                        "java.lang.IllegalArgumentException".to_owned(),
                        format!("URLDecoder: {words}"),
                    )
                };
                let digits = after
                    .get(..2)
                    .ok_or_else(|| fault("Incomplete trailing escape (%) pattern"))?;
                let value = std::str::from_utf8(digits)
                    .ok()
                    .filter(|_| digits.iter().all(u8::is_ascii_hexdigit))
                    .and_then(|digits| u8::from_str_radix(digits, 16).ok())
                    .ok_or_else(|| fault("Illegal hex characters in escape (%) pattern"))?;
                bytes.push(value);
                rest = after.get(2..).unwrap_or_default();
            }
            other => bytes.push(other),
        }
    }
    Ok(bytes)
}

/// Returns where a bracket stands in the path of an address, which Java refuses.
fn path_bracket(text: &str) -> Option<usize> {
    let authority = text.find("://").map_or(0, |at| at + 3);
    let end = text.find(['?', '#']).unwrap_or(text.len());
    let start = authority + text.get(authority..end)?.find('/')?;
    text.get(start..end)?.find(['[', ']']).map(|at| start + at)
}

/// Reads an address as Java does, which refuses some characters; plans in TOML may have broken escapes and brackets.
fn parse_url(text: &str, is_strict: bool) -> Result<Url, (String, String)> {
    let is_illegal =
        |c: char| c.is_whitespace() || c.is_control() || u8::try_from(c).is_ok_and(is_forbidden);
    let bracket = if is_strict { path_bracket(text) } else { None };
    if is_strict
        && bracket.is_none()
        && text.find(is_illegal).is_none()
        && let Some(at) = malformed_escape(text)
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
    Url::parse(&encode_beyond_ascii(text))
        .map_err(|error| ("java.net.MalformedURLException".to_owned(), error.to_string()))
}

fn read_file(path: &Template, scope: &mut Scope) -> Result<Vec<u8>, (String, String)> {
    let path = path.draw(scope).into_owned();
    let missing =
        |reason: String| ("java.io.FileNotFoundException".to_owned(), format!("{path} ({reason})"));
    let at = scope.world.files.locate(&path).map_err(&missing)?;
    std::fs::read(at).map_err(|error| missing(error.to_string()))
}

impl Drawn {
    /// Returns path and query as they are sent.
    pub(super) fn target(&self) -> Cow<'_, str> {
        if self.drops_empty_segments && has_empty_segment(&self.url.target) {
            return without_empty_segments(&self.url.target).into();
        }
        self.url.target.as_str().into()
    }

    /// Returns the bytes to write.
    pub(super) fn bytes(&self, cookies: Option<&str>) -> Vec<u8> {
        let headers: usize =
            self.headers.iter().map(|(name, value)| name.len() + value.len() + 4).sum();
        let authorization = self.authorization.as_deref().map_or(0, str::len);
        let length = self.url.target.len() + headers + authorization + self.body.len();
        let mut text = String::with_capacity(length + cookies.map_or(0, str::len) + 256);
        text.push_str(&self.method);
        text.push(' ');
        text.push_str(&self.target());
        text.push_str(" HTTP/1.1\r\n");
        push_header(&mut text, "Connection", if self.keep_alive { "keep-alive" } else { "close" });
        // The manager's cookies stand in the place of the first ones that the plan writes itself.
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
            self.media_type.as_ref().filter(|_| !has(&self.headers, "Content-Type"))
        {
            push_header(&mut text, "Content-Type", media_type);
        }
        if let Some(authorization) = &self.authorization {
            push_header(&mut text, "Authorization", authorization);
        }
        if !has(&self.headers, "Host") {
            text.push_str("Host: ");
            push_authority(&mut text, &self.url);
            text.push_str("\r\n");
        }
        if !has(&self.headers, "User-Agent") {
            push_header(&mut text, "User-Agent", USER_AGENT);
        }
        if let Some(cookies) = manager {
            push_header(&mut text, "Cookie", cookies);
        }
        if !self.body.is_empty() || self.has_body {
            write!(text, "Content-Length: {}\r\n", self.body.len()).ok();
        }
        text.push_str("\r\n");
        let mut bytes = text.into_bytes();
        bytes.extend_from_slice(&self.body);
        bytes
    }

    /// Returns the URL as results show it.
    pub(super) fn shown_url(&self) -> String {
        show(&self.url)
    }
}

/// Returns a URL as results show it: the scheme's own port is left out.
pub(super) fn show(url: &Url) -> String {
    let mut text = String::with_capacity(url.host.len() + url.target.len() + 16);
    text.push_str(if url.is_tls { "https://" } else { "http://" });
    push_authority(&mut text, url);
    text.push_str(&url.target);
    text
}

/// Adds host and port; the scheme's own port is left out.
fn push_authority(text: &mut String, url: &Url) {
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

fn has(headers: &[(Arc<str>, Arc<str>)], name: &str) -> bool {
    headers.iter().any(|(known, _)| known.eq_ignore_ascii_case(name))
}

/// Returns the text without space around it; a line break in a value would be a header of its own.
fn clean(text: Arc<str>) -> Arc<str> {
    let trimmed = text.trim();
    let has_breaks = trimmed.bytes().any(|byte| matches!(byte, b'\r' | b'\n'));
    if !has_breaks && trimmed.len() == text.len() {
        return text;
    }
    trimmed.replace(['\r', '\n'], " ").into()
}

/// Encodes as forms do: a space is a plus.
pub(super) fn encode_form(text: &str) -> String {
    encode_form_bytes(text.as_bytes())
}

fn encode_form_bytes(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for &byte in bytes {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'-' | b'*' | b'_' => {
                out.push(char::from(byte))
            }
            b' ' => out.push('+'),
            _ => {
                write!(out, "%{byte:02X}").ok();
            }
        }
    }
    out
}

fn encode_beyond_ascii(text: &str) -> Cow<'_, str> {
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
