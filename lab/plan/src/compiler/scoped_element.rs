//! Timers, extractors, assertions and data sets: the elements that accompany samplers.

use super::super::assertion::{
    AssertionSubject, SampleAssertion, SizeComparison, SizeSubject, TextComparison,
};
use super::super::charset::JavaCharset;
use super::super::data_set::{DataSet, RowSharing};
use super::super::extractor::{ResponseExtractor, ResponseField, XPathOptions};
use super::super::jmx_element::{JmxElement, collection_entries};
use super::super::json_path;
use super::super::markup::{CssSelector, XPath};
use super::super::model::{PreciseThroughput, SampleErrorAction, SamplerTimer, ThroughputMode};
use super::super::regex_pattern;
use super::super::template::TextTemplate;
use super::JmxCompiler;
use super::controller::float_property;

/// Returns true for elements that apply to the samplers in their scope.
pub(super) fn is_sampler_scoped_class(class: &str) -> bool {
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

impl<'a> JmxCompiler<'a> {
    pub(super) fn compile_timer(&mut self, element: &JmxElement<'a>) -> Option<SamplerTimer> {
        let timer = match element.class {
            "ConstantTimer" => {
                SamplerTimer::Constant(self.compile_property(element, "ConstantTimer.delay"))
            }
            "UniformRandomTimer" | "GaussianRandomTimer" | "PoissonRandomTimer" => {
                let delay = self.compile_property(element, "ConstantTimer.delay");
                let range = self.compile_property(element, "RandomTimer.range");
                match element.class {
                    "UniformRandomTimer" => SamplerTimer::Uniform { delay, range },
                    "GaussianRandomTimer" => SamplerTimer::Gaussian { delay, range },
                    _ => SamplerTimer::Poisson { delay, range },
                }
            }
            "ConstantThroughputTimer" => self.compile_throughput_timer(element),
            "SyncTimer" => {
                let meter = self.shared_meter(element);
                let size = self.compile_property(element, "groupSize");
                SamplerTimer::Synchronize {
                    size,
                    timeout: self.compile_property(element, "timeoutInMs"),
                    meter_index: meter,
                }
            }
            "PreciseThroughputTimer" => self.compile_precise_timer(element),
            "VariableThroughputTimer" => SamplerTimer::ShapedThroughput {
                rows: self.compile_number_rows(element, "load_profile"),
                meter_index: self.shared_meter(element),
            },
            "JSR223Timer" | "BeanShellTimer" => SamplerTimer::Script(self.compile_script(element)?),
            _ => return None,
        };
        self.report_unread_properties(element);
        Some(timer)
    }

    fn compile_precise_timer(&mut self, element: &JmxElement<'a>) -> SamplerTimer {
        // The count is always exact here. The seed would require Java's generator.
        element.ignore_properties(&["exactLimit", "allowedThroughputSurplus", "randomSeed"]);
        let value = |name: &'a str, default: &'a str| {
            let text = match element.text_property(name) {
                "" => float_property(element, name).unwrap_or(default),
                text => text,
            };
            self.compile_template(element, text.trim())
        };
        let values = PreciseThroughput {
            throughput: value("throughput", "0"),
            period: value("throughputPeriod", "3600"),
            duration: value("duration", "3600"),
            batch: value("batchSize", "1"),
            batch_delay: value("batchThreadDelay", "0"),
        };
        SamplerTimer::Precise {
            settings: Box::new(values),
            meter_index: self.shared_meter(element),
        }
    }

    /// Compiles the rows of three numbers in a plugin element.
    pub(super) fn compile_number_rows(
        &mut self,
        element: &JmxElement<'a>,
        name: &'a str,
    ) -> Vec<[TextTemplate; 3]> {
        let rows = collection_entries(element.find_property(name), "");
        let row = |row: &roxmltree::Node<'a, 'a>| {
            let mut cells = row.children().filter(roxmltree::Node::is_element);
            std::array::from_fn(|_| {
                let text = cells.next().and_then(|cell| cell.text()).unwrap_or("0");
                self.compile_template(element, text.trim())
            })
        };
        rows.iter().map(row).collect()
    }

    fn compile_throughput_timer(&mut self, element: &JmxElement<'a>) -> SamplerTimer {
        let text = element.text_property("calcMode").trim();
        let modes = [
            ("0", "this thread only", ThroughputMode::ThisThread),
            ("1", "all active threads", ThroughputMode::AllThreads),
            ("2", "all active threads in current thread group", ThroughputMode::GroupThreads),
            ("3", "all active threads (shared)", ThroughputMode::Shared),
            (
                "4",
                "all active threads in current thread group (shared)",
                ThroughputMode::SharedByGroup,
            ),
        ];
        let mode_entry = modes.iter().find(|(number, words, _)| text == *number || text == *words);
        if mode_entry.is_none() && !text.is_empty() {
            self.report_unsupported(element, &format!("calculation by `{text}` is not supported"));
        }
        let mode = mode_entry.map_or(ThroughputMode::ThisThread, |(.., mode)| *mode);
        let nested = element.node.children().filter(roxmltree::Node::is_element).find(|node| {
            node.children()
                .any(|child| child.has_tag_name("name") && child.text() == Some("throughput"))
        });
        let nested = nested
            .and_then(|node| node.children().find(|child| child.has_tag_name("value")))
            .and_then(|value| value.text());
        let text = match element.text_property("throughput") {
            "" => nested.unwrap_or("0"),
            text => text,
        };
        let per_minute = self.compile_template(element, text);
        // All timers of this mode share one meter.
        let meter = match mode {
            ThroughputMode::Shared => self.global_meter(),
            _ => self.shared_meter(element),
        };
        SamplerTimer::Throughput { per_minute, mode, meter_index: meter }
    }

    /// Returns the throughput meter shared by all threads of the test.
    fn global_meter(&mut self) -> usize {
        if let Some(meter) = self.global_throughput_meter {
            return meter;
        }
        let meter = self.add_meter();
        self.global_throughput_meter = Some(meter);
        meter
    }

    /// Returns the meter of an element, which is the same for all samplers in its scope.
    fn shared_meter(&mut self, element: &JmxElement<'a>) -> usize {
        if let Some(&index) = self.shared_elements.get(&element.id()) {
            return index;
        }
        let meter = self.add_meter();
        self.remember_shared_element(element, meter)
    }

    pub(super) fn compile_extractor(
        &mut self,
        element: &JmxElement<'a>,
    ) -> Option<ResponseExtractor> {
        let extractor = match element.class {
            "RegexExtractor" => ResponseExtractor::Regex {
                name: self.compile_property(element, "RegexExtractor.refname"),
                pattern: self.compile_pattern(element, "RegexExtractor.regex"),
                template: self.compile_property(element, "RegexExtractor.template"),
                match_number: self.compile_property(element, "RegexExtractor.match_number"),
                default: self.compile_property(element, "RegexExtractor.default"),
                clears_on_missing: element
                    .flag_property("RegexExtractor.default_empty_value", false),
                response_field: self.compile_response_field(element, "RegexExtractor.useHeaders"),
                variable: self.scope_variable(element),
            },
            "BoundaryExtractor" => ResponseExtractor::Boundary {
                name: self.compile_property(element, "BoundaryExtractor.refname"),
                left: self.compile_property(element, "BoundaryExtractor.lboundary"),
                right: self.compile_property(element, "BoundaryExtractor.rboundary"),
                match_number: self.compile_property(element, "BoundaryExtractor.match_number"),
                default: self.compile_property(element, "BoundaryExtractor.default"),
                clears_on_missing: element
                    .flag_property("BoundaryExtractor.default_empty_value", false),
                response_field: self
                    .compile_response_field(element, "BoundaryExtractor.useHeaders"),
            },
            "XPathExtractor" => self.compile_xpath_extractor(element),
            "XPath2Extractor" => self.compile_xpath2_extractor(element),
            "HtmlExtractor" => self.compile_html_extractor(element),
            "JSONPathExtractor" => self.compile_plugin_json_extractor(element),
            "JSONPostProcessor" => {
                let paths = self.compile_property(element, "JSONPostProcessor.jsonPathExprs");
                if let Some(text) = paths.as_literal() {
                    let text = text.to_owned();
                    for path in text.split(';') {
                        if let Err(fault) = json_path::check_path(path) {
                            self.report_unsupported(element, &fault);
                        }
                    }
                }
                ResponseExtractor::Json {
                    names: self.compile_property(element, "JSONPostProcessor.referenceNames"),
                    paths,
                    match_numbers: self
                        .compile_property(element, "JSONPostProcessor.match_numbers"),
                    defaults: self.compile_property(element, "JSONPostProcessor.defaultValues"),
                    joins_all: element.flag_property("JSONPostProcessor.compute_concat", false),
                    variable: self.scope_variable(element),
                }
            }
            _ => return None,
        };
        self.report_unread_properties(element);
        Some(extractor)
    }

    fn compile_xpath_extractor(&mut self, element: &JmxElement<'a>) -> ResponseExtractor {
        self.reject_xml_validation(element, "XPathExtractor.validate");
        element.ignore_properties(&[
            "XPathExtractor.quiet",
            "XPathExtractor.report_errors",
            "XPathExtractor.show_warnings",
            "XPathExtractor.namespace",
            "XPathExtractor.whitespace",
        ]);
        let options = XPathOptions {
            is_html: element.flag_property("XPathExtractor.tolerant", false),
            returns_markup: element.flag_property("XPathExtractor.fragment", false),
            is_xpath2: false,
        };
        ResponseExtractor::XPath {
            name: self.compile_property(element, "XPathExtractor.refname"),
            path: self.compile_xpath(element, "XPathExtractor.xpathQuery", options.is_xpath2),
            match_number: self.compile_property(element, "XPathExtractor.matchNumber"),
            default: self.compile_property(element, "XPathExtractor.default"),
            options,
            variable: self.scope_variable(element),
        }
    }

    fn compile_xpath2_extractor(&mut self, element: &JmxElement<'a>) -> ResponseExtractor {
        let as_markup = element.flag_property("XPathExtractor2.fragment", false);
        let options = XPathOptions { is_html: false, returns_markup: as_markup, is_xpath2: true };
        let number = self.compile_property(element, "XPathExtractor2.matchNumber");
        ResponseExtractor::XPath {
            name: self.compile_property(element, "XPathExtractor2.refname"),
            path: self.compile_xpath(element, "XPathExtractor2.xpathQuery", options.is_xpath2),
            match_number: if number.is_empty() { TextTemplate::literal("0") } else { number },
            default: self.compile_property(element, "XPathExtractor2.default"),
            options,
            variable: self.scope_variable(element),
        }
    }

    fn compile_html_extractor(&mut self, element: &JmxElement<'a>) -> ResponseExtractor {
        let kind = element.text_property("HtmlExtractor.extractor_impl");
        if !matches!(kind, "" | "JSOUP") {
            let why = format!("selectors of `{kind}` are not supported, only those of JSOUP");
            self.report_unsupported(element, &why);
        }
        let selector = self.compile_property(element, "HtmlExtractor.expr");
        if let Some(text) = selector.as_literal()
            && let Err(fault) = CssSelector::parse(text)
        {
            self.report_unsupported(element, &fault);
        }
        ResponseExtractor::CssSelector {
            name: self.compile_property(element, "HtmlExtractor.refname"),
            selector,
            attribute: self.compile_property(element, "HtmlExtractor.attribute"),
            match_number: self.compile_property(element, "HtmlExtractor.match_number"),
            default: self.compile_property(element, "HtmlExtractor.default"),
            clears_on_missing: element.flag_property("HtmlExtractor.default_empty_value", false),
            variable: self.scope_variable(element),
        }
    }

    /// Compiles the extractor of the JSON plugins, which extracts the first value.
    fn compile_plugin_json_extractor(&mut self, element: &JmxElement<'a>) -> ResponseExtractor {
        if element.text_property("INPUT_FORMAT") == "YAML" {
            self.report_unsupported(element, "YAML responses are not supported, only JSON");
        }
        let paths = self.compile_property(element, "JSONPATH");
        if let Some(text) = paths.as_literal()
            && let Err(fault) = json_path::check_path(text)
        {
            self.report_unsupported(element, &fault);
        }
        let variable = self.compile_property(element, "VARIABLE");
        ResponseExtractor::Json {
            names: self.compile_property(element, "VAR"),
            paths,
            match_numbers: TextTemplate::literal("1"),
            defaults: self.compile_property(element, "DEFAULT"),
            joins_all: false,
            variable: (element.text_property("SUBJECT") == "VAR").then_some(variable),
        }
    }

    fn reject_xml_validation(&mut self, element: &JmxElement<'a>, name: &'a str) {
        if element.flag_property(name, false) {
            self.report_unsupported(element, "validation against a document type is not supported");
        }
    }

    /// Compiles and checks an XPath property; an empty one matches nothing, as in JMeter.
    fn compile_xpath(
        &mut self,
        element: &JmxElement<'a>,
        name: &'a str,
        is_second: bool,
    ) -> TextTemplate {
        let template = self.compile_property(element, name);
        if let Some(text) = template.as_literal().filter(|text| !text.is_empty())
            && let Err(fault) = XPath::parse(text, is_second)
        {
            self.report_unsupported(element, &fault);
        }
        template
    }

    /// Compiles and checks a regular expression property.
    fn compile_pattern(&mut self, element: &JmxElement<'a>, name: &'a str) -> TextTemplate {
        let template = self.compile_property(element, name);
        self.check_pattern(element, &template);
        template
    }

    fn check_pattern(&mut self, element: &JmxElement<'a>, template: &TextTemplate) {
        if let Some(text) = template.as_literal()
            && let Err(fault) = regex_pattern::compile_pattern(text)
        {
            self.report_unsupported(element, &fault);
        }
    }

    fn compile_response_field(&mut self, element: &JmxElement<'a>, name: &'a str) -> ResponseField {
        let keyword = element.text_property(name);
        ResponseField::from_keyword(keyword).unwrap_or_else(|| {
            let why = format!("field `{keyword}` is not supported");
            self.report_unsupported(element, &why);
            ResponseField::Body
        })
    }

    fn scope_variable(&mut self, element: &JmxElement<'a>) -> Option<TextTemplate> {
        match element.text_property("Sample.scope") {
            "variable" => Some(self.compile_property(element, "Scope.variable")),
            // Embedded resources are not checked; the page itself is, as by default.
            "" | "all" | "parent" => {
                element.ignore_properties(&["Scope.variable"]);
                None
            }
            scope => {
                let why = format!("scope `{scope}` is not supported");
                self.report_unsupported(element, &why);
                None
            }
        }
    }

    pub(super) fn compile_assertion(
        &mut self,
        element: &JmxElement<'a>,
    ) -> Option<SampleAssertion> {
        let judge = match element.class {
            "ResponseAssertion" => self.compile_response_assertion(element),
            "DurationAssertion" => SampleAssertion::Duration(
                self.compile_property(element, "DurationAssertion.duration"),
            ),
            "SizeAssertion" => self.compile_size_assertion(element),
            "XPathAssertion" => {
                self.reject_xml_validation(element, "XPath.validate");
                element.ignore_properties(&[
                    "XPath.quiet",
                    "XPath.report_errors",
                    "XPath.show_warnings",
                    "XPath.namespace",
                    "XPath.whitespace",
                ]);
                SampleAssertion::XPath {
                    path: self.compile_xpath(element, "XPath.xpath", false),
                    inverts: element.flag_property("XPath.negate", false),
                    is_html: element.flag_property("XPath.tolerant", false),
                    is_xpath2: false,
                    variable: self.scope_variable(element),
                }
            }
            "XPath2Assertion" => SampleAssertion::XPath {
                path: self.compile_xpath(element, "XPath.xpath", true),
                inverts: element.flag_property("XPath.negate", false),
                is_html: false,
                is_xpath2: true,
                variable: self.scope_variable(element),
            },
            "MD5HexAssertion" => {
                SampleAssertion::Md5(self.compile_property(element, "MD5HexAssertion.size"))
            }
            "XMLAssertion" => SampleAssertion::Xml,
            "JSONPathAssertion" => {
                // The older form of the plugin's element specifies the format of the response.
                if element.text_property("INPUT_FORMAT") == "YAML" {
                    self.report_unsupported(element, "YAML responses are not supported, only JSON");
                }
                let path = self.compile_property(element, "JSON_PATH");
                if let Some(text) = path.as_literal()
                    && let Err(fault) = json_path::check_path(text)
                {
                    self.report_unsupported(element, &fault);
                }
                let expected = self.compile_property(element, "EXPECTED_VALUE");
                SampleAssertion::Json {
                    path,
                    expected: element.flag_property("JSONVALIDATION", false).then_some(expected),
                    is_regex: element.flag_property("ISREGEX", true),
                    expects_null: element.flag_property("EXPECT_NULL", false),
                    inverts: element.flag_property("INVERT", false),
                    compares_text: false,
                }
            }
            _ => return None,
        };
        if !matches!(element.class, "ResponseAssertion" | "XPathAssertion" | "XPath2Assertion") {
            self.scope_variable(element);
        }
        self.report_unread_properties(element);
        Some(judge)
    }

    fn compile_response_assertion(&mut self, element: &JmxElement<'a>) -> SampleAssertion {
        let subject = match element.text_property("Assertion.test_field") {
            "" | "Assertion.response_data" | "Assertion.response_data_as_document" => {
                AssertionSubject::Body
            }
            "Assertion.response_code" => AssertionSubject::Code,
            "Assertion.response_message" => AssertionSubject::Message,
            "Assertion.response_headers" => AssertionSubject::Headers,
            "Assertion.request_headers" => AssertionSubject::RequestHeaders,
            "Assertion.request_data" => AssertionSubject::Request,
            "Assertion.sample_label" => AssertionSubject::Url,
            field => {
                let why = format!("field `{field}` is not supported");
                self.report_unsupported(element, &why);
                AssertionSubject::Body
            }
        };
        let subject = match element.text_property("Assertion.scope") {
            "variable" => {
                AssertionSubject::Variable(self.compile_property(element, "Scope.variable"))
            }
            "" | "all" | "parent" => {
                element.ignore_properties(&["Scope.variable"]);
                subject
            }
            scope_name => {
                let why = format!("scope `{scope_name}` is not supported");
                self.report_unsupported(element, &why);
                subject
            }
        };
        let bits: u32 = element.text_property("Assertion.test_type").trim().parse().unwrap_or(2);
        let comparison = if bits & 1 != 0 {
            TextComparison::Matches
        } else if bits & 8 != 0 {
            TextComparison::Equals
        } else if bits & 16 != 0 {
            TextComparison::Substring
        } else {
            TextComparison::Contains
        };
        // The misspelled name is JMeter's own.
        let list = element
            .find_property("Asserion.test_strings")
            .or_else(|| element.find_property("Assertion.test_strings"));
        element.ignore_properties(&["Assertion.test_strings"]);
        let texts: Vec<TextTemplate> = collection_entries(list, "")
            .iter()
            .map(|text| self.compile_template(element, text.text().unwrap_or_default()))
            .collect();
        if matches!(comparison, TextComparison::Matches | TextComparison::Contains) {
            for text in &texts {
                self.check_pattern(element, text);
            }
        }
        SampleAssertion::Response {
            subject,
            comparison,
            is_negated: bits & 4 != 0,
            matches_any: bits & 32 != 0,
            patterns: texts,
            message: self.compile_property(element, "Assertion.custom_message"),
            assumes_success: element.flag_property("Assertion.assume_success", false),
        }
    }

    fn compile_size_assertion(&mut self, element: &JmxElement<'a>) -> SampleAssertion {
        let part = match element.text_property("Assertion.test_field") {
            "SizeAssertion.response_data" | "SizeAssertion.response_body" => SizeSubject::Body,
            "SizeAssertion.response_headers" => SizeSubject::Headers,
            "SizeAssertion.response_code" => SizeSubject::Code,
            "SizeAssertion.response_message" => SizeSubject::Message,
            "" | "SizeAssertion.response_network_size" => SizeSubject::All,
            field => {
                let why = format!("field `{field}` is not supported");
                self.report_unsupported(element, &why);
                SizeSubject::All
            }
        };
        let order = match element.text_property("SizeAssertion.operator") {
            "2" => SizeComparison::NotEqual,
            "3" => SizeComparison::Greater,
            "4" => SizeComparison::Less,
            "5" => SizeComparison::GreaterOrEqual,
            "6" => SizeComparison::LessOrEqual,
            _ => SizeComparison::Equal,
        };
        SampleAssertion::Size {
            size: self.compile_property(element, "SizeAssertion.size"),
            comparison: order,
            subject: part,
        }
    }

    pub(super) fn compile_result_action(&mut self, element: &JmxElement<'a>) -> SampleErrorAction {
        let action = match element.text_property("OnError.action") {
            "1" => SampleErrorAction::StopThread,
            "2" | "3" => SampleErrorAction::StopTest,
            "4" => SampleErrorAction::NextLoop,
            "" | "0" => SampleErrorAction::Continue,
            action_name => {
                let why = format!("action `{action_name}` is not supported");
                self.report_unsupported(element, &why);
                SampleErrorAction::Continue
            }
        };
        self.report_unread_properties(element);
        action
    }

    /// Compiles a plugin's data set with rows in random order.
    fn add_random_data_set(&mut self, element: &JmxElement<'a>) -> Option<usize> {
        if let Some(&index) = self.shared_elements.get(&element.id()) {
            return Some(index);
        }
        let charset = self.compile_charset(element, element.text_property("fileEncoding"));
        let file = self.compile_property(element, "filename");
        if file.is_empty() {
            self.report_unsupported(element, "it has no file name");
            return None;
        }
        let names = self.compile_property(element, "variableNames");
        let delimiter = self.compile_property(element, "delimiter");
        let mut data = DataSet::new(file, names, delimiter);
        data.charset = charset;
        data.is_quoted = true;
        data.is_random = element.flag_property("randomOrder", false);
        data.skips_header = element.flag_property("ignoreFirstLine", false);
        data.recycles = element.flag_property("rewindOnTheEndOfList", false);
        data.stops_thread = true;
        if element.flag_property("independentListPerThread", false) {
            data.sharing = RowSharing::Thread;
        }
        self.report_unread_properties(element);
        self.model.data_sets.push(data);
        Some(self.remember_shared_element(element, self.model.data_sets.len() - 1))
    }

    pub(super) fn compile_charset(&mut self, element: &JmxElement<'a>, name: &str) -> JavaCharset {
        let charset = JavaCharset::find(name);
        // A charset given by a variable is taken as UTF-8, as nearly all are.
        if charset.is_none() && !name.contains("${") {
            let why = format!("character set `{name}` is not supported");
            self.report_unsupported(element, &why);
        }
        charset.unwrap_or_default()
    }

    /// Compiles a data set; `None` if it cannot be read.
    pub(super) fn add_data_set(&mut self, element: &JmxElement<'a>) -> Option<usize> {
        if let Some(&index) = self.shared_elements.get(&element.id()) {
            return Some(index);
        }
        if element.class == "RandomCSVDataSetConfig" {
            return self.add_random_data_set(element);
        }
        let charset = self.compile_charset(element, element.text_property("fileEncoding"));
        let file = self.compile_property(element, "filename");
        if file.is_empty() {
            self.report_unsupported(element, "it has no file name");
            return None;
        }
        let names = self.compile_property(element, "variableNames");
        let delimiter = self.compile_property(element, "delimiter");
        let mut data = DataSet::new(file, names, delimiter);
        data.charset = charset;
        data.is_quoted = element.flag_property("quotedData", false);
        data.skips_header = element.flag_property("ignoreFirstLine", false);
        data.recycles = element.flag_property("recycle", true);
        data.stops_thread = element.flag_property("stopThread", false);
        data.sharing = match element.text_property("shareMode") {
            "" | "shareMode.all" => RowSharing::All,
            "shareMode.group" => RowSharing::Group,
            "shareMode.thread" => RowSharing::Thread,
            group_name => RowSharing::Named(group_name.to_owned()),
        };
        self.report_unread_properties(element);
        self.model.data_sets.push(data);
        Some(self.remember_shared_element(element, self.model.data_sets.len() - 1))
    }
}
