//! Projects of AEM: packages within packages, run modes, repository initialization, bundles, and what needs a rewrite.

use std::fs;
use std::io::{Cursor, Write as _};
use std::path::{Path, PathBuf};

use std::time::SystemTime;

use tympan_content::{NodePath, Repository};
use tympan_site::{
    AemImportProgress, AemProject, AemProjectOptions, Error, ImportState, RepositoryImportTarget,
    import_aem_project, read_aem_project,
};
use tympan_testkit::fixture_folder::fixture_folder;
use zip::ZipWriter;
use zip::write::SimpleFileOptions;

const SUPPORTED: &[&str] = &["org.apache.sling.event.jobs.QueueConfiguration"];

fn zip_of(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    for (name, bytes) in entries {
        zip.start_file(*name, SimpleFileOptions::default()).unwrap();
        zip.write_all(bytes).unwrap();
    }
    zip.finish().unwrap().into_inner()
}

/// Builds a package with a filter of these roots.
fn package(name: &str, roots: &[&str], needs: &str, entries: &[(&str, &[u8])]) -> Vec<u8> {
    let roots: String = roots.iter().map(|root| format!("<filter root=\"{root}\"/>")).collect();
    let filter = format!("<workspaceFilter version=\"1.0\">{roots}</workspaceFilter>");
    let properties = format!(
        "<properties><entry key=\"group\">com.shop</entry><entry key=\"name\">{name}</entry>\
         <entry key=\"version\">1.0</entry><entry key=\"dependencies\">{needs}</entry></properties>"
    );
    let mut all: Vec<(&str, &[u8])> = vec![
        ("META-INF/vault/filter.xml", filter.as_bytes()),
        ("META-INF/vault/properties.xml", properties.as_bytes()),
    ];
    all.extend(entries);
    zip_of(&all)
}

fn bundle() -> Vec<u8> {
    let manifest = "Manifest-Version: 1.0\r\nBundle-SymbolicName: com.shop.core\r\nBundle-Version: 1.0.0\r\n\
                    Sling-Model-Packages: com.shop.models\r\nSling-Initial-Content: initial\r\n\r\n";
    let servlet = r#"<scr:component xmlns:scr="http://www.osgi.org/xmlns/scr/v1.3.0" name="search">
        <implementation class="com.shop.SearchServlet"/>
        <service><provide interface="javax.servlet.Servlet"/></service>
        <property name="sling.servlet.paths" value="/bin/search"/></scr:component>"#;
    zip_of(&[
        ("META-INF/MANIFEST.MF", manifest.as_bytes()),
        ("OSGI-INF/com.shop.SearchServlet.xml", servlet.as_bytes()),
        ("com/shop/models/Hero.class", b"not read"),
    ])
}

const HERO: &[u8] = b"<sly data-sly-use.hero=\"com.shop.models.Hero\"\n\
    data-sly-use.title=\"com.adobe.cq.wcm.core.components.models.Title\"\n\
    data-sly-use.offer=\"offer.js\"/><h1>${hero.title} ${title.text}</h1>\n\
    <a data-sly-list=\"${hero.links}\" href=\"${item.url}\">${offer.price}</a>";
const COMPONENT: &[u8] = br#"<jcr:root xmlns:jcr="http://www.jcp.org/jcr/1.0" xmlns:cq="http://www.day.com/jcr/cq/1.0"
    xmlns:sling="http://sling.apache.org/jcr/sling/1.0" jcr:primaryType="cq:Component" jcr:title="Hero"
    sling:resourceSuperType="shop/components/base"/>"#;
const PAGE: &[u8] =
    br#"<jcr:root xmlns:jcr="http://www.jcp.org/jcr/1.0" xmlns:cq="http://www.day.com/jcr/cq/1.0"
    xmlns:sling="http://sling.apache.org/jcr/sling/1.0" xmlns:nt="http://www.jcp.org/jcr/nt/1.0"
    jcr:primaryType="cq:Page"><jcr:content jcr:primaryType="cq:PageContent" jcr:title="Shop"
    sling:resourceType="shop/components/hero"/></jcr:root>"#;
