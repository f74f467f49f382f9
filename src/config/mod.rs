//! Configuration: one table of rows that everything else reads.
//!
//! Three layers that never mix. **Node** settings (listeners, directories, cores) belong to one
//! process and need a restart. **Cluster** settings are replicated by the controller and change
//! live; they carry Kafka's broker names. **Topic** settings carry Kafka's topic names. The
//! parser, the generated documentation and DescribeConfigs all come from the same rows
//! ([`table`]), so that none of them can know a key that another does not.

pub mod docs;
pub mod effective;
pub mod key;
pub mod nearest;
pub mod node;
pub mod resolved;
pub mod rows;
pub mod source;
pub mod table;

pub use effective::{Effective, Origin, SynonymValue};
pub use key::{Allowed, ConfigKey, DefaultValue, Kind, Scope, Unit, ValueError};
pub use node::NodeConfig;
pub use resolved::{CleanupPolicy, ClusterConfigs, GroupConfigs, TimestampType, TopicConfigs};
pub use source::{ConfigError, Layer, Layers};
