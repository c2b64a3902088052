//! The page `docs/benchmarks.md`: a full run writes its table of rows and its table of figures.
//!
//! In: the figures of a run, its date, and the page as it is.
//! Out: the page with the lines of the measured rows replaced.
//!
//! Invariants
//! * Text outside of the two tables stays as it is.
//! * A line stays if its row was not measured, or if the run could not measure its figure.
//!
//! Not here: the table on the terminal and `results.json` ([`crate::figure`]).

use std::path::Path;

use crate::Outcome;
use crate::figure::Figure;
use crate::row;

/// The comments that a table of the page stands between.
struct TableMarkers {
    start: &'static str,
    end: &'static str,
}

const ROW_TABLE: TableMarkers =
    TableMarkers { start: "<!-- rows: written by make bench -->", end: "<!-- end of rows -->" };

const FIGURE_TABLE: TableMarkers = TableMarkers {
    start: "<!-- figures: written by make bench -->",
    end: "<!-- end of figures -->",
};

const ROW_HEAD: &str = "| row | what is compared |\n|---|---|\n";
const FIGURE_HEAD: &str =
    "| row | figure | measured | goal | met | measured on |\n|---|---|---|---|---|---|\n";

/// Writes the rows and the figures of a run into the page; `date` is the day of the run.
///
/// # Errors
///
/// The page cannot be read or written, lacks a marker, or has a line of figures that does not have six cells.
pub(crate) fn update(file: &Path, figures: &[Figure], date: &str) -> Outcome<()> {
    let name = file.display();
    let page =
        std::fs::read_to_string(file).map_err(|error| format!("cannot read `{name}`: {error}"))?;
    let updated = with_rows(&page)
        .and_then(|page| with_figures(&page, figures, date))
        .map_err(|reason| format!("cannot update `{name}`: {reason}"))?;
    std::fs::write(file, updated).map_err(|error| format!("cannot write `{name}`: {error}"))?;
    Ok(())
}

impl TableMarkers {
    /// Returns the page up to the end of the start marker, the table, and the page from the end marker on.
    fn split<'page>(&self, page: &'page str) -> Result<[&'page str; 3], String> {
        let missing = |marker| format!("it has no line `{marker}`");
        let start = page.find(self.start).ok_or_else(|| missing(self.start))? + self.start.len();
        let (before, rest) = page.split_at(start);
        let end = rest.find(self.end).ok_or_else(|| missing(self.end))?;
        let (table, after) = rest.split_at(end);
        Ok([before, table, after])
    }

    /// Returns the page with another table between the markers.
    fn replace(&self, page: &str, table: &str) -> Result<String, String> {
        let [before, _, after] = self.split(page)?;
        Ok(format!("{before}\n\n{table}\n{after}"))
    }
}

/// Returns the page with the table of all rows.
fn with_rows(page: &str) -> Result<String, String> {
    let lines = row::ROWS.iter().map(|row| table_line(&[row.name, row.about]));
    ROW_TABLE.replace(page, &format!("{ROW_HEAD}{}", lines.collect::<String>()))
}

/// Returns the page with the measured rows' lines replaced by the run's figures.
fn with_figures(page: &str, figures: &[Figure], date: &str) -> Result<String, String> {
    let old = figure_lines(page)?;
    let measured: Vec<FigureLine> =
        figures.iter().filter_map(|figure| FigureLine::of(figure, date)).collect();
    let missing: Vec<&Figure> =
        figures.iter().filter(|figure| figure.measured_text().is_none()).collect();
    let stays = |line: &FigureLine| {
        measured.iter().all(|new| new.row != line.row)
            || missing.iter().any(|figure| line.is_covered_by(figure))
    };
    let mut lines: Vec<FigureLine> = old.into_iter().filter(stays).collect();
    lines.extend(measured);
    lines.sort_by_key(|line| table_position(&line.row));
    let lines: String = lines.iter().map(|line| line.text.as_str()).collect();
    FIGURE_TABLE.replace(page, &format!("{FIGURE_HEAD}{lines}"))
}

/// One line of the table of figures: its first two cells, and all of its text.
struct FigureLine {
    row: String,
    figure: String,
    text: String,
}

impl FigureLine {
    /// Returns the line of a figure; `None` for a figure that was not measured.
    fn of(figure: &Figure, date: &str) -> Option<Self> {
        let met = match figure.met() {
            Some(true) => "yes",
            Some(false) => "no",
            None => "",
        };
        let label = figure.label();
        let cells =
            [figure.row(), &label, &figure.measured_text()?, &figure.goal_text(), met, date];
        let (row, text) = (figure.row().to_owned(), table_line(&cells));
        Some(Self { row, figure: escape(&label), text })
    }

