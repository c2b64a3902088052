//! R4/timing: what it costs a render to take the times of its components, and to escape what it writes.

use tympan_content::{NodePath, Property, Repository, Subtree, Value};
use tympan_render::{RenderOptions, RenderRequest, RenderResponseBody, Renderer};

use crate::alternate::{Spread, alternate};
use crate::context::Context;
use crate::figure::{Figure, Goal};
use crate::site::{BENCH_PAGE, HOME_PAGE};
use crate::{Outcome, cpu};

const ROW: &str = "R4/timing";
/// Turns of each side; short and many, as a render is short and the machine is not quiet.
const TURNS: usize = 101;
/// Outputs of the page on which escaping is measured.
const OUTPUTS: usize = 300;

/// Measures the row.
pub(super) fn measure(context: &mut Context) -> Outcome<Vec<Figure>> {
    let repository = context.site()?.open()?;
    let timed = Renderer::new(&repository, RenderOptions::default());
    let untimed = Renderer::new(&repository, RenderOptions::default()).without_timing();
    let mut figures = Vec::new();
    for (what, path, renders) in [("bench page", BENCH_PAGE, 100), ("home page", HOME_PAGE, 10)] {
        let [with, without] = alternate(
            TURNS,
            [&mut || turn(&repository, &timed, path, renders), &mut || {
                turn(&repository, &untimed, path, renders)
            }],
        )?;
        let (cost, note) = compared(with, without);
        let what = format!("{what}, CPU of taking the times of components");
        let figure = Figure::value(ROW, what, cost, "%").pairs(TURNS).against("a render without");
        figures.push(figure.goal(Goal::AtMost(2.0)).note(note));
    }
    figures.push(escaping()?);
    Ok(figures)
}

/// Compares a page of many outputs with the same page whose outputs are written as they are.
fn escaping() -> Outcome<Figure> {
    let repository = outputs()?;
    let renderer = Renderer::new(&repository, RenderOptions::default());
    let [with, without] = alternate(
        TURNS,
        [&mut || turn(&repository, &renderer, "/content/escaped.html", 30), &mut || {
            turn(&repository, &renderer, "/content/plain.html", 30)
        }],
    )?;
    let (cost, note) = compared(with, without);
    let what = format!("{OUTPUTS} outputs, CPU of escaping by position");
    Ok(Figure::value(ROW, what, cost, "%")
        .pairs(TURNS)
        .against("outputs marked as safe")
        .note(note))
}

/// Returns by how much one side costs more, and both in words. The least disturbed quarter of each side is compared: what
/// disturbs only ever adds.
fn compared(with: Vec<f64>, without: Vec<f64>) -> (f64, String) {
    let (with, without) = (Spread::of(with), Spread::of(without));
    let cost = (with.lower_quartile / without.lower_quartile - 1.0) * 100.0;
    let note = format!(
        "{:.1} us against {:.1} us of CPU; lower quartiles of {TURNS} turns",
        with.lower_quartile, without.lower_quartile
    );
    (cost, note)
}

fn turn(repository: &Repository, renderer: &Renderer, path: &str, renders: u32) -> Outcome<f64> {
    let draw = |_| -> Outcome<()> {
        let drawn = renderer.render(&repository.snapshot()?, &RenderRequest::get(path));
        match &drawn.body {
            RenderResponseBody::Bytes(bytes)
                if bytes.len() > 1_000 && drawn.failed_component_count == 0 =>
            {
                std::hint::black_box(&drawn.timing);
                Ok(())
            }
            _ => Err(format!("{path} is not drawn: {:?}", drawn.outcome).into()),
        }
    };
    let (result, seconds) = cpu::spent(|| (0..renders).try_for_each(draw));
    result?;
    Ok(seconds * 1e6 / f64::from(renders))
}

/// Makes two pages that write the same texts, escaped and as they are.
fn outputs() -> Outcome<Repository> {
    let repository = Repository::in_memory()?;
    let mut session = repository.session("bench")?;
    for path in ["/apps", "/apps/bench", "/content"] {
        session.put_node(&NodePath::new(path)?, Subtree::new("", "sling:Folder"))?;
    }
    for (name, filter) in [("escaped", ""), ("plain", "|safe")] {
        let one = format!(
            "<p title=\"{{{{ properties.label{filter} }}}}\">{{{{ properties.text{filter} }}}}</p>\n"
        );
        let template = one.repeat(OUTPUTS / 2);
        let folder = NodePath::new(&format!("/apps/bench/{name}"))?;
        session.put_node(&folder, Subtree::new(name, "sling:Folder"))?;
        let blob = repository.blobs().put(&mut template.as_bytes())?;
        let data = Subtree::new("jcr:content", "nt:resource")
            .with_property("jcr:data", Property::Single(Value::Binary(blob)))
            .with_property("jcr:mimeType", "text/plain");
        let file = format!("{name}.html.j2");
        session.put_node(&folder.child(&file)?, Subtree::new(&file, "nt:file").with_child(data))?;
        let content = Subtree::new("jcr:content", "cq:PageContent")
            .with_property("sling:resourceType", format!("bench/{name}").as_str())
            .with_property("label", "A label of some words")
            .with_property("text", "Some text that is long enough to look like one, with a mark");
        let page = Subtree::new(name, "cq:Page").with_child(content);
        session.put_node(&NodePath::new(&format!("/content/{name}"))?, page)?;
    }
    session.commit("outputs", std::time::SystemTime::UNIX_EPOCH)?;
    Ok(repository)
}
