//! Plans of our own, in TOML: targets, weighted scenarios of steps, data, and the load.
//!
//! They become the same [`Model`] as a `.jmx` file, so that one engine runs both.
//!
//! Invariants
//! * The whole file is read before anything is sent; every fault is told with its line and column.
//! * Of weighted scenarios, every full turn of the weights sends exactly their shares, over all users together.

mod check;
mod load;
mod step;
mod table;

use std::collections::{BTreeMap, BTreeSet};

pub(crate) use load::mix;
pub(crate) use table::nearest;
pub use table::parse_rate;
use table::{Source, Table, Text};

use super::data::{DataSet, Share};
use super::files::Files;
use super::model::{
    Action, CacheManager, CookieManager, Event, Flow, Group, Kind, Meter, Model, Node, NodeId,
    OnError, Pace, Sampler, Shape, Stage, Timer,
};
use super::template::Template;
use super::{Inventory, http::HttpSpec};
use crate::Finding;
use crate::goal::{self, Goal};
use crate::net::Url;

/// What a file became.
pub(super) struct Compiled {
    pub(super) model: Model,
    pub(super) goals: Vec<Goal>,
    pub(super) inventory: Inventory,
    pub(super) findings: Vec<Finding>,
}

/// Reads a plan with its files.
pub(super) fn compile(text: &str, file: &str, files: &Files) -> Compiled {
    let source = Source::new(file, text);
    let document = table::read(&source);
    let mut compiler = Compiler::new(files);
    if let Some(document) = &document {
        compiler.plan(Table::new(&source, document.get_ref(), "the plan", 0));
    }
    drop(document);
    let findings = source.into_findings();
    Compiled {
        model: compiler.model,
        goals: compiler.goals,
        inventory: compiler.inventory,
        findings,
    }
}

/// Returns a plan of one page: what `tympan lab breakpoint URL` runs.
pub(super) fn of_url(url: &str) -> crate::Result<Model> {
    let parsed = Url::parse(url)?;
    let target = Target::of(&parsed);
    let files = Files::default();
    let mut compiler = Compiler::new(&files);
    let spec = HttpSpec {
        path: Template::literal(&parsed.target),
        headers: vec![user_agent()],
        keep_alive: true,
        response_timeout: Template::literal("30000"),
        connect_timeout: Template::literal("30000"),
        ..target.spec()
    };
    let root = compiler.node(Kind::Simple, Template::literal(url));
    let name = Template::literal(&format!("GET {}", parsed.target));
    let step = compiler.sampler(name, Action::Http(Box::new(spec)));
    compiler.adopt(root, step);
    let once = super::shape::Span { start: std::time::Duration::ZERO, lives: None };
    compiler.add_group(url, root, (Shape::Spans(vec![once]), "1"), 1);
    url.clone_into(&mut compiler.model.name);
    Ok(compiler.model)
}

fn user_agent() -> (Template, Template) {
    let agent = concat!("tympan-lab/", env!("CARGO_PKG_VERSION"));
    (Template::literal("User-Agent"), Template::literal(agent))
}

/// Where steps go.
#[derive(Debug, Clone, Default)]
struct Target {
    protocol: Template,
    domain: Template,
    port: Template,
    /// Stands before every path.
    prefix: String,
}

impl Target {
    fn of(url: &Url) -> Self {
        Self {
            protocol: Template::literal(if url.is_tls { "https" } else { "http" }),
            domain: Template::literal(&url.host),
            port: Template::literal(&url.port.to_string()),
            prefix: url.target.split('?').next().unwrap_or("").trim_end_matches('/').to_owned(),
        }
    }

    fn spec(&self) -> HttpSpec {
        HttpSpec {
            protocol: self.protocol.clone(),
            domain: self.domain.clone(),
            port: self.port.clone(),
            is_own: true,
            ..HttpSpec::default()
        }
    }
}

/// How long sessions last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Session {
    /// A visit: the next one begins without cookies.
    Visit,
    /// As long as the user.
    User,
    Nothing,
}

/// What all steps have unless they say otherwise.
#[derive(Debug, Clone, Default)]
struct Defaults {
    headers: Vec<(Template, Template)>,
    cookies: Option<usize>,
    cache: Option<usize>,
    think: Option<Template>,
    timeout: Template,
    redirects: bool,
    parts: bool,
}

struct Compiler<'f> {
    files: &'f Files,
    model: Model,
    goals: Vec<Goal>,
    inventory: Inventory,
    targets: BTreeMap<String, Target>,
    defaults: Defaults,
    /// Variables that something sets.
    known: BTreeSet<String>,
    /// Texts that may refer to variables, looked at when all are known.
    texts: Vec<(Template, usize)>,
    /// Names of steps and scenarios, which goals can be for.
    labels: BTreeSet<String>,
}

