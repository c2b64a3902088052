//! The text report of ab: the same lines in the same order, so that programs that parse ab's text can parse this one.

use std::fmt::{self, Write as _};

use super::benchmark::{AbOptions, AbRequestTimes, AbRun};
use crate::Result;

/// The percentages in ab's table.
const REPORTED_PERCENTILES: [u64; 9] = [50, 66, 75, 80, 90, 95, 98, 99, 100];

impl AbRun {
    pub(super) fn completed_count(&self) -> u64 {
        self.measurements.times.len() as u64 + self.failures_without_times()
    }

    fn failures_without_times(&self) -> u64 {
        let gathered = &self.measurements;
        gathered.connect_failures + gathered.receive_failures + gathered.exceptions
    }

    /// Returns the number of failed requests, by ab's definition.
    #[must_use]
    pub fn failed_count(&self) -> u64 {
        self.failures_without_times() + self.length_failure_count()
    }

    pub(super) fn length_failure_count(&self) -> u64 {
        let counts = self.options.is_strict && !self.options.allows_any_length;
        if counts { self.measurements.length_mismatches } else { 0 }
    }

    /// Returns true if no request received a response.
    #[must_use]
    pub fn is_unreachable(&self) -> bool {
        self.measurements.times.is_empty() && self.failures_without_times() > 0
    }

    /// Returns the number of responses whose length differs from the first, which ab would count as failed.
    #[must_use]
    pub fn length_mismatch_count(&self) -> u64 {
        if self.options.allows_any_length { 0 } else { self.measurements.length_mismatches }
    }

    /// Returns the content of the `-e` file: percentage served, milliseconds.
    #[must_use]
    pub fn to_csv(&self) -> String {
        let mut times: Vec<u64> =
            self.measurements.times.iter().map(|times| times.total_us).collect();
        times.sort_unstable();
        let mut out = "Percentage served,Time in ms\n".to_owned();
        for percent in 0..100 {
            let time = match percent {
                0 => times.first(),
                _ => times.get(times.len() * percent / 100),
            };
            let millis = time.copied().unwrap_or(0) as f64 / 1000.0;
            writeln!(out, "{percent},{millis:.3}").ok();
        }
        out
    }

    /// Returns the content of the `-g` file: one line per request, sorted by total time.
    #[must_use]
    pub fn to_gnuplot(&self) -> String {
        let mut all = self.measurements.times.clone();
        all.sort_by_key(|times| times.total_us);
        let mut out = "starttime\tseconds\tctime\tdtime\tttime\twait\n".to_owned();
        for times in &all {
            let seconds = times.start_us / 1_000_000;
            let date = i64::try_from(seconds)
                .ok()
                .and_then(|seconds| jiff::Timestamp::from_second(seconds).ok())
                .map(|at| at.strftime("%a %b %d %H:%M:%S %Y").to_string())
                .unwrap_or_default();
            writeln!(
                out,
                "{date}\t{seconds}\t{}\t{}\t{}\t{}",
                round_to_ms(times.connect_us),
                round_to_ms(times.processing_us()),
                round_to_ms(times.total_us),
                round_to_ms(times.wait_us)
            )
            .ok();
        }
        out
    }

    /// Returns the report: ab's text from `Server Software` on, or its HTML table.
    #[must_use]
    pub fn to_report(&self) -> String {
        let mut out = String::new();
        let written = match &self.options.html_table {
            Some(markup) => self.write_html_table(markup, &mut out),
            None => self
                .write_header(&mut out)
                .and_then(|()| self.write_counts(&mut out))
                .and_then(|()| self.write_times(&mut out)),
        };
        written.map_or_else(|_| String::new(), |()| out)
    }

    fn write_header(&self, out: &mut String) -> fmt::Result {
        let gathered = &self.measurements;
        writeln!(out, "Server Software:        {}", gathered.software)?;
        writeln!(out, "Server Hostname:        {}", self.url.host)?;
        writeln!(out, "Server Port:            {}", self.url.port)?;
        if let Some(agreed) = &self.negotiated_tls {
            writeln!(out, "SSL/TLS Protocol:       {}", agreed.protocol_and_cipher)?;
            if let Some(key) = agreed.temporary_key {
                writeln!(out, "Server Temp Key:        {key}")?;
            }
            if self.sends_server_name() {
                writeln!(out, "TLS Server Name:        {}", self.url.host)?;
            }
        }
        writeln!(out)?;
        writeln!(out, "Document Path:          {}", self.url.path_and_query)?;
        if self.options.allows_any_length {
            writeln!(out, "Document Length:        Variable\n")?;
        } else {
            writeln!(
                out,
                "Document Length:        {} bytes\n",
                gathered.document_length.unwrap_or(0)
            )?;
        }
        writeln!(out, "Concurrency Level:      {}", self.options.concurrency)
    }

