//! Refusals of what AEM has and this program does not.

use http::StatusCode;

use crate::failure::{RequestFailure, Result};

/// Returns the failure for a part of AEM that does not exist here.
pub(super) fn not_implemented<T>(message: impl Into<String>) -> Result<T> {
    Err(RequestFailure::new(StatusCode::NOT_IMPLEMENTED, message))
}

/// Returns the failure for a method that an address does not have.
pub(super) fn method_not_allowed<T>(methods: &str) -> Result<T> {
    let message = format!("this address supports only {methods}");
    Err(RequestFailure::new(StatusCode::METHOD_NOT_ALLOWED, message))
}
