//! Static export: what becomes a file, under which name, and that files follow content.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use bytes::Bytes;
use tempfile::TempDir;
use tympan_content::{NodePath, Property, Snapshot, Subtree, Value};
use tympan_render::{ImageAddress, RenderMode};
use tympan_render_export::{
    ExportEnvironment, ExportError, ExportFinding, ExportImageSource, ExportOptions, ExportReport,
    ExportRule, ExportWriteMode, FullExportStart, NotExportedReason, OnDemandResponse,
    StaticExportHandler, StaticExporter,
};

use crate::site::{Site, component, file, page};

/// Draws a picture as a text that names it.
#[derive(Debug)]
struct Named;

impl ExportImageSource for Named {
    fn render_image(&self, _: &Snapshot, address: &ImageAddress) -> Result<Option<Bytes>, String> {
        Ok(Some(format!("{} {}", address.asset, address.shape).into()))
    }
}

/// A site and the folder that it is exported to.
pub(crate) struct Export {
    pub(crate) site: Site,
    pub(crate) folder: TempDir,
    pub(crate) options: ExportOptions,
}

pub(crate) const QUIET: &(dyn Fn(usize, usize) + Sync) = &|_, _| {};

impl Export {
    fn of(site: Site) -> Self {
        // Visitors may read content, as in an instance.
        site.repository.install_initial_policies(std::time::SystemTime::UNIX_EPOCH).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let options = ExportOptions {
            is_exported_by_default: true,
            ..ExportOptions::new(folder.path().join("out"))
        };
        Self { site, folder, options }
    }

    /// A site of linked pages below `/content/site/en`.
    pub(crate) fn sample() -> Self {
        let site = Site::sample(RenderMode::Publish);
        site.script(
            "/apps/test/links/links.html.j2",
            "<title>{{ page.title }}</title>{% for one in nav(\"/content/site/en\") %}\
             <a href=\"{{ one.url }}\">{{ one.title }}</a>{% endfor %}{{ properties.text|safe }}\
             {{ include_children(resource) }}",
        );
        site.put("/content/site/en/linked", page("linked", "Linked", "test/links"));
        let export = Self::of(site);
        export.set(
            "/content/site/en/linked",
            "text",
            "<p><a href=\"/content/site/en/apple.html?q=1&amp;r=2#x\">1</a>\
             <a href=\"/content/site/en/apple.plain.html\">2</a>\
             <a href=\"apple.html/suffix.html\">3</a><img src=\"/content/dam/map.png.width-640.webp\">\
             <a href=\"https://example.org/a.html\">4</a><a href=\"#top\">5</a>\
             <a href=\"/content/none.html\">6</a></p>",
        );
        export
    }

    pub(crate) fn press(&self) -> ExportEnvironment<'_> {
        ExportEnvironment {
            repository: &self.site.repository,
            renderer: self.site.renderer(),
            images: &Named,
        }
    }

    pub(crate) fn open(&self) -> StaticExporter {
        StaticExporter::open(self.options.clone()).unwrap()
    }

    pub(crate) fn full(&self) -> ExportReport {
        self.open()
            .export_all(
                self.press(),
                (FullExportStart::FromScratch, ExportWriteMode::WriteFiles),
                QUIET,
            )
            .unwrap()
    }

    pub(crate) fn changed(&self) -> ExportReport {
        self.open().export_changes(self.press(), ExportWriteMode::WriteFiles, QUIET).unwrap()
    }

    /// Returns the files that are served.
    pub(crate) fn files(&self) -> BTreeMap<String, String> {
        files_of(&self.options.dir.join("current"))
    }

    /// Returns the files of an export from nothing.
    pub(crate) fn files_anew(&self) -> BTreeMap<String, String> {
        let beside = self.folder.path().join("anew");
        let exporter =
            StaticExporter::open(ExportOptions { dir: beside.clone(), ..self.options.clone() })
                .unwrap();
        exporter
            .export_all(
                self.press(),
                (FullExportStart::FromScratch, ExportWriteMode::WriteFiles),
                QUIET,
            )
            .unwrap();
        let files = files_of(&beside.join("current"));
        std::fs::remove_dir_all(beside).unwrap();
        files
    }

    /// Sets a property of a page's content, or of a node without content.
    pub(crate) fn set(&self, path: &str, name: &str, value: &str) {
        self.site.edit(|session| {
            let path = NodePath::new(path).unwrap();
            let content = path.child("jcr:content").unwrap();
            let has_content = session.node(&content).unwrap().is_some();
            let target = if has_content { content } else { path };
            session.set_property(&target, name, value.into()).unwrap();
        });
    }

    fn delete(&self, path: &str) {
        self.site.edit(|session| {
            session.remove_node(&NodePath::new(path).unwrap()).unwrap();
        });
    }
}

