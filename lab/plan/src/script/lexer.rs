//! Tokens of a script: names, numbers, strings, operators, and the line breaks that end statements in Groovy.

#[derive(Debug, Clone, PartialEq)]
pub(super) enum ScriptToken {
    Name(String),
    Int(i64),
    Double(f64),
    /// A string in single quotes, or without embedded expressions.
    Text(String),
    /// A string in double quotes: literal parts, and expressions between them.
    Interpolated(Vec<(String, String)>, String),
    Sign(&'static str),
    LineBreak,
}

/// Longer ones first, so that the longest operator matches.
const SIGNS: [&str; 48] = [
    "==~", ">>>", "===", "!==", "...", "?.", "?:", "=~", "==", "!=", "<=", ">=", "&&", "||", "++",
    "--", "+=", "-=", "*=", "/=", "%=", "->", "<<", "+", "-", "*", "/", "%", "=", "<", ">", "!",
    "?", ":", ";", ",", ".", "(", ")", "[", "]", "{", "}", "&", "|", "^", "~", "@",
];

/// Splits a script into tokens with their line numbers.
///
/// # Errors
/// The invalid token.
pub(super) fn tokenize(text: &str, fills: bool) -> Result<Vec<(ScriptToken, usize)>, String> {
    let mut tokens = Vec::new();
    let mut rest = text;
    let mut line = 1;
    while let Some(first) = rest.chars().next() {
        let length = if first == '\n' {
            tokens.push((ScriptToken::LineBreak, line));
            line += 1;
            1
        } else if first.is_whitespace() {
            first.len_utf8()
        } else if rest.starts_with("//") || rest.starts_with('#') {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            let end = rest.find("*/").ok_or("unterminated comment")? + 2;
            line += rest.get(..end).unwrap_or_default().matches('\n').count();
            end
        } else if first.is_ascii_digit() {
            let (token, length) = lex_number(rest)?;
            tokens.push((token, line));
            length
        } else if first == '"' || first == '\'' {
            let (token, length) = lex_quoted(rest, first, fills && first == '"')?;
            tokens.push((token, line));
            line += rest.get(..length).unwrap_or_default().matches('\n').count();
            length
        } else if first.is_alphabetic() || first == '_' || first == '$' {
            let end = rest
                .find(|c: char| !c.is_alphanumeric() && c != '_' && c != '$')
                .unwrap_or(rest.len());
            tokens.push((ScriptToken::Name(rest.get(..end).unwrap_or_default().to_owned()), line));
            end
        } else {
            let sign = SIGNS.into_iter().find(|sign| rest.starts_with(sign));
            let sign = sign.ok_or_else(|| format!("line {line}: `{first}` is not supported"))?;
            tokens.push((ScriptToken::Sign(sign), line));
            sign.len()
        };
        rest = rest.get(length..).unwrap_or_default();
    }
    Ok(tokens)
}

fn lex_number(text: &str) -> Result<(ScriptToken, usize), String> {
    let mut end = 0;
    let mut is_double = false;
    for (at, c) in text.char_indices() {
        let next_is_digit =
            text.get(at + 1..).is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
        match c {
            '0'..='9' | '_' => {}
            '.' if !is_double && next_is_digit => is_double = true,
            _ => break,
        }
        end = at + 1;
    }
    let digits = text.get(..end).unwrap_or_default().replace('_', "");
    let suffix = text.get(end..).and_then(|rest| rest.chars().next()).unwrap_or(' ');
    let wrong = || format!("`{digits}` is not a number");
    let token = if is_double || matches!(suffix, 'd' | 'D' | 'f' | 'F') {
        ScriptToken::Double(digits.parse().map_err(|_| wrong())?)
    } else {
        ScriptToken::Int(digits.parse().map_err(|_| wrong())?)
    };
    let has_suffix = matches!(suffix, 'L' | 'l' | 'd' | 'D' | 'f' | 'F' | 'G' | 'g');
    Ok((token, end + usize::from(has_suffix)))
}

fn lex_quoted(text: &str, quote: char, fills: bool) -> Result<(ScriptToken, usize), String> {
    let triple: String = std::iter::repeat_n(quote, 3).collect();
    let mark = if text.starts_with(&triple) { triple } else { quote.to_string() };
    let mut pieces: Vec<(String, String)> = Vec::new();
    let mut out = String::new();
    let mut at = mark.len();
    loop {
        let rest = text.get(at..).unwrap_or_default();
        if rest.starts_with(&mark) {
            let token = if pieces.is_empty() {
                ScriptToken::Text(out)
            } else {
                ScriptToken::Interpolated(pieces, out)
            };
            return Ok((token, at + mark.len()));
        }
        let Some(c) = rest.chars().next() else { return Err("unterminated string".to_owned()) };
        if c == '\\' {
            let next = rest.chars().nth(1).ok_or("unterminated string")?;
            out.push(match next {
                'n' => '\n',
                't' => '\t',
                'r' => '\r',
                'b' => '\u{8}',
                'u' => {
                    let digits = rest.get(2..6).unwrap_or_default();
                    let code = u32::from_str_radix(digits, 16).ok().and_then(char::from_u32);
                    at += 4;
                    code.ok_or("`\\u` must be followed by four hexadecimal digits")?
                }
                letter => letter,
            });
            at += 1 + next.len_utf8();
        } else if c == '\n' && mark.len() == 1 {
            return Err("unterminated string on this line".to_owned());
        } else if fills && c == '$' {
            let inside = rest.get(1..).unwrap_or_default();
            let (expression, length) = if inside.starts_with('{') {
                let end = inside.find('}').ok_or("unterminated `${`")?;
                (inside.get(1..end).unwrap_or_default(), end + 2)
            } else {
                let end =
                    inside.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(inside.len());
                (inside.get(..end).unwrap_or_default(), end + 1)
            };
            if expression.is_empty() {
                out.push('$');
            } else {
                pieces.push((std::mem::take(&mut out), expression.to_owned()));
            }
            at += length;
        } else {
            out.push(c);
            at += c.len_utf8();
        }
    }
}
