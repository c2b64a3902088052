//! Exports a JMeter plan to an equivalent plan in TOML.
//!
//! Invariant: everything that TOML cannot express is reported by name, and then nothing is written. Differences in
//! precision become remarks at the head of the file.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::sync::Arc;

use super::assertion::{AssertionSubject, SampleAssertion, TextComparison};
use super::charset::JavaCharset;
use super::data_set::RowSharing;
use super::extractor::{ResponseExtractor, ResponseField};
use super::form_encoding::{decode_form, encode_form};
use super::http_spec::HttpSamplerSpec;
use super::model::{
    CookieManager, FlowControlAction, IterationEvent, LoadShape, PlanModel, PlanNodeKind,
    PlanSampler, SampleErrorAction, SamplePostProcessor, SamplerAction, SamplerTimer, ThreadGroup,
    ThreadGroupStage,
};
use super::plan_node_id::PlanNodeId;
use super::template::TextTemplate;
use crate::load_portion::LoadPortion;
use crate::plan_draft::quote_toml;

/// Maximum count of a fixed loop that is unrolled.
const MAX_UNROLLED_LOOPS: i64 = 20;

/// Returns the text of a plan.
///
/// # Errors
/// Everything that TOML cannot express.
pub(super) fn to_toml(
    model: &Arc<PlanModel>,
    properties: &HashMap<String, String>,
    seed: u64,
) -> Result<String, Vec<String>> {
    let mut writer = TomlWriter {
        model,
        properties,
        seed,
        problems: Vec::new(),
        remarks: Vec::new(),
        common_target: None,
    };
    let text = writer.write_plan();
    if writer.problems.is_empty() { Ok(text) } else { Err(writer.problems) }
}

struct TomlWriter<'m> {
    model: &'m Arc<PlanModel>,
    properties: &'m HashMap<String, String>,
    seed: u64,
    problems: Vec<String>,
    remarks: Vec<String>,
    /// The target of most steps: that of the first one.
    common_target: Option<String>,
}

/// The location of a request's parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ParameterLocation {
    Query,
    Form,
}

/// A step, as the lines of its table.
#[derive(Debug, Clone, Default)]
struct TomlStep {
    lines: Vec<String>,
    /// Minimum and maximum pause before the request, in milliseconds.
    pause_before: (f64, f64),
    /// Minimum and maximum pause after it, in milliseconds.
    pause_after: (f64, f64),
}

