//! Uploads at the rate that a working day's peak needs, and whether the author keeps up with their renditions.
//!
//! Every upload is a file of its own: equal bytes would be stored once. Pictures arrive by a schedule, whether or not earlier
//! ones are done; how long the renditions took counts from the end of the upload until the asset says that it was processed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::asset::{self, Ask, MOST_ANSWER, Processed, processed};
use crate::browse::basic;
use crate::calculate::Uploads;
use crate::goal::{Judged, show};
use crate::load::{
    Crew, Crowd, Load, Process, Schedule, Step, Turn, User, processors, random, run as run_load,
};
use crate::net::{Keep, Reply, Request, Target, Url};
use crate::record::{Results, Sample};
use crate::report::sheet::{Grid, Part, Sheet, Tone};
use crate::{Error, Result, honesty};

/// What to prove.
#[derive(Debug, Clone)]
pub struct Proof {
    /// The folder of assets, such as `http://127.0.0.1:4502/content/dam/lab`.
    pub folder: String,
    /// `user:password`.
    pub login: Option<String>,
    /// Sent with every request.
    pub headers: Vec<(String, String)>,
    /// The goal.
    pub goal: Uploads,
    /// How long the peak lasts.
    pub lasts: Duration,
    /// Waits for renditions; else an upload is done when it is answered.
    pub waits: bool,
    /// Longest wait for renditions.
    pub patience: Duration,
    /// The bytes of a picture, made different at the end of each upload; a bitmap of the goal's size is made without.
    pub picture: Option<Vec<u8>>,
    /// What the names and the bytes derive from.
    pub seed: u64,
}

/// Uploads at a time: each holds its file in memory.
const MOST_AT_ONCE: usize = 64;
/// How often an asset is asked whether it was processed.
const LOOK: Duration = Duration::from_millis(500);

#[derive(Debug)]
struct Shared {
    url: Url,
    target: Arc<Target>,
    headers: Vec<(String, String)>,
    picture: Vec<u8>,
    extension: &'static str,
    waits: bool,
    patience: Duration,
    seed: u64,
    uploads: AtomicU64,
    processed: AtomicU64,
    failed: AtomicU64,
}

/// Uploads for the whole time, and judges.
///
/// # Errors
/// [`Error::Url`], [`Error::Input`], [`Error::Resolve`], [`Error::Engine`].
pub fn run(proof: &Proof) -> Result<Sheet> {
    let rate = proof.goal.assets_per_minute() / 60.0;
    if !(rate.is_finite() && rate > 0.0) || proof.lasts.is_zero() {
        return Err(Error::Input("the goal names no assets, or no time".to_owned()));
    }
    let url = Url::parse(proof.folder.trim_end_matches('/'))?;
    let mut headers = proof.headers.clone();
    headers.extend(proof.login.as_deref().map(basic));
    let (picture, extension) = match &proof.picture {
        Some(picture) => (picture.clone(), extension(picture)),
        None => (bitmap(proof.goal.size, proof.seed), "bmp"),
    };
    let shared = Arc::new(Shared {
        target: Target::resolve(url.is_tls, &url.host, url.port)?,
        url,
        headers,
        picture,
        extension,
        waits: proof.waits,
        patience: proof.patience,
        seed: proof.seed,
        uploads: AtomicU64::new(0),
        processed: AtomicU64::new(0),
        failed: AtomicU64::new(0),
    });
    let schedule = Schedule::new(Process::Uniform, rate, proof.lasts, proof.seed);
    let workers = processors().min(MOST_AT_ONCE);
    let crews = (0..workers)
        .map(|worker| {
            let (shared, mut hired) = (Arc::clone(&shared), 0);
            let most = MOST_AT_ONCE.div_ceil(workers);
            let hire = move || {
                hired += 1;
                (hired <= most)
                    .then(|| Box::new(Uploader::new(Arc::clone(&shared))) as Box<dyn User>)
            };
            let arrivals = Some((schedule.share(worker, workers), Box::new(hire) as _));
            Crew { users: Vec::new(), arrivals }
        })
        .collect();
    let load = Load {
        crews,
        stop_after: None,
        drain: proof.patience,
        crowd: Arc::new(Crowd::default()),
        rows: None,
    };
    let results = run_load(load, &mut ())?;
    Ok(tell(proof, &shared, &results))
}

/// Returns what a file's name ends in, by its first bytes.
fn extension(picture: &[u8]) -> &'static str {
    match picture {
        [0xFF, 0xD8, ..] => "jpg",
        [0x89, b'P', b'N', b'G', ..] => "png",
        [b'B', b'M', ..] => "bmp",
        [b'G', b'I', b'F', ..] => "gif",
        [b'I', b'I', ..] | [b'M', b'M', ..] => "tif",
        _ => "bin",
    }
}

