//! Behavior of components that their documentation states, on small content.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use tympan_core_components::{
    ComponentContext, ComponentResource, ContentValue, Error, ModelRequest, ModelValue,
    OembedAnswer, export_resource, find_content_policy, find_model, find_model_class,
};

use crate::memory_context::{MemoryContext, shared};

const MODELS: &str = "com.adobe.cq.wcm.core.components.models";

/// A site in two languages; `components` are below the content of `/content/site/en/news`.
fn site(components: Value) -> MemoryContext {
    let page = |title: &str, more: Value| {
        let mut content = json!({"jcr:primaryType": "cq:PageContent", "jcr:title": title});
        let members = content.as_object_mut().unwrap();
        members.extend(more.as_object().unwrap().clone());
        json!({"jcr:primaryType": "cq:Page", "jcr:content": content})
    };
    let mut news = Map::new();
    news.insert("pageTitle".to_owned(), json!("All news"));
    news.insert("jcr:description".to_owned(), json!("What <is> new"));
    news.insert("root".to_owned(), components);
    let mut context = MemoryContext::default();
    context.load("/content/site", &page("Site", json!({})));
    context.load("/content/site/en", &page("English", json!({"jcr:language": "en"})));
    context.load("/content/site/en/news", &page("News", Value::Object(news)));
    context.load(
        "/content/site/en/about",
        &page(
            "About",
            json!({"navTitle": "Us", "jcr:description": "a & b", "cq:featuredimage": {"fileReference": "/content/dam/a.png"}}),
        ),
    );
    context.load("/content/site/en/hidden", &page("Hidden", json!({"hideInNav": true})));
    context.load("/content/site/de", &page("Deutsch", json!({"jcr:language": "de"})));
    context.load("/content/site/de/news", &page("Neues", json!({})));
    context.load("/content/site/fr_CH", &page("Français", json!({})));
    context.load(
        "/content/dam/a.png",
        &json!({
            "jcr:primaryType": "dam:Asset",
            "jcr:uuid": "u-1",
            "jcr:content": {
                "jcr:lastModified": "2020-01-01T00:00:00.000Z",
                "metadata": {"dc:format": "image/png", "dc:title": "Asset", "dam:size": 151_000},
            },
        }),
    );
    for (name, extra) in [
        ("teaser/v2/teaser", json!({"imageDelegate": "core/wcm/components/image/v3/image"})),
        ("title/v3/title", json!({})),
        ("tabs/v1/tabs", json!({})),
    ] {
        context.load(&format!("/apps/core/wcm/components/{name}"), &extra);
    }
    context.load(
        "/apps/site/components/title",
        &json!({"sling:resourceSuperType": "core/wcm/components/title/v3/title"}),
    );
    context
}

const ROOT: &str = "/content/site/en/news/jcr:content/root";

fn model_of(context: &Arc<dyn ComponentContext>, class: &str, path: &str) -> ModelValue {
    let factory = find_model(&format!("{MODELS}.{class}")).unwrap();
    factory(&ModelRequest::new(context.clone(), ComponentResource::new(path)))
}

/// Reads `a.b.0.c` of a model.
fn read(model: &ModelValue, path: &str) -> Value {
    let mut value = model.clone();
    for name in path.split('.') {
        value = match (&value, name.parse::<usize>()) {
            (ModelValue::List(values), Ok(index)) => values[index].clone(),
            _ => value.property(name).unwrap_or_else(|| panic!("no `{name}` in `{path}`")),
        };
    }
    value.to_json()
}

/// Creates one component and checks properties of its model.
fn check(class: &str, component: Value, expected: &[(&str, Value)]) {
    let mut components = Map::new();
    components.insert("it".to_owned(), component);
    let context = shared(site(Value::Object(components)));
    let model = model_of(&context, class, &format!("{ROOT}/it"));
    for (path, value) in expected {
        assert_eq!(read(&model, path), *value, "{class}: {path}");
    }
}

#[test]
fn a_title_without_text_is_that_of_the_page() {
    check("Title", json!({}), &[("text", json!("All news")), ("type", json!(null))]);
    check(
        "Title",
        json!({"jcr:title": "Own", "type": "h9"}),
        &[("text", json!("Own")), ("type", json!(null))],
    );
}

