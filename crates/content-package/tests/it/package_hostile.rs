//! Packages that are malformed, truncated or meant to harm: refused with a reason, and nothing is changed.

use std::fs;
use std::io::{Cursor, Read, Seek, Write};

use proptest::prelude::*;
use tympan_content_package::{ContentPackage, PackageFilter, PackageId, PackageLimits, docview};
use tympan_testkit::fixture_folder::fixture_folder;

use crate::package_target::{Memory, install, package, zipped};

const FILTER: (&str, &str) = (
    "META-INF/vault/filter.xml",
    r#"<workspaceFilter version="1.0"><filter root="/x"/></workspaceFilter>"#,
);

const JCR: &str = r#"xmlns:jcr="http://www.jcp.org/jcr/1.0""#;

fn check(entries: &[(&str, &str)], expected: &str) {
    let message = match package(&[&[FILTER], entries].concat()) {
        Ok(_) => "accepted".to_owned(),
        Err(error) => error.to_string(),
    };
    assert!(message.contains(expected), "{entries:?}: {message}");
}

/// Reads `<jcr:root …>` with this inside as the document of `/x`.
fn check_document(inside: &str, expected: &str) {
    let text = format!("<?xml version=\"1.0\"?>\n<jcr:root {JCR}\n{inside}");
    check(&[("jcr_root/x/.content.xml", &text)], expected);
}

#[test]
fn entries_that_could_leave_their_folder_are_refused() {
    for name in [
        "../evil",
        "jcr_root/../../evil",
        "jcr_root/a/../b",
        "/etc/passwd",
        "jcr_root//a",
        "jcr_root/./a",
        "jcr_root\\..\\evil",
        "C:/windows",
        "jcr_root/a\0b",
        "META-INF/../x",
    ] {
        check(&[(name, "x")], "test.zip: the entry");
    }
    // Names that become dangerous when they are decoded.
    for name in ["jcr_root/%2e%2e/x", "jcr_root/a%2fb", "jcr_root/x/%2e/y", "jcr_root/a%00b"] {
        check(&[(name, "x")], "is not a valid name");
    }
}

#[test]
fn documents_are_refused_with_their_line() {
    let file = "jcr_root/x/.content.xml";
    check_document("jcr:primaryType=\"nt:unstructured\"/>", "accepted");
    check_document("a=\"1\">\n<b", &format!("{file}:4: not well-formed XML"));
    check_document("a=\"1\">\n<b></c></jcr:root>", &format!("{file}:4: not well-formed XML"));
    check_document(
        "a=\"1\">\n<b>",
        &format!("{file}:4: the file ends before 2 open elements are closed"),
    );
    check_document("a=\"1\"/>\n<x/>", &format!("{file}:4: there is a second root element"));
    check_document("a=\"1\"/>\ntext", &format!("{file}:3: there is text outside the root element"));
    check_document("a=\"1\"\nb=\"<\"/>", &format!("{file}:4: `b` contains a `<`"));
    check_document("a=\"1\"\nb=\"&who;\"/>", &format!("{file}:4: not well-formed XML"));
    check_document("a=\"1\"\na=\"2\"/>", &format!("{file}:4: the attribute `a` occurs twice"));
    check_document(
        "a=\"1\"\nq:b=\"2\"/>",
        &format!("{file}:4: the prefix `q` of `q:b` is not declared"),
    );
    check_document("a=\"{Long}x\"/>", &format!("{file}:3: `a`: `x` cannot be read as Long"));
    check_document(
        "a=\"{Bogus}x\"/>",
        &format!("{file}:3: `a`: `{{Bogus}}` is not a property type"),
    );
    check_document(
        "a=\"{Binary}x\"/>",
        &format!("{file}:3: `a`: a docview cannot contain binary data"),
    );
    check_document(
        "jcr:primaryType=\"[a,b]\"/>",
        &format!("{file}:3: `jcr:primaryType`: a node must have exactly one primary type"),
    );
    check_document(
        "jcr:primaryType=\"a*b\"/>",
        &format!("{file}:3: `jcr:primaryType`: `a*b` is not a valid name"),
    );
    check_document(
        ">\n<a_x002f_b x=\"1\"/></jcr:root>",
        &format!("{file}:4: `a/b` is not a valid name"),
    );
    for name in ["a_x005b_0_x005d_", "a_x005b_x_x005d_", "_x005b_2_x005d_"] {
        check_document(&format!(">\n<{name} x=\"1\"/></jcr:root>"), "is not a valid name");
    }
    check(&[(file, "<root/>")], &format!("{file}:1: the root element is `root`, not `jcr:root`"));
    check(&[(file, "")], &format!("{file}:1: the file contains no XML element"));
    check(
        &[(file, "<?xml version=\"1.0\" encoding=\"ISO-8859-1\"?><jcr:root ä=\"\"/>")],
        "the encoding `ISO-8859-1` is not supported",
    );
}

