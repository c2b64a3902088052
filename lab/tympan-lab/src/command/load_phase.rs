//! The tests with several phases: breakpoint, endure, golive, errors, component.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use tympan_lab_engine::goal;
use tympan_lab_engine::live_display::LiveDisplay;
use tympan_lab_engine::plan_run::{LoadAmount, LoadOffer, RunOptions};
use tympan_lab_engine::report::report_sheet::ReportSheet;
use tympan_lab_plan::goal::LoadGoal;
use tympan_lab_plan::{TestPlan, parse_rate};
use tympan_lab_tools::component_profile::ComponentProfileOptions;
use tympan_lab_tools::phase::outage::{OutageOptions, OutageSwitch};
use tympan_lab_tools::phase::{
    LiveDisplayFactory, breakpoint, component, endurance, error_trial, go_live,
};
use tympan_lab_tools::{isolated_component, phase};
use tympan_notation::ByteSize;
use tympan_terminal::{CHECK_FAILED_EXIT_CODE, CommandFault, CommandOutcome, say};

use super::log_watch::WatchedLogs;
use super::run_folder::{create_run_folder, metrics_source};
use super::{duration_from_text, lab_fault, open_file, read_goals, write_text};
use crate::args::LabOutputArgs;
use crate::args::limit::{
    LabBreakpointArgs, LabComponentArgs, LabEndureArgs, LabErrorsArgs, LabGoliveArgs,
    PhaseLoadArgs, PhasePlanArgs,
};

pub(super) fn run_breakpoint(arguments: &LabBreakpointArgs) -> CommandOutcome {
    let growth = parse_load_growth(&arguments.step)?;
    if !(arguments.from.is_finite() && arguments.from > 0.0) {
        return Err(CommandFault::usage("--from must be a load above 0"));
    }
    let search = breakpoint::BreakpointSearch {
        start_level: arguments.from,
        steps_are_users: arguments.steps_are_users(),
        growth,
        min_step_duration: parse_positive_duration("--dwell", &arguments.dwell)?,
        is_step_duration_fixed: arguments.exact_dwell,
        max_steps: arguments.steps,
        max_level: arguments.to,
        p95_limit: arguments.p95.as_deref().map(duration_from_text).transpose()?,
        narrows_knee: !arguments.no_narrow,
    };
    refuse_goals(
        &arguments.subject,
        "a breakpoint search has its own rules; limit the response times with `--p95`",
    )?;
    run_phase_test(&arguments.subject, |subject, _, tell| {
        breakpoint::search_breakpoint(subject, &search, tell).map_err(lab_fault)
    })
}

pub(super) fn run_endurance(arguments: &LabEndureArgs) -> CommandOutcome {
    let offer = offer_from_args(&arguments.load)?;
    let warm_up = match &arguments.warm_up {
        Some(text) => duration_from_text(text)?,
        None => (offer.duration / 10).min(Duration::from_secs(300)),
    };
    if warm_up >= offer.duration {
        return Err(CommandFault::usage("the warm-up must be shorter than the run"));
    }
    let trend = parse_percent(&arguments.trend)?;
    run_phase_test(&arguments.subject, |subject, goals, tell| {
        tell(&format!("{} for {}", offer_text(&offer), goal::format_response_time(offer.duration)));
        let endurance = endurance::EnduranceTrial {
            load_offer: offer.clone(),
            warm_up,
            max_trend_per_hour: trend,
            goals,
        };
        endurance::run_endurance_trial(subject, &endurance).map_err(lab_fault)
    })
}

pub(super) fn run_go_live(arguments: &LabGoliveArgs) -> CommandOutcome {
    let expected = match (&arguments.peak_from, &arguments.avg, &arguments.peak) {
        (Some(path), ..) => {
            let name = path.display().to_string();
            go_live::traffic_from_log(&mut open_file(path)?, &name).map_err(lab_fault)?
        }
        (None, Some(average), Some(peak)) => go_live::ExpectedTraffic {
            average_rate: parse_rate_per_second(average)?,
            peak_rate: parse_rate_per_second(peak)?,
        },
        _ => return Err(CommandFault::usage("give --avg and --peak, or --peak-from")),
    };
    if !(arguments.factor.is_finite() && arguments.factor > 0.0) {
        return Err(CommandFault::usage("--factor must be a number above 0"));
    }
    let hold = parse_positive_duration("--duration", &arguments.duration)?;
    let soft = arguments.soft.as_deref().map(parse_percent).transpose()?;
    run_phase_test(&arguments.subject, |subject, goals, tell| {
        let goals = if goals.is_empty() { go_live::default_launch_goals() } else { goals };
        let launch = go_live::GoLiveTrial {
            expected_traffic: expected,
            peak_multiplier: arguments.factor,
            hold_duration: hold,
            soft_launch_share: soft,
            goals,
        };
        go_live::run_go_live_trial(subject, &launch, tell).map_err(lab_fault)
    })
}

