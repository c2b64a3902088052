//! `tympan blobs promote`: copies selected blobs to the target of a package that refers to them.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::ExitCode;

use http::HeaderValue;
use serde_json::json;
use tympan_blobs::{BlobId, SMALL_BLOB_BYTES};
use tympan_content::{NodePath, SubtreeScope};
use tympan_replicate::BlobUploadTarget;
use tympan_terminal::{CommandFault, CommandOutcome, error_chain_text, say};

use crate::args::PromoteBlobsArgs;
use crate::blob_storage::open_other_home_blobs_to_write;
use crate::command::create_runtime;
use crate::home::{Home, require_home};
use crate::home_origin::is_instance_url;

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
    let key = HeaderValue::from_str(key.trim())
        .map_err(|_| CommandFault::usage(format!("`{}` contains no key", file.display())))?;
    let target = BlobUploadTarget::new(&promotion.to, key);
    create_runtime(4)?.block_on(async {
        let mut done = BlobPromotionReport::default();
        for id in blob_ids {
            if target.has_blob(id).await.map_err(upload_fault)? {
                done.present_count += 1;
                continue;
            }
            let content = home.repository.blobs().open(id);
            let content =
                content.map_err(|error| CommandFault::cannot_run(error_chain_text(&error)))?;
            let content = content.ok_or_else(|| missing_blob_fault(id))?;
            target.send_blob(id, content.into_reader()).await.map_err(upload_fault)?;
            done.blob_count += 1;
            done.byte_count += id.length();
        }
        Ok(done)
    })
}

fn upload_fault(error: tympan_replicate::Error) -> CommandFault {
    match error {
        tympan_replicate::Error::NoReceiver { .. } => CommandFault::usage(error.to_string()),
        error => CommandFault::cannot_run(error_chain_text(&error)),
    }
}

fn missing_blob_fault(id: &BlobId) -> CommandFault {
    CommandFault::cannot_run(format!("the blob {id} is missing here; run `tympan blobs check`"))
}
