//! Static export: what is no file for everybody, what never ends, names that change hands, and faults on the way.

use bytes::Bytes;
use tympan_content::{NodePath, Snapshot};
use tympan_render::ImageAddress;
use tympan_render_export::{
    ExportEnvironment, ExportError, ExportFinding, ExportImageSource, ExportWriteMode,
    FullExportStart, OnDemandResponse,
};

use crate::export::{Export, QUIET, hrefs, only};
use crate::site::{component, page};

const LINKED: &str = "content/site/en/linked.html";

#[test]
fn what_shows_who_asks_becomes_no_file() {
    let mut export = Export::sample();
    export.options.dynamic_prefix = "/live".to_owned();
    export
        .site
        .script("/apps/test/hello/hello.html.j2", "Hello {{ request.user or \"stranger\" }}");
    export.site.put("/content/site/en/hello", page("hello", "Hello", "test/hello"));
    let report = export.full();
    assert!(!export.files().contains_key("content/site/en/hello.html"), "{report:?}");
    let address = "/content/site/en/hello.html".to_owned();
    assert!(report.findings.contains(&ExportFinding::Personalized { address }), "{report:?}");
    assert_eq!(report.failure_count(), 0);
    let asked =
        export.open().export_on_demand(export.press(), "/content/site/en/hello.html").unwrap();
    let OnDemandResponse::Redirect(elsewhere) = asked else { panic!("{asked:?}") };
    assert_eq!(elsewhere, "/live/content/site/en/hello.html");

    // A page that begins to show it leaves, and comes back.
    export.set("/content/site/en/apple", "sling:resourceType", "test/hello");
    let with_apple = export.files().len();
    assert!(export.changed().removed > 1, "with its variants");
    assert!(!export.files().keys().any(|name| name.contains("apple")));
    export.set("/content/site/en/apple", "sling:resourceType", "test/page");
    export.changed();
    assert_eq!(export.files().len(), with_apple);
    assert_eq!(export.files(), export.files_anew());
}

#[test]
fn parts_for_single_visitors_are_fetched_from_the_dynamic_site() {
    for dynamic in ["include", "ajax"] {
        let mut export = Export::sample();
        export.options.dynamic_prefix = "/live".to_owned();
        export.site.script("/apps/test/hello/hello.html.j2", "Hello {{ request.user }}");
        export.site.edit(|session| {
            let hello = NodePath::new("/apps/test/hello").unwrap();
            session.set_property(&hello, "dynamic", dynamic.into()).unwrap();
        });
        export
            .site
            .put("/content/site/en/linked/jcr:content/part", component("part", "test/hello"));
        let report = export.full();
        let files = export.files();
        let place = "data-tympan-include=\"/live/content/site/en/linked/_jcr_content/part.html\"";
        assert!(files[LINKED].contains(place), "{dynamic}: {}", files[LINKED]);
        assert!(!files[LINKED].contains("Hello "), "{dynamic}: {}", files[LINKED]);
        let scripts = hrefs(&files[LINKED]);
        let script = scripts.iter().find(|one| one.ends_with(".js")).unwrap();
        assert!(files.contains_key(script.trim_start_matches('/')), "{dynamic}: {script}");
        let is_personal = |one: &&ExportFinding| matches!(one, ExportFinding::Personalized { .. });
        assert_eq!(report.findings.iter().find(is_personal), None, "{dynamic}");
    }
}

#[test]
fn a_page_that_always_links_to_a_next_one_ends() {
    let export = Export::sample();
    export.site.script(
        "/apps/test/month/month.html.j2",
        "<a href=\"/content/site/en/month.html?m={{ (request.parameters.m or 0)|int + 1 }}\">next</a>",
    );
    export.site.put("/content/site/en/month", page("month", "Month", "test/month"));
    let report = export.full();
    let months = || {
        let files = export.files();
        files.keys().filter(|name| name.starts_with("content/site/en/month")).count()
    };
    let source = "/content/site/en/month".to_owned();
    assert!(
        report.findings.contains(&ExportFinding::TooManyAddresses { source, limit: 1000 }),
        "{report:?}"
    );
    assert_eq!(months(), 1001, "the page itself, and the months that it names");
    // A change brings no further ones.
    export.set("/content/site/en/month", "jcr:title", "Other");
    export.changed();
    assert_eq!(months(), 1001);
}

