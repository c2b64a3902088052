//! Pages from URL to answer: scripts, selectors, redirects, error pages.

use tympan_content::{NodePath, Property, Subtree, Value, Viewer};
use tympan_render::{
    RedirectKind, RenderMode, RenderOptions, RenderOutcome, RenderRequest, RenderResponseBody,
    Renderer,
};

use crate::corpus;
use crate::site::{Site, body_text, component, file, page};

#[test]
fn a_page_renders_its_content() {
    let site = Site::sample(RenderMode::Publish);
    let response = site.get("/content/site/en.html");
    assert_eq!(response.outcome, RenderOutcome::Ok);
    assert_eq!(response.content_type, "text/html; charset=utf-8");
    let expected = "<title>Home</title><p>First &amp; &lt;best&gt;</p><p>Second</p>";
    assert_eq!(body_text(&response), expected);
    assert_eq!(site.text("/content/site/en/_jcr_content.html"), expected);
    assert_eq!(site.text("/content/site/en/jcr:content/root/two.html"), "<p>Second</p>");
}

#[test]
fn selectors_and_extensions_choose_the_script() {
    let site = Site::sample(RenderMode::Publish);
    site.script("/apps/test/page/print.html.j2", "print {{ include(\"root/two\") }}");
    site.script("/apps/test/page/print/a4.html.j2", "a4");
    site.script("/apps/test/page/page.txt.j2", "{{ properties.evil }}");
    site.script("/apps/test/text/print.html.j2", "[{{ properties.text }}]");
    assert_eq!(site.text("/content/site/en.print.html"), "print [Second]");
    assert_eq!(site.text("/content/site/en.print.a4.html"), "a4");
    assert_eq!(site.text("/content/site/en.other.html"), site.text("/content/site/en.html"));
    let plain = site.get("/content/site/en.txt");
    assert_eq!(body_text(&plain), "<script>alert('1')</script>");
    assert_eq!(plain.content_type, "text/plain; charset=utf-8");
}

#[test]
fn super_types_inherit_from_content_and_from_the_type() {
    let site = Site::sample(RenderMode::Publish);
    let shape = |above: &str| {
        Subtree::new("", "cq:Component").with_property("sling:resourceSuperType", above)
    };
    site.put("/apps/test/special", shape("test/page"));
    site.put("/content/site/en/special", page("special", "Special", "test/special"));
    assert_eq!(site.text("/content/site/en/special.html"), "<title>Special</title>");
    site.script("/apps/test/special/special.html.j2", "own");
    assert_eq!(site.text("/content/site/en/special.html"), "own");
    let odd = component("odd", "test/none")
        .with_property("sling:resourceSuperType", "test/text")
        .with_property("text", "odd");
    site.put("/content/odd", odd);
    assert_eq!(site.text("/content/odd.html"), "<p>odd</p>");
}

#[test]
fn a_changed_script_shows_on_the_next_request() {
    let site = Site::sample(RenderMode::Publish);
    assert!(site.text("/content/site/en.html").contains("<p>Second</p>"));
    site.script("/apps/test/text/text.html.j2", "<i>{{ properties.text }}</i>");
    assert!(site.text("/content/site/en.html").contains("<i>Second</i>"));
    site.edit(|session| {
        session.remove_node(&NodePath::new("/apps/test/page/page.html.j2").unwrap()).unwrap()
    });
    assert_eq!(site.get("/content/site/en.html").outcome, RenderOutcome::NotFound);
}

#[test]
fn an_old_snapshot_is_rendered_with_its_own_scripts() {
    let site = Site::sample(RenderMode::Publish);
    let old = site.repository.snapshot().unwrap();
    site.script("/apps/test/text/text.html.j2", "new");
    let request = RenderRequest::get("/content/site/en/jcr:content/root/two.html");
    let renderer =
        tympan_render::Renderer::new(&site.repository, tympan_render::RenderOptions::default());
    assert_eq!(body_text(&renderer.render(&site.repository.snapshot().unwrap(), &request)), "new");
    assert_eq!(body_text(&renderer.render(&old, &request)), "<p>Second</p>");
}

