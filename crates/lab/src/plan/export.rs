//! From a plan in TOML to a `.jmx` file that JMeter runs.
//!
//! Visitors of the open model become an Open Model Thread Group (JMeter 5.5), users that begin and end in stages an
//! Ultimate Thread Group (a plugin). The order of weighted scenarios stands in a data file beside the plan, from which a
//! switch controller takes its turns: over all threads the shares are exactly those of the plan.
//!
//! Not here: plans of JMeter; they are `.jmx` files already.

use std::fmt::Write as _;
use std::time::Duration;

use super::data::{DataSet, Share};
use super::extract::{Extractor, Field};
use super::http::HttpSpec;
use super::judge::{Judge, Subject, Way};
use super::model::{
    Action, After, Arrivals, Event, Flow, Group, Kind, Model, NodeId, OnError, Sampler, Shape,
    Timer,
};
use super::shape::Span;
use crate::load::Process;

/// A plan for JMeter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exported {
    /// The `.jmx` file.
    pub jmx: String,
    /// The rows of the file with the order of weighted scenarios, if there are any.
    pub order: Option<String>,
    /// What JMeter needs or does differently.
    pub remarks: Vec<String>,
}

/// Writes a plan; `order_file` is the name of the file that takes the order of scenarios.
///
/// # Errors
/// What JMeter has no element for.
pub(super) fn to_jmx(model: &Model, order_file: &str) -> Result<Exported, Vec<String>> {
    let mut writer = Writer {
        model,
        order_file,
        out: String::new(),
        order: None,
        remarks: Vec::new(),
        problems: Vec::new(),
    };
    writer.plan();
    if !writer.problems.is_empty() {
        return Err(writer.problems);
    }
    Ok(Exported { jmx: writer.out, order: writer.order, remarks: writer.remarks })
}

struct Writer<'m> {
    model: &'m Model,
    order_file: &'m str,
    out: String,
    order: Option<String>,
    remarks: Vec<String>,
    problems: Vec<String>,
}

/// Returns a text as XML holds it.
fn xml(text: &str) -> String {
    let mut out = String::new();
    for letter in text.chars() {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            // Line breaks in attributes would become blanks.
            '\n' | '\r' | '\t' => {
                write!(out, "&#{};", u32::from(letter)).ok();
            }
            // XML has no words for other control characters.
            letter if letter.is_control() => {}
            letter => out.push(letter),
        }
    }
    out
}

fn prop(kind: &str, name: &str, value: &str) -> String {
    format!("<{kind}Prop name=\"{}\">{}</{kind}Prop>", xml(name), xml(value))
}

fn text(name: &str, value: &str) -> String {
    prop("string", name, value)
}

fn flag(name: &str, value: bool) -> String {
    prop("bool", name, if value { "true" } else { "false" })
}

/// Returns user-defined variables or parameters.
fn arguments(pairs: &[(String, String)]) -> String {
    let mut out = "<collectionProp name=\"Arguments.arguments\">".to_owned();
    for (name, value) in pairs {
        write!(
            out,
            "<elementProp name=\"{}\" elementType=\"Argument\">{}{}{}</elementProp>",
            xml(name),
            text("Argument.name", name),
            text("Argument.value", value),
            text("Argument.metadata", "=")
        )
        .ok();
    }
    out + "</collectionProp>"
}

