//! Compiles the elements of a `.jmx` file to a [`PlanModel`]: collects and checks everything in scope of a sampler.
//!
//! Invariants
//! * Every enabled element that can be reached is run, or known to have no effect on traffic, or reported as a finding
//!   with its line. The same applies to every property that is set and would change the meaning; properties that JMeter
//!   itself does not know are not reported.
//! * A disabled element is read only if a module controller points into it.

mod controller;
mod http_sampler;
mod scoped_element;
mod script;
mod thread_group;

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::jmx_element::{JmxElement, JmxElementId};
use super::model::{IterationEvent, PlanModel};
use super::plan_file::PlanFiles;
use super::plan_node_id::PlanNodeId;
use super::script::PlanScript;
use super::template::TextTemplate;
use crate::finding::FileFinding;

/// The elements of a plan.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PlanInventory {
    /// Number of enabled elements per class.
    pub elements: BTreeMap<String, usize>,
    /// Number of functions per name.
    pub functions: BTreeMap<String, usize>,
    /// Number of listeners, which have no effect here.
    pub ignored_listeners: usize,
    /// Elements that cannot be run and are omitted with the caller's permission.
    pub excluded_elements: Vec<FileFinding>,
    /// Functions that neither JMeter nor this program knows; their text is sent verbatim.
    pub unknown_functions: Vec<FileFinding>,
}

/// An element with a finding.
#[derive(Debug)]
pub(super) struct FaultyElement {
    pub(super) id: JmxElementId,
    pub(super) class: String,
    /// Its location, with its class and name.
    pub(super) location: FileFinding,
}

/// The elements in scope at a position, from the plan down to the position itself.
#[derive(Clone, Copy)]
pub(super) struct ElementScope<'l, 'a> {
    level_elements: &'a [JmxElement<'a>],
    outer_scope: Option<&'l ElementScope<'l, 'a>>,
    /// The controller that the elements of this level belong to.
    controller: Option<PlanNodeId>,
}

impl<'l, 'a> ElementScope<'l, 'a> {
    /// Returns the enabled elements in scope, the nearest first.
    fn elements(&self) -> Vec<&'a JmxElement<'a>> {
        let mut elements: Vec<&JmxElement<'a>> =
            self.level_elements.iter().filter(|element| element.is_enabled).collect();
        let mut level = self.outer_scope;
        while let Some(outer) = level {
            elements.extend(outer.level_elements.iter().filter(|element| element.is_enabled));
            level = outer.outer_scope;
        }
        elements
    }

    /// Returns all elements in scope: level by level from the plan down, each in the order of the file.
    fn outermost_first(&self) -> Vec<&'a JmxElement<'a>> {
        let mut levels = vec![self.level_elements];
        let mut level = self.outer_scope;
        while let Some(outer) = level {
            levels.push(outer.level_elements);
            level = outer.outer_scope;
        }
        let all = levels.into_iter().rev().flatten();
        all.filter(|element| element.is_enabled).collect()
    }
}

/// Compiles one file.
pub(super) struct JmxCompiler<'a> {
    file: String,
    pub(super) model: PlanModel,
    pub(super) findings: Vec<FileFinding>,
    pub(super) inventory: PlanInventory,
    roots: &'a [JmxElement<'a>],
    /// The files that include controllers name: name, path, elements.
    included_files: &'a [(&'a str, &'a str, Vec<JmxElement<'a>>)],
    /// The location of script files.
    files: &'a PlanFiles,
    /// Elements that are shared between scopes, with their index in the model.
    shared_elements: HashMap<JmxElementId, usize>,
    /// The throughput meter shared by all threads of the test, once it exists.
    global_throughput_meter: Option<usize>,
    /// Shared scripts; `None` for one that is rejected.
    scripts: HashMap<JmxElementId, Option<Arc<PlanScript>>>,
    template_findings: RefCell<Vec<FileFinding>>,
    /// Number of functions found, per name.
    functions: RefCell<BTreeMap<String, usize>>,
    /// Unknown functions.
    unknown_functions: RefCell<Vec<FileFinding>>,
    /// The elements with findings.
    pub(super) faulty_elements: RefCell<Vec<FaultyElement>>,
    /// Elements already counted, because several scopes contain them.
    counted_elements: std::collections::HashSet<JmxElementId>,
    depth: usize,
}

