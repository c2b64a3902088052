//! Numbers by the patterns of Java's `DecimalFormat`, with the separators of CLDR.

use fixed_decimal::Decimal;
use icu_decimal::DecimalFormatter;

use super::locale_name::parse_locale;

/// Digits that a pattern may ask for.
const MAX_DIGITS: usize = 340;

/// A parsed pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NumberPattern {
    positive: (String, String),
    negative: Option<(String, String)>,
    /// The exponent of ten that numbers are multiplied with: 2 for percent.
    scale: usize,
    min_integer: usize,
    max_integer: usize,
    min_fraction: usize,
    max_fraction: usize,
    grouping: usize,
    /// The digits of the exponent, for patterns with `E`.
    exponent: Option<usize>,
}

impl NumberPattern {
    /// Parses a pattern.
    ///
    /// # Errors
    /// A message if it is not valid.
    pub(crate) fn parse(pattern: &str) -> Result<Self, String> {
        let mut chars = pattern.chars().peekable();
        let mut parsed = Self {
            positive: (String::new(), String::new()),
            negative: None,
            scale: 0,
            min_integer: 0,
            max_integer: 0,
            min_fraction: 0,
            max_fraction: 0,
            grouping: 0,
            exponent: None,
        };
        parsed.positive.0 = affix(&mut chars, &mut parsed.scale)?;
        let (mut is_fraction, mut has_grouping) = (false, false);
        while let Some(next) = chars.peek().copied() {
            match next {
                '0' if is_fraction => {
                    parsed.min_fraction += 1;
                    parsed.max_fraction += 1;
                    if parsed.min_fraction != parsed.max_fraction {
                        return Err(
                            "the number pattern has `0` behind `#` in its fraction".to_owned()
                        );
                    }
                }
                '#' if is_fraction => parsed.max_fraction += 1,
                '0' | '#' => {
                    if next == '#' && parsed.min_integer > 0 {
                        return Err("the number pattern has `#` behind `0` in front of its point"
                            .to_owned());
                    }
                    parsed.min_integer += usize::from(next == '0');
                    parsed.max_integer += 1;
                    parsed.grouping += usize::from(has_grouping);
                }
                ',' if !is_fraction => {
                    has_grouping = true;
                    parsed.grouping = 0;
                }
                '.' if !is_fraction => is_fraction = true,
                _ => break,
            }
            chars.next();
            if parsed.max_integer > MAX_DIGITS || parsed.max_fraction > MAX_DIGITS {
                return Err(format!("the number pattern has more than {MAX_DIGITS} digits"));
            }
        }
        if has_grouping && parsed.grouping == 0 {
            return Err("the number pattern ends with a grouping separator".to_owned());
        }
        if chars.next_if_eq(&'E').is_some() {
            let mut digits = 0;
            while chars.next_if_eq(&'0').is_some() {
                digits += 1;
            }
            if digits == 0 || digits > MAX_DIGITS {
                return Err("`E` takes digits, as in `0.#E0`".to_owned());
            }
            parsed.exponent = Some(digits);
        }
        parsed.positive.1 = affix(&mut chars, &mut parsed.scale)?;
        if chars.next_if_eq(&';').is_some() {
            let mut ignored = 0;
            let prefix = affix(&mut chars, &mut ignored)?;
            while chars.next_if(|next| matches!(next, '0' | '#' | ',' | '.' | 'E')).is_some() {}
            parsed.negative = Some((prefix, affix(&mut chars, &mut ignored)?));
        }
        if chars.next().is_some() {
            return Err("the number pattern has digits in several places".to_owned());
        }
        // As Java: a pattern of `#` alone shows at least one digit.
        if parsed.min_integer == 0
            && parsed.max_integer > 0
            && parsed.max_fraction == 0
            && parsed.exponent.is_none()
        {
            parsed.min_integer = 1;
        }
        Ok(parsed)
    }
}

/// Reads a prefix or suffix.
fn affix(
    chars: &mut std::iter::Peekable<std::str::Chars<'_>>,
    scale: &mut usize,
) -> Result<String, String> {
    let mut text = String::new();
    let mut is_quoted = false;
    while let Some(next) = chars.peek().copied() {
        match next {
            '\'' => {
                chars.next();
                if chars.next_if_eq(&'\'').is_some() {
                    text.push('\'');
                } else {
                    is_quoted = !is_quoted;
                }
                continue;
            }
            _ if is_quoted => text.push(next),
            '0' | '#' | ',' | '.' | ';' => break,
            '%' => {
                *scale = 2;
                text.push(next);
            }
            '\u{2030}' => {
                *scale = 3;
                text.push(next);
            }
            _ => text.push(next),
        }
        chars.next();
    }
    if is_quoted {
        Err("the number pattern has a quote without an end".to_owned())
    } else {
        Ok(text)
    }
}

