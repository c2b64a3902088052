//! Scenarios and their steps: requests, what is expected of answers, and what is read from them.

use super::super::extract::{Extractor, Field};
use super::super::http::{Argument, Embedded, FilePart, HttpSpec};
use super::super::json_path;
use super::super::judge::{Judge, Subject, Way};
use super::super::model::{Action, After, Event, Flow, Kind, NodeId};
use super::super::pattern;
use super::super::template::Template;
use super::table::{Table, Text};
use super::{Compiler, Defaults, Target, has_header, load};
use crate::net::Url;

/// Parts of a page that are fetched at a time, as browsers do.
const PARALLEL: usize = 6;
/// The ways to give a step's body.
const BODIES: [&str; 6] = ["form", "body", "json", "body_file", "body_size", "files"];
/// Each request that is under way holds its body.
const MOST_BODY: u64 = 1 << 30;

/// Returns a pause as the engine reads it.
pub(super) fn pause(table: &Table<'_, '_>, key: &str, text: &Text) -> Option<Template> {
    let pause = load::pause(&text.text);
    if pause.is_none() {
        let message = format!(
            "`{key}` is a time such as \"2s\", or a span of times such as \"1s..3s\", not \"{}\"",
            text.text
        );
        table.note(text.at, message);
    }
    pause
}

