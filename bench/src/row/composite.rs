//! B1: source 003's experiment, downloads of images with and without a composite store.
//!
//! Production gets a folder `prod` of pictures of about 100 KB, whose renditions its author makes. A clone of it gets a
//! folder `stg` of as many others, and a package of that goes back to production. Then both have the same content; only the
//! clone reads `prod` out of production's store, through the composite. Each run asks one of them for a random picture of a
//! random folder, so many times, without a pause; runs alternate, and both sides of a pair ask for the same pictures. Before
//! each, every picture is asked for once, which does not count: what is compared are servers, not what a disk has to say.
//!
//! The table is in the form of the source, with the 99th percentile beside it, and is kept in `target/bench/B1.md`.

use std::fmt::Write;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use turbojpeg::{Compressor, Image, PixelFormat, Subsamp};

use super::changes::{ask, login};
use super::upload::{finished, store};
use crate::Outcome;
use crate::alternate::alternate;
use crate::context::{Context, LOAD_CORE};
use crate::cpu;
use crate::figure::{Figure, Goal};
use crate::http::Connection;
use crate::process::{is_installed, pinned};
use crate::random::Random;
use crate::site::Server;

const ROW: &str = "B1";
const CONNECTIONS: usize = 4;
/// The pictures' size in pixels, and the noise that makes files of about 100 KB of them.
const SIZE: (usize, usize) = (640, 480);
const NOISE: i32 = 29;
const QUALITY: i32 = 80;
/// How long the pictures of a folder may take to get their renditions.
const LIMIT: Duration = Duration::from_secs(3600);
/// How long a run may take; `wrk` needs some end.
const LONGEST: Duration = Duration::from_secs(900);
const FOLDERS: [&str; 2] = ["prod", "stg"];

/// How much is measured.
#[derive(Clone, Copy, Debug)]
struct Extent {
    /// Pictures in each folder.
    pictures: usize,
    /// Downloads in a run.
    downloads: usize,
    /// Runs of each side.
    runs: usize,
}

impl Extent {
    /// Returns the experiment's, or less; `B1_PICTURES`, `B1_DOWNLOADS` and `B1_RUNS` change each.
    fn of(context: &Context) -> Self {
        let [pictures, downloads, runs] =
            if context.is_quick { [500, 20_000, 3] } else { [10_000, 250_000, 20] };
        let asked = |name: &str, usual: usize| {
            std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(usual).max(1)
        };
        Self {
            pictures: asked("B1_PICTURES", pictures),
            downloads: asked("B1_DOWNLOADS", downloads),
            runs: asked("B1_RUNS", runs),
        }
    }
}

/// What a run gives.
#[derive(Clone, Copy, Debug, Default)]
struct Run {
    average_ms: f64,
    least_ms: f64,
    most_ms: f64,
    p99_ms: f64,
    per_second: f64,
    kib_per_second: f64,
    /// Of the server, for each download.
    cpu_us: f64,
}

/// Measures the row.
pub(super) fn measure(context: &mut Context) -> Outcome<Vec<Figure>> {
    if !is_installed("wrk") {
        let reason = "it needs `wrk`, which is not installed";
        return Ok(vec![Figure::missing(ROW, "downloads with a composite", reason)]);
    }
    let extent = Extent::of(context);
    let (folder, systems) = match std::env::var_os("B1_SYSTEMS").map(PathBuf::from) {
        Some(folder) => {
            let systems = Systems::take(context.program()?, &folder, extent.pictures)?;
            (folder, systems)
        }
        None => {
            let folder = context.new_folder("composite-")?;
            let systems = Systems::make(context.program()?, &folder, extent.pictures)?;
            (folder, systems)
        }
    };
    let [without, with] = [systems.serve(PRODUCTION)?, systems.serve(STAGING)?];
    compare_content(&without, &with, extent.pictures)?;

    let (mut first, mut second) = (0, 0);
    // Both sides of a pair ask for the same; the warm-up of each is the pair before the first.
    let [without, with] = alternate(
        extent.runs,
        [
            &mut || {
                first += 1;
                download(&without, extent, first, &folder)
            },
            &mut || {
                second += 1;
                download(&with, extent, second, &folder)
            },
        ],
    )?;
    let table = table(&without, &with);
    eprint!("{table}");
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/bench");
    std::fs::create_dir_all(&kept)?;
    std::fs::write(kept.join("B1.md"), &table)?;
    Ok(figures(extent, &systems.blobs, (&without, &with)))
}

