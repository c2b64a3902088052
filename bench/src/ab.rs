//! Apache's `ab`, the tool of the tuning diary: so many requests, so many at a time, each on a connection of its own.

use std::net::SocketAddr;
use std::process::Command;

use crate::Outcome;
use crate::process::is_installed;

/// What `ab` prints.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Run {
    /// Requests in a second.
    pub(crate) per_second: f64,
    /// What half of the answers took at most, in milliseconds.
    pub(crate) p50: f64,
    /// 98 of a hundred, as the diary has it.
    pub(crate) p98: f64,
    /// 99 of a hundred.
    pub(crate) p99: f64,
    /// The longest.
    pub(crate) max: f64,
    /// The bytes of a body, on average.
    pub(crate) bytes: u64,
    /// Requests without an answer of status 200.
    pub(crate) failed: u64,
}

/// Asks for a path.
///
/// # Errors
/// If `ab` is not installed, or gives up.
pub(crate) fn run(
    address: SocketAddr,
    path: &str,
    (at_once, requests): (u32, u32),
) -> Outcome<Run> {
    if !is_installed("ab") {
        return Err("`ab` is not installed (apache2-utils)".into());
    }
    let mut command = Command::new("ab");
    // Answers differ in length where they hold numbers: that is no failure.
    command.args(["-q", "-l", "-s", "60"]);
    command.args(["-c", &at_once.to_string(), "-n", &requests.to_string()]);
    command.arg(format!("http://{address}{path}"));
    let output = command.output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        return Err(format!("`ab -c {at_once} -n {requests}` gave up: {}", errors.trim()).into());
    }
    read(&text).ok_or_else(|| format!("`ab` printed something else: {text}").into())
}

fn read(text: &str) -> Option<Run> {
    let after = |begin: &str| {
        let line = text.lines().find_map(|line| line.trim_start().strip_prefix(begin))?;
        line.split_whitespace().next()?.parse::<f64>().ok()
    };
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "counts, which `ab` writes as whole numbers"
    )]
    let count = |begin: &str| after(begin).unwrap_or(0.0) as u64;
    Some(Run {
        per_second: after("Requests per second:")?,
        p50: after("50%")?,
        p98: after("98%")?,
        p99: after("99%")?,
        max: after("100%")?,
        // `Document Length` is a word where lengths may differ.
        bytes: count("HTML transferred:").checked_div(count("Complete requests:")).unwrap_or(0),
        failed: count("Failed requests:") + count("Non-2xx responses:"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_figures_are_read() {
        let text = "Document Length:        Variable\nComplete requests:      10\nHTML transferred:       59863 bytes\n\
            Failed requests:        1\nNon-2xx responses:      2\n\
            Requests per second:    10.48 [#/sec] (mean)\n\n  50%    676\n  66%    846\n  98%   3008\n  99%   8735\n\
            \u{20}100%  36504 (longest request)\n";
        let run = read(text).unwrap();
        assert_eq!((run.per_second, run.p50, run.p98, run.max), (10.48, 676.0, 3008.0, 36504.0));
        assert_eq!((run.bytes, run.failed), (5986, 3));
        assert_eq!(read(""), None);
    }
}