/// The maximum size of an upload, as in plans.
const MAX_UPLOAD_BYTES: u64 = 1024 << 20;

pub(super) fn run_error_test(arguments: &LabErrorsArgs) -> CommandOutcome {
    let healthy = offer_from_args(&arguments.load)?;
    let trial = error_trial::ErrorTrial {
        error_offer: error_trial::scale_offer(&healthy, parse_percent(&arguments.share)?),
        healthy_offer: healthy,
        max_error_p95: duration_from_text(&arguments.within)?,
        max_slowdown: parse_percent(&arguments.delta)?,
        slow_clients: slow_client_options(arguments)?,
        outages: outage_options(arguments)?,
    };
    let mistakes = match &arguments.errors {
        Some(path) => TestPlan::load(path).map_err(lab_fault)?,
        None => {
            let site = arguments.site.as_ref().unwrap_or(&arguments.subject.plan);
            if !is_http_url(site) {
                return Err(CommandFault::usage(
                    "name a plan of errors with --errors, or the site that receives the usual mistakes with \
                     --site",
                ));
            }
            let (origin, page) = split_url(site);
            let upload = arguments.upload.as_deref();
            let upload = upload.map(|path| (path, arguments.upload_size.as_str()));
            let size = arguments.upload_size.parse().map(ByteSize::as_bytes);
            let is_size = size.is_ok_and(|size| size <= MAX_UPLOAD_BYTES);
            if upload.is_some() && !is_size {
                return Err(CommandFault::usage(format!(
                    "--upload-size `{}` is not a size such as `64 MiB`, at most 1024 MiB",
                    arguments.upload_size
                )));
            }
            error_trial::common_mistakes_plan(origin, page, arguments.search.as_deref(), upload)
                .map_err(lab_fault)?
        }
    };
    refuse_goals(
        &arguments.subject,
        "the effect of errors on healthy visitors is compared, not judged by goals",
    )?;
    run_phase_test(&arguments.subject, |subject, _, tell| {
        error_trial::run_error_trial(subject, &mistakes, &trial, tell).map_err(lab_fault)
    })
}

/// Returns the target and the number of slow clients.
fn slow_client_options(arguments: &LabErrorsArgs) -> Result<Option<(String, usize)>, CommandFault> {
    let Some(clients) = arguments.slow else { return Ok(None) };
    let site = arguments.site.as_ref().unwrap_or(&arguments.subject.plan);
    if !is_http_url(site) {
        return Err(CommandFault::usage(
            "slow clients need the address of the site: name it with --site, or in place of the plan",
        ));
    }
    Ok(Some((site.clone(), clients)))
}

/// Returns the outages of back ends.
fn outage_options(arguments: &LabErrorsArgs) -> Result<Option<OutageOptions>, CommandFault> {
    let Some(restore) = &arguments.restore else { return Ok(None) };
    let kind = |text: &String| match text.split_once('=') {
        Some((name, switch)) if !name.trim().is_empty() && !switch.trim().is_empty() => {
            Ok((name.trim().to_owned(), OutageSwitch::parse(switch.trim())))
        }
        _ => Err(CommandFault::usage(format!(
            "`{text}` is not an outage; write it such as `crm down=systemctl stop crm`"
        ))),
    };
    let site = arguments.site.as_ref().unwrap_or(&arguments.subject.plan);
    let placeholder = match &arguments.placeholder {
        Some(_) if !is_http_url(site) => {
            return Err(CommandFault::usage(
                "--placeholder is searched for on a page: name the page with --site, or in place of the plan",
            ));
        }
        placeholder => placeholder.clone().map(|text| (site.clone(), text)),
    };
    Ok(Some(OutageOptions {
        backends: arguments.outage.iter().map(kind).collect::<Result<_, _>>()?,
        restore_switch: OutageSwitch::parse(restore),
        placeholder,
        max_failure_share: parse_percent(&arguments.outage_errors)?,
    }))
}

