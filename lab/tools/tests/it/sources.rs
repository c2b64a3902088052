//! The figures that the project's sources print, calculated from the same inputs.

use std::time::Duration;

use tympan_lab_engine::measurement::summariser::parse_summary_line;
use tympan_lab_tools::calculator::{
    CacheHitRatio, SpeedupBounds, UploadWorkload, VisitorLoad, backup_cost, peak_factor,
};
use tympan_lab_tools::metric_comparison::{
    BetterDirection, ComparisonVerdict, compare_series, trimmed_mean,
};
use tympan_notation::parse_duration;

/// Source 003: largest response time, requests per second, KB per second of 20 runs.
const STAGING: [[f64; 3]; 20] = [
    [522.0, 240.1, 24882.28],
    [587.0, 247.3, 25635.84],
    [647.0, 251.0, 26012.87],
    [705.0, 252.2, 26143.79],
    [718.0, 248.6, 25764.68],
    [388.0, 280.5, 29071.79],
    [353.0, 269.2, 27901.22],
    [581.0, 260.1, 26953.55],
    [537.0, 288.6, 29907.38],
    [608.0, 294.1, 30481.24],
    [414.0, 288.7, 29924.89],
    [167.0, 300.4, 31136.34],
    [593.0, 272.9, 28281.77],
    [625.0, 271.1, 28101.01],
    [452.0, 272.5, 28240.11],
    [465.0, 304.8, 31594.93],
    [525.0, 287.6, 29804.54],
    [625.0, 276.7, 28678.59],
    [650.0, 273.5, 28343.48],
    [548.0, 294.8, 30551.06],
];

const PRODUCTION: [[f64; 3]; 20] = [
    [739.0, 233.2, 24507.37],
    [489.0, 254.4, 26739.06],
    [171.0, 260.7, 27398.34],
    [526.0, 234.0, 24591.95],
    [544.0, 284.4, 29888.1],
    [520.0, 284.8, 29933.02],
    [181.0, 287.8, 30242.71],
    [364.0, 268.3, 28192.92],
    [419.0, 297.7, 31283.1],
    [155.0, 293.3, 30820.8],
    [638.0, 276.5, 29059.47],
    [638.0, 197.6, 20762.37],
    [528.0, 254.5, 26741.96],
    [619.0, 264.5, 27797.78],
    [169.0, 303.3, 31873.11],
    [433.0, 298.7, 31389.12],
    [546.0, 278.7, 29288.03],
    [522.0, 275.2, 28923.43],
    [530.0, 298.0, 31322.16],
    [520.0, 303.9, 31933.47],
];

fn column(rows: &[[f64; 3]; 20], place: usize) -> Vec<f64> {
    rows.iter().map(|row| row[place]).collect()
}

#[test]
fn twenty_runs_are_compared_without_their_extremes() {
    let means = |rows: &[[f64; 3]; 20]| -> Vec<String> {
        (0..3).map(|place| format!("{:.2}", trimmed_mean(&column(rows, place), 1))).collect()
    };
    assert_eq!(means(&STAGING), ["545.83", "273.88", "28385.23"]);
    assert_eq!(means(&PRODUCTION), ["464.28", "274.89", "28888.47"]);
    let told = |place: usize, better: BetterDirection| {
        let (before, after) = (column(&PRODUCTION, place), column(&STAGING, place));
        let one = compare_series("x", &before, &after, 1, better);
        (one.format_difference(), one.is_improvement())
    };
    assert_eq!(told(0, BetterDirection::Lower), ("+81.55 (+18 %)".to_owned(), false));
    assert_eq!(told(1, BetterDirection::Higher), ("-1.01 (-0.4 %)".to_owned(), false));
    assert_eq!(told(2, BetterDirection::Higher), ("-503.24 (-1.7 %)".to_owned(), false));
}