#[test]
fn links_know_pages_files_and_other_sites() {
    for (url, expected) in [
        ("/content/site/en/about", json!("/content/site/en/about.html")),
        ("/content/site/en/about?a=b#c", json!("/content/site/en/about.html?a=b#c")),
        ("/content/dam/a.png", json!("/content/dam/a.png")),
        ("https://example.com/a b", json!("https://example.com/a%20b")),
        ("#top", json!("#top")),
        ("mailto:a@example.com", json!("mailto:a@example.com")),
        ("  ", json!(null)),
        ("", json!(null)),
    ] {
        check("Title", json!({"linkURL": url}), &[("linkURL", expected)]);
    }
    check(
        "Title",
        json!({"linkURL": "/content/site/en/about", "linkTarget": "_blank", "linkTitleAttribute": "T"}),
        &[
            ("link.valid", json!(true)),
            ("link.externalizedURL", json!("https://example.org/content/site/en/about.html")),
            (
                "link.htmlAttributes",
                json!({"href": "/content/site/en/about.html", "target": "_blank", "title": "T"}),
            ),
        ],
    );
    check(
        "Title",
        json!({"linkURL": "/a", "linkTarget": "_self"}),
        &[("link.attributes", json!({}))],
    );
}

#[test]
fn a_proxy_is_answered_by_its_core_ancestor() {
    let context = shared(site(json!({
        "it": {"sling:resourceType": "site/components/title", "jcr:title": "T"},
        "circle": {"sling:resourceType": "site/components/circle"},
    })));
    let (class, _) = find_model_class(&*context, "site/components/title").unwrap();
    assert_eq!(class, format!("{MODELS}.Title"));
    assert!(find_model_class(&*context, "site/components/other").is_none());
    let exported =
        export_resource(&context, &ComponentResource::new(format!("{ROOT}/it"))).unwrap().unwrap();
    let exported = exported.to_json();
    assert_eq!(exported[":type"], json!("site/components/title"));
    assert_eq!(exported["text"], json!("T"));
    assert!(exported["id"].as_str().unwrap().starts_with("title-"));
    let circle = ComponentResource::new(format!("{ROOT}/circle"));
    assert!(export_resource(&context, &circle).unwrap().is_none());
}

#[test]
fn super_types_in_a_circle_end() {
    let mut context = site(json!({}));
    context.load("/apps/a", &json!({"sling:resourceSuperType": "b"}));
    context.load("/apps/b", &json!({"sling:resourceSuperType": "a"}));
    assert!(find_model_class(&*shared(context), "a").is_none());
}

#[test]
fn an_identifier_of_an_author_is_one_word() {
    check("Title", json!({"id": "  my  title "}), &[("id", json!("my-title"))]);
}

#[test]
fn a_teaser_takes_texts_from_the_linked_page() {
    let component = json!({
        "sling:resourceType": "core/wcm/components/teaser/v2/teaser",
        "linkURL": "/content/site/en/about",
        "titleFromPage": true,
        "descriptionFromPage": true,
        "imageFromPageImage": true,
        "jcr:title": "ignored",
    });
    check(
        "Teaser",
        component,
        &[
            ("title", json!("About")),
            ("description", json!("a &amp; b")),
            ("link.url", json!("/content/site/en/about.html")),
            ("actions", json!([])),
        ],
    );
}

#[test]
fn a_teaser_links_to_its_first_call_to_action() {
    let component = json!({
        "sling:resourceType": "core/wcm/components/teaser/v2/teaser",
        "linkURL": "https://example.com",
        "actionsEnabled": true,
        "jcr:title": "T",
        "actions": {
            "item0": {"link": "/content/site/en/about", "text": "More"},
            "item1": {"link": "", "text": "None"},
        },
    });
    check(
        "Teaser",
        component,
        &[
            ("link.url", json!("/content/site/en/about.html")),
            ("actions.0.title", json!("More")),
            ("actions.0.link.valid", json!(true)),
            ("actions.1.link.valid", json!(false)),
        ],
    );
}

