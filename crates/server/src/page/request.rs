//! The content that a request asks for, and additional options of its user.

use http::request::Parts;
use http::{HeaderMap, Method};
use tympan_content::Viewer;
use tympan_render::{FragmentCacheOverride, ReadRecording, RenderRequest, RequestVisitor};
use tympan_web::listen::ConnectionPeer;

use crate::failure::Result;
use crate::login::RequestIdentity;
use crate::{Instance, InstanceRole};

/// The request data for rendering, detached from the connection.
#[derive(Clone)]
pub(crate) struct PageRequest {
    pub(super) viewer: Viewer,
    pub(super) path: String,
    pub(super) branch: Option<String>,
    pub(super) query: String,
    pub(super) headers: HeaderMap,
    pub(super) is_edit: bool,
    pub(super) method: &'static str,
    /// The fields of a form, urlencoded.
    pub(super) form: String,
    pub(super) peer: Option<ConnectionPeer>,
    pub(super) user: Option<String>,
}

/// The header by which caches announce that they process includes (ESI 1.0, section 6).
pub(crate) const SURROGATE_CAPABILITY: &str = "surrogate-capability";

impl PageRequest {
    /// Creates the page request of a user, as for visitors.
    pub(crate) fn from_identity(identity: Option<&RequestIdentity>, parts: &Parts) -> Self {
        Self {
            viewer: identity.map_or_else(Viewer::anonymous, RequestIdentity::viewer),
            is_edit: false,
            branch: None,
            query: parts.uri.query().unwrap_or_default().to_owned(),
            headers: parts.headers.clone(),
            method: if parts.method == Method::HEAD { "HEAD" } else { "GET" },
            form: String::new(),
            peer: parts.extensions.get::<ConnectionPeer>().copied(),
            user: identity.map(|identity| identity.user.clone()),
            path: parts.uri.path().to_owned(),
        }
    }

    /// Returns the same request with a form.
    pub(crate) fn with_form(self, form: String) -> Self {
        Self { method: "POST", form, ..self }
    }

    /// Returns the same request without a login.
    pub(super) fn as_anonymous(&self) -> Self {
        Self { viewer: Viewer::anonymous(), user: None, ..self.clone() }
    }

    /// Returns true if the request comes from a user who is logged in to a publisher.
    pub(super) fn is_member(&self, instance: &Instance) -> bool {
        self.user.is_some() && instance.role == InstanceRole::Publish
    }

    /// Returns true if the request consists of a path only, so that its response is the same for all visitors.
    pub(super) fn is_path_only(&self) -> bool {
        self.user.is_none()
            && self.query.is_empty()
            && self.branch.is_none()
            && !self.supports_esi()
    }

    /// Returns true if the client processes ESI includes.
    pub(super) fn supports_esi(&self) -> bool {
        self.header(SURROGATE_CAPABILITY)
            .split([',', '"', ' '])
            .any(|capability| capability == "SSI/1.0")
    }

    /// Returns a header's value.
    pub(super) fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    /// Returns the scheme of the request.
    pub(super) fn scheme(&self) -> &'static str {
        scheme_of_peer(self.peer)
    }

    /// Returns the properties that may distinguish visitors.
    pub(super) fn visitor(&self) -> RequestVisitor<'_> {
        RequestVisitor {
            user: self.user.as_deref().unwrap_or_default(),
            ip: self.peer.map(|peer| peer.addr.ip()),
            port: port_of_host(self.header("host"), self.scheme()),
            locale: preferred_locale(self.header("accept-language")),
            user_agent: self.header("user-agent"),
        }
    }

    /// Returns the options for the fragment cache and for timing; the defaults for users who are not administrators.
    pub(super) fn admin_options(&self, instance: &Instance) -> Result<AdminPageOptions> {
        let query = Some(self.query.as_str());
        let flex = query_value(query, "_flex").unwrap_or_default();
        let is_profiled = query_value(query, "tympan-profile") == Some("1");
        if (flex.is_empty() && !is_profiled) || self.user.is_none() {
            return Ok(AdminPageOptions::default());
        }
        if !instance.is_administrator(&self.viewer)? {
            return Ok(AdminPageOptions::default());
        }
        let (flex, clears) = parse_flex(flex);
        Ok(AdminPageOptions { is_administrator: true, is_profiled, flex, clearing: clears })
    }
}

