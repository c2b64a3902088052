//! What a request for content asks for, and what its user wishes besides.

use http::request::Parts;
use http::{HeaderMap, Method};
use tympan_content::Viewer;
use tympan_render::{Flex, Recording, RenderRequest, Visitor};
use tympan_web::listen::Peer;

use super::query_value;
use crate::failure::Result;
use crate::login::Identity;
use crate::{Instance, Role};

/// What a request asks for, detached from its connection.
#[derive(Clone)]
pub(crate) struct Asked {
    pub(super) viewer: Viewer,
    pub(super) path: String,
    pub(super) branch: Option<String>,
    pub(super) query: String,
    pub(super) headers: HeaderMap,
    pub(super) is_edit: bool,
    pub(super) method: &'static str,
    /// The fields of a form, urlencoded.
    pub(super) form: String,
    pub(super) peer: Option<Peer>,
    pub(super) user: Option<String>,
}

/// By which caches in front say that they fill in includes (ESI 1.0, section 6).
pub(crate) const CAPABILITY: &str = "surrogate-capability";

impl Asked {
    /// Takes a request of somebody, as it is for visitors.
    pub(crate) fn by(
        identity: Option<&Identity>,
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
            peer: parts.extensions.get::<Peer>().copied(),
            user: identity.map(|identity| identity.user.clone()),
            path: parts.uri.path().to_owned(),
        })
    }

    pub(super) fn by_nobody(parts: &Parts, instance: &Instance) -> Result<Self> {
        Self::by(None, parts, instance)
    }

    /// Returns the same request as one that sends a form.
    pub(crate) fn posting(self, form: String) -> Self {
        Self { method: "POST", form, ..self }
    }

    /// Returns the same request by somebody without a login.
    pub(super) fn as_nobody(&self, instance: &Instance) -> Result<Self> {
        Ok(Self { viewer: instance.viewer_of(None)?, user: None, ..self.clone() })
    }

    /// Tells whether somebody asks a publisher who has logged in there.
    pub(super) fn is_member(&self, instance: &Instance) -> bool {
        self.user.is_some() && instance.role == Role::Publish
    }

    /// Tells whether nothing was asked but a path, so that everybody who asks for it gets the same.
    pub(super) fn is_plain(&self) -> bool {
        self.user.is_none()
            && self.query.is_empty()
            && self.branch.is_none()
            && !self.fills_includes()
    }

    /// Tells whether who asks fills in includes.
    pub(super) fn fills_includes(&self) -> bool {
        self.header(CAPABILITY).split([',', '"', ' ']).any(|one| one == "SSI/1.0")
    }

    /// Returns a header's value.
    pub(super) fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    /// Returns the scheme that was asked by.
    pub(super) fn scheme(&self) -> &'static str {
        scheme_of(self.peer)
    }

    /// Returns what may tell visitors apart.
    pub(super) fn visitor(&self) -> Visitor<'_> {
        Visitor {
            user: self.user.as_deref().unwrap_or_default(),
            ip: self.peer.map(|peer| peer.addr.ip()),
            port: port_of(self.header("host"), self.scheme()),
            locale: locale_of(self.header("accept-language")),
            user_agent: self.header("user-agent"),
        }
    }

    /// Tells what is asked of the fragment cache and of the times; nothing for anybody but administrators.
    pub(super) fn wishes(&self, instance: &Instance) -> Result<Wishes> {
        let query = Some(self.query.as_str());
        let flex = query_value(query, "_flex").unwrap_or_default();
        let is_profiled = query_value(query, "tympan-profile") == Some("1");
        if (flex.is_empty() && !is_profiled) || self.user.is_none() {
            return Ok(Wishes::default());
        }
        if !instance.is_administrator(&self.viewer)? {
            return Ok(Wishes::default());
        }
        let (flex, clears) = read_flex(flex);
        Ok(Wishes { is_trusted: true, is_profiled, flex, clears })
    }
}

/// Reads the words of `_flex`. There is one cache, so that `online` and `offline` say nothing.
fn read_flex(text: &str) -> (Flex, Clears) {
    let has = |one: &str| text.split([',', '+', ' ', ';']).any(|word| word == one);
    let flex = match (has("nocache"), has("recompile")) {
        (true, _) => Flex::Nocache,
        (_, true) => Flex::Recompile,
        _ => Flex::None,
    };
    let clears = match (has("purge") || has("clearcache"), has("clearvariations")) {
        (true, _) => Clears::Everything,
        (_, true) => Clears::Drawings,
        _ => Clears::Nothing,
    };
    (flex, clears)
}

/// What somebody without a login asks for by a GET of a path without a query.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Visit<'a> {
    pub(crate) path: &'a str,
    pub(crate) host: &'a str,
    pub(crate) accept_language: &'a str,
    pub(crate) user_agent: &'a str,
    pub(crate) peer: Peer,
}

impl<'a> Visit<'a> {
    /// Returns what is to be drawn.
    pub(super) fn request(&self) -> RenderRequest<'a> {
        let scheme = scheme_of(Some(self.peer));
        RenderRequest {
            scheme,
            host: self.host,
            recording: Recording::Paths,
            visitor: Visitor {
                user: "",
                ip: Some(self.peer.addr.ip()),
                port: port_of(self.host, scheme),
                locale: locale_of(self.accept_language),
                user_agent: self.user_agent,
            },
            ..RenderRequest::get(self.path)
        }
    }
}

fn scheme_of(peer: Option<Peer>) -> &'static str {
    if peer.is_some_and(|peer| peer.is_tls) { "https" } else { "http" }
}

/// Returns the port that was asked.
fn port_of(host: &str, scheme: &str) -> u16 {
    let default = if scheme == "https" { 443 } else { 80 };
    host.rsplit_once(':').and_then(|(_, port)| port.parse().ok()).unwrap_or(default)
}

/// Returns the language that is wanted first.
fn locale_of(languages: &str) -> &str {
    languages.split([',', ';']).next().unwrap_or_default().trim()
}

/// What an administrator asks for besides a page.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Wishes {
    /// Whether an administrator asks for something.
    pub(super) is_trusted: bool,
    /// Whether the times of all components are told.
    pub(super) is_profiled: bool,
    /// What is asked of the fragment cache.
    pub(super) flex: Flex,
    /// What is dropped of what is kept.
    pub(super) clears: Clears,
}

/// What an administrator drops of the fragment cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Clears {
    #[default]
    Nothing,
    /// What was drawn; what is known of components stays.
    Drawings,
    Everything,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_words_of_flex() {
        for (text, expected) in [
            ("", (Flex::None, Clears::Nothing)),
            ("online", (Flex::None, Clears::Nothing)),
            ("nocache", (Flex::Nocache, Clears::Nothing)),
            ("offline,recompile", (Flex::Recompile, Clears::Nothing)),
            ("purge", (Flex::None, Clears::Everything)),
            ("online,clearcache", (Flex::None, Clears::Everything)),
            ("clearvariations+nocache", (Flex::Nocache, Clears::Drawings)),
        ] {
            assert_eq!(read_flex(text), expected, "{text}");
        }
    }
}