#[test]
fn entities_are_not_expanded() {
    let bomb = format!(
        "<!DOCTYPE x [<!ENTITY a \"aaaaaaaaaa\"><!ENTITY b \"&a;&a;&a;&a;\">\
         <!ENTITY file SYSTEM \"file:///etc/passwd\">]><jcr:root {JCR}\nx=\"&b;\"/>"
    );
    check(&[("jcr_root/x/.content.xml", &bomb)], "not well-formed XML");
    let file = bomb.replace("&b;", "&file;");
    check(&[("jcr_root/x/.content.xml", &file)], "not well-formed XML");
}

#[test]
fn meta_data_is_refused_with_its_line() {
    let filter = |inside: &str, expected: &str| {
        let text = format!("<workspaceFilter version=\"1.0\">\n{inside}\n</workspaceFilter>");
        let message = PackageFilter::parse("f.xml", text.as_bytes()).unwrap_err().to_string();
        assert!(message.starts_with(expected), "{inside}: {message}");
    };
    filter("<filter root=\"x\"/>", "f.xml:2: the filter's root: `x` is not a valid path");
    filter(
        "<filter root=\"/x\" mode=\"sometimes\"/>",
        "f.xml:2: the mode `sometimes` is not one of replace, merge",
    );
    filter("<filter root=\"/x\" type=\"odd\"/>", "f.xml:2: the type `odd` is not supported");
    filter("<filter root=\"/x\">\n<include/></filter>", "f.xml:3: `include` needs a `pattern`");
    filter(
        "<filter root=\"/x\">\n<include pattern=\"(\"/></filter>",
        "f.xml:3: the pattern `(` is malformed or uses lookaround",
    );
    filter(
        "<filter root=\"/x\">\n<include pattern=\"/x/(?!a).*\"/></filter>",
        "f.xml:3: the pattern",
    );
    filter(
        "<filter root=\"/x\">\n<odd/></filter>",
        "f.xml:3: expected `include` or `exclude`, found `odd`",
    );
    filter("<odd/>", "f.xml:2: expected `filter`, found `odd`");
    let message = PackageFilter::parse("f.xml", b"<workspaceFilter version=\"2.0\"/>")
        .unwrap_err()
        .to_string();
    assert_eq!(message, "f.xml:1: the filter version `2.0` is not supported; use 1.0");

    let properties = |inside: &str, expected: &str| {
        let text = format!("<properties>{inside}</properties>");
        check(&[("META-INF/vault/properties.xml", &text)], expected);
    };
    properties(
        "<entry key=\"packageFormatVersion\">3</entry>",
        "`packageFormatVersion` is `3`; it must be",
    );
    properties(
        "<entry key=\"acHandling\">sometimes</entry>",
        "`acHandling` is `sometimes`; it must be",
    );
    properties(
        "<entry key=\"subPackageHandling\">*;burn</entry>",
        "`subPackageHandling` is `*;burn`",
    );
    properties(
        "\n<odd/>",
        "properties.xml:2: expected `properties` with `entry` elements, found `odd`",
    );
    check(&[("META-INF/vault/nodetypes.cnd", "<a='b'>")], "accepted");
}

/// Reads a package under these limits and returns why it is refused.
fn limited(limits: &PackageLimits, entries: &[(&str, &str)]) -> String {
    let read = ContentPackage::read(Cursor::new(zipped(entries)), "test.zip", limits);
    read.unwrap_err().to_string()
}

