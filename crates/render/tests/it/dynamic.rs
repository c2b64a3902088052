//! Parts for single visitors on pages for everyone, and answers that nobody else may get.

use tympan_content::Subtree;
use tympan_render::{
    FragmentCache, FragmentCacheOptions, ReadRecording, RenderMode, RenderOptions, RenderRequest,
    RenderResponse, RenderResponseBody, Renderer, RequestVisitor,
};

use crate::site::{Site, body_text, component};

const PAGE: &str = "<p>{{ page.title }}</p>{{ include_children(resource.child(\"root\")) }}";
const GREETING: &str = "<b>Hello {{ request.user or \"stranger\" }}</b>";

/// A page with a greeting in a box, whose component says `dynamic`.
fn site(dynamic: &str) -> Site {
    let site = Site::empty();
    site.script("/apps/t/page/page.html.j2", PAGE);
    site.script("/apps/t/box/box.html.j2", "<div>{{ include_children(resource) }}</div>");
    site.script("/apps/t/greeting/greeting.html.j2", GREETING);
    site.script("/apps/t/kind/kind.html.j2", "<i>{{ request.user }}</i>");
    site.edit(|session| {
        for (path, name, value) in [
            ("/apps/t/greeting", "dynamic", dynamic),
            ("/apps/t/box", "cache", "always"),
            ("/apps/t/page", "cache", "always"),
            ("/apps/t/greeting", "cache", "user"),
            ("/apps/t/kind", "sling:resourceSuperType", "t/greeting"),
        ] {
            let path = tympan_content::NodePath::new(path).unwrap();
            session.set_property(&path, name, value.into()).unwrap();
        }
    });
    let greeting = component("greeting", "t/greeting");
    let inner = component("box", "t/box").with_child(greeting);
    let root = Subtree::new("root", "nt:unstructured").with_child(inner);
    let content =
        component("jcr:content", "t/page").with_property("jcr:title", "A").with_child(root);
    site.put("/content/a", Subtree::new("a", "cq:Page").with_child(content));
    site
}

const PART: &str = "/content/a/_jcr_content/root/box/greeting.html";

fn header<'a>(drawn: &'a RenderResponse, name: &str) -> Option<&'a str> {
    drawn.headers.iter().find(|(key, _)| *key == name).map(|(_, value)| value.as_str())
}

fn ask<'a>(path: &'a str, user: &'a str, fills_includes: bool) -> RenderRequest<'a> {
    RenderRequest {
        visitor: RequestVisitor { user, ..RequestVisitor::default() },
        supports_includes: fills_includes,
        recording: ReadRecording::Paths,
        ..RenderRequest::get(path)
    }
}

#[test]
fn a_dynamic_component_is_left_to_the_cache_in_front() {
    let site = site("include");
    let tag = format!("<p>A</p><div><!--#include virtual=\"{PART}\" --></div>");
    // Also when the components around it are kept.
    let fragments = Renderer::new(&site.repository, RenderOptions::default())
        .with_fragments(FragmentCache::new(FragmentCacheOptions::default()));
    let snapshot = site.repository.snapshot().unwrap();
    for user in ["anna", "ben", "anna"] {
        for drawn in [
            site.render(&ask("/content/a.html", user, true)),
            fragments.render(&snapshot, &ask("/content/a.html", user, true)),
        ] {
            assert_eq!(body_text(&drawn), tag);
            assert_eq!(header(&drawn, "x-tympan-include"), Some(PART));
            assert_eq!(header(&drawn, "cache-control"), None, "the page is everybody's");
        }
        let part = fragments.render(&snapshot, &ask(PART, user, true));
        assert_eq!(body_text(&part), format!("<b>Hello {user}</b>"));
        assert_eq!(header(&part, "cache-control"), Some("private, no-cache"));
        assert_eq!(header(&part, "x-tympan-include"), None);
    }
    let stranger = fragments.render(&snapshot, &ask(PART, "", true));
    assert_eq!(body_text(&stranger), "<b>Hello stranger</b>");
    assert_eq!(header(&stranger, "cache-control"), Some("private, no-cache"));
}

#[test]
fn without_a_cache_that_fills_includes_pages_are_rendered_whole_and_private() {
    let site = site("include");
    let drawn = site.render(&ask("/content/a.html", "anna", false));
    assert_eq!(body_text(&drawn), "<p>A</p><div><b>Hello anna</b></div>");
    assert_eq!(header(&drawn, "cache-control"), Some("private, no-cache"));
    assert_eq!(header(&drawn, "dispatcher"), Some("no-cache"));
}

