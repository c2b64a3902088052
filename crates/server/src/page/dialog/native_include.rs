//! Parts of dialogs that AEM itself has below `/libs` and that dialogs of packages include: the fields of every page.
//!
//! In: the path of an include. Out: the fields, as a part of the dialog's tree.

use super::dialog_node::DialogNode;

/// The folder of the parts of page dialogs.
const PAGE_TABS: &str = "wcm/foundation/components/basicpage/v1/basicpage/tabs/";
const FORM: &str = "granite/ui/components/coral/foundation/form/";
const TAG_FIELD: &str = "cq/gui/components/coral/common/form/tagfield";

/// Returns the part of a dialog at a path below `/libs` or `/mnt/overlay`; `None` for other paths.
pub(super) fn native_include(path: &str) -> Option<DialogNode> {
    let (_, part) = path.split_once(PAGE_TABS)?;
    let (title, fields) = match part.rsplit('/').next()? {
        "title" => (
            "Title and tags",
            vec![
                field("textfield", "jcr:title", "Title", &[("required", "true")]),
                DialogNode::with(
                    "tags",
                    &[
                        ("sling:resourceType", TAG_FIELD),
                        ("name", "./cq:tags"),
                        ("fieldLabel", "Tags"),
                        ("multiple", "true"),
                    ],
                ),
                field("checkbox", "hideInNav", "Hide in navigation", &[("value", "true")]),
            ],
        ),
        "moretitles" => (
            "More titles and description",
            vec![
                field("textfield", "pageTitle", "Page title", &[]),
                field("textfield", "navTitle", "Navigation title", &[]),
                field("textfield", "subtitle", "Subtitle", &[]),
                field("textarea", "jcr:description", "Description", &[]),
            ],
        ),
        "onofftime" => {
            let date = [("type", "datetime"), ("typeHint", "Date")];
            (
                "On and off time",
                vec![
                    field("datepicker", "onTime", "On time", &date),
                    field("datepicker", "offTime", "Off time", &date),
                ],
            )
        }
        "vanityurl" => {
            let mut paths = field("multifield", "sling:vanityPath", "Vanity URL", &[]);
            paths.children.push(field("textfield", "sling:vanityPath", "Vanity URL", &[]));
            if let Some(inner) = paths.children.first_mut() {
                inner.name = "field".to_owned();
            }
            let redirect =
                field("checkbox", "sling:redirect", "Redirect vanity URL", &[("value", "true")]);
            ("Vanity URL", vec![paths, redirect])
        }
        _ => return None,
    };
    let fieldset = format!("{FORM}fieldset");
    let own = [("sling:resourceType", fieldset.as_str()), ("jcr:title", title)];
    let mut group = DialogNode::with("fields", &own);
    group.children.push(DialogNode {
        name: "items".to_owned(),
        children: fields,
        ..DialogNode::default()
    });
    Some(group)
}

fn field(kind: &str, property: &str, label: &str, others: &[(&str, &str)]) -> DialogNode {
    let (kind, name) = (format!("{FORM}{kind}"), format!("./{property}"));
    let own =
        [("sling:resourceType", kind.as_str()), ("name", name.as_str()), ("fieldLabel", label)];
    let properties: Vec<(&str, &str)> = own.into_iter().chain(others.iter().copied()).collect();
    DialogNode::with(property, &properties)
}