#[test]
fn limits_hold() {
    let unlimited = PackageLimits::default;
    let file = ("jcr_root/a.txt", "0123456789");
    assert_eq!(
        limited(&PackageLimits { max_entries: 1, ..unlimited() }, &[file, FILTER]),
        "test.zip: the 2 entries exceed the limit of 1"
    );
    assert_eq!(
        limited(
            &PackageLimits { max_total_bytes: 15, ..unlimited() },
            &[file, ("jcr_root/b.txt", "0123456789")]
        ),
        "test.zip: unpacks to more than the limit of 15 bytes"
    );
    assert_eq!(
        limited(&PackageLimits { max_document_bytes: 10, ..unlimited() }, &[FILTER]),
        "META-INF/vault/filter.xml: is longer than the limit of 10 bytes"
    );
    let long = format!("<jcr:root {JCR} jcr:primaryType=\"a\" x=\"0123456789\"/>");
    assert_eq!(
        limited(
            &PackageLimits { max_value_bytes: 9, ..unlimited() },
            &[("jcr_root/.content.xml", &long)]
        ),
        "jcr_root/.content.xml:1: `x`: the value is longer than the limit of 9 bytes"
    );
}

/// What documents say is held in memory, whatever few bytes they are packed into.
#[test]
fn what_documents_hold_is_limited() {
    let unlimited = PackageLimits::default;
    let document = format!("<jcr:root {JCR} jcr:primaryType=\"a\">\n<b/><c/></jcr:root>");
    let size = document.len() as u64;
    let entries = |name: &'static str| [("jcr_root/.content.xml", &*document), (name, &*document)];
    let check = |limits: &PackageLimits, expected: &str| {
        assert_eq!(limited(limits, &entries("jcr_root/x/.content.xml")), expected);
        // Packages within the package count with it.
        let inner = [FILTER, ("jcr_root/.content.xml", &*document)];
        let bytes = with_inner(&[("jcr_root/.content.xml", &document)], &zipped(&inner));
        let message =
            ContentPackage::read(Cursor::new(bytes), "p.zip", limits).unwrap_err().to_string();
        let expected = expected.split(": ").last().unwrap();
        assert!(
            message.starts_with("jcr_root/etc/packages/in.zip!jcr_root/.content.xml"),
            "{message}"
        );
        assert!(message.contains(expected.split(" of ").next().unwrap()), "{message}");
    };
    check(
        &PackageLimits { max_nodes: 5, ..unlimited() },
        "jcr_root/x/.content.xml:2: the package has more nodes than the limit; split it",
    );
    check(
        &PackageLimits { max_properties: 1, ..unlimited() },
        "jcr_root/x/.content.xml:1: the package has more properties than the limit; split it",
    );
    let limit = 2 * size - 1;
    check(
        &PackageLimits { max_all_documents_bytes: limit, ..unlimited() },
        &format!(
            "jcr_root/x/.content.xml: the files that describe nodes exceed the limit of {limit} bytes; split the package"
        ),
    );
    let limits = PackageLimits {
        max_nodes: 6,
        max_properties: 2,
        max_all_documents_bytes: 2 * size,
        ..unlimited()
    };
    let bytes = zipped(&entries("jcr_root/x/.content.xml"));
    ContentPackage::read(Cursor::new(bytes), "p.zip", &limits).unwrap();
}

/// A package with another one in it, as `/etc/packages/in.zip`.
fn with_inner(entries: &[(&str, &str)], inner: &[u8]) -> Vec<u8> {
    let mut zip = zip::ZipWriter::new(Cursor::new(Vec::new()));
    let options = zip::write::SimpleFileOptions::default();
    for (name, text) in entries {
        zip.start_file(*name, options).unwrap();
        zip.write_all(text.as_bytes()).unwrap();
    }
    zip.start_file("jcr_root/etc/packages/in.zip", options).unwrap();
    zip.write_all(inner).unwrap();
    zip.finish().unwrap().into_inner()
}

