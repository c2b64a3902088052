//! The commands that write plans in another form: `convert` and `export`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use tympan_lab::plan::{Plan, Run};

use super::send::properties;
use super::{fault, write};
use crate::args::lab_proof::{Convert, Export};
use crate::command::{Fault, Outcome};
use crate::say;

pub(super) fn convert(arguments: &Convert) -> Outcome {
    let plan = Plan::load(&arguments.plan).map_err(|error| fault(&error))?;
    let run = Run { properties: properties(&arguments.properties)?, ..Run::default() };
    let text = plan.to_toml(&run).map_err(|error| fault(&error))?;
    let out = place(&arguments.plan, arguments.out.as_deref(), ("toml", arguments.force))?;
    // Data files are looked for beside a plan; what does not read there is told, and nothing is written.
    let folder = out.parent().map(Path::to_owned).unwrap_or_default();
    Plan::parse(text.as_bytes(), &out.display().to_string(), folder)
        .map_err(|error| fault(&error))?;
    write(&out, &text)?;
    for remark in text.lines().map_while(|line| line.strip_prefix("# ")) {
        say!("{remark}");
    }
    say!("{}", out.display());
    Ok(ExitCode::SUCCESS)
}

pub(super) fn export(arguments: &Export) -> Outcome {
    let plan = Plan::load(&arguments.jmx).map_err(|error| fault(&error))?;
    let out = place(&arguments.jmx, arguments.out.as_deref(), ("jmx", arguments.force))?;
    let stem = out
        .file_stem()
        .map_or_else(|| "plan".to_owned(), |stem| stem.to_string_lossy().into_owned());
    let order = format!("{stem}-order.csv");
    let exported = plan.to_jmx(&order).map_err(|error| fault(&error))?;
    let order = out.with_file_name(order);
    if exported.order.is_some() {
        refuse_existing(&order, arguments.force)?;
    }
    write(&out, &exported.jmx)?;
    if let Some(rows) = &exported.order {
        write(&order, rows)?;
        say!("{}", order.display());
    }
    for remark in &exported.remarks {
        say!("{remark}");
    }
    if !plan.goals.is_empty() {
        say!("The plan's goals are left out: JMeter has none.");
    }
    say!("{}", out.display());
    Ok(ExitCode::SUCCESS)
}

/// Returns where the other form goes, which must be free unless it is to be replaced.
fn place(
    plan: &Path,
    out: Option<&Path>,
    (extension, force): (&str, bool),
) -> Result<PathBuf, Fault> {
    let out = out.map_or_else(|| plan.with_extension(extension), Path::to_owned);
    refuse_existing(&out, force)?;
    Ok(out)
}

fn refuse_existing(path: &Path, force: bool) -> Result<(), Fault> {
    if path.exists() && !force {
        return Err(Fault::usage(format!("`{}` exists; --force replaces it", path.display())));
    }
    Ok(())
}
