//! K6, K7: saves over a line, and beside a load, which `scripts/backup_goals.py` measures.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::Outcome;
use crate::alternate::Spread;
use crate::context::Context;
use crate::figure::{Figure, Goal};

/// K6: vaults on another machine.
pub(super) fn measure_far(context: &mut Context) -> Outcome<Vec<Figure>> {
    let size = if context.is_quick { ["--files", "31000"] } else { ["--files", "155000"] };
    measure(context, "K6", size)
}

/// K7: a site that serves meanwhile.
pub(super) fn measure_load(context: &mut Context) -> Outcome<Vec<Figure>> {
    let size = if context.is_quick { ["--increments", "2"] } else { ["--increments", "8"] };
    measure(context, "K7", size)
}

fn measure(context: &Context, row: &str, size: [&str; 2]) -> Outcome<Vec<Figure>> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/backup_goals.py");
    let file = context.new_folder("goals-")?.join("figures.json");
    let rounds = if context.is_quick { "3" } else { "5" };
    let mut command = Command::new("python3");
    command.arg(script).arg(row).args(size).args(["--rounds", rounds]);
    command.arg("--program").arg(context.program()?).arg("--json").arg(&file);
    let output = command.output()?;
    // 1 is for goals that were missed: the table says which.
    if !matches!(output.status.code(), Some(0 | 1)) {
        return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned().into());
    }
    let figures: Vec<Value> = serde_json::from_slice(&std::fs::read(file)?)?;
    figures.iter().map(|figure| read(row, figure)).collect()
}

/// Reads one figure of the script.
fn read(row: &str, figure: &Value) -> Outcome<Figure> {
    let text = |name: &str| figure[name].as_str().unwrap_or_default().to_owned();
    let number = |value: &Value| value.as_f64().ok_or("a figure without a number");
    let spread = Spread {
        median: number(&figure["measured"])?,
        lower_quartile: number(&figure["range"][0])?,
        low: number(&figure["range"][0])?,
        high: number(&figure["range"][1])?,
        count: 0,
    };
    let goal = text("goal");
    let goal = match (goal.strip_prefix("at most "), goal.strip_prefix("at least ")) {
        (Some(limit), _) => Goal::AtMost(limit.parse()?),
        (_, Some(limit)) => Goal::AtLeast(limit.parse()?),
        _ => Goal::None,
    };
    let told = Figure::spread(row, text("what"), &spread, &text("unit"));
    Ok(told.goal(goal).note(text("note")))
}
