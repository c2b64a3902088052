//! Parses HTML to a tree, by the algorithm of browsers.

use std::borrow::Cow;
use std::cell::RefCell;

use html5ever::tendril::{StrTendril, TendrilSink as _};
use html5ever::tree_builder::{ElemName, ElementFlags, NodeOrText, QuirksMode, TreeSink};
use html5ever::{Attribute, LocalName, Namespace, QualName, parse_document};

use super::tree::{MarkupNodeId, MarkupNodeKind, MarkupTree};

impl MarkupTree {
    /// Parses HTML; any input is valid.
    pub(crate) fn parse_html(text: &str) -> Self {
        let sink = HtmlTreeSink::default();
        sink.add_node(MarkupNodeKind::Root, None);
        let built =
            parse_document(sink, html5ever::ParseOpts::default()).one(StrTendril::from(text));
        into_document_order(&built)
    }
}

/// The tree during construction: parents may change, so nodes are ordered at the end.
#[derive(Debug, Default)]
struct UnorderedHtmlTree {
    kinds: Vec<MarkupNodeKind>,
    names: Vec<Option<QualName>>,
    parents: Vec<Option<MarkupNodeId>>,
    children: Vec<Vec<MarkupNodeId>>,
}

fn into_document_order(built: &UnorderedHtmlTree) -> MarkupTree {
    let mut tree = MarkupTree::new();
    let children = |node: MarkupNodeId| built.children.get(node).map_or(&[][..], Vec::as_slice);
    let mut open: Vec<(MarkupNodeId, MarkupNodeId)> =
        children(0).iter().rev().map(|&child| (child, 0)).collect();
    while let Some((node, parent)) = open.pop() {
        let Some(kind) = built.kinds.get(node) else { continue };
        let added = tree.add_node(parent, kind.clone());
        open.extend(children(node).iter().rev().map(|&child| (child, added)));
    }
    tree
}

#[derive(Debug, Default)]
struct HtmlTreeSink(RefCell<UnorderedHtmlTree>);

/// An owned element name, because the tree may change while it is in use.
#[derive(Debug)]
struct OwnedElementName(QualName);

impl ElemName for OwnedElementName {
    fn ns(&self) -> &Namespace {
        &self.0.ns
    }

    fn local_name(&self) -> &LocalName {
        &self.0.local
    }
}

impl HtmlTreeSink {
    fn add_node(&self, kind: MarkupNodeKind, name: Option<QualName>) -> MarkupNodeId {
        let mut built = self.0.borrow_mut();
        built.kinds.push(kind);
        built.names.push(name);
        built.parents.push(None);
        built.children.push(Vec::new());
        built.kinds.len() - 1
    }

    /// Inserts a node or a text as a child of `parent` at index `at`.
    fn insert_child(&self, parent: MarkupNodeId, at: usize, child: NodeOrText<MarkupNodeId>) {
        let node = match child {
            NodeOrText::AppendNode(child_node) => {
                self.remove_from_parent(&child_node);
                child_node
            }
            NodeOrText::AppendText(text) => {
                if self.append_to_text_before(parent, at, &text) {
                    return;
                }
                self.add_node(MarkupNodeKind::Text(text.to_string()), None)
            }
        };
        let mut built = self.0.borrow_mut();
        if let Some(up) = built.parents.get_mut(node) {
            *up = Some(parent);
        }
        if let Some(children) = built.children.get_mut(parent) {
            children.insert(at.min(children.len()), node);
        }
    }

    /// Appends to the text node before `at`, if there is one.
    fn append_to_text_before(&self, parent: MarkupNodeId, at: usize, text: &str) -> bool {
        let mut built = self.0.borrow_mut();
        let before = at.checked_sub(1).and_then(|at| built.children.get(parent)?.get(at).copied());
        let Some(MarkupNodeKind::Text(previous_text)) =
            before.and_then(|before| built.kinds.get_mut(before))
        else {
            return false;
        };
        previous_text.push_str(text);
        true
    }

    fn child_count(&self, parent: MarkupNodeId) -> usize {
        self.0.borrow().children.get(parent).map_or(0, Vec::len)
    }
}

fn attribute_pairs(attributes: Vec<Attribute>) -> Vec<(String, String)> {
    attributes
        .into_iter()
        .map(|attribute| (attribute.name.local.to_string(), attribute.value.to_string()))
        .collect()
}