/// Compares the means without the extreme runs, as the source does.
fn figures(extent: Extent, blobs: &str, (without, with): (&[Run], &[Run])) -> Vec<Figure> {
    let note = format!(
        "{} pictures in each of two folders, {blobs}; {} downloads in each run; means without the least and the greatest run",
        extent.pictures, extent.downloads
    );
    let figure = |what: &str, value: fn(&Run) -> f64| {
        let [before, after] =
            [without, with].map(|runs| mean_without_extremes(&values(runs, value)));
        Figure::value(ROW, what, after / before, "x")
            .against("the same without a composite")
            .pairs(without.len())
            .note(format!("{after:.2} with, {before:.2} without; {note}"))
    };
    vec![
        figure("requests/s", |run| run.per_second).goal(Goal::AtLeast(0.99)),
        figure("KB/s", |run| run.kib_per_second).goal(Goal::AtLeast(0.99)),
        figure("99th percentile of the response times", |run| run.p99_ms).goal(Goal::AtMost(1.05)),
        figure("CPU of the server for each download", |run| run.cpu_us),
    ]
}

const PRODUCTION: &str = "production";
const STAGING: &str = "staging";

/// The two homes.
struct Systems {
    program: PathBuf,
    folder: PathBuf,
    /// How many blobs each has, in words.
    blobs: String,
}

impl Systems {
    /// Uses the systems that a folder keeps, or makes them there to be kept: the clone knows production by its path.
    fn take(program: &Path, folder: &Path, pictures: usize) -> Outcome<Self> {
        if !folder.join(PRODUCTION).exists() {
            std::fs::create_dir_all(folder)?;
            return Self::make(program, folder, pictures);
        }
        let mut systems =
            Self { program: program.to_owned(), folder: folder.to_owned(), blobs: String::new() };
        systems.count()?;
        Ok(systems)
    }

    /// Does what the source tells: pictures for production, a clone, pictures for the clone, and those for production.
    fn make(program: &Path, folder: &Path, pictures: usize) -> Outcome<Self> {
        let mut systems =
            Self { program: program.to_owned(), folder: folder.to_owned(), blobs: String::new() };
        systems.fill(PRODUCTION, FOLDERS[0], 0..pictures)?;
        let homes = [PRODUCTION, STAGING].map(|name| folder.join(name).display().to_string());
        let [production, staging] = [&*homes[0], &*homes[1]];
        systems.run(&["repo", "clone", "--from", production, "--to", staging])?;
        systems.fill(STAGING, FOLDERS[1], pictures..2 * pictures)?;
        let [filter, package] =
            ["filter.xml", "stg.zip"].map(|name| folder.join(name).display().to_string());
        std::fs::write(
            &filter,
            format!(
                "<workspaceFilter version=\"1.0\"><filter root=\"/content/dam/{}\"/></workspaceFilter>",
                FOLDERS[1]
            ),
        )?;
        systems.run(&["package", "build", "-f", &filter, "-o", &package, "--home", staging])?;
        systems.run(&["package", "install", &package, "--home", production])?;
        std::fs::remove_file(&package)?;
        systems.count()?;
        Ok(systems)
    }

    /// Asks both for the number of their blobs.
    fn count(&mut self) -> Outcome<()> {
        let stats = |home: &str| {
            let home = self.folder.join(home).display().to_string();
            let text = self.run(&["blobs", "stats", "--home", &home])?;
            Outcome::Ok(text.lines().next().unwrap_or_default().to_owned())
        };
        self.blobs = format!("production: {}; staging: {}", stats(PRODUCTION)?, stats(STAGING)?);
        Ok(())
    }

    /// Runs a command and returns what it prints.
    fn run(&self, arguments: &[&str]) -> Outcome<String> {
        let output = Command::new(&self.program).args(arguments).stdin(Stdio::null()).output()?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let errors = String::from_utf8_lossy(&output.stderr);
        Err(format!("`tympan {}`: {}", arguments.join(" "), errors.trim()).into())
    }

    /// Starts a role on a home, on every core.
    fn start(&self, role: &str, home: &str) -> Outcome<Server> {
        let home = self.folder.join(home).display().to_string();
        let arguments = [role, "--home", &home, "--listen", "127.0.0.1:0"];
        Server::start_unpinned(&self.program, &arguments, &self.folder)
    }

