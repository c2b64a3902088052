//! The lab's own plans, in TOML: targets, weighted scenarios of steps, data, and the load.
//!
//! They are compiled to the same [`PlanModel`] as a `.jmx` file, so that one engine runs both.
//!
//! Invariants
//! * The whole file is validated before anything is sent; every error is reported with its line and column.
//! * Every full rotation of weighted scenarios sends exactly their shares, over all users together.

mod load;
mod step;
mod toml_table;
mod variable_check;

use std::collections::{BTreeMap, BTreeSet};

use toml_table::{TomlSource, TomlTable, TomlText};
pub use toml_table::{closest_word, parse_rate};

use super::data_set::{DataSet, RowSharing};
use super::http_spec::HttpSamplerSpec;
use super::model::{
    CacheManager, CookieManager, FlowControlAction, IterationEvent, LoadShape, PlanModel, PlanNode,
    PlanNodeKind, PlanSampler, SampleErrorAction, SamplerAction, SamplerTimer, SharedTimerState,
    ThreadGroup, ThreadGroupStage, ThroughputMode,
};
use super::plan_file::PlanFiles;
use super::plan_node_id::PlanNodeId;
use super::template::TextTemplate;
use super::weighted_order::weighted_order;
use crate::absolute_url::AbsoluteUrl;
use crate::compiler::PlanInventory;
use crate::finding::FileFinding;
use crate::goal::{self, LoadGoal};

/// The result of compiling a file.
pub(super) struct CompiledPlan {
    pub(super) model: PlanModel,
    pub(super) goals: Vec<LoadGoal>,
    pub(super) inventory: PlanInventory,
    pub(super) findings: Vec<FileFinding>,
}

/// Compiles a plan with its files.
pub(super) fn compile_plan(text: &str, file: &str, files: &PlanFiles) -> CompiledPlan {
    let source = TomlSource::new(file, text);
    let document = toml_table::parse_toml(&source);
    let mut compiler = TomlCompiler::new(files);
    if let Some(document) = &document {
        compiler.compile_plan(TomlTable::new(&source, document.get_ref(), "the plan", 0));
    }
    drop(document);
    let findings = source.into_findings();
    CompiledPlan {
        model: compiler.model,
        goals: compiler.goals,
        inventory: compiler.inventory,
        findings,
    }
}

/// Returns a plan of one page, which `tympan lab limit breakpoint URL` runs.
pub(super) fn model_for_url(url: &str) -> crate::Result<PlanModel> {
    let parsed = AbsoluteUrl::parse(url)?;
    let target = StepTarget::from_url(&parsed);
    let files = PlanFiles::default();
    let mut compiler = TomlCompiler::new(&files);
    let spec = HttpSamplerSpec {
        path: TextTemplate::literal(&parsed.path_and_query),
        headers: vec![user_agent_header()],
        keep_alive: true,
        response_timeout: TextTemplate::literal("30000"),
        connect_timeout: TextTemplate::literal("30000"),
        ..target.to_http_spec()
    };
    let root = compiler.add_node(PlanNodeKind::Simple, TextTemplate::literal(url));
    let name = TextTemplate::literal(&format!("GET {}", parsed.path_and_query));
    let step = compiler.add_sampler(name, SamplerAction::Http(Box::new(spec)));
    compiler.add_child(root, step);
    let once = super::model::ThreadLifetime { start: std::time::Duration::ZERO, lifetime: None };
    compiler.add_group(url, root, (LoadShape::Lifetimes(vec![once]), "1"), 1);
    url.clone_into(&mut compiler.model.name);
    Ok(compiler.model)
}

fn user_agent_header() -> (TextTemplate, TextTemplate) {
    let agent = concat!("tympan-lab/", env!("CARGO_PKG_VERSION"));
    (TextTemplate::literal("User-Agent"), TextTemplate::literal(agent))
}

/// The target of steps.
#[derive(Debug, Clone, Default)]
struct StepTarget {
    protocol: TextTemplate,
    domain: TextTemplate,
    port: TextTemplate,
    /// The prefix of every path.
    path_prefix: String,
}

impl StepTarget {
    fn from_url(url: &AbsoluteUrl) -> Self {
        Self {
            protocol: TextTemplate::literal(if url.is_tls { "https" } else { "http" }),
            domain: TextTemplate::literal(&url.host),
            port: TextTemplate::literal(&url.port.to_string()),
            path_prefix: url
                .path_and_query
                .split('?')
                .next()
                .unwrap_or("")
                .trim_end_matches('/')
                .to_owned(),
        }
    }

