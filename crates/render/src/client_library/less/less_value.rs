//! Values of expressions: numbers with units, colors, and all other texts.

use std::fmt;

/// A value.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum LessValue {
    Number {
        number: f64,
        unit: String,
    },
    /// A color with an opacity from 0 to 1, and the text as it was written if it was not computed.
    Color {
        channels: [f64; 3],
        alpha: f64,
        text: Option<String>,
    },
    /// A quoted string, with its quote.
    Quoted(String, char),
    /// Anything else, as it is written.
    Text(String),
}

/// The names of colors that functions take.
const COLOR_NAMES: [(&str, u32); 24] = [
    ("aqua", 0x0000_ffff),
    ("black", 0x0),
    ("blue", 0x0000_00ff),
    ("brown", 0x00a5_2a2a),
    ("crimson", 0x00dc_143c),
    ("cyan", 0x0000_ffff),
    ("fuchsia", 0x00ff_00ff),
    ("gold", 0x00ff_d700),
    ("gray", 0x0080_8080),
    ("green", 0x0000_8000),
    ("grey", 0x0080_8080),
    ("lime", 0x0000_ff00),
    ("magenta", 0x00ff_00ff),
    ("maroon", 0x0080_0000),
    ("navy", 0x0000_0080),
    ("olive", 0x0080_8000),
    ("orange", 0x00ff_a500),
    ("pink", 0x00ff_c0cb),
    ("purple", 0x0080_0080),
    ("red", 0x00ff_0000),
    ("silver", 0x00c0_c0c0),
    ("teal", 0x0000_8080),
    ("white", 0x00ff_ffff),
    ("yellow", 0x00ff_ff00),
];

impl LessValue {
    /// Creates a number.
    pub(super) fn number(number: f64, unit: &str) -> Self {
        Self::Number { number, unit: unit.to_owned() }
    }

    /// Creates a computed color.
    pub(super) fn color(channels: [f64; 3], alpha: f64) -> Self {
        let channels = channels.map(|channel| channel.clamp(0.0, 255.0));
        Self::Color { channels, alpha: alpha.clamp(0.0, 1.0), text: None }
    }

    /// Parses a word: a number, a color, or a text.
    pub(super) fn from_word(word: &str) -> Self {
        if let Some(value) = parse_number(word) {
            return value;
        }
        match parse_hex_color(word) {
            Some((channels, alpha)) => Self::Color { channels, alpha, text: Some(word.to_owned()) },
            None => Self::Text(word.to_owned()),
        }
    }

    /// Returns the value as a color; names of colors count.
    pub(super) fn to_color(&self) -> Option<([f64; 3], f64)> {
        match self {
            Self::Color { channels, alpha, .. } => Some((*channels, *alpha)),
            Self::Text(name) => {
                let name = name.to_ascii_lowercase();
                let (_, number) = COLOR_NAMES.iter().find(|(known, _)| *known == name)?;
                let channel = |shift: u32| f64::from((number >> shift) & 0xff);
                Some(([channel(16), channel(8), channel(0)], 1.0))
            }
            Self::Number { .. } | Self::Quoted(..) => None,
        }
    }

    /// Returns the text without quotes.
    pub(super) fn plain_text(&self) -> String {
        match self {
            Self::Quoted(text, _) => text.clone(),
            other => other.to_string(),
        }
    }
}

impl fmt::Display for LessValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number { number, unit } => write!(f, "{}{unit}", format_number(*number)),
            Self::Color { text: Some(text), .. } | Self::Text(text) => f.write_str(text),
            Self::Color { channels: [red, green, blue], alpha, text: None } => {
                let [red, green, blue] = [red, green, blue].map(|channel| channel.round());
                if *alpha < 1.0 {
                    let alpha = format_number(*alpha);
                    write!(f, "rgba({red}, {green}, {blue}, {alpha})")
                } else {
                    write!(f, "#{:02x}{:02x}{:02x}", red as u8, green as u8, blue as u8)
                }
            }
            Self::Quoted(text, quote) => write!(f, "{quote}{text}{quote}"),
        }
    }
}

/// Formats a number with at most eight decimals.
fn format_number(number: f64) -> String {
    let text = format!("{number:.8}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" { "0".to_owned() } else { text.to_owned() }
}

/// Parses a number with an optional unit.
fn parse_number(word: &str) -> Option<LessValue> {
    let digits = word.trim_start_matches(['-', '+']);
    if word.len() > digits.len() + 1
        || !digits.starts_with(|next: char| next.is_ascii_digit() || next == '.')
    {
        return None;
    }
    let end =
        digits.find(|next: char| !next.is_ascii_digit() && next != '.').unwrap_or(digits.len());
    let (number, unit) = digits.split_at(end);
    let is_unit = unit == "%" || unit.chars().all(|next| next.is_ascii_alphabetic());
    let number: f64 = number.parse().ok().filter(|_| is_unit)?;
    Some(LessValue::number(if word.starts_with('-') { -number } else { number }, unit))
}

/// Parses `#rgb`, `#rrggbb` or a form with opacity.
fn parse_hex_color(word: &str) -> Option<([f64; 3], f64)> {
    let digits = word.strip_prefix('#')?;
    let value = |text: &str| u8::from_str_radix(text, 16).ok().map(f64::from);
    let digits = match digits.len() {
        3 | 4 => digits.chars().flat_map(|digit| [digit, digit]).collect(),
        6 | 8 => digits.to_owned(),
        _ => return None,
    };
    let channel = |at: usize| digits.get(at * 2..at * 2 + 2).and_then(value);
    let alpha = if digits.len() == 8 { channel(3)? / 255.0 } else { 1.0 };
    Some(([channel(0)?, channel(1)?, channel(2)?], alpha))
}
