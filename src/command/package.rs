//! `tympan package`: installs, compares, uninstalls, lists and builds content packages, in a home or through a running
//! instance.

use std::fmt::Display;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::SystemTime;

use indicatif::ProgressBar;
use serde::Serialize;
use serde_json::Value;
use tympan_content::package::build::{Manifest, write};
use tympan_content::package::{
    DependencyRule, Filter, IdentifierRule, InstallOptions, InstallReport, Installation, Limits,
    Package as ContentPackage, PackageId, Progress, Stamp, StoredPackage,
};
use tympan_content::{Repository, Snapshot};

use crate::args::{Package, Place};
use crate::command::demo::progress_style;
use crate::command::instance::close;
use crate::command::package_remote::Instance;
use crate::command::{Fault, Outcome};
use crate::home::{ADMIN, Home, chain};
use crate::say;

/// Runs the command.
pub(crate) fn run(package: &Package) -> Outcome {
    match package {
        Package::Install { package, dependencies, identifiers, place } => {
            let identifiers = IdentifierRule::find(identifiers).ok_or_else(|| {
                Fault::usage(format!("`{identifiers}` is not one of refuse, new, replace"))
            })?;
            let dependencies = DependencyRule::find(dependencies).ok_or_else(|| {
                let known = "best_effort, required, strict, ignore";
                Fault::usage(format!("`{dependencies}` is not one of {known}"))
            })?;
            let options = InstallOptions { identifiers, dependencies, ..InstallOptions::default() };
            install(package, &options, place)
        }
        Package::Diff { file, place } => diff(file, place),
        Package::Uninstall { id, force, place } => uninstall(id, *force, place),
        Package::List { place } => list(place),
        Package::Build { filter, output, id, place } => build(filter, output, id.as_deref(), place),
    }
}

fn failed(error: &tympan_content::Error) -> Fault {
    Fault::cannot_run(chain(error))
}

/// Sorts what went wrong: a package that is refused, or anything else.
fn refused(error: tympan_content::Error) -> Fault {
    use tympan_content::Error::{Constraint, NodeMissing, Package, Refused};
    match error {
        Package { .. } | NodeMissing(_) | Constraint(_) | Refused { .. } => {
            Fault::usage(chain(&error))
        }
        other => failed(&other),
    }
}

fn stamp() -> Stamp {
    Stamp { user: ADMIN.to_owned(), at: SystemTime::now() }
}

/// Tells the result, as text or as JSON.
fn tell<T: Serialize + Display>(value: &T, place: &Place) {
    if place.json {
        say!("{}", serde_json::to_value(value).unwrap_or_default());
    } else {
        say!("{}", value.to_string().trim_end());
    }
}

fn install(package: &str, options: &InstallOptions, place: &Place) -> Outcome {
    let file = Path::new(package);
    let is_id = !file.exists() && package.contains(':');
    if let Some(instance) = Instance::of(place) {
        let answer = if is_id {
            instance.install(package, options)?
        } else {
            instance.install_file(file, options)?
        };
        instance.tell(&answer);
        return Ok(ExitCode::SUCCESS);
    }
    let bar = ProgressBar::new(1).with_style(progress_style()).with_message("installing");
    let mut progress = |step: Progress<'_>| {
        bar.set_length(step.total as u64);
        bar.set_position(step.done as u64);
    };
    let home_dir = home_of(place)?;
    let (home, report) = if is_id {
        let home = Home::open_existing(home_dir)?;
        let stored = find(&home.repository, package)?;
        let mut session = home.repository.session(ADMIN).map_err(|error| failed(&error))?;
        let how = Installation { options, stamp: &stamp(), progress: &mut progress };
        let report = session.install_package(&stored.path, how);
        (home, report)
    } else {
        install_file(file, home_dir, options, &mut progress)?
    };
    let report = report.map_err(refused)?;
    bar.finish_and_clear();
    close(&home)?;
    tell(&report, place);
    Ok(ExitCode::SUCCESS)
}

