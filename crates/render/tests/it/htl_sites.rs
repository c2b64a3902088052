//! Sites whose components are written in HTL, as those of AEM: scripts, templates of pages, policies, both languages.

use tympan_content::{NodePath, Property, Subtree, Value, ValueType, Viewer};
use tympan_render::{
    ChangedAspects, ReadRecording, RenderLimits, RenderMode, RenderOutcome, RenderRequest,
    RenderResponse, RenderResponseBody,
};

use crate::site::{Site, asset, body_text, component, date, file, page, texts};

const GRID: &str = "wcm/foundation/components/responsivegrid";

/// A node of a component, as packages of AEM store it.
fn component_node(title: &str, super_type: Option<&str>) -> Subtree {
    let node = Subtree::new("", "cq:Component").with_property("jcr:title", title);
    match super_type {
        Some(super_type) => node.with_property("sling:resourceSuperType", super_type),
        None => node,
    }
}

fn named(name: &str, mut tree: Subtree) -> Subtree {
    name.clone_into(&mut tree.name);
    tree
}

fn node(name: &str) -> Subtree {
    Subtree::new(name, "nt:unstructured")
}

/// A site with a page component and a proxy of a text component.
fn site(mode: RenderMode) -> Site {
    let site = Site::with_limits(mode, Default::default());
    site.put("/apps/base/page", component_node("Page", None));
    site.script(
        "/apps/base/page/page.html",
        "<!DOCTYPE html><html><head><title>${currentPage.title}</title><sly data-sly-include=\"head.html\"></sly>\
         </head><body data-sly-use.container=\"com.day.cq.wcm.foundation.TemplatedContainer\"><sly \
         data-sly-repeat.child=\"${container.structureResources}\" data-sly-resource=\"${child.path @ \
         resourceType=child.resourceType, decorationTagName='div'}\"></sly></body></html>",
    );
    site.script("/apps/base/page/head.html", "<meta name=\"base\">");
    site.put("/apps/base/text", component_node("Text", None));
    site.script("/apps/base/text/text.html", "<p>${properties.text}</p>");
    site.put("/apps/shop/page", component_node("Shop page", Some("base/page")));
    site.put("/apps/shop/text", component_node("Shop text", Some("base/text")));
    site
}

/// Adds an editable template with a locked header, an editable grid, and policies.
fn add_template(site: &Site) {
    let locked = component("header", "shop/text").with_property("text", "Locked header");
    let grid = component("main", GRID)
        .with_property("editable", Property::Single(Value::Boolean(true)))
        .with_child(node("cq:responsive"));
    let empty = component("aside", "shop/text")
        .with_property("editable", Property::Single(Value::Boolean(true)));
    let root = component("root", GRID).with_child(locked).with_child(grid).with_child(empty);
    let structure = component("jcr:content", "shop/page").with_child(root);
    let mapping = |policy: &str| {
        component("", "wcm/core/components/policies/mapping").with_property("cq:policy", policy)
    };
    let types = node("shop").with_child(named("text", mapping("shop/text/default")));
    let main = named("main", mapping("wcm/grid")).with_child(types);
    let root = named("root", mapping("wcm/grid")).with_child(main);
    let policies =
        component("jcr:content", "wcm/core/components/policies/mappings").with_child(root);
    let template = Subtree::new("article", "cq:Template")
        .with_child(Subtree::new("structure", "cq:Page").with_child(structure))
        .with_child(Subtree::new("policies", "cq:Page").with_child(policies));
    site.put("/conf/shop/settings/wcm/templates/article", template);
    let style = node("item0")
        .with_property("cq:styleId", "1001")
        .with_property("cq:styleClasses", "text--large text--red");
    let group = node("item0").with_child(node("cq:styles").with_child(style));
    let policy = node("default")
        .with_property("cq:styleDefaultClasses", "text--plain")
        .with_child(node("cq:styleGroups").with_child(group));
    site.put(
        "/conf/shop/settings/wcm/policies",
        node("policies").with_child(node("shop").with_child(node("text").with_child(policy))),
    );
}