const REPOINIT: &[u8] = br#"{"scripts": ["create path (sling:Folder) /content/shop-import",
    "set ACL on /content/shop-import\nallow jcr:read for everyone\nend"]}"#;

/// Writes a project as Maven leaves it: each module, and a package with all of them.
fn write_project(dir: &Path) {
    let code = package(
        "shop.ui.apps",
        &["/apps/shop/components"],
        "",
        &[
            ("jcr_root/apps/shop/components/hero/.content.xml", COMPONENT),
            ("jcr_root/apps/shop/components/hero/hero.html", HERO),
            ("jcr_root/apps/shop/components/hero/offer.js", b"use(function () {\n  return {;\n});"),
            ("jcr_root/apps/shop/components/old/old.jsp", b"<%= 1 %>"),
        ],
    );
    let content = package(
        "shop.ui.content",
        &["/content/shop"],
        "com.shop:shop.ui.apps",
        &[("jcr_root/content/shop/.content.xml", PAGE)],
    );
    let queue = |name: &str| {
        format!("queue.name=\"{name}\"\nqueue.topics=\"shop/*\"\nqueue.threadPoolSize=I\"2\"\n")
    };
    let (base, prod, publish) = (queue("base"), queue("prod"), queue("publish"));
    let file = |folder: &str, name: &str| format!("jcr_root/apps/shop/osgiconfig/{folder}/{name}");
    let queue_file = "org.apache.sling.event.jobs.QueueConfiguration~shop.config";
    let names = [
        file("config", queue_file),
        file("config.author.prod", queue_file),
        file("config.publish", queue_file),
        file("config.author", "com.shop.Prices.cfg.json"),
        file("config", "org.apache.sling.jcr.repoinit.RepositoryInitializer~shop.cfg.json"),
        file("config", "com.shop.Broken.cfg.json"),
    ];
    let config = package(
        "shop.ui.config",
        &["/apps/shop/osgiconfig"],
        "",
        &[
            (&names[0], base.as_bytes()),
            (&names[1], prod.as_bytes()),
            (&names[2], publish.as_bytes()),
            (&names[3], b"{\"currency\": \"EUR\", \"key:Integer\": 1}"),
            (&names[4], REPOINIT),
            (&names[5], b"{"),
        ],
    );
    let all = package(
        "shop.all",
        &["/apps/shop-packages"],
        "",
        &[
            ("jcr_root/apps/shop-packages/application/install/shop.ui.apps.zip", &code),
            ("jcr_root/apps/shop-packages/application/install/core.jar", &bundle()),
            ("jcr_root/apps/shop-packages/application/install/shop.ui.config.zip", &config),
            ("jcr_root/apps/shop-packages/content/install/shop.ui.content.zip", &content),
            ("jcr_root/apps/shop-packages/content/install.publish/other.zip", &content),
        ],
    );
    for (module, name, bytes) in [
        ("all", "shop.all-1.0.zip", &all),
        ("ui.apps", "shop.ui.apps-1.0.zip", &code),
        ("core", "shop.core-1.0.jar", &bundle()),
        ("core", "shop.core-1.0-sources.jar", &bundle()),
    ] {
        let target = dir.join(module).join("target");
        fs::create_dir_all(&target).unwrap();
        fs::write(target.join(name), bytes).unwrap();
    }
    let source = dir.join("ui.apps/src/main/content/jcr_root/apps/shop");
    fs::create_dir_all(&source).unwrap();
    fs::write(source.join("source.html"), "").unwrap();
    fs::write(dir.join("shop.repoinit"), "create group shop-editors\n").unwrap();
}

fn read(paths: &[&Path], run_modes: &[&str]) -> AemProject {
    let run_modes: Vec<String> = run_modes.iter().map(|mode| (*mode).to_owned()).collect();
    let options = AemProjectOptions { run_modes: &run_modes, supported_pids: SUPPORTED };
    let paths: Vec<PathBuf> = paths.iter().map(|path| path.to_path_buf()).collect();
    read_aem_project(&paths, &options).unwrap()
}

fn package_ids(project: &AemProject) -> Vec<String> {
    project.packages.iter().map(|package| package.id.to_string()).collect()
}

