//! R1: the bench page and its JSON, drawn anew for each request, straight at publish.

use std::path::Path;

use crate::Outcome;
use crate::alternate::{Spread, ratio};
use crate::context::Context;
use crate::figure::{Figure, Goal};
use crate::http::get_ok;
use crate::load::{Intensity, Load, Target, compare, run};
use crate::nginx::{Duty, Nginx};
use crate::site::{BENCH_JSON, BENCH_PAGE, HOME_PAGE, Server};
use crate::sling;

const ROW: &str = "R1";
const CONTEXT: &str = "R1/static";
/// Connections of the load.
pub(super) const CONNECTIONS: usize = 4;
/// Runs that Sling's compiler needs to get warm; their figures are dropped.
pub(super) const SLING_WARM_UPS: usize = 6;

/// Measures the row.
pub(super) fn measure(context: &mut Context) -> Outcome<Vec<Figure>> {
    let pairs = context.pairs();
    let folder = context.new_folder("render-")?;
    let intensity = Intensity { connections: CONNECTIONS, seconds: context.seconds() };
    let sling = context.sling();
    let server = context.site()?.publish()?;
    let mut figures = Vec::new();
    for (what, path, theirs) in
        [("bench page", BENCH_PAGE, sling::PAGE), ("bench page as JSON", BENCH_JSON, sling::JSON)]
    {
        get_ok(server.address, path)?;
        let what = format!("{what}, requests for each CPU second");
        let figure = match &sling {
            Ok(sling) => {
                let theirs = sling.target(theirs);
                (0..SLING_WARM_UPS).try_for_each(|_| run(&theirs, intensity, &folder).map(drop))?;
                let [ours, theirs] =
                    compare(pairs, [&server.target(path), &theirs], intensity, &folder)?;
                Figure::spread(ROW, what, &ratio(&theirs, &ours, |load| load.cpu_us), "x")
                    .note(micros(&ours, &theirs))
            }
            Err(reason) => Figure::missing(ROW, what, format!("not measured: {reason}")),
        };
        figures.push(figure.against("Sling").goal(Goal::AtLeast(20.0)));
    }
    figures.extend(beside_static(&server, pairs, intensity, &folder)?);
    Ok(figures)
}

/// Says how far a drawn page is from a file of the same bytes.
fn beside_static(
    server: &Server,
    pairs: usize,
    intensity: Intensity,
    folder: &Path,
) -> Outcome<Vec<Figure>> {
    let subjects = [
        ("bench page", BENCH_PAGE, "page.html"),
        ("bench page as JSON", BENCH_JSON, "page.json"),
        ("home page", HOME_PAGE, "home.html"),
    ];
    let mut sizes = Vec::new();
    for (_, path, file) in subjects {
        let body = get_ok(server.address, path)?.body;
        sizes.push(body.len());
        std::fs::write(folder.join(file), body)?;
    }
    let nginx = Nginx::start(Duty::Files(folder), folder);
    let mut figures = Vec::new();
    for ((what, path, file), size) in subjects.into_iter().zip(sizes) {
        let ours = server.target(path);
        let what = format!("{what} ({size} bytes), CPU");
        figures.push(match &nginx {
            Ok(nginx) => {
                let theirs =
                    Target { address: nginx.address, path: format!("/{file}"), pid: nginx.pid() };
                let [ours, theirs] = compare(pairs, [&ours, &theirs], intensity, folder)?;
                let figure =
                    Figure::spread(CONTEXT, what, &ratio(&ours, &theirs, |load| load.cpu_us), "x");
                figure.against("nginx, the same bytes as a file").note(micros(&ours, &theirs))
            }
            Err(_) => {
                let loads = (0..pairs)
                    .map(|_| run(&ours, intensity, folder))
                    .collect::<Outcome<Vec<_>>>()?;
                Figure::spread(
                    CONTEXT,
                    what,
                    &Spread::of(loads.iter().map(|load| load.cpu_us)),
                    "us",
                )
            }
        });
    }
    Ok(figures)
}

/// Tells the CPU of both sides for one request.
pub(super) fn micros(ours: &[Load], theirs: &[Load]) -> String {
    let median = |loads: &[Load]| Spread::of(loads.iter().map(|load| load.cpu_us)).median;
    format!("{:.1} us of CPU for each request against {:.1} us", median(ours), median(theirs))
}
