//! From a URL to the component that draws it: mappings, vanity paths, aliases, scripts, error pages.
//!
//! Each table has the URL and what is answered: the drawn text, `-> location` for a redirect, or the outcome.

use tympan_content::{Property, Subtree, Value};
use tympan_render::{RedirectKind, RenderOutcome, RenderRequest, RenderResponse};

use crate::site::{Site, body_text, component, page, texts};

/// Says in a line what was answered.
fn told(response: &RenderResponse) -> String {
    let text = body_text(response);
    match &response.outcome {
        RenderOutcome::Ok => text,
        RenderOutcome::Redirect { location, kind: RedirectKind::Found } => format!("-> {location}"),
        RenderOutcome::Redirect { location, kind } => format!("{kind:?} -> {location}"),
        RenderOutcome::NotFound if text.starts_with("<!DOCTYPE") => "nothing".to_owned(),
        other => format!("{other:?} {text}"),
    }
}

#[track_caller]
fn check(site: &Site, url: &str, expected: &str) {
    assert_eq!(told(&site.get(url)), expected, "{url}");
}

/// Asks for a whole address.
#[track_caller]
fn check_at(site: &Site, address: &str, expected: &str) {
    let (scheme, rest) = address.split_once("://").unwrap();
    let (host, path) = rest.split_at(rest.find('/').unwrap());
    let request = RenderRequest { scheme, host, ..RenderRequest::get(path) };
    assert_eq!(told(&site.render(&request)), expected, "{address}");
}

/// A site whose pages print their path, selectors and suffix.
fn site() -> Site {
    let site = Site::empty();
    let template = "{{ page.path }}{{ \" \" ~ request.selector_string if request.selectors }}{{ \" \" ~ request.suffix if request.suffix }}";
    site.script("/apps/t/page/page.html.j2", template);
    for (path, title) in [
        ("/content/site/en", "Home"),
        ("/content/site/en/news", "News"),
        ("/content/site/de", "Start"),
    ] {
        let name = path.rsplit('/').next().unwrap();
        site.put(path, page(name, title, "t/page"));
    }
    site
}

/// Defines the indexes by which names of pages are found.
fn with_names(site: &Site) {
    let index = |name: &str, property: &str| {
        Subtree::new(name, "oak:QueryIndexDefinition")
            .with_property("type", "property")
            .with_property("propertyNames", texts(&[property]))
    };
    let indexes = Subtree::new("oak:index", "nt:unstructured")
        .with_child(index("slingVanityPath", "sling:vanityPath"))
        .with_child(index("slingAlias", "sling:alias"));
    site.put("/oak:index", indexes);
    site.repository.build_indexes().unwrap();
}

/// Puts a page whose content has more properties.
fn put_page(site: &Site, path: &str, properties: &[(&str, Property)]) {
    let name = path.rsplit('/').next().unwrap();
    let mut page = page(name, name, "t/page");
    let content = page.child_mut("jcr:content").unwrap();
    for (name, property) in properties {
        content.properties.insert((*name).to_owned(), property.clone());
    }
    site.put(path, page);
}

#[test]
fn urls_are_split() {
    let site = site();
    check(&site, "/content/site/en.html", "/content/site/en");
    check(&site, "/content/site/en/news.a.b.html/c/d", "/content/site/en/news a.b /c/d");
    check(&site, "/content/site/en/news.html;x=1", "/content/site/en/news");
    check(&site, "/content/site/en/news", "-> /content/site/en/news.html");
    check(&site, "/content/site/en/none.html", "nothing");
    check(&site, "/content/site/en/news.pdf", "nothing");
    check(&site, "/content/site/en/_jcr_content.html", "/content/site/en");
    check(
        &site,
        "/content/../apps.html",
        "BadRequest <!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Bad request: the path has a `.` or `..` segment.</title></head><body><p>Bad request: the path has a `.` or `..` segment.</p></body></html>\n",
    );
}