#[test]
fn a_teaser_draws_its_picture_as_an_image_without_its_title() {
    let context = shared(site(json!({"it": {
        "sling:resourceType": "core/wcm/components/teaser/v2/teaser",
        "jcr:title": "T",
        "linkURL": "/content/site/en/about",
        "imageFromPageImage": true,
    }})));
    let teaser = model_of(&context, "Teaser", &format!("{ROOT}/it"));
    let Some(ModelValue::Resource(image)) = teaser.property("imageResource") else {
        panic!("no image")
    };
    assert_eq!(
        image.resource_type(&*context).as_deref(),
        Some("core/wcm/components/image/v3/image")
    );
    assert!(image.property(&*context, "jcr:title").is_none());
    let factory = find_model(&format!("{MODELS}.Image")).unwrap();
    let image = factory(&ModelRequest::new(context.clone(), image));
    assert_eq!(read(&image, "alt"), json!("Asset"));
    assert_eq!(read(&image, "imageLink"), json!(null), "the teaser is one link");
    assert_eq!(
        read(&image, "src"),
        json!("/content/site/en/news/_jcr_content/root/it.coreimg.png/1577836800000/a.png")
    );
}

#[test]
fn tabs_show_the_chosen_item_or_the_first() {
    let tabs = |active: &str| {
        json!({
            "sling:resourceType": "core/wcm/components/tabs/v1/tabs",
            "activeItem": active,
            "one": {"sling:resourceType": "x", "cq:panelTitle": "One", "jcr:title": "1"},
            "two": {"sling:resourceType": "x", "jcr:title": "Two"},
            "cq:responsive": {},
            "ghost": {"sling:resourceType": "wcm/msm/components/ghost"},
        })
    };
    check(
        "Tabs",
        tabs(""),
        &[
            ("activeItem", json!("one")),
            ("items.0.title", json!("One")),
            ("items.1.title", json!("Two")),
        ],
    );
    check("Tabs", tabs("two"), &[("activeItem", json!("two"))]);
    check("Tabs", tabs("ghost"), &[("activeItem", json!("one"))]);
    check("Tabs", json!({}), &[("activeItem", json!(null)), ("items", json!([]))]);
}

#[test]
fn an_accordion_with_single_expansion_opens_one_item() {
    let accordion = |single: bool, expanded: Value| {
        json!({
            "singleExpansion": single,
            "expandedItems": expanded,
            "headingElement": "h4",
            "one": {"sling:resourceType": "x"},
            "two": {"sling:resourceType": "x"},
        })
    };
    for (single, expanded, result) in [
        (false, json!(["two", "one", "gone"]), json!(["two", "one"])),
        (true, json!(["two", "one"]), json!(["two"])),
        (true, json!([]), json!(["one"])),
        (false, json!([]), json!([])),
    ] {
        check(
            "Accordion",
            accordion(single, expanded),
            &[("expandedItems", result), ("headingElement", json!("h4"))],
        );
    }
}

#[test]
fn a_download_is_described_by_its_asset() {
    check(
        "Download",
        json!({"fileReference": "/content/dam/a.png", "titleFromAsset": true, "actionText": "Get"}),
        &[
            ("url", json!("/content/dam/a.png.coredownload.png")),
            ("title", json!("Asset")),
            ("filename", json!("a.png")),
            ("size", json!("147 KB")),
            ("format", json!("image/png")),
            ("actionText", json!("Get")),
        ],
    );
    check(
        "Download",
        json!({"fileReference": "/content/dam/a.png", "inline": true}),
        &[("url", json!("/content/dam/a.png.coredownload.inline.png")), ("title", json!(null))],
    );
    check("Download", json!({}), &[("url", json!(null)), ("filename", json!(null))]);
}

#[test]
fn an_embed_shows_one_kind_of_input() {
    let embed = |kind: &str| {
        json!({
            "type": kind,
            "url": "https://www.pinterest.com/pin/99/",
            "html": "<b>x</b>",
            "embeddableResourceType": "site/embeddable",
        })
    };
    check(
        "Embed",
        embed("url"),
        &[
            ("result.processor", json!("pinterest")),
            ("result.options.pinId", json!("99")),
            ("html", json!(null)),
            ("embeddableResourceType", json!(null)),
        ],
    );
    check("Embed", embed("html"), &[("html", json!("<b>x</b>")), ("result", json!(null))]);
    check("Embed", embed("embeddable"), &[("embeddableResourceType", json!("site/embeddable"))]);
    check("Embed", embed("other"), &[("html", json!(null)), ("result", json!(null))]);
}

#[test]
fn an_embed_draws_the_answer_of_a_provider() {
    let mut context = site(json!({"it": {"type": "url", "url": "https://youtu.be/1"}}));
    let members = vec![("type".to_owned(), ModelValue::from("video"))];
    context.oembed = Some(OembedAnswer { members });
    let model = model_of(&shared(context), "Embed", &format!("{ROOT}/it"));
    assert_eq!(read(&model, "result.processor"), json!("oembed"));
    assert_eq!(read(&model, "result.options.response.type"), json!("video"));
    assert_eq!(read(&model, "result.options.unsafeContext"), json!(false));
}