fn files_of(folder: &Path) -> BTreeMap<String, String> {
    let mut files = BTreeMap::new();
    let mut pending = vec![folder.to_owned()];
    while let Some(next) = pending.pop() {
        for entry in std::fs::read_dir(&next).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                pending.push(path);
                continue;
            }
            let name = path.strip_prefix(folder).unwrap().to_str().unwrap().to_owned();
            files
                .insert(name, String::from_utf8_lossy(&std::fs::read(&path).unwrap()).into_owned());
        }
    }
    files
}

/// Returns the only file whose name begins and ends so.
pub(crate) fn only(files: &BTreeMap<String, String>, begin: &str, end: &str) -> String {
    let found: Vec<_> =
        files.keys().filter(|name| name.starts_with(begin) && name.ends_with(end)).collect();
    assert_eq!(found.len(), 1, "{begin}…{end} in {:?}", files.keys());
    found[0].clone()
}

/// Returns the targets of all links of a page.
pub(crate) fn hrefs(page: &str) -> Vec<String> {
    let parts = page.split("href=\"").skip(1).chain(page.split("src=\"").skip(1));
    parts.filter_map(|part| Some(part.split_once('"')?.0.to_owned())).collect()
}

#[test]
fn pages_and_what_they_link_to_become_files() {
    let export = Export::sample();
    let report = export.full();
    let files = export.files();
    assert_eq!((report.written, report.failure_count()), (files.len(), 0), "{report:?}");
    let targets = hrefs(&files["content/site/en/linked.html"]);
    let query = targets.iter().find_map(|one| one.strip_prefix('/')?.strip_suffix("#x")).unwrap();
    assert!(
        query.starts_with("content/site/en/apple_") && files.contains_key(query),
        "{targets:?}"
    );
    assert!(targets.contains(&"/content/site/en/apple.html".to_owned()), "{targets:?}");
    for same in ["https://example.org/a.html", "#top", "/content/none.html"] {
        assert!(targets.contains(&same.to_owned()), "{targets:?}");
    }
    assert_eq!(files["content/dam/map.png.width-640.webp"], "/content/dam/map.png width-640");
    assert_eq!(files["content/dam/map.png"], "not really a picture");
    let broken: Vec<_> = report
        .findings
        .iter()
        .filter(|one| matches!(one, ExportFinding::BrokenLink { .. }))
        .collect();
    assert!(broken.iter().any(|one| one.to_string().contains("/content/none.html")), "{broken:?}");
}

#[test]
fn pages_that_search_texts_follow_what_they_find() {
    let export = Export::sample();
    export.site.script(
        "/apps/test/found/found.html.j2",
        "{% for hit in search(\"/content/site/en\", \"walnut\").hits %}<a href=\"{{ hit.page.url }}\">{% endfor %}",
    );
    export.site.put("/content/site/en/found", page("found", "Found", "test/found"));
    assert_eq!(export.full().failure_count(), 0);
    let found = || hrefs(&export.files()["content/site/en/found.html"]);
    assert_eq!(found(), [""; 0]);
    export.set("/content/site/en/apple", "jcr:description", "beside a walnut tree");
    assert_eq!(export.changed().failure_count(), 0);
    assert_eq!(found(), ["/content/site/en/apple.html"]);
    assert_eq!(export.files(), export.files_anew());
    export.delete("/content/site/en/apple");
    export.changed();
    assert_eq!(found(), [""; 0]);
    assert_eq!(export.files(), export.files_anew());
}

#[test]
fn names_below_other_files_are_names_beside_them() {
    let export = Export::sample();
    export.set(
        "/content/site/en/linked",
        "text",
        "<img src=\"/content/dam/map.png/_jcr_content/renditions/original\">\
         <a href=\"/content/site/en/apple.html/a/b.html\">x</a>",
    );
    let report = export.full();
    let files = export.files();
    let targets = hrefs(&files["content/site/en/linked.html"]);
    let rendition = only(&files, "content/dam/map.png_", "");
    assert!(targets.contains(&format!("/{rendition}")), "{targets:?} {report:?}");
    let suffix = only(&files, "content/site/en/apple_", ".html");
    assert!(targets.contains(&format!("/{suffix}")), "{targets:?}");
    assert!(
        files.contains_key("content/dam/map.png")
            && files.contains_key("content/site/en/apple.html")
    );
}

