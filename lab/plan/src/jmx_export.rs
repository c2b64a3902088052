//! Exports a plan in TOML to a `.jmx` file that JMeter runs.
//!
//! Visitors of the open model become an Open Model Thread Group (JMeter 5.5), users that begin and end in stages an
//! Ultimate Thread Group (a plugin). The order of weighted scenarios is in a data file beside the plan, from which a
//! switch controller reads its turns: over all threads the shares are exactly those of the plan.
//!
//! Not here: JMeter plans, which are `.jmx` files already.

use std::fmt::Write as _;
use std::time::Duration;

use tympan_notation::escape_xml;

use super::assertion::{AssertionSubject, SampleAssertion, TextComparison};
use super::data_set::{DataSet, RowSharing};
use super::extractor::{ResponseExtractor, ResponseField};
use super::http_spec::HttpSamplerSpec;
use super::model::ThreadLifetime;
use super::model::{
    FlowControlAction, IterationEvent, LoadShape, OpenModelArrivals, PlanModel, PlanNodeKind,
    PlanSampler, SampleErrorAction, SamplePostProcessor, SamplerAction, SamplerTimer, ThreadGroup,
};
use super::plan_node_id::PlanNodeId;
use crate::arrival_schedule::ArrivalProcess;

/// A plan exported for JMeter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JmxExport {
    /// The `.jmx` file.
    pub jmx: String,
    /// The rows of the file with the order of weighted scenarios, if the plan has any.
    pub scenario_order: Option<String>,
    /// Requirements of the plan and differences in JMeter.
    pub remarks: Vec<String>,
}

/// Exports a plan; `order_file` is the name of the file with the order of scenarios.
///
/// # Errors
/// Everything that JMeter has no element for.
pub(super) fn to_jmx(model: &PlanModel, order_file: &str) -> Result<JmxExport, Vec<String>> {
    let mut writer = JmxWriter {
        model,
        order_file,
        output: String::new(),
        scenario_order: None,
        remarks: Vec::new(),
        problems: Vec::new(),
    };
    writer.write_plan();
    if !writer.problems.is_empty() {
        return Err(writer.problems);
    }
    Ok(JmxExport {
        jmx: writer.output,
        scenario_order: writer.scenario_order,
        remarks: writer.remarks,
    })
}

struct JmxWriter<'m> {
    model: &'m PlanModel,
    order_file: &'m str,
    output: String,
    scenario_order: Option<String>,
    remarks: Vec<String>,
    problems: Vec<String>,
}

fn property_xml(kind: &str, name: &str, value: &str) -> String {
    format!("<{kind}Prop name=\"{}\">{}</{kind}Prop>", escape_xml(name), escape_xml(value))
}

fn string_property(name: &str, value: &str) -> String {
    property_xml("string", name, value)
}

fn bool_property(name: &str, value: bool) -> String {
    property_xml("bool", name, if value { "true" } else { "false" })
}

/// Returns the XML of user-defined variables or parameters.
fn arguments_xml(pairs: &[(String, String)]) -> String {
    let mut out = "<collectionProp name=\"Arguments.arguments\">".to_owned();
    for (name, value) in pairs {
        write!(
            out,
            "<elementProp name=\"{}\" elementType=\"Argument\">{}{}{}</elementProp>",
            escape_xml(name),
            string_property("Argument.name", name),
            string_property("Argument.value", value),
            string_property("Argument.metadata", "=")
        )
        .ok();
    }
    out + "</collectionProp>"
}

