//! Facts that processes on one database must share besides it: the folder or bucket of blobs, and the section
//! `[mounts]`.
//!
//! A bucket is identified by its URL. An author writes a unique name into its folder `blobs`. Each process publishes
//! the name that it finds there, so that two folders that should be one are detected before work is lost.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::time::SystemTime;

use tympan_jobs::JobQueues;
use tympan_mounts::MountSettings;
use tympan_terminal::{CommandFault, error_chain_text};

use crate::blob_storage::NewBlobDestination;
use crate::config::{self, TympanConfig};
use crate::home::{Home, random_text, write_secret_file};
use crate::home_chunk_store::effective_blob_section;

/// The file with the folder's name.
const FOLDER_ID_FILE: &str = "folder.id";
/// The key of the fact about the folder of blobs.
const BLOBS_FACT: &str = "blobs";
/// The key of the fact about the section `[mounts]`.
const MOUNTS_FACT: &str = "mounts";

/// Refuses a home whose folder `blobs` does not belong to an author, before anything is created in it.
///
/// # Errors
/// [`CommandFault::usage`], which explains how to share the folder.
pub(crate) fn require_own_blob_folder(home: &Path) -> Result<(), CommandFault> {
    let NewBlobDestination::Folder(folder) =
        blob_destination(home, &config::read_home_config(home)?)?
    else {
        return Ok(());
    };
    match read_folder_id(&folder)? {
        Some(_) => Ok(()),
        None => Err(CommandFault::usage(format!(
            "`{}` is not the blob folder of an author: start the author first, then mount or link its folder \
             there, such as by `ln -s /srv/author/blobs {0}`; or use one bucket for both, with `--blobs \
             s3://BUCKET`",
            folder.display()
        ))),
    }
}

/// Returns the facts that this process and the others on the database must have in common. Assigns a name to an
/// author's folder.
///
/// # Errors
/// If the folder cannot be read or written.
pub(crate) fn cluster_facts(
    home: &Home,
    mounts: Option<&MountSettings>,
) -> Result<BTreeMap<String, String>, CommandFault> {
    let name = match blob_destination(&home.dir, &home.config)? {
        NewBlobDestination::Bucket(url) => url,
        NewBlobDestination::Folder(folder) => match read_folder_id(&folder)? {
            Some(name) => name,
            None => {
                let name = random_text()?;
                write_secret_file(&folder.join(FOLDER_ID_FILE), &name)?;
                name
            }
        },
    };
    let mut facts = BTreeMap::from([(BLOBS_FACT.to_owned(), name)]);
    facts.extend(mounts.map(|mounts| (MOUNTS_FACT.to_owned(), mounts.fingerprint())));
    Ok(facts)
}

/// Refuses to process assets whose files are stored in another folder: if authors are running, and none of them has
/// this folder.
///
/// # Errors
/// [`CommandFault::usage`]; otherwise if the database fails.
pub(crate) async fn require_same_blob_folder(
    home: &Home,
    facts: &BTreeMap<String, String>,
    queues: &JobQueues,
) -> Result<(), CommandFault> {
    let failed = |error: tympan_jobs::Error| CommandFault::cannot_run(error_chain_text(&error));
    let workers = queues.statistics().live_workers(SystemTime::now()).await.map_err(failed)?;
    let mut authors = workers.iter().filter_map(|worker| worker.shared_facts.get(BLOBS_FACT));
    let own_folder = facts.get(BLOBS_FACT);
    if authors.clone().next().is_none()
        || authors.any(|author_folder| Some(author_folder) == own_folder)
    {
        return Ok(());
    }
    Err(CommandFault::usage(format!(
        "`{}` is not the blob storage of the author on this database: mount or link the author's folder \
         there, or name the author's bucket",
        blob_destination(&home.dir, &home.config)?
    )))
}

fn blob_destination(
    home: &Path,
    config: &TympanConfig,
) -> Result<NewBlobDestination, CommandFault> {
    effective_blob_section(home, config)?.new_blob_destination(home)
}

fn read_folder_id(folder: &Path) -> Result<Option<String>, CommandFault> {
    let file = folder.join(FOLDER_ID_FILE);
    match fs::read_to_string(&file) {
        Ok(name) => Ok(Some(name.trim().to_owned()).filter(|name| !name.is_empty())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => {
            Err(CommandFault::cannot_run(format!("cannot read `{}`: {error}", file.display())))
        }
    }
}
