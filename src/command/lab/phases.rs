//! The tests of several phases: breakpoint, endure, golive, errors, component.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use tympan_lab::alone;
use tympan_lab::calculate::parse_size;
use tympan_lab::components::Profile;
use tympan_lab::goal::{self, Goal};
use tympan_lab::live::Live;
use tympan_lab::phase::outage::{Outages, Switch};
use tympan_lab::phase::{self, Show};
use tympan_lab::phase::{breakpoint, component, endure, errors, golive};
use tympan_lab::plan::{Amount, Offer, Plan, Run, parse_rate};
use tympan_lab::report::sheet::Sheet;

use super::keep::{new_folder, source};
use super::logs::WatchedLogs;
use super::{duration, fault, goals, open, write};
use crate::args::lab::Output;
use crate::args::lab_phases::{Breakpoint, Component, Endure, Errors, Golive, Load, Subject};
use crate::command::{CHECK_FAILED, Fault, Outcome};
use crate::say;

pub(super) fn breakpoint(arguments: &Breakpoint) -> Outcome {
    let growth = growth(&arguments.step)?;
    if !(arguments.from.is_finite() && arguments.from > 0.0) {
        return Err(Fault::usage("--from is a load above 0"));
    }
    let search = breakpoint::Search {
        from: arguments.from,
        by_users: arguments.users,
        growth,
        dwell: above_zero("--dwell", &arguments.dwell)?,
        is_exact: arguments.exact_dwell,
        most_steps: arguments.steps,
        most: arguments.to,
        p95_limit: arguments.p95.as_deref().map(duration).transpose()?,
        narrows: !arguments.no_narrow,
    };
    no_goals(
        &arguments.subject,
        "a breaking point has its own rules; bound the times with `--p95`",
    )?;
    with_subject(&arguments.subject, |subject, _, tell| {
        breakpoint::run(subject, &search, tell).map_err(|error| fault(&error))
    })
}

pub(super) fn endure(arguments: &Endure) -> Outcome {
    let offer = offer_of(&arguments.load)?;
    let warm_up = match &arguments.warm_up {
        Some(text) => duration(text)?,
        None => (offer.lasts / 10).min(Duration::from_secs(300)),
    };
    if warm_up >= offer.lasts {
        return Err(Fault::usage("the warm-up is as long as the whole run"));
    }
    let trend = percent(&arguments.trend)?;
    with_subject(&arguments.subject, |subject, goals, tell| {
        tell(&format!("{} for {}", amount(&offer), goal::show(offer.lasts)));
        let endurance = endure::Endurance { offer: offer.clone(), warm_up, trend, goals };
        endure::run(subject, &endurance).map_err(|error| fault(&error))
    })
}

pub(super) fn golive(arguments: &Golive) -> Outcome {
    let expected = match (&arguments.peak_from, &arguments.avg, &arguments.peak) {
        (Some(path), ..) => {
            let name = path.display().to_string();
            golive::expected_from(&mut open(path)?, &name).map_err(|error| fault(&error))?
        }
        (None, Some(average), Some(peak)) => {
            golive::Expected { average: rate(average)?, peak: rate(peak)? }
        }
        _ => return Err(Fault::usage("give --avg and --peak, or --peak-from")),
    };
    if !(arguments.factor.is_finite() && arguments.factor > 0.0) {
        return Err(Fault::usage("--factor is a number above 0"));
    }
    let hold = above_zero("--hold", &arguments.hold)?;
    let soft = arguments.soft.as_deref().map(percent).transpose()?;
    with_subject(&arguments.subject, |subject, goals, tell| {
        let goals = if goals.is_empty() { golive::default_goals() } else { goals };
        let launch = golive::Launch { expected, factor: arguments.factor, hold, soft, goals };
        golive::run(subject, &launch, tell).map_err(|error| fault(&error))
    })
}

/// Most bytes of an upload, as in plans.
const MOST_UPLOAD: u64 = 1024 << 20;

