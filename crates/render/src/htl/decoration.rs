//! Decoration tags: the element around an included component, with the classes by which style sheets select it.
//!
//! An inclusion draws the element if its options ask for it (`decoration=true`, `decorationTagName`, `cssClassName`) or
//! the component has `cq:htmlTag`; the component's `cq:noDecoration` and the option `decoration=false` suppress it.
//!
//! Its classes are the names of the component and of its super types, those of the option and of `cq:htmlTag`, and those
//! that an author selected in the style system.

use tympan_core_components::{ComponentContext, ComponentResource};
use tympan_htl::HtlOptions;

use super::model_context::SiteModelContext;

/// The element around an included component.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DecorationTag {
    pub tag_name: String,
    pub classes: Vec<String>,
}

/// The element names that a component or an author may ask for; others become `div`.
const TAG_NAMES: [&str; 24] = [
    "div", "span", "section", "article", "aside", "header", "footer", "main", "nav", "ul", "ol",
    "li", "p", "h1", "h2", "h3", "h4", "h5", "h6", "figure", "fieldset", "address", "dl", "form",
];

/// Types of AEM whose nodes are not in the repository although they count as components.
const PLATFORM_COMPONENTS: [&str; 3] = [
    "wcm/foundation/components/responsivegrid",
    "wcm/foundation/components/parsys",
    "foundation/components/parsys",
];

/// Returns the element around a component; `None` if there is none.
pub(super) fn decoration_tag(
    context: &SiteModelContext,
    resource: &ComponentResource,
    resource_type: &str,
    options: &HtlOptions,
) -> Option<DecorationTag> {
    let components = component_chain(context, resource_type);
    let component_property = |child: &str, name: &str| {
        components.iter().find_map(|(path, _)| {
            let path = path.as_ref()?;
            context.property(&format!("{path}{child}"), name)?.to_text()
        })
    };
    let asked = options.value("decoration");
    if asked.is_some_and(|value| !value.is_true() || value.as_text() == Some("false")) {
        return None;
    }
    let tag_option = options.text("decorationTagName").filter(|name| !name.is_empty());
    let class_option = options.text("cssClassName");
    let own_tag = component_property("/cq:htmlTag", "cq:tagName");
    let own_class = component_property("/cq:htmlTag", "class");
    if asked.is_none() {
        let is_suppressed =
            component_property("", "cq:noDecoration").is_some_and(|value| &*value == "true");
        let is_requested = tag_option.is_some()
            || class_option.is_some()
            || own_tag.is_some()
            || own_class.is_some();
        if is_suppressed || !is_requested {
            return None;
        }
    }
    let tag_name = tag_option.or_else(|| own_tag.map(|name| name.to_string()));
    let mut classes: Vec<String> = Vec::new();
    let mut add = |name: &str| {
        if !name.is_empty() && !classes.iter().any(|known| known == name) {
            classes.push(name.to_owned());
        }
    };
    if is_top_component(resource.path()) {
        add(resource.name());
    }
    components.iter().for_each(|(_, name)| add(name));
    let extra = [own_class.map(|class| class.to_string()), class_option];
    for class in extra.iter().flatten() {
        class.split_whitespace().for_each(&mut add);
    }
    let style = selected_style(context, resource);
    style.classes.iter().for_each(|class| add(class));
    let tag_name = style.element.or(tag_name);
    Some(DecorationTag { tag_name: safe_tag_name(tag_name.as_deref()), classes })
}

/// Returns the components of a type and of its super types, with their names.
fn component_chain(
    context: &SiteModelContext,
    resource_type: &str,
) -> Vec<(Option<String>, String)> {
    let mut chain = Vec::new();
    for component_type in context.super_types(resource_type) {
        let path = context.component_path(&component_type);
        let is_component = match &path {
            Some(path) => {
                context.node(path).is_some_and(|node| node.primary_type() == "cq:Component")
            }
            None => PLATFORM_COMPONENTS.contains(&component_type.as_str()),
        };
        if is_component {
            let name = component_type.rsplit('/').next().unwrap_or_default().to_owned();
            chain.push((path, name));
        }
    }
    if chain.is_empty() {
        let name = resource_type.rsplit('/').next().unwrap_or_default().to_owned();
        chain.push((None, name));
    }
    chain
}

/// Returns true if a component lies directly below the content of a page; its name is a class of its element.
fn is_top_component(path: &str) -> bool {
    path.rsplit_once('/').is_some_and(|(parent, _)| parent.ends_with("/jcr:content"))
}

/// The style of a component.
#[derive(Debug, Default)]
struct ComponentStyle {
    classes: Vec<String>,
    /// The name of the element.
    element: Option<String>,
}

/// Returns the style that an author selected for a component (`cq:styleIds`), after the default one of its policy.
fn selected_style(context: &SiteModelContext, resource: &ComponentResource) -> ComponentStyle {
    let mut style = ComponentStyle::default();
    let Some(policy) = context.content_policy(resource) else { return style };
    let text = |path: &str, name: &str| {
        let text = context.property(path, name)?.to_text()?;
        Some(text.to_string()).filter(|text| !text.is_empty())
    };
    let mut classes: Vec<String> = text(&policy, "cq:styleDefaultClasses").into_iter().collect();
    style.element = text(&policy, "cq:styleDefaultElement");
    let ids = resource.property(context, "cq:styleIds");
    let ids = ids.map(|ids| ids.to_texts()).unwrap_or_default();
    let groups = format!("{policy}/cq:styleGroups");
    let group_names = if ids.is_empty() { Vec::new() } else { context.child_names(&groups) };
    for group in group_names {
        let styles = format!("{groups}/{group}/cq:styles");
        for name in context.child_names(&styles) {
            let path = format!("{styles}/{name}");
            let id = text(&path, "cq:styleId");
            if id.is_some_and(|id| ids.iter().any(|selected| **selected == *id)) {
                classes.extend(text(&path, "cq:styleClasses"));
                style.element = text(&path, "cq:styleElement").or(style.element);
            }
        }
    }
    let names = classes.iter().flat_map(|classes| classes.split_whitespace());
    style.classes = names.map(str::to_owned).collect();
    style
}

/// Returns a name that is safe as the name of an element.
fn safe_tag_name(name: Option<&str>) -> String {
    let name = name.unwrap_or("div").to_ascii_lowercase();
    if TAG_NAMES.contains(&name.as_str()) { name } else { "div".to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_harmless_elements_are_drawn() {
        assert_eq!(safe_tag_name(Some("SECTION")), "section");
        assert_eq!(safe_tag_name(Some("script")), "div");
        assert_eq!(safe_tag_name(Some("div onclick")), "div");
        assert_eq!(safe_tag_name(None), "div");
        assert!(is_top_component("/content/a/jcr:content/root"));
        assert!(!is_top_component("/content/a/jcr:content/root/text"));
    }
}
