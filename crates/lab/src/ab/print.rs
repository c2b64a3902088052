//! ab's text block: same lines, same order, so that programs that read ab's text read this.

use std::fmt::{self, Write as _};

use super::send::{Ab, AbRun, Times};
use crate::Result;

/// The percentages of ab's table.
const PERCENTS: [u64; 9] = [50, 66, 75, 80, 90, 95, 98, 99, 100];

impl AbRun {
    pub(super) fn done(&self) -> u64 {
        self.gathered.times.len() as u64 + self.failed_without_times()
    }

    fn failed_without_times(&self) -> u64 {
        let gathered = &self.gathered;
        gathered.failed_connect + gathered.failed_receive + gathered.exceptions
    }

    /// Returns how many requests failed as ab counts.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.failed_without_times() + self.length_failures()
    }

    pub(super) fn length_failures(&self) -> u64 {
        let counts = self.options.strict && !self.options.any_length;
        if counts { self.gathered.other_lengths } else { 0 }
    }

    /// Reports whether nothing ever answered.
    #[must_use]
    pub fn is_unreachable(&self) -> bool {
        self.gathered.times.is_empty() && self.failed_without_times() > 0
    }

    /// Returns how many answers had another length than the first, where ab would have called them failed.
    #[must_use]
    pub fn varying_lengths(&self) -> u64 {
        if self.options.any_length { 0 } else { self.gathered.other_lengths }
    }

    /// Returns the file of `-e`: percentage served, milliseconds.
    #[must_use]
    pub fn csv(&self) -> String {
        let mut times: Vec<u64> = self.gathered.times.iter().map(|times| times.total).collect();
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

    /// Returns the file of `-g`: one line per request, sorted by its total time.
    #[must_use]
    pub fn gnuplot(&self) -> String {
        let mut all = self.gathered.times.clone();
        all.sort_by_key(|times| times.total);
        let mut out = "starttime\tseconds\tctime\tdtime\tttime\twait\n".to_owned();
        for times in &all {
            let seconds = times.start / 1_000_000;
            let date = i64::try_from(seconds)
                .ok()
                .and_then(|seconds| jiff::Timestamp::from_second(seconds).ok())
                .map(|at| at.strftime("%a %b %d %H:%M:%S %Y").to_string())
                .unwrap_or_default();
            writeln!(
                out,
                "{date}\t{seconds}\t{}\t{}\t{}\t{}",
                round(times.connect),
                round(times.processing()),
                round(times.total),
                round(times.wait)
            )
            .ok();
        }
        out
    }

    /// Returns what was measured: ab's text from `Server Software` on, or its table in HTML.
    #[must_use]
    pub fn figures(&self) -> String {
        let mut out = String::new();
        let written = match &self.options.markup {
            Some(markup) => self.write_markup(markup, &mut out),
            None => self
                .write_head(&mut out)
                .and_then(|()| self.write_counts(&mut out))
                .and_then(|()| self.write_times(&mut out)),
        };
        written.map_or_else(|_| String::new(), |()| out)
    }

    fn write_head(&self, out: &mut String) -> fmt::Result {
        let gathered = &self.gathered;
        writeln!(out, "Server Software:        {}", gathered.software)?;
        writeln!(out, "Server Hostname:        {}", self.url.host)?;
        writeln!(out, "Server Port:            {}", self.url.port)?;
        if let Some(agreed) = &self.agreed {
            writeln!(out, "SSL/TLS Protocol:       {}", agreed.protocol)?;
            if let Some(key) = agreed.temporary_key {
                writeln!(out, "Server Temp Key:        {key}")?;
            }
            if self.tells_name() {
                writeln!(out, "TLS Server Name:        {}", self.url.host)?;
            }
        }
        writeln!(out)?;
        writeln!(out, "Document Path:          {}", self.url.target)?;
        if self.options.any_length {
            writeln!(out, "Document Length:        Variable\n")?;
        } else {
            writeln!(out, "Document Length:        {} bytes\n", gathered.length.unwrap_or(0))?;
        }
        writeln!(out, "Concurrency Level:      {}", self.options.concurrency)
    }

    fn write_counts(&self, out: &mut String) -> fmt::Result {
        let gathered = &self.gathered;
        let seconds = self.results.elapsed.as_secs_f64();
        writeln!(out, "Time taken for tests:   {seconds:.3} seconds")?;
        writeln!(out, "Complete requests:      {}", self.done())?;
        writeln!(out, "Failed requests:        {}", self.failed())?;
        if self.failed() > 0 {
            writeln!(
                out,
                "   (Connect: {}, Receive: {}, Length: {}, Exceptions: {})",
                gathered.failed_connect,
                gathered.failed_receive,
                self.length_failures(),
                gathered.exceptions
            )?;
        }
        if gathered.non_2xx > 0 {
            writeln!(out, "Non-2xx responses:      {}", gathered.non_2xx)?;
        }
        if self.options.keep_alive {
            writeln!(out, "Keep-Alive requests:    {}", gathered.kept_alive)?;
        }
        writeln!(out, "Total transferred:      {} bytes", gathered.received)?;
        let sends = !self.options.body.is_empty();
        if sends {
            writeln!(out, "Total body sent:        {}", gathered.sent)?;
        }
        writeln!(out, "HTML transferred:       {} bytes", gathered.body)?;
        if self.done() == 0 || seconds <= 0.0 {
            return Ok(());
        }
        let each = seconds * 1000.0 / self.done() as f64;
        writeln!(
            out,
            "Requests per second:    {:.2} [#/sec] (mean)",
            self.done() as f64 / seconds
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
            kilobytes(gathered.received)
        )?;
        if sends {
            writeln!(out, "                        {:.2} kb/s sent", kilobytes(gathered.sent))?;
            let both = gathered.sent + gathered.received;
            writeln!(out, "                        {:.2} kb/s total", kilobytes(both))?;
        }
        Ok(())
    }

    fn write_times(&self, out: &mut String) -> fmt::Result {
        let times = &self.gathered.times;
        if times.is_empty() {
            return Ok(());
        }
        let connect = Row::of(times, |times| times.connect);
        let processing = Row::of(times, Times::processing);
        let waiting = Row::of(times, |times| times.wait);
        let total = Row::of(times, |times| times.total);
        writeln!(out, "\nConnection Times (ms)")?;
        if self.options.without_deviation {
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
            if self.options.without_deviation {
                writeln!(out, "{name:<11} {:>5} {:>4}{:>5}", row.min, row.mean, row.max)?;
            } else {
                writeln!(
                    out,
                    "{name:<11} {:>5} {:>4} {:>5.1} {:>6} {:>7}",
                    row.min, row.mean, row.deviation, row.median, row.max
                )?;
            }
        }
        if !self.options.without_deviation {
            connect.doubt(out, "the initial connection time")?;
            processing.doubt(out, "the processing time")?;
            waiting.doubt(out, "the waiting time")?;
            total.doubt(out, "the total time")?;
        }
        if self.options.without_percentiles || times.len() < 2 {
            return Ok(());
        }
        let mut sorted: Vec<u64> = times.iter().map(|times| times.total).collect();
        sorted.sort_unstable();
        writeln!(out, "\nPercentage of the requests served within a certain time (ms)")?;
        for percent in PERCENTS {
            if percent == 100 {
                let longest = sorted.last().copied().unwrap_or(0);
                writeln!(out, " 100%  {:>5} (longest request)", round(longest))?;
            } else {
                let place = sorted.len() as u64 * percent / 100;
                let time = usize::try_from(place).ok().and_then(|place| sorted.get(place));
                writeln!(out, "  {percent}%  {:>5}", round(time.copied().unwrap_or(0)))?;
            }
        }
        Ok(())
    }
}

