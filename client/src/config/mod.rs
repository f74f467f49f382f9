//! What a client can be told: Kafka's configuration names, with Kafka's defaults.
//!
//! Each name is one row of [`table::PROPERTIES`]; the typed builders set the same fields.

mod apply;
mod properties;
mod settings;
mod table;

pub(crate) use apply::{parse_servers, validate_group, validate_producer};
pub(crate) use properties::parse as parse_properties;
pub use settings::{Acks, GroupProtocol, Isolation, OutOfRange, Strategy};
pub(crate) use settings::{
    ClientSettings, GroupSettings, ProducerSettings, ReaderSettings, Settings,
};
pub use table::{PROPERTIES, Property, Scope, Support};