/// Scenarios of one load.
struct Cast<'s, 't> {
    scenarios: Vec<(u64, NodeId)>,
    load: Option<Table<'s, 't>>,
    name: String,
    at: usize,
}

impl<'f> Compiler<'f> {
    fn new(files: &'f Files) -> Self {
        Self {
            files,
            model: Model::default(),
            goals: Vec::new(),
            inventory: Inventory::default(),
            targets: BTreeMap::new(),
            defaults: Defaults::default(),
            known: BTreeSet::new(),
            texts: Vec::new(),
            labels: BTreeSet::new(),
        }
    }

    fn plan(&mut self, plan: Table<'_, '_>) {
        self.model.name = plan.text("name").map_or_else(String::new, |name| name.text);
        self.read_targets(&plan);
        for (name, value) in plan.pairs("variables") {
            self.known.insert(name.text.clone());
            let value = self.noted(&plan, &value);
            self.model.variables.push((Template::literal(&name.text), value));
        }
        self.read_defaults(&plan);
        let data: Vec<usize> =
            plan.tables("data").into_iter().filter_map(|data| self.data(data)).collect();
        let mut own = Vec::new();
        let name =
            if self.model.name.is_empty() { "plan".to_owned() } else { self.model.name.clone() };
        let mut shared =
            Cast { scenarios: Vec::new(), load: plan.table("load"), name, at: plan.at("load") };
        for scenario in plan.tables("scenario") {
            let load = scenario.table("load");
            let (name, at) = (scenario.text("name"), scenario.at);
            let Some(found) = self.scenario(scenario) else { continue };
            match load {
                None => shared.scenarios.push(found),
                Some(load) => {
                    let name = name.map_or_else(|| shared.name.clone(), |name| name.text);
                    own.push(Cast { scenarios: vec![found], load: Some(load), name, at });
                }
            }
        }
        if shared.scenarios.is_empty() && own.is_empty() {
            plan.note(
                plan.at("scenario"),
                "the plan has no scenario; write `[[scenario]]` with `[[scenario.step]]`",
            );
        }
        if shared.scenarios.is_empty() && shared.load.is_some() && !own.is_empty() {
            plan.note(shared.at, "`load` is for no scenario: every scenario has one of its own");
        }
        let mut casts = own;
        if !shared.scenarios.is_empty() {
            casts.insert(0, shared);
        } else if let Some(load) = shared.load {
            drop(self.shape(&load));
            load.close();
        }
        for cast in casts {
            self.group(&plan, cast, &data);
        }
        self.read_goals(&plan);
        check::variables(self, plan.source());
        plan.close();
    }

    fn read_targets(&mut self, plan: &Table<'_, '_>) {
        if let Some(url) = plan.text("target") {
            self.add_target(plan, "", &url);
        }
        for (name, url) in plan.pairs("targets") {
            self.add_target(plan, &name.text, &url);
        }
    }

    /// Adds a target, whose parts properties can replace: `-Jtarget.host=...`, or `-Jtarget.NAME.host=...`.
    fn add_target(&mut self, plan: &Table<'_, '_>, name: &str, url: &Text) {
        let parsed = match Url::parse(&url.text) {
            Ok(parsed) => parsed,
            Err(error) => {
                plan.note(url.at, error.to_string());
                // Steps that name it are not at fault.
                self.targets.insert(name.to_owned(), Target::default());
                return;
            }
        };
        let mut target = Target::of(&parsed);
        let dot = if name.is_empty() { "" } else { "." };
        let parts = [
            ("protocol", &mut target.protocol),
            ("host", &mut target.domain),
            ("port", &mut target.port),
        ];
        for (part, place) in parts {
            let key = format!("target{dot}{name}.{part}");
            let call = format!("${{__P({key},{})}}", place.source());
            if let (Ok(value), Ok(variable)) =
                (Template::parse(&call), Template::parse(&format!("${{{key}}}")))
            {
                self.model.variables.push((Template::literal(&key), value));
                *place = variable;
            }
        }
        self.targets.insert(name.to_owned(), target);
    }

