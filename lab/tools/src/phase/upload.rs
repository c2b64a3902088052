//! Uploads at the rate of a working day's peak, and checks that the author keeps up with the renditions.
//!
//! Every upload is a distinct file, because equal bytes would be stored once. Images arrive by a schedule, whether or
//! not earlier ones are done. The rendition time counts from the end of the upload until the asset reports that it was
//! processed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;
use tympan_lab_engine::goal::{GoalResult, format_response_time};
use tympan_lab_engine::load::asset_request::{
    AssetProcessingOutcome, AssetRequest, MAX_ASSET_RESPONSE_BYTES, asset_processing_outcome,
};
use tympan_lab_engine::load::request_authorization::RequestAuthorization;
use tympan_lab_engine::load::{
    LoadRun, LoadRunState, UserStep, UserTurn, VirtualUser, WorkerLoad, asset_request,
    processor_count, run_load,
};
use tympan_lab_engine::measurement::{RecordedSample, RunResults};
use tympan_lab_engine::net::{ExchangeOutcome, LoadTarget, ResponseRetention, TargetRequest};
use tympan_lab_engine::report::report_sheet::{ReportPart, ReportSheet, ReportTable, ReportTone};
use tympan_lab_engine::result_validity;
use tympan_lab_plan::{AbsoluteUrl, ArrivalProcess, ArrivalSchedule, random_number};

use crate::calculator::UploadWorkload;
use crate::{Error, Result};

/// Options of an upload trial.
#[derive(Debug, Clone)]
pub struct UploadTrial {
    /// The URL of the asset folder, such as `http://127.0.0.1:4502/content/dam/lab`.
    pub folder_url: String,
    /// The credentials of the user who uploads.
    pub authorization: Option<RequestAuthorization>,
    /// Sent with every request.
    pub headers: Vec<(String, String)>,
    /// The goal.
    pub workload_goal: UploadWorkload,
    /// Duration of the peak.
    pub peak_duration: Duration,
    /// Waits for renditions; otherwise an upload is complete when its response arrives.
    pub waits_for_renditions: bool,
    /// Maximum wait for renditions.
    pub rendition_timeout: Duration,
    /// The bytes of an image, whose end is made unique for each upload; if `None`, a bitmap of the goal's size is
    /// generated.
    pub picture_bytes: Option<Vec<u8>>,
    /// The seed of names and bytes.
    pub seed: u64,
}

/// Maximum number of concurrent uploads: each holds its file in memory.
const MAX_PARALLEL_UPLOADS: usize = 64;
/// Interval between checks of an asset's processing state.
const STATE_POLL_INTERVAL: Duration = Duration::from_millis(500);

#[derive(Debug)]
struct UploadSharedState {
    folder_url: AbsoluteUrl,
    target: Arc<LoadTarget>,
    headers: Vec<(String, String)>,
    picture_bytes: Vec<u8>,
    extension: &'static str,
    waits_for_renditions: bool,
    rendition_timeout: Duration,
    seed: u64,
    upload_count: AtomicU64,
    processed_count: AtomicU64,
    failed_count: AtomicU64,
}

