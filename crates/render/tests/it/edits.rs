//! Random edits of a site: anything at all, and what authors do.

use std::time::{Duration, SystemTime};

use tympan_content::{JcrDate, Node, NodePath, Property, Repository, Session, Subtree, Value};

use crate::corpus::{documents, put_below};
use crate::site::{file, page};

/// Numbers that repeat with the seed.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % limit.max(1)
    }

    pub(crate) fn pick<'a, T>(&mut self, from: &'a [T]) -> Option<&'a T> {
        from.get(self.below(from.len()))
    }
}

/// Edits something; says what. Content may refuse it.
pub(crate) type Change = fn(&Repository, &[String], &mut Session, &mut Random) -> Option<String>;

/// Does what authors do, as often as they do it, and activates it.
pub(crate) fn authoring(
    repository: &Repository,
    _: &[String],
    session: &mut Session,
    random: &mut Random,
) -> Option<String> {
    let documents = documents(repository);
    let pages: Vec<&Node> = documents
        .iter()
        .filter(|node| node.is_page() && node.path().as_str().starts_with("/content/wayfare/en/"))
        .collect();
    let articles: Vec<&Node> =
        pages.iter().copied().filter(|page| page.path().depth() > 4).collect();
    let mut page = random.pick(&articles)?.path().clone();
    let text = format!("Text {}", random.below(1 << 20));
    let content = page.child("jcr:content").ok()?;
    let what = match random.below(100) {
        0..=39 => text_of_component(session, random.pick(&pages)?, (&mut page, &text), random)?,
        40..=51 => {
            session.set_property(&content, "jcr:title", text.as_str().into()).ok()?;
            "another title"
        }
        52..=63 => {
            session.set_property(&content, "jcr:description", text.as_str().into()).ok()?;
            "another description"
        }
        64..=71 => {
            let date = JcrDate::from_system_time(at(random, 1 << 9));
            let new = page.parent()?.child(&format!("new-{}", random.below(1 << 20))).ok()?;
            session.copy_node(&page, &new).ok()?;
            page = new;
            let content = page.child("jcr:content").ok()?;
            session.set_property(&content, "date", Property::Single(Value::Date(date))).ok()?;
            session.set_property(&content, "jcr:title", text.as_str().into()).ok()?;
            "a new article"
        }
        72..=75 => {
            session.remove_node(&page).ok()?;
            return Some("the removal of an article".to_owned());
        }
        76..=79 => {
            let tag = ["wayfare:season/winter", "wayfare:mode/train", "wayfare:season/summer"];
            let tag = random.pick(&tag)?;
            session.set_property(&content, "cq:tags", (*tag).into()).ok()?;
            "other tags"
        }
        80..=83 => {
            let date = JcrDate::from_system_time(at(random, 1 << 28));
            session.set_property(&content, "date", Property::Single(Value::Date(date))).ok()?;
            "another date"
        }
        84..=88 => {
            let (paths, root) = (inner_paths(random.pick(&articles)?), "/jcr:content/root/");
            let parts: Vec<&NodePath> =
                paths.iter().filter(|path| path.as_str().contains(root)).collect();
            let part = *random.pick(&parts)?;
            page = part
                .as_str()
                .split("/jcr:content")
                .next()
                .and_then(|path| NodePath::new(path).ok())?;
            match random.below(3) {
                0 => {
                    session.remove_node(part).ok()?;
                    "a component less"
                }
                1 => {
                    let copy = part.parent()?.child(&format!("copy{}", random.below(999))).ok()?;
                    session.copy_node(part, &copy).ok()?;
                    "a component more"
                }
                _ => {
                    let mut names = children(session, &part.parent()?)?;
                    names.rotate_left(1);
                    session.order_children(&part.parent()?, &names).ok()?;
                    "components in another order"
                }
            }
        }
        89..=91 => {
            let hides = Property::Single(Value::Boolean(random.below(2) == 0));
            session.set_property(&content, "hideInNav", hides).ok()?;
            "a page hidden or shown"
        }
        92..=95 => {
            let picture = documents.iter().filter(|node| node.primary_type() == "dam:Asset");
            let pictures: Vec<&Node> = picture.collect();
            let picture = random.pick(&pictures)?.path().child("jcr:content/metadata");
            let picture = picture.or_else(|_| content.child("metadata")).ok()?;
            session.set_property(&picture, "dc:title", text.as_str().into()).ok()?;
            return Some("the title of a picture".to_owned());
        }
        // Activated again, with nothing changed.
        _ => "no change",
    };
    let content = page.child("jcr:content").ok()?;
    for name in ["cq:lastModified", "cq:lastReplicated"] {
        let now = JcrDate::from_system_time(at(random, 1 << 10));
        session.set_property(&content, name, Property::Single(Value::Date(now))).ok()?;
    }
    Some(what.to_owned())
}