impl Writer<'_> {
    fn problem(&mut self, what: impl Into<String>) {
        self.problems.push(what.into());
    }

    fn remark(&mut self, what: &str) {
        if !self.remarks.iter().any(|known| known == what) {
            self.remarks.push(what.to_owned());
        }
    }

    /// Writes an element and what stands below it.
    fn element(
        &mut self,
        class: &str,
        gui: &str,
        (name, inner): (&str, &str),
        below: impl FnOnce(&mut Self),
    ) {
        write!(
            self.out,
            "<{class} guiclass=\"{gui}\" testclass=\"{class}\" testname=\"{}\" enabled=\"true\">{inner}</{class}>\n<hashTree>\n",
            xml(name)
        )
        .ok();
        below(self);
        self.out.push_str("</hashTree>\n");
    }

    fn plan(&mut self) {
        self.out.push_str(
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
            arguments(&pairs)
        );
        let name = self.model.name.clone();
        self.element("TestPlan", "TestPlanGui", (&name, &variables), |writer| {
            writer.managers();
            for group in &writer.model.groups {
                writer.group(group);
            }
        });
        self.out.push_str("</hashTree>\n</jmeterTestPlan>\n");
    }

    /// Writes the managers of cookies and cached answers, which all steps of a plan share.
    fn managers(&mut self) {
        if let Some(manager) = self.model.cookies.first() {
            let inner = format!(
                "<collectionProp name=\"CookieManager.cookies\"/>{}{}",
                flag("CookieManager.clearEachIteration", manager.clears),
                flag("CookieManager.controlledByThreadGroup", false)
            );
            self.element("CookieManager", "CookiePanel", ("cookies", &inner), |_| ());
        }
        if let Some(manager) = self.model.caches.first() {
            let inner = format!(
                "{}{}{}",
                flag("clearEachIteration", manager.clears),
                flag("useExpires", manager.uses_expires),
                flag("CacheManager.controlledByThread", false)
            );
            self.element("CacheManager", "CacheManagerGui", ("cache", &inner), |_| ());
        }
    }

    fn group(&mut self, group: &Group) {
        let on_error = match group.on_error {
            OnError::Continue => "continue",
            OnError::NextLoop => "startnextloop",
            OnError::StopThread => "stopthread",
            OnError::StopTest => "stoptest",
        };
        let on_error = text("ThreadGroup.on_sample_error", on_error);
        let name = group.name.source().to_owned();
        match &group.shape {
            Shape::Arrivals(arrivals) => {
                let inner = format!(
                    "<elementProp name=\"ThreadGroup.main_controller\" elementType=\"OpenModelThreadGroupController\"/>\
                     {on_error}{}{}",
                    text("OpenModelThreadGroup.schedule", &schedule(arrivals)),
                    text("OpenModelThreadGroup.random_seed", "")
                );
                self.remark("Arrivals are an Open Model Thread Group, which JMeter has since 5.5.");
                self.element(
                    "OpenModelThreadGroup",
                    "OpenModelThreadGroupGui",
                    (&name, &inner),
                    |writer| {
                        writer.body(group);
                    },
                );
            }
            Shape::Spans(spans) => {
                let loops = group.loops.source();
                let looping = format!(
                    "<elementProp name=\"ThreadGroup.main_controller\" elementType=\"LoopController\" guiclass=\"LoopControlPanel\" \
                     testclass=\"LoopController\">{}{}</elementProp>",
                    flag("LoopController.continue_forever", false),
                    text("LoopController.loops", loops)
                );
                match ramp(spans) {
                    Some((threads, ramp, lasts)) => {
                        let lasts_text = lasts.map(|lasts| lasts.to_string()).unwrap_or_default();
                        let inner = format!(
                            "{on_error}{looping}{}{}{}{}{}{}",
                            text("ThreadGroup.num_threads", &threads.to_string()),
                            text("ThreadGroup.ramp_time", &ramp.to_string()),
                            flag("ThreadGroup.scheduler", lasts.is_some()),
                            text("ThreadGroup.duration", &lasts_text),
                            text("ThreadGroup.delay", ""),
                            flag("ThreadGroup.same_user_on_next_iteration", true)
                        );
                        self.element("ThreadGroup", "ThreadGroupGui", (&name, &inner), |writer| {
                            writer.body(group)
                        });
                    }
                    None => self.staged((&name, group), spans, &format!("{looping}{on_error}")),
                }
            }
            _ => self.problem(format!("`{name}`: this kind of load")),
        }
    }

    /// Writes users that begin and end in stages.
    fn staged(&mut self, (name, group): (&str, &Group), spans: &[Span], more: &str) {
        let mut rows: Vec<(Duration, Duration, u64)> = Vec::new();
        for span in spans {
            let Some(lives) = span.lives else {
                return self.problem(format!("`{name}`: users of stages without an end"));
            };
            match rows.last_mut() {
                Some((start, known, count)) if *start == span.start && *known == lives => {
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
                seconds(*start),
                "0".to_owned(),
                seconds(*lives),
                "0".to_owned(),
            ];
            for (place, cell) in cells.iter().enumerate() {
                data.push_str(&text(&place.to_string(), cell));
            }
            data.push_str("</collectionProp>");
        }
        data.push_str("</collectionProp>");
        self.remark("Stages of users are an Ultimate Thread Group, a plugin of JMeter (jpgc-casutg), in whole seconds.");
        let inner = format!("{data}{more}");
        let class = "kg.apc.jmeter.threads.UltimateThreadGroup";
        let gui = "kg.apc.jmeter.threads.UltimateThreadGroupGui";
        self.element(class, gui, (name, &inner), |writer| writer.body(group));
    }

    fn body(&mut self, group: &Group) {
        let Some(root) = self.model.nodes.get(group.root) else { return };
        self.events(&root.events);
        self.children(&root.children);
    }

    fn events(&mut self, events: &[Event]) {
        for event in events {
            match event {
                Event::Data(place) => {
                    if let Some(data) = self.model.data.get(*place) {
                        self.data(data);
                    }
                }
                _ => self.problem("a counter or random variable"),
            }
        }
    }

    fn data(&mut self, data: &DataSet) {
        let share = match &data.share {
            Share::All => "shareMode.all".to_owned(),
            Share::Group => "shareMode.group".to_owned(),
            Share::Thread => "shareMode.thread".to_owned(),
            Share::Named(word) => word.clone(),
        };
        let inner = format!(
            "{}{}{}{}{}{}{}{}{}",
            text("filename", data.file.source()),
            text("fileEncoding", "UTF-8"),
            text("variableNames", data.names.source()),
            text("delimiter", data.delimiter.source()),
            flag("quotedData", data.is_quoted),
            flag("ignoreFirstLine", data.skips_first),
            flag("recycle", data.recycles),
            flag("stopThread", data.stops_thread),
            text("shareMode", &share)
        );
        self.element("CSVDataSet", "TestBeanGUI", ("data", &inner), |_| ());
    }

    fn children(&mut self, children: &[NodeId]) {
        for child in children {
            let Some(node) = self.model.nodes.get(*child) else { continue };
            let name = node.name.source();
            match &node.kind {
                Kind::Simple => {
                    self.element("GenericController", "LogicControllerGui", (name, ""), |writer| {
                        writer.events(&node.events);
                        writer.children(&node.children);
                    })
                }
                Kind::Transaction { is_parent, with_timers, .. } => {
                    let inner = format!(
                        "{}{}",
                        flag("TransactionController.includeTimers", *with_timers),
                        flag("TransactionController.parent", *is_parent)
                    );
                    self.element(
                        "TransactionController",
                        "TransactionControllerGui",
                        (name, &inner),
                        |writer| {
                            writer.events(&node.events);
                            writer.children(&node.children);
                        },
                    );
                }
                Kind::Once => {
                    let class = ("OnceOnlyController", "OnceOnlyControllerGui");
                    self.element(class.0, class.1, (name, ""), |writer| {
                        writer.children(&node.children);
                    });
                }
                Kind::Mix { order, .. } => self.mix(order, &node.children),
                Kind::Sampler(sampler) => self.sampler(name, sampler),
                _ => self.problem(format!("`{name}`: this kind of controller")),
            }
        }
    }

    /// Writes weighted scenarios: a row of the order file names the one whose turn it is.
    fn mix(&mut self, order: &[usize], children: &[NodeId]) {
        if self.order.is_some() {
            return self.problem("several groups with weighted scenarios");
        }
        let rows: String = order.iter().map(|turn| format!("{turn}\n")).collect();
        self.order = Some(rows);
        let data = format!(
            "{}{}{}{}{}{}{}{}{}",
            text("filename", self.order_file),
            text("fileEncoding", "UTF-8"),
            text("variableNames", "tympan.turn"),
            text("delimiter", ","),
            flag("quotedData", false),
            flag("ignoreFirstLine", false),
            flag("recycle", true),
            flag("stopThread", false),
            text("shareMode", "shareMode.all")
        );
        self.element("CSVDataSet", "TestBeanGUI", ("order of scenarios", &data), |_| ());
        let inner = text("SwitchController.value", "${tympan.turn}");
        self.element("SwitchController", "SwitchControllerGui", ("mix", &inner), |writer| {
            writer.children(children);
        });
    }

    fn sampler(&mut self, name: &str, sampler: &Sampler) {
        match &sampler.action {
            Action::Http(spec) => {
                let inner = request(spec);
                self.element("HTTPSamplerProxy", "HttpTestSampleGui", (name, &inner), |writer| {
                    writer.headers(spec);
                    writer.timers(&sampler.timers);
                    writer.after(&sampler.after);
                    writer.judges(&sampler.judges);
                });
            }
            Action::Flow(flow) => {
                let (action, pause) = match flow {
                    Flow::Pause(pause) => ("1", pause.source()),
                    Flow::Nothing => ("1", "0"),
                    _ => return self.problem(format!("`{name}`: this kind of flow control")),
                };
                let inner = format!(
                    "{}{}{}",
                    prop("int", "ActionProcessor.action", action),
                    prop("int", "ActionProcessor.target", "0"),
                    text("ActionProcessor.duration", pause)
                );
                self.element("TestAction", "TestActionGui", (name, &inner), |writer| {
                    writer.timers(&sampler.timers);
                });
            }
            _ => self.problem(format!("`{name}`: this kind of sampler")),
        }
    }

    fn headers(&mut self, spec: &HttpSpec) {
        if spec.headers.is_empty() {
            return;
        }
        let mut inner = "<collectionProp name=\"HeaderManager.headers\">".to_owned();
        for (name, value) in &spec.headers {
            write!(
                inner,
                "<elementProp name=\"\" elementType=\"Header\">{}{}</elementProp>",
                text("Header.name", name.source()),
                text("Header.value", value.source())
            )
            .ok();
        }
        inner.push_str("</collectionProp>");
        self.element("HeaderManager", "HeaderPanel", ("headers", &inner), |_| ());
    }

    fn timers(&mut self, timers: &[Timer]) {
        for timer in timers {
            match timer {
                Timer::Constant(delay) => {
                    let inner = text("ConstantTimer.delay", delay.source());
                    self.element("ConstantTimer", "ConstantTimerGui", ("pause", &inner), |_| ());
                }
                Timer::Throughput { per_minute, .. } => {
                    let inner = format!(
                        "{}<doubleProp><name>throughput</name><value>{}</value><savedValue>0.0</savedValue></doubleProp>",
                        prop("int", "calcMode", "0"),
                        xml(per_minute.source())
                    );
                    self.element(
                        "ConstantThroughputTimer",
                        "TestBeanGUI",
                        ("pace", &inner),
                        |_| (),
                    );
                }
                _ => self.problem("this kind of timer"),
            }
        }
    }

    fn judges(&mut self, judges: &[Judge]) {
        for judge in judges {
            match judge {
                Judge::Response { subject, way, is_not, is_or, texts, assumes_success, .. } => {
                    let field = match subject {
                        Subject::Body => "Assertion.response_data",
                        Subject::Code => "Assertion.response_code",
                        Subject::Headers => "Assertion.response_headers",
                        _ => return self.problem("this kind of assertion"),
                    };
                    let bits = match way {
                        Way::Matches => 1,
                        Way::Contains => 2,
                        Way::Equals => 8,
                        Way::Substring => 16,
                    } + u32::from(*is_not) * 4
                        + u32::from(*is_or) * 32;
                    let strings: String = texts
                        .iter()
                        .enumerate()
                        .map(|(at, one)| text(&at.to_string(), one.source()))
                        .collect();
                    let inner = format!(
                        "<collectionProp name=\"Asserion.test_strings\">{strings}</collectionProp>{}{}{}{}",
                        text("Assertion.test_field", field),
                        flag("Assertion.assume_success", *assumes_success),
                        prop("int", "Assertion.test_type", &bits.to_string()),
                        text("Assertion.custom_message", "")
                    );
                    self.element("ResponseAssertion", "AssertionGui", ("expect", &inner), |_| ());
                }
                Judge::Duration(most) => {
                    let inner = text("DurationAssertion.duration", most.source());
                    self.element(
                        "DurationAssertion",
                        "DurationAssertionGui",
                        ("under", &inner),
                        |_| (),
                    );
                }
                Judge::Json { path, expected, is_regex, expects_null, inverts, .. } => {
                    let value =
                        expected.as_ref().map(|expected| expected.source()).unwrap_or_default();
                    let inner = format!(
                        "{}{}{}{}{}{}",
                        text("JSON_PATH", path.source()),
                        text("EXPECTED_VALUE", value),
                        flag("JSONVALIDATION", expected.is_some()),
                        flag("EXPECT_NULL", *expects_null),
                        flag("INVERT", *inverts),
                        flag("ISREGEX", *is_regex)
                    );
                    self.element(
                        "JSONPathAssertion",
                        "JSONPathAssertionGui",
                        ("json", &inner),
                        |_| (),
                    );
                }
                _ => self.problem("this kind of assertion"),
            }
        }
    }

    fn after(&mut self, after: &[After]) {
        for one in after {
            let After::Extract(extractor) = one else {
                self.problem("a script or an action behind a request");
                continue;
            };
            match extractor.as_ref() {
                Extractor::Regex { name, pattern, template, number, default, field, .. } => {
                    let inner = format!(
                        "{}{}{}{}{}{}",
                        text(
                            "RegexExtractor.useHeaders",
                            if *field == Field::Headers { "true" } else { "false" }
                        ),
                        text("RegexExtractor.refname", name.source()),
                        text("RegexExtractor.regex", pattern.source()),
                        text("RegexExtractor.template", template.source()),
                        text("RegexExtractor.default", default.source()),
                        text("RegexExtractor.match_number", number.source())
                    );
                    self.element(
                        "RegexExtractor",
                        "RegexExtractorGui",
                        (name.source(), &inner),
                        |_| (),
                    );
                }
                Extractor::Json { names, paths, numbers, defaults, .. } => {
                    let inner = format!(
                        "{}{}{}{}",
                        text("JSONPostProcessor.referenceNames", names.source()),
                        text("JSONPostProcessor.jsonPathExprs", paths.source()),
                        text("JSONPostProcessor.match_numbers", numbers.source()),
                        text("JSONPostProcessor.defaultValues", defaults.source())
                    );
                    self.element(
                        "JSONPostProcessor",
                        "JSONPostProcessorGui",
                        (names.source(), &inner),
                        |_| (),
                    );
                }
                Extractor::Boundary { name, left, right, number, default, .. } => {
                    let inner = format!(
                        "{}{}{}{}{}{}",
                        text("BoundaryExtractor.useHeaders", "false"),
                        text("BoundaryExtractor.refname", name.source()),
                        text("BoundaryExtractor.lboundary", left.source()),
                        text("BoundaryExtractor.rboundary", right.source()),
                        text("BoundaryExtractor.default", default.source()),
                        text("BoundaryExtractor.match_number", number.source())
                    );
                    self.element(
                        "BoundaryExtractor",
                        "BoundaryExtractorGui",
                        (name.source(), &inner),
                        |_| (),
                    );
                }
                _ => self.problem("this kind of extractor"),
            }
        }
    }
}