    fn to_http_spec(&self) -> HttpSamplerSpec {
        HttpSamplerSpec {
            protocol: self.protocol.clone(),
            domain: self.domain.clone(),
            port: self.port.clone(),
            is_toml_plan: true,
            ..HttpSamplerSpec::default()
        }
    }
}

/// The lifetime of sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SessionLifetime {
    /// One visit: the next one begins without cookies.
    Visit,
    /// The lifetime of the user.
    User,
    Disabled,
}

/// Default properties of steps.
#[derive(Debug, Clone, Default)]
struct StepDefaults {
    headers: Vec<(TextTemplate, TextTemplate)>,
    cookie_manager: Option<usize>,
    cache_manager: Option<usize>,
    think_time: Option<TextTemplate>,
    timeout: TextTemplate,
    follows_redirects: bool,
    fetches_resources: bool,
}

struct TomlCompiler<'f> {
    files: &'f PlanFiles,
    model: PlanModel,
    goals: Vec<LoadGoal>,
    inventory: PlanInventory,
    targets: BTreeMap<String, StepTarget>,
    defaults: StepDefaults,
    /// Variables that are set in the plan.
    known_variables: BTreeSet<String>,
    /// Texts that may refer to variables; checked when all variables are known.
    templates: Vec<(TextTemplate, usize)>,
    /// Names of steps and scenarios, which goals can refer to.
    labels: BTreeSet<String>,
}

/// Scenarios that share one load.
struct ScenarioGroup<'s, 't> {
    scenarios: Vec<(u64, PlanNodeId)>,
    load: Option<TomlTable<'s, 't>>,
    name: String,
    offset: usize,
}

impl<'f> TomlCompiler<'f> {
    fn new(files: &'f PlanFiles) -> Self {
        Self {
            files,
            model: PlanModel::default(),
            goals: Vec::new(),
            inventory: PlanInventory::default(),
            targets: BTreeMap::new(),
            defaults: StepDefaults::default(),
            known_variables: BTreeSet::new(),
            templates: Vec::new(),
            labels: BTreeSet::new(),
        }
    }

    fn compile_plan(&mut self, plan: TomlTable<'_, '_>) {
        self.model.name = plan.text("name").map_or_else(String::new, |name| name.text);
        self.read_targets(&plan);
        for (name, value) in plan.pairs("variables") {
            self.known_variables.insert(name.text.clone());
            let value = self.compile_template(&plan, &value);
            self.model.variables.push((TextTemplate::literal(&name.text), value));
        }
        self.read_defaults(&plan);
        let data: Vec<usize> =
            plan.tables("data").into_iter().filter_map(|data| self.add_data_set(data)).collect();
        let mut own = Vec::new();
        let name =
            if self.model.name.is_empty() { "plan".to_owned() } else { self.model.name.clone() };
        let mut shared = ScenarioGroup {
            scenarios: Vec::new(),
            load: plan.table("load"),
            name,
            offset: plan.offset_of("load"),
        };
        for scenario in plan.tables("scenario") {
            let load = scenario.table("load");
            let (name, at) = (scenario.text("name"), scenario.offset);
            let Some(compiled_scenario) = self.add_scenario(scenario) else { continue };
            match load {
                None => shared.scenarios.push(compiled_scenario),
                Some(load) => {
                    let name = name.map_or_else(|| shared.name.clone(), |name| name.text);
                    own.push(ScenarioGroup {
                        scenarios: vec![compiled_scenario],
                        load: Some(load),
                        name,
                        offset: at,
                    });
                }
            }
        }
        if shared.scenarios.is_empty() && own.is_empty() {
            plan.add_finding(
                plan.offset_of("scenario"),
                "the plan has no scenario; write `[[scenario]]` with `[[scenario.step]]`",
            );
        }
        if shared.scenarios.is_empty() && shared.load.is_some() && !own.is_empty() {
            plan.add_finding(shared.offset, "`load` is unused: every scenario has its own");
        }
        let mut casts = own;
        if !shared.scenarios.is_empty() {
            casts.insert(0, shared);
        } else if let Some(load) = shared.load {
            drop(self.read_load_shape(&load));
            load.report_unknown_keys();
        }
        for cast in casts {
            self.add_scenario_group(&plan, cast, &data);
        }
        self.read_goals(&plan);
        variable_check::check_variables(self, plan.source());
        plan.report_unknown_keys();
    }