/// Compiled patterns take memory, one or all together.
#[test]
fn patterns_are_bounded() {
    let read = |patterns: &str| {
        let text = format!(
            "<workspaceFilter version=\"1.0\"><filter root=\"/x\">{patterns}</filter></workspaceFilter>"
        );
        PackageFilter::parse("filter.xml", text.as_bytes()).map(|filter| filter.roots().len())
    };
    let include = |pattern: &str, count: usize| {
        read(&format!("<include pattern=\"{pattern}\"/>\n").repeat(count))
    };
    for (pattern, count) in [("((a{1,1000}){1,1000}){1,100}", 1), (r"\p{L}{0,20}.*", 500)] {
        let message = include(pattern, count).unwrap_err().to_string();
        assert!(
            message.contains(" exceeds the size limit for one or for all patterns; "),
            "{message}"
        );
    }
    // As many as filters have.
    assert_eq!(include("/content/dam/site[0-9]*/[^/]+/_.*(/.*)?", 2000).unwrap(), 1);
    assert_eq!(include(r"/content/\w+(-[\w.]+)?/.*", 200).unwrap(), 1);
}

#[test]
fn a_small_file_does_not_unpack_to_a_huge_one() {
    // Sizes are read from the directory, so that nothing needs to be unpacked for this.
    let mut bytes = zipped(&[("jcr_root/x/a.txt", &"0".repeat(100_000)), FILTER]);
    let limit = (1_u64 << 30) + 100 * bytes.len() as u64;
    let size = 100_000_u32.to_le_bytes();
    while let Some(at) = bytes.windows(4).position(|window| window == size) {
        bytes[at..at + 4].copy_from_slice(&2_000_000_000_u32.to_le_bytes());
    }
    let message =
        ContentPackage::read(Cursor::new(bytes), "p.zip", &PackageLimits::default()).unwrap_err();
    assert_eq!(
        message.to_string(),
        format!("p.zip: unpacks to more than the limit of {limit} bytes")
    );
}

#[test]
fn entries_that_share_their_bytes_are_refused() {
    let mut bytes = zipped(&[("jcr_root/x/a.txt", "text"), ("jcr_root/x/b.txt", "text"), FILTER]);
    // The second entry of the directory points at the first file: the place stands 4 bytes before the name.
    let name = b"jcr_root/x/b.txt";
    let at = bytes.windows(name.len()).rposition(|window| window == name).unwrap();
    bytes[at - 4..at].copy_from_slice(&0_u32.to_le_bytes());
    let message =
        ContentPackage::read(Cursor::new(bytes), "p.zip", &PackageLimits::default()).unwrap_err();
    assert_eq!(message.to_string(), "p.zip: two entries overlap in the ZIP file");
}

#[test]
fn only_documents_are_limited_as_documents() {
    let long = "x".repeat(100_000);
    let limits = || PackageLimits { max_document_bytes: 90_000, ..PackageLimits::default() };
    let plain = format!("<html>{long}ä</html>");
    let read = |text: &str| {
        let bytes = zipped(&[FILTER, ("jcr_root/x/page.xml", text)]);
        ContentPackage::read(Cursor::new(bytes), "test.zip", &limits())
    };
    let mut target = Memory::new();
    install(&mut read(&plain).unwrap(), &mut target).unwrap();
    assert_eq!(target.find("/x/page.xml").unwrap().primary_type(), "nt:file");
    let message =
        read(&format!("<jcr:root {JCR}><a x=\"{long}\"/></jcr:root>")).unwrap_err().to_string();
    assert_eq!(message, "jcr_root/x/page.xml: is longer than the limit of 90000 bytes");
    let many: String = (0..1001).map(|number| format!(" xmlns:p{number}=\"u\"")).collect();
    let message = read(&format!("<jcr:root {JCR}{many}/>")).unwrap_err().to_string();
    assert_eq!(message, "jcr_root/x/page.xml:1: more than 1000 namespaces are declared");
}

#[test]
fn depth_is_limited() {
    let unlimited = PackageLimits::default;
    let deep =
        format!("<jcr:root {JCR} x=\"1\">{}{}</jcr:root>", "<a>".repeat(3), "</a>".repeat(3));
    for name in ["jcr_root/a/.content.xml", "jcr_root/a.xml"] {
        assert_eq!(
            limited(&PackageLimits { max_depth: 3, ..unlimited() }, &[(name, &deep)]),
            format!("{name}:1: nodes are nested deeper than the limit of 3")
        );
    }
    for name in ["jcr_root/a/b/c/d", "jcr_root/a/b/c/d/", "jcr_root/a/b/c/d/e.binary"] {
        let message = limited(&PackageLimits { max_depth: 3, ..unlimited() }, &[(name, "")]);
        assert!(message.contains("is nested deeper than the limit of 3 nodes"), "{message}");
    }
    let path = format!("jcr_root/{}", ["0123456789"; 200].join("/"));
    let message = limited(&PackageLimits { max_depth: 1000, ..unlimited() }, &[(&path, "")]);
    assert!(message.contains("it is longer than"), "{message}");
}

