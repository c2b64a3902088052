//! The fragment cache: what is kept, for whom, and until when.

use std::sync::Arc;

use tympan_content::{NodePath, Subtree};
use tympan_render::{
    FragmentCache, FragmentCacheOptions, FragmentCacheOverride, FragmentInvalidationMode,
    FragmentLookupCounts, ReadRecording, RenderMode, RenderOptions, RenderOutcome, RenderRequest,
    RenderResponse, Renderer, RequestVisitor, UncachedReason,
};

use crate::site::{Site, body_text, component, page};

/// A site whose pages are drawn with a cache.
struct Kept {
    site: Site,
    renderer: Renderer,
    fragments: Arc<FragmentCache>,
}

const HOME: &str = "/content/site/en.html";

impl Kept {
    /// Makes the sample site; `says` is what all components say unless they say something themselves.
    fn new(says: &str, options: FragmentCacheOptions) -> Self {
        let site = Site::sample(RenderMode::Publish);
        let fragments = FragmentCache::new(options);
        let renderer = Renderer::new(&site.repository, RenderOptions::default());
        let renderer = renderer.with_fragments(Arc::clone(&fragments));
        let kept = Self { site, renderer, fragments };
        kept.say("/apps", says);
        kept
    }

    fn always() -> Self {
        Self::new("always", FragmentCacheOptions::default())
    }

    fn set(&self, path: &str, name: &str, value: &str) {
        self.site.edit(|session| {
            session.set_property(&NodePath::new(path).unwrap(), name, value.into()).unwrap();
        });
    }

    fn say(&self, folder: &str, text: &str) {
        self.set(folder, "cache", text);
    }

    fn ask(&self, request: RenderRequest<'_>) -> RenderResponse {
        let request = RenderRequest { recording: ReadRecording::Paths, ..request };
        self.renderer.render(&self.site.repository.snapshot().unwrap(), &request)
    }

    fn get(&self, url: &str) -> RenderResponse {
        let (path, query) = url.split_once('?').unwrap_or((url, ""));
        self.ask(RenderRequest { query, ..RenderRequest::get(path) })
    }

    /// Asks twice, compares with a drawing without cache, and returns the counts of both.
    #[track_caller]
    fn twice(&self, url: &str) -> [FragmentLookupCounts; 2] {
        let fresh = self.site.text(url);
        [(); 2].map(|()| {
            let drawn = self.get(url);
            assert_eq!(body_text(&drawn), fresh, "{url}");
            drawn.fragment_counts
        })
    }

    fn uncached(&self) -> Vec<UncachedReason> {
        self.fragments.report(0).uncached_counts.into_iter().map(|(why, _)| why).collect()
    }
}

fn counts(hits: u32, misses: u32, never: u32) -> FragmentLookupCounts {
    FragmentLookupCounts { hits, misses, uncacheable: never }
}

#[test]
fn a_page_is_assembled_from_cached_fragments() {
    let kept = Kept::always();
    // The page and its two components.
    assert_eq!(kept.twice(HOME), [counts(0, 3, 0), counts(3, 0, 0)]);
    let (first, second) = (kept.site.get(HOME), kept.get(HOME));
    assert!(
        second.reads.read_count < first.reads.read_count,
        "nothing of a component is read to find it"
    );
    assert_eq!(second.timing.rows.len(), 0, "no template ran");
    let report = kept.fragments.report(10);
    assert_eq!((report.fragment_count, report.stored, report.hits), (3, 3, 6));
    assert_eq!(report.bytes, report.components.iter().map(|unit| unit.bytes).sum::<usize>());
}

#[test]
fn components_that_say_nothing_are_rendered_each_time() {
    let kept = Kept::new("", FragmentCacheOptions::default());
    assert_eq!(kept.twice(HOME), [counts(0, 0, 3); 2]);
    kept.say("/apps/test/text", "always");
    assert_eq!(kept.twice(HOME), [counts(0, 2, 1), counts(2, 0, 1)]);
    kept.say("/apps/test/text", "alwyas");
    assert_eq!(kept.twice(HOME), [counts(0, 0, 3); 2]);
    assert_eq!(kept.uncached(), [UncachedReason::Never, UncachedReason::Malformed]);
}