impl Ab {
    /// Returns who speaks.
    #[must_use]
    pub fn banner(&self) -> String {
        let version = env!("CARGO_PKG_VERSION");
        let whose = "The text is that of ab by Adam Twiss and the Apache Software Foundation";
        match self.markup {
            Some(_) => format!(
                "<p>\n This is ApacheBench, Version 2.3 <i>&lt;tympan lab {version}&gt;</i><br>\n {whose}<br>\n</p>\n<p>\n"
            ),
            None => format!("This is ApacheBench, Version 2.3 <tympan lab {version}>\n{whose}\n"),
        }
    }

    /// Returns the line before a run, and the end that it has after one. A run that tells how far it has come has the end of
    /// its line among what it tells.
    ///
    /// # Errors
    /// [`Error::Url`](crate::Error::Url).
    pub fn opening(&self) -> Result<(String, &'static str)> {
        if self.markup.is_some() {
            return Ok((String::new(), if self.heartbeat().is_some() { "" } else { "..done" }));
        }
        let through = self.proxy.as_ref().map(|proxy| format!("[through {proxy}] "));
        let host = self.address()?.host;
        let line = format!("Benchmarking {host} {}(be patient)", through.unwrap_or_default());
        Ok((line, if self.heartbeat().is_some() { "" } else { ".....done" }))
    }
}