#[test]
fn packages_in_packages_are_bounded() {
    let mut bytes = zipped(&[("jcr_root/x/y.txt", "innermost"), FILTER]);
    for level in 0..6 {
        let mut zip = zip::ZipWriter::new(Cursor::new(Vec::new()));
        let options = zip::write::SimpleFileOptions::default();
        zip.start_file(format!("jcr_root/etc/packages/p{level}.zip"), options).unwrap();
        zip.write_all(&bytes).unwrap();
        bytes = zip.finish().unwrap().into_inner();
    }
    let message =
        ContentPackage::read(Cursor::new(bytes.clone()), "p.zip", &PackageLimits::default())
            .unwrap_err()
            .to_string();
    assert!(message.ends_with(": packages are nested deeper than the limit"), "{message}");
    assert_eq!(message.matches('!').count(), 4, "the way down is shown: {message}");
    let limits = PackageLimits { max_nesting: 6, ..PackageLimits::default() };
    let mut package = ContentPackage::read(Cursor::new(bytes.clone()), "p.zip", &limits).unwrap();
    let mut target = Memory::new();
    install(&mut package, &mut target).unwrap();
    assert!(target.find("/x/y.txt").is_some());
    let limits = PackageLimits { max_nested_bytes: 10, ..limits };
    let message =
        ContentPackage::read(Cursor::new(bytes), "p.zip", &limits).unwrap_err().to_string();
    assert_eq!(
        message,
        "jcr_root/etc/packages/p5.zip: the nested packages exceed the limit of 10 bytes"
    );
}

#[test]
fn packages_in_packages_are_bounded_together() {
    let inner = zipped(&[("jcr_root/x/y.txt", "inner"), FILTER]);
    let mut zip = zip::ZipWriter::new(Cursor::new(Vec::new()));
    for name in ["a", "b"] {
        let options = zip::write::SimpleFileOptions::default();
        zip.start_file(format!("jcr_root/etc/packages/{name}.zip"), options).unwrap();
        zip.write_all(&inner).unwrap();
    }
    let bytes = zip.finish().unwrap().into_inner();
    let size = inner.len() as u64;
    // What lies deeper counts for those beside it, too.
    let deep = with_inner(&[], &inner);
    let deeper = with_inner(&[], &deep);
    let all = (inner.len() + deep.len()) as u64;
    for (nested_bytes, is_read) in [(all, true), (all - 1, false)] {
        let limits = PackageLimits { max_nested_bytes: nested_bytes, ..PackageLimits::default() };
        let read = ContentPackage::read(Cursor::new(deeper.clone()), "p.zip", &limits);
        assert_eq!(read.is_ok(), is_read, "{nested_bytes}");
    }
    let mut zip = zip::ZipWriter::new(Cursor::new(Vec::new()));
    for name in ["a", "b"] {
        let options = zip::write::SimpleFileOptions::default();
        zip.start_file(format!("jcr_root/etc/packages/{name}.zip"), options).unwrap();
        zip.write_all(&deep).unwrap();
    }
    let wide = zip.finish().unwrap().into_inner();
    for (nested_bytes, is_read) in [(2 * all, true), (2 * all - 1, false)] {
        let limits = PackageLimits { max_nested_bytes: nested_bytes, ..PackageLimits::default() };
        let read = ContentPackage::read(Cursor::new(wide.clone()), "p.zip", &limits);
        assert_eq!(read.is_ok(), is_read, "{nested_bytes}");
    }
    for (nested_bytes, is_read) in [(2 * size, true), (2 * size - 1, false)] {
        let limits = PackageLimits { max_nested_bytes: nested_bytes, ..PackageLimits::default() };
        let read = ContentPackage::read(Cursor::new(bytes.clone()), "p.zip", &limits);
        assert_eq!(read.is_ok(), is_read, "{nested_bytes}");
    }
}