#[test]
fn a_project_is_read_with_what_it_embeds() {
    let dir = tempfile::tempdir().unwrap();
    write_project(dir.path());
    let project = read(&[dir.path()], &["author", "prod"]);
    let ids = package_ids(&project);
    let at = |name: &str| ids.iter().position(|id| id == &format!("com.shop:{name}:1.0")).unwrap();
    assert_eq!(ids.len(), 3, "{ids:?}");
    assert!(
        at("shop.ui.content") > at("shop.ui.apps") && at("shop.ui.content") > at("shop.ui.config")
    );
    let scripts: Vec<_> =
        project.repoinit_scripts.iter().map(|script| script.text.lines().next().unwrap()).collect();
    assert_eq!(
        scripts,
        [
            "create path (sling:Folder) /content/shop-import",
            "set ACL on /content/shop-import",
            "create group shop-editors"
        ]
    );
    let report = &project.report;
    assert_eq!(report.runs["components"], 1);
    assert_eq!(report.runs["pages"], 1);

    let [class] = report.rewrite.classes.as_slice() else { panic!("{:?}", report.rewrite) };
    assert_eq!(class.name, "com.shop.models.Hero");
    assert_eq!(class.bundle.as_deref(), Some("com.shop.core 1.0.0"));
    assert_eq!(
        class.members.iter().map(String::as_str).collect::<Vec<_>>(),
        ["links", "links[].url", "title"]
    );
    assert_eq!(
        (&*class.uses[0].script, class.uses[0].line),
        ("/apps/shop/components/hero/hero.html", 1)
    );
    assert_eq!(report.rewrite.scripts, ["/apps/shop/components/old/old.jsp"]);
    let [bundle] = report.rewrite.bundles.as_slice() else { panic!("{:?}", report.rewrite) };
    assert_eq!((&*bundle.name, &*bundle.version), ("com.shop.core", "1.0.0"));
    assert_eq!(bundle.models, ["com.shop.models"]);
    assert_eq!(bundle.components[0].kind, "servlet");
    assert_eq!(bundle.components[0].serves, ["sling.servlet.paths=/bin/search"]);
    let [fault] = report.rewrite.faults.as_slice() else { panic!("{:?}", report.rewrite.faults) };
    assert!(fault.starts_with("/apps/shop/components/hero/offer.js:2:"), "{fault}");
    assert_eq!(
        report.missing_types.get("shop/components/base").map(String::as_str),
        Some("/apps/shop/components/hero")
    );
    assert!(!report.missing_types.contains_key("shop/components/hero"));
}

#[test]
fn run_modes_choose_configurations_and_packages() {
    let dir = tempfile::tempdir().unwrap();
    write_project(dir.path());
    let chosen = |run_modes: &[&str]| {
        let report = read(&[dir.path()], run_modes).report;
        let [queue] = report.settings.applied.as_slice() else { panic!("{:?}", report.settings) };
        let left_out: Vec<String> = report
            .left_out
            .iter()
            .map(|left| format!("{}: {}", left.file.rsplit('!').next().unwrap(), left.reason))
            .collect();
        (queue.path.clone(), left_out.join("\n"), report)
    };
    let (path, left_out, report) = chosen(&["author", "prod"]);
    assert!(path.contains("/config.author.prod/"), "{path}");
    assert!(left_out.contains(
        "/config/org.apache.sling.event.jobs.QueueConfiguration~shop.config: another configuration"
    ));
    assert!(left_out.contains("it is for the run mode `publish`"), "{left_out}");
    assert!(left_out.contains("com.shop.Broken.cfg.json: it cannot be read"), "{left_out}");
    assert!(left_out.contains("install.publish/other.zip: it is for the run mode"), "{left_out}");
    assert!(left_out.contains("its initial content is not loaded: initial"), "{left_out}");
    assert!(left_out.contains("it only contains other packages and bundles"), "{left_out}");
    assert!(left_out.contains("were built, and are used instead"), "{left_out}");
    let skipped: Vec<_> = report
        .settings
        .skipped
        .iter()
        .map(|file| (file.pid.as_str(), file.properties.join(" ")))
        .collect();
    assert!(skipped.contains(&("com.shop.Prices", "currency key".to_owned())), "{skipped:?}");
    let ignored = report.settings.skipped.iter().filter_map(|file| file.reason.as_deref());
    assert!(ignored.clone().any(|reason| reason.contains("`queue.threadPoolSize` is ignored")));
    assert!(chosen(&["author"]).0.contains("/config/"));
    assert!(chosen(&["publish"]).0.contains("/config.publish/"));
}