/// Adds a page of the template, with a text in its grid.
fn add_page(site: &Site, name: &str, title: &str) {
    let layout = node("cq:responsive").with_child(
        node("default")
            .with_property("width", "6")
            .with_property("offset", Property::Single(Value::Long(2))),
    );
    let text = component("text", "shop/text")
        .with_property("text", "Own & <text>")
        .with_property("cq:styleIds", texts(&["1001"]))
        .with_child(layout);
    let main = component("main", GRID).with_child(text);
    // What a locked place has in the page is not shown.
    let hidden = component("header", "shop/text").with_property("text", "not shown");
    let root = component("root", GRID).with_child(hidden).with_child(main);
    let content = component("jcr:content", "shop/page")
        .with_property("jcr:title", title)
        .with_property("cq:template", "/conf/shop/settings/wcm/templates/article")
        .with_child(root);
    site.put(&format!("/content/{name}"), Subtree::new(name, "cq:Page").with_child(content));
}

fn render(site: &Site, path: &str) -> RenderResponse {
    site.render(&RenderRequest { recording: ReadRecording::Paths, ..RenderRequest::get(path) })
}

#[test]
fn scripts_are_found_along_super_types_and_replaced_by_name() {
    let site = site(RenderMode::Publish);
    site.put("/content/a", page("a", "A & B", "shop/page"));
    let text = site.text("/content/a.html");
    assert!(text.contains("<title>A &amp; B</title><meta name=\"base\">"), "{text}");
    site.script("/apps/shop/page/head.html", "<meta name=\"shop\">");
    assert!(site.text("/content/a.html").contains("<meta name=\"shop\">"));
    site.script("/apps/shop/page/print.html", "print ${request.requestPathInfo.selectorString}");
    assert_eq!(site.text("/content/a.print.html"), "print print");
    site.script("/libs/base/page/page.html", "below /libs");
    assert!(
        site.text("/content/a.html").contains("<meta name=\"shop\">"),
        "a script of /apps wins"
    );
}

#[test]
fn templates_show_locked_components_of_the_structure_and_content_of_the_page() {
    let site = site(RenderMode::Publish);
    add_template(&site);
    add_page(&site, "a", "A");
    let text = site.text("/content/a.html");
    assert!(!text.contains("not shown"), "{text}");
    let root = "<div class=\"root responsivegrid\"><div class=\"aem-Grid aem-Grid--12 aem-Grid--default--12\">";
    assert!(text.contains(root), "{text}");
    let column = "aem-GridColumn aem-GridColumn--default--12";
    assert!(
        text.contains(&format!("<div class=\"text {column}\"><p>Locked header</p></div>")),
        "{text}"
    );
    let own = "<div class=\"text aem-GridColumn aem-GridColumn--default--6 \
               aem-GridColumn--offset--default--2 text--plain text--large text--red\"><p>Own &amp; \
               &lt;text&gt;</p></div>";
    assert!(text.contains(own), "{text}");
    assert!(
        text.contains(&format!("<div class=\"text {column}\"><p></p></div>")),
        "an empty place: {text}"
    );
    let [header, main] = ["Locked header", "Own &amp;"].map(|part| text.find(part).unwrap());
    assert!(header < main, "the order of the structure");
}

#[test]
fn the_editor_finds_only_what_authors_of_pages_may_change() {
    let site = site(RenderMode::Author);
    add_template(&site);
    add_page(&site, "a", "A");
    let request = RenderRequest { is_edit_mode: true, ..RenderRequest::get("/content/a.html") };
    let text = body_text(&site.render(&request));
    for path in ["main", "main/text"] {
        let attribute = format!("data-tympan-path=\"/content/a/jcr:content/root/{path}\"");
        assert_eq!(text.matches(&attribute).count(), 1, "{path}: {text}");
    }
    assert!(!text.contains("data-tympan-path=\"/conf"), "{text}");
    assert!(!site.text("/content/a.html").contains("data-tympan"));
}

#[test]
fn components_of_both_languages_include_each_other() {
    let site = site(RenderMode::Publish);
    site.script("/apps/new/box/box.html.j2", "<b>{{ include_children(resource) }}</b>");
    site.script(
        "/apps/old/box/box.html",
        "<i data-sly-repeat=\"${resource.children}\"><sly data-sly-resource=\"${item}\"></sly></i>",
    );
    let inner = component("box", "new/box")
        .with_child(component("text", "shop/text").with_property("text", "deep"));
    let root =
        component("root", "new/box").with_child(component("old", "old/box").with_child(inner));
    let content = component("jcr:content", "shop/page").with_child(root);
    site.put("/content/a", Subtree::new("a", "cq:Page").with_child(content));
    let text = site.text("/content/a.html");
    assert!(text.contains("<b><i><b><p>deep</p></b></i></b>"), "{text}");
}

