//! Renders charts as SVG text, so that a report needs no script and no network.

use std::fmt::Write as _;

use crate::measurement::TimingHistogram;

/// A line of a chart.
pub(super) struct ChartLine<'a> {
    pub(super) name: &'a str,
    /// Class of the report's style sheet that sets the color.
    pub(super) class: &'a str,
    pub(super) points: Vec<(f64, f64)>,
}

const CHART_WIDTH: f64 = 720.0;
const CHART_HEIGHT: f64 = 240.0;
const LEFT_MARGIN: f64 = 84.0;
const RIGHT_MARGIN: f64 = 8.0;
const BOTTOM_MARGIN: f64 = 26.0;
/// At least half of a name's height, also on narrow screens.
const TOP_MARGIN: f64 = 16.0;
/// Maximum number of points; more cannot be distinguished.
const MAX_CHART_POINTS: usize = 600;

/// Returns a line chart; `unit` labels the vertical axis, `axis` the horizontal one.
pub(super) fn render_line_chart(
    title: &str,
    unit: &str,
    axis: &str,
    lines: &[ChartLine<'_>],
) -> String {
    let points = || lines.iter().flat_map(|line| line.points.iter());
    let most_x = points().map(|point| point.0).fold(0.0, f64::max).max(1e-9);
    let most_y = round_up_nice(points().map(|point| point.1).fold(0.0, f64::max));
    let quarters = || (0..=4).map(|step| f64::from(step) / 4.0);
    let mut out = String::new();
    let ticks = ChartTicks {
        horizontal: round_ticks(most_x).map(|at| (at / most_x, format_tick(at))).collect(),
        vertical: quarters().map(|share| (share, format_tick(most_y * share))).collect(),
        horizontal_unit: axis,
        vertical_unit: unit,
    };
    write_chart_frame(&mut out, title, &ticks);
    write_chart_lines(&mut out, lines, &|point| (point.0 / most_x, point.1 / most_y));
    write_legend(&mut out, lines);
    out
}

/// Returns times by percentile for [`render_percentile_chart`], as close to 100 % as the number of times allows.
pub(super) fn percentile_points(timing: &TimingHistogram) -> Vec<(f64, f64)> {
    // Equal steps towards 100 %: 90, 99, 99.9 ... are equidistant.
    (0..=60)
        .map(|step| f64::from(step) / 12.0)
        .take_while(|nines| 10f64.powf(-nines) * timing.count() as f64 >= 0.5 || *nines <= 1.0)
        .map(|nines| (nines, timing.quantile(1.0 - 10f64.powf(-nines)).as_secs_f64() * 1000.0))
        .collect()
}

/// Returns a chart of times by percentile. `x` of a point counts nines (1 for 90 %, 2 for 99 %). `y` is in milliseconds
/// on a logarithmic scale, because the slowest responses take many times as long as most.
pub(super) fn render_percentile_chart(title: &str, lines: &[ChartLine<'_>]) -> String {
    let points = || lines.iter().flat_map(|line| line.points.iter());
    let most_x = points().map(|point| point.0).fold(1.0, f64::max).ceil();
    let decade = |value: f64| value.max(1e-3).log10();
    let high = points().map(|point| decade(point.1)).fold(-3.0, f64::max).ceil();
    // Files with whole milliseconds contain zeros, which a logarithmic scale cannot show.
    let above_zero = points().filter(|point| point.1 > 1e-3);
    let low = above_zero.map(|point| decade(point.1)).fold(high - 1.0, f64::min).floor();
    let decades = (high - low).max(1.0);
    // The last two names are long and close together on a narrow screen.
    let is_crowded = |nines: f64| most_x >= 4.0 && (most_x - nines - 1.0).abs() < 0.5;
    let ticks = ChartTicks {
        horizontal: unit_ticks(most_x)
            .filter(|nines| !is_crowded(*nines))
            .map(|nines| (nines / most_x, percentile_name(nines)))
            .collect(),
        vertical: unit_ticks(decades)
            .map(|step| (step / decades, format_tick(10f64.powf(low + step))))
            .collect(),
        horizontal_unit: "",
        vertical_unit: "ms",
    };
    let mut out = String::new();
    write_chart_frame(&mut out, title, &ticks);
    write_chart_lines(&mut out, lines, &|point| {
        (point.0 / most_x, ((decade(point.1) - low) / decades).max(0.0))
    });
    write_legend(&mut out, lines);
    out
}

/// Returns three to six round numbers from 0 to `last`.
fn round_ticks(last: f64) -> impl Iterator<Item = f64> {
    let unit = 10f64.powf((last / 2.0).log10().floor());
    let step = [0.5, 1.0, 2.0, 2.5, 5.0].map(|step| step * unit);
    let step = step.into_iter().find(|step| last / step <= 5.0).unwrap_or(last);
    (0..=(last / step) as u32).map(move |number| f64::from(number) * step)
}

/// Returns 0, 1, 2 ... up to `last`.
fn unit_ticks(last: f64) -> impl Iterator<Item = f64> {
    (0..=last as u32).map(f64::from)
}

/// Returns the percentile with the given number of nines: 90 %, 99 %, 99.9 %.
fn percentile_name(nines: f64) -> String {
    let decimals = (nines as usize).saturating_sub(2);
    format!("{:.decimals$} %", 100.0 - 10f64.powf(2.0 - nines))
}

/// Renders lines; `relative_position` maps a point to shares of the width and the height.
fn write_chart_lines(
    out: &mut String,
    lines: &[ChartLine<'_>],
    relative_position: &dyn Fn((f64, f64)) -> (f64, f64),
) {
    let pixel_position = |point: (f64, f64)| {
        let (across, up) = relative_position(point);
        (
            LEFT_MARGIN + across * (CHART_WIDTH - LEFT_MARGIN - RIGHT_MARGIN),
            TOP_MARGIN + (1.0 - up) * (CHART_HEIGHT - TOP_MARGIN - BOTTOM_MARGIN),
        )
    };
    for line in lines {
        let step = line.points.len().div_ceil(MAX_CHART_POINTS).max(1);
        let mut path = String::new();
        for (number, chunk) in line.points.chunks(step).enumerate() {
            // Of points at the same position the highest is shown, because peaks matter most to the reader.
            let Some(&point) = chunk.iter().max_by(|left, right| left.1.total_cmp(&right.1)) else {
                continue;
            };
            let (x, y) = pixel_position(point);
            write!(path, "{}{x:.1} {y:.1}", if number == 0 { "M" } else { "L" }).ok();
        }
        write!(
            out,
            "<path class=\"line {}\" d=\"{path}\"><title>{}</title></path>",
            line.class, line.name
        )
        .ok();
        if let [point] = line.points.as_slice() {
            let (x, y) = pixel_position(*point);
            write!(
                out,
                "<circle class=\"dot {}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\"/>",
                line.class
            )
            .ok();
        }
    }
}

/// Ends a chart with a legend.
fn write_legend(out: &mut String, lines: &[ChartLine<'_>]) {
    out.push_str("</svg><p class=\"key\">");
    for line in lines {
        write!(out, "<span class=\"{}\">{}</span> ", line.class, line.name).ok();
    }
    out.push_str("</p></figure>");
}

/// Returns a heat map: for each column the count of each row, rows from bottom to top. The columns span 0 to `last`, in
/// the unit of `axis`.
pub(super) fn render_heat_map(
    title: &str,
    rows: &[String],
    columns: &[Vec<u64>],
    last: f64,
    axis: &str,
) -> String {
    let most = columns.iter().flatten().copied().max().unwrap_or(0).max(1) as f64;
    let mut out = String::new();
    write!(
        out,
        "<figure><figcaption>{title}</figcaption><svg class=\"chart\" viewBox=\"0 0 {CHART_WIDTH} {CHART_HEIGHT}\" role=\"img\" aria-label=\"{title}\">"
    )
    .ok();
    let width = (CHART_WIDTH - LEFT_MARGIN - RIGHT_MARGIN) / columns.len().max(1) as f64;
    let height = (CHART_HEIGHT - TOP_MARGIN - BOTTOM_MARGIN) / rows.len().max(1) as f64;
    for (number, column) in columns.iter().enumerate() {
        for (row, &count) in column.iter().enumerate().filter(|(_, count)| **count > 0) {
            // The logarithmic scale makes a few slow requests visible beside thousands of fast ones.
            let shade = (1.0 + count as f64).ln() / (1.0 + most).ln();
            // Each column begins at the rounded end of the previous one, because gaps would show as seams.
            let edge =
                |number: usize| ((LEFT_MARGIN + number as f64 * width) * 10.0).round() / 10.0;
            let (x, next) = (edge(number), edge(number + 1));
            let y = CHART_HEIGHT - BOTTOM_MARGIN - (row + 1) as f64 * height;
            write!(
                out,
                "<rect class=\"heat\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill-opacity=\"{:.2}\"/>",
                next - x,
                height - 1.0,
                0.1 + 0.9 * shade
            )
            .ok();
        }
    }
    for (row, name) in rows.iter().enumerate().step_by(2) {
        let y = CHART_HEIGHT - BOTTOM_MARGIN - row as f64 * height;
        write!(
            out,
            "<text x=\"{:.0}\" y=\"{:.0}\" class=\"end\">{name}</text>",
            LEFT_MARGIN - 6.0,
            y
        )
        .ok();
    }
    let last = last.max(1e-9);
    let across: Vec<(f64, String)> =
        round_ticks(last).map(|at| (at / last, format_tick(at))).collect();
    write_horizontal_ticks(&mut out, &across, axis);
    out.push_str("</svg></figure>");
    out
}

/// Tick labels of the axes, each at a share of the width or the height.
struct ChartTicks<'a> {
    horizontal: Vec<(f64, String)>,
    vertical: Vec<(f64, String)>,
    /// Unit of the horizontal axis.
    horizontal_unit: &'a str,
    /// Unit of the vertical axis.
    vertical_unit: &'a str,
}

fn write_chart_frame(out: &mut String, title: &str, ticks: &ChartTicks<'_>) {
    write!(
        out,
        "<figure><figcaption>{title}</figcaption><svg class=\"chart\" viewBox=\"0 0 {CHART_WIDTH} {CHART_HEIGHT}\" role=\"img\" aria-label=\"{title}\">"
    )
    .ok();
    for (share, text) in &ticks.vertical {
        let y = TOP_MARGIN + (1.0 - share) * (CHART_HEIGHT - TOP_MARGIN - BOTTOM_MARGIN);
        write!(
            out,
            "<path class=\"grid\" d=\"M{LEFT_MARGIN} {y:.1}H{:.0}\"/><text class=\"end\" x=\"{:.0}\" y=\"{:.1}\">{text}</text>",
            CHART_WIDTH - RIGHT_MARGIN,
            LEFT_MARGIN - 6.0,
            y + 4.0,
        )
        .ok();
    }
    write!(out, "<text x=\"2\" y=\"{:.0}\">{}</text>", CHART_HEIGHT - 5.0, ticks.vertical_unit)
        .ok();
    write_horizontal_ticks(out, &ticks.horizontal, ticks.horizontal_unit);
}

/// Writes the tick labels below a chart; the last one includes the unit of the axis.
fn write_horizontal_ticks(out: &mut String, ticks: &[(f64, String)], axis: &str) {
    let y = CHART_HEIGHT - 5.0;
    let last = ticks.len().saturating_sub(1);
    for (number, (share, text)) in ticks.iter().enumerate() {
        // The outermost labels stay inside the frame.
        let (class, axis) = match number {
            0 => ("", ""),
            number if number == last && *share > 0.95 => ("end", axis),
            number if number == last => ("middle", axis),
            _ => ("middle", ""),
        };
        let x = LEFT_MARGIN + share * (CHART_WIDTH - LEFT_MARGIN - RIGHT_MARGIN);
        let text = format!("{text} {axis}");
        write!(out, "<text class=\"{class}\" x=\"{x:.0}\" y=\"{y:.0}\">{}</text>", text.trim_end())
            .ok();
    }
}

/// Returns a round number at or above `value`.
fn round_up_nice(value: f64) -> f64 {
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

fn format_tick(value: f64) -> String {
    if value >= 1e6 {
        format!("{:.1}M", value / 1e6)
    } else if value >= 10_000.0 {
        format!("{:.0}k", value / 1e3)
    } else if value >= 10.0 || value == 0.0 {
        format!("{value:.0}")
    } else {
        format!("{value:.2}").trim_end_matches('0').trim_end_matches('.').to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_stand_at_their_nines() {
        let names: Vec<String> = unit_ticks(5.0).map(percentile_name).collect();
        assert_eq!(names, ["0 %", "90 %", "99 %", "99.9 %", "99.99 %", "99.999 %"]);
        let line = ChartLine { name: "n", class: "c1", points: vec![(0.0, 1.0), (2.0, 1000.0)] };
        let chart = render_percentile_chart("t", &[line]);
        // The line spans the frame.
        assert!(chart.contains("d=\"M84.0 214.0L712.0 16.0\""), "{chart}");
        let zeros =
            ChartLine { name: "n", class: "c1", points: vec![(0.0, 0.0), (1.0, 3.0), (2.0, 90.0)] };
        let chart = render_percentile_chart("t", &[zeros]);
        assert!(chart.contains("M84.0 214.0") && chart.matches(">0<").count() == 0, "{chart}");
        for (last, expected) in [
            (166.0, vec![0.0, 50.0, 100.0, 150.0]),
            (10.0, vec![0.0, 2.0, 4.0, 6.0, 8.0, 10.0]),
            (0.7, vec![0.0, 0.2, 0.4, 0.6]),
            (3600.0, vec![0.0, 1000.0, 2000.0, 3000.0]),
        ] {
            let ticks: Vec<f64> = round_ticks(last).map(|at| (at * 1e6).round() / 1e6).collect();
            assert_eq!(ticks, expected);
        }
        let line = ChartLine { name: "n", class: "c1", points: vec![(0.0, 1.0), (2.0, 1000.0)] };
        let chart = render_percentile_chart("t", &[line]);
        for tick in [">1<", ">10<", ">100<", ">1000<", ">99 %<"] {
            assert!(chart.contains(tick), "{tick}: {chart}");
        }
    }
}
