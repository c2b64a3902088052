//! `tympan package`: installs, compares, uninstalls, lists and builds content packages, in a home or through a running
//! instance.

use std::fmt::Display;
use std::fs::File;
use std::path::Path;
use std::process::ExitCode;
use std::time::SystemTime;

use indicatif::ProgressBar;
use serde::Serialize;
use serde_json::Value;
use tympan_content::{Repository, Snapshot};
use tympan_content_package::build::{PackageManifest, write_package};
use tympan_content_package::{
    AuditStamp, ContentPackage, DependencyRule, Error as PackageError, IdentifierRule,
    InstallOptions, InstallProgress, InstallReport, PackageFilter, PackageId, PackageInstallation,
    PackageLimits, PackageSession, StoredPackage, StoredPackages,
};
use tympan_home::Home;
use tympan_terminal::{CommandFault, CommandOutcome, error_chain_text, say};

use crate::args::{HomeOrInstanceArgs, PackageCommand};
use crate::command::demo::install_progress_style;
use crate::command::package_remote::RemotePackageClient;
use crate::command::remote_instance::{home_dir, open_stopped_home};
use crate::home::{ADMIN_USER, close_home, open_home, refuse_running_home};

/// Runs the command.
pub(crate) fn run_package_command(package: &PackageCommand) -> CommandOutcome {
    match package {
        PackageCommand::Install { package, dependencies, identifiers, place } => {
            let identifiers = IdentifierRule::from_name(identifiers).ok_or_else(|| {
                CommandFault::usage(format!("`{identifiers}` is not one of refuse, new, replace"))
            })?;
            let dependencies = DependencyRule::from_name(dependencies).ok_or_else(|| {
                let policy_names = "best_effort, required, strict, ignore";
                CommandFault::usage(format!("`{dependencies}` is not one of {policy_names}"))
            })?;
            let options = InstallOptions {
                identifier_rule: identifiers,
                dependency_rule: dependencies,
                ..InstallOptions::default()
            };
            install_package(package, &options, place)
        }
        PackageCommand::Diff { file, place } => diff_package(file, place),
        PackageCommand::Uninstall { id, force, place } => uninstall_package(id, *force, place),
        PackageCommand::List { place } => list_packages(place),
        PackageCommand::Build { filter, output, id, place } => {
            build_package(filter, output, id.as_deref(), place)
        }
    }
}

fn failure_fault(error: &dyn std::error::Error) -> CommandFault {
    CommandFault::cannot_run(error_chain_text(error))
}

/// Classifies an error: a refused package, or another failure.
pub(crate) fn refusal_fault(error: PackageError) -> CommandFault {
    use tympan_content::Error::{ConstraintViolations, InvalidEdit, NodeMissing};
    match error {
        PackageError::InvalidPackage { .. }
        | PackageError::Content(NodeMissing(_) | ConstraintViolations(_) | InvalidEdit { .. }) => {
            CommandFault::usage(error_chain_text(&error))
        }
        other => failure_fault(&other),
    }
}

fn install_stamp() -> AuditStamp {
    AuditStamp { user: ADMIN_USER.to_owned(), time: SystemTime::now() }
}

/// Prints the result, as text or as JSON.
fn print_result<T: Serialize + Display>(value: &T, location: &HomeOrInstanceArgs) {
    if location.json {
        say!("{}", serde_json::to_value(value).unwrap_or_default());
    } else {
        say!("{}", value.to_string().trim_end());
    }
}

fn install_package(
    package: &str,
    options: &InstallOptions,
    location: &HomeOrInstanceArgs,
) -> CommandOutcome {
    let file = Path::new(package);
    let is_id = !file.exists() && package.contains(':');
    if let Some(instance) = RemotePackageClient::from_args(location) {
        let response = if is_id {
            instance.install(package, options)?
        } else {
            instance.install_file(file, options)?
        };
        instance.print_response(&response);
        return Ok(ExitCode::SUCCESS);
    }
    let bar = ProgressBar::new(1).with_style(install_progress_style()).with_message("installing");
    let mut progress = |step: InstallProgress<'_>| {
        bar.set_length(step.total_nodes as u64);
        bar.set_position(step.done_nodes as u64);
    };
    let (home, report) = if is_id {
        let home = open_stopped_home(&location.location)?;
        let stored = find_package(&home.repository, package)?;
        let mut session =
            home.repository.session(ADMIN_USER).map_err(|error| failure_fault(&error))?;
        let how =
            PackageInstallation { options, stamp: &install_stamp(), on_progress: &mut progress };
        let report = PackageSession::new(&mut session).install(&stored.path, how);
        (home, report)
    } else {
        install_package_file(file, home_dir(&location.location)?, options, &mut progress)?
    };
    let report = report.map_err(refusal_fault)?;
    bar.finish_and_clear();
    close_home(&home)?;
    print_result(&report, location);
    Ok(ExitCode::SUCCESS)
}