impl TomlWriter<'_> {
    fn add_problem(&mut self, name: &str, problem: &str) {
        let text =
            if name.is_empty() { problem.to_owned() } else { format!("`{name}`: {problem}") };
        if !self.problems.contains(&text) {
            self.problems.push(text);
        }
    }

    fn add_remark(&mut self, text: &str) {
        if !self.remarks.iter().any(|remark| remark == text) {
            self.remarks.push(text.to_owned());
        }
    }

    fn write_plan(&mut self) -> String {
        let mut groups = String::new();
        let many = self.model.groups.len() > 1;
        for group in &self.model.groups {
            groups.push_str(&self.write_group(group, many));
        }
        if self.model.is_serial && many {
            self.add_problem("", "consecutive thread groups: TOML runs all scenarios at once");
        }
        let mut out = String::new();
        for remark in &self.remarks {
            writeln!(out, "# {remark}").ok();
        }
        writeln!(out, "name = {}", quote_toml(&self.model.name)).ok();
        if let Some(target) = &self.common_target {
            writeln!(out, "target = {}", quote_toml(target)).ok();
        }
        out.push_str(&self.write_session_lifetime());
        if !self.model.variables.is_empty() {
            out.push_str("\n[variables]\n");
            // A later one replaces an earlier one of the same name, as in JMeter.
            let mut variables: BTreeMap<&str, &str> = BTreeMap::new();
            for (name, value) in &self.model.variables {
                variables.insert(name.source().trim(), value.source());
            }
            for (name, value) in variables {
                writeln!(out, "{} = {}", quote_toml(name), quote_toml(value)).ok();
            }
        }
        out + &groups
    }

    fn http_specs(&self) -> Vec<&HttpSamplerSpec> {
        let samplers = self.model.nodes.iter().filter_map(|node| match &node.kind {
            PlanNodeKind::Sampler(sampler) => Some(sampler),
            _ => None,
        });
        samplers
            .filter_map(|sampler| match &sampler.action {
                SamplerAction::Http(spec) => Some(spec.as_ref()),
                _ => None,
            })
            .collect()
    }

    /// Returns the lifetime of cookies and cached responses.
    fn write_session_lifetime(&mut self) -> String {
        let specs = self.http_specs();
        let mut cookies: Vec<Option<usize>> =
            specs.iter().map(|spec| spec.cookie_manager).collect();
        let mut caches: Vec<Option<usize>> = specs.iter().map(|spec| spec.cache_manager).collect();
        cookies.sort_unstable();
        cookies.dedup();
        caches.sort_unstable();
        caches.dedup();
        let mut out = String::new();
        match cookies.as_slice() {
            [] | [None] => out.push_str("cookies = \"none\"\n"),
            [Some(index)] => {
                let manager = self.model.cookie_managers.get(*index);
                let lifetime = match manager {
                    Some(manager) if manager.ignores_cookies => "none",
                    Some(manager) if manager.clears_each_iteration => "visit",
                    _ => "user",
                };
                writeln!(out, "cookies = \"{lifetime}\"").ok();
                let is_more = |manager: &&CookieManager| {
                    !manager.ignores_cookies
                        && (!manager.cookies.is_empty() || manager.is_controlled_by_group)
                };
                if manager.filter(is_more).is_some() {
                    self.add_problem(
                        "",
                        "predefined cookies of a manager, or cookies controlled by the thread group",
                    );
                }
            }
            _ => self.add_problem("", "several cookie managers"),
        }
        match caches.as_slice() {
            [] | [None] => {}
            [Some(_)] => out.push_str("cache = true\n"),
            _ => self.add_problem("", "several cache managers"),
        }
        out
    }

    fn write_group(&mut self, group: &ThreadGroup, many: bool) -> String {
        let name = group.name.source().to_owned();
        if group.stage != ThreadGroupStage::Main {
            self.add_problem(&name, "a set-up or tear-down group");
        }
        let load = self.write_load(group, &name);
        let Some(root) = self.model.nodes.get(group.root) else { return String::new() };
        let mut steps = Vec::new();
        let mut events = root.events.clone();
        let mut names = Vec::new();
        self.collect_steps(&root.children, &mut steps, &mut events, &mut names, 0);
        // A plan has one table for the load, or one per scenario.
        let title = match names.as_slice() {
            [only] if !only.is_empty() => only.clone(),
            _ => name.clone(),
        };
        if names.len() > 1 {
            self.add_remark("Transaction sums inside a visit are left out; the visit is summed.");
        }
        let mut out = String::new();
        if !many {
            writeln!(out, "\n[load]\n{load}").ok();
        }
        writeln!(out, "\n[[scenario]]\nname = {}", quote_toml(&title)).ok();
        if many {
            writeln!(out, "[scenario.load]\n{load}").ok();
        }
        for event in events {
            match event {
                IterationEvent::DataSet(index) => out.push_str(&self.write_data_set(index)),
                IterationEvent::Counter(_) => self.add_problem(&name, "a counter"),
                IterationEvent::RandomVariable(_) => self.add_problem(&name, "a random variable"),
                IterationEvent::UserParameters(_) => self.add_problem(&name, "user parameters"),
            }
        }
        self.move_pauses_after_steps(&mut steps);
        for step in &steps {
            out.push_str("[[scenario.step]]\n");
            for line in &step.lines {
                writeln!(out, "{line}").ok();
            }
        }
        if steps.is_empty() {
            self.add_problem(&name, "no request");
        }
        out
    }

    /// Moves pauses: in TOML they follow a step, so those before a step move to the previous one.
    fn move_pauses_after_steps(&mut self, steps: &mut [TomlStep]) {
        let count = steps.len();
        let befores: Vec<(f64, f64)> = steps.iter().map(|step| step.pause_before).collect();
        if befores.first().is_some_and(|before| before.1 > 0.0) {
            self.add_remark(
                "The pause before the first request of a visit is moved after its last one.",
            );
        }
        for (index, step) in steps.iter_mut().enumerate() {
            let next = befores.get((index + 1) % count.max(1)).copied().unwrap_or_default();
            let (from, to) = (step.pause_after.0 + next.0, step.pause_after.1 + next.1);
            if to <= 0.0 {
                continue;
            }
            let think = if (to - from).abs() < 0.5 {
                format!("{from:.0}ms")
            } else {
                format!("{from:.0}ms..{to:.0}ms")
            };
            step.lines.push(format!("think = {}", quote_toml(&think)));
        }
    }

    fn write_load(&mut self, group: &ThreadGroup, name: &str) -> String {
        let LoadShape::Ramp { threads, ramp, delay, duration } = &group.load_shape else {
            self.add_problem(name, "this kind of thread group");
            return String::new();
        };
        let (_, mut scope) =
            self.model.begin_run(self.properties, self.seed, LoadPortion::default());
        let mut number =
            |template: &TextTemplate| template.evaluate(&mut scope).trim().parse::<f64>().ok();
        let users = number(threads);
        let (ramp, delay) = (number(ramp).unwrap_or(0.0), number(delay).unwrap_or(0.0));
        let duration_seconds = duration.as_ref().map(&mut number);
        let loops = if group.is_endless { Some(-1.0) } else { number(&group.loops) };
        let Some(users) = users.filter(|users| *users >= 1.0) else {
            self.add_problem(
                name,
                "a number of threads that is not a number; set its property with -J",
            );
            return String::new();
        };
        if delay > 0.0 {
            self.add_problem(name, "a delay before the first thread");
        }
        let mut out = format!("users = {users:.0}\n");
        if ramp > 0.0 && users > 1.0 {
            writeln!(out, "ramp = \"{}ms\"", (ramp * 1000.0).round()).ok();
        }
        match (duration_seconds, loops) {
            (Some(None), _) => {
                self.add_problem(name, "a duration that is not a number; set its property with -J")
            }
            (Some(Some(duration_seconds)), loops) => {
                writeln!(out, "duration = \"{}ms\"", (duration_seconds * 1000.0).round()).ok();
                if let Some(loops) = loops.filter(|loops| *loops >= 0.0) {
                    writeln!(out, "visits = {loops:.0}").ok();
                }
            }
            (None, Some(loops)) if loops >= 0.0 => {
                writeln!(out, "visits = {loops:.0}").ok();
            }
            (None, _) => self.add_problem(name, "endless loops"),
        }
        let on_error = match group.on_error {
            SampleErrorAction::Continue => "go-on",
            SampleErrorAction::NextLoop => "next-visit",
            SampleErrorAction::StopThread => "stop-user",
            SampleErrorAction::StopTest => "stop",
        };
        writeln!(out, "on_error = {}", quote_toml(on_error)).ok();
        out.truncate(out.trim_end().len());
        out
    }

    fn collect_steps(
        &mut self,
        children: &[PlanNodeId],
        steps: &mut Vec<TomlStep>,
        events: &mut Vec<IterationEvent>,
        names: &mut Vec<String>,
        depth: usize,
    ) {
        let model = Arc::clone(self.model);
        for child in children {
            let Some(node) = model.nodes.get(*child) else { continue };
            let name = node.name.source();
            let mut iterations = 1;
            match &node.kind {
                PlanNodeKind::Sampler(sampler) => {
                    self.write_sampler(name, sampler, steps);
                    continue;
                }
                PlanNodeKind::Simple => {}
                PlanNodeKind::Transaction { .. } => names.push(name.to_owned()),
                PlanNodeKind::Loop { count, .. } => {
                    match count.as_literal().and_then(|count| count.trim().parse().ok()) {
                        Some(count @ 0..=MAX_UNROLLED_LOOPS) if node.events.is_empty() => {
                            iterations = count
                        }
                        _ => self.add_problem(name, "a loop without a fixed, small count"),
                    }
                }
                PlanNodeKind::OnceOnly => {}
                PlanNodeKind::If { .. } => self.add_problem(name, "an if controller"),
                PlanNodeKind::While(_) => self.add_problem(name, "a while controller"),
                PlanNodeKind::ForEach { .. } => self.add_problem(name, "a for-each controller"),
                PlanNodeKind::Throughput { .. } => {
                    self.add_problem(name, "a throughput controller")
                }
                PlanNodeKind::RandomOrder
                | PlanNodeKind::Interleave(_)
                | PlanNodeKind::Switch(_) => {
                    self.add_problem(name, "a controller that chooses among its children");
                }
                PlanNodeKind::Runtime(_) => self.add_problem(name, "a runtime controller"),
                PlanNodeKind::ScenarioMix { .. } => self.add_problem(name, "a mix"),
            }
            if !node.events.is_empty() && depth > 0 {
                self.add_problem(name, "data sets or counters inside nested controllers");
            }
            events.extend(
                node.events
                    .iter()
                    .filter(|event| !events.contains(event))
                    .copied()
                    .collect::<Vec<_>>(),
            );
            let first = steps.len();
            for _ in 0..iterations {
                self.collect_steps(
                    &node.children,
                    &mut *steps,
                    &mut *events,
                    &mut *names,
                    depth + 1,
                );
            }
            if matches!(node.kind, PlanNodeKind::OnceOnly) {
                let inner = steps.iter_mut().skip(first);
                inner.for_each(|step| step.lines.push("once = true".to_owned()));
            }
        }
    }

    fn write_sampler(&mut self, name: &str, sampler: &PlanSampler, steps: &mut Vec<TomlStep>) {
        let before = self.total_pause_range(name, &sampler.timers);
        match &sampler.action {
            SamplerAction::Http(spec) => {
                let lines = self.write_step(name, spec, sampler);
                steps.push(TomlStep { lines, pause_before: before, pause_after: (0.0, 0.0) });
            }
            SamplerAction::FlowControl(flow) => {
                let pause = match flow {
                    FlowControlAction::Pause(pause) => {
                        match pause.as_literal().and_then(|text| text.trim().parse().ok()) {
                            Some(pause) => pause,
                            None => {
                                self.add_problem(
                                    name,
                                    "a pause that is known only while the plan runs",
                                );
                                0.0
                            }
                        }
                    }
                    FlowControlAction::NoOp => 0.0,
                    FlowControlAction::EnterSection(_) | FlowControlAction::LeaveSection => {
                        self.add_problem(name, "a critical section");
                        0.0
                    }
                    _ => {
                        self.add_problem(name, "a flow control action other than a pause");
                        0.0
                    }
                };
                let pause: f64 = pause;
                match steps.last_mut() {
                    Some(step) => {
                        step.pause_after.0 += pause + before.0;
                        step.pause_after.1 += pause + before.1;
                    }
                    None if pause + before.1 > 0.0 => {
                        self.add_problem(name, "a pause before the first request")
                    }
                    None => {}
                }
            }
            SamplerAction::Debug => self.add_remark("Debug samplers are left out."),
            SamplerAction::Java(_) => self.add_problem(name, "a Java sampler"),
            SamplerAction::Script(_) => self.add_problem(name, "a script"),
        }
    }

    /// Returns the minimum and maximum total pause of timers.
    fn total_pause_range(&mut self, name: &str, timers: &[SamplerTimer]) -> (f64, f64) {
        let mut sum = (0.0, 0.0);
        for timer in timers {
            let number =
                |template: &TextTemplate| template.as_literal()?.trim().parse::<f64>().ok();
            let pause_range = match timer {
                SamplerTimer::Constant(delay) => number(delay).map(|delay| (delay, delay)),
                SamplerTimer::Uniform { delay, range } => {
                    number(delay).zip(number(range)).map(|(delay, range)| (delay, delay + range))
                }
                _ => None,
            };
            match pause_range {
                Some((from, to)) => sum = (sum.0 + from, sum.1 + to),
                None => self.add_problem(
                    name,
                    "a timer other than a constant or uniform one with fixed times",
                ),
            }
        }
        sum
    }

    fn write_step(
        &mut self,
        name: &str,
        spec: &HttpSamplerSpec,
        sampler: &PlanSampler,
    ) -> Vec<String> {
        let method = match spec.method.source().trim() {
            "" => "GET".to_owned(),
            method => method.to_uppercase(),
        };
        let mut lines = vec![
            format!("name = {}", quote_toml(name)),
            format!("method = {}", quote_toml(&method)),
        ];
        let payload = self.write_payload(name, &method, spec);
        self.write_target(spec, &payload.query, &mut lines);
        lines.extend(payload.lines);
        let mut headers: Vec<(String, String)> = Vec::new();
        for (header, value) in &spec.headers {
            // Among equal names the last one counts, as managers replace each other.
            headers.retain(|(key, _)| !key.eq_ignore_ascii_case(header.source()));
            headers.push((header.source().to_owned(), value.source().to_owned()));
        }
        if let Some(kind) = payload.media_type
            && !headers.iter().any(|(key, _)| key.eq_ignore_ascii_case("content-type"))
        {
            headers.push(("Content-Type".to_owned(), kind.to_owned()));
        }
        if !headers.is_empty() {
            let pairs: Vec<String> = headers
                .iter()
                .map(|(name, value)| format!("{} = {}", quote_toml(name), quote_toml(value)))
                .collect();
            lines.push(format!("headers = {{ {} }}", pairs.join(", ")));
        }
        if !(spec.follows_redirects || spec.follows_redirects_silently) {
            lines.push("redirects = false".to_owned());
        }
        if !spec.keep_alive {
            self.add_remark("Connections are kept open in TOML, also where the plan closes them.");
        }
        if spec.host_addresses.is_some_and(|index| {
            self.model.host_addresses.get(index).is_some_and(|hosts| !hosts.is_empty())
        }) {
            self.add_problem(name, "a DNS cache manager with static host addresses");
        }
        if spec.charset != JavaCharset::Utf8 {
            self.add_problem(name, "parameters or bodies in a character set other than UTF-8");
        }
        if spec.is_browser_form && (spec.is_multipart || !spec.file_uploads.is_empty()) {
            self.add_problem(name, "a browser-compatible multipart form");
        }
        if !spec.source_address.is_empty() {
            self.add_problem(name, "a source address for requests");
        }
        if !spec.credentials.is_empty() {
            self.add_problem(name, "an authorization manager; write an `Authorization` header");
        }
        match &spec.embedded_resources {
            None => {}
            Some(parts) if parts.include_pattern.is_none() && parts.exclude_pattern.is_none() => {
                lines.push("parts = true".to_owned())
            }
            Some(_) => self.add_problem(name, "embedded resources filtered by URL"),
        }
        self.write_assertions(name, &sampler.assertions, &mut lines);
        if !sampler.pre_processors.is_empty() {
            self.add_problem(name, "a script");
        }
        if !sampler.user_parameters.is_empty() {
            self.add_problem(name, "user parameters");
        }
        self.write_extractors(name, &sampler.post_processors, &mut lines);
        lines
    }

    /// Writes the target of a step.
    fn write_target(&mut self, spec: &HttpSamplerSpec, query: &str, lines: &mut Vec<String>) {
        let source = |template: &TextTemplate| template.source().trim().to_owned();
        let (protocol, domain, port) =
            (source(&spec.protocol), source(&spec.domain), source(&spec.port));
        let mut path = spec.path.source().trim().replace(' ', "%20");
        if !query.is_empty() {
            path.push(if path.contains('?') { '&' } else { '?' });
            path.push_str(query);
        }
        if path.starts_with("http://") || path.starts_with("https://") {
            lines.push(format!("url = {}", quote_toml(&path)));
            return;
        }
        let slash = if path.starts_with('/') || path.starts_with("${") { "" } else { "/" };
        let protocol = if protocol.is_empty() { "http".to_owned() } else { protocol };
        let port = if port.is_empty() || port == "0" { String::new() } else { format!(":{port}") };
        let base = format!("{protocol}://{domain}{port}");
        let is_fixed = !base.contains("${");
        if is_fixed && self.common_target.is_none() {
            self.common_target = Some(base.clone());
        }
        if is_fixed && self.common_target.as_deref() == Some(base.as_str()) {
            lines.push(format!("path = {}", quote_toml(&format!("{slash}{path}"))));
        } else {
            lines.push(format!("url = {}", quote_toml(&format!("{base}{slash}{path}"))));
        }
    }

    fn write_payload(&mut self, name: &str, method: &str, spec: &HttpSamplerSpec) -> TomlPayload {
        let mut payload = TomlPayload::default();
        let files: Vec<String> = spec
            .file_uploads
            .iter()
            .map(|file| {
                let pair = |key: &str, value: &TextTemplate| {
                    format!("{key} = {}", quote_toml(value.source()))
                };
                let parts = [
                    pair("path", &file.path),
                    pair("name", &file.name),
                    pair("type", &file.media_type),
                ];
                format!("{{ {} }}", parts.join(", "))
            })
            .collect();
        let is_query = matches!(method, "GET" | "HEAD" | "DELETE" | "OPTIONS") && !spec.is_raw_body;
        if spec.is_raw_body {
            let body: String =
                spec.arguments.iter().map(|argument| argument.value.source()).collect();
            if !body.is_empty() {
                payload.lines.push(format!("body = {}", quote_toml(&body)));
            }
        } else if method == "HEAD" {
            // JMeter sends none of its parameters.
        } else if is_query {
            if method == "DELETE" && !spec.arguments.is_empty() && !spec.is_java_client {
                let remark = format!(
                    "`{name}`: JMeter sends the parameters of a DELETE in the URL and in the body; here they \
                     are only in the URL"
                );
                self.add_remark(&remark);
            }
            payload.query = self.encode_parameters(name, spec, ParameterLocation::Query);
        } else if !spec.arguments.is_empty() {
            let mut names: Vec<&str> =
                spec.arguments.iter().map(|argument| argument.name.source()).collect();
            names.sort_unstable();
            let is_plain = names.windows(2).all(|pair| pair.first() != pair.get(1))
                && (spec.is_multipart
                    || spec.arguments.iter().all(|argument| argument.needs_encoding));
            if is_plain {
                let pairs: Vec<String> = spec
                    .arguments
                    .iter()
                    .map(|argument| {
                        format!(
                            "{} = {}",
                            quote_toml(argument.name.source()),
                            quote_toml(argument.value.source())
                        )
                    })
                    .collect();
                payload.lines.push(format!("form = {{ {} }}", pairs.join(", ")));
            } else if spec.is_multipart {
                self.add_problem(name, "a multipart form with a repeated name");
            } else {
                payload.lines.push(format!(
                    "body = {}",
                    quote_toml(&self.encode_parameters(name, spec, ParameterLocation::Form))
                ));
                payload.media_type = Some("application/x-www-form-urlencoded");
            }
        }
        match files.as_slice() {
            [] => {}
            [_] if spec.file_uploads.iter().all(|file| file.name.source().is_empty())
                && spec.arguments.is_empty() =>
            {
                for file in &spec.file_uploads {
                    payload.lines.push(format!("body_file = {}", quote_toml(file.path.source())));
                    if !file.media_type.source().is_empty() {
                        payload
                            .lines
                            .push(format!("body_type = {}", quote_toml(file.media_type.source())));
                    }
                }
            }
            all => payload.lines.push(format!("files = [{}]", all.join(", "))),
        }
        if spec.is_multipart && files.is_empty() && !spec.arguments.is_empty() {
            payload.lines.push("multipart = true".to_owned());
        }
        payload
    }

    /// Encodes parameters for a URL or a form.
    fn encode_parameters(
        &mut self,
        name: &str,
        spec: &HttpSamplerSpec,
        location: ParameterLocation,
    ) -> String {
        let is_recoded = location == ParameterLocation::Form && !spec.is_java_client;
        let mut pairs = Vec::new();
        for argument in &spec.arguments {
            let mut text = |template: &TextTemplate| {
                match template.as_literal() {
                    _ if argument.needs_encoding => {}
                    // JMeter decodes encoded values of a form, and encodes them again.
                    Some(text) if is_recoded => {
                        let decoded = decode_form(text).unwrap_or_else(|_| text.to_owned());
                        return encode_form(&decoded);
                    }
                    None if is_recoded && !template.source().contains(',') => {
                        return format!(
                            "${{__urlencode(${{__urldecode({})}})}}",
                            template.source()
                        );
                    }
                    _ => return template.source().to_owned(),
                }
                match template.as_literal() {
                    Some(text) => percent_encoding::utf8_percent_encode(
                        text,
                        percent_encoding::NON_ALPHANUMERIC,
                    )
                    .to_string(),
                    None if !template.source().contains(',') => {
                        format!("${{__urlencode({})}}", template.source())
                    }
                    None => {
                        self.add_problem(
                            name,
                            "a parameter that is encoded and contains a function with \
                            several arguments",
                        );
                        String::new()
                    }
                }
            };
            pairs.push(format!(
                "{}{}{}",
                text(&argument.name),
                argument.separator,
                text(&argument.value)
            ));
        }
        pairs.join("&")
    }

    fn write_assertions(
        &mut self,
        name: &str,
        assertions: &[SampleAssertion],
        lines: &mut Vec<String>,
    ) {
        let mut expectations: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        let mut under = None;
        let mut values = Vec::new();
        for assertion in assertions {
            match assertion {
                SampleAssertion::Response {
                    subject,
                    comparison,
                    is_negated,
                    matches_any,
                    patterns,
                    assumes_success,
                    ..
                } => {
                    let is_error = patterns.iter().any(|text| text.source().trim() >= "400");
                    let key = match (subject, comparison, is_negated) {
                        (AssertionSubject::Code, TextComparison::Equals, false)
                            if (patterns.len() == 1 || *matches_any)
                                && (*assumes_success || !is_error) =>
                        {
                            "status"
                        }
                        // A substring match of a status is an exact match if the substring is a whole status.
                        (
                            AssertionSubject::Code,
                            TextComparison::Substring | TextComparison::Contains,
                            false,
                        ) if (patterns.len() == 1 || *matches_any)
                            && patterns.iter().all(|text| is_status_code(text.source()))
                            && (*assumes_success || !is_error) =>
                        {
                            "status"
                        }
                        (AssertionSubject::Body, TextComparison::Substring, false)
                            if patterns.len() == 1 || !matches_any =>
                        {
                            "text"
                        }
                        (AssertionSubject::Body, TextComparison::Substring, true)
                            if patterns.len() == 1 || !matches_any =>
                        {
                            "not_text"
                        }
                        (AssertionSubject::Body, TextComparison::Contains, false)
                            if patterns.len() == 1 || !matches_any =>
                        {
                            "regex"
                        }
                        (AssertionSubject::Body, TextComparison::Contains, true)
                            if patterns.len() == 1 || !matches_any =>
                        {
                            "not_regex"
                        }
                        _ => {
                            self.add_problem(name, "an assertion of this kind");
                            continue;
                        }
                    };
                    expectations
                        .entry(key)
                        .or_default()
                        .extend(patterns.iter().map(|text| quote_toml(text.source())));
                }
                SampleAssertion::Duration(most) => {
                    match most.as_literal().and_then(|most| most.trim().parse::<u64>().ok()) {
                        Some(most) => under = Some(most),
                        None => self
                            .add_problem(name, "a duration that is known only while the plan runs"),
                    }
                }
                SampleAssertion::Json {
                    path,
                    expected: Some(expected),
                    is_regex: false,
                    expects_null: false,
                    inverts: false,
                    ..
                } => values.push(format!(
                    "{} = {}",
                    quote_toml(path.source()),
                    quote_toml(expected.source())
                )),
                _ => self.add_problem(name, "an assertion of this kind"),
            }
        }
        let mut parts: Vec<String> = expectations
            .into_iter()
            .map(|(key, patterns)| match patterns.as_slice() {
                [only] => format!("{key} = {only}"),
                all => format!("{key} = [{}]", all.join(", ")),
            })
            .collect();
        if !values.is_empty() {
            parts.push(format!("json = {{ {} }}", values.join(", ")));
        }
        parts.extend(under.map(|under| format!("under = \"{under}ms\"")));
        if !parts.is_empty() {
            lines.push(format!("expect = {{ {} }}", parts.join(", ")));
        }
    }

    fn write_extractors(
        &mut self,
        name: &str,
        after: &[SamplePostProcessor],
        lines: &mut Vec<String>,
    ) {
        let mut extractors = Vec::new();
        for post_processor in after {
            let SamplePostProcessor::Extractor(extractor) = post_processor else {
                self.add_problem(name, "a script or an action after a request");
                continue;
            };
            match extractor_fields(extractor) {
                Some(parts) => extractors.push(format!("{{ {} }}", parts.join(", "))),
                None => self.add_problem(name, "an extractor of this kind"),
            }
        }
        match extractors.as_slice() {
            [] => {}
            [only] => lines.push(format!("extract = {only}")),
            all => lines.push(format!("extract = [{}]", all.join(", "))),
        }
    }

    fn write_data_set(&mut self, index: usize) -> String {
        let Some(data) = self.model.data_sets.get(index) else { return String::new() };
        let mut out =
            format!("[[scenario.data]]\nfile = {}\n", quote_toml(data.file_name.source().trim()));
        let names = data.column_names.source().trim();
        if !names.is_empty() {
            let names: Vec<String> = names.split(',').map(|name| quote_toml(name.trim())).collect();
            writeln!(out, "names = [{}]", names.join(", ")).ok();
        }
        if !matches!(data.delimiter.source(), "" | ",") {
            writeln!(out, "delimiter = {}", quote_toml(data.delimiter.source())).ok();
        }
        if data.is_quoted {
            out.push_str("quoted = true\n");
        }
        if data.skips_header && !names.is_empty() {
            out.push_str("skip_first = true\n");
        }
        let end = match (data.recycles, data.stops_thread) {
            (true, _) => "wrap",
            (false, true) => "stop",
            (false, false) => "eof",
        };
        writeln!(out, "at_end = \"{end}\"").ok();
        match &data.sharing {
            RowSharing::All => {}
            RowSharing::Thread => out.push_str("share = \"user\"\n"),
            RowSharing::Group if self.model.groups.len() == 1 => {}
            RowSharing::Group | RowSharing::Named(_) => {
                let file = data.file_name.source().to_owned();
                self.add_problem(&file, "rows shared by a thread group");
            }
        }
        out
    }
}

