//! Reading source text: the tree of files, code without comments and literals, words and paths.

use std::collections::BTreeSet;
use std::path::Path;

/// Directories that hold no source of ours.
const SKIPPED: &[&str] = &["target", "node_modules", "corduroy-data", "__pycache__"];
/// Endings of the files that are read; a file without an ending is read where it starts with `#!`.
const ENDINGS: &[&str] = &[
    "rs", "toml", "md", "py", "sh", "java", "xml", "html", "css", "js", "yml", "txt",
];

/// One text file of the repository.
pub struct SourceFile {
    /// Relative to the root, with `/`.
    pub path: String,
    pub text: String,
}

impl SourceFile {
    pub fn has_ending(&self, ending: &str) -> bool {
        Path::new(&self.path)
            .extension()
            .is_some_and(|found| found == ending)
    }

    pub fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or(&self.path)
    }
}

/// Every text file below `root` that is ours, in the order of their paths. A directory whose name
/// starts with a dot is skipped, but for `.ci`.
pub fn tree(root: &Path) -> Vec<SourceFile> {
    let mut files = Vec::new();
    let mut open = vec![root.to_path_buf()];
    while let Some(directory) = open.pop() {
        for entry in std::fs::read_dir(&directory).expect("a directory of the repository") {
            let entry = entry.expect("a directory entry");
            let path = entry.path();
            let name = entry.file_name().to_string_lossy().into_owned();
            let kind = entry.file_type().expect("a file type");
            if kind.is_dir() {
                let hidden = name.starts_with('.') && name != ".ci";
                if !hidden && !SKIPPED.contains(&name.as_str()) {
                    open.push(path);
                }
                continue;
            }
            let ending = path
                .extension()
                .map(|ending| ending.to_string_lossy().into_owned());
            let wanted = match &ending {
                Some(ending) => ENDINGS.contains(&ending.as_str()),
                None => true,
            };
            if !kind.is_file() || !wanted {
                continue;
            }
            let Ok(text) = std::fs::read_to_string(&path) else {
                continue;
            };
            if ending.is_none() && !text.starts_with("#!") {
                continue;
            }
            let relative = path.strip_prefix(root).expect("below the root");
            files.push(SourceFile {
                path: relative.to_string_lossy().into_owned(),
                text,
            });
        }
    }
    files.sort_by(|left, right| left.path.cmp(&right.path));
    files
}

/// Rust text with comments and the insides of string and character literals blanked; line numbers
/// stay.
pub fn code_of(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut code = String::with_capacity(text.len());
    let mut at = 0;
    let blank = |code: &mut String, from: usize, to: usize| {
        code.extend(
            chars[from..to.min(chars.len())]
                .iter()
                .map(|c| if *c == '\n' { '\n' } else { ' ' }),
        );
    };
    while at < chars.len() {
        let end = if chars[at..].starts_with(&['/', '/']) {
            chars[at..]
                .iter()
                .position(|c| *c == '\n')
                .map_or(chars.len(), |n| at + n)
        } else if chars[at..].starts_with(&['/', '*']) {
            block_comment_end(&chars, at)
        } else if let Some(end) = raw_string_end(&chars, at) {
            end
        } else if chars[at] == '"' {
            string_end(&chars, at)
        } else if let Some(end) = char_literal_end(&chars, at) {
            end
        } else {
            code.push(chars[at]);
            at += 1;
            continue;
        };
        blank(&mut code, at, end);
        at = end;
    }
    code
}

