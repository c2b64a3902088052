//! Durations and sizes as people write them.

use tympan_lab_plan::quantity::{parse_duration, parse_size};

#[test]
fn durations_read_as_people_write_them() {
    let read = |text: &str| parse_duration(text).map(|duration| duration.as_secs_f64());
    assert_eq!(
        (read("22m21s"), read("150ms"), read("1h5m")),
        (Some(1341.0), Some(0.15), Some(3900.0))
    );
    for text in ["", "5", "s", "5x", "-1s", "1.2.3s"] {
        assert_eq!(read(text), None, "{text}");
    }
}

#[test]
fn sizes_have_units() {
    let sizes = ["12B", "300 kB", "1.5GB", "64 MiB", " 2KiB "].map(parse_size);
    assert_eq!(sizes, [12, 300_000, 1_500_000_000, 64 << 20, 2048].map(Some));
    for text in ["", "5", "MB", "5 mb", "-1 B", "1.2.3 B"] {
        assert_eq!(parse_size(text), None, "{text}");
    }
}
