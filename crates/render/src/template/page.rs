//! Pages, navigation entries and tags as template objects.

use std::fmt;
use std::sync::Arc;

use minijinja::Value;
use minijinja::value::{Object, ObjectRepr};
use tympan_content::{Node, NodePath};

use super::object::{NodeList, ResourceObject, properties};
use super::scope::Scope;
use super::value::from_date;
use crate::link::encode_path;
use crate::page::{self, Tag};
use crate::resource::Resource;

/// A page, as `page` in templates.
pub(super) struct PageObject {
    pub scope: Arc<Scope>,
    pub page: Node,
}

impl PageObject {
    /// Makes the value of a page's node.
    pub(super) fn value(scope: &Arc<Scope>, page: Node) -> Value {
        Value::from_object(Self { scope: Arc::clone(scope), page })
    }

    /// Makes the value of a page that may be missing.
    pub(super) fn maybe(scope: &Arc<Scope>, page: Option<Node>) -> Value {
        page.map_or(Value::UNDEFINED, |page| Self::value(scope, page))
    }

    /// Returns the page's content node.
    fn content(&self) -> Option<Node> {
        page::content(&self.scope.reader, &self.page)
    }

    /// Returns a text of the page's content.
    fn text(&self, name: &str) -> Option<Value> {
        self.scope.reader.text(&self.content()?, name).map(Value::from)
    }

    /// Returns the page above.
    fn parent(&self) -> Option<Node> {
        page::containing(&self.scope.reader, &self.page.path().parent()?)
    }

    /// Returns what navigation entries and pages have in common.
    fn attribute(&self, key: &str) -> Option<Value> {
        let (scope, page) = (&self.scope, &self.page);
        Some(match key {
            "path" => Value::from(page.path().as_shared()),
            "name" => Value::from(page.name()),
            "title" => {
                scope.reader.note_head(page);
                Value::from(page::title(page))
            }
            "url" => {
                Value::from(scope.outward(format!("{}.html", encode_path(page.path().as_str()))))
            }
            "description" => return self.text("jcr:description"),
            "template" => return self.text("cq:template"),
            "properties" => properties(scope, self.content().map(Resource::of).as_ref()),
            "content" => ResourceObject::maybe(scope, self.content()),
            "parent" => PageObject::maybe(scope, self.parent()),
            "children" => {
                NodeList::value(scope, page::visible_children(&scope.reader, page), Self::value)
            }
            "tags" => TagObject::list(page_tags(scope, page)),
            "modified" => return page::modified(&scope.reader, page).map(from_date),
            "depth" => Value::from(page.path().depth()),
            "hide_in_nav" => {
                scope.reader.note_head(page);
                Value::from(page::is_hidden(page))
            }
            "active" => Value::from(relation(scope, page.path()) != Relation::Elsewhere),
            "current" => Value::from(relation(scope, page.path()) == Relation::Here),
            _ => return None,
        })
    }
}

/// Looks up the titles of a page's tags.
fn page_tags(scope: &Arc<Scope>, page: &Node) -> Vec<Tag> {
    let ids = page::tag_ids(&scope.reader, page).into_iter();
    ids.map(|id| page::describe_tag(&scope.reader, id)).collect()
}

/// Where the requested page lies, seen from another.
#[derive(Debug, PartialEq, Eq)]
enum Relation {
    Here,
    Below,
    Elsewhere,
}

fn relation(scope: &Scope, path: &NodePath) -> Relation {
    match scope.page().map(|page| page.path()) {
        Some(current) if current == path => Relation::Here,
        Some(current) if current.is_within(path) => Relation::Below,
        _ => Relation::Elsewhere,
    }
}

impl Object for PageObject {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn get_value_by_str(self: &Arc<Self>, key: &str) -> Option<Value> {
        self.attribute(key)
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.attribute(key.as_str()?)
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.page.path())
    }
}

impl fmt::Debug for PageObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.page.path())
    }
}

/// An entry of a navigation: a page whose `children` end at the navigation's depth.
pub(super) struct NavEntry {
    pub page: PageObject,
    depth: usize,
}

/// Makes the navigation below a page, `depth` levels deep.
pub(super) fn navigation(scope: &Arc<Scope>, root: &Node, depth: usize) -> Value {
    if depth == 0 {
        return Value::from(Vec::<Value>::new());
    }
    let entry = |page: Node| {
        let page = PageObject { scope: Arc::clone(scope), page };
        Value::from_object(NavEntry { page, depth })
    };
    page::visible_children(&scope.reader, root).into_iter().map(entry).collect::<Vec<_>>().into()
}

impl Object for NavEntry {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn get_value_by_str(self: &Arc<Self>, key: &str) -> Option<Value> {
        match key {
            "children" => Some(navigation(&self.page.scope, &self.page.page, self.depth - 1)),
            key => self.page.attribute(key),
        }
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.get_value_by_str(key.as_str()?)
    }
}

impl fmt::Debug for NavEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.page.fmt(f)
    }
}

/// A tag: prints its identifier.
#[derive(Debug)]
pub(super) struct TagObject(pub Tag);

impl TagObject {
    /// Makes the value of some tags.
    pub(super) fn list(tags: Vec<Tag>) -> Value {
        tags.into_iter().map(|tag| Value::from_object(Self(tag))).collect::<Vec<_>>().into()
    }
}

impl Object for TagObject {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn get_value_by_str(self: &Arc<Self>, key: &str) -> Option<Value> {
        Some(match key {
            "tag" | "id" => Value::from(self.0.id.as_str()),
            "name" => Value::from(self.0.id.rsplit([':', '/']).next()?),
            "title" => Value::from(self.0.title.as_str()),
            "count" => Value::from(self.0.count),
            _ => return None,
        })
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.get_value_by_str(key.as_str()?)
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.id)
    }
}
