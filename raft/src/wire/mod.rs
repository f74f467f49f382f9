//! What peers say to each other, byte by byte: `docs/design/rpc.md` is the specification.

mod frame;
#[cfg(test)]
mod golden;
mod hello;
mod message;
mod reader;

pub(crate) use frame::{Frame, FrameEncoder, WireError};
pub use hello::{Hello, HelloError, Purpose, read_hello};
pub(crate) use hello::{answer_hello, check_hello, offer_hello};
pub(crate) use message::*;
pub(crate) use reader::FrameReader;