impl Compiler<'_> {
    /// Adds a scenario; returns its weight and its place.
    pub(super) fn scenario(&mut self, table: Table<'_, '_>) -> Option<(u64, NodeId)> {
        self.count("scenario");
        let number = self.inventory.elements.get("scenario").copied().unwrap_or(0);
        let name =
            table.text("name").map_or_else(|| format!("scenario {number}"), |name| name.text);
        let weight = table.count("weight", 1).unwrap_or(1);
        let mut defaults = self.defaults.clone();
        if let Some(think) = table.text("think") {
            defaults.think = pause(&table, "think", &think);
        }
        let own = self.headers(&table);
        put_headers(&mut defaults.headers, own);
        let steps = table.tables("step");
        if steps.is_empty() {
            table.note(
                table.at,
                format!("the scenario `{name}` has no step; write `[[scenario.step]]`"),
            );
        }
        let kind = Kind::Transaction { is_parent: false, with_timers: false, judges: Vec::new() };
        let node = self.node(kind, Template::literal(&name));
        self.labels.insert(name);
        for data in table.tables("data") {
            if let Some(place) = self.data(data) {
                self.add_event(node, Event::Data(place));
            }
        }
        for step in steps {
            self.step(node, step, &defaults);
        }
        table.close();
        Some((weight, node))
    }

    fn step(&mut self, scenario: NodeId, table: Table<'_, '_>, defaults: &Defaults) {
        self.count("step");
        let method = table.text("method");
        let body = has_body(&table);
        let method = method.map_or_else(
            || if body { "POST" } else { "GET" }.to_owned(),
            |method| {
                let is_word = !method.text.is_empty()
                    && method.text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
                if !is_word {
                    table.note(method.at, format!("`{}` is no method", method.text));
                }
                method.text.to_ascii_uppercase()
            },
        );
        let mut spec = self.place(&table);
        spec.method = Template::literal(&method);
        let own = self.headers(&table);
        spec.headers.clone_from(&defaults.headers);
        put_headers(&mut spec.headers, own);
        self.payload(&table, &method, &mut spec);
        spec.keep_alive = true;
        spec.cookies = defaults.cookies;
        spec.cache = defaults.cache;
        spec.follows = table.flag("redirects").unwrap_or(defaults.redirects);
        let parts = table.flag("parts").unwrap_or(defaults.parts);
        spec.embedded = parts.then_some(Embedded { parallel: PARALLEL, only: None, except: None });
        let timeout = table.duration("timeout");
        let timeout = timeout.map(|timeout| Template::literal(&timeout.as_millis().to_string()));
        spec.connect_timeout = timeout.unwrap_or_else(|| defaults.timeout.clone());
        spec.response_timeout = spec.connect_timeout.clone();
        let name = match table.text("name") {
            Some(name) => name.text,
            None => format!("{method} {}{}", spec.path.source(), query_hint(&spec)),
        };
        self.labels.insert(name.clone());
        let node = self.sampler(Template::literal(&name), Action::Http(Box::new(spec)));
        let judges =
            table.table("expect").map(|expect| self.expectations(expect)).unwrap_or_default();
        let (after, found) = self.extractors(&table);
        if let Some(Kind::Sampler(sampler)) =
            self.model.nodes.get_mut(node).map(|node| &mut node.kind)
        {
            sampler.judges = judges;
            sampler.judges.extend(found);
            sampler.after = after;
        }
        let place = match table.flag("once") {
            Some(true) => {
                let once = self.node(Kind::Once, Template::literal(&name));
                self.adopt(scenario, once);
                once
            }
            _ => scenario,
        };
        self.adopt(place, node);
        let think = match table.text("think") {
            Some(text) => pause(&table, "think", &text),
            None => defaults.think.clone(),
        };
        if let Some(think) = think {
            let node = self.sampler(Template::literal("think"), Action::Flow(Flow::Pause(think)));
            self.adopt(place, node);
        }
        table.close();
    }

    /// Returns where a step goes.
    fn place(&mut self, table: &Table<'_, '_>) -> HttpSpec {
        let (path, url, target) = (table.text("path"), table.text("url"), table.text("target"));
        if let Some(url) = url {
            if path.is_some() || target.is_some() {
                table.note(url.at, "`url` is the whole address: write it, or `target` and `path`");
            }
            return self.whole_url(table, &url);
        }
        let Some(path) = path else {
            table.note(table.at, "the step has neither `path` nor `url`");
            return HttpSpec::default();
        };
        let name = target.as_ref().map_or("", |target| target.text.as_str());
        let found = self.targets.get(name).cloned();
        let target = found.unwrap_or_else(|| {
            let at = target.as_ref().map_or(path.at, |target| target.at);
            let known: Vec<&str> =
                self.targets.keys().map(String::as_str).filter(|one| !one.is_empty()).collect();
            let message = if name.is_empty() {
                "the plan has no `target` that this path could belong to".to_owned()
            } else {
                format!("no target is called `{name}`; known are: {}", known.join(", "))
            };
            table.note(at, message);
            Target::default()
        });
        let template = self.noted(table, &path);
        self.check_path(table, &path, &template);
        let path = Template::parse(&format!("{}{}", target.prefix, path.text)).unwrap_or(template);
        HttpSpec { path, ..target.spec() }
    }

    fn check_path(&self, table: &Table<'_, '_>, path: &Text, template: &Template) {
        if !path.text.starts_with('/') && !path.text.starts_with("${") {
            table.note(path.at, format!("the path \"{}\" does not begin with `/`", path.text));
        }
        let shape = template.with_stand_in("x");
        if shape.chars().any(|c| c.is_whitespace() || c.is_control() || "\"<>\\^`{|}#".contains(c))
        {
            let message = format!(
                "the path \"{}\" holds what no URL may hold; write it with %, or as `query`, which is encoded",
                path.text
            );
            table.note(path.at, message);
        }
    }

    fn whole_url(&mut self, table: &Table<'_, '_>, url: &Text) -> HttpSpec {
        let template = self.noted(table, url);
        if template.as_literal().is_none() {
            if table.has("query") {
                table.note(
                    url.at,
                    "`query` cannot be added to a `url` with variables; write `target` and `path`",
                );
            }
            return HttpSpec { path: template, is_own: true, ..HttpSpec::default() };
        }
        match Url::parse(&url.text) {
            Ok(parsed) => {
                let path = Template::literal(&parsed.target);
                HttpSpec { path, ..Target::of(&parsed).spec() }
            }
            Err(error) => {
                table.note(url.at, error.to_string());
                HttpSpec::default()
            }
        }
    }

    fn payload(&mut self, table: &Table<'_, '_>, method: &str, spec: &mut HttpSpec) {
        for (name, value) in table.pairs("query") {
            if method == "GET" || method == "HEAD" || method == "DELETE" || method == "OPTIONS" {
                spec.arguments.push(self.argument(table, &name, &value));
            } else {
                table.note(
                    name.at,
                    format!("`query` of a {method} stands in the path: \"/path?name=value\""),
                );
            }
        }
        for (name, value) in table.pairs("form") {
            spec.arguments.push(self.argument(table, &name, &value));
        }
        spec.is_multipart = table.flag("multipart").unwrap_or(false);
        for file in table.tables("files") {
            let path = self.file(&file, "path");
            let media_type = file.template("type");
            let name = file.text("name").map_or_else(|| "file".to_owned(), |name| name.text);
            spec.files.push(FilePart { path, name: Template::literal(&name), media_type });
            spec.is_multipart = true;
            file.close();
        }
        for (key, media_type) in [("body", None), ("json", Some("application/json"))] {
            let Some(text) = table.text(key) else { continue };
            spec.is_raw = true;
            let value = self.noted(table, &text);
            let nothing = Template::default();
            spec.arguments.push(Argument {
                name: nothing,
                value,
                encodes: false,
                separator: String::new(),
            });
            if let Some(media_type) = media_type
                && !has_header(&spec.headers, "Content-Type")
            {
                spec.headers
                    .push((Template::literal("Content-Type"), Template::literal(media_type)));
            }
        }
        if table.has("body_file") {
            let path = self.file(table, "body_file");
            let media_type = table.template("body_type");
            spec.files.push(FilePart { path, name: Template::default(), media_type });
        }
        if let Some(size) = table.size("body_size", MOST_BODY) {
            let size = usize::try_from(size).unwrap_or_default();
            spec.is_raw = true;
            spec.arguments.push(Argument {
                name: Template::default(),
                value: Template::literal(&"x".repeat(size)),
                encodes: false,
                separator: String::new(),
            });
        }
        let given: Vec<&str> = BODIES.into_iter().filter(|key| table.has(key)).collect();
        if given.len() > 1 && given != ["form", "files"] {
            let message = format!(
                "a step has one body, not {}; `form` and `files` may go together",
                given.join(" and ")
            );
            table.note(table.at(given.first().map_or("body", |key| key)), message);
        }
        if !given.is_empty() && matches!(method, "GET" | "HEAD") {
            table.note(table.at, format!("a {method} carries no body; name a `method`"));
        }
    }

    fn argument(&mut self, table: &Table<'_, '_>, name: &Text, value: &Text) -> Argument {
        Argument {
            name: self.noted(table, name),
            value: self.noted(table, value),
            encodes: true,
            separator: "=".to_owned(),
        }
    }

    /// Returns the name of a file that is sent, which must be there unless it has variables.
    fn file(&mut self, table: &Table<'_, '_>, key: &'static str) -> Template {
        let Some(text) = table.text(key) else {
            table.note(table.at, format!("{} has no `{key}`", table.name));
            return Template::default();
        };
        let template = self.noted(table, &text);
        if template.as_literal().is_some() {
            match self.files.locate(&text.text) {
                Ok(path) if path.is_file() => {}
                Ok(path) => table.note(text.at, format!("there is no file `{}`", path.display())),
                Err(fault) => table.note(text.at, fault),
            }
        }
        template
    }

    fn expectations(&mut self, table: Table<'_, '_>) -> Vec<Judge> {
        let mut judges = Vec::new();
        let statuses = table.texts("status");
        for status in &statuses {
            if !status.text.parse::<u16>().is_ok_and(|status| (100..600).contains(&status)) {
                table.note(status.at, format!("`{}` is no status", status.text));
            }
        }
        if !statuses.is_empty() {
            let texts = statuses.iter().map(|status| Template::literal(&status.text)).collect();
            judges.push(response(Subject::Code, (Way::Equals, false), texts));
        }
        for (key, way, is_not) in [
            ("text", Way::Substring, false),
            ("not_text", Way::Substring, true),
            ("regex", Way::Contains, false),
            ("not_regex", Way::Contains, true),
        ] {
            for text in table.texts(key) {
                let template = self.noted(&table, &text);
                if way == Way::Contains {
                    check_pattern(&table, &text, &template);
                }
                judges.push(response(Subject::Body, (way, is_not), vec![template]));
            }
        }
        for (name, value) in table.pairs("header") {
            let pattern =
                format!("(?im)^{}:.*{}", regex::escape(&name.text), regex::escape(&value.text));
            judges.push(response(
                Subject::Headers,
                (Way::Contains, false),
                vec![Template::literal(&pattern)],
            ));
        }
        for (path, value) in table.pairs("json") {
            let expected = self.noted(&table, &value);
            judges.push(json(&table, &path, Some(expected)));
        }
        if let Some(most) = table.duration("under") {
            judges.push(Judge::Duration(Template::literal(&most.as_millis().max(1).to_string())));
        }
        table.close();
        judges
    }

    /// Returns what reads from the answer, and what fails the step when there is nothing to read.
    fn extractors(&mut self, step: &Table<'_, '_>) -> (Vec<After>, Vec<Judge>) {
        let (mut after, mut judges) = (Vec::new(), Vec::new());
        for table in step.tables("extract") {
            let Some(name) = table.text("name") else {
                table.note(table.at, "`extract` has no `name` for what it finds");
                continue;
            };
            self.known.insert(name.text.clone());
            let default = table.text("default").map(|default| self.noted(&table, &default));
            let number = table.count("match", 0).unwrap_or(1).to_string();
            let ways = (
                table.text("regex"),
                table.text("header"),
                table.text("json"),
                table.texts("between"),
            );
            let found = Found {
                name: Template::literal(&name.text),
                number: Template::literal(&number),
                default: default.clone().unwrap_or_default(),
            };
            let (extractor, judge) = match ways {
                (Some(text), None, None, between) if between.is_empty() => {
                    self.by_regex(&table, &text, found, (Field::Body, Subject::Body))
                }
                (None, Some(text), None, between) if between.is_empty() => {
                    self.by_regex(&table, &text, found, (Field::Headers, Subject::Headers))
                }
                (None, None, Some(text), between) if between.is_empty() => {
                    let judge = json(&table, &text, None);
                    (found.by_json(&text), judge)
                }
                (None, None, None, between) if between.len() == 2 => {
                    self.by_boundary(&table, &between, found)
                }
                _ => {
                    table.note(table.at, "`extract` needs one of `regex`, `header` (a regular expression over the headers), `json`, or `between` (two texts)");
                    continue;
                }
            };
            after.push(After::Extract(Box::new(extractor)));
            if default.is_none() {
                judges.push(judge);
            }
            table.close();
        }
        (after, judges)
    }

    fn by_regex(
        &mut self,
        table: &Table<'_, '_>,
        text: &Text,
        found: Found,
        (field, subject): (Field, Subject),
    ) -> (Extractor, Judge) {
        let pattern = self.noted(table, text);
        check_pattern(table, text, &pattern);
        let group = table.count("group", 0);
        let has_group = text.text.contains('(');
        let group = group.unwrap_or(u64::from(has_group));
        let extractor = Extractor::Regex {
            name: found.name,
            pattern: pattern.clone(),
            template: Template::literal(&format!("${group}$")),
            number: found.number,
            default: found.default,
            clears: false,
            field,
            variable: None,
        };
        (extractor, response(subject, (Way::Contains, false), vec![pattern]))
    }

    fn by_boundary(
        &mut self,
        table: &Table<'_, '_>,
        between: &[Text],
        found: Found,
    ) -> (Extractor, Judge) {
        let mut text = |place: usize| {
            between.get(place).map_or_else(Template::default, |text| self.noted(table, text))
        };
        let (left, right) = (text(0), text(1));
        let judge = response(Subject::Body, (Way::Substring, false), vec![left.clone()]);
        let extractor = Extractor::Boundary {
            name: found.name,
            left,
            right,
            number: found.number,
            default: found.default,
            clears: false,
            field: Field::Body,
        };
        (extractor, judge)
    }
}