#[test]
fn a_node_that_gets_a_cached_type_is_cached_from_then_on() {
    let kept = Kept::new("", FragmentCacheOptions::default());
    kept.site.script("/apps/test/other/other.html.j2", "<b>{{ properties.text }}</b>");
    kept.say("/apps/test/other", "always");
    assert_eq!(kept.twice(HOME), [counts(0, 0, 3); 2]);
    let one = "/content/site/en/jcr:content/root/one";
    kept.set(one, "sling:resourceType", "test/other");
    // What was known of the place was about the type before.
    assert_eq!(kept.twice(HOME), [counts(0, 0, 3), counts(0, 1, 2)]);
    assert_eq!(kept.twice(HOME), [counts(1, 0, 2); 2]);
    // What is kept goes by all that was read for it, the type included.
    kept.set(one, "text", "Other");
    assert_eq!(kept.twice(HOME), [counts(0, 1, 2), counts(1, 0, 2)]);
    kept.set(one, "sling:resourceType", "test/text");
    assert_eq!(kept.twice(HOME), [counts(0, 0, 3); 2]);
}

#[test]
fn an_uncached_fragment_runs_inside_a_cached_one() {
    let kept = Kept::always();
    kept.say("/apps/test/text", "never");
    assert_eq!(kept.twice(HOME), [counts(0, 1, 2), counts(1, 0, 2)]);
}

#[test]
fn what_a_part_uses_of_its_request_is_not_what_the_page_around_it_does() {
    let kept = Kept::always();
    kept.site.script("/apps/test/text/text.html.j2", "<i>{{ request.user }}</i>");
    kept.say("/apps/test/text", "never");
    let ask = |user| {
        let visitor = RequestVisitor { user, ..RequestVisitor::default() };
        let drawn = kept.ask(RenderRequest { visitor, ..RenderRequest::get(HOME) });
        let body = body_text(&drawn);
        assert!(body.contains(&format!("<i>{user}</i>")), "{user}: {body}");
        let is_private = |(_, value): &(&str, String)| value.starts_with("private");
        assert!(drawn.headers.iter().any(is_private), "{user}: the answer is one visitor's");
        drawn.fragment_counts
    };
    assert_eq!(
        [ask("ann"), ask("ben"), ask("ann")],
        [(0, 1), (1, 0), (1, 0)].map(|(hits, misses)| counts(hits, misses, 2))
    );
    // A part that is kept is kept for each, and the page around it for all.
    kept.say("/apps/test/text", "always");
    ask("ann");
    ask("ann");
    assert_eq!(ask("ben"), counts(1, 2, 0));
    assert_eq!([ask("ann"), ask("ben")], [counts(3, 0, 0); 2]);
}

#[test]
fn a_change_removes_what_was_rendered_from_it() {
    let kept = Kept::always();
    kept.twice(HOME);
    kept.twice("/content/site/en/apple.html");
    kept.set("/content/site/en/jcr:content/root/one", "text", "Another");
    // The page around it is kept, and has a hole in its place.
    assert_eq!(kept.twice(HOME)[0], counts(2, 1, 0));
    assert_eq!(kept.twice("/content/site/en/apple.html")[0], counts(1, 0, 0));
    kept.set("/content/site/en/jcr:content/root/one", "unseen", "x");
    assert_eq!(kept.twice(HOME)[0], counts(3, 0, 0));
    kept.site.script("/apps/test/text/text.html.j2", "<q>{{ properties.text }}</q>");
    assert_eq!(kept.twice(HOME)[0].hits, 0);
    // Another type at the same place says something else.
    kept.site.script("/apps/test/other/other.html.j2", "other");
    kept.say("/apps/test/other", "never");
    kept.twice(HOME);
    kept.set("/content/site/en/jcr:content/root/one", "sling:resourceType", "test/other");
    assert_eq!(kept.twice(HOME), [counts(1, 1, 1), counts(2, 0, 1)]);
}

