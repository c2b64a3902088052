//! What templates draw: each `inputs/<case>.html.j2` is a page's script, `<case>.html` beside it what visitors get and
//! `<case>.author.html`, where it differs, what authors get. `UPDATE_EXPECTED=1` writes them anew.

use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use tympan_render::RenderMode;

use crate::site::{Site, component};

fn inputs() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/inputs");
    let mut inputs: Vec<PathBuf> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "j2"))
        .collect();
    inputs.sort();
    inputs
}

#[test]
fn inputs_draw_as_expected() {
    let mut wrong = Vec::new();
    for input in inputs() {
        let template = fs::read_to_string(&input).unwrap();
        let base = input.to_str().unwrap().trim_end_matches(".html.j2").to_owned();
        let publish = Site::sample(RenderMode::Publish).draw(&template);
        let author = Site::sample(RenderMode::Author).draw(&template);
        let (publish_file, author_file) = (format!("{base}.html"), format!("{base}.author.html"));
        if std::env::var_os("UPDATE_EXPECTED").is_some() {
            fs::write(&publish_file, &publish).unwrap();
            if author == publish {
                drop(fs::remove_file(&author_file));
            } else {
                fs::write(&author_file, &author).unwrap();
            }
        }
        let expected = fs::read_to_string(&publish_file).unwrap_or_default();
        if publish != expected {
            wrong.push(format!("{publish_file}:\n{publish}"));
        }
        if author != fs::read_to_string(&author_file).unwrap_or(expected) {
            wrong.push(format!("{author_file}:\n{author}"));
        }
    }
    assert!(wrong.is_empty(), "these differ from what is expected:\n{}", wrong.join("\n"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn any_text_is_escaped_and_reads_back(text in "[\\PC&<>\"'/]{0,40}") {
        let site = Site::empty();
        site.script("/apps/t/text/text.html.j2", "{{ properties.text }}");
        site.put("/content/a", component("a", "t/text").with_property("text", text.as_str()));
        let drawn = site.text("/content/a.html");
        prop_assert!(!drawn.contains(['<', '>', '"', '\'']));
        let read = [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&#39;", "'"), ("&amp;", "&")];
        let read = read.iter().fold(drawn, |text, (escape, plain)| text.replace(escape, plain));
        prop_assert_eq!(read, text);
    }
}
