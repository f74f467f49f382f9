//! The cluster's topics, configurations, groups and offsets.

mod cluster;
mod configs;
mod groups;
mod log_end;
mod topics;

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use corduroy_protocol::ErrorCode;

pub use cluster::{BrokerDescription, ClusterDescription};
pub use configs::{AlterConfigs, ConfigEntry, ConfigResource, ConfigSource};
pub use groups::{GroupDescription, GroupListing, MemberDescription};
pub use topics::{
    CreateTopic, CreatedTopic, DescribeTopic, PartitionDescription, PartitionOffsets,
    TopicDescription, TopicListing,
};

use crate::client::ClientShared;
use crate::config::Isolation;
use crate::error::{Error, Outcome};
use crate::metadata::Asker;
use crate::offsets::{ListedOffset, OffsetSpec, Question, list};

/// The future of an admin call that is built step by step, then awaited.
pub type AdminCall<T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send>>;

/// Looks at and changes a cluster. Made by [`Client::admin`](crate::Client::admin); cheap to clone.
///
/// Each call tries again, on whichever broker can answer, for at most `default.api.timeout.ms`.
/// Calls that only look are cancel-safe; one that changes something may take effect although it
/// was dropped.
#[derive(Clone)]
pub struct Admin {
    client: Arc<ClientShared>,
}

impl Admin {
    pub(crate) fn new(client: Arc<ClientShared>) -> Admin {
        Admin { client }
    }

    /// Offsets of a topic's partitions, all of them where `partitions` is empty.
    ///
    /// # Errors
    /// UnknownTopic, and the first error of a partition.
    pub async fn list_offsets(
        &self,
        topic: &str,
        partitions: &[i32],
        spec: OffsetSpec,
        isolation: Isolation,
    ) -> Result<BTreeMap<i32, ListedOffset>, Error> {
        let deadline = self.client.api_deadline();
        let topic = self
            .client
            .metadata
            .topic(topic, Asker::Reader, deadline)
            .await?;
        let wanted = match partitions {
            [] => (0..topic.partitions.len() as i32)
                .map(|partition| (partition, spec))
                .collect(),
            some => some.iter().map(|partition| (*partition, spec)).collect(),
        };
        list(
            &self.client,
            Question {
                topic: &topic.name,
                wanted,
                isolation,
            },
            deadline,
        )
        .await
    }
}

/// The error in an answer, if there is one.
fn check(code: i16, message: Option<&str>) -> Result<(), Error> {
    match ErrorCode::from_code(code) {
        ErrorCode::None => Ok(()),
        // Decided or not, it did not show in time: a new topic without leaders, for one.
        code @ ErrorCode::RequestTimedOut => {
            Err(Error::broker(code, message).with_outcome(Outcome::Unknown))
        }
        code => Err(Error::broker(code, message)),
    }
}
