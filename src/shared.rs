//! What processes on one database have to share beside it: the folder or bucket of blobs, and the section `[mounts]`.
//!
//! A bucket is known by its URL. An author writes a name of its own into its folder `blobs`. Each process tells the others which name it finds there,
//! so that two folders that should be one are found out before work is lost on it.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::time::SystemTime;

use tympan_jobs::Queues;
use tympan_jobs::mount::MountSettings;

use crate::backend::chosen_blobs;
use crate::command::Fault;
use crate::config::{self, Config};
use crate::home::{Home, chain, random_text, write_secret};
use crate::places::Whereabouts;

/// The file with the folder's name.
const NAME: &str = "folder.id";
/// The fact about the folder of blobs.
const BLOBS: &str = "blobs";
/// The fact about the section `[mounts]`.
const MOUNTS: &str = "mounts";

/// Refuses a home whose folder `blobs` is no author's, before anything is made in it.
///
/// # Errors
/// [`Fault::usage`], which says how to share the folder.
pub(crate) fn require_blobs(home: &Path) -> Result<(), Fault> {
    let Whereabouts::Folder(folder) = whereabouts(home, &config::read(home)?)? else {
        return Ok(());
    };
    match read_name(&folder)? {
        Some(_) => Ok(()),
        None => Err(Fault::usage(format!(
            "`{}` is not the folder of blobs of an author: start the author first, then mount its folder there, or link \
             it, such as by `ln -s /srv/author/blobs {0}`; or give both a bucket, by `--blobs s3://BUCKET`",
            folder.display()
        ))),
    }
}

/// Says what this process has that others on the database must have, too. An author's folder gets its name.
///
/// # Errors
/// If the folder cannot be read or written.
pub(crate) fn facts(
    home: &Home,
    mounts: Option<&MountSettings>,
) -> Result<BTreeMap<String, String>, Fault> {
    let name = match whereabouts(&home.dir, &home.config)? {
        Whereabouts::Bucket(url) => url,
        Whereabouts::Folder(folder) => match read_name(&folder)? {
            Some(name) => name,
            None => {
                let name = random_text()?;
                write_secret(&folder.join(NAME), &name)?;
                name
            }
        },
    };
    let mut facts = BTreeMap::from([(BLOBS.to_owned(), name)]);
    facts.extend(mounts.map(|mounts| (MOUNTS.to_owned(), mounts.fingerprint())));
    Ok(facts)
}

/// Refuses to work on assets whose files lie in another folder: if authors live, and none of them has this one.
///
/// # Errors
/// [`Fault::usage`]; otherwise if the database fails.
pub(crate) async fn require_same_blobs(
    home: &Home,
    facts: &BTreeMap<String, String>,
    queues: &Queues,
) -> Result<(), Fault> {
    let failed = |error: tympan_jobs::Error| Fault::cannot_run(chain(&error));
    let workers = queues.workers(SystemTime::now()).await.map_err(failed)?;
    let mut authors = workers.iter().filter_map(|worker| worker.facts.get(BLOBS));
    let mine = facts.get(BLOBS);
    if authors.clone().next().is_none() || authors.any(|theirs| Some(theirs) == mine) {
        return Ok(());
    }
    Err(Fault::usage(format!(
        "`{}` is another place for blobs than that of the author on this database: mount the author's folder there, link \
         it, or name the author's bucket",
        whereabouts(&home.dir, &home.config)?
    )))
}

fn whereabouts(home: &Path, config: &Config) -> Result<Whereabouts, Fault> {
    chosen_blobs(home, config)?.whereabouts(home)
}

fn read_name(folder: &Path) -> Result<Option<String>, Fault> {
    let file = folder.join(NAME);
    match fs::read_to_string(&file) {
        Ok(name) => Ok(Some(name.trim().to_owned()).filter(|name| !name.is_empty())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Fault::cannot_run(format!("cannot read `{}`: {error}", file.display()))),
    }
}
