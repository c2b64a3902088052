//! RISK1: fifty ledger rows for each render, written to SQLite in batches, against the CPU of the render.
//!
//! A row is the hash of a page's URL, the hash of a path that the page was drawn from, and how the path was read. What
//! is kept for a page is replaced when it is drawn again; "which pages read this path" must be answered too, but for
//! the form that leaves it to memory. `table` has the forms; each is written by prepared statements in this thread, or
//! through the program's own pool (sqlx).

mod pool;
mod table;

use std::path::Path;

use rusqlite::Connection;
use tympan_render::ReadRecording;

use self::pool::Pool;
use self::table::{Form, Set, Synchronous, dependencies, open, url_of, write_page};
use super::record::Painter;
use crate::alternate::Spread;
use crate::context::Context;
use crate::figure::Figure;
use crate::site::{BENCH_PAGE, HOME_PAGE};
use crate::{Outcome, cpu};

const ROW: &str = "RISK1";
/// Pages written between two turns; a multiple of every batch.
const TURN: usize = 200;
/// Pages in the ledger.
const PAGES: usize = 2_000;
/// Renders between two turns, of the bench page and of the home page.
const RENDERS: [u32; 2] = [200, 20];
/// Of 50 paths, those that differ from the last drawing of a page.
const CHANGING: usize = 5;

/// One way to write the ledger.
struct Case {
    plan: Plan,
    writer: Writer,
    micros: Vec<f64>,
}

#[derive(Clone, Copy)]
struct Plan {
    form: Form,
    is_pooled: bool,
    synchronous: Synchronous,
    batch: usize,
    changing: usize,
}

enum Writer {
    Direct(Connection),
    Pool(Pool),
}

/// Measures the row.
pub(super) fn measure(context: &mut Context) -> Outcome<Vec<Figure>> {
    let rounds = context.pairs();
    let folder = context.new_folder("ledger-")?;
    let painter = Painter::new(context)?;
    let cases = plans().into_iter().enumerate();
    let cases = cases.map(|(number, plan)| Case::open(plan, &folder.join(format!("{number}.db"))));
    let mut cases = cases.collect::<Outcome<Vec<_>>>()?;
    let [renders, home_renders] = RENDERS;
    let (mut bench, mut home) = (Vec::new(), Vec::new());
    for round in 0..=rounds {
        let drawn = painter.turn(BENCH_PAGE, ReadRecording::Paths, renders)?;
        let home_drawn = painter.turn(HOME_PAGE, ReadRecording::Paths, home_renders)?;
        let written = cases.iter_mut().map(|case| case.turn(round));
        let written = written.collect::<Outcome<Vec<_>>>()?;
        // The first round warms up.
        if round > 0 {
            bench.push(drawn);
            home.push(home_drawn);
            cases.iter_mut().zip(written).for_each(|(case, micros)| case.micros.push(micros));
        }
    }
    Ok(figures(&cases, &bench, &home))
}

/// Returns everything that is tried.
fn plans() -> Vec<Plan> {
    let plan = |form, is_pooled, synchronous, batch, changing| Plan {
        form,
        is_pooled,
        synchronous,
        batch,
        changing,
    };
    let (normal, full) = (Synchronous::Normal, Synchronous::Full);
    let mut plans = Vec::new();
    for synchronous in [normal, full] {
        plans.extend(
            [1, 10, 100].map(|batch| plan(Form::Rows, false, synchronous, batch, CHANGING)),
        );
    }
    plans.push(plan(Form::ChangedRows, false, normal, 100, CHANGING));
    plans.push(plan(Form::OneRow, false, normal, 100, CHANGING));
    for changing in [CHANGING, 0] {
        plans.extend([10, 100].map(|batch| plan(Form::SetAndRows, false, normal, batch, changing)));
    }
    plans.extend([1, 10, 100].map(|batch| plan(Form::Rows, true, full, batch, CHANGING)));
    plans.extend([CHANGING, 0].map(|changing| plan(Form::SetAndRows, true, full, 100, changing)));
    plans
}

impl Plan {
    fn text(self) -> String {
        let Self { form, is_pooled, synchronous, batch, changing } = self;
        let way = if is_pooled { " by sqlx" } else { "" };
        let changing =
            if form == Form::Rows { String::new() } else { format!("{changing} of 50 differ, ") };
        format!("{}{way}, {changing}{}, {batch} pages each commit", form.name(), synchronous.name())
    }
}

impl Case {
    /// Opens a ledger that holds every page, so that what is measured is replacement.
    fn open(plan: Plan, file: &Path) -> Outcome<Self> {
        let writer = if plan.is_pooled {
            Writer::Pool(Pool::open(file, plan.form)?)
        } else {
            Writer::Direct(open(file, plan.form, plan.synchronous)?)
        };
        let mut case = Self { plan, writer, micros: Vec::new() };
        case.write(&pages(0..PAGES, 0, plan.changing), PAGES)?;
        Ok(case)
    }

    /// Writes some pages anew and returns the microseconds of CPU for one.
    fn turn(&mut self, round: usize) -> Outcome<f64> {
        let first = round * TURN % PAGES;
        let pages = pages(first..first + TURN, round + 1, self.plan.changing);
        let (result, seconds) = cpu::spent(|| self.write(&pages, self.plan.batch));
        result?;
        #[expect(clippy::cast_precision_loss, reason = "a small constant")]
        let count = TURN as f64;
        Ok(seconds * 1e6 / count)
    }

    fn write(&mut self, pages: &[(i64, Set)], batch: usize) -> Outcome<()> {
        for pages in pages.chunks(batch) {
            match &mut self.writer {
                Writer::Pool(pool) => pool.write(pages)?,
                Writer::Direct(connection) => {
                    let transaction = connection.transaction()?;
                    for (url, set) in pages {
                        write_page(&transaction, self.plan.form, *url, set)?;
                    }
                    transaction.commit()?;
                }
            }
        }
        Ok(())
    }
}

fn pages(range: std::ops::Range<usize>, version: usize, changing: usize) -> Vec<(i64, Set)> {
    range.map(|page| (url_of(page), dependencies(page, version, changing))).collect()
}

fn figures(cases: &[Case], bench: &[f64], home: &[f64]) -> Vec<Figure> {
    let spread = |values: &[f64]| Spread::of(values.iter().copied());
    let render = |what: &str, values| {
        Figure::spread(ROW, format!("CPU of a render of the {what}"), &spread(values), "us")
    };
    let mut figures = vec![render("bench page", bench), render("home page", home)];
    for case in cases {
        let shares = case.micros.iter().zip(bench).map(|(written, drawn)| written / drawn);
        let median = spread(&case.micros).median;
        let note = format!(
            "{median:.0} us; {:.3} of a render of the home page",
            median / spread(home).median
        );
        let figure =
            Figure::spread(ROW, format!("{}, CPU", case.plan.text()), &Spread::of(shares), "x");
        figures.push(figure.against("a render of the bench page").note(note));
    }
    figures
}
