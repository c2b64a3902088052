//! B2: a file of 100 KB from publish, against nginx and Sling.

use crate::Outcome;
use crate::alternate::ratio;
use crate::context::Context;
use crate::figure::{Figure, Goal};
use crate::http::get_ok;
use crate::load::{Intensity, Target, compare, run};
use crate::nginx::{Duty, Nginx};
use crate::row::render::micros;
use crate::site::BENCH_BINARY;
use crate::sling;

const ROW: &str = "B2";
const CONNECTIONS: usize = 4;
const FILE: &str = "bin100k.bin";

/// Measures the row.
pub(super) fn measure(context: &mut Context) -> Outcome<Vec<Figure>> {
    let pairs = context.pairs();
    let folder = context.new_folder("binary-")?;
    let intensity = Intensity { connections: CONNECTIONS, seconds: context.seconds() };
    let sling = context.sling();
    let server = context.site()?.publish()?;
    let ours = server.target(BENCH_BINARY);
    std::fs::write(folder.join(FILE), get_ok(server.address, BENCH_BINARY)?.body)?;

    let mut figures = Vec::new();
    let what = "file of 100 KB, CPU";
    let beside_nginx = match Nginx::start(Duty::Files(&folder), &folder) {
        Ok(nginx) => {
            let theirs =
                Target { address: nginx.address, path: format!("/{FILE}"), pid: nginx.pid() };
            let [ours, theirs] = compare(pairs, [&ours, &theirs], intensity, &folder)?;
            Figure::spread(ROW, what, &ratio(&ours, &theirs, |load| load.cpu_us), "x")
                .note(micros(&ours, &theirs))
        }
        Err(error) => Figure::missing(ROW, what, format!("not measured: {error}")),
    };
    figures.push(beside_nginx.against("nginx, a file").goal(Goal::AtMost(1.1)));
    let beside_sling = match sling {
        Ok(sling) => {
            let theirs = sling.target(sling::BINARY);
            run(&theirs, intensity, &folder)?;
            let [ours, theirs] = compare(pairs, [&ours, &theirs], intensity, &folder)?;
            Figure::spread(ROW, what, &ratio(&ours, &theirs, |load| load.cpu_us), "x")
                .note(micros(&ours, &theirs))
        }
        Err(reason) => Figure::missing(ROW, what, format!("not measured: {reason}")),
    };
    figures.push(beside_sling.against("Sling").goal(Goal::AtMost(0.1)));
    Ok(figures)
}