#[test]
fn editing_wraps_included_components_only() {
    let site = Site::sample(RenderMode::Author);
    let request =
        RenderRequest { is_edit_mode: true, ..RenderRequest::get("/content/site/en.html") };
    let expected = "<title>Home</title>\
        <div data-tympan-path=\"/content/site/en/jcr:content/root/one\" data-tympan-type=\"test/text\">\
        <p>First &amp; &lt;best&gt;</p></div>\
        <div data-tympan-path=\"/content/site/en/jcr:content/root/two\" data-tympan-type=\"test/text\">\
        <p>Second</p></div>";
    assert_eq!(body_text(&site.render(&request)), expected);
    assert!(!site.text("/content/site/en.html").contains("data-tympan"));
    // Parts that authors do not choose may stand where a wrapper would break the page.
    site.edit(|session| {
        let component = NodePath::new("/apps/test/text").unwrap();
        session.set_property(&component, "componentGroup", ".hidden".into()).unwrap();
    });
    assert!(!body_text(&site.render(&request)).contains("data-tympan"));
}

#[test]
fn missing_pages_get_the_sites_error_page() {
    let site = Site::sample(RenderMode::Publish);
    let bare = site.get("/content/site/en/none.html");
    assert_eq!(bare.outcome, RenderOutcome::NotFound);
    assert!(body_text(&bare).contains("There is no such page."));
    let handler = "{{ error.status }} {{ request.path }} {{ page.title }} {{ include(\"/content/site/en/jcr:content/root/two\") }}";
    site.script("/apps/sling/servlet/errorhandler/404.html.j2", handler);
    let drawn = site.get("/content/site/en/none.html");
    assert_eq!(drawn.outcome, RenderOutcome::NotFound);
    assert_eq!(body_text(&drawn), "404 /content/site/en/none Home <p>Second</p>");
    assert_eq!(site.text("/no/where.jpg"), "404 /no/where  <p>Second</p>");
    assert_eq!(site.text("/no//where"), "404 /no//where  <p>Second</p>");
}

#[test]
fn a_page_whose_own_script_fails() {
    for (mode, expected) in
        [(RenderMode::Author, "no_such_function"), (RenderMode::Publish, "cannot be shown")]
    {
        let site = Site::sample(mode);
        site.put("/content/site/en/bad", page("bad", "Bad", "test/broken"));
        let response = site.get("/content/site/en/bad.html");
        assert_eq!(response.outcome, RenderOutcome::Error);
        assert_eq!(response.failed_component_count, 1);
        assert!(body_text(&response).contains(expected), "{}", body_text(&response));
    }
}

#[test]
fn failing_components_are_counted() {
    let site = Site::sample(RenderMode::Publish);
    site.draw("{{ include(\"root/one\", type=\"test/broken\") }}{{ include(\"root/one\", type=\"no\") }}ok");
    let response = site.get("/content/site/en.html");
    assert_eq!((response.outcome.clone(), response.failed_component_count), (RenderOutcome::Ok, 2));
    assert_eq!(body_text(&response), "ok");
}

#[track_caller]
fn check_redirect(site: &Site, url: &str, location: &str, kind: RedirectKind) {
    let expected = RenderOutcome::Redirect { location: location.to_owned(), kind };
    assert_eq!(site.get(url).outcome, expected, "{url}");
}

#[test]
fn redirects() {
    let site = Site::sample(RenderMode::Publish);
    let mut moved = page("moved", "Moved", "test/page");
    let target = "/content/site/en/zebra".into();
    moved.child_mut("jcr:content").unwrap().properties.insert("cq:redirectTarget".into(), target);
    site.put("/content/site/en/moved", moved);
    let permanent = component("old", "sling:redirect")
        .with_property("sling:target", "https://example.org/")
        .with_property("sling:status", Property::Single(Value::Long(301)));
    site.put("/content/old", permanent);
    check_redirect(
        &site,
        "/content/site/en/moved.html",
        "/content/site/en/zebra.html",
        RedirectKind::Found,
    );
    check_redirect(&site, "/content/old.html", "https://example.org/", RedirectKind::Moved);
    check_redirect(&site, "/content/site/en?a=b", "/content/site/en.html?a=b", RedirectKind::Found);
    assert_eq!(site.get("/content/old.json").outcome, RenderOutcome::Ok);
    let edit =
        RenderRequest { is_edit_mode: true, ..RenderRequest::get("/content/site/en/moved.html") };
    assert_eq!(site.render(&edit).outcome, RenderOutcome::Ok);
}