fn import(project: &AemProject, repository: &Repository, is_dry_run: bool) -> AemImportProgress {
    let mut target =
        RepositoryImportTarget { repository, user: "admin", on_progress: &mut |_, _| {} };
    import_aem_project(project, Some(&mut target), is_dry_run).0
}

fn states(progress: &AemImportProgress) -> Vec<ImportState> {
    let packages = progress.packages.iter().map(|import| import.state);
    packages.chain(progress.repoinit.iter().map(|import| import.state)).collect()
}

fn new_repository() -> Repository {
    let repository = Repository::in_memory().unwrap();
    repository.install_initial_policies(SystemTime::UNIX_EPOCH).unwrap();
    repository
}

#[test]
fn an_import_is_done_once() {
    let dir = tempfile::tempdir().unwrap();
    write_project(dir.path());
    let project = read(&[dir.path()], &["author", "prod"]);
    let repository = new_repository();
    let root = repository.head_root().unwrap();
    let progress = import(&project, &repository, true);
    assert!(progress.packages.iter().all(|import| import.created > 0), "{progress}");
    assert_eq!(repository.head_root().unwrap(), root);

    let progress = import(&project, &repository, false);
    assert!(states(&progress).iter().all(|state| *state == ImportState::Done), "{progress}");
    let snapshot = repository.snapshot().unwrap();
    for path in [
        "/apps/shop/components/hero/hero.html",
        "/apps/shop/osgiconfig/config/com.shop.Broken.cfg.json",
        "/content/shop/jcr:content",
        "/content/shop-import/rep:policy/allow",
        "/home/groups/shop-editors",
    ] {
        assert!(snapshot.node(&NodePath::new(path).unwrap()).unwrap().is_some(), "{path}");
    }
    let root = repository.head_root().unwrap();
    let progress = import(&project, &repository, false);
    assert!(states(&progress).iter().all(|state| *state == ImportState::Unchanged), "{progress}");
    assert_eq!(repository.head_root().unwrap(), root);
}

#[test]
fn a_failure_half_way_is_said_and_a_second_run_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    // Two nodes have the same identifier, which is refused when the second one is installed.
    let node = br#"<jcr:root xmlns:jcr="http://www.jcp.org/jcr/1.0" xmlns:mix="http://www.jcp.org/jcr/mix/1.0"
        xmlns:nt="http://www.jcp.org/jcr/nt/1.0" jcr:primaryType="nt:unstructured"
        jcr:mixinTypes="[mix:referenceable]" jcr:uuid="5b3a6f3e-0d3c-4c2e-9a2b-0e9d5c1f7a11"/>"#;
    let good = package("good", &["/apps/a"], "", &[("jcr_root/apps/a/.content.xml", node)]);
    let refused = package(
        "refused",
        &["/content/b"],
        "com.shop:good",
        &[("jcr_root/content/b/.content.xml", node)],
    );
    let last =
        package("last", &["/content/c"], "com.shop:refused", &[("jcr_root/content/c/c.txt", b"c")]);
    for (name, bytes) in [("1.zip", &good), ("2.zip", &refused), ("3.zip", &last)] {
        fs::write(dir.path().join(name), bytes).unwrap();
    }
    let project = read(&[dir.path()], &["author"]);
    let repository = new_repository();
    let mut target = RepositoryImportTarget {
        repository: &repository,
        user: "admin",
        on_progress: &mut |_, _| {},
    };
    let (progress, done) = import_aem_project(&project, Some(&mut target), false);
    use ImportState::{Done, Failed, NotDone};
    assert_eq!(states(&progress), [Done, Failed, NotDone], "{progress}");
    assert!(done.is_err());
    assert!(progress.packages[1].reason.is_some());
    let text = progress.to_string();
    assert!(text.contains("FAILED     com.shop:refused:1.0"), "{text}");
    assert!(text.contains("not done   com.shop:last:1.0"), "{text}");
}