impl AbRun {
    /// Reports whether the server was told which of its names was meant; there is none in an address of numbers.
    fn tells_name(&self) -> bool {
        let bare = self.url.host.trim_start_matches('[').trim_end_matches(']');
        !self.options.hides_name && bare.parse::<std::net::IpAddr>().is_err()
    }
}

impl fmt::Display for AbRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (line, end) = self.options.opening().map_err(|_| fmt::Error)?;
        write!(f, "{}\n{line}{end}\n\n\n{}", self.options.banner(), self.figures())
    }
}

/// ab rounds microseconds to whole milliseconds.
pub(super) fn round(us: u64) -> u64 {
    (us + 500) / 1000
}

struct Row {
    min: u64,
    mean: u64,
    deviation: f64,
    median: u64,
    max: u64,
    exact: (f64, f64),
}

impl Row {
    fn of(all: &[Times], value: impl Fn(&Times) -> u64) -> Self {
        let mut values: Vec<u64> = all.iter().map(value).collect();
        values.sort_unstable();
        let count = values.len() as f64;
        let mean = values.iter().sum::<u64>() as f64 / count;
        let squares: f64 = values.iter().map(|&value| (value as f64 - mean).powi(2)).sum();
        let deviation = if values.len() > 1 { (squares / (count - 1.0)).sqrt() } else { 0.0 };
        let at = |place: usize| values.get(place).copied().unwrap_or(0);
        let half = values.len() / 2;
        // ab takes two values where the count is odd; readers of its text compare with what it prints.
        let median = if values.len() > 1 && values.len() % 2 == 1 {
            u64::midpoint(at(half), at(half + 1))
        } else {
            at(half)
        };
        Self {
            min: round(at(0)),
            mean: round(mean as u64),
            deviation: deviation / 1000.0,
            median: round(median),
            max: round(at(values.len().saturating_sub(1))),
            exact: (mean / 1000.0, median as f64 / 1000.0),
        }
    }

    fn doubt(&self, out: &mut String, what: &str) -> fmt::Result {
        let distance = (self.exact.0 - self.exact.1).abs();
        if distance > 2.0 * self.deviation {
            writeln!(
                out,
                "ERROR: The median and mean for {what} are more than twice the standard\n       deviation apart. These results are NOT reliable."
            )
        } else if distance > self.deviation {
            writeln!(
                out,
                "WARNING: The median and mean for {what} are not within a normal deviation\n        These results are probably not that reliable."
            )
        } else {
            Ok(())
        }
    }
}
