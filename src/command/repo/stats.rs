//! `tympan repo stats`: how much there is.

use std::path::Path;
use std::process::ExitCode;

use serde_json::json;
use tympan_content::{Index, NodePath};

use crate::command::{Fault, Outcome};
use crate::home::{Home, chain};
use crate::say;

/// Counts documents, pages and assets.
pub(super) fn run(home: &Path, json: bool) -> Outcome {
    let home = Home::open_existing(home)?;
    let failed = |error: tympan_content::Error| Fault::cannot_run(chain(&error));
    let snapshot = home.repository.snapshot().map_err(failed)?;
    let root = snapshot.node(&NodePath::root()).map_err(failed)?;
    let documents = root
        .map(|root| root.listed_descendants())
        .transpose()
        .map_err(failed)?
        .unwrap_or_default()
        .len();
    let count = |name: &str| -> Result<usize, Fault> {
        Ok(snapshot.look_up(Index::Type, name).map_err(failed)?.len())
    };
    let (pages, assets) = (count("cq:Page")?, count("dam:Asset")?);
    if json {
        say!(
            "{}",
            json!({ "root": snapshot.root_id().to_string(), "documents": documents, "pages": pages, "assets": assets })
        );
    } else {
        say!("root {}: {documents} documents, {pages} pages, {assets} assets", snapshot.root_id());
    }
    Ok(ExitCode::SUCCESS)
}
