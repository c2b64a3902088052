//! Bytes of whoever may change nothing where they go are not stored: a refusal that keeps them would fill the disk.

use http::Method;
use tympan_content::{BlobId, Subtree};

use crate::support::{FormPart, TestInstance, path, zipped};

/// Bytes that no other request sends.
fn bytes(door: &str) -> Vec<u8> {
    door.bytes().cycle().take(100_000).collect()
}

fn is_stored(instance: &TestInstance, bytes: &[u8]) -> bool {
    instance.repository.blobs().open(&BlobId::hash_of(bytes)).unwrap().is_some()
}

#[tokio::test]
async fn refused_bytes_are_not_stored() {
    let instance = TestInstance::author().await;
    let powerless = instance.user("powerless", &[]).await;
    let assets = instance.user("assets", &["dam-users"]).await;
    let editor = instance.user("editor", &["content-authors"]).await;
    instance.edit(|session| {
        for at in ["/content/dam", "/content/site"] {
            session.put_node(&path(at), Subtree::new("", "sling:Folder")).unwrap();
        }
    });
    for (asker, token) in [("powerless", &powerless), ("assets", &assets)] {
        let form = |sent: Vec<u8>, fields: &[(&str, &str)], at: &str| {
            let mut parts: Vec<FormPart<'_>> =
                fields.iter().map(|(name, value)| (*name, None, value.as_bytes())).collect();
            parts.push(("./*", Some(("a.bin", "application/octet-stream")), &sent));
            instance.request(Method::POST, at).bearer(token).multipart(&parts)
        };
        let sent = |door: &str| bytes(&format!("{asker} {door}"));
        let archive = |door: &str| {
            let text = String::from_utf8(sent(door)).unwrap();
            zipped(&[("a.bin", &text)])
        };
        let import = &[(":operation", "import"), (":contentType", "zip")];
        let import = |door: &str| {
            let mut parts: Vec<FormPart<'_>> =
                import.iter().map(|(name, value)| (*name, None, value.as_bytes())).collect();
            let archive = archive(door);
            parts.push((":contentFile", Some(("a.zip", "application/zip")), &archive));
            instance.request(Method::POST, "/content/site/x").bearer(token).multipart(&parts)
        };
        let put =
            |door: &str, at: &str| instance.request(Method::PUT, at).bearer(token).body(sent(door));
        for (door, request) in [
            ("a form", form(sent("a form"), &[], "/content/site")),
            ("a form elsewhere", form(sent("a form elsewhere"), &[], "/content/new/folder")),
            (
                "a part of a file",
                form(sent("a part of a file"), &[("./*@Offset", "0")], "/content/site"),
            ),
            ("an asset", form(sent("an asset"), &[(":operation", "createasset")], "/content/site")),
            ("an archive", import("an archive")),
            ("a file", put("a file", "/content/site/a.bin")),
            ("a property", put("a property", "/api/v1/blob?path=/content/site&property=x")),
        ] {
            let reply = request.send().await;
            assert_eq!(reply.status, 403, "{asker} {door}: {reply:?}");
            assert!(!is_stored(&instance, &sent(door)), "{asker} {door}");
        }
    }
    // Who may write is not held up.
    let sent = bytes("editor");
    let put = instance.request(Method::PUT, "/content/site/a.bin").bearer(&editor);
    assert_eq!(put.body(sent.clone()).send().await.status, 201);
    assert!(is_stored(&instance, &sent));
}
