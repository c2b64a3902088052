//! The credentials that requests carry in the header `Authorization`.

use base64::Engine as _;

/// The credentials of the user who sends requests.
#[derive(Clone)]
pub struct RequestAuthorization {
    header_value: String,
}

impl RequestAuthorization {
    /// Returns the credentials of a user name and a password, `user:password`.
    #[must_use]
    pub fn basic(login: &str) -> Self {
        let encoded = base64::engine::general_purpose::STANDARD.encode(login);
        Self { header_value: format!("Basic {encoded}") }
    }

    /// Returns the credentials of a token.
    #[must_use]
    pub fn bearer(token: &str) -> Self {
        Self { header_value: format!("Bearer {token}") }
    }

    /// Returns the name and the value of the header.
    #[must_use]
    pub fn to_header(&self) -> (String, String) {
        ("Authorization".to_owned(), self.header_value.clone())
    }
}

impl std::fmt::Debug for RequestAuthorization {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RequestAuthorization").finish_non_exhaustive()
    }
}
