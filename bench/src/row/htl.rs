//! T1: one page in HTL and in `MiniJinja`, drawn anew each time in this process, and in HTL at publish and in Sling.
//!
//! The page has a title and ten includes: a header, eight texts and a footer.

use std::time::SystemTime;

use serde_json::{Map, Value as Json, json};
use tympan_content::{NodePath, Property, Repository, Subtree, Value};
use tympan_render::{ReadRecording, RenderOptions, RenderRequest, RenderResponseBody, Renderer};

use super::render::{CONNECTIONS, SLING_WARM_UPS, micros};
use crate::alternate::{Spread, alternate, ratio};
use crate::context::Context;
use crate::figure::{Figure, Goal};
use crate::http::get_ok;
use crate::load::{Intensity, compare, run};
use crate::{Outcome, cpu};

const ROW: &str = "T1";
const TEXTS: usize = 8;
/// Drawings of one turn, and turns of each side.
const DRAWINGS: u32 = 200;
const TURNS: usize = 31;

/// Where the components of a language are, and the page that they draw.
const HTL: &str = "htl-bench";
const MINIJINJA: &str = "minijinja-bench";

const HTL_SCRIPTS: [(&str, &str); 4] = [
    (
        "page",
        r#"<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>${properties.title}</title></head>
<body><main data-sly-list.part="${resource.children}"><sly data-sly-resource="${part.path}"/></main></body></html>
"#,
    ),
    ("header", r#"<header><h1 class="${properties.style}">${properties.title}</h1></header>"#),
    (
        "text",
        r#"<section class="${properties.style}"><h2>${properties.title}</h2><p>${properties.text}</p><a href="${properties.href}">${properties.label}</a></section>"#,
    ),
    ("footer", "<footer><p>${properties.text}</p></footer>"),
];
const MINIJINJA_SCRIPTS: [(&str, &str); 4] = [
    (
        "page",
        r#"<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{{ properties.title }}</title></head>
<body><main>{{ include_children(resource) }}</main></body></html>
"#,
    ),
    (
        "header",
        r#"<header><h1 class="{{ properties.style }}">{{ properties.title }}</h1></header>"#,
    ),
    (
        "text",
        r#"<section class="{{ properties.style }}"><h2>{{ properties.title }}</h2><p>{{ properties.text }}</p><a href="{{ properties.href }}">{{ properties.label }}</a></section>"#,
    ),
    ("footer", "<footer><p>{{ properties.text }}</p></footer>"),
];

/// Measures the row.
pub(super) fn measure(context: &mut Context) -> Outcome<Vec<Figure>> {
    Ok(vec![beside_minijinja()?, beside_sling(context)?])
}

fn beside_minijinja() -> Outcome<Figure> {
    let repository = Repository::in_memory()?;
    for (language, extension, scripts) in
        [(HTL, "html", HTL_SCRIPTS), (MINIJINJA, "html.j2", MINIJINJA_SCRIPTS)]
    {
        put_page(&repository, language, extension, scripts)?;
    }
    let renderer = Renderer::new(&repository, RenderOptions::default());
    let [htl, minijinja] = [HTL, MINIJINJA].map(|language| format!("{}.html", page(language)));
    if visible(&draw(&repository, &renderer, &htl)?)
        != visible(&draw(&repository, &renderer, &minijinja)?)
    {
        return Err("the two languages draw different pages".into());
    }
    let turn = |url: &str| -> Outcome<f64> {
        let (result, seconds) = cpu::spent(|| {
            (0..DRAWINGS).try_for_each(|_| draw(&repository, &renderer, url).map(drop))
        });
        result?;
        Ok(seconds * 1e6 / f64::from(DRAWINGS))
    };
    let [ours, theirs] = alternate(TURNS, [&mut || turn(&htl), &mut || turn(&minijinja)])?;
    let figure = Figure::spread(
        ROW,
        "page of ten includes in HTL, CPU",
        &ratio(&ours, &theirs, |micros| *micros),
        "x",
    );
    let [ours, theirs] = [Spread::of(ours), Spread::of(theirs)];
    let note = format!("{:.1} us against {:.1} us", ours.median, theirs.median);
    Ok(figure.against("the same page in MiniJinja").goal(Goal::AtMost(1.3)).note(note))
}

fn beside_sling(context: &mut Context) -> Outcome<Figure> {
    let what = "page of ten includes in HTL, requests for each CPU second";
    let figure = match context.sling() {
        Err(reason) => Figure::missing(ROW, what, format!("not measured: {reason}")),
        Ok(sling) => {
            let pairs = context.pairs();
            let folder = context.new_folder("htl-")?;
            let intensity = Intensity { connections: CONNECTIONS, seconds: context.seconds() };
            let site = context.site()?;
            put_page(&site.open()?, HTL, "html", HTL_SCRIPTS)?;
            let server = site.publish()?;
            for (name, script) in HTL_SCRIPTS {
                let file = folder.join(format!("{name}.html"));
                std::fs::write(&file, script)?;
                sling.put_file(&format!("/apps/{HTL}/{name}"), &file, "text/html")?;
            }
            let file = folder.join("page.json");
            std::fs::write(&file, serde_json::to_vec(&page_content(HTL))?)?;
            sling.import_json("/content", HTL, &file)?;
            let [ours, theirs] = {
                let path = format!("{}.html", page(HTL));
                [server.target(&path), sling.target(&path)]
            };
            let [our_page, their_page] = [&ours, &theirs].map(|target| {
                let answer = get_ok(target.address, &target.path)?;
                Outcome::Ok(visible(&answer.body))
            });
            let (our_page, their_page) = (our_page?, their_page?);
            if our_page != their_page {
                let text = format!("Sling draws another page:\n{their_page}\nours:\n{our_page}");
                return Err(text.into());
            }
            (0..SLING_WARM_UPS).try_for_each(|_| run(&theirs, intensity, &folder).map(drop))?;
            let [ours, theirs] = compare(pairs, [&ours, &theirs], intensity, &folder)?;
            Figure::spread(ROW, what, &ratio(&theirs, &ours, |load| load.cpu_us), "x")
                .note(micros(&ours, &theirs))
        }
    };
    Ok(figure.against("Sling, the same scripts").goal(Goal::AtLeast(20.0)))
}

/// Returns what of a page a browser shows: engines differ in blanks between tags.
fn visible(page: &[u8]) -> String {
    let text = String::from_utf8_lossy(page);
    let lines: Vec<&str> = text.split_whitespace().collect();
    lines.join(" ").replace("> <", "><")
}

fn draw(repository: &Repository, renderer: &Renderer, url: &str) -> Outcome<Vec<u8>> {
    let request = RenderRequest { recording: ReadRecording::Paths, ..RenderRequest::get(url) };
    let drawn = renderer.render(&repository.snapshot()?, &request);
    match drawn.body {
        RenderResponseBody::Bytes(bytes) if drawn.failed_component_count == 0 => {
            std::hint::black_box(drawn.reads.dependencies());
            Ok(bytes.to_vec())
        }
        other => Err(format!("{url} is drawn as {other:?}").into()),
    }
}

fn page(language: &str) -> String {
    format!("/content/{language}")
}

/// Returns the page's content as Sling imports it.
fn page_content(language: &str) -> Json {
    let node = |component: &str, title: &str, text: &str| {
        json!({
            "jcr:primaryType": "nt:unstructured",
            "sling:resourceType": format!("{language}/{component}"),
            "title": title,
            "text": text,
            "style": "wide light",
            "href": "/content/other/page.html",
            "label": "More of this",
        })
    };
    let mut content = node("page", "A page of ten parts", "");
    let mut add = |name: String, part: Json| {
        content.as_object_mut().map(|content: &mut Map<String, Json>| content.insert(name, part))
    };
    add("header".into(), node("header", "A page of ten parts", ""));
    for number in 0..TEXTS {
        let text =
            "Salt & pepper, a text that is long enough to look like one. ".repeat(number % 4 + 1);
        add(format!("text{number}"), node("text", &format!("Part {number} <of> eight"), &text));
    }
    add("footer".into(), node("footer", "", "The end of the page"));
    content
}

/// Puts a page and the components that draw it.
fn put_page(
    repository: &Repository,
    language: &str,
    extension: &str,
    scripts: [(&str, &str); 4],
) -> Outcome<()> {
    let mut session = repository.session("bench")?;
    for (name, script) in scripts {
        let blob = repository.blobs().put(&mut script.as_bytes())?;
        let data = Subtree::new("jcr:content", "nt:resource")
            .with_property("jcr:data", Property::Single(Value::Binary(blob)))
            .with_property("jcr:mimeType", "text/plain");
        let file = Subtree::new(&format!("{name}.{extension}"), "nt:file").with_child(data);
        for folder in ["/apps".to_owned(), format!("/apps/{language}")] {
            let folder = NodePath::new(&folder)?;
            if session.node(&folder)?.is_none() {
                session.put_node(&folder, Subtree::new("", "sling:Folder"))?;
            }
        }
        let component = NodePath::new(&format!("/apps/{language}/{name}"))?;
        session.put_node(&component, Subtree::new("", "sling:Folder").with_child(file))?;
    }
    let content = NodePath::new("/content")?;
    if session.node(&content)?.is_none() {
        session.put_node(&content, Subtree::new("", "sling:Folder"))?;
    }
    session.put_node(&NodePath::new(&page(language))?, subtree("", &page_content(language)))?;
    session.commit("a page in two languages", SystemTime::UNIX_EPOCH)?;
    Ok(())
}

fn subtree(name: &str, node: &Json) -> Subtree {
    let mut made = Subtree::new(name, "nt:unstructured");
    for (name, value) in node.as_object().into_iter().flatten() {
        match value {
            Json::String(text) if name != "jcr:primaryType" => {
                made = made.with_property(name, text.as_str());
            }
            Json::Object(_) => made = made.with_child(subtree(name, value)),
            _ => {}
        }
    }
    made
}
