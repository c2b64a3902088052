//! Tough Day: the tests, weights and modes with which Adobe loads an author, on the lab's own engine.
//!
//! In: a [`Config`], of a predefined suite or from a file of Tough Day in YAML, and an author. Out: a [`Sheet`] with Tough
//! Day's metrics per test.
//!
//! Invariants
//! * Everything that tests make stands below one name of the run, and is deleted at its end unless it is to be kept.
//! * Tests take turns in exactly the shares of their weights. What a test needs, others of the suite made: pages that are
//!   deleted or published, assets, tags. A test that lacks it is skipped and counted as such.
//!
//! Not here: live copies, which are refused by name.

mod act;
pub mod impact;
mod play;
mod read;
mod shared;
mod suite;
mod yaml;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::json;

use crate::browse::basic;
use crate::client::{Answer, Client, Question};
use crate::goal::{Goal, judge, show};
use crate::live::Live;
use crate::load::{
    Crew, Crowd, Load, Process, Schedule, Stretch, User, processors, run as run_load,
};
use crate::net::{Target, Url};
use crate::record::{Results, Stats};
use crate::report::sheet::{Grid, Part, Sheet, Tone};
use crate::{Error, Result, honesty};

pub use read::{Config, of_suites, of_yaml};
pub use suite::{Kind, Look, Mode, Phase, Ramp, SUITES, Test, suite};

use act::USERS_ROOT;
use play::Tester;
use shared::{Left, Place, Setting, Shared};

/// Asks an author for a page that is drawn by a component.
const LOOKS: &str = "/bin/querybuilder.json?path=%2Fcontent&type=cq%3APageContent&property=sling%3AresourceType\
                     &property.operation=exists&orderby=path&p.limit=1&p.hits=full";
/// Most executions at a time of the open model.
const MOST_AT_ONCE: usize = 10_000;
/// How long what is under way at the end of a phase may still take.
const DRAIN: Duration = Duration::from_secs(10);

/// A run of Tough Day.
#[derive(Debug)]
pub struct Tough<'a> {
    /// What is done.
    pub config: Config,
    /// Where authors are, such as `http://127.0.0.1:4502`.
    pub author: String,
    /// Where visitors look, for tests of publish and for the time until a publication is visible.
    pub publish: Option<String>,
    /// `user:password`.
    pub login: String,
    /// The name of the run, below which everything is made.
    pub name: String,
    /// Leaves what was made.
    pub keeps_content: bool,
    /// A picture to upload instead of a drawn one.
    pub picture: Option<Vec<u8>>,
    /// What pictures derive from.
    pub seed: u64,
    /// How the passwords of users begin that tests make: these can log in until the run ends.
    pub user_secret: String,
    /// What must hold, over all phases that are measured.
    pub goals: &'a [Goal],
}

/// Executions and skips of each test of a phase.
type Counts = Vec<(u64, u64)>;
/// What was waited for when a phase ended: how often, and the longest.
type Waiting = BTreeMap<String, (u64, Duration)>;

