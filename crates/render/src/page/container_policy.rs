//! Policies: which components a container may hold.
//!
//! Input: a node of content. Output: the types that may lie directly in it, if there is any rule. The rules are checked
//! in this order:
//!
//! 1. `allowedChildren` of the page's template (`cq:template`), for containers directly below the page's content;
//! 2. the policy that an editable template assigns to the container: `cq:policy` of its mapping below
//!    `policies/jcr:content` of the template names a node below `settings/wcm/policies`, which lists the `components`;
//! 3. `allowedChildren` of the container's component, or of the nearest super type that has it;
//! 4. an editable template that assigns no `components` to the container: nothing may be put into it, as in AEM.
//!
//! An entry is a resource type, or a group of components as `group:Wayfare article`.
//!
//! The mapping for a container has the same relative path as the container below the page's content. For containers
//! that authors put into the page, which have no such path, the mapping lies at their resource type below the nearest
//! ancestor that has one.
//!
//! In AEM, `allowedChildren` of a template names templates of child pages. Such entries say nothing about components
//! and are skipped; a template with only such entries has no policy.
//!
//! Not here: whether a component is a container at all (`cq:isContainer`).

use tympan_content::{JCR_CONTENT, Node, NodePath, Result, Snapshot};

use super::page_template_list::is_template_location;

/// Search paths of components, in order.
const COMPONENT_SEARCH_PATHS: [&str; 2] = ["/apps/", "/libs/"];
/// The property with the allowed components.
const ALLOWED_CHILDREN_PROPERTY: &str = "allowedChildren";
/// Maximum length of a chain of super types; a longer one is a mistake.
const MAX_SUPER_TYPE_CHAIN: usize = 32;
/// The property of a policy's node that lists components.
const POLICY_COMPONENTS_PROPERTY: &str = "components";
/// The property of a mapping that names its policy.
const POLICY_PROPERTY: &str = "cq:policy";
/// The policies folder, relative to a settings location.
const POLICIES_FOLDER: &str = "settings/wcm/policies";
/// The settings locations that are searched after those of the template and its ancestors.
const SHARED_SETTINGS_FOLDERS: [&str; 3] = ["/conf/global", "/apps", "/libs"];
/// The prefix of an entry that names a group.
const GROUP_PREFIX: &str = "group:";

/// The components that may lie in a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerPolicy {
    entries: Vec<String>,
    source: NodePath,
    property: &'static str,
    is_explicit: bool,
}

/// The rule of an editable template for a container.
enum TemplatePolicy {
    /// The components that its policy lists.
    Listed(ContainerPolicy),
    /// There is no policy, or it lists none.
    Unlisted(ContainerPolicy),
}

impl ContainerPolicy {
    /// Finds the policy of a container; `None` if everything may lie in it.
    ///
    /// # Errors
    /// If content cannot be read.
    pub fn of_container(container: &Node) -> Result<Option<Self>> {
        let snapshot = container.snapshot();
        if let Some(content) = container.parent()?.filter(|above| above.name() == JCR_CONTENT)
            && let Some(template) = find_template(&content)?
            && let Some(policy) = Self::from_allowed_children(&template)?
        {
            return Ok(Some(policy));
        }
        let unlisted = match Self::template_policy(container)? {
            Some(TemplatePolicy::Listed(policy)) => return Ok(Some(policy)),
            Some(TemplatePolicy::Unlisted(policy)) => Some(policy),
            None => None,
        };
        let mut next = container.resource_type();
        for _ in 0..MAX_SUPER_TYPE_CHAIN {
            let Some(resource_type) = next else { break };
            let Some(component) = find_component(snapshot, &resource_type)? else { break };
            if let Some(policy) = Self::from_allowed_children(&component)? {
                return Ok(Some(policy));
            }
            next = component.text("sling:resourceSuperType");
        }
        Ok(unlisted)
    }

