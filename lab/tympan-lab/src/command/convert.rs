//! The commands that convert plans: `convert` and `export`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use tympan_lab_engine::plan_run::RunOptions;
use tympan_lab_plan::TestPlan;
use tympan_terminal::{CommandFault, CommandOutcome, say};

use super::load_run::parse_properties;
use super::{lab_fault, write_text};
use crate::args::plan::{LabConvertArgs, LabExportArgs};

pub(super) fn convert_plan(arguments: &LabConvertArgs) -> CommandOutcome {
    let plan = TestPlan::load(&arguments.plan).map_err(lab_fault)?;
    let run = RunOptions {
        properties: parse_properties(&arguments.properties)?,
        ..RunOptions::default()
    };
    let text = plan.to_toml(&run.properties, run.seed).map_err(lab_fault)?;
    let out = output_path(&arguments.plan, arguments.out.as_deref(), "toml", arguments.force)?;
    // Data files are resolved relative to a plan; if one cannot be read there, this is reported and nothing is written.
    let folder = out.parent().map(Path::to_owned).unwrap_or_default();
    TestPlan::parse(text.as_bytes(), &out.display().to_string(), folder).map_err(lab_fault)?;
    write_text(&out, &text)?;
    for remark in text.lines().map_while(|line| line.strip_prefix("# ")) {
        say!("{remark}");
    }
    say!("{}", out.display());
    Ok(ExitCode::SUCCESS)
}

pub(super) fn export_plan(arguments: &LabExportArgs) -> CommandOutcome {
    let plan = TestPlan::load(&arguments.jmx).map_err(lab_fault)?;
    let out = output_path(&arguments.jmx, arguments.out.as_deref(), "jmx", arguments.force)?;
    let stem = out
        .file_stem()
        .map_or_else(|| "plan".to_owned(), |stem| stem.to_string_lossy().into_owned());
    let order = format!("{stem}-order.csv");
    let exported = plan.to_jmx(&order).map_err(lab_fault)?;
    let order = out.with_file_name(order);
    if exported.scenario_order.is_some() {
        refuse_existing(&order, arguments.force)?;
    }
    write_text(&out, &exported.jmx)?;
    if let Some(rows) = &exported.scenario_order {
        write_text(&order, rows)?;
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

/// Returns the output path, which must not exist unless it may be replaced.
fn output_path(
    plan: &Path,
    out: Option<&Path>,
    extension: &str,
    force: bool,
) -> Result<PathBuf, CommandFault> {
    let out = out.map_or_else(|| plan.with_extension(extension), Path::to_owned);
    refuse_existing(&out, force)?;
    Ok(out)
}

fn refuse_existing(path: &Path, force: bool) -> Result<(), CommandFault> {
    if path.exists() && !force {
        return Err(CommandFault::usage(format!(
            "`{}` already exists; --force replaces it",
            path.display()
        )));
    }
    Ok(())
}