/// Returns the properties of a request.
fn request(spec: &HttpSpec) -> String {
    let mut parameters = "<collectionProp name=\"Arguments.arguments\">".to_owned();
    for one in &spec.arguments {
        write!(
            parameters,
            "<elementProp name=\"{}\" elementType=\"HTTPArgument\">{}{}{}{}{}</elementProp>",
            xml(one.name.source()),
            flag("HTTPArgument.always_encode", one.encodes),
            text("Argument.value", one.value.source()),
            text("Argument.metadata", if spec.is_raw { "" } else { "=" }),
            flag("HTTPArgument.use_equals", !one.separator.is_empty()),
            text("Argument.name", one.name.source())
        )
        .ok();
    }
    parameters.push_str("</collectionProp>");
    let mut files = String::new();
    if !spec.files.is_empty() {
        files.push_str(
            "<elementProp name=\"HTTPsampler.Files\" elementType=\"HTTPFileArgs\"><collectionProp name=\"HTTPFileArgs.files\">",
        );
        for file in &spec.files {
            let path = file.path.source();
            write!(
                files,
                "<elementProp name=\"{}\" elementType=\"HTTPFileArg\">{}{}{}</elementProp>",
                xml(path),
                text("File.path", path),
                text("File.paramname", file.name.source()),
                text("File.mimetype", file.media_type.source())
            )
            .ok();
        }
        files.push_str("</collectionProp></elementProp>");
    }
    let parts = spec.embedded.as_ref().map_or_else(String::new, |parts| {
        format!(
            "{}{}{}",
            flag("HTTPSampler.image_parser", true),
            flag("HTTPSampler.concurrentDwn", true),
            text("HTTPSampler.concurrentPool", &parts.parallel.to_string())
        )
    });
    format!(
        "{}<elementProp name=\"HTTPsampler.Arguments\" elementType=\"Arguments\">{parameters}</elementProp>{files}{}{}{}{}{}{}{}{}{}{}{}{parts}",
        flag("HTTPSampler.postBodyRaw", spec.is_raw),
        text("HTTPSampler.domain", spec.domain.source()),
        text("HTTPSampler.port", spec.port.source()),
        text("HTTPSampler.protocol", spec.protocol.source()),
        text("HTTPSampler.path", spec.path.source()),
        text("HTTPSampler.method", spec.method.source()),
        flag("HTTPSampler.follow_redirects", spec.follows),
        flag("HTTPSampler.auto_redirects", spec.follows_silently),
        flag("HTTPSampler.use_keepalive", spec.keep_alive),
        flag("HTTPSampler.DO_MULTIPART_POST", spec.is_multipart),
        text("HTTPSampler.connect_timeout", spec.connect_timeout.source()),
        text("HTTPSampler.response_timeout", spec.response_timeout.source())
    )
}

