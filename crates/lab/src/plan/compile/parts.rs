//! Timers, extractors, assertions and data sets: what stands beside samplers.

use super::super::charset::Charset;
use super::super::data::{DataSet, Share};
use super::super::element::{Element, entries};
use super::super::extract::{Extractor, Field, PathWay};
use super::super::json_path;
use super::super::judge::{Judge, Order, Part, Subject, Way};
use super::super::markup::{Selector, XPath};
use super::super::model::{OnError, Pace, Precise, Timer};
use super::super::pattern;
use super::super::template::Template;
use super::Compiler;
use super::controller::float_value;

/// Elements that belong to the samplers in their scope.
pub(super) fn is_known(class: &str) -> bool {
    matches!(
        class,
        "ConstantTimer"
            | "UniformRandomTimer"
            | "GaussianRandomTimer"
            | "PoissonRandomTimer"
            | "ConstantThroughputTimer"
            | "SyncTimer"
            | "PreciseThroughputTimer"
            | "VariableThroughputTimer"
            | "JSR223Timer"
            | "BeanShellTimer"
            | "RegexExtractor"
            | "JSONPostProcessor"
            | "JSONPathExtractor"
            | "XPathExtractor"
            | "XPath2Extractor"
            | "HtmlExtractor"
            | "XPathAssertion"
            | "XPath2Assertion"
            | "MD5HexAssertion"
            | "XMLAssertion"
            | "BoundaryExtractor"
            | "ResultAction"
            | "ResponseAssertion"
            | "DurationAssertion"
            | "SizeAssertion"
            | "JSONPathAssertion"
            | "CSVDataSet"
            | "RandomCSVDataSetConfig"
            | "CounterConfig"
            | "RandomVariableConfig"
            | "UserParameters"
    )
}

impl<'a> Compiler<'a> {
    pub(super) fn timer(&mut self, element: &Element<'a>) -> Option<Timer> {
        let timer = match element.class {
            "ConstantTimer" => Timer::Constant(self.property(element, "ConstantTimer.delay")),
            "UniformRandomTimer" | "GaussianRandomTimer" | "PoissonRandomTimer" => {
                let delay = self.property(element, "ConstantTimer.delay");
                let range = self.property(element, "RandomTimer.range");
                match element.class {
                    "UniformRandomTimer" => Timer::Uniform { delay, range },
                    "GaussianRandomTimer" => Timer::Gaussian { delay, range },
                    _ => Timer::Poisson { delay, range },
                }
            }
            "ConstantThroughputTimer" => self.throughput_timer(element),
            "SyncTimer" => {
                let meter = self.shared_meter(element);
                let size = self.property(element, "groupSize");
                Timer::Synchronize { size, timeout: self.property(element, "timeoutInMs"), meter }
            }
            "PreciseThroughputTimer" => self.precise_timer(element),
            "VariableThroughputTimer" => Timer::Shaped {
                rows: self.rows(element, "load_profile"),
                meter: self.shared_meter(element),
            },
            "JSR223Timer" | "BeanShellTimer" => Timer::Script(self.script(element)?),
            _ => return None,
        };
        self.close(element);
        Some(timer)
    }

    fn precise_timer(&mut self, element: &Element<'a>) -> Timer {
        // The number is exact here for every count. The seed would have to be Java's.
        element.ignore(&["exactLimit", "allowedThroughputSurplus", "randomSeed"]);
        let value = |name: &'a str, default: &'a str| {
            let text = match element.text(name) {
                "" => float_value(element, name).unwrap_or(default),
                text => text,
            };
            self.template(element, text.trim())
        };
        let values = Precise {
            throughput: value("throughput", "0"),
            period: value("throughputPeriod", "3600"),
            duration: value("duration", "3600"),
            batch: value("batchSize", "1"),
            batch_delay: value("batchThreadDelay", "0"),
        };
        Timer::Precise { values: Box::new(values), meter: self.shared_meter(element) }
    }

    /// Compiles the rows of three numbers that an element of the plugins holds.
    pub(super) fn rows(&mut self, element: &Element<'a>, name: &'a str) -> Vec<[Template; 3]> {
        let rows = entries(element.find(name), "");
        let row = |row: &roxmltree::Node<'a, 'a>| {
            let mut cells = row.children().filter(roxmltree::Node::is_element);
            std::array::from_fn(|_| {
                let text = cells.next().and_then(|cell| cell.text()).unwrap_or("0");
                self.template(element, text.trim())
            })
        };
        rows.iter().map(row).collect()
    }

