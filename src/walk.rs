//! The walk of a record through the rooms that `ARCHITECTURE.md` tells of, as it can be seen.
//!
//! Each room says at trace level that a request passed it, with its number in `room` (or its name
//! on the way back: `durable`, `committed`, `applied`, `ticket`, `reply`). `tests/walk.rs` holds
//! these lines against the walk; `--log corduroy::walk=trace` shows them.

/// The target of these lines. Rooms in other crates name it by its text.
pub const WALK: &str = "corduroy::walk";
