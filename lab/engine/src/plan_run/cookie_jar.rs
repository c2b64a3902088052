//! The cookies of one user (RFC 6265, as far as load plans require).

use std::borrow::Cow;
use std::time::{Duration, SystemTime};

use tympan_lab_plan::AbsoluteUrl;

#[derive(Debug, Clone, PartialEq, Eq)]
struct JarCookie {
    name: String,
    value: String,
    domain: String,
    /// True if sent to `domain` only, not to its subdomains.
    is_host_only: bool,
    path: String,
    is_secure: bool,
    expires: Option<SystemTime>,
}

/// Cookies from servers or from a plan.
#[derive(Debug, Clone, Default)]
pub(crate) struct CookieJar(Vec<JarCookie>);

/// Maximum number of cookies, because a server may set cookies without end.
const MAX_COOKIES: usize = 200;

impl CookieJar {
    /// Adds a cookie of the plan to the jar.
    pub(crate) fn set_plan_cookie(
        &mut self,
        name: &str,
        value: &str,
        domain_and_path: (&str, &str),
        is_secure: bool,
    ) {
        let (domain, path) = domain_and_path;
        self.put_cookie(JarCookie {
            name: name.to_owned(),
            value: value.to_owned(),
            domain: domain.trim_start_matches('.').to_ascii_lowercase(),
            is_host_only: !domain.starts_with('.'),
            path: if path.is_empty() { "/".to_owned() } else { path.to_owned() },
            is_secure,
            expires: None,
        });
    }

    /// Stores one `Set-Cookie` value of a response from `url`.
    pub(crate) fn set_from_response(&mut self, header: &str, url: &AbsoluteUrl, now: SystemTime) {
        let mut parts = header.split(';');
        let Some((name, value)) = parts.next().and_then(|pair| pair.split_once('=')) else {
            return;
        };
        let host = url.host.to_ascii_lowercase();
        let mut cookie = JarCookie {
            name: name.trim().to_owned(),
            value: value.trim().to_owned(),
            domain: host.clone(),
            is_host_only: true,
            path: default_cookie_path(&url.path_and_query),
            is_secure: false,
            expires: None,
        };
        if cookie.name.is_empty() {
            return;
        }
        let mut max_age = None;
        for part in parts {
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            let value = value.trim().trim_matches('"');
            match key.trim().to_ascii_lowercase().as_str() {
                "domain" if !value.is_empty() => {
                    cookie.domain = value.trim_start_matches('.').to_ascii_lowercase();
                    cookie.is_host_only = false;
                }
                "path" if value.starts_with('/') => value.clone_into(&mut cookie.path),
                "secure" => cookie.is_secure = true,
                "max-age" => max_age = value.parse::<i64>().ok(),
                "expires" => cookie.expires = httpdate::parse_http_date(value).ok(),
                _ => {}
            }
        }
        if !cookie.is_host_only && !is_domain_match(&host, &cookie.domain) {
            return;
        }
        if let Some(seconds) = max_age {
            let span = Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
            cookie.expires = Some(now + span);
        }
        if cookie.expires.is_some_and(|expires| expires <= now) {
            self.0.retain(|existing| !existing.is_same_cookie(&cookie));
        } else {
            self.put_cookie(cookie);
        }
    }

    fn put_cookie(&mut self, cookie: JarCookie) {
        if let Some(existing) = self.0.iter_mut().find(|existing| existing.is_same_cookie(&cookie))
        {
            *existing = cookie;
        } else if self.0.len() < MAX_COOKIES {
            self.0.push(cookie);
        }
    }

    /// Returns the value of the `Cookie` header for a request that is sent now.
    pub(crate) fn cookie_header(&self, url: &AbsoluteUrl) -> Option<String> {
        if self.0.is_empty() {
            return None;
        }
        self.cookie_header_at(url, &SystemTime::now)
    }

