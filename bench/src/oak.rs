//! The peer Apache Oak: its segment store in a process of its own, asked for one unit of work at a time.
//!
//! The peers' own script fetches Oak's jars; `peers/OakUnits.java` does the units.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use crate::Outcome;
use crate::process::{is_installed, peer_script};

/// The release that the script fetches.
const RELEASE: &str = "1.70.0";
/// Downloading takes minutes the first time.
const FETCH_LIMIT: Duration = Duration::from_secs(900);

/// A running Oak; dropping it ends it.
#[derive(Debug)]
pub(crate) struct Oak {
    child: Child,
    questions: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Oak {
    /// Starts Oak on an empty folder and fills it with pages. Downloads stay in `work`.
    ///
    /// # Errors
    /// If Java or the script is missing, the jars cannot be fetched, or Oak does not start.
    pub(crate) fn start(work: &Path, folder: &Path, pages: usize) -> Outcome<Self> {
        for tool in ["java", "javac", "mvn", "timeout"] {
            if !is_installed(tool) {
                return Err(format!("Oak needs `{tool}`, which is not installed").into());
            }
        }
        std::fs::create_dir_all(work)?;
        let jars = work.join(format!("lib-{RELEASE}"));
        if !jars.is_dir() {
            fetch(work)?;
        }
        let classes = work.join("units");
        std::fs::create_dir_all(&classes)?;
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers/OakUnits.java");
        let jars = format!("{}/*", jars.display());
        let compiled = Command::new("javac")
            .args(["-nowarn", "-cp", &jars, "-d"])
            .arg(&classes)
            .arg(source)
            .status()?;
        if !compiled.success() {
            return Err("`peers/OakUnits.java` does not compile".into());
        }
        let path = format!("{jars}:{}", classes.display());
        let mut child = Command::new("java")
            .args(["-Xmx2g", "-cp", &path, "OakUnits"])
            .arg(folder)
            .arg(pages.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(std::fs::File::create(work.join("errors.log"))?)
            .spawn()?;
        let questions = child.stdin.take();
        let answers = BufReader::new(child.stdout.take().ok_or("Oak has no output")?);
        let mut oak = Self { child, questions, answers };
        match oak.answer()?.as_str() {
            "ready" => Ok(oak),
            other => Err(format!("Oak says `{other}`").into()),
        }
    }

    /// Lets Oak do a unit for some time; gives operations for each second.
    ///
    /// # Errors
    /// If Oak has ended.
    pub(crate) fn rate(&mut self, unit: &str, time: Duration) -> Outcome<f64> {
        let questions = self.questions.as_mut().ok_or("Oak has ended")?;
        writeln!(questions, "{unit} {}", time.as_millis())?;
        let answer = self.answer()?;
        let (count, seconds) =
            answer.split_once(' ').ok_or_else(|| format!("Oak answers `{answer}`"))?;
        Ok(count.parse::<f64>()? / seconds.parse::<f64>()?)
    }

    fn answer(&mut self) -> Outcome<String> {
        let mut line = String::new();
        if self.answers.read_line(&mut line)? == 0 {
            return Err("Oak has ended; see `errors.log` in its work folder".into());
        }
        Ok(line.trim().to_owned())
    }
}

impl Drop for Oak {
    fn drop(&mut self) {
        // Its input ends, and with it the process; one that hangs is killed.
        self.questions.take();
        for _ in 0..100 {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Lets the peers' script download Oak, by the shortest run that it knows.
fn fetch(work: &Path) -> Outcome<()> {
    let script = peer_script("oak.sh")?;
    eprintln!("fetching Apache Oak, which takes minutes");
    let log = std::fs::File::create(work.join("fetch.log"))?;
    let status = Command::new("timeout")
        .arg(FETCH_LIMIT.as_secs().to_string())
        .arg("bash")
        .arg(script)
        .arg("plain")
        .env("WORK", work)
        .env("OAK", RELEASE)
        .envs([("PAGES", "10"), ("SECS", "0"), ("WARM", "0")])
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .status()?;
    if status.success() {
        Ok(())
    } else {
        let log = work.join("fetch.log");
        Err(format!(
            "`oak.sh plain` failed, perhaps for want of a network; see `{}`",
            log.display()
        )
        .into())
    }
}
