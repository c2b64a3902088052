//! Client libraries by category, texts in other languages, and queries of components.

use tympan_content::{Property, Repository, Subtree, Value};
use tympan_render::{RenderMode, RenderOutcome, RenderResponseBody};

use crate::site::{Site, component, file, texts};

fn library(
    repository: &Repository,
    name: &str,
    lists: [&[&str]; 3],
    files: &[(&str, &str)],
) -> Subtree {
    let [categories, dependencies, embed] = lists;
    files.iter().fold(
        Subtree::new(name, "cq:ClientLibraryFolder")
            .with_property("categories", texts(categories))
            .with_property("dependencies", texts(dependencies))
            .with_property("embed", texts(embed))
            .with_property("allowProxy", Property::Single(Value::Boolean(true))),
        |library, (name, text)| {
            library.with_child(file(repository, name, text.as_bytes(), "text/plain"))
        },
    )
}

fn site() -> Site {
    let site = Site::sample(RenderMode::Publish);
    let put = |name: &str, lists: [&[&str]; 3], files: &[(&str, &str)]| {
        let library = library(&site.repository, name, lists, files);
        site.put(&format!("/apps/t/clientlibs/{name}"), library);
    };
    put(
        "base",
        [&["t.base"], &["t.page"], &[]],
        &[("css.txt", "a.css"), ("a.css", "b { color : red }")],
    );
    put(
        "page",
        [&["t.page"], &["t.base"], &["t.part"]],
        &[
            ("css.txt", "# a list\n#base=.\none.css\nmissing.css\n"),
            (
                "one.css",
                "/* gone */\np { margin : 0px 0px ; background: url( 'img/a.png' ) }\ni { background: url(/x.png) }\n",
            ),
            ("js.txt", "one.js\ntwo.js"),
            ("one.js", "// gone\nvar a = 1\n"),
            ("two.js", "(function () { window.b = \"it's // here\" + a; })()"),
        ],
    );
    put(
        "part",
        [&["t.part"], &[], &["t.page"]],
        &[("css.txt", "p.css"), ("p.css", "u { color: blue }")],
    );
    site
}

#[test]
fn categories_become_addresses_in_the_order_that_pages_need() {
    let site = site();
    let drawn = site.draw("<head>{{ clientlibs(\"t.page\") }}</head>");
    let sheets: Vec<&str> =
        drawn.split("href=\"").skip(1).map(|rest| rest.split('"').next().unwrap()).collect();
    assert_eq!(sheets.len(), 2, "{drawn}");
    assert!(sheets[0].starts_with("/etc.clientlibs/t/clientlibs/base."), "{drawn}");
    assert!(sheets[1].starts_with("/etc.clientlibs/t/clientlibs/page."), "{drawn}");
    let script = drawn.split("src=\"").nth(1).unwrap().split('"').next().unwrap();
    let get = |address: &str| {
        let answer = site.get(address);
        assert_eq!(answer.outcome, RenderOutcome::Ok, "{address}");
        let control = answer.headers.iter().find(|(name, _)| *name == "cache-control");
        assert_eq!(control.unwrap().1, "public, max-age=31536000, immutable");
        let RenderResponseBody::Bytes(bytes) = answer.body else { panic!("{address}") };
        (answer.content_type, String::from_utf8(bytes.to_vec()).unwrap())
    };
    let (kind, css) = get(sheets[1]);
    assert_eq!(kind, "text/css; charset=utf-8");
    let place = |part: &str| css.find(part).unwrap_or_else(|| panic!("no `{part}` in {css}"));
    assert!(place("u{") < place("p{"), "what is embedded comes first: {css}");
    assert!(!css.contains("gone"));
    place("/etc.clientlibs/t/clientlibs/page/img/a.png");
    let (kind, js) = get(script);
    assert!(
        kind.starts_with("text/javascript") || kind.starts_with("application/javascript"),
        "{kind}"
    );
    assert!(js.contains("it's // here") && !js.contains("gone"), "{js}");
    assert!(js.find("var a").unwrap() < js.find("function").unwrap());
    // An address with a hash that never was shows the file, but caches in front must not keep each one.
    let made_up = sheets[0].rsplitn(3, '.').nth(2).unwrap();
    let kept = |path: &str| {
        let headers = site.get(path).headers;
        headers.iter().find(|(name, _)| *name == "dispatcher").map(|(_, value)| value.clone())
    };
    assert_eq!(kept(&format!("{made_up}.0123abcd.css")).as_deref(), Some("no-cache"));
    assert_eq!((kept(sheets[0]), kept(&format!("{made_up}.css"))), (None, None));
    // Another text is another address.
    site.script("/apps/t/clientlibs/base/a.css", "b { color: green }");
    let again = site.draw("<head>{{ clientlibs([\"t.page\"], js=false) }}</head>");
    assert!(
        !again.contains(sheets[0]) && again.contains(sheets[1]) && !again.contains("<script"),
        "{again}"
    );
    // What a page does not know is left out for visitors.
    assert_eq!(site.draw("{{ clientlibs(\"none\") }}"), "");
}