#[test]
fn the_extremes_of_both_sides_are_those_of_the_source() {
    let extremes = |rows: &[[f64; 3]; 20], place: usize| {
        let values = column(rows, place);
        let least = values.iter().copied().fold(f64::INFINITY, f64::min);
        let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        [least, most]
    };
    // Without and with the composite store, and the difference in percent as printed there.
    let source = [
        (0, [(155.0, 167.0, 7.8), (739.0, 718.0, -2.8)]),
        (1, [(197.6, 240.1, 21.5), (303.9, 304.8, 0.3)]),
        (2, [(20762.37, 24882.28, 19.8), (31933.47, 31594.93, -1.1)]),
    ];
    for (place, pairs) in source {
        let sides = [extremes(&PRODUCTION, place), extremes(&STAGING, place)];
        for (at, (without, with, percent)) in pairs.into_iter().enumerate() {
            assert_eq!((sides[0][at], sides[1][at]), (without, with));
            let one = compare_series("x", &[without], &[with], 0, BetterDirection::Lower);
            assert!(
                one.format_difference().contains(if with > without { '+' } else { '-' }),
                "{}",
                one.format_difference()
            );
            assert!(((with / without - 1.0) * 100.0 - percent).abs() < 0.07, "{with} {without}");
        }
    }
}

#[test]
fn a_difference_inside_the_noise_is_called_noise() {
    let rate = compare_series(
        "requests/s",
        &column(&PRODUCTION, 1),
        &column(&STAGING, 1),
        1,
        BetterDirection::Higher,
    );
    let text = rate.to_string();
    assert!(text.starts_with("requests/s: 274.89 -> 273.88, -1.01 (-0.4 %) (interval "), "{text}");
    assert!(text.ends_with("within noise"), "{text}");
    let slower: Vec<f64> = column(&PRODUCTION, 1).iter().map(|rate| rate * 0.6).collect();
    let rate =
        compare_series("requests/s", &column(&PRODUCTION, 1), &slower, 1, BetterDirection::Higher);
    assert!(rate.to_string().ends_with("worse"), "{rate}");
}

#[test]
fn errors_that_rise_from_zero_are_worse() {
    let after = [0.5, 1.0, 1.5, 2.0, 1.0, 0.5];
    let errors = compare_series("errors %", &[0.0; 6], &after, 1, BetterDirection::Lower);
    let text = errors.to_string();
    assert!(text.starts_with("errors %: 0.00 -> 1.00, +1.00 (interval +0.50..+1."), "{text}");
    assert!(text.ends_with("): worse"), "{text}");
    let errors = compare_series("errors %", &after, &[0.0; 6], 1, BetterDirection::Lower);
    assert!(errors.to_string().ends_with("better"), "{errors}");
    let none = compare_series("errors %", &[0.0; 6], &[0.0; 6], 1, BetterDirection::Lower);
    assert!(none.to_string().ends_with("(interval +0.00..+0.00): within noise"), "{none}");
}

#[test]
fn up_to_three_runs_a_side_tell_nothing() {
    let verdict = |runs: usize| {
        compare_series("ms", &vec![1.0; runs], &vec![100.0; runs], 1, BetterDirection::Lower)
            .verdict()
    };
    assert_eq!([1, 3].map(verdict), [ComparisonVerdict::TooFewRuns; 2]);
    assert_eq!([4, 5].map(verdict), [ComparisonVerdict::Worse; 2]);
}

#[test]
fn the_cache_ratio_of_the_guide() {
    let ratio = CacheHitRatio { total_requests: 129_491, publisher_requests: 58_959 };
    assert_eq!(format!("{:.5}", ratio.hit_share()), "0.54469");
    assert_eq!(ratio.to_string(), "(129491 - 58959) / 129491 = 54.5 %");
    assert_eq!(CacheHitRatio { total_requests: 0, publisher_requests: 0 }.hit_share(), 0.0);
}

#[test]
fn a_sweep_claims_what_its_worst_pair_shows() {
    let runs = |texts: &[&str]| -> Vec<Duration> {
        texts.iter().map(|text| parse_duration(text).unwrap()).collect()
    };
    let factor =
        SpeedupBounds::from_runs(&runs(&["22m21s", "24m51s"]), &runs(&["01m53s", "01m55s"]))
            .unwrap();
    assert_eq!(format!("{:.2}", factor.min_speedup), "11.66");
    assert_eq!(factor.to_string(), "at least 11x (range 11.7-13.2, mean 12.4)");
    assert_eq!(SpeedupBounds::from_runs(&[], &runs(&["1s"])), None);
}