#[test]
fn a_script_fetches_parts_once_on_a_page() {
    let site = site("ajax");
    site.put("/content/a/jcr:content/root/two", component("two", "t/kind"));
    let drawn = site.render(&ask("/content/a.html", "anna", false));
    let text = body_text(&drawn);
    let place = |path: &str| format!("<div data-tympan-include=\"{path}\"></div>");
    let (before, after) = text.split_once("<script src=\"").unwrap();
    assert_eq!(before, format!("<p>A</p><div>{}", place(PART)));
    let (script, after) = after.split_once("\" defer></script>").unwrap();
    assert_eq!(after, format!("</div>{}", place("/content/a/_jcr_content/root/two.html")));
    assert_eq!(header(&drawn, "cache-control"), None);
    let script = site.get(script);
    assert!(header(&script, "cache-control").unwrap().contains("immutable"));
    let RenderResponseBody::Bytes(script) = script.body else { panic!("{script:?}") };
    assert!(String::from_utf8_lossy(&script).contains("data-tympan-include"));
}

#[test]
fn authors_see_everything_in_its_place() {
    for dynamic in ["include", "ajax"] {
        let site = site(dynamic);
        let author = Renderer::new(
            &site.repository,
            RenderOptions { mode: RenderMode::Author, ..RenderOptions::default() },
        );
        let snapshot = site.repository.snapshot().unwrap();
        let drawn = author.render(&snapshot, &ask("/content/a.html", "anna", true));
        assert_eq!(body_text(&drawn), "<p>A</p><div><b>Hello anna</b></div>", "{dynamic}");
    }
}

#[test]
fn what_authors_type_is_no_include() {
    let site = site("include");
    let tag = format!("<!--#include virtual=\"{PART}\" -->");
    site.script("/apps/t/text/text.html.j2", "{{ properties.text|richtext }}{{ properties.text }}");
    let text = component("text", "t/text").with_property("text", tag.as_str());
    site.put("/content/a/jcr:content/root/text", text);
    let drawn = body_text(&site.render(&ask("/content/a.html", "", true)));
    assert_eq!(drawn.matches("<!--#include").count(), 1, "{drawn}");
}

#[test]
fn an_address_cannot_end_the_comment() {
    let site = site("include");
    let greeting = component("x-->y", "t/greeting");
    site.put("/content/a/jcr:content/root/x-->y", greeting);
    let drawn = site.render(&ask("/content/a.html", "", true));
    let text = body_text(&drawn);
    assert!(text.contains("/root/x%2D%2D%3Ey.html\" -->"), "{text}");
    let addresses: Vec<_> = header(&drawn, "x-tympan-include").unwrap().split(' ').collect();
    assert_eq!(addresses.len(), 2);
    let part = site.render(&ask(addresses[1], "ben", true));
    assert_eq!(body_text(&part), "<b>Hello ben</b>");
}

#[test]
fn the_component_around_can_leave_others_to_the_visitor() {
    let site = site("");
    site.edit(|session| {
        let around = tympan_content::NodePath::new("/apps/t/box").unwrap();
        let said = crate::site::texts(&["/apps/t/greeting", "t/none=ajax"]);
        session.set_property(&around, "dynamicChildren", said).unwrap();
    });
    // The same component elsewhere on the page is drawn in its place.
    site.put("/content/a/jcr:content/root/top", component("top", "t/greeting"));
    let tag = format!("<div><!--#include virtual=\"{PART}\" --></div>");
    let fragments = Renderer::new(&site.repository, RenderOptions::default())
        .with_fragments(FragmentCache::new(FragmentCacheOptions::default()));
    let snapshot = site.repository.snapshot().unwrap();
    for user in ["anna", "ben", "anna"] {
        for drawn in [
            site.render(&ask("/content/a.html", user, true)),
            fragments.render(&snapshot, &ask("/content/a.html", user, true)),
        ] {
            assert_eq!(body_text(&drawn), format!("<p>A</p>{tag}<b>Hello {user}</b>"));
            assert_eq!(header(&drawn, "x-tympan-include"), Some(PART), "also out of the cache");
        }
    }
    // What the policy no longer says is drawn in its place again, also where the box was kept.
    site.edit(|session| {
        let around = tympan_content::NodePath::new("/apps/t/box").unwrap();
        session.remove_property(&around, "dynamicChildren").unwrap();
    });
    let snapshot = site.repository.snapshot().unwrap();
    let drawn = body_text(&fragments.render(&snapshot, &ask("/content/a.html", "anna", true)));
    assert_eq!(drawn, "<p>A</p><div><b>Hello anna</b></div><b>Hello anna</b>");
}

#[test]
fn caches_are_informed_where_it_matters_who_fills_includes() {
    let site = site("include");
    for fills_includes in [true, false] {
        let drawn = site.render(&ask("/content/a.html", "", fills_includes));
        assert_eq!(header(&drawn, "vary"), Some("surrogate-capability"), "{fills_includes}");
    }
    let part = site.render(&ask(PART, "", true));
    assert_eq!(header(&part, "vary"), None, "a part is the same for both");
    let site = self::site("ajax");
    assert_eq!(header(&site.render(&ask("/content/a.html", "", true)), "vary"), None);
}