impl<'a> JmxCompiler<'a> {
    pub(super) fn new(
        file: &str,
        roots: &'a [JmxElement<'a>],
        included: &'a [(&'a str, &'a str, Vec<JmxElement<'a>>)],
        files: &'a PlanFiles,
    ) -> Self {
        Self {
            included_files: included,
            files,
            file: file.to_owned(),
            model: PlanModel::default(),
            findings: Vec::new(),
            inventory: PlanInventory::default(),
            roots,
            shared_elements: HashMap::new(),
            global_throughput_meter: None,
            scripts: HashMap::new(),
            template_findings: RefCell::default(),
            functions: RefCell::default(),
            unknown_functions: RefCell::default(),
            faulty_elements: RefCell::default(),
            counted_elements: std::collections::HashSet::new(),
            depth: 0,
        }
    }

    /// Compiles the whole plan.
    pub(super) fn compile_plan(&mut self) {
        let Some(plan) = self.roots.iter().find(|element| element.class == "TestPlan") else {
            self.findings.push(FileFinding {
                file: self.file.clone(),
                line: 1,
                column: 1,
                message: "the file contains no TestPlan".to_owned(),
            });
            return;
        };
        plan.name.clone_into(&mut self.model.name);
        self.count_element(plan);
        self.model.is_serial = plan.flag_property("TestPlan.serialize_threadgroups", false);
        self.model.runs_teardown_on_stop =
            plan.flag_property("TestPlan.tearDown_on_shutdown", false);
        plan.ignore_properties(&["TestPlan.functional_mode", "TestPlan.user_define_classpath"]);
        self.add_variables(plan, "TestPlan.user_defined_variables");
        self.gather_variables(&plan.children);
        let levels =
            ElementScope { level_elements: &plan.children, outer_scope: None, controller: None };
        for element in plan.children.iter().filter(|element| element.is_enabled) {
            if thread_group::is_thread_group(element) {
                self.compile_group(element, &levels);
            } else {
                self.check_plan_level_element(element);
            }
        }
        self.report_unread_properties(plan);
        let listeners =
            plan.children.iter().filter(|element| element.is_enabled && is_listener(element.class));
        let listeners: Vec<_> = listeners.collect();
        for listener in listeners {
            self.compile_listener(listener);
        }
        self.findings.append(&mut self.template_findings.borrow_mut());
        self.inventory.functions = self.functions.take();
        self.inventory.unknown_functions = self.unknown_functions.take();
        self.inventory.unknown_functions.sort();
        self.inventory.unknown_functions.dedup();
        self.findings.sort();
        self.findings.dedup();
    }

    /// Checks an element at plan level that is not a thread group.
    fn check_plan_level_element(&mut self, element: &'a JmxElement<'a>) {
        if self.is_sampler_scoped(element) {
            self.check_sampler_element(element);
            return;
        }
        if is_listener(element.class) || is_inert(element.class) {
            return;
        }
        if element.class == "Arguments" {
            self.count_element(element);
            return;
        }
        self.report_unsupported(element, "element not supported by tympan lab");
    }

    /// Returns true if the samplers in its scope collect the element.
    fn is_sampler_scoped(&self, element: &JmxElement<'_>) -> bool {
        let holds_script = script::script_phase(element.class)
            .is_some_and(|moment| moment != script::ScriptPhase::Sampler);
        holds_script
            || scoped_element::is_sampler_scoped_class(element.class)
            || http_sampler::is_request_config(element.class)
    }

    pub(super) fn count_element(&mut self, element: &JmxElement<'_>) {
        if self.counted_elements.insert(element.id()) {
            *self.inventory.elements.entry(element.class.to_owned()).or_default() += 1;
        }
    }

    pub(super) fn report_unsupported(&mut self, element: &JmxElement<'_>, why: &str) {
        self.count_element(element);
        let finding = self.finding_at(element, why);
        self.findings.push(finding);
    }

    fn finding_at(&self, element: &JmxElement<'_>, why: &str) -> FileFinding {
        let location = self.record_faulty(element);
        FileFinding { message: format!("{}: {why}", location.message), ..location }
    }

    /// Records that an element cannot be run as it is; returns its location.
    fn record_faulty(&self, element: &JmxElement<'_>) -> FileFinding {
        let location = FileFinding {
            file: self.file.clone(),
            line: element.line,
            column: element.column,
            message: element.title(),
        };
        self.faulty_elements.borrow_mut().push(FaultyElement {
            id: element.id(),
            class: element.class.to_owned(),
            location: location.clone(),
        });
        location
    }

    /// Compiles a text of `element`.
    pub(super) fn compile_template(&self, element: &JmxElement<'_>, text: &str) -> TextTemplate {
        // A text of the plan keeps one identity, however often it is compiled for the samplers in its scope.
        let (document, node) = element.id();
        let call_site = format!("{document:x}/{}/{:x}", node.get_usize(), text.as_ptr().addr());
        match TextTemplate::parse_at_call_site(text, &call_site) {
            Ok(template) => {
                template.for_each_variable(&mut |name| {
                    let is_unknown = name.starts_with("__") && !name.starts_with("__jm__");
                    if is_unknown {
                        self.unknown_functions
                            .borrow_mut()
                            .push(self.unknown_function_finding(element, name));
                    }
                });
                template.for_each_call(&mut |call| {
                    let name = call.source.split(['(', '}']).next().unwrap_or_default().trim();
                    *self.functions.borrow_mut().entry(name.to_owned()).or_default() += 1;
                });
                template
            }
            Err(unknown) => {
                for name in function_names(text) {
                    *self.functions.borrow_mut().entry(name.to_owned()).or_default() += 1;
                }
                self.template_findings
                    .borrow_mut()
                    .push(self.finding_at(element, &unknown.to_string()));
                TextTemplate::literal(text)
            }
        }
    }

    fn unknown_function_finding(&self, element: &JmxElement<'_>, call: &str) -> FileFinding {
        let name = call.split('(').next().unwrap_or_default();
        FileFinding {
            file: self.file.clone(),
            line: element.line,
            column: element.column,
            message: format!(
                "{}: unknown function {name}; its text is sent as it is",
                element.title()
            ),
        }
    }

    /// Compiles a property.
    pub(super) fn compile_property(
        &mut self,
        element: &JmxElement<'a>,
        name: &'a str,
    ) -> TextTemplate {
        self.compile_template(element, element.text_property(name))
    }

    /// Records properties that are set but were not read.
    pub(super) fn report_unread_properties(&mut self, element: &JmxElement<'a>) {
        self.count_element(element);
        for node in element.unread_properties() {
            let name = node.attribute("name").unwrap_or_default();
            let at = node.document().text_pos_at(node.range().start);
            let why = format!("property {name} is set; tympan lab does not support it");
            let finding = self.finding_at(element, &why);
            self.findings.push(FileFinding { line: at.row, column: at.col, ..finding });
        }
    }

    /// Collects the user-defined variables of the whole plan: all are evaluated at the start, regardless of their
    /// position.
    pub(super) fn gather_variables(&mut self, elements: &'a [JmxElement<'a>]) {
        for element in elements.iter().filter(|element| element.is_enabled) {
            if element.class == "Arguments" {
                self.add_variables(element, "Arguments.arguments");
                self.report_unread_properties(element);
            }
            self.gather_variables(&element.children);
        }
    }

    fn add_variables(&mut self, element: &JmxElement<'a>, property: &'a str) {
        let node = element.find_property(property);
        for entry in super::jmx_element::collection_entries(node, "Arguments.arguments") {
            let name = super::jmx_element::nested_text(entry, "Argument.name")
                .or_else(|| entry.attribute("name"))
                .unwrap_or_default();
            let value =
                super::jmx_element::nested_text(entry, "Argument.value").unwrap_or_default();
            let pair =
                (self.compile_template(element, name), self.compile_template(element, value));
            self.model.variables.push(pair);
        }
    }

    pub(super) fn compile_listener(&mut self, element: &JmxElement<'a>) {
        if !self.counted_elements.insert(element.id()) {
            return;
        }
        *self.inventory.elements.entry(element.class.to_owned()).or_default() += 1;
        let file = element.text_property("filename").trim();
        if element.class == "ResultCollector" && !file.is_empty() {
            let file = self.compile_template(element, file);
            self.model.result_files.push(file);
        } else {
            self.inventory.ignored_listeners += 1;
        }
    }

    /// Adds an event at the start of each iteration of `controller`.
    pub(super) fn add_event(&mut self, controller: PlanNodeId, event: IterationEvent) {
        if let Some(node) = self.model.nodes.get_mut(controller)
            && !node.events.contains(&event)
        {
            // Of data sets that share rows the last one reads first, as in JMeter.
            let is_data = |event: &IterationEvent| matches!(event, IterationEvent::DataSet(_));
            let first_data = node.events.iter().position(is_data).filter(|_| is_data(&event));
            node.events.insert(first_data.unwrap_or(node.events.len()), event);
        }
    }
}