/// Uploads for the whole duration and evaluates the result.
///
/// # Errors
/// `Error::InvalidUrl`, [`Error::UnusableInput`], `Error::Resolve`, [`Error::Engine`].
pub fn run_upload_trial(proof: &UploadTrial) -> Result<ReportSheet> {
    let rate = proof.workload_goal.peak_assets_per_minute() / 60.0;
    if !(rate.is_finite() && rate > 0.0) || proof.peak_duration.is_zero() {
        return Err(Error::UnusableInput("the goal has no assets or no duration".to_owned()));
    }
    let url = AbsoluteUrl::parse(proof.folder_url.trim_end_matches('/'))?;
    let mut headers = proof.headers.clone();
    headers.extend(proof.authorization.as_ref().map(RequestAuthorization::to_header));
    let (picture, extension) = match &proof.picture_bytes {
        Some(picture) => (picture.clone(), picture_extension(picture)),
        None => (generate_bitmap(proof.workload_goal.original_mb, proof.seed), "bmp"),
    };
    let shared = Arc::new(UploadSharedState {
        target: LoadTarget::resolve(url.is_tls, &url.host, url.port)?,
        folder_url: url,
        headers,
        picture_bytes: picture,
        extension,
        waits_for_renditions: proof.waits_for_renditions,
        rendition_timeout: proof.rendition_timeout,
        seed: proof.seed,
        upload_count: AtomicU64::new(0),
        processed_count: AtomicU64::new(0),
        failed_count: AtomicU64::new(0),
    });
    let schedule =
        ArrivalSchedule::new(ArrivalProcess::Uniform, rate, proof.peak_duration, proof.seed);
    let workers = processor_count().min(MAX_PARALLEL_UPLOADS);
    let crews = (0..workers)
        .map(|worker| {
            let (shared, mut hired) = (Arc::clone(&shared), 0);
            let most = MAX_PARALLEL_UPLOADS.div_ceil(workers);
            let hire = move || {
                hired += 1;
                (hired <= most)
                    .then(|| Box::new(UploadUser::new(Arc::clone(&shared))) as Box<dyn VirtualUser>)
            };
            let arrivals = Some((schedule.for_share(worker, workers), Box::new(hire) as _));
            WorkerLoad { users: Vec::new(), arrivals }
        })
        .collect();
    let load = LoadRun {
        worker_loads: crews,
        stop_after: None,
        drain_timeout: proof.rendition_timeout,
        run_state: Arc::new(LoadRunState::default()),
        row_sink: None,
    };
    let results = run_load(load, &mut ())?;
    Ok(build_upload_sheet(proof, &shared, &results))
}

/// Returns the file extension for an image, by its first bytes.
fn picture_extension(picture: &[u8]) -> &'static str {
    match picture {
        [0xFF, 0xD8, ..] => "jpg",
        [0x89, b'P', b'N', b'G', ..] => "png",
        [b'B', b'M', ..] => "bmp",
        [b'G', b'I', b'F', ..] => "gif",
        [b'I', b'I', ..] | [b'M', b'M', ..] => "tif",
        _ => "bin",
    }
}

/// Returns an image of about this many megabytes: noise, so that it cannot be compressed.
fn generate_bitmap(megabytes: f64, seed: u64) -> Vec<u8> {
    const HEAD: u32 = 54;
    let pixels = (megabytes.clamp(0.001, 200.0) * 1e6 / 3.0).max(16.0);
    // Rows are padded to four bytes: a width divisible by four needs no padding.
    let width = ((pixels.sqrt() / 4.0).ceil() as u32 * 4).max(4);
    let height = ((pixels / f64::from(width)).round() as u32).max(1);
    let body = width * height * 3;
    let mut file = Vec::with_capacity((HEAD + body) as usize);
    file.extend_from_slice(b"BM");
    for number in [HEAD + body, 0, HEAD, 40, width, height] {
        file.extend_from_slice(&number.to_le_bytes());
    }
    // One plane of 24 bits, uncompressed.
    file.extend_from_slice(&[1, 0, 24, 0]);
    for number in [0, body, 2835, 2835, 0, 0] {
        file.extend_from_slice(&u32::to_le_bytes(number));
    }
    for at in 0..u64::from(body).div_ceil(8) {
        file.extend_from_slice(&random_number(seed, at).to_le_bytes());
    }
    file.truncate((HEAD + body) as usize);
    file
}

impl UploadSharedState {
    /// Returns the name and the request of the next upload.
    fn next_upload(&self) -> (String, TargetRequest) {
        let number = self.upload_count.fetch_add(1, Ordering::Relaxed);
        let mark = random_number(self.seed ^ 0x5DEE_CE66, number);
        let name = format!("lab-{:08x}-{number}.{}", self.seed & 0xFFFF_FFFF, self.extension);
        let boundary = format!("{mark:016x}{number:016x}");
        // Bytes after the end of an image do not change its appearance.
        let pieces = [self.picture_bytes.as_slice(), &mark.to_le_bytes(), &number.to_le_bytes()];
        let file = (name.as_str(), "application/octet-stream");
        let (media_type, body) = asset_request::build_upload_form(file, &boundary, &pieces);
        let request = self.build_request(
            "POST",
            &self.folder_url.path_and_query,
            (&media_type, &body),
            ResponseRetention::Head,
        );
        (name, request)
    }