/// Installs a package file; it is read whole and checked before the home is touched.
fn install_file(
    file: &Path,
    home: &Path,
    options: &InstallOptions,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<(Home, tympan_content::Result<InstallReport>), Fault> {
    let mut package = ContentPackage::open(file, &Limits::default())
        .map_err(|error| Fault::usage(chain(&error)))?;
    let mut bytes = File::open(file)
        .map_err(|error| Fault::usage(format!("cannot read `{}`: {error}", file.display())))?;
    let home = Home::open(home)?;
    let mut session = home.repository.session(ADMIN).map_err(|error| failed(&error))?;
    let how = Installation { options, stamp: &stamp(), progress };
    let report = session.install_file(&mut package, &mut bytes, how);
    drop(session);
    Ok((home, report))
}

fn diff(file: &Path, place: &Place) -> Outcome {
    if let Some(instance) = Instance::of(place) {
        let answer = instance.diff(file)?;
        instance.tell(&answer);
        return Ok(ExitCode::SUCCESS);
    }
    let mut package = ContentPackage::open(file, &Limits::default())
        .map_err(|error| Fault::usage(chain(&error)))?;
    let home = Home::open_existing(home_of(place)?)?;
    let mut session = home.repository.session(ADMIN).map_err(|error| failed(&error))?;
    let (difference, _) =
        session.try_package(&mut package, &InstallOptions::default()).map_err(refused)?;
    drop(session);
    close(&home)?;
    tell(&difference, place);
    Ok(ExitCode::SUCCESS)
}

fn uninstall(id: &str, force: bool, place: &Place) -> Outcome {
    if let Some(instance) = Instance::of(place) {
        let answer = instance.uninstall(id, force)?;
        instance.tell(&answer);
        return Ok(ExitCode::SUCCESS);
    }
    let home = Home::open_existing(home_of(place)?)?;
    let stored = find(&home.repository, id)?;
    let mut session = home.repository.session(ADMIN).map_err(|error| failed(&error))?;
    let rule = if force { DependencyRule::Ignore } else { DependencyRule::Required };
    let done = session.uninstall_package(&stored.path, rule, &stamp()).map_err(refused)?;
    drop(session);
    close(&home)?;
    tell(&done, place);
    Ok(ExitCode::SUCCESS)
}

fn list(place: &Place) -> Outcome {
    let packages = match Instance::of(place) {
        Some(instance) => instance.list()?,
        None => {
            let home = Home::open_existing(home_of(place)?)?;
            let packages =
                snapshot_of(&home.repository)?.packages().map_err(|error| failed(&error))?;
            close(&home)?;
            serde_json::to_value(packages).unwrap_or_default()
        }
    };
    if place.json {
        say!("{packages}");
        return Ok(ExitCode::SUCCESS);
    }
    for package in packages.as_array().into_iter().flatten() {
        let text = |pointer: &str| package.pointer(pointer).and_then(Value::as_str).unwrap_or("");
        let id = PackageId {
            group: text("/id/group").into(),
            name: text("/id/name").into(),
            version: text("/id/version").into(),
        };
        let size = package.pointer("/size").and_then(Value::as_u64).unwrap_or(0);
        match text("/last_unpacked") {
            "" => say!("{id}  {size} bytes, not installed"),
            at => say!("{id}  {size} bytes, installed {at} by {}", text("/last_unpacked_by")),
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes a package beside its place and moves it there when it is complete.
fn build(filter_file: &Path, output: &Path, id: Option<&str>, place: &Place) -> Outcome {
    let text = std::fs::read(filter_file).map_err(|error| {
        Fault::usage(format!("cannot read `{}`: {error}", filter_file.display()))
    })?;
    let filter = Filter::parse(&filter_file.display().to_string(), &text)
        .map_err(|error| Fault::usage(chain(&error)))?;
    let name =
        output.file_stem().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let id = id.map_or(PackageId { name, ..PackageId::default() }, PackageId::parse);
    let written = |error: std::io::Error| {
        Fault::cannot_run(format!("cannot write `{}`: {error}", output.display()))
    };
    let folder =
        output.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut file = tempfile::NamedTempFile::new_in(folder).map_err(written)?;
    let said = if let Some(instance) = Instance::of(place) {
        instance.build(&id, text, file.as_file_mut())?
    } else {
        let home = Home::open_existing(home_of(place)?)?;
        let snapshot = snapshot_of(&home.repository)?;
        let manifest = Manifest::of(&snapshot, id, filter).map_err(|error| failed(&error))?;
        let report = write(&file, &manifest, &snapshot).map_err(refused)?;
        drop(snapshot);
        close(&home)?;
        if place.json {
            serde_json::to_value(report).unwrap_or_default().to_string()
        } else {
            report.to_string()
        }
    };
    file.as_file().sync_all().map_err(written)?;
    file.persist(output).map_err(|error| written(error.error))?;
    say!("{}", said.trim_end());
    Ok(ExitCode::SUCCESS)
}

fn home_of(place: &Place) -> Result<&PathBuf, Fault> {
    place
        .home
        .as_ref()
        .ok_or_else(|| Fault::usage("name a home with --home, or an instance with --url"))
}

fn snapshot_of(repository: &Repository) -> Result<Snapshot, Fault> {
    repository.snapshot().map_err(|error| failed(&error))
}

fn find(repository: &Repository, id: &str) -> Result<StoredPackage, Fault> {
    let found = snapshot_of(repository)?
        .find_package(&PackageId::parse(id))
        .map_err(|error| failed(&error))?;
    found.ok_or_else(|| {
        Fault::usage(format!("there is no package `{id}`; `tympan package list` names them"))
    })
}
