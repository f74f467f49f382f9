//! Corduroy's fault tests: real processes, real faults, a checker.
//!
//! A run writes a [`history`], the [`checker`] makes a [`verdict`] of it, the [`report`] shows it.

pub mod checker;
pub mod coverage;
pub mod history;
pub mod report;
pub mod verdict;