    /// Returns the value of the `Cookie` header; `now` is called only if a cookie expires.
    fn cookie_header_at(&self, url: &AbsoluteUrl, now: &dyn Fn() -> SystemTime) -> Option<String> {
        let host = match url.host.bytes().any(|byte| byte.is_ascii_uppercase()) {
            true => Cow::Owned(url.host.to_ascii_lowercase()),
            false => Cow::Borrowed(url.host.as_str()),
        };
        let path = url.path_and_query.split('?').next().unwrap_or("/");
        let fits = |cookie: &&JarCookie| {
            let fits_host = if cookie.is_host_only {
                cookie.domain == host
            } else {
                is_domain_match(&host, &cookie.domain)
            };
            fits_host
                && is_path_match(path, &cookie.path)
                && (url.is_tls || !cookie.is_secure)
                && cookie.expires.is_none_or(|expires| expires > now())
        };
        let mut fitting: Vec<&JarCookie> = self.0.iter().filter(fits).collect();
        fitting.sort_by_key(|cookie| std::cmp::Reverse(cookie.path.len()));
        let mut text = String::new();
        for cookie in fitting {
            if !text.is_empty() {
                text.push_str("; ");
            }
            text.push_str(&cookie.name);
            text.push('=');
            text.push_str(&cookie.value);
        }
        (!text.is_empty()).then_some(text)
    }
}

impl JarCookie {
    fn is_same_cookie(&self, other: &Self) -> bool {
        self.name == other.name && self.domain == other.domain && self.path == other.path
    }
}

fn is_domain_match(host: &str, domain: &str) -> bool {
    host == domain || host.strip_suffix(domain).is_some_and(|left| left.ends_with('.'))
}

fn is_path_match(path: &str, cookie: &str) -> bool {
    path == cookie
        || path
            .strip_prefix(cookie)
            .is_some_and(|rest| cookie.ends_with('/') || rest.starts_with('/'))
}

fn default_cookie_path(target: &str) -> String {
    let path = target.split('?').next().unwrap_or("/");
    match path.rsplit_once('/') {
        Some(("", _)) | None => "/".to_owned(),
        Some((folder, _)) => folder.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(set: &[&str], at: &str, request_url: &str, expected: Option<&str>) {
        let mut jar = CookieJar::default();
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(2_000_000_000);
        for header in set {
            jar.set_from_response(header, &AbsoluteUrl::parse(at).unwrap(), now);
        }
        assert_eq!(
            jar.cookie_header_at(&AbsoluteUrl::parse(request_url).unwrap(), &|| now).as_deref(),
            expected,
            "{set:?} {request_url}"
        );
    }

    #[test]
    fn cookies_go_where_their_attributes_say() {
        let at = "http://a.example/shop/cart";
        check(&["s=1"], at, "http://a.example/shop/x", Some("s=1"));
        check(&["s=1"], at, "http://a.example/", None);
        check(&["s=1; Path=/"], at, "http://a.example/", Some("s=1"));
        check(&["s=1; Path=/"], at, "http://b.example/", None);
        check(&["s=1; Path=/; Domain=example"], at, "http://b.example/", Some("s=1"));
        check(&["s=1; Path=/; Domain=other.example"], at, "http://other.example/", None);
        check(&["s=1; Path=/; Secure"], at, "http://a.example/", None);
        check(&["s=1; Path=/; Secure"], at, "https://a.example/", Some("s=1"));
        check(&["s=1; Path=/", "s=2; Path=/"], at, "http://a.example/", Some("s=2"));
        check(&["s=1; Path=/", "s=; Path=/; Max-Age=0"], at, "http://a.example/", None);
        check(
            &["s=1; Path=/; Expires=Wed, 21 Oct 2015 07:28:00 GMT"],
            at,
            "http://a.example/",
            None,
        );
        check(&["a=1; Path=/", "b=2; Path=/shop"], at, "http://a.example/shop/", Some("b=2; a=1"));
    }
}
