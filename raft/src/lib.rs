//! One Raft replica per partition over openraft: log store, transport, liveness.
#![allow(dead_code)]

mod runtime;