#[test]
fn an_unknown_class_is_named_with_its_script_and_line_to_authors_only() {
    let parts = |mode| {
        let site = site(mode);
        site.script(
            "/apps/shop/text/text.html",
            "<p>\n<b data-sly-use.model=\"com.example.Model\">${model.title}</b></p>",
        );
        let content = component("jcr:content", "shop/page")
            .with_child(component("root", "shop/text"))
            .with_child(component("other", "base/text").with_property("text", "still here"));
        site.put("/content/a", Subtree::new("a", "cq:Page").with_child(content));
        let response = site.get("/content/a.html");
        assert_eq!(response.outcome, RenderOutcome::Ok);
        body_text(&response)
    };
    let text = parts(RenderMode::Author);
    let finding = "/apps/shop/text/text.html:2: no class `com.example.Model` is available";
    assert_eq!(text.matches(finding).count(), 1, "{text}");
    assert!(text.contains("<b></b></p>") && text.contains("still here"), "{text}");
    let text = parts(RenderMode::Publish);
    assert!(!text.contains("com.example") && text.contains("still here"), "{text}");
}

#[test]
fn a_failing_script_leaves_the_rest_of_the_page() {
    let site = site(RenderMode::Author);
    site.script("/apps/shop/bad/bad.html", "<p>${ 1 + }</p>");
    let content = component("jcr:content", "shop/page")
        .with_child(component("bad", "shop/bad"))
        .with_child(component("good", "base/text").with_property("text", "still here"));
    site.put("/content/a", Subtree::new("a", "cq:Page").with_child(content));
    let response = site.get("/content/a.html");
    let text = body_text(&response);
    assert_eq!(response.failed_component_count, 1, "{text}");
    assert!(text.contains("/apps/shop/bad/bad.html:1:") && text.contains("still here"), "{text}");
}

#[test]
fn a_page_depends_on_exactly_what_its_scripts_read() {
    let site = site(RenderMode::Publish);
    add_template(&site);
    add_page(&site, "a", "A");
    add_page(&site, "b", "B");
    let reads = render(&site, "/content/a.html").reads.dependencies();
    let is_affected = |change: &dyn Fn(&Site)| {
        let start = site.repository.snapshot().unwrap();
        change(&site);
        let end = site.repository.snapshot().unwrap();
        ChangedAspects::between_snapshots(&start, &end).unwrap().affects(&reads)
    };
    let set = |site: &Site, path: &str, name: &str, value: &str| {
        site.edit(|session| {
            let path = tympan_content::NodePath::new(path).unwrap();
            session.set_property(&path, name, value.into()).unwrap();
        });
    };
    assert!(!is_affected(&|site| set(site, "/content/b/jcr:content/root/main/text", "text", "x")));
    let unused = "/content/a/jcr:content/root/header";
    assert!(!is_affected(&|site| set(site, unused, "text", "still not shown")));
    assert!(is_affected(&|site| set(site, "/content/a/jcr:content/root/main/text", "text", "x")));
    let header = "/conf/shop/settings/wcm/templates/article/structure/jcr:content/root/header";
    assert!(is_affected(&|site| set(site, header, "text", "new header")));
    let policy = "/conf/shop/settings/wcm/policies/shop/text/default";
    assert!(is_affected(&|site| set(site, policy, "cq:styleDefaultClasses", "other")));
    assert!(is_affected(&|site| site.script("/apps/base/text/text.html", "<p>new</p>")));
    assert!(is_affected(&|site| site.script("/apps/shop/text/text.html", "<p>nearer</p>")));
    assert!(is_affected(&|site| site.script("/apps/base/page/head.html", "<meta>")));
}

