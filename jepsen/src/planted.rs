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

/// The node with planted bugs: the one that was named, or the one that [`BUILD`] makes. `None`: it
/// is not there.
///
/// # Errors
/// A program that is no such build.
pub fn find(asked: Option<&Path>) -> anyhow::Result<Option<PathBuf>> {
    let built = || {
        let own = std::env::current_exe().ok()?;
        let beside = own.parent()?.parent()?.join(PLACE);
        let here = Path::new("target").join(PLACE);
        [beside, here].into_iter().find(|path| path.is_file())
    };
    let found = match asked {
        Some(path) => path.is_file().then(|| path.to_owned()),
        None => built(),
    };
    let Some(path) = found else { return Ok(None) };
    let path = std::path::absolute(path)?;
    let output = Command::new(&path)
        .arg("--version")
        .output()
        .with_context(|| format!("cannot run {}", path.display()))?;
    let version = String::from_utf8_lossy(&output.stdout);
    if !version.contains(MARK) {
        bail!(
            "{} ({}) is a build without planted bugs: it would be tested as it is\n  help    {BUILD}",
            path.display(),
            version.trim()
        );
    }
    Ok(Some(path))
}

/// The program of a run with this bug.
///
/// # Errors
/// A name that no bug has, no program, or one without planted bugs.
pub fn binary_with(bug: &str, asked: Option<&Path>) -> anyhow::Result<PathBuf> {
    if Bug::of_name(bug).is_none() {
        let names: Vec<&str> = Bug::ALL.into_iter().map(Bug::name).collect();
        bail!(
            "there is no planted bug `{bug}`\n  help    they are {}",
            names.join(", ")
        );
    }
    find(asked)?.with_context(|| match asked {
        Some(path) => format!("there is no program at {}", path.display()),
        None => format!("there is no build with planted bugs\n  help    {BUILD}"),
    })
}