#[derive(Debug, Default)]
struct TomlPayload {
    query: String,
    lines: Vec<String>,
    media_type: Option<&'static str>,
}

fn is_status_code(text: &str) -> bool {
    text.trim().len() == 3 && text.trim().bytes().all(|byte| byte.is_ascii_digit())
}

/// Returns the parts of an `extract`; `None` if TOML cannot express it.
fn extractor_fields(extractor: &ResponseExtractor) -> Option<Vec<String>> {
    let pair = |key: &str, value: &TextTemplate| format!("{key} = {}", quote_toml(value.source()));
    let number = |template: &TextTemplate| -> Option<String> {
        let number = template.as_literal()?.trim().parse::<i64>().unwrap_or(0);
        (number >= 0).then(|| format!("match = {number}"))
    };
    let single = |template: &TextTemplate| !template.source().contains(';');
    Some(match extractor {
        ResponseExtractor::Regex {
            name,
            pattern,
            template,
            match_number,
            default,
            response_field,
            variable: None,
            ..
        } => {
            let key = match response_field {
                ResponseField::Body => "regex",
                ResponseField::Headers => "header",
                _ => return None,
            };
            let group = match template.source() {
                "" => 1,
                text => text.strip_prefix('$')?.strip_suffix('$')?.parse::<u64>().ok()?,
            };
            vec![
                pair("name", name),
                pair(key, pattern),
                format!("group = {group}"),
                number(match_number)?,
                pair("default", default),
            ]
        }
        ResponseExtractor::Json {
            names,
            paths,
            match_numbers,
            defaults,
            joins_all: false,
            variable: None,
        } if single(names) && single(paths) => {
            vec![
                pair("name", names),
                pair("json", paths),
                number(match_numbers)?,
                pair("default", defaults),
            ]
        }
        ResponseExtractor::Boundary {
            name,
            left,
            right,
            match_number,
            default,
            response_field: ResponseField::Body,
            ..
        } => vec![
            pair("name", name),
            format!("between = [{}, {}]", quote_toml(left.source()), quote_toml(right.source())),
            number(match_number)?,
            pair("default", default),
        ],
        _ => return None,
    })
}