    /// Returns the request for an asset's state.
    fn state_request(&self, name: &str) -> TargetRequest {
        let path = format!("{}/{name}/jcr:content.json", self.folder_url.path_and_query);
        self.build_request(
            "GET",
            &path,
            ("", &[]),
            ResponseRetention::Body(MAX_ASSET_RESPONSE_BYTES),
        )
    }

    fn build_request(
        &self,
        method: &'static str,
        path: &str,
        body: (&str, &[u8]),
        keep: ResponseRetention,
    ) -> TargetRequest {
        let ask = AssetRequest {
            method,
            path,
            body,
            retention: keep,
            idle_timeout: self.rendition_timeout,
        };
        asset_request::build_asset_request(&self.target, &self.headers, ask)
    }
}

#[derive(Debug)]
enum UploadState {
    Idle,
    Uploading {
        asset_name: String,
        due_at: Instant,
    },
    /// Waits for the next check, or for its response.
    Processing {
        asset_name: String,
        uploaded_at: Instant,
        is_poll_pending: bool,
    },
}

#[derive(Debug)]
struct UploadUser {
    shared: Arc<UploadSharedState>,
    state: UploadState,
}

impl UploadUser {
    fn new(shared: Arc<UploadSharedState>) -> Self {
        Self { shared, state: UploadState::Idle }
    }

    fn handle_upload_response(
        &mut self,
        turn: &mut UserTurn<'_>,
        name: String,
        due: Instant,
        reply: &ExchangeOutcome,
    ) -> UserStep {
        let label = turn.recorder.label_id("upload");
        let is_ok = reply.result.as_ref().is_ok_and(|response| response.status < 400);
        turn.recorder.record_sample(&RecordedSample::from_reply(label, due, reply));
        if !is_ok {
            self.shared.failed_count.fetch_add(1, Ordering::Relaxed);
            return UserStep::AwaitArrival;
        }
        if !self.shared.waits_for_renditions {
            self.shared.processed_count.fetch_add(1, Ordering::Relaxed);
            return UserStep::AwaitArrival;
        }
        self.state = UploadState::Processing {
            asset_name: name,
            uploaded_at: reply.ended_at,
            is_poll_pending: false,
        };
        UserStep::WaitUntil(turn.now + STATE_POLL_INTERVAL)
    }

    fn handle_state_response(
        &mut self,
        turn: &mut UserTurn<'_>,
        name: String,
        since: Instant,
        reply: &ExchangeOutcome,
    ) -> UserStep {
        let state = asset_processing_outcome(reply);
        let is_late = turn.now.saturating_duration_since(since) > self.shared.rendition_timeout;
        if state.is_none() && !is_late && !turn.is_stopping {
            self.state = UploadState::Processing {
                asset_name: name,
                uploaded_at: since,
                is_poll_pending: false,
            };
            return UserStep::WaitUntil(turn.now + STATE_POLL_INTERVAL);
        }
        let is_done = state == Some(AssetProcessingOutcome::Done);
        let counter =
            if is_done { &self.shared.processed_count } else { &self.shared.failed_count };
        counter.fetch_add(1, Ordering::Relaxed);
        let label = turn.recorder.label_id("renditions");
        let failure = match state {
            Some(_) if is_done => None,
            Some(_) => Some("the asset could not be processed"),
            None => Some("the asset was not processed in time"),
        };
        // Counts from the end of the upload, regardless of the duration of the last check.
        turn.recorder.record_sample(&RecordedSample {
            start: since,
            failure,
            ..RecordedSample::from_reply(label, since, reply)
        });
        UserStep::AwaitArrival
    }
}

impl VirtualUser for UploadUser {
    fn next_step(&mut self, turn: &mut UserTurn<'_>) -> UserStep {
        let reply = std::mem::take(&mut turn.outcomes).into_iter().next();
        match (std::mem::replace(&mut self.state, UploadState::Idle), reply) {
            (UploadState::Uploading { asset_name, due_at }, Some(reply)) => {
                self.handle_upload_response(turn, asset_name, due_at, &reply)
            }
            (
                UploadState::Processing { asset_name, uploaded_at, is_poll_pending: true },
                Some(reply),
            ) => self.handle_state_response(turn, asset_name, uploaded_at, &reply),
            (UploadState::Processing { asset_name, uploaded_at, .. }, None) => {
                let request = self.shared.state_request(&asset_name);
                self.state =
                    UploadState::Processing { asset_name, uploaded_at, is_poll_pending: true };
                UserStep::Fetch(request)
            }
            _ if turn.is_stopping => UserStep::Leave,
            _ => {
                let (asset_name, request) = self.shared.next_upload();
                self.state = UploadState::Uploading { asset_name, due_at: turn.due_at };
                UserStep::Fetch(request)
            }
        }
    }
}

