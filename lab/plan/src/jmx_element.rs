//! The tree of a `.jmx` file: elements in the structure that `<hashTree>` defines, with their lines.
//!
//! An element records which of its properties were read. Of JMeter's own elements every meaningful property is read or
//! rejected by name; all others have no meaning to JMeter 5.6.3 either. In elements of plugins, a property that is set
//! but never read could silently change the meaning, so it becomes a finding.

use std::cell::RefCell;
use std::collections::HashSet;

use roxmltree::{Document, Node, NodeId};

use crate::finding::FileFinding;

/// The index of the document, and the node in it.
pub(super) type JmxElementId = (usize, NodeId);

/// Maximum nesting depth.
const MAX_NESTING_DEPTH: usize = 200;

/// One element of the tree.
pub(super) struct JmxElement<'a> {
    pub(super) node: Node<'a, 'a>,
    /// `HTTPSamplerProxy`, without a package.
    pub(super) class: &'a str,
    pub(super) name: &'a str,
    pub(super) is_enabled: bool,
    pub(super) line: u32,
    pub(super) column: u32,
    pub(super) children: Vec<Self>,
    read_properties: RefCell<HashSet<&'a str>>,
}

impl<'a> JmxElement<'a> {
    /// Parses the tree; excluded elements count as disabled.
    ///
    /// # Errors
    /// A finding if the document contains no plan.
    pub(super) fn parse_tree(
        document: &'a Document<'a>,
        file: &str,
        left_out: &HashSet<JmxElementId>,
    ) -> Result<Vec<Self>, FileFinding> {
        let root = document.root_element();
        let tree = root.children().find(|node| node.has_tag_name("hashTree"));
        match tree {
            Some(tree) if root.has_tag_name("jmeterTestPlan") => parse_elements(tree, 0, left_out),
            _ => {
                Err("not a JMeter plan: the root is not `jmeterTestPlan` with a `hashTree`"
                    .to_owned())
            }
        }
        .map_err(|message| FileFinding {
            file: file.to_owned(),
            line: 1,
            column: 1,
            message,
        })
    }

    /// Returns the value of a property, untrimmed; empty if it is absent.
    pub(super) fn text_property(&self, name: &'a str) -> &'a str {
        self.find_property(name).and_then(|node| node.text()).unwrap_or_default()
    }

    pub(super) fn flag_property(&self, name: &'a str, default: bool) -> bool {
        match self.text_property(name).trim() {
            "" => default,
            text => text.eq_ignore_ascii_case("true"),
        }
    }

    pub(super) fn find_property(&self, name: &'a str) -> Option<Node<'a, 'a>> {
        self.read_properties.borrow_mut().insert(name);
        property_nodes(self.node).find(|node| node.attribute("name") == Some(name))
    }

    /// Marks properties as read regardless of their values.
    pub(super) fn ignore_properties(&self, names: &[&'a str]) {
        self.read_properties.borrow_mut().extend(names);
    }

    /// Returns the properties that are set but were never read, unless the element is JMeter's own.
    pub(super) fn unread_properties(&self) -> Vec<Node<'a, 'a>> {
        if !is_plugin_class(self.class) {
            return Vec::new();
        }
        let used = self.read_properties.borrow();
        property_nodes(self.node)
            .filter(|node| {
                let name = node.attribute("name").unwrap_or_default();
                !used.contains(name) && !is_default_value(*node) && !is_harmless_property(name)
            })
            .collect()
    }

    /// Returns `class "name"`, the form used in findings.
    pub(super) fn title(&self) -> String {
        format!("{} \"{}\"", self.class, self.name)
    }

    /// Returns the ID of the element, which is unique across all files of the plan.
    pub(super) fn id(&self) -> JmxElementId {
        element_id_of(self.node)
    }
}

fn element_id_of(node: Node<'_, '_>) -> JmxElementId {
    (std::ptr::from_ref(node.document()).addr(), node.id())
}

fn parse_elements<'a>(
    tree: Node<'a, 'a>,
    depth: usize,
    left_out: &HashSet<JmxElementId>,
) -> Result<Vec<JmxElement<'a>>, String> {
    if depth > MAX_NESTING_DEPTH {
        return Err(format!("the tree is nested deeper than {MAX_NESTING_DEPTH} levels"));
    }
    let mut elements: Vec<JmxElement<'a>> = Vec::new();
    for node in tree.children().filter(Node::is_element) {
        if node.has_tag_name("hashTree") {
            let children = parse_elements(node, depth + 1, left_out)?;
            if let Some(last) = elements.last_mut() {
                last.children.extend(children);
            }
            continue;
        }
        let class = node.attribute("testclass").unwrap_or_else(|| node.tag_name().name());
        let at = node.document().text_pos_at(node.range().start);
        elements.push(JmxElement {
            node,
            class: class.rsplit('.').next().unwrap_or(class),
            name: node.attribute("testname").unwrap_or_default(),
            is_enabled: node.attribute("enabled") != Some("false")
                && !left_out.contains(&element_id_of(node)),
            line: at.row,
            column: at.col,
            children: Vec::new(),
            read_properties: RefCell::default(),
        });
    }
    Ok(elements)
}