    fn throughput_timer(&mut self, element: &Element<'a>) -> Timer {
        let text = element.text("calcMode").trim();
        let modes = [
            ("0", "this thread only", Pace::ThisThread),
            ("1", "all active threads", Pace::AllThreads),
            ("2", "all active threads in current thread group", Pace::GroupThreads),
            ("3", "all active threads (shared)", Pace::Shared),
            ("4", "all active threads in current thread group (shared)", Pace::SharedByGroup),
        ];
        let known = modes.iter().find(|(number, words, _)| text == *number || text == *words);
        if known.is_none() && !text.is_empty() {
            self.refuse(element, &format!("calculation by `{text}` is not supported"));
        }
        let mode = known.map_or(Pace::ThisThread, |(.., mode)| *mode);
        let nested = element.node.children().filter(roxmltree::Node::is_element).find(|node| {
            node.children()
                .any(|child| child.has_tag_name("name") && child.text() == Some("throughput"))
        });
        let nested = nested
            .and_then(|node| node.children().find(|child| child.has_tag_name("value")))
            .and_then(|value| value.text());
        let text = match element.text("throughput") {
            "" => nested.unwrap_or("0"),
            text => text,
        };
        let per_minute = self.template(element, text);
        // All timers of this mode take turns with each other.
        let meter = match mode {
            Pace::Shared => self.turns(),
            _ => self.shared_meter(element),
        };
        Timer::Throughput { per_minute, mode, meter }
    }

    /// Returns the meter by which all threads of the test take turns.
    fn turns(&mut self) -> usize {
        if let Some(meter) = self.turns {
            return meter;
        }
        let meter = self.meter();
        self.turns = Some(meter);
        meter
    }

    /// Returns the meter of an element, the same for all samplers in its scope.
    fn shared_meter(&mut self, element: &Element<'a>) -> usize {
        if let Some(&place) = self.known.get(&element.id()) {
            return place;
        }
        let meter = self.meter();
        self.remember(element, meter)
    }

    pub(super) fn extractor(&mut self, element: &Element<'a>) -> Option<Extractor> {
        let extractor = match element.class {
            "RegexExtractor" => Extractor::Regex {
                name: self.property(element, "RegexExtractor.refname"),
                pattern: self.pattern(element, "RegexExtractor.regex"),
                template: self.property(element, "RegexExtractor.template"),
                number: self.property(element, "RegexExtractor.match_number"),
                default: self.property(element, "RegexExtractor.default"),
                clears: element.flag("RegexExtractor.default_empty_value", false),
                field: self.field(element, "RegexExtractor.useHeaders"),
                variable: self.variable_scope(element),
            },
            "BoundaryExtractor" => Extractor::Boundary {
                name: self.property(element, "BoundaryExtractor.refname"),
                left: self.property(element, "BoundaryExtractor.lboundary"),
                right: self.property(element, "BoundaryExtractor.rboundary"),
                number: self.property(element, "BoundaryExtractor.match_number"),
                default: self.property(element, "BoundaryExtractor.default"),
                clears: element.flag("BoundaryExtractor.default_empty_value", false),
                field: self.field(element, "BoundaryExtractor.useHeaders"),
            },
            "XPathExtractor" => self.path_extractor(element),
            "XPath2Extractor" => self.second_path_extractor(element),
            "HtmlExtractor" => self.html_extractor(element),
            "JSONPathExtractor" => self.plugin_json_extractor(element),
            "JSONPostProcessor" => {
                let paths = self.property(element, "JSONPostProcessor.jsonPathExprs");
                if let Some(text) = paths.as_literal() {
                    let text = text.to_owned();
                    for path in text.split(';') {
                        if let Err(fault) = json_path::check(path) {
                            self.refuse(element, &fault);
                        }
                    }
                }
                Extractor::Json {
                    names: self.property(element, "JSONPostProcessor.referenceNames"),
                    paths,
                    numbers: self.property(element, "JSONPostProcessor.match_numbers"),
                    defaults: self.property(element, "JSONPostProcessor.defaultValues"),
                    joins: element.flag("JSONPostProcessor.compute_concat", false),
                    variable: self.variable_scope(element),
                }
            }
            _ => return None,
        };
        self.close(element);
        Some(extractor)
    }

