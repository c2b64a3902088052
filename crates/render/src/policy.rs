//! Policies: which components a container may hold.
//!
//! In: a node of content. Out: the types that may lie directly in it, if anything says so: `allowedChildren` of the page's
//! template (`cq:template`) for containers directly below the page's content, else of the container's component or of the
//! nearest super type that has it. An entry is a resource type, or a group of components as `group:Wayfare article`.
//!
//! In AEM, `allowedChildren` of a template names templates of pages below. Such entries say nothing about components: they
//! are passed over, and a template with no other ones has no policy.
//!
//! Not here: whether a component holds others at all (`cq:isContainer`).

use tympan_content::{JCR_CONTENT, Node, NodePath, Result, Snapshot};

/// Where components live, in the order in which they are looked for.
const SEARCH_PATH: [&str; 2] = ["/apps/", "/libs/"];
/// The property that says it.
const ALLOWED: &str = "allowedChildren";
/// A longer chain of super types is a mistake.
const MAX_CHAIN: usize = 32;
/// What an entry that names a group begins with.
const GROUP: &str = "group:";

/// The components that may lie in a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    entries: Vec<String>,
    source: NodePath,
}

impl Policy {
    /// Finds what is said about a container; nothing if everything may lie in it.
    ///
    /// # Errors
    /// If content cannot be read.
    pub fn of(container: &Node) -> Result<Option<Self>> {
        let snapshot = container.snapshot();
        if let Some(content) = container.parent()?.filter(|above| above.name() == JCR_CONTENT)
            && let Some(template) = content.text("cq:template")
            && let Some(template) = node_at(snapshot, &template)?
            && let Some(policy) = Self::in_property(&template)?
        {
            return Ok(Some(policy));
        }
        let mut next = container.resource_type();
        for _ in 0..MAX_CHAIN {
            let Some(resource_type) = next else { break };
            let Some(component) = component(snapshot, &resource_type)? else { break };
            if let Some(policy) = Self::in_property(&component)? {
                return Ok(Some(policy));
            }
            next = component.text("sling:resourceSuperType");
        }
        Ok(None)
    }

    fn in_property(node: &Node) -> Result<Option<Self>> {
        let Some(property) = node.property(ALLOWED) else { return Ok(None) };
        let mut entries = Vec::new();
        for value in property.values() {
            let entry = value.to_text().into_owned();
            if !is_of_templates(node.snapshot(), &entry)? {
                entries.push(entry);
            }
        }
        // An empty list allows nothing; one of templates does not speak of components.
        let is_said = !entries.is_empty() || property.values().is_empty();
        Ok(is_said.then(|| Self { entries, source: node.path().clone() }))
    }

    /// Tells whether a component may lie in the container.
    ///
    /// # Errors
    /// If content cannot be read.
    pub fn allows(&self, snapshot: &Snapshot, resource_type: &str) -> Result<bool> {
        let relative = relative(resource_type);
        if self.entries.iter().any(|entry| self::relative(entry) == relative) {
            return Ok(true);
        }
        let groups: Vec<&str> = self
            .entries
            .iter()
            .filter_map(|entry| entry.strip_prefix(GROUP))
            .map(str::trim)
            .collect();
        if groups.is_empty() {
            return Ok(false);
        }
        let group = component(snapshot, resource_type)?.and_then(|one| one.text("componentGroup"));
        Ok(group.is_some_and(|group| groups.contains(&group.as_str())))
    }

    /// Returns the node whose `allowedChildren` it is.
    #[must_use]
    pub fn source(&self) -> &NodePath {
        &self.source
    }

    /// Returns the entries, as they are written.
    pub fn entries(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().map(String::as_str)
    }
}

/// Returns a resource type without its search path.
pub(crate) fn relative(resource_type: &str) -> &str {
    SEARCH_PATH.iter().find_map(|place| resource_type.strip_prefix(place)).unwrap_or(resource_type)
}

/// Finds the node of a component.
fn component(snapshot: &Snapshot, resource_type: &str) -> Result<Option<Node>> {
    if resource_type.starts_with('/') {
        return node_at(snapshot, resource_type);
    }
    for place in SEARCH_PATH {
        if let Some(node) = node_at(snapshot, &format!("{place}{resource_type}"))? {
            return Ok(Some(node));
        }
    }
    Ok(None)
}