impl TreeSink for HtmlTreeSink {
    type Handle = MarkupNodeId;
    type Output = UnorderedHtmlTree;
    type ElemName<'a> = OwnedElementName;

    fn finish(self) -> UnorderedHtmlTree {
        self.0.into_inner()
    }

    fn parse_error(&self, _message: Cow<'static, str>) {}

    fn get_document(&self) -> MarkupNodeId {
        0
    }

    fn elem_name<'a>(&'a self, target: &'a MarkupNodeId) -> OwnedElementName {
        let name = self.0.borrow().names.get(*target).cloned().flatten();
        let nameless = || QualName::new(None, Namespace::default(), LocalName::default());
        OwnedElementName(name.unwrap_or_else(nameless))
    }

    fn create_element(
        &self,
        name: QualName,
        attributes: Vec<Attribute>,
        _: ElementFlags,
    ) -> MarkupNodeId {
        let kind = MarkupNodeKind::Element {
            name: name.local.to_string(),
            attributes: attribute_pairs(attributes),
        };
        self.add_node(kind, Some(name))
    }

    fn create_comment(&self, text: StrTendril) -> MarkupNodeId {
        self.add_node(MarkupNodeKind::Comment(text.to_string()), None)
    }

    fn create_pi(&self, target: StrTendril, data: StrTendril) -> MarkupNodeId {
        self.add_node(
            MarkupNodeKind::Instruction { target: target.to_string(), data: data.to_string() },
            None,
        )
    }

    fn append(&self, parent: &MarkupNodeId, child: NodeOrText<MarkupNodeId>) {
        // If a child moves within its parent, its old position is removed first.
        if let NodeOrText::AppendNode(node) = &child {
            self.remove_from_parent(node);
        }
        self.insert_child(*parent, self.child_count(*parent), child);
    }

    fn append_based_on_parent_node(
        &self,
        element: &MarkupNodeId,
        previous: &MarkupNodeId,
        child: NodeOrText<MarkupNodeId>,
    ) {
        let has_parent = self.0.borrow().parents.get(*element).copied().flatten().is_some();
        if has_parent {
            self.append_before_sibling(element, child);
        } else {
            self.append(previous, child);
        }
    }

    fn append_doctype_to_document(&self, _: StrTendril, _: StrTendril, _: StrTendril) {}

    /// A template's content is stored in the template itself: they are not distinguished here.
    fn get_template_contents(&self, target: &MarkupNodeId) -> MarkupNodeId {
        *target
    }

    fn same_node(&self, left: &MarkupNodeId, right: &MarkupNodeId) -> bool {
        left == right
    }

    fn set_quirks_mode(&self, _: QuirksMode) {}

    fn append_before_sibling(&self, sibling: &MarkupNodeId, child: NodeOrText<MarkupNodeId>) {
        if let NodeOrText::AppendNode(node) = &child {
            self.remove_from_parent(node);
        }
        let location = {
            let built = self.0.borrow();
            let parent = built.parents.get(*sibling).copied().flatten();
            parent.and_then(|parent| {
                let children = built.children.get(parent)?;
                Some((parent, children.iter().position(|candidate| candidate == sibling)?))
            })
        };
        if let Some((parent, at)) = location {
            self.insert_child(parent, at, child);
        }
    }

    fn add_attrs_if_missing(&self, target: &MarkupNodeId, more: Vec<Attribute>) {
        let mut built = self.0.borrow_mut();
        let Some(MarkupNodeKind::Element { attributes, .. }) = built.kinds.get_mut(*target) else {
            return;
        };
        for (name, value) in attribute_pairs(more) {
            if !attributes.iter().any(|(key, _)| *key == name) {
                attributes.push((name, value));
            }
        }
    }

    fn remove_from_parent(&self, target: &MarkupNodeId) {
        let mut built = self.0.borrow_mut();
        let parent = built.parents.get_mut(*target).and_then(Option::take);
        if let Some(children) = parent.and_then(|parent| built.children.get_mut(parent)) {
            children.retain(|child| child != target);
        }
    }

    fn reparent_children(&self, node: &MarkupNodeId, parent: &MarkupNodeId) {
        let mut built = self.0.borrow_mut();
        let moved = built.children.get_mut(*node).map(std::mem::take).unwrap_or_default();
        for child in &moved {
            if let Some(up) = built.parents.get_mut(*child) {
                *up = Some(*parent);
            }
        }
        if let Some(children) = built.children.get_mut(*parent) {
            children.extend(moved);
        }
    }
}
