//! What a drawing read.

use tympan_render::{Mode, Read, Recording, RenderRequest};

use crate::site::Site;

fn reads(site: &Site, path: &str) -> Vec<String> {
    let request = RenderRequest { recording: Recording::Paths, ..RenderRequest::get(path) };
    let reads = site.render(&request).reads;
    let mut lines: Vec<String> =
        reads.paths.iter().map(|(read, path)| format!("{read:?} {path}")).collect();
    lines.sort();
    lines
}

#[test]
fn a_page_records_nodes_listings_and_gaps() {
    let site = Site::sample(Mode::Publish);
    let recorded = reads(&site, "/content/site/en.html");
    for expected in [
        "Node /content/site/en",
        "Node /content/site/en/jcr:content",
        "Children /content/site/en/jcr:content/root",
        "Missing /content/site/en.html",
    ] {
        assert!(recorded.iter().any(|line| line == expected), "{expected} is not in {recorded:#?}");
    }
    assert!(!recorded.iter().any(|line| line.contains("zebra")), "{recorded:#?}");
}

#[test]
fn each_read_is_listed_once_and_counted_always() {
    let site = Site::sample(Mode::Publish);
    let recorded = reads(&site, "/content/site/en.html");
    let mut unique = recorded.clone();
    unique.dedup();
    assert_eq!(recorded, unique);
    let counted = site.get("/content/site/en.html").reads;
    assert!(counted.paths.is_empty());
    assert!(counted.count >= recorded.len() as u64);
}

#[test]
fn lists_of_pages_depend_on_the_whole_subtree() {
    let site = Site::sample(Mode::Publish);
    site.draw("{{ pages(\"/content/site/en\")|length }}");
    let recorded = reads(&site, "/content/site/en.html");
    assert!(recorded.contains(&format!("{:?} /content/site/en", Read::Subtree)), "{recorded:#?}");
}