#[test]
fn what_a_rendering_used_of_its_request_tells_it_apart() {
    let kept = Kept::always();
    kept.site.script("/apps/test/shared/shared.html.j2", "{% for one in nav(\"/content/site/en\") %}{{ one.title }}{{ one.current }}{% endfor %}{{ request.parameters.q }}");
    kept.site.put("/content/site/shared", component("shared", "test/shared"));
    kept.site.script(
        "/apps/test/page/page.html.j2",
        "<title>{{ page.title }}</title>{{ include(\"/content/site/shared\") }}",
    );
    for url in [
        "/content/site/en/apple.html",
        "/content/site/en/zebra.html",
        "/content/site/en/apple.html?q=1",
        "/content/site/en/apple.html?q=2",
    ] {
        kept.twice(url);
        assert_eq!(kept.twice(url)[0], counts(2, 0, 0), "{url}");
    }
    kept.site.script("/apps/test/shared/shared.html.j2", "the same for all");
    kept.twice("/content/site/en/apple.html");
    assert_eq!(kept.twice("/content/site/en/zebra.html")[0], counts(1, 1, 0));
}

#[test]
fn users_who_see_the_same_share_what_does_not_use_who_they_are() {
    let kept = Kept::always();
    kept.twice(HOME);
    let ask = |user| {
        let visitor = RequestVisitor { user, ..RequestVisitor::default() };
        let drawn = kept.ask(RenderRequest { visitor, ..RenderRequest::get(HOME) });
        (drawn.fragment_counts, body_text(&drawn))
    };
    assert_eq!([ask("ann").0, ask("ben").0], [counts(3, 0, 0); 2]);
    let script = "<q>{{ properties.text }} for {{ request.user }}.</q>";
    kept.site.script("/apps/test/text/text.html.j2", script);
    for user in ["ann", "ben", "", "ann", "ben", ""] {
        let other = if user == "ann" { "for ben." } else { "for ann." };
        let (_, text) = ask(user);
        assert!(text.contains(&format!("for {user}.")) && !text.contains(other), "{user}: {text}");
    }
    assert_eq!([ask("ann").0, ask("ben").0, ask("").0], [counts(3, 0, 0); 3]);
    assert!(ask("cem").0.misses > 0);
}

#[test]
fn words_forbid_and_vary() {
    let kept = Kept::new("uri;no-params=(fresh)", FragmentCacheOptions::default());
    kept.twice(HOME);
    assert_eq!(kept.get("/content/site/en.html?x=1").fragment_counts, counts(3, 0, 0));
    assert_eq!(kept.get("/content/site/en.html?fresh=1").fragment_counts, counts(0, 0, 3));
    assert_eq!(kept.uncached(), [UncachedReason::Parameter]);
    kept.say("/apps", "params");
    kept.twice(HOME);
    assert_eq!(kept.get("/content/site/en.html?x=1").fragment_counts, counts(0, 3, 0));
}

#[test]
fn failed_and_modified_fragments_are_not_cached() {
    let kept = Kept::always();
    kept.site.put("/content/site/en/jcr:content/root/bad", component("bad", "test/broken"));
    kept.twice(HOME);
    assert_eq!(
        kept.twice(HOME)[1],
        counts(2, 2, 0),
        "neither the page nor its broken part is kept"
    );
    assert_eq!(kept.uncached(), [UncachedReason::Failed]);
    let kept = Kept::always();
    kept.site.script(
        "/apps/test/page/page.html.j2",
        "{{ include_children(resource.child(\"root\"))|upper }}",
    );
    kept.twice(HOME);
    assert_eq!(kept.twice(HOME)[1], counts(2, 1, 0));
    kept.site.script(
        "/apps/test/page/page.html.j2",
        "{% set all = include_children(resource.child(\"root\")) %}{{ all }}{{ all }}",
    );
    assert_eq!(kept.twice(HOME)[1].misses, 1);
    assert_eq!(kept.uncached(), [UncachedReason::Transformed]);
}