#[test]
fn texts_are_in_the_language_of_the_page() {
    let site = site();
    site.script(
        "/apps/t/i18n/de.json",
        "{\"trains\": \"{n, plural, one {# Zug} other {# Züge}} nach {city}\", \"Hello\": \"Hallo <Welt>\"}",
    );
    site.script(
        "/apps/t/i18n/en.json",
        "{\"trains\": \"{n, plural, one {# train} other {# trains}} to {city}\"}",
    );
    let entry = Subtree::new("e1", "sling:MessageEntry")
        .with_property("sling:key", "Bye")
        .with_property("sling:message", "Tschüss");
    let folder = Subtree::new("nodes", "sling:Folder")
        .with_property(
            "jcr:mixinTypes",
            Property::List(
                tympan_content::ValueType::Name,
                vec![Value::Name("mix:language".into())],
            ),
        )
        .with_property("jcr:language", "de")
        .with_child(entry);
    site.put("/apps/t/i18n/nodes", folder);
    let trains = "{{ i18n(\"trains\", n=2, city=\"<Köln>\") }}";
    assert_eq!(site.draw(trains), "2 trains to &lt;Köln&gt;");
    site.edit(|session| {
        let content = tympan_content::NodePath::new("/content/site/en/jcr:content").unwrap();
        session.set_property(&content, "jcr:language", "de_AT".into()).unwrap();
    });
    assert_eq!(site.draw(trains), "2 Züge nach &lt;Köln&gt;");
    assert_eq!(site.draw("{{ i18n(\"Hello\") }}"), "Hallo &lt;Welt&gt;");
    assert_eq!(
        site.draw("{{ i18n(\"Bye\") }}, {{ i18n(\"Never heard\") }}"),
        "Tschüss, Never heard"
    );
    assert_eq!(
        site.draw("{{ i18n(\"trains\", n=1, city=\"x\", language=\"en\") }}"),
        "1 train to x"
    );
    assert_eq!(
        site.draw("<a title=\"{{ i18n(\"Hello\") }}\">x</a>"),
        "<a title=\"Hallo &lt;Welt&gt;\">x</a>"
    );
}

#[test]
fn queries_give_what_they_find_and_tell_visitors_nothing_of_it() {
    let statement = "SELECT * FROM [cq:PageContent] AS a WHERE a.[motto] = $title";
    let template = format!(
        "{{% for n in query(\"{statement}\", title=\"Zebra crossing\", limit=5) %}}{{{{ n.path }}}}{{% endfor %}}"
    );
    for mode in [RenderMode::Publish, RenderMode::Author] {
        let site = Site::sample(mode);
        site.edit(|session| {
            for name in ["zebra", "apple"] {
                let content =
                    tympan_content::NodePath::new(&format!("/content/site/en/{name}/jcr:content"))
                        .unwrap();
                session
                    .set_property(
                        &content,
                        "jcr:primaryType",
                        Property::Single(Value::Name("cq:PageContent".into())),
                    )
                    .ok();
                // No index knows this property.
                let motto = if name == "zebra" { "Zebra crossing" } else { "Keep away" };
                session.set_property(&content, "motto", motto.into()).unwrap();
            }
        });
        let statement = template.replace("[cq:PageContent]", "[nt:base]");
        site.script("/apps/test/case/case.html.j2", &statement);
        site.edit(|session| {
            let content = tympan_content::NodePath::new("/content/site/en/jcr:content").unwrap();
            session.set_property(&content, "sling:resourceType", "test/case".into()).unwrap();
        });
        let drawn = site.get("/content/site/en.html");
        assert_eq!(crate::site::body_text(&drawn), "/content/site/en/zebra/jcr:content");
        assert_eq!(drawn.reads.query_count, 1);
        let warning = drawn.headers.iter().find(|(name, _)| *name == "x-tympan-warning");
        assert_eq!(warning.is_some(), mode == RenderMode::Author, "{mode:?}: {warning:?}");
    }
    let site = Site::sample(RenderMode::Publish);
    let content = component("x", "test/case");
    site.put("/content/x", content);
    site.script("/apps/test/case/case.html.j2", "{{ query(\"SELEKT\") }}");
    assert_eq!(site.get("/content/x.html").outcome, RenderOutcome::Error);
}

