//! R3: a page of 30 components, put together from kept drawings, against drawn anew.

use std::time::SystemTime;

use tympan_content::{NodePath, Property, Repository, Subtree, Value};
use tympan_render::{
    FragmentCache, FragmentCacheOptions, ReadRecording, RenderOptions, RenderRequest,
    RenderResponseBody, Renderer,
};

use crate::alternate::{Spread, alternate};
use crate::context::Context;
use crate::figure::{Figure, Goal};
use crate::{Outcome, cpu};

const ROW: &str = "R3";
const COMPONENTS: usize = 30;
const URL: &str = "/content/page.html";
/// Drawings of one turn, and turns of each side.
const DRAWINGS: u32 = 100;
const TURNS: usize = 31;

const PAGE: &str = "<title>{{ page.title }}</title>{{ include_children(resource) }}";
const TEXT: &str = "<section class=\"{{ properties.style }}\"><h2>{{ properties[\"jcr:title\"] }}</h2>\
    {% for n in range(10) %}<p>{{ n }} {{ properties.text }}</p>{% endfor %}\
    <a href=\"{{ link(properties.href) }}\">{{ properties.label }}</a></section>";

/// Measures the row.
pub(super) fn measure(_: &mut Context) -> Outcome<Vec<Figure>> {
    let repository = site()?;
    let plain = Renderer::new(&repository, RenderOptions::default());
    let kept = Renderer::new(&repository, RenderOptions::default())
        .with_fragments(FragmentCache::new(FragmentCacheOptions::default()));
    if draw(&repository, &plain)? != draw(&repository, &kept)? {
        return Err("the two drawings differ".into());
    }
    let turn = |renderer: &Renderer| -> Outcome<f64> {
        let (result, seconds) =
            cpu::spent(|| (0..DRAWINGS).try_for_each(|_| draw(&repository, renderer).map(drop)));
        result?;
        Ok(seconds * 1e6 / f64::from(DRAWINGS))
    };
    let [with, without] = alternate(TURNS, [&mut || turn(&kept), &mut || turn(&plain)])?;
    let (with, without) = (Spread::of(with), Spread::of(without));
    let what = format!("a page of {COMPONENTS} components, all kept, CPU");
    let figure = Figure::value(ROW, what, with.median / without.median, "x").pairs(TURNS);
    let note = format!(
        "{:.0} us against {:.0} us, dependencies recorded in both",
        with.median, without.median
    );
    Ok(vec![figure.against("drawn anew").goal(Goal::AtMost(0.25)).note(note)])
}

fn draw(repository: &Repository, renderer: &Renderer) -> Outcome<Vec<u8>> {
    let request = RenderRequest { recording: ReadRecording::Paths, ..RenderRequest::get(URL) };
    let drawn = renderer.render(&repository.snapshot()?, &request);
    match drawn.body {
        RenderResponseBody::Bytes(bytes) if drawn.failed_component_count == 0 => {
            std::hint::black_box(drawn.reads.dependencies());
            Ok(bytes.to_vec())
        }
        other => Err(format!("{URL} is drawn as {other:?}").into()),
    }
}

fn site() -> Outcome<Repository> {
    let repository = Repository::in_memory()?;
    let mut session = repository.session("bench")?;
    for path in ["/apps", "/apps/bench", "/apps/bench/page", "/apps/bench/text", "/content"] {
        let folder = Subtree::new("", "sling:Folder");
        let folder = if path == "/apps" { folder.with_property("cache", "always") } else { folder };
        session.put_node(&NodePath::new(path)?, folder)?;
    }
    for (name, text) in [("page", PAGE), ("text", TEXT)] {
        let path = NodePath::new(&format!("/apps/bench/{name}/{name}.html.j2"))?;
        let blob = repository.blobs().put(&mut text.as_bytes())?;
        let data = Subtree::new("jcr:content", "nt:resource")
            .with_property("jcr:data", Property::Single(Value::Binary(blob)))
            .with_property("jcr:mimeType", "text/plain");
        session.put_node(&path, Subtree::new(path.name(), "nt:file").with_child(data))?;
    }
    let mut content = Subtree::new("jcr:content", "cq:PageContent")
        .with_property("sling:resourceType", "bench/page")
        .with_property("jcr:title", "Page");
    for number in 0..COMPONENTS {
        let part = Subtree::new(&format!("c{number}"), "nt:unstructured")
            .with_property("sling:resourceType", "bench/text")
            .with_property("jcr:title", format!("Part {number}").as_str())
            .with_property("text", "Some text that is long enough to look like one")
            .with_property("style", "wide")
            .with_property("label", "More")
            .with_property("href", "/content/page");
        content = content.with_child(part);
    }
    let page = Subtree::new("page", "cq:Page").with_child(content);
    session.put_node(&NodePath::new("/content/page")?, page)?;
    session.commit("page", SystemTime::UNIX_EPOCH)?;
    Ok(repository)
}
