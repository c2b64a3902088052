//! The differences between two responses to the same request.

use std::fmt;

use super::ComparisonRules;

/// A response prepared for comparison.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct ComparedResponse {
    pub(super) status: u16,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
    pub(super) is_text: bool,
    /// The site that responded, `host:port`.
    pub(super) site_authority: String,
}

/// The part in which two responses differ.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum DifferenceAspect {
    /// The status.
    Status,
    /// A header, by its name in lower case.
    Header(String),
    /// The body, after the rules.
    Body,
    /// Only one site received the request, because the plan took another path.
    Sequence,
}

impl fmt::Display for DifferenceAspect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status => f.write_str("status"),
            Self::Header(name) => write!(f, "header {name}"),
            Self::Body => f.write_str("body"),
            Self::Sequence => f.write_str("request"),
        }
    }
}

/// One difference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResponseDifference {
    /// Method and path, such as `GET /path`.
    pub request_line: String,
    /// The part that differs.
    pub aspect: DifferenceAspect,
    /// Lines of before with `-`, lines of after with `+`.
    pub diff: String,
}

/// Returns all differences between two responses.
pub(super) fn response_differences(
    request: &str,
    before: &ComparedResponse,
    after: &ComparedResponse,
    rules: &ComparisonRules,
) -> Vec<ResponseDifference> {
    let mut differences = Vec::new();
    let mut note = |aspect: DifferenceAspect, diff: String| {
        differences.push(ResponseDifference { request_line: request.to_owned(), aspect, diff });
    };
    if before.status != after.status {
        note(DifferenceAspect::Status, format!("- {}\n+ {}", before.status, after.status));
    }
    let (before_headers, after_headers) =
        (compared_headers(before, rules), compared_headers(after, rules));
    let mut names: Vec<&String> =
        before_headers.iter().chain(&after_headers).map(|(name, _)| name).collect();
    names.sort_unstable();
    names.dedup();
    for name in names {
        let of = |side: &[(String, String)]| -> Vec<String> {
            let mut values: Vec<String> = side
                .iter()
                .filter(|(key, _)| key == name)
                .map(|(_, value)| value.clone())
                .collect();
            if name == "set-cookie" {
                values.sort_unstable();
            }
            values
        };
        let (before_values, after_values) = (of(&before_headers), of(&after_headers));
        if before_values != after_values {
            note(DifferenceAspect::Header(name.clone()), diff_lines(&before_values, &after_values));
        }
    }
    if before.is_text && after.is_text {
        let pieces = |side: &ComparedResponse| {
            split_for_diff(
                &rules.normalize_text(&String::from_utf8_lossy(&side.body), &side.site_authority),
            )
        };
        let (before_pieces, after_pieces) = (pieces(before), pieces(after));
        if before_pieces != after_pieces {
            note(DifferenceAspect::Body, diff_lines(&before_pieces, &after_pieces));
        }
    } else if before.body != after.body {
        let at = before.body.iter().zip(&after.body).position(|(left, right)| left != right);
        let at = at.unwrap_or_else(|| before.body.len().min(after.body.len()));
        note(
            DifferenceAspect::Body,
            format!(
                "- {} bytes\n+ {} bytes, first difference at offset {at}",
                before.body.len(),
                after.body.len()
            ),
        );
    }
    differences
}

fn compared_headers(side: &ComparedResponse, rules: &ComparisonRules) -> Vec<(String, String)> {
    side.headers
        .iter()
        .map(|(name, value)| (name.to_ascii_lowercase(), value))
        .filter(|(name, _)| rules.is_header_compared(name))
        .map(|(name, value)| {
            let value = match name.as_str() {
                "set-cookie" => rules.normalize_cookie(value),
                _ => rules.normalize_text(value, &side.site_authority),
            };
            (name, value)
        })
        .collect()
}

/// Splits a text into the units of a diff: lines, and tags if a page is one line.
fn split_for_diff(text: &str) -> Vec<String> {
    text.lines()
        .flat_map(|line| {
            let mut parts = Vec::new();
            let mut rest = line;
            while rest.len() > 160
                && let Some(at) = rest.find("><")
                && let (Some(head), Some(tail)) = (rest.get(..=at), rest.get(at + 1..))
            {
                parts.push(head.to_owned());
                rest = tail;
            }
            parts.push(rest.to_owned());
            parts
        })
        .collect()
}

/// Maximum number of lines shown of a diff.
const MAX_DIFF_LINES: usize = 40;
/// Maximum size of the table of common lines. Above it, everything between the first and the last change is shown as
/// one change.
const MAX_DIFF_CELLS: usize = 4_000_000;
const MAX_DIFF_LINE_WIDTH: usize = 200;

