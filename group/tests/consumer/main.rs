//! The consumer protocol (KIP-848) as members, administrators and topics see it.

mod assignors;
mod heartbeats;
mod model;
mod timers;
mod world;
