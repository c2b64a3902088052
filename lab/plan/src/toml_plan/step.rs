//! Scenarios and their steps: requests, checks of responses, and extractions from them.

use super::super::assertion::{AssertionSubject, SampleAssertion, TextComparison};
use super::super::extractor::{ResponseExtractor, ResponseField};
use super::super::http_spec::{EmbeddedResourceSpec, FileUpload, HttpArgument, HttpSamplerSpec};
use super::super::json_path;
use super::super::model::{
    FlowControlAction, IterationEvent, PlanNodeKind, SamplePostProcessor, SamplerAction,
};
use super::super::plan_node_id::PlanNodeId;
use super::super::regex_pattern;
use super::super::template::TextTemplate;
use super::toml_table::{TomlTable, TomlText};
use super::{StepDefaults, StepTarget, TomlCompiler, has_header, load};
use crate::absolute_url::AbsoluteUrl;

/// Number of resources of a page that are fetched concurrently, as in browsers.
const RESOURCE_CONCURRENCY: usize = 6;
/// The keys that specify a step's body.
const BODY_KEYS: [&str; 6] = ["form", "body", "json", "body_file", "body_size", "files"];
/// Maximum size of a body in bytes; each request in progress holds its body.
const MAX_BODY_BYTES: u64 = 1 << 30;

/// Returns a pause as a template.
pub(super) fn read_pause(
    table: &TomlTable<'_, '_>,
    key: &str,
    text: &TomlText,
) -> Option<TextTemplate> {
    let pause = load::pause_template(&text.text);
    if pause.is_none() {
        let message = format!(
            "`{key}` must be a time such as \"2s\", or a range of times such as \"1s..3s\", not \"{}\"",
            text.text
        );
        table.add_finding(text.offset, message);
    }
    pause
}

