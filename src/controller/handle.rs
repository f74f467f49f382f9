//! The way to the controller from every shard.

use std::ops::Range;
use std::time::Duration;

use corduroy_env::Env;
use corduroy_record::NodeId;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout_at};

use super::error::{RequestError, TopicError};
use super::image::TopicInfo;
use super::records::TopicRecord;
use super::requests::{
    ConfigAlteration, NewPartitions, NewTopic, NodeClaim, NodeGrant, Refusal, Reply, Request,
    TopicRef,
};

/// Requests of one node that wait for its controller task.
const REQUESTS_MAX: usize = 1024;

/// How long a block of producer ids may take.
const PRODUCER_IDS_TIMEOUT: Duration = Duration::from_secs(10);

/// One request on its way to the controller task.
pub(super) struct Job {
    pub(super) id: [u8; 16],
    pub(super) request: Request,
    pub(super) deadline: Instant,
    pub(super) answer: oneshot::Sender<Result<Reply, RequestError>>,
}

/// Where the controller task takes its requests from. Goes into [`super::ControllerParts`].
pub struct ControllerInbox(pub(super) mpsc::Receiver<Job>);

/// Asks the controller, wherever it leads. Send; clone = another handle.
///
/// A request carries an id: however often it is sent again on the way, it is carried out once.
/// Every method gives up after its timeout; the request may then yet be carried out.
#[derive(Clone)]
pub struct ControllerHandle {
    env: Env,
    jobs: mpsc::Sender<Job>,
}

impl ControllerHandle {
    /// A handle and the end that serves it. Requests wait until the controller starts.
    pub fn channel(env: &Env) -> (ControllerHandle, ControllerInbox) {
        let (sender, receiver) = mpsc::channel(REQUESTS_MAX);
        (
            ControllerHandle {
                env: env.clone(),
                jobs: sender,
            },
            ControllerInbox(receiver),
        )
    }

    /// Creates topics, each on its own: one result per topic, in order.
    pub async fn create_topics(
        &self,
        topics: Vec<NewTopic>,
        validate_only: bool,
        timeout: Duration,
    ) -> Vec<Result<TopicInfo, TopicError>> {
        let count = topics.len();
        self.topics(
            Request::CreateTopics {
                topics,
                validate_only,
            },
            count,
            timeout,
        )
        .await
    }

    /// Deletes topics, each on its own; answers with what they were.
    pub async fn delete_topics(
        &self,
        topics: Vec<TopicRef>,
        timeout: Duration,
    ) -> Vec<Result<TopicInfo, TopicError>> {
        let count = topics.len();
        self.topics(Request::DeleteTopics { topics }, count, timeout)
            .await
    }

    /// Adds partitions to topics, each on its own; answers with what they are then.
    pub async fn create_partitions(
        &self,
        topics: Vec<NewPartitions>,
        validate_only: bool,
        timeout: Duration,
    ) -> Vec<Result<TopicInfo, TopicError>> {
        let count = topics.len();
        self.topics(
            Request::CreatePartitions {
                topics,
                validate_only,
            },
            count,
            timeout,
        )
        .await
    }

    /// Changes settings, each resource on its own: one result per resource, in order.
    pub async fn alter_configs(
        &self,
        alterations: Vec<ConfigAlteration>,
        validate_only: bool,
        timeout: Duration,
    ) -> Vec<Result<(), TopicError>> {
        let count = alterations.len();
        let request = Request::AlterConfigs {
            alterations,
            validate_only,
        };
        match self.ask(request, timeout).await {
            Ok(Reply::Configs(results)) if results.len() == count => results
                .into_iter()
                .map(|result| result.map_err(TopicError::from))
                .collect(),
            other => all_failed(other, count),
        }
    }

    /// A block of producer ids that nobody else has; durable before this returns.
    pub async fn allocate_producer_ids(&self) -> Result<Range<i64>, RequestError> {
        match self
            .ask(Request::AllocateProducerIds, PRODUCER_IDS_TIMEOUT)
            .await?
        {
            Reply::ProducerIds { first, next } => Ok(first..next),
            Reply::Refused(refusal) => Err(RequestError::Refused(refusal)),
            _ => Err(RequestError::Unexpected),
        }
    }

    /// Registers a node, or announces its addresses again.
    pub async fn register_node(
        &self,
        claim: NodeClaim,
        timeout: Duration,
    ) -> Result<NodeGrant, RequestError> {
        match self.ask(Request::RegisterNode(claim), timeout).await? {
            Reply::Node(grant) => Ok(grant),
            Reply::Refused(refusal) => Err(RequestError::Refused(refusal)),
            _ => Err(RequestError::Unexpected),
        }
    }

    /// Removes a node that holds no replica any more; its id never returns.
    pub async fn remove_node(&self, node: NodeId, timeout: Duration) -> Result<(), RequestError> {
        match self
            .ask(Request::RemoveNode { node: node.get() }, timeout)
            .await?
        {
            Reply::Done => Ok(()),
            Reply::Refused(refusal) => Err(RequestError::Refused(refusal)),
            _ => Err(RequestError::Unexpected),
        }
    }

    async fn topics(
        &self,
        request: Request,
        count: usize,
        timeout: Duration,
    ) -> Vec<Result<TopicInfo, TopicError>> {
        match self.ask(request, timeout).await {
            Ok(Reply::Topics(results)) if results.len() == count => {
                results.into_iter().map(typed).collect()
            }
            other => all_failed(other, count),
        }
    }

    async fn ask(&self, request: Request, timeout: Duration) -> Result<Reply, RequestError> {
        let deadline = self.env.now() + timeout;
        let (answer, answered) = oneshot::channel();
        let id = *self.env.random_uuid().as_bytes();
        let job = Job {
            id,
            request,
            deadline,
            answer,
        };
        let answered = async {
            self.jobs
                .send(job)
                .await
                .map_err(|_| RequestError::Stopping)?;
            answered.await.map_err(|_| RequestError::Stopping)?
        };
        timeout_at(deadline, answered)
            .await
            .unwrap_or(Err(RequestError::Timeout))
    }
}

fn typed(result: Result<TopicRecord, Refusal>) -> Result<TopicInfo, TopicError> {
    result.map(|record| record.info()).map_err(TopicError::from)
}

fn all_failed<T>(reply: Result<Reply, RequestError>, count: usize) -> Vec<Result<T, TopicError>> {
    let error = match reply {
        Err(error) => TopicError::from(error),
        Ok(Reply::Refused(refusal)) => TopicError::from(refusal),
        Ok(_) => TopicError::from(RequestError::Unexpected),
    };
    (0..count).map(|_| Err(error.clone())).collect()
}
