//! Sends a request to the target of an agent.

use bytes::Bytes;
use http::Request;
use http_body::Body;
use http_body_util::BodyExt;
use tympan_web::client::HttpClient;

use crate::{Error, Result};

type BoxedBodyError = Box<dyn std::error::Error + Send + Sync>;

/// Sends a request and returns the response's body; statuses other than 2xx are errors.
pub(crate) async fn send_request<B>(
    client: &HttpClient,
    target: &str,
    request: Request<B>,
) -> Result<Bytes>
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxedBodyError>,
{
    let unreachable = |source| Error::Unreachable { target: target.to_owned(), source };
    let response = client.send(request).await.map_err(unreachable)?;
    let status = response.status();
    let body = http_body_util::Limited::new(response.into_body(), 64 * 1024 * 1024).collect().await;
    let body = body.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    if status.is_success() {
        return Ok(body);
    }
    let message = String::from_utf8_lossy(&body).into_owned();
    Err(Error::Refused { target: target.to_owned(), status: status.as_u16(), message })
}
