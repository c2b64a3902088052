//! `tympan blobs promote`: copies selected blobs to the target of a package that refers to them.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::ExitCode;

use bytes::Bytes;
use http::{HeaderValue, Method, Request, StatusCode, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty};
use serde_json::json;
use tympan_blobs::{BlobId, SMALL_BLOB_BYTES};
use tympan_content::{NodePath, SubtreeScope};
use tympan_terminal::{CommandFault, CommandOutcome, error_chain_text, say};
use tympan_web::body_limit::limit_body;
use tympan_web::client::{ClientOptions, HttpClient};
use tympan_web::reader_body::body_from_reader;

use crate::args::PromoteBlobsArgs;
use crate::blob_storage::open_other_home_blobs_to_write;
use crate::command::create_runtime;
use crate::command::package_remote::RESPONSE_IDLE_TIMEOUT;
use crate::home::{Home, require_home};
use crate::home_origin::is_instance_url;

const KEY_HEADER: &str = "x-tympan-replication-key";
/// The maximum size of a response that is read.
const MAX_RESPONSE_BYTES: u64 = 64 * 1024;

type BlobRequestBody = UnsyncBoxBody<Bytes, std::io::Error>;

/// The result of a promotion.
#[derive(Debug, Default)]
struct BlobPromotionReport {
    blob_count: u64,
    byte_count: u64,
    /// The number of blobs that the target already had.
    present_count: u64,
    /// The number of small blobs, which the target does not accept: a package contains them.
    small_count: u64,
}