#[test]
fn a_player_of_youtube_has_the_chosen_settings() {
    check(
        "embeddable.YouTube",
        json!({"youtubeVideoId": "a-b_1", "layout": "responsive", "youtubeAspectRatio": "75", "youtubeLoop": true, "youtubeMute": false}),
        &[
            (
                "iFrameSrc",
                json!("https://www.youtube.com/embed/a-b_1?mute=0&loop=1&playlist=a-b_1"),
            ),
            ("iFrameAspectRatio", json!("75")),
            ("iFrameWidth", json!(null)),
            ("empty", json!(false)),
        ],
    );
    check("embeddable.YouTube", json!({}), &[("empty", json!(true)), ("iFrameSrc", json!(null))]);
}

fn fragments() -> MemoryContext {
    let mut context = site(json!({"it": {
        "sling:resourceType": "core/wcm/components/experiencefragment/v2/experiencefragment",
        "fragmentVariationPath": "/content/experience-fragments/site/en/header/master",
    }}));
    for language in ["en", "de"] {
        context.load(
            &format!("/content/experience-fragments/site/{language}/header/master"),
            &json!({"jcr:primaryType": "cq:Page", "jcr:content": {"root": {
                "sling:resourceType": "core/wcm/components/title/v3/title", "jcr:title": language,
            }}}),
        );
    }
    let template = "/conf/site/settings/wcm/templates/t/structure/jcr:content/header";
    context.load(
        template,
        &json!({
            "sling:resourceType": "core/wcm/components/experiencefragment/v2/experiencefragment",
            "fragmentVariationPath": "/content/experience-fragments/site/en/header/master",
        }),
    );
    context
}

#[test]
fn a_fragment_of_a_template_follows_the_language_of_the_page() {
    let mut context = fragments();
    context.current_page = Some("/content/site/de/news".to_owned());
    let context = shared(context);
    let path = "/conf/site/settings/wcm/templates/t/structure/jcr:content/header";
    let model = model_of(&context, "ExperienceFragment", path);
    assert_eq!(
        read(&model, "localizedFragmentVariationPath"),
        json!("/content/experience-fragments/site/de/header/master/jcr:content")
    );
    assert_eq!(read(&model, "name"), json!("header"));
    // A fragment in the content of a page is as the author chose it.
    let model = model_of(&context, "ExperienceFragment", &format!("{ROOT}/it"));
    assert_eq!(
        read(&model, "localizedFragmentVariationPath"),
        json!("/content/experience-fragments/site/en/header/master/jcr:content")
    );
    assert_eq!(model.to_json()[":items"]["root"]["text"], json!("en"));
}

#[test]
fn fragments_that_contain_each_other_end() {
    let mut context = fragments();
    for (name, other) in [("a", "b"), ("b", "a")] {
        context.load(
            &format!("/content/experience-fragments/site/{name}/master"),
            &json!({"jcr:primaryType": "cq:Page", "jcr:content": {
                "one": {
                    "sling:resourceType": "core/wcm/components/experiencefragment/v1/experiencefragment",
                    "fragmentVariationPath": format!("/content/experience-fragments/site/{other}/master"),
                },
                "two": {
                    "sling:resourceType": "core/wcm/components/experiencefragment/v1/experiencefragment",
                    "fragmentVariationPath": format!("/content/experience-fragments/site/{other}/master"),
                },
            }}),
        );
    }
    let path = "/content/experience-fragments/site/a/master/jcr:content/one";
    let exported = export_resource(&shared(context), &ComponentResource::new(path)).unwrap();
    let exported = exported.unwrap().to_json();
    // The fragment `b`, whose components show `a`, which is open.
    assert_eq!(exported[":itemsOrder"], json!(["one", "two"]));
    assert_eq!(exported[":items"]["one"][":itemsOrder"], json!([]));
    assert_eq!(exported[":items"]["two"][":itemsOrder"], json!([]));
}

