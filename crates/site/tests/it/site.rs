//! New sites, their checks, and the import of the sample.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use tympan_content::{NodePath, Repository};
use tympan_site::{
    Error, SiteFinding, SiteNeighbors, check_site, create_site, home_page_path, import_site,
    publisher_config, read_site_package,
};

fn accept_headers(_: &BTreeMap<String, String>) -> Result<(), String> {
    Ok(())
}

fn check(dir: &Path) -> Vec<SiteFinding> {
    check_site(dir, &accept_headers).unwrap()
}

#[test]
fn a_new_site_is_sound_and_a_lost_component_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let site = dir.path().join("spring-2");
    create_site(&site).unwrap();
    assert!(matches!(create_site(&site), Err(Error::Refused(_))));
    assert!(matches!(create_site(&dir.path().join("A site")), Err(Error::Refused(_))));
    let findings = check(&site);
    assert!(findings.is_empty(), "{findings:?}");
    assert_eq!(home_page_path(Some(&site)).unwrap().as_deref(), Some("/content/spring-2"));
    fs::remove_dir_all(site.join("apps/spring-2/components/text")).unwrap();
    let findings = check(&site);
    assert!(
        findings.iter().any(|finding| finding.message.contains("which no component below `apps`")
            && finding.file.ends_with(".content.xml")),
        "{findings:?}"
    );
    fs::write(site.join("site.toml"), "name = 1\n").unwrap();
    let findings = check(&site);
    let described = &findings[0];
    assert!(described.file.ends_with("site.toml") && described.line == 1, "{described:?}");
    assert!(matches!(
        check_site(&dir.path().join("lost"), &accept_headers),
        Err(Error::Refused(_))
    ));
}

#[test]
fn a_style_sheet_that_does_not_compile_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let site = dir.path().join("spring");
    create_site(&site).unwrap();
    let library = site.join("apps/spring/clientlibs/main");
    fs::create_dir_all(&library).unwrap();
    let node = r#"<?xml version="1.0" encoding="UTF-8"?>
<jcr:root xmlns:jcr="http://www.jcp.org/jcr/1.0" xmlns:cq="http://www.day.com/jcr/cq/1.0"
    jcr:primaryType="cq:ClientLibraryFolder" categories="[spring.main]" allowProxy="{Boolean}true"/>"#;
    for (name, text) in
        [(".content.xml", node), ("css.txt", "main.less"), ("main.less", "a { b: c; }")]
    {
        fs::write(library.join(name), text).unwrap();
    }
    let findings = check(&site);
    assert!(findings.is_empty(), "{findings:?}");
    fs::write(library.join("main.less"), "a {\n  b: @none;\n}").unwrap();
    let findings = check(&site);
    let [finding] = findings.as_slice() else { panic!("{findings:?}") };
    assert_eq!(Path::new(&finding.file), library.join("main.less"));
    assert_eq!((finding.line, finding.column, finding.warning), (2, 1, false));
    assert!(finding.message.contains("`@none`"), "{finding:?}");
}

