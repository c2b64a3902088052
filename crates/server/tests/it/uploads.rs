//! Uploads never run as pages of the site, whatever type and name they came with.

use http::Method;
use tympan_content::{JcrDate, Property, Subtree, Value};

use crate::support::{Reply, TestInstance, path};

const SCRIPT: &[u8] = b"<script>document.title = 'it ran'</script>";

/// The types by which an attacker may call a file, each with whether a browser may show it inline.
const TYPES: &[(&str, bool)] = &[
    ("text/html", false),
    ("TEXT/HTML", false),
    ("text/html;charset=utf-7", false),
    ("text/html; charset=utf-8, image/png", false),
    ("image/png,text/html", false),
    ("image/png, text/html", false),
    ("image/png;,text/html", true),
    ("text/html,image/png", false),
    ("text/html image/png", false),
    ("text/html\u{a0}", false),
    ("text/xml", false),
    ("text/xsl", false),
    ("text/x-component", false),
    ("text/cache-manifest", false),
    ("text/rdf", false),
    ("application/xml", false),
    ("application/xml-dtd", false),
    ("application/xml-external-parsed-entity", false),
    ("application/xhtml+xml", false),
    ("application/xslt+xml", false),
    ("application/mathml+xml", false),
    ("application/rss+xml", false),
    ("application/vnd.wap.xhtml+xml", false),
    ("application/vnd.mozilla.xul+xml", false),
    ("application/x-shockwave-flash", false),
    ("application/x-java-applet", false),
    ("application/x-unheard-of", false),
    ("application/octet-stream", false),
    ("image/svg+xml", false),
    ("IMAGE/SVG+XML", false),
    ("image/svg+xml;charset=utf-16", false),
    ("image/svg-xml", false),
    ("image/svg", false),
    ("message/rfc822", false),
    ("multipart/related", false),
    ("multipart/x-mixed-replace", false),
    ("*/*", false),
    ("unknown/unknown", false),
    ("html", false),
    (" ", false),
    ("image/png", true),
    ("Image/PNG", true),
    ("image/jpeg", true),
    ("application/pdf", true),
    ("text/plain", true),
    ("text/css", true),
    ("video/mp4; codecs=\"avc1\"", true),
];

fn is_contained(reply: &Reply) -> bool {
    assert_eq!(reply.status, 200, "{reply:?}");
    assert_eq!(reply.header("x-content-type-options"), "nosniff");
    reply.header("content-security-policy") == "sandbox"
}

/// Tells what no answer may have: a type that could be read as another one.
fn has_one_plain_type(reply: &Reply) -> bool {
    let media_type = reply.header("content-type");
    let (essence, rest) = media_type.split_once(';').unwrap_or((media_type, ""));
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || b"0123456789.+-/".contains(&byte);
    essence.bytes().all(is_plain)
        && essence.matches('/').count() == 1
        && (rest.is_empty() || rest.starts_with(" charset="))
        && !rest.contains(',')
}

fn put_file(instance: &TestInstance, at: &str, media_type: Option<&str>) {
    instance.edit(|session| {
        let blob = session.put_blob(&mut std::io::Cursor::new(SCRIPT)).unwrap();
        let mut content = Subtree::new("jcr:content", "nt:resource")
            .with_property("jcr:data", Value::Binary(blob));
        if let Some(media_type) = media_type {
            content = content.with_property("jcr:mimeType", Property::text(media_type));
        }
        let at = path(at);
        session.put_node(&at, Subtree::new(at.name(), "nt:file").with_child(content)).unwrap();
    });
}

#[tokio::test]
async fn no_spelling_of_a_type_makes_an_upload_run_as_a_page() {
    for instance in [TestInstance::author().await, TestInstance::publish().await] {
        for (number, (media_type, is_inline)) in TYPES.iter().enumerate() {
            let at = format!("/content/upload{number}");
            put_file(&instance, &at, Some(media_type));
            for target in [at.clone(), format!("{at}.res"), format!("{at}/jcr:content")] {
                let reply = instance.get(&target).await;
                assert_eq!(is_contained(&reply), !is_inline, "{media_type:?} {target} {reply:?}");
                assert!(has_one_plain_type(&reply), "{media_type:?} {reply:?}");
            }
        }
    }
}

#[tokio::test]
async fn a_name_that_means_a_document_contains_whatever_type_the_upload_has() {
    let instance = TestInstance::author().await;
    for (name, is_inline) in [
        ("page.html", false),
        ("page.HTM", false),
        ("page.xhtml", false),
        ("drawing.svg", false),
        ("data.xml", false),
        ("style.xsl", false),
        ("style.xslt", false),
        ("mail.mht", false),
        ("picture.png", true),
        ("picture.png.jpg", true),
        ("picture", true),
        ("picture.unheard-of", true),
    ] {
        put_file(&instance, &format!("/content/{name}"), Some("image/png"));
        let reply = instance.get(&format!("/content/{name}")).await;
        assert_eq!(is_contained(&reply), !is_inline, "{name} {reply:?}");
        assert_eq!(reply.header("content-type"), "image/png");
    }
    for (name, expected) in [
        ("page.html", "text/html; charset=utf-8"),
        ("page", "application/octet-stream"),
        ("page.unheard-of", "application/octet-stream"),
    ] {
        put_file(&instance, &format!("/content/{name}"), None);
        let reply = instance.get(&format!("/content/{name}")).await;
        assert!(is_contained(&reply), "{name} {reply:?}");
        assert_eq!(reply.header("content-type"), expected);
        let is_saved = reply.header("content-disposition") == "attachment";
        assert_eq!(is_saved, expected == "application/octet-stream", "{name} {reply:?}");
    }
}

