//! A small site in memory that the tests draw.

use std::time::SystemTime;

use tympan_content::{NodePath, Property, Repository, Session, Subtree, Value, ValueType};
use tympan_render::{
    RenderLimits, RenderMode, RenderOptions, RenderRequest, RenderResponse, RenderResponseBody,
    Renderer,
};

/// A repository with a site, and how it is drawn.
pub(crate) struct Site {
    pub(crate) repository: Repository,
    renderer: Renderer,
}

impl Site {
    /// Makes an empty repository with a renderer for visitors.
    pub(crate) fn empty() -> Self {
        Self::with_limits(RenderMode::Publish, RenderLimits::default())
    }

    pub(crate) fn with_limits(mode: RenderMode, limits: RenderLimits) -> Self {
        let repository = Repository::in_memory().unwrap();
        let renderer = Renderer::new(&repository, RenderOptions { mode, limits });
        Self { repository, renderer }
    }

    /// Makes the site that most tests are about: two levels of pages, an asset, a few components.
    pub(crate) fn sample(mode: RenderMode) -> Self {
        let site = Self::with_limits(mode, RenderLimits::default());
        site.script("/apps/test/text/text.html.j2", "<p>{{ properties.text }}</p>");
        site.script("/apps/test/broken/broken.html.j2", "<b>\n{{ no_such_function() }}\n</b>");
        site.script("/apps/test/syntax/syntax.html.j2", "<b>\n{% if %}\n</b>");
        site.script(
            "/apps/test/page/page.html.j2",
            "<title>{{ page.title }}</title>{{ include_children(resource.child(\"root\")) }}",
        );
        let long = Property::Single(Value::Long(3));
        let root = Subtree::new("root", "nt:unstructured")
            .with_child(component("one", "test/text").with_property("text", "First & <best>"))
            .with_child(
                Subtree::new("config", "nt:unstructured").with_property("text", "no component"),
            )
            .with_child(component("two", "test/text").with_property("text", "Second"));
        let content = component("jcr:content", "test/page")
            .with_property("jcr:title", "Home")
            .with_property("jcr:description", "Where it begins")
            .with_property("count", long)
            .with_property("date", date("2024-02-29T10:30:00.000+01:00"))
            .with_property(
                "rich",
                "<p onclick=\"x()\">Rich <b>text</b></p><script>alert(1)</script>",
            )
            .with_property("evil", "<script>alert('1')</script>")
            .with_property("yes", Property::Single(Value::Boolean(true)))
            .with_property("names", texts(&["a", "<b>"]))
            .with_property("cq:tags", texts(&["site:season/late-summer", "site:city"]))
            .with_child(root);
        site.put("/content/site/en", Subtree::new("en", "cq:Page").with_child(content));
        for (name, title, hidden, day) in [
            ("zebra", "Zebra crossing", false, "2024-01-02"),
            ("apple", "An apple", false, "2024-01-03"),
            ("secret", "Secret", true, "2024-01-01"),
        ] {
            site.put(&format!("/content/site/en/{name}"), child_page(name, title, hidden, day));
        }
        site.put("/content/site/en/zebra/stripe", page("stripe", "Stripe", "test/page"));
        site.put("/content/dam/map.png", asset(&site, "map.png", b"not really a picture"));
        site
    }

    /// Returns the renderer.
    pub(crate) fn renderer(&self) -> &Renderer {
        &self.renderer
    }

    /// Puts a subtree, making the folders above it.
    pub(crate) fn put(&self, path: &str, tree: Subtree) {
        self.edit(|session| {
            let path = NodePath::new(path).unwrap();
            let mut above: Vec<NodePath> =
                std::iter::successors(path.parent(), NodePath::parent).collect();
            above.reverse();
            for folder in above {
                if session.node(&folder).unwrap().is_none() {
                    session.put_node(&folder, Subtree::new("", "sling:Folder")).unwrap();
                }
            }
            session.put_node(&path, tree).unwrap();
        });
    }

    /// Commits an edit.
    pub(crate) fn edit(&self, change: impl FnOnce(&mut Session)) {
        let mut session = self.repository.session("test").unwrap();
        change(&mut session);
        session.commit("test", SystemTime::UNIX_EPOCH).unwrap();
    }