/// A header that promises less than the data unpack to is a small bomb.
#[test]
fn entries_that_lie_about_their_size_are_refused() {
    let honest = zipped(&[("jcr_root/x/bomb.txt", &"0".repeat(100_000)), FILTER]);
    let size = 100_000_u32.to_le_bytes();
    for forged in [10_u32, 200_000] {
        let mut bytes = honest.clone();
        while let Some(at) = bytes.windows(4).position(|window| window == size) {
            bytes[at..at + 4].copy_from_slice(&forged.to_le_bytes());
        }
        let mut package =
            match ContentPackage::read(Cursor::new(bytes), "bomb.zip", &PackageLimits::default()) {
                Ok(package) => package,
                Err(error) => panic!("{error}"),
            };
        let message = install(&mut package, &mut Memory::new()).unwrap_err().to_string();
        assert!(message.starts_with("jcr_root/x/bomb.txt: "), "{message}");
    }
}

#[test]
fn damaged_bytes_are_found_while_they_are_stored() {
    let mut bytes =
        zipped(&[("jcr_root/x/a.txt", &"some text that is not random at all ".repeat(50)), FILTER]);
    let at = bytes.windows(5).position(|window| window == b"a.txt").unwrap() + 20;
    bytes[at] ^= 0x55;
    let mut package =
        ContentPackage::read(Cursor::new(bytes), "p.zip", &PackageLimits::default()).unwrap();
    let message = install(&mut package, &mut Memory::new()).unwrap_err().to_string();
    assert!(message.starts_with("jcr_root/x/a.txt: cannot be unpacked"), "{message}");
}

#[test]
fn what_is_no_package_is_refused() {
    let read = |bytes: &[u8]| {
        ContentPackage::read(Cursor::new(bytes.to_vec()), "p.zip", &PackageLimits::default())
            .unwrap_err()
            .to_string()
    };
    assert!(read(b"").starts_with("p.zip: cannot be read as a ZIP file; is it complete?"));
    assert!(
        read(b"PK\x03\x04 and then nothing").starts_with("p.zip: cannot be read as a ZIP file")
    );
    let empty = read(&zipped(&[("readme.txt", "")]));
    assert_eq!(
        empty,
        "p.zip: is not a content package: it has neither `jcr_root` nor `META-INF/vault`"
    );
}

#[test]
fn truncated_packages_are_refused() {
    let Some(folder) = fixture_folder("packages") else {
        return;
    };
    for entry in fs::read_dir(folder).unwrap() {
        let bytes = fs::read(entry.unwrap().path()).unwrap();
        for part in 0..20 {
            let cut = bytes[..bytes.len() * part / 20].to_vec();
            let error =
                ContentPackage::read(Cursor::new(cut), "cut.zip", &PackageLimits::default())
                    .unwrap_err();
            assert!(
                error.to_string().starts_with("cut.zip: cannot be read as a ZIP file"),
                "{error}"
            );
        }
    }
}

/// A small package with a bit of everything.
fn sample() -> Vec<u8> {
    let root =
        format!("<jcr:root {JCR} jcr:primaryType=\"nt:unstructured\" x=\"[a,b]\"><y/></jcr:root>");
    zipped(&[
        FILTER,
        ("META-INF/vault/properties.xml", "<properties><entry key=\"name\">n</entry></properties>"),
        ("jcr_root/x/.content.xml", &root),
        ("jcr_root/x/y.txt", "a file"),
        ("jcr_root/x/z.binary", "bytes"),
        ("jcr_root/x/y.txt.dir/", ""),
    ])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn no_damage_to_a_package_panics(
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        cut in any::<prop::sample::Index>(),
        cuts in any::<bool>(),
    ) {
        let mut bytes = sample();
        for (index, byte) in edits {
            let at = index.index(bytes.len());
            bytes[at] = byte;
        }
        if cuts {
            let at = cut.index(bytes.len());
            bytes.truncate(at);
        }
        if let Ok(mut package) = ContentPackage::read(Cursor::new(bytes), "p.zip", &PackageLimits::default()) {
            let mut target = Memory::new();
            drop(install(&mut package, &mut target));
        }
    }

    #[test]
    fn no_text_panics_as_a_document(text in "(<(jcr:root|[a-z:]{0,4})( [a-z:_]{0,4}=\"[^\"]{0,6}\"| xmlns:jcr=\"http://www.jcp.org/jcr/1.0\"){0,3}/?>|</[a-z:]{0,8}>|[ -~]{0,6}|&[a-z#0-9]{0,4};|<!--|-->|<!\\[CDATA\\[|\\]\\]>|<\\?|\\?>){0,8}") {
        let text = format!("<jcr:root {JCR}>{text}</jcr:root>");
        drop(docview::read_docview("d.xml", text.as_bytes(), &PackageLimits::default()));
        drop(PackageFilter::parse("f.xml", text.as_bytes()));
    }

    #[test]
    fn no_bytes_panic_as_a_document(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
        drop(docview::read_docview("d.xml", &bytes, &PackageLimits::default()));
    }

    #[test]
    fn no_text_panics_as_a_value(text in "[\\[\\]{},\\\\a0u1dD😀]{0,12}") {
        for value_type in tympan_content::ValueType::ALL {
            drop(docview::parse_literal(&format!("{{{}}}{text}", value_type.name()), value_type));
            drop(docview::parse_literal(&text, value_type));
        }
    }
}

