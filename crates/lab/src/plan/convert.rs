//! From a plan of JMeter to one in TOML that does the same.
//!
//! Invariant: what TOML has no words for is told by name, and nothing is written then. What is only less exact there is a
//! remark at the head of the file.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use super::charset::Charset;
use super::data::Share;
use super::extract::{Extractor, Field};
use super::http::{HttpSpec, decode_form, encode_form};
use super::judge::{Judge, Subject, Way};
use super::model::{
    Action, After, CookieManager, Event, Flow, Group, Kind, Model, NodeId, OnError, Sampler, Shape,
    Stage, Timer,
};
use super::run::{Membership, Run, begin};
use super::template::Template;
use crate::draft::quote;

/// Loops of a fixed count up to this are written out.
const MOST_ROUNDS: i64 = 20;

/// Returns the text of a plan.
///
/// # Errors
/// Everything that TOML has no words for.
pub(super) fn to_toml(model: &Arc<Model>, run: &Run) -> Result<String, Vec<String>> {
    let mut writer = Writer { model, run, problems: Vec::new(), remarks: Vec::new(), target: None };
    let text = writer.plan();
    if writer.problems.is_empty() { Ok(text) } else { Err(writer.problems) }
}

struct Writer<'m> {
    model: &'m Arc<Model>,
    run: &'m Run,
    problems: Vec<String>,
    remarks: Vec<String>,
    /// Where most steps go: what the first one says.
    target: Option<String>,
}

/// Where parameters of a request stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ParameterPlace {
    Query,
    Form,
}

/// A step, as the lines of its table.
#[derive(Debug, Clone, Default)]
struct Step {
    lines: Vec<String>,
    /// Milliseconds from and to, before the request.
    before: (f64, f64),
    /// The same, after it.
    after: (f64, f64),
}

