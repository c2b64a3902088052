//! C5: a publisher's start, and its memory with the sample site.

use std::time::{Duration, Instant};

use crate::Outcome;
use crate::alternate::Spread;
use crate::context::Context;
use crate::cpu;
use crate::figure::{Figure, Goal};
use crate::http::{Connection, get_ok};
use crate::site::{BENCH_PAGE, HOME_PAGE};

const ROW: &str = "C5";
const STARTS: usize = 5;
const REQUESTS: usize = 300;

/// Measures the row.
pub(super) fn measure(context: &mut Context) -> Outcome<Vec<Figure>> {
    let site = context.site()?;
    let mut starts = Vec::new();
    let mut memory = Vec::new();
    for _ in 0..STARTS {
        let begin = Instant::now();
        let server = site.publish()?;
        get_ok(server.address, BENCH_PAGE)?;
        starts.push(begin.elapsed().as_secs_f64());
        let mut connection = Connection::open(server.address, Duration::from_secs(20))?;
        for request in 0..REQUESTS {
            connection.get(if request % 2 == 0 { HOME_PAGE } else { BENCH_PAGE })?;
        }
        memory
            .push(cpu::resident_mib(server.pid()).ok_or("the publisher's memory cannot be read")?);
    }
    let note = "the sample site and 1,000 bench pages; the row's goal is for 1,000,000 nodes";
    Ok(vec![
        Figure::spread(ROW, "start to the first page", &Spread::of(starts), "s")
            .goal(Goal::AtMost(1.0))
            .note(note),
        Figure::spread(ROW, "resident memory after 300 pages", &Spread::of(memory), "MiB")
            .goal(Goal::AtMost(100.0)),
    ])
}