impl TomlCompiler<'_> {
    /// Adds a scenario; returns its weight and its node.
    pub(super) fn add_scenario(&mut self, table: TomlTable<'_, '_>) -> Option<(u64, PlanNodeId)> {
        self.count_element("scenario");
        let number = self.inventory.elements.get("scenario").copied().unwrap_or(0);
        let name =
            table.text("name").map_or_else(|| format!("scenario {number}"), |name| name.text);
        let weight = table.count("weight", 1).unwrap_or(1);
        let mut defaults = self.defaults.clone();
        if let Some(think) = table.text("think") {
            defaults.think_time = read_pause(&table, "think", &think);
        }
        let own = self.compile_headers(&table);
        override_headers(&mut defaults.headers, own);
        let steps = table.tables("step");
        if steps.is_empty() {
            table.add_finding(
                table.offset,
                format!("the scenario `{name}` has no step; write `[[scenario.step]]`"),
            );
        }
        let kind = PlanNodeKind::Transaction {
            is_parent: false,
            includes_timers: false,
            assertions: Vec::new(),
        };
        let node = self.add_node(kind, TextTemplate::literal(&name));
        self.labels.insert(name);
        for data in table.tables("data") {
            if let Some(index) = self.add_data_set(data) {
                self.add_event(node, IterationEvent::DataSet(index));
            }
        }
        for step in steps {
            self.add_step(node, step, &defaults);
        }
        table.report_unknown_keys();
        Some((weight, node))
    }

    fn add_step(
        &mut self,
        scenario: PlanNodeId,
        table: TomlTable<'_, '_>,
        defaults: &StepDefaults,
    ) {
        self.count_element("step");
        let method = table.text("method");
        let body = has_body(&table);
        let method = method.map_or_else(
            || if body { "POST" } else { "GET" }.to_owned(),
            |method| {
                let is_word = !method.text.is_empty()
                    && method.text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
                if !is_word {
                    table.add_finding(
                        method.offset,
                        format!("`{}` is not an HTTP method", method.text),
                    );
                }
                method.text.to_ascii_uppercase()
            },
        );
        let mut spec = self.read_step_target(&table);
        spec.method = TextTemplate::literal(&method);
        let own = self.compile_headers(&table);
        spec.headers.clone_from(&defaults.headers);
        override_headers(&mut spec.headers, own);
        self.read_payload(&table, &method, &mut spec);
        spec.keep_alive = true;
        spec.cookie_manager = defaults.cookie_manager;
        spec.cache_manager = defaults.cache_manager;
        spec.follows_redirects = table.flag("redirects").unwrap_or(defaults.follows_redirects);
        let parts = table.flag("parts").unwrap_or(defaults.fetches_resources);
        spec.embedded_resources = parts.then_some(EmbeddedResourceSpec {
            concurrency: RESOURCE_CONCURRENCY,
            include_pattern: None,
            exclude_pattern: None,
        });
        let timeout = table.duration("timeout");
        let timeout =
            timeout.map(|timeout| TextTemplate::literal(&timeout.as_millis().to_string()));
        spec.connect_timeout = timeout.unwrap_or_else(|| defaults.timeout.clone());
        spec.response_timeout = spec.connect_timeout.clone();
        let name = match table.text("name") {
            Some(name) => name.text,
            None => format!("{method} {}{}", spec.path.source(), query_hint(&spec)),
        };
        self.labels.insert(name.clone());
        let node =
            self.add_sampler(TextTemplate::literal(&name), SamplerAction::Http(Box::new(spec)));
        let assertions = table
            .table("expect")
            .map(|expect| self.compile_expectations(expect))
            .unwrap_or_default();
        let (after, extra_assertions) = self.compile_extractors(&table);
        if let Some(PlanNodeKind::Sampler(sampler)) =
            self.model.nodes.get_mut(node).map(|node| &mut node.kind)
        {
            sampler.assertions = assertions;
            sampler.assertions.extend(extra_assertions);
            sampler.post_processors = after;
        }
        let parent = match table.flag("once") {
            Some(true) => {
                let once = self.add_node(PlanNodeKind::OnceOnly, TextTemplate::literal(&name));
                self.add_child(scenario, once);
                once
            }
            _ => scenario,
        };
        self.add_child(parent, node);
        let think = match table.text("think") {
            Some(text) => read_pause(&table, "think", &text),
            None => defaults.think_time.clone(),
        };
        if let Some(think) = think {
            let node = self.add_sampler(
                TextTemplate::literal("think"),
                SamplerAction::FlowControl(FlowControlAction::Pause(think)),
            );
            self.add_child(parent, node);
        }
        table.report_unknown_keys();
    }

    /// Returns the target of a step.
    fn read_step_target(&mut self, table: &TomlTable<'_, '_>) -> HttpSamplerSpec {
        let (path, url, target) = (table.text("path"), table.text("url"), table.text("target"));
        if let Some(url) = url {
            if path.is_some() || target.is_some() {
                table.add_finding(
                    url.offset,
                    "`url` is the complete URL: use either `url`, or `target` and `path`",
                );
            }
            return self.parse_whole_url(table, &url);
        }
        let Some(path) = path else {
            table.add_finding(table.offset, "the step has neither `path` nor `url`");
            return HttpSamplerSpec::default();
        };
        let name = target.as_ref().map_or("", |target| target.text.as_str());
        let configured_target = self.targets.get(name).cloned();
        let target = configured_target.unwrap_or_else(|| {
            let at = target.as_ref().map_or(path.offset, |target| target.offset);
            let target_names: Vec<&str> = self
                .targets
                .keys()
                .map(String::as_str)
                .filter(|target_name| !target_name.is_empty())
                .collect();
            let message = if name.is_empty() {
                "the plan has no `target` for this path".to_owned()
            } else {
                format!("unknown target `{name}`; known are: {}", target_names.join(", "))
            };
            table.add_finding(at, message);
            StepTarget::default()
        });
        let template = self.compile_template(table, &path);
        self.check_path(table, &path, &template);
        let path = TextTemplate::parse(&format!("{}{}", target.path_prefix, path.text))
            .unwrap_or(template);
        HttpSamplerSpec { path, ..target.to_http_spec() }
    }

    fn check_path(&self, table: &TomlTable<'_, '_>, path: &TomlText, template: &TextTemplate) {
        if !path.text.starts_with('/') && !path.text.starts_with("${") {
            table.add_finding(
                path.offset,
                format!("the path \"{}\" does not begin with `/`", path.text),
            );
        }
        let shape = template.with_placeholder("x");
        if shape.chars().any(|c| c.is_whitespace() || c.is_control() || "\"<>\\^`{|}#".contains(c))
        {
            let message = format!(
                "the path \"{}\" contains characters that are not allowed in a URL; percent-encode them, or \
                 use `query`, which is encoded",
                path.text
            );
            table.add_finding(path.offset, message);
        }
    }

    fn parse_whole_url(&mut self, table: &TomlTable<'_, '_>, url: &TomlText) -> HttpSamplerSpec {
        let template = self.compile_template(table, url);
        if template.as_literal().is_none() {
            if table.has_key("query") {
                table.add_finding(
                    url.offset,
                    "`query` cannot be added to a `url` with variables; write `target` and `path`",
                );
            }
            return HttpSamplerSpec {
                path: template,
                is_toml_plan: true,
                ..HttpSamplerSpec::default()
            };
        }
        match AbsoluteUrl::parse(&url.text) {
            Ok(parsed) => {
                let path = TextTemplate::literal(&parsed.path_and_query);
                HttpSamplerSpec { path, ..StepTarget::from_url(&parsed).to_http_spec() }
            }
            Err(error) => {
                table.add_finding(url.offset, error.to_string());
                HttpSamplerSpec::default()
            }
        }
    }

    fn read_payload(
        &mut self,
        table: &TomlTable<'_, '_>,
        method: &str,
        spec: &mut HttpSamplerSpec,
    ) {
        for (name, value) in table.pairs("query") {
            if method == "GET" || method == "HEAD" || method == "DELETE" || method == "OPTIONS" {
                spec.arguments.push(self.compile_argument(table, &name, &value));
            } else {
                table.add_finding(
                    name.offset,
                    format!("the `query` of a {method} belongs in the path: \"/path?name=value\""),
                );
            }
        }
        for (name, value) in table.pairs("form") {
            spec.arguments.push(self.compile_argument(table, &name, &value));
        }
        spec.is_multipart = table.flag("multipart").unwrap_or(false);
        for file in table.tables("files") {
            let path = self.read_upload_path(&file, "path");
            let media_type = file.template("type");
            let name = file.text("name").map_or_else(|| "file".to_owned(), |name| name.text);
            spec.file_uploads.push(FileUpload {
                path,
                name: TextTemplate::literal(&name),
                media_type,
            });
            spec.is_multipart = true;
            file.report_unknown_keys();
        }
        for (key, media_type) in [("body", None), ("json", Some("application/json"))] {
            let Some(text) = table.text(key) else { continue };
            spec.is_raw_body = true;
            let value = self.compile_template(table, &text);
            let nothing = TextTemplate::default();
            spec.arguments.push(HttpArgument {
                name: nothing,
                value,
                needs_encoding: false,
                separator: String::new(),
            });
            if let Some(media_type) = media_type
                && !has_header(&spec.headers, "Content-Type")
            {
                spec.headers.push((
                    TextTemplate::literal("Content-Type"),
                    TextTemplate::literal(media_type),
                ));
            }
        }
        if table.has_key("body_file") {
            let path = self.read_upload_path(table, "body_file");
            let media_type = table.template("body_type");
            spec.file_uploads.push(FileUpload { path, name: TextTemplate::default(), media_type });
        }
        if let Some(size) = table.size("body_size", MAX_BODY_BYTES) {
            let size = usize::try_from(size).unwrap_or_default();
            spec.is_raw_body = true;
            spec.arguments.push(HttpArgument {
                name: TextTemplate::default(),
                value: TextTemplate::literal(&"x".repeat(size)),
                needs_encoding: false,
                separator: String::new(),
            });
        }
        let present_keys: Vec<&str> =
            BODY_KEYS.into_iter().filter(|key| table.has_key(key)).collect();
        if present_keys.len() > 1 && present_keys != ["form", "files"] {
            let message = format!(
                "a step has one body, not {}; `form` and `files` can be combined",
                present_keys.join(" and ")
            );
            table.add_finding(
                table.offset_of(present_keys.first().map_or("body", |key| key)),
                message,
            );
        }
        if !present_keys.is_empty() && matches!(method, "GET" | "HEAD") {
            table.add_finding(table.offset, format!("a {method} has no body; set `method`"));
        }
    }

    fn compile_argument(
        &mut self,
        table: &TomlTable<'_, '_>,
        name: &TomlText,
        value: &TomlText,
    ) -> HttpArgument {
        HttpArgument {
            name: self.compile_template(table, name),
            value: self.compile_template(table, value),
            needs_encoding: true,
            separator: "=".to_owned(),
        }
    }

    /// Returns the name of an upload file, which must exist unless the name has variables.
    fn read_upload_path(&mut self, table: &TomlTable<'_, '_>, key: &'static str) -> TextTemplate {
        let Some(text) = table.text(key) else {
            table.add_finding(table.offset, format!("{} has no `{key}`", table.name));
            return TextTemplate::default();
        };
        let template = self.compile_template(table, &text);
        if template.as_literal().is_some() {
            match self.files.locate(&text.text) {
                Ok(path) if path.is_file() => {}
                Ok(path) => {
                    table.add_finding(text.offset, format!("there is no file `{}`", path.display()))
                }
                Err(fault) => table.add_finding(text.offset, fault),
            }
        }
        template
    }

    fn compile_expectations(&mut self, table: TomlTable<'_, '_>) -> Vec<SampleAssertion> {
        let mut assertions = Vec::new();
        let statuses = table.texts("status");
        for status in &statuses {
            if !status.text.parse::<u16>().is_ok_and(|status| (100..600).contains(&status)) {
                table.add_finding(status.offset, format!("`{}` is not a status code", status.text));
            }
        }
        if !statuses.is_empty() {
            let texts = statuses.iter().map(|status| TextTemplate::literal(&status.text)).collect();
            assertions.push(response_assertion(
                AssertionSubject::Code,
                TextComparison::Equals,
                false,
                texts,
            ));
        }
        for (key, comparison, is_not) in [
            ("text", TextComparison::Substring, false),
            ("not_text", TextComparison::Substring, true),
            ("regex", TextComparison::Contains, false),
            ("not_regex", TextComparison::Contains, true),
        ] {
            for text in table.texts(key) {
                let template = self.compile_template(&table, &text);
                if comparison == TextComparison::Contains {
                    check_pattern(&table, &text, &template);
                }
                assertions.push(response_assertion(
                    AssertionSubject::Body,
                    comparison,
                    is_not,
                    vec![template],
                ));
            }
        }
        for (name, value) in table.pairs("header") {
            let pattern =
                format!("(?im)^{}:.*{}", regex::escape(&name.text), regex::escape(&value.text));
            assertions.push(response_assertion(
                AssertionSubject::Headers,
                TextComparison::Contains,
                false,
                vec![TextTemplate::literal(&pattern)],
            ));
        }
        for (path, value) in table.pairs("json") {
            let expected = self.compile_template(&table, &value);
            assertions.push(json_assertion(&table, &path, Some(expected)));
        }
        if let Some(most) = table.duration("under") {
            assertions.push(SampleAssertion::Duration(TextTemplate::literal(
                &most.as_millis().max(1).to_string(),
            )));
        }
        table.report_unknown_keys();
        assertions
    }

    /// Returns the extractors of a step, and the assertions that fail it if there is nothing to extract.
    fn compile_extractors(
        &mut self,
        step: &TomlTable<'_, '_>,
    ) -> (Vec<SamplePostProcessor>, Vec<SampleAssertion>) {
        let (mut after, mut assertions) = (Vec::new(), Vec::new());
        for table in step.tables("extract") {
            let Some(name) = table.text("name") else {
                table.add_finding(table.offset, "`extract` has no `name` for its result");
                continue;
            };
            self.known_variables.insert(name.text.clone());
            let default =
                table.text("default").map(|default| self.compile_template(&table, &default));
            let number = table.count("match", 0).unwrap_or(1).to_string();
            let sources = (
                table.text("regex"),
                table.text("header"),
                table.text("json"),
                table.texts("between"),
            );
            let options = ExtractionOptions {
                name: TextTemplate::literal(&name.text),
                match_number: TextTemplate::literal(&number),
                default: default.clone().unwrap_or_default(),
            };
            let (extractor, assertion) = match sources {
                (Some(text), None, None, between) if between.is_empty() => self.regex_extractor(
                    &table,
                    &text,
                    options,
                    ResponseField::Body,
                    AssertionSubject::Body,
                ),
                (None, Some(text), None, between) if between.is_empty() => self.regex_extractor(
                    &table,
                    &text,
                    options,
                    ResponseField::Headers,
                    AssertionSubject::Headers,
                ),
                (None, None, Some(text), between) if between.is_empty() => {
                    let assertion = json_assertion(&table, &text, None);
                    (options.into_json_extractor(&text), assertion)
                }
                (None, None, None, between) if between.len() == 2 => {
                    self.boundary_extractor(&table, &between, options)
                }
                _ => {
                    table.add_finding(
                        table.offset,
                        "`extract` needs one of `regex`, `header` (a regular \
                        expression over the headers), `json`, or `between` (two strings)",
                    );
                    continue;
                }
            };
            after.push(SamplePostProcessor::Extractor(Box::new(extractor)));
            if default.is_none() {
                assertions.push(assertion);
            }
            table.report_unknown_keys();
        }
        (after, assertions)
    }

    fn regex_extractor(
        &mut self,
        table: &TomlTable<'_, '_>,
        text: &TomlText,
        options: ExtractionOptions,
        field: ResponseField,
        subject: AssertionSubject,
    ) -> (ResponseExtractor, SampleAssertion) {
        let pattern = self.compile_template(table, text);
        check_pattern(table, text, &pattern);
        let group = table.count("group", 0);
        let has_group = text.text.contains('(');
        let group = group.unwrap_or(u64::from(has_group));
        let extractor = ResponseExtractor::Regex {
            name: options.name,
            pattern: pattern.clone(),
            template: TextTemplate::literal(&format!("${group}$")),
            match_number: options.match_number,
            default: options.default,
            clears_on_missing: false,
            response_field: field,
            variable: None,
        };
        (extractor, response_assertion(subject, TextComparison::Contains, false, vec![pattern]))
    }

    fn boundary_extractor(
        &mut self,
        table: &TomlTable<'_, '_>,
        between: &[TomlText],
        options: ExtractionOptions,
    ) -> (ResponseExtractor, SampleAssertion) {
        let mut text = |index: usize| {
            between
                .get(index)
                .map_or_else(TextTemplate::default, |text| self.compile_template(table, text))
        };
        let (left, right) = (text(0), text(1));
        let assertion = response_assertion(
            AssertionSubject::Body,
            TextComparison::Substring,
            false,
            vec![left.clone()],
        );
        let extractor = ResponseExtractor::Boundary {
            name: options.name,
            left,
            right,
            match_number: options.match_number,
            default: options.default,
            clears_on_missing: false,
            response_field: ResponseField::Body,
        };
        (extractor, assertion)
    }
}