    fn parse(line: &str) -> Result<Self, String> {
        let cells = split_cells(line);
        let [row, figure, _, _, _, _] = cells.as_slice() else {
            return Err(format!("a line of figures has {} cells, not 6: `{line}`", cells.len()));
        };
        Ok(Self {
            row: (*row).to_owned(),
            figure: (*figure).to_owned(),
            text: format!("{}\n", line.trim_end()),
        })
    }

    /// Returns true if the line is of the figure that could not be measured, or has the same peer.
    fn is_covered_by(&self, missing: &Figure) -> bool {
        let names_peer =
            || missing.peer().is_some_and(|peer| self.figure.ends_with(&format!("against {peer}")));
        self.row == missing.row() && (self.figure == escape(&missing.label()) || names_peer())
    }
}

/// Returns the lines of the table of figures, without its head.
fn figure_lines(page: &str) -> Result<Vec<FigureLine>, String> {
    let [_, table, _] = FIGURE_TABLE.split(page)?;
    table.lines().filter(|line| line.starts_with('|')).skip(2).map(FigureLine::parse).collect()
}

/// Returns the sort key of a row's lines: the order of [`row::ROWS`], `S1/indexes` behind `S1`, unknown rows last.
fn table_position(name: &str) -> (usize, bool) {
    let index = |name: &str| row::ROWS.iter().position(|row| row.name == name);
    let base = name.split('/').next().unwrap_or(name);
    match (index(name), index(base)) {
        (Some(index), _) => (index, false),
        (None, Some(index)) => (index, true),
        (None, None) => (row::ROWS.len(), false),
    }
}

fn table_line(cells: &[&str]) -> String {
    let cells: Vec<String> = cells.iter().map(|cell| escape(cell)).collect();
    format!("| {} |\n", cells.join(" | "))
}

