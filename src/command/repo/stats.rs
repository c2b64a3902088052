//! `tympan repo stats`: counts the contents of a repository.

use std::path::Path;
use std::process::ExitCode;

use serde_json::json;
use tympan_content::{LookupIndex, NodePath};
use tympan_terminal::{CommandFault, CommandOutcome, error_chain_text, say};

use crate::home::open_existing_home;

/// Counts documents, pages and assets.
pub(super) fn print_repository_stats(home: &Path, json: bool) -> CommandOutcome {
    let home = open_existing_home(home)?;
    let failed = |error: tympan_content::Error| CommandFault::cannot_run(error_chain_text(&error));
    let snapshot = home.repository.snapshot().map_err(failed)?;
    let root = snapshot.node(&NodePath::root()).map_err(failed)?;
    let documents = root
        .map(|root| root.listed_descendants())
        .transpose()
        .map_err(failed)?
        .unwrap_or_default()
        .len();
    let count = |name: &str| -> Result<usize, CommandFault> {
        Ok(snapshot.look_up_paths(LookupIndex::Type, name).map_err(failed)?.len())
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
