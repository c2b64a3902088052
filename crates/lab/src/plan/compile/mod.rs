//! From the elements of a `.jmx` file to a [`Model`]: everything in scope of a sampler is gathered and checked.
//!
//! Invariants
//! * Every enabled element that can be reached is either run, known to have no effect on traffic, or a finding with its
//!   line. So is every property that is set and would change the meaning; what JMeter itself does not know has none.
//! * A disabled element is read only where a module controller points into it.

mod controller;
mod group;
mod http;
mod parts;
mod script;

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::element::{Element, ElementId};
use super::files::Files;
use super::model::{Event, Model, NodeId};
use super::script::Script;
use super::template::Template;
use crate::Finding;

/// What elements a plan is made of.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Inventory {
    /// Enabled elements per class.
    pub elements: BTreeMap<String, usize>,
    /// Functions per name.
    pub functions: BTreeMap<String, usize>,
    /// Listeners that are read and have nothing to do here.
    pub ignored: usize,
    /// Elements that cannot be run and are left out, because the caller allows it.
    pub left_out: Vec<Finding>,
    /// Functions that neither JMeter nor this program knows; their text is sent as it stands.
    pub unknown: Vec<Finding>,
}

/// An element that a finding is about.
#[derive(Debug)]
pub(super) struct Faulty {
    pub(super) id: ElementId,
    pub(super) class: String,
    /// Where it stands, with its class and name.
    pub(super) place: Finding,
}

/// The elements in scope of a place, from the plan down to the place itself.
#[derive(Clone, Copy)]
pub(super) struct Levels<'l, 'a> {
    own: &'a [Element<'a>],
    outer: Option<&'l Levels<'l, 'a>>,
    /// The controller that the elements of this level belong to.
    controller: Option<NodeId>,
}

impl<'l, 'a> Levels<'l, 'a> {
    /// Returns the enabled elements in scope, the nearest first.
    fn elements(&self) -> Vec<&'a Element<'a>> {
        let mut found: Vec<&Element<'a>> =
            self.own.iter().filter(|element| element.is_enabled).collect();
        let mut level = self.outer;
        while let Some(outer) = level {
            found.extend(outer.own.iter().filter(|element| element.is_enabled));
            level = outer.outer;
        }
        found
    }

    /// Returns all elements in scope: level by level from the plan down, each in the order of the file.
    fn outermost_first(&self) -> Vec<&'a Element<'a>> {
        let mut levels = vec![self.own];
        let mut level = self.outer;
        while let Some(outer) = level {
            levels.push(outer.own);
            level = outer.outer;
        }
        let all = levels.into_iter().rev().flatten();
        all.filter(|element| element.is_enabled).collect()
    }
}

/// Compiles one file.
pub(super) struct Compiler<'a> {
    file: String,
    pub(super) model: Model,
    pub(super) findings: Vec<Finding>,
    pub(super) inventory: Inventory,
    roots: &'a [Element<'a>],
    /// The files that include controllers name: the name, the path, the elements.
    included: &'a [(&'a str, &'a str, Vec<Element<'a>>)],
    /// Where files of scripts are.
    files: &'a Files,
    /// Elements that are shared wherever they are in scope, with their place in the model.
    known: HashMap<ElementId, usize>,
    /// The meter by which all threads of the test take turns, once there is one.
    turns: Option<usize>,
    /// Scripts that are shared likewise; nothing for one that is refused.
    scripts: HashMap<ElementId, Option<Arc<Script>>>,
    templates: RefCell<Vec<Finding>>,
    /// Functions that were met, per name.
    functions: RefCell<BTreeMap<String, usize>>,
    /// Functions that nobody knows.
    unknown: RefCell<Vec<Finding>>,
    /// The elements that findings are about.
    pub(super) faulty: RefCell<Vec<Faulty>>,
    /// Elements that have been counted, because several scopes hold them.
    counted: std::collections::HashSet<ElementId>,
    depth: usize,
}

