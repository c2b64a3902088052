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

use crate::access::HomeAccess;
use crate::blob_config::NewBlobDestination;
use crate::config::HomeConfig;
use crate::error::{Error, Result};
use crate::opened_home::Home;
use crate::private_file::{random_text, write_secret_file};

/// The file with the folder's name.
const FOLDER_ID_FILE: &str = "folder.id";
/// The key of the fact about the folder of blobs.
const BLOBS_FACT: &str = "blobs";
/// The key of the fact about the section `[mounts]`.
const MOUNTS_FACT: &str = "mounts";

/// Refuses a home whose folder `blobs` does not belong to an author, before anything is created in it.
///
/// # Errors
/// [`Error::Refused`], which explains how to share the folder.
pub fn require_own_blob_folder(access: &HomeAccess, home: &Path) -> Result<()> {
    let config = access.read_config(home)?;
    let NewBlobDestination::Folder(folder) = blob_destination(access, home, &config)? else {
        return Ok(());
    };
    match read_folder_id(&folder)? {
        Some(_) => Ok(()),
        None => Err(Error::refused(format!(
            "`{}` is not the blob folder of an author: start the author first, then mount or link its folder \
             there, such as by `ln -s /srv/author/blobs {0}`; or use one bucket for both, with `--blobs \
             s3://BUCKET`",
            folder.display()
        ))),
    }
}

/// Returns the facts that this process and the others on the database must have in common; `mounts` is the fingerprint of
/// the section `[mounts]`. Assigns a name to an author's folder.
///
/// # Errors
/// If the folder cannot be read or written.
pub fn cluster_facts(
    access: &HomeAccess,
    home: &Home,
    mounts: Option<String>,
) -> Result<BTreeMap<String, String>> {
    let name = match blob_destination(access, &home.dir, &home.config)? {
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
    facts.extend(mounts.map(|mounts| (MOUNTS_FACT.to_owned(), mounts)));
    Ok(facts)
}

/// Refuses to process assets whose files are stored in another folder: if authors are running, and none of them has
/// this folder.
///
/// # Errors
/// [`Error::Refused`]; otherwise if the database fails.
pub async fn require_same_blob_folder(
    access: &HomeAccess,
    home: &Home,
    facts: &BTreeMap<String, String>,
    queues: &JobQueues,
) -> Result<()> {
    let workers = queues.statistics().live_workers(SystemTime::now()).await?;
    let mut authors = workers.iter().filter_map(|worker| worker.shared_facts.get(BLOBS_FACT));
    let own_folder = facts.get(BLOBS_FACT);
    if authors.clone().next().is_none()
        || authors.any(|author_folder| Some(author_folder) == own_folder)
    {
        return Ok(());
    }
    Err(Error::refused(format!(
        "`{}` is not the blob storage of the author on this database: mount or link the author's folder \
         there, or name the author's bucket",
        blob_destination(access, &home.dir, &home.config)?
    )))
}

fn blob_destination(
    access: &HomeAccess,
    home: &Path,
    config: &HomeConfig,
) -> Result<NewBlobDestination> {
    access.effective_blob_section(home, config)?.new_blob_destination(home)
}

fn read_folder_id(folder: &Path) -> Result<Option<String>> {
    let file = folder.join(FOLDER_ID_FILE);
    match fs::read_to_string(&file) {
        Ok(name) => Ok(Some(name.trim().to_owned()).filter(|name| !name.is_empty())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::failed(format!("cannot read `{}`", file.display()), error)),
    }
}
