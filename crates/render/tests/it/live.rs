//! Scripts and styles read live from a site's folder.

use std::fs;
use std::path::Path;

use tympan_render::{Body, DirSource, Mode, Options, RenderRequest, Renderer, RepositorySource};

use crate::site::{Site, body_text, file};

fn write(root: &Path, path: &str, text: &str) {
    let file = root.join(path);
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(file, text).unwrap();
}

struct Live {
    site: Site,
    folder: tempfile::TempDir,
    renderer: Renderer,
}

impl Live {
    fn new() -> Self {
        let site = Site::sample(Mode::Author);
        let folder = tempfile::tempdir().unwrap();
        let source = DirSource::new(
            folder.path().to_owned(),
            RepositorySource::new(site.repository.clone()),
        );
        let renderer = Renderer::with_scripts(
            Box::new(source),
            Options { mode: Mode::Author, ..Options::default() },
        );
        Self { site, folder, renderer }
    }

    fn text(&self, path: &str) -> String {
        let snapshot = self.site.repository.snapshot().unwrap();
        body_text(&self.renderer.render(&snapshot, &RenderRequest::get(path)))
    }
}

#[test]
fn an_edited_file_shows_on_the_next_request() {
    let live = Live::new();
    let url = "/content/site/en/jcr:content/root/two.html";
    assert_eq!(live.text(url), "<p>Second</p>");
    write(live.folder.path(), "apps/test/text/text.html.j2", "<i>{{ properties.text }}</i>");
    assert_eq!(live.text(url), "<i>Second</i>");
    write(live.folder.path(), "apps/test/text/text.html.j2", "<em>{{ properties.text }}</em>");
    assert_eq!(live.text(url), "<em>Second</em>");
}

#[test]
fn a_folder_with_scripts_replaces_the_repositorys() {
    let live = Live::new();
    live.site.script("/apps/test/text/large.html.j2", "large");
    let url = "/content/site/en/jcr:content/root/two.large.html";
    assert_eq!(live.text(url), "large");
    write(live.folder.path(), "apps/test/text/text.html.j2", "live");
    assert_eq!(live.text(url), "live");
    fs::remove_dir_all(live.folder.path().join("apps")).unwrap();
    assert_eq!(live.text(url), "large");
}

#[test]
fn a_broken_file_shows_its_error_and_recovers() {
    let live = Live::new();
    let url = "/content/site/en/jcr:content/root/two.html";
    write(live.folder.path(), "apps/test/text/text.html.j2", "{% if %}");
    assert!(live.text(url).contains("text.html.j2:1: syntax error"), "{}", live.text(url));
    write(live.folder.path(), "apps/test/text/text.html.j2", "mended");
    assert_eq!(live.text(url), "mended");
}

#[test]
fn styles_are_live_too() {
    let live = Live::new();
    let stored = file(&live.site.repository, "", b"stored {}", "text/css");
    live.site.put("/etc.clientlibs/test/site.css", stored);
    write(live.folder.path(), "etc.clientlibs/test/site.css", "live {}");
    write(live.folder.path(), "apps/test/text/text.html.j2", "{{ clientlib(\"test/site.css\") }}");
    let url = live.text("/content/site/en/jcr:content/root/two.html");
    assert_eq!(live.text(&url), "live {}");
    assert_eq!(live.text("/etc.clientlibs/test/site.css"), "live {}");
    let snapshot = live.site.repository.snapshot().unwrap();
    let response =
        live.renderer.render(&snapshot, &RenderRequest::get("/etc.clientlibs/test/../../x"));
    assert!(!matches!(response.body, Body::Blob(_)));
}
