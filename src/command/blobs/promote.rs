//! `tympan blobs promote`: chosen blobs go to where a package that names them will be installed.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::ExitCode;

use bytes::Bytes;
use http::{HeaderValue, Method, Request, StatusCode, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty};
use serde_json::json;
use tympan_blobs::{BlobId, SMALL_BYTES};
use tympan_content::{Depth, NodePath};
use tympan_web::client::{Client, Options};
use tympan_web::limit::limited;
use tympan_web::read_body::from_reader;

use crate::args::Promotion;
use crate::base::is_url;
use crate::command::package_remote::STALL;
use crate::command::{Fault, Outcome, runtime};
use crate::home::{Home, chain, require_home};
use crate::places::open_other_to_write;
use crate::say;

const KEY_HEADER: &str = "x-tympan-replication-key";
/// No answer that is read is longer.
const MAX_ANSWER: u64 = 64 * 1024;

type Body = UnsyncBoxBody<Bytes, std::io::Error>;

/// What was done.
#[derive(Debug, Default)]
struct Promoted {
    blobs: u64,
    bytes: u64,
    /// Those that were there already.
    present: u64,
    /// Small ones, which the place does not take: they go with a package.
    small: u64,
}

/// Copies the blobs of some nodes.
pub(super) fn run(promotion: &Promotion) -> Outcome {
    let home = Home::open_existing(&promotion.home)?;
    let wanted = chosen(&home, &promotion.paths)?;
    let done = if is_url(&promotion.to) {
        to_instance(&home, &wanted, promotion)?
    } else {
        to_home(&home, &wanted, Path::new(&promotion.to))?
    };
    let Promoted { blobs, bytes, present, small } = done;
    if promotion.json {
        say!("{}", json!({ "blobs": blobs, "bytes": bytes, "present": present, "small": small }));
    } else {
        say!("{blobs} blobs, {bytes} bytes copied; {present} were there");
        if small > 0 {
            say!("{small} small ones lie with the content: they go with the package");
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the blobs that nodes refer to, with everything below them.
fn chosen(home: &Home, paths: &[String]) -> Result<BTreeSet<BlobId>, Fault> {
    let failed = |error: tympan_content::Error| match error {
        tympan_content::Error::InvalidName { .. } | tympan_content::Error::NodeMissing(_) => {
            Fault::usage(error.to_string())
        }
        error => Fault::cannot_run(chain(&error)),
    };
    let snapshot = home.repository.snapshot().map_err(failed)?;
    let mut wanted = BTreeSet::new();
    for path in paths {
        let path = NodePath::new(path).map_err(failed)?;
        for document in snapshot.documents(&path, Depth::Subtree).map_err(failed)? {
            wanted.extend(snapshot.needs_of(&document).map_err(failed)?.blobs);
        }
    }
    Ok(wanted)
}

fn to_home(home: &Home, wanted: &BTreeSet<BlobId>, to: &Path) -> Result<Promoted, Fault> {
    require_home(to)?;
    let failed = |error: tympan_blobs::Error| Fault::cannot_run(chain(&error));
    let place = open_other_to_write(to, &home.dir)?;
    let mut done = Promoted::default();
    for id in wanted {
        if id.length() < SMALL_BYTES as u64 {
            done.small += 1;
        } else if place.touch(id).map_err(failed)? {
            done.present += 1;
        } else {
            let content = home.repository.blobs().open(id).map_err(failed)?;
            let content = content.ok_or_else(|| missing(id))?;
            place.put_named(id, &mut content.into_reader()).map_err(failed)?;
            done.blobs += 1;
            done.bytes += id.length();
        }
    }
    Ok(done)
}

fn to_instance(
    home: &Home,
    wanted: &BTreeSet<BlobId>,
    promotion: &Promotion,
) -> Result<Promoted, Fault> {
    let file = promotion.key.as_ref().ok_or_else(|| {
        Fault::usage(
            "an instance takes blobs from who knows its replication key: give `--key FILE`",
        )
    })?;
    let key = std::fs::read_to_string(file)
        .map_err(|error| Fault::usage(format!("cannot read `{}`: {error}", file.display())))?;
    let mut key = HeaderValue::from_str(key.trim())
        .map_err(|_| Fault::usage(format!("`{}` holds no key", file.display())))?;
    key.set_sensitive(true);
    runtime(4)?.block_on(async {
        let client = Client::new(Options { response_timeout: None, ..Options::default() });
        let target = Target { client, url: promotion.to.trim_end_matches('/').to_owned(), key };
        let mut done = Promoted::default();
        for id in wanted {
            if target.has(id).await? {
                done.present += 1;
                continue;
            }
            let content = home.repository.blobs().open(id);
            let content = content.map_err(|error| Fault::cannot_run(chain(&error)))?;
            let content = content.ok_or_else(|| missing(id))?;
            let body = from_reader(content.into_reader(), id.length());
            let place = target.place("/bin/receive", id);
            if target.send(Method::PUT, &place, body.boxed_unsync()).await? == StatusCode::NOT_FOUND
            {
                return Err(Fault::usage(format!(
                    "`{}` is no instance that receives",
                    promotion.to
                )));
            }
            done.blobs += 1;
            done.bytes += id.length();
        }
        Ok(done)
    })
}

/// The instance that gets the blobs.
struct Target {
    client: Client,
    url: String,
    key: HeaderValue,
}

impl Target {
    fn place(&self, below: &str, id: &BlobId) -> String {
        format!("{}{below}/blob/{}", self.url, id.to_string().replace('#', "/"))
    }

    async fn has(&self, id: &BlobId) -> Result<bool, Fault> {
        let place = self.place("/bin/store", id);
        let body = Empty::new().map_err(|never| match never {}).boxed_unsync();
        Ok(self.send(Method::HEAD, &place, body).await? != StatusCode::NOT_FOUND)
    }

    /// Sends a request; an answer that is neither good nor 404 is a fault.
    async fn send(&self, method: Method, place: &str, body: Body) -> Result<StatusCode, Fault> {
        let request = Request::builder()
            .method(method)
            .uri(place)
            .header(header::CONTENT_TYPE, "application/octet-stream")
            .header(KEY_HEADER, &self.key)
            .body(body)
            .map_err(|error| Fault::usage(format!("`{place}` is no URL: {error}")))?;
        let response = self.client.send(request).await;
        let response = response.map_err(|error| Fault::cannot_run(chain(&error)))?;
        let status = response.status();
        if status.is_success() || status == StatusCode::NOT_FOUND {
            return Ok(status);
        }
        let answer = limited(response.into_body(), MAX_ANSWER).stalling_at_most(STALL);
        let answer = answer.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
        let answer = String::from_utf8_lossy(&answer);
        Err(Fault::cannot_run(format!("{place} answered {status}: {answer}")))
    }
}

fn missing(id: &BlobId) -> Fault {
    Fault::cannot_run(format!("the blob {id} is missing here; run `tympan blobs check`"))
}
