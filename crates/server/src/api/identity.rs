//! Authentication of the requesting user, with which every endpoint and every axum handler begins.

use std::sync::Arc;

use axum::extract::FromRequestParts;
use http::StatusCode;
use http::request::Parts;

use crate::Instance;
use crate::failure::{RequestFailure, Result};
use crate::login::RequestIdentity;

/// Returns the identity of the requesting user, or refuses the request.
pub(crate) async fn require_user(instance: &Instance, parts: &Parts) -> Result<RequestIdentity> {
    let identity = instance.identify(parts).await?;
    identity.ok_or_else(|| RequestFailure::new(StatusCode::UNAUTHORIZED, "log in first"))
}

/// Returns the identity of the requesting user for a request that changes nothing, whatever its method, or refuses the
/// request.
pub(crate) async fn require_reader(instance: &Instance, parts: &Parts) -> Result<RequestIdentity> {
    let identity = instance.identify_reader(parts).await?;
    identity.ok_or_else(|| RequestFailure::new(StatusCode::UNAUTHORIZED, "log in first"))
}

/// Proof that the requesting user may see the metrics of the instance.
#[derive(Debug)]
pub(crate) struct MonitoringIdentity;

impl FromRequestParts<Arc<Instance>> for MonitoringIdentity {
    type Rejection = RequestFailure;

    async fn from_request_parts(parts: &mut Parts, instance: &Arc<Instance>) -> Result<Self> {
        instance.require_monitoring(parts).await?;
        Ok(Self)
    }
}