/// Returns the names of the functions that a text calls, including unknown ones.
fn function_names(text: &str) -> impl Iterator<Item = &str> {
    let calls = text.match_indices("${__").filter_map(|(at, _)| text.get(at + 2..));
    calls.map(|call| call.split(['(', '}']).next().unwrap_or_default().trim())
}

/// Returns true if elements of a class have no effect on traffic.
pub(super) fn has_no_traffic_effect(class: &str) -> bool {
    is_listener(class) || is_inert(class)
}

/// Returns true for listeners, which report results and change nothing.
fn is_listener(class: &str) -> bool {
    matches!(
        class,
        "ResultCollector"
            | "Summariser"
            | "BackendListener"
            | "CorrectedResultCollector"
            | "ResultSaver"
            | "SimpleDataWriter"
            | "DebugPostProcessor"
            | "PerfMonCollector"
            | "MailerResultCollector"
            | "DbMonCollector"
            | "JMXMonCollector"
    ) || class.ends_with("Visualizer")
        || class.ends_with("ResultCollector")
}

/// Returns true for elements of the editor, and for settings of samplers that HTTP plans do not have: they have no
/// effect in a run.
fn is_inert(class: &str) -> bool {
    matches!(
        class,
        "WorkBench"
            | "ProxyControl"
            | "HttpMirrorControl"
            | "TestFragmentController"
            | "PropertyControlGui"
            | "LoginConfig"
            | "JDBCDataSource"
    )
}