#[test]
fn the_gain_of_a_refetching_flush_and_its_siblings() {
    let rate = |line: &str| parse_summary_line(line).unwrap();
    let before = [
        "summary =  13056 in 00:00:23 =  578.2/s Avg:   123 Min:     0 Max: 20807 Err:     0 (0.00%)",
        "summary =  11620 in 00:00:21 =  560.3/s Avg:   129 Min:     1 Max: 16293 Err:     0 (0.00%)",
    ];
    let after = [
        "summary =  56242 in 00:00:20 = 2776.4/s Avg:    26 Min:     1 Max: 12461 Err:     0 (0.00%)",
        "summary =  63371 in 00:00:20 = 3141.8/s Avg:    23 Min:     0 Max:  6920 Err:     0 (0.00%)",
    ];
    let gains: Vec<f64> = before
        .iter()
        .zip(after)
        .map(|(one, two)| rate(two).samples_per_second / rate(one).samples_per_second)
        .collect();
    assert_eq!(
        gains.iter().map(|gain| format!("{gain:.1}x")).collect::<Vec<_>>(),
        ["4.8x", "5.6x"]
    );
    assert_eq!(format!("{:.1}x", (gains[0] + gains[1]) / 2.0), "5.2x");
    let means: Vec<u64> = before.iter().chain(&after).map(|line| rate(line).mean_ms).collect();
    assert_eq!(means, [123, 129, 26, 23]);
    let slow = rate(
        "summary =     32 in 00:00:20 =    1.6/s Avg:  5000 Min:  1 Max: 60000 Err:     1 (4.35%)",
    );
    let fast = rate(
        "summary =  12480 in 00:00:20 =  624.0/s Avg:     9 Min:  1 Max: 900 Err:     0 (0.00%)",
    );
    assert_eq!((fast.samples_per_second / slow.samples_per_second).round(), 390.0);
    assert_eq!((slow.error_percent, fast.error_percent), (4.35, 0.0));
}

#[test]
fn a_query_that_is_refined_twice() {
    let means = [20_500.0, 4_250.0, 44.0];
    let gain = |from: usize, to: usize| format!("{:.1}x", means[from] / means[to]);
    assert_eq!((gain(0, 1), gain(1, 2)), ("4.8x".to_owned(), "96.6x".to_owned()));
}

#[test]
fn visitors_become_a_rate_and_a_concurrency() {
    // Without the time of an answer nothing is said of requests at a time.
    let unknown = VisitorLoad {
        user_count: 10,
        request_interval: Duration::from_secs(2),
        response_time: Duration::ZERO,
    };
    assert!(
        unknown
            .to_string()
            .ends_with("in flight  unknown: give the response time with --response-time")
    );
    let users = |users, response| VisitorLoad {
        user_count: users,
        request_interval: Duration::from_secs(2),
        response_time: response,
    };
    let thousand = users(1000, Duration::from_millis(150));
    assert_eq!((thousand.arrival_rate(), thousand.in_flight()), (500.0, 75.0));
    assert_eq!(users(10_000, Duration::ZERO).arrival_rate(), 5000.0);
    assert_eq!(VisitorLoad::users_for_rate(10.48, Duration::from_secs(2)).round(), 21.0);
    assert_eq!(VisitorLoad::users_for_rate(79.92, Duration::from_secs(2)).round(), 160.0);
    assert_eq!(
        thousand.to_string(),
        "arrivals   1000 users / 2 s = 500.0 requests/s\nin flight  500.0/s x 0.15 s = 75.0 requests at a time (ab -c 75)"
    );
}

#[test]
fn eighty_in_twenty_is_exactly_four() {
    assert_eq!(peak_factor(0.8, 0.2), 4.0);
    assert_eq!(peak_factor(0.9, 0.1), 9.0);
    let uploads = UploadWorkload {
        assets_per_window: 500.0,
        original_mb: 12.0,
        renditions_mb: 4.0,
        window: Duration::from_secs(8 * 3600),
        peak_factor: peak_factor(0.8, 0.2),
    };
    assert_eq!(
        format!("{:.3} {:.3}", uploads.average_mb_per_second(), uploads.peak_mb_per_second()),
        "0.278 1.111"
    );
    assert_eq!(format!("{:.2}", uploads.peak_assets_per_minute()), "4.17");
}

#[test]
fn the_longer_and_gentler_backup_costs_more() {
    let hours = |hours: u64| Duration::from_secs(hours * 3600);
    assert_eq!(backup_cost(hours(8), 0.2), Duration::from_secs(5760));
    assert_eq!(backup_cost(hours(2), 0.3), Duration::from_secs(2160));
}