#[test]
fn a_page_is_sent_in_the_charset_that_its_head_declares() {
    let site = Site::sample(RenderMode::Publish);
    site.draw("");
    site.script(
        "/apps/test/case/case.html.j2",
        "<meta charset=\"gbk\"><p>{{ request.parameters.q }} €</p>",
    );
    let request = RenderRequest {
        query: "q=%C4%E3%BA%C3&_charset_=gbk",
        ..RenderRequest::get("/content/site/en.html")
    };
    let response = site.render(&request);
    assert_eq!(response.content_type, "text/html; charset=gbk");
    let RenderResponseBody::Bytes(bytes) = &response.body else { panic!("{response:?}") };
    assert_eq!(&bytes[..], b"<meta charset=\"gbk\"><p>\xc4\xe3\xba\xc3 \x80</p>");
    site.draw("<meta charset=\"utf-8\"><p>€</p>");
    let response = site.get("/content/site/en.html");
    assert_eq!(response.content_type, "text/html; charset=utf-8");
}

#[test]
fn scripts_can_redirect_and_send_files() {
    let site = Site::sample(RenderMode::Publish);
    site.draw("{{ redirect(\"/content/site/en/zebra\", status=\"308\") }}");
    check_redirect(
        &site,
        "/content/site/en.html",
        "/content/site/en/zebra.html",
        RedirectKind::Permanent,
    );
    site.draw("{{ redirect(\"javascript:alert(1)\") }}");
    assert_eq!(site.get("/content/site/en.html").outcome, RenderOutcome::Error);
    site.script("/apps/test/page/page.pdf.j2", "{{ send_file(\"/content/dam/map.png\") }}");
    let response = site.get("/content/site/en/zebra.2214.pdf");
    assert_eq!(response.content_type, "image/png");
    assert!(matches!(response.body, RenderResponseBody::Blob(_)));
    site.script("/apps/test/page/page.pdf.j2", "{{ send_file(\"/content/dam/none.png\") }}");
    assert_eq!(site.get("/content/site/en/zebra.2214.pdf").outcome, RenderOutcome::NotFound);
}

#[test]
fn only_authors_see_nodes_without_scripts() {
    for (mode, outcome) in
        [(RenderMode::Author, RenderOutcome::Ok), (RenderMode::Publish, RenderOutcome::NotFound)]
    {
        let site = Site::sample(mode);
        site.put("/content/x", Subtree::new("x", "nt:unstructured").with_property("a", "<script>"));
        let response = site.get("/content/x.html");
        assert_eq!(response.outcome, outcome);
        assert!(!body_text(&response).contains("<script>"));
    }
}

#[test]
fn odd_requests_have_clear_outcomes() {
    let site = Site::sample(RenderMode::Publish);
    for (path, outcome) in [
        ("/content/../etc/passwd", RenderOutcome::BadRequest),
        ("/content/%2e%2e/x", RenderOutcome::BadRequest),
        ("/content/%zz", RenderOutcome::BadRequest),
        ("/content/site/en.exe", RenderOutcome::NotFound),
        ("/content/a[1].html", RenderOutcome::NotFound),
        ("/content//site.html", RenderOutcome::NotFound),
        ("/", RenderOutcome::NotFound),
    ] {
        assert_eq!(site.get(path).outcome, outcome, "{path}");
    }
    let post = RenderRequest { method: "POST", ..RenderRequest::get("/content/site/en.html") };
    assert_eq!(site.render(&post).outcome, RenderOutcome::MethodNotAllowed);
    site.script("/apps/test/page/POST.j2", "posted");
    assert_eq!(body_text(&site.render(&post)), "posted");
}