/// What every way of extracting has.
struct Found {
    name: Template,
    number: Template,
    default: Template,
}

impl Found {
    fn by_json(self, path: &Text) -> Extractor {
        Extractor::Json {
            names: self.name,
            paths: Template::literal(&path.text),
            numbers: self.number,
            defaults: self.default,
            joins: false,
            variable: None,
        }
    }
}

fn has_body(table: &Table<'_, '_>) -> bool {
    BODIES.into_iter().any(|key| table.has(key))
}

fn query_hint(spec: &HttpSpec) -> &'static str {
    let is_get = matches!(spec.method.source(), "GET" | "HEAD");
    if is_get && !spec.arguments.is_empty() { "?..." } else { "" }
}

fn put_headers(headers: &mut Vec<(Template, Template)>, own: Vec<(Template, Template)>) {
    headers.retain(|(name, _)| !has_header(&own, name.source()));
    headers.extend(own);
}

fn response(subject: Subject, (way, is_not): (Way, bool), texts: Vec<Template>) -> Judge {
    // A status that is expected is right, whatever it is.
    let assumes_success = matches!(subject, Subject::Code);
    let is_or = texts.len() > 1;
    Judge::Response {
        subject,
        way,
        is_not,
        is_or,
        texts,
        message: Template::default(),
        assumes_success,
    }
}

fn json(table: &Table<'_, '_>, path: &Text, expected: Option<Template>) -> Judge {
    if let Err(fault) = json_path::check(&path.text) {
        table.note(path.at, fault);
    }
    Judge::Json {
        path: Template::literal(&path.text),
        expected,
        is_regex: false,
        expects_null: false,
        inverts: false,
        by_text: true,
    }
}

fn check_pattern(table: &Table<'_, '_>, text: &Text, template: &Template) {
    if let Err(fault) = pattern::compile(&template.with_stand_in("x")) {
        table.note(text.at, fault);
    }
}
