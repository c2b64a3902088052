//! The encoding of forms, as Java's `URLEncoder` and `URLDecoder` do.

use std::fmt::Write as _;

/// Decodes form encoding as Java does.
pub(super) fn decode_form(text: &str) -> Result<String, (String, String)> {
    decode_form_bytes(text.as_bytes()).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// Decodes the bytes of a form.
pub(super) fn decode_form_bytes(text: &[u8]) -> Result<Vec<u8>, (String, String)> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        match byte {
            b'+' => bytes.push(b' '),
            b'%' => {
                let fault = |words: &str| {
                    (
                        "java.lang.IllegalArgumentException".to_owned(),
                        format!("URLDecoder: {words}"),
                    )
                };
                let digits = after
                    .get(..2)
                    .ok_or_else(|| fault("Incomplete trailing escape (%) pattern"))?;
                let value = std::str::from_utf8(digits)
                    .ok()
                    .filter(|_| digits.iter().all(u8::is_ascii_hexdigit))
                    .and_then(|digits| u8::from_str_radix(digits, 16).ok())
                    .ok_or_else(|| fault("Illegal hex characters in escape (%) pattern"))?;
                bytes.push(value);
                rest = after.get(2..).unwrap_or_default();
            }
            plain_byte => bytes.push(plain_byte),
        }
    }
    Ok(bytes)
}

/// Encodes as forms do: a space becomes a plus.
pub(super) fn encode_form(text: &str) -> String {
    encode_form_bytes(text.as_bytes())
}

/// Encodes the bytes of a form.
pub(super) fn encode_form_bytes(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for &byte in bytes {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'-' | b'*' | b'_' => {
                out.push(char::from(byte))
            }
            b' ' => out.push('+'),
            _ => {
                write!(out, "%{byte:02X}").ok();
            }
        }
    }
    out
}