/// Renders each component of a page alone, and the page.
fn measure_all_components(arguments: &LabComponentArgs) -> CommandOutcome {
    let [url] = arguments.urls.as_slice() else {
        return Err(CommandFault::usage("--all takes exactly one page"));
    };
    if arguments.run_options.output.goals.is_some() {
        return Err(CommandFault::usage(
            "--goals does not apply here: the components are compared with the page",
        ));
    }
    let profile = ComponentProfileOptions {
        url: url.clone(),
        headers: super::load_run::parse_headers(&arguments.asker.headers)?,
        authorization: super::request_authorization(&arguments.asker.credentials)?,
        request_count: arguments.requests,
    };
    let logs = WatchedLogs::start(&arguments.run_options.logs)?;
    let mut sheet = isolated_component::measure_components_alone(&profile).map_err(lab_fault)?;
    logs.add_to_sheet(&mut sheet);
    finish_phase_test(
        &sheet,
        &arguments.run_options.output,
        arguments.run_options.keep.as_deref(),
        None,
    )
}

pub(super) fn run_component_test(arguments: &LabComponentArgs) -> CommandOutcome {
    if arguments.all {
        return measure_all_components(arguments);
    }
    if !arguments.asker.headers.is_empty() {
        return Err(CommandFault::usage(
            "-H is for --all; for addresses under load, set headers in a plan",
        ));
    }
    let of = |text: &Option<String>| parse_rate_per_second(text.as_deref().unwrap_or_default());
    let trial = component::ComponentTrial {
        urls: arguments.urls.clone(),
        average_rate: of(&arguments.avg)?,
        peak_rate: of(&arguments.peak)?,
        hold_duration: parse_positive_duration("--duration", &arguments.duration)?,
        goals: read_goals(arguments.run_options.output.goals.as_deref())?,
        metrics_source: metrics_source(&arguments.watched),
    };
    let run = RunOptions { worker_count: arguments.workers, ..RunOptions::default() };
    let logs = WatchedLogs::start(&arguments.run_options.logs)?;
    let show = Some(LiveDisplayFactory(&phase_display));
    let sheet = component::run_component_trial(
        &trial,
        &run,
        show,
        &mut progress_printer(&arguments.run_options.output),
    );
    let mut sheet = sheet.map_err(lab_fault)?;
    logs.add_to_sheet(&mut sheet);
    finish_phase_test(
        &sheet,
        &arguments.run_options.output,
        arguments.run_options.keep.as_deref(),
        None,
    )
}

/// Refuses goals in tests that do not evaluate them.
fn refuse_goals(arguments: &PhasePlanArgs, why: &str) -> Result<(), CommandFault> {
    match arguments.output.goals {
        Some(_) => Err(CommandFault::usage(format!("--goals does not apply here: {why}"))),
        None => Ok(()),
    }
}

/// Loads the plan, runs a test with it, and reports the result.
fn run_phase_test(
    arguments: &PhasePlanArgs,
    test: impl FnOnce(
        &phase::PhaseSubject<'_>,
        Vec<LoadGoal>,
        &mut dyn FnMut(&str),
    ) -> Result<ReportSheet, CommandFault>,
) -> CommandOutcome {
    let plan = load_phase_plan(&arguments.plan, &arguments.allowed.allow_ignore)?;
    let mut properties = super::load_run::parse_properties(&arguments.properties)?;
    if let Some(target) = &arguments.target {
        properties.extend(target_properties(target, &arguments.plan)?);
    }
    let mut goals = read_goals(arguments.output.goals.as_deref())?;
    goals.extend(plan.goals.iter().cloned());
    let run = RunOptions {
        properties,
        worker_count: arguments.workers,
        seed: arguments.seed,
        without_listeners: true,
        ..RunOptions::default()
    };
    let subject = phase::PhaseSubject {
        plan: &plan,
        run,
        metrics_source: metrics_source(&arguments.watched),
        live_display: Some(LiveDisplayFactory(&phase_display)),
    };
    let logs = WatchedLogs::start(&arguments.logs)?;
    let mut tell = progress_printer(&arguments.output);
    super::load_run::print_omitted_elements(&plan, &mut tell);
    let mut sheet = test(&subject, goals, &mut tell)?;
    logs.add_to_sheet(&mut sheet);
    let file = (!is_http_url(&arguments.plan)).then(|| Path::new(&arguments.plan));
    finish_phase_test(&sheet, &arguments.output, arguments.keep.as_deref(), file)
}