impl Writer<'_> {
    fn problem(&mut self, name: &str, what: &str) {
        let text = if name.is_empty() { what.to_owned() } else { format!("`{name}`: {what}") };
        if !self.problems.contains(&text) {
            self.problems.push(text);
        }
    }

    fn remark(&mut self, text: &str) {
        if !self.remarks.iter().any(|known| known == text) {
            self.remarks.push(text.to_owned());
        }
    }

    fn plan(&mut self) -> String {
        let mut groups = String::new();
        let many = self.model.groups.len() > 1;
        for group in &self.model.groups {
            groups.push_str(&self.group(group, many));
        }
        if self.model.is_serial && many {
            self.problem("", "thread groups one after the other: TOML runs all scenarios at once");
        }
        let mut out = String::new();
        for remark in &self.remarks {
            writeln!(out, "# {remark}").ok();
        }
        writeln!(out, "name = {}", quote(&self.model.name)).ok();
        if let Some(target) = &self.target {
            writeln!(out, "target = {}", quote(target)).ok();
        }
        out.push_str(&self.sessions());
        if !self.model.variables.is_empty() {
            out.push_str("\n[variables]\n");
            // A later one replaces an earlier one of the same name, as in JMeter.
            let mut seen: BTreeMap<&str, &str> = BTreeMap::new();
            for (name, value) in &self.model.variables {
                seen.insert(name.source().trim(), value.source());
            }
            for (name, value) in seen {
                writeln!(out, "{} = {}", quote(name), quote(value)).ok();
            }
        }
        out + &groups
    }

    fn specs(&self) -> Vec<&HttpSpec> {
        let samplers = self.model.nodes.iter().filter_map(|node| match &node.kind {
            Kind::Sampler(sampler) => Some(sampler),
            _ => None,
        });
        samplers
            .filter_map(|sampler| match &sampler.action {
                Action::Http(spec) => Some(spec.as_ref()),
                _ => None,
            })
            .collect()
    }

    /// Returns how long cookies and cached answers last.
    fn sessions(&mut self) -> String {
        let specs = self.specs();
        let mut cookies: Vec<Option<usize>> = specs.iter().map(|spec| spec.cookies).collect();
        let mut caches: Vec<Option<usize>> = specs.iter().map(|spec| spec.cache).collect();
        cookies.sort_unstable();
        cookies.dedup();
        caches.sort_unstable();
        caches.dedup();
        let mut out = String::new();
        match cookies.as_slice() {
            [] | [None] => out.push_str("cookies = \"none\"\n"),
            [Some(place)] => {
                let manager = self.model.cookies.get(*place);
                let lasts = match manager {
                    Some(manager) if manager.ignores => "none",
                    Some(manager) if manager.clears => "visit",
                    _ => "user",
                };
                writeln!(out, "cookies = \"{lasts}\"").ok();
                let is_more = |manager: &&CookieManager| {
                    !manager.ignores && (!manager.cookies.is_empty() || manager.by_group)
                };
                if manager.filter(is_more).is_some() {
                    self.problem(
                        "",
                        "cookies that a manager brings along, or that follow the group",
                    );
                }
            }
            _ => self.problem("", "several cookie managers"),
        }
        match caches.as_slice() {
            [] | [None] => {}
            [Some(_)] => out.push_str("cache = true\n"),
            _ => self.problem("", "several cache managers"),
        }
        out
    }

    fn group(&mut self, group: &Group, many: bool) -> String {
        let name = group.name.source().to_owned();
        if group.stage != Stage::Main {
            self.problem(&name, "a set-up or tear-down group");
        }
        let load = self.load(group, &name);
        let Some(root) = self.model.nodes.get(group.root) else { return String::new() };
        let mut steps = Vec::new();
        let mut events = root.events.clone();
        let mut names = Vec::new();
        self.walk(&root.children, (&mut steps, &mut events, &mut names), 0);
        // A plan has one table for the load, or each scenario one of its own.
        let title = match names.as_slice() {
            [only] if !only.is_empty() => only.clone(),
            _ => name.clone(),
        };
        if names.len() > 1 {
            self.remark(
                "Sums of transactions inside of a visit are left out; the visit is summed.",
            );
        }
        let mut out = String::new();
        if !many {
            writeln!(out, "\n[load]\n{load}").ok();
        }
        writeln!(out, "\n[[scenario]]\nname = {}", quote(&title)).ok();
        if many {
            writeln!(out, "[scenario.load]\n{load}").ok();
        }
        for event in events {
            match event {
                Event::Data(place) => out.push_str(&self.data(place)),
                Event::Count(_) => self.problem(&name, "a counter"),
                Event::Random(_) => self.problem(&name, "a random variable"),
                Event::Parameters(_) => self.problem(&name, "user parameters"),
            }
        }
        self.put_pauses(&mut steps);
        for step in &steps {
            out.push_str("[[scenario.step]]\n");
            for line in &step.lines {
                writeln!(out, "{line}").ok();
            }
        }
        if steps.is_empty() {
            self.problem(&name, "no request");
        }
        out
    }

    /// Writes pauses: in TOML they stand behind a step, so those before a step move to the one before it.
    fn put_pauses(&mut self, steps: &mut [Step]) {
        let count = steps.len();
        let befores: Vec<(f64, f64)> = steps.iter().map(|step| step.before).collect();
        if befores.first().is_some_and(|before| before.1 > 0.0) {
            self.remark(
                "The pause before the first request of a visit stands behind its last one.",
            );
        }
        for (place, step) in steps.iter_mut().enumerate() {
            let next = befores.get((place + 1) % count.max(1)).copied().unwrap_or_default();
            let (from, to) = (step.after.0 + next.0, step.after.1 + next.1);
            if to <= 0.0 {
                continue;
            }
            let think = if (to - from).abs() < 0.5 {
                format!("{from:.0}ms")
            } else {
                format!("{from:.0}ms..{to:.0}ms")
            };
            step.lines.push(format!("think = {}", quote(&think)));
        }
    }

    fn load(&mut self, group: &Group, name: &str) -> String {
        let Shape::Ramp { threads, ramp, delay, duration } = &group.shape else {
            self.problem(name, "this kind of thread group");
            return String::new();
        };
        let (_, mut scope) = begin(self.model, self.run, &Membership::default());
        let mut number = |template: &Template| template.draw(&mut scope).trim().parse::<f64>().ok();
        let users = number(threads);
        let (ramp, delay) = (number(ramp).unwrap_or(0.0), number(delay).unwrap_or(0.0));
        let lasts = duration.as_ref().map(&mut number);
        let loops = if group.is_endless { Some(-1.0) } else { number(&group.loops) };
        let Some(users) = users.filter(|users| *users >= 1.0) else {
            self.problem(name, "a number of threads that is none; give its property with -J");
            return String::new();
        };
        if delay > 0.0 {
            self.problem(name, "a delay before the first thread");
        }
        let mut out = format!("users = {users:.0}\n");
        if ramp > 0.0 && users > 1.0 {
            writeln!(out, "ramp = \"{}ms\"", (ramp * 1000.0).round()).ok();
        }
        match (lasts, loops) {
            (Some(None), _) => {
                self.problem(name, "a duration that is no number; give its property with -J")
            }
            (Some(Some(lasts)), loops) => {
                writeln!(out, "duration = \"{}ms\"", (lasts * 1000.0).round()).ok();
                if let Some(loops) = loops.filter(|loops| *loops >= 0.0) {
                    writeln!(out, "visits = {loops:.0}").ok();
                }
            }
            (None, Some(loops)) if loops >= 0.0 => {
                writeln!(out, "visits = {loops:.0}").ok();
            }
            (None, _) => self.problem(name, "loops without an end"),
        }
        let on_error = match group.on_error {
            OnError::Continue => "go-on",
            OnError::NextLoop => "next-visit",
            OnError::StopThread => "stop-user",
            OnError::StopTest => "stop",
        };
        writeln!(out, "on_error = {}", quote(on_error)).ok();
        out.truncate(out.trim_end().len());
        out
    }

    fn walk(
        &mut self,
        children: &[NodeId],
        (steps, events, names): (&mut Vec<Step>, &mut Vec<Event>, &mut Vec<String>),
        depth: usize,
    ) {
        let model = Arc::clone(self.model);
        for child in children {
            let Some(node) = model.nodes.get(*child) else { continue };
            let name = node.name.source();
            let mut rounds = 1;
            match &node.kind {
                Kind::Sampler(sampler) => {
                    self.sampler(name, sampler, steps);
                    continue;
                }
                Kind::Simple => {}
                Kind::Transaction { .. } => names.push(name.to_owned()),
                Kind::Loop { count, .. } => {
                    match count.as_literal().and_then(|count| count.trim().parse().ok()) {
                        Some(count @ 0..=MOST_ROUNDS) if node.events.is_empty() => rounds = count,
                        _ => self.problem(name, "a loop of no fixed, small number"),
                    }
                }
                Kind::Once => {}
                Kind::If { .. } => self.problem(name, "an if controller"),
                Kind::While(_) => self.problem(name, "a while controller"),
                Kind::ForEach { .. } => self.problem(name, "a for-each controller"),
                Kind::Throughput { .. } => self.problem(name, "a throughput controller"),
                Kind::RandomOrder | Kind::Interleave(_) | Kind::Switch(_) => {
                    self.problem(name, "a controller that chooses among its children");
                }
                Kind::Runtime(_) => self.problem(name, "a runtime controller"),
                Kind::Mix { .. } => self.problem(name, "a mix"),
            }
            if !node.events.is_empty() && depth > 0 {
                self.problem(name, "data sets or counters inside of nested controllers");
            }
            events.extend(
                node.events
                    .iter()
                    .filter(|event| !events.contains(event))
                    .copied()
                    .collect::<Vec<_>>(),
            );
            let first = steps.len();
            for _ in 0..rounds {
                self.walk(&node.children, (&mut *steps, &mut *events, &mut *names), depth + 1);
            }
            if matches!(node.kind, Kind::Once) {
                let inner = steps.iter_mut().skip(first);
                inner.for_each(|step| step.lines.push("once = true".to_owned()));
            }
        }
    }

    fn sampler(&mut self, name: &str, sampler: &Sampler, steps: &mut Vec<Step>) {
        let before = self.timers(name, &sampler.timers);
        match &sampler.action {
            Action::Http(spec) => {
                let lines = self.step(name, spec, sampler);
                steps.push(Step { lines, before, after: (0.0, 0.0) });
            }
            Action::Flow(flow) => {
                let pause = match flow {
                    Flow::Pause(pause) => match pause
                        .as_literal()
                        .and_then(|text| text.trim().parse().ok())
                    {
                        Some(pause) => pause,
                        None => {
                            self.problem(name, "a pause that is known only while the plan runs");
                            0.0
                        }
                    },
                    Flow::Nothing => 0.0,
                    Flow::Enter(_) | Flow::Leave => {
                        self.problem(name, "a critical section");
                        0.0
                    }
                    _ => {
                        self.problem(name, "a flow control action that ends something");
                        0.0
                    }
                };
                let pause: f64 = pause;
                match steps.last_mut() {
                    Some(step) => {
                        step.after.0 += pause + before.0;
                        step.after.1 += pause + before.1;
                    }
                    None if pause + before.1 > 0.0 => {
                        self.problem(name, "a pause before the first request")
                    }
                    None => {}
                }
            }
            Action::Debug => self.remark("Debug samplers are left out."),
            Action::Java(_) => self.problem(name, "a Java sampler"),
            Action::Script(_) => self.problem(name, "a script"),
        }
    }

    /// Returns the shortest and the longest pause of timers.
    fn timers(&mut self, name: &str, timers: &[Timer]) -> (f64, f64) {
        let mut sum = (0.0, 0.0);
        for timer in timers {
            let number = |template: &Template| template.as_literal()?.trim().parse::<f64>().ok();
            let found = match timer {
                Timer::Constant(delay) => number(delay).map(|delay| (delay, delay)),
                Timer::Uniform { delay, range } => {
                    number(delay).zip(number(range)).map(|(delay, range)| (delay, delay + range))
                }
                _ => None,
            };
            match found {
                Some((from, to)) => sum = (sum.0 + from, sum.1 + to),
                None => self
                    .problem(name, "a timer other than a constant or a uniform one of fixed times"),
            }
        }
        sum
    }

    fn step(&mut self, name: &str, spec: &HttpSpec, sampler: &Sampler) -> Vec<String> {
        let method = match spec.method.source().trim() {
            "" => "GET".to_owned(),
            method => method.to_uppercase(),
        };
        let mut lines =
            vec![format!("name = {}", quote(name)), format!("method = {}", quote(&method))];
        let payload = self.payload(name, &method, spec);
        self.place(spec, &payload.query, &mut lines);
        lines.extend(payload.lines);
        let mut headers: Vec<(String, String)> = Vec::new();
        for (header, value) in &spec.headers {
            // Of one name the last one counts, as managers replace each other.
            headers.retain(|(known, _)| !known.eq_ignore_ascii_case(header.source()));
            headers.push((header.source().to_owned(), value.source().to_owned()));
        }
        if let Some(kind) = payload.media_type
            && !headers.iter().any(|(known, _)| known.eq_ignore_ascii_case("content-type"))
        {
            headers.push(("Content-Type".to_owned(), kind.to_owned()));
        }
        if !headers.is_empty() {
            let pairs: Vec<String> = headers
                .iter()
                .map(|(name, value)| format!("{} = {}", quote(name), quote(value)))
                .collect();
            lines.push(format!("headers = {{ {} }}", pairs.join(", ")));
        }
        if !(spec.follows || spec.follows_silently) {
            lines.push("redirects = false".to_owned());
        }
        if !spec.keep_alive {
            self.remark("Connections are kept open in TOML, also where the plan closes them.");
        }
        if spec
            .hosts
            .is_some_and(|place| self.model.hosts.get(place).is_some_and(|hosts| !hosts.is_empty()))
        {
            self.problem(name, "a DNS cache manager that gives names addresses of its own");
        }
        if spec.charset != Charset::Utf8 {
            self.problem(name, "parameters or bodies in another character set than UTF-8");
        }
        if spec.is_browser_form && (spec.is_multipart || !spec.files.is_empty()) {
            self.problem(name, "a form in parts as browsers write it");
        }
        if !spec.source.is_empty() {
            self.problem(name, "an address of this machine that requests are sent from");
        }
        if !spec.logins.is_empty() {
            self.problem(name, "an authorization manager; write an `Authorization` header");
        }
        match &spec.embedded {
            None => {}
            Some(parts) if parts.only.is_none() && parts.except.is_none() => {
                lines.push("parts = true".to_owned())
            }
            Some(_) => self.problem(name, "parts of pages that are chosen by their address"),
        }
        self.judges(name, &sampler.judges, &mut lines);
        if !sampler.scripts.is_empty() {
            self.problem(name, "a script");
        }
        if !sampler.before.is_empty() {
            self.problem(name, "user parameters");
        }
        self.extractors(name, &sampler.after, &mut lines);
        lines
    }

    /// Writes where a step goes.
    fn place(&mut self, spec: &HttpSpec, query: &str, lines: &mut Vec<String>) {
        let source = |template: &Template| template.source().trim().to_owned();
        let (protocol, domain, port) =
            (source(&spec.protocol), source(&spec.domain), source(&spec.port));
        let mut path = spec.path.source().trim().replace(' ', "%20");
        if !query.is_empty() {
            path.push(if path.contains('?') { '&' } else { '?' });
            path.push_str(query);
        }
        if path.starts_with("http://") || path.starts_with("https://") {
            lines.push(format!("url = {}", quote(&path)));
            return;
        }
        let slash = if path.starts_with('/') || path.starts_with("${") { "" } else { "/" };
        let protocol = if protocol.is_empty() { "http".to_owned() } else { protocol };
        let port = if port.is_empty() || port == "0" { String::new() } else { format!(":{port}") };
        let base = format!("{protocol}://{domain}{port}");
        let is_fixed = !base.contains("${");
        if is_fixed && self.target.is_none() {
            self.target = Some(base.clone());
        }
        if is_fixed && self.target.as_deref() == Some(base.as_str()) {
            lines.push(format!("path = {}", quote(&format!("{slash}{path}"))));
        } else {
            lines.push(format!("url = {}", quote(&format!("{base}{slash}{path}"))));
        }
    }

    fn payload(&mut self, name: &str, method: &str, spec: &HttpSpec) -> Payload {
        let mut payload = Payload::default();
        let files: Vec<String> = spec
            .files
            .iter()
            .map(|file| {
                let pair =
                    |key: &str, value: &Template| format!("{key} = {}", quote(value.source()));
                let parts = [
                    pair("path", &file.path),
                    pair("name", &file.name),
                    pair("type", &file.media_type),
                ];
                format!("{{ {} }}", parts.join(", "))
            })
            .collect();
        let is_query = matches!(method, "GET" | "HEAD" | "DELETE" | "OPTIONS") && !spec.is_raw;
        if spec.is_raw {
            let body: String = spec.arguments.iter().map(|one| one.value.source()).collect();
            if !body.is_empty() {
                payload.lines.push(format!("body = {}", quote(&body)));
            }
        } else if method == "HEAD" {
            // JMeter sends none of its parameters.
        } else if is_query {
            if method == "DELETE" && !spec.arguments.is_empty() && !spec.is_java {
                let what = format!(
                    "`{name}`: JMeter sends the parameters of a DELETE in the address and in the body; here they stand in the address only"
                );
                self.remark(&what);
            }
            payload.query = self.pairs(name, spec, ParameterPlace::Query);
        } else if !spec.arguments.is_empty() {
            let mut names: Vec<&str> = spec.arguments.iter().map(|one| one.name.source()).collect();
            names.sort_unstable();
            let is_plain = names.windows(2).all(|pair| pair.first() != pair.get(1))
                && (spec.is_multipart || spec.arguments.iter().all(|one| one.encodes));
            if is_plain {
                let pairs: Vec<String> = spec
                    .arguments
                    .iter()
                    .map(|one| {
                        format!("{} = {}", quote(one.name.source()), quote(one.value.source()))
                    })
                    .collect();
                payload.lines.push(format!("form = {{ {} }}", pairs.join(", ")));
            } else if spec.is_multipart {
                self.problem(name, "a multipart form in which a name stands twice");
            } else {
                payload.lines.push(format!(
                    "body = {}",
                    quote(&self.pairs(name, spec, ParameterPlace::Form))
                ));
                payload.media_type = Some("application/x-www-form-urlencoded");
            }
        }
        match files.as_slice() {
            [] => {}
            [_] if spec.files.iter().all(|file| file.name.source().is_empty())
                && spec.arguments.is_empty() =>
            {
                for file in &spec.files {
                    payload.lines.push(format!("body_file = {}", quote(file.path.source())));
                    if !file.media_type.source().is_empty() {
                        payload
                            .lines
                            .push(format!("body_type = {}", quote(file.media_type.source())));
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

    /// Returns parameters as they stand in an address or a form.
    fn pairs(&mut self, name: &str, spec: &HttpSpec, place: ParameterPlace) -> String {
        let is_recoded = place == ParameterPlace::Form && !spec.is_java;
        let mut pairs = Vec::new();
        for one in &spec.arguments {
            let mut text = |template: &Template| {
                match template.as_literal() {
                    _ if one.encodes => {}
                    // JMeter decodes what a form has encoded, and encodes it again.
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
                        self.problem(name, "a parameter that is encoded and holds a function with several arguments");
                        String::new()
                    }
                }
            };
            pairs.push(format!("{}{}{}", text(&one.name), one.separator, text(&one.value)));
        }
        pairs.join("&")
    }

    fn judges(&mut self, name: &str, judges: &[Judge], lines: &mut Vec<String>) {
        let mut found: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        let mut under = None;
        let mut values = Vec::new();
        for judge in judges {
            match judge {
                Judge::Response { subject, way, is_not, is_or, texts, assumes_success, .. } => {
                    let is_error = texts.iter().any(|text| text.source().trim() >= "400");
                    let key = match (subject, way, is_not) {
                        (Subject::Code, Way::Equals, false)
                            if (texts.len() == 1 || *is_or) && (*assumes_success || !is_error) =>
                        {
                            "status"
                        }
                        // What is only contained in a status is the status, if it is a whole one.
                        (Subject::Code, Way::Substring | Way::Contains, false)
                            if (texts.len() == 1 || *is_or)
                                && texts.iter().all(|text| is_status(text.source()))
                                && (*assumes_success || !is_error) =>
                        {
                            "status"
                        }
                        (Subject::Body, Way::Substring, false) if texts.len() == 1 || !is_or => {
                            "text"
                        }
                        (Subject::Body, Way::Substring, true) if texts.len() == 1 || !is_or => {
                            "not_text"
                        }
                        (Subject::Body, Way::Contains, false) if texts.len() == 1 || !is_or => {
                            "regex"
                        }
                        (Subject::Body, Way::Contains, true) if texts.len() == 1 || !is_or => {
                            "not_regex"
                        }
                        _ => {
                            self.problem(name, "an assertion of this kind");
                            continue;
                        }
                    };
                    found
                        .entry(key)
                        .or_default()
                        .extend(texts.iter().map(|text| quote(text.source())));
                }
                Judge::Duration(most) => match most
                    .as_literal()
                    .and_then(|most| most.trim().parse::<u64>().ok())
                {
                    Some(most) => under = Some(most),
                    None => self.problem(name, "a duration that is known only while the plan runs"),
                },
                Judge::Json {
                    path,
                    expected: Some(expected),
                    is_regex: false,
                    expects_null: false,
                    inverts: false,
                    ..
                } => {
                    values.push(format!("{} = {}", quote(path.source()), quote(expected.source())))
                }
                _ => self.problem(name, "an assertion of this kind"),
            }
        }
        let mut parts: Vec<String> = found
            .into_iter()
            .map(|(key, texts)| match texts.as_slice() {
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

    fn extractors(&mut self, name: &str, after: &[After], lines: &mut Vec<String>) {
        let mut found = Vec::new();
        for one in after {
            let After::Extract(extractor) = one else {
                self.problem(name, "a script or an action behind a request");
                continue;
            };
            match extract(extractor) {
                Some(parts) => found.push(format!("{{ {} }}", parts.join(", "))),
                None => self.problem(name, "an extractor of this kind"),
            }
        }
        match found.as_slice() {
            [] => {}
            [only] => lines.push(format!("extract = {only}")),
            all => lines.push(format!("extract = [{}]", all.join(", "))),
        }
    }

    fn data(&mut self, place: usize) -> String {
        let Some(data) = self.model.data.get(place) else { return String::new() };
        let mut out = format!("[[scenario.data]]\nfile = {}\n", quote(data.file.source().trim()));
        let names = data.names.source().trim();
        if !names.is_empty() {
            let names: Vec<String> = names.split(',').map(|name| quote(name.trim())).collect();
            writeln!(out, "names = [{}]", names.join(", ")).ok();
        }
        if !matches!(data.delimiter.source(), "" | ",") {
            writeln!(out, "delimiter = {}", quote(data.delimiter.source())).ok();
        }
        if data.is_quoted {
            out.push_str("quoted = true\n");
        }
        if data.skips_first && !names.is_empty() {
            out.push_str("skip_first = true\n");
        }
        let end = match (data.recycles, data.stops_thread) {
            (true, _) => "wrap",
            (false, true) => "stop",
            (false, false) => "eof",
        };
        writeln!(out, "at_end = \"{end}\"").ok();
        match &data.share {
            Share::All => {}
            Share::Thread => out.push_str("share = \"user\"\n"),
            Share::Group if self.model.groups.len() == 1 => {}
            Share::Group | Share::Named(_) => {
                let file = data.file.source().to_owned();
                self.problem(&file, "rows that a group of threads shares");
            }
        }
        out
    }
}

#[derive(Debug, Default)]
struct Payload {
    query: String,
    lines: Vec<String>,
    media_type: Option<&'static str>,
}

fn is_status(text: &str) -> bool {
    text.trim().len() == 3 && text.trim().bytes().all(|byte| byte.is_ascii_digit())
}

/// Returns the parts of an `extract`; nothing if TOML has no words for it.
fn extract(extractor: &Extractor) -> Option<Vec<String>> {
    let pair = |key: &str, value: &Template| format!("{key} = {}", quote(value.source()));
    let number = |template: &Template| -> Option<String> {
        let number = template.as_literal()?.trim().parse::<i64>().unwrap_or(0);
        (number >= 0).then(|| format!("match = {number}"))
    };
    let single = |template: &Template| !template.source().contains(';');
    Some(match extractor {
        Extractor::Regex {
            name,
            pattern,
            template,
            number: wanted,
            default,
            field,
            variable: None,
            ..
        } => {
            let key = match field {
                Field::Body => "regex",
                Field::Headers => "header",
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
                number(wanted)?,
                pair("default", default),
            ]
        }
        Extractor::Json { names, paths, numbers, defaults, joins: false, variable: None }
            if single(names) && single(paths) =>
        {
            vec![
                pair("name", names),
                pair("json", paths),
                number(numbers)?,
                pair("default", defaults),
            ]
        }
        Extractor::Boundary {
            name,
            left,
            right,
            number: wanted,
            default,
            field: Field::Body,
            ..
        } => vec![
            pair("name", name),
            format!("between = [{}, {}]", quote(left.source()), quote(right.source())),
            number(wanted)?,
            pair("default", default),
        ],
        _ => return None,
    })
}
