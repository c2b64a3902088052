//! `tympan-bench`: figures of tympan beside those of its peers, measured in alternation.
//!
//! In: the rows to measure (`ROWS=S1,D1` or as arguments; default all), `QUICK=1`, `PEERS=sling,oak`, `TYMPAN` (the program).
//! Out: a table on the terminal, `target/bench/results.json`, and after a full run the tables of `docs/benchmarks.md`.
//!
//! Invariants
//! * A ratio is the median of the ratios of pairs that ran one after the other, after a warm-up of each side.
//! * A row that cannot run says why and counts as not met.
//! * Whatever a row starts is stopped by its own process id, also when the row fails.
//!
//! Not here: what the figures have to be in the end (`docs/benchmarks.md` tells how to read them).

mod ab;
mod alternate;
mod context;
mod counting;
mod cpu;
mod crowd;
mod engine;
mod figure;
mod http;
mod load;
mod nginx;
mod oak;
mod origin;
mod outcome;
mod page;
mod process;
mod random;
mod row;
mod site;
mod sling;
mod timed;
mod tree;
mod varnish;

use std::path::Path;
use std::process::ExitCode;

use context::Context;
use figure::Figure;

/// What a row or a part of it gives; the message says why there is no figure.
type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

const HELP: &str = "Measures tympan beside its peers, prints a table, and writes the figures into docs/benchmarks.md.

Usage: tympan-bench [ROW]...

  ROW          rows to measure, such as S1 or D1; also as ROWS=S1,D1 (default: all)
  QUICK=1      each row about 20 seconds: smaller data, shorter runs, docs/benchmarks.md stays as it is
  PEERS=sling  starts Apache Sling too, which is downloaded on first use; PEERS=sling,oak also Apache Oak
  TYMPAN=FILE  the program (default: target/release/tympan)

Example: QUICK=1 tympan-bench D1 S1
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "--help" || argument == "-h") {
        print!("{HELP}");
        row::ROWS.iter().for_each(|row| println!("  {:<8} {}", row.name, row.about));
        return ExitCode::SUCCESS;
    }
    let names = row::names(&arguments, std::env::var("ROWS").ok().as_deref());
    match run(&names) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cannot measure: {error}");
            ExitCode::from(3)
        }
    }
}

fn run(names: &[String]) -> Outcome<()> {
    let mut context = Context::from_environment()?;
    let mut figures = Vec::new();
    for name in names {
        let Some(row) = row::find(name) else {
            figures.push(Figure::missing(name, "no such measurement", row::known()));
            continue;
        };
        eprintln!("{}: {}", row.name, row.about);
        match (row.measure)(&mut context) {
            Ok(measured) => figures.extend(measured),
            Err(error) => {
                eprintln!("{}: not measured: {error}", row.name);
                figures.push(Figure::missing(row.name, row.about, error.to_string()));
            }
        }
    }
    print!("{}", figure::table(&figures));
    let project = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    figure::write(&figures, &project.join("target/bench/results.json"))?;
    println!("\n{}", summary(&figures));
    if context.is_quick {
        println!("docs/benchmarks.md stays as it is: this was a quick run");
    } else {
        let today = jiff::Timestamp::now().strftime("%Y-%m-%d").to_string();
        page::update(&project.join("docs/benchmarks.md"), &figures, &today)?;
        println!("figures written to docs/benchmarks.md");
    }
    Ok(())
}

fn summary(figures: &[Figure]) -> String {
    let count = |met| figures.iter().filter(|figure| figure.met() == Some(met)).count();
    format!(
        "{} goals met, {} not met; results in target/bench/results.json",
        count(true),
        count(false)
    )
}
