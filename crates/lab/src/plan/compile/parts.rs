//! Timers, extractors, assertions and data sets: what stands beside samplers.

use super::super::data::{DataSet, Share};
use super::super::element::{Element, entries};
use super::super::extract::{Extractor, Field};
use super::super::judge::{Judge, Order, Subject, Way};
use super::super::model::{OnError, Pace, Timer};
use super::super::pattern;
use super::super::template::Template;
use super::Compiler;

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
            | "RegexExtractor"
            | "JSONPostProcessor"
            | "BoundaryExtractor"
            | "ResultAction"
            | "ResponseAssertion"
            | "DurationAssertion"
            | "SizeAssertion"
            | "JSONPathAssertion"
            | "CSVDataSet"
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
                element.ignore(&["timeoutInMs"]);
                let meter = self.shared_meter(element);
                Timer::Synchronize { size: self.property(element, "groupSize"), meter }
            }
            _ => return None,
        };
        self.close(element);
        Some(timer)
    }

    fn throughput_timer(&mut self, element: &Element<'a>) -> Timer {
        let mode = match element.text("calcMode") {
            "" | "0" => Pace::ThisThread,
            "1" | "2" => Pace::AllThreads,
            _ => Pace::Shared,
        };
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
        Timer::Throughput { per_minute, mode, meter: self.shared_meter(element) }
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
            "JSONPostProcessor" => {
                let paths = self.property(element, "JSONPostProcessor.jsonPathExprs");
                if let Some(text) = paths.as_literal() {
                    let text = text.to_owned();
                    for path in text.split(';') {
                        if let Err(fault) = pattern::check_json_path(path) {
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
            "JSONPathAssertion" => {
                let path = self.property(element, "JSON_PATH");
                if let Some(text) = path.as_literal()
                    && let Err(fault) = pattern::check_json_path(text)
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
                }
            }
            _ => return None,
        };
        if element.class != "ResponseAssertion" {
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
        let of_body = match element.text("Assertion.test_field") {
            "SizeAssertion.response_body" => true,
            "" | "SizeAssertion.response_network_size" => false,
            other => {
                let why = format!("field `{other}` is not supported");
                self.refuse(element, &why);
                false
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
        Judge::Size { size: self.property(element, "SizeAssertion.size"), order, of_body }
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

    /// Compiles a data set; `None` if it cannot be read.
    pub(super) fn data(&mut self, element: &Element<'a>) -> Option<usize> {
        if let Some(&place) = self.known.get(&element.id()) {
            return Some(place);
        }
        element.ignore(&["fileEncoding"]);
        let encoding = element.text("fileEncoding").trim().to_ascii_lowercase();
        if !matches!(encoding.as_str(), "" | "utf-8" | "utf8" | "us-ascii")
            && !encoding.contains("${")
        {
            let why = format!("encoding `{encoding}` is not supported, only UTF-8");
            self.refuse(element, &why);
        }
        let file = self.property(element, "filename");
        if file.is_empty() {
            self.refuse(element, "it names no file");
            return None;
        }
        let names = self.property(element, "variableNames");
        let delimiter = self.property(element, "delimiter");
        let mut data = DataSet::new(file, names, delimiter);
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
