//! Titles and entries of navigations as pictures beside their page.

use tympan_content::NodePath;
use tympan_render::{ReadRecording, RenderMode, RenderOutcome, RenderRequest, RenderResponseBody};

use crate::site::Site;

fn png(site: &Site, url: &str) -> Vec<u8> {
    let drawn = site.get(url);
    assert_eq!((drawn.outcome, &*drawn.content_type), (RenderOutcome::Ok, "image/png"), "{url}");
    let RenderResponseBody::Bytes(bytes) = drawn.body else { panic!("{url}") };
    assert!(bytes.starts_with(b"\x89PNG"), "{url}");
    bytes.to_vec()
}

#[test]
fn a_page_has_its_title_and_its_entries_as_pictures() {
    let site = Site::sample(RenderMode::Publish);
    site.script("/apps/test/page/title.png.j2", "{{ send_text_picture(page.title, height=40) }}");
    site.script(
        "/apps/test/page/nav/normal.png.j2",
        "{{ send_text_picture(page.title, height=20, color=\"#665d52\") }}",
    );
    site.script(
        "/apps/test/page/nav/active.png.j2",
        "{{ send_text_picture(page.title, height=20, color=\"#a63a1b\", background=\"#fff\", bold=true) }}",
    );
    let title = png(&site, "/content/site/en.title.png");
    let normal = png(&site, "/content/site/en.nav.normal.png");
    let active = png(&site, "/content/site/en.nav.active.png");
    assert!(title != normal && normal != active);
    assert_ne!(png(&site, "/content/site/en/apple.title.png"), title, "each page has its own");
    assert_eq!(png(&site, "/content/site/en.title.png"), title, "the same bytes again");
    // What changes the title changes the picture, and the record of reads tells so.
    let request = RenderRequest {
        recording: ReadRecording::Paths,
        ..RenderRequest::get("/content/site/en.title.png")
    };
    let read = site.render(&request).reads.dependencies();
    let page = NodePath::new("/content/site/en").unwrap();
    assert!(!read.node_aspects(&page).is_empty(), "{read:?}");
    site.edit(|session| {
        let content = NodePath::new("/content/site/en/jcr:content").unwrap();
        session.set_property(&content, "jcr:title", "Another & <longer>".into()).unwrap();
    });
    assert_ne!(png(&site, "/content/site/en.title.png"), title);
    // Without a script there is no such picture.
    assert_eq!(site.get("/content/site/en.other.png").outcome, RenderOutcome::NotFound);
}

#[test]
fn wrong_parameters_are_reported() {
    let site = Site::sample(RenderMode::Publish);
    for wrong in ["height=0", "height=1000", "color=\"red\"", "colour=\"#fff\""] {
        let script = format!("{{{{ send_text_picture(page.title, {wrong}) }}}}");
        site.script("/apps/test/page/title.png.j2", &script);
        assert_eq!(site.get("/content/site/en.title.png").outcome, RenderOutcome::Error, "{wrong}");
    }
}