    fn write_counts(&self, out: &mut String) -> fmt::Result {
        let gathered = &self.measurements;
        let seconds = self.results.elapsed.as_secs_f64();
        writeln!(out, "Time taken for tests:   {seconds:.3} seconds")?;
        writeln!(out, "Complete requests:      {}", self.completed_count())?;
        writeln!(out, "Failed requests:        {}", self.failed_count())?;
        if self.failed_count() > 0 {
            writeln!(
                out,
                "   (Connect: {}, Receive: {}, Length: {}, Exceptions: {})",
                gathered.connect_failures,
                gathered.receive_failures,
                self.length_failure_count(),
                gathered.exceptions
            )?;
        }
        if gathered.non_2xx_count > 0 {
            writeln!(out, "Non-2xx responses:      {}", gathered.non_2xx_count)?;
        }
        if self.options.keep_alive {
            writeln!(out, "Keep-Alive requests:    {}", gathered.kept_alive_count)?;
        }
        writeln!(out, "Total transferred:      {} bytes", gathered.received_bytes)?;
        let sends = !self.options.body.is_empty();
        if sends {
            writeln!(out, "Total body sent:        {}", gathered.sent_bytes)?;
        }
        writeln!(out, "HTML transferred:       {} bytes", gathered.body_bytes)?;
        if self.completed_count() == 0 || seconds <= 0.0 {
            return Ok(());
        }
        let each = seconds * 1000.0 / self.completed_count() as f64;
        writeln!(
            out,
            "Requests per second:    {:.2} [#/sec] (mean)",
            self.completed_count() as f64 / seconds
        )?;
        writeln!(
            out,
            "Time per request:       {:.3} [ms] (mean)",
            each * self.options.concurrency as f64
        )?;
        writeln!(
            out,
            "Time per request:       {each:.3} [ms] (mean, across all concurrent requests)"
        )?;
        let kilobytes = |bytes: u64| bytes as f64 / 1024.0 / seconds;
        writeln!(
            out,
            "Transfer rate:          {:.2} [Kbytes/sec] received",
            kilobytes(gathered.received_bytes)
        )?;
        if sends {
            writeln!(
                out,
                "                        {:.2} kb/s sent",
                kilobytes(gathered.sent_bytes)
            )?;
            let both = gathered.sent_bytes + gathered.received_bytes;
            writeln!(out, "                        {:.2} kb/s total", kilobytes(both))?;
        }
        Ok(())
    }

    fn write_times(&self, out: &mut String) -> fmt::Result {
        let times = &self.measurements.times;
        if times.is_empty() {
            return Ok(());
        }
        let connect = AbTimeStats::from_times(times, |times| times.connect_us);
        let processing = AbTimeStats::from_times(times, AbRequestTimes::processing_us);
        let waiting = AbTimeStats::from_times(times, |times| times.wait_us);
        let total = AbTimeStats::from_times(times, |times| times.total_us);
        writeln!(out, "\nConnection Times (ms)")?;
        if self.options.omits_deviation {
            writeln!(out, "              min  avg  max")?;
        } else {
            writeln!(out, "              min  mean[+/-sd] median   max")?;
        }
        let rows = [
            ("Connect:", &connect),
            ("Processing:", &processing),
            ("Waiting:", &waiting),
            ("Total:", &total),
        ];
        for (name, row) in rows {
            if self.options.omits_deviation {
                writeln!(out, "{name:<11} {:>5} {:>4}{:>5}", row.min, row.mean, row.max)?;
            } else {
                writeln!(
                    out,
                    "{name:<11} {:>5} {:>4} {:>5.1} {:>6} {:>7}",
                    row.min, row.mean, row.deviation, row.median, row.max
                )?;
            }
        }
        if !self.options.omits_deviation {
            connect.write_skew_warning(out, "the initial connection time")?;
            processing.write_skew_warning(out, "the processing time")?;
            waiting.write_skew_warning(out, "the waiting time")?;
            total.write_skew_warning(out, "the total time")?;
        }
        if self.options.omits_percentiles || times.len() < 2 {
            return Ok(());
        }
        let mut sorted: Vec<u64> = times.iter().map(|times| times.total_us).collect();
        sorted.sort_unstable();
        writeln!(out, "\nPercentage of the requests served within a certain time (ms)")?;
        for percent in REPORTED_PERCENTILES {
            if percent == 100 {
                let longest = sorted.last().copied().unwrap_or(0);
                writeln!(out, " 100%  {:>5} (longest request)", round_to_ms(longest))?;
            } else {
                let index = sorted.len() as u64 * percent / 100;
                let time = usize::try_from(index).ok().and_then(|index| sorted.get(index));
                writeln!(out, "  {percent}%  {:>5}", round_to_ms(time.copied().unwrap_or(0)))?;
            }
        }
        Ok(())
    }
}

