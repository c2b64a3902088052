//! Components whose HTL scripts use a JavaScript.

use tympan_content::{NodePath, Subtree};
use tympan_render::{
    ChangedAspects, ReadRecording, RenderMode, RenderOutcome, RenderRequest, RequestFacts,
};

use crate::site::{Site, body_text, component, file, page};

/// Makes a page whose component `card` has a script, and the JavaScripts that it uses.
fn site(mode: RenderMode, template: &str, script: &str) -> Site {
    let site = Site::with_limits(mode, Default::default());
    site.script(
        "/apps/shop/page/page.html",
        "<sly data-sly-resource=\"${'card'}\"></sly><sly data-sly-resource=\"${'other'}\"></sly>",
    );
    site.script("/apps/shop/other/other.html", "<i>${properties.text}</i>");
    site.script("/apps/shop/card/card.html", template);
    site.script("/apps/shop/card/card.js", script);
    site.script(
        "/apps/shop/utils/format.js",
        "use(function () { return { shout: function (text) { return text.toUpperCase() + '!'; } }; });",
    );
    let card = component("card", "shop/card")
        .with_property("title", "A <b> & c")
        .with_property("unused", "x")
        .with_child(component("first", "shop/other").with_property("text", "one"))
        .with_child(component("second", "shop/other").with_property("text", "two"));
    let content = component("jcr:content", "shop/page")
        .with_property("jcr:title", "Home")
        .with_child(card)
        .with_child(component("other", "shop/other").with_property("text", "still here"));
    site.put("/content/a", Subtree::new("a", "cq:Page").with_child(content));
    site.put("/content/a/b", page("b", "Below", "shop/page"));
    site
}

const TEMPLATE: &str = "<p data-sly-use.card=\"${'card.js' @ suffix='now'}\">${card.title} ${card.shouted} \
                        ${card.suffix}<b data-sly-repeat=\"${card.items}\">${item.text}</b></p>";

const SCRIPT: &str = "use(['../utils/format.js'], function (format) {
    var items = [];
    var children = resource.listChildren();
    while (children.hasNext()) {
        items.push({ text: children.next().getValueMap().get('text', 'none') });
    }
    return {
        title: properties.title,
        shouted: function () { return format.shout(currentPage.getTitle()); },
        suffix: this.suffix,
        items: items
    };
});";

#[test]
fn a_script_gives_values_that_are_escaped_by_position() {
    let site = site(RenderMode::Publish, TEMPLATE, SCRIPT);
    assert_eq!(
        site.text("/content/a.html"),
        "<p>A &lt;b&gt; &amp; c HOME! now<b>one</b><b>two</b></p><i>still here</i>"
    );
}

#[test]
fn a_page_depends_on_exactly_what_its_javascript_reads() {
    let site = site(RenderMode::Publish, TEMPLATE, SCRIPT);
    let request =
        RenderRequest { recording: ReadRecording::Paths, ..RenderRequest::get("/content/a.html") };
    let reads = site.render(&request).reads.dependencies();
    let is_affected = |change: &dyn Fn(&Site)| {
        let start = site.repository.snapshot().unwrap();
        change(&site);
        let end = site.repository.snapshot().unwrap();
        ChangedAspects::between_snapshots(&start, &end).unwrap().affects(&reads)
    };
    let set = |site: &Site, path: &str, name: &str, value: &str| {
        site.edit(|session| {
            let path = NodePath::new(path).unwrap();
            session.set_property(&path, name, value.into()).unwrap();
        });
    };
    let card = "/content/a/jcr:content/card";
    assert!(!is_affected(&|site| set(site, card, "unused", "y")));
    assert!(is_affected(&|site| set(site, card, "title", "y")));
    assert!(is_affected(&|site| set(site, &format!("{card}/second"), "text", "y")));
    assert!(is_affected(&|site| set(site, "/content/a/jcr:content", "jcr:title", "y")));
    assert!(!is_affected(&|site| set(site, "/content/a/b/jcr:content", "text", "y")));
    assert!(is_affected(&|site| site.script("/apps/shop/card/card.js", "use(() => 1)")));
    assert!(is_affected(&|site| site.script("/apps/shop/utils/format.js", "use(() => 1)")));
    assert!(is_affected(&|site| site.script("/apps/shop/card/utils/format.js", "use(() => 2)")));
}