    fn path_extractor(&mut self, element: &Element<'a>) -> Extractor {
        self.no_validation(element, "XPathExtractor.validate");
        element.ignore(&[
            "XPathExtractor.quiet",
            "XPathExtractor.report_errors",
            "XPathExtractor.show_warnings",
            "XPathExtractor.namespace",
            "XPathExtractor.whitespace",
        ]);
        let way = PathWay {
            is_html: element.flag("XPathExtractor.tolerant", false),
            as_markup: element.flag("XPathExtractor.fragment", false),
            is_second: false,
        };
        Extractor::Path {
            name: self.property(element, "XPathExtractor.refname"),
            path: self.path(element, "XPathExtractor.xpathQuery", way.is_second),
            number: self.property(element, "XPathExtractor.matchNumber"),
            default: self.property(element, "XPathExtractor.default"),
            way,
            variable: self.variable_scope(element),
        }
    }

    fn second_path_extractor(&mut self, element: &Element<'a>) -> Extractor {
        let as_markup = element.flag("XPathExtractor2.fragment", false);
        let way = PathWay { is_html: false, as_markup, is_second: true };
        let number = self.property(element, "XPathExtractor2.matchNumber");
        Extractor::Path {
            name: self.property(element, "XPathExtractor2.refname"),
            path: self.path(element, "XPathExtractor2.xpathQuery", way.is_second),
            number: if number.is_empty() { Template::literal("0") } else { number },
            default: self.property(element, "XPathExtractor2.default"),
            way,
            variable: self.variable_scope(element),
        }
    }

    fn html_extractor(&mut self, element: &Element<'a>) -> Extractor {
        let kind = element.text("HtmlExtractor.extractor_impl");
        if !matches!(kind, "" | "JSOUP") {
            let why = format!("selectors of `{kind}` are not supported, only those of JSOUP");
            self.refuse(element, &why);
        }
        let selector = self.property(element, "HtmlExtractor.expr");
        if let Some(text) = selector.as_literal()
            && let Err(fault) = Selector::parse(text)
        {
            self.refuse(element, &fault);
        }
        Extractor::Select {
            name: self.property(element, "HtmlExtractor.refname"),
            selector,
            attribute: self.property(element, "HtmlExtractor.attribute"),
            number: self.property(element, "HtmlExtractor.match_number"),
            default: self.property(element, "HtmlExtractor.default"),
            clears: element.flag("HtmlExtractor.default_empty_value", false),
            variable: self.variable_scope(element),
        }
    }

    /// Compiles the extractor of the JSON plugins, which takes the first value.
    fn plugin_json_extractor(&mut self, element: &Element<'a>) -> Extractor {
        if element.text("INPUT_FORMAT") == "YAML" {
            self.refuse(element, "answers in YAML are not supported, only JSON");
        }
        let paths = self.property(element, "JSONPATH");
        if let Some(text) = paths.as_literal()
            && let Err(fault) = json_path::check(text)
        {
            self.refuse(element, &fault);
        }
        let variable = self.property(element, "VARIABLE");
        Extractor::Json {
            names: self.property(element, "VAR"),
            paths,
            numbers: Template::literal("1"),
            defaults: self.property(element, "DEFAULT"),
            joins: false,
            variable: (element.text("SUBJECT") == "VAR").then_some(variable),
        }
    }

    fn no_validation(&mut self, element: &Element<'a>, name: &'a str) {
        if element.flag(name, false) {
            self.refuse(element, "validation against a document type is not supported");
        }
    }

    /// Compiles a property that holds an XPath and checks it; an empty one finds nothing, as in JMeter.
    fn path(&mut self, element: &Element<'a>, name: &'a str, is_second: bool) -> Template {
        let template = self.property(element, name);
        if let Some(text) = template.as_literal().filter(|text| !text.is_empty())
            && let Err(fault) = XPath::parse(text, is_second)
        {
            self.refuse(element, &fault);
        }
        template
    }

    /// Compiles a property that holds a regular expression and checks it.
    fn pattern(&mut self, element: &Element<'a>, name: &'a str) -> Template {
        let template = self.property(element, name);
        self.check_pattern(element, &template);
        template
    }

    fn check_pattern(&mut self, element: &Element<'a>, template: &Template) {
        if let Some(text) = template.as_literal()
            && let Err(fault) = pattern::compile(text)
        {
            self.refuse(element, &fault);
        }
    }

    fn field(&mut self, element: &Element<'a>, name: &'a str) -> Field {
        let word = element.text(name);
        Field::find(word).unwrap_or_else(|| {
            let why = format!("field `{word}` is not supported");
            self.refuse(element, &why);
            Field::Body
        })
    }