impl AbOptions {
    /// Returns the banner with the program's name and version.
    #[must_use]
    pub fn banner(&self) -> String {
        let version = env!("CARGO_PKG_VERSION");
        let attribution = "The text is that of ab by Adam Twiss and the Apache Software Foundation";
        match self.html_table {
            Some(_) => format!(
                "<p>\n This is ApacheBench, Version 2.3 <i>&lt;tympan lab {version}&gt;</i><br>\n {attribution}<br>\n</p>\n<p>\n"
            ),
            None => {
                format!("This is ApacheBench, Version 2.3 <tympan lab {version}>\n{attribution}\n")
            }
        }
    }

    /// Returns the line that is printed before a run, and the ending that is printed after it. For a run that reports
    /// progress, the ending is part of the progress messages.
    ///
    /// # Errors
    /// `Error::InvalidUrl`.
    pub fn opening_line(&self) -> Result<(String, &'static str)> {
        if self.html_table.is_some() {
            return Ok((
                String::new(),
                if self.progress_interval().is_some() { "" } else { "..done" },
            ));
        }
        let through = self.proxy.as_ref().map(|proxy| format!("[through {proxy}] "));
        let host = self.parse_url()?.host;
        let line = format!("Benchmarking {host} {}(be patient)", through.unwrap_or_default());
        Ok((line, if self.progress_interval().is_some() { "" } else { ".....done" }))
    }
}

impl AbRun {
    /// Returns true if the server name (SNI) was sent; it is never sent for an IP address.
    fn sends_server_name(&self) -> bool {
        let bare = self.url.host.trim_start_matches('[').trim_end_matches(']');
        !self.options.hides_server_name && bare.parse::<std::net::IpAddr>().is_err()
    }
}

impl fmt::Display for AbRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (line, end) = self.options.opening_line().map_err(|_| fmt::Error)?;
        write!(f, "{}\n{line}{end}\n\n\n{}", self.options.banner(), self.to_report())
    }
}

/// Rounds microseconds to whole milliseconds, as ab does.
pub(super) fn round_to_ms(us: u64) -> u64 {
    (us + 500) / 1000
}

struct AbTimeStats {
    min: u64,
    mean: u64,
    deviation: f64,
    median: u64,
    max: u64,
    exact_mean_and_median: (f64, f64),
}

impl AbTimeStats {
    fn from_times(all: &[AbRequestTimes], value: impl Fn(&AbRequestTimes) -> u64) -> Self {
        let mut values: Vec<u64> = all.iter().map(value).collect();
        values.sort_unstable();
        let count = values.len() as f64;
        let mean = values.iter().sum::<u64>() as f64 / count;
        let squares: f64 = values.iter().map(|&value| (value as f64 - mean).powi(2)).sum();
        let deviation = if values.len() > 1 { (squares / (count - 1.0)).sqrt() } else { 0.0 };
        let at = |index: usize| values.get(index).copied().unwrap_or(0);
        let half = values.len() / 2;
        // ab averages two values if the count is odd; programs that parse its text compare with what it prints.
        let median = if values.len() > 1 && values.len() % 2 == 1 {
            u64::midpoint(at(half), at(half + 1))
        } else {
            at(half)
        };
        Self {
            min: round_to_ms(at(0)),
            mean: round_to_ms(mean as u64),
            deviation: deviation / 1000.0,
            median: round_to_ms(median),
            max: round_to_ms(at(values.len().saturating_sub(1))),
            exact_mean_and_median: (mean / 1000.0, median as f64 / 1000.0),
        }
    }

    fn write_skew_warning(&self, out: &mut String, subject: &str) -> fmt::Result {
        let distance = (self.exact_mean_and_median.0 - self.exact_mean_and_median.1).abs();
        if distance > 2.0 * self.deviation {
            writeln!(
                out,
                "ERROR: The median and mean for {subject} are more than twice the standard\n       deviation apart. These results are NOT reliable."
            )
        } else if distance > self.deviation {
            writeln!(
                out,
                "WARNING: The median and mean for {subject} are not within a normal deviation\n        These results are probably not that reliable."
            )
        } else {
            Ok(())
        }
    }
}
