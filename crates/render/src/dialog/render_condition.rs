//! The conditions on which parts of a dialog are shown: `granite:hide`, and Granite's render conditions.
//!
//! A render condition is a node `granite:rendercondition` below a part of a dialog. Its type is one of `simple` (an
//! expression), `privilege`, `and`, `or` and `not`, or one of the Core Components; other types are scripts of AEM and are
//! not evaluated. What is not evaluated hides nothing.

use tympan_content::{Node, NodePath, Privileges, Property, Result, Subtree, Value};

use super::expression::{GraniteValue, NameLookup, evaluate_text};

/// The property with the expression that hides a part of a dialog.
pub(super) const HIDE_EXPRESSION: &str = "granite:hide";
/// The property that hides a part of a dialog where a component is edited, as opposed to created.
const HIDE_ON_EDIT: &str = "cq:hideOnEdit";
/// The conditions that ask for services of Adobe's cloud, which are absent.
const CLOUD_CONDITIONS: [&str; 3] = ["feature", "isAssetDeliveryEnabled", "isNGDMEnabled"];
/// The condition of the two fields for elements of a fragment, of which the list also takes a single one.
const ELEMENT_NAMES: &str = "elementnames";
/// The nodes with the condition of a part of a dialog; the second is that of Granite's older components.
const CONDITION_NODES: [&str; 2] = ["granite:rendercondition", "rendercondition"];
/// The folders of the types of conditions.
const CONDITION_FOLDERS: [&str; 4] = [
    "granite/ui/components/coral/foundation/renderconditions/",
    "granite/ui/components/foundation/renderconditions/",
    "core/wcm/components/rendercondition/",
    "core/wcm/components/contentfragment/v1/renderconditions/",
];
/// Maximum depth of nested conditions.
const MAX_CONDITION_DEPTH: usize = 20;

/// The facts that conditions depend on.
#[derive(Debug, Clone, Copy)]
pub(super) struct ConditionFacts<'a> {
    /// The resource whose dialog is opened.
    pub resource: &'a Node,
    /// The policy of its component, if it has one.
    pub policy: Option<&'a Node>,
}