#[test]
fn mappings_lead_by_scheme_and_host() {
    let site = site();
    let entry = |name: &str| Subtree::new(name, "sling:Mapping");
    let to = |name: &str, target: &str| {
        entry(name).with_property("sling:internalRedirect", texts(&[target]))
    };
    let http = entry("http")
        .with_child(
            to("www.site.example.80", "/content/site/en").with_child(to("de", "/content/site/de")),
        )
        .with_child(
            entry("site.example.80")
                .with_property("sling:redirect", "http://www.site.example")
                .with_property("sling:status", Property::Single(Value::Long(301))),
        )
        .with_child(
            entry("any")
                .with_property("sling:match", "[^/]+\\.site\\.example\\.80/old/(.*)")
                .with_property(
                    "sling:internalRedirect",
                    texts(&["/content/none/$1", "/content/site/en/$1"]),
                ),
        )
        .with_child(to("broken", "/content/site/en").with_property("sling:match", "(("));
    site.put("/etc/map", Subtree::new("map", "sling:Folder").with_child(http));
    check_at(&site, "http://www.site.example/news.html", "/content/site/en/news");
    check_at(&site, "http://www.site.example:80/news.a.html/b", "/content/site/en/news a /b");
    check_at(&site, "http://www.site.example/de.html", "/content/site/de");
    check_at(&site, "http://site.example/news.html", "Moved -> http://www.site.example/news.html");
    check_at(&site, "http://x.site.example/old/news.html", "/content/site/en/news");
    check_at(&site, "https://www.site.example/news.html", "nothing");
    check_at(&site, "http://elsewhere.example/content/site/en.html", "/content/site/en");
    check(&site, "/content/site/en.html", "/content/site/en");
    site.script(
        "/apps/t/page/links.html.j2",
        "{{ page.url }} {{ link(\"/content/site/de#a\") }} {{ link(\"https://x.example/\") }}",
    );
    check_at(
        &site,
        "http://www.site.example/news.links.html",
        "/news.html /de.html#a https://x.example/",
    );
    check_at(
        &site,
        "http://elsewhere.example/content/site/en/news.links.html",
        "http://www.site.example/news.html http://www.site.example/de.html#a https://x.example/",
    );
}

#[test]
fn vanity_paths_stand_for_pages() {
    let site = site();
    with_names(&site);
    let order = |number: i64| Property::Single(Value::Long(number));
    let yes = || Property::Single(Value::Boolean(true));
    put_page(&site, "/content/site/en/a", &[("sling:vanityPath", texts(&["/sale", "two/names"]))]);
    put_page(
        &site,
        "/content/site/en/b",
        &[("sling:vanityPath", "/sale".into()), ("sling:vanityOrder", order(7))],
    );
    put_page(
        &site,
        "/content/site/en/c",
        &[
            ("sling:vanityPath", "/gone".into()),
            ("sling:redirect", yes()),
            ("sling:redirectStatus", order(308)),
        ],
    );
    put_page(&site, "/content/site/en/d", &[("sling:vanityPath", "/content/site/de".into())]);
    put_page(
        &site,
        "/content/site/en/e",
        &[("sling:vanityPath", texts(&["/apps/t/page", "/", "/etc"]))],
    );
    check(&site, "/sale", "/content/site/en/b");
    check(&site, "/sale.html", "/content/site/en/b");
    check(&site, "/sale.x.html/y", "/content/site/en/b x /y");
    check(&site, "/two/names.html", "/content/site/en/a");
    check(&site, "/gone", "Permanent -> /content/site/en/c.html");
    check(&site, "/gone.html", "Permanent -> /content/site/en/c.html");
    check(&site, "/content/site/de.html", "/content/site/en/d");
    check(&site, "/apps/t/page.html", "nothing");
    check(&site, "/sales.html", "nothing");
    site.edit(|session| session.remove_node(&"/content/site/en/b".parse().unwrap()).unwrap());
    check(&site, "/sale", "/content/site/en/a");
}

#[test]
fn vanity_paths_hold_behind_a_mapped_host() {
    let site = site();
    with_names(&site);
    let host = Subtree::new("www.site.example.80", "sling:Mapping")
        .with_property("sling:internalRedirect", texts(&["/content/site/en", "/"]));
    let http = Subtree::new("http", "sling:Mapping").with_child(host);
    site.put("/etc/map", Subtree::new("map", "sling:Folder").with_child(http));
    put_page(&site, "/content/site/en/a", &[("sling:vanityPath", texts(&["/sale", "/news"]))]);
    put_page(&site, "/content/site/fr", &[("sling:vanityPath", "/content/site/en/inner".into())]);
    check_at(&site, "http://www.site.example/sale", "/content/site/en/a");
    check_at(&site, "http://www.site.example/sale.x.html/y", "/content/site/en/a x /y");
    // What the host has itself goes first, and so does a vanity path of the mapped path.
    check_at(&site, "http://www.site.example/news.html", "/content/site/en/news");
    check_at(&site, "http://www.site.example/inner", "/content/site/fr");
    check_at(&site, "http://www.site.example/none.html", "nothing");
    check_at(&site, "http://elsewhere.example/news.html", "/content/site/en/a");
}