/// Returns a moment that is up to so many seconds before a fixed one.
fn at(random: &mut Random, seconds: usize) -> SystemTime {
    let before = Duration::from_secs(random.below(seconds) as u64);
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000) - before
}

/// Writes another text into a component of a page.
fn text_of_component(
    session: &mut Session,
    page: &Node,
    (edited, text): (&mut NodePath, &str),
    random: &mut Random,
) -> Option<&'static str> {
    let inner = inner_paths(page);
    let texts: Vec<&NodePath> = inner
        .iter()
        .filter(|path| {
            let node = session.node(path).ok().flatten();
            node.is_some_and(|node| node.property("text").is_some())
        })
        .collect();
    let node = *random.pick(&texts)?;
    session.set_property(node, "text", text.into()).ok()?;
    *edited = page.path().clone();
    Some("another text")
}

/// Changes something at random; says what. Content may refuse it.
pub(crate) fn anything(
    repository: &Repository,
    urls: &[String],
    session: &mut Session,
    random: &mut Random,
) -> Option<String> {
    let documents = documents(repository);
    let is_content = |node: &&Node| node.path().as_str().starts_with("/content/");
    // Mostly near what is cached, sometimes anywhere.
    let near = urls.get(random.below(urls.len()))?;
    let near = near.split('.').next().unwrap_or(near);
    let candidates: Vec<&Node> = match random.below(4) {
        0 => documents.iter().filter(is_content).collect(),
        1 => documents.iter().filter(|node| is_content(node) && node.is_page()).collect(),
        _ => documents
            .iter()
            .filter(|node| {
                near.starts_with(node.path().as_str()) || node.path().as_str().starts_with(near)
            })
            .filter(is_content)
            .collect(),
    };
    let document = *random.pick(&candidates)?;
    let inner = inner_paths(document);
    let node = random.pick(&inner)?.clone();
    match random.below(16) {
        0..=4 => set(session, &node, random),
        5 => {
            session.set_property(&node, "note", "added".into()).ok()?;
            Some(format!("a new property of {node}"))
        }
        6 => {
            let name = property_of(session, &node, random)?;
            session.remove_property(&node, &name).ok()?;
            Some(format!("the removal of {name} of {node}"))
        }
        7 => {
            let parent = node.parent()?;
            let copy = parent.child(&format!("{}-copy{}", node.name(), random.below(3))).ok()?;
            session.copy_node(&node, &copy).ok()?;
            Some(format!("a copy of {node} to {copy}"))
        }
        8 if node.depth() > 4 => {
            session.remove_node(&node).ok()?;
            Some(format!("the removal of {node}"))
        }
        9 => {
            let mut names: Vec<String> = children(session, &node)?;
            let by = random.below(names.len());
            names.rotate_left(by);
            session.order_children(&node, &names).ok()?;
            Some(format!("another order below {node}"))
        }
        10 if node.depth() > 3 => {
            let target = node.parent()?.child(&format!("moved-{}", random.below(4))).ok()?;
            session.move_node(&node, &target).ok()?;
            Some(format!("a move of {node} to {target}"))
        }
        11 => {
            let content = document.path().child("jcr:content").ok()?;
            let now = SystemTime::UNIX_EPOCH + Duration::from_secs(random.below(1 << 30) as u64);
            for name in ["cq:lastModified", "cq:lastReplicated"] {
                let date = Property::Single(Value::Date(JcrDate::from_system_time(now)));
                session.set_property(&content, name, date).ok()?;
            }
            Some(format!("stamps of {content}"))
        }
        12 => {
            // What was asked for and was not there, or a neighbor of what is.
            let path = NodePath::new(near).ok()?;
            let is_there = session.node(&path).ok()?.is_some();
            let path =
                if is_there { path.child(&format!("new{}", random.below(5))).ok()? } else { path };
            let parent = session.node(&path.parent()?).ok()??;
            let resource_type =
                parent.content_node().ok()?.and_then(|content| content.resource_type());
            let tree =
                page(path.name(), "New", &resource_type.unwrap_or_else(|| "none".to_owned()));
            session.put_node(&path, tree).ok()?;
            Some(format!("a new page {path}"))
        }
        13 => script(repository, session, random),
        14 if random.below(4) == 0 => policy(session, document.path()),
        _ => {
            let content = document.path().child("jcr:content").ok()?;
            let title = format!("Title {}", random.below(1000));
            session.set_property(&content, "jcr:title", title.as_str().into()).ok()?;
            Some(format!("the title of {content}"))
        }
    }
}