/// The digits of a number without sign: the value is `0.digits` times ten to the power of `point`.
struct DigitList {
    digits: Vec<u8>,
    point: i64,
}

impl DigitList {
    fn new(text: &str, scale: usize) -> Self {
        // `text` is a decimal without an exponent.
        let (integer, fraction) = text.split_once('.').unwrap_or((text, ""));
        let digits: Vec<u8> =
            integer.bytes().chain(fraction.bytes()).map(|byte| byte - b'0').collect();
        let zeros = digits.iter().take_while(|digit| **digit == 0).count();
        let point = integer.len() as i64 - zeros as i64 + scale as i64;
        let digits = digits.get(zeros..).unwrap_or_default().to_vec();
        let mut list = Self { digits, point };
        list.trim();
        list
    }

    fn trim(&mut self) {
        while self.digits.last() == Some(&0) {
            self.digits.pop();
        }
        if self.digits.is_empty() {
            self.point = 0;
        }
    }

    /// Rounds to a number of digits, half to even.
    fn round(&mut self, count: i64) {
        let Ok(count) = usize::try_from(count) else {
            self.digits.clear();
            self.trim();
            return;
        };
        let Some(&next) = self.digits.get(count) else { return };
        let is_beyond_half = next > 5 || (next == 5 && self.digits.len() > count + 1);
        let last_is_odd = count
            .checked_sub(1)
            .and_then(|at| self.digits.get(at))
            .is_some_and(|digit| digit % 2 == 1);
        self.digits.truncate(count);
        if is_beyond_half || (next == 5 && last_is_odd) {
            let mut at = count;
            loop {
                match at.checked_sub(1).and_then(|at| self.digits.get_mut(at)) {
                    Some(9) => {
                        at -= 1;
                        self.digits.truncate(at);
                    }
                    Some(digit) => {
                        *digit += 1;
                        break;
                    }
                    None => {
                        self.digits = vec![1];
                        self.point += 1;
                        break;
                    }
                }
            }
        }
        self.trim();
    }

    /// Returns the digit at a power of ten: 0 for the ones.
    fn digit(&self, power: i64) -> char {
        let at = usize::try_from(self.point - 1 - power).ok().and_then(|at| self.digits.get(at));
        char::from(b'0' + at.copied().unwrap_or(0))
    }
}

/// Formats a number, given as a decimal without an exponent.
pub(crate) fn format_number(number: &str, pattern: &NumberPattern, locale: &str) -> String {
    let (is_negative, number) = match number.strip_prefix('-') {
        Some(number) => (true, number),
        None => (false, number),
    };
    let mut list = DigitList::new(number, pattern.scale);
    let symbols = NumberSymbols::find(locale);
    let mut out = String::new();
    match pattern.exponent {
        Some(digits) => write_scientific(&mut list, pattern, digits, &symbols, &mut out),
        None => {
            list.round(list.point + pattern.max_fraction as i64);
            write_plain(&list, pattern, &symbols, &mut out);
        }
    }
    let (prefix, suffix) = &pattern.positive;
    match &pattern.negative {
        _ if !is_negative => format!("{prefix}{out}{suffix}"),
        Some((prefix, suffix)) => format!("{prefix}{out}{suffix}"),
        None => format!("-{prefix}{out}{suffix}"),
    }
}

fn write_plain(
    list: &DigitList,
    pattern: &NumberPattern,
    symbols: &NumberSymbols,
    out: &mut String,
) {
    let integer_digits = list.point.max(pattern.min_integer as i64).max(0);
    for power in (0..integer_digits).rev() {
        out.push(list.digit(power));
        let grouping = pattern.grouping as i64;
        if grouping > 0 && power > 0 && power % grouping == 0 {
            out.push_str(&symbols.grouping);
        }
    }
    let fraction_digits = (list.digits.len() as i64 - list.point)
        .clamp(pattern.min_fraction as i64, pattern.max_fraction as i64);
    if fraction_digits > 0 {
        out.push_str(&symbols.decimal);
        for power in 1..=fraction_digits {
            out.push(list.digit(-power));
        }
    } else if out.is_empty() {
        out.push('0');
    }
}