/// Options common to all extractions.
struct ExtractionOptions {
    name: TextTemplate,
    match_number: TextTemplate,
    default: TextTemplate,
}

impl ExtractionOptions {
    fn into_json_extractor(self, path: &TomlText) -> ResponseExtractor {
        ResponseExtractor::Json {
            names: self.name,
            paths: TextTemplate::literal(&path.text),
            match_numbers: self.match_number,
            defaults: self.default,
            joins_all: false,
            variable: None,
        }
    }
}

fn has_body(table: &TomlTable<'_, '_>) -> bool {
    BODY_KEYS.into_iter().any(|key| table.has_key(key))
}

fn query_hint(spec: &HttpSamplerSpec) -> &'static str {
    let is_get = matches!(spec.method.source(), "GET" | "HEAD");
    if is_get && !spec.arguments.is_empty() { "?..." } else { "" }
}

fn override_headers(
    headers: &mut Vec<(TextTemplate, TextTemplate)>,
    own: Vec<(TextTemplate, TextTemplate)>,
) {
    headers.retain(|(name, _)| !has_header(&own, name.source()));
    headers.extend(own);
}

fn response_assertion(
    subject: AssertionSubject,
    comparison: TextComparison,
    is_not: bool,
    texts: Vec<TextTemplate>,
) -> SampleAssertion {
    // An expected status is a success, whatever its value.
    let assumes_success = matches!(subject, AssertionSubject::Code);
    let is_or = texts.len() > 1;
    SampleAssertion::Response {
        subject,
        comparison,
        is_negated: is_not,
        matches_any: is_or,
        patterns: texts,
        message: TextTemplate::default(),
        assumes_success,
    }
}

fn json_assertion(
    table: &TomlTable<'_, '_>,
    path: &TomlText,
    expected: Option<TextTemplate>,
) -> SampleAssertion {
    if let Err(fault) = json_path::check_path(&path.text) {
        table.add_finding(path.offset, fault);
    }
    SampleAssertion::Json {
        path: TextTemplate::literal(&path.text),
        expected,
        is_regex: false,
        expects_null: false,
        inverts: false,
        compares_text: true,
    }
}

fn check_pattern(table: &TomlTable<'_, '_>, text: &TomlText, template: &TextTemplate) {
    if let Err(fault) = regex_pattern::compile_pattern(&template.with_placeholder("x")) {
        table.add_finding(text.offset, fault);
    }
}