#[test]
fn the_steps_of_all_components_of_a_page_count_together() {
    let limits =
        RenderLimits { max_steps: 200_000, max_component_steps: 50_000, ..RenderLimits::default() };
    let site = Site::with_limits(RenderMode::Publish, limits);
    site.script(
        "/apps/t/page/page.html",
        "before <sly data-sly-use.container=\"com.day.cq.wcm.foundation.TemplatedContainer\" \
         data-sly-list.child=\"${container.structureResources}\"><sly data-sly-resource=\"${child.path @ \
         resourceType=child.resourceType}\"></sly></sly>after",
    );
    let digits = "${[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]}";
    let list =
        |name: &str, inner: &str| format!("<sly data-sly-list.{name}=\"{digits}\">{inner}</sly>");
    let costly = list("a", &list("b", &list("c", "${c}")));
    site.script("/apps/t/costly/costly.html", &costly);
    let mut content = page("p", "P", "t/page");
    for number in 0..1000 {
        let part = component(&format!("part{number}"), "t/costly");
        content.child_mut("jcr:content").unwrap().put_child(part);
    }
    site.put("/content/p", content);
    let response = site.get("/content/p.html");
    let text = body_text(&response);
    assert_eq!(response.outcome, RenderOutcome::Ok);
    let drawn = text.strip_prefix("before ").and_then(|text| text.strip_suffix("after"));
    let drawn = drawn.unwrap_or_else(|| panic!("{text}"));
    // Each digit took more than one step.
    assert!((1000..=200_000).contains(&drawn.len()), "{text}");
    assert!(response.failed_component_count > 800, "{}", response.failed_component_count);
}

/// Returns a policy with one entry, about reading by everyone.
fn read_policy(entry_type: &str) -> Subtree {
    let privileges = Property::List(ValueType::Name, vec![Value::Name("jcr:read".into())]);
    let entry = Subtree::new("entry", entry_type)
        .with_property("rep:principalName", "everyone")
        .with_property("rep:privileges", privileges);
    Subtree::new("rep:policy", "rep:ACL").with_child(entry)
}