/// Creates pages whose content names other pages as fragments, each several times.
fn linked_fragments(links: &[(String, String)], breadth: usize) -> MemoryContext {
    let mut context = MemoryContext::default();
    for (page, target) in links {
        let mut content = Map::new();
        content.insert("sling:resourceType".to_owned(), json!("core/wcm/components/page/v3/page"));
        for number in 0..breadth {
            let component = json!({
                "sling:resourceType": "core/wcm/components/experiencefragment/v2/experiencefragment",
                "fragmentVariationPath": target,
            });
            content.insert(format!("c{number}"), component);
        }
        let tree = json!({"jcr:primaryType": "cq:Page", "jcr:content": content});
        context.load(page, &tree);
    }
    context
}

#[test]
fn fragments_that_contain_each_other_many_times_end() {
    let links = [("/content/xfa", "/content/xfb"), ("/content/xfb", "/content/xfa")];
    let links = links.map(|(page, target)| (page.to_owned(), target.to_owned()));
    let context = shared(linked_fragments(&links, 5));
    let resource = ComponentResource::new("/content/xfa/jcr:content");
    let exported = export_resource(&context, &resource).unwrap().unwrap().to_json();
    let inner = &exported[":items"]["c4"][":items"]["c4"];
    assert_eq!(inner["localizedFragmentVariationPath"], json!("/content/xfa/jcr:content"));
    assert_eq!(inner[":itemsOrder"], json!([]));
    let text = exported.to_string();
    assert!(text.len() < 50_000, "{} bytes", text.len());
}

#[test]
fn a_chain_of_fragments_with_many_references_ends_with_an_error() {
    let links: Vec<_> =
        (1..9).map(|n| (format!("/content/f{n}"), format!("/content/f{}", n + 1))).collect();
    let resource = ComponentResource::new("/content/f1/jcr:content");
    let export = |breadth| export_resource(&shared(linked_fragments(&links, breadth)), &resource);
    assert!(export(2).unwrap().is_some());
    assert_eq!(export(6).unwrap_err(), Error::TooManyComponents(10_000));
}

#[test]
fn an_export_of_a_large_text_in_many_places_ends_with_an_error() {
    let links = [("/content/a".to_owned(), "/content/b".to_owned())];
    let export = |breadth| {
        let mut context = linked_fragments(&links, breadth);
        let text = json!({
            "sling:resourceType": "core/wcm/components/title/v3/title",
            "jcr:title": "x".repeat(1024 * 1024),
        });
        let tree = json!({"jcr:primaryType": "cq:Page", "jcr:content": {"title": text}});
        context.load("/content/b", &tree);
        export_resource(&shared(context), &ComponentResource::new("/content/a/jcr:content"))
    };
    assert!(export(4).unwrap().is_some());
    assert_eq!(export(9).unwrap_err(), Error::OutputTooLarge(8 * 1024 * 1024));
}

#[test]
fn links_with_a_scheme_that_may_run_code_have_no_address() {
    for url in
        ["javascript:alert(1)", " JavaScript:alert(1)", "data:text/html,a", "java\nscript:alert(1)"]
    {
        check("Title", json!({"linkURL": url}), &[("linkURL", json!(null)), ("link", json!(null))]);
    }
    let mut context = site(json!({}));
    let content = "/content/site/en/news/jcr:content";
    context.set(content, "cq:redirectTarget", ContentValue::text("javascript:alert(1)"));
    context.current_page = Some("/content/site/en/news".to_owned());
    let page = model_of(&shared(context), "Page", content);
    assert_eq!(read(&page, "redirectTarget.link"), json!({"valid": false}));
}

#[test]
fn a_language_navigation_leads_to_the_same_page() {
    check(
        "LanguageNavigation",
        json!({"navigationRoot": "/content/site", "structureDepth": 1}),
        &[
            ("items.0.link.url", json!("/content/site/en/news.html")),
            ("items.0.title", json!("English")),
            ("items.0.active", json!(true)),
            ("items.0.language", json!("en")),
            ("items.1.link.url", json!("/content/site/de/news.html")),
            ("items.1.active", json!(false)),
            ("items.2.link.url", json!("/content/site/fr_CH.html")),
            ("items.2.language", json!("fr-CH")),
            ("items.2.country", json!("CH")),
        ],
    );
}

#[test]
fn a_navigation_leaves_hidden_pages_out() {
    check(
        "Navigation",
        json!({"navigationRoot": "/content/site/en"}),
        &[
            ("items.0.title", json!("All news")),
            ("items.0.current", json!(true)),
            ("items.1.title", json!("Us")),
            ("items.1.active", json!(false)),
        ],
    );
    let context = shared(site(json!({"it": {"navigationRoot": "/content/site/en"}})));
    let model = model_of(&context, "Navigation", &format!("{ROOT}/it"));
    assert_eq!(read(&model, "items").as_array().unwrap().len(), 2);
}