    fn variable_scope(&mut self, element: &Element<'a>) -> Option<Template> {
        match element.text("Sample.scope") {
            "variable" => Some(self.property(element, "Scope.variable")),
            // Parts of a page are not looked at; the page itself is, as by default.
            "" | "all" | "parent" => {
                element.ignore(&["Scope.variable"]);
                None
            }
            other => {
                let why = format!("scope `{other}` is not supported");
                self.refuse(element, &why);
                None
            }
        }
    }

    pub(super) fn judge(&mut self, element: &Element<'a>) -> Option<Judge> {
        let judge = match element.class {
            "ResponseAssertion" => self.response_assertion(element),
            "DurationAssertion" => {
                Judge::Duration(self.property(element, "DurationAssertion.duration"))
            }
            "SizeAssertion" => self.size_assertion(element),
            "XPathAssertion" => {
                self.no_validation(element, "XPath.validate");
                element.ignore(&[
                    "XPath.quiet",
                    "XPath.report_errors",
                    "XPath.show_warnings",
                    "XPath.namespace",
                    "XPath.whitespace",
                ]);
                Judge::Path {
                    path: self.path(element, "XPath.xpath", false),
                    inverts: element.flag("XPath.negate", false),
                    is_html: element.flag("XPath.tolerant", false),
                    is_second: false,
                    variable: self.variable_scope(element),
                }
            }
            "XPath2Assertion" => Judge::Path {
                path: self.path(element, "XPath.xpath", true),
                inverts: element.flag("XPath.negate", false),
                is_html: false,
                is_second: true,
                variable: self.variable_scope(element),
            },
            "MD5HexAssertion" => Judge::Md5(self.property(element, "MD5HexAssertion.size")),
            "XMLAssertion" => Judge::Xml,
            "JSONPathAssertion" => {
                // The plugin's older form of the element says what the answer is written in.
                if element.text("INPUT_FORMAT") == "YAML" {
                    self.refuse(element, "answers in YAML are not supported, only JSON");
                }
                let path = self.property(element, "JSON_PATH");
                if let Some(text) = path.as_literal()
                    && let Err(fault) = json_path::check(text)
                {
                    self.refuse(element, &fault);
                }
                let expected = self.property(element, "EXPECTED_VALUE");
                Judge::Json {
                    path,
                    expected: element.flag("JSONVALIDATION", false).then_some(expected),
                    is_regex: element.flag("ISREGEX", true),
                    expects_null: element.flag("EXPECT_NULL", false),
                    inverts: element.flag("INVERT", false),
                    by_text: false,
                }
            }
            _ => return None,
        };
        if !matches!(element.class, "ResponseAssertion" | "XPathAssertion" | "XPath2Assertion") {
            self.variable_scope(element);
        }
        self.close(element);
        Some(judge)
    }

    fn response_assertion(&mut self, element: &Element<'a>) -> Judge {
        let subject = match element.text("Assertion.test_field") {
            "" | "Assertion.response_data" | "Assertion.response_data_as_document" => Subject::Body,
            "Assertion.response_code" => Subject::Code,
            "Assertion.response_message" => Subject::Message,
            "Assertion.response_headers" => Subject::Headers,
            "Assertion.request_headers" => Subject::RequestHeaders,
            "Assertion.request_data" => Subject::Request,
            "Assertion.sample_label" => Subject::Url,
            other => {
                let why = format!("field `{other}` is not supported");
                self.refuse(element, &why);
                Subject::Body
            }
        };
        let subject = match element.text("Assertion.scope") {
            "variable" => Subject::Variable(self.property(element, "Scope.variable")),
            "" | "all" | "parent" => {
                element.ignore(&["Scope.variable"]);
                subject
            }
            other => {
                let why = format!("scope `{other}` is not supported");
                self.refuse(element, &why);
                subject
            }
        };
        let bits: u32 = element.text("Assertion.test_type").trim().parse().unwrap_or(2);
        let way = if bits & 1 != 0 {
            Way::Matches
        } else if bits & 8 != 0 {
            Way::Equals
        } else if bits & 16 != 0 {
            Way::Substring
        } else {
            Way::Contains
        };
        // The misspelled name is JMeter's own.
        let list = element
            .find("Asserion.test_strings")
            .or_else(|| element.find("Assertion.test_strings"));
        element.ignore(&["Assertion.test_strings"]);
        let texts: Vec<Template> = entries(list, "")
            .iter()
            .map(|text| self.template(element, text.text().unwrap_or_default()))
            .collect();
        if matches!(way, Way::Matches | Way::Contains) {
            for text in &texts {
                self.check_pattern(element, text);
            }
        }
        Judge::Response {
            subject,
            way,
            is_not: bits & 4 != 0,
            is_or: bits & 32 != 0,
            texts,
            message: self.property(element, "Assertion.custom_message"),
            assumes_success: element.flag("Assertion.assume_success", false),
        }
    }