fn write_scientific(
    list: &mut DigitList,
    pattern: &NumberPattern,
    exponent_digits: usize,
    symbols: &NumberSymbols,
    out: &mut String,
) {
    let (max_integer, mut min_integer) = (pattern.max_integer as i64, pattern.min_integer as i64);
    list.round(max_integer + pattern.max_fraction as i64);
    let mut exponent = list.point;
    if max_integer > 1 && max_integer > min_integer {
        // The exponent is a multiple of the number of integer digits.
        exponent = (exponent - 1).div_euclid(max_integer) * max_integer;
        min_integer = 1;
    } else {
        exponent -= min_integer;
    }
    let is_zero = list.digits.is_empty();
    let integer_digits = if is_zero { min_integer } else { list.point - exponent };
    if is_zero {
        exponent = 0;
    }
    let shown = (list.digits.len() as i64)
        .max(pattern.min_integer as i64 + pattern.min_fraction as i64)
        .max(integer_digits);
    for index in 0..shown {
        if index == integer_digits {
            out.push_str(&symbols.decimal);
        }
        let digit =
            usize::try_from(index).ok().and_then(|at| list.digits.get(at)).copied().unwrap_or(0);
        out.push(char::from(b'0' + digit));
    }
    out.push('E');
    if exponent < 0 {
        out.push('-');
    }
    out.push_str(&format!("{:0exponent_digits$}", exponent.abs()));
}

/// The separators of a locale.
struct NumberSymbols {
    decimal: String,
    grouping: String,
}

impl NumberSymbols {
    fn find(locale: &str) -> Self {
        let english = || Self { decimal: ".".to_owned(), grouping: ",".to_owned() };
        if locale.starts_with("en") {
            return english();
        }
        let sample: Option<Decimal> = "1234567.8".parse().ok();
        let formatter =
            DecimalFormatter::try_new((&parse_locale(locale)).into(), Default::default());
        let (Some(sample), Ok(formatter)) = (sample, formatter) else {
            return english();
        };
        let text = formatter.format(&sample).to_string();
        let mut runs = text.split(char::is_numeric).filter(|run| !run.is_empty());
        match (runs.next(), runs.next_back()) {
            (Some(grouping), Some(decimal)) => {
                Self { decimal: decimal.to_owned(), grouping: grouping.to_owned() }
            }
            _ => english(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(number: &str, pattern: &str, locale: &str, expected: &str) {
        let text =
            NumberPattern::parse(pattern).map(|pattern| format_number(number, &pattern, locale));
        assert_eq!(text.unwrap_or_else(|error| error), expected, "{number} {pattern}");
    }

    #[test]
    fn formats_the_examples_of_the_specification() {
        check("1000", "#,###.00", "en", "1,000.00");
        check("-3.14", "#.###;-#.###", "en", "-3.14");
        check("-3.14", "#.00;(#.00)", "en", "(3.14)");
        check("-3.14", "#.000E00", "en", "-.314E01");
        check("-3.14", "#%", "en", "-314%");
        check("42", "#.00", "en", "42.00");
        check("1000.14", "'CHF' #,###.##", "de_CH", "CHF 1'000.14");
    }

    #[test]
    fn rounds_half_to_even() {
        check("0.125", "0.00", "en", "0.12");
        check("0.135", "0.00", "en", "0.14");
        check("2.5", "0", "en", "2");
        check("3.5", "0", "en", "4");
        check("9.99", "0.0", "en", "10.0");
        check("999.9", "#,##0", "en", "1,000");
        check("0.001", "0.0", "en", "0.0");
        check("0.5", "#.00", "en", ".50");
        check("0", "#", "en", "0");
        check("0", "#.##", "en", "0");
    }

    #[test]
    fn writes_exponents_and_groups() {
        check("12345", "0.###E0", "en", "1.234E4");
        check("0.00012345", "00.###E0", "en", "12.345E-5");
        check("12345", "##0.#####E0", "en", "12.345E3");
        check("0", "0.###E0", "en", "0E0");
        check("1234567.891", "#,##0.##", "de", "1.234.567,89");
        check("1234567", "#,####", "en", "123,4567");
        check("7", "000", "en", "007");
        check("12.5", "0 '#'%", "en", "1250 #%");
    }

    #[test]
    fn reports_faults() {
        check("1", "0#", "en", "the number pattern has `#` behind `0` in front of its point");
        check("1", "0,", "en", "the number pattern ends with a grouping separator");
        check("1", "0E", "en", "`E` takes digits, as in `0.#E0`");
        check("1", "'a", "en", "the number pattern has a quote without an end");
        check("1", "0a0", "en", "the number pattern has digits in several places");
    }
}
