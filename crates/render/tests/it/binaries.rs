//! Stored binaries and client libraries.

use tympan_content::{BlobId, NodePath, Property, Subtree, Value};
use tympan_render::{BlobBody, RenderMode, RenderOutcome, RenderResponse, RenderResponseBody};

use crate::site::{Site, file};

fn blob(response: &RenderResponse) -> &BlobBody {
    let RenderResponseBody::Blob(blob) = &response.body else { panic!("{response:?}") };
    blob
}

#[test]
fn files_are_sent_with_hash_and_date() {
    let site = Site::empty();
    site.put("/content/a.b.jpg", file(&site.repository, "a.b.jpg", b"bytes", "image/jpeg"));
    let response = site.get("/content/a.b.jpg");
    assert_eq!(
        (response.outcome.clone(), &*response.content_type),
        (RenderOutcome::Ok, "image/jpeg")
    );
    let sent = blob(&response);
    assert_eq!(sent.id, BlobId::hash_of(b"bytes"));
    assert!(sent.etag.starts_with('"') && sent.etag.ends_with('"') && sent.etag.len() == 34);
    let modified = sent.last_modified.unwrap();
    assert_eq!(
        modified.duration_since(std::time::UNIX_EPOCH).unwrap().as_millis(),
        1_714_979_289_123
    );
    assert_eq!(site.get("/content/a.b.jpg.json").outcome, RenderOutcome::Ok);
}

#[test]
fn assets_send_their_original_and_renditions_by_path() {
    let site = Site::sample(RenderMode::Publish);
    let expected = BlobId::hash_of(b"not really a picture");
    assert_eq!(blob(&site.get("/content/dam/map.png")).id, expected);
    assert_eq!(
        blob(&site.get("/content/dam/map.png/_jcr_content/renditions/original")).id,
        expected
    );
    assert_eq!(site.get("/content/dam").outcome, RenderOutcome::NotFound);
}

#[test]
fn uploads_that_could_run_code_are_sandboxed() {
    let site = Site::empty();
    for (name, media_type, is_active) in [
        ("a.html", "text/html", true),
        ("a.svg", "image/svg+xml", true),
        ("a.xml", "application/xml", true),
        ("a.png", "image/png", false),
        ("a.css", "text/css", false),
    ] {
        site.put(&format!("/content/{name}"), file(&site.repository, name, b"x", media_type));
        let headers = site.get(&format!("/content/{name}")).headers;
        let is_sandboxed = headers.contains(&("content-security-policy", "sandbox".to_owned()));
        assert_eq!(is_sandboxed, is_active, "{name}");
    }
}

#[test]
fn the_media_type_is_guessed_where_content_has_none() {
    let site = Site::empty();
    let mut guessed = file(&site.repository, "a.css", b"x", "");
    guessed.child_mut("jcr:content").unwrap().properties.remove("jcr:mimeType");
    site.put("/content/a.css", guessed);
    assert_eq!(site.get("/content/a.css").content_type, "text/css; charset=utf-8");
    site.edit(|session| {
        let path = NodePath::new("/content/empty").unwrap();
        session.put_node(&path, Subtree::new("empty", "nt:file")).unwrap();
        // Content from elsewhere may hold a file without content.
        session.mark_as_received();
    });
    assert_eq!(site.get("/content/empty").outcome, RenderOutcome::NotFound);
}

#[test]
fn client_libraries_have_urls_that_change_with_their_bytes() {
    let site = Site::sample(RenderMode::Publish);
    let url = |text: &str| {
        site.put(
            "/etc.clientlibs/test/site.css",
            file(&site.repository, "", text.as_bytes(), "text/css"),
        );
        site.draw("{{ clientlib(\"test/site.css\") }}")
    };
    let (first, second) = (url("a {}"), url("b {}"));
    assert_ne!(first, second);
    let immutable = ("cache-control", "public, max-age=31536000, immutable".to_owned());
    let current = site.get(&second);
    assert_eq!(blob(&current).id, BlobId::hash_of(b"b {}"));
    assert!(current.headers.contains(&immutable));
    for unpinned in [first.as_str(), "/etc.clientlibs/test/site.css"] {
        let response = site.get(unpinned);
        assert_eq!(blob(&response).id, BlobId::hash_of(b"b {}"), "{unpinned}");
        assert!(!response.headers.contains(&immutable));
    }
    for missing in ["/etc.clientlibs/test/none.css", "/etc.clientlibs/test/site.x.css"] {
        assert_eq!(site.get(missing).outcome, RenderOutcome::NotFound, "{missing}");
    }
}

#[test]
fn only_client_library_folders_below_apps_are_served() {
    let site = Site::sample(RenderMode::Publish);
    let library = |proxy: bool| {
        Subtree::new("lib", "cq:ClientLibraryFolder")
            .with_property("allowProxy", Property::Single(Value::Boolean(proxy)))
            .with_child(file(&site.repository, "a.js", b"1", "text/javascript"))
    };
    site.put("/apps/test/lib", library(true));
    let url = site.draw("{{ clientlib(\"test/lib/a.js\") }}");
    assert!(url.starts_with("/etc.clientlibs/test/lib/a."), "{url}");
    assert_eq!(blob(&site.get(&url)).id, BlobId::hash_of(b"1"));
    site.put("/apps/test/lib", library(false));
    for refused in [
        url.as_str(),
        "/etc.clientlibs/test/lib/a.js",
        "/etc.clientlibs/test/text/text.html.j2",
        "/etc.clientlibs/test/%2e%2e/x.js",
    ] {
        assert!(!matches!(site.get(refused).body, RenderResponseBody::Blob(_)), "{refused}");
    }
}