    fn size_assertion(&mut self, element: &Element<'a>) -> Judge {
        let part = match element.text("Assertion.test_field") {
            "SizeAssertion.response_data" | "SizeAssertion.response_body" => Part::Body,
            "SizeAssertion.response_headers" => Part::Headers,
            "SizeAssertion.response_code" => Part::Code,
            "SizeAssertion.response_message" => Part::Message,
            "" | "SizeAssertion.response_network_size" => Part::All,
            other => {
                let why = format!("field `{other}` is not supported");
                self.refuse(element, &why);
                Part::All
            }
        };
        let order = match element.text("SizeAssertion.operator") {
            "2" => Order::NotEqual,
            "3" => Order::Greater,
            "4" => Order::Less,
            "5" => Order::GreaterOrEqual,
            "6" => Order::LessOrEqual,
            _ => Order::Equal,
        };
        Judge::Size { size: self.property(element, "SizeAssertion.size"), order, part }
    }

    pub(super) fn result_action(&mut self, element: &Element<'a>) -> OnError {
        let action = match element.text("OnError.action") {
            "1" => OnError::StopThread,
            "2" | "3" => OnError::StopTest,
            "4" => OnError::NextLoop,
            "" | "0" => OnError::Continue,
            other => {
                let why = format!("action `{other}` is not supported");
                self.refuse(element, &why);
                OnError::Continue
            }
        };
        self.close(element);
        action
    }

    /// Compiles a data set of a plugin, whose rows come in random order.
    fn random_data(&mut self, element: &Element<'a>) -> Option<usize> {
        if let Some(&place) = self.known.get(&element.id()) {
            return Some(place);
        }
        let charset = self.charset(element, element.text("fileEncoding"));
        let file = self.property(element, "filename");
        if file.is_empty() {
            self.refuse(element, "it names no file");
            return None;
        }
        let names = self.property(element, "variableNames");
        let delimiter = self.property(element, "delimiter");
        let mut data = DataSet::new(file, names, delimiter);
        data.charset = charset;
        data.is_quoted = true;
        data.is_random = element.flag("randomOrder", false);
        data.skips_first = element.flag("ignoreFirstLine", false);
        data.recycles = element.flag("rewindOnTheEndOfList", false);
        data.stops_thread = true;
        if element.flag("independentListPerThread", false) {
            data.share = Share::Thread;
        }
        self.close(element);
        self.model.data.push(data);
        Some(self.remember(element, self.model.data.len() - 1))
    }

    pub(super) fn charset(&mut self, element: &Element<'a>, name: &str) -> Charset {
        let found = Charset::find(name);
        // What a variable names is UTF-8, as nearly everything is.
        if found.is_none() && !name.contains("${") {
            let why = format!("character set `{name}` is not supported");
            self.refuse(element, &why);
        }
        found.unwrap_or_default()
    }

    /// Compiles a data set; `None` if it cannot be read.
    pub(super) fn data(&mut self, element: &Element<'a>) -> Option<usize> {
        if let Some(&place) = self.known.get(&element.id()) {
            return Some(place);
        }
        if element.class == "RandomCSVDataSetConfig" {
            return self.random_data(element);
        }
        let charset = self.charset(element, element.text("fileEncoding"));
        let file = self.property(element, "filename");
        if file.is_empty() {
            self.refuse(element, "it names no file");
            return None;
        }
        let names = self.property(element, "variableNames");
        let delimiter = self.property(element, "delimiter");
        let mut data = DataSet::new(file, names, delimiter);
        data.charset = charset;
        data.is_quoted = element.flag("quotedData", false);
        data.skips_first = element.flag("ignoreFirstLine", false);
        data.recycles = element.flag("recycle", true);
        data.stops_thread = element.flag("stopThread", false);
        data.share = match element.text("shareMode") {
            "" | "shareMode.all" => Share::All,
            "shareMode.group" => Share::Group,
            "shareMode.thread" => Share::Thread,
            word => Share::Named(word.to_owned()),
        };
        self.close(element);
        self.model.data.push(data);
        Some(self.remember(element, self.model.data.len() - 1))
    }
}