/// Shows the progress of a phase on standard error.
fn phase_display(name: &str, duration: Duration) -> LiveDisplay {
    super::live_display(name, Some(duration))
}

fn progress_printer(output: &LabOutputArgs) -> impl FnMut(&str) + use<> {
    let is_quiet = output.json;
    move |line: &str| {
        if !is_quiet {
            say!("{line}");
        }
    }
}

fn is_http_url(text: &str) -> bool {
    text.starts_with("http://") || text.starts_with("https://")
}

fn load_phase_plan(text: &str, classes: &[String]) -> Result<TestPlan, CommandFault> {
    if is_http_url(text) {
        return TestPlan::for_url(text).map_err(lab_fault);
    }
    super::load_run::load_plan(Path::new(text), classes)
}

/// Splits a URL into `http://host:port` and the rest.
fn split_url(url: &str) -> (&str, &str) {
    let start = url.find("://").map_or(0, |at| at + 3);
    let end = url.get(start..).and_then(|rest| rest.find('/')).map_or(url.len(), |at| start + at);
    let (origin, page) = url.split_at(end);
    (origin, if page.is_empty() { "/" } else { page })
}

/// Returns the properties that direct a TOML plan to another target.
pub(super) fn target_properties(
    url: &str,
    plan: &str,
) -> Result<Vec<(String, String)>, CommandFault> {
    if !plan.ends_with(".toml") {
        return Err(CommandFault::usage(
            "--target is for plans in TOML; JMeter plans set their target with -J",
        ));
    }
    let (origin, page) = split_url(url);
    let (protocol, host) = origin
        .split_once("://")
        .filter(|(protocol, host)| matches!(*protocol, "http" | "https") && !host.is_empty())
        .ok_or_else(|| {
            CommandFault::usage(format!("`{url}` is not an address; expected `http://host[:port]`"))
        })?;
    if page != "/" {
        return Err(CommandFault::usage("--target must be an address without a path"));
    }
    let default = if protocol == "https" { "443" } else { "80" };
    let (host, port) = match host.rsplit_once(':') {
        Some((host, port)) if port.parse::<u16>().is_ok() => (host, port),
        Some((_, port)) if !port.ends_with(']') => {
            return Err(CommandFault::usage(format!("`{port}` is not a port")));
        }
        _ => (host, default),
    };
    let pairs = [("protocol", protocol), ("host", host), ("port", port)];
    Ok(pairs.map(|(part, value)| (format!("target.{part}"), value.to_owned())).into())
}

fn offer_from_args(load: &PhaseLoadArgs) -> Result<LoadOffer, CommandFault> {
    load_offer(load.rate.as_deref(), load.users, "--duration", &load.duration)
}

/// Returns a load of visits per second, or of users; the time is the name of an argument and its value.
pub(super) fn load_offer(
    per_second: Option<&str>,
    users: Option<u64>,
    name: &str,
    time: &str,
) -> Result<LoadOffer, CommandFault> {
    let duration = parse_positive_duration(name, time)?;
    let amount = match (per_second, users) {
        (Some(text), _) => LoadAmount::Rate(parse_rate_per_second(text)?),
        (None, Some(users)) if users > 0 => LoadAmount::Users(users),
        _ => return Err(CommandFault::usage("give --rate (visits per second) or --users")),
    };
    Ok(LoadOffer { amount, duration, ramp: Duration::ZERO, is_random: true })
}

fn offer_text(offer: &LoadOffer) -> String {
    match offer.amount {
        LoadAmount::Rate(rate) => format!("{rate:.1}/s"),
        LoadAmount::Users(users) => format!("{users} users"),
    }
}

fn parse_rate_per_second(text: &str) -> Result<f64, CommandFault> {
    parse_rate(text).ok_or_else(|| {
        CommandFault::usage(format!("`{text}` is not a rate; write it such as 50/s or 30/min"))
    })
}

fn parse_positive_duration(name: &str, text: &str) -> Result<Duration, CommandFault> {
    let time = duration_from_text(text)?;
    if time.is_zero() {
        Err(CommandFault::usage(format!("{name} must be a time above 0")))
    } else {
        Ok(time)
    }
}