    /// Finds the rule of a page's editable template for a container in the page; `None` if the template is not
    /// editable.
    fn template_policy(container: &Node) -> Result<Option<TemplatePolicy>> {
        let Some((content, names)) = path_in_page(container)? else { return Ok(None) };
        let snapshot = container.snapshot();
        let Some(template) = find_template(&content)? else { return Ok(None) };
        let Some(mappings) = template.child("policies")? else { return Ok(None) };
        let Some(mappings) = mappings.child(JCR_CONTENT)? else { return Ok(None) };
        let mapping = policy_mapping(&mappings, &names, container.resource_type().as_deref())?;
        let nowhere = |at: &Node| Self {
            entries: Vec::new(),
            source: at.path().clone(),
            property: POLICY_PROPERTY,
            is_explicit: false,
        };
        let Some(mapping) = mapping else {
            return Ok(Some(TemplatePolicy::Unlisted(nowhere(&mappings))));
        };
        let named = mapping.text(POLICY_PROPERTY).unwrap_or_default();
        let Some(policy) = find_policy_node(snapshot, template.path(), &named)? else {
            return Ok(Some(TemplatePolicy::Unlisted(nowhere(&mapping))));
        };
        let source = policy.path().clone();
        let Some(property) = policy.property(POLICY_COMPONENTS_PROPERTY) else {
            let (entries, property) = (Vec::new(), POLICY_COMPONENTS_PROPERTY);
            let none = Self { entries, source, property, is_explicit: false };
            return Ok(Some(TemplatePolicy::Unlisted(none)));
        };
        let entries = property.values().iter().map(|value| value.to_text().trim().to_owned());
        let entries = entries.filter(|entry| !entry.is_empty()).collect();
        let listed =
            Self { entries, source, property: POLICY_COMPONENTS_PROPERTY, is_explicit: true };
        Ok(Some(TemplatePolicy::Listed(listed)))
    }

    fn from_allowed_children(node: &Node) -> Result<Option<Self>> {
        let Some(property) = node.property(ALLOWED_CHILDREN_PROPERTY) else { return Ok(None) };
        let mut entries = Vec::new();
        for value in property.values() {
            let entry = value.to_text().into_owned();
            if !is_template_entry(node.snapshot(), &entry)? {
                entries.push(entry);
            }
        }
        // An empty list allows nothing; a list of templates says nothing about components.
        let is_said = !entries.is_empty() || property.values().is_empty();
        let source = node.path().clone();
        Ok(is_said.then_some(Self {
            entries,
            source,
            property: ALLOWED_CHILDREN_PROPERTY,
            is_explicit: true,
        }))
    }

    /// Returns true if a component may lie in the container.
    ///
    /// # Errors
    /// If content cannot be read.
    pub fn allows(&self, snapshot: &Snapshot, resource_type: &str) -> Result<bool> {
        let relative = relative_resource_type(resource_type);
        if self.entries.iter().any(|entry| self::relative_resource_type(entry) == relative) {
            return Ok(true);
        }
        let groups: Vec<&str> = self
            .entries
            .iter()
            .filter_map(|entry| entry.strip_prefix(GROUP_PREFIX))
            .map(str::trim)
            .collect();
        if groups.is_empty() {
            return Ok(false);
        }
        let group = find_component(snapshot, resource_type)?
            .and_then(|component| component.text("componentGroup"));
        Ok(group.is_some_and(|group| groups.contains(&group.as_str())))
    }

    /// Returns the path of the property that defines the policy: `allowedChildren` of a template or component,
    /// `components` of a policy, or the `cq:policy` that a mapping lacks or that names no node.
    #[must_use]
    pub fn source(&self) -> String {
        format!("{}/{}", self.source, self.property)
    }

    /// Returns true if a list was written. Otherwise an editable template assigns none to the container, and nothing
    /// may be put into it.
    #[must_use]
    pub fn is_explicit(&self) -> bool {
        self.is_explicit
    }

    /// Returns the entries, as they are written.
    pub fn entries(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().map(String::as_str)
    }
}

