//! The consumer protocol (KIP-848) as members, administrators and topics see it.

mod assignors;
mod classic_members;
mod heartbeats;
mod migration;
mod model;
mod timers;
mod world;