/// Returns seconds, whole ones without a point.
fn seconds(time: Duration) -> String {
    time.as_secs_f64().round().to_string()
}

/// Returns threads, ramp and duration in seconds, if users begin at equal distances and end together.
fn ramp(spans: &[Span]) -> Option<(usize, u64, Option<u64>)> {
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
    let end = |span: &Span| span.lives.map(|lives| span.start + lives);
    let ends_together = spans.iter().all(|span| match (end(span), end(first)) {
        (Some(one), Some(other)) => one.abs_diff(other) < Duration::from_millis(2),
        (one, other) => one == other,
    });
    if !is_even || !ends_together {
        return None;
    }
    let ramp = (distance.as_secs_f64() * spans.len() as f64).round() as u64;
    let lasts = first.lives.map(|lives| whole(lives).unwrap_or_else(|| lives.as_secs().max(1)));
    Some((spans.len(), ramp, lasts))
}

/// Returns a schedule in the words of the Open Model Thread Group.
fn schedule(arrivals: &Arrivals) -> String {
    let how = match arrivals.process {
        Process::Uniform => "even_arrivals",
        Process::Poisson => "random_arrivals",
    };
    let mut out = String::new();
    for stretch in &arrivals.stretches {
        let lasts = stretch.lasts.as_secs_f64();
        let unit = if lasts.fract() == 0.0 {
            format!("{lasts} s")
        } else {
            format!("{} ms", stretch.lasts.as_millis())
        };
        write!(out, "rate({}/s) {how}({unit}) rate({}/s) ", stretch.from, stretch.to).ok();
    }
    out.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_stand_in_xml_as_they_are() {
        assert_eq!(xml("a<b>&\"\n\u{1}"), "a&lt;b&gt;&amp;&quot;&#10;");
    }

    #[test]
    fn even_users_are_a_thread_group() {
        let span = |start: u64, lives: Option<u64>| Span {
            start: Duration::from_millis(start),
            lives: lives.map(Duration::from_millis),
        };
        assert_eq!(ramp(&[span(0, None), span(500, None)]), Some((2, 1, None)));
        assert_eq!(ramp(&[span(0, Some(4000)), span(1000, Some(3000))]), Some((2, 2, Some(4))));
        assert_eq!(ramp(&[span(0, Some(4000)), span(1000, Some(4000))]), None);
        assert_eq!(ramp(&[span(1000, None)]), None);
        assert_eq!(ramp(&[span(0, None), span(10, None), span(90, None)]), None);
    }
}
