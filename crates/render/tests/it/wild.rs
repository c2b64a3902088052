//! The sample site with pages that use all that templates have, and edits of all that they use: several at once, and of what
//! surrounds content.

use tympan_content::{Node, NodePath, Property, Repository, Session, Subtree, Value, ValueType};

use crate::corpus::{self, documents, put_below};
use crate::edits::{Random, anything};
use crate::site::{component, file, texts};

const PAGE: &str = "/content/wayfare/en/wild";
const SCRIPT: &str = "/apps/wild/page/page.html.j2";
const LIBRARY: &str = "/apps/wild/clientlibs/page";
const HOST: &str = "wild.example";

/// Asks for a bit of everything.
const TEXT: &str = "<title>{{ page.title }}</title>{{ clientlibs(\"wild.page\") }}{{ clientlib(\"wild/clientlibs/page.css\") }}\
    {{ clientlib(\"wayfare/site.css\") }}{{ i18n(\"greeting\", n=2) }}{{ i18n(\"greeting\", language=\"de\") }}\
    {% for one in tags(\"/content/wayfare/en\") %}<u>{{ one.title }} {{ one.count }}</u>{% endfor %}\
    {% for one in pages(\"/content/wayfare/en\", order=\"title\", limit=4) %}<i>{{ one.title }} {{ one.url }}</i>{% endfor %}\
    {% for one in pages(\"/content/wayfare/en\", tag=\"wayfare:rail\", limit=3) %}<i>{{ one.name }}</i>{% endfor %}\
    {% for one in pages(\"/content/wayfare\", order=\"date\", limit=3) %}<i>{{ one.path }} {{ one.modified }}</i>{% endfor %}\
    {% for one in search_titles(\"/content/wayfare/en\", \"the\", limit=3) %}<b>{{ one.title }}</b>{% endfor %}\
    {% for one in nav(\"/content/wayfare\", depth=2) %}<b>{{ one.title }}{% for two in one.children %}{{ two.url }}{% endfor %}</b>{% endfor %}\
    {% for one in breadcrumb() %}<s>{{ one.title }} {{ one.hide_in_nav }}</s>{% endfor %}\
    {% for one in page.children %}<p>{{ one.title }} {{ one.description }} {{ one.tags|length }}</p>{% endfor %}\
    {% for one in resource.children %}<p>{{ one.name }} {{ one.resource_type }} {{ one.primary_type }}</p>{% endfor %}\
    {% for name, value in properties|items %}<i>{{ name }}={{ value }}</i>{% endfor %}\
    {% for one in query(\"SELECT * FROM [nt:base] AS a WHERE ISDESCENDANTNODE(a, '/content/wayfare/en/food') AND a.[jcr:title] IS NOT NULL\", limit=3) %}\
    <b>{{ one.path }}</b>{% endfor %}\
    {{ link(\"/content/wayfare/en/about\") }} {{ page.parent.title }} {{ page_at(\"/content/wayfare/en/food/jcr:content/root\").title }}\
    {% set picture = asset(\"/content/dam/wayfare/wild.png\") %}{{ picture.url }} {{ picture.title }} {{ picture.size }} {{ picture.image(width=320) }}\
    {% for one in breakpoints() %}{{ one.media }}{% endfor %}\
    {{ include(\"/content/wayfare/en/food\") }}{{ include(\"part\") }}{{ include(\"part\", type=\"wild/other\") }}\
    {{ include_children(resource) }}";

/// Addresses of all kinds of answers.
pub(crate) const URLS: [&str; 19] = [
    "/content/wayfare/en/wild.html",
    "/content/wayfare/en/wild.html/a/suffix",
    "/content/wayfare/en/wild.other.html",
    "/content/wayfare/en/wild.infinity.json",
    "/content/wayfare/en/wild/_jcr_content.2.tidy.json",
    "/content/wayfare/en/wild/_jcr_content/part.html",
    "/content/wayfare/en/wild.xml",
    "/content/wayfare/en/wild.txt",
    "/content/wayfare/en/wild",
    "/wild.html",
    "/wild",
    "/food.html",
    "/content/wayfare/en/other-name.html",
    "/content/dam/wayfare/wild.png",
    "/content/dam/wayfare/wild.png.3.json",
    "/etc.clientlibs/wild/clientlibs/page.css",
    "/etc.clientlibs/wild/clientlibs/page.js",
    "/etc.clientlibs/wayfare/site.css",
    "/content/wayfare/en/nothing/at/all.html",
];

