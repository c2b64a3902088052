//! C2: an indexed query for 20 of all nodes, and a scan of all of them.

use std::time::Instant;

use tympan_content_query::{QueryEngine, QueryRequest, parse_sql2};

use crate::Outcome;
use crate::alternate::Spread;
use crate::context::Context;
use crate::cpu;
use crate::figure::{Figure, Goal};
use crate::tree::NODES_PER_PAGE;

const ROW: &str = "C2";
/// Runs of the indexed query that one measurement takes together.
const RUNS: u32 = 50;
const MEASUREMENTS: usize = 7;
const SCANS: usize = 3;

/// Measures the row.
pub(super) fn measure(context: &mut Context) -> Outcome<Vec<Figure>> {
    let tree = context.tree()?;
    tree.repository.build_indexes()?;
    let nodes = tree.pages * NODES_PER_PAGE;
    let engine = QueryEngine::default();
    let snapshot = tree.repository.snapshot()?;
    // The newest pages by the date that every save changes: a range of the index, in its order.
    let indexed = "SELECT * FROM [nt:base] WHERE [cq:lastModified] IS NOT NULL ORDER BY [cq:lastModified] DESC OPTION(LIMIT 20)";
    let request = QueryRequest::new(parse_sql2(indexed)?);
    let index = engine.explain(&snapshot, &request, false)?;
    if index.order != "index" {
        return Err(format!("the query is not served by an index:\n{index}").into());
    }
    let mut times = Vec::new();
    for _ in 0..MEASUREMENTS {
        let (rows, seconds) = cpu::spent(|| -> Outcome<usize> {
            let mut rows = 0;
            for _ in 0..RUNS {
                rows = engine.query_page(&snapshot, &request)?.rows.len();
            }
            Ok(rows)
        });
        if rows? != 20 {
            return Err("the query does not find 20 nodes".into());
        }
        times.push(seconds * 1_000.0 / f64::from(RUNS));
    }
    let scan =
        QueryRequest::new(parse_sql2("SELECT * FROM [nt:base] WHERE [no such property] = 'x'")?);
    let mut rates = Vec::new();
    for _ in 0..SCANS {
        let begin = Instant::now();
        let measured =
            engine.explain(&snapshot, &scan, true)?.measured.ok_or("the scan was not run")?;
        if measured.rows_read < nodes as u64 {
            return Err(format!("the scan read {} of {nodes} nodes", measured.rows_read).into());
        }
        #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
        rates.push(measured.rows_read as f64 / begin.elapsed().as_secs_f64());
    }
    Ok(vec![
        Figure::spread(
            ROW,
            format!("indexed query for 20 of {nodes} nodes, CPU"),
            &Spread::of(times),
            "ms",
        )
        .goal(Goal::AtMost(1.0)),
        Figure::spread(ROW, "scan without an index", &Spread::of(rates), "nodes/s")
            .goal(Goal::AtLeast(500_000.0)),
    ])
}
