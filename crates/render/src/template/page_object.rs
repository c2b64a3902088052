//! Pages, navigation entries and tags as template objects.

use std::fmt;
use std::sync::Arc;

use minijinja::Value;
use minijinja::value::{Object, ObjectRepr};
use tympan_content::{Node, NodePath};

use super::resource_object::{NodeListObject, ResourceObject, properties_value};
use super::scope::RenderScope;
use super::value::date_to_template_value;
use crate::page::link::encode_path;
use crate::page::{self, PageTag};
use crate::resource::ContentResource;

/// A page, as `page` in templates.
pub(super) struct PageObject {
    pub scope: Arc<RenderScope>,
    pub page: Node,
}

impl PageObject {
    /// Creates the template value of a page's node.
    pub(super) fn to_template_value(scope: &Arc<RenderScope>, page: Node) -> Value {
        Value::from_object(Self { scope: Arc::clone(scope), page })
    }

    /// Creates the template value of a page that may be missing.
    pub(super) fn to_optional_value(scope: &Arc<RenderScope>, page: Option<Node>) -> Value {
        page.map_or(Value::UNDEFINED, |page| Self::to_template_value(scope, page))
    }

    /// Returns the page's content node.
    fn content_node(&self) -> Option<Node> {
        page::page_content(&self.scope.reader, &self.page)
    }

    /// Returns a text property of the page's content.
    fn text(&self, name: &str) -> Option<Value> {
        self.scope.reader.text_property(&self.content_node()?, name).map(Value::from)
    }

    /// Returns the parent page.
    fn parent_page(&self) -> Option<Node> {
        page::containing_page(&self.scope.reader, &self.page.path().parent()?)
    }

    /// Returns the attributes common to navigation entries and pages.
    fn attribute(&self, key: &str) -> Option<Value> {
        let (scope, page) = (&self.scope, &self.page);
        Some(match key {
            "path" => Value::from(page.path().as_arc()),
            "name" => Value::from(page.name()),
            "title" => {
                scope.reader.record_head(page);
                Value::from(page::page_title(page))
            }
            "url" => Value::from(
                scope.external_url(format!("{}.html", encode_path(page.path().as_str()))),
            ),
            "description" => return self.text("jcr:description"),
            "template" => return self.text("cq:template"),
            "properties" => properties_value(
                scope,
                self.content_node().map(ContentResource::from_node).as_ref(),
            ),
            "content" => ResourceObject::to_optional_value(scope, self.content_node()),
            "parent" => PageObject::to_optional_value(scope, self.parent_page()),
            "children" => NodeListObject::to_template_value(
                scope,
                page::visible_children(&scope.reader, page),
                Self::to_template_value,
            ),
            "tags" => TagObject::tag_list_value(page_tags(scope, page)),
            "modified" => {
                return page::page_modified(&scope.reader, page).map(date_to_template_value);
            }
            "depth" => Value::from(page.path().depth()),
            "hide_in_nav" => {
                scope.reader.record_head(page);
                Value::from(page::is_hidden_in_navigation(page))
            }
            "active" => Value::from(page_relation(scope, page.path()) != PageRelation::Elsewhere),
            "current" => Value::from(page_relation(scope, page.path()) == PageRelation::Same),
            _ => return None,
        })
    }
}

/// Looks up the titles of a page's tags.
fn page_tags(scope: &Arc<RenderScope>, page: &Node) -> Vec<PageTag> {
    let ids = page::page_tag_ids(&scope.reader, page).into_iter();
    ids.map(|id| page::describe_tag(&scope.reader, id)).collect()
}

/// The position of the requested page relative to another.
#[derive(Debug, PartialEq, Eq)]
enum PageRelation {
    Same,
    Below,
    Elsewhere,
}

fn page_relation(scope: &RenderScope, path: &NodePath) -> PageRelation {
    match scope.requested_page().map(|page| page.path()) {
        Some(current) if current == path => PageRelation::Same,
        Some(current) if current.is_within(path) => PageRelation::Below,
        _ => PageRelation::Elsewhere,
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
pub(super) struct NavigationEntry {
    pub page: PageObject,
    depth: usize,
}

/// Creates the navigation below a page, `depth` levels deep.
pub(super) fn navigation_value(scope: &Arc<RenderScope>, root: &Node, depth: usize) -> Value {
    if depth == 0 {
        return Value::from(Vec::<Value>::new());
    }
    let entry = |page: Node| {
        let page = PageObject { scope: Arc::clone(scope), page };
        Value::from_object(NavigationEntry { page, depth })
    };
    page::visible_children(&scope.reader, root).into_iter().map(entry).collect::<Vec<_>>().into()
}

impl Object for NavigationEntry {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn get_value_by_str(self: &Arc<Self>, key: &str) -> Option<Value> {
        match key {
            "children" => Some(navigation_value(&self.page.scope, &self.page.page, self.depth - 1)),
            key => self.page.attribute(key),
        }
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.get_value_by_str(key.as_str()?)
    }
}

impl fmt::Debug for NavigationEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.page.fmt(f)
    }
}

/// A tag: prints its identifier.
#[derive(Debug)]
pub(super) struct TagObject(pub PageTag);

impl TagObject {
    /// Creates the template value of a list of tags.
    pub(super) fn tag_list_value(tags: Vec<PageTag>) -> Value {
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
