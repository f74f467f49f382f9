//! Why a green result means something: histories made by hand, each judged exactly, and a product
//! with bugs planted into it, each of which has to be caught under its right name.

mod histories;
mod mutations;
mod script;

pub use histories::{Case, Report, cases, histories};
pub use mutations::{
    BUG_VARIABLE, BUGS, Bug, Caught, Hint, MutationReport, Trial, mutations, rotation,
};
pub use script::{ScriptError, parse};