#[test]
fn plain_text_lists_the_properties() {
    let site = Site::sample(RenderMode::Publish);
    let text = site.text("/content/site/en/jcr:content.txt");
    assert!(text.starts_with("** Resource dumped by"), "{text}");
    assert!(text.contains("Resource type: test/page\nResource super type: -\n"), "{text}");
    assert!(text.contains("\nnames: [a, <b>]\n"), "{text}");
}

#[test]
fn times_have_a_row_for_each_script() {
    let site = Site::sample(RenderMode::Publish);
    let rows = site.get("/content/site/en.html").timing.rows;
    let rows: Vec<String> = rows
        .iter()
        .map(|row| format!("{} {} {}x", row.depth, row.script, row.call_count))
        .collect();
    assert_eq!(rows, ["0 /apps/test/page/page.html.j2 1x", "1 /apps/test/text/text.html.j2 2x"]);
}

#[test]
fn scripts_of_one_component_keep_their_own_texts() {
    let site = Site::sample(RenderMode::Publish);
    let script =
        |name: &str, text: &str| file(&site.repository, name, text.as_bytes(), "text/plain");
    let component = Subtree::new("many", "cq:Component")
        .with_child(script("many.html.j2", "plain"))
        .with_child(script("large.html.j2", "large"))
        .with_child(script("print.html.j2", "print"))
        .with_child(script("small.html.j2", "small"));
    site.put("/apps/test/many", component);
    site.put("/content/many", page("many", "Many", "test/many"));
    for (selector, expected) in
        [("", "plain"), (".large", "large"), (".print", "print"), (".small", "small")]
    {
        assert_eq!(site.text(&format!("/content/many{selector}.html")), expected);
    }
}

#[test]
fn faults_found_by_the_caller_get_the_sites_page_too() {
    let site = Site::sample(RenderMode::Publish);
    let renderer =
        tympan_render::Renderer::new(&site.repository, tympan_render::RenderOptions::default());
    let snapshot = site.repository.snapshot().unwrap();
    let request = RenderRequest::get("/content/site/en/zebra.html");
    let bare = renderer.render_fault(&snapshot, &request, "403", "Not <you>.");
    assert!(body_text(&bare).contains("Not &lt;you&gt;."));
    site.script(
        "/apps/sling/servlet/errorhandler/default.html.j2",
        "{{ error.status }} {{ error.message }} {{ page.title }}",
    );
    let snapshot = site.repository.snapshot().unwrap();
    let drawn = renderer.render_fault(&snapshot, &request, "403", "Not you.");
    assert_eq!(body_text(&drawn), "403 Not you. Zebra crossing");
}

#[test]
fn a_script_says_that_nothing_is_there() {
    let site = Site::sample(RenderMode::Publish);
    let script = "{% if request.selectors %}{{ not_found() }}{% endif %}{{ properties.text }}";
    site.script("/apps/test/text/text.html.j2", script);
    assert_eq!(site.get("/content/site/en.html").outcome, RenderOutcome::Ok);
    let missing = site.get("/content/site/en.invented.html");
    assert_eq!(missing.outcome, RenderOutcome::NotFound);
    assert!(!body_text(&missing).contains("Second"), "{}", body_text(&missing));
}

#[test]
fn tags_that_visitors_make_up_are_no_pages() {
    let repository = corpus::sample();
    let renderer = Renderer::new(&repository, RenderOptions::default());
    let viewer = Viewer::anonymous();
    let snapshot = repository.snapshot().unwrap().as_viewer(&viewer);
    for (selectors, outcome) in [
        ("", RenderOutcome::Ok),
        (".rail", RenderOutcome::Ok),
        (".large.rail", RenderOutcome::Ok),
        (".rail.large", RenderOutcome::NotFound),
        (".print", RenderOutcome::Ok),
        (".made-up", RenderOutcome::NotFound),
        (".rail.made-up", RenderOutcome::NotFound),
        (".made-up.print", RenderOutcome::NotFound),
    ] {
        let url = format!("/content/wayfare/en/tags{selectors}.html");
        let drawn = renderer.render(&snapshot, &RenderRequest::get(&url));
        assert_eq!(drawn.outcome, outcome, "{url}");
    }
}
