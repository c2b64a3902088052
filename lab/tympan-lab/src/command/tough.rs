//! The commands that put an author under load: `tough` and `backup-impact`.

use std::path::Path;
use std::time::{Duration, SystemTime};

use tympan_lab_engine::load::request_authorization::RequestAuthorization;
use tympan_lab_plan::parse_rate;
use tympan_lab_plan::redaction::REDACTED;
use tympan_lab_tools::program::{MeasuredProgram, OutputMetric};
use tympan_lab_tools::tough_day::backup_impact::BackupImpactTest;
use tympan_lab_tools::tough_day::{
    LoadRamp, ToughConfig, ToughDayRun, ToughLoadMode, ToughPhase, config_of_suites, config_of_yaml,
};
use tympan_terminal::{CommandFault, CommandOutcome, say};

use super::load_phase::finish_phase_test;
use super::log_watch::WatchedLogs;
use super::run_folder::TargetWatch;
use super::{duration_from_text, lab_fault, read_goals, read_text, request_authorization};
use crate::args::author::{LabBackupImpactArgs, LabToughArgs};

/// The credentials of a new author.
const DEFAULT_LOGIN: &str = "admin:admin";

pub(super) fn run_tough(arguments: &LabToughArgs) -> CommandOutcome {
    let path = Path::new(&arguments.what);
    let is_file = path.extension().is_some_and(|kind| kind == "yaml" || kind == "yml");
    let mut config = if is_file {
        config_of_yaml(&read_text(path)?, &arguments.what)
    } else {
        config_of_suites(&arguments.what)
    }
    .map_err(lab_fault)?;
    override_load(arguments, &mut config)?;
    let goals = read_goals(arguments.run_options.output.goals.as_deref())?;
    let picture = arguments.file.as_deref().map(std::fs::read).transpose();
    let picture =
        picture.map_err(|error| CommandFault::usage(format!("cannot read --file: {error}")))?;
    let name = run_name_or_default(arguments.name.as_deref(), "tough")?;
    let is_dry = arguments.dry_run || config.is_dry_run;
    let author = arguments.author.clone().or_else(|| config.author_url.clone());
    let authorization = request_authorization(&arguments.credentials)?;
    let is_redacted = |login: &String| login.ends_with(&format!(":{REDACTED}"));
    if authorization.is_none() && config.login.as_ref().is_some_and(is_redacted) && !is_dry {
        return Err(CommandFault::usage(format!(
            "`{}` was stored without its password; give `--token-file`, `--login` or TYMPAN_LAB_LOGIN",
            arguments.what
        )));
    }
    let tough = ToughDayRun {
        author_url: author.unwrap_or_default(),
        publish_url: arguments.publish.clone(),
        authorization: authorization.unwrap_or_else(|| {
            RequestAuthorization::basic(config.login.as_deref().unwrap_or(DEFAULT_LOGIN))
        }),
        config,
        run_name: name,
        keeps_content: arguments.keep_content,
        upload_picture: picture,
        picture_seed: arguments.seed,
        user_password_prefix: random_user_secret()?,
        goals: &goals,
    };
    if is_dry {
        say!("{}", tough.describe_plan().trim_end());
        return Ok(std::process::ExitCode::SUCCESS);
    }
    if tough.author_url.is_empty() {
        return Err(CommandFault::usage("name the author to load with `--author URL`"));
    }
    let duration = tough.config.phases.iter().map(|phase| phase.duration).sum();
    let logs = WatchedLogs::start(&arguments.run_options.logs)?;
    let beside = TargetWatch::start(&arguments.watched)?;
    let mut live = super::live_display(&tough.author_url, Some(duration));
    let mut sheet = tough.run(&mut live).map_err(lab_fault)?;
    drop(live);
    beside.add_to_sheet(&mut sheet);
    logs.add_to_sheet(&mut sheet);
    let source_file = is_file.then_some(path);
    finish_phase_test(
        &sheet,
        &arguments.run_options.output,
        arguments.run_options.keep.as_deref(),
        source_file,
    )
}

/// Returns a random secret for the passwords of users that tests create.
fn random_user_secret() -> Result<String, CommandFault> {
    let mut random = [0; 16];
    getrandom::fill(&mut random).map_err(|error| {
        CommandFault::cannot_run(format!("cannot get random bytes from the system: {error}"))
    })?;
    Ok(format!("{:032x}", u128::from_le_bytes(random)))
}

