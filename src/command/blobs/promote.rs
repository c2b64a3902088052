//! `tympan blobs promote`: copies selected blobs to the target of a package that refers to them.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::ExitCode;

use http::HeaderValue;
use serde_json::json;
use tympan_blobs::BlobId;
use tympan_home::{BlobPromotionReport, Home, copy_blobs_to_home, is_instance_url};
use tympan_replicate::BlobUploadTarget;
use tympan_terminal::{CommandFault, CommandOutcome, error_chain_text, say};

use crate::args::PromoteBlobsArgs;
use crate::command::runtime::create_runtime;
use crate::home::{home_access, open_existing_home};
use crate::home_fault::home_fault;

/// Copies the blobs of some nodes.
pub(super) fn run_blob_promote(promotion: &PromoteBlobsArgs) -> CommandOutcome {
    let home = open_existing_home(&promotion.home)?;
    let blob_ids = home.referenced_blobs(&promotion.paths).map_err(home_fault)?;
    let done = if is_instance_url(&promotion.to) {
        promote_to_instance(&home, &blob_ids, promotion)?
    } else {
        copy_blobs_to_home(&home_access(), &home, &blob_ids, Path::new(&promotion.to))
            .map_err(home_fault)?
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
            let content = content.ok_or_else(|| {
                CommandFault::cannot_run(format!(
                    "the blob {id} is missing here; run `tympan blobs check`"
                ))
            })?;
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
