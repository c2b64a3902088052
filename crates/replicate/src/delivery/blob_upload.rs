//! Blobs sent to another instance one by one, ahead of the content that refers to them.

use std::io::Read;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Method, Request, StatusCode, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty};
use tympan_blobs::BlobId;
use tympan_web::body_limit::limit_body;
use tympan_web::client::{ClientOptions, HttpClient};
use tympan_web::reader_body::body_from_reader;

use crate::delivery::message::RECEIVE_PATH;
use crate::delivery::message::REPLICATION_KEY_HEADER;
use crate::error::{Error, Result};
use crate::shared_store::store_service::STORE_PATH;

/// The maximum size of a response that is read.
const MAX_RESPONSE_BYTES: u64 = 64 * 1024;
/// The maximum time without data in a response.
const RESPONSE_IDLE_TIMEOUT: Duration = Duration::from_secs(60);

type BlobRequestBody = UnsyncBoxBody<Bytes, std::io::Error>;

/// An instance that receives blobs.
#[derive(Debug)]
pub struct BlobUploadTarget {
    client: HttpClient,
    url: String,
    replication_key: HeaderValue,
}

impl BlobUploadTarget {
    /// Creates a target from the instance's URL and its replication key.
    pub fn new(url: &str, mut replication_key: HeaderValue) -> Self {
        replication_key.set_sensitive(true);
        let client =
            HttpClient::new(ClientOptions { response_timeout: None, ..ClientOptions::default() });
        Self { client, url: url.trim_end_matches('/').to_owned(), replication_key }
    }

    /// Returns true if the instance has a blob.
    ///
    /// # Errors
    /// If it cannot be reached, or refuses the key.
    pub async fn has_blob(&self, id: &BlobId) -> Result<bool> {
        let url = self.blob_url(STORE_PATH, id);
        let body = Empty::new().map_err(|never| match never {}).boxed_unsync();
        Ok(self.send_request(Method::HEAD, &url, body).await? != StatusCode::NOT_FOUND)
    }

    /// Sends a blob.
    ///
    /// # Errors
    /// [`Error::NoReceiver`] if the target is not an instance that receives blobs; otherwise if it cannot be reached, or
    /// refuses the blob.
    pub async fn send_blob(&self, id: &BlobId, content: impl Read + Send + 'static) -> Result<()> {
        let body = body_from_reader(content, id.length()).boxed_unsync();
        let url = self.blob_url(RECEIVE_PATH, id);
        match self.send_request(Method::PUT, &url, body).await? {
            StatusCode::NOT_FOUND => Err(Error::NoReceiver { target: self.url.clone() }),
            _ => Ok(()),
        }
    }

    fn blob_url(&self, below: &str, id: &BlobId) -> String {
        format!("{}{below}/blob/{}", self.url, id.to_string().replace('#', "/"))
    }

    /// Sends a request; a response that is neither a success nor 404 is an error.
    async fn send_request(
        &self,
        method: Method,
        url: &str,
        body: BlobRequestBody,
    ) -> Result<StatusCode> {
        let request = Request::builder()
            .method(method)
            .uri(url)
            .header(header::CONTENT_TYPE, "application/octet-stream")
            .header(REPLICATION_KEY_HEADER, &self.replication_key)
            .body(body)
            .map_err(|error| Error::InvalidUrl { url: url.to_owned(), source: error })?;
        let response = self.client.send(request).await;
        let response =
            response.map_err(|source| Error::Unreachable { target: self.url.clone(), source })?;
        let status = response.status();
        if status.is_success() || status == StatusCode::NOT_FOUND {
            return Ok(status);
        }
        let response_body = limit_body(response.into_body(), MAX_RESPONSE_BYTES)
            .with_idle_timeout(RESPONSE_IDLE_TIMEOUT);
        let response_body =
            response_body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
        Err(Error::Refused {
            target: url.to_owned(),
            status: status.as_u16(),
            message: String::from_utf8_lossy(&response_body).into_owned(),
        })
    }
}