#[test]
fn editors_and_who_asks_for_it_draw_anew() {
    let kept = Kept::always();
    kept.twice(HOME);
    let ask = |flex| {
        kept.ask(RenderRequest { cache_override: flex, ..RenderRequest::get(HOME) }).fragment_counts
    };
    assert_eq!(ask(FragmentCacheOverride::NoCache), counts(0, 0, 3));
    assert_eq!(ask(FragmentCacheOverride::None), counts(3, 0, 0));
    assert_eq!(kept.fragments.report(0).stored, 3);
    // Who asks for it has everything drawn again, and kept.
    assert_eq!(ask(FragmentCacheOverride::Recompile), counts(0, 3, 0));
    assert_eq!(kept.fragments.report(0).stored, 6);
    assert_eq!(ask(FragmentCacheOverride::None), counts(3, 0, 0));
    assert_eq!(kept.fragments.report(0).fragment_count, 3);
    let edit = RenderRequest { is_edit_mode: true, ..RenderRequest::get(HOME) };
    assert_eq!(kept.ask(edit).fragment_counts, FragmentLookupCounts::default());
}

#[test]
fn memory_is_bounded_and_its_shortage_is_reported() {
    let small = FragmentCacheOptions {
        max_bytes: 12_000,
        avg_bytes: 9_000,
        ..FragmentCacheOptions::default()
    };
    let kept = Kept::new("always", small);
    for number in 0..40 {
        let path = format!("/content/site/en/many{number}");
        kept.site.put(&path, page("many", &"long title ".repeat(20), "test/page"));
    }
    let draw_all = |renderer: &Renderer, fragments: &FragmentCache| {
        let snapshot = kept.site.repository.snapshot().unwrap();
        for number in 0..40 {
            let url = format!("/content/site/en/many{number}.html");
            let request =
                RenderRequest { recording: ReadRecording::Paths, ..RenderRequest::get(&url) };
            assert_eq!(renderer.render(&snapshot, &request).outcome, RenderOutcome::Ok);
        }
        fragments.report(0)
    };
    for round in 0..40 {
        let report = draw_all(&kept.renderer, &kept.fragments);
        assert!(report.bytes <= 12_000, "{round}: {report:?}");
    }
    let report = kept.fragments.report(0);
    // What is named is enough, and not much more than that.
    let max_bytes = report.working_set_bytes + report.working_set_bytes / 4;
    let fitting =
        FragmentCache::new(FragmentCacheOptions { max_bytes, ..FragmentCacheOptions::default() });
    let renderer = Renderer::new(&kept.site.repository, RenderOptions::default());
    let renderer = renderer.with_fragments(Arc::clone(&fitting));
    draw_all(&renderer, &fitting);
    let fits = draw_all(&renderer, &fitting);
    assert_eq!((fits.ghost_hits, fits.evicted), (0, 0), "{fits:?}");
    assert!(report.working_set_bytes <= 2 * fits.bytes, "{report:?} {fits:?}");
    assert!(report.evicted > 100 && report.ghost_hits > 100, "{report:?}");
    assert!(report.working_set_bytes > 12_000, "{report:?}");
    let fault = report.operator_warning().unwrap();
    assert!(fault.contains("max_bytes = \""), "{fault}");
    assert_eq!(Kept::always().fragments.report(0).operator_warning(), None);
    let tiny = FragmentCacheOptions { max_entry_bytes: 10, ..FragmentCacheOptions::default() };
    let kept = Kept::new("always", tiny);
    kept.twice(HOME);
    assert_eq!(
        (kept.fragments.report(0).fragment_count, kept.uncached()),
        (0, vec![UncachedReason::TooLarge])
    );
}

#[test]
fn a_publication_may_remove_everything_or_buckets() {
    let full = FragmentCacheOptions {
        invalidation: FragmentInvalidationMode::Full,
        ..FragmentCacheOptions::default()
    };
    let kept = Kept::new("always", full);
    kept.twice(HOME);
    kept.set("/content/site/en/zebra/jcr:content", "unseen", "1");
    assert_eq!(kept.twice(HOME)[0], counts(0, 3, 0));
    let buckets = FragmentInvalidationMode::Buckets(
        vec!["/apps".to_owned()],
        vec![vec!["/content/site/en/zebra".to_owned()], vec!["/content/site/en/apple".to_owned()]],
    );
    let kept = Kept::new(
        "always",
        FragmentCacheOptions { invalidation: buckets, ..FragmentCacheOptions::default() },
    );
    let (zebra, apple) = ("/content/site/en/zebra.html", "/content/site/en/apple.html");
    for url in [HOME, zebra, apple] {
        kept.twice(url);
    }
    kept.set("/content/site/en/zebra/jcr:content", "unseen", "1");
    assert_eq!(kept.get(zebra).fragment_counts, counts(0, 1, 0));
    assert_eq!(kept.get(apple).fragment_counts, counts(1, 0, 0));
    assert_eq!(kept.get(HOME).fragment_counts, counts(3, 0, 0));
    kept.set("/content/site/en/jcr:content", "unseen", "1");
    assert_eq!(kept.get(HOME).fragment_counts, counts(0, 3, 0));
    assert_eq!(kept.get(apple).fragment_counts, counts(1, 0, 0));
    kept.say("/apps/test/text", "always");
    assert_eq!(kept.get(apple).fragment_counts, counts(0, 1, 0));
}

