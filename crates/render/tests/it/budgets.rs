//! Runaway templates end, and cost their own place only.

use tympan_content::Subtree;
use tympan_render::{
    FragmentCache, FragmentCacheOptions, ReadRecording, RenderLimits, RenderMode, RenderOptions,
    RenderOutcome, RenderRequest, RenderResponse, Renderer,
};

use crate::site::{Site, body_text, component, page};

/// Draws a template of a component that stands in a page between `before` and `after`.
fn draw(limits: RenderLimits, template: &str) -> RenderResponse {
    let site = Site::with_limits(RenderMode::Author, limits);
    site.script("/apps/t/page/page.html.j2", "before {{ include(\"part\") }} after");
    site.script("/apps/t/part/part.html.j2", template);
    let mut content = page("p", "P", "t/page");
    content.child_mut("jcr:content").unwrap().put_child(component("part", "t/part"));
    site.put("/content/p", content);
    // Servers draw on threads with small stacks; the deepest drawing must fit.
    let draw = std::thread::Builder::new().stack_size(2 * 1024 * 1024);
    draw.spawn(move || site.get("/content/p.html")).unwrap().join().unwrap()
}

#[track_caller]
fn check(limits: RenderLimits, template: &str, expected: &str) {
    let response = draw(limits, template);
    let text = body_text(&response);
    assert_eq!(response.outcome, RenderOutcome::Ok);
    assert!(text.starts_with("before ") && text.ends_with(" after"), "{text}");
    assert!(text.contains(expected), "{expected} is not in {}", &text[..text.len().min(2000)]);
    assert!(response.failed_component_count > 0);
}

#[test]
fn a_component_that_includes_itself() {
    check(RenderLimits::default(), "{{ include(resource) }}", "more than 50 levels deep");
}

#[test]
fn a_component_that_includes_itself_twice() {
    let template = "{{ include(resource) }}{{ include(resource) }}";
    check(RenderLimits::default(), template, "more than 1000 components");
}

#[test]
fn deep_macros_inside_deep_includes() {
    let template = "{% macro down(n) %}{% if n > 0 %}{{ down(n - 1) }}{% else %}{{ include(resource) }}{% endif %}\
                    {% endmacro %}{{ down(8) }}";
    check(RenderLimits::default(), template, "nest deeper than");
    check(
        RenderLimits::default(),
        "{% macro down() %}{{ down() }}{% endmacro %}{{ down() }}",
        "recursion",
    );
}

#[test]
fn a_loop_that_never_ends() {
    let limits = RenderLimits { max_steps: 20_000, ..RenderLimits::default() };
    let template = "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}";
    check(limits, template, "more than 20000 template steps");
}

#[test]
fn steps_are_shared_by_all_components() {
    let limits = RenderLimits { max_steps: 20_000, ..RenderLimits::default() };
    let template = "{% for a in range(1000) %}{{ a }}{% endfor %}{{ include(resource) }}";
    check(limits, template, "more than 20000 template steps");
}

#[test]
fn output_that_never_ends() {
    let limits = RenderLimits { max_output_bytes: 10_000, ..RenderLimits::default() };
    let template = "{% for a in range(2000) %}0123456789{% endfor %}";
    check(limits, template, "larger than 10000 bytes");
}

#[test]
fn a_runaway_leaves_enough_for_the_rest_of_the_page() {
    let limits = RenderLimits {
        max_steps: 100_000,
        max_component_steps: 20_000,
        max_output_bytes: 10_000,
        ..RenderLimits::default()
    };
    let site = Site::with_limits(RenderMode::Publish, limits);
    site.script("/apps/t/page/page.html.j2", "before {{ include_children(resource) }} after");
    let endless = "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}";
    site.script("/apps/t/endless/endless.html.j2", endless);
    site.script("/apps/t/large/large.html.j2", "{% for a in range(2000) %}0123456789{% endfor %}");
    site.script("/apps/t/fine/fine.html.j2", "fine ");
    let mut content = page("p", "P", "t/page");
    for (name, kind) in
        [("a", "t/fine"), ("b", "t/endless"), ("c", "t/large"), ("d", "t/endless"), ("e", "t/fine")]
    {
        content.child_mut("jcr:content").unwrap().put_child(component(name, kind));
    }
    site.put("/content/p", content);
    let response = site.get("/content/p.html");
    assert_eq!(body_text(&response), "before fine fine  after");
    assert_eq!(response.failed_component_count, 3);
}

