//! Why a green result means something: histories made by hand, each judged exactly, and a product
//! with bugs planted into it, each of which has to be caught under its right name.

mod bugs;
mod histories;
mod mutations;
mod script;

pub use bugs::{BUGS, Bug, Hint, Judge};
pub use histories::{Case, Report, cases, histories};
pub use mutations::{Caught, Control, MutationReport, ROTATION, Trial, mutations, rotation};
pub use script::{ScriptError, parse};
