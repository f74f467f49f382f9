//! The build with planted bugs: where it lies, whether it is one, how one gets it.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use corduroy_env::planted::Bug;

pub use corduroy_env::planted::VARIABLE;

/// Builds the node and the simulator with planted bugs, where [`find`] looks for them.
pub const BUILD: &str =
    "cargo build --profile planted -p corduroy -p corduroy-sim --features planted-bugs";
/// What only such a build says of itself.
const MARK: &str = "+planted-bugs";
/// Where cargo puts it, seen from its target directory.
const PLACE: &str = "planted/corduroy";

/// Whether the build with planted bugs is to be had.
#[derive(Debug)]
pub enum Build {
    /// Its program.
    Found(PathBuf),
    /// It is not to be had here: why, in a sentence.
    Missing(String),
}

/// The node with planted bugs: the one that was named, or the one that [`BUILD`] makes.
///
/// # Errors
/// A program that cannot be run.
pub fn find(asked: Option<&Path>) -> anyhow::Result<Build> {
    let built = || {
        let own = std::env::current_exe().ok()?;
        let beside = own.parent()?.parent()?.join(PLACE);
        let here = Path::new("target").join(PLACE);
        [beside, here].into_iter().find(|path| path.is_file())
    };
    let path = match asked {
        Some(path) if path.is_file() => path.to_owned(),
        Some(path) => {
            let why = format!("there is no program at {}", path.display());
            return Ok(Build::Missing(why));
        }
        None => match built() {
            Some(path) => path,
            None => {
                let why = "there is no build with planted bugs".to_owned();
                return Ok(Build::Missing(why));
            }
        },
    };
    let path = std::path::absolute(path)?;
    let output = Command::new(&path)
        .arg("--version")
        .output()
        .with_context(|| format!("cannot run {}", path.display()))?;
    let version = String::from_utf8_lossy(&output.stdout);
    if !version.contains(MARK) {
        return Ok(Build::Missing(format!(
            "{} ({}) is a build without planted bugs: it would be tested as it is",
            path.display(),
            version.trim()
        )));
    }
    Ok(Build::Found(path))
}

/// That a planted bug has this name.
///
/// # Errors
/// A name that none has: whoever asks for it has called wrongly.
pub fn check_name(bug: &str) -> anyhow::Result<()> {
    if Bug::of_name(bug).is_none() {
        let names: Vec<&str> = Bug::ALL.into_iter().map(Bug::name).collect();
        bail!(
            "there is no planted bug `{bug}`\n  help    they are {}",
            names.join(", ")
        );
    }
    Ok(())
}
