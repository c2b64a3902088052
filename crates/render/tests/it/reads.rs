//! What a drawing read.

use tympan_content::NodePath;
use tympan_render::{
    DependencySet, PathAspects, ReadRecording, RenderMode, RenderRequest, RenderResponse,
    RequestFacts,
};

use crate::site::Site;

fn drawn(site: &Site, path: &str) -> RenderResponse {
    site.render(&RenderRequest { recording: ReadRecording::Paths, ..RenderRequest::get(path) })
}

fn reads(site: &Site, path: &str) -> DependencySet {
    drawn(site, path).reads.dependencies()
}

fn of(recorded: &DependencySet, path: &str) -> String {
    format!("{:?}", recorded.node_aspects(&NodePath::new(path).unwrap()))
}

#[track_caller]
fn check(recorded: &DependencySet, path: &str, aspect: &str) {
    let noted = of(recorded, path);
    assert!(noted.split('+').any(|one| one == aspect), "{aspect} of {path} is not in `{noted}`");
}

/// Checks that an aspect was read of nothing at all.
#[track_caller]
fn check_nowhere(recorded: &DependencySet, aspect: &str) {
    let all = format!("{recorded:?}");
    assert!(!all.contains(aspect), "{aspect} is in {all}");
}

#[test]
fn a_page_records_nodes_listings_and_gaps() {
    let site = Site::sample(RenderMode::Publish);
    let recorded = reads(&site, "/content/site/en.html");
    check(&recorded, "/content/site/en", "head");
    check(&recorded, "/content/site/en/jcr:content", "some-properties");
    check(&recorded, "/content/site/en/jcr:content/root", "children");
    check(&recorded, "/content/site/en/jcr:content/root/one", "some-properties");
    check(&recorded, "/content/site/en.html", "existence");
    check(&recorded, "/apps/test/page", "scripts");
    check(&recorded, "/libs/test/text", "scripts");
    assert_eq!(of(&recorded, "/content/site/en/zebra"), "");
    check_nowhere(&recorded, "date");
}

#[test]
fn nothing_is_recorded_unless_asked_for() {
    let site = Site::sample(RenderMode::Publish);
    let recorded = reads(&site, "/content/site/en.html");
    let counted = site.get("/content/site/en.html").reads;
    assert!(counted.dependencies().is_empty() && counted.read_count > 5 && !recorded.is_empty());
}

#[test]
fn lists_and_navigations_depend_on_what_they_show() {
    let site = Site::sample(RenderMode::Publish);
    site.draw("{{ pages(\"/content/site/en\", order=\"title\")|length }}");
    check(&reads(&site, "/content/site/en.html"), "/content/site/en", "heads-below");
    check_nowhere(&reads(&site, "/content/site/en.html"), "dates-below");
    site.draw("{{ pages(\"/content/site/en\")|length }}");
    check(&reads(&site, "/content/site/en.html"), "/content/site/en", "dates-below");
    site.draw("{{ nav(\"/content/site/en\")|length }}");
    check(&reads(&site, "/content/site/en.html"), "/content/site/en", "child-heads");
    site.draw("{{ page.modified }}");
    check(&reads(&site, "/content/site/en.html"), "/content/site/en", "date");
}

#[test]
fn children_count_for_themselves_when_they_are_reached() {
    let site = Site::sample(RenderMode::Publish);
    let root = "/content/site/en/jcr:content/root";
    let names = ["one", "config", "two"].map(|name| format!("{root}/{name}"));
    for (template, reached) in [
        ("{{ resource.child(\"root\").children|length }}", 0),
        ("{% for one in resource.child(\"root\").children[:2] %}{{ one.name }}{% endfor %}", 2),
        ("{% for one in resource.child(\"root\").children %}{{ one.path }}{% endfor %}", 3),
        ("{{ resource.child(\"root\").children[0].name }}", 1),
    ] {
        site.draw(template);
        let recorded = reads(&site, "/content/site/en.html");
        check(&recorded, root, "children");
        for (at, child) in names.iter().enumerate() {
            if at < reached {
                check(&recorded, child, "existence");
                check(&recorded, child, "some-properties");
            } else {
                assert_eq!(of(&recorded, child), "", "{template}");
            }
        }
    }
    // What is asked of a child is noted besides.
    site.draw("{{ resource.child(\"root\").children[2].properties.text }}");
    let [one, _, two] = &names;
    let recorded = reads(&site, "/content/site/en.html");
    assert_eq!(of(&recorded, one), "");
    let read = recorded.node_aspects(&NodePath::new(two).unwrap());
    assert!(read.contains(PathAspects::property("text")));
}

#[test]
fn what_a_list_reads_is_not_noted_and_what_follows_is() {
    let site = Site::sample(RenderMode::Publish);
    site.draw("{{ pages(\"/content/site/en\", order=\"date\")|length }}");
    let recorded = reads(&site, "/content/site/en.html");
    assert_eq!(of(&recorded, "/content/site/en/apple/jcr:content"), "");
    site.draw("{% for one in pages(\"/content/site/en\", order=\"date\") %}{{ one.title }}{{ one.tags }}{% endfor %}");
    let recorded = reads(&site, "/content/site/en.html");
    check(&recorded, "/content/site/en/apple", "head");
    check(&recorded, "/content/site/en/apple/jcr:content", "some-properties");
    // What visitors see of accounts is their own, also in lists.
    for root in ["/", "/home", "/home/users"] {
        site.draw(&format!("{{{{ pages(\"{root}\")|length }}}}"));
        let facts = drawn(&site, "/content/site/en.html").reads.facts;
        assert!(facts.intersects(RequestFacts::ACCOUNTS), "{root}");
    }
}

#[test]
fn scripts_that_take_in_others_depend_on_any() {
    let site = Site::sample(RenderMode::Publish);
    site.draw("{%- if true %}no{% endif %} {{ 'import' }}");
    check_nowhere(&reads(&site, "/content/site/en.html"), "any-script");
    site.script("/apps/test/case/part.j2", "part");
    site.draw("{%- include \"part.j2\" %}");
    check(&reads(&site, "/content/site/en.html"), "/apps", "any-script");
}

#[test]
fn what_a_rendering_used_of_its_request_is_reported() {
    let site = Site::sample(RenderMode::Publish);
    let facts = |template: &str| -> Vec<&str> {
        site.draw(template);
        drawn(&site, "/content/site/en.html").reads.facts.names().collect()
    };
    assert_eq!(facts("plain"), Vec::<&str>::new());
    assert_eq!(facts("{{ request.parameters.q }}"), ["parameters"]);
    assert_eq!(facts("{{ page.title }}{{ edit }}"), ["page", "edit"]);
    assert_eq!(facts("{{ request.suffix }}"), ["url"]);
    assert!(
        RequestFacts::PAGE
            .combine(RequestFacts::URL)
            .without(RequestFacts::PAGE)
            .intersects(RequestFacts::URL)
    );
}
