//! Compiles the elements of a `.jmx` file to a [`PlanModel`]: collects and checks everything in scope of a sampler.
//!
//! Invariants
//! * Every enabled element that can be reached is run, or known to have no effect on traffic, or reported as a finding
//!   with its line. The same applies to every property that is set and would change the meaning; properties that JMeter
//!   itself does not know are not reported.
//! * A disabled element is read only if a module controller points into it.

mod assertion;
mod controller;
mod element_reader;
mod extractor;
mod http_sampler;
mod scoped_element;
mod script;
mod thread_group;

use std::collections::HashMap;
use std::sync::Arc;

use super::jmx_element::{JmxElement, JmxElementId};
use super::model::{IterationEvent, PlanModel};
use super::plan_file::PlanFiles;
use super::plan_node_id::PlanNodeId;
use super::script::PlanScript;
use element_reader::JmxElementReader;
pub(super) use element_reader::JmxReadReport;
pub use element_reader::PlanInventory;

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
    reader: JmxElementReader,
    model: PlanModel,
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
            reader: JmxElementReader::new(file),
            model: PlanModel::default(),
            roots,
            shared_elements: HashMap::new(),
            global_throughput_meter: None,
            scripts: HashMap::new(),
            depth: 0,
        }
    }

    /// Compiles the whole plan; returns it with the findings.
    pub(super) fn compile_plan(mut self) -> (PlanModel, JmxReadReport) {
        match self.roots.iter().find(|element| element.class == "TestPlan") {
            Some(plan) => self.compile_plan_element(plan),
            None => self.reader.report_missing_plan(),
        }
        (self.model, self.reader.into_report())
    }

    fn compile_plan_element(&mut self, plan: &'a JmxElement<'a>) {
        plan.name.clone_into(&mut self.model.name);
        self.reader.count_element(plan);
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
        self.reader.report_unread_properties(plan);
        let listeners =
            plan.children.iter().filter(|element| element.is_enabled && is_listener(element.class));
        let listeners: Vec<_> = listeners.collect();
        for listener in listeners {
            self.compile_listener(listener);
        }
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
            self.reader.count_element(element);
            return;
        }
        self.reader.report_unsupported(element, "element not supported by tympan lab");
    }

    /// Returns true if the samplers in its scope collect the element.
    fn is_sampler_scoped(&self, element: &JmxElement<'_>) -> bool {
        let holds_script = script::script_phase(element.class)
            .is_some_and(|phase| phase != script::ScriptPhase::Sampler);
        holds_script
            || scoped_element::is_sampler_scoped_class(element.class)
            || http_sampler::is_request_config(element.class)
    }

    /// Collects the user-defined variables of the whole plan: all are evaluated at the start, regardless of their
    /// position.
    pub(super) fn gather_variables(&mut self, elements: &'a [JmxElement<'a>]) {
        for element in elements.iter().filter(|element| element.is_enabled) {
            if element.class == "Arguments" {
                self.add_variables(element, "Arguments.arguments");
                self.reader.report_unread_properties(element);
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
            let pair = (
                self.reader.compile_template(element, name),
                self.reader.compile_template(element, value),
            );
            self.model.variables.push(pair);
        }
    }

    pub(super) fn compile_listener(&mut self, element: &JmxElement<'a>) {
        if !self.reader.count_new_element(element) {
            return;
        }
        let file = element.text_property("filename").trim();
        if element.class == "ResultCollector" && !file.is_empty() {
            let file = self.reader.compile_template(element, file);
            self.model.result_files.push(file);
        } else {
            self.reader.count_ignored_listener();
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
