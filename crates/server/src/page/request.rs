//! What a request for content asks for, and what its user wishes besides.

use http::request::Parts;
use http::{HeaderMap, Method};
use tympan_content::Viewer;
use tympan_render::{FragmentCacheOverride, ReadRecording, RenderRequest, RequestVisitor};
use tympan_web::listen::ConnectionPeer;

use super::query_value;
use crate::failure::Result;
use crate::login::RequestIdentity;
use crate::{Instance, InstanceRole};

/// What a request asks for, detached from its connection.
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

/// By which caches in front say that they fill in includes (ESI 1.0, section 6).
pub(crate) const SURROGATE_CAPABILITY: &str = "surrogate-capability";

impl PageRequest {
    /// Takes a request of somebody, as it is for visitors.
    pub(crate) fn from_identity(
        identity: Option<&RequestIdentity>,
        parts: &Parts,
        instance: &Instance,
    ) -> Result<Self> {
        Ok(Self {
            viewer: instance.viewer_of(identity)?,
            is_edit: false,
            branch: None,
            query: parts.uri.query().unwrap_or_default().to_owned(),
            headers: parts.headers.clone(),
            method: if parts.method == Method::HEAD { "HEAD" } else { "GET" },
            form: String::new(),
            peer: parts.extensions.get::<ConnectionPeer>().copied(),
            user: identity.map(|identity| identity.user.clone()),
            path: parts.uri.path().to_owned(),
        })
    }

    pub(super) fn from_anonymous(parts: &Parts, instance: &Instance) -> Result<Self> {
        Self::from_identity(None, parts, instance)
    }

    /// Returns the same request as one that sends a form.
    pub(crate) fn with_form(self, form: String) -> Self {
        Self { method: "POST", form, ..self }
    }

    /// Returns the same request by somebody without a login.
    pub(super) fn as_anonymous(&self, instance: &Instance) -> Result<Self> {
        Ok(Self { viewer: instance.viewer_of(None)?, user: None, ..self.clone() })
    }

    /// Tells whether somebody asks a publisher who has logged in there.
    pub(super) fn is_member(&self, instance: &Instance) -> bool {
        self.user.is_some() && instance.role == InstanceRole::Publish
    }

    /// Tells whether nothing was asked but a path, so that everybody who asks for it gets the same.
    pub(super) fn is_path_only(&self) -> bool {
        self.user.is_none()
            && self.query.is_empty()
            && self.branch.is_none()
            && !self.supports_esi()
    }

    /// Tells whether who asks fills in includes.
    pub(super) fn supports_esi(&self) -> bool {
        self.header(SURROGATE_CAPABILITY).split([',', '"', ' ']).any(|one| one == "SSI/1.0")
    }

    /// Returns a header's value.
    pub(super) fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    /// Returns the scheme that was asked by.
    pub(super) fn scheme(&self) -> &'static str {
        scheme_of_peer(self.peer)
    }

    /// Returns what may tell visitors apart.
    pub(super) fn visitor(&self) -> RequestVisitor<'_> {
        RequestVisitor {
            user: self.user.as_deref().unwrap_or_default(),
            ip: self.peer.map(|peer| peer.addr.ip()),
            port: port_of_host(self.header("host"), self.scheme()),
            locale: preferred_locale(self.header("accept-language")),
            user_agent: self.header("user-agent"),
        }
    }

    /// Tells what is asked of the fragment cache and of the times; nothing for anybody but administrators.
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

/// Reads the words of `_flex`. There is one cache, so that `online` and `offline` say nothing.
fn parse_flex(text: &str) -> (FragmentCacheOverride, FragmentCacheClearing) {
    let has = |one: &str| text.split([',', '+', ' ', ';']).any(|word| word == one);
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

/// What somebody without a login asks for by a GET of a path without a query.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AnonymousPageRequest<'a> {
    pub(crate) path: &'a str,
    pub(crate) host: &'a str,
    pub(crate) accept_language: &'a str,
    pub(crate) user_agent: &'a str,
    pub(crate) peer: ConnectionPeer,
}

impl<'a> AnonymousPageRequest<'a> {
    /// Returns what is to be drawn.
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

/// Returns the port that was asked.
fn port_of_host(host: &str, scheme: &str) -> u16 {
    let default = if scheme == "https" { 443 } else { 80 };
    host.rsplit_once(':').and_then(|(_, port)| port.parse().ok()).unwrap_or(default)
}

/// Returns the language that is wanted first.
fn preferred_locale(languages: &str) -> &str {
    languages.split([',', ';']).next().unwrap_or_default().trim()
}

/// What an administrator asks for besides a page.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct AdminPageOptions {
    /// Whether an administrator asks for something.
    pub(super) is_administrator: bool,
    /// Whether the times of all components are told.
    pub(super) is_profiled: bool,
    /// What is asked of the fragment cache.
    pub(super) flex: FragmentCacheOverride,
    /// What is dropped of what is kept.
    pub(super) clearing: FragmentCacheClearing,
}

/// What an administrator drops of the fragment cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum FragmentCacheClearing {
    #[default]
    Nothing,
    /// What was drawn; what is known of components stays.
    RenderedFragments,
    Everything,
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