    fn read_targets(&mut self, plan: &TomlTable<'_, '_>) {
        if let Some(url) = plan.text("target") {
            self.add_target(plan, "", &url);
        }
        for (name, url) in plan.pairs("targets") {
            self.add_target(plan, &name.text, &url);
        }
    }

    /// Adds a target, whose parts properties can override: `-Jtarget.host=...`, or `-Jtarget.NAME.host=...`.
    fn add_target(&mut self, plan: &TomlTable<'_, '_>, name: &str, url: &TomlText) {
        let parsed = match AbsoluteUrl::parse(&url.text) {
            Ok(parsed) => parsed,
            Err(error) => {
                plan.add_finding(url.offset, error.to_string());
                // Avoids follow-up errors in steps that name the target.
                self.targets.insert(name.to_owned(), StepTarget::default());
                return;
            }
        };
        let mut target = StepTarget::from_url(&parsed);
        let dot = if name.is_empty() { "" } else { "." };
        let parts = [
            ("protocol", &mut target.protocol),
            ("host", &mut target.domain),
            ("port", &mut target.port),
        ];
        for (part, template) in parts {
            let key = format!("target{dot}{name}.{part}");
            let call = format!("${{__P({key},{})}}", template.source());
            if let (Ok(value), Ok(variable)) =
                (TextTemplate::parse(&call), TextTemplate::parse(&format!("${{{key}}}")))
            {
                self.model.variables.push((TextTemplate::literal(&key), value));
                *template = variable;
            }
        }
        self.targets.insert(name.to_owned(), target);
    }

    fn read_defaults(&mut self, plan: &TomlTable<'_, '_>) {
        let headers = self.compile_headers(plan);
        self.defaults.headers = headers;
        if !has_header(&self.defaults.headers, "User-Agent") {
            self.defaults.headers.push(user_agent_header());
        }
        let session = plan.text("cookies");
        let session = match session.as_ref().map(|session| session.text.as_str()) {
            None | Some("visit") => SessionLifetime::Visit,
            Some("user") => SessionLifetime::User,
            Some("none") => SessionLifetime::Disabled,
            Some(other) => {
                let message =
                    format!("`cookies` must be \"visit\", \"user\" or \"none\", not \"{other}\"");
                plan.add_finding(plan.offset_of("cookies"), message);
                SessionLifetime::Visit
            }
        };
        if session != SessionLifetime::Disabled {
            let clears = session == SessionLifetime::Visit;
            self.model.cookie_managers.push(CookieManager {
                cookies: Vec::new(),
                ignores_cookies: false,
                clears_each_iteration: clears,
                is_controlled_by_group: false,
            });
            self.defaults.cookie_manager = Some(self.model.cookie_managers.len() - 1);
        }
        if plan.flag("cache").unwrap_or(false) {
            let clears = session == SessionLifetime::Visit;
            self.model
                .cache_managers
                .push(CacheManager { clears_each_iteration: clears, uses_expires: true });
            self.defaults.cache_manager = Some(self.model.cache_managers.len() - 1);
        }
        self.defaults.think_time =
            plan.text("think").and_then(|think| step::read_pause(plan, "think", &think));
        let timeout = plan.duration("timeout").unwrap_or(std::time::Duration::from_secs(30));
        self.defaults.timeout = TextTemplate::literal(&timeout.as_millis().to_string());
        self.defaults.follows_redirects = plan.flag("redirects").unwrap_or(true);
        self.defaults.fetches_resources = plan.flag("parts").unwrap_or(false);
    }

    fn compile_headers(&mut self, table: &TomlTable<'_, '_>) -> Vec<(TextTemplate, TextTemplate)> {
        let mut headers = Vec::new();
        for (name, value) in table.pairs("headers") {
            let is_token = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
            if name.text.is_empty() || !name.text.chars().all(is_token) {
                table.add_finding(
                    name.offset,
                    format!("`{}` is not a valid header name", name.text),
                );
            }
            headers.push((TextTemplate::literal(&name.text), self.compile_template(table, &value)));
        }
        headers
    }

