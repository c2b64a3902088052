//! Controllers and samplers: the tree that a thread walks.

use std::sync::Mutex;

use super::super::element::{Element, entries};
use super::super::expression;
use super::super::judge::Judge;
use super::super::model::{
    Action, After, Counter, Event, Flow, Interleave, JavaTest, Kind, Meter, Node, Parameters,
    RandomVariable, Sampler,
};
use super::super::template::Template;
use super::script::Moment;
use super::{Compiler, Levels, is_idle, is_listener};

/// Deepest nesting, modules included: a module may hold itself.
const DEEPEST: usize = 100;

impl<'a> Compiler<'a> {
    /// Compiles what stands below a controller.
    pub(super) fn children(
        &mut self,
        controller: usize,
        elements: &'a [Element<'a>],
        outer: Option<&Levels<'_, 'a>>,
    ) {
        let levels = Levels { own: elements, outer, controller: Some(controller) };
        self.depth += 1;
        if self.depth > DEEPEST {
            if let Some(first) = elements.first() {
                self.refuse(first, "controllers are nested too deeply; does a module hold itself?");
            }
            self.depth -= 1;
            return;
        }
        for element in elements.iter().filter(|element| element.is_enabled) {
            if let Some(child) = self.child(element, &levels)
                && let Some(node) = self.model.nodes.get_mut(controller)
            {
                node.children.push(child);
            }
        }
        self.events_of(elements, controller);
        self.depth -= 1;
    }

    fn child(&mut self, element: &'a Element<'a>, levels: &Levels<'_, 'a>) -> Option<usize> {
        if self.is_scoped(element) {
            self.look_at(element);
            return None;
        }
        if is_idle(element.class) || element.class == "Arguments" {
            return None;
        }
        if is_listener(element.class) {
            self.listener(element);
            return None;
        }
        if element.class == "ModuleController" {
            return self.module(element, levels);
        }
        if let Some(action) = self.action(element, levels) {
            return Some(self.sampler(element, action, levels));
        }
        if element.class == "IncludeController" {
            return self.include(element, levels);
        }
        self.group_of(element, levels)
    }

    /// Compiles a controller with everything below it.
    fn group_of(&mut self, element: &'a Element<'a>, levels: &Levels<'_, 'a>) -> Option<usize> {
        let mut kind = self.controller(element)?;
        if let Kind::Transaction { is_parent: true, judges, .. } = &mut kind {
            *judges = self.judges(element, levels);
        }
        let node = self.node(kind, element);
        let section = (element.class == "CriticalSectionController")
            .then(|| self.property(element, "CriticalSectionController.lockName"));
        self.close(element);
        if let Some(name) = section.clone() {
            self.gate(node, Flow::Enter(name));
        }
        self.children(node, &element.children, Some(levels));
        if section.is_some() {
            self.gate(node, Flow::Leave);
        }
        Some(node)
    }

    /// Compiles the assertions in whose scope an element is.
    fn judges(&mut self, element: &'a Element<'a>, levels: &Levels<'_, 'a>) -> Vec<Judge> {
        let own =
            Levels { own: &element.children, outer: Some(levels), controller: levels.controller };
        let mut judges = Vec::new();
        for part in own.outermost_first() {
            match super::script::moment(part.class) {
                Some(Moment::Judge) => judges.extend(self.script(part).map(Judge::Script)),
                Some(_) => {}
                None => judges.extend(self.judge(part)),
            }
        }
        judges
    }

    /// Adds what enters or leaves a critical section.
    fn gate(&mut self, section: usize, flow: Flow) {
        let sampler = Sampler::of(Action::Flow(flow));
        let kind = Kind::Sampler(Box::new(sampler));
        let gate =
            Node { kind, name: Template::default(), children: Vec::new(), events: Vec::new() };
        self.model.nodes.push(gate);
        let place = self.model.nodes.len() - 1;
        if let Some(node) = self.model.nodes.get_mut(section) {
            node.children.push(place);
        }
    }

    /// Compiles the test fragment of another file in the place of an include controller.
    fn include(&mut self, element: &'a Element<'a>, levels: &Levels<'_, 'a>) -> Option<usize> {
        let name = element.text("IncludeController.includepath").trim();
        self.close(element);
        let node = self.node(Kind::Simple, element);
        if name.is_empty() {
            // As in JMeter, a controller that names nothing includes nothing.
            return Some(node);
        }
        let Some((_, file, roots)) = self.included.iter().find(|(known, ..)| *known == name) else {
            let why = format!("the name of the file `{name}` is known only while the plan runs");
            self.refuse(element, &why);
            return None;
        };
        let mut fragments = Vec::new();
        find_fragments(roots, &mut fragments);
        let [fragment] = fragments.as_slice() else {
            let why = format!(
                "`{name}` has {} test fragments; one is included, no more and no less",
                fragments.len()
            );
            self.refuse(element, &why);
            return None;
        };
        let outer = std::mem::replace(&mut self.file, (*file).to_owned());
        let outer_roots = std::mem::replace(&mut self.roots, roots.as_slice());
        self.gather_variables(&fragment.children);
        self.children(node, &fragment.children, Some(levels));
        self.file = outer;
        self.roots = outer_roots;
        Some(node)
    }

    /// Checks an element that belongs to samplers, also where no sampler is in its scope.
    pub(super) fn look_at(&mut self, element: &'a Element<'a>) {
        if super::script::moment(element.class).is_some() {
            self.script(element);
            return;
        }
        let is_compiled = self.timer(element).is_some()
            || self.extractor(element).is_some()
            || self.judge(element).is_some();
        if !is_compiled {
            self.count(element);
        }
        // What belongs to samplers has none here, as in JMeter.
        for child in element.children.iter().filter(|child| child.is_enabled) {
            if !is_listener(child.class) && !self.is_scoped(child) && child.class != "Arguments" {
                self.refuse(child, "it stands below an element that runs nothing");
            }
        }
    }

    fn controller(&mut self, element: &'a Element<'a>) -> Option<Kind> {
        Some(match element.class {
            // What enters and leaves it are samplers of its own, around those that it holds.
            "CriticalSectionController" => Kind::Simple,
            "GenericController" | "RecordingController" => {
                element.ignore(&["RecordingController.sampleTransactionName"]);
                Kind::Simple
            }
            "LoopController" => {
                let only_once = !element.flag("LoopController.continue_forever", true);
                Kind::Loop { count: self.property(element, "LoopController.loops"), only_once }
            }
            "OnceOnlyController" => Kind::Once,
            "IfController" => self.if_controller(element),
            "WhileController" => Kind::While(self.property(element, "WhileController.condition")),
            "ForeachController" => Kind::ForEach {
                input: self.property(element, "ForeachController.inputVal"),
                output: self.property(element, "ForeachController.returnVal"),
                from: self.property(element, "ForeachController.startIndex"),
                to: self.property(element, "ForeachController.endIndex"),
                separator: element.flag("ForeachController.useSeparator", true),
            },
            "TransactionController" => Kind::Transaction {
                is_parent: element.flag("TransactionController.parent", false),
                with_timers: element.flag("TransactionController.includeTimers", true),
                judges: Vec::new(),
            },
            "ThroughputController" => {
                let is_percent = element.text("ThroughputController.style") == "1";
                let property = if is_percent {
                    "ThroughputController.percentThroughput"
                } else {
                    "ThroughputController.maxThroughput"
                };
                element.ignore(&[
                    "ThroughputController.maxThroughput",
                    "ThroughputController.percentThroughput",
                ]);
                let value = super::super::element::inner(element.node, property)
                    .or_else(|| float_value(element, property))
                    .unwrap_or("1");
                Kind::Throughput {
                    is_percent,
                    value: self.template(element, value.trim()),
                    per_user: element.flag("ThroughputController.perThread", false),
                    meter: self.meter(),
                }
            }
            "RandomOrderController" => Kind::RandomOrder,
            "InterleaveControl" | "RandomController" => Kind::Interleave(Interleave {
                is_random: element.class == "RandomController",
                by_controller: element.text("InterleaveControl.style").trim() == "1",
                // The misspelled name is JMeter's own.
                across_threads: element.flag("InterleaveControl.accrossThreads", false),
            }),
            "SwitchController" => Kind::Switch(self.property(element, "SwitchController.value")),
            "RunTime" => Kind::Runtime(self.property(element, "RunTime.seconds")),
            _ => {
                self.refuse(element, "element not supported by tympan lab");
                return None;
            }
        })
    }

    fn if_controller(&mut self, element: &'a Element<'a>) -> Kind {
        let condition = self.property(element, "IfController.condition");
        let is_script = !element.flag("IfController.useExpression", false);
        if is_script && let Err(fault) = expression::check_javascript(&condition) {
            self.refuse(element, &fault);
        }
        let every = element.flag("IfController.evaluateAll", false);
        Kind::If { condition, is_script, every }
    }

    pub(super) fn meter(&mut self) -> usize {
        self.model.meters.push(Meter::default());
        self.model.meters.len() - 1
    }

    /// Compiles the element that a module controller points at, in the module's place.
    fn module(&mut self, element: &'a Element<'a>, levels: &Levels<'_, 'a>) -> Option<usize> {
        let path: Vec<&str> = entries(element.find("ModuleController.node_path"), "")
            .iter()
            .map(|name| name.text().unwrap_or_default())
            .collect();
        self.close(element);
        let target =
            find_module(self.roots, &path).or_else(|| find_module(self.roots, path.get(1..)?));
        let Some(target) = target else {
            let why = format!("it points at `{}`, which is not in this file", path.join("/"));
            self.refuse(element, &why);
            return None;
        };
        let kind = if super::group::is_group(target) || target.class == "TestFragmentController" {
            Kind::Simple
        } else {
            return self.group_of(target, levels);
        };
        let node = self.node(kind, target);
        self.children(node, &target.children, Some(levels));
        Some(node)
    }

    fn action(&mut self, element: &'a Element<'a>, levels: &Levels<'_, 'a>) -> Option<Action> {
        Some(match element.class {
            "HTTPSamplerProxy" | "HTTPSampler" | "HTTPSampler2" => {
                Action::Http(Box::new(self.http(element, levels)))
            }
            "DebugSampler" => Action::Debug,
            "JSR223Sampler" | "BeanShellSampler" => match self.script(element) {
                Some(script) => Action::Script(script),
                // It was told already why its script cannot run.
                None => Action::Flow(Flow::Nothing),
            },
            "TestAction" => Action::Flow(self.flow(element)),
            "JavaSampler" => {
                let class = element.text("classname");
                if !class.ends_with(".JavaTest") && !class.ends_with(".SleepTest") {
                    let why = format!("Java class `{class}` cannot run in tympan lab");
                    self.refuse(element, &why);
                    return None;
                }
                Action::Java(Box::new(self.java(element, class.ends_with(".SleepTest"))))
            }
            "DummySampler" => Action::Java(Box::new(self.dummy(element))),
            _ => return None,
        })
    }

    /// Compiles the sampler of a plugin that answers by itself.
    fn dummy(&mut self, element: &Element<'a>) -> JavaTest {
        element.ignore(&["REQUEST_DATA", "LATENCY", "CONNECT", "URL", "RESULT_CLASS"]);
        let time = self.property(element, "RESPONSE_TIME");
        // The name is misspelled in the plugin.
        let is_ok = element.flag("SUCCESFULL", true);
        JavaTest {
            sleep: if element.flag("WAITING", true) { time } else { Template::literal("0") },
            code: self.property(element, "RESPONSE_CODE"),
            message: self.property(element, "RESPONSE_MESSAGE"),
            status: Template::literal(if is_ok { "OK" } else { "KO" }),
            result: self.property(element, "RESPONSE_DATA"),
            ..JavaTest::default()
        }
    }

    fn flow(&mut self, element: &'a Element<'a>) -> Flow {
        let is_thread = element.text("ActionProcessor.target") != "2";
        let pause = self.property(element, "ActionProcessor.duration");
        match element.text("ActionProcessor.action") {
            "0" if is_thread => Flow::StopThread,
            "0" | "2" => Flow::StopTest,
            "1" => {
                if pause.as_literal() == Some("0") {
                    Flow::Nothing
                } else {
                    Flow::Pause(pause)
                }
            }
            "3" => Flow::NextLoop,
            "4" => Flow::NextPass,
            "5" => Flow::BreakLoop,
            _ => Flow::Pause(pause),
        }
    }

    fn java(&mut self, element: &'a Element<'a>, is_sleep: bool) -> JavaTest {
        let mut test = JavaTest::default();
        for entry in entries(element.find("arguments"), "Arguments.arguments") {
            let name = super::super::element::inner(entry, "Argument.name").unwrap_or_default();
            let value = super::super::element::inner(entry, "Argument.value").unwrap_or_default();
            let value = self.template(element, value);
            match name {
                "Sleep_Time" | "SleepTime" => test.sleep = value,
                "Sleep_Mask" | "SleepMask" => test.mask = value,
                "Label" => test.label = value,
                "ResponseCode" => test.code = value,
                "ResponseMessage" => test.message = value,
                "Status" => test.status = value,
                "ResultData" => test.result = value,
                _ => {}
            }
        }
        if is_sleep {
            test.status = Template::literal("OK");
        }
        test
    }

    fn sampler(
        &mut self,
        element: &'a Element<'a>,
        action: Action,
        levels: &Levels<'_, 'a>,
    ) -> usize {
        let own =
            Levels { own: &element.children, outer: Some(levels), controller: levels.controller };
        let mut sampler = Sampler::of(action);
        // JMeter runs what is nearest to the plan first, and what stands beside it in the order of the file.
        for part in own.outermost_first() {
            if let Some(moment) = super::script::moment(part.class) {
                let Some(script) = self.script(part) else { continue };
                match moment {
                    Moment::Before => sampler.scripts.push(script),
                    Moment::After => sampler.after.push(After::Script(script)),
                    Moment::Judge => sampler.judges.push(Judge::Script(script)),
                    Moment::Told => sampler.listeners.push(script),
                    Moment::Sample => {}
                }
            } else if let Some(timer) = self.timer(part) {
                sampler.timers.push(timer);
            } else if let Some(extractor) = self.extractor(part) {
                sampler.after.push(After::Extract(Box::new(extractor)));
            } else if let Some(judge) = self.judge(part) {
                sampler.judges.push(judge);
            } else if part.class == "ResultAction" {
                let action = self.result_action(part);
                sampler.after.push(After::OnError(action));
            } else if part.class == "UserParameters"
                && let Some(place) = self.parameters(part)
                && self.model.parameters.get(place).is_some_and(|known| !known.per_iteration)
            {
                sampler.before.push(place);
            }
        }
        let node = self.node(Kind::Sampler(Box::new(sampler)), element);
        element.ignore(&["DebugSampler", "classname"]);
        self.close(element);
        for part in element.children.iter().filter(|part| part.is_enabled) {
            if is_listener(part.class) {
                self.listener(part);
            } else if !self.is_scoped(part) && part.class != "Arguments" && !is_idle(part.class) {
                self.refuse(part, "element not supported by tympan lab");
            }
        }
        if let Some(controller) = levels.controller {
            self.events_of(&element.children, controller);
        }
        node
    }

    /// Adds what the elements of a level do when an iteration of their controller begins.
    pub(super) fn events_of(&mut self, elements: &'a [Element<'a>], controller: usize) {
        for element in elements.iter().filter(|element| element.is_enabled) {
            match element.class {
                "CSVDataSet" | "RandomCSVDataSetConfig" => {
                    if let Some(place) = self.data(element) {
                        self.event(controller, Event::Data(place));
                    }
                }
                "CounterConfig" => {
                    let place = self.counter(element);
                    self.event(controller, Event::Count(place));
                }
                "RandomVariableConfig" => {
                    let place = self.random_variable(element);
                    self.event(controller, Event::Random(place));
                }
                "UserParameters" => {
                    if let Some(place) = self.parameters(element)
                        && self.model.parameters.get(place).is_some_and(|known| known.per_iteration)
                    {
                        self.event(controller, Event::Parameters(place));
                    }
                }
                _ => {}
            }
        }
    }

    fn counter(&mut self, element: &'a Element<'a>) -> usize {
        if let Some(&place) = self.known.get(&element.id()) {
            return place;
        }
        let counter = Counter {
            start: self.property(element, "CounterConfig.start"),
            step: self.property(element, "CounterConfig.incr"),
            end: self.property(element, "CounterConfig.end"),
            name: self.property(element, "CounterConfig.name"),
            format: self.property(element, "CounterConfig.format"),
            per_user: element.flag("CounterConfig.per_user", false),
            resets: element.flag("CounterConfig.reset_on_tg_iteration", false),
            shared: Mutex::default(),
        };
        self.close(element);
        self.model.counters.push(counter);
        self.remember(element, self.model.counters.len() - 1)
    }

    fn random_variable(&mut self, element: &'a Element<'a>) -> usize {
        if let Some(&place) = self.known.get(&element.id()) {
            return place;
        }
        // A seed would have to be Java's; sequences differ, ranges do not.
        element.ignore(&["perThread", "randomSeed"]);
        let variable = RandomVariable {
            name: self.property(element, "variableName"),
            low: self.property(element, "minimumValue"),
            high: self.property(element, "maximumValue"),
            format: self.property(element, "outputFormat"),
        };
        self.close(element);
        self.model.randoms.push(variable);
        self.remember(element, self.model.randoms.len() - 1)
    }

    fn parameters(&mut self, element: &Element<'a>) -> Option<usize> {
        if let Some(&place) = self.known.get(&element.id()) {
            return Some(place);
        }
        let texts = |node: &roxmltree::Node<'a, 'a>| -> Vec<&'a str> {
            node.children()
                .filter(roxmltree::Node::is_element)
                .map(|entry| entry.text().unwrap_or_default())
                .collect()
        };
        let names =
            element.find("UserParameters.names").map(|node| texts(&node)).unwrap_or_default();
        let users = entries(element.find("UserParameters.thread_values"), "");
        let parameters = Parameters {
            names: names.iter().map(|name| self.template(element, name)).collect(),
            users: users
                .iter()
                .map(|user| texts(user).iter().map(|value| self.template(element, value)).collect())
                .collect(),
            per_iteration: element.flag("UserParameters.per_iteration", false),
        };
        self.close(element);
        self.model.parameters.push(parameters);
        Some(self.remember(element, self.model.parameters.len() - 1))
    }

    pub(super) fn remember(&mut self, element: &Element<'_>, place: usize) -> usize {
        self.known.insert(element.id(), place);
        place
    }
}

/// Returns the value of a `FloatProperty`, whose name stands in an element of its own.
pub(super) fn float_value<'a>(element: &Element<'a>, property: &str) -> Option<&'a str> {
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
fn find_fragments<'e, 'a>(elements: &'e [Element<'a>], found: &mut Vec<&'e Element<'a>>) {
    for element in elements.iter().filter(|element| element.is_enabled) {
        if element.class == "TestFragmentController" {
            found.push(element);
        } else {
            find_fragments(&element.children, found);
        }
    }
}

fn find_module<'e, 'a>(elements: &'e [Element<'a>], path: &[&str]) -> Option<&'e Element<'a>> {
    let (first, rest) = path.split_first()?;
    for element in elements.iter().filter(|element| element.name == *first) {
        if rest.is_empty() {
            return Some(element);
        }
        if let Some(found) = find_module(&element.children, rest) {
            return Some(found);
        }
    }
    None
}
