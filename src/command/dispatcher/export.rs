//! `tympan dispatcher export`: what the cache serves, as an archive or a folder.

use std::ffi::OsString;
use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::SystemTime;

use tympan_dispatcher::config::{Config, Farm};
use tympan_dispatcher::{Error, Export, Exported, Sink};

use crate::command::{Fault, Outcome};
use crate::home::chain;
use crate::say;

/// What is exported.
pub(super) struct What<'a> {
    pub(super) farm: Option<&'a str>,
    pub(super) has_stale: bool,
    pub(super) is_bare: bool,
    pub(super) time: u64,
}

/// Runs the command; one of archive and folder is given.
pub(super) fn run(
    config: &Config,
    what: &What<'_>,
    (tar, folder): (Option<&Path>, Option<&Path>),
    json: bool,
) -> Outcome {
    let export = Export {
        farm: find(config, what.farm)?,
        now: SystemTime::now(),
        has_stale: what.has_stale,
        is_bare: what.is_bare,
        time: what.time,
    };
    let is_piped = tar == Some(Path::new("-"));
    let exported = match (tar, folder) {
        (Some(_), _) if is_piped => {
            let to = BufWriter::new(std::io::stdout().lock());
            tympan_dispatcher::export(&export, Sink::Tar(to)).map_err(|error| fault(&error))?
        }
        (Some(file), _) => into_file(&export, file)?,
        (None, Some(folder)) => into_folder(&export, folder)?,
        (None, None) => return Err(Fault::usage("say where to: --tar FILE or --folder DIR")),
    };
    tell(&exported, json, is_piped);
    Ok(ExitCode::SUCCESS)
}

fn find<'a>(config: &'a Config, name: Option<&str>) -> Result<&'a Farm, Fault> {
    let keeps = |farm: &&Farm| farm.cache.as_ref().is_some_and(|cache| cache.docroot.is_some());
    let mut farms = config.farms.iter().map(|farm| &**farm);
    if let Some(name) = name {
        let found = farms.find(|farm| farm.name == name);
        return found.ok_or_else(|| Fault::usage(format!("there is no farm `{name}`")));
    }
    let farms: Vec<&Farm> = farms.filter(keeps).collect();
    match farms.as_slice() {
        [farm] => Ok(farm),
        [] => Err(Fault::usage("no farm has a `/cache` with a `/docroot`")),
        several => {
            let names: Vec<&str> = several.iter().map(|farm| farm.name.as_str()).collect();
            let names = names.join(", ");
            Err(Fault::usage(format!("say which farm with --farm: {names}")))
        }
    }
}

/// Writes beside the file first, so that nobody takes a part for the whole.
fn into_file(export: &Export<'_>, file: &Path) -> Result<Exported, Fault> {
    let part = part_of(file);
    // Another export may write there, and a link would lead elsewhere.
    let to = File::create_new(&part).map_err(|error| unmade(&part, &error))?;
    let written = tympan_dispatcher::export(export, Sink::Tar(BufWriter::new(&to)))
        .map_err(|error| fault(&error));
    let placed = written.and_then(|exported| {
        to.sync_all().map_err(|error| unwritable(&part, &error))?;
        place(&part, file)?;
        Ok(exported)
    });
    if placed.is_err() {
        std::fs::remove_file(&part).ok();
    }
    placed
}

fn into_folder(export: &Export<'_>, folder: &Path) -> Result<Exported, Fault> {
    let is_free = match std::fs::read_dir(folder) {
        Ok(mut entries) => entries.next().is_none(),
        Err(error) => error.kind() == std::io::ErrorKind::NotFound,
    };
    if !is_free {
        let folder = folder.display();
        return Err(Fault::usage(format!(
            "`{folder}` is not empty; name a folder that is, or a new one"
        )));
    }
    let part = part_of(folder);
    if let Some(parent) = part.parent() {
        std::fs::create_dir_all(parent).map_err(|error| unwritable(parent, &error))?;
    }
    std::fs::create_dir(&part).map_err(|error| unmade(&part, &error))?;
    let sink = Sink::<Vec<u8>>::Folder(part.clone());
    let placed = tympan_dispatcher::export(export, sink).map_err(|error| fault(&error));
    let placed = placed.and_then(|exported| {
        place(&part, folder)?;
        Ok(exported)
    });
    if placed.is_err() {
        std::fs::remove_dir_all(&part).ok();
    }
    placed
}

/// Gives what is on the disk already its name, for good.
fn place(part: &Path, path: &Path) -> Result<(), Fault> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let parent = parent.unwrap_or(Path::new("."));
    std::fs::rename(part, path)
        .and_then(|()| File::open(parent)?.sync_all())
        .map_err(|error| unwritable(path, &error))
}

fn part_of(path: &Path) -> PathBuf {
    let mut name = OsString::from(path.components().as_path());
    name.push(".part");
    PathBuf::from(name)
}

/// Tells why what is written first cannot be made.
fn unmade(part: &Path, error: &std::io::Error) -> Fault {
    if error.kind() != std::io::ErrorKind::AlreadyExists {
        return unwritable(part, error);
    }
    let part = part.display();
    Fault::usage(format!(
        "`{part}` is in the way; another export writes it, or one that ended early left it: remove it then"
    ))
}

fn unwritable(path: &Path, error: &std::io::Error) -> Fault {
    Fault::cannot_run(format!("cannot write `{}`: {error}", path.display()))
}

fn fault(error: &Error) -> Fault {
    match error {
        Error::NoDocroot(_) => Fault::usage(chain(error)),
        _ => Fault::cannot_run(chain(error)),
    }
}

#[expect(clippy::print_stderr, reason = "standard output may hold the archive")]
fn tell(exported: &Exported, json: bool, is_piped: bool) {
    let Exported { files, bytes, stale, unserved, unsteady } = exported;
    let text = if json {
        serde_json::to_value(exported).unwrap_or_default().to_string()
    } else {
        let changing = if *unsteady > 0 {
            format!(", {unsteady} as they changed all the time")
        } else {
            String::new()
        };
        format!(
            "{files} pages with {bytes} bytes; left out: {stale} that are out of date, {unserved} that no visitor gets \
             from the cache{changing}"
        )
    };
    if is_piped {
        eprintln!("{text}");
    } else {
        say!("{text}");
    }
}