#[test]
fn content_decides_what_is_exported_and_how_it_is_called() {
    let mut export = Export::sample();
    export.options.is_exported_by_default = false;
    export.options.prefix = "/export".to_owned();
    export.options.dynamic_prefix = "/live".to_owned();
    export.set("/content/site/en/linked", "export", "true");
    export.set("/content/site/en/zebra", "export", "true");
    export.set("/content/site/en/zebra/stripe", "export", "false");
    export.set("/content/site/en/zebra", "exportname", "/z/");
    let report = export.full();
    let files = export.files();
    let names: Vec<&str> = files.keys().map(String::as_str).collect();
    assert!(
        names.contains(&"z.html") && names.contains(&"content/site/en/linked.html"),
        "{names:?}"
    );
    // Extensions that are exported without a word, and nothing else.
    assert!(names.contains(&"content/dam/map.png"), "{names:?}");
    assert!(
        !names.iter().any(|name| name.contains("apple") || name.contains("stripe")),
        "{names:?}"
    );
    assert!(report.not_exported > 0);
    let targets = hrefs(&files["content/site/en/linked.html"]);
    assert!(targets.contains(&"/export/z.html".to_owned()), "{targets:?}");
    assert!(targets.contains(&"/live/content/site/en/apple.html".to_owned()), "{targets:?}");
    let listed = |address: &str| {
        let mut found = None;
        export
            .open()
            .list_addresses(export.press(), &mut |one| {
                if one.address.to_string() == address {
                    found = Some(one.file);
                }
            })
            .unwrap();
        found.unwrap()
    };
    assert_eq!(listed("/content/site/en/zebra.html"), Ok("z.html".to_owned()));
    let refused = listed("/content/site/en/zebra/stripe.html").unwrap_err();
    assert_eq!(refused, NotExportedReason::Excluded("/content/site/en/zebra/stripe".to_owned()));
    assert_eq!(listed("/content/site/en/apple.html").unwrap_err(), NotExportedReason::Undecided);
}

#[test]
fn links_change_their_scheme_and_can_be_relative() {
    let mut export = Export::sample();
    export.options.secure_server_url = "https://s.example".to_owned();
    export.options.server_url = "http://www.example".to_owned();
    export.set("/content/site/en/apple", "secure", "true");
    export.set("/content/site/en/zebra", "secure", "both");
    export.set("/content/site/en/apple", "sling:resourceType", "test/links");
    export.set("/content/site/en/apple", "text", "<img src=\"/content/dam/map.png\">");
    export.full();
    let files = export.files();
    let from_plain = hrefs(&files["content/site/en/linked.html"]);
    assert!(
        from_plain.contains(&"https://s.example/content/site/en/apple.html".to_owned()),
        "{from_plain:?}"
    );
    assert!(from_plain.contains(&"/content/site/en/zebra.html".to_owned()), "{from_plain:?}");
    let from_secure = hrefs(&files["content/site/en/apple.html"]);
    assert!(
        from_secure.contains(&"http://www.example/content/site/en/linked.html".to_owned()),
        "{from_secure:?}"
    );
    assert!(from_secure.contains(&"/content/site/en/zebra.html".to_owned()), "{from_secure:?}");
    assert!(from_secure.contains(&"/content/dam/map.png".to_owned()), "{from_secure:?}");

    let mut export = Export::sample();
    export.options.has_relative_links = true;
    export.full();
    let targets = hrefs(&export.files()["content/site/en/linked.html"]);
    assert!(targets.contains(&"apple.html".to_owned()), "{targets:?}");
    assert!(targets.contains(&"../../dam/map.png.width-640.webp".to_owned()), "{targets:?}");
}