#[test]
fn a_navigation_of_another_language_shows_the_pages_of_the_current_one() {
    check(
        "Navigation",
        json!({"navigationRoot": "/content/site/de"}),
        &[("items.0.path", json!("/content/site/en/news"))],
    );
}

#[test]
fn lists_are_ordered_as_people_order_titles() {
    let mut context = site(json!({"it": {
        "sling:resourceType": "core/wcm/components/list/v4/list",
        "listFrom": "static", "orderBy": "title",
        "pages": ["/content/t/d", "/content/t/c", "/content/t/b", "/content/t/a"],
    }}));
    for (name, title) in [("a", "Äpfel"), ("b", "apfel"), ("c", "Zebra"), ("d", "ärger")] {
        context.load(
            &format!("/content/t/{name}"),
            &json!({"jcr:primaryType": "cq:Page", "jcr:content": {"jcr:title": title}}),
        );
    }
    let model = model_of(&shared(context), "List", &format!("{ROOT}/it"));
    let titles: Vec<Value> =
        (0..4).map(|index| read(&model, &format!("items.{index}.title"))).collect();
    assert_eq!(titles, [json!("apfel"), json!("Äpfel"), json!("ärger"), json!("Zebra")]);
}

#[test]
fn a_list_of_teasers_gives_each_a_resource() {
    let context = shared(site(json!({"it": {
        "sling:resourceType": "core/wcm/components/list/v4/list",
        "listFrom": "static", "displayItemAsTeaser": true, "linkItems": true, "showDescription": true,
        "pages": ["/content/site/en/about"],
    }})));
    let list = model_of(&context, "List", &format!("{ROOT}/it"));
    let Some(ModelValue::List(items)) = list.property("listItems") else { panic!("no items") };
    let Some(ModelValue::Resource(teaser)) = items[0].property("teaserResource") else {
        panic!("no teaser")
    };
    let factory = find_model(&format!("{MODELS}.Teaser")).unwrap();
    let teaser = factory(&ModelRequest::new(context.clone(), teaser));
    assert_eq!(read(&teaser, "title"), json!("Us"));
    assert_eq!(read(&teaser, "description"), json!("a & b"));
    assert_eq!(read(&teaser, "link.url"), json!("/content/site/en/about.html"));
    assert!(matches!(teaser.property("imageResource"), Some(ModelValue::Resource(_))));
}

#[test]
fn progress_is_between_nothing_and_all() {
    for (completed, expected) in [
        (json!(30), 30.0),
        (json!("12.5"), 12.5),
        (json!(-3), 0.0),
        (json!(700), 100.0),
        (json!("x"), 0.0),
    ] {
        check(
            "ProgressBar",
            json!({"completed": completed}),
            &[("completed", json!(expected)), ("remaining", json!(100.0 - expected))],
        );
    }
}

#[test]
fn a_viewer_of_documents_has_the_settings_of_its_mode() {
    check(
        "PdfViewer",
        json!({"documentPath": "/content/dam/x/a.pdf", "type": "FULL_WINDOW", "borderless": true, "defaultViewMode": "FIT_PAGE", "showPrintPdf": true}),
        &[
            ("documentFileName", json!("a.pdf")),
            ("containerClass", json!("cmp-pdfviewer__full-window-borderless")),
            (
                "viewerConfigJson",
                json!(
                    r#"{"embedMode":"FULL_WINDOW","defaultViewMode":"FIT_PAGE","showAnnotationTools":false,"showLeftHandPanel":false,"showPageControls":false,"dockPageControls":false,"showDownloadPDF":false,"showPrintPDF":true}"#
                ),
            ),
        ],
    );
}

#[test]
fn sharing_needs_a_page_that_switches_it_on() {
    let mut context =
        site(json!({"it": {"sling:resourceType": "core/wcm/components/sharing/v1/sharing"}}));
    let networks = ContentValue::List([ContentValue::text("facebook")].into());
    context.set("/content/site/en/news/jcr:content", "socialMedia", networks);
    let model = model_of(&shared(context), "SocialMediaHelper", &format!("{ROOT}/it"));
    assert_eq!(read(&model, "hasFacebookSharing"), json!(true));
    assert_eq!(read(&model, "pinterestEnabled"), json!(false));
    assert_eq!(read(&model, "metadata.og:title"), json!("All news"));
    let url = json!("https://example.org/content/site/en/news.html");
    assert_eq!(read(&model, "metadata.og:url"), url);
    assert_eq!(
        read(&model, "metadata.keySet"),
        json!(["og:title", "og:url", "og:type", "og:site_name", "og:description"])
    );
}