/// Installs a package file; it is read completely and checked before the home is modified.
fn install_package_file(
    file: &Path,
    home: &Path,
    options: &InstallOptions,
    progress: &mut dyn FnMut(InstallProgress<'_>),
) -> Result<(Home, tympan_content_package::Result<InstallReport>), CommandFault> {
    let mut package = ContentPackage::open(file, &PackageLimits::default())
        .map_err(|error| CommandFault::usage(error_chain_text(&error)))?;
    let mut bytes = File::open(file).map_err(|error| {
        CommandFault::usage(format!("cannot read `{}`: {error}", file.display()))
    })?;
    refuse_running_home(home)?;
    let home = open_home(home)?.home;
    let mut session = home.repository.session(ADMIN_USER).map_err(|error| failure_fault(&error))?;
    let how = PackageInstallation { options, stamp: &install_stamp(), on_progress: progress };
    let report = PackageSession::new(&mut session).install_file(&mut package, &mut bytes, how);
    drop(session);
    Ok((home, report))
}

fn diff_package(file: &Path, location: &HomeOrInstanceArgs) -> CommandOutcome {
    if let Some(instance) = RemotePackageClient::from_args(location) {
        let response = instance.diff(file)?;
        instance.print_response(&response);
        return Ok(ExitCode::SUCCESS);
    }
    let mut package = ContentPackage::open(file, &PackageLimits::default())
        .map_err(|error| CommandFault::usage(error_chain_text(&error)))?;
    let home = open_stopped_home(&location.location)?;
    let mut session = home.repository.session(ADMIN_USER).map_err(|error| failure_fault(&error))?;
    let (difference, _) = PackageSession::new(&mut session)
        .preview(&mut package, &InstallOptions::default(), usize::MAX)
        .map_err(refusal_fault)?;
    drop(session);
    close_home(&home)?;
    print_result(&difference, location);
    Ok(ExitCode::SUCCESS)
}

fn uninstall_package(id: &str, force: bool, location: &HomeOrInstanceArgs) -> CommandOutcome {
    if let Some(instance) = RemotePackageClient::from_args(location) {
        let response = instance.uninstall(id, force)?;
        instance.print_response(&response);
        return Ok(ExitCode::SUCCESS);
    }
    let home = open_stopped_home(&location.location)?;
    let stored = find_package(&home.repository, id)?;
    let mut session = home.repository.session(ADMIN_USER).map_err(|error| failure_fault(&error))?;
    let rule = if force { DependencyRule::Ignore } else { DependencyRule::Required };
    let done = PackageSession::new(&mut session)
        .uninstall(&stored.path, rule, &install_stamp())
        .map_err(refusal_fault)?;
    drop(session);
    close_home(&home)?;
    print_result(&done, location);
    Ok(ExitCode::SUCCESS)
}

fn list_packages(location: &HomeOrInstanceArgs) -> CommandOutcome {
    let packages = match RemotePackageClient::from_args(location) {
        Some(instance) => instance.list()?,
        None => {
            let home = open_stopped_home(&location.location)?;
            let packages = StoredPackages::new(&latest_snapshot(&home.repository)?)
                .list()
                .map_err(|error| failure_fault(&error))?;
            close_home(&home)?;
            serde_json::to_value(packages).unwrap_or_default()
        }
    };
    if location.json {
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

/// Writes a package to a temporary file and renames it when it is complete.
fn build_package(
    filter_file: &Path,
    output: &Path,
    id: Option<&str>,
    location: &HomeOrInstanceArgs,
) -> CommandOutcome {
    let text = std::fs::read(filter_file).map_err(|error| {
        CommandFault::usage(format!("cannot read `{}`: {error}", filter_file.display()))
    })?;
    let filter = PackageFilter::parse(&filter_file.display().to_string(), &text)
        .map_err(|error| CommandFault::usage(error_chain_text(&error)))?;
    let name =
        output.file_stem().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let id = id.map_or(PackageId { name, ..PackageId::default() }, PackageId::parse);
    let written = |error: std::io::Error| {
        CommandFault::cannot_run(format!("cannot write `{}`: {error}", output.display()))
    };
    let folder =
        output.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut file = tempfile::NamedTempFile::new_in(folder).map_err(written)?;
    let said = if let Some(instance) = RemotePackageClient::from_args(location) {
        instance.build(&id, text, file.as_file_mut())?
    } else {
        let home = open_stopped_home(&location.location)?;
        let snapshot = latest_snapshot(&home.repository)?;
        let manifest = PackageManifest::from_snapshot(&snapshot, id, filter)
            .map_err(|error| failure_fault(&error))?;
        let report = write_package(&file, &manifest, &snapshot, &PackageLimits::default())
            .map_err(refusal_fault)?;
        drop(snapshot);
        close_home(&home)?;
        if location.json {
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

fn latest_snapshot(repository: &Repository) -> Result<Snapshot, CommandFault> {
    repository.snapshot().map_err(|error| failure_fault(&error))
}

fn find_package(repository: &Repository, id: &str) -> Result<StoredPackage, CommandFault> {
    let package = StoredPackages::new(&latest_snapshot(repository)?)
        .find(&PackageId::parse(id))
        .map_err(|error| failure_fault(&error))?;
    package.ok_or_else(|| {
        CommandFault::usage(format!("there is no package `{id}`; `tympan package list` lists them"))
    })
}