impl JmxWriter<'_> {
    fn add_problem(&mut self, problem: impl Into<String>) {
        self.problems.push(problem.into());
    }

    fn add_remark(&mut self, remark: &str) {
        if !self.remarks.iter().any(|existing| existing == remark) {
            self.remarks.push(remark.to_owned());
        }
    }

    /// Writes an element and its children.
    fn write_element(
        &mut self,
        class: &str,
        gui: &str,
        name: &str,
        inner: &str,
        below: impl FnOnce(&mut Self),
    ) {
        write!(
            self.output,
            "<{class} guiclass=\"{gui}\" testclass=\"{class}\" testname=\"{}\" enabled=\"true\">{inner}</{class}>\n<hashTree>\n",
            escape_xml(name)
        )
        .ok();
        below(self);
        self.output.push_str("</hashTree>\n");
    }

    fn write_plan(&mut self) {
        self.output.push_str(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<jmeterTestPlan version=\"1.2\" properties=\"5.0\" jmeter=\"5.6.3\">\n<hashTree>\n",
        );
        let pairs: Vec<(String, String)> = self
            .model
            .variables
            .iter()
            .map(|(name, value)| (name.source().to_owned(), value.source().to_owned()))
            .collect();
        let variables = format!(
            "<elementProp name=\"TestPlan.user_defined_variables\" elementType=\"Arguments\" guiclass=\"ArgumentsPanel\" \
             testclass=\"Arguments\">{}</elementProp>",
            arguments_xml(&pairs)
        );
        let name = self.model.name.clone();
        self.write_element("TestPlan", "TestPlanGui", &name, &variables, |writer| {
            writer.write_managers();
            for group in &writer.model.groups {
                writer.write_group(group);
            }
        });
        self.output.push_str("</hashTree>\n</jmeterTestPlan>\n");
    }

    /// Writes the cookie and cache managers, which all steps of a plan share.
    fn write_managers(&mut self) {
        if let Some(manager) = self.model.cookie_managers.first() {
            let inner = format!(
                "<collectionProp name=\"CookieManager.cookies\"/>{}{}",
                bool_property("CookieManager.clearEachIteration", manager.clears_each_iteration),
                bool_property("CookieManager.controlledByThreadGroup", false)
            );
            self.write_element("CookieManager", "CookiePanel", "cookies", &inner, |_| ());
        }
        if let Some(manager) = self.model.cache_managers.first() {
            let inner = format!(
                "{}{}{}",
                bool_property("clearEachIteration", manager.clears_each_iteration),
                bool_property("useExpires", manager.uses_expires),
                bool_property("CacheManager.controlledByThread", false)
            );
            self.write_element("CacheManager", "CacheManagerGui", "cache", &inner, |_| ());
        }
    }

    fn write_group(&mut self, group: &ThreadGroup) {
        let on_error = match group.on_error {
            SampleErrorAction::Continue => "continue",
            SampleErrorAction::NextLoop => "startnextloop",
            SampleErrorAction::StopThread => "stopthread",
            SampleErrorAction::StopTest => "stoptest",
        };
        let on_error = string_property("ThreadGroup.on_sample_error", on_error);
        let name = group.name.source().to_owned();
        match &group.load_shape {
            LoadShape::Arrivals(arrivals) => {
                let inner = format!(
                    "<elementProp name=\"ThreadGroup.main_controller\" elementType=\"OpenModelThreadGroupController\"/>\
                     {on_error}{}{}",
                    string_property("OpenModelThreadGroup.schedule", &schedule_text(arrivals)),
                    string_property("OpenModelThreadGroup.random_seed", "")
                );
                self.add_remark(
                    "Arrivals are exported as an Open Model Thread Group, which JMeter has since 5.5.",
                );
                self.write_element(
                    "OpenModelThreadGroup",
                    "OpenModelThreadGroupGui",
                    &name,
                    &inner,
                    |writer| {
                        writer.write_group_body(group);
                    },
                );
            }
            LoadShape::Lifetimes(spans) => {
                let loops = group.loops.source();
                let looping = format!(
                    "<elementProp name=\"ThreadGroup.main_controller\" elementType=\"LoopController\" guiclass=\"LoopControlPanel\" \
                     testclass=\"LoopController\">{}{}</elementProp>",
                    bool_property("LoopController.continue_forever", false),
                    string_property("LoopController.loops", loops)
                );
                match as_linear_ramp(spans) {
                    Some((threads, ramp, duration)) => {
                        let lasts_text =
                            duration.map(|seconds| seconds.to_string()).unwrap_or_default();
                        let inner = format!(
                            "{on_error}{looping}{}{}{}{}{}{}",
                            string_property("ThreadGroup.num_threads", &threads.to_string()),
                            string_property("ThreadGroup.ramp_time", &ramp.to_string()),
                            bool_property("ThreadGroup.scheduler", duration.is_some()),
                            string_property("ThreadGroup.duration", &lasts_text),
                            string_property("ThreadGroup.delay", ""),
                            bool_property("ThreadGroup.same_user_on_next_iteration", true)
                        );
                        self.write_element(
                            "ThreadGroup",
                            "ThreadGroupGui",
                            &name,
                            &inner,
                            |writer| writer.write_group_body(group),
                        );
                    }
                    None => self.write_staged_group(
                        &name,
                        group,
                        spans,
                        &format!("{looping}{on_error}"),
                    ),
                }
            }
            _ => self.add_problem(format!("`{name}`: this kind of load")),
        }
    }

    /// Writes users that begin and end in stages.
    fn write_staged_group(
        &mut self,
        name: &str,
        group: &ThreadGroup,
        spans: &[ThreadLifetime],
        more: &str,
    ) {
        let mut rows: Vec<(Duration, Duration, u64)> = Vec::new();
        for span in spans {
            let Some(lives) = span.lifetime else {
                return self.add_problem(format!("`{name}`: user stages without an end"));
            };
            match rows.last_mut() {
                Some((start, lifetime, count)) if *start == span.start && *lifetime == lives => {
                    *count += 1
                }
                _ => rows.push((span.start, lives, 1)),
            }
        }
        let mut data = "<collectionProp name=\"ultimatethreadgroupdata\">".to_owned();
        for (number, (start, lives, count)) in rows.iter().enumerate() {
            write!(data, "<collectionProp name=\"{number}\">").ok();
            let cells = [
                count.to_string(),
                format_seconds(*start),
                "0".to_owned(),
                format_seconds(*lives),
                "0".to_owned(),
            ];
            for (column, cell) in cells.iter().enumerate() {
                data.push_str(&string_property(&column.to_string(), cell));
            }
            data.push_str("</collectionProp>");
        }
        data.push_str("</collectionProp>");
        self.add_remark(
            "User stages are exported as an Ultimate Thread Group, a JMeter plugin (jpgc-casutg), \
            in whole seconds.",
        );
        let inner = format!("{data}{more}");
        let class = "kg.apc.jmeter.threads.UltimateThreadGroup";
        let gui = "kg.apc.jmeter.threads.UltimateThreadGroupGui";
        self.write_element(class, gui, name, &inner, |writer| writer.write_group_body(group));
    }

    fn write_group_body(&mut self, group: &ThreadGroup) {
        let Some(root) = self.model.nodes.get(group.root) else { return };
        self.write_events(&root.events);
        self.write_children(&root.children);
    }

    fn write_events(&mut self, events: &[IterationEvent]) {
        for event in events {
            match event {
                IterationEvent::DataSet(index) => {
                    if let Some(data) = self.model.data_sets.get(*index) {
                        self.write_data_set(data);
                    }
                }
                _ => self.add_problem("a counter or random variable"),
            }
        }
    }

    fn write_data_set(&mut self, data: &DataSet) {
        let share = match &data.sharing {
            RowSharing::All => "shareMode.all".to_owned(),
            RowSharing::Group => "shareMode.group".to_owned(),
            RowSharing::Thread => "shareMode.thread".to_owned(),
            RowSharing::Named(group_name) => group_name.clone(),
        };
        let inner = format!(
            "{}{}{}{}{}{}{}{}{}",
            string_property("filename", data.file_name.source()),
            string_property("fileEncoding", "UTF-8"),
            string_property("variableNames", data.column_names.source()),
            string_property("delimiter", data.delimiter.source()),
            bool_property("quotedData", data.is_quoted),
            bool_property("ignoreFirstLine", data.skips_header),
            bool_property("recycle", data.recycles),
            bool_property("stopThread", data.stops_thread),
            string_property("shareMode", &share)
        );
        self.write_element("CSVDataSet", "TestBeanGUI", "data", &inner, |_| ());
    }

    fn write_children(&mut self, children: &[PlanNodeId]) {
        for child in children {
            let Some(node) = self.model.nodes.get(*child) else { continue };
            let name = node.name.source();
            match &node.kind {
                PlanNodeKind::Simple => self.write_element(
                    "GenericController",
                    "LogicControllerGui",
                    name,
                    "",
                    |writer| {
                        writer.write_events(&node.events);
                        writer.write_children(&node.children);
                    },
                ),
                PlanNodeKind::Transaction { is_parent, includes_timers, .. } => {
                    let inner = format!(
                        "{}{}",
                        bool_property("TransactionController.includeTimers", *includes_timers),
                        bool_property("TransactionController.parent", *is_parent)
                    );
                    self.write_element(
                        "TransactionController",
                        "TransactionControllerGui",
                        name,
                        &inner,
                        |writer| {
                            writer.write_events(&node.events);
                            writer.write_children(&node.children);
                        },
                    );
                }
                PlanNodeKind::OnceOnly => {
                    let class = ("OnceOnlyController", "OnceOnlyControllerGui");
                    self.write_element(class.0, class.1, name, "", |writer| {
                        writer.write_children(&node.children);
                    });
                }
                PlanNodeKind::ScenarioMix { order, .. } => {
                    self.write_scenario_mix(order, &node.children)
                }
                PlanNodeKind::Sampler(sampler) => self.write_sampler(name, sampler),
                _ => self.add_problem(format!("`{name}`: this kind of controller")),
            }
        }
    }

    /// Writes weighted scenarios: each row of the order file names the next one.
    fn write_scenario_mix(&mut self, order: &[usize], children: &[PlanNodeId]) {
        if self.scenario_order.is_some() {
            return self.add_problem("several groups with weighted scenarios");
        }
        let rows: String = order.iter().map(|turn| format!("{turn}\n")).collect();
        self.scenario_order = Some(rows);
        let data = format!(
            "{}{}{}{}{}{}{}{}{}",
            string_property("filename", self.order_file),
            string_property("fileEncoding", "UTF-8"),
            string_property("variableNames", "tympan.turn"),
            string_property("delimiter", ","),
            bool_property("quotedData", false),
            bool_property("ignoreFirstLine", false),
            bool_property("recycle", true),
            bool_property("stopThread", false),
            string_property("shareMode", "shareMode.all")
        );
        self.write_element("CSVDataSet", "TestBeanGUI", "order of scenarios", &data, |_| ());
        let inner = string_property("SwitchController.value", "${tympan.turn}");
        self.write_element("SwitchController", "SwitchControllerGui", "mix", &inner, |writer| {
            writer.write_children(children);
        });
    }

    fn write_sampler(&mut self, name: &str, sampler: &PlanSampler) {
        match &sampler.action {
            SamplerAction::Http(spec) => {
                let inner = request_properties(spec);
                self.write_element(
                    "HTTPSamplerProxy",
                    "HttpTestSampleGui",
                    name,
                    &inner,
                    |writer| {
                        writer.write_headers(spec);
                        writer.write_timers(&sampler.timers);
                        writer.write_post_processors(&sampler.post_processors);
                        writer.write_assertions(&sampler.assertions);
                    },
                );
            }
            SamplerAction::FlowControl(flow) => {
                let (action, pause) = match flow {
                    FlowControlAction::Pause(pause) => ("1", pause.source()),
                    FlowControlAction::NoOp => ("1", "0"),
                    _ => return self.add_problem(format!("`{name}`: this kind of flow control")),
                };
                let inner = format!(
                    "{}{}{}",
                    property_xml("int", "ActionProcessor.action", action),
                    property_xml("int", "ActionProcessor.target", "0"),
                    string_property("ActionProcessor.duration", pause)
                );
                self.write_element("TestAction", "TestActionGui", name, &inner, |writer| {
                    writer.write_timers(&sampler.timers);
                });
            }
            _ => self.add_problem(format!("`{name}`: this kind of sampler")),
        }
    }

    fn write_headers(&mut self, spec: &HttpSamplerSpec) {
        if spec.headers.is_empty() {
            return;
        }
        let mut inner = "<collectionProp name=\"HeaderManager.headers\">".to_owned();
        for (name, value) in &spec.headers {
            write!(
                inner,
                "<elementProp name=\"\" elementType=\"Header\">{}{}</elementProp>",
                string_property("Header.name", name.source()),
                string_property("Header.value", value.source())
            )
            .ok();
        }
        inner.push_str("</collectionProp>");
        self.write_element("HeaderManager", "HeaderPanel", "headers", &inner, |_| ());
    }

    fn write_timers(&mut self, timers: &[SamplerTimer]) {
        for timer in timers {
            match timer {
                SamplerTimer::Constant(delay) => {
                    let inner = string_property("ConstantTimer.delay", delay.source());
                    self.write_element(
                        "ConstantTimer",
                        "ConstantTimerGui",
                        "pause",
                        &inner,
                        |_| (),
                    );
                }
                SamplerTimer::Throughput { per_minute, .. } => {
                    let inner = format!(
                        "{}<doubleProp><name>throughput</name><value>{}</value><savedValue>0.0</savedValue></doubleProp>",
                        property_xml("int", "calcMode", "0"),
                        escape_xml(per_minute.source())
                    );
                    self.write_element(
                        "ConstantThroughputTimer",
                        "TestBeanGUI",
                        "pace",
                        &inner,
                        |_| (),
                    );
                }
                _ => self.add_problem("this kind of timer"),
            }
        }
    }

    fn write_assertions(&mut self, assertions: &[SampleAssertion]) {
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
                    let field = match subject {
                        AssertionSubject::Body => "Assertion.response_data",
                        AssertionSubject::Code => "Assertion.response_code",
                        AssertionSubject::Headers => "Assertion.response_headers",
                        _ => return self.add_problem("this kind of assertion"),
                    };
                    let bits = match comparison {
                        TextComparison::Matches => 1,
                        TextComparison::Contains => 2,
                        TextComparison::Equals => 8,
                        TextComparison::Substring => 16,
                    } + u32::from(*is_negated) * 4
                        + u32::from(*matches_any) * 32;
                    let strings: String = patterns
                        .iter()
                        .enumerate()
                        .map(|(at, pattern)| string_property(&at.to_string(), pattern.source()))
                        .collect();
                    let inner = format!(
                        "<collectionProp name=\"Asserion.test_strings\">{strings}</collectionProp>{}{}{}{}",
                        string_property("Assertion.test_field", field),
                        bool_property("Assertion.assume_success", *assumes_success),
                        property_xml("int", "Assertion.test_type", &bits.to_string()),
                        string_property("Assertion.custom_message", "")
                    );
                    self.write_element(
                        "ResponseAssertion",
                        "AssertionGui",
                        "expect",
                        &inner,
                        |_| (),
                    );
                }
                SampleAssertion::Duration(most) => {
                    let inner = string_property("DurationAssertion.duration", most.source());
                    self.write_element(
                        "DurationAssertion",
                        "DurationAssertionGui",
                        "under",
                        &inner,
                        |_| (),
                    );
                }
                SampleAssertion::Json {
                    path, expected, is_regex, expects_null, inverts, ..
                } => {
                    let value =
                        expected.as_ref().map(|expected| expected.source()).unwrap_or_default();
                    let inner = format!(
                        "{}{}{}{}{}{}",
                        string_property("JSON_PATH", path.source()),
                        string_property("EXPECTED_VALUE", value),
                        bool_property("JSONVALIDATION", expected.is_some()),
                        bool_property("EXPECT_NULL", *expects_null),
                        bool_property("INVERT", *inverts),
                        bool_property("ISREGEX", *is_regex)
                    );
                    self.write_element(
                        "JSONPathAssertion",
                        "JSONPathAssertionGui",
                        "json",
                        &inner,
                        |_| (),
                    );
                }
                _ => self.add_problem("this kind of assertion"),
            }
        }
    }

    fn write_post_processors(&mut self, after: &[SamplePostProcessor]) {
        for processor in after {
            let SamplePostProcessor::Extractor(extractor) = processor else {
                self.add_problem("a script or an action after a request");
                continue;
            };
            match extractor.as_ref() {
                ResponseExtractor::Regex {
                    name,
                    pattern,
                    template,
                    match_number,
                    default,
                    response_field,
                    ..
                } => {
                    let inner = format!(
                        "{}{}{}{}{}{}",
                        string_property(
                            "RegexExtractor.useHeaders",
                            if *response_field == ResponseField::Headers {
                                "true"
                            } else {
                                "false"
                            }
                        ),
                        string_property("RegexExtractor.refname", name.source()),
                        string_property("RegexExtractor.regex", pattern.source()),
                        string_property("RegexExtractor.template", template.source()),
                        string_property("RegexExtractor.default", default.source()),
                        string_property("RegexExtractor.match_number", match_number.source())
                    );
                    self.write_element(
                        "RegexExtractor",
                        "RegexExtractorGui",
                        name.source(),
                        &inner,
                        |_| (),
                    );
                }
                ResponseExtractor::Json { names, paths, match_numbers, defaults, .. } => {
                    let inner = format!(
                        "{}{}{}{}",
                        string_property("JSONPostProcessor.referenceNames", names.source()),
                        string_property("JSONPostProcessor.jsonPathExprs", paths.source()),
                        string_property("JSONPostProcessor.match_numbers", match_numbers.source()),
                        string_property("JSONPostProcessor.defaultValues", defaults.source())
                    );
                    self.write_element(
                        "JSONPostProcessor",
                        "JSONPostProcessorGui",
                        names.source(),
                        &inner,
                        |_| (),
                    );
                }
                ResponseExtractor::Boundary {
                    name, left, right, match_number, default, ..
                } => {
                    let inner = format!(
                        "{}{}{}{}{}{}",
                        string_property("BoundaryExtractor.useHeaders", "false"),
                        string_property("BoundaryExtractor.refname", name.source()),
                        string_property("BoundaryExtractor.lboundary", left.source()),
                        string_property("BoundaryExtractor.rboundary", right.source()),
                        string_property("BoundaryExtractor.default", default.source()),
                        string_property("BoundaryExtractor.match_number", match_number.source())
                    );
                    self.write_element(
                        "BoundaryExtractor",
                        "BoundaryExtractorGui",
                        name.source(),
                        &inner,
                        |_| (),
                    );
                }
                _ => self.add_problem("this kind of extractor"),
            }
        }
    }
}