    fn add_data_set(&mut self, table: TomlTable<'_, '_>) -> Option<usize> {
        let file = table.text("file");
        let names = table.texts("names");
        let delimiter = table.text("delimiter").map_or_else(|| ",".to_owned(), |text| text.text);
        let mut list: Vec<String> = names.iter().map(|name| name.text.clone()).collect();
        let set = file.as_ref().map(|file| {
            let text = list.join(",");
            let literal = |text: &str| TextTemplate::literal(text);
            DataSet::new(literal(&file.text), literal(&text), literal(&delimiter))
        });
        let mut set = match set {
            Some(set) => set,
            None => {
                table.add_finding(table.offset, "`data` has no `file`");
                DataSet::new(
                    TextTemplate::default(),
                    TextTemplate::default(),
                    TextTemplate::default(),
                )
            }
        };
        set.is_quoted = table.flag("quoted").unwrap_or(false);
        set.clears_missing = true;
        set.skips_header = table.flag("skip_first").unwrap_or(false);
        let end = table.text("at_end").map_or_else(|| "wrap".to_owned(), |end| end.text);
        (set.recycles, set.stops_thread) = match end.as_str() {
            "wrap" => (true, false),
            "stop" => (false, true),
            "eof" => (false, false),
            _ => {
                table.add_finding(
                    table.offset_of("at_end"),
                    format!("`at_end` must be \"wrap\", \"stop\" or \"eof\", not \"{end}\""),
                );
                (true, false)
            }
        };
        let share = table.text("share").map_or_else(|| "all".to_owned(), |share| share.text);
        set.sharing = match share.as_str() {
            "all" => RowSharing::All,
            "user" => RowSharing::Thread,
            _ => {
                table.add_finding(
                    table.offset_of("share"),
                    format!("`share` must be \"all\" or \"user\", not \"{share}\""),
                );
                RowSharing::All
            }
        };
        if let Some(file) = &file {
            let first = self.files.locate(&file.text);
            match first.and_then(|at| variable_check::read_header_columns(&at, &delimiter)) {
                Ok(columns) if list.is_empty() => list = columns,
                Ok(columns) if columns.len() < list.len() => table.add_finding(
                    file.offset,
                    format!(
                        "`{}` has {} columns in its first line, and `names` has {}",
                        file.text,
                        columns.len(),
                        list.len()
                    ),
                ),
                Ok(_) => {}
                Err(fault) => table.add_finding(file.offset, fault),
            }
        }
        self.known_variables.extend(list);
        table.report_unknown_keys();
        self.count_element("data");
        self.model.data_sets.push(set);
        Some(self.model.data_sets.len() - 1)
    }

    /// Adds a group that runs scenarios by their weights.
    fn add_scenario_group(
        &mut self,
        plan: &TomlTable<'_, '_>,
        cast: ScenarioGroup<'_, '_>,
        data: &[usize],
    ) {
        let (shape, loops, every) = match &cast.load {
            Some(load) => self.read_load_shape(load),
            None => (load::single_visit_shape(), "1".to_owned(), None),
        };
        let on_error = self.read_error_action(cast.load.as_ref());
        let root = self.add_node(PlanNodeKind::Simple, TextTemplate::literal(&cast.name));
        for &index in data {
            self.add_event(root, IterationEvent::DataSet(index));
        }
        if let Some(every) = every {
            self.add_visit_interval(root, every);
        }
        let order =
            weighted_order(&cast.scenarios.iter().map(|(weight, _)| *weight).collect::<Vec<_>>());
        match (order, cast.scenarios.as_slice()) {
            (_, [(_, only)]) => self.add_child(root, *only),
            (Some(order), all) => {
                self.model.meters.push(SharedTimerState::default());
                let meter = self.model.meters.len() - 1;
                let mix = self.add_node(
                    PlanNodeKind::ScenarioMix { order, meter_index: meter },
                    TextTemplate::literal("mix"),
                );
                for (_, scenario) in all {
                    self.add_child(mix, *scenario);
                }
                self.add_child(root, mix);
            }
            (None, _) => plan.add_finding(
                cast.offset,
                "the ratio of the weights is too fine: their sum, \
                divided by their greatest common divisor, is above 100,000",
            ),
        }
        let line = plan.source().line_and_column(cast.offset).0;
        self.add_group(&cast.name, root, (shape, &loops), line);
        if let Some(group) = self.model.groups.last_mut() {
            group.on_error = on_error;
        }
        if let Some(load) = cast.load {
            load.report_unknown_keys();
        }
    }

    fn read_error_action(&self, load: Option<&TomlTable<'_, '_>>) -> SampleErrorAction {
        let Some(load) = load else { return SampleErrorAction::NextLoop };
        match load.text("on_error").as_ref().map(|value| value.text.as_str()) {
            None | Some("next-visit") => SampleErrorAction::NextLoop,
            Some("go-on") => SampleErrorAction::Continue,
            Some("stop-user") => SampleErrorAction::StopThread,
            Some("stop") => SampleErrorAction::StopTest,
            Some(other) => {
                let message = format!(
                    "`on_error` must be \"next-visit\", \"go-on\", \"stop-user\" or \"stop\", not \"{other}\""
                );
                load.add_finding(load.offset_of("on_error"), message);
                SampleErrorAction::NextLoop
            }
        }
    }

