//! ab's table in HTML (`-w`), with the attributes that `-x`, `-y` and `-z` give it.

use std::fmt::{self, Write as _};

use super::print::round;
use super::send::{AbRun, Markup, Times};
use crate::report::escape;

impl AbRun {
    /// Writes the table. As in ab, attributes go in as they were given, and what a server says is escaped.
    pub(super) fn write_markup(&self, markup: &Markup, out: &mut String) -> fmt::Result {
        writeln!(out, "<table {}>", markup.table)?;
        let mut rows = Rows { markup, out };
        self.write_server(&mut rows)?;
        self.write_sums(&mut rows)?;
        self.write_rates(&mut rows)?;
        self.write_spans(&mut rows)?;
        writeln!(out, "</table>")
    }

    fn write_server(&self, rows: &mut Rows<'_>) -> fmt::Result {
        let gathered = &self.gathered;
        rows.pair("Server Software:", &gathered.software)?;
        rows.pair("Server Hostname:", &self.url.host)?;
        rows.pair("Server Port:", &self.url.port.to_string())?;
        rows.pair("Document Path:", &self.url.target)?;
        let length = match self.options.any_length {
            true => "Variable".to_owned(),
            false => format!("{} bytes", gathered.length.unwrap_or(0)),
        };
        rows.pair("Document Length:", &length)?;
        rows.pair("Concurrency Level:", &self.options.concurrency.to_string())
    }

    fn write_sums(&self, rows: &mut Rows<'_>) -> fmt::Result {
        let gathered = &self.gathered;
        let seconds = self.results.elapsed.as_secs_f64();
        rows.pair("Time taken for tests:", &format!("{seconds:.3} seconds"))?;
        rows.pair("Complete requests:", &self.done().to_string())?;
        rows.pair("Failed requests:", &self.failed().to_string())?;
        if self.failed() > 0 {
            rows.wide(&format!(
                "   (Connect: {}, Length: {}, Exceptions: {})",
                gathered.failed_connect + gathered.failed_receive,
                self.length_failures(),
                gathered.exceptions
            ))?;
        }
        if gathered.non_2xx > 0 {
            rows.pair("Non-2xx responses:", &gathered.non_2xx.to_string())?;
        }
        if self.options.keep_alive {
            rows.pair("Keep-Alive requests:", &gathered.kept_alive.to_string())?;
        }
        rows.pair("Total transferred:", &format!("{} bytes", gathered.received))?;
        if self.sends() {
            rows.pair("Total body sent:", &gathered.sent.to_string())?;
        }
        rows.pair("HTML transferred:", &format!("{} bytes", gathered.body))
    }

    fn write_rates(&self, rows: &mut Rows<'_>) -> fmt::Result {
        let gathered = &self.gathered;
        let seconds = self.results.elapsed.as_secs_f64();
        if seconds <= 0.0 {
            return Ok(());
        }
        let kilobytes = |bytes: u64| bytes as f64 / 1024.0 / seconds;
        let rate = self.done() as f64 / seconds;
        rows.pair("Requests per second:", &format!("{rate:.2}"))?;
        let received = kilobytes(gathered.received);
        rows.pair("Transfer rate:", &format!("{received:.2} kb/s received"))?;
        if self.sends() {
            rows.more(&format!("{:.2} kb/s sent", kilobytes(gathered.sent)))?;
            let both = kilobytes(gathered.sent + gathered.received);
            rows.more(&format!("{both:.2} kb/s total"))?;
        }
        Ok(())
    }

    fn write_spans(&self, rows: &mut Rows<'_>) -> fmt::Result {
        let times = &self.gathered.times;
        if times.is_empty() {
            return Ok(());
        }
        rows.heads()?;
        let connect = Span::of(times, |times| times.connect);
        let total = Span::of(times, |times| times.total);
        rows.span("Connect:", &connect)?;
        // As in ab: what is left of the totals, not of each request.
        rows.span("Processing:", &total.without(&connect))?;
        rows.span("Total:", &total)
    }

    fn sends(&self) -> bool {
        !self.options.body.is_empty()
    }
}

/// Least, mean and most, in milliseconds.
struct Span {
    least: u64,
    mean: u64,
    most: u64,
}

impl Span {
    fn of(all: &[Times], value: impl Fn(&Times) -> u64) -> Self {
        let values = || all.iter().map(&value);
        let mean = values().sum::<u64>() / (all.len() as u64).max(1);
        Self {
            least: round(values().min().unwrap_or(0)),
            mean: round(mean),
            most: round(values().max().unwrap_or(0)),
        }
    }

    fn without(&self, other: &Self) -> Self {
        Self {
            least: self.least.saturating_sub(other.least),
            mean: self.mean.saturating_sub(other.mean),
            most: self.most.saturating_sub(other.most),
        }
    }
}

/// Writes rows.
struct Rows<'a> {
    markup: &'a Markup,
    out: &'a mut String,
}

impl Rows<'_> {
    fn pair(&mut self, name: &str, value: &str) -> fmt::Result {
        let Markup { row, cell, .. } = self.markup;
        let value = escape(value);
        writeln!(
            self.out,
            "<tr {row}><th colspan=2 {cell}>{name}</th><td colspan=2 {cell}>{value}</td></tr>"
        )
    }

    fn more(&mut self, value: &str) -> fmt::Result {
        let Markup { row, cell, .. } = self.markup;
        writeln!(
            self.out,
            "<tr {row}><td colspan=2 {cell}>&nbsp;</td><td colspan=2 {cell}>{value}</td></tr>"
        )
    }

    fn wide(&mut self, text: &str) -> fmt::Result {
        let Markup { row, cell, .. } = self.markup;
        writeln!(self.out, "<tr {row}><td colspan=4 {cell} >{text}</td></tr>")
    }

    fn heads(&mut self) -> fmt::Result {
        let Markup { row, cell, .. } = self.markup;
        writeln!(self.out, "<tr {row}><th {cell} colspan=4>Connection Times (ms)</th></tr>")?;
        writeln!(
            self.out,
            "<tr {row}><th {cell}>&nbsp;</th> <th {cell}>min</th>   <th {cell}>avg</th>   <th {cell}>max</th></tr>"
        )
    }

    fn span(&mut self, name: &str, span: &Span) -> fmt::Result {
        let Markup { row, cell, .. } = self.markup;
        let Span { least, mean, most } = span;
        writeln!(
            self.out,
            "<tr {row}><th {cell}>{name}</th><td {cell}>{least:>5}</td><td {cell}>{mean:>5}</td><td {cell}>{most:>5}</td></tr>"
        )
    }
}
