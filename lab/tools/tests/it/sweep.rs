//! Settings under measurement: the table of source 002, and the search for a setting that is worth its price.

use std::time::Duration;

use tympan_lab_tools::metric_comparison::{BetterDirection, ComparisonVerdict, compare_series};
use tympan_lab_tools::paired_run::{PairedRunOptions, measure_pairs};
use tympan_lab_tools::program::{MeasuredProgram, OutputMetric, ProgramMeasurement};
use tympan_lab_tools::sweep::{
    SweepObjective, SweepParameter, SweepRow, SweepSetting, SweepTable, format_stopwatch, run_sweep,
};
use tympan_lab_tools::tuning::{TuningOptions, run_tuning};
use tympan_notation::parse_duration;

const FASTER: SweepObjective =
    SweepObjective { better_direction: BetterDirection::Lower, uses_metric: false };

fn run(seconds: u64, mib: u64) -> ProgramMeasurement {
    ProgramMeasurement {
        elapsed: Duration::from_secs(seconds),
        peak_memory: Some(mib * 1024 * 1024),
        ..ProgramMeasurement::default()
    }
}

/// Source 002: lru size, queue size, least and most time, memory, runs.
const SOURCE: [(&str, &str, &str, &str, &str, &str, usize); 16] = [
    ("default", "default", "22m21s", "24m51s", "~260M", "22m21s - 24m51s", 2),
    ("10000", "default", "13m45s", "15m03s", "~332M", "13m45s - 15m03s", 2),
    ("default", "250", "08m23s", "10m29s", "~278M", "08m23s - 10m29s", 5),
    ("default", "350", "02m42s", "02m49s", "272-276M", "02m42s - 02m49s", 2),
    ("default", "400", "02m13s", "02m18s", "268-272M", "02m13s - 02m18s", 3),
    ("default", "500", "02m10s", "02m16s", "267-272M", "02m10s - 02m16s", 3),
    ("default", "512", "02m13s", "02m14s", "265-269M", "02m13s - 02m14s", 2),
    ("512", "512", "01m55s", "02m06s", "322-326M", "01m55s - 02m06s", 3),
    ("768", "512", "01m55s", "01m58s", "397-418M", "01m55s - 01m58s", 3),
    ("1024", "512", "01m53s", "01m55s", "403-418M", "01m53s - 01m55s", 3),
    ("2048", "512", "01m55s", "01m59s", "408-410M", "01m55s - 01m59s", 3),
    ("4096", "512", "01m58s", "01m58s", "~419M", "~01m58s", 1),
    ("default", "600", "02m14s", "02m26s", "269-272M", "02m14s - 02m26s", 4),
    ("default", "750", "02m13s", "02m15s", "266-272M", "02m13s - 02m15s", 2),
    ("default", "1000", "02m19s", "02m20s", "~266M", "02m19s - 02m20s", 2),
    ("default", "10000", "02m23s", "02m35s", "~266M", "02m23s - 02m35s", 2),
];

fn source() -> SweepTable {
    let knobs = [
        SweepParameter::parse("l=default,512,768,1024,2048,4096,10000").unwrap(),
        SweepParameter::parse("q=default,250,350,400,500,512,600,750,1000,10000").unwrap(),
    ];
    let place = |knob: &SweepParameter, value: &str| {
        knob.values.iter().position(|one| one == value).unwrap()
    };
    let rows = SOURCE.map(|(lru, queue, least, most, memory, _, count)| {
        let memory: Vec<u64> =
            memory.trim_matches(['~', 'M']).split('-').map(|text| text.parse().unwrap()).collect();
        let seconds = |text: &str| parse_duration(text).unwrap().as_secs();
        let mut runs = vec![run(seconds(least), memory[0]); count];
        if let Some(last) = runs.last_mut() {
            *last = run(seconds(most), *memory.last().unwrap());
        }
        let places = [place(&knobs[0], lru), place(&knobs[1], queue)];
        SweepRow { setting: SweepSetting::at_indexes(&knobs, &places), runs }
    });
    SweepTable { rows: rows.to_vec(), objective: FASTER }
}

#[test]
fn the_table_of_the_source_is_printed_as_it_stands_there() {
    let table = source();
    for (row, (lru, queue, _, _, memory, times, runs)) in table.rows.iter().zip(SOURCE) {
        let setting = match (lru, queue) {
            ("default", "default") => "default values".to_owned(),
            _ => format!("l={lru}, q={queue}"),
        };
        assert_eq!(row.setting.to_string(), setting);
        assert_eq!(
            (row.format_time_range().as_str(), row.format_memory_range().as_str()),
            (times, memory),
            "{setting}"
        );
        assert_eq!(row.runs.len(), runs);
    }
    let text = table.to_string();
    assert!(text.contains("| l=1024, q=512      | 01m53s - 01m55s | 403-418M | 3    |"), "{text}");
}