#[test]
fn a_changed_script_is_run_at_the_next_request() {
    let template = "<p data-sly-use.card=\"card.js\">${card.text}</p>";
    let site = site(RenderMode::Publish, template, "use(() => ({ text: 'old' }))");
    assert!(site.text("/content/a.html").starts_with("<p>old</p>"));
    site.script("/apps/shop/card/card.js", "use(() => ({ text: 'new' }))");
    assert!(site.text("/content/a.html").starts_with("<p>new</p>"));
    // Files of client libraries are for browsers.
    site.put(
        "/apps/shop/library",
        Subtree::new("library", "cq:ClientLibraryFolder").with_child(file(
            &site.repository,
            "card.js",
            b"use(() => 1)",
            "text/javascript",
        )),
    );
    site.script(
        "/apps/shop/card/card.html",
        "<p data-sly-use.card=\"/apps/shop/library/card.js\">${card}</p>",
    );
    assert!(site.text("/content/a.html").starts_with("<p></p>"));
}

#[test]
fn variables_of_the_request_are_facts_of_the_rendering() {
    let script = "use(() => ({ selectors: request.requestPathInfo.selectorString, edit: wcmmode.isEdit(), \
                  parameter: request.getParameter('q') }))";
    let template =
        "<p data-sly-use.card=\"card.js\">${card.selectors} ${card.edit} ${card.parameter}</p>";
    let site = site(RenderMode::Publish, template, script);
    let response = site.get("/content/a.print.a4.html?q=%3Cx%3E");
    assert!(body_text(&response).starts_with("<p>print.a4 false &lt;x&gt;</p>"), "{response:?}");
    let facts = response.reads.facts;
    assert!(facts.intersects(RequestFacts::URL) && facts.intersects(RequestFacts::PARAMETERS));
    assert!(!facts.intersects(RequestFacts::TIME));
}

#[test]
fn the_clock_limits_the_age_of_a_page() {
    let template = "<p data-sly-use.card=\"card.js\">${card.year}</p>";
    let script = "use(() => ({ year: new Date().getFullYear() }))";
    let reads = site(RenderMode::Publish, template, script).get("/content/a.html").reads;
    assert!(reads.facts.intersects(RequestFacts::TIME) && !reads.is_uncacheable());
    assert!(reads.max_age.is_some());
}

#[test]
fn an_error_is_shown_to_authors_with_its_place_and_hides_the_component_from_visitors() {
    let template = "<p data-sly-use.card=\"card.js\">${card.text}</p>";
    for (script, message) in [
        (
            "use(function () {\n  return { text: missing.name };\n});",
            "/apps/shop/card/card.js:2:18: ReferenceError: missing is not defined",
        ),
        (
            "use(() => ({\n  text() {\n    throw new Error(\"late\");\n  }\n}))",
            "/apps/shop/card/card.js:3:",
        ),
        ("use(() => ({\n  text: (;\n}))", "/apps/shop/card/card.js:2:10: SyntaxError: "),
        ("use(function () {\n  for (;;) {}\n});", "the component takes more than 1000000 steps"),
        (
            "use(() => ({ get text() { for (;;) {} } }))",
            "the component takes more than 1000000 steps",
        ),
    ] {
        let response = site(RenderMode::Author, template, script).get("/content/a.html");
        let text = body_text(&response);
        assert_eq!(response.outcome, RenderOutcome::Ok);
        assert_eq!(response.failed_component_count, 1, "{text}");
        assert!(text.contains(message) && text.contains("<i>still here</i>"), "{text}");
        let response = site(RenderMode::Publish, template, script).get("/content/a.html");
        assert_eq!(response.outcome, RenderOutcome::Ok);
        assert_eq!(body_text(&response), "<i>still here</i>");
    }
}

#[test]
fn a_missing_script_is_named_to_authors_only() {
    let template = "<p data-sly-use.card=\"none.js\">${card.text}</p>";
    let text = site(RenderMode::Author, template, "").text("/content/a.html");
    assert!(text.contains("/apps/shop/card/card.html:1: there is no script `none.js`"), "{text}");
    let text = site(RenderMode::Publish, template, "").text("/content/a.html");
    assert_eq!(text, "<p></p><i>still here</i>");
}

#[test]
fn an_object_of_the_host_keeps_its_kind_on_the_way_through_a_script() {
    let template = "<div data-sly-use.card=\"card.js\"><sly data-sly-resource=\"${card.first}\"></sly>\
                    ${card.page.title}</div>";
    let script = "use(() => ({ first: resource.getChild('first'), page: currentPage.getAbsoluteParent(1) }))";
    let site = site(RenderMode::Publish, template, script);
    let text = site.text("/content/a.html");
    assert!(text.starts_with("<div><i>one</i>Home</div>"), "{text}");
}
