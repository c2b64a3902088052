//! Numbers as decimal digits, for texts that consist of them mostly: lines of logs, heads of answers.
//!
//! The standard library's way asks for signs, widths and alternatives each time, which costs more than the digits.

/// The digits of a number: `Digits::of(1234).as_str()` is `"1234"`.
#[derive(Debug, Clone, Copy)]
pub struct DecimalDigits {
    bytes: [u8; 20],
    start: usize,
}

impl DecimalDigits {
    /// Returns the digits of a number; those of 0 are one zero.
    #[must_use]
    pub fn from_number(mut number: u64) -> Self {
        let mut digits = Self { bytes: [0; 20], start: 20 };
        loop {
            digits.start -= 1;
            if let Some(digit) = digits.bytes.get_mut(digits.start) {
                *digit = b'0' + u8::try_from(number % 10).unwrap_or(0);
            }
            number /= 10;
            if number == 0 {
                return digits;
            }
        }
    }

    /// Returns them as a text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        // They are ASCII.
        let digits = self.bytes.get(self.start..).unwrap_or_default();
        std::str::from_utf8(digits).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::DecimalDigits;

    #[test]
    fn numbers_are_written_whole() {
        for number in [0, 7, 10, 99, 12_345, u64::MAX] {
            assert_eq!(DecimalDigits::from_number(number).as_str(), number.to_string());
        }
    }
}
