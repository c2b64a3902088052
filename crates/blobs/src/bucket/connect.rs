//! The HTTP client of this program under that of `object_store`.

use std::time::Duration;

use async_trait::async_trait;
use http::header;
use http_body_util::BodyExt;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse,
    HttpResponseBody, HttpService,
};
use tympan_web::client::{Client, Error, Options};
use tympan_web::limit::limited;
use tympan_web::tls::Trust;

/// Makes clients that share their connections.
#[derive(Debug, Clone)]
pub(super) struct Connector {
    client: Client,
    stall: Duration,
}

impl Connector {
    pub(super) fn new(trust: Option<Trust>, stall: Duration) -> Self {
        let options = Options { trust, response_timeout: Some(stall), ..Options::default() };
        Self { client: Client::new(options), stall }
    }
}

impl HttpConnector for Connector {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(self.clone()))
    }
}

#[async_trait]
impl HttpService for Connector {
    async fn call(&self, mut request: HttpRequest) -> Result<HttpResponse, HttpError> {
        // Without it hyper would send pieces, which S3 refuses.
        let length = request.body().content_length();
        if length > 0 || !request.method().is_safe() {
            request.headers_mut().insert(header::CONTENT_LENGTH, length.into());
        }
        let answer = self.client.send(request).await.map_err(|error| {
            let kind = match &error {
                Error::Connect { .. } => HttpErrorKind::Connect,
                Error::Timeout { .. } => HttpErrorKind::Timeout,
                Error::Broken { .. } => HttpErrorKind::Interrupted,
                _ => HttpErrorKind::Unknown,
            };
            HttpError::new(kind, error)
        })?;
        let (head, body) = answer.into_parts();
        let body = limited(body, u64::MAX).stalling_at_most(self.stall);
        let body = body.map_err(|error| HttpError::new_boxed(HttpErrorKind::Interrupted, error));
        Ok(HttpResponse::from_parts(head, HttpResponseBody::new(body)))
    }
}