#[test]
fn rules_give_parts_of_a_site_folders_and_prefixes_of_their_own() {
    let rule = |source: &str, prefix: &str, folder: &str, is_relative| {
        let mut rule = ExportRule::new(source, prefix, folder).unwrap();
        rule.has_relative_links = is_relative;
        rule
    };
    let mut export = Export::sample();
    export.options.prefix = "/export".to_owned();
    export.options.rules = vec![
        rule("/content/site/en/zebra(/.*)?", "http://zebra.example", "z", Some(true)),
        // A rule that fits nothing that the first one did.
        rule("/content/site/en/(zebra|apple)", "/fruit", "a", None),
        rule("/content/dam(/.*)?", "/media", "", None),
    ];
    export.set("/content/site/en/zebra", "sling:resourceType", "test/links");
    export.set(
        "/content/site/en/zebra",
        "text",
        "<a href=\"/content/site/en/zebra/stripe.html\">x</a><img src=\"/content/dam/map.png\">",
    );
    let report = export.full();
    let files = export.files();
    assert_eq!(report.failure_count(), 0, "{report:?}");
    for name in [
        "z/content/site/en/zebra.html",
        "z/content/site/en/zebra/stripe.html",
        "a/content/site/en/apple.html",
        "content/site/en/linked.html",
        "content/dam/map.png",
    ] {
        assert!(files.contains_key(name), "{name}: {:?}", files.keys());
    }
    assert!(!files.contains_key("content/site/en/zebra.html"));
    // Links lead to the server or prefix of their rule, and are relative within one that says so.
    let targets = hrefs(&files["content/site/en/linked.html"]);
    for target in [
        "http://zebra.example/content/site/en/zebra.html",
        "/fruit/content/site/en/apple.html",
        "/media/content/dam/map.png.width-640.webp",
        "/export/content/site/en/linked.html",
    ] {
        assert!(targets.contains(&target.to_owned()), "{target}: {targets:?}");
    }
    let targets = hrefs(&files["z/content/site/en/zebra.html"]);
    for target in [
        "zebra/stripe.html",
        "zebra.html",
        "/fruit/content/site/en/apple.html",
        "/media/content/dam/map.png",
    ] {
        assert!(targets.contains(&target.to_owned()), "{target}: {targets:?}");
    }
    // A change and a visitor find them again.
    export.set("/content/site/en/zebra/stripe", "jcr:title", "Other");
    export.changed();
    assert_eq!(export.files(), export.files_anew());
    export.delete("/content/site/en/zebra/stripe");
    assert_eq!(export.changed().removed, 1);
    let exporter = export.open();
    let served = export.options.dir.join("current");
    let on_demand = |url: &str| exporter.export_on_demand(export.press(), url).unwrap();
    for (url, file) in [
        ("/content/site/en/zebra.html", "z/content/site/en/zebra.html"),
        ("http://zebra.example/content/site/en/zebra.html", "z/content/site/en/zebra.html"),
        ("/fruit/content/site/en/apple.html", "a/content/site/en/apple.html"),
        ("/export/content/site/en/linked.html", "content/site/en/linked.html"),
        ("/media/content/dam/map.png", "content/dam/map.png"),
    ] {
        std::fs::remove_file(served.join(file)).unwrap();
        let found = on_demand(url);
        assert!(
            matches!(found, OnDemandResponse::Bytes { .. } | OnDemandResponse::Blob { .. }),
            "{url}: {found:?}"
        );
        assert!(served.join(file).is_file(), "{url}");
    }
    for url in [
        "/z/content/site/en/zebra.html",
        "/export/content/site/en/apple.html",
        "/fruit/content/site/en/linked.html",
        "/fruit/../z/content/site/en/zebra.html",
        "http://other.example/content/site/en/zebra.html",
    ] {
        let found = on_demand(url);
        assert!(
            matches!(found, OnDemandResponse::Missing | OnDemandResponse::Redirect(_)),
            "{url}: {found:?}"
        );
    }
}

#[test]
fn a_change_renders_its_dependents_and_nothing_else() {
    let export = Export::sample();
    export.full();
    assert_eq!(export.changed(), ExportReport::default());
    // A text that one page shows.
    export.set("/content/site/en/zebra/stripe", "jcr:description", "new");
    let report = export.changed();
    assert_eq!(report.written, 0, "{report:?}");
    // A title that the navigation shows, too: the page, its variants, and the page with the navigation.
    export.set("/content/site/en/zebra", "jcr:title", "Other");
    let report = export.changed();
    assert_eq!(report.written, 2, "{report:?}");
    assert!(export.files()["content/site/en/linked.html"].contains("Other"));
    assert_eq!(export.files(), export.files_anew());
}

#[test]
fn files_come_and_go_with_their_pages() {
    let export = Export::sample();
    export.full();
    export.site.put("/content/site/en/new/deep", page("deep", "Deep", "test/page"));
    let report = export.changed();
    assert!(export.files().contains_key("content/site/en/new/deep.html"), "{report:?}");
    export.delete("/content/site/en/new");
    let report = export.changed();
    assert_eq!(report.removed, 1, "{report:?}");
    assert!(!export.options.dir.join("current/content/site/en/new").exists());
    // What is said above decides about everything below.
    export.set("/content/site/en/zebra", "export", "false");
    export.changed();
    assert!(
        !export.files().keys().any(|name| name.contains("zebra")),
        "{:?}",
        export.files().keys()
    );
    export.set("/content/site/en/zebra", "export", "true");
    export.changed();
    assert!(export.files().contains_key("content/site/en/zebra/stripe.html"));
    export.set("/content/site/en", "exportname", "/e");
    export.changed();
    assert_eq!(export.files(), export.files_anew());
    assert!(export.files().contains_key("e/zebra/stripe.html"));
}