/// Copies the blobs of some nodes.
pub(super) fn run_blob_promote(promotion: &PromoteBlobsArgs) -> CommandOutcome {
    let home = Home::open_existing(&promotion.home)?;
    let blob_ids = referenced_blobs(&home, &promotion.paths)?;
    let done = if is_instance_url(&promotion.to) {
        promote_to_instance(&home, &blob_ids, promotion)?
    } else {
        promote_to_home(&home, &blob_ids, Path::new(&promotion.to))?
    };
    let BlobPromotionReport {
        blob_count: blobs,
        byte_count: bytes,
        present_count: present,
        small_count: small,
    } = done;
    if promotion.json {
        say!("{}", json!({ "blobs": blobs, "bytes": bytes, "present": present, "small": small }));
    } else {
        say!("{blobs} blobs, {bytes} bytes copied; {present} already present");
        if small > 0 {
            say!("{small} small blobs are stored in the content and are part of the package");
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the blobs that nodes refer to, with everything below them.
fn referenced_blobs(home: &Home, paths: &[String]) -> Result<BTreeSet<BlobId>, CommandFault> {
    let failed = |error: tympan_content::Error| match error {
        tympan_content::Error::InvalidName { .. } | tympan_content::Error::NodeMissing(_) => {
            CommandFault::usage(error.to_string())
        }
        error => CommandFault::cannot_run(error_chain_text(&error)),
    };
    let snapshot = home.repository.snapshot().map_err(failed)?;
    let mut blob_ids = BTreeSet::new();
    for path in paths {
        let path = NodePath::new(path).map_err(failed)?;
        for document in snapshot.stored_documents(&path, SubtreeScope::Subtree).map_err(failed)? {
            blob_ids.extend(snapshot.document_requirements(&document).map_err(failed)?.blobs);
        }
    }
    Ok(blob_ids)
}

fn promote_to_home(
    home: &Home,
    blob_ids: &BTreeSet<BlobId>,
    to: &Path,
) -> Result<BlobPromotionReport, CommandFault> {
    require_home(to)?;
    let failed = |error: tympan_blobs::Error| CommandFault::cannot_run(error_chain_text(&error));
    let storage = open_other_home_blobs_to_write(to, &home.dir)?;
    let mut done = BlobPromotionReport::default();
    for id in blob_ids {
        if id.length() < SMALL_BLOB_BYTES as u64 {
            done.small_count += 1;
        } else if storage.touch(id).map_err(failed)? {
            done.present_count += 1;
        } else {
            let content = home.repository.blobs().open(id).map_err(failed)?;
            let content = content.ok_or_else(|| missing_blob_fault(id))?;
            storage.put_named(id, &mut content.into_reader()).map_err(failed)?;
            done.blob_count += 1;
            done.byte_count += id.length();
        }
    }
    Ok(done)
}

fn promote_to_instance(
    home: &Home,
    blob_ids: &BTreeSet<BlobId>,
    promotion: &PromoteBlobsArgs,
) -> Result<BlobPromotionReport, CommandFault> {
    let file = promotion.key.as_ref().ok_or_else(|| {
        CommandFault::usage(
            "sending blobs to an instance requires its replication key: give `--key FILE`",
        )
    })?;
    let key = std::fs::read_to_string(file).map_err(|error| {
        CommandFault::usage(format!("cannot read `{}`: {error}", file.display()))
    })?;
    let mut key = HeaderValue::from_str(key.trim())
        .map_err(|_| CommandFault::usage(format!("`{}` contains no key", file.display())))?;
    key.set_sensitive(true);
    create_runtime(4)?.block_on(async {
        let client =
            HttpClient::new(ClientOptions { response_timeout: None, ..ClientOptions::default() });
        let target = PromotionTarget {
            client,
            url: promotion.to.trim_end_matches('/').to_owned(),
            replication_key: key,
        };
        let mut done = BlobPromotionReport::default();
        for id in blob_ids {
            if target.has_blob(id).await? {
                done.present_count += 1;
                continue;
            }
            let content = home.repository.blobs().open(id);
            let content =
                content.map_err(|error| CommandFault::cannot_run(error_chain_text(&error)))?;
            let content = content.ok_or_else(|| missing_blob_fault(id))?;
            let body = body_from_reader(content.into_reader(), id.length());
            let url = target.blob_url("/bin/receive", id);
            if target.send_request(Method::PUT, &url, body.boxed_unsync()).await?
                == StatusCode::NOT_FOUND
            {
                return Err(CommandFault::usage(format!(
                    "`{}` is not an instance that receives blobs",
                    promotion.to
                )));
            }
            done.blob_count += 1;
            done.byte_count += id.length();
        }
        Ok(done)
    })
}

/// The instance that receives the blobs.
struct PromotionTarget {
    client: HttpClient,
    url: String,
    replication_key: HeaderValue,
}

impl PromotionTarget {
    fn blob_url(&self, below: &str, id: &BlobId) -> String {
        format!("{}{below}/blob/{}", self.url, id.to_string().replace('#', "/"))
    }

    async fn has_blob(&self, id: &BlobId) -> Result<bool, CommandFault> {
        let url = self.blob_url("/bin/store", id);
        let body = Empty::new().map_err(|never| match never {}).boxed_unsync();
        Ok(self.send_request(Method::HEAD, &url, body).await? != StatusCode::NOT_FOUND)
    }

    /// Sends a request; a response that is neither a success nor 404 is a fault.
    async fn send_request(
        &self,
        method: Method,
        url: &str,
        body: BlobRequestBody,
    ) -> Result<StatusCode, CommandFault> {
        let request = Request::builder()
            .method(method)
            .uri(url)
            .header(header::CONTENT_TYPE, "application/octet-stream")
            .header(KEY_HEADER, &self.replication_key)
            .body(body)
            .map_err(|error| {
                CommandFault::usage(format!("cannot send a request to `{url}`: {error}"))
            })?;
        let response = self.client.send(request).await;
        let response =
            response.map_err(|error| CommandFault::cannot_run(error_chain_text(&error)))?;
        let status = response.status();
        if status.is_success() || status == StatusCode::NOT_FOUND {
            return Ok(status);
        }
        let response_body = limit_body(response.into_body(), MAX_RESPONSE_BYTES)
            .with_idle_timeout(RESPONSE_IDLE_TIMEOUT);
        let response_body =
            response_body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
        let response_text = String::from_utf8_lossy(&response_body);
        Err(CommandFault::cannot_run(format!("{url} answered {status}: {response_text}")))
    }
}

fn missing_blob_fault(id: &BlobId) -> CommandFault {
    CommandFault::cannot_run(format!("the blob {id} is missing here; run `tympan blobs check`"))
}