#[test]
fn the_best_is_at_least_eleven_times_faster_and_the_chosen_is_the_smallest_that_is_as_good() {
    let table = source();
    let choice = table.choose_setting().unwrap();
    assert_eq!(table.rows[choice.best_row].setting.to_string(), "l=1024, q=512");
    let factor = table.improvement_of(choice.best_row).unwrap();
    assert_eq!(format!("{:.2}", factor.min_speedup), "11.66");
    assert_eq!(factor.to_string(), "at least 11x (range 11.7-13.2, mean 12.5)");
    // 1024 is not better than 512 by more than noise, and takes 80 MiB more.
    assert_eq!(table.rows[choice.chosen_row].setting.to_string(), "l=512, q=512");
    assert!(table.to_string().contains("chosen   l=512, q=512: "), "{table}");
}

#[test]
fn knobs_read_lists_and_ranges() {
    let values = |text: &str| SweepParameter::parse(text).unwrap().values.join(" ");
    assert_eq!(values("k=a,b"), "a b");
    assert_eq!(values("queue=128..10000:x2"), "128 256 512 1024 2048 4096 8192");
    assert_eq!(values("n=1..4:+1"), "1 2 3 4");
    assert_eq!(values("m=default,4MiB..16MiB:x2"), "default 4MiB 8MiB 16MiB");
    assert_eq!(values("f=0.5..2:x2"), "0.5 1 2");
    for text in
        ["k", "=a", "k=", "k=a,,b", "k=9..1:x2", "k=1..9:x1", "k=1..9:y2", "k=a,a", "k=1s..9:x2"]
    {
        assert!(SweepParameter::parse(text).is_err(), "{text}");
    }
}

#[test]
fn values_go_where_their_places_are() {
    let knobs = [
        SweepParameter::parse("a=default,1").unwrap(),
        SweepParameter::parse("b=x,default").unwrap(),
    ];
    let words: Vec<String> =
        ["run", "--a", "{a}", "--b={b}", "in/{b}-{a}"].map(str::to_owned).to_vec();
    let fill = |places: &[usize]| {
        SweepSetting::at_indexes(&knobs, places).fill_placeholders(&words).unwrap().join(" ")
    };
    assert_eq!(fill(&[1, 0]), "run --a 1 --b=x in/x-1");
    assert_eq!(fill(&[0, 0]), "run --b=x");
    assert_eq!(fill(&[1, 1]), "run --a 1");
    let error = SweepSetting::at_indexes(&knobs, &[]).fill_placeholders(&words[..3]).unwrap_err();
    assert!(error.is_usage() && error.to_string().contains("no placeholder for `b`"), "{error}");
}

#[test]
fn all_settings_are_measured_in_rounds() {
    let knobs = [SweepParameter::parse("a=1,2").unwrap(), SweepParameter::parse("b=x,y").unwrap()];
    let mut order = Vec::new();
    let table = run_sweep(
        SweepSetting::all_combinations(&knobs).unwrap(),
        2,
        FASTER,
        &mut |setting, round| {
            order.push(format!("{round} {setting}"));
            Ok(run(1, 1))
        },
    )
    .unwrap();
    assert_eq!(table.rows.len(), 4);
    assert_eq!(order.len(), 8);
    assert_eq!(order[..2], ["0 a=1, b=x", "0 a=2, b=x"]);
    assert_eq!(order[4], "1 a=1, b=x");
    let many = vec![
        SweepParameter::parse("n=1..300:+1").unwrap(),
        SweepParameter::parse("m=1..300:+1").unwrap(),
    ];
    assert!(
        SweepSetting::all_combinations(&many).is_err()
            && SweepSetting::all_combinations(&[]).is_err()
    );
}

/// A machine: time falls with the queue until 512, and a little with the cache; pages per second are the inverse.
fn machine(setting: &SweepSetting, round: usize) -> ProgramMeasurement {
    let value = |name: &str| -> f64 {
        let found = setting.pairs().find(|(key, _)| *key == name);
        found.and_then(|(_, value)| value.parse().ok()).unwrap_or(128.0)
    };
    let seconds = 1000.0 / value("q").min(512.0) * if value("l") > 256.0 { 0.8 } else { 1.0 };
    let noisy = seconds * if round == 0 { 1.0 } else { 1.03 };
    ProgramMeasurement {
        elapsed: Duration::from_secs_f64(noisy),
        metric: Some(1.0 / noisy),
        ..ProgramMeasurement::default()
    }
}