#[test]
fn a_page_that_fails_keeps_its_file_until_it_is_mended() {
    let export = Export::sample();
    let twig =
        Subtree::new("part", "nt:unstructured").with_property("sling:resourceType", "test/part");
    export.site.script("/apps/test/part/part.html.j2", "<i>fine</i>");
    export.site.edit(|session| {
        session
            .put_node(&NodePath::new("/content/site/en/linked/jcr:content/part").unwrap(), twig)
            .unwrap();
    });
    export.full();
    let before = export.files();
    assert!(before["content/site/en/linked.html"].contains("fine"));
    export.site.script("/apps/test/part/part.html.j2", "{{ no_such_function() }}");
    let report = export.changed();
    assert_eq!(report.failure_count(), 1, "{report:?}");
    assert_eq!(export.files(), before);
    // Nothing changes, and still it is tried again.
    assert_eq!(export.changed().failure_count(), 1);
    export.site.script("/apps/test/part/part.html.j2", "<i>mended</i>");
    assert_eq!(export.changed().failure_count(), 0);
    assert!(export.files()["content/site/en/linked.html"].contains("mended"));
    assert_eq!(export.changed(), ExportReport::default());
}

#[test]
fn redirects_become_pages_that_send_on() {
    let export = Export::sample();
    export.set("/content/site/en/apple", "cq:redirectTarget", "/content/site/en/zebra");
    export.full();
    let files = export.files();
    assert!(
        files["content/site/en/apple.html"].contains("url=/content/site/en/zebra.html"),
        "{files:?}"
    );
}

#[test]
fn nothing_that_the_user_may_not_read_is_exported() {
    let export = Export::sample();
    export.full();
    assert!(export.files().contains_key("content/site/en/apple.html"));
    let entry = Subtree::new("deny", "rep:DenyACE")
        .with_property("rep:principalName", "everyone")
        .with_property(
            "rep:privileges",
            Property::List(
                tympan_content::ValueType::Name,
                vec![Value::Name("jcr:all".to_owned())],
            ),
        );
    export.site.edit(|session| {
        let policy = NodePath::new("/content/site/en/apple/rep:policy").unwrap();
        session.put_node(&policy, Subtree::new("rep:policy", "rep:ACL").with_child(entry)).unwrap();
    });
    export.changed();
    let files = export.files();
    assert!(!files.contains_key("content/site/en/apple.html"), "{:?}", files.keys());
    assert!(!files["content/site/en/linked.html"].contains("An apple"));
}

#[test]
fn two_addresses_of_one_name_are_reported() {
    let export = Export::sample();
    export.set("/content/site/en/apple", "exportname", "/same");
    export.set("/content/site/en/zebra", "exportname", "/same");
    let report = export.full();
    let failed: Vec<_> = report.findings.iter().filter(|one| one.is_failure()).collect();
    assert_eq!(failed.len(), 1, "{report:?}");
    assert!(failed[0].to_string().contains("uses the same file `same.html`"), "{failed:?}");
}

#[test]
fn hostile_names_stay_in_the_folder_or_are_reported() {
    let export = Export::sample();
    for (folder, name) in
        [("apple", "/../../outside"), ("zebra", "a\\..\\b"), ("secret", &*"x".repeat(300))]
    {
        export.set(&format!("/content/site/en/{folder}"), "exportname", name);
    }
    export.site.put(
        "/content/site/en/.htaccess",
        file(&export.site.repository, ".htaccess", b"Deny", "text/plain"),
    );
    export.site.put("/content/site/en/100%", page("100%", "Per cent", "test/page"));
    export.site.put("/content/site/en/ä ö", page("ä ö", "Umlaut", "test/page"));
    let report = export.full();
    let failed: Vec<String> =
        report.findings.iter().filter(|one| one.is_failure()).map(ToString::to_string).collect();
    assert!(
        failed.iter().any(|one| one.contains("apple") && one.contains("leads out")),
        "{failed:?}"
    );
    assert!(
        failed.iter().any(|one| one.contains("secret") && one.contains("too long")),
        "{failed:?}"
    );
    assert!(failed.iter().any(|one| one.contains(".htaccess")), "{failed:?}");
    let outside: Vec<_> = std::fs::read_dir(export.folder.path()).unwrap().collect();
    assert_eq!(outside.len(), 1, "{outside:?}");
    let files = export.files();
    assert!(files.contains_key("content/site/en/100%.html"), "{:?}", files.keys());
    assert!(files.contains_key("content/site/en/ä ö.html"), "{:?}", files.keys());
    let targets = hrefs(&files["content/site/en/linked.html"]);
    assert!(targets.contains(&"/content/site/en/100%25.html".to_owned()), "{targets:?}");
}