impl Tough<'_> {
    /// Tells what would be done: phases, tests with their shares, and the nodes that would stay.
    #[must_use]
    pub fn plan(&self) -> String {
        let mut out = String::new();
        // Writing to a string cannot fail.
        for phase in &self.config.phases {
            let load = match &phase.mode {
                Mode::Normal { users, wait } => {
                    format!("normal: {} users, {} between executions", shown(users), show(*wait))
                }
                Mode::ConstantLoad { rate } => {
                    format!("constantload: {} executions/s", shown(rate))
                }
            };
            writeln!(out, "{} ({}), {load}", phase.name, show(phase.lasts)).ok();
            let weights: u64 = phase.tests.iter().map(|test| test.weight).sum();
            let executions = executions(phase);
            let mut nodes = Some(0u64);
            for test in &phase.tests {
                let share = test.weight as f64 / weights.max(1) as f64;
                let count =
                    test.count.map_or_else(String::new, |count| format!(", at most {count} times"));
                writeln!(out, "    {:>5.1} %  {}{count}", share * 100.0, test.name).ok();
                let times =
                    executions.map(|all| (all * share) as u64).or(match test.kind.nodes() {
                        0 => Some(0),
                        _ => test.count,
                    });
                let times = times.map(|times| times.min(test.count.unwrap_or(u64::MAX)));
                nodes = nodes.zip(times).map(|(nodes, times)| nodes + times * test.kind.nodes());
            }
            match nodes {
                Some(nodes) => writeln!(out, "    about {nodes} nodes at most").ok(),
                None => writeln!(out, "    as many nodes as the author manages to make").ok(),
            };
        }
        out
    }

    /// Prepares the author, runs all phases, cleans up, and tells.
    ///
    /// # Errors
    /// [`Error::Url`], [`Error::Resolve`], [`Error::Input`]; [`Error::Unanswered`] if the author does not let itself be
    /// prepared; [`Error::Engine`].
    pub fn run(&self, live: &mut Live) -> Result<Sheet> {
        for phase in &self.config.phases {
            let needs_publish = phase.tests.iter().any(|test| test.on_publish);
            if needs_publish && self.publish.is_none() {
                return Err(Error::Input("tests of publish need `--publish URL`".to_owned()));
            }
            order(phase)?;
        }
        let mut author = Author::new(&self.author, &self.login)?;
        author.set_up(&self.name)?;
        if self.makes(&[Kind::CreateUserTree]) {
            let body = "./jcr%3AprimaryType=rep%3AAuthorizableFolder";
            author.post(&format!("{USERS_ROOT}/{}", self.name), body)?;
        }
        if self.makes(&[Kind::CreateGroupWithUsers]) {
            author.make_group(&Shared::everybody(&self.name))?;
        }
        let outcome = self.play(&mut author, live);
        let cleaned = if self.keeps_content { Ok(()) } else { self.clean_up(&mut author) };
        let mut sheet = outcome?;
        if let Err(error) = cleaned {
            sheet.say(
                Tone::Doubt,
                format!("what was made below `{}` could not be deleted: {error}", self.name),
            );
        }
        Ok(sheet)
    }

    /// Reports whether one of these tests runs.
    fn makes(&self, kinds: &[Kind]) -> bool {
        let mut tests = self.config.phases.iter().flat_map(|phase| &phase.tests);
        tests.any(|test| kinds.contains(&test.kind))
    }

    fn clean_up(&self, author: &mut Author) -> Result<()> {
        let is_published = self.makes(&[Kind::PublishPage, Kind::ActivatePagesTree]);
        let cleaned = author.clean_up(&self.name, is_published);
        let accounts = [
            Kind::CreateUser,
            Kind::CreateUserTree,
            Kind::CreateUserGroup,
            Kind::CreateGroupWithUsers,
        ];
        if self.makes(&accounts) {
            author.remove_accounts(&self.name)?;
        }
        if self.makes(&[Kind::CreateUserTree]) {
            author.post(&format!("{USERS_ROOT}/{}", self.name), "%3Aoperation=delete")?;
        }
        cleaned
    }

    fn play(&self, author: &mut Author, live: &mut Live) -> Result<Sheet> {
        let mut setting = self.setting(author)?;
        let mut left = Left::default();
        let mut told = Vec::new();
        for phase in &self.config.phases {
            let wait = match &phase.mode {
                Mode::Normal { wait, .. } => *wait,
                Mode::ConstantLoad { .. } => Duration::ZERO,
            };
            let shared =
                Arc::new(Shared::new(setting, phase.tests.clone(), order(phase)?, wait, left));
            let results = run_load(load(phase, &shared), live)?;
            let counts = (shared.counts(), shared.left_waiting());
            // Workers are over, so nobody else holds it.
            let shared = Arc::into_inner(shared)
                .ok_or_else(|| Error::Input("a worker did not end".to_owned()))?;
            (setting, left) = shared.take_apart();
            told.push((phase, results, counts));
        }
        Ok(self.tell(told))
    }

    /// Finds the servers, and where their homepages are.
    fn setting(&self, author: &mut Author) -> Result<Setting> {
        let url = Url::parse(self.author.trim_end_matches('/'))?;
        let publish = match &self.publish {
            None => None,
            Some(publish) => {
                let url = Url::parse(publish.trim_end_matches('/'))?;
                let target = Target::resolve(url.is_tls, &url.host, url.port)?;
                Some(Place { url, target, headers: Vec::new() })
            }
        };
        let homepage = [
            author.homepage(&url)?,
            match &publish {
                Some(place) => author.homepage(&place.url)?,
                None => "/".to_owned(),
            },
        ];
        Ok(Setting {
            author: Place {
                target: Target::resolve(url.is_tls, &url.host, url.port)?,
                url,
                headers: vec![basic(&self.login)],
            },
            publish,
            run: self.name.clone(),
            picture: self.picture.clone().unwrap_or_else(|| crate::content::picture(self.seed)),
            homepage,
            look: author.look(),
            password: self.user_secret.clone(),
        })
    }

    fn tell(&self, told: Vec<(&Phase, Results, (Counts, Waiting))>) -> Sheet {
        let mut sheet = Sheet::new("Tough Day");
        let mut whole: Option<Results> = None;
        let mut phases = Vec::new();
        for (phase, results, (counts, waiting)) in told {
            let title = if phase.is_measured {
                phase.name.clone()
            } else {
                format!("{} (not measured)", phase.name)
            };
            let (grid, json) = table(&title, phase, &results, &counts);
            sheet.parts.push(Part::Grid(grid));
            phases.push(json);
            for doubt in honesty::doubts(&results) {
                sheet.say(Tone::Doubt, format!("GENERATOR SATURATED in {}: {doubt}", phase.name));
            }
            for (label, (count, longest)) in waiting {
                // What never came is in no time of the table, so that it must be told, or the table looks better than it was.
                sheet.say(
                    if results.labels.contains_key(label.as_str()) { Tone::Plain } else { Tone::Bad },
                    format!(
                        "{label}: {count} still waited when `{}` ended, the longest for {}; the table does not hold them",
                        phase.name,
                        show(longest)
                    ),
                );
            }
            if !phase.is_measured {
                continue;
            }
            match &mut whole {
                None => whole = Some(results),
                Some(whole) => whole.append(results),
            }
        }
        let Some(results) = whole else {
            sheet.say(Tone::Doubt, "no phase is measured");
            return sheet;
        };
        let total = results.total();
        if total.statuses.keys().all(|status| *status == 0) {
            sheet.say(Tone::Doubt, "the author never answered");
        }
        let tone = if total.errors == 0 { Tone::Good } else { Tone::Plain };
        sheet.say(
            tone,
            format!(
                "{} requests in {}, {:.1}/s, {} failed ({:.2} %)",
                total.count(),
                show(results.elapsed),
                results.rate(total.count()),
                total.errors,
                total.error_rate() * 100.0
            ),
        );
        if let Some(line) = flat_and_tree(&results) {
            sheet.say(Tone::Plain, line);
        }
        sheet.goals = judge(self.goals, &results);
        sheet.json =
            json!({ "run": self.name, "phases": phases, "seconds": results.elapsed.as_secs_f64() });
        sheet
    }
}

