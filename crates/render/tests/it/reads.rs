//! What a drawing read.

use tympan_render::{Facts, Mode, Recording, RenderRequest, RenderResponse};

use crate::site::Site;

fn drawn(site: &Site, path: &str) -> RenderResponse {
    site.render(&RenderRequest { recording: Recording::Paths, ..RenderRequest::get(path) })
}

fn reads(site: &Site, path: &str) -> Vec<String> {
    let reads = drawn(site, path).reads;
    let mut lines: Vec<String> =
        reads.paths.iter().map(|(path, aspects)| format!("{path} {aspects:?}")).collect();
    lines.sort();
    lines
}

#[track_caller]
fn check(recorded: &[String], path: &str, aspect: &str) {
    let is_noted = recorded.iter().any(|line| {
        line.split_once(' ').is_some_and(|(one, aspects)| one == path && aspects.contains(aspect))
    });
    assert!(is_noted, "{aspect} of {path} is not in {recorded:#?}");
}

#[test]
fn a_page_records_nodes_listings_and_gaps() {
    let site = Site::sample(Mode::Publish);
    let recorded = reads(&site, "/content/site/en.html");
    check(&recorded, "/content/site/en", "head");
    check(&recorded, "/content/site/en/jcr:content", "some-properties");
    check(&recorded, "/content/site/en/jcr:content/root", "children");
    check(&recorded, "/content/site/en/jcr:content/root/one", "some-properties");
    check(&recorded, "/content/site/en.html", "existence");
    check(&recorded, "/apps/test/page", "scripts");
    check(&recorded, "/libs/test/text", "scripts");
    assert!(!recorded.iter().any(|line| line.contains("zebra")), "{recorded:#?}");
    assert!(!recorded.iter().any(|line| line.contains("date")), "{recorded:#?}");
}

#[test]
fn nothing_is_kept_unless_asked_for() {
    let site = Site::sample(Mode::Publish);
    let recorded = reads(&site, "/content/site/en.html");
    let counted = site.get("/content/site/en.html").reads;
    assert!(counted.paths.is_empty() && counted.count > 5 && !recorded.is_empty());
}

#[test]
fn lists_and_navigations_depend_on_what_they_show() {
    let site = Site::sample(Mode::Publish);
    site.draw("{{ pages(\"/content/site/en\", order=\"title\")|length }}");
    check(&reads(&site, "/content/site/en.html"), "/content/site/en", "heads-below");
    let by_title = reads(&site, "/content/site/en.html").join("\n");
    assert!(!by_title.contains("dates-below"), "{by_title}");
    site.draw("{{ pages(\"/content/site/en\")|length }}");
    check(&reads(&site, "/content/site/en.html"), "/content/site/en", "dates-below");
    site.draw("{{ nav(\"/content/site/en\")|length }}");
    check(&reads(&site, "/content/site/en.html"), "/content/site/en", "child-heads");
    site.draw("{{ page.modified }}");
    check(&reads(&site, "/content/site/en.html"), "/content/site/en", "date");
}

#[test]
fn scripts_that_take_in_others_depend_on_any() {
    let site = Site::sample(Mode::Publish);
    site.draw("{%- if true %}no{% endif %} {{ 'import' }}");
    let recorded = reads(&site, "/content/site/en.html").join("\n");
    assert!(!recorded.contains("any-script"), "{recorded}");
    site.script("/apps/test/case/part.j2", "part");
    site.draw("{%- include \"part.j2\" %}");
    check(&reads(&site, "/content/site/en.html"), "/apps", "any-script");
}

#[test]
fn what_a_drawing_used_of_its_request_is_told() {
    let site = Site::sample(Mode::Publish);
    let facts = |template: &str| -> Vec<&str> {
        site.draw(template);
        drawn(&site, "/content/site/en.html").reads.facts.names().collect()
    };
    assert_eq!(facts("plain"), Vec::<&str>::new());
    assert_eq!(facts("{{ request.parameters.q }}"), ["parameters"]);
    assert_eq!(facts("{{ page.title }}{{ edit }}"), ["page", "edit"]);
    assert_eq!(facts("{{ request.suffix }}"), ["url"]);
    assert!(Facts::PAGE.and(Facts::URL).without(Facts::PAGE).has(Facts::URL));
}