/// Returns the removed and added lines, in order.
pub(super) fn diff_lines(before: &[String], after: &[String]) -> String {
    let start = before.iter().zip(after).take_while(|(left, right)| left == right).count();
    let (old_lines, new_lines) = (&before.get(start..), &after.get(start..));
    let (old_lines, new_lines) = (old_lines.unwrap_or_default(), new_lines.unwrap_or_default());
    let end = old_lines
        .iter()
        .rev()
        .zip(new_lines.iter().rev())
        .take_while(|(left, right)| left == right)
        .count();
    let old_lines = old_lines.get(..old_lines.len() - end).unwrap_or_default();
    let new_lines = new_lines.get(..new_lines.len() - end).unwrap_or_default();
    let mut lines: Vec<String> = Vec::new();
    if old_lines.len().saturating_mul(new_lines.len()) > MAX_DIFF_CELLS {
        lines.extend(old_lines.iter().map(|line| format!("- {}", truncate_diff_line(line))));
        lines.extend(new_lines.iter().map(|line| format!("+ {}", truncate_diff_line(line))));
    } else {
        append_edit_script(old_lines, new_lines, &mut lines);
    }
    let more = lines.len().saturating_sub(MAX_DIFF_LINES);
    lines.truncate(MAX_DIFF_LINES);
    if more > 0 {
        lines.push(format!("... {more} more lines"));
    }
    lines.join("\n")
}

/// Appends the shortest edit script, computed from the lengths of common subsequences.
fn append_edit_script(old_lines: &[String], new_lines: &[String], lines: &mut Vec<String>) {
    let width = new_lines.len() + 1;
    let mut lengths = vec![0u32; (old_lines.len() + 1) * width];
    let at = |lengths: &[u32], row: usize, column: usize| {
        lengths.get(row * width + column).copied().unwrap_or(0)
    };
    for (row, left) in old_lines.iter().enumerate().rev() {
        for (column, right) in new_lines.iter().enumerate().rev() {
            let length = if left == right {
                at(&lengths, row + 1, column + 1) + 1
            } else {
                at(&lengths, row + 1, column).max(at(&lengths, row, column + 1))
            };
            if let Some(cell) = lengths.get_mut(row * width + column) {
                *cell = length;
            }
        }
    }
    let (mut row, mut column) = (0, 0);
    loop {
        match (old_lines.get(row), new_lines.get(column)) {
            (Some(left), Some(right)) if left == right => {
                row += 1;
                column += 1;
            }
            (Some(left), right)
                if right.is_none()
                    || at(&lengths, row + 1, column) >= at(&lengths, row, column + 1) =>
            {
                lines.push(format!("- {}", truncate_diff_line(left)));
                row += 1;
            }
            (_, Some(right)) => {
                lines.push(format!("+ {}", truncate_diff_line(right)));
                column += 1;
            }
            _ => return,
        }
    }
}

fn truncate_diff_line(line: &str) -> String {
    if line.chars().count() <= MAX_DIFF_LINE_WIDTH {
        return line.to_owned();
    }
    let mut text: String = line.chars().take(MAX_DIFF_LINE_WIDTH).collect();
    text.push_str("...");
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn lines(text: &str) -> Vec<String> {
        text.chars().map(String::from).collect()
    }

    #[test]
    fn a_difference_shows_what_went_and_what_came() {
        assert_eq!(diff_lines(&lines("abcd"), &lines("abxd")), "- c\n+ x");
        assert_eq!(diff_lines(&lines("abcd"), &lines("bcde")), "- a\n+ e");
        assert_eq!(diff_lines(&lines("ab"), &lines("ab")), "");
        assert_eq!(diff_lines(&[], &lines("a")), "+ a");
        let long = diff_lines(&lines(&"a".repeat(100)), &[]);
        assert!(long.ends_with("... 60 more lines"), "{long}");
    }

    #[test]
    fn a_page_of_one_line_is_split_at_its_tags() {
        let page = format!("<html>{}<p>x</p></html>", "<i></i>".repeat(40));
        assert!(split_for_diff(&page).len() > 20);
        assert_eq!(split_for_diff("a\nb"), ["a", "b"]);
    }

    proptest! {
        /// Applying the edit script to one side yields the other.
        #[test]
        fn changes_lead_from_one_side_to_the_other(one in "[abc]{0,12}", two in "[abc]{0,12}") {
            let text = diff_lines(&lines(&one), &lines(&two));
            let count = |sign: char| text.lines().filter(|line| line.starts_with(sign)).count();
            prop_assert_eq!(one.len() as i64 - count('-') as i64, two.len() as i64 - count('+') as i64);
            prop_assert_eq!(text.is_empty(), one == two);
        }
    }
}