/// Returns a picture of about so many megabytes: noise, so that nothing makes it smaller.
fn bitmap(megabytes: f64, seed: u64) -> Vec<u8> {
    const HEAD: u32 = 54;
    let pixels = (megabytes.clamp(0.001, 200.0) * 1e6 / 3.0).max(16.0);
    // Lines are filled up to four bytes: with a width that four divides nothing has to be filled.
    let width = ((pixels.sqrt() / 4.0).ceil() as u32 * 4).max(4);
    let height = ((pixels / f64::from(width)).round() as u32).max(1);
    let body = width * height * 3;
    let mut file = Vec::with_capacity((HEAD + body) as usize);
    file.extend_from_slice(b"BM");
    for number in [HEAD + body, 0, HEAD, 40, width, height] {
        file.extend_from_slice(&number.to_le_bytes());
    }
    // One plane of 24 bits, not compressed.
    file.extend_from_slice(&[1, 0, 24, 0]);
    for number in [0, body, 2835, 2835, 0, 0] {
        file.extend_from_slice(&u32::to_le_bytes(number));
    }
    for at in 0..u64::from(body).div_ceil(8) {
        file.extend_from_slice(&random(seed, at).to_le_bytes());
    }
    file.truncate((HEAD + body) as usize);
    file
}

impl Shared {
    /// Returns the name and the request of the next upload.
    fn upload(&self) -> (String, Request) {
        let number = self.uploads.fetch_add(1, Ordering::Relaxed);
        let mark = random(self.seed ^ 0x5DEE_CE66, number);
        let name = format!("lab-{:08x}-{number}.{}", self.seed & 0xFFFF_FFFF, self.extension);
        let boundary = format!("{mark:016x}{number:016x}");
        // Bytes behind a picture's end change nothing that is seen.
        let pieces = [self.picture.as_slice(), &mark.to_le_bytes(), &number.to_le_bytes()];
        let file = (name.as_str(), "application/octet-stream");
        let (media_type, body) = asset::upload(file, &boundary, &pieces);
        let request = self.request("POST", &self.url.target, (&media_type, &body), Keep::Head);
        (name, request)
    }

    /// Returns the request that asks for an asset's state.
    fn look(&self, name: &str) -> Request {
        let path = format!("{}/{name}/jcr:content.json", self.url.target);
        self.request("GET", &path, ("", &[]), Keep::Body(MOST_ANSWER))
    }

    fn request(
        &self,
        method: &'static str,
        path: &str,
        body: (&str, &[u8]),
        keep: Keep,
    ) -> Request {
        let ask = Ask { method, path, body, keep, silence: self.patience };
        asset::request(&self.target, &self.headers, ask)
    }
}

#[derive(Debug)]
enum At {
    Free,
    Uploading {
        name: String,
        due: Instant,
    },
    /// Waits for the next look, or for its answer.
    Looking {
        name: String,
        since: Instant,
        is_asked: bool,
    },
}

#[derive(Debug)]
struct Uploader {
    shared: Arc<Shared>,
    at: At,
}

impl Uploader {
    fn new(shared: Arc<Shared>) -> Self {
        Self { shared, at: At::Free }
    }

    fn uploaded(&mut self, turn: &mut Turn<'_>, name: String, due: Instant, reply: &Reply) -> Step {
        let label = turn.recorder.label("upload");
        let is_ok = reply.result.as_ref().is_ok_and(|response| response.status < 400);
        turn.recorder.sample(&Sample::of(label, due, reply));
        if !is_ok {
            self.shared.failed.fetch_add(1, Ordering::Relaxed);
            return Step::Rest;
        }
        if !self.shared.waits {
            self.shared.processed.fetch_add(1, Ordering::Relaxed);
            return Step::Rest;
        }
        self.at = At::Looking { name, since: reply.ended, is_asked: false };
        Step::Wait(turn.now + LOOK)
    }

    fn looked(&mut self, turn: &mut Turn<'_>, name: String, since: Instant, reply: &Reply) -> Step {
        let state = processed(reply);
        let is_late = turn.now.saturating_duration_since(since) > self.shared.patience;
        if state.is_none() && !is_late && !turn.is_stopping {
            self.at = At::Looking { name, since, is_asked: false };
            return Step::Wait(turn.now + LOOK);
        }
        let is_done = state == Some(Processed::Done);
        let counter = if is_done { &self.shared.processed } else { &self.shared.failed };
        counter.fetch_add(1, Ordering::Relaxed);
        let label = turn.recorder.label("renditions");
        let failure = match state {
            Some(_) if is_done => None,
            Some(_) => Some("the asset could not be processed"),
            None => Some("the asset was not processed in time"),
        };
        // From the upload's end, whatever the last look took.
        turn.recorder.sample(&Sample {
            started: since,
            failure,
            ..Sample::of(label, since, reply)
        });
        Step::Rest
    }
}