/// Finds the policy that the editable template of a page assigns to a component in it, or to its content; `None` if
/// there is none.
///
/// # Errors
/// If content cannot be read.
pub(crate) fn find_component_policy(resource: &Node) -> Result<Option<Node>> {
    let (content, names) = match resource.name() {
        JCR_CONTENT => (resource.clone(), Vec::new()),
        _ => match path_in_page(resource)? {
            Some(place) => place,
            None => return Ok(None),
        },
    };
    let Some(template) = find_template(&content)? else { return Ok(None) };
    let Some(mappings) = template.find_descendant("policies/jcr:content")? else { return Ok(None) };
    let mapping = policy_mapping(&mappings, &names, resource.resource_type().as_deref())?;
    let Some(mapping) = mapping else { return Ok(None) };
    let named = mapping.text(POLICY_PROPERTY).unwrap_or_default();
    find_policy_node(resource.snapshot(), template.path(), &named)
}

/// Finds the content of the page that contains a node, and the names on the path from there to the node.
fn path_in_page(node: &Node) -> Result<Option<(Node, Vec<String>)>> {
    let mut names = vec![node.name().to_owned()];
    let mut next = node.parent()?;
    while let Some(above) = next {
        if above.name() == JCR_CONTENT {
            names.reverse();
            return Ok(Some((above, names)));
        }
        names.push(above.name().to_owned());
        next = above.parent()?;
    }
    Ok(None)
}

/// Finds the mapping for a path below a page's content, or else for a component type below the nearest ancestor of the
/// path.
fn policy_mapping(
    mappings: &Node,
    names: &[String],
    resource_type: Option<&str>,
) -> Result<Option<Node>> {
    let mut at = mappings.clone();
    let mut left = names.len();
    for name in names {
        match at.child(name)? {
            Some(child)
                if child.property(POLICY_PROPERTY).is_some() || is_policy_mapping(&child) =>
            {
                at = child
            }
            _ => break,
        }
        left -= 1;
    }
    if left == 0 {
        return Ok(at.property(POLICY_PROPERTY).is_some().then_some(at));
    }
    let Some(resource_type) = resource_type else { return Ok(None) };
    let mut of_type = Some(at);
    for name in relative_resource_type(resource_type).split('/') {
        of_type = match of_type {
            Some(node) => node.child(name)?,
            None => break,
        };
    }
    Ok(of_type.filter(|node| node.property(POLICY_PROPERTY).is_some()))
}

/// Returns true if a node maps a position in pages, rather than being a segment of a resource type.
fn is_policy_mapping(node: &Node) -> bool {
    node.resource_type().is_some_and(|kind| kind.ends_with("/policies/mapping"))
}

/// Finds the node of a policy: in the settings next to the template, in those of the ancestor folders, or in the shared
/// ones.
fn find_policy_node(snapshot: &Snapshot, template: &NodePath, named: &str) -> Result<Option<Node>> {
    if named.is_empty() {
        return Ok(None);
    }
    if named.starts_with('/') {
        return find_node(snapshot, named);
    }
    let mut settings_folders = Vec::new();
    let mut next =
        template.as_str().split_once("/settings/").map(|(settings_folder, _)| settings_folder);
    while let Some(settings_folder) =
        next.filter(|settings_folder| !settings_folder.is_empty() && *settings_folder != "/conf")
    {
        settings_folders.push(settings_folder);
        next = settings_folder.rsplit_once('/').map(|(above, _)| above);
    }
    for settings_folder in settings_folders.into_iter().chain(SHARED_SETTINGS_FOLDERS) {
        if let Some(node) =
            find_node(snapshot, &format!("{settings_folder}/{POLICIES_FOLDER}/{named}"))?
        {
            return Ok(Some(node));
        }
    }
    Ok(None)
}

/// Returns a resource type without its search path.
pub(crate) fn relative_resource_type(resource_type: &str) -> &str {
    COMPONENT_SEARCH_PATHS
        .iter()
        .find_map(|search_path| resource_type.strip_prefix(search_path))
        .unwrap_or(resource_type)
}

/// Finds the node of a component.
fn find_component(snapshot: &Snapshot, resource_type: &str) -> Result<Option<Node>> {
    if resource_type.starts_with('/') {
        return find_node(snapshot, resource_type);
    }
    for search_path in COMPONENT_SEARCH_PATHS {
        if let Some(node) = find_node(snapshot, &format!("{search_path}{resource_type}"))? {
            return Ok(Some(node));
        }
    }
    Ok(None)
}

