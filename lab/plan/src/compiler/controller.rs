//! Controllers and samplers: the tree that a thread walks.

use std::sync::Mutex;

use super::super::assertion::SampleAssertion;
use super::super::expression;
use super::super::jmx_element::{JmxElement, collection_entries};
use super::super::model::{
    FlowControlAction, InterleaveMode, IterationEvent, JavaSamplerSpec, PlanCounter, PlanNode,
    PlanNodeKind, PlanSampler, RandomVariable, SamplePostProcessor, SamplerAction,
    SharedTimerState, UserParameters,
};
use super::super::template::TextTemplate;
use super::assertion::compile_assertion;
use super::extractor::compile_extractor;
use super::script::ScriptPhase;
use super::{ElementScope, JmxCompiler, is_inert, is_listener};

/// Maximum nesting depth, modules included: a module may contain itself.
const MAX_NESTING_DEPTH: usize = 100;

impl<'a> JmxCompiler<'a> {
    /// Compiles the children of a controller.
    pub(super) fn compile_children(
        &mut self,
        controller: usize,
        elements: &'a [JmxElement<'a>],
        outer: Option<&ElementScope<'_, 'a>>,
    ) {
        let levels = ElementScope {
            level_elements: elements,
            outer_scope: outer,
            controller: Some(controller),
        };
        self.depth += 1;
        if self.depth > MAX_NESTING_DEPTH {
            if let Some(first) = elements.first() {
                self.reader.report_unsupported(
                    first,
                    "controllers are nested too deeply; does a module include itself?",
                );
            }
            self.depth -= 1;
            return;
        }
        for element in elements.iter().filter(|element| element.is_enabled) {
            if let Some(child) = self.compile_child(element, &levels)
                && let Some(node) = self.model.nodes.get_mut(controller)
            {
                node.children.push(child);
            }
        }
        self.add_iteration_events(elements, controller);
        self.depth -= 1;
    }

    fn compile_child(
        &mut self,
        element: &'a JmxElement<'a>,
        levels: &ElementScope<'_, 'a>,
    ) -> Option<usize> {
        if self.is_sampler_scoped(element) {
            self.check_sampler_element(element);
            return None;
        }
        if is_inert(element.class) || element.class == "Arguments" {
            return None;
        }
        if is_listener(element.class) {
            self.compile_listener(element);
            return None;
        }
        if element.class == "ModuleController" {
            return self.compile_module(element, levels);
        }
        if let Some(action) = self.sampler_action(element, levels) {
            return Some(self.add_sampler(element, action, levels));
        }
        if element.class == "IncludeController" {
            return self.compile_include(element, levels);
        }
        self.compile_controller(element, levels)
    }

    /// Compiles a controller and its subtree.
    fn compile_controller(
        &mut self,
        element: &'a JmxElement<'a>,
        levels: &ElementScope<'_, 'a>,
    ) -> Option<usize> {
        let mut kind = self.controller_kind(element)?;
        if let PlanNodeKind::Transaction { is_parent: true, assertions, .. } = &mut kind {
            *assertions = self.compile_assertions(element, levels);
        }
        let node = self.add_node(kind, element);
        let section = (element.class == "CriticalSectionController")
            .then(|| self.reader.compile_property(element, "CriticalSectionController.lockName"));
        self.reader.report_unread_properties(element);
        if let Some(name) = section.clone() {
            self.add_critical_section_gate(node, FlowControlAction::EnterSection(name));
        }
        self.compile_children(node, &element.children, Some(levels));
        if section.is_some() {
            self.add_critical_section_gate(node, FlowControlAction::LeaveSection);
        }
        Some(node)
    }

    /// Compiles the assertions that apply to an element.
    fn compile_assertions(
        &mut self,
        element: &'a JmxElement<'a>,
        levels: &ElementScope<'_, 'a>,
    ) -> Vec<SampleAssertion> {
        let own = ElementScope {
            level_elements: &element.children,
            outer_scope: Some(levels),
            controller: levels.controller,
        };
        let mut assertions = Vec::new();
        for part in own.outermost_first() {
            match super::script::script_phase(part.class) {
                Some(ScriptPhase::Assertion) => {
                    assertions.extend(self.compile_script(part).map(SampleAssertion::Script))
                }
                Some(_) => {}
                None => assertions.extend(compile_assertion(&mut self.reader, part)),
            }
        }
        assertions
    }

    /// Adds the node that enters or leaves a critical section.
    fn add_critical_section_gate(&mut self, section: usize, flow: FlowControlAction) {
        let sampler = PlanSampler::from_action(SamplerAction::FlowControl(flow));
        let kind = PlanNodeKind::Sampler(Box::new(sampler));
        let gate = PlanNode {
            kind,
            name: TextTemplate::default(),
            children: Vec::new(),
            events: Vec::new(),
        };
        self.model.nodes.push(gate);
        let gate_index = self.model.nodes.len() - 1;
        if let Some(node) = self.model.nodes.get_mut(section) {
            node.children.push(gate_index);
        }
    }

    /// Compiles the test fragment of another file in place of an include controller.
    fn compile_include(
        &mut self,
        element: &'a JmxElement<'a>,
        levels: &ElementScope<'_, 'a>,
    ) -> Option<usize> {
        let name = element.text_property("IncludeController.includepath").trim();
        self.reader.report_unread_properties(element);
        let node = self.add_node(PlanNodeKind::Simple, element);
        if name.is_empty() {
            // As in JMeter, a controller without a file name includes nothing.
            return Some(node);
        }
        let Some((_, file, roots)) =
            self.included_files.iter().find(|(include_name, ..)| *include_name == name)
        else {
            let why = format!("the name of the file `{name}` is known only while the plan runs");
            self.reader.report_unsupported(element, &why);
            return None;
        };
        let mut fragments = Vec::new();
        find_fragments(roots, &mut fragments);
        let [fragment] = fragments.as_slice() else {
            let why = format!(
                "`{name}` has {} test fragments; it must have exactly one",
                fragments.len()
            );
            self.reader.report_unsupported(element, &why);
            return None;
        };
        let outer = std::mem::replace(&mut self.reader.file, (*file).to_owned());
        let outer_roots = std::mem::replace(&mut self.roots, roots.as_slice());
        self.gather_variables(&fragment.children);
        self.compile_children(node, &fragment.children, Some(levels));
        self.reader.file = outer;
        self.roots = outer_roots;
        Some(node)
    }

    /// Checks an element that applies to samplers, even if no sampler is in its scope.
    pub(super) fn check_sampler_element(&mut self, element: &'a JmxElement<'a>) {
        if super::script::script_phase(element.class).is_some() {
            self.compile_script(element);
            return;
        }
        let is_compiled = self.compile_timer(element).is_some()
            || compile_extractor(&mut self.reader, element).is_some()
            || compile_assertion(&mut self.reader, element).is_some();
        if !is_compiled {
            self.reader.count_element(element);
        }
        // Sampler-scoped elements have no sampler here, as in JMeter.
        for child in element.children.iter().filter(|child| child.is_enabled) {
            if !is_listener(child.class)
                && !self.is_sampler_scoped(child)
                && child.class != "Arguments"
            {
                self.reader.report_unsupported(child, "it is below an element that runs nothing");
            }
        }
    }

    fn controller_kind(&mut self, element: &'a JmxElement<'a>) -> Option<PlanNodeKind> {
        Some(match element.class {
            // Separate samplers around its children enter and leave it.
            "CriticalSectionController" => PlanNodeKind::Simple,
            "GenericController" | "RecordingController" => {
                element.ignore_properties(&["RecordingController.sampleTransactionName"]);
                PlanNodeKind::Simple
            }
            "LoopController" => {
                let only_once = !element.flag_property("LoopController.continue_forever", true);
                PlanNodeKind::Loop {
                    count: self.reader.compile_property(element, "LoopController.loops"),
                    only_once,
                }
            }
            "OnceOnlyController" => PlanNodeKind::OnceOnly,
            "IfController" => self.if_controller_kind(element),
            "WhileController" => PlanNodeKind::While(
                self.reader.compile_property(element, "WhileController.condition"),
            ),
            "ForeachController" => PlanNodeKind::ForEach {
                input_prefix: self.reader.compile_property(element, "ForeachController.inputVal"),
                output_variable: self
                    .reader
                    .compile_property(element, "ForeachController.returnVal"),
                start_index: self.reader.compile_property(element, "ForeachController.startIndex"),
                end_index: self.reader.compile_property(element, "ForeachController.endIndex"),
                has_separator: element.flag_property("ForeachController.useSeparator", true),
            },
            "TransactionController" => PlanNodeKind::Transaction {
                is_parent: element.flag_property("TransactionController.parent", false),
                includes_timers: element.flag_property("TransactionController.includeTimers", true),
                assertions: Vec::new(),
            },
            "ThroughputController" => {
                let is_percent = element.text_property("ThroughputController.style") == "1";
                let property = if is_percent {
                    "ThroughputController.percentThroughput"
                } else {
                    "ThroughputController.maxThroughput"
                };
                element.ignore_properties(&[
                    "ThroughputController.maxThroughput",
                    "ThroughputController.percentThroughput",
                ]);
                let value = super::super::jmx_element::nested_text(element.node, property)
                    .or_else(|| float_property(element, property))
                    .unwrap_or("1");
                PlanNodeKind::Throughput {
                    is_percent,
                    value: self.reader.compile_template(element, value.trim()),
                    per_user: element.flag_property("ThroughputController.perThread", false),
                    meter_index: self.add_meter(),
                }
            }
            "RandomOrderController" => PlanNodeKind::RandomOrder,
            "InterleaveControl" | "RandomController" => PlanNodeKind::Interleave(InterleaveMode {
                is_random: element.class == "RandomController",
                by_controller: element.text_property("InterleaveControl.style").trim() == "1",
                // The misspelled name is JMeter's own.
                across_threads: element.flag_property("InterleaveControl.accrossThreads", false),
            }),
            "SwitchController" => PlanNodeKind::Switch(
                self.reader.compile_property(element, "SwitchController.value"),
            ),
            "RunTime" => {
                PlanNodeKind::Runtime(self.reader.compile_property(element, "RunTime.seconds"))
            }
            _ => {
                self.reader.report_unsupported(element, "element not supported by tympan lab");
                return None;
            }
        })
    }

    fn if_controller_kind(&mut self, element: &'a JmxElement<'a>) -> PlanNodeKind {
        let condition = self.reader.compile_property(element, "IfController.condition");
        let is_script = !element.flag_property("IfController.useExpression", false);
        if is_script && let Err(fault) = expression::check_javascript(&condition) {
            self.reader.report_unsupported(element, &fault);
        }
        let every = element.flag_property("IfController.evaluateAll", false);
        PlanNodeKind::If { condition, is_script, evaluates_for_all: every }
    }

    pub(super) fn add_meter(&mut self) -> usize {
        self.model.meters.push(SharedTimerState::default());
        self.model.meters.len() - 1
    }

    /// Compiles the element that a module controller refers to, in place of the module.
    fn compile_module(
        &mut self,
        element: &'a JmxElement<'a>,
        levels: &ElementScope<'_, 'a>,
    ) -> Option<usize> {
        let path: Vec<&str> =
            collection_entries(element.find_property("ModuleController.node_path"), "")
                .iter()
                .map(|name| name.text().unwrap_or_default())
                .collect();
        self.reader.report_unread_properties(element);
        let target =
            find_module(self.roots, &path).or_else(|| find_module(self.roots, path.get(1..)?));
        let Some(target) = target else {
            let why = format!("it refers to `{}`, which is not in this file", path.join("/"));
            self.reader.report_unsupported(element, &why);
            return None;
        };
        let kind = if super::thread_group::is_thread_group(target)
            || target.class == "TestFragmentController"
        {
            PlanNodeKind::Simple
        } else {
            return self.compile_controller(target, levels);
        };
        let node = self.add_node(kind, target);
        self.compile_children(node, &target.children, Some(levels));
        Some(node)
    }

    fn sampler_action(
        &mut self,
        element: &'a JmxElement<'a>,
        levels: &ElementScope<'_, 'a>,
    ) -> Option<SamplerAction> {
        Some(match element.class {
            "HTTPSamplerProxy" | "HTTPSampler" | "HTTPSampler2" => {
                SamplerAction::Http(Box::new(self.compile_http_spec(element, levels)))
            }
            "DebugSampler" => SamplerAction::Debug,
            "JSR223Sampler" | "BeanShellSampler" => match self.compile_script(element) {
                Some(script) => SamplerAction::Script(script),
                // The error in its script is already reported.
                None => SamplerAction::FlowControl(FlowControlAction::NoOp),
            },
            "TestAction" => SamplerAction::FlowControl(self.compile_flow_control(element)),
            "JavaSampler" => {
                let class = element.text_property("classname");
                if !class.ends_with(".JavaTest") && !class.ends_with(".SleepTest") {
                    let why = format!("Java class `{class}` cannot run in tympan lab");
                    self.reader.report_unsupported(element, &why);
                    return None;
                }
                SamplerAction::Java(Box::new(
                    self.compile_java_sampler(element, class.ends_with(".SleepTest")),
                ))
            }
            "DummySampler" => SamplerAction::Java(Box::new(self.compile_dummy_sampler(element))),
            _ => return None,
        })
    }

    /// Compiles the sampler of a plugin that produces its own response.
    fn compile_dummy_sampler(&mut self, element: &JmxElement<'a>) -> JavaSamplerSpec {
        element.ignore_properties(&["REQUEST_DATA", "LATENCY", "CONNECT", "URL", "RESULT_CLASS"]);
        let time = self.reader.compile_property(element, "RESPONSE_TIME");
        // The plugin misspells the name.
        let is_ok = element.flag_property("SUCCESFULL", true);
        JavaSamplerSpec {
            sleep: if element.flag_property("WAITING", true) {
                time
            } else {
                TextTemplate::literal("0")
            },
            code: self.reader.compile_property(element, "RESPONSE_CODE"),
            message: self.reader.compile_property(element, "RESPONSE_MESSAGE"),
            status: TextTemplate::literal(if is_ok { "OK" } else { "KO" }),
            result: self.reader.compile_property(element, "RESPONSE_DATA"),
            ..JavaSamplerSpec::default()
        }
    }

    fn compile_flow_control(&mut self, element: &'a JmxElement<'a>) -> FlowControlAction {
        let is_thread = element.text_property("ActionProcessor.target") != "2";
        let pause = self.reader.compile_property(element, "ActionProcessor.duration");
        match element.text_property("ActionProcessor.action") {
            "0" if is_thread => FlowControlAction::StopThread,
            "0" | "2" => FlowControlAction::StopTest,
            "1" => {
                if pause.as_literal() == Some("0") {
                    FlowControlAction::NoOp
                } else {
                    FlowControlAction::Pause(pause)
                }
            }
            "3" => FlowControlAction::NextLoop,
            "4" => FlowControlAction::ContinueLoop,
            "5" => FlowControlAction::BreakLoop,
            _ => FlowControlAction::Pause(pause),
        }
    }

    fn compile_java_sampler(
        &mut self,
        element: &'a JmxElement<'a>,
        is_sleep: bool,
    ) -> JavaSamplerSpec {
        let mut test = JavaSamplerSpec::default();
        for entry in collection_entries(element.find_property("arguments"), "Arguments.arguments") {
            let name =
                super::super::jmx_element::nested_text(entry, "Argument.name").unwrap_or_default();
            let value =
                super::super::jmx_element::nested_text(entry, "Argument.value").unwrap_or_default();
            let value = self.reader.compile_template(element, value);
            match name {
                "Sleep_Time" | "SleepTime" => test.sleep = value,
                "Sleep_Mask" | "SleepMask" => test.sleep_mask = value,
                "Label" => test.label = value,
                "ResponseCode" => test.code = value,
                "ResponseMessage" => test.message = value,
                "Status" => test.status = value,
                "ResultData" => test.result = value,
                _ => {}
            }
        }
        if is_sleep {
            test.status = TextTemplate::literal("OK");
        }
        test
    }

    fn add_sampler(
        &mut self,
        element: &'a JmxElement<'a>,
        action: SamplerAction,
        levels: &ElementScope<'_, 'a>,
    ) -> usize {
        let own = ElementScope {
            level_elements: &element.children,
            outer_scope: Some(levels),
            controller: levels.controller,
        };
        let mut sampler = PlanSampler::from_action(action);
        // JMeter runs the elements nearest to the plan first, and siblings in file order.
        for part in own.outermost_first() {
            if let Some(phase) = super::script::script_phase(part.class) {
                let Some(script) = self.compile_script(part) else { continue };
                match phase {
                    ScriptPhase::PreProcessor => sampler.pre_processors.push(script),
                    ScriptPhase::PostProcessor => {
                        sampler.post_processors.push(SamplePostProcessor::Script(script))
                    }
                    ScriptPhase::Assertion => {
                        sampler.assertions.push(SampleAssertion::Script(script))
                    }
                    ScriptPhase::Listener => sampler.listeners.push(script),
                    ScriptPhase::Sampler => {}
                }
            } else if let Some(timer) = self.compile_timer(part) {
                sampler.timers.push(timer);
            } else if let Some(extractor) = compile_extractor(&mut self.reader, part) {
                sampler.post_processors.push(SamplePostProcessor::Extractor(Box::new(extractor)));
            } else if let Some(assertion) = compile_assertion(&mut self.reader, part) {
                sampler.assertions.push(assertion);
            } else if part.class == "ResultAction" {
                let action = self.compile_result_action(part);
                sampler.post_processors.push(SamplePostProcessor::OnError(action));
            } else if part.class == "UserParameters"
                && let Some(index) = self.add_user_parameters(part)
                && self
                    .model
                    .user_parameters
                    .get(index)
                    .is_some_and(|parameters| !parameters.per_iteration)
            {
                sampler.user_parameters.push(index);
            }
        }
        let node = self.add_node(PlanNodeKind::Sampler(Box::new(sampler)), element);
        element.ignore_properties(&["DebugSampler", "classname"]);
        self.reader.report_unread_properties(element);
        for part in element.children.iter().filter(|part| part.is_enabled) {
            if is_listener(part.class) {
                self.compile_listener(part);
            } else if !self.is_sampler_scoped(part)
                && part.class != "Arguments"
                && !is_inert(part.class)
            {
                self.reader.report_unsupported(part, "element not supported by tympan lab");
            }
        }
        if let Some(controller) = levels.controller {
            self.add_iteration_events(&element.children, controller);
        }
        node
    }

    /// Adds the events of a level's elements at the start of an iteration of their controller.
    pub(super) fn add_iteration_events(
        &mut self,
        elements: &'a [JmxElement<'a>],
        controller: usize,
    ) {
        for element in elements.iter().filter(|element| element.is_enabled) {
            match element.class {
                "CSVDataSet" | "RandomCSVDataSetConfig" => {
                    if let Some(index) = self.add_data_set(element) {
                        self.add_event(controller, IterationEvent::DataSet(index));
                    }
                }
                "CounterConfig" => {
                    let index = self.add_counter(element);
                    self.add_event(controller, IterationEvent::Counter(index));
                }
                "RandomVariableConfig" => {
                    let index = self.add_random_variable(element);
                    self.add_event(controller, IterationEvent::RandomVariable(index));
                }
                "UserParameters" => {
                    if let Some(index) = self.add_user_parameters(element)
                        && self
                            .model
                            .user_parameters
                            .get(index)
                            .is_some_and(|parameters| parameters.per_iteration)
                    {
                        self.add_event(controller, IterationEvent::UserParameters(index));
                    }
                }
                _ => {}
            }
        }
    }

    fn add_counter(&mut self, element: &'a JmxElement<'a>) -> usize {
        if let Some(&index) = self.shared_elements.get(&element.id()) {
            return index;
        }
        let counter = PlanCounter {
            start: self.reader.compile_property(element, "CounterConfig.start"),
            step: self.reader.compile_property(element, "CounterConfig.incr"),
            end: self.reader.compile_property(element, "CounterConfig.end"),
            name: self.reader.compile_property(element, "CounterConfig.name"),
            format: self.reader.compile_property(element, "CounterConfig.format"),
            per_user: element.flag_property("CounterConfig.per_user", false),
            resets: element.flag_property("CounterConfig.reset_on_tg_iteration", false),
            shared_value: Mutex::default(),
        };
        self.reader.report_unread_properties(element);
        self.model.counters.push(counter);
        self.remember_shared_element(element, self.model.counters.len() - 1)
    }

    fn add_random_variable(&mut self, element: &'a JmxElement<'a>) -> usize {
        if let Some(&index) = self.shared_elements.get(&element.id()) {
            return index;
        }
        // A seed would require Java's generator; sequences differ, ranges do not.
        element.ignore_properties(&["perThread", "randomSeed"]);
        let variable = RandomVariable {
            name: self.reader.compile_property(element, "variableName"),
            low: self.reader.compile_property(element, "minimumValue"),
            high: self.reader.compile_property(element, "maximumValue"),
            format: self.reader.compile_property(element, "outputFormat"),
        };
        self.reader.report_unread_properties(element);
        self.model.random_variables.push(variable);
        self.remember_shared_element(element, self.model.random_variables.len() - 1)
    }

    fn add_user_parameters(&mut self, element: &JmxElement<'a>) -> Option<usize> {
        if let Some(&index) = self.shared_elements.get(&element.id()) {
            return Some(index);
        }
        let texts = |node: &roxmltree::Node<'a, 'a>| -> Vec<&'a str> {
            node.children()
                .filter(roxmltree::Node::is_element)
                .map(|entry| entry.text().unwrap_or_default())
                .collect()
        };
        let names = element
            .find_property("UserParameters.names")
            .map(|node| texts(&node))
            .unwrap_or_default();
        let users = collection_entries(element.find_property("UserParameters.thread_values"), "");
        let parameters = UserParameters {
            names: names.iter().map(|name| self.reader.compile_template(element, name)).collect(),
            user_values: users
                .iter()
                .map(|user| {
                    texts(user)
                        .iter()
                        .map(|value| self.reader.compile_template(element, value))
                        .collect()
                })
                .collect(),
            per_iteration: element.flag_property("UserParameters.per_iteration", false),
        };
        self.reader.report_unread_properties(element);
        self.model.user_parameters.push(parameters);
        Some(self.remember_shared_element(element, self.model.user_parameters.len() - 1))
    }

    pub(super) fn remember_shared_element(
        &mut self,
        element: &JmxElement<'_>,
        index: usize,
    ) -> usize {
        self.shared_elements.insert(element.id(), index);
        index
    }
}