impl User for Uploader {
    fn next(&mut self, turn: &mut Turn<'_>) -> Step {
        let reply = std::mem::take(&mut turn.replies).into_iter().next();
        match (std::mem::replace(&mut self.at, At::Free), reply) {
            (At::Uploading { name, due }, Some(reply)) => self.uploaded(turn, name, due, &reply),
            (At::Looking { name, since, is_asked: true }, Some(reply)) => {
                self.looked(turn, name, since, &reply)
            }
            (At::Looking { name, since, .. }, None) => {
                let request = self.shared.look(&name);
                self.at = At::Looking { name, since, is_asked: true };
                Step::Fetch(request)
            }
            _ if turn.is_stopping => Step::End,
            _ => {
                let (name, request) = self.shared.upload();
                self.at = At::Uploading { name, due: turn.due };
                Step::Fetch(request)
            }
        }
    }
}

fn tell(proof: &Proof, shared: &Shared, results: &Results) -> Sheet {
    let mut sheet = Sheet::new("Uploads");
    let processed = shared.processed.load(Ordering::Relaxed);
    let failed = shared.failed.load(Ordering::Relaxed);
    let sent = shared.uploads.load(Ordering::Relaxed);
    // The last ones take their time beyond the schedule; more than that is an author that falls behind.
    let usual = ["upload", "renditions"]
        .iter()
        .filter_map(|label| results.labels.get(*label))
        .map(|series| series.total.response.quantile(0.5))
        .sum::<Duration>();
    let took = results.elapsed.saturating_sub(usual).max(proof.lasts).as_secs_f64();
    let per_minute = processed as f64 / took * 60.0;
    let each = proof.goal.size + proof.goal.renditions;
    let rate = processed as f64 * each / took;
    let least = 0.97;
    let goal = |wanted: String, measured: String, is_met: bool| Judged {
        label: "uploads".to_owned(),
        wanted,
        measured,
        is_met,
    };
    sheet.goals = vec![
        goal(
            format!("{:.1} assets/min", proof.goal.assets_per_minute()),
            format!("{per_minute:.1}/min"),
            per_minute >= proof.goal.assets_per_minute() * least,
        ),
        goal(
            format!("{:.3} MB/s with renditions", proof.goal.goal()),
            format!("{rate:.3} MB/s"),
            rate >= proof.goal.goal() * least,
        ),
        goal("no asset fails".to_owned(), format!("{failed} of {sent}"), failed == 0),
    ];
    let mut believed = results.clone();
    believed.generator.unsent = 0;
    for doubt in honesty::doubts(&believed) {
        sheet.say(Tone::Doubt, format!("GENERATOR SATURATED: {doubt}"));
    }
    if results.total().statuses.keys().all(|status| *status == 0) {
        sheet.say(Tone::Doubt, "the author never answered");
    }
    match sheet.goals.iter().all(|goal| goal.is_met) {
        true => sheet.say(Tone::Good, "the author keeps up with the peak of a working day"),
        false => sheet.say(Tone::Bad, "the author does not keep up with the peak of a working day"),
    }
    let mut grid =
        Grid::new("Uploads", &["what", "count", "failed", "p50", "p95", "max", "reason"]);
    for (name, series) in &results.labels {
        let stats = &series.total;
        let tone = if stats.errors == 0 { Tone::Plain } else { Tone::Bad };
        let reason = if stats.errors == 0 { String::new() } else { super::first_reason(stats) };
        grid.add(
            tone,
            vec![
                name.to_string(),
                stats.count().to_string(),
                stats.errors.to_string(),
                show(stats.response.quantile(0.5)),
                show(stats.response.quantile(0.95)),
                show(stats.response.max()),
                reason,
            ],
        );
    }
    sheet.parts.push(Part::Grid(grid));
    sheet.json = json!({
        "sent": sent, "processed": processed, "failed": failed, "assets_per_minute": per_minute,
        "megabytes_per_second": rate, "goal_assets_per_minute": proof.goal.assets_per_minute(),
        "goal_megabytes_per_second": proof.goal.goal(), "seconds": results.elapsed.as_secs_f64(),
    });
    sheet
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bitmap_is_a_picture_of_the_wanted_size() {
        for megabytes in [0.001, 0.5, 3.0] {
            let file = bitmap(megabytes, 1);
            assert_eq!(extension(&file), "bmp");
            assert!(
                (file.len() as f64 / (megabytes * 1e6) - 1.0).abs() < 0.2,
                "{megabytes}: {}",
                file.len()
            );
            let number = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap());
            assert_eq!(number(2) as usize, file.len());
            assert_eq!((number(18) * number(22) * 3 + 54) as usize, file.len());
        }
    }
}