/// Puts a page whose components show the fragment at a path.
fn put_fragment(site: &Site, name: &str, target: &str, breadth: usize) {
    const FRAGMENT: &str = "core/wcm/components/experiencefragment/v2/experiencefragment";
    let mut content = component("jcr:content", "core/wcm/components/page/v3/page");
    for number in 0..breadth {
        let part = component(&format!("c{number}"), FRAGMENT);
        content.put_child(part.with_property("fragmentVariationPath", target));
    }
    site.put(&format!("/content/{name}"), Subtree::new(name, "cq:Page").with_child(content));
}

/// Makes a site with the scripts of experience fragments in HTL, and two fragments that name each other.
fn fragment_site(mode: RenderMode, breadth: usize) -> Site {
    let site = Site::with_limits(mode, RenderLimits::default());
    site.script(
        "/apps/core/wcm/components/page/v3/page/page.html",
        "<sly data-sly-repeat=\"${resource.children}\" data-sly-resource=\"${item.path}\"></sly>",
    );
    site.script(
        "/apps/core/wcm/components/experiencefragment/v2/experiencefragment/experiencefragment.html",
        "<sly data-sly-use.fragment=\"com.adobe.cq.wcm.core.components.models.ExperienceFragment\" \
         data-sly-resource=\"${fragment.localizedFragmentVariationPath}\"></sly>",
    );
    put_fragment(&site, "xfa", "/content/xfb", breadth);
    put_fragment(&site, "xfb", "/content/xfa", breadth);
    site
}

#[test]
fn experience_fragments_that_contain_each_other() {
    let draw = || fragment_site(RenderMode::Author, 20).get("/content/xfa.html");
    let thread = std::thread::Builder::new().stack_size(2 * 1024 * 1024);
    let response = thread.spawn(draw).unwrap().join().unwrap();
    assert_eq!(response.outcome, RenderOutcome::Ok);
    let text = body_text(&response);
    assert!(text.contains("more than 1000 components"), "{}", &text[..text.len().min(2000)]);
    assert!(text.len() < 10_000_000, "{} bytes", text.len());
}

#[test]
fn models_of_experience_fragments_that_name_many_others() {
    for mode in [RenderMode::Author, RenderMode::Publish] {
        let site = fragment_site(mode, 5);
        let response = site.get("/content/xfa.model.json");
        assert_eq!(response.outcome, RenderOutcome::Ok);
        assert_eq!(response.content_type, "application/json; charset=utf-8");
        let length = body_text(&response).len();
        assert!(length < 50_000, "{length} bytes");
        for number in 1..9 {
            put_fragment(&site, &format!("f{number}"), &format!("/content/f{}", number + 1), 6);
        }
        let response = site.get("/content/f1.model.json");
        assert_eq!(response.outcome, RenderOutcome::Error);
        assert_eq!(response.failed_component_count, 1);
        let text = body_text(&response);
        let reason = "the resource has more than 10000 components";
        assert_eq!(text.contains(reason), mode == RenderMode::Author, "{text}");
    }
}

#[test]
fn cached_fragments_count_as_components() {
    let site = Site::empty();
    site.script("/apps/t/leaf/leaf.html.j2", "leaf");
    site.edit(|session| {
        let folder = tympan_content::NodePath::new("/apps").unwrap();
        session.set_property(&folder, "cache", "always".into()).unwrap();
    });
    site.script(
        "/apps/t/list/list.html.j2",
        "<i>{% for n in range(20) %}{{ include(properties.target) }}{% endfor %}</i>",
    );
    let renderer = Renderer::new(&site.repository, RenderOptions::default())
        .with_fragments(FragmentCache::new(FragmentCacheOptions::default()));
    let get = |path: &str| {
        let request = RenderRequest { recording: ReadRecording::Paths, ..RenderRequest::get(path) };
        renderer.render(&site.repository.snapshot().unwrap(), &request)
    };
    site.put("/content/f0", component("", "t/leaf"));
    for number in 1..6 {
        let target = format!("/content/f{}", number - 1);
        site.put(
            &format!("/content/f{number}"),
            component("", "t/list").with_property("target", target.as_str()),
        );
    }
    // Each is drawn, and cached if it is complete, before the one that includes it.
    for number in 0..6 {
        let response = get(&format!("/content/f{number}.html"));
        let leaves = body_text(&response).matches("leaf").count();
        let has_failures = response.failed_component_count > 0;
        match 20_usize.pow(number) {
            all if all <= 400 => assert_eq!((leaves, has_failures), (all, false), "f{number}"),
            _ => {
                assert!(leaves < 1000 && has_failures, "f{number}: {leaves} leaves");
                let counts = response.fragment_counts;
                assert!(counts.hits > 500, "f{number}: {counts:?}");
            }
        }
    }
}
