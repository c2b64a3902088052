//! Authentication of a request for metrics, as an argument of an axum handler.

use std::sync::Arc;

use axum::extract::FromRequestParts;
use http::request::Parts;

use crate::Instance;
use crate::failure::{RequestFailure, Result};

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