#[test]
fn without_an_index_no_request_walks_content() {
    let site = site();
    put_page(
        &site,
        "/content/site/en/a",
        &[("sling:vanityPath", "/sale".into()), ("sling:alias", "other".into())],
    );
    check(&site, "/sale", "nothing");
    check(&site, "/content/site/en/other.html", "nothing");
}

#[test]
fn aliases_stand_for_names() {
    let site = site();
    with_names(&site);
    put_page(&site, "/content/site/fr", &[("sling:alias", texts(&["francais", "france"]))]);
    put_page(&site, "/content/site/fr/news", &[("sling:alias", "nouvelles".into())]);
    put_page(&site, "/content/site/fr/other", &[("sling:alias", "news".into())]);
    check(&site, "/content/site/francais.html", "/content/site/fr");
    check(&site, "/content/site/france/nouvelles.a.html", "/content/site/fr/news a");
    check(&site, "/content/site/fr/nouvelles.html/x", "/content/site/fr/news /x");
    // What exists by its own name is not hidden by another's alias.
    check(&site, "/content/site/fr/news.html", "/content/site/fr/news");
    check(&site, "/content/site/nouvelles.html", "nothing");
}

#[test]
fn types_inherit_overlay_and_fall_back() {
    let site = Site::empty();
    for (path, text) in [
        ("/libs/base/page/page.html.j2", "base page"),
        ("/libs/base/page/print.html.j2", "base print"),
        ("/libs/base/page/POST.j2", "base post"),
        ("/libs/base/page/page.json.j2", "{\"base\": 1}"),
        ("/libs/lib/title/title.html.j2", "libs title"),
        ("/apps/lib/title/title.html.j2", "apps title"),
        ("/libs/lib/title/large.html.j2", "libs large"),
        ("/apps/site/page/page.html.j2", "site page"),
        ("/apps/loop/a/a.txt.j2", "loop a"),
        ("/apps/loop/b/b.html.j2", "loop b"),
        ("/apps/sling/servlet/default/default.csv.j2", "default csv"),
        ("/apps/cq/Page/cover.html.j2", "cover of the page"),
    ] {
        site.script(path, text);
    }
    site.edit(|session| {
        for (path, super_type) in [
            ("/apps/site/page", "base/page"),
            ("/apps/loop/a", "loop/b"),
            ("/apps/loop/b", "loop/a"),
        ] {
            session
                .set_property(&path.parse().unwrap(), "sling:resourceSuperType", super_type.into())
                .unwrap();
        }
    });
    for (name, kind) in [
        ("site", "site/page"),
        ("title", "lib/title"),
        ("loop", "loop/a"),
        ("none", "no/such"),
        ("absolute", "/libs/lib/title"),
    ] {
        site.put(&format!("/content/{name}"), component(name, kind));
    }
    let own = component("own", "no/such").with_property("sling:resourceSuperType", "base/page");
    site.put("/content/own", own);
    site.put("/content/page", page("page", "Page", "site/page"));
    check(&site, "/content/site.html", "site page");
    check(&site, "/content/site.print.html", "base print");
    check(&site, "/content/site.json", "{\"base\": 1}");
    check(&site, "/content/title.html", "apps title");
    check(&site, "/content/title.large.html", "libs large");
    check(&site, "/content/absolute.html", "libs title");
    check(&site, "/content/loop.html", "loop b");
    check(&site, "/content/loop.txt", "loop a");
    check(&site, "/content/own.html", "base page");
    check(&site, "/content/none.html", "nothing");
    check(&site, "/content/none.csv", "default csv");
    // The page's own type is asked before that of its content.
    check(&site, "/content/page.html", "site page");
    check(&site, "/content/page.cover.html", "cover of the page");
    let method =
        |method, path| told(&site.render(&RenderRequest { method, ..RenderRequest::get(path) }));
    assert_eq!(method("HEAD", "/content/site.html"), "site page");
    assert_eq!(method("POST", "/content/site.html"), "base post");
    assert!(method("DELETE", "/content/site.html").starts_with("MethodNotAllowed"));
}

