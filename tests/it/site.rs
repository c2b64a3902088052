//! Sites as folders: a new one is sound, the sample is, and what is wrong with one is told with its place.

use std::fs;
use std::path::Path;
use std::process::Output;

use crate::program::run as tympan;

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
fn a_new_site_is_sound_and_its_faults_are_told() {
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
        told.contains(
            "`/content/shop/jcr:content/root/text` is of the type `shop/components/none`"
        ),
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
    let rule = "which may not lie here: `/apps/shop/components/container/allowedChildren` allows shop/components/other";
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
