//! The templates that authors may use for new pages, and the content with which such pages begin.
//!
//! In: the page or folder that will contain the new page. Out: the templates that all rules allow:
//!
//! * the template is enabled (`status` of an editable template);
//! * `cq:allowedTemplates` of the nearest page at or above the parent has a pattern for the template's path. Without such
//!   a property, templates of `/conf` are allowed only by `allowedPaths`;
//! * `allowedPaths` of the template has a pattern for the path of the parent or of pages directly below it;
//! * `allowedParents` of the template has a pattern for the template of the parent;
//! * `allowedChildren` of the parent's template has a pattern for the template's path.
//!
//! A rule whose property is missing allows everything. A pattern that is malformed or too costly allows nothing. Nodes of
//! the type `cq:Template` outside of the folders for templates are content, which its writers must not turn into rules.

use regex::{Regex, RegexBuilder};
use tympan_content::{JCR_CONTENT, LookupIndex, Node, NodePath, Property, Result, Snapshot};

/// The names of properties with patterns.
const ALLOWED_TEMPLATES: &str = "cq:allowedTemplates";
const ALLOWED_PATHS: &str = "allowedPaths";
const ALLOWED_PARENTS: &str = "allowedParents";
const ALLOWED_CHILDREN: &str = "allowedChildren";

/// The folders below which templates are looked for.
const TEMPLATE_ROOTS: [&str; 3] = ["/apps/", "/conf/", "/libs/"];

/// Maximum number of patterns of a property.
const MAX_PATTERNS: usize = 200;
/// Maximum size of a compiled pattern, in bytes: authors write them, and `\w{90}` takes a megabyte.
const MAX_PATTERN_SIZE: usize = 128 << 10;

/// A template for new pages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageTemplate {
    /// The path, which pages store in `cq:template`.
    pub path: String,
    /// The title, or the name.
    pub title: String,
    /// The description.
    pub description: Option<String>,
    /// The resource type of new pages.
    pub resource_type: Option<String>,
}

impl PageTemplate {
    /// Returns true if all rules allow a template for pages directly below a node.
    ///
    /// # Errors
    /// If content cannot be read.
    pub fn is_allowed_below(template: &Node, parent: &Node) -> Result<bool> {
        ParentRules::read(parent)?.allow(template)
    }

    /// Returns the content with which the pages of a template begin: that of the page `initial` of an editable template,
    /// else that of the template itself; `None` if the template has neither.
    ///
    /// # Errors
    /// If content cannot be read.
    pub fn initial_content(template: &Node) -> Result<Option<Node>> {
        for part in ["initial/jcr:content", JCR_CONTENT] {
            let node = template.snapshot().node(&template.path().resolve(part)?)?;
            let content = node.filter(|node| node.text("sling:resourceType").is_some());
            if content.is_some() {
                return Ok(content);
            }
        }
        Ok(None)
    }

    /// Returns the templates that are allowed for pages directly below a node, by title.
    ///
    /// # Errors
    /// If content cannot be read.
    pub fn allowed_below(parent: &Node) -> Result<Vec<Self>> {
        let snapshot = parent.snapshot();
        let rules = ParentRules::read(parent)?;
        let mut templates = Vec::new();
        for path in snapshot.look_up_paths(LookupIndex::Type, "cq:Template")? {
            let Some(template) = snapshot.node(&path)? else { continue };
            if rules.allow(&template)? {
                templates.push(Self::from_node(snapshot, &template)?);
            }
        }
        templates
            .sort_by(|left, right| (&left.title, &left.path).cmp(&(&right.title, &right.path)));
        Ok(templates)
    }

    fn from_node(snapshot: &Snapshot, template: &Node) -> Result<Self> {
        let content = template.child(JCR_CONTENT)?;
        let text = |name: &str| {
            let in_content = content.as_ref().and_then(|content| content.text(name));
            in_content.or_else(|| template.text(name)).filter(|text| !text.is_empty())
        };
        let mut resource_type = None;
        for part in ["initial/jcr:content", "structure/jcr:content", JCR_CONTENT] {
            let node = snapshot.node(&template.path().resolve(part)?)?;
            resource_type = node.and_then(|node| node.text("sling:resourceType"));
            if resource_type.is_some() {
                break;
            }
        }
        Ok(Self {
            path: template.path().to_string(),
            title: text("jcr:title").unwrap_or_else(|| template.name().to_owned()),
            description: text("jcr:description"),
            resource_type,
        })
    }
}

