//! `tympan package`: install and build content packages in a home.

use std::path::Path;
use std::process::ExitCode;
use std::time::SystemTime;

use indicatif::ProgressBar;
use tympan_content::package::{Limits, Package as ContentPackage};

use crate::args::Package;
use crate::command::instance::close;
use crate::command::{Fault, Outcome};
use crate::home::{Home, chain};
use crate::say;

/// Runs the command.
pub(crate) fn run(package: &Package) -> Outcome {
    match package {
        Package::Install { file, home, json } => install(file, home, *json),
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