#[test]
fn redirects_of_nodes_and_pages() {
    let site = site();
    let to = |name: &str, target: &str| {
        component(name, "sling:redirect").with_property("sling:target", target)
    };
    site.put("/content/r1", to("r1", "/content/site/en"));
    site.put(
        "/content/r2",
        to("r2", "https://x.example/y")
            .with_property("sling:status", Property::Single(Value::Long(301))),
    );
    site.put("/content/r3", to("r3", "javascript:alert(1)"));
    put_page(&site, "/content/r4", &[("cq:redirectTarget", "/content/site/de".into())]);
    check(&site, "/content/r1", "-> /content/site/en.html");
    check(&site, "/content/r1.html", "-> /content/site/en.html");
    check(&site, "/content/r2.html", "Moved -> https://x.example/y");
    check(&site, "/content/r3.html", "-> #");
    check(&site, "/content/r4.html", "-> /content/site/de.html");
    // A page that would send to itself is shown.
    put_page(&site, "/content/r5", &[("cq:redirectTarget", "/content/r5.html#top".into())]);
    check(&site, "/content/r5.html", "/content/r5");
    let edit = RenderRequest { is_edit_mode: true, ..RenderRequest::get("/content/r4.html") };
    assert_eq!(told(&site.render(&edit)), "/content/r4");
}

#[test]
fn redirects_keep_the_query() {
    let site = site();
    with_names(&site);
    let to = |name: &str, target: &str| {
        component(name, "sling:redirect").with_property("sling:target", target)
    };
    site.put("/content/r1", to("r1", "/content/site/en"));
    site.put("/content/r2", to("r2", "https://x.example/y?a=b"));
    let target = "/content/site/de?from=r3#top".into();
    put_page(&site, "/content/r3", &[("cq:redirectTarget", target)]);
    let names = [("sling:vanityPath", "/promo".into()), ("sling:redirect", "true".into())];
    put_page(&site, "/content/site/en/promotion", &names);
    check(&site, "/content/r1.html?utm=1&b", "-> /content/site/en.html?utm=1&b");
    check(&site, "/content/r1?utm=1", "-> /content/site/en.html?utm=1");
    check(&site, "/content/r2.html?utm=1", "-> https://x.example/y?a=b");
    check(&site, "/content/r3.html?utm=1", "-> /content/site/de.html?from=r3&utm=1#top");
    check(&site, "/promo?utm=1", "-> /content/site/en/promotion.html?utm=1");
    check(&site, "/promo.print.html?utm=1", "-> /content/site/en/promotion.print.html?utm=1");
    check(&site, "/content/site/en?utm=1", "-> /content/site/en.html?utm=1");
}

#[test]
fn errors_are_rendered_by_scripts_and_by_the_pages_of_a_site() {
    let site = site();
    site.script(
        "/apps/sling/servlet/errorhandler/404.html.j2",
        "no {{ request.path }} {{ error.status }}",
    );
    site.script("/libs/sling/servlet/errorhandler/default.html.j2", "default {{ error.status }}");
    site.script("/apps/t/bad/bad.html.j2", "{{ no_such_function() }}");
    site.put("/content/site/en/bad", page("bad", "Bad", "t/bad"));
    site.put("/content/other/bad", page("bad", "Bad", "t/bad"));
    check(&site, "/content/other/none.html", "NotFound no /content/other/none 404");
    check(&site, "/content/other/bad.html", "Error default 500");
    // A site names the folder of its own pages.
    put_page(&site, "/content/site/en", &[("errorPages", "/content/site/errors".into())]);
    put_page(&site, "/content/site/errors/404", &[]);
    check(&site, "/content/site/en/deep/none.html", "NotFound /content/site/errors/404");
    site.put("/content/site/en/bad", page("bad", "Bad", "t/bad"));
    check(&site, "/content/site/en/bad.html", "Error default 500");
    put_page(&site, "/content/site/errors/default", &[]);
    check(&site, "/content/site/en/bad.html", "Error /content/site/errors/default");
    // Another fault than these has a page too; the caller knows its status.
    let request = RenderRequest::get("/content/site/en/secret.html");
    let snapshot = site.repository.snapshot().unwrap();
    let denied = site.renderer().render_fault(&snapshot, &request, "403", "Not for you.");
    assert_eq!(told(&denied), "Error /content/site/errors/default");
    // A page that fails itself does not go round in circles.
    site.put("/content/site/errors/404", page("404", "Bad", "t/bad"));
    check(&site, "/content/site/en/none.html", "NotFound no /content/site/en/none 404");
}

