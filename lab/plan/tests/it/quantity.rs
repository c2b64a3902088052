//! Durations and sizes as people write them in plans and goals.

use std::path::PathBuf;

use tympan_lab_plan::TestPlan;
use tympan_lab_plan::goal::parse_goals;

fn plan_error(text: &str) -> String {
    let plan = TestPlan::parse(text.as_bytes(), "p.toml", PathBuf::new());
    plan.err().map(|error| error.to_string()).unwrap_or_default()
}

/// Returns plans in which each key for a duration has this one.
fn plans_with_duration(duration: &str) -> [String; 5] {
    let step = "[[scenario]]\n[[scenario.step]]\nmethod = \"POST\"\npath = \"/\"\n";
    let target = "target = \"http://127.0.0.1:1\"\n";
    [
        format!(
            "{target}[load]\nusers = 2\nduration = \"{duration}\"\nramp = \"{duration}\"\n{step}"
        ),
        format!(
            "{target}[load]\nrate = 2\nduration = \"{duration}\"\nramp = \"{duration}\"\n{step}"
        ),
        format!(
            "{target}[load]\n[[load.stage]]\nusers = 2\nfor = \"{duration}\"\nramp = \"{duration}\"\n{step}"
        ),
        format!(
            "{target}timeout = \"{duration}\"\n[load]\nusers = 2\nvisits = 1\nevery = \"{duration}\"\n{step}"
        ),
        format!(
            "{target}[load]\nusers = 2\nvisits = 1\n{step}timeout = \"{duration}\"\nexpect = {{ under = \"{duration}\" }}\n"
        ),
    ]
}

#[test]
fn durations_read_as_people_write_them() {
    for duration in ["22m21s", "150ms", "1h5m", "1h30m", "1.5h", "30 min", "2d"] {
        for plan in plans_with_duration(duration) {
            assert_eq!(plan_error(&plan), "", "{plan}");
        }
        let goals = format!("[goal.page]\np95 = \"<{duration}\"\nabort_after = \"{duration}\"\n");
        parse_goals(&goals, "g.toml").unwrap_or_else(|error| panic!("{goals}: {error}"));
    }
    for duration in ["", "5", "s", "5x", "-1s", "1.2.3s"] {
        for plan in plans_with_duration(duration) {
            assert!(plan_error(&plan).contains("must be a time such as"), "{plan}");
        }
        let goals = format!("[goal.page]\np95 = \"{duration}\"\n");
        assert!(parse_goals(&goals, "g.toml").is_err(), "{goals}");
    }
}

#[test]
fn sizes_have_units() {
    let error = |size: &str| {
        plan_error(&format!(
            "target = \"http://127.0.0.1:1\"\n[load]\nusers = 2\nvisits = 1\n[[scenario]]\n[[scenario.step]]\n\
             method = \"POST\"\npath = \"/\"\nbody_size = \"{size}\"\n"
        ))
    };
    for size in ["12B", "300 kB", "0.5GB", "64 MiB", " 2KiB "] {
        assert_eq!(error(size), "", "{size}");
    }
    for size in ["", "5", "MB", "5 mb", "-1 B", "1.2.3 B"] {
        assert!(error(size).contains("must be a size such as"), "{size}");
    }
}