/// Returns how much longer creating takes below one parent than in a tree: the mark of a store that minds many children.
fn flat_and_tree(results: &Results) -> Option<String> {
    let median = |label: &str| Some(results.labels.get(label)?.total.response.quantile(0.5));
    let flat = median(Kind::CreatePage.name())?;
    let tree = median(Kind::CreatePageTree.name())?;
    let ratio = flat.as_secs_f64() / tree.as_secs_f64().max(1e-9);
    Some(format!(
        "creating a page takes {} below one parent and {} in a tree (medians): {ratio:.2} times",
        show(flat),
        show(tree)
    ))
}

fn shown(ramp: &Ramp) -> String {
    if ramp.start == ramp.end {
        return ramp.end.to_string();
    }
    format!("{} to {}, {} every {}", ramp.start, ramp.end, ramp.step, show(ramp.interval))
}

/// Returns how many executions a phase begins, if its load says so.
fn executions(phase: &Phase) -> Option<f64> {
    match &phase.mode {
        Mode::Normal { .. } => None,
        Mode::ConstantLoad { rate } => Some(
            rate.levels(phase.lasts).iter().map(|(level, lasts)| level * lasts.as_secs_f64()).sum(),
        ),
    }
}

/// Returns the order in which tests take turns.
fn order(phase: &Phase) -> Result<Vec<usize>> {
    let weights: Vec<u64> = phase.tests.iter().map(|test| test.weight).collect();
    if weights.iter().all(|weight| *weight == 0) {
        return Err(Error::Input(format!("no test of `{}` has a weight", phase.name)));
    }
    // Tests without a weight never run, and the order is of the others.
    let (places, weights): (Vec<usize>, Vec<u64>) =
        weights.into_iter().enumerate().filter(|(_, weight)| *weight > 0).unzip();
    let order = crate::plan::mix(&weights).ok_or_else(|| {
        Error::Input(format!(
            "the weights of `{}` have no common measure; use smaller ones",
            phase.name
        ))
    })?;
    Ok(order.into_iter().filter_map(|turn| places.get(turn).copied()).collect())
}

