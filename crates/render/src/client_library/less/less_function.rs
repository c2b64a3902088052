//! The functions of LESS on numbers, texts and colors.

use super::less_value::LessValue;

/// Calls a function; `None` if LESS has none of this name here, so that the call is CSS.
///
/// # Errors
/// If the arguments have the wrong types.
pub(super) fn call_function(
    name: &str,
    arguments: &[LessValue],
) -> Option<Result<LessValue, String>> {
    let malformed = || Err(format!("`{name}` has arguments of the wrong types"));
    let color_call = |change: &dyn Fn([f64; 3], f64, f64) -> LessValue| {
        let [color, amount, ..] = arguments else { return malformed() };
        match (color.to_color(), amount) {
            (Some((channels, alpha)), LessValue::Number { number, .. }) => {
                Ok(change(channels, alpha, *number / 100.0))
            }
            _ => malformed(),
        }
    };
    let lighten = |channels: [f64; 3], alpha, amount: f64| {
        let [hue, saturation, lightness] = to_hsl(channels);
        LessValue::color(from_hsl([hue, saturation, (lightness + amount).clamp(0.0, 1.0)]), alpha)
    };
    let saturate = |channels: [f64; 3], alpha, amount: f64| {
        let [hue, saturation, lightness] = to_hsl(channels);
        LessValue::color(from_hsl([hue, (saturation + amount).clamp(0.0, 1.0), lightness]), alpha)
    };
    let mix_with = |other: [f64; 3]| {
        color_call(&|channels, alpha, amount| {
            let mixed =
                zip_channels(other, channels, |other, own| other * amount + own * (1.0 - amount));
            LessValue::color(mixed, alpha)
        })
    };
    Some(match name {
        "fade" => color_call(&|channels, _, amount| LessValue::color(channels, amount)),
        "fadein" => {
            color_call(&|channels, alpha, amount| LessValue::color(channels, alpha + amount))
        }
        "fadeout" => {
            color_call(&|channels, alpha, amount| LessValue::color(channels, alpha - amount))
        }
        "lighten" => color_call(&lighten),
        "darken" => color_call(&|channels, alpha, amount| lighten(channels, alpha, -amount)),
        "saturate" if arguments.len() > 1 => color_call(&saturate),
        "desaturate" => color_call(&|channels, alpha, amount| saturate(channels, alpha, -amount)),
        "greyscale" => match arguments.first().and_then(LessValue::to_color) {
            Some((channels, alpha)) => Ok(saturate(channels, alpha, -1.0)),
            None => malformed(),
        },
        "spin" => color_call(&|channels, alpha, amount| {
            let [hue, saturation, lightness] = to_hsl(channels);
            let hue = (hue + amount * 100.0 / 360.0).rem_euclid(1.0);
            LessValue::color(from_hsl([hue, saturation, lightness]), alpha)
        }),
        "tint" => mix_with([255.0; 3]),
        "shade" => mix_with([0.0; 3]),
        "mix" => mix(arguments).map_or_else(malformed, Ok),
        "percentage" => match arguments {
            [LessValue::Number { number, .. }] => Ok(LessValue::number(number * 100.0, "%")),
            _ => malformed(),
        },
        "floor" | "ceil" | "abs" | "sqrt" | "round" => match arguments {
            [LessValue::Number { number, unit }, digits @ ..] => {
                let places = match digits.first() {
                    Some(LessValue::Number { number, .. }) => number.clamp(0.0, 8.0) as i32,
                    _ => 0,
                };
                let scale = 10_f64.powi(places);
                let result = match name {
                    "floor" => number.floor(),
                    "ceil" => number.ceil(),
                    "abs" => number.abs(),
                    "sqrt" => number.sqrt(),
                    _ => (number * scale).round() / scale,
                };
                Ok(LessValue::number(result, unit))
            }
            // CSS has functions of these names.
            _ => return None,
        },
        "mod" | "pow" => match arguments {
            [LessValue::Number { number: left, unit }, LessValue::Number { number: right, .. }] => {
                let result = if name == "mod" { left % right } else { left.powf(*right) };
                Ok(LessValue::number(result, unit))
            }
            _ => return None,
        },
        "unit" => match arguments {
            [LessValue::Number { number, .. }] => Ok(LessValue::number(*number, "")),
            [LessValue::Number { number, .. }, unit] => {
                Ok(LessValue::number(*number, &unit.plain_text()))
            }
            _ => malformed(),
        },
        "e" => match arguments {
            [text] => Ok(LessValue::Text(text.plain_text())),
            _ => malformed(),
        },
        "red" | "green" | "blue" | "alpha" => {
            // `alpha(opacity=50)` is a filter of old browsers.
            let (channels, alpha) = arguments.first().and_then(LessValue::to_color)?;
            let [red, green, blue] = channels;
            Ok(LessValue::number(
                match name {
                    "red" => red,
                    "green" => green,
                    "blue" => blue,
                    _ => alpha,
                },
                "",
            ))
        }
        _ => return None,
    })
}

