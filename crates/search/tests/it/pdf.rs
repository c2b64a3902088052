//! PDF, read in a process of its own: this test program, started again for one of its tests.

use tympan_search::{PdfReader, SearchIndexOptions};

use crate::indexed_site::{Site, now, term};

#[test]
fn the_process_that_reads() {
    // Whoever starts it takes the environment away.
    if std::env::vars_os().next().is_none() {
        tympan_search::read_pdf().unwrap();
    }
}

fn site() -> Site {
    let arguments = ["--exact", "pdf::the_process_that_reads", "--nocapture", "--test-threads=1"]
        .map(Into::into);
    let program = std::env::current_exe().unwrap();
    Site::with(SearchIndexOptions {
        pdf_reader: Some(PdfReader { program, arguments: arguments.into() }),
        ..SearchIndexOptions::default()
    })
}

/// Makes a PDF of these objects, numbered from 1; the first is the catalog.
fn pdf(objects: &[String]) -> Vec<u8> {
    let mut file = b"%PDF-1.4\n".to_vec();
    let mut places = Vec::new();
    for (number, object) in (1..).zip(objects) {
        places.push(file.len());
        file.extend(format!("{number} 0 obj\n{object}\nendobj\n").into_bytes());
    }
    let start = file.len();
    file.extend(format!("xref\n0 {}\n0000000000 65535 f \n", objects.len() + 1).into_bytes());
    for place in places {
        file.extend(format!("{place:010} 00000 n \n").into_bytes());
    }
    let size = objects.len() + 1;
    let trailer = format!("trailer\n<< /Size {size} /Root 1 0 R >>\nstartxref\n{start}\n%%EOF\n");
    file.extend(trailer.into_bytes());
    file
}

fn with_content(pages: &str, content: &str) -> Vec<u8> {
    pdf(&[
        "<< /Type /Catalog /Pages 2 0 R >>".to_owned(),
        pages.to_owned(),
        "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 300 300] /Contents 4 0 R \
         /Resources << /Font << /F1 5 0 R >> >> >>"
            .to_owned(),
        format!("<< /Length {} >>\nstream\n{content}\nendstream", content.len()),
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>"
            .to_owned(),
    ])
}

const PAGES: &str = "<< /Type /Pages /Kids [3 0 R] /Count 1 >>";

#[test]
fn text_of_pdf_is_found() {
    let site = site();
    let text = "BT /F1 24 Tf 20 100 Td (Hello alpha world) Tj ET";
    site.file("/content/a.pdf", "application/pdf", &with_content(PAGES, text));
    let found = site.find(term("alpha"));
    assert_eq!(site.index.status(now()).unwrap().first_failures, []);
    assert_eq!(found, ["a.pdf"]);
}

#[test]
fn hostile_pdf_is_noted_and_stops_nothing() {
    let site = site();
    let sound = with_content(PAGES, "BT /F1 24 Tf (alpha) Tj ET");
    // A tree of pages that is its own child, arrays without end, a cut file, noise, an empty file.
    site.file(
        "/content/loop",
        "application/pdf",
        &with_content("<< /Type /Pages /Kids [2 0 R] /Count 1 >>", ""),
    );
    let deep = format!("BT {} ET", "[".repeat(2_000_000));
    site.file("/content/deep", "application/pdf", &with_content(PAGES, &deep));
    let nested = format!("<< /Type /Pages /Kids {} /Count 1 >>", "[".repeat(500_000));
    site.file("/content/nested", "application/pdf", &with_content(&nested, ""));
    site.file("/content/cut", "application/pdf", &sound[..sound.len() / 2]);
    site.file("/content/noise", "application/pdf", &[0xa5; 100_000]);
    site.file("/content/empty", "application/pdf", b"");
    site.file("/content/z", "application/pdf", &sound);
    assert_eq!(site.find(term("alpha")), ["z"]);
    let failures = site.index.status(now()).unwrap().first_failures;
    let failed: Vec<&str> = failures.iter().map(|failure| failure.path.as_str()).collect();
    for hostile in ["/content/cut", "/content/empty", "/content/noise"] {
        assert!(failed.contains(&hostile), "{failures:?}");
    }
    assert!(!failed.contains(&"/content/z"));
}