#[test]
fn a_policy_of_the_template_applies_to_its_components() {
    let mut context = site(json!({
        "title": {"sling:resourceType": "site/components/title"},
        "grid": {"title": {"sling:resourceType": "site/components/title"}},
        "it": {"sling:resourceType": "other"},
    }));
    let template = "/conf/site/settings/wcm/templates/t";
    let content = "/content/site/en/news/jcr:content";
    context.set(content, "cq:template", ContentValue::text(template));
    context.load(
        &format!("{template}/policies/jcr:content"),
        &json!({"root": {
            "title": {"cq:policy": "site/title/first"},
            "site": {"components": {"title": {"cq:policy": "site/title/second"}}},
        }}),
    );
    context.load(
        "/conf/site/settings/wcm/policies/site/title",
        &json!({"first": {"type": "h2"}, "second": {
            "type": "h5",
            "cq:styleGroups": {"a": {"cq:styles": {
                "x": {"cq:styleId": "1", "cq:styleClasses": "big red"},
                "y": {"cq:styleId": "2", "cq:styleClasses": "small"},
            }}},
        }}),
    );
    let ids = ContentValue::List([ContentValue::text("1")].into());
    context.set(&format!("{ROOT}/grid/title"), "cq:styleIds", ids);
    let policy = |path: &str| {
        find_content_policy(&context, &ComponentResource::new(format!("{ROOT}/{path}")))
    };
    let folder = "/conf/site/settings/wcm/policies/site/title";
    assert_eq!(policy("title"), Some(format!("{folder}/first")));
    assert_eq!(policy("grid/title"), Some(format!("{folder}/second")));
    assert_eq!(policy("it"), None);
    let model = model_of(&shared(context), "Title", &format!("{ROOT}/grid/title"));
    assert_eq!(read(&model, "type"), json!("h5"));
    assert_eq!(read(&model, "appliedCssClasses"), json!("big red"));
}

#[test]
fn elements_of_a_fragment_are_those_of_its_model() {
    let mut context = site(json!({
        "it": {
            "sling:resourceType": "core/wcm/components/contentfragment/v1/contentfragment",
            "fragmentPath": "/content/dam/f",
            "elementNames": ["tags", "text"],
        },
        "none": {"fragmentPath": "/content/dam/a.png"},
    }));
    context.load(
        "/content/dam/f",
        &json!({"jcr:primaryType": "dam:Asset", "jcr:content": {
            "contentFragment": true, "jcr:title": "F",
            "data": {
                "cq:model": "/conf/site/settings/dam/cfm/models/article",
                "master": {"text": "<p>x</p>", "text@ContentType": "text/html", "tags": ["a", "b"], "n": 3},
            },
        }}),
    );
    context.load(
        "/conf/site/settings/dam/cfm/models/article/jcr:content/model/cq:dialog/content/items",
        &json!({
            "1": {"name": "text", "fieldLabel": "Text", "valueType": "string/multi-line"},
            "2": {"name": "tags", "fieldLabel": "Tags", "valueType": "string[]"},
            "3": {"name": "n", "fieldLabel": "Number", "valueType": "long"},
        }),
    );
    let context = shared(context);
    let model = model_of(&context, "contentfragment.ContentFragment", &format!("{ROOT}/it"));
    assert_eq!(read(&model, "type"), json!("site/models/article"));
    assert_eq!(read(&model, "name"), json!("f"));
    assert_eq!(read(&model, "elements.0.name"), json!("tags"));
    assert_eq!(read(&model, "elements.0.value"), json!(["a", "b"]));
    assert_eq!(read(&model, "elements.1.html"), json!("<p>x</p>"));
    let exported = model.to_json();
    assert_eq!(exported["elementsOrder"], json!(["tags", "text"]));
    assert_eq!(
        exported["elements"]["text"],
        json!({"title": "Text", "dataType": "string", "value": "<p>x</p>", "multiValue": false, ":type": "text/html"})
    );
    let none = model_of(&context, "contentfragment.ContentFragment", &format!("{ROOT}/none"));
    assert_eq!(read(&none, "title"), json!(null));
}

