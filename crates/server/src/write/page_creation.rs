//! New pages: each begins with the initial content of its template, whichever request creates it.
//!
//! In: the content of a page that a request created and the template that the request named for it. Out: the properties
//! and the children that the request left out, as the template has them.
//!
//! Invariants
//! * What the request sent stays as it was sent; a child that it sent is not combined with the template's.
//! * A template that is not allowed below the page's parent is refused, and so is one that the user may not read: its
//!   structure would be shown on the page.
//!
//! Absent: packages, replication and versions, which contain whole pages; a `cq:template` that names no template.

use tympan_content::{JCR_CONTENT, Node, NodePath, Session, Snapshot, is_replication_stamp};
use tympan_render::PageTemplate;

use crate::failure::{RequestFailure, Result};

/// The property of a page's content that names its template.
pub(crate) const TEMPLATE_PROPERTY: &str = "cq:template";

/// Properties of the template's content that are not those of a new page.
const OWN_PROPERTIES: [&str; 10] = [
    "jcr:primaryType",
    "jcr:mixinTypes",
    "jcr:uuid",
    "jcr:created",
    "jcr:createdBy",
    "jcr:lastModified",
    "jcr:lastModifiedBy",
    "cq:lastModified",
    "cq:lastModifiedBy",
    TEMPLATE_PROPERTY,
];

/// Returns an error if there is a template at a path that the user of the session may not read.
///
/// # Errors
/// 422; errors of the store.
pub(crate) fn require_readable_template(
    base: &Snapshot,
    session: &mut Session,
    template: &str,
) -> Result<()> {
    let Ok(path) = NodePath::new(template) else { return Ok(()) };
    let unrestricted = session.repository().snapshot_at(base.root_id())?;
    let is_template = unrestricted.node(&path)?.is_some_and(|node| is_template(&node));
    if is_template && session.node(&path)?.is_none() {
        let message = format!("you may not use the template `{template}`");
        return Err(RequestFailure::unprocessable(message).with_detail("template", template));
    }
    Ok(())
}

/// Gives a new page what its template begins with and the request left out.
///
/// # Errors
/// 422 if the template is not allowed there; errors of the store.
pub(crate) fn complete_new_page(
    session: &mut Session,
    content_path: &NodePath,
    template: &str,
) -> Result<()> {
    let pending = session.snapshot()?;
    let Some(content) = pending.node(content_path)? else { return Ok(()) };
    let Some(page) = content.parent()?.filter(|page| page.is_page()) else { return Ok(()) };
    if content.name() != JCR_CONTENT {
        return Ok(());
    }
    let Ok(template_path) = NodePath::new(template) else { return Ok(()) };
    let template = pending.node(&template_path)?.filter(is_template);
    let (Some(template), Some(parent)) = (template, page.parent()?) else { return Ok(()) };
    // The parts of a template are pages, too: its structure and its initial content name the template itself.
    if is_template(&parent) {
        return Ok(());
    }
    if !PageTemplate::is_allowed_below(&template, &parent)? {
        let message = format!(
            "the template `{template_path}` is not allowed for pages below `{}`; GET /api/v1/templates lists those \
             that are",
            parent.path()
        );
        return Err(RequestFailure::unprocessable(message)
            .with_detail("template", template_path.as_str())
            .with_detail("parent", parent.path().as_str()));
    }
    let Some(initial) = PageTemplate::initial_content(&template)? else { return Ok(()) };
    let missing_properties = initial.properties().into_iter().filter(|(name, _)| {
        !OWN_PROPERTIES.contains(&name.as_str())
            && !is_replication_stamp(name)
            && content.property(name).is_none()
    });
    for (name, property) in missing_properties {
        session.set_property(content_path, &name, property)?;
    }
    for child in initial.children()? {
        if content.child(child.name())?.is_none() {
            session.copy_node(child.path(), &content_path.child(child.name())?)?;
        }
    }
    Ok(())
}

fn is_template(node: &Node) -> bool {
    node.primary_type() == "cq:Template"
}