/// Returns true if an entry names page templates: an existing one, or a path pattern below a folder of templates.
fn is_template_entry(snapshot: &Snapshot, entry: &str) -> Result<bool> {
    let is_folder = |name: &str| {
        name.strip_prefix("templates")
            .is_some_and(|rest| rest.is_empty() || rest.starts_with(['(', '[']))
    };
    if !entry.starts_with('/') {
        return Ok(false);
    }
    if entry.split('/').any(is_folder) {
        return Ok(true);
    }
    Ok(find_node(snapshot, entry)?.is_some_and(|node| node.primary_type() == "cq:Template"))
}

fn find_node(snapshot: &Snapshot, path: &str) -> Result<Option<Node>> {
    match NodePath::new(path) {
        Ok(path) => snapshot.node(&path),
        // An invalid path, such as a type `nt:file`, names no component.
        Err(_) => Ok(None),
    }
}

/// Finds the template that a page's content names, at a path for templates.
fn find_template(content: &Node) -> Result<Option<Node>> {
    let path = content.text("cq:template").filter(|path| is_template_location(path));
    path.map_or(Ok(None), |path| find_node(content.snapshot(), &path))
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use tympan_content::{Property, Repository, Subtree, Value, ValueType};

    use super::*;

    fn texts(texts: &[&str]) -> Property {
        let values = texts.iter().map(|text| Value::String((*text).to_owned()));
        Property::List(ValueType::String, values.collect())
    }

    #[test]
    fn templates_go_before_components_and_groups_count() {
        let repository = Repository::in_memory().unwrap();
        let mut session = repository.session("test").unwrap();
        let mut put = |path: &str, tree: Subtree| {
            session.put_node(&NodePath::new(path).unwrap(), tree).unwrap();
        };
        let node = |kind: &str| {
            Subtree::new("", "nt:unstructured").with_property("sling:resourceType", kind)
        };
        let plain = || Subtree::new("", "nt:unstructured");
        put("/apps", plain());
        put("/apps/t", plain());
        put(
            "/apps/t/box",
            plain().with_property(ALLOWED_CHILDREN_PROPERTY, texts(&["t/text", "group: Media"])),
        );
        put("/apps/t/kind", plain().with_property("sling:resourceSuperType", "t/box"));
        put("/apps/t/picture", plain().with_property("componentGroup", "Media"));
        put(
            "/apps/t/template",
            plain().with_property(ALLOWED_CHILDREN_PROPERTY, texts(&["/apps/t/picture"])),
        );
        put("/page", plain());
        put("/page/jcr:content", plain().with_property("cq:template", "/apps/t/template"));
        put("/page/jcr:content/root", node("t/box"));
        put("/page/jcr:content/root/inner", node("t/kind"));
        put("/page/jcr:content/root/free", node("t/none"));
        session.commit("begin", SystemTime::UNIX_EPOCH).unwrap();
        let snapshot = repository.snapshot().unwrap();
        let check = |path: &str, kind: &str| {
            let node = snapshot.node(&NodePath::new(path).unwrap()).unwrap().unwrap();
            ContainerPolicy::of_container(&node)
                .unwrap()
                .map(|policy| policy.allows(&snapshot, kind).unwrap())
        };
        let root = "/page/jcr:content/root";
        assert_eq!(check(root, "t/picture"), Some(true));
        assert_eq!(check(root, "t/text"), Some(false), "the template says more of its own root");
        let inner = "/page/jcr:content/root/inner";
        assert_eq!(check(inner, "/apps/t/text"), Some(true));
        assert_eq!(check(inner, "t/picture"), Some(true), "by its group");
        assert_eq!(check(inner, "t/other"), Some(false));
        assert_eq!(check("/page/jcr:content/root/free", "t/text"), None);
    }

    #[test]
    fn entries_that_name_templates_say_nothing_about_components() {
        let repository = Repository::in_memory().unwrap();
        let mut session = repository.session("test").unwrap();
        let plain = || Subtree::new("", "nt:unstructured");
        let mut put = |path: &str, tree: Subtree| {
            session.put_node(&NodePath::new(path).unwrap(), tree).unwrap();
        };
        put("/apps", plain());
        put("/apps/t", plain());
        put("/apps/t/box", plain().with_property(ALLOWED_CHILDREN_PROPERTY, texts(&["t/text"])));
        put("/apps/t/other", Subtree::new("", "cq:Template"));
        let patterns =
            ["/apps/t/other", "/apps/t/templates/.*", "/conf/t/settings/wcm/templates(/.*)?"];
        put("/apps/t/home", plain().with_property(ALLOWED_CHILDREN_PROPERTY, texts(&patterns)));
        let mixed = [&patterns[..], &["/apps/t/picture"]].concat();
        put("/apps/t/mixed", plain().with_property(ALLOWED_CHILDREN_PROPERTY, texts(&mixed)));
        put("/apps/t/closed", plain().with_property(ALLOWED_CHILDREN_PROPERTY, texts(&[])));
        for template in ["home", "mixed", "closed"] {
            put(&format!("/{template}"), plain());
            let path = format!("/apps/t/{template}");
            put(
                &format!("/{template}/jcr:content"),
                plain().with_property("cq:template", path.as_str()),
            );
            let root = plain().with_property("sling:resourceType", "t/box");
            put(&format!("/{template}/jcr:content/root"), root);
        }
        session.commit("begin", SystemTime::UNIX_EPOCH).unwrap();
        let snapshot = repository.snapshot().unwrap();
        let check = |template: &str, kind: &str| {
            let path = NodePath::new(&format!("/{template}/jcr:content/root")).unwrap();
            let policy = ContainerPolicy::of_container(&snapshot.node(&path).unwrap().unwrap())
                .unwrap()
                .unwrap();
            (policy.source(), policy.allows(&snapshot, kind).unwrap())
        };
        let of = |source: &str, allowed| (format!("{source}/{ALLOWED_CHILDREN_PROPERTY}"), allowed);
        assert_eq!(check("home", "t/text"), of("/apps/t/box", true), "the component decides");
        assert_eq!(check("home", "t/picture"), of("/apps/t/box", false));
        assert_eq!(check("mixed", "t/text"), of("/apps/t/mixed", false));
        assert_eq!(check("mixed", "t/picture"), of("/apps/t/mixed", true));
        assert_eq!(
            check("closed", "t/text"),
            of("/apps/t/closed", false),
            "an empty list allows nothing"
        );
    }

    /// A site as stored by AEM: an editable template, mappings for its positions and types, and policies.
    fn editable_site() -> Repository {
        let repository = Repository::in_memory().unwrap();
        let mut session = repository.session("test").unwrap();
        let plain = || Subtree::new("", "nt:unstructured");
        let node = |kind: &str| plain().with_property("sling:resourceType", kind);
        let mapping = |policy: Option<&str>| {
            let mapping = node("wcm/core/components/policies/mapping");
            policy.map_or(mapping.clone(), |policy| mapping.with_property(POLICY_PROPERTY, policy))
        };
        let named = |mut tree: Subtree, name: &str| {
            tree.name = name.to_owned();
            tree
        };
        // Nested nodes; the last of them is the leaf.
        let below = |path: &str, leaf: Subtree| {
            let mut names: Vec<&str> = path.split('/').collect();
            let last = names.pop().unwrap();
            names.iter().rev().fold(named(leaf, last), |inner, name| {
                Subtree::new(*name, "nt:unstructured").with_child(inner)
            })
        };
        let mut put = |path: &str, tree: Subtree| {
            session.put_node(&NodePath::new(path).unwrap(), tree).unwrap();
        };
        for path in ["/apps", "/apps/t", "/conf", "/conf/t", "/conf/t/de", "/conf/global"] {
            put(path, plain());
        }
        for (name, group) in [("text", "T.Content"), ("form", "T.Form"), ("box", "T.Structure")] {
            put(&format!("/apps/t/{name}"), plain().with_property("componentGroup", group));
        }
        put("/apps/t/tabs", plain().with_property(ALLOWED_CHILDREN_PROPERTY, texts(&["t/form"])));
        let inner = below("t/box", mapping(Some("t/box/narrow")));
        let main = named(mapping(Some("t/box/wide")), "main");
        let main = main.with_child(inner).with_child(named(mapping(None), "bare"));
        let lost = named(mapping(Some("t/box/nowhere")), "lost");
        let root = named(mapping(Some("t/box/bare")), "root").with_child(main).with_child(lost);
        let mappings = named(node("wcm/core/components/policies/mappings"), "jcr:content");
        let mappings =
            below("policies", Subtree::new("", "cq:Page").with_child(mappings.with_child(root)));
        let home = Subtree::new("home", "cq:Template").with_child(mappings);
        let templates = below("wcm/templates", plain().with_child(home));
        put("/conf/t/de/settings", plain().with_child(templates));
        let wide = named(
            plain().with_property(
                POLICY_COMPONENTS_PROPERTY,
                texts(&["group:T.Content", "/libs/t/box"]),
            ),
            "wide",
        );
        let policies = plain().with_child(wide).with_child(named(plain(), "bare"));
        put("/conf/t/settings", plain().with_child(below("wcm/policies/t/box", policies)));
        let narrow =
            named(plain().with_property(POLICY_COMPONENTS_PROPERTY, "/apps/t/form"), "narrow");
        let policies = below("wcm/policies/t/box", plain().with_child(narrow));
        put("/conf/global/settings", plain().with_child(policies));
        put("/page", plain());
        let template = "/conf/t/de/settings/wcm/templates/home";
        put("/page/jcr:content", plain().with_property("cq:template", template));
        for path in [
            "root",
            "root/main",
            "root/main/one",
            "root/main/one/two",
            "root/main/bare",
            "root/lost",
        ] {
            put(&format!("/page/jcr:content/{path}"), node("t/box"));
        }
        put("/page/jcr:content/root/main/tabs", node("t/tabs"));
        put("/page/jcr:content/aside", node("t/box"));
        session.commit("begin", SystemTime::UNIX_EPOCH).unwrap();
        repository
    }

    #[test]
    fn policies_of_editable_templates_say_what_may_lie_where() {
        let repository = editable_site();
        let snapshot = repository.snapshot().unwrap();
        let check = |path: &str, source: &str, allowed: &[&str]| {
            let path = NodePath::new(&format!("/page/jcr:content/{path}")).unwrap();
            let node = snapshot.node(&path).unwrap().unwrap();
            let policy = ContainerPolicy::of_container(&node).unwrap().unwrap();
            let types = ["t/text", "t/form", "t/box"];
            let may = types.into_iter().filter(|kind| policy.allows(&snapshot, kind).unwrap());
            assert_eq!(
                (&*policy.source(), &may.collect::<Vec<_>>()[..]),
                (source, allowed),
                "{path}"
            );
        };
        // The settings of the folder above the template's folder, by a group and by a path.
        let wide = "/conf/t/settings/wcm/policies/t/box/wide/components";
        check("root/main", wide, &["t/text", "t/box"]);
        // Containers added by authors have the policy of their type at any depth; it lies in the shared settings.
        let narrow = "/conf/global/settings/wcm/policies/t/box/narrow/components";
        check("root/main/one", narrow, &["t/form"]);
        check("root/main/one/two", narrow, &["t/form"]);
        // A policy without a list, a position without a policy, a policy name without a node, and a position without a
        // mapping.
        check("root", "/conf/t/settings/wcm/policies/t/box/bare/components", &[]);
        let mappings = "/conf/t/de/settings/wcm/templates/home/policies/jcr:content";
        check("root/main/bare", &format!("{mappings}/cq:policy"), &[]);
        check("root/lost", &format!("{mappings}/root/lost/cq:policy"), &[]);
        check("aside", &format!("{mappings}/cq:policy"), &[]);
        // A component's own rule applies only where there is no policy.
        check("root/main/tabs", "/apps/t/tabs/allowedChildren", &["t/form"]);
    }
}