/// Returns the document's own path and those of the nodes inside of it.
fn inner_paths(document: &Node) -> Vec<NodePath> {
    fn add(path: &NodePath, tree: &Subtree, found: &mut Vec<NodePath>) {
        found.push(path.clone());
        for child in &tree.children {
            add(&path.child(&child.name).unwrap(), child, found);
        }
    }
    let mut found = vec![document.path().clone()];
    if let Ok(Some(content)) = document.content_node() {
        add(content.path(), &content.read_subtree().unwrap(), &mut found);
    }
    found
}

fn children(session: &mut Session, node: &NodePath) -> Option<Vec<String>> {
    let children = session.node(node).ok()??.children().ok()?;
    let names: Vec<String> = children.iter().map(|child| child.name().to_owned()).collect();
    (names.len() > 1).then_some(names)
}

fn property_of(session: &mut Session, node: &NodePath, random: &mut Random) -> Option<String> {
    let properties = session.node(node).ok()??.properties();
    let names: Vec<String> = properties
        .into_iter()
        .map(|(name, _)| name)
        .filter(|name| !matches!(name.as_str(), "jcr:primaryType" | "jcr:mixinTypes" | "jcr:uuid"))
        .collect();
    random.pick(&names).cloned()
}

/// Gives a property another value of its type.
fn set(session: &mut Session, node: &NodePath, random: &mut Random) -> Option<String> {
    let name = property_of(session, node, random)?;
    let old = session.node(node).ok()??.property(&name)?;
    let number = random.below(1000);
    let other = |value: &Value| match value {
        Value::Boolean(truth) => Value::Boolean(!truth),
        Value::Long(_) => Value::Long(number as i64),
        Value::String(_) => Value::String(format!("value {number}")),
        Value::Date(date) => {
            Value::Date(JcrDate { millis: date.millis + number as i64 * 1000, ..*date })
        }
        other => other.clone(),
    };
    let new = match &old {
        Property::Single(value) => Property::Single(other(value)),
        Property::List(kind, values) => Property::List(*kind, values.iter().map(other).collect()),
    };
    session.set_property(node, &name, new).ok()?;
    Some(format!("another {name} of {node}"))
}

/// Changes a script, or adds one that goes before another.
fn script(repository: &Repository, session: &mut Session, random: &mut Random) -> Option<String> {
    let scripts: Vec<NodePath> = documents(repository)
        .into_iter()
        .map(|node| node.path().clone())
        .filter(|path| path.as_str().ends_with(".html.j2") && !path.as_str().contains("404"))
        .collect();
    let script = random.pick(&scripts)?;
    let text = format!("<p>drawn by version {}</p>{{{{ properties.text }}}}", random.below(100));
    let folder = script.parent()?;
    let target = match random.below(3) {
        0 => script.clone(),
        1 => folder.child("GET.j2").ok()?,
        _ => folder.child("html.j2").ok()?,
    };
    if session.node(&target).ok()?.is_some() {
        session.remove_node(&target).ok()?;
    }
    put_below(session, &target, file(repository, target.name(), text.as_bytes(), "text/plain"));
    Some(format!("the script {target}"))
}

/// Hides something from visitors.
fn policy(session: &mut Session, path: &NodePath) -> Option<String> {
    let entry = Subtree::new("deny", "rep:DenyACE")
        .with_property("rep:principalName", "everyone")
        .with_property(
            "rep:privileges",
            Property::List(
                tympan_content::ValueType::Name,
                vec![Value::Name("jcr:read".to_owned())],
            ),
        );
    let policy = Subtree::new("rep:policy", "rep:ACL").with_child(entry);
    session.put_node(&path.child("rep:policy").ok()?, policy).ok()?;
    Some(format!("a policy of {path}"))
}
