//! Corduroy's fault tests: real processes, real faults, a checker.
//!
//! A run writes a [`history`], the [`checker`] makes a [`verdict`] of it, the [`report`] shows it.

pub mod chance;
pub mod checker;
pub mod clean;
pub mod cli;
pub mod cluster;
pub mod coverage;
pub mod faults;
pub mod history;
pub mod planted;
pub mod preflight;
pub mod report;
pub mod run;
pub mod selftest;
pub mod topology;
pub mod trial;
pub mod verdict;
pub mod workload;
