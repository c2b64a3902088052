//! The structure of editable templates, and its combination with the content of pages.
//!
//! A page with an editable template shows the nodes of the template's structure (`structure/jcr:content`). A node of
//! the structure is locked unless it has `editable=true`. A locked node is shown as it is in the template. An editable
//! node is replaced by the node of the page at the same place, with everything below it.
//!
//! In: the content node of a page. Out: the resources that the page shows at its top, and those in each locked
//! container.

use std::sync::Arc;

use tympan_content::{JCR_CONTENT, Node, NodePath};

use crate::dependency::content_reader::ContentReader;

/// The property of structure nodes that authors of pages may change.
const EDITABLE_PROPERTY: &str = "editable";

/// The property of a component's node with its type.
const RESOURCE_TYPE_PROPERTY: &str = "sling:resourceType";

/// The structure of an editable template, for one page.
#[derive(Debug)]
pub(crate) struct TemplateStructure {
    /// The content node of the template's structure.
    structure: NodePath,
    /// The content node of the page.
    page_content: NodePath,
}

/// A component that a page shows because of its template.
#[derive(Debug, Clone)]
pub(crate) enum StructureResource {
    /// A node: of the template if it is locked, of the page if it is editable.
    Existing(Node),
    /// An editable component without content in the page yet, with its type.
    Missing(NodePath, String),
}

impl TemplateStructure {
    /// Finds the structure of a page's template; `None` if the template is not editable.
    pub(crate) fn of_page_content(reader: &ContentReader, content: &Node) -> Option<Arc<Self>> {
        let template = reader.text_property(content, "cq:template")?;
        reader.open_template(&template);
        let structure = format!("{}/structure/{JCR_CONTENT}", template.trim_end_matches('/'));
        let structure = reader.node_existence_at(&structure)?;
        Some(Arc::new(Self {
            structure: structure.path().clone(),
            page_content: content.path().clone(),
        }))
    }

    /// Returns the content node of the page.
    pub(crate) fn page_content(&self) -> &NodePath {
        &self.page_content
    }

    /// Returns true if a path lies in the structure, so that authors of pages cannot change it.
    pub(crate) fn contains(&self, path: &NodePath) -> bool {
        // A template's own structure is edited as a page of its own.
        !self.is_of_template_itself() && self.relative_path(path).is_some()
    }

    /// Returns true if the page is the template's structure itself.
    pub(crate) fn is_of_template_itself(&self) -> bool {
        self.structure == self.page_content
    }

    /// Returns the components at the top of the page.
    pub(crate) fn top_resources(&self, reader: &ContentReader) -> Vec<StructureResource> {
        self.resources_in(reader, &self.structure).unwrap_or_default()
    }

    /// Returns the components in a container; `None` if the container is not a locked node of this structure.
    pub(crate) fn resources_in(
        &self,
        reader: &ContentReader,
        container: &NodePath,
    ) -> Option<Vec<StructureResource>> {
        if *container != self.structure {
            self.relative_path(container)?;
        }
        let container = reader.node_existence(container)?;
        let children = reader.children_existence(&container).into_iter();
        Some(
            children
                .filter(|child| child.property(RESOURCE_TYPE_PROPERTY).is_some())
                .filter_map(|child| self.shown_resource(reader, child))
                .collect(),
        )
    }

    /// Returns the path in the page that a path of the structure stands for; `None` if it is locked or not in the
    /// structure.
    pub(crate) fn editable_path(
        &self,
        reader: &ContentReader,
        path: &NodePath,
    ) -> Option<NodePath> {
        let relative = self.relative_path(path).filter(|_| self.contains(path))?;
        let mut node = reader.node_existence(&self.structure)?;
        for name in relative.split('/').filter(|name| !name.is_empty()) {
            node = reader.child_existence(&node, name)?;
            if is_editable(reader, &node) {
                return NodePath::new(&format!("{}{relative}", self.page_content)).ok();
            }
        }
        None
    }

    /// Returns the component that a page shows for a node of the structure.
    fn shown_resource(&self, reader: &ContentReader, node: Node) -> Option<StructureResource> {
        if !is_editable(reader, &node) {
            return Some(StructureResource::Existing(node));
        }
        let relative = self.relative_path(node.path())?;
        let path = NodePath::new(&format!("{}{relative}", self.page_content)).ok()?;
        let own = reader
            .node_existence(&path)
            .filter(|own| reader.text_property(own, RESOURCE_TYPE_PROPERTY).is_some());
        Some(match own {
            Some(own) => StructureResource::Existing(own),
            None => StructureResource::Missing(path, node.text(RESOURCE_TYPE_PROPERTY)?),
        })
    }

    /// Returns the part of a path below the structure, beginning with `/`.
    fn relative_path<'a>(&self, path: &'a NodePath) -> Option<&'a str> {
        path.as_str().strip_prefix(self.structure.as_str()).filter(|rest| rest.starts_with('/'))
    }
}

/// Returns true if the authors of pages may change a node of a structure.
fn is_editable(reader: &ContentReader, node: &Node) -> bool {
    let property = reader.property(node, EDITABLE_PROPERTY);
    let value = property.and_then(|property| Some(property.first()?.to_text().into_owned()));
    value.is_some_and(|text| text.eq_ignore_ascii_case("true"))
}
