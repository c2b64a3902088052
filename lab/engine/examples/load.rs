//! The smallest program on the load engine: `load URL CONNECTIONS SECONDS [RATE]`, for measuring the engine itself.

use std::process::ExitCode;
use std::time::Duration;

use tympan_lab_engine::get_load::GetLoad;
use tympan_lab_engine::report::{RunReport, report_to_plain_text};

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let number = |place: usize| words.get(place).and_then(|word| word.parse::<f64>().ok());
    let (Some(url), Some(users), Some(seconds)) = (words.first(), number(1), number(2)) else {
        return ExitCode::from(2);
    };
    let load = GetLoad {
        urls: vec![url.clone()],
        users: users as usize,
        duration: Some(Duration::from_secs_f64(seconds)),
        rate: number(3),
        workers: 1,
        ..GetLoad::default()
    };
    let Ok(results) = load.run() else { return ExitCode::from(3) };
    let report = RunReport { title: url, results: &results, judged_goals: &[], is_own_load: true };
    use std::io::Write as _;
    std::io::stdout().write_all(report_to_plain_text(&report).as_bytes()).ok();
    ExitCode::SUCCESS
}
