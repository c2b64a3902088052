//! Numbers with fractions as Java writes them.

use std::fmt::Write;

/// Writes a number as Java's `Double.toString`: with a fraction, and with an exponent from ten million on and below a
/// thousandth.
pub(crate) fn write_java_double(number: f64, out: &mut String) {
    let size = number.abs();
    let written = if number.is_nan() {
        out.push_str("NaN");
        Ok(())
    } else if number.is_infinite() {
        out.push_str(if number > 0.0 { "Infinity" } else { "-Infinity" });
        Ok(())
    } else if size == 0.0 || (1e-3..1e7).contains(&size) {
        write!(out, "{number:?}")
    } else {
        let text = format!("{number:e}");
        let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let fraction = if mantissa.contains('.') { "" } else { ".0" };
        write!(out, "{mantissa}{fraction}E{exponent}")
    };
    written.unwrap_or_default();
}

#[cfg(test)]
mod tests {
    use super::write_java_double;

    #[test]
    fn writes_fractions_and_exponents() {
        for (number, expected) in [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (15.25, "15.25"),
            (0.001, "0.001"),
            (0.0001, "1.0E-4"),
            (9_999_999.0, "9999999.0"),
            (1e7, "1.0E7"),
            (1.25e300, "1.25E300"),
            (-2.5e-7, "-2.5E-7"),
            (f64::NAN, "NaN"),
            (f64::NEG_INFINITY, "-Infinity"),
            (6325.499879499452, "6325.499879499452"),
        ] {
            let mut out = String::new();
            write_java_double(number, &mut out);
            assert_eq!(out, expected);
        }
    }
}