/// A file that counts the bytes that are read of it.
#[derive(Debug)]
struct Counting<'a> {
    file: Cursor<&'a [u8]>,
    read: &'a std::cell::Cell<u64>,
}

impl Read for Counting<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        let count = self.file.read(bytes)?;
        self.read.set(self.read.get() + count as u64);
        Ok(count)
    }
}

impl Seek for Counting<'_> {
    fn seek(&mut self, to: std::io::SeekFrom) -> std::io::Result<u64> {
        self.file.seek(to)
    }
}

#[test]
fn entries_are_counted_before_the_directory_is_read() {
    let names: Vec<String> =
        (0..20_000).map(|number| format!("jcr_root/{number:0>100}.txt")).collect();
    let entries: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "")).collect();
    let bytes = zipped(&entries);
    let read = std::cell::Cell::new(0);
    let file = Counting { file: Cursor::new(&bytes), read: &read };
    let limits = PackageLimits { max_entries: 10, ..PackageLimits::default() };
    let error = ContentPackage::read(file, "test.zip", &limits).unwrap_err().to_string();
    assert_eq!(error, "test.zip: the 20000 entries exceed the limit of 10");
    assert!(read.get() < 300_000, "{} of {} bytes are read", read.get(), bytes.len());
}

#[test]
fn a_directory_that_says_less_than_it_holds_is_no_way_around_the_limit() {
    let file = ("jcr_root/x/.content.xml", "");
    let many = zipped(&[FILTER, file, ("jcr_root/a.txt", "")]);
    // A second end of the directory in the comment of the first, with one entry that is not there.
    let mut end = vec![0x50, 0x4b, 5, 6, 0, 0, 0, 0, 1, 0, 1, 0];
    end.extend(46_u32.to_le_bytes());
    end.extend(0_u32.to_le_bytes());
    end.extend([0, 0]);
    let mut forged = many.clone();
    let comment = forged.len() - 2;
    forged[comment..].copy_from_slice(&u16::try_from(end.len()).unwrap().to_le_bytes());
    forged.extend(end);
    let limits = PackageLimits { max_entries: 2, ..PackageLimits::default() };
    let read = ContentPackage::read(Cursor::new(forged), "test.zip", &limits);
    assert!(read.is_err(), "one of the two directories is over the limit");
}

#[test]
fn the_identifier_of_a_package_is_read_without_its_content() {
    let properties = (
        "META-INF/vault/properties.xml",
        "<properties><entry key=\"group\">g</entry><entry key=\"name\">n</entry></properties>",
    );
    let read = |entries: &[(&str, &str)]| {
        PackageId::read(Cursor::new(zipped(entries)), "p.zip", &PackageLimits::default())
    };
    let broken = ("jcr_root/x/.content.xml", "<jcr:root");
    check(&[properties, broken], "not well-formed XML");
    assert_eq!(read(&[properties, broken]).unwrap().to_string(), "g:n");
    for (entries, expected) in [
        (&[("a.txt", "x")][..], "is not a content package"),
        (&[properties, ("jcr_root/../x", "x")], "the entry"),
        (&[("META-INF/vault/properties.xml", "<properties>")], "properties.xml"),
    ] {
        let error = read(entries).unwrap_err().to_string();
        assert!(error.contains(expected), "{entries:?}: {error}");
    }
}
