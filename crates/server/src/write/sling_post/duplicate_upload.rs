//! AEM's duplicate detection: finds assets that already contain the bytes of an upload, under any name.
//!
//! Disabled unless the configuration of AEM's servlet sets `detect_duplicate`. The upload is stored in any case, and
//! the response lists the assets with the same bytes that the uploader may read. Assets are compared by `dam:sha1`,
//! which is set once they are processed.

use std::io::{Read, Seek, SeekFrom};

use serde_json::Value as Json;
use sha1::{Digest, Sha1};
use tympan_content::{NodePath, Snapshot};
use tympan_content_query::QueryRequest;
use tympan_content_query::parse_sql2;

use crate::Instance;
use crate::failure::{RequestFailure, Result};
use crate::write::form::FormUpload;
use crate::write::sling_post::form_field::PostFields;

/// The PID of AEM's servlet.
pub(crate) const CREATE_ASSET_SERVLET_PID: &str =
    "com.day.cq.dam.core.impl.servlet.CreateAssetServlet";
/// Maximum number of listed duplicates.
const MAX_LISTED_DUPLICATES: u64 = 20;

/// Returns true if duplicate detection is enabled.
pub(crate) fn is_detection_enabled(instance: &Instance) -> bool {
    let configs = instance.configurator.configs();
    let config = configs.configs.iter().find(|config| config.pid == CREATE_ASSET_SERVLET_PID);
    let value = config.and_then(|config| config.properties.get("detect_duplicate"));
    value.is_some_and(|value| *value == Json::Bool(true) || value.as_str() == Some("true"))
}

/// Returns, for each upload to a folder, the other assets with the same bytes, as changes of a response.
pub(crate) fn find_duplicates(
    instance: &Instance,
    snapshot: &Snapshot,
    folder: &NodePath,
    fields: &PostFields,
) -> Result<Vec<(&'static str, Vec<String>)>> {
    let mut duplicates = Vec::new();
    for (_, upload) in &fields.files {
        let own = folder.child(&upload.name)?.to_string();
        let others = assets_with_same_bytes(instance, snapshot, upload)?;
        let others = others.into_iter().filter(|asset| *asset != own);
        duplicates.extend(others.map(|asset| ("duplicate", vec![own.clone(), asset])));
    }
    Ok(duplicates)
}

/// Returns the assets with the bytes of an upload.
fn assets_with_same_bytes(
    instance: &Instance,
    snapshot: &Snapshot,
    upload: &FormUpload,
) -> Result<Vec<String>> {
    let mut file = upload.file.reopen()?;
    file.seek(SeekFrom::Start(0))?;
    let (mut hash, mut piece) = (Sha1::new(), vec![0; 128 * 1024]);
    loop {
        let read = file.read(&mut piece)?;
        if read == 0 {
            break;
        }
        hash.update(piece.get(..read).unwrap_or_default());
    }
    let hash = hex::encode(hash.finalize());
    let statement = format!(
        "SELECT * FROM [dam:Asset] AS a WHERE a.[jcr:content/metadata/dam:sha1] = '{hash}'"
    );
    let refused = |error: &dyn std::fmt::Display| RequestFailure::bad_request(error.to_string());
    let query = parse_sql2(&statement).map_err(|error| refused(&error))?;
    let request = QueryRequest {
        limit: Some(MAX_LISTED_DUPLICATES),
        component: "duplicates of uploads",
        ..QueryRequest::new(query)
    };
    let page = instance
        .query_engines
        .administrators
        .query_page(snapshot, &request)
        .map_err(|error| refused(&error))?;
    let nodes = page.rows.iter().filter_map(|row| row.node());
    Ok(nodes.map(|node| node.path().to_string()).collect())
}