#[test]
fn what_finished_pages_link_to_is_not_forgotten_by_a_cut() {
    for steps in 1..8 {
        let export = Export::sample();
        // The page with the links is the first one that is drawn, what it links to comes last.
        export.site.put("/content/site/a", page("a", "First", "test/links"));
        export.set(
            "/content/site/a",
            "text",
            "<a href=\"/content/site/en/apple.plain.html\">1</a>\
            <a href=\"/content/site/en/zebra.html?q=1\">2</a>",
        );
        cut_after(steps, |hear| {
            export
                .open()
                .export_all(
                    export.press(),
                    (FullExportStart::FromScratch, ExportWriteMode::WriteFiles),
                    hear,
                )
                .unwrap();
        });
        export
            .open()
            .export_all(
                export.press(),
                (FullExportStart::Resume, ExportWriteMode::WriteFiles),
                QUIET,
            )
            .unwrap();
        assert_eq!(export.files(), export.files_anew(), "{steps}");
    }
}

/// Runs with a progress that ends the run after some steps, as a crash would.
fn cut_after(steps: usize, run: impl FnOnce(&(dyn Fn(usize, usize) + Sync))) -> bool {
    let left = std::sync::atomic::AtomicUsize::new(steps);
    let hear = |_: usize, _: usize| {
        let before = left.fetch_update(
            std::sync::atomic::Ordering::SeqCst,
            std::sync::atomic::Ordering::SeqCst,
            |left| left.checked_sub(1),
        );
        assert!(before.is_ok(), "cut");
    };
    catch_unwind(AssertUnwindSafe(|| run(&hear))).is_err()
}

#[test]
fn a_full_export_that_is_cut_serves_what_was_and_goes_on() {
    let export = Export::sample();
    export.full();
    let before = export.files();
    export.set("/content/site/en/zebra", "jcr:title", "Later");
    let mut cuts = 0;
    for steps in 0.. {
        let is_cut = cut_after(steps, |hear| {
            export
                .open()
                .export_all(
                    export.press(),
                    (FullExportStart::Resume, ExportWriteMode::WriteFiles),
                    hear,
                )
                .unwrap();
        });
        if !is_cut {
            break;
        }
        cuts += 1;
        assert_eq!(export.files(), before, "{steps}");
    }
    assert!(cuts >= 1);
    assert_eq!(export.files(), export.files_anew());
}

#[test]
fn an_unfinished_export_keeps_what_is_whole_and_still_right() {
    let export = Export::sample();
    assert!(cut_after(4, |hear| {
        export
            .open()
            .export_all(
                export.press(),
                (FullExportStart::FromScratch, ExportWriteMode::WriteFiles),
                hear,
            )
            .unwrap();
    }));
    // Half a file, and a page that changes before the run goes on.
    let tree = export.options.dir.join("tree-000001");
    let written = files_of(&tree);
    assert!(written.len() > 1, "{written:?}");
    for (at, (name, text)) in written.iter().enumerate() {
        // One is cut, one has other bytes of the same length, as a disk leaves blocks that were never written.
        let half = match at % 2 {
            0 => text.as_bytes()[..text.len() / 2].to_vec(),
            _ => vec![0; text.len()],
        };
        std::fs::write(tree.join(name), half).unwrap();
    }
    export.set("/content/site/en/zebra", "jcr:title", "Later");
    export
        .open()
        .export_all(export.press(), (FullExportStart::Resume, ExportWriteMode::WriteFiles), QUIET)
        .unwrap();
    assert_eq!(export.files(), export.files_anew());
    assert!(matches!(
        StaticExporter::open(ExportOptions::new(export.folder.path().join("other")))
            .unwrap()
            .export_changes(export.press(), ExportWriteMode::WriteFiles, QUIET),
        Err(ExportError::NoUnfinishedRun { .. })
    ));
}

#[test]
fn a_cut_while_a_change_is_exported_leaves_nothing_stale() {
    for steps in 0..4 {
        let export = Export::sample();
        export.full();
        export.set("/content/site/en/zebra", "jcr:title", "Later");
        export.set("/content/site/en/apple", "jcr:title", "Too");
        cut_after(steps, |hear| {
            export
                .open()
                .export_changes(export.press(), ExportWriteMode::WriteFiles, hear)
                .unwrap();
        });
        // Every file is whole: the old one or the new one.
        for text in export.files().values() {
            assert!(!text.is_empty());
        }
        export.changed();
        assert_eq!(export.files(), export.files_anew(), "{steps}");
    }
}