#[test]
fn names_change_hands_in_one_publication() {
    let export = Export::sample();
    let (apple, zebra) = ("/content/site/en/apple", "/content/site/en/zebra");
    let rename = |names: &[(&str, &str)]| {
        export.site.edit(|session| {
            for (path, name) in names {
                let content = NodePath::new(path).unwrap().child("jcr:content").unwrap();
                session.set_property(&content, "exportname", (*name).into()).unwrap();
            }
        });
        let report = export.changed();
        assert_eq!(report.failure_count(), 0, "{names:?}: {report:?}");
        let files = export.files();
        assert_eq!(files, export.files_anew(), "{names:?}");
        files
    };
    export.full();
    rename(&[(apple, "/first"), (zebra, "/second")]);
    // One takes the name that the other one leaves, whichever is drawn first.
    rename(&[(apple, "/third"), (zebra, "/first")]);
    rename(&[(zebra, "/fourth"), (apple, "/first")]);
    // Both exchange their names.
    let files = rename(&[(apple, "/fourth"), (zebra, "/first")]);
    assert!(files["fourth.html"].contains("An apple"), "{files:?}");
    assert!(files["first.html"].contains("Zebra crossing"), "{files:?}");
}

#[test]
fn a_file_that_lost_its_bytes_is_written_again() {
    let export = Export::sample();
    export.full();
    let (before, stripe) = (export.files(), "content/site/en/zebra/stripe.html");
    // As an earlier version left it after a power failure: the name, and no bytes.
    std::fs::write(export.options.dir.join("current").join(stripe), "").unwrap();
    export.set("/content/site/en/zebra/stripe", "jcr:description", "new");
    assert_eq!(export.changed().written, 1);
    assert_eq!(export.files()[stripe], before[stripe]);
}

/// Draws pictures by a program that fails.
#[derive(Debug)]
struct Faulty;

impl ExportImageSource for Faulty {
    fn render_image(&self, _: &Snapshot, address: &ImageAddress) -> Result<Option<Bytes>, String> {
        panic!("no picture of {}", address.asset)
    }
}

#[test]
fn a_fault_in_one_rendering_holds_up_no_other() {
    let export = Export::sample();
    let press = ExportEnvironment { images: &Faulty, ..export.press() };
    let report = export
        .open()
        .export_all(press, (FullExportStart::FromScratch, ExportWriteMode::WriteFiles), QUIET)
        .unwrap();
    let files = export.files();
    assert!(files.contains_key(LINKED) && !files.keys().any(|name| name.ends_with(".webp")));
    let failed: Vec<String> =
        report.findings.iter().filter(|one| one.is_failure()).map(ToString::to_string).collect();
    assert!(failed.len() == 1 && failed[0].contains("map.png.width-640.webp"), "{failed:?}");
    // It is tried again, and mended.
    assert_eq!(export.changed().written, 1);
    only(&export.files(), "content/dam/map.png.width-640", ".webp");
}

#[test]
fn a_tree_that_could_not_be_opened_again_is_opened_later() {
    let export = Export::sample();
    export.full();
    let exporter = export.open();
    let press = export.press();
    let changed = || exporter.export_changes(press, ExportWriteMode::WriteFiles, QUIET);
    // The disk refuses files, and then the manifest.
    let (tmp, manifest) =
        (export.options.dir.join("tmp"), export.options.dir.join("tree-000001.manifest"));
    let away = export.folder.path().join("away");
    std::fs::remove_dir_all(&tmp).unwrap();
    std::fs::rename(&manifest, &away).unwrap();
    export.set("/content/site/en/apple", "jcr:title", "Other");
    assert!(matches!(changed().unwrap_err(), ExportError::Folder { .. }));
    assert!(matches!(changed().unwrap_err(), ExportError::NoUnfinishedRun { .. }));
    std::fs::create_dir(&tmp).unwrap();
    std::fs::rename(&away, &manifest).unwrap();
    assert!(changed().unwrap().written > 0);
    assert_eq!(export.files(), export.files_anew());
}