/// Returns the load of a phase.
fn load(phase: &Phase, shared: &Arc<Shared>) -> Load {
    let workers = processors();
    let mut crews: Vec<Crew> = Vec::new();
    match &phase.mode {
        Mode::Normal { users, .. } => {
            crews.extend((0..workers).map(|_| Crew { users: Vec::new(), arrivals: None }));
            for (number, (start, lives)) in spans(users, phase.lasts).into_iter().enumerate() {
                let user = Tester::new(Arc::clone(shared), lives, false);
                if let Some(crew) = crews.get_mut(number % workers) {
                    crew.users.push((start, Box::new(user) as Box<dyn User>));
                }
            }
        }
        Mode::ConstantLoad { rate } => {
            let stretches: Vec<Stretch> = rate
                .levels(phase.lasts)
                .into_iter()
                .map(|(level, lasts)| Stretch::steady(level, lasts))
                .collect();
            let schedule = Schedule::of(Process::Uniform, &stretches, 0);
            let hired = Arc::new(AtomicUsize::new(0));
            for worker in 0..workers {
                let (shared, hired) = (Arc::clone(shared), Arc::clone(&hired));
                let hire = move || {
                    let is_free = hired.fetch_add(1, Ordering::Relaxed) < MOST_AT_ONCE;
                    is_free.then(|| {
                        Box::new(Tester::new(Arc::clone(&shared), None, true)) as Box<dyn User>
                    })
                };
                let arrivals = Some((schedule.share(worker, workers), Box::new(hire) as _));
                crews.push(Crew { users: Vec::new(), arrivals });
            }
        }
    }
    Load {
        crews,
        stop_after: Some(phase.lasts),
        drain: DRAIN,
        crowd: Arc::new(Crowd::default()),
        rows: None,
    }
}

/// Returns when each user of a ramp begins, and how long it stays; `None` to the end.
fn spans(users: &Ramp, lasts: Duration) -> Vec<(Duration, Option<Duration>)> {
    let mut spans: Vec<(Duration, Option<Duration>)> = Vec::new();
    let mut running: Vec<usize> = Vec::new();
    let mut now = Duration::ZERO;
    for (level, holds) in users.levels(lasts) {
        let wanted = level.round().clamp(0.0, 1e6) as usize;
        while running.len() < wanted {
            running.push(spans.len());
            spans.push((now, None));
        }
        while running.len() > wanted {
            let Some(span) = running.pop().and_then(|last| spans.get_mut(last)) else { continue };
            span.1 = Some(now.saturating_sub(span.0));
        }
        now += holds;
    }
    spans
}

/// Returns Tough Day's metrics per test.
fn table(
    title: &str,
    phase: &Phase,
    results: &Results,
    counts: &[(u64, u64)],
) -> (Grid, serde_json::Value) {
    let mut grid = Grid::new(
        title,
        &[
            "test",
            "passed",
            "failed",
            "skipped",
            "average",
            "median",
            "stddev",
            "min",
            "max",
            "90p",
            "99p",
            "99.9p",
            "real throughput",
            "reason",
        ],
    );
    let mut rows = Vec::new();
    let skipped = |label: &str| {
        let at = phase.tests.iter().position(|test| test.name == label);
        at.and_then(|at| counts.get(at)).map_or(0, |(_, skipped)| *skipped)
    };
    let mut add = |label: &str, stats: &Stats| {
        let tone = if stats.errors == 0 { Tone::Plain } else { Tone::Bad };
        let time = |share: f64| show(stats.response.quantile(share));
        let rate = results.rate(stats.count() - stats.errors.min(stats.count()));
        let reason = stats.reasons.iter().max_by_key(|(_, count)| **count);
        let reason = reason.map_or_else(String::new, |(reason, _)| reason.clone());
        rows.push(json!({
            "test": label, "passed": stats.count() - stats.errors, "failed": stats.errors, "skipped": skipped(label),
            "average_ms": stats.response.mean().as_secs_f64() * 1e3,
            "median_ms": stats.response.quantile(0.5).as_secs_f64() * 1e3,
            "p99_ms": stats.response.quantile(0.99).as_secs_f64() * 1e3, "throughput": rate,
        }));
        grid.add(
            // A table of failures is read as one; the verdict is for the goals.
            if tone == Tone::Bad { Tone::Doubt } else { tone },
            vec![
                label.to_owned(),
                (stats.count() - stats.errors).to_string(),
                stats.errors.to_string(),
                skipped(label).to_string(),
                show(stats.response.mean()),
                time(0.5),
                show(stats.response.deviation()),
                show(stats.response.min()),
                show(stats.response.max()),
                time(0.9),
                time(0.99),
                time(0.999),
                format!("{rate:.2}/s"),
                reason,
            ],
        );
    };
    for (label, series) in &results.labels {
        add(label, &series.total);
    }
    for test in phase.tests.iter().filter(|test| !results.labels.contains_key(test.name.as_str())) {
        // Their samples have names of their own.
        let is_composite = matches!(
            test.kind,
            Kind::Authoring
                | Kind::AuthoringTree
                | Kind::CreateGroupWithUsers
                | Kind::CreateUserTree
        );
        if !is_composite || skipped(&test.name) > 0 {
            add(&test.name, &Stats::default());
        }
    }
    (grid, json!({ "phase": phase.name, "measured": phase.is_measured, "tests": rows }))
}