/// Returns true if a path is one at which templates are looked for.
pub(crate) fn is_template_location(path: &str) -> bool {
    TEMPLATE_ROOTS.iter().any(|root| path.starts_with(root))
}

/// Returns the template of a page.
fn template_of(page: &Node) -> Result<Option<Node>> {
    let template = page.child(JCR_CONTENT)?.and_then(|content| content.text("cq:template"));
    match template.filter(|path| is_template_location(path)).as_deref().map(NodePath::new) {
        Some(Ok(path)) => page.snapshot().node(&path),
        Some(Err(_)) | None => Ok(None),
    }
}

/// The rules of a page or folder for the templates of the pages directly below it.
struct ParentRules {
    path: String,
    template: Option<NodePath>,
    /// `cq:allowedTemplates` of the nearest page that has it.
    site_patterns: Option<PatternList>,
    /// `allowedChildren` of the template, if it names templates.
    children_patterns: Option<PatternList>,
}

impl ParentRules {
    fn read(parent: &Node) -> Result<Self> {
        let template = template_of(parent)?;
        let children = template.as_ref().and_then(|template| patterns(template, ALLOWED_CHILDREN));
        Ok(Self {
            path: parent.path().as_str().trim_end_matches('/').to_owned(),
            template: template.map(|template| template.path().clone()),
            site_patterns: inherited_patterns(parent)?.map(|patterns| PatternList::new(&patterns)),
            // The property also lists the components of a container.
            children_patterns: children
                .filter(|patterns| patterns.iter().any(|pattern| pattern.starts_with('/')))
                .map(|patterns| PatternList::new(&patterns)),
        })
    }

    /// Applies all rules to a template.
    fn allow(&self, template: &Node) -> Result<bool> {
        let path = template.path().as_str();
        let content = template.child(JCR_CONTENT)?;
        let status = content.and_then(|content| content.text("status"));
        if !is_template_location(path) || status.is_some_and(|status| status != "enabled") {
            return Ok(false);
        }
        let allowed_paths = patterns(template, ALLOWED_PATHS);
        let is_of_site = match &self.site_patterns {
            Some(patterns) => patterns.matches(path),
            None => !path.starts_with("/conf/") || allowed_paths.is_some(),
        };
        let is_child =
            self.children_patterns.as_ref().is_none_or(|patterns| patterns.matches(path));
        if !is_of_site || !is_child {
            return Ok(false);
        }
        let is_at_path = allowed_paths.is_none_or(|patterns| {
            let patterns = PatternList::new(&patterns);
            patterns.matches(if self.path.is_empty() { "/" } else { &self.path })
                || patterns.matches(&format!("{}/page", self.path))
        });
        let is_below_template = patterns(template, ALLOWED_PARENTS).is_none_or(|patterns| {
            let above = self.template.as_ref();
            above.is_some_and(|above| PatternList::new(&patterns).matches(above.as_str()))
        });
        Ok(is_at_path && is_below_template)
    }
}

/// Returns the patterns of the nearest page at or above a node.
fn inherited_patterns(parent: &Node) -> Result<Option<Vec<String>>> {
    let mut next = Some(parent.clone());
    while let Some(node) = next {
        if let Some(content) = node.child(JCR_CONTENT)?
            && let Some(patterns) = patterns(&content, ALLOWED_TEMPLATES)
        {
            return Ok(Some(patterns));
        }
        next = node.parent()?;
    }
    Ok(None)
}

fn patterns(node: &Node, name: &str) -> Option<Vec<String>> {
    let property: Property = node.property(name)?;
    let values = property.values().iter().map(|value| value.to_text().trim().to_owned());
    let patterns: Vec<String> = values.filter(|pattern| !pattern.is_empty()).collect();
    (!patterns.is_empty()).then_some(patterns)
}

/// The compiled patterns of a property.
struct PatternList(Vec<Regex>);