#[tokio::test]
async fn every_way_in_leads_to_the_same_containment() {
    let instance = TestInstance::author().await;
    let odd = "image/png,text/html";
    // A form with a file, Sling's way and AEM's.
    let file: (&str, Option<(&str, &str)>, &[u8]) = ("./form", Some(("x.html", odd)), SCRIPT);
    let form = instance.as_admin(Method::POST, "/content").multipart(&[file]).send().await;
    assert!(form.status.is_success(), "{form:?}");
    let asset: (&str, Option<(&str, &str)>, &[u8]) = ("file", Some(("a.svg", odd)), SCRIPT);
    let operation: (&str, Option<(&str, &str)>, &[u8]) = (":operation", None, b"createasset");
    let form = instance.as_admin(Method::POST, "/content").multipart(&[operation, asset]);
    assert!(form.send().await.status.is_success());
    // A file as it is.
    let put = instance.as_admin(Method::PUT, "/content/put").header("content-type", odd);
    assert_eq!(put.body(SCRIPT).send().await.status, 201);
    // The type, set afterwards.
    put_file(&instance, "/content/renamed", Some("image/png"));
    instance.post("/content/renamed/jcr:content", &[("jcr:mimeType", "image/png,text/html")]).await;
    // A part of a page, and the bytes of a property.
    for target in [
        "/content/form",
        "/content/put",
        "/content/renamed",
        "/content/a.svg",
        "/content/a.svg/jcr:content/renditions/original",
        "/content/a.svg/_jcr_content/renditions/original/_jcr_content",
        "/api/v1/blob?path=/content/renamed/jcr:content",
    ] {
        let reply = instance.get(target).await;
        assert!(is_contained(&reply), "{target} {reply:?}");
        assert!(has_one_plain_type(&reply), "{target} {reply:?}");
        // The same without the body, and for a part of it.
        let head = instance.as_admin(Method::HEAD, target).send().await;
        if !target.starts_with("/api/") {
            assert!(is_contained(&head), "{target} {head:?}");
        }
        let part = instance.as_admin(Method::GET, target).header("range", "bytes=0-3").send().await;
        assert_eq!(part.status, 206, "{target}");
        assert_eq!(part.header("content-security-policy"), "sandbox", "{target}");
    }
    // What came as no media type is not even stored as one.
    assert_eq!(
        instance.property("/content/put/jcr:content", "jcr:mimeType"),
        "String application/octet-stream"
    );
}

#[tokio::test]
async fn a_document_view_runs_nothing() {
    let instance = TestInstance::author().await;
    instance.post("/content/page", &[("jcr:primaryType", "cq:Page")]).await;
    let reply = instance.get("/content/page.xml").await;
    assert!(is_contained(&reply), "{reply:?}");
}

/// A time before 1970 or after 9999 has no form in a header, and is no reason not to send the file.
#[tokio::test]
async fn files_of_all_times_are_sent() {
    for instance in [TestInstance::author().await, TestInstance::publish().await] {
        for (millis, expected) in [
            (i64::MIN, ""),
            (-1, ""),
            (0, "Thu, 01 Jan 1970 00:00:00 GMT"),
            (253_402_300_799_999, "Fri, 31 Dec 9999 23:59:59 GMT"),
            (253_402_300_800_000, ""),
            (i64::MAX, ""),
        ] {
            instance.edit(|session| {
                let blob = session.put_blob(&mut std::io::Cursor::new(b"bytes")).unwrap();
                let date = JcrDate { millis, offset_minutes: 0 };
                let content = Subtree::new("jcr:content", "nt:resource")
                    .with_property("jcr:data", Value::Binary(blob))
                    .with_property("jcr:mimeType", "text/plain")
                    .with_property("jcr:lastModified", Value::Date(date));
                let file = Subtree::new("", "nt:file").with_child(content);
                session.put_node(&path("/content/file.txt"), file).unwrap();
            });
            // The second answer may come from memory.
            for _ in 0..3 {
                let reply = instance.get("/content/file.txt").await;
                assert_eq!((reply.status.as_u16(), &*reply.body), (200, &b"bytes"[..]), "{millis}");
                assert_eq!(reply.header("last-modified"), expected, "{millis}");
                let visit = instance.visit("/content/file.txt").await;
                assert!(matches!(visit.status.as_u16(), 200 | 401), "{millis} {visit:?}");
            }
            for target in ["/content/file.txt.json", "/content/file.txt.infinity.json"] {
                assert_eq!(instance.get(target).await.status, 200, "{millis} {target}");
            }
        }
    }
}