#[test]
fn a_condition_of_a_dialog_that_is_not_evaluated_is_found_once() {
    let dir = tempfile::tempdir().unwrap();
    let site = dir.path().join("spring");
    create_site(&site).unwrap();
    let component = site.join("apps/spring/components/dialogs");
    fs::create_dir_all(&component).unwrap();
    let field = |name: &str, kind: &str, expression: &str| {
        format!(
            r#"<{name} jcr:primaryType="nt:unstructured" granite:hide="{expression}">
              <granite:rendercondition jcr:primaryType="nt:unstructured" expression="${{cqDesign.a}}"
                  sling:resourceType="{kind}"/></{name}>"#
        )
    };
    let simple = "granite/ui/components/coral/foundation/renderconditions/simple";
    let node = format!(
        r#"<?xml version="1.0" encoding="UTF-8"?>
<jcr:root xmlns:jcr="http://www.jcp.org/jcr/1.0" xmlns:cq="http://www.day.com/jcr/cq/1.0"
    xmlns:granite="http://www.adobe.com/jcr/granite/1.0" xmlns:sling="http://sling.apache.org/jcr/sling/1.0"
    jcr:primaryType="cq:Component" jcr:title="Dialogs" componentGroup=".hidden">
  <cq:dialog jcr:primaryType="nt:unstructured">{}{}{}{}</cq:dialog>
</jcr:root>"#,
        field("known", simple, "${cqDesign.b or empty param.c}"),
        field("one", "spring/conditions/moon", "${true}"),
        field("two", "spring/conditions/moon", "${true}"),
        field("three", simple, "${header.x == 'y'}"),
    );
    fs::write(component.join(".content.xml"), node).unwrap();
    let findings = check(&site);
    let found: Vec<_> = findings.iter().map(|finding| (finding.line, &*finding.message)).collect();
    let dialog = "/apps/spring/components/dialogs/cq:dialog";
    assert_eq!(
        found,
        [
            (
                11,
                &*format!(
                    "`{dialog}/three` depends on `${{header.x == 'y'}}`, which is not evaluated: it is \
                     always shown"
                )
            ),
            (
                9,
                &*format!(
                    "`{dialog}/one` depends on `spring/conditions/moon`, which is not evaluated: it is \
                     always shown"
                )
            ),
        ]
    );
    assert!(findings.iter().all(|finding| finding.warning));
}

#[test]
fn faults_of_htl_and_of_its_javascripts_are_found() {
    let dir = tempfile::tempdir().unwrap();
    let site = dir.path().join("spring");
    create_site(&site).unwrap();
    let component = site.join("apps/spring/components/offer");
    fs::create_dir_all(&component).unwrap();
    let markup = "<p data-sly-use.offer=\"offer.js\">${offer.price}</p>";
    fs::write(component.join("offer.html"), markup).unwrap();
    fs::write(component.join("offer.js"), "use(function () {\n  return { price: 1 };\n});\n")
        .unwrap();
    let findings = check(&site);
    assert!(findings.is_empty(), "{findings:?}");
    fs::write(component.join("offer.js"), "use(function () {\n  return { price: };\n});\n")
        .unwrap();
    fs::write(component.join("offer.html"), "<p>\n${offer.}</p>").unwrap();
    let findings = check(&site);
    let [markup, script] = findings.as_slice() else { panic!("{findings:?}") };
    assert_eq!((Path::new(&markup.file), markup.line), (&*component.join("offer.html"), 2));
    assert_eq!((Path::new(&script.file), script.line), (&*component.join("offer.js"), 2));
    assert!(script.message.contains("SyntaxError") && !script.warning, "{script:?}");
}

#[test]
fn the_sample_is_imported_with_agents_and_a_home_page() {
    let repository = Repository::in_memory().unwrap();
    let neighbors = SiteNeighbors {
        publish_url: "http://publish".to_owned(),
        dispatcher_url: "http://dispatcher".to_owned(),
    };
    let home_page = home_page_path(None).unwrap();
    let mut package = read_site_package(None).unwrap();
    let mut steps = 0;
    import_site(&repository, &mut package, &neighbors, home_page.as_deref(), &mut |_, _| {
        steps += 1;
    })
    .unwrap();
    assert!(steps > 0);
    let snapshot = repository.snapshot().unwrap();
    let content = NodePath::new("/etc/replication/agents.author/publish/jcr:content").unwrap();
    let agent = snapshot.node(&content).unwrap().unwrap();
    assert!(agent.text("transportUri").unwrap().starts_with("http://publish/"));
    let home_page = NodePath::new(&home_page.unwrap()).unwrap();
    assert!(snapshot.node(&home_page).unwrap().is_some());
}

#[test]
fn headers_that_cannot_be_sent_are_refused() {
    assert!(
        publisher_config(None, &accept_headers).unwrap().unwrap().contains("[publish.headers]")
    );
    let refuse = |_: &BTreeMap<String, String>| Err("not a header".to_owned());
    let refused = publisher_config(None, &refuse).unwrap_err();
    assert_eq!(refused.to_string(), "not a header");
}