/// Returns the host that all are asked for.
pub(crate) fn host() -> &'static str {
    HOST
}

/// Makes the sample site with the pages and what they use.
pub(crate) fn site() -> Repository {
    let repository = corpus::sample();
    let index = |name: &str, property: &str| {
        Subtree::new(name, "oak:QueryIndexDefinition")
            .with_property("type", "property")
            .with_property(
                "propertyNames",
                Property::List(ValueType::Name, vec![Value::Name(property.to_owned())]),
            )
    };
    corpus::commit(&repository, |session| {
        for (name, property) in
            [("slingVanityPath", "sling:vanityPath"), ("slingAlias", "sling:alias")]
        {
            let path = path(&format!("/oak:index/{name}"));
            if session.node(&path).unwrap().is_none() {
                put_below(session, &path, index(name, property));
            }
        }
        mend(&repository, session);
        put_asset(&repository, session, b"one");
    });
    repository.build_indexes().unwrap();
    repository
}

fn path(text: &str) -> NodePath {
    NodePath::new(text).unwrap()
}

/// Puts back what edits may have taken away or changed.
fn mend(repository: &Repository, session: &mut Session) {
    let text = |name: &str, text: &str| file(repository, name, text.as_bytes(), "text/plain");
    for (script, body) in [
        (SCRIPT, TEXT),
        ("/apps/wild/part/part.html.j2", "<p>{{ properties.text }}{{ page.title }}</p>"),
        ("/apps/wild/other/other.html.j2", "<em>{{ properties.text }}</em>"),
    ] {
        let script = path(script);
        let folder = script.parent().unwrap();
        for added in ["GET.j2", "html.j2"] {
            let added = folder.child(added).unwrap();
            if session.node(&added).unwrap().is_some() {
                session.remove_node(&added).unwrap();
            }
        }
        put_below(session, &script, text(script.name(), body));
    }
    let library = Subtree::new("page", "cq:ClientLibraryFolder")
        .with_property("categories", texts(&["wild.page"]))
        .with_property("allowProxy", Property::Single(Value::Boolean(true)))
        .with_child(text("css.txt", "a.css"))
        .with_child(text("js.txt", "a.js"))
        .with_child(text("a.css", "b { color: red }"))
        .with_child(text("a.js", "var a = 1;"))
        .with_child(text("b.css", "i { color: red }"));
    put_below(session, &path(LIBRARY), library);
    let part = component("part", "wild/part").with_property("text", "A part");
    // The site around it shows nothing for selectors and suffixes that nobody names.
    let takes_any = Property::Single(Value::Boolean(false));
    let content = component("jcr:content", "wild/page")
        .with_property("jcr:title", "Wild")
        .with_property("strictUrls", takes_any)
        .with_child(part);
    let mut tree = Subtree::new("wild", "cq:Page").with_child(content);
    for name in ["one", "two"] {
        tree = tree.with_child(crate::site::page(name, name, "wild/page"));
    }
    put_below(session, &path(PAGE), tree);
}

fn put_asset(repository: &Repository, session: &mut Session, bytes: &[u8]) {
    let original = file(repository, "original", bytes, "image/png");
    let metadata = Subtree::new("metadata", "nt:unstructured").with_property("dc:title", "Wild");
    let renditions = Subtree::new("renditions", "nt:folder").with_child(original);
    let content =
        Subtree::new("jcr:content", "dam:AssetContent").with_child(metadata).with_child(renditions);
    let asset = Subtree::new("wild.png", "dam:Asset").with_child(content);
    put_below(session, &path("/content/dam/wayfare/wild.png"), asset);
}

/// Makes one change or several at once; says which.
pub(crate) fn edit(
    repository: &Repository,
    urls: &[String],
    session: &mut Session,
    random: &mut Random,
) -> Option<String> {
    let mut done = Vec::new();
    for _ in 0..=random.below(4) * random.below(2) {
        done.extend(match random.below(3) {
            0 => anything(repository, urls, session, random),
            _ => one(repository, session, random),
        });
    }
    (!done.is_empty()).then(|| done.join(" and "))
}

