//! `/bin/wcmcommand`: the form by which tools for AEM create pages.
//!
//! In: the fields `cmd=createPage`, `parentPath`, `title`, `label` (the name; the title if it is missing) and `template`.
//! Out: the same page as a form of Sling, so that the rules of new pages are those of every other request.
//!
//! Absent: the other commands, which have operations of their own (`delete`, `move`, `copy`, `activate`).

use http::StatusCode;
use tympan_content::{NodePath, Viewer};

use crate::Instance;
use crate::failure::{RequestFailure, Result};
use crate::write::form::{FormField, FormFieldValue};
use crate::write::sling_post::form_field::PostFields;

/// The path of the service.
pub(super) const PAGE_COMMAND_PATH: &str = "/bin/wcmcommand";

/// Returns the path and the fields of the form that creates the page.
///
/// # Errors
/// 400 for another command, and for a missing field.
pub(super) fn page_form(fields: &PostFields) -> Result<(String, PostFields)> {
    let command = fields.property_value("cmd").unwrap_or_default();
    if command != "createPage" {
        return Err(RequestFailure::bad_request(format!(
            "the command `{command}` is not supported; use createPage, or post `:operation` to the page"
        )));
    }
    let required = |name: &str| {
        fields
            .property_value(name)
            .ok_or_else(|| RequestFailure::bad_request(format!("`{name}` is missing")))
    };
    let (parent, title, template) =
        (required("parentPath")?, required("title")?, required("template")?);
    let pairs = [
        (":nameHint", fields.property_value("label").unwrap_or(title)),
        ("./jcr:primaryType", "cq:Page"),
        ("./jcr:content/jcr:primaryType", "cq:PageContent"),
        ("./jcr:content/jcr:title", title),
        ("./jcr:content/cq:template", template),
    ];
    let form = pairs.map(|(name, value)| FormField {
        name: name.to_owned(),
        value: FormFieldValue::Text(value.to_owned()),
    });
    Ok((format!("{}/", parent.trim_end_matches('/')), PostFields::from_form_fields(form.into())))
}

/// Returns an error if the folder or page for the new page is missing; other forms create it.
///
/// # Errors
/// 409; errors of the store.
pub(super) fn require_parent(instance: &Instance, viewer: &Viewer, parent: &str) -> Result<()> {
    let parent = NodePath::new(parent.trim_end_matches('/'))?;
    if instance.repository.snapshot()?.as_viewer(viewer).node(&parent)?.is_some() {
        return Ok(());
    }
    let message = format!("the parent node `{parent}` does not exist");
    Err(RequestFailure::new(StatusCode::CONFLICT, message))
}
