//! `tympan lab author upload`: verifies the goal that `upload-goal` calculates.

use tympan_lab_tools::calculator::{UploadWorkload, peak_factor};
use tympan_lab_tools::phase::upload as proof;
use tympan_terminal::{CommandFault, CommandOutcome};

use super::load_phase::finish_phase_test;
use super::load_run::parse_headers;
use super::log_watch::WatchedLogs;
use super::run_folder::TargetWatch;
use super::{duration_from_text, lab_fault, read_text};
use crate::args::author::LabUploadArgs;

/// The goal as text, from a file or from the arguments.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct UploadGoalText {
    assets: toml::Value,
    size: toml::Value,
    #[serde(default = "empty_value")]
    renditions: toml::Value,
    #[serde(default = "default_window")]
    window: String,
    #[serde(default = "default_skew")]
    skew: String,
}

fn empty_value() -> toml::Value {
    toml::Value::Integer(0)
}

fn default_window() -> String {
    "8h".to_owned()
}

fn default_skew() -> String {
    "80/20".to_owned()
}

pub(super) fn run_upload_test(arguments: &LabUploadArgs) -> CommandOutcome {
    if arguments.run_options.output.goals.is_some() {
        return Err(CommandFault::usage("upload goals are set with --goal-from, not --goals"));
    }
    let picture = arguments.file.as_deref().map(std::fs::read).transpose();
    let picture =
        picture.map_err(|error| CommandFault::usage(format!("cannot read --file: {error}")))?;
    let trial = proof::UploadTrial {
        folder_url: arguments.folder.clone(),
        authorization: super::request_authorization(&arguments.asker.credentials)?,
        headers: parse_headers(&arguments.asker.headers)?,
        workload_goal: parse_upload_goal(&read_upload_goal(arguments)?)?,
        peak_duration: duration_from_text(&arguments.duration)?,
        waits_for_renditions: !arguments.no_renditions,
        rendition_timeout: duration_from_text(&arguments.rendition_timeout)?,
        picture_bytes: picture,
        seed: arguments.seed,
    };
    let logs = WatchedLogs::start(&arguments.run_options.logs)?;
    let beside = TargetWatch::start(&arguments.watched)?;
    let mut sheet = proof::run_upload_trial(&trial).map_err(lab_fault)?;
    beside.add_to_sheet(&mut sheet);
    logs.add_to_sheet(&mut sheet);
    finish_phase_test(
        &sheet,
        &arguments.run_options.output,
        arguments.run_options.keep.as_deref(),
        None,
    )
}

fn read_upload_goal(arguments: &LabUploadArgs) -> Result<UploadGoalText, CommandFault> {
    if let Some(path) = &arguments.goal_from {
        return toml::from_str(&read_text(path)?).map_err(|error| {
            CommandFault::usage(format!("`{}`: {}", path.display(), error.to_string().trim_end()))
        });
    }
    let (Some(assets), Some(size)) = (&arguments.assets, &arguments.size) else {
        return Err(CommandFault::usage("give --assets and --size, or --goal-from"));
    };
    let text = |text: &str| toml::Value::String(text.to_owned());
    Ok(UploadGoalText {
        assets: text(assets),
        size: text(size),
        renditions: text(&arguments.spread.renditions),
        window: arguments.spread.window.clone(),
        skew: arguments.spread.skew.clone(),
    })
}

/// Parses a number, or a string such as `500/day` or `12MB`.
fn parse_number_with_unit(value: &toml::Value) -> Result<f64, CommandFault> {
    let number = match value {
        toml::Value::Integer(number) => Some(*number as f64),
        toml::Value::Float(number) => Some(*number),
        toml::Value::String(text) => {
            let digits = text.split('/').next().unwrap_or_default().trim_end_matches("MB");
            digits.trim().parse().ok()
        }
        _ => None,
    };
    number.filter(|number: &f64| number.is_finite() && *number >= 0.0).ok_or_else(|| {
        CommandFault::usage(format!("`{}` is not a number in the goal", plain_value_text(value)))
    })
}

/// Returns a value as it was written, or its type.
fn plain_value_text(value: &toml::Value) -> String {
    match value {
        toml::Value::String(text) => text.clone(),
        toml::Value::Integer(number) => number.to_string(),
        toml::Value::Float(number) => number.to_string(),
        other => other.type_str().to_owned(),
    }
}

fn parse_upload_goal(words: &UploadGoalText) -> Result<UploadWorkload, CommandFault> {
    let window = duration_from_text(&words.window)?;
    let skew = words.skew.split_once('/').and_then(|(share, time)| {
        let (share, time) = (share.trim().parse::<f64>().ok()?, time.trim().parse::<f64>().ok()?);
        (share > 0.0 && time > 0.0 && share.is_finite() && time.is_finite())
            .then_some((share, time))
    });
    let Some((share, time)) = skew else {
        return Err(CommandFault::usage(
            "the skew has the form 80/20: percent of the work / percent of the time",
        ));
    };
    if window.is_zero() {
        return Err(CommandFault::usage("the window must be a time above 0"));
    }
    Ok(UploadWorkload {
        assets_per_window: parse_number_with_unit(&words.assets)?,
        original_mb: parse_number_with_unit(&words.size)?,
        renditions_mb: parse_number_with_unit(&words.renditions)?,
        window,
        peak_factor: peak_factor(share / 100.0, time / 100.0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_goal_is_read_from_a_file() {
        let read = |text: &str| {
            toml::from_str::<UploadGoalText>(text)
                .ok()
                .and_then(|words| parse_upload_goal(&words).ok())
        };
        let uploads = read("assets = \"500/day\"\nsize = 12\nrenditions = \"4MB\"\n").unwrap();
        assert_eq!(
            (
                uploads.assets_per_window,
                uploads.original_mb,
                uploads.renditions_mb,
                uploads.peak_factor
            ),
            (500.0, 12.0, 4.0, 4.0)
        );
        for text in [
            "assets = 5",
            "assets = 5\nsize = \"x\"",
            "assets = 5\nsize = 1\nskew = \"80\"",
            "assets = 5\nsize = 1\nwindow = \"0s\"",
            "assets = 5\nsize = 1\nother = 1",
        ] {
            assert!(read(text).is_none(), "{text}");
        }
    }
}
