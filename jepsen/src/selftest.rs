//! Why a green result means something: histories made by hand, each judged exactly, and a product
//! with bugs planted into it, each of which has to be caught under its right name.

mod histories;
mod mutations;
mod script;

pub use histories::{Case, Report, cases, histories};
pub use mutations::{
    BUGS, Bug, Caught, Hint, Judge, MutationReport, ROTATION, Trial, mutations, rotation,
};
pub use script::{ScriptError, parse};