#[test]
fn settings_show_only_what_the_template_of_the_page_needs() {
    let site = site(RenderMode::Publish);
    add_template(&site);
    add_page(&site, "a", "A");
    let initial = component("jcr:content", "shop/page")
        .with_child(component("draft", "shop/text").with_property("text", "A secret draft"));
    site.put(
        "/conf/shop/settings/wcm/templates/article/initial",
        Subtree::new("initial", "cq:Page").with_child(initial),
    );
    let locked = component("text", "shop/text").with_property("text", "Another structure");
    let other = component("jcr:content", "shop/page").with_child(locked);
    site.put(
        "/conf/other/settings/wcm/templates/plan/structure",
        Subtree::new("structure", "cq:Page").with_child(other),
    );
    let note = node("note").with_property("text", "A note in a policy");
    site.put("/conf/other/settings/wcm/policies/note", note);
    site.put("/apps/shop/quote", component_node("Quote", None));
    site.script(
        "/apps/shop/quote/quote.html",
        "<sly data-sly-resource=\"${properties.source @ resourceType='shop/text'}\"></sly>",
    );
    let sources = [
        "/conf/shop/settings/wcm/templates/article/initial/jcr:content/draft",
        "/conf/other/settings/wcm/templates/plan/structure/jcr:content/text",
        "/conf/other/settings/wcm/policies/note",
    ];
    for (number, source) in sources.iter().enumerate() {
        let quote = component("", "shop/quote").with_property("source", *source);
        site.put(&format!("/content/a/jcr:content/root/main/quote{number}"), quote);
    }
    site.put("/rep:policy", read_policy("rep:GrantACE"));
    let rendered = || {
        let snapshot = site.repository.snapshot().unwrap().as_viewer(&Viewer::anonymous());
        let request = RenderRequest {
            recording: ReadRecording::Paths,
            ..RenderRequest::get("/content/a.html")
        };
        body_text(&site.renderer().render(&snapshot, &request))
    };
    let secrets = ["A secret draft", "Another structure", "A note in a policy"];
    let readable = rendered();
    for secret in secrets {
        assert!(readable.contains(secret), "{secret}: {readable}");
    }
    site.put("/conf/rep:policy", read_policy("rep:DenyACE"));
    let text = rendered();
    for secret in secrets {
        assert!(!text.contains(secret), "{secret}: {text}");
    }
    // The page still has its structure and the styles of its policies.
    for part in ["Locked header", "text--plain", "text--large text--red", "Own &amp; &lt;text&gt;"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
}

/// A page with an image component whose policy allows two widths.
fn site_with_image() -> Site {
    let site = site(RenderMode::Publish);
    add_template(&site);
    site.put("/apps/core/wcm/components/image/v3/image", component_node("Image", None));
    site.put(
        "/apps/shop/image",
        component_node("Image", Some("core/wcm/components/image/v3/image")),
    );
    let widths = texts(&["1200", "320"]);
    let policy = node("default")
        .with_property("allowedRenditionWidths", widths)
        .with_property("jpegQuality", "70");
    site.put("/conf/shop/settings/wcm/policies/shop/image", node("image").with_child(policy));
    let mapping = component("", "wcm/core/components/policies/mapping")
        .with_property("cq:policy", "shop/image/default");
    let types = node("shop").with_child(named("image", mapping));
    site.put(
        "/conf/shop/settings/wcm/templates/article/policies/jcr:content/root/main/shop",
        named("shop", types),
    );
    let mut asset = asset(&site, "Red Car.jpg", b"not really a picture");
    let metadata = asset.child_mut("jcr:content").unwrap().child_mut("metadata").unwrap();
    let format = Property::Single(Value::String("image/jpeg".to_owned()));
    metadata.properties.insert("dc:format".to_owned(), format);
    site.put("/content/dam/Red Car.jpg", asset);
    let image = component("image", "shop/image")
        .with_property("fileReference", "/content/dam/Red Car.jpg")
        .with_property("jcr:lastModified", date("2024-01-02T00:00:00.000Z"));
    let content = component("jcr:content", "shop/page")
        .with_property("cq:template", "/conf/shop/settings/wcm/templates/article")
        .with_child(node("root").with_child(node("main").with_child(image)));
    site.put("/content/shop/car", Subtree::new("car", "cq:Page").with_child(content));
    site
}

#[test]
fn image_components_have_their_picture_at_the_addresses_of_their_model() {
    let site = site_with_image();
    let image = "/content/shop/car/_jcr_content/root/main/image";
    let suffix = "/1704153600000/red-car.jpeg";
    let asset = "/content/dam/Red%20Car.jpg";
    let body = |address: &str| {
        let response = site.get(address);
        assert_eq!(response.outcome, RenderOutcome::Ok, "{address}");
        body_text(&response)
    };
    for (size, width) in [(".70.1200", 1200), (".70.320", 320), ("", 1280), (".70", 1280)] {
        let address = format!("{image}.coreimg{size}.jpeg{suffix}");
        assert_eq!(body(&address), format!("{asset}.width-{width}.jpeg"), "{address}");
    }
    // Anything else that names an allowed width leads to the address of that width.
    for (wrong, right) in [
        (format!(".coreimg.70.320.jpeg/1/{}", "red-car.jpeg"), ".coreimg.70.320.jpeg"),
        (".coreimg.70.320.jpeg".to_owned(), ".coreimg.70.320.jpeg"),
        (format!(".coreimg.10.320.jpeg{suffix}"), ".coreimg.70.320.jpeg"),
        (format!(".coreimg.320.jpeg{suffix}"), ".coreimg.70.320.jpeg"),
        (format!(".coreimg.70.320.png{suffix}"), ".coreimg.70.320.jpeg"),
        (format!(".img.70.320.jpeg{suffix}"), ".coreimg.70.320.jpeg"),
        (format!(".coreimg.jpeg{suffix}/x"), ".coreimg.jpeg"),
    ] {
        let RenderOutcome::Redirect { location, .. } = site.get(&format!("{image}{wrong}")).outcome
        else {
            panic!("{wrong} is no redirect");
        };
        assert_eq!(location, format!("{image}{right}{suffix}"), "{wrong}");
        let response = site.get(&location);
        assert_eq!(response.outcome, RenderOutcome::Ok, "{location}");
    }
    for missing in [
        format!("{image}.coreimg.70.321.jpeg{suffix}"),
        format!("{image}.coreimg.70.320.1.jpeg{suffix}"),
        format!("{image}.coreimg.a.320.jpeg{suffix}"),
        format!("/content/shop/car/_jcr_content/root/main.coreimg.jpeg{suffix}"),
        format!("/content/shop/car.coreimg.jpeg/structure/jcr:content/root/main/none{suffix}"),
        format!("/content/shop/car.coreimg.jpeg{suffix}"),
    ] {
        assert_eq!(site.get(&missing).outcome, RenderOutcome::NotFound, "{missing}");
    }
}

#[test]
fn a_picture_in_the_structure_of_a_template_belongs_to_its_pages() {
    let site = site_with_image();
    let logo = component("logo", "shop/image")
        .with_property("fileReference", "/content/dam/Red Car.jpg")
        .with_property("jcr:lastModified", date("2024-01-02T00:00:00.000Z"));
    site.put("/conf/shop/settings/wcm/templates/article/structure/jcr:content/root/logo", logo);
    let address = "/content/shop/car.coreimg.jpeg/structure/jcr%3acontent/root/logo";
    let suffix = "/1704153600000/red-car.jpeg";
    let response = site.get(&format!("{address}{suffix}"));
    assert_eq!(response.outcome, RenderOutcome::Ok);
    assert_eq!(body_text(&response), "/content/dam/Red%20Car.jpg.width-1280.jpeg");
    for other in [".jpeg", "/1.jpeg", "/1/x.jpeg"] {
        let RenderOutcome::Redirect { location, .. } =
            site.get(&format!("{address}{other}")).outcome
        else {
            panic!("{other} is no redirect");
        };
        assert_eq!(location, format!("{address}{suffix}"), "{other}");
    }
    // A page with a picture of its own lends it to no component that does not exist.
    let featured =
        node("cq:featuredimage").with_property("fileReference", "/content/dam/Red Car.jpg");
    site.put("/content/shop/car/jcr:content/cq:featuredimage", featured);
    for missing in ["/none.jpeg", "/logo.jpeg.jpeg"] {
        let address = format!("/content/shop/car.coreimg.jpeg/structure/jcr:content/root{missing}");
        let outcome = site.get(&address).outcome;
        assert!(!matches!(outcome, RenderOutcome::Ok), "{missing}: {outcome:?}");
    }
    // Without any date, the address has none.
    let path =
        NodePath::new("/conf/shop/settings/wcm/templates/article/structure/jcr:content/root/logo")
            .unwrap();
    site.edit(|session| {
        session.set_property(&path, "fileReference", "/content/dam/plain.png".into()).unwrap();
        session.remove_property(&path, "jcr:lastModified").unwrap();
    });
    site.put("/content/dam/plain.png", asset(&site, "plain.png", b"not really a picture"));
    let response = site.get(&format!("{}.png", address.replace(".coreimg.jpeg", ".coreimg.png")));
    assert_eq!(response.outcome, RenderOutcome::Ok);
}

#[test]
fn the_picture_of_a_teaser_has_the_widths_of_the_image_that_draws_it() {
    let site = site_with_image();
    let teaser = component_node("Teaser", Some("core/wcm/components/teaser/v2/teaser"))
        .with_property("imageDelegate", "shop/image");
    site.put("/apps/core/wcm/components/teaser/v2/teaser", component_node("Teaser", None));
    site.put("/apps/shop/teaser", teaser);
    let teaser = component("teaser", "shop/teaser")
        .with_property("fileReference", "/content/dam/Red Car.jpg")
        .with_property("jcr:lastModified", date("2024-01-02T00:00:00.000Z"));
    site.put("/content/shop/car/jcr:content/root/main/teaser", teaser);
    let address = |width: u32| {
        format!(
            "/content/shop/car/_jcr_content/root/main/teaser.coreimg.70.{width}.jpeg/1704153600000/red-car.jpeg"
        )
    };
    assert_eq!(site.text(&address(320)), "/content/dam/Red%20Car.jpg.width-320.jpeg");
    assert_eq!(site.get(&address(321)).outcome, RenderOutcome::NotFound);
}

#[test]
fn a_picture_of_a_component_is_another_after_its_asset_or_component_changed() {
    let site = site_with_image();
    let address = "/content/shop/car/_jcr_content/root/main/image.coreimg.70.320.jpeg/1704153600000/red-car.jpeg";
    let request = RenderRequest { recording: ReadRecording::Paths, ..RenderRequest::get(address) };
    let read = site.render(&request).reads.dependencies();
    let is_affected = |edit: &dyn Fn()| {
        let before = site.repository.snapshot().unwrap();
        edit();
        let after = site.repository.snapshot().unwrap();
        ChangedAspects::between_snapshots(&before, &after).unwrap().affects(&read)
    };
    assert!(!is_affected(&|| site.put("/content/shop/other", page("other", "Other", "shop/page"))));
    assert!(is_affected(&|| {
        let changed = asset(&site, "Red Car.jpg", b"another one");
        site.put("/content/dam/Red Car.jpg", changed);
    }));
    let image = NodePath::new("/content/shop/car/jcr:content/root/main/image").unwrap();
    assert!(is_affected(&|| site.edit(|session| {
        session.set_property(&image, "fileReference", "/content/dam/other.jpg".into()).unwrap();
    })));
}

#[test]
fn downloads_send_the_file_at_the_address_of_their_model() {
    let site = site_with_image();
    let upload = component("terms", "core/wcm/components/download/v2/download")
        .with_property("fileName", "Our terms.pdf")
        .with_child(file(&site.repository, "file", b"%PDF-1.7", "application/pdf"));
    site.put("/content/shop/car/jcr:content/root/main/terms", upload);
    let header = |address: &str| {
        let response = site.get(address);
        assert_eq!(response.outcome, RenderOutcome::Ok, "{address}");
        assert!(matches!(response.body, RenderResponseBody::Blob(_)), "{address}");
        let mut headers = response.headers.into_iter();
        headers.find(|(name, _)| *name == "content-disposition").map(|(_, value)| value)
    };
    let asset = "/content/dam/Red%20Car.jpg.coredownload";
    let file = "/content/shop/car/_jcr_content/root/main/terms/file.coredownload";
    for (address, expected) in [
        (format!("{asset}.jpg"), Some("attachment; filename*=UTF-8''Red%20Car.jpg")),
        (format!("{asset}.inline.jpg"), None),
        (format!("{file}.pdf"), Some("attachment; filename*=UTF-8''Our%20terms.pdf")),
        (format!("{file}.inline.pdf"), None),
    ] {
        assert_eq!(header(&address).as_deref(), expected, "{address}");
    }
    for missing in [
        format!("{asset}.png"),
        format!("{asset}.other.jpg"),
        format!("{asset}.jpg/suffix"),
        format!("{file}.inline.inline.pdf"),
        "/content/shop/car/_jcr_content/root/main/terms.coredownload.pdf".to_owned(),
    ] {
        assert_eq!(site.get(&missing).outcome, RenderOutcome::NotFound, "{missing}");
    }
}

#[test]
fn a_search_field_gets_the_pages_with_its_words() {
    let site = site_with_image();
    site.put("/apps/core/wcm/components/search/v2/search", component_node("Search", None));
    site.put(
        "/apps/shop/search",
        component_node("Search", Some("core/wcm/components/search/v2/search")),
    );
    let field = component("search", "shop/search").with_property("searchRoot", "/content/shop");
    site.put("/content/shop/car/jcr:content/root/main/search", field.clone());
    site.put("/conf/shop/settings/wcm/templates/article/structure/jcr:content/root/search", field);
    for (name, title) in [("bicycle", "A green bicycle"), ("tandem", "A bicycle for two")] {
        site.put(&format!("/content/shop/car/{name}"), page(name, title, "shop/page"));
    }
    let hits = |suffix: &str, query: &str| -> Vec<(String, String)> {
        let text = site.text(&format!("/content/shop/car.searchresults.json{suffix}?{query}"));
        let hits: serde_json::Value =
            serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text}"));
        let mut hits: Vec<_> = hits
            .as_array()
            .unwrap()
            .iter()
            .map(|hit| {
                (hit["title"].as_str().unwrap().to_owned(), hit["url"].as_str().unwrap().to_owned())
            })
            .collect();
        hits.sort();
        hits
    };
    let both = [
        ("A bicycle for two".to_owned(), "/content/shop/car/tandem.html".to_owned()),
        ("A green bicycle".to_owned(), "/content/shop/car/bicycle.html".to_owned()),
    ];
    let own = "/_jcr_content/root/main/search";
    assert_eq!(hits(own, "fulltext=bicycle"), both);
    assert_eq!(hits("/_jcr_content/root/search", "fulltext=bicycle"), both);
    assert_eq!(hits(own, "fulltext=green+bicycle"), both[1..]);
    assert_eq!(hits(own, "fulltext=bicycle&resultsOffset=10"), []);
    // Fewer letters than the field sends.
    assert_eq!(hits(own, "fulltext=bi"), []);
    assert_eq!(hits(own, ""), []);
    for missing in ["/_jcr_content/root/main/image", "/_jcr_content/nothing", "/x", ""] {
        // As any selector that is no depth of a JSON form.
        let address = format!("/content/shop/car.searchresults.json{missing}");
        assert_eq!(site.get(&address).outcome, RenderOutcome::BadRequest, "{missing}");
    }
}