fn build_upload_sheet(
    proof: &UploadTrial,
    shared: &UploadSharedState,
    results: &RunResults,
) -> ReportSheet {
    let mut sheet = ReportSheet::new("Uploads");
    let processed = shared.processed_count.load(Ordering::Relaxed);
    let failed = shared.failed_count.load(Ordering::Relaxed);
    let sent = shared.upload_count.load(Ordering::Relaxed);
    // The last uploads take their time beyond the schedule; more than that means that the author falls behind.
    let usual = ["upload", "renditions"]
        .iter()
        .filter_map(|label| results.labels.get(*label))
        .map(|series| series.total.response_times.quantile(0.5))
        .sum::<Duration>();
    let took = results.elapsed.saturating_sub(usual).max(proof.peak_duration).as_secs_f64();
    let per_minute = processed as f64 / took * 60.0;
    let each = proof.workload_goal.original_mb + proof.workload_goal.renditions_mb;
    let rate = processed as f64 * each / took;
    let least = 0.97;
    let goal = |expected: String, measured: String, is_met: bool| GoalResult {
        label: "uploads".to_owned(),
        requirement: expected,
        measured,
        is_met,
    };
    sheet.judged_goals = vec![
        goal(
            format!("{:.1} assets/min", proof.workload_goal.peak_assets_per_minute()),
            format!("{per_minute:.1}/min"),
            per_minute >= proof.workload_goal.peak_assets_per_minute() * least,
        ),
        goal(
            format!("{:.3} MB/s with renditions", proof.workload_goal.peak_mb_per_second()),
            format!("{rate:.3} MB/s"),
            rate >= proof.workload_goal.peak_mb_per_second() * least,
        ),
        goal("no asset fails".to_owned(), format!("{failed} of {sent}"), failed == 0),
    ];
    let mut believed = results.clone();
    believed.generator.unsent_arrivals = 0;
    for doubt in result_validity::validity_doubts(&believed) {
        sheet.add_verdict(ReportTone::Doubtful, format!("GENERATOR SATURATED: {doubt}"));
    }
    if results.total_stats().status_counts.keys().all(|status| *status == 0) {
        sheet.add_verdict(ReportTone::Doubtful, "the author never responded");
    }
    match sheet.judged_goals.iter().all(|goal| goal.is_met) {
        true => sheet
            .add_verdict(ReportTone::Good, "the author keeps up with the peak of a working day"),
        false => sheet.add_verdict(
            ReportTone::Bad,
            "the author does not keep up with the peak of a working day",
        ),
    }
    let mut grid =
        ReportTable::new("Uploads", &["what", "count", "failed", "p50", "p95", "max", "reason"]);
    for (name, series) in &results.labels {
        let stats = &series.total;
        let tone = if stats.error_count == 0 { ReportTone::Plain } else { ReportTone::Bad };
        let reason =
            if stats.error_count == 0 { String::new() } else { super::top_failure_reason(stats) };
        grid.add_row(
            tone,
            vec![
                name.to_string(),
                stats.count().to_string(),
                stats.error_count.to_string(),
                format_response_time(stats.response_times.quantile(0.5)),
                format_response_time(stats.response_times.quantile(0.95)),
                format_response_time(stats.response_times.max()),
                reason,
            ],
        );
    }
    sheet.parts.push(ReportPart::Table(grid));
    sheet.json_result = json!({
        "sent": sent, "processed": processed, "failed": failed, "assets_per_minute": per_minute,
        "megabytes_per_second": rate, "goal_assets_per_minute": proof.workload_goal.peak_assets_per_minute(),
        "goal_megabytes_per_second": proof.workload_goal.peak_mb_per_second(), "seconds": results.elapsed.as_secs_f64(),
    });
    sheet
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bitmap_is_a_picture_of_the_wanted_size() {
        for megabytes in [0.001, 0.5, 3.0] {
            let file = generate_bitmap(megabytes, 1);
            assert_eq!(picture_extension(&file), "bmp");
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