/// The author before and after the tests, asked for one thing at a time.
struct Author {
    base: Url,
    client: Client,
    headers: Vec<(String, String)>,
}

impl Author {
    fn new(url: &str, login: &str) -> Result<Self> {
        Ok(Self {
            base: Url::parse(url.trim_end_matches('/'))?,
            client: Client::new(Duration::from_secs(60)),
            headers: vec![basic(login)],
        })
    }

    fn post(&mut self, path: &str, body: &str) -> Result<()> {
        let prefix = self.base.target.trim_end_matches('/');
        let url =
            Url { target: format!("{prefix}{}", path.replace(':', "%3A")), ..self.base.clone() };
        let mut headers = self.headers.clone();
        headers.push(("Content-Type".to_owned(), "application/x-www-form-urlencoded".to_owned()));
        let question =
            Question { method: "POST", url: &url, headers: &headers, body: body.as_bytes() };
        let answer = self.client.ask(&question)?;
        if answer.status < 400 {
            return Ok(());
        }
        Err(Error::Unanswered {
            url: url.to_string(),
            reason: format!("it refused with status {}", answer.status),
        })
    }

    /// Makes the roots of what tests make.
    fn set_up(&mut self, run: &str) -> Result<()> {
        for (path, kind) in Shared::roots(run) {
            let body = match kind {
                "cq:Page" => format!(
                    "./jcr%3AprimaryType=cq%3APage&./jcr%3Acontent/jcr%3AprimaryType=cq%3APageContent&./jcr%3Acontent/jcr%3Atitle={run}"
                ),
                "cq:Tag" => format!("./jcr%3AprimaryType=cq%3ATag&./jcr%3Atitle={run}"),
                _ => "./jcr%3AprimaryType=sling%3AOrderedFolder".to_owned(),
            };
            self.post(&path, &body)?;
        }
        Ok(())
    }

    /// Makes a group.
    fn make_group(&mut self, name: &str) -> Result<()> {
        let body = json!({ "name": name }).to_string();
        self.ask("POST", "/api/v1/groups", body.as_bytes()).map(|_| ())
    }

    /// Removes the users and groups of a run, also those whose making was not answered.
    fn remove_accounts(&mut self, run: &str) -> Result<()> {
        let prefix = format!("{run}-");
        for (kind, one) in [("users", "user"), ("groups", "group")] {
            let mut after = String::new();
            loop {
                let list = format!("/api/v1/{kind}?search={prefix}&limit=100&after={after}");
                let answer = self.ask("GET", &list, b"")?;
                let page: serde_json::Value =
                    serde_json::from_slice(&answer.body).unwrap_or_default();
                let names = page.get(kind).and_then(serde_json::Value::as_array);
                for account in names.into_iter().flatten() {
                    let name = account.get("name").and_then(serde_json::Value::as_str);
                    let Some(name) = name.filter(|name| name.starts_with(&prefix)) else {
                        continue;
                    };
                    self.ask("DELETE", &format!("/api/v1/{one}?name={name}"), b"")?;
                }
                match page.get("next").and_then(serde_json::Value::as_str) {
                    Some(next) => next.clone_into(&mut after),
                    None => break,
                }
            }
        }
        Ok(())
    }

