//! [`DispatcherStatus`] as an HTML page without scripts.

use std::fmt::{Display, Write};

use tympan_notation::escape_html;

use crate::observe::status::{DispatcherStatus, FarmStatus};

const STATUS_PAGE_STYLE: &str = "body{font:14px/1.4 system-ui,sans-serif;margin:2em;max-width:70em}\
    table{border-collapse:collapse;margin:.5em 0 1.5em}td,th{padding:.15em .8em;text-align:left;\
    border-bottom:1px solid #ccc}td.n{text-align:right;font-variant-numeric:tabular-nums}\
    .bad{color:#a00;font-weight:bold}@media(prefers-color-scheme:dark){body{background:#111;color:#ddd}}";

/// Returns the page.
pub(crate) fn render_status_page(status: &DispatcherStatus) -> String {
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Dispatcher</title>\
         <meta http-equiv=\"refresh\" content=\"5\"><style>{STATUS_PAGE_STYLE}</style></head><body>\n<h1>Dispatcher</h1>\n"
    );
    let state = if status.is_well {
        "<p>Every farm has an available render.</p>\n"
    } else {
        "<p class=\"bad\">A farm has no available render; see the tables below.</p>\n"
    };
    page.push_str(state);
    write_table(
        &mut page,
        &["what", "now"],
        [
            ("uptime, seconds", status.uptime.to_string()),
            ("requests in flight", status.in_flight.to_string()),
            ("pages being fetched", status.fetches.to_string()),
            ("hit ratio, %", format!("{:.2}", status.hit_ratio)),
            ("refused by filters", status.refused.to_string()),
            ("refused by rate", status.rate_limited.to_string()),
        ]
        .into_iter()
        .map(|(name, value)| vec![text_cell(name), number_cell(value)]),
    );
    for farm in &status.farms {
        write_farm_section(&mut page, farm);
    }
    page.push_str(
        "<p><a href=\"/status.json\">as JSON</a> · <a href=\"/metrics\">metrics</a></p></body></html>\n",
    );
    page
}

fn write_farm_section(page: &mut String, farm: &FarmStatus) {
    let share = farm.share.map(|share| format!(", for {share} % of the visitors"));
    let share = share.unwrap_or_default();
    // Writing to a string cannot fail.
    writeln!(
        page,
        "<h2>Farm {}{share}</h2>\n<p>Hit ratio {:.2} %, {} flushed pages wait to be fetched again.</p>",
        escape_html(&farm.name),
        farm.hit_ratio,
        farm.refetch_queue
    )
    .ok();
    write_table(
        page,
        &["render", "address", "state", "in flight", "waiting", "answered", "failed", "score, ms"],
        farm.renders.iter().map(|render| {
            let class = if render.is_answering() { "" } else { "bad" };
            vec![
                text_cell(&render.name),
                text_cell(&render.address),
                format!("<td class=\"{class}\">{}</td>", render.standing),
                number_cell(render.in_flight),
                number_cell(render.waiting),
                number_cell(render.answered),
                number_cell(render.failed),
                number_cell(format!("{:.1}", render.score)),
            ]
        }),
    );
    write_table(
        page,
        &["document root", "files", "MiB", "evicted files", "stores on full disk", "MiB free"],
        farm.disk.iter().map(|disk| {
            let counted = if disk.is_counted { "" } else { " (being counted)" };
            vec![
                text_cell(&format!("{}{counted}", disk.docroot)),
                number_cell(disk.files),
                number_cell(disk.bytes >> 20),
                number_cell(disk.evicted_files),
                number_cell(disk.disk_full),
                number_cell(disk.free >> 20),
            ]
        }),
    );
    let orders = farm.disk.iter().flat_map(|disk| &disk.flush_orders);
    write_table(
        page,
        &["numbered flushes", "count"],
        orders
            .filter(|(_, count)| *count > 0)
            .map(|(name, count)| vec![text_cell(name), number_cell(count)]),
    );
    write_table(
        page,
        &["cache", "requests"],
        farm.requests.iter().map(|(name, count)| vec![text_cell(name), number_cell(count)]),
    );
    write_table(
        page,
        &["why not cached", "answers"],
        farm.not_cached.iter().map(|(name, reason, count)| {
            vec![text_cell(&format!("{reason} ({name})")), number_cell(count)]
        }),
    );
    write_table(
        page,
        &["below", "requests", "from the cache, %"],
        farm.prefixes.iter().map(|(path, count, ratio)| {
            vec![text_cell(path), number_cell(count), number_cell(format!("{ratio:.2}"))]
        }),
    );
    write_table(
        page,
        &["most requested", "requests, approximate"],
        farm.top.iter().map(|(path, count)| vec![text_cell(path), number_cell(count)]),
    );
}

/// Writes a table, unless it has no rows.
fn write_table(page: &mut String, heads: &[&str], rows: impl Iterator<Item = Vec<String>>) {
    let mut rows = rows.peekable();
    if rows.peek().is_none() {
        return;
    }
    page.push_str("<table><tr>");
    for head in heads {
        write!(page, "<th>{head}</th>").ok();
    }
    page.push_str("</tr>\n");
    for row in rows {
        writeln!(page, "<tr>{}</tr>", row.concat()).ok();
    }
    page.push_str("</table>\n");
}

fn text_cell(text: &str) -> String {
    format!("<td>{}</td>", escape_html(text))
}

fn number_cell(number: impl Display) -> String {
    format!("<td class=\"n\">{number}</td>")
}

#[cfg(test)]
mod tests {
    use super::render_status_page;
    use crate::observe::status::{DispatcherStatus, FarmStatus};

    #[test]
    fn what_visitors_sent_is_text() {
        let farm = FarmStatus {
            name: "site".to_owned(),
            share: Some(12.5),
            hit_ratio: 50.0,
            requests: vec![("hit", 1)],
            not_cached: Vec::new(),
            prefixes: vec![("/<script>\"&".to_owned(), 1, 0.0)],
            top: vec![("/<img onerror=x>\n".to_owned(), 8)],
            refetch_queue: 0,
            disk: None,
            renders: Vec::new(),
        };
        let page = render_status_page(&DispatcherStatus {
            uptime: 1,
            in_flight: 0,
            hit_ratio: 50.0,
            refused: 0,
            rate_limited: 0,
            fetches: 0,
            is_well: false,
            farms: vec![farm],
        });
        assert!(page.contains("/&lt;script&gt;&quot;&amp;") && page.contains("&lt;img"), "{page}");
        assert!(!page.contains("<script") && !page.contains("<img"), "{page}");
        assert!(page.contains("for 12.5 % of the visitors"), "{page}");
        assert!(!page.contains("why not cached"), "empty tables are left out");
    }
}