/// Tells whether an entry names templates of pages: one that is there, or a pattern of paths below a folder of templates.
fn is_of_templates(snapshot: &Snapshot, entry: &str) -> Result<bool> {
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
    Ok(node_at(snapshot, entry)?.is_some_and(|node| node.primary_type() == "cq:Template"))
}

fn node_at(snapshot: &Snapshot, path: &str) -> Result<Option<Node>> {
    match NodePath::new(path) {
        Ok(path) => snapshot.node(&path),
        // What is no path, such as a type `nt:file`, names no component.
        Err(_) => Ok(None),
    }
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
        let repository = Repository::memory().unwrap();
        let mut session = repository.session("test").unwrap();
        let mut put = |path: &str, tree: Subtree| {
            session.put(&NodePath::new(path).unwrap(), tree).unwrap();
        };
        let node =
            |kind: &str| Subtree::new("", "nt:unstructured").with("sling:resourceType", kind);
        let plain = || Subtree::new("", "nt:unstructured");
        put("/apps", plain());
        put("/apps/t", plain());
        put("/apps/t/box", plain().with(ALLOWED, texts(&["t/text", "group: Media"])));
        put("/apps/t/kind", plain().with("sling:resourceSuperType", "t/box"));
        put("/apps/t/picture", plain().with("componentGroup", "Media"));
        put("/apps/t/template", plain().with(ALLOWED, texts(&["/apps/t/picture"])));
        put("/page", plain());
        put("/page/jcr:content", plain().with("cq:template", "/apps/t/template"));
        put("/page/jcr:content/root", node("t/box"));
        put("/page/jcr:content/root/inner", node("t/kind"));
        put("/page/jcr:content/root/free", node("t/none"));
        session.commit("begin", SystemTime::UNIX_EPOCH).unwrap();
        let snapshot = repository.snapshot().unwrap();
        let check = |path: &str, kind: &str| {
            let node = snapshot.node(&NodePath::new(path).unwrap()).unwrap().unwrap();
            Policy::of(&node).unwrap().map(|policy| policy.allows(&snapshot, kind).unwrap())
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
        let repository = Repository::memory().unwrap();
        let mut session = repository.session("test").unwrap();
        let plain = || Subtree::new("", "nt:unstructured");
        let mut put = |path: &str, tree: Subtree| {
            session.put(&NodePath::new(path).unwrap(), tree).unwrap();
        };
        put("/apps", plain());
        put("/apps/t", plain());
        put("/apps/t/box", plain().with(ALLOWED, texts(&["t/text"])));
        put("/apps/t/other", Subtree::new("", "cq:Template"));
        let patterns =
            ["/apps/t/other", "/apps/t/templates/.*", "/conf/t/settings/wcm/templates(/.*)?"];
        put("/apps/t/home", plain().with(ALLOWED, texts(&patterns)));
        let mixed = [&patterns[..], &["/apps/t/picture"]].concat();
        put("/apps/t/mixed", plain().with(ALLOWED, texts(&mixed)));
        put("/apps/t/closed", plain().with(ALLOWED, texts(&[])));
        for template in ["home", "mixed", "closed"] {
            put(&format!("/{template}"), plain());
            let path = format!("/apps/t/{template}");
            put(&format!("/{template}/jcr:content"), plain().with("cq:template", path.as_str()));
            let root = plain().with("sling:resourceType", "t/box");
            put(&format!("/{template}/jcr:content/root"), root);
        }
        session.commit("begin", SystemTime::UNIX_EPOCH).unwrap();
        let snapshot = repository.snapshot().unwrap();
        let check = |template: &str, kind: &str| {
            let path = NodePath::new(&format!("/{template}/jcr:content/root")).unwrap();
            let policy = Policy::of(&snapshot.node(&path).unwrap().unwrap()).unwrap().unwrap();
            (policy.source().to_string(), policy.allows(&snapshot, kind).unwrap())
        };
        let of = |source: &str, allowed| (source.to_owned(), allowed);
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
}
