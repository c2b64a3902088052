//! Sites as folders: a new one is sound, the sample is, and what is wrong with one is told with its place.

use std::fs;
use std::path::Path;
use std::process::Output;

use crate::program::{Demo, Running, free_address, get, run as tympan};

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

fn check(dir: &Path) -> (Option<i32>, String) {
    let output = tympan(&["site", "check", dir.to_str().unwrap()]);
    (output.status.code(), said(&output))
}

#[test]
fn the_sample_site_is_sound() {
    let (code, said) = check(&Path::new(env!("CARGO_MANIFEST_DIR")).join("site"));
    assert_eq!(code, Some(0), "{said}");
}

#[test]
fn a_new_site_is_sound_and_its_faults_are_reported() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("shop");
    let name = dir.to_str().unwrap();
    let made = tympan(&["site", "new", name]);
    assert!(made.status.success(), "{}", said(&made));
    let (code, told) = check(&dir);
    assert_eq!((code, told.as_str()), (Some(0), "0 errors, 0 warnings\n"));
    assert_eq!(tympan(&["site", "new", name]).status.code(), Some(2), "it is there already");

    let page = dir.join("apps/shop/components/page/page.html.j2");
    let text = fs::read_to_string(&page).unwrap();
    fs::write(&page, text.replace("<h1>", "<h1 onclick=\"{{ page.title }}\">")).unwrap();
    let home_page = dir.join("content/shop/.content.xml");
    let text = fs::read_to_string(&home_page).unwrap();
    fs::write(&home_page, text.replace("shop/components/text", "shop/components/none")).unwrap();
    let (code, told) = check(&dir);
    assert_eq!(code, Some(1), "{told}");
    assert!(told.contains("page.html.j2:17:") && told.contains("this attribute runs"), "{told}");
    assert!(
        told.contains("`/content/shop/jcr:content/root/text` has the type `shop/components/none`"),
        "{told}"
    );
    assert!(told.ends_with("2 errors, 0 warnings\n"), "{told}");

    let container = dir.join("apps/shop/components/container/.content.xml");
    let text = fs::read_to_string(&container).unwrap();
    let strict = text.replacen(
        "jcr:primaryType=\"cq:Component\"",
        "jcr:primaryType=\"cq:Component\" allowedChildren=\"[shop/components/other]\"",
        1,
    );
    assert_ne!(strict, text);
    fs::write(&container, strict).unwrap();
    let (_, told) = check(&dir);
    let rule = "which is not allowed here: `/apps/shop/components/container/allowedChildren` allows shop/components/other";
    assert!(told.contains(rule), "{told}");
    fs::write(&container, text).unwrap();

    let output = tympan(&["site", "check", name, "--json"]);
    let findings: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(findings.as_array().unwrap().len(), 2);

    fs::write(&home_page, "<jcr:root").unwrap();
    assert_eq!(check(&dir).0, Some(1));
    fs::write(dir.join("site.toml"), "nam = \"x\"\n").unwrap();
    let (_, told) = check(&dir);
    assert!(told.contains("site.toml:"), "{told}");
    assert_eq!(check(&dir.join("none")).0, Some(2));
}

/// Returns how many files of a folder hold pages.
fn count_pages(folder: &Path) -> usize {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    let counts = entries.map(|entry| match entry.file_type().unwrap().is_dir() {
        true => count_pages(&entry.path()),
        false => usize::from(!entry.file_name().to_string_lossy().ends_with(".h")),
    });
    counts.sum()
}

/// Nobody keeps a page from the cache, or fills the disk, by making up addresses; and the pages say what browsers may do.
#[test]
fn made_up_addresses_of_the_sample_are_no_pages() {
    let dir = tempfile::tempdir().unwrap();
    let demo = Demo::start(dir.path());
    let page = "/content/wayfare/en/journal/the-last-ferry";
    let cache = dir.path().join("dispatcher/cache");
    assert_eq!(get(demo.dispatcher, &format!("{page}.html/x.html")).status, 404);
    // The page itself, and what scripts and components name, is there.
    for named in [
        format!("{page}.html"),
        format!("{page}.print.html"),
        format!("{page}.large.html"),
        format!("{page}.title.png"),
        "/content/wayfare/en/gallery.html".to_owned(),
        "/content/wayfare/en/tags.rail.html".to_owned(),
        "/content/wayfare/en/contact.html/thanks".to_owned(),
        "/content/wayfare/en/search.html".to_owned(),
        "/content/wayfare/en/guides/download.2214.pdf".to_owned(),
    ] {
        let answer = get(demo.dispatcher, &named);
        assert_eq!(answer.status, 200, "{named}: {}", answer.text());
        let policy = answer.header("content-security-policy").unwrap_or_default();
        let is_page = named.ends_with(".html") || named.ends_with("/thanks");
        assert!(!is_page || policy.contains("frame-ancestors 'self'"), "{named}: {policy}");
    }
    for number in 0..50 {
        for made_up in [
            format!("{page}.s{number}.html"),
            format!("{page}.html/s{number}.html"),
            format!("{page}.print.s{number}.html"),
            format!("/content/wayfare/en/guides/download.{number}.html"),
            format!("/content/wayfare/en/contact.html/s{number}.html"),
            format!("/content/dam/wayfare/north/aurora.jpg.s{number}.jpg"),
        ] {
            let status = get(demo.dispatcher, &made_up).status;
            assert!(matches!(status, 404 | 429), "{made_up}: {status}");
        }
    }
    assert!(count_pages(&cache) < 50, "{}", count_pages(&cache));
    let renders = demo.renders_of(&format!("{page}.html"));
    assert!(
        get(demo.dispatcher, &format!("{page}.html")).header("content-security-policy").is_some()
    );
    assert_eq!(demo.renders_of(&format!("{page}.html")), renders, "it is in the cache");
    let author = demo.get_as_admin(&format!("{page}.html"));
    assert_eq!(author.header("content-security-policy"), Some("frame-ancestors 'self'"));
}

#[test]
fn a_new_site_has_headers_and_exact_addresses() {
    let dir = tempfile::tempdir().unwrap();
    let (site, home) = (dir.path().join("shop"), dir.path().join("home"));
    assert!(tympan(&["site", "new", site.to_str().unwrap()]).status.success());
    let [author, publish, dispatcher] = [(); 3].map(|()| free_address());
    let [author_text, publish_text, dispatcher_text] =
        [author, publish, dispatcher].map(|address| address.to_string());
    let _running = Running::start(&[
        "demo",
        "--site",
        site.to_str().unwrap(),
        "--home",
        home.to_str().unwrap(),
        "--author",
        &author_text,
        "--publish",
        &publish_text,
        "--dispatcher",
        &dispatcher_text,
    ]);
    for address in [publish, dispatcher] {
        let page = get(address, "/content/shop/about.html");
        assert_eq!(page.status, 200, "{}", page.text());
        let policy = page.header("content-security-policy").unwrap();
        assert!(
            policy.contains("frame-ancestors 'self'") && policy.contains("default-src"),
            "{policy}"
        );
        for made_up in ["/content/shop/about.x.html", "/content/shop/about.html/x.html"] {
            assert_eq!(get(address, made_up).status, 404, "{made_up}");
        }
    }
    let config = fs::read_to_string(home.join("publish/tympan.toml")).unwrap();
    assert!(config.contains("[publish.headers]"), "{config}");
}