#[test]
fn overlays_of_live_edits_show_at_once() {
    let site = site();
    site.script("/libs/o/o.html.j2", "libs");
    site.put("/content/o", component("o", "o"));
    check(&site, "/content/o.html", "libs");
    site.script("/apps/o/o.html.j2", "apps");
    check(&site, "/content/o.html", "apps");
    site.edit(|session| session.remove_node(&"/apps/o".parse().unwrap()).unwrap());
    check(&site, "/content/o.html", "libs");
}

/// A site with exact URLs shows nothing for selectors and suffixes that nothing names.
#[test]
fn strict_urls_show_nothing_that_nobody_names() {
    let site = site();
    site.script("/apps/t/page/print.html.j2", "print {{ page.path }}");
    site.script("/apps/t/page/nav/active.html.j2", "active {{ page.path }}");
    site.script("/apps/t/album/album.html.j2", "album {{ request.selector_string }}");
    site.script("/apps/t/search/search.html.j2", "search {{ request.suffix }}");
    let put_type = |name: &str, parts: &[(&str, &[&str])]| {
        site.edit(|session| {
            let path = tympan_content::NodePath::new(&format!("/apps/t/{name}")).unwrap();
            for (name, values) in parts {
                session.set_property(&path, name, texts(values)).unwrap();
            }
        });
    };
    put_type("album", &[("requestSelectors", &["summer", "no-*", "*.pdf"])]);
    put_type("search", &[("requestSuffixes", &["/find/*", "/thanks"])]);
    let mut found = page("found", "Found", "t/page");
    let root = Subtree::new("root", "nt:unstructured")
        .with_child(component("album", "t/album"))
        .with_child(component("search", "t/search"));
    found.child_mut("jcr:content").unwrap().put_child(root);
    site.put("/content/site/en/found", found);
    let names = |strict: bool| {
        let named = "/content/site/en/news";
        for (url, expected) in [
            ("/content/site/en/news.html", named),
            ("/content/site/en/news.print.html", "print /content/site/en/news"),
            ("/content/site/en/news.nav.active.html", "active /content/site/en/news"),
            ("/content/site/en/found.summer.html", "/content/site/en/found summer"),
            ("/content/site/en/found.no-7.html", "/content/site/en/found no-7"),
            ("/content/site/en/found.html/thanks", "/content/site/en/found /thanks"),
            ("/content/site/en/found.html/find/a/b", "/content/site/en/found /find/a/b"),
            ("/content/site/en/found/jcr:content/root/album.summer.html", "album summer"),
        ] {
            check(&site, url, expected);
        }
        for url in [
            "/content/site/en/news.other.html",
            "/content/site/en/news.print.other.html",
            "/content/site/en/news.other.print.html",
            "/content/site/en/news.nav.html",
            "/content/site/en/news.html/x.html",
            "/content/site/en/news.print.html/thanks",
            "/content/site/en/news.summer.html",
            "/content/site/en/found.7.html",
            "/content/site/en/found.html/other",
            "/content/site/en/found.summer.other.html/thanks",
            "/content/site/en/found/jcr:content/root/album.html/thanks",
            "/content/site/en/news.1.json/x.json",
            "/content/site/en/news.txt/x",
            "/content/site/en/news..html",
            "/content/site/en/news....html",
            "/content/site/en/news.print..html",
            "/content/site/en/news./x.html",
            "/content/site/en/news.1..json",
        ] {
            let response = site.get(url);
            assert_eq!(
                response.outcome == RenderOutcome::NotFound,
                strict,
                "{url}: {:?}",
                response.outcome
            );
        }
        // The default output names the selectors that it reads.
        for url in ["/content/site/en/news.1.json", "/content/site/en/news.tidy.infinity.json"] {
            assert_eq!(site.get(url).outcome, RenderOutcome::Ok, "{url}");
        }
        let posted =
            RenderRequest { method: "POST", ..RenderRequest::get("/content/site/en/news.x.html") };
        assert_eq!(site.render(&posted).outcome, RenderOutcome::MethodNotAllowed);
    };
    // As in Sling, as long as nobody asks for anything else.
    names(false);
    let set = |path: &str, value: bool| {
        site.edit(|session| {
            let path = tympan_content::NodePath::new(path).unwrap();
            let value = Property::Single(Value::Boolean(value));
            session.set_property(&path, "strictUrls", value).unwrap();
        });
    };
    set("/content/site", true);
    names(true);
    // The nearest one counts, also where it stands with the content of a page.
    set("/content/site/en/jcr:content", false);
    names(false);
    set("/content/site/en/jcr:content", true);
    names(true);
}