#[test]
fn one_request_renders_what_many_ask_for() {
    let kept = Kept::always();
    kept.site.script("/apps/test/page/page.html.j2", "{{ sleep_ms(100) }}slow");
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| body_text(&kept.get(HOME)))).collect();
        for thread in threads {
            assert_eq!(thread.join().unwrap(), "slow");
        }
    });
    let report = kept.fragments.report(0);
    assert_eq!((report.misses, report.stored, report.hits), (1, 1, 7));
}

#[test]
fn pages_that_share_a_part_have_it_rendered_once() {
    let kept = Kept::always();
    kept.site.script("/apps/test/shared/shared.html.j2", "{{ sleep_ms(100) }}slow");
    kept.site.put("/content/site/shared", component("shared", "test/shared"));
    kept.site.script(
        "/apps/test/page/page.html.j2",
        "{{ page.title }} {{ include(\"/content/site/shared\") }}",
    );
    let urls = ["en", "en/apple", "en/zebra", "en/zebra/stripe", "en/secret"];
    std::thread::scope(|scope| {
        let kept = &kept;
        let threads = urls.map(|name| {
            scope.spawn(move || body_text(&kept.get(&format!("/content/site/{name}.html"))))
        });
        for thread in threads {
            assert!(thread.join().unwrap().ends_with(" slow"));
        }
    });
    let report = kept.fragments.report(0);
    assert_eq!((report.misses, report.stored, report.hits), (6, 6, 4));
}

#[test]
fn an_older_state_is_rendered_for_itself() {
    let kept = Kept::always();
    let older = kept.site.repository.snapshot().unwrap();
    kept.twice(HOME);
    kept.set("/content/site/en/jcr:content/root/one", "text", "Newer");
    kept.twice(HOME);
    let request = RenderRequest { recording: ReadRecording::Paths, ..RenderRequest::get(HOME) };
    let drawn = kept.renderer.render(&older, &request);
    assert!(body_text(&drawn).contains("First"), "{}", body_text(&drawn));
    assert_eq!(drawn.fragment_counts, FragmentLookupCounts::default());
    assert_eq!(kept.twice(HOME)[0], counts(3, 0, 0));
}

#[test]
fn an_older_state_that_nobody_drew_yet_takes_the_cache_not_back() {
    let kept = Kept::always();
    kept.twice(HOME);
    let text = "/content/site/en/jcr:content/root/one";
    kept.set(text, "text", "Between");
    let between = kept.site.repository.snapshot().unwrap();
    kept.set(text, "text", "Newest");
    kept.twice(HOME);
    let request = RenderRequest { recording: ReadRecording::Paths, ..RenderRequest::get(HOME) };
    let drawn = kept.renderer.render(&between, &request);
    assert!(body_text(&drawn).contains("Between"), "{}", body_text(&drawn));
    assert_eq!(drawn.fragment_counts, FragmentLookupCounts::default());
    assert_eq!(kept.twice(HOME)[0], counts(3, 0, 0), "the newest state has its fragments still");
}

