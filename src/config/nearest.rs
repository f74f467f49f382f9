//! The known name nearest to a mistyped one.

/// Beyond this many edits a suggestion confuses more than it helps.
const EDITS_MAX: usize = 6;

/// The candidate that takes the fewest single-character edits to reach, if it is close enough to
/// be what was meant. Ties go to the earlier candidate.
pub fn nearest<'a>(wanted: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let limit = EDITS_MAX.min(wanted.chars().count() / 2 + 1);
    candidates
        .into_iter()
        .map(|candidate| (edits(wanted, candidate), candidate))
        .filter(|(distance, _)| *distance <= limit)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Levenshtein's distance: insertions, deletions and replacements, each at cost 1.
fn edits(left: &str, right: &str) -> usize {
    let right: Vec<char> = right.chars().collect();
    let mut previous: Vec<usize> = (0..=right.len()).collect();
    for (row, left_char) in left.chars().enumerate() {
        let mut current = Vec::with_capacity(previous.len());
        current.push(row + 1);
        for (column, right_char) in right.iter().enumerate() {
            let replaced = previous[column] + usize::from(left_char != *right_char);
            current.push(
                replaced
                    .min(previous[column + 1] + 1)
                    .min(current[column] + 1),
            );
        }
        previous = current;
    }
    previous[right.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_finds_its_name() {
        let names = [
            "retention.ms",
            "retention.bytes",
            "segment.bytes",
            "num.partitions",
        ];
        let cases = [
            ("retention.sm", Some("retention.ms")),
            ("retension.bytes", Some("retention.bytes")),
            ("num.partition", Some("num.partitions")),
            ("colour", None),
            ("", None),
        ];
        for (wanted, want) in cases {
            assert_eq!(nearest(wanted, names), want, "{wanted:?}");
        }
    }
}
