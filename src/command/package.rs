//! `tympan package`: install and build content packages in a home.

use std::path::Path;
use std::process::ExitCode;
use std::time::SystemTime;

use indicatif::ProgressBar;
use tympan_content::package::build::{Manifest, write};
use tympan_content::package::{Filter, Limits, Package as ContentPackage};

use crate::args::Package;
use crate::command::instance::close;
use crate::command::{Fault, Outcome};
use crate::home::{Home, chain};
use crate::say;

/// Runs the command.
pub(crate) fn run(package: &Package) -> Outcome {
    match package {
        Package::Install { file, home, json } => install(file, home, *json),
        Package::Build { filter, output, home } => build(filter, output, home),
    }
}

fn install(file: &Path, home: &Path, json: bool) -> Outcome {
    // The package is read whole and checked before the home is touched.
    let mut package = ContentPackage::open(file, &Limits::default())
        .map_err(|error| Fault::usage(chain(&error)))?;
    let home = Home::open(home)?;
    let failed = |error: tympan_content::Error| Fault::cannot_run(chain(&error));
    let mut session = home.repository.session("admin").map_err(failed)?;
    let bar = ProgressBar::new(1);
    let report = package
        .install(&mut session, &mut |step| {
            bar.set_length(step.total as u64);
            bar.set_position(step.done as u64);
        })
        .map_err(|error| Fault::usage(chain(&error)))?;
    bar.finish_and_clear();
    session.commit(&format!("install {}", file.display()), SystemTime::now()).map_err(failed)?;
    close(&home)?;
    if json {
        say!("{}", serde_json::to_value(&report).unwrap_or_default());
    } else {
        say!("{report}");
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes a package beside its place and moves it there when it is complete.
fn build(filter_file: &Path, output: &Path, home: &Path) -> Outcome {
    let text = std::fs::read(filter_file).map_err(|error| {
        Fault::usage(format!("cannot read `{}`: {error}", filter_file.display()))
    })?;
    let filter = Filter::parse(&filter_file.display().to_string(), &text)
        .map_err(|error| Fault::usage(chain(&error)))?;
    let home = Home::open_existing(home)?;
    let failed = |error: tympan_content::Error| Fault::cannot_run(chain(&error));
    let written = |error: std::io::Error| {
        Fault::cannot_run(format!("cannot write `{}`: {error}", output.display()))
    };
    let folder =
        output.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let file = tempfile::NamedTempFile::new_in(folder).map_err(written)?;
    let name =
        output.file_stem().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let mut manifest = Manifest { filter, ..Manifest::default() };
    manifest.id.name = name;
    let snapshot = home.repository.snapshot().map_err(failed)?;
    let report = write(&file, &manifest, &snapshot).map_err(failed)?;
    file.as_file().sync_all().map_err(written)?;
    file.persist(output).map_err(|error| written(error.error))?;
    say!("{}", report.to_string().trim_end());
    close(&home)?;
    Ok(ExitCode::SUCCESS)
}