/// Returns the properties of a request.
fn request_properties(spec: &HttpSamplerSpec) -> String {
    let mut parameters = "<collectionProp name=\"Arguments.arguments\">".to_owned();
    for argument in &spec.arguments {
        write!(
            parameters,
            "<elementProp name=\"{}\" elementType=\"HTTPArgument\">{}{}{}{}{}</elementProp>",
            escape_xml(argument.name.source()),
            bool_property("HTTPArgument.always_encode", argument.needs_encoding),
            string_property("Argument.value", argument.value.source()),
            string_property("Argument.metadata", if spec.is_raw_body { "" } else { "=" }),
            bool_property("HTTPArgument.use_equals", !argument.separator.is_empty()),
            string_property("Argument.name", argument.name.source())
        )
        .ok();
    }
    parameters.push_str("</collectionProp>");
    let mut files = String::new();
    if !spec.file_uploads.is_empty() {
        files.push_str(
            "<elementProp name=\"HTTPsampler.Files\" elementType=\"HTTPFileArgs\"><collectionProp name=\"HTTPFileArgs.files\">",
        );
        for file in &spec.file_uploads {
            let path = file.path.source();
            write!(
                files,
                "<elementProp name=\"{}\" elementType=\"HTTPFileArg\">{}{}{}</elementProp>",
                escape_xml(path),
                string_property("File.path", path),
                string_property("File.paramname", file.name.source()),
                string_property("File.mimetype", file.media_type.source())
            )
            .ok();
        }
        files.push_str("</collectionProp></elementProp>");
    }
    let parts = spec.embedded_resources.as_ref().map_or_else(String::new, |parts| {
        format!(
            "{}{}{}",
            bool_property("HTTPSampler.image_parser", true),
            bool_property("HTTPSampler.concurrentDwn", true),
            string_property("HTTPSampler.concurrentPool", &parts.concurrency.to_string())
        )
    });
    format!(
        "{}<elementProp name=\"HTTPsampler.Arguments\" elementType=\"Arguments\">{parameters}</elementProp>{files}{}{}{}{}{}{}{}{}{}{}{}{parts}",
        bool_property("HTTPSampler.postBodyRaw", spec.is_raw_body),
        string_property("HTTPSampler.domain", spec.domain.source()),
        string_property("HTTPSampler.port", spec.port.source()),
        string_property("HTTPSampler.protocol", spec.protocol.source()),
        string_property("HTTPSampler.path", spec.path.source()),
        string_property("HTTPSampler.method", spec.method.source()),
        bool_property("HTTPSampler.follow_redirects", spec.follows_redirects),
        bool_property("HTTPSampler.auto_redirects", spec.follows_redirects_silently),
        bool_property("HTTPSampler.use_keepalive", spec.keep_alive),
        bool_property("HTTPSampler.DO_MULTIPART_POST", spec.is_multipart),
        string_property("HTTPSampler.connect_timeout", spec.connect_timeout.source()),
        string_property("HTTPSampler.response_timeout", spec.response_timeout.source())
    )
}

