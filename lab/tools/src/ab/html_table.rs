//! The HTML table of ab (`-w`), with the attributes that `-x`, `-y` and `-z` set.

use std::fmt::{self, Write as _};

use tympan_notation::escape_html;

use super::benchmark::{AbRequestTimes, AbRun, AbTableAttributes};
use super::text_report::round_to_ms;

impl AbRun {
    /// Writes the table. As in ab, attributes are written verbatim, and text from the server is escaped.
    pub(super) fn write_html_table(
        &self,
        markup: &AbTableAttributes,
        out: &mut String,
    ) -> fmt::Result {
        writeln!(out, "<table {}>", markup.table_attributes)?;
        let mut rows = AbTableWriter { markup, out };
        self.write_server_rows(&mut rows)?;
        self.write_total_rows(&mut rows)?;
        self.write_rate_rows(&mut rows)?;
        self.write_time_rows(&mut rows)?;
        writeln!(out, "</table>")
    }

    fn write_server_rows(&self, rows: &mut AbTableWriter<'_>) -> fmt::Result {
        let gathered = &self.measurements;
        rows.write_pair("Server Software:", &gathered.software)?;
        rows.write_pair("Server Hostname:", &self.url.host)?;
        rows.write_pair("Server Port:", &self.url.port.to_string())?;
        rows.write_pair("Document Path:", &self.url.path_and_query)?;
        let length = match self.options.allows_any_length {
            true => "Variable".to_owned(),
            false => format!("{} bytes", gathered.document_length.unwrap_or(0)),
        };
        rows.write_pair("Document Length:", &length)?;
        rows.write_pair("Concurrency Level:", &self.options.concurrency.to_string())
    }

    fn write_total_rows(&self, rows: &mut AbTableWriter<'_>) -> fmt::Result {
        let gathered = &self.measurements;
        let seconds = self.results.elapsed.as_secs_f64();
        rows.write_pair("Time taken for tests:", &format!("{seconds:.3} seconds"))?;
        rows.write_pair("Complete requests:", &self.completed_count().to_string())?;
        rows.write_pair("Failed requests:", &self.failed_count().to_string())?;
        if self.failed_count() > 0 {
            rows.write_full_width(&format!(
                "   (Connect: {}, Length: {}, Exceptions: {})",
                gathered.connect_failures + gathered.receive_failures,
                self.length_failure_count(),
                gathered.exceptions
            ))?;
        }
        if gathered.non_2xx_count > 0 {
            rows.write_pair("Non-2xx responses:", &gathered.non_2xx_count.to_string())?;
        }
        if self.options.keep_alive {
            rows.write_pair("Keep-Alive requests:", &gathered.kept_alive_count.to_string())?;
        }
        rows.write_pair("Total transferred:", &format!("{} bytes", gathered.received_bytes))?;
        if self.sends_body() {
            rows.write_pair("Total body sent:", &gathered.sent_bytes.to_string())?;
        }
        rows.write_pair("HTML transferred:", &format!("{} bytes", gathered.body_bytes))
    }

    fn write_rate_rows(&self, rows: &mut AbTableWriter<'_>) -> fmt::Result {
        let gathered = &self.measurements;
        let seconds = self.results.elapsed.as_secs_f64();
        if seconds <= 0.0 {
            return Ok(());
        }
        let kilobytes = |bytes: u64| bytes as f64 / 1024.0 / seconds;
        let rate = self.completed_count() as f64 / seconds;
        rows.write_pair("Requests per second:", &format!("{rate:.2}"))?;
        let received = kilobytes(gathered.received_bytes);
        rows.write_pair("Transfer rate:", &format!("{received:.2} kb/s received"))?;
        if self.sends_body() {
            rows.write_value(&format!("{:.2} kb/s sent", kilobytes(gathered.sent_bytes)))?;
            let both = kilobytes(gathered.sent_bytes + gathered.received_bytes);
            rows.write_value(&format!("{both:.2} kb/s total"))?;
        }
        Ok(())
    }

    fn write_time_rows(&self, rows: &mut AbTableWriter<'_>) -> fmt::Result {
        let times = &self.measurements.times;
        if times.is_empty() {
            return Ok(());
        }
        rows.write_time_header()?;
        let connect = AbTimeSummary::from_times(times, |times| times.connect_us);
        let total = AbTimeSummary::from_times(times, |times| times.total_us);
        rows.write_time_row("Connect:", &connect)?;
        // As in ab, this is the difference of the totals, not of each request.
        rows.write_time_row("Processing:", &total.minus(&connect))?;
        rows.write_time_row("Total:", &total)
    }

    fn sends_body(&self) -> bool {
        !self.options.body.is_empty()
    }
}

/// Minimum, mean and maximum, in milliseconds.
struct AbTimeSummary {
    min: u64,
    mean: u64,
    max: u64,
}

impl AbTimeSummary {
    fn from_times(all: &[AbRequestTimes], value: impl Fn(&AbRequestTimes) -> u64) -> Self {
        let values = || all.iter().map(&value);
        let mean = values().sum::<u64>() / (all.len() as u64).max(1);
        Self {
            min: round_to_ms(values().min().unwrap_or(0)),
            mean: round_to_ms(mean),
            max: round_to_ms(values().max().unwrap_or(0)),
        }
    }

    fn minus(&self, other: &Self) -> Self {
        Self {
            min: self.min.saturating_sub(other.min),
            mean: self.mean.saturating_sub(other.mean),
            max: self.max.saturating_sub(other.max),
        }
    }
}

/// Writes table rows.
struct AbTableWriter<'a> {
    markup: &'a AbTableAttributes,
    out: &'a mut String,
}

impl AbTableWriter<'_> {
    fn write_pair(&mut self, name: &str, value: &str) -> fmt::Result {
        let AbTableAttributes { row_attributes: row, cell_attributes: cell, .. } = self.markup;
        let value = escape_html(value);
        writeln!(
            self.out,
            "<tr {row}><th colspan=2 {cell}>{name}</th><td colspan=2 {cell}>{value}</td></tr>"
        )
    }

    fn write_value(&mut self, value: &str) -> fmt::Result {
        let AbTableAttributes { row_attributes: row, cell_attributes: cell, .. } = self.markup;
        writeln!(
            self.out,
            "<tr {row}><td colspan=2 {cell}>&nbsp;</td><td colspan=2 {cell}>{value}</td></tr>"
        )
    }

    fn write_full_width(&mut self, text: &str) -> fmt::Result {
        let AbTableAttributes { row_attributes: row, cell_attributes: cell, .. } = self.markup;
        writeln!(self.out, "<tr {row}><td colspan=4 {cell} >{text}</td></tr>")
    }

    fn write_time_header(&mut self) -> fmt::Result {
        let AbTableAttributes { row_attributes: row, cell_attributes: cell, .. } = self.markup;
        writeln!(self.out, "<tr {row}><th {cell} colspan=4>Connection Times (ms)</th></tr>")?;
        writeln!(
            self.out,
            "<tr {row}><th {cell}>&nbsp;</th> <th {cell}>min</th>   <th {cell}>avg</th>   <th {cell}>max</th></tr>"
        )
    }

    fn write_time_row(&mut self, name: &str, span: &AbTimeSummary) -> fmt::Result {
        let AbTableAttributes { row_attributes: row, cell_attributes: cell, .. } = self.markup;
        let AbTimeSummary { min: least, mean, max: most } = span;
        writeln!(
            self.out,
            "<tr {row}><th {cell}>{name}</th><td {cell}>{least:>5}</td><td {cell}>{mean:>5}</td><td {cell}>{most:>5}</td></tr>"
        )
    }
}
