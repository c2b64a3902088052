//! Reading of the elements of one file: properties, templates in them, and the findings about them.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashSet};

use crate::charset::JavaCharset;
use crate::finding::FileFinding;
use crate::jmx_element::{JmxElement, JmxElementId, collection_entries};
use crate::markup::XPath;
use crate::regex_pattern;
use crate::template::TextTemplate;

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
pub(crate) struct FaultyElement {
    pub(crate) id: JmxElementId,
    pub(crate) class: String,
    /// Its location, with its class and name.
    pub(crate) location: FileFinding,
}

/// Reads elements and collects the findings about them.
#[derive(Debug)]
pub(crate) struct JmxElementReader {
    /// The name of the file that is being read.
    pub(super) file: String,
    findings: Vec<FileFinding>,
    inventory: PlanInventory,
    template_findings: RefCell<Vec<FileFinding>>,
    /// Number of functions found, per name.
    functions: RefCell<BTreeMap<String, usize>>,
    /// Unknown functions.
    unknown_functions: RefCell<Vec<FileFinding>>,
    /// The elements with findings.
    faulty_elements: RefCell<Vec<FaultyElement>>,
    /// Elements already counted, because several scopes contain them.
    counted_elements: HashSet<JmxElementId>,
}

/// The findings of a [`JmxElementReader`].
#[derive(Debug)]
pub(crate) struct JmxReadReport {
    pub(crate) findings: Vec<FileFinding>,
    pub(crate) inventory: PlanInventory,
    pub(crate) faulty_elements: Vec<FaultyElement>,
}

impl JmxElementReader {
    pub(super) fn new(file: &str) -> Self {
        Self {
            file: file.to_owned(),
            findings: Vec::new(),
            inventory: PlanInventory::default(),
            template_findings: RefCell::default(),
            functions: RefCell::default(),
            unknown_functions: RefCell::default(),
            faulty_elements: RefCell::default(),
            counted_elements: HashSet::new(),
        }
    }

    /// Returns all findings, sorted.
    pub(super) fn into_report(mut self) -> JmxReadReport {
        self.findings.append(&mut self.template_findings.borrow_mut());
        self.inventory.functions = self.functions.take();
        self.inventory.unknown_functions = self.unknown_functions.take();
        self.inventory.unknown_functions.sort();
        self.inventory.unknown_functions.dedup();
        self.findings.sort();
        self.findings.dedup();
        JmxReadReport {
            findings: self.findings,
            inventory: self.inventory,
            faulty_elements: self.faulty_elements.take(),
        }
    }

    /// Reports that the file has no plan.
    pub(super) fn report_missing_plan(&mut self) {
        self.findings.push(FileFinding {
            file: self.file.clone(),
            line: 1,
            column: 1,
            message: "the file contains no TestPlan".to_owned(),
        });
    }

    /// Returns true if the element was counted now, and false if it was counted before.
    pub(super) fn count_new_element(&mut self, element: &JmxElement<'_>) -> bool {
        let is_new = self.counted_elements.insert(element.id());
        if is_new {
            *self.inventory.elements.entry(element.class.to_owned()).or_default() += 1;
        }
        is_new
    }

    /// Counts a listener that has no effect here.
    pub(super) fn count_ignored_listener(&mut self) {
        self.inventory.ignored_listeners += 1;
    }

    pub(super) fn count_element(&mut self, element: &JmxElement<'_>) {
        self.count_new_element(element);
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
    pub(super) fn compile_property<'a>(
        &mut self,
        element: &JmxElement<'a>,
        name: &'a str,
    ) -> TextTemplate {
        self.compile_template(element, element.text_property(name))
    }

    /// Records properties that are set but were not read.
    pub(super) fn report_unread_properties<'a>(&mut self, element: &JmxElement<'a>) {
        self.count_element(element);
        for node in element.unread_properties() {
            let name = node.attribute("name").unwrap_or_default();
            let at = node.document().text_pos_at(node.range().start);
            let why = format!("property {name} is set; tympan lab does not support it");
            let finding = self.finding_at(element, &why);
            self.findings.push(FileFinding { line: at.row, column: at.col, ..finding });
        }
    }

    /// Compiles and checks an XPath property; an empty one matches nothing, as in JMeter.
    pub(super) fn compile_xpath<'a>(
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
    pub(super) fn compile_pattern<'a>(
        &mut self,
        element: &JmxElement<'a>,
        name: &'a str,
    ) -> TextTemplate {
        let template = self.compile_property(element, name);
        self.check_pattern(element, &template);
        template
    }

    pub(super) fn check_pattern<'a>(&mut self, element: &JmxElement<'a>, template: &TextTemplate) {
        if let Some(text) = template.as_literal()
            && let Err(fault) = regex_pattern::compile_pattern(text)
        {
            self.report_unsupported(element, &fault);
        }
    }

    pub(super) fn scope_variable<'a>(&mut self, element: &JmxElement<'a>) -> Option<TextTemplate> {
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

    pub(super) fn reject_xml_validation<'a>(&mut self, element: &JmxElement<'a>, name: &'a str) {
        if element.flag_property(name, false) {
            self.report_unsupported(element, "validation against a document type is not supported");
        }
    }

    pub(super) fn compile_charset<'a>(
        &mut self,
        element: &JmxElement<'a>,
        name: &str,
    ) -> JavaCharset {
        let charset = JavaCharset::find(name);
        // A charset given by a variable is taken as UTF-8, as nearly all are.
        if charset.is_none() && !name.contains("${") {
            let why = format!("character set `{name}` is not supported");
            self.report_unsupported(element, &why);
        }
        charset.unwrap_or_default()
    }

    /// Compiles the rows of three numbers in a plugin element.
    pub(super) fn compile_number_rows<'a>(
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
}

/// Returns the names of the functions that a text calls, including unknown ones.
fn function_names(text: &str) -> impl Iterator<Item = &str> {
    let calls = text.match_indices("${__").filter_map(|(at, _)| text.get(at + 2..));
    calls.map(|call| call.split(['(', '}']).next().unwrap_or_default().trim())
}