pub(super) fn errors(arguments: &Errors) -> Outcome {
    let healthy = offer_of(&arguments.load)?;
    let trial = errors::Trial {
        errors: errors::share_of(&healthy, percent(&arguments.share)?),
        healthy,
        within: duration(&arguments.within)?,
        delta: percent(&arguments.delta)?,
        slow: slow_clients(arguments)?,
        outages: outages(arguments)?,
    };
    let mistakes = match &arguments.errors {
        Some(path) => Plan::load(path),
        None => {
            let site = arguments.site.as_ref().unwrap_or(&arguments.subject.plan);
            if !is_url(site) {
                return Err(Fault::usage(
                    "name a plan of errors with --errors, or the site that the usual mistakes go to with --site",
                ));
            }
            let (origin, page) = split_url(site);
            let upload = arguments.upload.as_deref();
            let upload = upload.map(|path| (path, arguments.upload_size.as_str()));
            let is_size =
                parse_size(&arguments.upload_size).is_some_and(|size| size <= MOST_UPLOAD);
            if upload.is_some() && !is_size {
                return Err(Fault::usage(format!(
                    "--upload-size `{}` is no size such as `64 MiB`, at most 1024 MiB",
                    arguments.upload_size
                )));
            }
            errors::common_mistakes(origin, page, arguments.search.as_deref(), upload)
        }
    };
    let mistakes = mistakes.map_err(|error| fault(&error))?;
    no_goals(
        &arguments.subject,
        "what errors do to healthy visitors is compared, not held against goals",
    )?;
    with_subject(&arguments.subject, |subject, _, tell| {
        errors::run(subject, &mistakes, &trial, tell).map_err(|error| fault(&error))
    })
}

/// Returns where slow clients go, and how many.
fn slow_clients(arguments: &Errors) -> Result<Option<(String, usize)>, Fault> {
    let Some(clients) = arguments.slow else { return Ok(None) };
    let site = arguments.site.as_ref().unwrap_or(&arguments.subject.plan);
    if !is_url(site) {
        return Err(Fault::usage(
            "slow clients need the address of the site: name it with --site, or in place of the plan",
        ));
    }
    Ok(Some((site.clone(), clients)))
}

/// Returns the back ends that go away.
fn outages(arguments: &Errors) -> Result<Option<Outages>, Fault> {
    let Some(restore) = &arguments.restore else { return Ok(None) };
    let kind = |text: &String| match text.split_once('=') {
        Some((name, switch)) if !name.trim().is_empty() && !switch.trim().is_empty() => {
            Ok((name.trim().to_owned(), Switch::parse(switch.trim())))
        }
        _ => Err(Fault::usage(format!(
            "`{text}` is no outage; write it such as `crm down=systemctl stop crm`"
        ))),
    };
    let site = arguments.site.as_ref().unwrap_or(&arguments.subject.plan);
    let placeholder = match &arguments.placeholder {
        Some(_) if !is_url(site) => {
            return Err(Fault::usage(
                "--placeholder is looked for on a page: name it with --site, or in place of the plan",
            ));
        }
        placeholder => placeholder.clone().map(|text| (site.clone(), text)),
    };
    Ok(Some(Outages {
        kinds: arguments.outage.iter().map(kind).collect::<Result<_, _>>()?,
        restore: Switch::parse(restore),
        placeholder,
        allowed: percent(&arguments.outage_errors)?,
    }))
}

/// Draws each component of a page alone, and the page.
fn all_components(arguments: &Component) -> Outcome {
    let [url] = arguments.urls.as_slice() else {
        return Err(Fault::usage("--all takes one page"));
    };
    if arguments.kept.output.goals.is_some() {
        return Err(Fault::usage(
            "--goals is of no use here: the parts are compared with the whole",
        ));
    }
    let profile = Profile {
        url: url.clone(),
        headers: super::send::headers(&arguments.asker.headers)?,
        login: arguments.asker.login.clone(),
        count: arguments.samples,
    };
    let logs = WatchedLogs::begin(&arguments.kept.logs)?;
    let mut sheet = alone::run(&profile).map_err(|error| fault(&error))?;
    logs.tell(&mut sheet);
    finish(&sheet, &arguments.kept.output, arguments.kept.keep.as_deref(), None)
}

pub(super) fn component(arguments: &Component) -> Outcome {
    if arguments.all {
        return all_components(arguments);
    }
    if !arguments.asker.headers.is_empty() {
        return Err(Fault::usage("-H is for --all; a plan brings headers to addresses under load"));
    }
    let of = |text: &Option<String>| rate(text.as_deref().unwrap_or_default());
    let trial = component::Trial {
        urls: arguments.urls.clone(),
        average: of(&arguments.avg)?,
        peak: of(&arguments.peak)?,
        hold: above_zero("--hold", &arguments.hold)?,
        goals: goals(arguments.kept.output.goals.as_deref())?,
        watched: source(&arguments.watched),
    };
    let run = Run { workers: arguments.workers, ..Run::default() };
    let logs = WatchedLogs::begin(&arguments.kept.logs)?;
    let show = Some(Show(&show));
    let sheet = component::run(&trial, &run, show, &mut teller(&arguments.kept.output));
    let mut sheet = sheet.map_err(|error| fault(&error))?;
    logs.tell(&mut sheet);
    finish(&sheet, &arguments.kept.output, arguments.kept.keep.as_deref(), None)
}

