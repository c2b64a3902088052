//! A3: editors who save pages while assets of 12 MB arrive and are processed.
//!
//! Ten editors save a component each in a fixed rhythm, whose clock does not wait for late answers. Times without and with
//! uploads alternate. The goal is for a peak of 500 assets in two hours: four times the rate of 500 in a working day. A
//! second figure has an asset every second, so that one is always being processed; the full row uploads all 500 so.
//!
//! A time at the peak has a part of the 500 assets; a time without uploads never takes more than a minute. `PEAK_ASSETS=500`
//! uploads them all at the peak's rate in twenty turns, with twenty seconds without uploads before each: two hours and ten
//! minutes, without the second figure. `PEAK_SECONDS=11.5` has one arrive so often instead of every 14.4 s: harder than the
//! peak, for those who have less time.
//!
//! The table of both is printed beside the figures: saves, assets, median, 95 of 100, 99 of 100 and the longest.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::changes::ask;
use super::open::copy;
use super::upload::{Author, photograph, upload};
use crate::Outcome;
use crate::context::Context;
use crate::figure::{Figure, Goal};
use crate::process::is_installed;
use crate::random::Random;
use crate::tree::{COMPONENTS, Tree, component_path};

const ROW: &str = "A3";
const CONTEXT: &str = "A3/context";
const PAGES: usize = 4_000;
const EDITORS: u32 = 10;
/// How often each editor saves.
const PAUSE: Duration = Duration::from_millis(500);
/// The peak: 500 assets in two hours.
const PEAK: Duration = Duration::from_millis(14_400);
const HARD: Duration = Duration::from_secs(1);
/// Assets that arrive in the full row, one every second.
const ASSETS: u64 = 500;
/// How many times with uploads there are in the full row, and as many without.
const ROUNDS: usize = 4;
/// The longest time without uploads in each round: 1,200 saves, which are enough for a 95th percentile.
const ALONE: Duration = Duration::from_secs(60);
/// The same where hours are measured: many short turns, so that what else the machine does falls on both alike.
const LONG_ROUNDS: usize = 20;
const LONG_ALONE: Duration = Duration::from_secs(20);
/// Noise that makes a file of 12 MB.
const NOISE: u32 = 19;

/// Measures the row.
pub(super) fn measure(context: &mut Context) -> Outcome<Vec<Figure>> {
    let what = "save of a component by ten editors while assets are uploaded, 95th percentile";
    if !is_installed("vips") {
        let reason = "it needs `vips` (libvips-tools), which is not installed";
        return Ok(vec![Figure::missing(ROW, what, reason)]);
    }
    // At the peak a time without a single upload would tell nothing.
    let wanted: Option<u64> =
        std::env::var("PEAK_ASSETS").ok().and_then(|count| count.parse().ok());
    let (rounds, longest_alone) = match wanted {
        Some(_) => (LONG_ROUNDS, LONG_ALONE),
        None if context.is_quick => (2, ALONE),
        None => (ROUNDS, ALONE),
    };
    let each = |all: u64| all.div_ceil(rounds as u64);
    let pace = std::env::var("PEAK_SECONDS").ok().and_then(|seconds| seconds.parse().ok());
    let pace = pace.map_or(PEAK, Duration::from_secs_f64).min(PEAK);
    let at_peak = (ROW, pace, Goal::AtMost(1.25));
    let hard = (CONTEXT, HARD, Goal::None);
    let phases = match wanted {
        Some(assets) => vec![(at_peak, each(assets) * pace.as_millis() as u64 / 1000)],
        None if context.is_quick => vec![(at_peak, 30), (hard, 15)],
        None => vec![(at_peak, 150), (hard, each(ASSETS))],
    };
    let photo = std::fs::read(photograph(&context.new_folder("photo-")?, NOISE)?)?;
    let folder = context.new_folder("peak-")?;
    let tree = Tree::build(&folder, PAGES)?;
    tree.full.close()?;
    copy(tree.full.folder(), &folder.join("home/store"))?;
    drop(tree);
    let author = Author::start_in(context, &folder)?;
    let mut site = Site { author, photo, uploaded: 0 };
    let mut figures = Vec::new();
    for ((row, every, goal), seconds) in phases {
        let length = Duration::from_secs(seconds);
        let (mut idle, mut loaded) = (Vec::new(), Vec::new());
        site.edit(Duration::from_secs(5), None)?;
        let before = site.uploaded;
        for _ in 0..rounds {
            idle.extend(site.edit(length.min(longest_alone), None)?);
            loaded.extend(site.edit(length, Some(every))?);
        }
        let (alone, beside) = (percentile(&idle, 95), percentile(&loaded, 95));
        let note = format!(
            "{} saves; an asset of {:.1} MB every {:.1} s, {} in all; median {:.1} ms and {:.1} ms, 95th percentile \
             {alone:.1} ms and {beside:.1} ms",
            idle.len() + loaded.len(),
            site.photo.len() as f64 / 1e6,
            every.as_secs_f64(),
            site.uploaded - before,
            percentile(&idle, 50),
            percentile(&loaded, 50),
        );
        let title = format!("an asset every {:.1} s", every.as_secs_f64());
        eprint!("{}", table(&title, site.uploaded - before, (&idle, &loaded)));
        let figure = Figure::value(row, what, beside / alone, "x").against("the same without");
        figures.push(figure.goal(goal).note(note).pairs(rounds));
    }
    Ok(figures)
}