fn block_comment_end(chars: &[char], start: usize) -> usize {
    let mut depth = 0;
    let mut at = start;
    while at < chars.len() {
        if chars[at..].starts_with(&['/', '*']) {
            depth += 1;
            at += 2;
        } else if chars[at..].starts_with(&['*', '/']) {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    chars.len()
}

/// `r"..."`, `r#"..."#`, `br"..."`: where it ends, if one starts here.
fn raw_string_end(chars: &[char], start: usize) -> Option<usize> {
    let follows_word = start > 0 && (chars[start - 1].is_alphanumeric() || chars[start - 1] == '_');
    if follows_word || chars[start] != 'r' {
        // The `b` of `br` stays in the code as a letter of its own; that harms no scan.
        return None;
    }
    let hashes = chars[start + 1..].iter().take_while(|c| **c == '#').count();
    if chars.get(start + 1 + hashes) != Some(&'"') {
        return None;
    }
    let mut at = start + 2 + hashes;
    while at < chars.len() {
        let closes = chars[at] == '"'
            && chars[at + 1..]
                .iter()
                .take(hashes)
                .filter(|c| **c == '#')
                .count()
                == hashes;
        if closes {
            return Some(at + 1 + hashes);
        }
        at += 1;
    }
    Some(chars.len())
}

fn string_end(chars: &[char], start: usize) -> usize {
    let mut at = start + 1;
    while at < chars.len() {
        match chars[at] {
            '\\' => at += 2,
            '"' => return at + 1,
            _ => at += 1,
        }
    }
    chars.len()
}

/// A character literal, not a lifetime.
fn char_literal_end(chars: &[char], start: usize) -> Option<usize> {
    if chars[start] != '\'' {
        return None;
    }
    if chars.get(start + 1) == Some(&'\\') {
        // Long enough for `'\u{10ffff}'`; the character after the backslash may be a quote.
        return (start + 3..start + 14)
            .find(|at| chars.get(*at) == Some(&'\''))
            .map(|at| at + 1);
    }
    (chars.get(start + 2) == Some(&'\'')).then_some(start + 3)
}

/// Whether `word` stands in `text` with no letter, digit or underscore beside it.
pub fn names_word(text: &str, word: &str) -> bool {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(word).any(|(at, _)| {
        let before = text[..at].chars().next_back().is_some_and(part);
        let after = text[at + word.len()..].chars().next().is_some_and(part);
        !before && (!after || word.ends_with('!'))
    })
}

/// The names that directly follow `crate::`, alone or in a group: `crate::{a::b, c}` gives `a`, `c`.
pub fn crate_paths(code: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for (at, _) in code.match_indices("crate::") {
        let rest = &code[at + "crate::".len()..];
        let first = |text: &str| -> String {
            text.trim_start()
                .chars()
                .take_while(|c| c.is_alphanumeric() || *c == '_')
                .collect()
        };
        let Some(group) = rest.trim_start().strip_prefix('{') else {
            names.insert(first(rest));
            continue;
        };
        let mut depth = 1;
        let mut item = String::new();
        for c in group.chars() {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                ',' if depth == 1 => {
                    names.insert(first(&item));
                    item.clear();
                    continue;
                }
                _ => {}
            }
            if depth == 0 {
                break;
            }
            item.push(c);
        }
        names.insert(first(&item));
    }
    names.remove("");
    names
}

#[test]
fn comments_and_literals_are_not_code() {
    let source = r##"let a = "x // openraft"; // openraft
/* openraft /* nested */ openraft */ let b = r#"openraft " "#; let c = '"'; let d: &'static str = "\"openraft";
let e = '\''; keep(openraft_like);"##;
    let code = code_of(source);
    assert!(!names_word(&code, "openraft"), "{code}");
    assert!(names_word(&code, "openraft_like"), "{code}");
    assert_eq!(code.lines().count(), 3);
}

#[test]
fn words_have_edges() {
    assert!(names_word("a openraft::b", "openraft"));
    assert!(!names_word("a openraft_rt", "openraft"));
    assert!(!names_word("my_openraft", "openraft"));
}

#[test]
fn grouped_paths_are_seen() {
    let seen = crate_paths("use crate::{kafka::{a, b}, shard::c}; use crate::admin::d; crate ::x");
    assert_eq!(
        seen.into_iter().collect::<Vec<_>>(),
        ["admin", "kafka", "shard"]
    );
}