/// Refuses goals where nothing would judge them.
fn no_goals(arguments: &Subject, why: &str) -> Result<(), Fault> {
    match arguments.output.goals {
        Some(_) => Err(Fault::usage(format!("--goals is of no use here: {why}"))),
        None => Ok(()),
    }
}

/// Loads the plan, runs a test over it, and tells what came out.
fn with_subject(
    arguments: &Subject,
    test: impl FnOnce(&phase::Subject<'_>, Vec<Goal>, &mut dyn FnMut(&str)) -> Result<Sheet, Fault>,
) -> Outcome {
    let plan = load(&arguments.plan, &arguments.allowed.allow_ignore)?;
    let mut properties = super::send::properties(&arguments.properties)?;
    if let Some(target) = &arguments.target {
        properties.extend(target_properties(target, &arguments.plan)?);
    }
    let mut goals = goals(arguments.output.goals.as_deref())?;
    goals.extend(plan.goals.iter().cloned());
    let run = Run {
        properties,
        workers: arguments.workers,
        seed: arguments.seed,
        without_listeners: true,
        ..Run::default()
    };
    let subject = phase::Subject {
        plan: &plan,
        run,
        watched: source(&arguments.watched),
        show: Some(Show(&show)),
    };
    let logs = WatchedLogs::begin(&arguments.logs)?;
    let mut tell = teller(&arguments.output);
    super::send::tell_left_out(&plan, &mut tell);
    let mut sheet = test(&subject, goals, &mut tell)?;
    logs.tell(&mut sheet);
    let file = (!is_url(&arguments.plan)).then(|| Path::new(&arguments.plan));
    finish(&sheet, &arguments.output, arguments.keep.as_deref(), file)
}

/// Shows a phase at standard error.
fn show(name: &str, lasts: Duration) -> Live {
    super::live(name, Some(lasts))
}

fn teller(output: &Output) -> impl FnMut(&str) + use<> {
    let is_quiet = output.json;
    move |line: &str| {
        if !is_quiet {
            say!("{line}");
        }
    }
}

fn is_url(text: &str) -> bool {
    text.starts_with("http://") || text.starts_with("https://")
}

fn load(text: &str, classes: &[String]) -> Result<Plan, Fault> {
    if is_url(text) {
        return Plan::of_url(text).map_err(|error| fault(&error));
    }
    super::send::load(Path::new(text), classes)
}

/// Returns `http://host:port` and the rest.
fn split_url(url: &str) -> (&str, &str) {
    let start = url.find("://").map_or(0, |at| at + 3);
    let end = url.get(start..).and_then(|rest| rest.find('/')).map_or(url.len(), |at| start + at);
    let (origin, page) = url.split_at(end);
    (origin, if page.is_empty() { "/" } else { page })
}

/// Returns the properties by which a plan in TOML goes to another target.
pub(super) fn target_properties(url: &str, plan: &str) -> Result<Vec<(String, String)>, Fault> {
    if !plan.ends_with(".toml") {
        return Err(Fault::usage(
            "--target is for plans in TOML; plans of JMeter name theirs by -J",
        ));
    }
    let (origin, page) = split_url(url);
    let (protocol, host) = origin
        .split_once("://")
        .filter(|(protocol, host)| matches!(*protocol, "http" | "https") && !host.is_empty())
        .ok_or_else(|| {
            Fault::usage(format!("`{url}` is no address; expected `http://host[:port]`"))
        })?;
    if page != "/" {
        return Err(Fault::usage("--target is an address without a path"));
    }
    let default = if protocol == "https" { "443" } else { "80" };
    let (host, port) = match host.rsplit_once(':') {
        Some((host, port)) if port.parse::<u16>().is_ok() => (host, port),
        Some((_, port)) if !port.ends_with(']') => {
            return Err(Fault::usage(format!("`{port}` is no port")));
        }
        _ => (host, default),
    };
    let pairs = [("protocol", protocol), ("host", host), ("port", port)];
    Ok(pairs.map(|(part, value)| (format!("target.{part}"), value.to_owned())).into())
}

fn offer_of(load: &Load) -> Result<Offer, Fault> {
    offer(load.rate.as_deref(), load.users, ("--for", &load.lasts))
}

/// Returns a load of visits per second, or of users; the time is an argument's name and its text.
pub(super) fn offer(
    per_second: Option<&str>,
    users: Option<u64>,
    (name, time): (&str, &str),
) -> Result<Offer, Fault> {
    let lasts = above_zero(name, time)?;
    let amount = match (per_second, users) {
        (Some(text), _) => Amount::Rate(rate(text)?),
        (None, Some(users)) if users > 0 => Amount::Users(users),
        _ => return Err(Fault::usage("give --rate (visits per second) or --users")),
    };
    Ok(Offer { amount, lasts, ramp: Duration::ZERO, is_random: true })
}

fn amount(offer: &Offer) -> String {
    match offer.amount {
        Amount::Rate(rate) => format!("{rate:.1}/s"),
        Amount::Users(users) => format!("{users} users"),
    }
}

fn rate(text: &str) -> Result<f64, Fault> {
    parse_rate(text).ok_or_else(|| {
        Fault::usage(format!("`{text}` is no rate; write it such as 50/s or 30/min"))
    })
}

fn above_zero(name: &str, text: &str) -> Result<Duration, Fault> {
    let time = duration(text)?;
    if time.is_zero() { Err(Fault::usage(format!("{name} is a time above 0"))) } else { Ok(time) }
}

fn percent(text: &str) -> Result<f64, Fault> {
    text.trim()
        .trim_end_matches("/h")
        .strip_suffix('%')
        .and_then(|number| number.trim().parse::<f64>().ok())
        .filter(|percent| percent.is_finite() && *percent >= 0.0)
        .map(|percent| percent / 100.0)
        .ok_or_else(|| Fault::usage(format!("`{text}` is no share; write it such as 20%")))
}

fn growth(text: &str) -> Result<breakpoint::Growth, Fault> {
    let number = |text: &str| text.parse::<f64>().ok().filter(|number| number.is_finite());
    let by_factor = text.strip_prefix('x').and_then(number).filter(|factor| *factor > 1.0);
    let by_sum = text.strip_prefix('+').and_then(number).filter(|more| *more > 0.0);
    match (by_factor, by_sum) {
        (Some(factor), _) => Ok(breakpoint::Growth::Times(factor)),
        (None, Some(more)) => Ok(breakpoint::Growth::Plus(more)),
        (None, None) => Err(Fault::usage(format!(
            "`{text}` is no step; write `x1.5` (a factor above 1) or `+10`"
        ))),
    }
}

/// Writes the reports and decides the exit code.
pub(super) fn finish(
    sheet: &Sheet,
    output: &Output,
    keep: Option<&Path>,
    plan: Option<&Path>,
) -> Outcome {
    if let Some(path) = &output.report {
        write(path, &sheet.html())?;
    }
    if let Some(path) = &output.markdown {
        write(path, &sheet.markdown())?;
    }
    if let Some(path) = &output.junit {
        write(path, &sheet.junit())?;
    }
    if let Some(folder) = keep {
        keep_run(sheet, folder, plan)?;
    }
    if output.json {
        say!("{}", sheet.to_json());
    } else {
        say!("{}", sheet.plain().trim_end());
    }
    Ok(if sheet.is_doubtful() {
        ExitCode::from(3)
    } else if sheet.is_bad() {
        ExitCode::from(CHECK_FAILED)
    } else {
        ExitCode::SUCCESS
    })
}

/// Keeps a run: what was asked, the plan, and what came out.
fn keep_run(sheet: &Sheet, folder: &Path, plan: Option<&Path>) -> Result<(), Fault> {
    let run = new_folder(folder, plan)?;
    write(&run.join("summary.json"), &format!("{}\n", sheet.to_json()))?;
    write(&run.join("report.html"), &sheet.html())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_become_properties() {
        let check = |url: &str, expected: [&str; 3]| {
            let found = target_properties(url, "p.toml").unwrap();
            assert_eq!(found.iter().map(|(_, value)| value.as_str()).collect::<Vec<_>>(), expected);
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
        assert_eq!(growth("x1.5").unwrap(), breakpoint::Growth::Times(1.5));
        assert_eq!(growth("+10").unwrap(), breakpoint::Growth::Plus(10.0));
        for text in ["x1", "x0.5", "+0", "2", "xNaN"] {
            assert!(growth(text).is_err(), "{text}");
        }
        assert_eq!(percent("2%/h").unwrap(), 0.02);
        assert!(percent("2").is_err() && percent("-1%").is_err());
        assert_eq!(split_url("http://a:1/x?y"), ("http://a:1", "/x?y"));
    }
}