    /// Makes every user begin visits at equal intervals, regardless of the duration of the previous one.
    fn add_visit_interval(&mut self, root: PlanNodeId, every: std::time::Duration) {
        self.model.meters.push(SharedTimerState::default());
        let per_minute = TextTemplate::literal(&(60.0 / every.as_secs_f64()).to_string());
        let meter = self.model.meters.len() - 1;
        let sampler_node = self.add_sampler(
            TextTemplate::literal("pace"),
            SamplerAction::FlowControl(FlowControlAction::NoOp),
        );
        if let Some(PlanNodeKind::Sampler(sampler)) =
            self.model.nodes.get_mut(sampler_node).map(|node| &mut node.kind)
        {
            sampler.timers.push(SamplerTimer::Throughput {
                per_minute,
                mode: ThroughputMode::ThisThread,
                meter_index: meter,
            });
        }
        self.add_child(root, sampler_node);
    }

    fn add_group(
        &mut self,
        name: &str,
        root: PlanNodeId,
        (shape, loops): (LoadShape, &str),
        line: u32,
    ) {
        self.model.groups.push(ThreadGroup {
            stage: ThreadGroupStage::Main,
            name: TextTemplate::literal(name),
            load_shape: shape,
            loops: TextTemplate::literal(loops),
            is_endless: loops == "-1",
            on_error: SampleErrorAction::NextLoop,
            is_same_user: true,
            root,
            line,
        });
    }

    fn add_node(&mut self, kind: PlanNodeKind, name: TextTemplate) -> PlanNodeId {
        self.model.nodes.push(PlanNode { kind, name, children: Vec::new(), events: Vec::new() });
        self.model.nodes.len() - 1
    }

    fn add_sampler(&mut self, name: TextTemplate, action: SamplerAction) -> PlanNodeId {
        let sampler = PlanSampler::from_action(action);
        self.add_node(PlanNodeKind::Sampler(Box::new(sampler)), name)
    }

    fn add_child(&mut self, parent: PlanNodeId, child: PlanNodeId) {
        if let Some(parent) = self.model.nodes.get_mut(parent) {
            parent.children.push(child);
        }
    }

    fn add_event(&mut self, node: PlanNodeId, event: IterationEvent) {
        if let Some(node) = self.model.nodes.get_mut(node) {
            node.events.push(event);
        }
    }

    /// Compiles a text and records its references.
    fn compile_template(&mut self, table: &TomlTable<'_, '_>, text: &TomlText) -> TextTemplate {
        let template = table.compile(text);
        template.for_each_call(&mut |call| {
            let name = call.source.split(['(', '}']).next().unwrap_or_default().trim();
            *self.inventory.functions.entry(name.to_owned()).or_default() += 1;
            // Some functions set the variable that an argument names.
            let names = call.arguments.iter().filter_map(TextTemplate::as_literal);
            self.known_variables.extend(names.map(|name| name.trim().to_owned()));
        });
        self.templates.push((template.clone(), text.offset));
        template
    }

    fn count_element(&mut self, element: &str) {
        *self.inventory.elements.entry(element.to_owned()).or_default() += 1;
    }

    fn read_goals(&mut self, plan: &TomlTable<'_, '_>) {
        for (label, table) in plan.named_tables("goal") {
            if label != "*" && !self.labels.contains(&label) {
                let candidates: Vec<&str> = self.labels.iter().map(String::as_str).collect();
                let near = toml_table::closest_word(&label, &candidates)
                    .map_or_else(String::new, |near| format!("; did you mean `{near}`?"));
                table.add_finding(
                    table.offset,
                    format!("no step or scenario is called `{label}`{near}"),
                );
            }
            let entries = table.text_entries();
            let limits = entries.iter().map(|(key, value)| {
                (key.text.as_str(), value.as_deref().unwrap_or_default(), key.offset)
            });
            self.goals.extend(goal::parse_goal_table(&label, limits, &mut |at, message| {
                table.add_finding(at, message)
            }));
        }
    }
}

fn has_header(headers: &[(TextTemplate, TextTemplate)], name: &str) -> bool {
    headers.iter().any(|(key, _)| key.source().eq_ignore_ascii_case(name))
}
