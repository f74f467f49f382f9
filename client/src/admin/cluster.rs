//! Who the cluster is.

use corduroy_protocol::ErrorCode;
use corduroy_protocol::messages::{DescribeClusterRequest, MetadataRequest};

use super::{Admin, check};
use crate::error::{Error, ErrorKind};
use crate::net::api::Api;

/// A broker.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BrokerDescription {
    /// Its id.
    pub id: i32,
    /// The host that it tells clients.
    pub host: String,
    /// The port that it tells clients.
    pub port: i32,
    /// Where it stands.
    pub rack: Option<String>,
}

/// A cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClusterDescription {
    /// Its id.
    pub cluster_id: Option<String>,
    /// The broker to which topic changes go.
    pub controller: Option<i32>,
    /// The brokers, by id.
    pub brokers: Vec<BrokerDescription>,
}

impl Admin {
    /// The cluster's id, controller and brokers.
    ///
    /// # Errors
    /// NotServing where every broker that answers hears no majority of its cluster; else why none
    /// answered.
    pub async fn describe_cluster(&self) -> Result<ClusterDescription, Error> {
        let deadline = self.client.api_deadline();
        let described = self
            .client
            .ask_each(
                deadline,
                |_version| DescribeClusterRequest::default().with_endpoint_type(1),
                |answer| {
                    let message = answer.error_message.as_deref();
                    match (ErrorCode::from_code(answer.error_code), message) {
                        (ErrorCode::BrokerNotAvailable, Some(words)) => {
                            Err(Error::new(ErrorKind::NotServing, words))
                        }
                        _ => check(answer.error_code, message),
                    }
                },
            )
            .await;
        let mut cluster = match described {
            Ok(answer) => ClusterDescription {
                cluster_id: Some(answer.cluster_id.to_string()),
                controller: Some(answer.controller_id.0).filter(|id| *id >= 0),
                brokers: answer
                    .brokers
                    .into_iter()
                    .map(|broker| BrokerDescription {
                        id: broker.broker_id.0,
                        host: broker.host.to_string(),
                        port: broker.port,
                        rack: broker.rack.map(|rack| rack.to_string()),
                    })
                    .collect(),
            },
            // Before Kafka 2.8, metadata says the same.
            Err(error)
                if error.kind() == ErrorKind::Unsupported
                    && error.context().api == Some(DescribeClusterRequest::NAME) =>
            {
                self.cluster_from_metadata().await?
            }
            Err(error) => return Err(error),
        };
        cluster.brokers.sort_by_key(|broker| broker.id);
        Ok(cluster)
    }

    async fn cluster_from_metadata(&self) -> Result<ClusterDescription, Error> {
        let deadline = self.client.api_deadline();
        let answer = self
            .client
            .ask_any(
                deadline,
                |_version| MetadataRequest::default().with_topics(Some(Vec::new())),
                |_answer| Ok(()),
            )
            .await?;
        Ok(ClusterDescription {
            cluster_id: answer.cluster_id.map(|id| id.to_string()),
            controller: Some(answer.controller_id.0).filter(|id| *id >= 0),
            brokers: answer
                .brokers
                .into_iter()
                .map(|broker| BrokerDescription {
                    id: broker.node_id.0,
                    host: broker.host.to_string(),
                    port: broker.port,
                    rack: broker.rack.map(|rack| rack.to_string()),
                })
                .collect(),
        })
    }
}
