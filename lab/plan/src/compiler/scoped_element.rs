//! Timers and data sets of samplers, and the elements that accompany samplers.

use super::super::data_set::{DataSet, RowSharing};
use super::super::jmx_element::JmxElement;
use super::super::model::{PreciseThroughput, SampleErrorAction, SamplerTimer, ThroughputMode};
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
                SamplerTimer::Constant(self.reader.compile_property(element, "ConstantTimer.delay"))
            }
            "UniformRandomTimer" | "GaussianRandomTimer" | "PoissonRandomTimer" => {
                let delay = self.reader.compile_property(element, "ConstantTimer.delay");
                let range = self.reader.compile_property(element, "RandomTimer.range");
                match element.class {
                    "UniformRandomTimer" => SamplerTimer::Uniform { delay, range },
                    "GaussianRandomTimer" => SamplerTimer::Gaussian { delay, range },
                    _ => SamplerTimer::Poisson { delay, range },
                }
            }
            "ConstantThroughputTimer" => self.compile_throughput_timer(element),
            "SyncTimer" => {
                let meter = self.shared_meter(element);
                let size = self.reader.compile_property(element, "groupSize");
                SamplerTimer::Synchronize {
                    size,
                    timeout: self.reader.compile_property(element, "timeoutInMs"),
                    meter_index: meter,
                }
            }
            "PreciseThroughputTimer" => self.compile_precise_timer(element),
            "VariableThroughputTimer" => SamplerTimer::ShapedThroughput {
                rows: self.reader.compile_number_rows(element, "load_profile"),
                meter_index: self.shared_meter(element),
            },
            "JSR223Timer" | "BeanShellTimer" => SamplerTimer::Script(self.compile_script(element)?),
            _ => return None,
        };
        self.reader.report_unread_properties(element);
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
            self.reader.compile_template(element, text.trim())
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
            self.reader
                .report_unsupported(element, &format!("calculation by `{text}` is not supported"));
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
        let per_minute = self.reader.compile_template(element, text);
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

    pub(super) fn compile_result_action(&mut self, element: &JmxElement<'a>) -> SampleErrorAction {
        let action = match element.text_property("OnError.action") {
            "1" => SampleErrorAction::StopThread,
            "2" | "3" => SampleErrorAction::StopTest,
            "4" => SampleErrorAction::NextLoop,
            "" | "0" => SampleErrorAction::Continue,
            action_name => {
                let why = format!("action `{action_name}` is not supported");
                self.reader.report_unsupported(element, &why);
                SampleErrorAction::Continue
            }
        };
        self.reader.report_unread_properties(element);
        action
    }

    /// Compiles a plugin's data set with rows in random order.
    fn add_random_data_set(&mut self, element: &JmxElement<'a>) -> Option<usize> {
        if let Some(&index) = self.shared_elements.get(&element.id()) {
            return Some(index);
        }
        let charset = self.reader.compile_charset(element, element.text_property("fileEncoding"));
        let file = self.reader.compile_property(element, "filename");
        if file.is_empty() {
            self.reader.report_unsupported(element, "it has no file name");
            return None;
        }
        let names = self.reader.compile_property(element, "variableNames");
        let delimiter = self.reader.compile_property(element, "delimiter");
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
        self.reader.report_unread_properties(element);
        self.model.data_sets.push(data);
        Some(self.remember_shared_element(element, self.model.data_sets.len() - 1))
    }

    /// Compiles a data set; `None` if it cannot be read.
    pub(super) fn add_data_set(&mut self, element: &JmxElement<'a>) -> Option<usize> {
        if let Some(&index) = self.shared_elements.get(&element.id()) {
            return Some(index);
        }
        if element.class == "RandomCSVDataSetConfig" {
            return self.add_random_data_set(element);
        }
        let charset = self.reader.compile_charset(element, element.text_property("fileEncoding"));
        let file = self.reader.compile_property(element, "filename");
        if file.is_empty() {
            self.reader.report_unsupported(element, "it has no file name");
            return None;
        }
        let names = self.reader.compile_property(element, "variableNames");
        let delimiter = self.reader.compile_property(element, "delimiter");
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
        self.reader.report_unread_properties(element);
        self.model.data_sets.push(data);
        Some(self.remember_shared_element(element, self.model.data_sets.len() - 1))
    }
}