/// Returns the value of a `FloatProperty`, whose name is in a child element.
pub(super) fn float_property<'a>(element: &JmxElement<'a>, property: &str) -> Option<&'a str> {
    let of = |node: roxmltree::Node<'a, 'a>, tag: &str| {
        node.children().find(|child| child.has_tag_name(tag)).and_then(|child| child.text())
    };
    element
        .node
        .children()
        .filter(roxmltree::Node::is_element)
        .find(|node| of(*node, "name") == Some(property))
        .and_then(|node| of(node, "value"))
}

/// Finds the enabled test fragments of a file.
fn find_fragments<'e, 'a>(elements: &'e [JmxElement<'a>], fragments: &mut Vec<&'e JmxElement<'a>>) {
    for element in elements.iter().filter(|element| element.is_enabled) {
        if element.class == "TestFragmentController" {
            fragments.push(element);
        } else {
            find_fragments(&element.children, fragments);
        }
    }
}

fn find_module<'e, 'a>(
    elements: &'e [JmxElement<'a>],
    path: &[&str],
) -> Option<&'e JmxElement<'a>> {
    let (first, rest) = path.split_first()?;
    for element in elements.iter().filter(|element| element.name == *first) {
        if rest.is_empty() {
            return Some(element);
        }
        if let Some(module) = find_module(&element.children, rest) {
            return Some(module);
        }
    }
    None
}