impl PatternList {
    fn new(patterns: &[String]) -> Self {
        let compiled = patterns.iter().take(MAX_PATTERNS).filter_map(|pattern| {
            RegexBuilder::new(&format!("^(?:{pattern})$"))
                .size_limit(MAX_PATTERN_SIZE)
                .dfa_size_limit(MAX_PATTERN_SIZE)
                .build()
                .ok()
        });
        Self(compiled.collect())
    }

    /// Returns true if a pattern matches the whole text.
    fn matches(&self, text: &str) -> bool {
        self.0.iter().any(|pattern| pattern.is_match(text))
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
    fn templates_are_allowed_by_site_path_and_parent() {
        let repository = Repository::in_memory().unwrap();
        let mut session = repository.session("test").unwrap();
        let mut put = |path: &str, tree: Subtree| {
            session.put_node(&NodePath::new(path).unwrap(), tree).unwrap();
        };
        let template = |status: &str| {
            let content = Subtree::new("jcr:content", "cq:PageContent")
                .with_property("status", status)
                .with_property("jcr:title", "Title");
            let initial = Subtree::new("jcr:content", "cq:PageContent")
                .with_property("sling:resourceType", "shop/page");
            Subtree::new("", "cq:Template")
                .with_child(content)
                .with_child(Subtree::new("initial", "cq:Page").with_child(initial))
        };
        for path in ["/conf", "/conf/t", "/apps", "/content"] {
            put(path, Subtree::new("", "nt:unstructured"));
        }
        put("/conf/t/open", template("enabled"));
        put("/conf/t/draft", template("draft"));
        put(
            "/conf/t/broken",
            template("enabled").with_property(ALLOWED_PATHS, texts(&["/content/(("])),
        );
        put(
            "/conf/t/home",
            template("enabled").with_property(ALLOWED_PATHS, texts(&["/content/site/[^/]+"])),
        );
        put(
            "/conf/t/part",
            template("enabled").with_property(ALLOWED_PARENTS, texts(&["/conf/t/home"])),
        );
        put("/apps/static", Subtree::new("", "cq:Template").with_property("jcr:title", "Static"));
        put("/apps/elsewhere", Subtree::new("", "cq:Template"));
        let page = |template: Option<&str>, allowed: Option<&[&str]>| {
            let mut content = Subtree::new("jcr:content", "cq:PageContent");
            if let Some(template) = template {
                content = content.with_property("cq:template", template);
            }
            if let Some(allowed) = allowed {
                content = content.with_property(ALLOWED_TEMPLATES, texts(allowed));
            }
            Subtree::new("", "cq:Page").with_child(content)
        };
        put("/content/site", page(None, Some(&["/conf/t/.*", "/apps/static"])));
        put("/content/site/en", page(Some("/conf/t/home"), None));
        put("/content/bare", page(None, None));
        put("/content/bare/template", template("enabled"));
        let costly = [r"(\w{90}){1}x|/apps/static", "/conf/t/open"];
        put("/content/costly", page(None, Some(&costly)));
        session.commit("begin", SystemTime::UNIX_EPOCH).unwrap();
        let snapshot = repository.snapshot().unwrap();
        let check = |parent: &str, expected: &[&str]| {
            let parent = snapshot.node(&NodePath::new(parent).unwrap()).unwrap().unwrap();
            let templates = PageTemplate::allowed_below(&parent).unwrap();
            let mut paths: Vec<_> =
                templates.iter().map(|template| template.path.as_str()).collect();
            paths.sort_unstable();
            assert_eq!(paths, expected, "{}", parent.path());
        };
        check("/content/site", &["/apps/static", "/conf/t/home", "/conf/t/open"]);
        check(
            "/content/site/en",
            &["/apps/static", "/conf/t/home", "/conf/t/open", "/conf/t/part"],
        );
        check("/content/bare", &["/apps/elsewhere", "/apps/static"]);
        check("/content/costly", &["/conf/t/open"]);
        let site = snapshot.node(&NodePath::new("/content/site").unwrap()).unwrap().unwrap();
        let open = PageTemplate::allowed_below(&site).unwrap();
        let open = open.iter().find(|template| template.path == "/conf/t/open").unwrap();
        assert_eq!(
            (open.title.as_str(), open.resource_type.as_deref()),
            ("Title", Some("shop/page"))
        );
    }
}