fn property_nodes<'a>(node: Node<'a, 'a>) -> impl Iterator<Item = Node<'a, 'a>> {
    node.children().filter(|child| child.is_element() && child.has_attribute("name"))
}

/// Returns the text of a property inside a nested `elementProp`.
pub(super) fn nested_text<'a>(node: Node<'a, 'a>, name: &str) -> Option<&'a str> {
    property_nodes(node)
        .find(|child| child.attribute("name") == Some(name))
        .map(|child| child.text().unwrap_or_default())
}

/// Returns the `elementProp`s of a collection inside a property.
pub(super) fn collection_entries<'a>(
    node: Option<Node<'a, 'a>>,
    collection: &str,
) -> Vec<Node<'a, 'a>> {
    let Some(node) = node else { return Vec::new() };
    let list = if node.has_tag_name("collectionProp") {
        Some(node)
    } else {
        property_nodes(node).find(|child| child.attribute("name") == Some(collection))
    };
    list.map(|list| list.children().filter(Node::is_element).collect()).unwrap_or_default()
}

fn is_default_value(node: Node<'_, '_>) -> bool {
    match node.tag_name().name() {
        "collectionProp" => !node.children().any(|child| child.is_element()),
        "elementProp" => !node.descendants().any(|inner| {
            inner.is_element() && inner != node && !inner.has_tag_name("collectionProp")
        }),
        "boolProp" => node.text().is_none_or(|text| text.trim() != "true"),
        _ => node.text().is_none_or(|text| matches!(text.trim(), "" | "0" | "false")),
    }
}

/// Returns true for elements of plugins.
fn is_plugin_class(class: &str) -> bool {
    matches!(
        class,
        "UltimateThreadGroup"
            | "SteppingThreadGroup"
            | "ConcurrencyThreadGroup"
            | "ArrivalsThreadGroup"
            | "FreeFormArrivalsThreadGroup"
            | "VariableThroughputTimer"
            | "JSONPathExtractor"
            | "RandomCSVDataSetConfig"
            | "DummySampler"
    )
}

/// Returns true for properties without effect on traffic: comments, the state of the user interface, choices among
/// equivalent implementations.
fn is_harmless_property(name: &str) -> bool {
    matches!(
        name,
        "TestPlan.comments"
            | "TestElement.gui_class"
            | "TestElement.test_class"
            | "TestElement.name"
            | "TestElement.enabled"
            | "HTTPSampler.implementation"
            | "HTTPSampler.monitor"
            | "HTTPSampler.concurrentPool"
            | "CookieManager.implementation"
            | "ThreadGroup.start_time"
            | "ThreadGroup.end_time"
            | "ThreadGroup.delayedStart"
            | "scriptLanguage"
            | "displayJMeterProperties"
            | "displayJMeterVariables"
            | "displaySystemProperties"
    )
}
