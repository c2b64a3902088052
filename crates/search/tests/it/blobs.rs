//! Text out of blobs, also of those that were made to do harm.

use std::io::{Cursor, Write};

use zip::write::{SimpleFileOptions, ZipWriter};

use crate::indexed_site::{Site, now, term};

const DOCX: &str = "application/vnd.openxmlformats-officedocument.wordprocessingml.document";
const XLSX: &str = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet";
const ODT: &str = "application/vnd.oasis.opendocument.text";

fn zip_of(parts: &[(&str, &[u8])]) -> Vec<u8> {
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    for (name, bytes) in parts {
        zip.start_file(*name, SimpleFileOptions::default()).unwrap();
        zip.write_all(bytes).unwrap();
    }
    zip.finish().unwrap().into_inner()
}

#[test]
fn text_of_files_is_found() {
    let site = Site::new();
    site.file("/content/a", "text/plain", "alpha Grüße".as_bytes());
    site.file("/content/b", "text/html", b"<p class='alpha'>be<b>ta</b></p><script>alpha</script>");
    site.file("/content/c", "image/jpeg", b"alpha");
    site.file("/content/d.md", "application/octet-stream", b"# alpha");
    site.file("/content/e", "application/json", b"{\"alpha\": \"gamma\"}");
    assert_eq!(site.find_sorted(term("alpha")), ["a", "d.md", "e"]);
    assert_eq!(site.find(term("beta")), ["b"]);
    assert_eq!(site.find(term("grüße")), ["a"]);
}

#[test]
fn office_documents_are_read() {
    let site = Site::new();
    let docx: &[u8] = br#"<w:document xmlns:w="x"><w:body><w:p><w:r><w:t>al</w:t></w:r><w:r><w:t>pha</w:t></w:r></w:p>
        <w:p><w:r><w:t>R&amp;D</w:t></w:r></w:p></w:body></w:document>"#;
    site.file(
        "/content/a",
        DOCX,
        &zip_of(&[("word/document.xml", docx), ("word/styles.xml", b"<hidden/>")]),
    );
    let shared: &[u8] = b"<sst><si><t>alpha</t></si><si><t>beta</t></si></sst>";
    let sheet: &[u8] = b"<sheetData><row><c t='s'><v>4711</v></c></row></sheetData>";
    let parts = [("xl/sharedStrings.xml", shared), ("xl/worksheets/sheet1.xml", sheet)];
    site.file("/content/b", XLSX, &zip_of(&parts));
    let odt: &[u8] = b"<office:text><text:h>alpha</text:h><text:p>gamma</text:p></office:text>";
    site.file("/content/c", ODT, &zip_of(&[("mimetype", b"x"), ("content.xml", odt)]));
    assert_eq!(site.find_sorted(term("alpha")), ["a", "b", "c"]);
    assert_eq!(site.find(term("R&D")), ["a"]);
    assert_eq!(site.find(term("4711")), Vec::<String>::new());
    assert_eq!(site.caught_up().status(now()).unwrap().failure_count, 0);
}

#[test]
fn what_cannot_be_read_is_noted_and_stops_nothing() {
    let site = Site::new();
    // 80 MB of one text, and of one tag after the other, in a few kilobytes.
    let bomb = zip_of(&[("content.xml", &vec![b' '; 80 << 20])]);
    let tags = zip_of(&[("content.xml", "<a></a>".repeat((80 << 20) / 7).as_bytes())]);
    assert!(bomb.len() + tags.len() < 500_000, "{} and {}", bomb.len(), tags.len());
    site.file("/content/bomb", ODT, &bomb);
    site.file("/content/tags", ODT, &tags);
    site.file("/content/cut", ODT, &bomb[..bomb.len() / 2]);
    site.file("/content/noise", DOCX, b"PK\x03\x04 no zip at all");
    let deep = "<a>".repeat(200_000);
    site.file("/content/deep", ODT, &zip_of(&[("content.xml", deep.as_bytes())]));
    let entities =
        b"<!DOCTYPE x [<!ENTITY a \"aaaaaaaaaa\"><!ENTITY b \"&a;&a;&a;&a;\">]><x>alpha &b;</x>";
    site.file("/content/entities", ODT, &zip_of(&[("content.xml", entities)]));
    site.page("/content/page", "Sound", "alpha");
    assert_eq!(site.find_sorted(term("alpha")), ["entities", "page"]);
    let failures = site.index.status(now()).unwrap().first_failures;
    let mut names: Vec<&str> = failures.iter().map(|failure| failure.path.as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["/content/bomb", "/content/cut", "/content/noise", "/content/tags"]);
    let bombs = failures.iter().filter(|failure| failure.reason.contains("unpacks to more than"));
    assert_eq!(bombs.count(), 2, "{failures:?}");
    // What was found by name is found all the same, and a new upload heals.
    assert_eq!(site.find(term("bomb")), ["bomb"]);
    site.file("/content/noise", DOCX, &zip_of(&[("word/document.xml", b"<w:t>alpha</w:t>")]));
    assert_eq!(site.find(term("alpha")).len(), 3);
    assert_eq!(site.index.status(now()).unwrap().failure_count, 3);
}

#[test]
fn of_an_asset_only_the_original_is_read() {
    use tympan_content::{Property, Subtree, Value};
    let site = Site::new();
    let mut session = site.repository.session("author").unwrap();
    let blob = session.put_blob(&mut &b"alpha"[..]).unwrap();
    let file = |name: &str| {
        let content = Subtree::new("jcr:content", "nt:resource")
            .with_property("jcr:mimeType", Property::text("text/plain"))
            .with_property("jcr:data", Property::Single(Value::Binary(blob)));
        Subtree::new(name, "nt:file").with_child(content)
    };
    for (asset, rendition) in [("a.txt", "original"), ("b.txt", "web.txt")] {
        let renditions = Subtree::new("renditions", "nt:folder").with_child(file(rendition));
        let content = Subtree::new("jcr:content", "dam:AssetContent").with_child(renditions);
        let tree = Subtree::new("", "dam:Asset").with_child(content);
        session.put_node(&crate::indexed_site::path(&format!("/content/{asset}")), tree).unwrap();
    }
    session.commit("upload", std::time::UNIX_EPOCH).unwrap();
    assert_eq!(site.find(term("alpha")), ["a.txt"]);
}
