//! Headers of rendered pages: browser security restrictions, and the headers of the configuration.
//!
//! Invariants
//! * A header that the rendering sets itself is not changed: restrictions on uploaded files are never loosened.
//! * Pages of an author can be framed by the same site only, to prevent clickjacking of the editor.

use http::{HeaderMap, HeaderName, HeaderValue, header};

/// Headers that control the transfer of a response, or that other components set.
const RESERVED_HEADERS: [HeaderName; 9] = [
    header::CONNECTION,
    header::CONTENT_ENCODING,
    header::CONTENT_LENGTH,
    header::CONTENT_TYPE,
    header::DATE,
    header::LOCATION,
    header::SET_COOKIE,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

/// Headers added to rendered pages.
#[derive(Debug, Clone, Default)]
pub struct PageHeaders(HeaderMap);

/// The reason why a header cannot be added to pages.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PageHeaderError {
    /// The name is invalid.
    #[error("`{0}` is not a valid header name")]
    InvalidName(String),
    /// The value is invalid.
    #[error("the value of `{0}` contains characters that are not allowed in headers")]
    InvalidValue(String),
    /// The header is set by the program itself.
    #[error("`{0}` is set by the program itself")]
    Reserved(String),
}

impl PageHeaders {
    /// Parses names and values.
    ///
    /// # Errors
    /// The first invalid entry.
    pub fn parse<'a>(
        entries: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Self, PageHeaderError> {
        let mut headers = HeaderMap::new();
        for (name, value) in entries {
            let parsed = HeaderName::from_bytes(name.as_bytes())
                .map_err(|_| PageHeaderError::InvalidName(name.to_owned()))?;
            if RESERVED_HEADERS.contains(&parsed) {
                return Err(PageHeaderError::Reserved(name.to_owned()));
            }
            let value = HeaderValue::from_str(value)
                .map_err(|_| PageHeaderError::InvalidValue(name.to_owned()))?;
            headers.insert(parsed, value);
        }
        Ok(Self(headers))
    }

    /// Returns the headers of an author.
    pub(crate) fn author_defaults() -> Self {
        let policy = HeaderValue::from_static("frame-ancestors 'self'");
        Self(HeaderMap::from_iter([(header::CONTENT_SECURITY_POLICY, policy)]))
    }

    /// Returns true if headers are added to responses of this media type.
    pub(crate) fn applies_to(&self, media_type: &str) -> bool {
        let is_page = ["text/html", "application/xhtml+xml"].iter().any(|page| {
            media_type.get(..page.len()).is_some_and(|own| own.eq_ignore_ascii_case(page))
        });
        is_page && !self.0.is_empty()
    }

    /// Adds the headers to a response, if it is a page.
    pub(crate) fn add_to(&self, target: &mut HeaderMap) {
        let media_type = target.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
        if !media_type.is_some_and(|media_type| self.applies_to(media_type)) {
            return;
        }
        for (name, value) in &self.0 {
            if !target.contains_key(name) {
                target.insert(name.clone(), value.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{PageHeaderError, PageHeaders};
    use http::{HeaderMap, HeaderValue, header};

    #[test]
    fn names_and_values_are_checked() {
        let check = |name: &str, value: &str| PageHeaders::parse([(name, value)]).err();
        assert_eq!(check("Content-Security-Policy", "default-src 'self'"), None);
        assert_eq!(check("a b", "x"), Some(PageHeaderError::InvalidName("a b".to_owned())));
        assert_eq!(check("X-A", "x\ny"), Some(PageHeaderError::InvalidValue("X-A".to_owned())));
        assert_eq!(
            check("set-cookie", "x"),
            Some(PageHeaderError::Reserved("set-cookie".to_owned()))
        );
    }

    #[test]
    fn pages_get_them_and_keep_their_own() {
        let headers =
            PageHeaders::parse([("Content-Security-Policy", "default-src 'self'")]).unwrap();
        let add = |media_type: &'static str, own: Option<&'static str>| {
            let mut target = HeaderMap::new();
            target.insert(header::CONTENT_TYPE, HeaderValue::from_static(media_type));
            if let Some(own) = own {
                target.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(own));
            }
            headers.add_to(&mut target);
            let policy = target.get(header::CONTENT_SECURITY_POLICY);
            policy.map(|policy| policy.to_str().unwrap().to_owned())
        };
        let own = Some("default-src 'self'".to_owned());
        assert_eq!(add("text/html; charset=utf-8", None), own);
        assert_eq!(add("Application/XHTML+xml", None), own);
        assert_eq!(add("application/json", None), None);
        assert_eq!(add("text/html", Some("sandbox")).as_deref(), Some("sandbox"));
    }
}