fn one(repository: &Repository, session: &mut Session, random: &mut Random) -> Option<String> {
    let all = documents(repository);
    let pages: Vec<&Node> = all
        .iter()
        .filter(|node| node.is_page() && node.path().as_str().starts_with("/content/wayfare/"))
        .collect();
    let page = match random.below(3) {
        0 => path(PAGE),
        _ => random.pick(&pages)?.path().clone(),
    };
    let content = page.child("jcr:content").ok()?;
    let number = random.below(1000);
    let text = |name: &str, text: &str| file(repository, name, text.as_bytes(), "text/plain");
    Some(match random.below(20) {
        0 => {
            let (name, body) = match random.below(4) {
                0 => ("css.txt", random.pick(&["a.css", "a.css\nb.css", "b.css", ""])?.to_string()),
                1 => ("a.js", format!("var a = {number};")),
                2 => ("b.css", format!("u {{ width: {number}px }}")),
                _ => ("a.css", format!("b {{ width: {number}px }}")),
            };
            let path = path(LIBRARY).child(name).ok()?;
            put_below(session, &path, text(name, &body));
            format!("the text {path}")
        }
        1 => {
            let library = path(LIBRARY);
            let (name, value) = match random.below(3) {
                0 => ("allowProxy", Property::Single(Value::Boolean(random.below(2) == 0))),
                1 => ("categories", texts(&[*random.pick(&["wild.page", "wild.other"])?])),
                _ => ("embed", texts(&[*random.pick(&["wild.other", "wild.page"])?])),
            };
            session.set_property(&library, name, value).ok()?;
            format!("{name} of {library}")
        }
        2 => {
            let language = random.pick(&["en", "de"])?;
            let path = path(&format!("/apps/wild/i18n/{language}.json"));
            let body = format!("{{\"greeting\": \"{language} {number}\"}}");
            put_below(session, &path, text(path.name(), &body));
            format!("the dictionary {path}")
        }
        3 => {
            let folder = path("/apps/wild/texts/de");
            let entry = Subtree::new("greeting", "sling:MessageEntry")
                .with_property("sling:key", "greeting")
                .with_property("sling:message", format!("Hallo {number}").as_str());
            let tree = Subtree::new("de", "sling:Folder").with_property("jcr:language", "de");
            put_below(session, &folder, tree.with_child(entry));
            format!("the entry below {folder}")
        }
        4 | 5 => {
            let scripts: Vec<NodePath> = all
                .iter()
                .map(|node| node.path())
                .filter(|path| path.as_str().ends_with(".html.j2"))
                .filter_map(NodePath::parent)
                .collect();
            let (folder, other) = (random.pick(&scripts)?.clone(), random.pick(&scripts)?.clone());
            let kind = other.as_str().strip_prefix("/apps/").unwrap_or(other.as_str()).to_owned();
            let (name, value) = match random.below(5) {
                0 => ("sling:resourceSuperType", kind.as_str().into()),
                1 => ("cache", (*random.pick(&["always", "never"])?).into()),
                2 => ("dynamic", (*random.pick(&["include", "ajax", "no"])?).into()),
                3 => ("dynamicChildren", texts(&[&format!("{kind}=ajax")])),
                _ => ("jcr:title", "A component".into()),
            };
            flip(session, &folder, (name, value))?;
            format!("{name} of {folder}")
        }
        6 => {
            let tags: Vec<&Node> = all
                .iter()
                .filter(|node| node.path().as_str().starts_with("/content/cq:tags"))
                .collect();
            let tag = random.pick(&tags)?.path().clone();
            let tag = if random.below(2) == 0 { tag.child("rail").ok()? } else { tag };
            session.node(&tag).ok()??;
            session
                .set_property(&tag, "jcr:title", format!("Tag {number}").as_str().into())
                .ok()?;
            format!("the title of {tag}")
        }
        7 => {
            let tags = ["wayfare:rail", "wayfare:sea", "wayfare:none"];
            let tags = texts(tags.get(random.below(3)..).unwrap_or_default());
            session.set_property(&content, "cq:tags", tags).ok()?;
            format!("tags of {content}")
        }
        8 => {
            let (name, value) = *random.pick(&[
                ("sling:vanityPath", "/wild"),
                ("sling:vanityPath", "/food"),
                ("sling:alias", "other-name"),
                ("sling:redirect", "true"),
                ("cq:redirectTarget", "/content/wayfare/en/about"),
                ("errorPages", "/content/wayfare/en/wild"),
                ("jcr:language", "de"),
            ])?;
            flip(session, &content, (name, value.into()))?;
            format!("{name} of {content}")
        }
        9 => {
            let of = random.pick(&["part", "root"])?;
            let node = content.child(of).ok()?;
            session.node(&node).ok()??;
            let kind = *random.pick(&["nt:unstructured", "oak:Unstructured"])?;
            let kind = Property::Single(Value::Name(kind.to_owned()));
            session.set_property(&node, "jcr:primaryType", kind).ok()?;
            format!("the type of {node}")
        }
        10 => {
            let entry = Subtree::new("deny", "rep:DenyACE")
                .with_property("rep:principalName", "everyone")
                .with_property("rep:privileges", names(&["jcr:read"]));
            let limit = match random.below(3) {
                0 => ("rep:ntNames", names(&["oak:Unstructured"])),
                1 => ("rep:itemNames", names(&["part", "jcr:title"])),
                _ => ("rep:glob", "*/part".into()),
            };
            let limits = Subtree::new("rep:restrictions", "rep:Restrictions")
                .with_property(limit.0, limit.1);
            let policy = Subtree::new("rep:policy", "rep:ACL").with_child(entry.with_child(limits));
            session.put_node(&page.child("rep:policy").ok()?, policy).ok()?;
            format!("a policy of {page} with {}", limit.0)
        }
        11 | 12 => {
            let mut policies = Vec::new();
            for page in &pages {
                let policy = page.path().child("rep:policy").ok()?;
                if session.node(&policy).ok()?.is_some() {
                    policies.push(policy);
                }
            }
            let policy = random.pick(&policies)?.clone();
            session.remove_node(&policy).ok()?;
            format!("the removal of {policy}")
        }
        13 => {
            let map = path(&format!("/etc/map/http/{HOST}.80"));
            if session.node(&map).ok()?.is_some() {
                session.remove_node(&map).ok()?;
                return Some(format!("the removal of {map}"));
            }
            let entry = Subtree::new(map.name(), "sling:Mapping")
                .with_property("sling:internalRedirect", texts(&["/content/wayfare/en", "/"]));
            put_below(session, &map, entry);
            format!("the mapping {map}")
        }
        14 => {
            let target =
                random.pick(&pages)?.path().child(&format!("from-{}", random.below(3))).ok()?;
            session.move_node(&page, &target).ok()?;
            format!("a move of {page} to {target}")
        }
        15 => {
            let folder = page.parent()?;
            let copy = folder.child(&format!("again-{}", random.below(3))).ok()?;
            session.copy_node(&page, &copy).ok()?;
            format!("a copy of {page} to {copy}")
        }
        16 => {
            put_asset(repository, session, format!("bytes {number}").as_bytes());
            "another original".to_owned()
        }
        17 => {
            let width = Property::Single(Value::Long(number as i64 + 1));
            let point = Subtree::new("phone", "nt:unstructured").with_property("width", width);
            let points = Subtree::new("breakpoints", "nt:unstructured").with_child(point);
            let responsive = Subtree::new("cq:responsive", "nt:unstructured").with_child(points);
            session.put_node(&content.child("cq:responsive").ok()?, responsive).ok()?;
            format!("breakpoints of {content}")
        }
        18 => {
            if page.depth() <= 4 && page.as_str() != PAGE {
                return None;
            }
            session.remove_node(&page).ok()?;
            format!("the removal of {page}")
        }
        _ => {
            mend(repository, session);
            "what was there in the beginning".to_owned()
        }
    })
}

/// Sets a property, or removes it where there is one.
fn flip(session: &mut Session, node: &NodePath, (name, value): (&str, Property)) -> Option<()> {
    if session.node(node).ok()??.property(name).is_some() {
        session.remove_property(node, name).ok()?;
    } else {
        session.set_property(node, name, value).ok()?;
    }
    Some(())
}

fn names(names: &[&str]) -> Property {
    let values = names.iter().map(|name| Value::Name((*name).to_owned()));
    Property::List(ValueType::Name, values.collect())
}