/// Mixes two colors by weight.
fn mix(arguments: &[LessValue]) -> Option<LessValue> {
    let (first, second) = (arguments.first()?.to_color()?, arguments.get(1)?.to_color()?);
    let weight = match arguments.get(2) {
        Some(LessValue::Number { number, .. }) => number / 100.0,
        _ => 0.5,
    };
    let bias = first.1 - second.1;
    let scaled = weight * 2.0 - 1.0;
    let share = if (scaled * bias + 1.0).abs() < f64::EPSILON {
        scaled
    } else {
        (scaled + bias) / (1.0 + scaled * bias)
    };
    let share = f64::midpoint(share, 1.0);
    let channels =
        zip_channels(first.0, second.0, |one, other| one * share + other * (1.0 - share));
    Some(LessValue::color(channels, first.1 * weight + second.1 * (1.0 - weight)))
}

fn zip_channels(left: [f64; 3], right: [f64; 3], combine: impl Fn(f64, f64) -> f64) -> [f64; 3] {
    let ([a, b, c], [x, y, z]) = (left, right);
    [combine(a, x), combine(b, y), combine(c, z)]
}

/// Converts red, green and blue from 0 to 255 to hue, saturation and lightness from 0 to 1.
fn to_hsl(channels: [f64; 3]) -> [f64; 3] {
    let [red, green, blue] = channels.map(|channel| channel / 255.0);
    let (highest, lowest) = (red.max(green).max(blue), red.min(green).min(blue));
    let lightness = f64::midpoint(highest, lowest);
    let range = highest - lowest;
    if range <= 0.0 {
        return [0.0, 0.0, lightness];
    }
    let saturation =
        if lightness > 0.5 { range / (2.0 - highest - lowest) } else { range / (highest + lowest) };
    let sector = if highest <= red {
        (green - blue) / range + if green < blue { 6.0 } else { 0.0 }
    } else if highest <= green {
        (blue - red) / range + 2.0
    } else {
        (red - green) / range + 4.0
    };
    [sector / 6.0, saturation, lightness]
}

/// Converts hue, saturation and lightness from 0 to 1 to red, green and blue from 0 to 255.
fn from_hsl([hue, saturation, lightness]: [f64; 3]) -> [f64; 3] {
    let high = if lightness <= 0.5 {
        lightness * (saturation + 1.0)
    } else {
        lightness + saturation - lightness * saturation
    };
    let low = lightness * 2.0 - high;
    let channel = |hue: f64| {
        let hue = hue.rem_euclid(1.0);
        let value = if hue * 6.0 < 1.0 {
            low + (high - low) * hue * 6.0
        } else if hue * 2.0 < 1.0 {
            high
        } else if hue * 3.0 < 2.0 {
            low + (high - low) * (2.0 / 3.0 - hue) * 6.0
        } else {
            low
        };
        value * 255.0
    };
    [channel(hue + 1.0 / 3.0), channel(hue), channel(hue - 1.0 / 3.0)]
}
