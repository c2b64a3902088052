//! `tympan lab upload`: proves the goal that `upload-goal` calculates.

use tympan_lab::calculate::{Uploads, peak_factor};
use tympan_lab::phase::upload as proof;

use super::keep::Beside;
use super::logs::WatchedLogs;
use super::phases::finish;
use super::send::headers;
use super::{duration, fault, read_text};
use crate::args::lab_phases::Upload;
use crate::command::{Fault, Outcome};

/// The goal as words, from a file or from the arguments.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Words {
    assets: toml::Value,
    size: toml::Value,
    #[serde(default = "nothing")]
    renditions: toml::Value,
    #[serde(default = "working_day")]
    window: String,
    #[serde(default = "most_in_little")]
    skew: String,
}

fn nothing() -> toml::Value {
    toml::Value::Integer(0)
}

fn working_day() -> String {
    "8h".to_owned()
}

fn most_in_little() -> String {
    "80/20".to_owned()
}

pub(super) fn upload(arguments: &Upload) -> Outcome {
    if arguments.kept.output.goals.is_some() {
        return Err(Fault::usage("the goal of uploads is --goal-from, not --goals"));
    }
    let picture = arguments.file.as_deref().map(std::fs::read).transpose();
    let picture = picture.map_err(|error| Fault::usage(format!("cannot read --file: {error}")))?;
    let asked = proof::Proof {
        folder: arguments.folder.clone(),
        login: arguments.asker.login.clone(),
        headers: headers(&arguments.asker.headers)?,
        goal: goal(&words(arguments)?)?,
        lasts: duration(&arguments.lasts)?,
        waits: !arguments.no_renditions,
        patience: duration(&arguments.patience)?,
        picture,
        seed: arguments.seed,
    };
    let logs = WatchedLogs::begin(&arguments.kept.logs)?;
    let beside = Beside::begin(&arguments.watched)?;
    let mut sheet = proof::run(&asked).map_err(|error| fault(&error))?;
    beside.tell(&mut sheet);
    logs.tell(&mut sheet);
    finish(&sheet, &arguments.kept.output, arguments.kept.keep.as_deref(), None)
}

fn words(arguments: &Upload) -> Result<Words, Fault> {
    if let Some(path) = &arguments.goal_from {
        return toml::from_str(&read_text(path)?).map_err(|error| {
            Fault::usage(format!("`{}`: {}", path.display(), error.to_string().trim_end()))
        });
    }
    let (Some(assets), Some(size)) = (&arguments.assets, &arguments.size) else {
        return Err(Fault::usage("give --assets and --size, or --goal-from"));
    };
    let text = |text: &str| toml::Value::String(text.to_owned());
    Ok(Words {
        assets: text(assets),
        size: text(size),
        renditions: text(&arguments.spread.renditions),
        window: arguments.spread.window.clone(),
        skew: arguments.spread.skew.clone(),
    })
}

/// Returns a number from a number, or from a text such as `500/day` or `12MB`.
fn number(value: &toml::Value) -> Result<f64, Fault> {
    let number = match value {
        toml::Value::Integer(number) => Some(*number as f64),
        toml::Value::Float(number) => Some(*number),
        toml::Value::String(text) => {
            let digits = text.split('/').next().unwrap_or_default().trim_end_matches("MB");
            digits.trim().parse().ok()
        }
        _ => None,
    };
    number
        .filter(|number: &f64| number.is_finite() && *number >= 0.0)
        .ok_or_else(|| Fault::usage(format!("`{}` is no number of the goal", plainly(value))))
}

/// Shows a value as it was written, or what it is.
fn plainly(value: &toml::Value) -> String {
    match value {
        toml::Value::String(text) => text.clone(),
        toml::Value::Integer(number) => number.to_string(),
        toml::Value::Float(number) => number.to_string(),
        other => other.type_str().to_owned(),
    }
}

fn goal(words: &Words) -> Result<Uploads, Fault> {
    let window = duration(&words.window)?;
    let skew = words.skew.split_once('/').and_then(|(share, time)| {
        let (share, time) = (share.trim().parse::<f64>().ok()?, time.trim().parse::<f64>().ok()?);
        (share > 0.0 && time > 0.0 && share.is_finite() && time.is_finite())
            .then_some((share, time))
    });
    let Some((share, time)) = skew else {
        return Err(Fault::usage(
            "the skew is such as 80/20: percent of the work / percent of the time",
        ));
    };
    if window.is_zero() {
        return Err(Fault::usage("the window is a time above 0"));
    }
    Ok(Uploads {
        assets: number(&words.assets)?,
        size: number(&words.size)?,
        renditions: number(&words.renditions)?,
        window,
        peak: peak_factor(share / 100.0, time / 100.0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_goal_is_read_from_a_file() {
        let read =
            |text: &str| toml::from_str::<Words>(text).ok().and_then(|words| goal(&words).ok());
        let uploads = read("assets = \"500/day\"\nsize = 12\nrenditions = \"4MB\"\n").unwrap();
        assert_eq!(
            (uploads.assets, uploads.size, uploads.renditions, uploads.peak),
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
