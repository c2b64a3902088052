//! Charts as SVG text, drawn here so that a report needs no script and no network.

use std::fmt::Write as _;

/// A line of a chart.
pub(super) struct Line<'a> {
    pub(super) name: &'a str,
    /// A class of the report's style sheet, which gives the color.
    pub(super) class: &'a str,
    pub(super) points: Vec<(f64, f64)>,
}

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 240.0;
const LEFT: f64 = 62.0;
const BOTTOM: f64 = 26.0;
const TOP: f64 = 10.0;
/// More points than that cannot be told apart.
const MOST_POINTS: usize = 600;

/// Returns a chart of lines; `unit` stands at the vertical axis, `axis` at the horizontal one.
pub(super) fn lines(title: &str, unit: &str, axis: &str, lines: &[Line<'_>]) -> String {
    let points = || lines.iter().flat_map(|line| line.points.iter());
    let most_x = points().map(|point| point.0).fold(0.0, f64::max).max(1e-9);
    let most_y = nice(points().map(|point| point.1).fold(0.0, f64::max));
    let place = |point: (f64, f64)| {
        let x = LEFT + point.0 / most_x * (WIDTH - LEFT - 8.0);
        let y = TOP + (1.0 - point.1 / most_y) * (HEIGHT - TOP - BOTTOM);
        (x, y)
    };
    let mut out = frame(title, unit, axis, most_x, most_y);
    for line in lines {
        let step = line.points.len().div_ceil(MOST_POINTS).max(1);
        let mut path = String::new();
        for (number, chunk) in line.points.chunks(step).enumerate() {
            // Of points that share a place the highest is shown: peaks are what a reader looks for.
            let Some(&point) = chunk.iter().max_by(|one, two| one.1.total_cmp(&two.1)) else {
                continue;
            };
            let (x, y) = place(point);
            write!(path, "{}{x:.1} {y:.1}", if number == 0 { "M" } else { "L" }).ok();
        }
        write!(
            out,
            "<path class=\"line {}\" d=\"{path}\"><title>{}</title></path>",
            line.class, line.name
        )
        .ok();
        if let [point] = line.points.as_slice() {
            let (x, y) = place(*point);
            write!(
                out,
                "<circle class=\"dot {}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\"/>",
                line.class
            )
            .ok();
        }
    }
    out.push_str("</svg><p class=\"key\">");
    for line in lines {
        write!(out, "<span class=\"{}\">{}</span> ", line.class, line.name).ok();
    }
    out.push_str("</p></figure>");
    out
}

/// Returns a heat map: per column the count of each row, rows from below.
pub(super) fn heat(title: &str, rows: &[String], columns: &[Vec<u64>], seconds: f64) -> String {
    let most = columns.iter().flatten().copied().max().unwrap_or(0).max(1) as f64;
    let mut out = String::new();
    write!(
        out,
        "<figure><figcaption>{title}</figcaption><svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{title}\">"
    )
    .ok();
    let width = (WIDTH - LEFT - 8.0) / columns.len().max(1) as f64;
    let height = (HEIGHT - TOP - BOTTOM) / rows.len().max(1) as f64;
    for (number, column) in columns.iter().enumerate() {
        for (row, &count) in column.iter().enumerate().filter(|(_, count)| **count > 0) {
            // By the logarithm, so that a few slow requests show beside thousands of fast ones.
            let shade = (1.0 + count as f64).ln() / (1.0 + most).ln();
            let x = LEFT + number as f64 * width;
            let y = HEIGHT - BOTTOM - (row + 1) as f64 * height;
            write!(
                out,
                "<rect class=\"heat\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill-opacity=\"{:.2}\"/>",
                width + 0.3,
                height - 0.5,
                0.1 + 0.9 * shade
            )
            .ok();
        }
    }
    for (row, name) in rows.iter().enumerate().step_by(2) {
        let y = HEIGHT - BOTTOM - row as f64 * height;
        write!(out, "<text x=\"{:.0}\" y=\"{:.0}\" class=\"end\">{name}</text>", LEFT - 6.0, y)
            .ok();
    }
    write!(out, "<text x=\"{LEFT}\" y=\"{:.0}\">0 s</text>", HEIGHT - 8.0).ok();
    write!(
        out,
        "<text x=\"{:.0}\" y=\"{:.0}\" class=\"end\">{seconds:.0} s</text></svg></figure>",
        WIDTH - 8.0,
        HEIGHT - 8.0
    )
    .ok();
    out
}

fn frame(title: &str, unit: &str, axis: &str, most_x: f64, most_y: f64) -> String {
    let mut out = String::new();
    write!(
        out,
        "<figure><figcaption>{title}</figcaption><svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{title}\">"
    )
    .ok();
    for step in 0..=4 {
        let share = f64::from(step) / 4.0;
        let y = TOP + (1.0 - share) * (HEIGHT - TOP - BOTTOM);
        write!(
            out,
            "<path class=\"grid\" d=\"M{LEFT} {y:.1}H{WIDTH}\"/><text class=\"end\" x=\"{:.0}\" y=\"{:.1}\">{}</text>",
            LEFT - 6.0,
            y + 4.0,
            short(most_y * share)
        )
        .ok();
    }
    write!(
        out,
        "<text x=\"2\" y=\"{:.0}\">{unit}</text><text x=\"{LEFT}\" y=\"{:.0}\">0</text><text class=\"end\" x=\"{:.0}\" y=\"{:.0}\">{} {axis}</text>",
        HEIGHT - 8.0,
        HEIGHT - 8.0,
        WIDTH - 8.0,
        HEIGHT - 8.0,
        short(most_x)
    )
    .ok();
    out
}

/// Returns a round number at or above `value`.
fn nice(value: f64) -> f64 {
    if value <= 0.0 {
        return 1.0;
    }
    let unit = 10f64.powf(value.log10().floor());
    [1.0, 2.0, 4.0, 5.0, 8.0, 10.0]
        .into_iter()
        .map(|step| step * unit)
        .find(|step| *step >= value)
        .unwrap_or(value)
}

fn short(value: f64) -> String {
    if value >= 1e6 {
        format!("{:.1}M", value / 1e6)
    } else if value >= 10_000.0 {
        format!("{:.0}k", value / 1e3)
    } else if value >= 10.0 || value == 0.0 {
        format!("{value:.0}")
    } else {
        format!("{value:.2}")
    }
}
