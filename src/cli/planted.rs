//! What a build with planted bugs says before anything else, and which of them it takes.

use corduroy_env::planted::{Bug, VARIABLE, choose_from_environment};

use super::error::CliError;

/// Chooses the bug that the environment names, and says so for everyone to see.
///
/// # Errors
/// A name that no bug has.
pub(super) fn announce() -> Result<(), CliError> {
    match choose_from_environment() {
        Ok(bug) => {
            // An error, not a warning: no filter in use hides it.
            tracing::error!(
                bug = bug.map_or("none", Bug::name),
                "THIS BUILD HOLDS PLANTED BUGS and is for fault tests only: one of them is switched \
                 on by {VARIABLE} and loses or corrupts data on purpose"
            );
            Ok(())
        }
        Err(name) => {
            let names: Vec<&str> = Bug::ALL.into_iter().map(Bug::name).collect();
            Err(CliError::usage(format!("there is no planted bug `{name}`"))
                .fact("asked", format!("{VARIABLE}={name}"))
                .fact("known", names.join(", "))
                .help(format!("unset {VARIABLE}, or give it one of these names")))
        }
    }
}