#[test]
fn the_report_reads_as_text() {
    let dir = tempfile::tempdir().unwrap();
    write_project(dir.path());
    let text = read(&[dir.path()], &["author"]).report.to_string();
    for line in [
        "        1  components",
        "  com.shop.models.Hero in com.shop.core 1.0.0",
        "    /apps/shop/components/hero/hero.html:1 reads links, links[].url, title",
        "    servlet com.shop.SearchServlet: sling.servlet.paths=/bin/search",
        "  /apps/shop/components/old/old.jsp",
        "    there is no such setting here: currency, key",
    ] {
        assert!(text.lines().any(|other| other == line), "`{line}` is not in\n{text}");
    }
}

#[test]
fn sources_are_packed_if_nothing_was_built() {
    let dir = tempfile::tempdir().unwrap();
    let module = dir.path().join("shop/ui.apps");
    let source = module.join("src/main/content");
    let component = source.join("jcr_root/apps/shop/components/hero");
    fs::create_dir_all(&component).unwrap();
    fs::write(component.join(".content.xml"), COMPONENT).unwrap();
    fs::write(component.join("hero.html"), HERO).unwrap();
    let project = read(&[&dir.path().join("shop")], &["author"]);
    assert_eq!(package_ids(&project), ["shop:ui.apps:sources"]);
    assert_eq!(project.report.rewrite.classes.len(), 1);
    let vault = source.join("META-INF/vault");
    fs::create_dir_all(&vault).unwrap();
    fs::write(
        vault.join("filter.xml"),
        "<workspaceFilter version=\"1.0\"><filter root=\"/apps/shop/components\"/></workspaceFilter>",
    )
    .unwrap();
    let project = read(&[&source], &["author"]);
    assert_eq!(project.packages.len(), 1);
    // Another folder is refused, and so is a damaged package.
    let empty = dir.path().join("empty");
    fs::create_dir_all(&empty).unwrap();
    let options = AemProjectOptions { run_modes: &[], supported_pids: SUPPORTED };
    let refused = read_aem_project(std::slice::from_ref(&empty), &options).unwrap_err();
    assert!(matches!(refused, Error::Refused(_)) && refused.to_string().contains("target/*.zip"));
    let broken = empty.join("broken.zip");
    fs::write(
        &broken,
        package("broken", &["/apps/a"], "", &[("jcr_root/apps/a/.content.xml", b"<a")]),
    )
    .unwrap();
    assert!(matches!(read_aem_project(&[broken], &options), Err(Error::Package(_))));
}

#[test]
fn public_libraries_run_with_the_native_models() {
    let Some(fixtures) = fixture_folder("packages") else { return };
    let library = [
        "core.wcm.components.content-2.29.0.zip",
        "core.wcm.components.examples.ui.apps-2.26.0.zip",
    ];
    let paths = library.map(|name| fixtures.join(name));
    let project = read(&[&paths[1], &paths[0]], &["author"]);
    // The examples need the library.
    assert_eq!(project.packages[0].id.name, "core.wcm.components.content");
    let report = &project.report;
    assert!(report.runs["components"] > 100, "{:?}", report.runs);
    let classes: Vec<_> = report.rewrite.classes.iter().map(|class| class.name.as_str()).collect();
    assert!(
        !classes.iter().any(|name| name.starts_with("com.adobe.cq.wcm.core.components.models.")),
        "{classes:?}"
    );
    let site =
        ["wknd.ui.content.zip", "wknd.ui.content.sample.zip"].map(|name| fixtures.join(name));
    let project = read(&[&site[0], &site[1]], &["author"]);
    assert_eq!(project.packages.len(), 2);
    assert!(project.report.runs["pages"] > 10);
    assert!(project.report.missing_types.keys().any(|name| name.starts_with("wknd/components/")));
}