    /// Puts a script, or any other text file.
    pub(crate) fn script(&self, path: &str, text: &str) {
        let name = path.rsplit('/').next().unwrap();
        self.put(path, file(&self.repository, name, text.as_bytes(), "text/plain"));
    }

    /// Draws a request.
    pub(crate) fn render(&self, request: &RenderRequest<'_>) -> RenderResponse {
        self.renderer.render(&self.repository.snapshot().unwrap(), request)
    }

    /// Gets a URL, with a query if it has one.
    pub(crate) fn get(&self, url: &str) -> RenderResponse {
        let (path, query) = url.split_once('?').unwrap_or((url, ""));
        self.render(&RenderRequest { query, ..RenderRequest::get(path) })
    }

    /// Gets a URL and returns the body as text.
    pub(crate) fn text(&self, url: &str) -> String {
        body_text(&self.get(url))
    }

    /// Draws one template as the script of a page and returns the text.
    pub(crate) fn draw(&self, template: &str) -> String {
        self.script("/apps/test/case/case.html.j2", template);
        self.edit(|session| {
            let content = NodePath::new("/content/site/en/jcr:content").unwrap();
            session.set_property(&content, "sling:resourceType", "test/case".into()).unwrap();
        });
        self.text("/content/site/en.html?q=a%20b")
    }
}

/// Returns the drawn body as text.
pub(crate) fn body_text(response: &RenderResponse) -> String {
    match &response.body {
        RenderResponseBody::Empty => String::new(),
        RenderResponseBody::Bytes(bytes) => String::from_utf8(bytes.to_vec()).unwrap(),
        RenderResponseBody::Blob(blob) => format!("{blob:?}"),
        RenderResponseBody::Image(address) => address.to_url(),
    }
}

pub(crate) fn component(name: &str, resource_type: &str) -> Subtree {
    Subtree::new(name, "nt:unstructured").with_property("sling:resourceType", resource_type)
}

pub(crate) fn page(name: &str, title: &str, resource_type: &str) -> Subtree {
    let content = component("jcr:content", resource_type).with_property("jcr:title", title);
    Subtree::new(name, "cq:Page").with_child(content)
}

fn child_page(name: &str, title: &str, hidden: bool, day: &str) -> Subtree {
    let mut page = page(name, title, "test/page");
    let content = page.child_mut("jcr:content").unwrap();
    let mut set =
        |name: &str, property: Property| content.properties.insert(name.to_owned(), property);
    set("hideInNav", Property::Single(Value::Boolean(hidden)));
    set("date", date(&format!("{day}T00:00:00.000Z")));
    set("cq:tags", texts(&["site:city"]));
    page
}

pub(crate) fn texts(texts: &[&str]) -> Property {
    Property::List(
        ValueType::String,
        texts.iter().map(|text| Value::String((*text).to_owned())).collect(),
    )
}

pub(crate) fn date(text: &str) -> Property {
    Property::Single(Value::parse(ValueType::Date, text).unwrap())
}

/// Makes a file with these bytes.
pub(crate) fn file(repository: &Repository, name: &str, bytes: &[u8], media_type: &str) -> Subtree {
    let blob = repository.blobs().put(&mut std::io::Cursor::new(bytes)).unwrap();
    let content = Subtree::new("jcr:content", "nt:resource")
        .with_property("jcr:data", Property::Single(Value::Binary(blob)))
        .with_property("jcr:mimeType", media_type)
        .with_property("jcr:lastModified", date("2024-05-06T07:08:09.123Z"));
    Subtree::new(name, "nt:file").with_child(content)
}

/// Makes an asset whose original has these bytes.
pub(crate) fn asset(site: &Site, name: &str, bytes: &[u8]) -> Subtree {
    let metadata = Subtree::new("metadata", "nt:unstructured")
        .with_property("dc:title", texts(&["The map"]))
        .with_property("tiff:ImageWidth", Property::Single(Value::Long(640)))
        .with_property("tiff:ImageLength", "400");
    let original = file(&site.repository, "original", bytes, "image/png");
    let renditions = Subtree::new("renditions", "nt:folder").with_child(original);
    let content =
        Subtree::new("jcr:content", "dam:AssetContent").with_child(metadata).with_child(renditions);
    Subtree::new(name, "dam:Asset").with_child(content)
}