fn parse_percent(text: &str) -> Result<f64, CommandFault> {
    text.trim()
        .trim_end_matches("/h")
        .strip_suffix('%')
        .and_then(|number| number.trim().parse::<f64>().ok())
        .filter(|percent| percent.is_finite() && *percent >= 0.0)
        .map(|percent| percent / 100.0)
        .ok_or_else(|| {
            CommandFault::usage(format!("`{text}` is not a percentage; write it such as 20%"))
        })
}

fn parse_load_growth(text: &str) -> Result<breakpoint::LoadGrowth, CommandFault> {
    let number = |text: &str| text.parse::<f64>().ok().filter(|number| number.is_finite());
    let by_factor = text.strip_prefix('x').and_then(number).filter(|factor| *factor > 1.0);
    let by_sum = text.strip_prefix('+').and_then(number).filter(|more| *more > 0.0);
    match (by_factor, by_sum) {
        (Some(factor), _) => Ok(breakpoint::LoadGrowth::Multiply(factor)),
        (None, Some(more)) => Ok(breakpoint::LoadGrowth::Add(more)),
        (None, None) => Err(CommandFault::usage(format!(
            "`{text}` is not a step; write `x1.5` (a factor above 1) or `+10`"
        ))),
    }
}

/// Writes the reports and determines the exit code.
pub(super) fn finish_phase_test(
    sheet: &ReportSheet,
    output: &LabOutputArgs,
    keep: Option<&Path>,
    plan: Option<&Path>,
) -> CommandOutcome {
    if let Some(path) = &output.report {
        write_text(path, &sheet.to_html())?;
    }
    if let Some(path) = &output.markdown {
        write_text(path, &sheet.to_markdown())?;
    }
    if let Some(path) = &output.junit {
        write_text(path, &sheet.to_junit_xml())?;
    }
    if let Some(folder) = keep {
        store_run(sheet, folder, plan)?;
    }
    if output.json {
        say!("{}", sheet.to_json());
    } else {
        say!("{}", sheet.to_plain_text().trim_end());
    }
    Ok(if sheet.is_doubtful() {
        ExitCode::from(3)
    } else if sheet.has_bad_result() {
        ExitCode::from(CHECK_FAILED_EXIT_CODE)
    } else {
        ExitCode::SUCCESS
    })
}

/// Stores a run: the arguments, the plan, and the results.
fn store_run(sheet: &ReportSheet, folder: &Path, plan: Option<&Path>) -> Result<(), CommandFault> {
    let run = create_run_folder(folder, plan)?;
    write_text(&run.join("summary.json"), &format!("{}\n", sheet.to_json()))?;
    write_text(&run.join("report.html"), &sheet.to_html())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_become_properties() {
        let check = |url: &str, expected: [&str; 3]| {
            let properties = target_properties(url, "p.toml").unwrap();
            assert_eq!(
                properties.iter().map(|(_, value)| value.as_str()).collect::<Vec<_>>(),
                expected
            );
        };
        check("http://127.0.0.1:8080", ["http", "127.0.0.1", "8080"]);
        check("https://example.com/", ["https", "example.com", "443"]);
        check("http://[::1]", ["http", "[::1]", "80"]);
        check("http://[::1]:81", ["http", "[::1]", "81"]);
        for (url, plan) in [
            ("http://a:b", "p.toml"),
            ("ftp://a", "p.toml"),
            ("a", "p.toml"),
            ("http://a/x", "p.toml"),
            ("http://a", "p.jmx"),
        ] {
            assert!(target_properties(url, plan).is_err(), "{url}");
        }
    }

    #[test]
    fn steps_shares_and_rates_are_read() {
        assert_eq!(parse_load_growth("x1.5").unwrap(), breakpoint::LoadGrowth::Multiply(1.5));
        assert_eq!(parse_load_growth("+10").unwrap(), breakpoint::LoadGrowth::Add(10.0));
        for text in ["x1", "x0.5", "+0", "2", "xNaN"] {
            assert!(parse_load_growth(text).is_err(), "{text}");
        }
        assert_eq!(parse_percent("2%/h").unwrap(), 0.02);
        assert!(parse_percent("2").is_err() && parse_percent("-1%").is_err());
        assert_eq!(split_url("http://a:1/x?y"), ("http://a:1", "/x?y"));
    }
}
