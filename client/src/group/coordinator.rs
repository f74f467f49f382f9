//! Where a group's coordinator is, and calls to it that are no part of a membership.

use std::sync::Arc;
use std::time::Duration;

use corduroy_protocol::ErrorCode;
use corduroy_protocol::messages::find_coordinator_response::Coordinator as Found;
use corduroy_protocol::messages::{FindCoordinatorRequest, FindCoordinatorResponse};
use tokio::time::{Instant, sleep_until};

use crate::client::ClientShared;
use crate::error::{Error, ErrorKind, Outcome};
use crate::metadata::{BrokerInfo, ClusterImage};
use crate::net::api::{Api, StrBytes};
use crate::net::connection::Connection;
use crate::net::pool::Pool;

/// The type of a group's key in FindCoordinator.
const GROUP_KEY: i8 = 0;

/// Longest wait for one answer of a coordinator; then it is looked up again.
const ANSWER_WAIT_MAX: Duration = Duration::from_secs(10);

/// A broker, with the address that FindCoordinator gave: it may be younger than the metadata.
#[derive(Clone, Debug)]
pub(crate) struct Coordinator {
    id: i32,
    image: Arc<ClusterImage>,
}

impl Coordinator {
    /// The connection to it.
    ///
    /// # Errors
    /// As [`Pool::node`].
    pub(crate) async fn reach(&self, pool: &Pool) -> Result<Arc<Connection>, Error> {
        pool.node(&self.image, self.id).await
    }
}

/// Asks the cluster who coordinates `group`.
///
/// # Errors
/// The first error that is not retriable, or the last one before `deadline`.
pub(crate) async fn find(
    client: &ClientShared,
    group: &str,
    deadline: Instant,
) -> Result<Coordinator, Error> {
    let name = StrBytes::from_string(group.to_owned());
    let answer = client
        .ask_any(
            deadline,
            |version| {
                let request = FindCoordinatorRequest::default().with_key_type(GROUP_KEY);
                if version >= 4 {
                    request.with_coordinator_keys(vec![name.clone()])
                } else {
                    request.with_key(name.clone())
                }
            },
            |answer| {
                let found = only(answer);
                match ErrorCode::from_code(found.error_code) {
                    ErrorCode::None => Ok(()),
                    code => Err(Error::broker(code, found.error_message.as_deref())),
                }
            },
        )
        .await?;
    let found = only(&answer);
    let id = found.node_id.0;
    let Some(broker) = BrokerInfo::new(id, &found.host, found.port, None) else {
        let message = format!("the coordinator has the port {}", found.port);
        return Err(
            Error::new(ErrorKind::Malformed, message).with_api(FindCoordinatorRequest::NAME)
        );
    };
    let mut image = ClusterImage::default();
    image.brokers.insert(id, Arc::new(broker));
    Ok(Coordinator {
        id,
        image: Arc::new(image),
    })
}

/// The one coordinator of an answer: from version 4 on, answers hold a list.
fn only(answer: &FindCoordinatorResponse) -> Found {
    match answer.coordinators.first() {
        Some(found) => found.clone(),
        None => Found::default()
            .with_node_id(answer.node_id)
            .with_host(answer.host.clone())
            .with_port(answer.port)
            .with_error_code(answer.error_code)
            .with_error_message(answer.error_message.clone()),
    }
}

/// Asks the coordinator of `group`, whoever that is by then, until it answers with something else
/// than a retriable error. `check` finds the error in an answer.
///
/// # Errors
/// The first error that is not retriable, or the last one before `deadline`. Its outcome is unknown
/// if any try may have taken effect.
pub(crate) async fn ask<A: Api>(
    client: &ClientShared,
    group: &str,
    deadline: Instant,
    build: impl Fn(i16) -> A,
    check: impl Fn(&A::Response) -> Result<(), Error>,
) -> Result<(A::Response, i32), Error> {
    let mut attempts = 0;
    let mut maybe_before = false;
    loop {
        attempts += 1;
        let asked = async {
            let coordinator = find(client, group, deadline).await?;
            let connection = coordinator.reach(client.metadata.pool()).await?;
            let left = deadline.saturating_duration_since(client.net.env.now());
            let limit = client
                .net
                .settings
                .request_timeout
                .min(ANSWER_WAIT_MAX)
                .min(left);
            let answer = connection.call(limit, &build).await?;
            match check(&answer) {
                Ok(()) => Ok((answer, coordinator.id)),
                Err(error) => Err(error.with_broker(connection.label())),
            }
        };
        let error = match asked.await {
            Ok(answered) => return Ok(answered),
            Err(error) => error,
        };
        maybe_before |= error.outcome() == Outcome::Unknown;
        let again =
            client.net.env.now() + client.net.retry_backoff().wait(attempts, &client.net.env);
        if !error.is_retriable() || again >= deadline {
            let outcome = if maybe_before {
                Outcome::Unknown
            } else {
                error.outcome()
            };
            let error = error.with_attempts(attempts).with_outcome(outcome);
            return Err(match error.context().api {
                Some(_) => error,
                None => error.with_api(A::NAME),
            });
        }
        sleep_until(again).await;
    }
}