#[test]
fn a_page_names_its_libraries_and_addresses() {
    let context = shared(site(json!({})));
    let model = model_of(&context, "Page", "/content/site/en/news/jcr:content");
    assert_eq!(read(&model, "title"), json!("News"));
    assert_eq!(read(&model, "language"), json!("en"));
    assert_eq!(
        read(&model, "canonicalLink"),
        json!("https://example.org/content/site/en/news.html")
    );
    assert_eq!(read(&model, "dataLayerName"), json!("adobeDataLayer"));
    assert_eq!(read(&model, "data"), json!(null));
}

#[test]
fn the_data_layer_is_off_unless_configured() {
    let mut context =
        site(json!({"it": {"jcr:title": "T", "sling:resourceType": "site/components/title"}}));
    let data = |context: MemoryContext| {
        model_of(&shared(context), "Title", &format!("{ROOT}/it")).property("data").unwrap()
    };
    assert!(data(site(json!({"it": {}}))).is_null());
    let folder =
        "/conf/site/sling:configs/com.adobe.cq.wcm.core.components.internal.DataLayerConfig";
    context.set(folder, "enabled", ContentValue::Boolean(true));
    let reference = ContentValue::text("/conf/site");
    context.set("/content/site/jcr:content", "sling:configRef", reference);
    let data = data(context);
    let text = data.property("json").unwrap();
    let parsed: Value = serde_json::from_str(text.as_text().unwrap()).unwrap();
    let (id, fields) = parsed.as_object().unwrap().iter().next().unwrap();
    assert!(id.starts_with("title-"));
    assert_eq!(*fields, json!({"@type": "site/components/title", "dc:title": "T"}));
}

#[test]
fn a_grid_gives_columns_their_classes() {
    let context = shared(site(json!({"it": {
        "sling:resourceType": "wcm/foundation/components/responsivegrid",
        "wide": {"sling:resourceType": "x"},
        "half": {"sling:resourceType": "x", "cq:responsive": {
            "default": {"width": 6, "offset": 1}, "phone": {"width": 12, "behavior": "newline"},
        }},
    }})));
    let factory =
        find_model("com.day.cq.wcm.foundation.model.responsivegrid.ResponsiveGrid").unwrap();
    let resource = ComponentResource::new(format!("{ROOT}/it"));
    let model = factory(&ModelRequest::new(context.clone(), resource));
    assert_eq!(read(&model, "cssClass"), json!("aem-Grid aem-Grid--12 aem-Grid--default--12"));
    assert_eq!(
        read(&model, "paragraphs.0.cssClass"),
        json!("aem-GridColumn aem-GridColumn--default--12")
    );
    assert_eq!(
        read(&model, "paragraphs.1.cssClass"),
        json!(
            "aem-GridColumn aem-GridColumn--default--6 aem-GridColumn--offset--default--1 aem-GridColumn--phone--12 aem-GridColumn--phone--newline"
        )
    );
}

#[test]
fn a_page_shows_the_structure_of_its_template() {
    let grid = "wcm/foundation/components/responsivegrid";
    let title = "core/wcm/components/title/v3/title";
    let mut context = site(json!({
        "sling:resourceType": grid,
        "body": {"own": {"sling:resourceType": title, "jcr:title": "Own"}},
    }));
    let template = "/conf/site/settings/wcm/templates/t";
    let content = "/content/site/en/news/jcr:content";
    context.set(content, "cq:template", ContentValue::text(template));
    context.load(
        &format!("{template}/structure/jcr:content/root"),
        &json!({
            "sling:resourceType": grid,
            "head": {"sling:resourceType": title, "jcr:title": "Head"},
            "body": {"sling:resourceType": grid, "editable": true, "sample": {"sling:resourceType": title}},
            "foot": {"sling:resourceType": title, "jcr:title": "Foot"},
        }),
    );
    context.current_page = Some("/content/site/en/news".to_owned());
    context.merges_template_structure = true;
    let exported = export_resource(&shared(context), &ComponentResource::new(ROOT)).unwrap();
    let exported = exported.unwrap().to_json();
    assert_eq!(exported[":itemsOrder"], json!(["head", "body", "foot"]));
    assert_eq!(exported[":items"]["head"]["text"], json!("Head"));
    assert_eq!(exported[":items"]["body"][":itemsOrder"], json!(["own"]));
}
