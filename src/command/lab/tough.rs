//! The commands that load an author: `tough` and `backup-impact`.

use std::path::Path;
use std::time::{Duration, SystemTime};

use tympan_lab::plan::parse_rate;
use tympan_lab::program::{Metric, Program};
use tympan_lab::redact::HIDDEN;
use tympan_lab::tough::impact::Impact;
use tympan_lab::tough::{Config, Mode, Phase, Ramp, Tough, of_suites, of_yaml};

use super::keep::Beside;
use super::logs::WatchedLogs;
use super::phases::finish;
use super::{duration, fault, goals, read_text};
use crate::args::lab_author::{BackupImpact, Tough as Arguments};
use crate::command::{Fault, Outcome};
use crate::say;

pub(super) fn tough(arguments: &Arguments) -> Outcome {
    let path = Path::new(&arguments.what);
    let is_file = path.extension().is_some_and(|kind| kind == "yaml" || kind == "yml");
    let mut config = if is_file {
        of_yaml(&read_text(path)?, &arguments.what)
    } else {
        of_suites(&arguments.what)
    }
    .map_err(|error| fault(&error))?;
    replace_load(arguments, &mut config)?;
    let goals = goals(arguments.kept.output.goals.as_deref())?;
    let picture = arguments.file.as_deref().map(std::fs::read).transpose();
    let picture = picture.map_err(|error| Fault::usage(format!("cannot read --file: {error}")))?;
    let name = run_name(arguments.name.as_deref(), "tough")?;
    let is_dry = arguments.dry_run || config.is_dry;
    let author = arguments.author.clone().or_else(|| config.author.clone());
    let login = arguments.login.clone().or_else(|| config.login.clone());
    if login.as_deref().is_some_and(|login| login.ends_with(&format!(":{HIDDEN}"))) && !is_dry {
        return Err(Fault::usage(format!(
            "`{}` was kept without its password; give `--login` or TYMPAN_LAB_LOGIN",
            arguments.what
        )));
    }
    let tough = Tough {
        author: author.unwrap_or_default(),
        publish: arguments.publish.clone(),
        login: login.unwrap_or_else(|| "admin:admin".to_owned()),
        config,
        name,
        keeps_content: arguments.keep_content,
        picture,
        seed: arguments.seed,
        user_secret: user_secret()?,
        goals: &goals,
    };
    if is_dry {
        say!("{}", tough.plan().trim_end());
        return Ok(std::process::ExitCode::SUCCESS);
    }
    if tough.author.is_empty() {
        return Err(Fault::usage("`--author URL` says which author is loaded"));
    }
    let lasts = tough.config.phases.iter().map(|phase| phase.lasts).sum();
    let logs = WatchedLogs::begin(&arguments.kept.logs)?;
    let beside = Beside::begin(&arguments.watched)?;
    let mut live = super::live(&tough.author, Some(lasts));
    let mut sheet = tough.run(&mut live).map_err(|error| fault(&error))?;
    drop(live);
    beside.tell(&mut sheet);
    logs.tell(&mut sheet);
    let kept = is_file.then_some(path);
    finish(&sheet, &arguments.kept.output, arguments.kept.keep.as_deref(), kept)
}

/// Returns what nobody can know of the passwords of users that tests make.
fn user_secret() -> Result<String, Fault> {
    let mut random = [0; 16];
    getrandom::fill(&mut random)
        .map_err(|error| Fault::cannot_run(format!("the system gives no random bytes: {error}")))?;
    Ok(format!("{:032x}", u128::from_le_bytes(random)))
}

/// Returns the name of a run: one that is given, or one of this second.
fn run_name(given: Option<&str>, kind: &str) -> Result<String, Fault> {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let name = given.map_or_else(|| format!("{kind}-{}", since.as_secs()), str::to_owned);
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '-';
    if name.is_empty() || !name.chars().all(is_name) {
        return Err(Fault::usage(format!("`{name}` is no name: letters, digits and `-` only")));
    }
    Ok(name)
}

pub(super) fn backup_impact(arguments: &BackupImpact) -> Outcome {
    let mix: Vec<u64> =
        arguments.mix.split('/').filter_map(|share| share.trim().parse().ok()).collect();
    let Ok(mix) = <[u64; 3]>::try_from(mix) else {
        return Err(Fault::usage(format!("--mix `{}` is not such as 75/24/1", arguments.mix)));
    };
    let share = arguments.load.strip_suffix('%').and_then(|share| share.trim().parse::<f64>().ok());
    let Some(share) = share else {
        return Err(Fault::usage(format!("--load `{}` is no share such as 80%", arguments.load)));
    };
    let shell = |command: &String| Program {
        words: ["sh", "-c", command.as_str()].map(str::to_owned).to_vec(),
        metric: None,
    };
    let metric = arguments.bytes.as_deref().map(Metric::parse).transpose();
    let impact = Impact {
        mix,
        threads: arguments.threads,
        share: share / 100.0,
        span: duration(&arguments.span)?,
        delays: arguments.delay.clone(),
        runs: arguments.runs,
        program: Program {
            words: arguments.program.clone(),
            metric: metric.map_err(|error| fault(&error))?,
        },
        before: arguments.before.as_ref().map(shell),
        traversals: arguments.traverse.clone(),
    };
    impact.check().map_err(|error| fault(&error))?;
    if arguments.kept.output.goals.is_some() {
        return Err(Fault::usage("the impact is measured, not judged: there are no --goals"));
    }
    let config = of_suites("toughday").map_err(|error| fault(&error))?;
    let tough = Tough {
        config,
        author: arguments.author.clone(),
        publish: None,
        login: arguments.login.clone().unwrap_or_else(|| "admin:admin".to_owned()),
        name: run_name(arguments.name.as_deref(), "impact")?,
        keeps_content: false,
        picture: None,
        seed: 1,
        user_secret: String::new(),
        goals: &[],
    };
    let is_quiet = arguments.kept.output.json;
    let mut tell = |line: &str| {
        if !is_quiet {
            say!("{line}");
        }
    };
    let logs = WatchedLogs::begin(&arguments.kept.logs)?;
    let mut sheet = impact.run(&tough, &mut tell).map_err(|error| fault(&error))?;
    logs.tell(&mut sheet);
    finish(&sheet, &arguments.kept.output, arguments.kept.keep.as_deref(), None)
}

/// Puts the load of the arguments in the place of that of the file.
fn replace_load(arguments: &Arguments, config: &mut Config) -> Result<(), Fault> {
    let lasts = arguments.duration.as_deref().map(duration).transpose()?;
    if lasts.is_some_and(|lasts: Duration| lasts.is_zero()) {
        return Err(Fault::usage("--duration is a time above 0"));
    }
    let mode = match (arguments.concurrency, &arguments.rate) {
        (Some(users), _) => Some(Mode::Normal {
            users: Ramp::steady(f64::from(users)),
            wait: duration(&arguments.wait)?,
        }),
        (None, Some(rate)) => {
            let rate = parse_rate(rate).ok_or_else(|| {
                Fault::usage(format!("--rate `{rate}` is no rate above 0, such as 20/s"))
            })?;
            Some(Mode::ConstantLoad { rate: Ramp::steady(rate) })
        }
        (None, None) => None,
    };
    let replace = |phase: &mut Phase| {
        phase.lasts = lasts.unwrap_or(phase.lasts);
        phase.mode = mode.clone().unwrap_or_else(|| phase.mode.clone());
    };
    config.phases.iter_mut().for_each(replace);
    Ok(())
}