    fn read_defaults(&mut self, plan: &Table<'_, '_>) {
        let headers = self.headers(plan);
        self.defaults.headers = headers;
        if !has_header(&self.defaults.headers, "User-Agent") {
            self.defaults.headers.push(user_agent());
        }
        let session = plan.text("cookies");
        let session = match session.as_ref().map(|session| session.text.as_str()) {
            None | Some("visit") => Session::Visit,
            Some("user") => Session::User,
            Some("none") => Session::Nothing,
            Some(other) => {
                let message =
                    format!("`cookies` is \"visit\", \"user\" or \"none\", not \"{other}\"");
                plan.note(plan.at("cookies"), message);
                Session::Visit
            }
        };
        if session != Session::Nothing {
            let clears = session == Session::Visit;
            self.model.cookies.push(CookieManager {
                cookies: Vec::new(),
                ignores: false,
                clears,
                by_group: false,
            });
            self.defaults.cookies = Some(self.model.cookies.len() - 1);
        }
        if plan.flag("cache").unwrap_or(false) {
            let clears = session == Session::Visit;
            self.model.caches.push(CacheManager { clears, uses_expires: true });
            self.defaults.cache = Some(self.model.caches.len() - 1);
        }
        self.defaults.think =
            plan.text("think").and_then(|think| step::pause(plan, "think", &think));
        let timeout = plan.duration("timeout").unwrap_or(std::time::Duration::from_secs(30));
        self.defaults.timeout = Template::literal(&timeout.as_millis().to_string());
        self.defaults.redirects = plan.flag("redirects").unwrap_or(true);
        self.defaults.parts = plan.flag("parts").unwrap_or(false);
    }

    fn headers(&mut self, table: &Table<'_, '_>) -> Vec<(Template, Template)> {
        let mut headers = Vec::new();
        for (name, value) in table.pairs("headers") {
            let is_token = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
            if name.text.is_empty() || !name.text.chars().all(is_token) {
                table.note(name.at, format!("`{}` is no name of a header", name.text));
            }
            headers.push((Template::literal(&name.text), self.noted(table, &value)));
        }
        headers
    }

    fn data(&mut self, table: Table<'_, '_>) -> Option<usize> {
        let file = table.text("file");
        let names = table.texts("names");
        let delimiter = table.text("delimiter").map_or_else(|| ",".to_owned(), |text| text.text);
        let mut list: Vec<String> = names.iter().map(|name| name.text.clone()).collect();
        let set = file.as_ref().map(|file| {
            let text = list.join(",");
            let literal = |text: &str| Template::literal(text);
            DataSet::new(literal(&file.text), literal(&text), literal(&delimiter))
        });
        let mut set = match set {
            Some(set) => set,
            None => {
                table.note(table.at, "`data` names no `file`");
                DataSet::new(Template::default(), Template::default(), Template::default())
            }
        };
        set.is_quoted = table.flag("quoted").unwrap_or(false);
        set.fills_up = true;
        set.skips_first = table.flag("skip_first").unwrap_or(false);
        let end = table.text("at_end").map_or_else(|| "wrap".to_owned(), |end| end.text);
        (set.recycles, set.stops_thread) = match end.as_str() {
            "wrap" => (true, false),
            "stop" => (false, true),
            "eof" => (false, false),
            _ => {
                table.note(
                    table.at("at_end"),
                    format!("`at_end` is \"wrap\", \"stop\" or \"eof\", not \"{end}\""),
                );
                (true, false)
            }
        };
        let share = table.text("share").map_or_else(|| "all".to_owned(), |share| share.text);
        set.share = match share.as_str() {
            "all" => Share::All,
            "user" => Share::Thread,
            _ => {
                table.note(
                    table.at("share"),
                    format!("`share` is \"all\" or \"user\", not \"{share}\""),
                );
                Share::All
            }
        };
        if let Some(file) = &file {
            let first = self.files.locate(&file.text);
            match first.and_then(|at| check::first_line(&at, &delimiter)) {
                Ok(columns) if list.is_empty() => list = columns,
                Ok(columns) if columns.len() < list.len() => table.note(
                    file.at,
                    format!(
                        "`{}` has {} columns in its first line, and `names` has {}",
                        file.text,
                        columns.len(),
                        list.len()
                    ),
                ),
                Ok(_) => {}
                Err(fault) => table.note(file.at, fault),
            }
        }
        self.known.extend(list);
        table.close();
        self.count("data");
        self.model.data.push(set);
        Some(self.model.data.len() - 1)
    }

    /// Adds a group that plays scenarios by their weights.
    fn group(&mut self, plan: &Table<'_, '_>, cast: Cast<'_, '_>, data: &[usize]) {
        let (shape, loops, every) = match &cast.load {
            Some(load) => self.shape(load),
            None => (load::once(), "1".to_owned(), None),
        };
        let on_error = self.on_error(cast.load.as_ref());
        let root = self.node(Kind::Simple, Template::literal(&cast.name));
        for &place in data {
            self.add_event(root, Event::Data(place));
        }
        if let Some(every) = every {
            self.add_pace(root, every);
        }
        let order =
            load::mix(&cast.scenarios.iter().map(|(weight, _)| *weight).collect::<Vec<_>>());
        match (order, cast.scenarios.as_slice()) {
            (_, [(_, only)]) => self.adopt(root, *only),
            (Some(order), all) => {
                self.model.meters.push(Meter::default());
                let meter = self.model.meters.len() - 1;
                let mix = self.node(Kind::Mix { order, meter }, Template::literal("mix"));
                for (_, scenario) in all {
                    self.adopt(mix, *scenario);
                }
                self.adopt(root, mix);
            }
            (None, _) => plan.note(cast.at, "the weights have no common measure: their sum, divided by their greatest common divisor, is above 100,000"),
        }
        let line = plan.source().place(cast.at).0;
        self.add_group(&cast.name, root, (shape, &loops), line);
        if let Some(group) = self.model.groups.last_mut() {
            group.on_error = on_error;
        }
        if let Some(load) = cast.load {
            load.close();
        }
    }

