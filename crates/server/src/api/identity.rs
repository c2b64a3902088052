//! Who asks: the login that every endpoint and every handler of axum's kind begins with.

use std::sync::Arc;

use axum::extract::FromRequestParts;
use http::StatusCode;
use http::request::Parts;

use crate::Instance;
use crate::failure::{RequestFailure, Result};
use crate::login::RequestIdentity;

/// Tells who asks, or refuses.
pub(crate) async fn require_user(instance: &Instance, parts: &Parts) -> Result<RequestIdentity> {
    let identity = instance.identify(parts).await?;
    identity.ok_or_else(|| RequestFailure::new(StatusCode::UNAUTHORIZED, "log in first"))
}

/// Tells who asks for something that changes nothing whatever the method, or refuses.
pub(crate) async fn require_reader(instance: &Instance, parts: &Parts) -> Result<RequestIdentity> {
    let identity = instance.identify_reader(parts).await?;
    identity.ok_or_else(|| RequestFailure::new(StatusCode::UNAUTHORIZED, "log in first"))
}

/// Whoever may see the figures of the instance.
#[derive(Debug)]
pub(crate) struct MonitoringIdentity;

impl FromRequestParts<Arc<Instance>> for MonitoringIdentity {
    type Rejection = RequestFailure;

    async fn from_request_parts(parts: &mut Parts, instance: &Arc<Instance>) -> Result<Self> {
        instance.require_monitoring(parts).await?;
        Ok(Self)
    }
}
