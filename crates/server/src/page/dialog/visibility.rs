//! When a form shows and enables the fields of a dialog.
//!
//! AEM leaves this to scripts of client libraries that run in its editor. This module has rules instead:
//!
//! 1. Data attributes: a field with `…showhide-target` or `…showhidetarget` names elements by a class or an attribute;
//!    each of them is shown while its `showhidetargetvalue` is the value of the field.
//! 2. [`SCRIPT_RULES`]: what the scripts of the Core Components do beside that. A rule applies to a dialog that has the
//!    class by which the script finds its dialog.
//!
//! `docs/compat/aem-dialogs.md` lists the scripts and their rules.
//!
//! Out: conditions on the values of the form, which the form checks after each change.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value as Json, json};

use super::dialog_context::property_name;
use super::dialog_node::DialogNode;

/// A condition on the values of a form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Condition {
    /// A field has one of these values; a checkbox has `true` or `false`.
    Is(&'static str, &'static [&'static str]),
    /// A field has none of these values.
    IsNot(&'static str, &'static [&'static str]),
    /// A field has a value.
    IsFilled(&'static str),
    /// A box is checked, and so is another one, or the other one must not be.
    IsCheckedAnd(&'static str, &'static str, bool),
    /// Never.
    Never,
}

impl Condition {
    /// Returns the field that the condition asks first; `None` if it asks none.
    fn field(self) -> Option<&'static str> {
        match self {
            Self::Is(field, _)
            | Self::IsNot(field, _)
            | Self::IsFilled(field)
            | Self::IsCheckedAnd(field, ..) => Some(field),
            Self::Never => None,
        }
    }

    fn to_json(self) -> Json {
        match self {
            Self::Is(field, values) => json!({ "field": field, "in": values }),
            Self::IsNot(field, values) => json!({ "not": { "field": field, "in": values } }),
            Self::IsFilled(field) => json!({ "field": field, "filled": true }),
            Self::IsCheckedAnd(field, other, other_value) => json!({ "all": [
                { "field": field, "in": ["true"] },
                { "field": other, "in": [other_value.to_string()] },
            ] }),
            Self::Never => json!({ "any": [] }),
        }
    }
}

/// What a rule decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Effect {
    /// The field is shown.
    Show,
    /// The field can be changed.
    Enable,
    /// The field must be filled.
    Require,
    /// The field is not shown while the condition holds.
    Hide,
    /// The field cannot be changed while the condition holds.
    Disable,
}

/// One rule: in dialogs with a class, what is decided about a field or an element, and when.
struct ScriptRule {
    dialog_class: &'static str,
    /// The name of a property, a class as `.name`, or a data attribute as `[name=value]`.
    target: &'static str,
    effect: Effect,
    condition: Condition,
}

const fn rule(
    dialog_class: &'static str,
    target: &'static str,
    effect: Effect,
    condition: Condition,
) -> ScriptRule {
    ScriptRule { dialog_class, target, effect, condition }
}

const CHECKED: &[&str] = &["true"];

/// The rules that stand for scripts of the Core Components.
const SCRIPT_RULES: &[ScriptRule] = &[
    // teaser: texts may come from the linked page.
    rule(
        "cmp-teaser__editor",
        "jcr:title",
        Effect::Disable,
        Condition::Is("titleFromPage", CHECKED),
    ),
    rule(
        "cmp-teaser__editor",
        "jcr:description",
        Effect::Disable,
        Condition::Is("descriptionFromPage", CHECKED),
    ),
    rule(
        "cmp-teaser__editor",
        "actions",
        Effect::Hide,
        Condition::Is("actionsEnabled", &["false"]),
    ),
    rule(
        "cmp-teaser__editor",
        "linkURL",
        Effect::Disable,
        Condition::Is("actionsEnabled", CHECKED),
    ),
    // image: texts may come from the asset or the page; a decorative image has none and leads nowhere.
    rule("cmp-image__editor", "alt", Effect::Hide, Condition::Is("isDecorative", CHECKED)),
    rule(
        "cmp-image__editor",
        "alt",
        Effect::Disable,
        Condition::IsCheckedAnd("altValueFromPageImage", "imageFromPageImage", true),
    ),
    rule(
        "cmp-image__editor",
        "alt",
        Effect::Disable,
        Condition::IsCheckedAnd("altValueFromDAM", "imageFromPageImage", false),
    ),
    rule(
        "cmp-image__editor",
        "altValueFromDAM",
        Effect::Hide,
        Condition::Is("isDecorative", CHECKED),
    ),
    rule(
        "cmp-image__editor",
        "altValueFromDAM",
        Effect::Hide,
        Condition::Is("imageFromPageImage", CHECKED),
    ),
    rule(
        "cmp-image__editor",
        "altValueFromPageImage",
        Effect::Hide,
        Condition::Is("isDecorative", CHECKED),
    ),
    rule(
        "cmp-image__editor",
        "altValueFromPageImage",
        Effect::Hide,
        Condition::IsNot("imageFromPageImage", CHECKED),
    ),
    rule(
        "cmp-image__editor",
        "fileReference",
        Effect::Hide,
        Condition::Is("imageFromPageImage", CHECKED),
    ),
    rule(
        "cmp-image__editor",
        "pageImageThumbnail",
        Effect::Show,
        Condition::Is("imageFromPageImage", CHECKED),
    ),
    rule(
        "cmp-image__editor",
        "jcr:title",
        Effect::Disable,
        Condition::IsCheckedAnd("titleValueFromDAM", "imageFromPageImage", false),
    ),
    rule(
        "cmp-image__editor",
        ".cmp-image__editor-link",
        Effect::Hide,
        Condition::Is("isDecorative", CHECKED),
    ),
    rule("cmp-image__editor", ".cmp-image__editor-dynamicmedia", Effect::Show, Condition::Never),
    rule(
        "cmp-image__editor",
        "cq:featuredimage/alt",
        Effect::Disable,
        Condition::Is("cq:featuredimage/altValueFromDAM", CHECKED),
    ),
    // list
    rule("cmp-list__editor", "maxItems", Effect::Hide, Condition::Is("listFrom", &["static"])),
    // navigation
    rule(
        "cmp-navigation__editor",
        "structureDepth",
        Effect::Hide,
        Condition::Is("collectAllPages", CHECKED),
    ),
    // carousel
    rule(
        "cmp-carousel__editor",
        "[cmp-carousel-v1-dialog-hook=autoplayGroup]",
        Effect::Show,
        Condition::Is("autoplay", CHECKED),
    ),
    // container, policy
    rule(
        "cmp-container__editor",
        "backgroundColorSwatchesOnly",
        Effect::Show,
        Condition::Is("backgroundColorEnabled", CHECKED),
    ),
    rule(
        "cmp-container__editor",
        "[cmp-container-v1-dialog-policy-hook=backgroundColorAllowedSwatches]",
        Effect::Show,
        Condition::Is("backgroundColorEnabled", CHECKED),
    ),
    // download
    rule(
        "cmp-download__editor",
        "jcr:title",
        Effect::Disable,
        Condition::Is("titleFromAsset", CHECKED),
    ),
    rule(
        "cmp-download__editor",
        "jcr:description",
        Effect::Disable,
        Condition::Is("descriptionFromAsset", CHECKED),
    ),
    // text field of a form
    rule("cmp-form-text__editDialog", "rows", Effect::Show, Condition::Is("type", &["textarea"])),
    rule(
        "cmp-form-text__editDialog",
        "constraintMessage",
        Effect::Hide,
        Condition::Is("type", &["text", "textarea"]),
    ),
    rule(
        "cmp-form-text__editDialog",
        "requiredMessage",
        Effect::Show,
        Condition::Is("required", CHECKED),
    ),
    rule(
        "cmp-form-text__editDialog",
        "readOnly",
        Effect::Disable,
        Condition::Is("required", CHECKED),
    ),
    rule(
        "cmp-form-text__editDialog",
        "required",
        Effect::Disable,
        Condition::Is("readOnly", CHECKED),
    ),
    // button of a form
    rule("cmp-form-button__editor-value", "name", Effect::Require, Condition::IsFilled("value")),
    // container of a form
    rule(
        "cmp-action-type-selection",
        ".cmp-workflow-title",
        Effect::Show,
        Condition::IsFilled("workflowModel"),
    ),
    // embed, YouTube
    rule(
        "cmp-embeddable-youtube__editor",
        "[cmp-youtube-dialog-layout-option=fixed]",
        Effect::Show,
        Condition::Is("layout", &["fixed"]),
    ),
    rule(
        "cmp-embeddable-youtube__editor",
        "[cmp-youtube-dialog-layout-option=responsive]",
        Effect::Show,
        Condition::Is("layout", &["responsive"]),
    ),
    // PDF viewer
    rule(
        "pdfviewer-tabs",
        "defaultViewMode",
        Effect::Hide,
        Condition::Is("type", &["SIZED_CONTAINER", "IN_LINE"]),
    ),
    rule(
        "pdfviewer-tabs",
        "borderless",
        Effect::Hide,
        Condition::Is("type", &["SIZED_CONTAINER", "IN_LINE"]),
    ),
    rule(
        "pdfviewer-tabs",
        "showAnnotationTools",
        Effect::Hide,
        Condition::Is("type", &["SIZED_CONTAINER", "IN_LINE"]),
    ),
    rule(
        "pdfviewer-tabs",
        "showLeftHandPanel",
        Effect::Hide,
        Condition::Is("type", &["SIZED_CONTAINER", "IN_LINE"]),
    ),
    rule("pdfviewer-tabs", "showFullScreen", Effect::Hide, Condition::Is("type", &["IN_LINE"])),
    rule("pdfviewer-tabs", "showPageControls", Effect::Hide, Condition::Is("type", &["IN_LINE"])),
    rule("pdfviewer-tabs", "dockPageControls", Effect::Hide, Condition::Is("type", &["IN_LINE"])),
    rule(
        "pdfviewer-tabs",
        "dockPageControls",
        Effect::Enable,
        Condition::Is("showPageControls", CHECKED),
    ),
    // content fragment
    rule(
        "cmp-contentfragment__editor",
        ".cmp-contentfragment__editor-paragraph-controls",
        Effect::Show,
        Condition::Is("displayMode", &["singleText"]),
    ),
    rule(
        "cmp-contentfragment__editor",
        "paragraphRange",
        Effect::Enable,
        Condition::Is("paragraphScope", &["range"]),
    ),
    rule(
        "cmp-contentfragment__editor",
        "paragraphHeadings",
        Effect::Enable,
        Condition::Is("paragraphScope", &["range"]),
    ),
    rule(
        "cmp-contentfragment__editor",
        "variationName",
        Effect::Enable,
        Condition::IsFilled("fragmentPath"),
    ),
    rule(
        "cmp-contentfragment__editor",
        "elementNames",
        Effect::Enable,
        Condition::IsFilled("fragmentPath"),
    ),
];

/// A field whose value shows and hides others.
struct ShowHideField {
    name: String,
    /// The class or data attribute of the others.
    target: String,
}

/// The conditions of a dialog.
pub(super) struct VisibilityRules {
    show_hide_fields: Vec<ShowHideField>,
    script_rules: Vec<&'static ScriptRule>,
    /// The actions of forms that use a follow-up page or a workflow, by the class of its fields.
    form_actions: BTreeMap<&'static str, Vec<String>>,
}

impl VisibilityRules {
    /// Collects the rules for a dialog.
    pub(super) fn of_dialog(dialog: &DialogNode) -> Self {
        let mut show_hide_fields = Vec::new();
        let mut classes = BTreeSet::new();
        let mut names = BTreeSet::new();
        let mut form_actions: BTreeMap<&'static str, Vec<String>> = BTreeMap::new();
        dialog.visit(&mut |node: &DialogNode| {
            classes.extend(node.classes());
            names.extend(node.text("name").map(|name| property_name(&name).to_owned()));
            for (attribute, class) in [
                ("usesredirect", "cmp-redirect-selection"),
                ("usesworkflow", "cmp-workflow-container"),
            ] {
                let is_used = node
                    .data()
                    .any(|(name, text)| name.eq_ignore_ascii_case(attribute) && text == "true");
                if let Some(action) = node.data_text("showhidetargetvalue").filter(|_| is_used) {
                    form_actions.entry(class).or_default().push(action);
                }
            }
            let target = node.data().find(|(name, _)| {
                name.ends_with("showhide-target") || name.ends_with("showhidetarget")
            });
            if let (Some(name), Some((_, target))) = (node.text("name"), target) {
                show_hide_fields.push(ShowHideField {
                    name: property_name(&name).to_owned(),
                    target: target
                        .replace('\\', "")
                        .trim_matches(['.', '[', ']'])
                        .trim_start_matches("data-")
                        .to_owned(),
                });
            }
        });
        // A rule about a field that this version of a component does not have says nothing.
        let is_active = |rule: &&ScriptRule| {
            let has_field = rule.condition.field().is_none_or(|field| names.contains(field));
            classes.contains(rule.dialog_class) && has_field
        };
        let script_rules = SCRIPT_RULES.iter().filter(is_active).collect();
        Self { show_hide_fields, script_rules, form_actions }
    }

    /// Returns the conditions under which a node is shown. All of them must hold.
    pub(super) fn shown_when(&self, node: &DialogNode) -> Vec<Json> {
        let mut conditions = self.script_conditions(node, Effect::Show, Effect::Hide);
        let classes: Vec<String> = node.classes().collect();
        for field in &self.show_hide_fields {
            let attribute = node.data_text(&field.target);
            if attribute.is_none() && !classes.contains(&field.target) {
                continue;
            }
            let value = |(name, text): (&str, String)| {
                let name = name.to_ascii_lowercase();
                (name.ends_with("showhidetargetvalue") && !name.starts_with("reverse"))
                    .then_some(text)
            };
            match node.data().find_map(value) {
                Some(value) => {
                    let values: Vec<&str> =
                        value.split([',', ' ']).filter(|value| !value.is_empty()).collect();
                    conditions.push(json!({ "field": field.name, "in": values }));
                }
                None if node.data().any(|(name, _)| name.starts_with("reverse")) => {}
                // A box without a value shows its target while it is checked.
                None => conditions.push(json!({ "field": field.name, "in": ["true"] })),
            }
        }
        for actions in self.form_actions_of(&classes) {
            conditions.push(json!({ "field": "actionType", "in": actions }));
        }
        conditions
    }

    /// Returns the conditions under which a field can be changed. All of them must hold.
    pub(super) fn enabled_when(&self, node: &DialogNode) -> Vec<Json> {
        self.script_conditions(node, Effect::Enable, Effect::Disable)
    }

    /// Returns the conditions under which a field must be filled. Each of them demands it.
    pub(super) fn required_when(&self, node: &DialogNode) -> Vec<Json> {
        let is_own =
            |rule: &&&ScriptRule| rule.effect == Effect::Require && is_target(rule.target, node);
        self.script_rules.iter().filter(is_own).map(|rule| rule.condition.to_json()).collect()
    }

    fn script_conditions(&self, node: &DialogNode, effect: Effect, opposite: Effect) -> Vec<Json> {
        let condition = |rule: &&'static ScriptRule| {
            if !is_target(rule.target, node) {
                None
            } else if rule.effect == effect {
                Some(rule.condition.to_json())
            } else if rule.effect == opposite {
                Some(json!({ "not": rule.condition.to_json() }))
            } else {
                None
            }
        };
        self.script_rules.iter().filter_map(condition).collect()
    }

    /// Returns the actions for which fields with one of these classes are shown. No action uses them: none.
    fn form_actions_of(&self, classes: &[String]) -> Vec<Vec<String>> {
        if !self.show_hide_fields.iter().any(|field| field.target == "action-type-dialog") {
            return Vec::new();
        }
        ["cmp-redirect-selection", "cmp-workflow-container"]
            .into_iter()
            .filter(|class| classes.iter().any(|own| own == class))
            .map(|class| self.form_actions.get(class).cloned().unwrap_or_default())
            .collect()
    }
}

/// Returns true if a rule is about a node.
fn is_target(target: &str, node: &DialogNode) -> bool {
    if let Some(class) = target.strip_prefix('.') {
        return node.classes().any(|own| own == class);
    }
    if let Some((name, value)) =
        target.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')?.split_once('='))
    {
        return node.data_text(name).is_some_and(|own| own == value);
    }
    let names = ["fileReferenceParameter", "name"].iter().filter_map(|name| node.text(name));
    let is_name = names.into_iter().any(|name| property_name(&name) == target);
    is_name || node.name == target && node.property("name").is_none()
}
