//! Requests of components to the back ends that `tympan.toml` configures.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, StatusCode, header};
use http_body_util::{BodyExt, Empty, Limited};
use tokio::runtime::Handle;
use tympan_render::{BackEnds, Fetch};
use tympan_web::client::{Client, Options};

use crate::config::BackEnd;

/// Makes the back ends of a configuration; nothing if it has none. Called where a runtime runs.
pub(crate) fn back_ends(configured: &BTreeMap<String, BackEnd>) -> Option<Arc<BackEnds>> {
    if configured.is_empty() {
        return None;
    }
    let runtime = Handle::try_current().ok()?;
    let connections = configured.values().filter_map(|one| one.connections).max().unwrap_or(16);
    let options = Options {
        connect_timeout: None,
        response_timeout: None,
        max_idle_per_host: connections,
        ..Options::default()
    };
    let fetch = Box::new(HttpFetch { client: Client::new(options), runtime });
    let places = configured.iter().map(|(name, one)| (name.clone(), one.bounds())).collect();
    Some(Arc::new(BackEnds::new(places, fetch)))
}

/// Sends requests from threads that draw pages; redirects are not followed.
#[derive(Debug)]
struct HttpFetch {
    client: Client,
    runtime: Handle,
}

impl Fetch for HttpFetch {
    fn fetch(&self, url: &str, timeout: Duration, max_bytes: usize) -> Result<Vec<u8>, String> {
        let request = Request::get(url)
            .header(header::ACCEPT, "application/json")
            .body(Empty::<Bytes>::new())
            .map_err(|error| format!("the address is not valid: {error}"))?;
        let answer = async {
            let answer = self.client.send(request).await.map_err(|error| error.to_string())?;
            if answer.status() != StatusCode::OK {
                return Err(format!("status {}", answer.status().as_u16()));
            }
            let body = Limited::new(answer.into_body(), max_bytes).collect().await;
            Ok(body.map_err(|error| error.to_string())?.to_bytes().to_vec())
        };
        self.runtime.block_on(async {
            tokio::time::timeout(timeout, answer)
                .await
                .unwrap_or_else(|_| Err(format!("no answer within {} ms", timeout.as_millis())))
        })
    }
}