    fn on_error(&self, load: Option<&Table<'_, '_>>) -> OnError {
        let Some(load) = load else { return OnError::NextLoop };
        match load.text("on_error").as_ref().map(|word| word.text.as_str()) {
            None | Some("next-visit") => OnError::NextLoop,
            Some("go-on") => OnError::Continue,
            Some("stop-user") => OnError::StopThread,
            Some("stop") => OnError::StopTest,
            Some(other) => {
                let message = format!(
                    "`on_error` is \"next-visit\", \"go-on\", \"stop-user\" or \"stop\", not \"{other}\""
                );
                load.note(load.at("on_error"), message);
                OnError::NextLoop
            }
        }
    }

    /// Lets every user begin a visit at equal distances, however long the one before took.
    fn add_pace(&mut self, root: NodeId, every: std::time::Duration) {
        self.model.meters.push(Meter::default());
        let per_minute = Template::literal(&(60.0 / every.as_secs_f64()).to_string());
        let meter = self.model.meters.len() - 1;
        let place = self.sampler(Template::literal("pace"), Action::Flow(Flow::Nothing));
        if let Some(Kind::Sampler(sampler)) =
            self.model.nodes.get_mut(place).map(|node| &mut node.kind)
        {
            sampler.timers.push(Timer::Throughput { per_minute, mode: Pace::ThisThread, meter });
        }
        self.adopt(root, place);
    }

    fn add_group(&mut self, name: &str, root: NodeId, (shape, loops): (Shape, &str), line: u32) {
        self.model.groups.push(Group {
            stage: Stage::Main,
            name: Template::literal(name),
            shape,
            loops: Template::literal(loops),
            is_endless: loops == "-1",
            on_error: OnError::NextLoop,
            is_same_user: true,
            root,
            line,
        });
    }

    fn node(&mut self, kind: Kind, name: Template) -> NodeId {
        self.model.nodes.push(Node { kind, name, children: Vec::new(), events: Vec::new() });
        self.model.nodes.len() - 1
    }

    fn sampler(&mut self, name: Template, action: Action) -> NodeId {
        let sampler = Sampler::of(action);
        self.node(Kind::Sampler(Box::new(sampler)), name)
    }

    fn adopt(&mut self, parent: NodeId, child: NodeId) {
        if let Some(parent) = self.model.nodes.get_mut(parent) {
            parent.children.push(child);
        }
    }

    fn add_event(&mut self, node: NodeId, event: Event) {
        if let Some(node) = self.model.nodes.get_mut(node) {
            node.events.push(event);
        }
    }

    /// Compiles a text and notes what it refers to.
    fn noted(&mut self, table: &Table<'_, '_>, text: &Text) -> Template {
        let template = table.compile(text);
        template.each_call(&mut |call| {
            let name = call.source.split(['(', '}']).next().unwrap_or_default().trim();
            *self.inventory.functions.entry(name.to_owned()).or_default() += 1;
            // Some functions set the variable that an argument names.
            let names = call.arguments.iter().filter_map(Template::as_literal);
            self.known.extend(names.map(|name| name.trim().to_owned()));
        });
        self.texts.push((template.clone(), text.at));
        template
    }

    fn count(&mut self, what: &str) {
        *self.inventory.elements.entry(what.to_owned()).or_default() += 1;
    }

    fn read_goals(&mut self, plan: &Table<'_, '_>) {
        for (label, table) in plan.named_tables("goal") {
            if label != "*" && !self.labels.contains(&label) {
                let known: Vec<&str> = self.labels.iter().map(String::as_str).collect();
                let near = table::nearest(&label, &known)
                    .map_or_else(String::new, |near| format!("; did you mean `{near}`?"));
                table.note(table.at, format!("no step or scenario is called `{label}`{near}"));
            }
            let entries = table.entries();
            let limits = entries.iter().map(|(key, value)| {
                (key.text.as_str(), value.as_deref().unwrap_or_default(), key.at)
            });
            self.goals
                .extend(goal::of_table(&label, limits, &mut |at, message| table.note(at, message)));
        }
    }
}

fn has_header(headers: &[(Template, Template)], name: &str) -> bool {
    headers.iter().any(|(known, _)| known.source().eq_ignore_ascii_case(name))
}