/// Escapes what would end a cell.
fn escape(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

/// Splits a line of a table at the bars that are not escaped.
fn split_cells(line: &str) -> Vec<&str> {
    let line = line.trim();
    let inner = line.strip_prefix('|').unwrap_or(line);
    let inner = inner.strip_suffix('|').unwrap_or(inner);
    let mut cells = Vec::new();
    let mut start = 0;
    for (bar, _) in inner.match_indices('|') {
        let (before, _) = inner.split_at(bar);
        if !before.ends_with('\\') {
            cells.push(before.split_at(start).1.trim());
            start = bar + 1;
        }
    }
    cells.push(inner.split_at(start).1.trim());
    cells
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figure::Goal;

    /// Rows of the page that no row of this program is named for: scripts measure them, or another row does.
    const OTHER_ROWS: [&str; 6] = ["K8", "GC", "H2", "portal", "mix", "torture"];
    /// Set to write the table of rows into the page instead of comparing it.
    const UPDATE_VARIABLE: &str = "UPDATE_BENCHMARKS";

    fn page_with(lines: &str) -> String {
        format!(
            "# Before\n\n{}\n\n{FIGURE_HEAD}{lines}\n{}\n\nAfter | this.\n",
            FIGURE_TABLE.start, FIGURE_TABLE.end
        )
    }

    /// Returns the lines of the table after a run with these figures.
    fn updated(lines: &str, figures: &[Figure]) -> String {
        let old = page_with(lines);
        let new = with_figures(&old, figures, "2026-12-01").unwrap();
        let [before, _, after] = FIGURE_TABLE.split(&old).unwrap();
        let [new_before, table, new_after] = FIGURE_TABLE.split(&new).unwrap();
        assert_eq!([new_before, new_after], [before, after]);
        table.trim().strip_prefix(FIGURE_HEAD.trim()).unwrap().trim().to_owned()
    }

    fn real_page() -> (std::path::PathBuf, String) {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/benchmarks.md");
        let text = std::fs::read_to_string(&file).unwrap();
        (file, text)
    }

    #[test]
    fn lines_of_measured_rows_are_replaced() {
        let figures = [Figure::value("R4", "record, CPU", 0.0612, "x")
            .goal(Goal::AtMost(0.05))
            .against("a render")];
        let old = "| R4 | one | 1 | | | 2026-11 |\n| R4 | two | 2 | | | 2026-11 |\n\
                   | R4/timing | times | 3 | | | 2026-11 |\n";
        assert_eq!(
            updated(old, &figures),
            "| R4 | record, CPU, against a render | 0.0612x | at most 0.0500x | no | 2026-12-01 |\n\
             | R4/timing | times | 3 | | | 2026-11 |"
        );
    }

    #[test]
    fn lines_are_in_the_order_of_the_rows() {
        let figures =
            ["D1", "S1/indexes", "S1", "other"].map(|row| Figure::value(row, "size", 2.0, "KiB"));
        let old =
            "| GC | peak | 1 | | | x |\n| R7/sweep | old | 1 | | | x |\n| S2 | old | 1 | | | x |\n";
        let table = updated(old, &figures);
        let rows: Vec<&str> = table.lines().filter_map(|line| line.split(' ').nth(1)).collect();
        assert_eq!(rows, ["S1", "S1/indexes", "S2", "R7/sweep", "D1", "GC", "other"]);
    }

    #[test]
    fn lines_of_figures_that_cannot_be_measured_stay() {
        let old = "| S9 | reads, against Oak | 5.7x | | yes | 2026-11 |\n| S9 | opening | 3 ms | | yes | 2026-11 |\n";
        let missing = Figure::missing("S9", "units of work", "set PEERS=oak").against("Oak");
        assert_eq!(updated(old, std::slice::from_ref(&missing)), old.trim());
        assert_eq!(
            updated(old, &[Figure::value("S9", "opening", 4.0, "ms"), missing]),
            "| S9 | reads, against Oak | 5.7x | | yes | 2026-11 |\n| S9 | opening | 4 ms |  |  | 2026-12-01 |"
        );
    }

    #[test]
    fn bars_in_cells_are_escaped() {
        let figure = Figure::value("K5", "restore", 1.4, "x").against("`zstd -d | tar x`");
        let line = updated("", &[figure]);
        assert_eq!(
            line,
            "| K5 | restore, against `zstd -d \\| tar x` | 1.40x |  |  | 2026-12-01 |"
        );
        let parsed = FigureLine::parse(&line).unwrap();
        assert_eq!(parsed.figure, "restore, against `zstd -d \\| tar x`");
    }

    #[test]
    fn a_page_without_markers_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("page.md");
        for (text, marker) in [
            ("# Nothing\n", ROW_TABLE.start),
            ("<!-- rows: written by make bench -->\n", ROW_TABLE.end),
        ] {
            std::fs::write(&file, text).unwrap();
            let error = update(&file, &[], "2026-12-01").unwrap_err().to_string();
            assert!(error.contains("page.md") && error.contains(marker), "{error}");
            assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
        }
        let error = with_figures(&page_with("| S1 | one |\n"), &[], "2026-12-01").unwrap_err();
        assert!(error.contains("2 cells") && error.contains("| S1 | one |"), "{error}");
    }

    #[test]
    fn the_page_has_all_rows() {
        let (file, page) = real_page();
        let wanted = with_rows(&page).unwrap();
        if std::env::var_os(UPDATE_VARIABLE).is_some() {
            std::fs::write(&file, wanted).unwrap();
            return;
        }
        assert!(
            page == wanted,
            "docs/benchmarks.md has other rows than `row::ROWS`; \
             run `{UPDATE_VARIABLE}=1 cargo test --manifest-path bench/Cargo.toml page`"
        );
    }

    #[test]
    fn a_run_replaces_its_lines_of_the_page_alone() {
        let (_, page) = real_page();
        assert_eq!(with_figures(&page, &[], "2026-12-01").unwrap(), page);
        for line in figure_lines(&page).unwrap() {
            let is_known = table_position(&line.row).0 < row::ROWS.len();
            assert!(is_known || OTHER_ROWS.contains(&line.row.as_str()), "row `{}`", line.row);
        }
        let figure = Figure::value("D4", "60 rules, CPU", 1.01, "x").goal(Goal::AtMost(1.15));
        let updated = with_figures(&page, &[figure], "2026-12-01").unwrap();
        let new: Vec<&str> = updated.lines().filter(|line| !page.contains(line)).collect();
        assert_eq!(new, ["| D4 | 60 rules, CPU | 1.01x | at most 1.15x | yes | 2026-12-01 |"]);
        let gone: Vec<&str> = page.lines().filter(|line| !updated.contains(line)).collect();
        assert!(!gone.is_empty() && gone.iter().all(|line| line.starts_with("| D4 |")), "{gone:?}");
    }
}
