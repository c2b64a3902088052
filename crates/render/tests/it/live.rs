//! Scripts and styles read live from a site's folder.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use tympan_content::NodePath;
use tympan_render::{
    DirScriptSource, FragmentCache, FragmentCacheOptions, ReadRecording, RenderMode, RenderOptions,
    RenderRequest, RenderResponseBody, Renderer, RepositoryScriptSource,
};

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
        let site = Site::sample(RenderMode::Author);
        let folder = tempfile::tempdir().unwrap();
        let source = DirScriptSource::new(
            folder.path().to_owned(),
            RepositoryScriptSource::new(site.repository.clone()),
        );
        let renderer = Renderer::with_scripts(
            Box::new(source),
            RenderOptions { mode: RenderMode::Author, ..RenderOptions::default() },
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
    assert!(!matches!(response.body, RenderResponseBody::Blob(_)));
}

#[test]
fn cached_fragments_go_with_the_files_that_rendered_them() {
    let live = Live::new();
    let source = DirScriptSource::new(
        live.folder.path().to_owned(),
        RepositoryScriptSource::new(live.site.repository.clone()),
    );
    let cache = FragmentCache::new(FragmentCacheOptions::default());
    let renderer = Renderer::with_scripts(Box::new(source), RenderOptions::default())
        .with_fragments(Arc::clone(&cache));
    live.site.edit(|session| {
        let path = NodePath::new("/apps").unwrap();
        session.set_property(&path, "cache", "always".into()).unwrap();
    });
    let stored = file(&live.site.repository, "", b"stored {}", "text/css");
    live.site.put("/etc.clientlibs/test/site.css", stored);
    let request = RenderRequest {
        recording: ReadRecording::Paths,
        ..RenderRequest::get("/content/site/en/jcr:content/root/two.html")
    };
    let draw = || {
        let snapshot = live.site.repository.snapshot().unwrap();
        let drawn = [0, 1].map(|_| renderer.render(&snapshot, &request));
        let [first, second] = drawn.map(|drawn| (body_text(&drawn), drawn.fragment_counts.hits));
        assert_eq!(first.0, second.0);
        assert_eq!((first.1, second.1), (0, 1), "kept until a file changes");
        first.0
    };
    let script = "apps/test/text/text.html.j2";
    write(live.folder.path(), script, "<i>{{ properties.text }}</i>");
    assert_eq!(draw(), "<i>Second</i>");
    write(live.folder.path(), script, "{{ clientlib(\"test/site.css\") }}");
    let before = draw();
    write(live.folder.path(), "etc.clientlibs/test/site.css", "another {}");
    let after = draw();
    assert_ne!(before, after, "the address of a style changes with the style");
    fs::remove_dir_all(live.folder.path().join("apps")).unwrap();
    assert_eq!(draw(), "<p>Second</p>");
}