/// Formats seconds; integers without a decimal point.
fn format_seconds(time: Duration) -> String {
    time.as_secs_f64().round().to_string()
}

/// Returns threads, ramp and duration in seconds, if users begin at equal intervals and end together.
fn as_linear_ramp(spans: &[ThreadLifetime]) -> Option<(usize, u64, Option<u64>)> {
    let whole = |time: Duration| (time.subsec_millis() == 0).then_some(time.as_secs());
    let first = spans.first()?;
    if !first.start.is_zero() {
        return None;
    }
    let distance = spans.get(1).map_or(Duration::ZERO, |second| second.start);
    let is_even = spans.iter().enumerate().all(|(number, span)| {
        let due = distance * u32::try_from(number).unwrap_or(u32::MAX);
        span.start.abs_diff(due) < Duration::from_millis(1 + number as u64 / 100)
    });
    let end = |span: &ThreadLifetime| span.lifetime.map(|lives| span.start + lives);
    let ends_together = spans.iter().all(|span| match (end(span), end(first)) {
        (Some(span_end), Some(last_end)) => span_end.abs_diff(last_end) < Duration::from_millis(2),
        (span_end, last_end) => span_end == last_end,
    });
    if !is_even || !ends_together {
        return None;
    }
    let ramp = (distance.as_secs_f64() * spans.len() as f64).round() as u64;
    let duration =
        first.lifetime.map(|lives| whole(lives).unwrap_or_else(|| lives.as_secs().max(1)));
    Some((spans.len(), ramp, duration))
}