impl<'a> Compiler<'a> {
    pub(super) fn new(
        file: &str,
        roots: &'a [Element<'a>],
        included: &'a [(&'a str, &'a str, Vec<Element<'a>>)],
        files: &'a Files,
    ) -> Self {
        Self {
            included,
            files,
            file: file.to_owned(),
            model: Model::default(),
            findings: Vec::new(),
            inventory: Inventory::default(),
            roots,
            known: HashMap::new(),
            turns: None,
            scripts: HashMap::new(),
            templates: RefCell::default(),
            functions: RefCell::default(),
            unknown: RefCell::default(),
            faulty: RefCell::default(),
            counted: std::collections::HashSet::new(),
            depth: 0,
        }
    }

    /// Compiles the whole plan.
    pub(super) fn run(&mut self) {
        let Some(plan) = self.roots.iter().find(|element| element.class == "TestPlan") else {
            self.findings.push(Finding {
                file: self.file.clone(),
                line: 1,
                column: 1,
                message: "the file holds no TestPlan".to_owned(),
            });
            return;
        };
        plan.name.clone_into(&mut self.model.name);
        self.count(plan);
        self.model.is_serial = plan.flag("TestPlan.serialize_threadgroups", false);
        self.model.tears_down = plan.flag("TestPlan.tearDown_on_shutdown", false);
        plan.ignore(&["TestPlan.functional_mode", "TestPlan.user_define_classpath"]);
        self.add_variables(plan, "TestPlan.user_defined_variables");
        self.gather_variables(&plan.children);
        let levels = Levels { own: &plan.children, outer: None, controller: None };
        for element in plan.children.iter().filter(|element| element.is_enabled) {
            if group::is_group(element) {
                self.group(element, &levels);
            } else {
                self.outside(element);
            }
        }
        self.close(plan);
        let listeners =
            plan.children.iter().filter(|element| element.is_enabled && is_listener(element.class));
        let listeners: Vec<_> = listeners.collect();
        for listener in listeners {
            self.listener(listener);
        }
        self.findings.append(&mut self.templates.borrow_mut());
        self.inventory.functions = self.functions.take();
        self.inventory.unknown = self.unknown.take();
        self.inventory.unknown.sort();
        self.inventory.unknown.dedup();
        self.findings.sort();
        self.findings.dedup();
    }

    /// Looks at an element of the plan's own level that is no group.
    fn outside(&mut self, element: &'a Element<'a>) {
        if self.is_scoped(element) {
            self.look_at(element);
            return;
        }
        if is_listener(element.class) || is_idle(element.class) {
            return;
        }
        if element.class == "Arguments" {
            self.count(element);
            return;
        }
        self.refuse(element, "element not supported by tympan lab");
    }

    /// Reports whether an element is gathered by the samplers in its scope.
    fn is_scoped(&self, element: &Element<'_>) -> bool {
        let holds_script =
            script::moment(element.class).is_some_and(|moment| moment != script::Moment::Sample);
        holds_script || parts::is_known(element.class) || http::is_config(element.class)
    }

    pub(super) fn count(&mut self, element: &Element<'_>) {
        if self.counted.insert(element.id()) {
            *self.inventory.elements.entry(element.class.to_owned()).or_default() += 1;
        }
    }

    pub(super) fn refuse(&mut self, element: &Element<'_>, why: &str) {
        self.count(element);
        let finding = self.finding(element, why);
        self.findings.push(finding);
    }

    fn finding(&self, element: &Element<'_>, why: &str) -> Finding {
        let place = self.note_faulty(element);
        Finding { message: format!("{}: {why}", place.message), ..place }
    }

    /// Notes that an element cannot be run as it is; returns where it stands.
    fn note_faulty(&self, element: &Element<'_>) -> Finding {
        let place = Finding {
            file: self.file.clone(),
            line: element.line,
            column: element.column,
            message: element.title(),
        };
        self.faulty.borrow_mut().push(Faulty {
            id: element.id(),
            class: element.class.to_owned(),
            place: place.clone(),
        });
        place
    }

    /// Compiles a text that stands in `element`.
    pub(super) fn template(&self, element: &Element<'_>, text: &str) -> Template {
        // One text of the plan stands at one place, however often it is compiled for the samplers in its scope.
        let (document, node) = element.id();
        let place = format!("{document:x}/{}/{:x}", node.get_usize(), text.as_ptr().addr());
        match Template::parse_at(text, &place) {
            Ok(template) => {
                template.each_variable(&mut |name| {
                    let is_unknown = name.starts_with("__") && !name.starts_with("__jm__");
                    if is_unknown {
                        self.unknown.borrow_mut().push(self.unknown_at(element, name));
                    }
                });
                template.each_call(&mut |call| {
                    let name = call.source.split(['(', '}']).next().unwrap_or_default().trim();
                    *self.functions.borrow_mut().entry(name.to_owned()).or_default() += 1;
                });
                template
            }
            Err(unknown) => {
                for name in function_names(text) {
                    *self.functions.borrow_mut().entry(name.to_owned()).or_default() += 1;
                }
                self.templates.borrow_mut().push(self.finding(element, &unknown.to_string()));
                Template::literal(text)
            }
        }
    }

    fn unknown_at(&self, element: &Element<'_>, call: &str) -> Finding {
        let name = call.split('(').next().unwrap_or_default();
        Finding {
            file: self.file.clone(),
            line: element.line,
            column: element.column,
            message: format!(
                "{}: nobody knows a function {name}; its text is sent as it stands",
                element.title()
            ),
        }
    }

    /// Compiles a property.
    pub(super) fn property(&mut self, element: &Element<'a>, name: &'a str) -> Template {
        self.template(element, element.text(name))
    }

    /// Notes what is set in an element and was not looked at.
    pub(super) fn close(&mut self, element: &Element<'a>) {
        self.count(element);
        for node in element.left_over() {
            let name = node.attribute("name").unwrap_or_default();
            let at = node.document().text_pos_at(node.range().start);
            let why = format!("property {name} is set; tympan lab does not support it");
            let finding = self.finding(element, &why);
            self.findings.push(Finding { line: at.row, column: at.col, ..finding });
        }
    }

    /// Gathers user-defined variables of the whole plan: all are drawn at the start, wherever they stand.
    pub(super) fn gather_variables(&mut self, elements: &'a [Element<'a>]) {
        for element in elements.iter().filter(|element| element.is_enabled) {
            if element.class == "Arguments" {
                self.add_variables(element, "Arguments.arguments");
                self.close(element);
            }
            self.gather_variables(&element.children);
        }
    }

    fn add_variables(&mut self, element: &Element<'a>, property: &'a str) {
        let node = element.find(property);
        for entry in super::element::entries(node, "Arguments.arguments") {
            let name = super::element::inner(entry, "Argument.name")
                .or_else(|| entry.attribute("name"))
                .unwrap_or_default();
            let value = super::element::inner(entry, "Argument.value").unwrap_or_default();
            let pair = (self.template(element, name), self.template(element, value));
            self.model.variables.push(pair);
        }
    }

    pub(super) fn listener(&mut self, element: &Element<'a>) {
        if !self.counted.insert(element.id()) {
            return;
        }
        *self.inventory.elements.entry(element.class.to_owned()).or_default() += 1;
        let file = element.text("filename").trim();
        if element.class == "ResultCollector" && !file.is_empty() {
            let file = self.template(element, file);
            self.model.outputs.push(file);
        } else {
            self.inventory.ignored += 1;
        }
    }

    /// Adds what happens when an iteration of `controller` begins.
    pub(super) fn event(&mut self, controller: NodeId, event: Event) {
        if let Some(node) = self.model.nodes.get_mut(controller)
            && !node.events.contains(&event)
        {
            // Of data sets that share rows the last one draws first, as in JMeter.
            let is_data = |event: &Event| matches!(event, Event::Data(_));
            let first_data = node.events.iter().position(is_data).filter(|_| is_data(&event));
            node.events.insert(first_data.unwrap_or(node.events.len()), event);
        }
    }
}

/// Returns the names of the functions that a text calls, also of those that are not known.
fn function_names(text: &str) -> impl Iterator<Item = &str> {
    let calls = text.match_indices("${__").filter_map(|(at, _)| text.get(at + 2..));
    calls.map(|call| call.split(['(', '}']).next().unwrap_or_default().trim())
}

/// Reports whether elements of a class have no effect on traffic.
pub(super) fn is_beside(class: &str) -> bool {
    is_listener(class) || is_idle(class)
}

/// Listeners tell what happened; they change nothing.
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

/// Elements of the editor, and settings of samplers that plans of HTTP do not have: they do nothing in a run.
fn is_idle(class: &str) -> bool {
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
