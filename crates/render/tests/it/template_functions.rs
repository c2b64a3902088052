//! What templates ask of assets, pages and languages: stored renditions, breakpoints, dates.

use tympan_content::{NodePath, Property, Subtree, Value};
use tympan_render::RenderMode;

use crate::site::{Site, file};

fn rendition(site: &Site, name: &str) {
    let path = format!("/content/dam/map.png/jcr:content/renditions/{name}");
    site.put(&path, file(&site.repository, name, name.as_bytes(), "image/webp"));
}

#[test]
fn stored_renditions_make_a_srcset() {
    let site = Site::sample(RenderMode::Publish);
    let srcset = |options: &str| {
        site.draw(&format!(
            "<img srcset=\"{{{{ asset(\"/content/dam/map.png\").srcset({options}) }}}}\">"
        ))
    };
    assert_eq!(srcset(""), "<img srcset=\"\">", "nothing is stored");
    for name in [
        "cq5dam.width.480.webp",
        "cq5dam.width.320.webp",
        "cq5dam.width.2000.webp",
        "cq5dam.web.1280.200.jpeg",
        "cq5dam.thumbnail.48.48.png",
        "cq5dam.width.wide.webp",
        "other.png",
    ] {
        rendition(&site, name);
    }
    let folder = "/content/dam/map.png/_jcr_content/renditions";
    // The original has 640 columns, so that none has more.
    let all = format!(
        "<img srcset=\"{folder}/cq5dam.width.320.webp 320w, {folder}/cq5dam.width.480.webp 480w, \
         {folder}/cq5dam.width.2000.webp 640w\">"
    );
    assert_eq!(srcset(""), all);
    assert_eq!(srcset("format=\"webp\""), all);
    // 640 times 400 pixels in a box of 1280 times 200.
    let web = format!("<img srcset=\"{folder}/cq5dam.web.1280.200.jpeg 320w\">");
    assert_eq!(srcset("format=\"jpg\""), web);
    assert_eq!(srcset("format=\"avif\""), "<img srcset=\"\">");
    // The addresses lead to the bytes.
    let first = format!("{folder}/cq5dam.width.320.webp");
    assert_eq!(site.get(&first).content_type, "image/webp");
    assert!(srcset("widths=[320], format=\"webp\"").contains("map.png.width-320."), "drawn");
}

#[test]
fn a_rendition_that_comes_later_shows_on_the_page() {
    let site = Site::sample(RenderMode::Publish);
    site.draw("{{ asset(\"/content/dam/map.png\").srcset() }}");
    let request = tympan_render::RenderRequest {
        recording: tympan_render::ReadRecording::Paths,
        ..tympan_render::RenderRequest::get("/content/site/en.html")
    };
    let read = site.render(&request).reads.dependencies();
    let before = site.repository.snapshot().unwrap();
    rendition(&site, "cq5dam.width.320.webp");
    let after = site.repository.snapshot().unwrap();
    assert!(
        tympan_render::ChangedAspects::between_snapshots(&before, &after).unwrap().affects(&read)
    );
}

fn breakpoints(widths: &[(&str, i64)]) -> Subtree {
    let all = widths.iter().fold(Subtree::new("breakpoints", "nt:unstructured"), |all, one| {
        let (name, width) = *one;
        let width = Property::Single(Value::Long(width));
        let node = Subtree::new(name, "nt:unstructured").with_property("width", width);
        all.with_child(node.with_property("title", format!("On {name}").as_str()))
    });
    Subtree::new("cq:responsive", "nt:unstructured").with_child(all)
}

#[test]
fn breakpoints_are_those_of_the_page_its_template_or_a_page_above() {
    let site = Site::sample(RenderMode::Publish);
    let shown = || {
        let template = "{% for b in breakpoints() %}{{ b.name }}/{{ b.title }}/{{ b.from }}/{{ b.width }}/{{ b.media }};{% endfor %}";
        site.draw(template)
    };
    assert_eq!(shown(), "");
    let template = breakpoints(&[("tablet", 1200), ("phone", 768)]);
    site.put("/apps/test/templates/plain/cq:responsive", template);
    site.edit(|session| {
        let content = NodePath::new("/content/site/en/jcr:content").unwrap();
        let template = "/apps/test/templates/plain";
        session.set_property(&content, "cq:template", template.into()).unwrap();
    });
    let expected =
        "phone/On phone/0/768/(max-width: 768px);tablet/On tablet/769/1200/(max-width: 1200px);";
    assert_eq!(shown(), expected);
    site.put(
        "/content/site/en/jcr:content/cq:responsive",
        breakpoints(&[("all", 900), ("none", 0)]),
    );
    assert_eq!(shown(), "all/On all/0/900/(max-width: 900px);");
    // A page below takes over what the nearest page above has.
    site.script("/apps/test/page/page.html.j2", "{{ breakpoints()[0].width }}");
    assert_eq!(site.text("/content/site/en/apple.html"), "900");
}

#[test]
fn dates_are_written_as_the_readers_of_a_page_write_them() {
    let site = Site::sample(RenderMode::Publish);
    let date = |options: &str| site.draw(&format!("{{{{ date(properties.date, {options}) }}}}"));
    for (options, expected) in [
        ("\"long\", language=\"en\"", "February 29, 2024"),
        ("\"full\", language=\"en_GB\"", "Thursday, 29 February 2024"),
        ("\"long\", language=\"de\"", "29. Februar 2024"),
        ("\"full\", language=\"de_CH\"", "Donnerstag, 29. Februar 2024"),
        ("\"medium\", language=\"fr\"", "29 févr. 2024"),
        ("\"short\", language=\"de\"", "29.02.24"),
        ("\"long\", language=\"ja\"", "2024年2月29日"),
        ("\"long\", language=\"no such language\"", "February 29, 2024"),
    ] {
        assert_eq!(date(options), expected, "{options}");
    }
    let timed = date("\"long\", language=\"de\", time=true");
    assert!(timed.starts_with("29. Februar 2024") && timed.ends_with("10:30"), "{timed}");
    // Without a language it is that of the page.
    assert_eq!(date("\"long\""), "February 29, 2024");
    site.edit(|session| {
        let content = NodePath::new("/content/site/en/jcr:content").unwrap();
        session.set_property(&content, "jcr:language", "it".into()).unwrap();
    });
    assert_eq!(date("\"long\""), "29 febbraio 2024");
    assert_eq!(date("\"%d.%m.\""), "29.02.", "a format stays a format");
    assert_eq!(site.draw("{{ date(properties.missing, \"long\") }}"), "");
    for wrong in ["\"%d\", language=\"de\"", "\"long\", lang=\"de\"", "time=true"] {
        assert!(!date(wrong).contains("2024"), "{wrong}");
    }
}