#[test]
fn pictures_of_titles_are_files_beside_their_page() {
    let export = Export::sample();
    export.site.script("/apps/test/links/title.png.j2", "{{ send_text_picture(page.title) }}");
    export.set(
        "/content/site/en/linked",
        "text",
        "<img src=\"/content/site/en/linked.title.png\" alt=\"Linked\">",
    );
    export.full();
    let picture = export.options.dir.join("current/content/site/en/linked.title.png");
    let first = std::fs::read(&picture).unwrap();
    assert!(first.starts_with(b"\x89PNG"));
    let page = export.files()["content/site/en/linked.html"].clone();
    assert!(page.contains("src=\"/content/site/en/linked.title.png\""), "{page}");
    // A new title is a new picture; another page's change is none.
    export.set("/content/site/en/zebra", "jcr:description", "new");
    export.changed();
    assert_eq!(std::fs::read(&picture).unwrap(), first);
    export.set("/content/site/en/linked", "jcr:title", "Another title");
    let report = export.changed();
    assert!(report.written >= 2, "{report:?}");
    assert_ne!(std::fs::read(&picture).unwrap(), first);
    export.delete("/content/site/en/linked");
    export.changed();
    assert!(!picture.exists(), "it goes with its page");
}

#[test]
fn a_dry_run_writes_nothing() {
    let export = Export::sample();
    let exporter = export.open();
    let report = exporter
        .export_all(export.press(), (FullExportStart::FromScratch, ExportWriteMode::DryRun), QUIET)
        .unwrap();
    assert!(report.rendered > 5 && report.written == 0, "{report:?}");
    assert!(!export.options.dir.join("current").exists());
    drop(exporter);
    export.full();
    let before = export.files();
    export.delete("/content/site/en/apple");
    let exporter = export.open();
    let report = exporter.export_changes(export.press(), ExportWriteMode::DryRun, QUIET).unwrap();
    assert!(report.removed > 0, "{report:?}");
    drop(exporter);
    assert_eq!(export.files(), before);
    // It still has to be done.
    assert!(export.changed().removed > 0);
}

#[test]
fn visitors_make_files_of_pages_and_of_names_that_pages_link_to() {
    let mut export = Export::sample();
    export.options.prefix = "/export".to_owned();
    export.options.handler = StaticExportHandler::OnDemand;
    export.set("/content/site/en/secret", "export", "false");
    let exporter = export.open();
    exporter.export_pending_changes(export.press(), QUIET).unwrap();
    let ask = |url: &str| exporter.export_on_demand(export.press(), url).unwrap();
    let is_file = |answer: OnDemandResponse| {
        matches!(answer, OnDemandResponse::Bytes { .. } | OnDemandResponse::Blob { .. })
    };
    // Names that nobody links to make nothing, however many there are.
    for url in [
        "/export/content/site/en/apple.plain.html",
        "/export/content/site/en/apple.a.b.c.html",
        "/export/content/site/en/apple.html/x.html",
        "/export/content/none.html",
        "/export/../../etc/passwd",
        "/export/content/site/en/%2e%2e/%2e%2e/x",
        "/export/content/site/en/apple%00.html",
        "/elsewhere/content/site/en/apple.html",
        "",
        "/export",
    ] {
        assert!(!is_file(ask(url)), "{url}");
    }
    assert_eq!(export.files().len(), 0);
    let OnDemandResponse::Redirect(path) = ask("/export/content/site/en/secret.html") else {
        panic!("it is not exported")
    };
    assert_eq!(path, "/content/site/en/secret.html");
    assert!(is_file(ask("/export/content/site/en/linked.html?x=1")));
    assert!(is_file(ask("/export/content/site/en/apple.plain.html")));
    let files = export.files();
    assert_eq!(
        files.keys().collect::<Vec<_>>(),
        ["content/site/en/apple.plain.html", "content/site/en/linked.html"]
    );
    let query = hrefs(&files["content/site/en/linked.html"]);
    let query = query.iter().find(|one| one.contains("/apple_") && one.ends_with("#x")).unwrap();
    assert!(query.starts_with("/export/"), "{query}");
    assert!(is_file(ask(query)));
    // A change takes away what it concerns, and visitors get it anew.
    export.set("/content/site/en/zebra", "jcr:title", "Later");
    let report = exporter.export_pending_changes(export.press(), QUIET).unwrap();
    assert_eq!(report.removed, 1, "{report:?}");
    assert!(!export.files().contains_key("content/site/en/linked.html"));
    assert!(is_file(ask("/export/content/site/en/linked.html")));
    assert!(export.files()["content/site/en/linked.html"].contains("Later"));
    // After a crash nobody knows which of the files were placed: they are made anew.
    drop(exporter);
    let exporter = export.open();
    exporter.export_pending_changes(export.press(), QUIET).unwrap();
    assert!(!export.files().contains_key("content/site/en/linked.html"));
}