    /// Asks the author's API.
    fn ask(&mut self, method: &'static str, path: &str, body: &[u8]) -> Result<Answer> {
        let prefix = self.base.target.trim_end_matches('/');
        let url = Url { target: format!("{prefix}{path}"), ..self.base.clone() };
        let mut headers = self.headers.clone();
        if !body.is_empty() {
            headers.push(("Content-Type".to_owned(), "application/json".to_owned()));
        }
        let answer = self.client.ask(&Question { method, url: &url, headers: &headers, body })?;
        if answer.status < 400 {
            return Ok(answer);
        }
        Err(Error::Unanswered {
            url: url.to_string(),
            reason: format!("it refused with status {}", answer.status),
        })
    }

    /// Deletes everything that tests made, and takes it away from visitors: a deletion on the author withdraws a page that
    /// was published itself, but not what was published below one that never was.
    fn clean_up(&mut self, run: &str, is_published: bool) -> Result<()> {
        let mut withdrawn = Ok(());
        if is_published {
            let body = "%3Aoperation=deactivate&%3Adeep=true";
            withdrawn = self.post(&format!("/content/{run}"), body);
        }
        for path in [
            format!("/content/{run}"),
            format!("/content/dam/{run}"),
            format!("/content/cq:tags/{run}"),
        ] {
            self.post(&path, "%3Aoperation=delete")?;
        }
        withdrawn
    }

    /// Returns how a page looks that the author has: what is made is to be drawn as its pages are. An author without
    /// pages, or without a search, gives nothing, and pages are made without a look.
    fn look(&mut self) -> Look {
        let prefix = self.base.target.trim_end_matches('/');
        let url = Url { target: format!("{prefix}{LOOKS}"), ..self.base.clone() };
        let question = Question { method: "GET", url: &url, headers: &self.headers, body: b"" };
        let Ok(answer) = self.client.ask(&question) else { return Look::default() };
        let found: serde_json::Value = serde_json::from_slice(&answer.body).unwrap_or_default();
        let text = |name| Some(found.pointer("/hits/0")?.get(name)?.as_str()?.to_owned());
        Look { resource_type: text("sling:resourceType"), template: text("cq:template") }
    }

    /// Follows redirects from the root; returns the path where they end.
    fn homepage(&mut self, base: &Url) -> Result<String> {
        let prefix = base.target.trim_end_matches('/').to_owned();
        let mut path = "/".to_owned();
        for _ in 0..5 {
            let url = Url { target: format!("{prefix}{path}"), ..base.clone() };
            let question = Question { method: "GET", url: &url, headers: &self.headers, body: b"" };
            let answer = self.client.ask(&question)?;
            let next = answer.header("Location").filter(|_| (300..400).contains(&answer.status));
            let Some(next) = next else { break };
            // Of the same host only: another one is not to be loaded.
            let own =
                Url::parse(next).ok().filter(|to| to.host == base.host && to.port == base.port);
            path = match own {
                Some(to) => to.target.strip_prefix(&prefix).unwrap_or(&to.target).to_owned(),
                None if next.starts_with('/') => {
                    next.strip_prefix(&prefix).unwrap_or(next).to_owned()
                }
                None => break,
            };
        }
        Ok(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_come_and_go_as_the_ramp_says() {
        let seconds = Duration::from_secs;
        let up = Ramp { start: 1.0, end: 3.0, step: 1.0, interval: seconds(2) };
        assert_eq!(
            spans(&up, seconds(10)),
            [(seconds(0), None), (seconds(2), None), (seconds(4), None)]
        );
        let down = Ramp { start: 3.0, end: 1.0, ..up };
        assert_eq!(
            spans(&down, seconds(10)),
            [(seconds(0), None), (seconds(0), Some(seconds(4))), (seconds(0), Some(seconds(2)))]
        );
    }

    #[test]
    fn tests_take_turns_by_their_weights() {
        let mut phase = of_suites("toughday").unwrap().phases.remove(0);
        let turns = order(&phase).unwrap();
        let counts: Vec<usize> =
            (0..5).map(|place| turns.iter().filter(|turn| **turn == place).count()).collect();
        assert_eq!(counts, [1, 1, 1, 2, 15]);
        phase.tests[4].weight = 0;
        assert!(!order(&phase).unwrap().contains(&4));
        phase.tests.iter_mut().for_each(|test| test.weight = 0);
        assert!(order(&phase).is_err());
    }
}
