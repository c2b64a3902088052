//! Metadata that goes back into PDF: appended, and nothing before it changed.

use std::process::Command;

use lopdf::{Document, Object, dictionary};
use tympan_assets::{AssetProcessor, AssetUpdateOutcome, WriteBackOutcome};
use tympan_content::NodePath;

use crate::ingest::{assets, read, upload};
use crate::tools::pdf;
use crate::write_back::{at, describe, original};

/// The same document as programs of today store it: its objects in compressed streams.
fn modern() -> Vec<u8> {
    let mut bytes = Vec::new();
    Document::load_mem(&pdf()).unwrap().save_modern(&mut bytes).unwrap();
    bytes
}

fn written(assets: &AssetProcessor, asset: &NodePath, title: &str, time: u64) -> Vec<u8> {
    describe(assets, asset, title);
    let written = assets.write_back(asset, at(time)).unwrap();
    assert!(matches!(written, WriteBackOutcome::Written(_)), "{written:?}");
    original(assets, &read(assets, asset))
}

fn skipped(bytes: &[u8], expected: &str) {
    let assets = assets();
    let asset = upload(&assets, "/content/dam/a.pdf", "application/pdf", bytes);
    describe(&assets, &asset, "title");
    let WriteBackOutcome::Skipped(reason) = assets.write_back(&asset, at(4)).unwrap() else {
        panic!()
    };
    assert!(reason.contains(expected), "{reason}");
    assert_eq!(original(&assets, &read(&assets, &asset)), bytes);
}

#[test]
fn a_document_says_what_people_wrote_about_it() {
    for (name, bytes) in [("classic.pdf", pdf()), ("modern.pdf", modern())] {
        let assets = assets();
        let asset = upload(&assets, &format!("/content/dam/{name}"), "", &bytes);
        assets.process_asset(&asset, at(2)).unwrap();
        let first = written(&assets, &asset, "A <title>", 4);
        assert!(first.starts_with(&bytes), "{name}: it is appended");
        assert_eq!(
            assets.write_back(&asset, at(5)).unwrap(),
            WriteBackOutcome::Unchanged,
            "{name}"
        );
        let second = written(&assets, &asset, "Another", 6);
        assert!(second.starts_with(&first), "{name}: so is the next");
        let document = Document::load_mem(&second).unwrap();
        assert_eq!(document.get_pages().len(), 2, "{name}");
        // Elsewhere, the file tells its title.
        let other = upload(&assets, "/content/dam/other.pdf", "", &second);
        assert!(matches!(
            assets.process_asset(&other, at(7)).unwrap(),
            AssetUpdateOutcome::Processed { .. }
        ));
        let other = read(&assets, &other);
        let metadata = other.find_descendant("jcr:content/metadata").unwrap();
        assert_eq!(metadata.text("dc:title"), Some("Another"), "{name}");
    }
}

#[test]
fn signed_encrypted_and_damaged_documents_stay_as_they_are() {
    let mut signed = Document::load_mem(&pdf()).unwrap();
    signed.add_object(dictionary! { "Type" => "Sig", "Filter" => "Adobe.PPKLite" });
    let mut bytes = Vec::new();
    signed.save_to(&mut bytes).unwrap();
    skipped(&bytes, "it is signed");

    let mut certified = Document::load_mem(&pdf()).unwrap();
    let form = certified.add_object(dictionary! { "SigFlags" => 3 });
    let root = certified.trailer.get(b"Root").unwrap().as_reference().unwrap();
    let catalog = certified.get_object_mut(root).unwrap().as_dict_mut().unwrap();
    catalog.set("AcroForm", Object::Reference(form));
    let mut bytes = Vec::new();
    certified.save_to(&mut bytes).unwrap();
    skipped(&bytes, "it is signed");

    let text = String::from_utf8(pdf()).unwrap();
    let encrypted = text.replace("/Root 1 0 R", "/Root 1 0 R /Encrypt 5 0 R");
    skipped(encrypted.as_bytes(), "");

    let whole = pdf();
    skipped(&whole[..whole.len() / 2], "it is not a readable PDF");
}

#[test]
fn other_programs_read_the_document() {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in [("classic.pdf", pdf()), ("modern.pdf", modern())] {
        let assets = assets();
        let asset = upload(&assets, &format!("/content/dam/{name}"), "", &bytes);
        let file = folder.path().join(name);
        std::fs::write(&file, written(&assets, &asset, "A title", 4)).unwrap();
        for (program, arguments, expected) in [
            ("exiftool", &["-s3", "-XMP-dc:Title"][..], "A title"),
            ("pdfinfo", &["-meta"][..], "A title"),
            ("pdfinfo", &[][..], "Pages:           2"),
        ] {
            let Ok(output) = Command::new(program).args(arguments).arg(&file).output() else {
                println!("skipped: `{program}` is not installed");
                continue;
            };
            let said = String::from_utf8_lossy(&output.stdout);
            assert!(
                output.status.success() && said.contains(expected),
                "{name} {program}: {output:?}"
            );
            assert!(output.stderr.is_empty(), "{name} {program}: {output:?}");
        }
    }
}