#[test]
fn a_subtree_goes_with_a_change_in_it() {
    let mut export = Export::sample();
    export.options.handler = StaticExportHandler::OnDemandSubtree;
    let exporter = export.open();
    exporter.export_pending_changes(export.press(), QUIET).unwrap();
    for url in [
        "/content/site/en.html",
        "/content/site/en/apple.html",
        "/content/site/en/zebra/stripe.html",
    ] {
        exporter.export_on_demand(export.press(), url).unwrap();
    }
    assert_eq!(export.files().len(), 3);
    export.set("/content/site/en/apple", "jcr:description", "x");
    exporter.export_pending_changes(export.press(), QUIET).unwrap();
    assert_eq!(export.files().keys().collect::<Vec<_>>(), ["content/site/en.html"]);
}

#[test]
fn named_folders_are_found_by_their_names() {
    let mut export = Export::sample();
    export.options.handler = StaticExportHandler::OnDemand;
    export.set("/content/site/en", "exportname", "/");
    export.set("/content/site/en/zebra", "exportname", "horse/es");
    let exporter = export.open();
    exporter.export_pending_changes(export.press(), QUIET).unwrap();
    for url in ["/apple.html", "/horse/es/stripe.html", "/horse/es.html", "/en.html"] {
        let answer = exporter.export_on_demand(export.press(), url).unwrap();
        assert!(matches!(answer, OnDemandResponse::Bytes { .. }), "{url}: {answer:?}");
    }
    let names: Vec<String> = export.files().into_keys().collect();
    assert_eq!(names, ["apple.html", "en.html", "horse/es.html", "horse/es/stripe.html"]);
}

/// Numbers that repeat with the seed.
fn next(state: &mut u64, limit: usize) -> usize {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    (*state >> 11) as usize % limit
}

#[test]
fn after_any_edits_the_files_are_those_of_an_export_from_nothing() {
    const PAGES: [&str; 5] = ["", "/zebra", "/apple", "/linked", "/zebra/stripe"];
    for seed in 1..=6_u64 {
        let export = Export::sample();
        export.full();
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        for step in 0..25 {
            let place = PAGES[next(&mut state, PAGES.len())];
            let path = format!("/content/site/en{place}");
            let is_there = export
                .site
                .repository
                .snapshot()
                .unwrap()
                .node(&NodePath::new(&path).unwrap())
                .unwrap()
                .is_some();
            match next(&mut state, 9) {
                0 if !place.is_empty() && is_there => export.delete(&path),
                1 | 2 if !is_there => export
                    .site
                    .put(&path, page(path.rsplit('/').next().unwrap(), "Back", "test/links")),
                3 if is_there => {
                    export.set(&path, "export", ["true", "false"][next(&mut state, 2)])
                }
                4 if is_there => {
                    export.set(&path, "exportname", ["", "n", "a/b"][next(&mut state, 3)])
                }
                5 if is_there => export.set(
                    &path,
                    "sling:resourceType",
                    ["test/page", "test/links"][next(&mut state, 2)],
                ),
                6 => export.site.script(
                    "/apps/test/text/text.html.j2",
                    &format!("<b>{step}{{{{ properties.text }}}}</b>"),
                ),
                7 if is_there => export.site.edit(|session| {
                    let part = NodePath::new(&format!("{path}/jcr:content/p{step}")).unwrap();
                    session
                        .put_node(&part, component("", "test/text").with_property("text", "New"))
                        .unwrap();
                }),
                _ if is_there => export.set(&path, "jcr:title", &format!("Title {step}")),
                _ => {}
            }
            if next(&mut state, 3) > 0 {
                continue;
            }
            let report = export.changed();
            let (files, anew) = (export.files(), export.files_anew());
            for (name, text) in &anew {
                assert_eq!(
                    files.get(name),
                    Some(text),
                    "seed {seed}, step {step}, `{name}`: {report:?}"
                );
            }
            // What no page links to any more may stay, as a variant of a page that is there.
            for name in files.keys().filter(|name| !anew.contains_key(*name)) {
                let is_variant =
                    name.contains('_') || name.contains(".plain.") || name.contains(".width-");
                assert!(is_variant, "seed {seed}, step {step}: `{name}` is left over: {report:?}");
            }
        }
    }
}
