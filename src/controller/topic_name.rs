//! Which topic names are taken (reference: Kafka's own rules, kept because clients check them).

/// Kafka's limit: a partition's directory name must fit a file name.
pub const TOPIC_NAME_BYTES_MAX: usize = 249;

/// The topic of Kafka's own controllers. There is none here, and none may look like it: tools take
/// its name for the quorum's log.
pub const RESERVED: &str = "__cluster_metadata";

/// Why a name cannot be a topic's, as one sentence.
pub fn check(name: &str) -> Result<(), String> {
    if name.is_empty() {
        return Err("the topic name is empty".into());
    }
    if name == "." || name == ".." {
        return Err(format!("the topic name cannot be {name:?}"));
    }
    if name.len() > TOPIC_NAME_BYTES_MAX {
        return Err(format!(
            "the topic name has {} characters, at most {TOPIC_NAME_BYTES_MAX} are allowed",
            name.len()
        ));
    }
    match name
        .chars()
        .find(|c| !matches!(c, 'a'..='z' | 'A'..='Z' | '0'..='9' | '.' | '_' | '-'))
    {
        Some(stranger) => Err(format!(
            "the topic name {name:?} contains {stranger:?}; letters, digits, '.', '_' and '-' are \
             allowed"
        )),
        None => Ok(()),
    }
}

/// What two names must not share: metric names turn dots into underscores, so that `a.b` and
/// `a_b` would be one.
pub fn collision_key(name: &str) -> String {
    name.replace('.', "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked() {
        let longest = "x".repeat(249);
        let too_long = "x".repeat(250);
        let cases: &[(&str, bool)] = &[
            ("orders", true),
            ("a.b_c-D9", true),
            ("...", true),
            (&longest, true),
            (&too_long, false),
            ("", false),
            (".", false),
            ("..", false),
            ("a b", false),
            ("a/b", false),
            ("größe", false),
            ("a\n", false),
        ];
        for (name, want) in cases {
            assert_eq!(check(name).is_ok(), *want, "{name:?}");
        }
    }

    #[test]
    fn a_dot_and_an_underscore_collide() {
        assert_eq!(collision_key("a.b"), collision_key("a_b"));
        assert_ne!(collision_key("a-b"), collision_key("a_b"));
    }
}