#[test]
fn style_sheets_in_less_are_compiled_and_joined() {
    let site = site();
    let less = [
        ("css.txt", "main.less\nbroken.less\nplain.css"),
        ("main.less", "@import 'colors';\n.a { .b { color: @main; background: url(img/x.png) } }"),
        ("colors.less", "@main: #010203;"),
        ("broken.less", ".c { color: @none; }"),
        ("plain.css", ".d { top: 0 }"),
    ];
    let library = library(&site.repository, "less", [&["t.less"], &[], &[]], &less);
    site.put("/apps/t/clientlibs/less", library);
    let drawn = site.draw("{{ clientlibs(\"t.less\") }}");
    let address = drawn.split("href=\"").nth(1).unwrap().split('"').next().unwrap();
    let css = site.text(address);
    assert!(css.contains(".a .b{color:#010203;"), "{css}");
    assert!(css.contains("url(/etc.clientlibs/t/clientlibs/less/img/x.png)"), "{css}");
    assert!(css.contains(".d{top:0") && !css.contains(".c{") && !css.contains('@'), "{css}");
}

#[test]
fn authors_read_why_a_style_sheet_is_left_out() {
    let served = |mode: RenderMode, files: &[(&str, &str)]| {
        let site = Site::sample(mode);
        let library = library(&site.repository, "less", [&["t.less"], &[], &[]], files);
        site.put("/apps/t/clientlibs/less", library);
        let drawn = site.draw("{{ clientlibs(\"t.less\") }}");
        let address = drawn.split("href=\"").nth(1).unwrap().split('"').next().unwrap().to_owned();
        let answer = site.get(&address);
        assert_eq!(answer.outcome, RenderOutcome::Ok);
        assert_eq!(&*answer.content_type, "text/css; charset=utf-8");
        (address, crate::site::body_text(&answer))
    };
    let files = [
        ("css.txt", "main.less\nplain.css"),
        ("main.less", "@import 'part';\n.a { b: c }"),
        ("part.less", ".c {\n  color: @none;\n}"),
        ("plain.css", ".d { top: 0 }"),
    ];
    let (author_address, css) = served(RenderMode::Author, &files);
    let comment = "/* /apps/t/clientlibs/less/part.less:2: cannot compile the style sheet: there is no variable `@none` */\n";
    let rest = css.strip_prefix(comment).unwrap_or_else(|| panic!("{css}"));
    assert!(rest.contains(".d{top:0"), "{css}");
    let (publish_address, css) = served(RenderMode::Publish, &files);
    assert!(css.contains(".d{top:0") && !css.contains("/*") && !css.contains("none"), "{css}");
    assert_ne!(author_address, publish_address);
    // Nothing in a style sheet ends the comment or the element around it.
    let (_, css) =
        served(RenderMode::Author, &[("css.txt", "x.less"), ("x.less", "\"*/</style>\";")]);
    assert_eq!(css.matches("*/").count(), 1, "{css}");
    assert!(css.ends_with("*/\n") && !css.contains("</style"), "{css}");
    let (_, css) = served(RenderMode::Publish, &[("css.txt", "x.less"), ("x.less", "a {")]);
    assert_eq!(css, "");
}