    /// Uploads pictures to a folder of a home's author, and waits for their renditions.
    fn fill(&self, home: &str, folder: &str, seeds: std::ops::Range<usize>) -> Outcome<()> {
        let author = self.start("author", home)?;
        // A clone has the users of production.
        let login = login(&self.folder.join(PRODUCTION))?;
        let folder = format!("/content/dam/{folder}");
        for path in ["/content", "/content/dam", &folder] {
            if ask(author.address, "GET", &format!("{path}.json"), &login, "").is_err() {
                let form = "jcr:primaryType=sling:Folder";
                ask(author.address, "POST", path, &login, form)?;
            }
        }
        let count = seeds.len();
        for (number, seed) in seeds.enumerate() {
            let name = format!("p{number}.jpg");
            store(author.address, &login, (&folder, &name), &picture(seed)?)?;
        }
        let begun = Instant::now();
        while finished(author.address, &login)? < count {
            if begun.elapsed() > LIMIT {
                return Err(format!("{count} pictures have no renditions in time").into());
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(())
    }

    /// Starts a publisher on a home, on the servers' core.
    fn serve(&self, home: &str) -> Outcome<Server> {
        let home = self.folder.join(home).display().to_string();
        let arguments = ["publish", "--home", &home, "--listen", "127.0.0.1:0"];
        Server::start(&self.program, &arguments, &self.folder)
    }
}

/// Draws a picture: a gradient of its own under noise of its own.
fn picture(seed: usize) -> Outcome<Vec<u8>> {
    let mut random = Random::new(seed as u64);
    let (width, height) = SIZE;
    let slopes: Vec<[i32; 2]> =
        (0..3).map(|_| [0, 1].map(|_| random.below(160) as i32 - 80)).collect();
    let mut pixels = Vec::with_capacity(width * height * 3);
    let mut noise = [0_u8; 8];
    for row in 0..height {
        for column in 0..width {
            if column % 8 == 0 {
                noise = random.next().to_le_bytes();
            }
            let grain = noise.get(column % 8).copied().map_or(0, i32::from) - 128;
            for [across, down] in &slopes {
                let shade =
                    across * column as i32 / width as i32 + down * row as i32 / height as i32;
                let value = 128 + shade + grain * NOISE / 128;
                pixels.push(u8::try_from(value.clamp(0, 255)).unwrap_or_default());
            }
        }
    }
    let image = Image {
        pixels: pixels.as_slice(),
        width,
        pitch: width * 3,
        height,
        format: PixelFormat::RGB,
    };
    let mut compressor = Compressor::new()?;
    compressor.set_quality(QUALITY)?;
    compressor.set_subsamp(Subsamp::Sub2x2)?;
    Ok(compressor.compress_to_vec(image)?)
}

/// Refuses to measure systems that do not show the same.
fn compare_content(one: &Server, other: &Server, pictures: usize) -> Outcome<()> {
    let open = |server: &Server| Connection::open(server.address, Duration::from_secs(20));
    let mut connections = [open(one)?, open(other)?];
    for folder in FOLDERS {
        for number in (0..pictures).step_by((pictures / 100).max(1)) {
            let path = format!("/content/dam/{folder}/p{number}.jpg");
            let [first, second] = &mut connections;
            let (first, second) = (first.get(&path)?, second.get(&path)?);
            let is_picture = first.status == 200 && first.body.starts_with(&[0xff, 0xd8]);
            if !is_picture || first.status != second.status || first.body != second.body {
                return Err(format!(
                    "{path}: production answers {} with {} bytes, staging {} with {} bytes",
                    first.status,
                    first.body.len(),
                    second.status,
                    second.body.len()
                )
                .into());
            }
        }
    }
    Ok(())
}

/// Asks for random pictures. The first request is made when `wrk` tries the script, before it connects.
const SCRIPT: &str = r#"local asked = 0
math.randomseed(SEED)
function request()
  asked = asked + 1
  if asked == 2 then io.write("BEGIN\n") io.flush() end
  if asked == DOWNLOADS + CONNECTIONS + 1 then
    io.write("END\n") io.flush()
    wrk.thread:stop()
  end
  local folder = math.random(2) == 1 and "prod" or "stg"
  return wrk.format("GET", string.format("/content/dam/%s/p%d.jpg", folder, math.random(PICTURES) - 1))
end
done = function(summary, latency)
  local errors = summary.errors
  io.write(string.format("RESULT %d %d %.4f %.4f %.4f %.4f %d\n", summary.requests, summary.bytes,
    latency.mean / 1e3, latency.min / 1e3, latency.max / 1e3, latency:percentile(99) / 1e3,
    errors.connect + errors.read + errors.write + errors.status + errors.timeout))
end
"#;

/// Asks for every picture once.
///
/// Some machines page out what nobody has read for minutes. Whether a run would find the pictures in memory or on the
/// disk is then a matter of how long the runs before it took, and its 99th percentile that of a few slow reads.
fn read_all(server: &Server, pictures: usize) -> Outcome<()> {
    let mut connection = Connection::open(server.address, Duration::from_secs(60))?;
    for folder in FOLDERS {
        for number in 0..pictures {
            connection.get(&format!("/content/dam/{folder}/p{number}.jpg"))?;
        }
    }
    Ok(())
}

/// Runs `wrk` until it has asked for so many pictures, all of which are in memory when it begins.
fn download(server: &Server, extent: Extent, seed: u64, folder: &Path) -> Outcome<Run> {
    read_all(server, extent.pictures)?;
    let script = folder.join("downloads.lua");
    let values = [
        ("SEED", seed.to_string()),
        ("DOWNLOADS", extent.downloads.to_string()),
        ("CONNECTIONS", CONNECTIONS.to_string()),
        ("PICTURES", extent.pictures.to_string()),
    ];
    let fill = |text: String, (name, value): &(&str, String)| text.replace(name, value);
    std::fs::write(&script, values.iter().fold(SCRIPT.to_owned(), fill))?;
    let before = cpu::of_tree(server.pid());
    let mut command = pinned(LOAD_CORE, "wrk");
    command.arg("-t1").arg(format!("-c{CONNECTIONS}")).arg(format!("-d{}s", LONGEST.as_secs()));
    command.arg("-s").arg(&script).arg(format!("http://{}/", server.address));
    let mut wrk = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    let lines = wrk.stdout.take().map(BufReader::new);
    let (mut begun, mut elapsed, mut result) = (None, None, None);
    for line in lines.into_iter().flat_map(BufRead::lines) {
        let line = line?;
        match &*line {
            "BEGIN" => begun = Some(Instant::now()),
            "END" => {
                elapsed = begun.map(|begun| begun.elapsed());
                // Its threads have stopped, and it sleeps until the end of the time that it was given.
                if let Some(pid) = i32::try_from(wrk.id()).ok().and_then(Pid::from_raw) {
                    kill_process(pid, Signal::INT)?;
                }
            }
            line => result = line.strip_prefix("RESULT ").map(str::to_owned).or(result),
        }
    }
    wrk.wait()?;
    let spent = cpu::of_tree(server.pid()) - before;
    let elapsed = elapsed.ok_or("`wrk` did not get all pictures in time")?;
    read_run(&result.ok_or("`wrk` printed no result")?, elapsed, spent)
}

/// Reads what the script prints at its end.
fn read_run(result: &str, elapsed: Duration, spent: f64) -> Outcome<Run> {
    let numbers: Vec<f64> = result.split(' ').map(str::parse).collect::<Result<_, _>>()?;
    let [requests, bytes, average_ms, least_ms, most_ms, p99_ms, errors] = numbers[..] else {
        return Err(format!("`wrk` printed `{result}`").into());
    };
    if errors > 0.0 || requests < 1.0 {
        return Err(format!("{errors} of {requests} downloads failed").into());
    }
    let seconds = elapsed.as_secs_f64();
    Ok(Run {
        average_ms,
        least_ms,
        most_ms,
        p99_ms,
        per_second: requests / seconds,
        kib_per_second: bytes / 1024.0 / seconds,
        cpu_us: spent * 1e6 / requests,
    })
}

fn values(runs: &[Run], value: fn(&Run) -> f64) -> Vec<f64> {
    runs.iter().map(value).collect()
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// Returns the mean without one of the least and one of the greatest; that of all if nothing would be left.
fn mean_without_extremes(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.get(1..sorted.len().saturating_sub(1)) {
        Some(kept) if !kept.is_empty() => mean(kept),
        _ => mean(values),
    }
}

/// Lays the runs out as the source does.
fn table(without: &[Run], with: &[Run]) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    for (title, runs) in [
        ("Staging system (with the composite):", with),
        ("Production system (without the composite):", without),
    ] {
        writeln!(
            text,
            "\n{title}\n\n| Run | Average response time (ms) | Min response time (ms) | Max response time (ms) | \
             p99 (ms) | Requests/s | KB/s | Server CPU (us) |\n|---|---|---|---|---|---|---|---|"
        )
        .ok();
        for (number, run) in runs.iter().enumerate() {
            writeln!(
                text,
                "| {} | {:.3} | {:.3} | {:.2} | {:.3} | {:.1} | {:.2} | {:.1} |",
                number + 1,
                run.average_ms,
                run.least_ms,
                run.most_ms,
                run.p99_ms,
                run.per_second,
                run.kib_per_second,
                run.cpu_us
            )
            .ok();
        }
    }
    text.push_str("\n| | Without | With | Difference | Change |\n|---|---|---|---|---|\n");
    type Metric = (&'static str, fn(&Run) -> f64);
    let metrics: [Metric; 6] = [
        ("Average response time (ms)", |run| run.average_ms),
        ("Min response time (ms)", |run| run.least_ms),
        ("Max response time (ms)", |run| run.most_ms),
        ("p99 (ms)", |run| run.p99_ms),
        ("Requests/s", |run| run.per_second),
        ("KB/s", |run| run.kib_per_second),
    ];
    type Summary = (&'static str, fn(&[f64]) -> f64);
    let summaries: [Summary; 4] = [
        ("min value", |values| values.iter().copied().fold(f64::INFINITY, f64::min)),
        ("max value", |values| values.iter().copied().fold(0.0, f64::max)),
        ("average value", mean_without_extremes),
        ("average with the extreme runs", mean),
    ];
    for (metric, value) in metrics {
        for (summary, of) in summaries {
            let [before, after] = [without, with].map(|runs| of(&values(runs, value)));
            let change = if before > 0.0 { (after - before) / before * 100.0 } else { 0.0 };
            writeln!(
                text,
                "| {metric}, {summary} | {before:.2} | {after:.2} | {:+.2} | {change:+.1} % |",
                after - before
            )
            .ok();
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pictures_have_about_100_kb_and_are_all_different() {
        let pictures: Vec<Vec<u8>> = (0..4).map(|seed| picture(seed).unwrap()).collect();
        for one in &pictures {
            assert!((85_000..120_000).contains(&one.len()), "{} bytes", one.len());
            assert_eq!(pictures.iter().filter(|other| *other == one).count(), 1);
        }
        assert_eq!(pictures[2], picture(2).unwrap());
    }

    #[test]
    fn a_run_is_read_from_what_the_script_prints() {
        let run = read_run("1000 102400 1.5 0.5 9 4 0", Duration::from_secs(2), 0.1).unwrap();
        assert_eq!((run.per_second, run.kib_per_second, run.p99_ms), (500.0, 50.0, 4.0));
        assert!((run.cpu_us - 100.0).abs() < 1e-9);
        assert!(read_run("1000 102400 1.5 0.5 9 4 1", Duration::from_secs(2), 0.1).is_err());
        assert!(read_run("1000", Duration::from_secs(2), 0.1).is_err());
    }

    /// Requests/s of the source's production system; it prints 274.89.
    #[test]
    fn the_extreme_runs_are_left_out() {
        let rates = [
            233.2, 254.4, 260.7, 234.0, 284.4, 284.8, 287.8, 268.3, 297.7, 293.3, 276.5, 197.6,
            254.5, 264.5, 303.3, 298.7, 278.7, 275.2, 298.0, 303.9,
        ];
        assert_eq!(format!("{:.2}", mean_without_extremes(&rates)), "274.89");
        assert_eq!(mean_without_extremes(&[1.0, 2.0]), 1.5);
        let run = |per_second| Run { per_second, ..Run::default() };
        let text =
            table(&[run(100.0), run(200.0), run(110.0)], &[run(121.0), run(50.0), run(300.0)]);
        assert!(
            text.contains("| Requests/s, average value | 110.00 | 121.00 | +11.00 | +10.0 % |"),
            "{text}"
        );
        assert!(
            text.contains("| Requests/s, min value | 100.00 | 50.00 | -50.00 | -50.0 % |"),
            "{text}"
        );
    }
}