impl ConditionFacts<'_> {
    /// Returns true if a part of a dialog is hidden.
    pub(super) fn hides(&self, part: &Subtree) -> Result<bool> {
        if let Some(property) = part.properties.get(HIDE_EXPRESSION)
            && self.evaluate(property).is_some_and(|value| value.is_true())
        {
            return Ok(true);
        }
        let is_hidden_on_edit =
            part.properties.get(HIDE_ON_EDIT).and_then(|value| self.evaluate(value));
        if is_hidden_on_edit.is_some_and(|value| value.is_true()) {
            return Ok(true);
        }
        match condition_of(part) {
            Some(condition) => Ok(self.is_met(condition, 0)? == Some(false)),
            None => Ok(false),
        }
    }

    /// Evaluates the expressions in a property.
    pub(super) fn evaluate(&self, property: &Property) -> Option<GraniteValue> {
        let names = |parts: &[String]| self.value_of(parts);
        evaluate_property(property, &names)
    }

    /// Returns true if a condition is met; `None` if it is not evaluated.
    fn is_met(&self, condition: &Subtree, depth: usize) -> Result<Option<bool>> {
        if depth > MAX_CONDITION_DEPTH {
            return Ok(None);
        }
        let mut operands = Vec::new();
        let kind = condition_kind(condition);
        if matches!(kind, Some("and" | "or" | "not")) {
            for operand in &condition.children {
                operands.push(self.is_met(operand, depth + 1)?);
            }
        }
        let any = |truth: bool| operands.contains(&Some(truth));
        let all_known = operands.iter().all(Option::is_some);
        Ok(match kind {
            Some("simple") => {
                let expression = condition.properties.get("expression");
                expression.and_then(|expression| Some(self.evaluate(expression)?.is_true()))
            }
            Some("privilege") => self.has_privileges(condition)?,
            Some("and") if any(false) => Some(false),
            Some("and") => all_known.then_some(true),
            Some("or") if any(true) => Some(true),
            Some("or") => all_known.then_some(false),
            Some("not") => operands.first().copied().flatten().map(|is_met| !is_met),
            Some(ELEMENT_NAMES) => Some(condition.text("displayMode") != Some("singleText")),
            Some(_) => Some(false),
            None => None,
        })
    }

    /// Returns true if the user has the privileges of a condition at its path; `None` if the path or a privilege is not
    /// known here.
    fn has_privileges(&self, condition: &Subtree) -> Result<Option<bool>> {
        let path = condition.properties.get("path").and_then(|path| self.evaluate(path));
        let path = path.and_then(|path| NodePath::new(&path.to_text()).ok());
        let names = condition.properties.get("privileges").map(Property::values);
        let (Some(path), Some(names)) = (path, names) else { return Ok(None) };
        for name in names {
            let Some(privileges) = Privileges::find(&name.to_text()) else { return Ok(None) };
            if !self.resource.snapshot().has_privileges(&path, privileges)? {
                return Ok(Some(false));
            }
        }
        Ok(Some(true))
    }

    /// Returns the value of a name: properties of the policy, the parts of the request for the dialog, and its
    /// parameters, of which there are none.
    fn value_of(&self, parts: &[String]) -> Option<GraniteValue> {
        let [object, name] = parts else { return None };
        match (object.as_str(), name.as_str()) {
            ("cqDesign", name) => {
                let property = self.policy.and_then(|policy| policy.property(name));
                Some(property.map_or(GraniteValue::Null, |property| property_value(&property)))
            }
            ("requestPathInfo", "suffix") => {
                Some(GraniteValue::Text(self.resource.path().to_string()))
            }
            ("requestPathInfo", "selectorString" | "selectors") | ("param", _) => {
                Some(GraniteValue::Null)
            }
            ("requestPathInfo", "extension") => Some(GraniteValue::Text("html".to_owned())),
            _ => None,
        }
    }
}

/// Returns the condition of a part of a dialog.
pub(super) fn condition_of(part: &Subtree) -> Option<&Subtree> {
    CONDITION_NODES.iter().find_map(|name| part.child(name))
}

/// Returns the type of a condition without its folder; `None` if it is not evaluated.
pub(super) fn condition_kind(condition: &Subtree) -> Option<&str> {
    let kind = condition.text("sling:resourceType")?;
    let kind = ["/libs/", "/apps/"].iter().find_map(|root| kind.strip_prefix(root)).unwrap_or(kind);
    let kind = CONDITION_FOLDERS.iter().find_map(|folder| kind.strip_prefix(folder))?;
    let is_known = matches!(kind, "simple" | "privilege" | "and" | "or" | "not" | ELEMENT_NAMES)
        || CLOUD_CONDITIONS.contains(&kind);
    is_known.then_some(kind)
}

/// Returns true if the expressions of a text use only names and functions that have a value here.
pub(super) fn is_evaluated(property: &Property) -> bool {
    let names = |parts: &[String]| match parts {
        [object, _] if matches!(object.as_str(), "cqDesign" | "requestPathInfo" | "param") => {
            Some(GraniteValue::Null)
        }
        _ => None,
    };
    evaluate_property(property, &names).is_some()
}

fn evaluate_property(property: &Property, names: &NameLookup<'_>) -> Option<GraniteValue> {
    match property.first()? {
        Value::Boolean(truth) => Some(GraniteValue::Boolean(*truth)),
        value => evaluate_text(&value.to_text(), names),
    }
}

fn property_value(property: &Property) -> GraniteValue {
    match property {
        Property::Single(Value::Boolean(truth)) => GraniteValue::Boolean(*truth),
        Property::Single(Value::Double(number)) => GraniteValue::Number(*number),
        Property::Single(value) => GraniteValue::Text(value.to_text().into_owned()),
        Property::List(_, values) => {
            GraniteValue::List(values.iter().map(|value| value.to_text().into_owned()).collect())
        }
    }
}