#[test]
fn a_template_sees_what_it_includes_without_marks() {
    for template in [
        "{% set one = include(\"root/one\") %}{{ one|length }}",
        "{% if include(\"root/none\", type=\"test/nothing\")|trim %}yes{% else %}no{% endif %}",
        "<script>const text = {{ include(\"root/one\") }};</script>{{ include(\"root/one\") }}",
        "<a title=\"{{ include(\"root/one\") }}\">x</a>",
        "{% set all %}{{ include(\"root/one\") }}{% endset %}{{ all|length }}",
        "{{ include(\"root/one\") or \"nothing\" }}{{ include(\"root/none\", type=\"test/nothing\") or \"nothing\" }}",
        "{{ \"(\" ~ include(\"root/one\") ~ \")\" }}{{ include(\"root/one\")[:9] }}",
    ] {
        let kept = Kept::always();
        kept.site.script("/apps/test/nothing/nothing.html.j2", "");
        kept.site.script("/apps/test/page/page.html.j2", template);
        kept.twice(HOME);
        assert_eq!(kept.uncached(), [UncachedReason::Transformed], "{template}");
        assert_eq!(kept.twice(HOME)[1].misses, 1, "{template}");
    }
    let kept = Kept::always();
    kept.site.script(
        "/apps/test/page/page.html.j2",
        "<h1>{{- include ( resource.child(\"root/one\"), type=\"test/text\" ) -}}</h1>{{ include(\"root/one\") }}",
    );
    assert_eq!(kept.twice(HOME)[1].misses, 0);
}

/// Draws at an address, twice, and compares with a drawing without cache.
#[track_caller]
fn at(kept: &Kept, address: &str) -> (String, FragmentLookupCounts) {
    let (scheme, rest) = address.split_once("://").unwrap();
    let (host, path) = rest.split_at(rest.find('/').unwrap());
    let request = RenderRequest { scheme, host, ..RenderRequest::get(path) };
    let fresh = body_text(&kept.site.render(&request));
    let drawn = kept.ask(request);
    assert_eq!(body_text(&drawn), fresh, "{address}");
    (fresh, drawn.fragment_counts)
}

#[test]
fn mapped_links_are_cached_for_each_host() {
    let kept = Kept::always();
    kept.site.script(
        "/apps/test/text/text.html.j2",
        "<a href=\"{{ link(\"/content/site/en/apple\") }}\">x</a>",
    );
    let (plain, _) = at(&kept, "http://one.example/content/site/en.html");
    assert!(plain.contains("\"/content/site/en/apple.html\""), "{plain}");
    let (_, counts_of) = at(&kept, "http://two.example/content/site/en.html");
    assert_eq!(counts_of, counts(3, 0, 0), "without mappings all hosts share");
    let to = Subtree::new("one.example.80", "sling:Mapping")
        .with_property("sling:internalRedirect", "/content/site");
    let map = Subtree::new("map", "sling:Folder")
        .with_child(Subtree::new("http", "sling:Mapping").with_child(to));
    kept.site.put("/etc/map", map);
    for _ in 0..2 {
        let (here, _) = at(&kept, "http://one.example/en.html");
        let (there, _) = at(&kept, "http://two.example/content/site/en.html");
        let (safe, _) = at(&kept, "https://two.example/content/site/en.html");
        assert!(here.contains("\"/en/apple.html\""), "{here}");
        assert!(there.contains("\"http://one.example/en/apple.html\""), "{there}");
        assert_eq!(there, safe);
    }
    let (_, last) = at(&kept, "http://one.example/en.html");
    assert_eq!(last, counts(3, 0, 0));
    kept.set("/etc/map/http/one.example.80", "sling:internalRedirect", "/content/site/en");
    let (moved, _) = at(&kept, "http://two.example/content/site/en.html");
    assert!(moved.contains("\"http://one.example/apple.html\""), "{moved}");
}

#[test]
fn fragments_of_error_pages_are_cached_for_each_error() {
    let kept = Kept::always();
    kept.site.script("/apps/test/shared/shared.html.j2", "[{{ error.status }}]");
    kept.site.put("/content/site/shared", component("shared", "test/shared"));
    let page = "{{ include(\"/content/site/shared\") }}";
    kept.site.script("/apps/test/page/page.html.j2", page);
    kept.site.script("/apps/sling/servlet/errorhandler/404.html.j2", page);
    for (url, text) in [(HOME, "[]"), ("/content/site/en/none.html", "[404]"), (HOME, "[]")] {
        assert_eq!(body_text(&kept.get(url)), text, "{url}");
        kept.twice(url);
    }
}