/// Returns the name of a run: the given one, or one derived from the current second.
fn run_name_or_default(requested_name: Option<&str>, kind: &str) -> Result<String, CommandFault> {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let name = requested_name.map_or_else(|| format!("{kind}-{}", since.as_secs()), str::to_owned);
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '-';
    if name.is_empty() || !name.chars().all(is_name) {
        return Err(CommandFault::usage(format!(
            "`{name}` is not a name: use letters, digits and `-` only"
        )));
    }
    Ok(name)
}

pub(super) fn run_backup_impact(arguments: &LabBackupImpactArgs) -> CommandOutcome {
    let mix: Vec<u64> =
        arguments.mix.split('/').filter_map(|share| share.trim().parse().ok()).collect();
    let Ok(mix) = <[u64; 3]>::try_from(mix) else {
        return Err(CommandFault::usage(format!(
            "--mix `{}` is not of the form 75/24/1",
            arguments.mix
        )));
    };
    let share = arguments.load.strip_suffix('%').and_then(|share| share.trim().parse::<f64>().ok());
    let Some(share) = share else {
        return Err(CommandFault::usage(format!(
            "--load `{}` is not a percentage such as 80%",
            arguments.load
        )));
    };
    let shell = |command: &String| MeasuredProgram {
        words: ["sh", "-c", command.as_str()].map(str::to_owned).to_vec(),
        metric: None,
    };
    let metric = arguments.bytes.as_deref().map(OutputMetric::parse).transpose();
    let impact = BackupImpactTest {
        work_mix: mix,
        thread_count: arguments.users,
        load_share: share / 100.0,
        measure_duration: duration_from_text(&arguments.duration)?,
        delays: arguments.delay.clone(),
        runs_per_backup: arguments.runs,
        backup_program: MeasuredProgram {
            words: arguments.program.clone(),
            metric: metric.map_err(lab_fault)?,
        },
        before_program: arguments.before.as_ref().map(shell),
        traversal_paths: arguments.traverse.clone(),
    };
    impact.validate().map_err(lab_fault)?;
    if arguments.run_options.output.goals.is_some() {
        return Err(CommandFault::usage(
            "--goals does not apply here: the impact is measured, not judged",
        ));
    }
    let config = config_of_suites("toughday").map_err(lab_fault)?;
    let tough = ToughDayRun {
        config,
        author_url: arguments.author.clone(),
        publish_url: None,
        authorization: request_authorization(&arguments.credentials)?
            .unwrap_or_else(|| RequestAuthorization::basic(DEFAULT_LOGIN)),
        run_name: run_name_or_default(arguments.name.as_deref(), "impact")?,
        keeps_content: false,
        upload_picture: None,
        picture_seed: 1,
        user_password_prefix: String::new(),
        goals: &[],
    };
    let is_quiet = arguments.run_options.output.json;
    let mut tell = |line: &str| {
        if !is_quiet {
            say!("{line}");
        }
    };
    let logs = WatchedLogs::start(&arguments.run_options.logs)?;
    let mut sheet = impact.run(&tough, &mut tell).map_err(lab_fault)?;
    logs.add_to_sheet(&mut sheet);
    finish_phase_test(
        &sheet,
        &arguments.run_options.output,
        arguments.run_options.keep.as_deref(),
        None,
    )
}

/// Replaces the load of the file with that of the arguments.
fn override_load(arguments: &LabToughArgs, config: &mut ToughConfig) -> Result<(), CommandFault> {
    let duration = arguments.duration.as_deref().map(duration_from_text).transpose()?;
    if duration.is_some_and(|duration: Duration| duration.is_zero()) {
        return Err(CommandFault::usage("--duration must be a time above 0"));
    }
    let mode = match (arguments.users, &arguments.rate) {
        (Some(users), _) => Some(ToughLoadMode::Normal {
            users: LoadRamp::constant(f64::from(users)),
            pause: duration_from_text(&arguments.think)?,
        }),
        (None, Some(rate)) => {
            let rate = parse_rate(rate).ok_or_else(|| {
                CommandFault::usage(format!("--rate `{rate}` is not a rate above 0, such as 20/s"))
            })?;
            Some(ToughLoadMode::ConstantLoad { rate: LoadRamp::constant(rate) })
        }
        (None, None) => None,
    };
    let replace = |phase: &mut ToughPhase| {
        phase.duration = duration.unwrap_or(phase.duration);
        phase.load_mode = mode.clone().unwrap_or_else(|| phase.load_mode.clone());
    };
    config.phases.iter_mut().for_each(replace);
    Ok(())
}