/// Lays out what ten editors waited for, without and with uploads, in milliseconds.
fn table(title: &str, assets: usize, (idle, loaded): (&[f64], &[f64])) -> String {
    let mut text = format!(
        "{:<24} {:>7} {:>7} {:>8} {:>8} {:>8} {:>8}\n",
        title, "saves", "assets", "50 %", "95 %", "99 %", "longest"
    );
    for (name, waits, assets) in
        [("  without uploads", idle, 0), ("  with uploads", loaded, assets)]
    {
        let [half, most, nearly, all] = [50, 95, 99, 100].map(|percent| percentile(waits, percent));
        text.push_str(&format!(
            "{name:<24} {:>7} {assets:>7} {half:>8.1} {most:>8.1} {nearly:>8.1} {all:>8.1}\n",
            waits.len()
        ));
    }
    text
}

/// A repository that is edited, and the picture that is uploaded to it.
struct Site {
    author: Author,
    photo: Vec<u8>,
    uploaded: usize,
}

impl Site {
    /// Lets editors save for a while, and another one upload a picture every so often; returns the milliseconds of saves.
    fn edit(&mut self, length: Duration, every: Option<Duration>) -> Outcome<Vec<f64>> {
        let is_over = AtomicBool::new(false);
        let begin = Instant::now() + Duration::from_millis(200);
        let (photo, first) = (&self.photo, self.uploaded);
        let (address, login) = (self.author.address(), self.author.login());
        let is_over = &is_over;
        let (waits, uploads) = std::thread::scope(|scope| -> Outcome<(Vec<f64>, usize)> {
            let uploading = scope.spawn(move || -> Result<usize, String> {
                let Some(every) = every else { return Ok(0) };
                let mut count = 0;
                while !is_over.load(Ordering::Relaxed) {
                    let due = begin + every * u32::try_from(count).unwrap_or(u32::MAX);
                    while Instant::now() < due && !is_over.load(Ordering::Relaxed) {
                        std::thread::sleep(Duration::from_millis(10));
                    }
                    if is_over.load(Ordering::Relaxed) {
                        break;
                    }
                    upload(address, login, photo, first + count)
                        .map_err(|error| error.to_string())?;
                    count += 1;
                }
                Ok(count)
            });
            let editors: Vec<_> = (0..EDITORS)
                .map(|number| {
                    scope.spawn(move || {
                        let editor = Editor { address, login, number };
                        editor.work(begin, length).map_err(|error| error.to_string())
                    })
                })
                .collect();
            let mut waits = Vec::new();
            let mut failure = None;
            for editor in editors {
                match editor.join().map_err(|_| "an editor panicked")? {
                    Ok(of_one) => waits.extend(of_one),
                    Err(error) => failure = Some(error),
                }
            }
            is_over.store(true, Ordering::Relaxed);
            let uploads = uploading.join().map_err(|_| "the uploader panicked")??;
            failure.map_or(Ok((waits, uploads)), |error| Err(error.into()))
        })?;
        self.uploaded += uploads;
        // The next time without uploads is one without their renditions.
        self.author.wait_for(self.uploaded)?;
        Ok(waits)
    }
}

struct Editor<'a> {
    address: SocketAddr,
    login: &'a str,
    number: u32,
}

impl Editor<'_> {
    /// Saves in its rhythm; editors begin one after the other within the pause.
    fn work(&self, begin: Instant, length: Duration) -> Outcome<Vec<f64>> {
        let mut random = Random::new(u64::from(self.number) + 1);
        let mut waits = Vec::new();
        let mut due = begin + PAUSE * self.number / EDITORS;
        while due < begin + length {
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            let path = component_path(random.below(PAGES), random.below(COMPONENTS));
            let form = format!("./text=Save+{}+of+editor+{}", waits.len(), self.number);
            ask(self.address, "POST", &path, self.login, &form)?;
            waits.push(due.elapsed().as_secs_f64() * 1e3);
            due += PAUSE;
        }
        Ok(waits)
    }
}

/// Returns the value that `percent` of all do not exceed.
fn percentile(values: &[f64], percent: usize) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = (sorted.len() * percent).div_ceil(100).saturating_sub(1);
    sorted.get(at).copied().unwrap_or_default()
}