#[test]
fn tuning_raises_one_knob_until_more_is_noise() {
    let knobs = [
        SweepParameter::parse("q=128..65536:x2").unwrap(),
        SweepParameter::parse("l=256..4096:x2").unwrap(),
    ];
    for aim in
        [FASTER, SweepObjective { better_direction: BetterDirection::Higher, uses_metric: true }]
    {
        let tuning = TuningOptions { runs_per_setting: 2, objective: aim, goal_value: None };
        let tuned =
            run_tuning(&knobs, tuning, &mut |setting, round| Ok(machine(setting, round))).unwrap();
        assert_eq!(tuned.chosen_sweep_row().unwrap().setting.to_string(), "q=512, l=512");
        let tried: Vec<String> =
            tuned.measured_table.rows.iter().map(|row| row.setting.to_string()).collect();
        assert_eq!(
            tried,
            [
                "q=128, l=256",
                "q=256, l=256",
                "q=512, l=256",
                "q=1024, l=256",
                "q=512, l=512",
                "q=512, l=1024"
            ],
            "one knob at a time, and no further than needed"
        );
        assert_eq!(tuned.decisions, ["q: 512", "l: 512"]);
        let factor = tuned.measured_table.improvement_of(tuned.chosen_row).unwrap();
        assert!((factor.min_speedup - 5.0 / 1.03).abs() < 0.01, "{factor:?}");
    }
}

#[test]
fn tuning_ends_where_the_goal_is_reached() {
    let knobs = [
        SweepParameter::parse("q=128..65536:x2").unwrap(),
        SweepParameter::parse("l=256..4096:x2").unwrap(),
    ];
    let go = |goal| {
        let tuning =
            TuningOptions { runs_per_setting: 2, objective: FASTER, goal_value: Some(goal) };
        run_tuning(&knobs, tuning, &mut |setting, round| Ok(machine(setting, round))).unwrap()
    };
    let tuned = go(4.5);
    assert_eq!((tuned.is_goal_reached, tuned.measured_table.rows.len()), (Some(true), 2));
    assert_eq!(tuned.decisions[1], "l: unchanged, the goal is reached");
    assert_eq!(go(0.1).is_goal_reached, Some(false));
}

#[test]
fn a_list_without_direction_is_tried_as_a_whole() {
    let knobs = [SweepParameter::parse("mode=slow,slower,fast").unwrap()];
    let tuning = TuningOptions { runs_per_setting: 1, objective: FASTER, goal_value: None };
    let tuned = run_tuning(&knobs, tuning, &mut |setting, _| {
        Ok(run(if setting.to_string().ends_with("fast") { 1 } else { 9 }, 1))
    })
    .unwrap();
    assert_eq!(tuned.chosen_sweep_row().unwrap().setting.to_string(), "mode=fast");
}

#[test]
fn two_programs_run_in_turn() {
    let folder = tempfile::tempdir().unwrap();
    let order = folder.path().join("order");
    let program = |name: &str| MeasuredProgram {
        words: ["sh", "-c", &format!("printf {name} >> {}; echo 7 of {name}", order.display())]
            .map(str::to_owned)
            .to_vec(),
        metric: Some(OutputMetric::parse("([0-9]+) of").unwrap()),
    };
    let turns = PairedRunOptions { runs_per_program: 3, warm_up_runs: 1, seed: 2 };
    let paired = measure_pairs(&program("a"), &program("b"), turns).unwrap();
    assert_eq!((paired.measures_before.len(), paired.measures_after.len()), (3, 3));
    let order = std::fs::read_to_string(order).unwrap();
    assert!(order == "abababab" || order == "babababa", "{order}");
    let rows = paired.compare_metrics(1, BetterDirection::Higher);
    let names: Vec<&str> = rows.iter().map(|row| row.metric.as_str()).collect();
    assert_eq!(names, ["metric", "seconds", "processor seconds", "peak MiB"]);
    assert_eq!((rows[0].mean_before, rows[0].verdict()), (7.0, ComparisonVerdict::TooFewRuns));
    assert_eq!(
        compare_series("x", &[1.0; 6], &[2.0; 6], 1, BetterDirection::Lower).verdict(),
        ComparisonVerdict::Worse
    );
}

#[test]
fn times_are_shown_as_a_stop_watch_shows_them() {
    let shown = |ms: u64| format_stopwatch(Duration::from_millis(ms));
    assert_eq!([shown(5), shown(1530), shown(113_000)], ["5.0ms", "1.53s", "01m53s"]);
    assert_eq!(shown(3_723_000), "1h02m03s");
}