/// Returns a schedule in the syntax of the Open Model Thread Group.
fn schedule_text(arrivals: &OpenModelArrivals) -> String {
    let how = match arrivals.process {
        ArrivalProcess::Uniform => "even_arrivals",
        ArrivalProcess::Poisson => "random_arrivals",
    };
    let mut out = String::new();
    for stretch in &arrivals.rate_intervals {
        let seconds = stretch.duration.as_secs_f64();
        let unit = if seconds.fract() == 0.0 {
            format!("{seconds} s")
        } else {
            format!("{} ms", stretch.duration.as_millis())
        };
        write!(out, "rate({}/s) {how}({unit}) rate({}/s) ", stretch.start_rate, stretch.end_rate)
            .ok();
    }
    out.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_stand_in_xml_as_they_are() {
        assert_eq!(escape_xml("a<b>&\"\n\u{1}"), "a&lt;b&gt;&amp;&quot;&#10;");
    }

    #[test]
    fn even_users_are_a_thread_group() {
        let span = |start: u64, lives: Option<u64>| ThreadLifetime {
            start: Duration::from_millis(start),
            lifetime: lives.map(Duration::from_millis),
        };
        assert_eq!(as_linear_ramp(&[span(0, None), span(500, None)]), Some((2, 1, None)));
        assert_eq!(
            as_linear_ramp(&[span(0, Some(4000)), span(1000, Some(3000))]),
            Some((2, 2, Some(4)))
        );
        assert_eq!(as_linear_ramp(&[span(0, Some(4000)), span(1000, Some(4000))]), None);
        assert_eq!(as_linear_ramp(&[span(1000, None)]), None);
        assert_eq!(as_linear_ramp(&[span(0, None), span(10, None), span(90, None)]), None);
    }
}