/// Parses the keywords of `_flex`. There is only one cache, so `online` and `offline` have no effect.
fn parse_flex(text: &str) -> (FragmentCacheOverride, FragmentCacheClearing) {
    let has = |keyword: &str| text.split([',', '+', ' ', ';']).any(|token| token == keyword);
    let flex = match (has("nocache"), has("recompile")) {
        (true, _) => FragmentCacheOverride::NoCache,
        (_, true) => FragmentCacheOverride::Recompile,
        _ => FragmentCacheOverride::None,
    };
    let clears = match (has("purge") || has("clearcache"), has("clearvariations")) {
        (true, _) => FragmentCacheClearing::Everything,
        (_, true) => FragmentCacheClearing::RenderedFragments,
        _ => FragmentCacheClearing::Nothing,
    };
    (flex, clears)
}

/// An anonymous GET request for a path without a query string.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AnonymousPageRequest<'a> {
    pub(crate) path: &'a str,
    pub(crate) host: &'a str,
    pub(crate) accept_language: &'a str,
    pub(crate) user_agent: &'a str,
    pub(crate) peer: ConnectionPeer,
}

impl<'a> AnonymousPageRequest<'a> {
    /// Returns the render request.
    pub(super) fn render_request(&self) -> RenderRequest<'a> {
        let scheme = scheme_of_peer(Some(self.peer));
        RenderRequest {
            scheme,
            host: self.host,
            recording: ReadRecording::Paths,
            visitor: RequestVisitor {
                user: "",
                ip: Some(self.peer.addr.ip()),
                port: port_of_host(self.host, scheme),
                locale: preferred_locale(self.accept_language),
                user_agent: self.user_agent,
            },
            ..RenderRequest::get(self.path)
        }
    }
}

fn scheme_of_peer(peer: Option<ConnectionPeer>) -> &'static str {
    if peer.is_some_and(|peer| peer.is_tls) { "https" } else { "http" }
}

/// Returns the port of the request.
fn port_of_host(host: &str, scheme: &str) -> u16 {
    let default = if scheme == "https" { 443 } else { 80 };
    host.rsplit_once(':').and_then(|(_, port)| port.parse().ok()).unwrap_or(default)
}

/// Returns the most preferred language.
fn preferred_locale(languages: &str) -> &str {
    languages.split([',', ';']).next().unwrap_or_default().trim()
}

/// The page options of an administrator.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct AdminPageOptions {
    /// True if an administrator requests any option.
    pub(super) is_administrator: bool,
    /// True if the times of all components are reported.
    pub(super) is_profiled: bool,
    /// Override of the fragment cache.
    pub(super) flex: FragmentCacheOverride,
    /// The cached data to clear.
    pub(super) clearing: FragmentCacheClearing,
}

/// The part of the fragment cache that an administrator clears.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum FragmentCacheClearing {
    #[default]
    Nothing,
    /// Rendered fragments; facts about components stay.
    RenderedFragments,
    Everything,
}

/// Returns the value of a query parameter.
pub(super) fn query_value<'a>(query: Option<&'a str>, name: &str) -> Option<&'a str> {
    query?.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_words_of_flex() {
        for (text, expected) in [
            ("", (FragmentCacheOverride::None, FragmentCacheClearing::Nothing)),
            ("online", (FragmentCacheOverride::None, FragmentCacheClearing::Nothing)),
            ("nocache", (FragmentCacheOverride::NoCache, FragmentCacheClearing::Nothing)),
            (
                "offline,recompile",
                (FragmentCacheOverride::Recompile, FragmentCacheClearing::Nothing),
            ),
            ("purge", (FragmentCacheOverride::None, FragmentCacheClearing::Everything)),
            ("online,clearcache", (FragmentCacheOverride::None, FragmentCacheClearing::Everything)),
            (
                "clearvariations+nocache",
                (FragmentCacheOverride::NoCache, FragmentCacheClearing::RenderedFragments),
            ),
        ] {
            assert_eq!(parse_flex(text), expected, "{text}");
        }
    }
}
